//! `test effects`: the function with the effects of its instructions.

use anyhow::Result;
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::{Options, print};

use super::{PrintSubtest, Printed};

/// The subtest.
pub(crate) struct Effects {
    pub(crate) options: Options,
}

impl PrintSubtest for Effects {
    fn print(&self, functions: &[Function], isa: &dyn TargetIsa) -> Result<Vec<Printed>> {
        functions
            .iter()
            .map(|function| Ok(print::effects(function, isa, &self.options)?.into()))
            .collect()
    }
}
