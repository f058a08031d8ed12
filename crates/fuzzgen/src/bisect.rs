//! Which rewrite of a case is at fault.

use clif_memopt_filetest::exec::{BadRewrite, Bisection, bisect};

use crate::case::Case;
use crate::oracle::{Finding, Oracle, Setup, guarded};

/// Searches for the first rewrite after which the case differs when run, or to which the optimizer's
/// verifiers object. None if there is none, or the case cannot be run.
pub fn first_bad_fuel(case: &Case, setup: &Setup) -> Option<BadRewrite> {
    let isa = case.isa(setup);
    let runs = if case.is_runnable() {
        &case.invocations[..]
    } else {
        &[]
    };
    let found = guarded(Oracle::Execution, || {
        bisect(&case.functions, runs, &setup.options, isa, &|_, _| {})
            .map_err(|error| Finding::new(Oracle::Execution, format!("{error:#}")))
    });
    match found {
        Ok(Bisection::Different(bad)) => Some(bad),
        Ok(Bisection::Same { .. }) | Err(_) => None,
    }
}
