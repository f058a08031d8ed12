//! MemorySSA and memory optimizations for Cranelift.
//!
//! The library works on a [`Function`](cranelift_codegen::ir::Function) before
//! `Context::compile`: it views what the function does to memory ([`view`]), asks how accesses
//! relate ([`alias`](mod@alias)), builds MemorySSA ([`memssa`]) and runs passes that remove loads and stores.
//!
//! [`Optimizer`] is the way in; [`MemoryAnalysis`] gives the analyses alone. The memory contract by which every rewrite is judged is in the
//! repository's README, under *Assumptions*.
#![forbid(unsafe_code)]

pub mod alias;
mod analysis;
mod certificate;
mod check;
mod context;
mod convert;
pub mod effects;
mod error;
#[cfg(feature = "seeded-faults")]
pub mod faults;
#[cfg(not(feature = "seeded-faults"))]
mod faults;
pub mod flow;
mod frontier;
mod fuel;
pub mod memssa;
mod options;
mod passes;
mod pipeline;
pub mod print;
mod remarks;
mod report;
mod rewrite;
mod stats;
mod value;
pub mod view;

pub use analysis::MemoryAnalysis;
pub use context::Optimizer;
pub use error::Error;
pub use options::{Options, Pass, Preset, RegionName, UnknownName};
pub use remarks::{Action, Remark};
pub use report::Report;
pub use stats::Stats;
