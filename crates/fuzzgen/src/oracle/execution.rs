//! Original and optimized functions must do the same.

use clif_memopt_filetest::exec::{Outcome, PANICKED, Verdict, compare};
use cranelift_codegen::ir::Function;

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
    if case.invocations.is_empty() {
        return Ok(());
    }
    if !case.is_runnable() {
        tally.mark("runs.not_compiled", case.invocations.len() as u64);
        return Ok(());
    }
    let run = |isa| compare(&case.functions, optimized, &case.invocations, isa);
    let mut results = run(case.isa(setup));
    // Assertions of Cranelift's own optimizer fail in debug builds for some stores in loops.
    if results
        .as_ref()
        .is_err_and(|error| format!("{error:#}").contains(PANICKED))
    {
        tally.mark("runs.cranelift_panicked", case.invocations.len() as u64);
        results = run(&setup.plain_isa);
    }
    let results = results.map_err(|error| Finding::new(Oracle::Generator, format!("{error:#}")))?;
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

fn end_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Returned(_) => "runs.returned",
        Outcome::Trapped(_) => "runs.trapped",
        Outcome::Stopped => "runs.stopped",
        Outcome::Thrown { .. } => "runs.thrown",
        Outcome::Crashed(_) => "runs.crashed",
        Outcome::TimedOut => "runs.timed_out",
    }
}
