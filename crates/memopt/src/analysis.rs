//! The analyses of one function, together: control flow, memory view, MemorySSA, clobbers.

use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;

use crate::error::Error;
use crate::flow::Flow;
use crate::memssa::{Clobber, MemorySsa, VerifyError, WalkContext, WalkCounts, Walker, verify};
use crate::options::Options;
use crate::view::{Entry, View};

/// What is known of a function's memory. Storage is reused from function to function.
///
/// The optimizer's passes work on it; it serves other clients as well. It must be given the
/// function it was computed for, unchanged.
///
/// ```
/// # use cranelift_codegen::{isa, settings};
/// use cranelift_memopt::memssa::MemoryAccess;
/// use cranelift_memopt::{MemoryAnalysis, Options};
///
/// # let isa = isa::lookup_by_name("x86_64").unwrap()
/// #     .finish(settings::Flags::new(settings::builder())).unwrap();
/// # let text = "function %f(i64, i32) -> i32 {\n block0(v0: i64, v1: i32):\n\
/// #     store v1, v0\n v2 = load.i32 v0+4\n return v2 }";
/// # let func = cranelift_reader::parse_functions(text).unwrap().remove(0);
/// let mut analysis = MemoryAnalysis::default();
/// analysis.compute(&func, &*isa, &Options::default())?;
/// let load = analysis.view().entries().nth(1).unwrap();
/// let clobber = analysis.clobber(&func, load).unwrap();
/// assert_eq!(clobber.access, MemoryAccess::LIVE_ON_ENTRY);
/// # Ok::<(), cranelift_memopt::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryAnalysis {
    pub(crate) flow: Flow,
    pub(crate) view: View,
    pub(crate) ssa: MemorySsa,
    pub(crate) walker: Walker,
}

impl MemoryAnalysis {
    /// Analyses `func` for the target `isa`.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedTarget`] if addresses are not 64 bits wide.
    pub fn compute(
        &mut self,
        func: &Function,
        isa: &dyn TargetIsa,
        options: &Options,
    ) -> Result<(), Error> {
        check_target(isa)?;
        self.view.scan(func, isa.endianness(), options);
        self.flow.compute(func);
        self.analyze(func, options);
        Ok(())
    }

    /// The rest of [`MemoryAnalysis::compute`] after the view has scanned the function and the
    /// control flow is known.
    pub(crate) fn analyze(&mut self, func: &Function, options: &Options) {
        self.view.analyze(func, &self.flow, options);
        self.ssa.build(func, &self.flow, &self.view);
        self.walker
            .reset(self.ssa.num_accesses(), options.walk_steps_per_access);
    }

    /// The control flow.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The memory view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The MemorySSA form.
    pub fn ssa(&self) -> &MemorySsa {
        &self.ssa
    }

    /// The nearest access above `entry` that may have changed the bytes it names. None if it names
    /// none or is unreachable. Answers are cached.
    pub fn clobber(&mut self, func: &Function, entry: Entry) -> Option<Clobber> {
        let mut cx = WalkContext {
            func,
            flow: &self.flow,
            view: &mut self.view,
            ssa: &self.ssa,
        };
        self.walker.clobber_of(&mut cx, entry)
    }

    /// What the walks to clobbers have taken.
    pub fn walk_counts(&self) -> WalkCounts {
        self.walker.counts()
    }

    /// Checks the form and all clobbers that were asked for, by other algorithms than those that
    /// made them.
    ///
    /// # Errors
    ///
    /// What is wrong: a bug of this library.
    pub fn verify(&mut self, func: &Function) -> Result<(), VerifyError> {
        verify(func, &self.flow, &mut self.view, &self.ssa, &self.walker)
    }
}

/// Fails if the library does not work for the target.
pub(crate) fn check_target(isa: &dyn TargetIsa) -> Result<(), Error> {
    if isa.pointer_bits() == 64 {
        Ok(())
    } else {
        Err(Error::UnsupportedTarget {
            triple: isa.triple().to_string(),
        })
    }
}
