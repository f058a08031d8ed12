//! The optimizer: what it keeps from function to function.

use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;

use crate::analysis::{MemoryAnalysis, check_target};
use crate::error::Error;
use crate::fuel::Fuel;
use crate::options::Options;
use crate::passes::{dse::Dse, forward::Forward, frame::Frame, sroa::Sroa};
use crate::pipeline;
use crate::report::Report;

/// Analyses and the storage of passes.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) analysis: MemoryAnalysis,
    pub(crate) slots: SlotPasses,
    pub(crate) forward: Forward,
    pub(crate) dse: Dse,
}

/// The storage of passes on stack slots.
#[derive(Debug, Default)]
pub(crate) struct SlotPasses {
    pub(crate) sroa: Sroa,
    pub(crate) frame: Frame,
}

/// Optimizes functions, one after another. Keep one for each thread: its storage is reused.
///
/// ```
/// # use cranelift_codegen::{isa, settings, settings::Configurable};
/// use cranelift_memopt::{Optimizer, Options};
///
/// # let isa = isa::lookup_by_name("x86_64").unwrap()
/// #     .finish(settings::Flags::new(settings::builder())).unwrap();
/// # let text = "function %f(i64, i32) -> i32 {\n block0(v0: i64, v1: i32):\n\
/// #     store v1, v0\n v2 = load.i32 v0\n return v2 }";
/// # let mut func = cranelift_reader::parse_functions(text).unwrap().remove(0);
/// let mut optimizer = Optimizer::new(Options::default());
/// let report = optimizer.optimize(&mut func, &*isa)?;
/// assert_eq!(report.stats.forward_from_store, 1);
/// # Ok::<(), cranelift_memopt::Error>(())
/// ```
#[derive(Debug)]
pub struct Optimizer {
    options: Options,
    fuel: Fuel,
    context: Context,
}

impl Optimizer {
    /// An optimizer that works by `options`. Its fuel lasts for all the functions that it gets.
    pub fn new(options: Options) -> Self {
        Optimizer {
            fuel: Fuel::new(options.fuel),
            options,
            context: Context::default(),
        }
    }

    /// The options it works by.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Optimizes the memory operations of `func` for the target `isa`.
    ///
    /// `func` must be accepted by Cranelift's verifier. It is best called before
    /// `Context::compile`; a control flow graph or dominator tree computed before stays right,
    /// since blocks and edges are not changed.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedTarget`] if addresses are not 64 bits wide, with the function as it
    /// was; [`Error::Verifier`] if [`Options::verify`] is on and finds a bug of this library.
    pub fn optimize(&mut self, func: &mut Function, isa: &dyn TargetIsa) -> Result<Report, Error> {
        check_target(isa)?;
        pipeline::run(func, isa, &self.options, &mut self.context, &mut self.fuel)
    }
}
