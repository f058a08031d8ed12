//! The filetest runner of cranelift-memopt, and the executor that compares original code with
//! optimized code.
//!
//! [`run_file`] runs one `.clif` file in Cranelift's filetest format. [`exec::run_comparison`] runs
//! only its `; run:` lines and tells for each whether original and optimized code did the same.

pub mod exec;
mod expect;
mod options;
mod runner;
mod source;
mod subtest;

pub use options::{optimize_functions, optimizer_options};
pub use runner::{Outcome, RunnerSettings, run_file};
pub use source::{Command, CommandOption, Comment, Target, TestFunction, TestSource};
