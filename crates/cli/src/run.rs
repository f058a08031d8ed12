//! `clif-memopt run`: the run lines of a file, original against optimized code.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clif_memopt_filetest::TestSource;
use clif_memopt_filetest::exec::{self, InvocationResult, Support, Verdict};
use cranelift_codegen::isa::OwnedTargetIsa;

use crate::flags::{Flags, Target};
use crate::guard::guarded;
use crate::input::{Input, read_text};
use crate::{Outcome, output};

/// Execute the run lines of a file on original and on optimized code, and compare
///
/// Compares the values returned or the trap, and memory at that point; then what the line expects.
/// Runs for each `target` line of the file whose code this machine can run, else for the host. Exit
/// code 1 if a line shows a difference, or tests nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt run in.clif
  clif-memopt run in.clif --passes dse --fuel 3
  clif-memopt run in.clif --target aarch64

Run lines stand below a function:
  ; mem: p0 = 8 bytes 01 02
  ; run: %f(p0, 1) == 3, p0[0..2] = 01 03
  ; run: %f(oob, 1) traps heap_oob
  ; run: %f(p0, 2)")]
pub(crate) struct Args {
    /// CLIF file or filetest; - for standard input
    input: PathBuf,

    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    flags: Flags,
}

/// The lines of all targets, by verdict.
#[derive(Default)]
struct Tally {
    same: u64,
    different: u64,
    undefined: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (name, text) = read_text(&args.input)?;
    let input = Input::parse(name.clone(), &text)?;
    let options = args.flags.options(&input);
    let mut tally = Tally::default();
    for isa in runnable(&input, args.target.triple.as_deref())? {
        input.verify(&*isa)?;
        let results = guarded(|| {
            // The target is chosen here, and the file may have one that is not built in.
            let source = TestSource::parse(&name, input.text_without_targets())?;
            if exec::invocations_of(&source)?.is_empty() {
                bail!("{name}: no '; run:' lines");
            }
            exec::run_comparison(&source, &options, &isa)
        })?;
        let mut lines = String::new();
        for result in &results {
            let target = isa.triple().architecture;
            lines += &format!(
                "{name}:{}: {target}: {}\n",
                result.line,
                tally.count(result)
            );
        }
        output::print(lines.as_bytes())?;
    }
    let Tally {
        same,
        different,
        undefined,
    } = tally;
    output::print(
        format!("{same} same, {different} different, {undefined} undefined\n").as_bytes(),
    )?;
    Ok(if different + undefined > 0 {
        Outcome::Finding
    } else {
        Outcome::Success
    })
}

/// The targets to run a file for: those of it that can be run here.
pub(crate) fn runnable(input: &Input, asked: Option<&str>) -> anyhow::Result<Vec<OwnedTargetIsa>> {
    let mut found = Vec::new();
    let mut refused = Vec::new();
    for isa in input.isas(asked)? {
        let target = isa.triple().to_string();
        match exec::support(&isa) {
            Support::Available => found.push(isa),
            Support::Missing(what) => refused.push(format!("{target} is skipped: {what}")),
            Support::Unsupported => {
                refused.push(format!(
                    "{target} is skipped: this machine cannot run its code"
                ));
            }
        }
    }
    if found.is_empty() {
        return Err(anyhow!("{}", refused.join("; "))).context("nothing can be run");
    }
    refused
        .iter()
        .for_each(|line| output::note(&format!("note: {line}")));
    Ok(found)
}

impl Tally {
    /// Counts the result, and describes it.
    fn count(&mut self, result: &InvocationResult) -> String {
        let InvocationResult {
            text,
            original,
            verdict,
            ..
        } = result;
        match verdict {
            Verdict::Same => {
                self.same += 1;
                format!("same: {text}: {}", original.outcome)
            }
            Verdict::Different { detail } => {
                self.different += 1;
                format!("DIFFERENT: {text}: {detail}")
            }
            Verdict::Undefined { detail } => {
                self.undefined += 1;
                format!("UNDEFINED: {text}: {detail}")
            }
        }
    }
}
