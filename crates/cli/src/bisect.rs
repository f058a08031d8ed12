//! `clif-memopt bisect`: the rewrite that makes the run lines of a file differ.

use std::path::PathBuf;

use anyhow::bail;
use clif_memopt_filetest::TestSource;
use clif_memopt_filetest::exec::{self, BadRewrite, Bisection};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_memopt::Options;

use crate::flags::{Flags, Target};
use crate::guard::guarded;
use crate::input::{Input, read_text};
use crate::progress::Progress;
use crate::run::runnable;
use crate::{Outcome, output};

/// Find the first rewrite that makes the run lines of a file differ
///
/// Looks for the smallest fuel with which original and optimized code differ on a `; run:` line, and
/// prints it with the rewrite that it pays for, for each target that this machine can run. Fuel 0
/// means that no rewrite is at fault: the run line itself is wrong. Exit code 1 if there is a
/// difference.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt bisect in.clif
  clif-memopt bisect in.clif --passes forward --target aarch64
  clif-memopt bisect in.clif --check")]
pub(crate) struct Args {
    /// CLIF file or filetest; - for standard input
    input: PathBuf,

    #[command(flatten)]
    target: Target,

    /// Look also for a rewrite that the independent checker cannot prove, or after which a verifier
    /// objects; the file then needs no run lines
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (name, text) = read_text(&args.input)?;
    let input = Input::parse(name.clone(), &text)?;
    let mut options = args.flags.options(&input);
    options.check = args.check;
    options.verify = args.check;
    let mut outcome = Outcome::Success;
    for isa in runnable(&input, args.target.triple.as_deref())? {
        input.verify(&*isa)?;
        let found = guarded(|| args.search(&name, &input, &options, &isa))?;
        let target = isa.triple().architecture;
        let text = match found {
            Bisection::Same { rewrites } => {
                format!("{name}: {target}: no difference after any of {rewrites} rewrites\n")
            }
            Bisection::Different(bad) => {
                outcome = Outcome::Finding;
                describe(&name, &target.to_string(), &bad)
            }
        };
        output::print(text.as_bytes())?;
    }
    Ok(outcome)
}

impl Args {
    fn search(
        &self,
        name: &str,
        input: &Input,
        options: &Options,
        isa: &OwnedTargetIsa,
    ) -> anyhow::Result<Bisection> {
        let source = TestSource::parse(name, input.text_without_targets())?;
        let invocations = exec::invocations_of(&source)?;
        if invocations.is_empty() && !self.check {
            bail!("{name}: no '; run:' lines");
        }
        let progress = Progress::new(0);
        let step = |_, most: u64| {
            progress.set_steps(most + 1);
            progress.step();
        };
        exec::bisect(&source.functions(), &invocations, options, isa, &step)
            .map_err(|error| error.context(name.to_string()))
    }
}

fn describe(name: &str, target: &str, bad: &BadRewrite) -> String {
    let BadRewrite {
        fuel,
        rewrite,
        difference,
    } = bad;
    let rewrite = rewrite
        .as_deref()
        .unwrap_or("no rewrite is at fault, the run line is wrong");
    let place = match difference.line {
        0 => name.to_string(),
        line => format!("{name}:{line}"),
    };
    let difference = output::one_line(&difference.text);
    format!("{name}: {target}: fuel {fuel}: {rewrite}\n{place}: {target}: {difference}\n")
}
