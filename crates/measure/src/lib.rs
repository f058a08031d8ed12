//! What Cranelift makes of a function: counts of what is left, the check that no path got worse,
//! and the targets that the tools measure for.
#![forbid(unsafe_code)]

mod counts;
mod target;
mod worse;

pub use counts::{Compiled, Counts, compile, measure, memory_ops, ops_of_memory_function};
pub use target::{isa_for, isa_with};
pub use worse::{WorsePath, worse_path};
