//! `clif-memopt`: the command line of the memory optimizer.
#![forbid(unsafe_code)]

mod bisect;
mod compile;
mod flags;
mod fuzz;
mod guard;
mod header;
mod input;
mod opt;
mod output;
mod paths;
mod print;
mod progress;
mod run;
mod size;
mod test;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Looks at, optimizes, measures and compiles Cranelift CLIF.
///
/// Exit code: 0 success, 1 a finding, 2 bad usage or bad input.
#[derive(Debug, Parser)]
#[command(name = "clif-memopt", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Opt(opt::Args),
    Print(print::Args),
    Size(size::Args),
    Compile(compile::Args),
    Run(run::Args),
    Test(test::Args),
    Bisect(bisect::Args),
    Fuzz(fuzz::Args),
}

/// How a command that did its work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing to report.
    Success,
    /// The command found what it looks for: exit code 1.
    Finding,
    /// Part of the input was bad and has been reported: exit code 2.
    BadInput,
}

fn main() -> ExitCode {
    guard::silence_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match guard::guarded(|| dispatch(cli.command)) {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Finding) => ExitCode::from(1),
        Ok(Outcome::BadInput) => ExitCode::from(2),
        Err(error) => {
            output::report_error(&error);
            ExitCode::from(2)
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Opt(args) => opt::run(args),
        Command::Print(args) => print::run(&args),
        Command::Size(args) => size::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Bisect(args) => bisect::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
    }
}

/// Help goes out as clap has it; an error is brought down to one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or(&text);
            let message = first.strip_prefix("error: ").unwrap_or(first);
            output::report_error(&anyhow::anyhow!("{message} (try --help)"));
            ExitCode::from(2)
        }
    }
}
