//! The targets that the tools compile for, with settings under which all common CLIF compiles.

use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use cranelift_codegen::isa::{self, LookupError, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable, SetError};
use target_lexicon::{PointerWidth, Triple};

/// Settings before a caller's own.
///
/// `speed` is the level that is measured. The frame pointer is kept because CLIF may read it. Stack
/// probes would only add the same code on both sides. The rest allows what a target refuses by
/// default: 128-bit and many return values in C conventions, thread-local symbols, switched stacks.
/// Cranelift's verifier is left to the tools, which run it once on what goes in and what comes out.
const SETTINGS: &[(&str, &str)] = &[
    ("opt_level", "speed"),
    ("enable_verifier", "false"),
    ("preserve_frame_pointers", "true"),
    ("enable_probestack", "false"),
    ("enable_llvm_abi_extensions", "true"),
    ("enable_multi_ret_implicit_sret", "true"),
    ("tls_model", "elf_gd"),
    ("stack_switch_model", "basic"),
];

/// The target that `triple_text` names: a full triple, or an architecture alone, which stands for
/// Linux on it.
///
/// # Errors
/// The text is no triple, or no target that this build can compile for.
pub fn isa_for(triple_text: &str) -> anyhow::Result<OwnedTargetIsa> {
    isa_with(triple_text, &[])
}

/// As [`isa_for`], under further settings: `name` or `name=value`, as on the `set` and `target`
/// lines of a filetest. The later of two wins.
///
/// # Errors
/// As [`isa_for`], or a setting is not known.
pub fn isa_with(triple_text: &str, own: &[&str]) -> anyhow::Result<OwnedTargetIsa> {
    let triple = parse_triple(triple_text)?;
    let mut isa = isa::lookup(triple).map_err(|error| no_backend(triple_text, error))?;
    let mut shared = settings::builder();
    for (name, value) in SETTINGS {
        shared
            .set(name, value)
            .with_context(|| format!("setting {name}"))?;
    }
    for setting in own {
        apply(setting, &mut shared, &mut isa)?;
    }
    isa.finish(settings::Flags::new(shared))
        .map_err(|error| anyhow!("target '{triple_text}': {error}"))
}

fn parse_triple(text: &str) -> anyhow::Result<Triple> {
    let full = if text.contains('-') {
        text.to_string()
    } else {
        format!("{text}-unknown-linux-gnu")
    };
    let triple = Triple::from_str(&full)
        .map_err(|error| anyhow!("unknown target '{text}': {error} (try x86_64 or aarch64)"))?;
    match triple.pointer_width() {
        Ok(PointerWidth::U64) => Ok(triple),
        Ok(_) => bail!("target {triple} is not supported: pointers must be 64 bits wide"),
        Err(()) => bail!("unknown target '{text}' (try x86_64 or aarch64)"),
    }
}

fn no_backend(text: &str, error: LookupError) -> anyhow::Error {
    let why = match error {
        LookupError::SupportDisabled => "is not built in",
        LookupError::Unsupported => "has no backend in Cranelift",
    };
    anyhow!("target '{text}' {why} (built in: x86_64, aarch64)")
}

/// Applies a setting to all targets if it is one for all, else to this one.
fn apply(
    setting: &str,
    shared: &mut settings::Builder,
    isa: &mut isa::Builder,
) -> anyhow::Result<()> {
    match apply_to(setting, shared) {
        Err(SetError::BadName(_)) => apply_to(setting, isa),
        done => done,
    }
    .map_err(|error| match error {
        SetError::BadName(name) => anyhow!("unknown setting '{name}'"),
        SetError::BadType => anyhow!("setting '{setting}': wrong kind of value"),
        SetError::BadValue(expected) => anyhow!("setting '{setting}': expected {expected}"),
    })
}

fn apply_to(setting: &str, builder: &mut dyn Configurable) -> Result<(), SetError> {
    match setting.split_once('=') {
        Some((name, value)) => builder.set(name, value),
        None => builder.enable(setting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(triple: &str) -> String {
        isa_for(triple)
            .err()
            .expect("the target is refused")
            .to_string()
    }

    #[test]
    fn knows_short_and_full_names() {
        for name in [
            "x86_64",
            "aarch64",
            "aarch64-apple-darwin",
            "x86_64-unknown-linux-gnu",
        ] {
            isa_for(name).unwrap();
        }
        assert_eq!(
            isa_for("x86_64").unwrap().triple().to_string(),
            "x86_64-unknown-linux-gnu"
        );
    }

    #[test]
    fn refuses_what_it_cannot_compile_for() {
        assert!(refusal("i686").contains("64 bits"), "{}", refusal("i686"));
        assert!(refusal("riscv32").contains("not"), "{}", refusal("riscv32"));
        assert!(
            refusal("riscv64").contains("not built in"),
            "{}",
            refusal("riscv64")
        );
        assert!(
            refusal("nonsense").contains("unknown target"),
            "{}",
            refusal("nonsense")
        );
        assert!(refusal("").contains("unknown target"), "{}", refusal(""));
    }

    #[test]
    fn settings_of_both_kinds_apply() {
        let isa = isa_with("x86_64", &["opt_level=none", "has_avx"]).unwrap();
        assert_eq!(isa.flags().opt_level(), settings::OptLevel::None);
        assert!(isa_with("x86_64", &["no_such"]).is_err());
        assert!(isa_with("x86_64", &["opt_level=fastest"]).is_err());
    }
}
