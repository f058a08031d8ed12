//! What one call of the optimizer did.

use crate::remarks::Remark;
use crate::stats::Stats;

/// What [`Optimizer::optimize`](crate::Optimizer::optimize) did to a function.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Whether the function was changed.
    pub changed: bool,
    /// Counters.
    pub stats: Stats,
    /// Why accesses went or stayed, if [`Options::remarks`](crate::Options::remarks) asks for it.
    pub remarks: Vec<Remark>,
}
