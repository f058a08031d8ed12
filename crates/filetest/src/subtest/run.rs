//! `test run [passes=A,B] ...`: executes the `; run:` lines on original and optimized functions.

use anyhow::{Result, bail};
use cranelift_memopt::Options;

use crate::exec::{self, Support, Verdict};
use crate::runner::RunnerSettings;
use crate::source::{Target, TestSource};

/// Whether the lines could be run.
pub(crate) enum Ran {
    /// They were, and passed.
    Passed,
    /// They were not, for this reason.
    Skipped(String),
}

/// Runs the run lines of `source` for `target`.
pub(crate) fn run_lines(
    source: &TestSource,
    target: &Target,
    options: &Options,
    settings: &RunnerSettings,
) -> Result<Ran> {
    match exec::support(&target.isa) {
        Support::Available => {}
        Support::Missing(install) if settings.require_aarch64 => bail!("{install}"),
        Support::Missing(install) => return Ok(Ran::Skipped(install)),
        Support::Unsupported => {
            return Ok(Ran::Skipped(format!(
                "code for {} cannot be run on this machine",
                target.name
            )));
        }
    }
    let results = exec::run_comparison(source, options, &target.isa)?;
    if results.is_empty() {
        bail!("{}: 'test run' without any '; run:' line", source.name);
    }
    let failures: Vec<String> = results
        .iter()
        .filter_map(|result| match &result.verdict {
            Verdict::Same => None,
            Verdict::Different { detail } | Verdict::Undefined { detail } => Some(format!(
                "{}:{}: target {}: {}: {detail}",
                source.name, result.line, target.name, result.text
            )),
        })
        .collect();
    if failures.is_empty() {
        return Ok(Ran::Passed);
    }
    bail!("{}", failures.join("\n"))
}
