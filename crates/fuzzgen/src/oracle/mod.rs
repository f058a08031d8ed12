//! The oracles: what must hold of every case. Each is a function; [`check_all`] asks all of them.

mod clobbers;
mod execution;
mod interpretation;
mod machine;
mod permutation;
mod stability;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_memopt::{Optimizer, Options, Report};

pub use clobbers::{check_clobbers, check_form};
pub use execution::check_execution;
pub use interpretation::check_interpretation;
pub use permutation::{check_permutations, permuted};
pub use stability::{check_second_run, check_worse_paths};

use crate::case::Case;
use crate::shape::Tally;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Oracle {
    /// The case itself: valid, and its original neither crashes nor runs for long.
    Generator,
    /// The optimizer succeeds, and its own verifiers are content.
    Optimizer,
    /// Results, trap and memory are those of the original.
    Execution,
    /// Results, trap and memory are those of the original in Cranelift's interpreter.
    Interpretation,
    /// MemorySSA is well-formed.
    Form,
    /// The walker's answers are those of a search over all ways up.
    Clobbers,
    /// A second run leaves no more memory operations.
    SecondRun,
    /// The order of blocks and the numbers of values do not matter.
    Permutation,
    /// No path has more memory operations than with Cranelift alone.
    WorsePath,
}

impl fmt::Display for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Oracle::Generator => "generator",
            Oracle::Optimizer => "optimizer",
            Oracle::Execution => "execution",
            Oracle::Interpretation => "interpretation",
            Oracle::Form => "form",
            Oracle::Clobbers => "clobbers",
            Oracle::SecondRun => "second-run",
            Oracle::Permutation => "permutation",
            Oracle::WorsePath => "worse-path",
        })
    }
}

/// What an oracle objects to.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The oracle.
    pub oracle: Oracle,
    /// What it found.
    pub message: String,
}

impl Finding {
    pub(crate) fn new(oracle: Oracle, message: impl fmt::Display) -> Finding {
        Finding {
            oracle,
            message: message.to_string(),
        }
    }
}

/// Words that tell kinds of messages apart.
const KINDS: &[&str] = &[
    "panic",
    "memory differs",
    "clobber",
    "Missing",
    "trap",
    "returned",
];

impl Finding {
    /// Whether both are of the same oracle, and their messages of one kind.
    pub(crate) fn is_like(&self, other: &Finding) -> bool {
        let kind = |finding: &Finding| KINDS.iter().position(|word| finding.message.contains(word));
        self.oracle == other.oracle && kind(self) == kind(other)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.oracle, self.message)
    }
}

/// What a case is judged with.
#[derive(Clone)]
pub struct Setup {
    /// The target.
    pub isa: OwnedTargetIsa,
    /// The target, without Cranelift's own optimizer.
    pub plain_isa: OwnedTargetIsa,
    /// The optimizer's options.
    pub options: Options,
}

impl Setup {
    /// For a target, with the default options and all verifiers.
    ///
    /// # Errors
    /// The name is no target.
    pub fn new(target: &str) -> Result<Setup> {
        let options = Options {
            verify: true,
            check: true,
            ..Options::default()
        };
        Ok(Setup {
            isa: clif_memopt_measure::isa_for(target)?,
            plain_isa: clif_memopt_measure::isa_with(target, &["opt_level=none"])?,
            options,
        })
    }
}

/// Optimizes each function once more, in another form. That the rewrites are right is checked where
/// the functions were optimized first.
///
/// # Errors
/// As [`optimize_all`].
pub(crate) fn optimize_unchecked(function: &Function, setup: &Setup) -> Result<Function, Finding> {
    let mut setup = setup.clone();
    setup.options.check = false;
    let mut optimized = optimize_all(std::slice::from_ref(function), &setup)?;
    Ok(optimized.remove(0).0)
}

/// Optimizes each function.
///
/// # Errors
/// A finding: the optimizer fails or panics.
pub fn optimize_all(
    functions: &[Function],
    setup: &Setup,
) -> Result<Vec<(Function, Report)>, Finding> {
    let mut optimizer = Optimizer::new(setup.options.clone());
    functions
        .iter()
        .map(|function| {
            let mut optimized = function.clone();
            let report = guarded(Oracle::Optimizer, || {
                optimizer
                    .optimize(&mut optimized, &*setup.isa)
                    .map_err(|error| Finding::new(Oracle::Optimizer, error))
            })?;
            optimized.dfg.resolve_all_aliases();
            Ok((optimized, report))
        })
        .collect()
}

/// Asks every oracle.
pub fn check_all(case: &Case, setup: &Setup, tally: &mut Tally) -> Vec<Finding> {
    if let Err(finding) = check_valid(case, setup) {
        return vec![finding];
    }
    let optimized = match optimize_all(&case.functions, setup) {
        Ok(optimized) => optimized,
        Err(finding) => return vec![finding],
    };
    for (_, report) in &optimized {
        tally.add_stats(&report.stats);
    }
    let after: Vec<Function> = optimized
        .into_iter()
        .map(|(function, _)| function)
        .collect();
    let mut findings = Vec::new();
    let mut ask = |oracle, check: &mut dyn FnMut() -> Result<(), Finding>| {
        findings.extend(guarded(oracle, check).err());
    };
    ask(Oracle::Execution, &mut || {
        check_execution(case, &after, setup, tally)
    });
    ask(Oracle::Interpretation, &mut || {
        check_interpretation(case, &after, tally)
    });
    for (before, after) in case.functions.iter().zip(&after) {
        ask(Oracle::Form, &mut || check_form(before, setup));
        ask(Oracle::Form, &mut || check_form(after, setup));
        ask(Oracle::Clobbers, &mut || {
            check_clobbers(before, setup, tally)
        });
        ask(Oracle::SecondRun, &mut || {
            check_second_run(after, setup, tally)
        });
        ask(Oracle::Permutation, &mut || {
            check_permutations(before, after, setup)
        });
        if !case.mixed_tags {
            ask(Oracle::WorsePath, &mut || {
                check_worse_paths(before, after, setup, tally)
            });
        }
    }
    findings
}

/// Whether Cranelift's verifier accepts the functions.
fn check_valid(case: &Case, setup: &Setup) -> Result<(), Finding> {
    for function in &case.functions {
        cranelift_codegen::verify_function(function, &*setup.isa)
            .map_err(|errors| Finding::new(Oracle::Generator, errors))?;
    }
    Ok(())
}

/// The result, or a finding if `check` panics.
pub(crate) fn guarded<T>(
    oracle: Oracle,
    check: impl FnOnce() -> Result<T, Finding>,
) -> Result<T, Finding> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("without a message");
        Err(Finding::new(oracle, format!("panic: {text}")))
    })
}
