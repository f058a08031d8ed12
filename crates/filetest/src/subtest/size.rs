//! `test size [passes=A,B] ...`: what Cranelift makes of the function, before and after the optimizer.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use clif_memopt_measure::{Counts, measure};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::Options;

use super::{PrintSubtest, Printed};
use crate::options::optimize_functions;
use crate::source::InFunction;

/// The subtest.
pub(crate) struct Size {
    pub(crate) options: Options,
}

impl PrintSubtest for Size {
    fn print(&self, functions: &[Function], isa: &dyn TargetIsa) -> Result<Vec<Printed>> {
        let optimized = optimize_functions(functions, &self.options, isa)?;
        functions
            .iter()
            .zip(optimized)
            .enumerate()
            .map(|(index, (original, (optimized, report)))| {
                let name = || InFunction::new(index, original);
                let before = measure(original, isa).with_context(name)?;
                let after = measure(&optimized, isa).with_context(name)?;
                Ok(Printed {
                    text: table(before, after)?,
                    report: Some(report),
                })
            })
            .collect()
    }
}

/// One line for each count.
fn table(before: Counts, after: Counts) -> Result<String> {
    let rows = [
        ("insts", before.insts, after.insts),
        ("loads", before.loads, after.loads),
        ("stores", before.stores, after.stores),
        ("slots", before.slots, after.slots),
        ("frame_bytes", before.frame_bytes, after.frame_bytes),
        ("code_bytes", before.code_bytes, after.code_bytes),
    ];
    let mut text = String::new();
    for (name, before, after) in rows {
        writeln!(text, "{name} {before} -> {after}")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_before_and_after() {
        let before = Counts {
            loads: 3,
            ..Counts::default()
        };
        let text = table(before, Counts::default()).unwrap();
        assert!(text.starts_with("insts 0 -> 0\nloads 3 -> 0\n"), "{text}");
    }
}
