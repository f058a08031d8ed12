//! Executes original and optimized functions and compares what they did: the values returned or the
//! trap, and memory at that point.
//!
//! [`run_comparison`] does so for the `; run:` lines of a file; [`compare`] for any two sets of
//! functions. Functions run on the host through cranelift-jit, or for aarch64 elsewhere as a linked
//! program under qemu-user. Linux only.

mod aarch64;
mod bisect;
mod host;
mod invocation;
mod memory;
mod outcome;
mod program;
mod target;
mod trampoline;

use anyhow::{Result, ensure};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_memopt::Options;
use target_lexicon::Architecture;

pub use bisect::{BadRewrite, Bisection, Difference, bisect};
pub use invocation::{Argument, ExpectedBytes, ExpectedOutcome, Invocation, invocations_of};
pub use memory::{Buffer, Pointer, PointerTarget};
pub use outcome::{InvocationResult, Observation, Outcome, Verdict};
pub use program::PANICKED;

use crate::options::optimize_functions;
use crate::source::TestSource;

/// Time that one run may take, in seconds.
pub const RUN_SECONDS_MAX: u32 = 10;

/// Stack that a run may take, in bytes.
const STACK_BYTES: u64 = 8 << 20;

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
        .map(|results| results.into_iter().map(|(function, _)| function).collect())
        .map_err(|error| source.locate(&error, None))?;
    compare(&original, &optimized, &invocations, isa).map_err(|error| source.locate(&error, None))
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
    let isa = &target::runnable(isa)?;
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

#[cfg(test)]
mod tests {
    //! The comparison must be able to fail: hand-written pairs that differ, each in one way.

    use super::*;

    fn isa_of(target: &str) -> OwnedTargetIsa {
        let source = TestSource::parse("t.clif", &format!("target {target}\n")).unwrap();
        source.targets[0].isa.clone()
    }

    /// The verdict on `run` of two bodies of `function %f(i64) -> i32`, with or without a preamble.
    fn verdict_for(target: &str, run: &str, original: &str, optimized: &str) -> Verdict {
        let functions = [original, optimized].map(|body| {
            let (preamble, body) = body.split_once("block0:").unwrap_or(("", body));
            let text = format!(
                "function %f(i64) -> i32 system_v {{\n{preamble}\nblock0(v0: i64):\n{body}\n}}"
            );
            cranelift_reader::parse_functions(&text).unwrap()
        });
        let buffers = [Buffer::parse("p0 = 4 bytes").unwrap()];
        let run = Invocation::parse(run, &functions[0], &buffers).unwrap();
        let results = compare(&functions[0], &functions[1], &[run], &isa_of(target)).unwrap();
        results[0].verdict.clone()
    }

    /// As [`verdict_for`], for each target that can be run here; all must agree.
    fn verdict(run: &str, original: &str, optimized: &str) -> Verdict {
        let targets = ["x86_64", "aarch64"];
        let mut verdicts: Vec<Verdict> = targets
            .into_iter()
            .filter(|target| support(&isa_of(target)) == Support::Available)
            .map(|target| verdict_for(target, run, original, optimized))
            .collect();
        verdicts.dedup();
        assert_eq!(verdicts.len(), 1, "{verdicts:?}");
        verdicts.remove(0)
    }

    fn detail(verdict: Verdict) -> String {
        match verdict {
            Verdict::Different { detail } => detail,
            other => panic!("{other:?}"),
        }
    }

    const RETURN_1: &str = "v1 = iconst.i32 1\nreturn v1";
    const RETURN_2: &str = "v1 = iconst.i32 2\nreturn v1";
    const STORE_1: &str = "v1 = iconst.i32 1\nstore user1 v1, v0\nreturn v1";
    const STORE_1_TRAP: &str = "v1 = iconst.i32 1\nstore v1, v0\ntrap user1";
    const TRAP: &str = "trap user1";
    const TRAP_OTHER: &str = "trap user2";

    #[test]
    fn equal_code_is_the_same() {
        assert_eq!(verdict("%f(p0) == 1", STORE_1, STORE_1), Verdict::Same);
        assert_eq!(verdict("%f(oob)", STORE_1, STORE_1), Verdict::Same);
        assert_eq!(verdict("%f(0)", TRAP, TRAP), Verdict::Same);
    }

    #[test]
    fn other_results_are_found() {
        let found = detail(verdict("%f(p0)", RETURN_1, RETURN_2));
        assert_eq!(found, "original returned 1, optimized returned 2");
    }

    #[test]
    fn other_memory_at_return_is_found() {
        let found = detail(verdict("%f(p0)", STORE_1, RETURN_1));
        assert!(found.starts_with("memory differs, first at p0[0]: original 01, optimized 00"));
        let below = "v1 = iconst.i32 1\nstore v1, v0-4\nreturn v1";
        let found = detail(verdict("%f(p0)", RETURN_1, below));
        assert!(
            found.contains("p0[-4]: original 00, optimized 01"),
            "{found}"
        );
    }

    #[test]
    fn other_memory_at_the_trap_is_found() {
        let found = detail(verdict("%f(p0)", STORE_1_TRAP, TRAP));
        assert!(
            found.starts_with("memory differs, first at p0[0]"),
            "{found}"
        );
        assert!(found.contains("both trapped user1"), "{found}");
    }

    #[test]
    fn other_traps_are_found() {
        let found = detail(verdict("%f(p0)", TRAP, TRAP_OTHER));
        assert_eq!(found, "original trapped user1, optimized trapped user2");
        let found = detail(verdict("%f(p0)", TRAP, RETURN_1));
        assert_eq!(found, "original trapped user1, optimized returned 1");
        let found = detail(verdict("%f(oob)", STORE_1, RETURN_1));
        assert_eq!(found, "original trapped user1, optimized returned 1");
    }

    #[test]
    fn other_exceptions_are_found() {
        let throw = |tag: u32, payload: i64, store: &str| {
            format!(
                "fn0 = %host_throw(i32, i64)\nblock0:\nv1 = iconst.i32 {tag}\n\
                 v2 = iconst.i64 {payload}\n{store}\ncall fn0(v1, v2)\ntrap user1"
            )
        };
        let first = throw(7, 1, "store v1, v0");
        assert_eq!(verdict("%f(p0) throws 7", &first, &first), Verdict::Same);
        let found = detail(verdict("%f(p0)", &first, &throw(8, 1, "store v1, v0")));
        assert_eq!(
            found,
            "original threw 7 with 0x1, optimized threw 8 with 0x1"
        );
        let found = detail(verdict("%f(p0)", &first, &throw(7, 2, "store v1, v0")));
        assert_eq!(
            found,
            "original threw 7 with 0x1, optimized threw 7 with 0x2"
        );
        let found = detail(verdict("%f(p0)", &first, &throw(7, 1, "")));
        assert_eq!(
            found,
            "memory differs, first at p0[0]: original 07, optimized 00 (both threw 7 with 0x1)"
        );
        let found = detail(verdict("%f(p0) throws 6", &first, &first));
        assert!(found.contains("threw 7 with 0x1, which is not expected"));
    }

    #[test]
    fn values_kept_across_a_collection_are_found() {
        let collect = |after: &str| {
            format!(
                "ss0 = explicit_slot 8\nfn0 = %host_collect()\nblock0:\n\
                 v1 = iconst.i64 5\nv2 = stack_addr.i64 ss0\nstore v1, v2\n\
                 call fn0(), stack_map=[i64 @ ss0+0]\n{after}\nv4 = ireduce.i32 v3\nreturn v4"
            )
        };
        let loads = collect("v3 = load.i64 v2");
        assert_eq!(verdict("%f(p0) == 6", &loads, &loads), Verdict::Same);
        let found = detail(verdict("%f(p0)", &loads, &collect("v3 = bor v1, v1")));
        assert_eq!(found, "original returned 6, optimized returned 5");
    }

    #[test]
    fn frames_may_be_laid_out_in_other_ways() {
        let with_slots = |slots: &str| {
            format!("{slots}\nblock0:\nv1 = stack_addr.i64 ss0\nstore v1, v0-4\ntrap user1")
        };
        let small = with_slots("ss0 = explicit_slot 8");
        let large = with_slots("ss0 = explicit_slot 8\nss1 = explicit_slot 400");
        assert_eq!(verdict("%f(p0)", &small, &large), Verdict::Same);
    }

    #[test]
    fn unexpected_ends_are_found() {
        let found = detail(verdict("%f(p0) == 2", RETURN_1, RETURN_1));
        assert!(
            found.contains("returned 1, which is not expected"),
            "{found}"
        );
        let found = detail(verdict("%f(p0) traps user1", RETURN_1, RETURN_1));
        assert!(
            found.contains("returned 1, which is not expected"),
            "{found}"
        );
        let found = detail(verdict("%f(p0), p0[0..2] = 02 00", STORE_1, STORE_1));
        assert!(
            found.contains("p0[0..2] is 01 00, expected 02 00"),
            "{found}"
        );
    }

    #[test]
    fn faults_without_a_trap_record_are_no_verdict() {
        let fault = "v1 = load.i32 notrap v0\nreturn v1";
        let Verdict::Undefined { detail } = verdict_for(HOST, "%f(oob)", fault, fault) else {
            panic!("a crash is accepted");
        };
        assert!(detail.contains("SIGSEGV"), "{detail}");
        assert!(detail.contains("where no trap is recorded"), "{detail}");
        let found = verdict_for(HOST, "%f(oob)", STORE_1, fault);
        assert!(matches!(found, Verdict::Different { .. }), "{found:?}");
    }

    #[test]
    fn runs_do_not_see_one_another() {
        let functions = cranelift_reader::parse_functions(
            "function %f(i64) -> i32 system_v {\nblock0(v0: i64):\n    v1 = load.i32 user1 v0\n    v3 = iconst.i32 1\n    v2 = iadd v1, v3\n    store user1 v2, v0\n    return v2\n}",
        )
        .unwrap();
        let buffers = [Buffer::parse("p0 = 4 bytes").unwrap()];
        let lines = [
            "%f(p0) == 1, p0[0] = 01",
            "%f(oob) traps user1, p0[0] = 00",
            "%f(0) traps user1, p0[0] = 00",
            "%f(p0) == 1, p0[0] = 01",
        ];
        let runs = lines.map(|line| Invocation::parse(line, &functions, &buffers).unwrap());
        let results = compare(&functions, &functions, &runs, &isa_of(HOST)).unwrap();
        for result in results {
            assert_eq!(result.verdict, Verdict::Same, "{}", result.text);
        }
    }

    #[test]
    fn endless_recursion_ends() {
        let functions = cranelift_reader::parse_functions(
            "function %f() -> i32 system_v {\n    fn0 = %f() -> i32 system_v\nblock0:\n    v1 = call fn0()\n    v2 = iadd v1, v1\n    return v2\n}",
        )
        .unwrap();
        let run = Invocation::parse("%f()", &functions, &[]).unwrap();
        let results = compare(&functions, &functions, &[run], &isa_of(HOST)).unwrap();
        assert!(matches!(results[0].verdict, Verdict::Undefined { .. }));
    }

    const HOST: &str = if cfg!(target_arch = "aarch64") {
        "aarch64"
    } else {
        "x86_64"
    };

    #[test]
    fn names_that_are_not_there_are_errors() {
        let functions = cranelift_reader::parse_functions(
            "function %f() system_v {\n    fn0 = %nothing()\nblock0:\n    call fn0()\n    return\n}",
        )
        .unwrap();
        let run = Invocation::parse("%f()", &functions, &[]).unwrap();
        let error = compare(&functions, &functions, &[run], &isa_of(HOST)).unwrap_err();
        let message = format!("{error:#}");
        assert!(
            message.starts_with("function %f: %nothing is neither in the file"),
            "{message}"
        );
    }
}
