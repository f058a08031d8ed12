//! Executes original and optimized functions and compares what they did: the values returned or the
//! trap, and memory at that point.
//!
//! [`run_comparison`] does so for the `; run:` lines of a file; [`compare`] for any two sets of
//! functions. Functions run on the host through cranelift-jit, or for aarch64 elsewhere as a linked
//! program under qemu-user. Linux only.

mod aarch64;
mod host;
mod invocation;
mod memory;
mod outcome;
mod program;
mod trampoline;

use anyhow::{Result, ensure};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_memopt::Options;
use target_lexicon::Architecture;

pub use invocation::{Argument, ExpectedBytes, ExpectedOutcome, Invocation, invocations_of};
pub use memory::{Buffer, Pointer, PointerTarget};
pub use outcome::{InvocationResult, Observation, Outcome, Verdict};

use crate::options::optimize_functions;
use crate::source::TestSource;

/// Time that one run may take, in seconds.
pub const RUN_SECONDS_MAX: u32 = 10;

/// How code for a target can be run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Available,
    /// It cannot until something is installed, by the command given.
    Missing(String),
    /// It cannot.
    Unsupported,
}

/// Whether code for `isa` can be run here.
pub fn support(isa: &OwnedTargetIsa) -> Support {
    match isa.triple().architecture {
        architecture if is_host(architecture) => Support::Available,
        Architecture::Aarch64(_) => aarch64::support(),
        _ => Support::Unsupported,
    }
}

fn is_host(architecture: Architecture) -> bool {
    architecture == target_lexicon::HOST.architecture
}

/// Optimizes the functions of `source` by `options`, runs each of its `; run:` lines on the original
/// and on the optimized functions, and compares.
///
/// # Errors
/// A line that cannot be parsed, a function that cannot be optimized or compiled, a name that is not
/// there, or a target that cannot be run here ([`support`]). A difference is no error but a
/// [`Verdict`].
pub fn run_comparison(
    source: &TestSource,
    options: &Options,
    isa: &OwnedTargetIsa,
) -> Result<Vec<InvocationResult>> {
    let invocations = invocations_of(source)?;
    let original = source.functions();
    let optimized: Vec<Function> = optimize_functions(&original, options, &**isa)
        .and_then(|results| {
            let functions = results.into_iter().map(|(function, _)| function);
            Ok(functions.collect())
        })
        .map_err(|error| error.context(source.name.clone()))?;
    compare(&original, &optimized, &invocations, isa)
        .map_err(|error| error.context(source.name.clone()))
}

/// Runs each of `invocations` on the functions `original` and on `optimized`, which have the same
/// names in the same order, and compares.
///
/// # Errors
/// As [`run_comparison`].
pub fn compare(
    original: &[Function],
    optimized: &[Function],
    invocations: &[Invocation],
    isa: &OwnedTargetIsa,
) -> Result<Vec<InvocationResult>> {
    ensure!(
        original.len() == optimized.len(),
        "{} functions against {}",
        original.len(),
        optimized.len()
    );
    let variants = [original, optimized];
    let observations = match isa.triple().architecture {
        architecture if is_host(architecture) => host::execute(isa, &variants, invocations)?,
        Architecture::Aarch64(_) => aarch64::execute(isa, &variants, invocations)?,
        other => anyhow::bail!("code for {other} cannot be run on this machine"),
    };
    let mut observations = observations.into_iter();
    let (before, after) = (observations.next(), observations.next());
    invocations
        .iter()
        .zip(before.unwrap_or_default())
        .zip(after.unwrap_or_default())
        .map(|((invocation, before), after)| outcome::judge(invocation, before, after))
        .collect()
}

/// The name of a signal by which code traps.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGILL => "SIGILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        _ => "signal",
    }
}
