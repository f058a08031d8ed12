//! Fuzzing of cranelift-memopt: a generator of valid CLIF that keeps the memory contract, oracles
//! that judge what the optimizer makes of it, campaigns, a reducer and a search for the rewrite at
//! fault.
//!
//! ```
//! use clif_memopt_fuzzgen::{Config, Setup, case_of_seed, check_all};
//!
//! let case = case_of_seed(1, &Config::default());
//! let setup = Setup::new("x86_64").unwrap();
//! assert!(check_all(&case, &setup, &mut Default::default()).is_empty());
//! ```
#![forbid(unsafe_code)]

mod bisect;
mod campaign;
mod case;
mod choices;
mod generate;
mod oracle;
mod reduce;
mod shape;

pub use bisect::first_bad_fuel;
pub use campaign::{Campaign, Failure, Summary, run_campaign};
pub use case::Case;
pub use choices::bytes_of_seed;
pub use generate::{Config, case_of_bytes, case_of_seed, generate};
pub use oracle::{
    Finding, Oracle, Setup, check_all, check_clobbers, check_execution, check_form,
    check_interpretation, check_permutations, check_second_run, check_worse_paths, optimize_all,
    permuted,
};
pub use reduce::{reduce, reduce_finding};
pub use shape::{Shape, Tally};
