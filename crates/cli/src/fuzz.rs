//! `clif-memopt fuzz`: generated functions, judged by every oracle.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::bail;
use clif_memopt_filetest::exec::{self, Support};
use clif_memopt_fuzzgen::{
    Campaign, Case, Config, Failure, Finding, Setup, Summary, Tally, case_of_seed, check_all,
    first_bad_fuel, reduce_finding, run_campaign,
};
use cranelift_memopt::Pass;
use serde_json::{Value, json};
use target_lexicon::Triple;

use crate::guard::guarded;
use crate::input::Input;
use crate::progress::Progress;
use crate::{Outcome, input, output};

/// A campaign ends early when so many cases have failed.
const FAILURES_MAX: usize = 50;

/// Threads at most.
const THREADS_MAX: u64 = 1024;

/// Generate functions and judge by several oracles what the optimizer makes of them
///
/// The oracles: original and optimized code do the same when run; MemorySSA is well-formed and its
/// answers are those of an exhaustive search; the independent checker proves every rewrite; a second
/// run leaves no more behind; numbering and layout do not matter; no path got worse.
///
/// A case that fails is made smaller and written to fuzz-SEED.clif, a filetest that `run`, `test` and
/// `bisect` take, and that `--replay` puts to all oracles again. The same seed always makes the same case; case N of a campaign has the seed of the
/// first plus N. Ends early after 50 failures. Exit code 1 if a case fails.
///
/// `--replay` takes any CLIF that keeps the memory contract; its `; run:` lines are what is executed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt fuzz
  clif-memopt fuzz --cases 100000 --seed 5000 --output failures
  clif-memopt fuzz --target aarch64 --cases 20
  clif-memopt fuzz --replay fuzz-17.clif
  clif-memopt fuzz --show 17 | clif-memopt run -")]
pub(crate) struct Args {
    /// Cases to run
    #[arg(long, value_name = "N", default_value_t = 1000)]
    cases: u64,

    /// Seed of the first case
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    /// Threads. Default: as many as there are processors
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: Option<u64>,

    /// Target: x86_64, aarch64 or a full triple. Default: the host, or the first of the file to replay
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,

    /// Passes to run, comma-separated; they run in pipeline order. Default: all
    #[arg(long, value_name = "PASS,...", value_delimiter = ',')]
    passes: Option<Vec<Pass>>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Folder for the files of failures
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,

    /// Print the case of this seed as a filetest, and run nothing
    #[arg(long, value_name = "SEED", conflicts_with_all = ["cases", "seed", "threads", "json", "output"])]
    show: Option<u64>,

    /// Put the functions of a file to every oracle; `-` for standard input. Exit code 1 if one objects
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cases", "seed", "threads", "output", "show"])]
    replay: Option<PathBuf>,
}

/// What became of a case that failed.
struct Written {
    failure: Failure,
    file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    if let Some(path) = &args.replay {
        return args.replay(path);
    }
    let host = Triple::host().to_string();
    let target = args.target.as_deref().unwrap_or(&host);
    let mut setup = Setup::new(target)?;
    if let Some(passes) = &args.passes {
        setup.options.passes.clone_from(passes);
    }
    let target = target_name(&setup);
    if let Some(seed) = args.show {
        let text = guarded(|| {
            let case = case_of_seed(seed, &Config::default());
            Ok(case.filetest(&target).to_string())
        })?;
        output::print(text.as_bytes())?;
        return Ok(Outcome::Success);
    }
    ensure_runs(&setup, &target)?;
    if !args.output.is_dir() {
        bail!("{} is no folder", args.output.display());
    }
    args.campaign(&setup, &target)
}

fn ensure_runs(setup: &Setup, target: &str) -> anyhow::Result<()> {
    match exec::support(&setup.isa) {
        Support::Available => Ok(()),
        Support::Missing(what) => bail!("code for {target} cannot be run: {what}"),
        Support::Unsupported => bail!("code for {target} cannot be run on this machine"),
    }
}

/// The target as a filetest names it.
fn target_name(setup: &Setup) -> String {
    setup.isa.triple().architecture.to_string()
}

impl Args {
    fn campaign(&self, setup: &Setup, target: &str) -> anyhow::Result<Outcome> {
        let processors = || thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let campaign = Campaign {
            seed: self.seed,
            cases: self.cases,
            threads: self.threads.unwrap_or_else(processors) as usize,
            config: Config::default(),
            failures_max: FAILURES_MAX,
        };
        let start = Instant::now();
        let progress = Progress::new(self.cases as usize);
        let written = Mutex::new(Vec::new());
        let summary = run_campaign(&campaign, setup, &|_, failure| {
            if let Some(failure) = failure {
                let result = guarded(|| self.write(failure, setup, target));
                progress.note(&describe(failure, result.as_ref()));
                if let Ok(mut written) = written.lock() {
                    written.push(result.map(|file| Written {
                        failure: failure.clone(),
                        file,
                    }));
                }
            }
            progress.step();
        });
        drop(progress);
        let seconds = start.elapsed().as_secs_f64();
        let results = written.into_inner().unwrap_or_default();
        let unwritten = results.iter().any(Result::is_err);
        let mut written: Vec<Written> = results.into_iter().flatten().collect();
        written.sort_by_key(|written| written.failure.seed);
        let text = match self.json {
            true => as_json(target, &summary, &written, seconds),
            false => as_text(&summary, seconds),
        };
        output::print(text.as_bytes())?;
        Ok(if unwritten {
            Outcome::BadInput
        } else if summary.failures.is_empty() {
            Outcome::Success
        } else {
            Outcome::Finding
        })
    }

    fn replay(&self, path: &Path) -> anyhow::Result<Outcome> {
        let (name, text) = input::read_text(path)?;
        let input = Input::parse(name, &text)?;
        let isa = input.isa(self.target.as_deref())?;
        input.verify(&*isa)?;
        let case = guarded(|| Case::read(&input.name, &text))?;
        let setup = Setup::new(&isa.triple().to_string())?;
        let target = target_name(&setup);
        if !case.invocations.is_empty() && case.is_runnable() {
            ensure_runs(&setup, &target)?;
        }
        let mut tally = Tally::default();
        let findings = guarded(|| Ok(check_all(&case, &setup, &mut tally)))?;
        let text = match self.json {
            true => replay_as_json(&input.name, &target, &findings, &tally),
            false => replay_as_text(&case, &findings),
        };
        output::print(text.as_bytes())?;
        Ok(match findings.is_empty() {
            true => Outcome::Success,
            false => Outcome::Finding,
        })
    }

    /// Writes a smaller case that fails in the same way. None if it could not even be generated.
    fn write(
        &self,
        failure: &Failure,
        setup: &Setup,
        target: &str,
    ) -> anyhow::Result<Option<PathBuf>> {
        let Ok(case) = guarded(|| Ok(case_of_seed(failure.seed, &Config::default()))) else {
            return Ok(None);
        };
        let Some(finding) = failure.findings.first() else {
            return Ok(None);
        };
        let (small, finding) = reduce_finding(&case, finding, setup);
        let path = self.file_of(failure.seed);
        let text = reproducer(failure.seed, &path, &small, &finding, setup, target);
        output::write(&path, text.as_bytes())?;
        Ok(Some(path))
    }

    fn file_of(&self, seed: u64) -> PathBuf {
        let name = format!("fuzz-{seed}.clif");
        match self.output == Path::new(".") {
            true => name.into(),
            false => self.output.join(name),
        }
    }
}

/// The text of a reproducer: why it is there and how to see it again, then the case.
fn reproducer(
    seed: u64,
    path: &Path,
    case: &Case,
    finding: &Finding,
    setup: &Setup,
    target: &str,
) -> String {
    let message = output::one_line(&finding.to_string());
    let mut text = format!(";; Seed {seed}, reduced. {message}\n");
    let filetest = case.filetest(target).to_string();
    // As it is read back, where instructions have other numbers.
    let again = Case::parse(&filetest).ok();
    let replays = again.as_ref().is_some_and(|again| {
        let findings = check_all(again, setup, &mut Tally::default());
        findings.iter().any(|other| other.oracle == finding.oracle)
    });
    text += &match (replays, path.file_name()) {
        (true, Some(file)) => {
            let file = file.display();
            format!(";; To see it again: clif-memopt fuzz --replay {file} --target {target}\n")
        }
        _ => format!(
            ";; It is not found in what is read back from here. To see it again:\n\
             ;; clif-memopt fuzz --seed {seed} --cases 1 --target {target}\n"
        ),
    };
    if let Some(bad) = first_bad_fuel(again.as_ref().unwrap_or(case), setup) {
        let rewrite = bad.rewrite.unwrap_or_default();
        text += &format!(
            ";; With fuel {}: {}\n",
            bad.fuel,
            output::one_line(&rewrite)
        );
    }
    text + &filetest
}

fn describe(failure: &Failure, file: Result<&Option<PathBuf>, &anyhow::Error>) -> String {
    let findings = failure.findings.iter().map(Finding::to_string);
    let findings = output::one_line(&findings.collect::<Vec<_>>().join("; "));
    let file = match file {
        Ok(Some(path)) => path.display().to_string(),
        Ok(None) => "no file".to_string(),
        Err(error) => output::one_line(&format!("{error:#}")),
    };
    format!("seed {}: {findings} ({file})", failure.seed)
}

fn replay_as_text(case: &Case, findings: &[Finding]) -> String {
    let lines = findings
        .iter()
        .map(|finding| format!("{}\n", output::one_line(&finding.to_string())));
    format!(
        "{}{} functions, {} runs, {} findings\n",
        lines.collect::<String>(),
        case.functions.len(),
        case.invocations.len(),
        findings.len()
    )
}

fn replay_as_json(file: &str, target: &str, findings: &[Finding], tally: &Tally) -> String {
    let all = json!({
        "target": target,
        "file": file,
        "findings": findings_as_json(findings),
        "counts": counts_as_json(tally),
    });
    format!("{all:#}\n")
}

fn findings_as_json(findings: &[Finding]) -> Vec<Value> {
    let findings = findings
        .iter()
        .map(|finding| json!({ "oracle": finding.oracle.to_string(), "message": finding.message }));
    findings.collect()
}

fn counts_as_json(tally: &Tally) -> serde_json::Map<String, Value> {
    tally
        .iter()
        .map(|(name, count)| (name.to_string(), count.into()))
        .collect()
}

fn rate(summary: &Summary, seconds: f64) -> f64 {
    summary.functions as f64 / seconds.max(f64::MIN_POSITIVE)
}

fn as_text(summary: &Summary, seconds: f64) -> String {
    format!(
        "{}{} cases, {} functions, {:.0} functions/s, {} failures\n",
        summary.tally,
        summary.cases,
        summary.functions,
        rate(summary, seconds),
        summary.failures.len()
    )
}

fn as_json(target: &str, summary: &Summary, written: &[Written], seconds: f64) -> String {
    let failures: Vec<Value> = written
        .iter()
        .map(|Written { failure, file }| {
            json!({
                "seed": failure.seed,
                "findings": findings_as_json(&failure.findings),
                "file": file.as_ref().map(|file| file.display().to_string()),
            })
        })
        .collect();
    let all = json!({
        "target": target,
        "cases": summary.cases,
        "functions": summary.functions,
        "functions_per_second": rate(summary, seconds),
        "failures": failures,
        "counts": counts_as_json(&summary.tally),
    });
    format!("{all:#}\n")
}
