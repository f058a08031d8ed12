//! Benchmarks of `cranelift-memopt`. Times are ratios against Cranelift alone, or per access, taken
//! in one run with the sides interleaved, since machines differ and drift.

mod allocations;
mod compile;
mod memssa;
mod worst;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const TARGET: &str = "x86_64";
const ROUNDS: u32 = 7;
const ACCESSES_MAX: u32 = 1 << 20;
const OPERATIONS_MAX: u32 = 100_000;

/// Benchmarks of cranelift-memopt.
#[derive(Parser)]
#[command(name = "clif-memopt-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All of the below, at their default sizes.
    #[command(after_help = "Example:\n  clif-memopt-bench all examples/clif")]
    All {
        /// CLIF files and folders of them.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// The optimizer's time as a ratio of Cranelift's compile time at opt_level=speed.
    #[command(after_help = "Example:\n  clif-memopt-bench compile examples/clif --rounds 9")]
    Compile {
        /// CLIF files and folders of them.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Target to compile for.
        #[arg(long, default_value = TARGET)]
        target: String,
        /// How often each function is compiled on each side; the fastest time counts.
        #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Time per access of building MemorySSA and of walking to every clobber, as functions grow.
    #[command(after_help = "Example:\n  clif-memopt-bench memssa --max 1048576")]
    Memssa {
        /// The largest number of accesses; sizes double up to it.
        #[arg(long, default_value_t = ACCESSES_MAX, value_parser = clap::value_parser!(u32).range(1024..))]
        max: u32,
    },
    /// Time and memory per memory operation of the whole optimizer on adversarial functions, as they
    /// grow, in a thread with 512 KiB of stack.
    #[command(after_help = "Example:\n  clif-memopt-bench worst --max 100000")]
    Worst {
        /// The largest number of memory operations; sizes double up to it.
        #[arg(long, default_value_t = OPERATIONS_MAX, value_parser = clap::value_parser!(u32).range(3125..))]
        max: u32,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::All { paths } => compile::run(&paths, TARGET, ROUNDS)
            .and_then(|()| memssa::run(ACCESSES_MAX))
            .and_then(|()| worst::run(OPERATIONS_MAX)),
        Command::Compile {
            paths,
            target,
            rounds,
        } => compile::run(&paths, &target, rounds),
        Command::Memssa { max } => memssa::run(max),
        Command::Worst { max } => worst::run(max),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
