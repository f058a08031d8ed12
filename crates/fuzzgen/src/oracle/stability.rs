//! More of the same must not make things worse.

use clif_memopt_measure::{memory_ops, worse_path};
use cranelift_codegen::Context;
use cranelift_codegen::ir::Function;

use super::{Finding, Oracle, Setup, optimize_unchecked};
use crate::shape::Tally;

/// The memory operations of a function.
pub(crate) fn count_ops(function: &Function) -> u64 {
    let ops = memory_ops(function);
    function
        .layout
        .blocks()
        .map(|block| u64::from(ops[block]))
        .sum()
}

/// Optimizes an optimized function again: no more memory operations may be left than before.
///
/// # Errors
/// A finding: there are more.
pub fn check_second_run(
    optimized: &Function,
    setup: &Setup,
    tally: &mut Tally,
) -> Result<(), Finding> {
    let again = optimize_unchecked(optimized, setup)?;
    let (first, second) = (count_ops(optimized), count_ops(&again));
    if second > first {
        let message = format!(
            "{}: {first} memory operations, then {second}",
            optimized.name
        );
        return Err(Finding::new(Oracle::SecondRun, message));
    }
    tally.mark("second_run.improved", u64::from(second < first));
    tally.mark("second_run.ops_less", first - second);
    Ok(())
}

/// Compares what Cranelift's own optimizer leaves of both.
///
/// # Errors
/// A finding: a path of `optimized` has more memory operations.
pub fn check_worse_paths(
    original: &Function,
    optimized: &Function,
    setup: &Setup,
) -> Result<(), Finding> {
    let after_cranelift = |function: &Function| {
        let mut context = Context::for_function(function.clone());
        context
            .optimize(&*setup.isa, &mut Default::default())
            .map_err(|error| Finding::new(Oracle::Generator, format!("Cranelift: {error}")))?;
        Ok(context.func)
    };
    let (before, after) = (after_cranelift(original)?, after_cranelift(optimized)?);
    match worse_path(&before, &after) {
        None => Ok(()),
        Some(path) => {
            let message = format!("{}: {path}", original.name);
            Err(Finding::new(Oracle::WorsePath, message))
        }
    }
}
