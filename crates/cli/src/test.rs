//! `clif-memopt test`: the filetest runner.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clif_memopt_filetest::{Outcome as Ended, RunnerSettings, run_file};
use rayon::prelude::*;

use crate::guard::guarded;
use crate::progress::Progress;
use crate::{Outcome, output, paths};

/// Run filetests
///
/// Prints a line for each file, and below it what is wrong. Exit code 1 if a test fails, 2 if a path
/// is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt test filetests
  clif-memopt test filetests/dse a.clif
  clif-memopt test filetests/dse --bless && git diff filetests")]
pub(crate) struct Args {
    /// Filetests, and folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Rewrite the precise output that the files expect
    #[arg(long)]
    bless: bool,

    /// Fail, rather than skip, where tools to run aarch64 code are missing
    #[arg(long)]
    require_aarch64: bool,
}

#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let files = paths::clif_files(&args.paths)?;
    let settings = RunnerSettings {
        bless: args.bless,
        require_aarch64: args.require_aarch64,
    };
    let progress = Progress::new(files.len());
    let results: Vec<anyhow::Result<Ended>> = files
        .par_iter()
        .map(|file| {
            let result = guarded(|| run_file(file, &settings));
            progress.step();
            result
        })
        .collect();
    drop(progress);
    let mut tally = Tally::default();
    let mut text = String::new();
    for (file, result) in files.iter().zip(&results) {
        writeln!(text, "{}", tally.count(file, result))?;
    }
    let Tally {
        passed,
        failed,
        skipped,
    } = tally;
    writeln!(text, "{passed} passed, {failed} failed, {skipped} skipped")?;
    output::print(text.as_bytes())?;
    Ok(if failed > 0 {
        Outcome::Finding
    } else {
        Outcome::Success
    })
}

impl Tally {
    /// Counts the result, and describes it.
    fn count(&mut self, file: &Path, result: &anyhow::Result<Ended>) -> String {
        let file = file.display();
        match result {
            Ok(Ended::Passed) => {
                self.passed += 1;
                format!("ok {file}")
            }
            Ok(Ended::Blessed) => {
                self.passed += 1;
                format!("ok {file} (blessed)")
            }
            Ok(Ended::Ignored { reason }) => {
                self.skipped += 1;
                format!("skipped {file}: {}", output::one_line(reason))
            }
            Err(error) => {
                self.failed += 1;
                format!("FAILED {file}\n{}", format!("{error:#}").trim_end())
            }
        }
    }
}
