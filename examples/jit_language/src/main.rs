//! A small language, Tin, whose front end keeps every variable in a stack slot, compiled by
//! Cranelift with and without `cranelift-memopt`: the same results, and what becomes of code size,
//! compile time and run time.
//!
//! ```text
//! text ─lexer─> tokens ─parser─> ast ─check─> typed ─codegen─> CLIF ─jit─> code ─runtime─> output
//! ```
//!
//! `cargo run --release -p jit_language -- --samples` shows all samples; `--help` the rest. The
//! language is best learned from `samples/`.

mod ast;
mod check;
mod codegen;
mod error;
mod jit;
mod lexer;
mod parser;
mod report;
mod runtime;
mod samples;
mod typed;
mod types;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, anyhow, bail};
use clap::{ArgGroup, Parser};

use crate::error::Error;
use crate::report::{Comparison, Measured};
use crate::samples::SAMPLES;
use crate::typed::Program;

/// Bytes of a source text.
const SOURCE_BYTES_MAX: u64 = 1 << 20;

/// Compile and run programs whose variables all live in stack slots, with cranelift-memopt and
/// without
///
/// Prints what the program prints, then code size, compile time and run time without and with the
/// memory optimizer, each on top of Cranelift's own at opt_level=speed. Times are the best of
/// several; a debug build tells nothing about those of the optimizer.
///
/// Exit code: 0 success; 1 the program failed, or its output differs between the two or from what
/// is expected; 2 bad usage, or a mistake in the program.
#[derive(Debug, Parser)]
#[command(name = "jit_language", version)]
#[command(group = ArgGroup::new("input").required(true))]
#[command(after_help = "Examples:
  jit_language examples/jit_language/samples/nbody.tin
  jit_language --samples
  jit_language --samples --stats
  echo 'fn main() { print(6 * 7); }' | jit_language --run -
  jit_language --emit-clif=after program.tin
  jit_language --samples --json | jq '.programs[].functions[] | {name, slots_before, slots_after}'")]
struct Args {
    /// A program; `-` is standard input
    #[arg(group = "input", value_name = "FILE")]
    file: Option<PathBuf>,

    /// All the samples that are built in, with their output checked
    #[arg(long, group = "input")]
    samples: bool,

    /// Run the optimized program and print what it prints, nothing else
    #[arg(long, group = "what")]
    run: bool,

    /// Print for each function the slots, loads and stores before and after, and the slots that
    /// stay; do not run
    #[arg(long, group = "what")]
    stats: bool,

    /// Print the CLIF that the front end makes, or that the memory optimizer makes of it; do not run
    #[arg(long, group = "what", value_name = "STAGE", num_args = 0..=1, require_equals = true,
          default_missing_value = "both")]
    emit_clif: Option<Stage>,

    /// Print JSON, of everything but CLIF
    #[arg(long, group = "what")]
    json: bool,

    /// How often to compile and to run, for the times
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Stage {
    Before,
    After,
    Both,
}

/// A program, where it is from, and what it should print if that is known.
struct Source {
    name: String,
    text: String,
    expected: Option<&'static str>,
}

/// Whether all went as it should: exit code 0 or 1.
type Good = bool;

fn main() -> ExitCode {
    let args = Args::parse();
    // The programs need a stack of known size, and the front end recurses.
    let work = thread::Builder::new()
        .stack_size(runtime::THREAD_STACK_BYTES)
        .spawn(move || dispatch(&args));
    let result = match work.map(thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(anyhow!("internal error, please report this program")),
        Err(error) => Err(anyhow!(error).context("cannot start a thread")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            note(&format!("error: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn dispatch(args: &Args) -> anyhow::Result<Good> {
    let sources = sources(args)?;
    let mut programs = Vec::new();
    for source in &sources {
        programs.push((source, in_source(source, front_end(source))?));
    }
    if args.run {
        return run(&programs);
    }
    if args.stats {
        return stats(&programs);
    }
    if let Some(stage) = args.emit_clif {
        return emit_clif(&programs, stage);
    }
    compare(args, &programs)
}

fn sources(args: &Args) -> anyhow::Result<Vec<Source>> {
    if let Some(file) = &args.file {
        return Ok(vec![read(file)?]);
    }
    let samples = SAMPLES.iter().map(|sample| Source {
        name: sample.name.to_string(),
        text: sample.text.to_string(),
        expected: Some(sample.output),
    });
    Ok(samples.collect())
}

fn read(file: &Path) -> anyhow::Result<Source> {
    let mut bytes = Vec::new();
    let name = if file.as_os_str() == "-" {
        let stdin = io::stdin().lock().take(SOURCE_BYTES_MAX + 1);
        { stdin }
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
        "<stdin>".to_string()
    } else {
        let name = file.display().to_string();
        let opened = fs::File::open(file).and_then(|file| {
            let mut limited = file.take(SOURCE_BYTES_MAX + 1);
            limited.read_to_end(&mut bytes)
        });
        opened.with_context(|| format!("cannot read {name}"))?;
        name
    };
    if bytes.len() as u64 > SOURCE_BYTES_MAX {
        bail!("{name} has more than {SOURCE_BYTES_MAX} bytes");
    }
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("{name} is not UTF-8 text"))?;
    Ok(Source {
        name,
        text,
        expected: None,
    })
}

fn front_end(source: &Source) -> anyhow::Result<Program> {
    let ast = parser::parse(&source.text)?;
    Ok(check::check(&ast)?)
}

/// A mistake in the program is shown with its name and the line.
fn in_source<T>(source: &Source, result: anyhow::Result<T>) -> anyhow::Result<T> {
    result.map_err(|error| match error.downcast_ref::<Error>() {
        Some(mistake) => anyhow!(mistake.render(&source.name, &source.text)),
        None => error.context(source.name.clone()),
    })
}

fn run(programs: &[(&Source, Program)]) -> anyhow::Result<Good> {
    let mut good = true;
    for (source, program) in programs {
        let executable = in_source(source, jit::compile(program, true))?;
        let (outcome, _) = executable.run();
        print(&outcome.output)?;
        if let Some(failure) = outcome.failure {
            note(&format!(
                "error: {}",
                failure.render(&source.name, &source.text)
            ));
            good = false;
        }
    }
    Ok(good)
}

fn stats(programs: &[(&Source, Program)]) -> anyhow::Result<Good> {
    let mut reports = Vec::new();
    for (source, program) in programs {
        let functions = in_source(source, jit::report(program))?;
        reports.push((source.name.as_str(), functions));
    }
    print(&report::stats_table(&reports))?;
    Ok(true)
}

fn emit_clif(programs: &[(&Source, Program)], stage: Stage) -> anyhow::Result<Good> {
    for (source, program) in programs {
        for function in in_source(source, jit::report(program))? {
            let place = format!("`{}` of {}", function.name, source.name);
            if stage != Stage::After {
                print(&format!("; {place}, before\n{}\n", function.clif_before))?;
            }
            if stage != Stage::Before {
                print(&format!("; {place}, after\n{}\n", function.clif_after))?;
            }
        }
    }
    Ok(true)
}

fn compare(args: &Args, programs: &[(&Source, Program)]) -> anyhow::Result<Good> {
    let mut good = true;
    let mut comparisons = Vec::new();
    for (source, program) in programs {
        let comparison = in_source(source, measure(source, program, args.repeat))?;
        let outcome = &comparison.with.outcome;
        if !args.samples && !args.json {
            print(&format!("{}\n", outcome.output))?;
        }
        if let Some(failure) = &outcome.failure {
            note(&format!(
                "error: {}",
                failure.render(&source.name, &source.text)
            ));
            good = false;
        }
        if !comparison.equal() {
            note(&format!(
                "error: {}: the optimizer changed the output",
                source.name
            ));
            good = false;
        }
        if comparison.as_expected == Some(false) {
            note(&format!("error: {}: not the expected output", source.name));
            good = false;
        }
        comparisons.push(comparison);
    }
    if !args.json {
        print(&report::comparison_table(&comparisons))?;
        return Ok(good);
    }
    let mut reports = Vec::new();
    for (source, program) in programs {
        reports.push(in_source(source, jit::report(program))?);
    }
    print(&report::json(&comparisons, &reports))?;
    Ok(good)
}

fn measure(source: &Source, program: &Program, repeat: u32) -> anyhow::Result<Comparison> {
    let mut without = Measured::new(program, false)?;
    let mut with = Measured::new(program, true)?;
    // In turns, so that both see the same moods of the machine.
    for _ in 1..repeat {
        without.again(program)?;
        with.again(program)?;
    }
    let as_expected = source
        .expected
        .map(|expected| with.outcome.output == expected && with.outcome.failure.is_none());
    Ok(Comparison {
        name: source.name.clone(),
        without,
        with,
        as_expected,
    })
}

/// Writes to standard output. A reader that stops reading is no error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error.
fn note(line: &str) {
    // With standard error gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{line}");
}
