//! The target as code is run for it: the one of the file, with what running needs.

use anyhow::{Context as _, Result};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable as _};
use target_lexicon::{OperatingSystem, Triple};

/// Settings that running code needs, whatever the file sets.
const RUN_FLAGS: [(&str, &str); 4] = [
    // Code is loaded at its final address.
    ("is_pic", "false"),
    // Functions of the C library may lie anywhere.
    ("use_colocated_libcalls", "false"),
    // Cranelift needs it for `tail` functions.
    ("preserve_frame_pointers", "true"),
    // Cranelift needs it for i128 in the platform's convention.
    ("enable_llvm_abi_extensions", "true"),
];

/// The target `isa` for Linux, with [`RUN_FLAGS`] set.
pub(crate) fn runnable(isa: &OwnedTargetIsa) -> Result<OwnedTargetIsa> {
    let mut flags = settings::builder();
    for value in isa.flags().iter() {
        flags
            .set(value.name, &value.value_string())
            .with_context(|| format!("setting {}", value.name))?;
    }
    for (name, value) in RUN_FLAGS {
        flags.set(name, value)?;
    }
    let mut builder = isa::lookup(linux(isa.triple()))?;
    for value in isa.isa_flags() {
        builder
            .set(value.name, &value.value_string())
            .with_context(|| format!("setting {}", value.name))?;
    }
    Ok(builder.finish(settings::Flags::new(flags))?)
}

/// The triple with an operating system, and so with an object format.
fn linux(triple: &Triple) -> Triple {
    let mut triple = triple.clone();
    triple.operating_system = OperatingSystem::Linux;
    triple.binary_format = target_lexicon::BinaryFormat::Elf;
    triple
}
