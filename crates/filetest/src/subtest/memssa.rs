//! `test memssa [walker] [classes]`: the function with its MemorySSA.

use anyhow::{Result, bail};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::Options;
use cranelift_memopt::print::{self, MemSsaStyle};

use super::{PrintSubtest, Printed};

/// The subtest.
pub(crate) struct MemSsa {
    style: MemSsaStyle,
    options: Options,
}

impl MemSsa {
    /// The subtest that the flags ask for.
    pub(crate) fn new(flags: &[&str], options: Options) -> Result<MemSsa> {
        let mut style = MemSsaStyle::default();
        for flag in flags {
            match *flag {
                "walker" => style.walker = true,
                "classes" => style.classes = true,
                _ => bail!("unknown option '{flag}'"),
            }
        }
        Ok(MemSsa { style, options })
    }
}

impl PrintSubtest for MemSsa {
    fn print(&self, functions: &[Function], isa: &dyn TargetIsa) -> Result<Vec<Printed>> {
        functions
            .iter()
            .map(|function| Ok(print::memssa(function, isa, &self.options, self.style)?.into()))
            .collect()
    }
}
