//! Original and optimized functions must do the same.

use clif_memopt_filetest::exec::{Outcome, Verdict, compare};
use cranelift_codegen::ir::{Endianness, Function};

use super::{Finding, Oracle, Setup};
use crate::case::Case;
use crate::shape::Tally;

/// Runs each invocation on the case's functions and on `optimized`.
///
/// # Errors
/// A finding: they differ, or the original crashes.
pub fn check_execution(
    case: &Case,
    optimized: &[Function],
    setup: &Setup,
    tally: &mut Tally,
) -> Result<(), Finding> {
    if case.functions.iter().any(has_big_endian) {
        tally.mark("runs.not_compiled", case.invocations.len() as u64);
        return Ok(());
    }
    let isa = if case.mixed_tags {
        &setup.plain_isa
    } else {
        &setup.isa
    };
    let results = compare(&case.functions, optimized, &case.invocations, isa)
        .map_err(|error| Finding::new(Oracle::Generator, format!("{error:#}")))?;
    for result in &results {
        tally.mark(end_of(&result.original.outcome), 1);
        match &result.verdict {
            Verdict::Same => {}
            Verdict::Different { detail } => {
                let message = format!("{}: {detail}", result.text);
                return Err(Finding::new(Oracle::Execution, message));
            }
            Verdict::Undefined { detail } => {
                let message = format!("{}: {detail}", result.text);
                return Err(Finding::new(Oracle::Generator, message));
            }
        }
    }
    Ok(())
}

/// Whether a function has accesses that the hosts cannot compile.
pub(super) fn has_big_endian(function: &Function) -> bool {
    let insts = function
        .layout
        .blocks()
        .flat_map(|block| function.layout.block_insts(block));
    insts
        .filter_map(|inst| function.dfg.insts[inst].memflags_data(&function.dfg))
        .any(|flags| flags.explicit_endianness() == Some(Endianness::Big))
}

fn end_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Returned(_) => "runs.returned",
        Outcome::Trapped(_) => "runs.trapped",
        Outcome::Stopped => "runs.stopped",
        Outcome::Crashed(_) => "runs.crashed",
        Outcome::TimedOut => "runs.timed_out",
    }
}
