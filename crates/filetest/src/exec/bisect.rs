//! Which rewrite is at fault: the smallest fuel that shows a difference.

use anyhow::{Result, bail};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_memopt::{Action, Error, Options};

use super::{Invocation, Verdict, compare};
use crate::options::optimize_functions;

/// What a search for the rewrite at fault came to.
#[derive(Clone, Debug)]
pub enum Bisection {
    /// Original and optimized functions do the same.
    Same {
        /// How many rewrites there were.
        rewrites: u64,
    },
    /// They do not, from this rewrite on.
    Different(BadRewrite),
}

/// The first rewrite after which optimized functions differ from the original ones.
#[derive(Clone, Debug)]
pub struct BadRewrite {
    /// The smallest fuel that shows the difference; 0 if it shows without any rewrite.
    pub fuel: u64,
    /// The rewrite with that number: its function and its remark.
    pub rewrite: Option<String>,
    /// What differs.
    pub difference: Difference,
}

/// In what optimized functions differ from the original ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The line of the file that shows it; 0 if none does.
    pub line: usize,
    /// The run line and how its runs differ, or what the optimizer's own verifiers object to.
    pub text: String,
}

/// Searches for the smallest fuel with which optimized and original functions differ when run, or
/// with which the verifiers and the checker that `options` turn on object. `options.fuel` bounds the
/// search. `progress` is called before each step with its number and how many there are at most.
///
/// # Errors
/// As [`run_comparison`](super::run_comparison); and an invocation that tests nothing.
pub fn bisect(
    original: &[Function],
    invocations: &[Invocation],
    options: &Options,
    isa: &OwnedTargetIsa,
    progress: &dyn Fn(u64, u64),
) -> Result<Bisection> {
    let rewrites = rewrites(original, options, isa)?;
    let count = rewrites.len() as u64;
    let mut differs = |fuel| {
        progress(fuel, count);
        difference(original, invocations, &with_fuel(options, fuel), isa)
    };
    Ok(match first_bad(count, &mut differs)? {
        None => Bisection::Same { rewrites: count },
        Some((fuel, difference)) => Bisection::Different(BadRewrite {
            fuel,
            rewrite: fuel
                .checked_sub(1)
                .and_then(|index| rewrites.into_iter().nth(index as usize)),
            difference,
        }),
    })
}

/// The smallest fuel that `differs`, given that all of it, `most`, does. Every fuel is tried: one
/// rewrite may hide what another did wrong, so that a search by halves could miss the first.
fn first_bad<T>(
    most: u64,
    differs: &mut dyn FnMut(u64) -> Result<Option<T>>,
) -> Result<Option<(u64, T)>> {
    let Some(last) = differs(most)? else {
        return Ok(None);
    };
    for fuel in 0..most {
        if let Some(found) = differs(fuel)? {
            return Ok(Some((fuel, found)));
        }
    }
    Ok(Some((most, last)))
}

fn with_fuel(options: &Options, fuel: u64) -> Options {
    Options {
        fuel: Some(fuel),
        ..options.clone()
    }
}

/// Every rewrite in order, right or wrong.
fn rewrites(
    functions: &[Function],
    options: &Options,
    isa: &OwnedTargetIsa,
) -> Result<Vec<String>> {
    let options = Options {
        remarks: true,
        verify: false,
        check: false,
        ..options.clone()
    };
    let optimized = optimize_functions(functions, &options, &**isa)?;
    let rewrites = optimized.iter().flat_map(|(function, report)| {
        let removed = report
            .remarks
            .iter()
            .filter(|remark| remark.action == Action::Removed);
        removed.map(|remark| format!("function {}: {remark}", function.name))
    });
    Ok(rewrites.collect())
}

fn difference(
    original: &[Function],
    invocations: &[Invocation],
    options: &Options,
    isa: &OwnedTargetIsa,
) -> Result<Option<Difference>> {
    let optimized: Vec<Function> = match optimize_functions(original, options, &**isa) {
        Ok(results) => results.into_iter().map(|(function, _)| function).collect(),
        Err(error) => {
            return match error.downcast_ref::<Error>() {
                Some(Error::Verifier { .. } | Error::Unproven { .. }) => Ok(Some(Difference {
                    line: 0,
                    text: format!("{error:#}"),
                })),
                _ => Err(error),
            };
        }
    };
    if invocations.is_empty() {
        return Ok(None);
    }
    for result in compare(original, &optimized, invocations, isa)? {
        match result.verdict {
            Verdict::Same => {}
            Verdict::Different { detail } => {
                return Ok(Some(Difference {
                    line: result.line,
                    text: format!("{}: {detail}", result.text),
                }));
            }
            Verdict::Undefined { detail } => {
                bail!("run line '{}' tests nothing: {detail}", result.text)
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of the fuels up to `most` that `bad` holds of, and how many were tried.
    fn search(most: u64, bad: impl Fn(u64) -> bool) -> (Option<u64>, u64) {
        let mut tried = 0;
        let mut differs = |fuel| {
            tried += 1;
            Ok(bad(fuel).then_some(()))
        };
        let found = first_bad(most, &mut differs).unwrap();
        (found.map(|(fuel, ())| fuel), tried)
    }

    #[test]
    fn the_first_bad_fuel_is_found() {
        for first in 0..=9 {
            assert_eq!(search(9, |fuel| fuel >= first).0, Some(first));
        }
        assert_eq!(search(0, |_| true).0, Some(0));
    }

    #[test]
    fn a_later_rewrite_may_hide_an_earlier_one() {
        assert_eq!(search(9, |fuel| fuel == 2 || fuel > 6).0, Some(2));
    }

    #[test]
    fn one_run_suffices_where_nothing_differs() {
        assert_eq!(search(9, |_| false), (None, 1));
    }

    #[test]
    fn errors_end_the_search() {
        let mut differs = |_| -> Result<Option<()>> { bail!("no") };
        assert!(first_bad(9, &mut differs).is_err());
    }
}
