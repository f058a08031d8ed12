//! What the optimizer costs, and what it saves, of Cranelift's compile time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clif_memopt_measure::isa_for;
use comfy_table::{CellAlignment, Table, presets};
use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::{Optimizer, Options};
use indicatif::ProgressBar;

/// Times of one side of a comparison, or of many functions added up.
#[derive(Clone, Copy, Default)]
struct Times {
    functions: u32,
    /// Cranelift alone.
    compile: Duration,
    /// The optimizer.
    optimize: Duration,
    /// Cranelift on what the optimizer left.
    compile_optimized: Duration,
}

impl Times {
    fn add(&mut self, other: &Times) {
        self.functions += other.functions;
        self.compile += other.compile;
        self.optimize += other.optimize;
        self.compile_optimized += other.compile_optimized;
    }

    fn row(&self, name: String) -> Vec<String> {
        let alone = self.compile.as_secs_f64();
        let optimize = self.optimize.as_secs_f64();
        let together = optimize + self.compile_optimized.as_secs_f64();
        vec![
            name,
            self.functions.to_string(),
            format!("{:.2}", alone * 1e3),
            format!("{:.1} %", 100.0 * optimize / alone),
            format!("{:.3}", together / alone),
        ]
    }
}

/// Times every function of the files and prints a row a file.
pub(crate) fn run(paths: &[PathBuf], target: &str, rounds: u32) -> anyhow::Result<()> {
    let isa = isa_for(target)?;
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files)?;
    }
    files.sort();
    if files.is_empty() {
        bail!("no .clif files in the paths given");
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "file",
        "functions",
        "Cranelift ms",
        "optimizer / Cranelift",
        "(optimizer + Cranelift) / Cranelift",
    ]);
    for column in 1..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let progress = ProgressBar::new(files.len() as u64);
    let mut total = Times::default();
    let mut optimizer = Optimizer::new(Options::default());
    for file in &files {
        let times = time_file(file, &*isa, rounds, &mut optimizer)?;
        total.add(&times);
        table.add_row(times.row(file.display().to_string()));
        progress.inc(1);
    }
    progress.finish_and_clear();
    table.add_row(total.row("total".to_string()));
    println!("{table}");
    Ok(())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let context = || format!("cannot read {}", path.display());
    if !fs::metadata(path).with_context(context)?.is_dir() {
        files.push(path.to_path_buf());
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.is_dir() || path.extension().is_some_and(|ext| ext == "clif") {
            collect(&path, files)?;
        }
    }
    Ok(())
}

fn time_file(
    path: &Path,
    isa: &dyn TargetIsa,
    rounds: u32,
    optimizer: &mut Optimizer,
) -> anyhow::Result<Times> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let functions = cranelift_reader::parse_functions(&text)
        .map_err(|error| anyhow!("{}:{error}", path.display()))?;
    let mut times = Times::default();
    for func in &functions {
        times.add(&time_function(func, isa, rounds, optimizer)?);
    }
    Ok(times)
}

fn time_function(
    func: &Function,
    isa: &dyn TargetIsa,
    rounds: u32,
    optimizer: &mut Optimizer,
) -> anyhow::Result<Times> {
    let mut best = Times {
        functions: 1,
        compile: Duration::MAX,
        optimize: Duration::MAX,
        compile_optimized: Duration::MAX,
    };
    // One context for both sides: what it has allocated serves them alike.
    let mut context = Context::new();
    for _ in 0..rounds {
        best.compile = best
            .compile
            .min(time_compile(&mut context, func.clone(), isa)?);
        let mut optimized = func.clone();
        let start = Instant::now();
        optimizer.optimize(&mut optimized, isa)?;
        best.optimize = best.optimize.min(start.elapsed());
        best.compile_optimized =
            best.compile_optimized
                .min(time_compile(&mut context, optimized, isa)?);
    }
    Ok(best)
}

fn time_compile(
    context: &mut Context,
    func: Function,
    isa: &dyn TargetIsa,
) -> anyhow::Result<Duration> {
    context.clear();
    context.func = func;
    let start = Instant::now();
    context
        .compile(isa, &mut ControlPlane::default())
        .map_err(|error| anyhow!("{}: {:?}", error.func.name, error.inner))?;
    Ok(start.elapsed())
}
