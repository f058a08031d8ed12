//! `test alias`: how each pair of accesses aliases.

use anyhow::Result;
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::{Options, print};

use super::{PrintSubtest, Printed};

/// The subtest.
pub(crate) struct Alias {
    pub(crate) options: Options,
}

impl PrintSubtest for Alias {
    fn print(&self, functions: &[Function], isa: &dyn TargetIsa) -> Result<Vec<Printed>> {
        functions
            .iter()
            .map(|function| Ok(print::alias(function, isa, &self.options)?.into()))
            .collect()
    }
}
