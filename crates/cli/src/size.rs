//! `clif-memopt size`: what Cranelift makes of functions with and without the memory optimizer.

use std::path::PathBuf;

use anyhow::Context;
use clif_memopt_measure::{Counts, compile, worse_path};
use comfy_table::{CellAlignment, Table, presets};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_memopt::{Optimizer, Preset};
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::flags::{self, Flags};
use crate::guard::guarded;
use crate::input::Input;
use crate::progress::Progress;
use crate::{Outcome, output, paths};

/// Measure what Cranelift makes of functions, with the memory optimizer and without
///
/// Before is Cranelift's own optimizer at opt_level=speed (unless the file sets another), after is
/// the memory optimizer and then Cranelift's. Instructions, loads, stores and slots are those of the
/// CLIF that is left, for the first target; frame and code are bytes of the machine code.
///
/// A function is worse if it has more memory operations than before on some path or around some
/// loop. Exit code 1 if one is, 2 if a file or function could not be measured.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt size in.clif
  clif-memopt size folder other.clif --target aarch64
  clif-memopt size folder --json | jq .total")]
pub(crate) struct Args {
    /// CLIF files, and folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Targets, comma-separated
    #[arg(
        long = "target",
        value_name = "TRIPLE,...",
        value_delimiter = ',',
        default_value = "x86_64,aarch64"
    )]
    targets: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    flags: Flags,
}

/// A file to measure.
struct Job {
    input: Input,
    isas: Vec<OwnedTargetIsa>,
    preset: Preset,
}

/// Before and after, for one target.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    before: Counts,
    after: Counts,
}

/// A function that was measured.
struct Measured {
    /// For each target.
    pairs: Vec<Pair>,
    /// The first path that got worse.
    worse: Option<String>,
}

/// The sum over the functions of a file, or of all.
#[derive(Clone, Debug, Default)]
struct Tally {
    functions: u64,
    failed: u64,
    worse: Vec<String>,
    /// For each target.
    pairs: Vec<Pair>,
}

/// A line of the result.
struct Row {
    name: String,
    preset: Option<Preset>,
    tally: Tally,
}

/// A quantity: its title, its name in JSON, and where it is.
type Quantity = (&'static str, &'static str, fn(&Counts) -> u64);

const OF_CLIF: &[Quantity] = &[
    ("instructions", "instructions", |counts| counts.insts),
    ("loads", "loads", |counts| counts.loads),
    ("stores", "stores", |counts| counts.stores),
    ("slots", "slots", |counts| counts.slots),
];

const OF_TARGET: &[Quantity] = &[
    ("frame", "frame_bytes", |counts| counts.frame_bytes),
    ("code", "code_bytes", |counts| counts.code_bytes),
];

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    for target in &args.targets {
        clif_memopt_measure::isa_for(target)?;
    }
    let mut unread = 0;
    let mut jobs = Vec::new();
    for file in paths::clif_files(&args.paths)? {
        match args.job(&file) {
            Ok(job) => jobs.push(job),
            Err(error) => {
                output::report_error(&error);
                unread += 1;
            }
        }
    }
    let rows = measure_all(args, &jobs);
    let total = &rows[rows.len() - 1].tally;
    if args.json && !jobs.is_empty() {
        output::print(as_json(args, &rows).as_bytes())?;
    } else if total.functions > 0 {
        output::print(as_table(args, &rows).as_bytes())?;
    }
    for line in &total.worse {
        output::note(&format!("worse: {line}"));
    }
    Ok(outcome(unread, &rows))
}

fn outcome(unread: usize, rows: &[Row]) -> Outcome {
    if unread > 0 || rows.iter().any(|row| row.tally.failed > 0) {
        Outcome::BadInput
    } else if rows.iter().any(|row| !row.tally.worse.is_empty()) {
        Outcome::Finding
    } else {
        Outcome::Success
    }
}

impl Args {
    fn job(&self, file: &std::path::Path) -> anyhow::Result<Job> {
        let input = Input::read(file)?;
        let isas = self
            .targets
            .iter()
            .map(|target| input.isa(Some(target)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let preset = self.flags.preset(&input);
        Ok(Job {
            input,
            isas,
            preset,
        })
    }
}

/// A row for each job, and as the last one that of all of them.
fn measure_all(args: &Args, jobs: &[Job]) -> Vec<Row> {
    let work: Vec<(usize, usize)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(job, Job { input, .. })| (0..input.functions.len()).map(move |at| (job, at)))
        .collect();
    let progress = Progress::new(work.len());
    let results: Vec<_> = work
        .par_iter()
        .map(|&(job, at)| {
            let result = measure_one(&args.flags, &jobs[job], at);
            progress.step();
            result
        })
        .collect();
    drop(progress);
    let mut rows: Vec<Row> = jobs.iter().map(|job| job.row(args.targets.len())).collect();
    let mut total = Tally::new(args.targets.len());
    for (&(job, _), result) in work.iter().zip(results) {
        match result {
            Ok(measured) => {
                total.add(&measured);
                rows[job].tally.add(&measured);
            }
            Err(error) => {
                output::report_error(&error);
                total.failed += 1;
                rows[job].tally.failed += 1;
            }
        }
    }
    rows.push(Row {
        name: "total".to_string(),
        preset: None,
        tally: total,
    });
    rows
}

fn measure_one(flags: &Flags, job: &Job, at: usize) -> anyhow::Result<Measured> {
    let parsed = &job.input.functions[at];
    let place = || job.input.place(parsed, None);
    let mut measured = Measured {
        pairs: Vec::new(),
        worse: None,
    };
    for isa in &job.isas {
        let isa = &**isa;
        job.input.verify_one(parsed, isa)?;
        let mut optimizer = Optimizer::new(flags.options(&job.input));
        let (ours, _) = flags::optimize(&mut optimizer, &job.input, at, isa)?;
        let (before, after, worse) = guarded(|| {
            let before = compile(&parsed.func, isa)?;
            let after = compile(&ours, isa).context("after the memory optimizer")?;
            let worse = worse_path(&before.optimized, &after.optimized);
            Ok((before.counts, after.counts, worse))
        })
        .with_context(place)?;
        measured.pairs.push(Pair { before, after });
        if let Some(worse) = worse.filter(|_| measured.worse.is_none()) {
            measured.worse = Some(format!("{}: {worse}", place()));
        }
    }
    Ok(measured)
}

impl Job {
    fn row(&self, targets: usize) -> Row {
        let name = self.input.name.clone();
        Row {
            name,
            preset: Some(self.preset),
            tally: Tally::new(targets),
        }
    }
}

impl Tally {
    fn new(targets: usize) -> Tally {
        Tally {
            pairs: vec![Pair::default(); targets],
            ..Tally::default()
        }
    }

    fn add(&mut self, measured: &Measured) {
        self.functions += 1;
        self.worse.extend(measured.worse.clone());
        for (sum, pair) in self.pairs.iter_mut().zip(&measured.pairs) {
            sum.before += pair.before;
            sum.after += pair.after;
        }
    }

    fn first(&self) -> Pair {
        self.pairs.first().copied().unwrap_or_default()
    }
}

impl Pair {
    fn values(&self, of: fn(&Counts) -> u64) -> (u64, u64) {
        (of(&self.before), of(&self.after))
    }
}

fn ratio((before, after): (u64, u64)) -> Option<f64> {
    (before != 0).then(|| after as f64 / before as f64)
}

fn as_table(args: &Args, rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(titles(args));
    for row in rows {
        table.add_row(cells(row));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

fn titles(args: &Args) -> Vec<String> {
    let mut titles: Vec<String> = ["file", "preset", "functions"].map(str::to_string).into();
    titles.extend(OF_CLIF.iter().map(|(title, ..)| title.to_string()));
    for target in &args.targets {
        titles.extend(
            OF_TARGET
                .iter()
                .map(|(title, ..)| format!("{title}\n{target}")),
        );
    }
    titles.extend(["worse", "failed"].map(str::to_string));
    titles
}

fn cells(row: &Row) -> Vec<String> {
    let Row {
        name,
        preset,
        tally,
    } = row;
    let preset = preset.map(|preset| preset.to_string()).unwrap_or_default();
    let mut cells = vec![name.clone(), preset, tally.functions.to_string()];
    cells.extend(
        OF_CLIF
            .iter()
            .map(|&(_, _, of)| cell(tally.first().values(of))),
    );
    for pair in &tally.pairs {
        cells.extend(OF_TARGET.iter().map(|&(_, _, of)| cell(pair.values(of))));
    }
    cells.extend([tally.worse.len().to_string(), tally.failed.to_string()]);
    cells
}

fn cell(values: (u64, u64)) -> String {
    let (before, after) = values;
    let ratio = ratio(values).map_or("-".to_string(), |ratio| format!("{ratio:.3}"));
    format!("{before} -> {after}\n{ratio}")
}

fn as_json(args: &Args, rows: &[Row]) -> String {
    let (files, total) = rows.split_at(rows.len() - 1);
    let files: Vec<Value> = files
        .iter()
        .map(|row| {
            let mut value = tally_json(args, &row.tally);
            value["file"] = json!(row.name);
            value["preset"] = json!(row.preset.map(|preset| preset.name()));
            value
        })
        .collect();
    let all = json!({
        "targets": args.targets,
        "files": files,
        "total": tally_json(args, &total[0].tally),
    });
    format!("{all:#}\n")
}

fn tally_json(args: &Args, tally: &Tally) -> Value {
    let mut value = json!({
        "functions": tally.functions,
        "failed": tally.failed,
        "worse": tally.worse.len(),
        "worse_paths": tally.worse,
        "targets": {},
    });
    for &(_, name, of) in OF_CLIF {
        value[name] = values_json(tally.first().values(of));
    }
    for (target, pair) in args.targets.iter().zip(&tally.pairs) {
        for &(_, name, of) in OF_TARGET {
            value["targets"][target][name] = values_json(pair.values(of));
        }
    }
    value
}

fn values_json(values: (u64, u64)) -> Value {
    json!({ "before": values.0, "after": values.1, "ratio": ratio(values) })
}
