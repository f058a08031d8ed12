//! [`OptimizingModule`]: a Cranelift module that optimizes memory operations before it compiles.
//!
//! It wraps a [`Module`] of any kind, `JITModule` and `ObjectModule` among them, and is one itself.
//! An embedder changes the line that makes the module:
//!
//! ```
//! use cranelift_codegen::ir::{AbiParam, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, types};
//! use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
//! use cranelift_jit::{JITBuilder, JITModule};
//! use cranelift_memopt_module::{Options, OptimizingModule};
//! use cranelift_module::{Linkage, Module, default_libcall_names};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let builder = JITBuilder::new(default_libcall_names())?;
//! // Was: let mut module = JITModule::new(builder);
//! let mut module = OptimizingModule::new(JITModule::new(builder), Options::default());
//!
//! // From here on, all that goes through the `Module` trait is as before.
//! let mut ctx = module.make_context();
//! ctx.func.signature.params.push(AbiParam::new(types::I64));
//! ctx.func.signature.returns.push(AbiParam::new(types::I64));
//! let id = module.declare_function("through_a_slot", Linkage::Export, &ctx.func.signature)?;
//!
//! let mut frontend = FunctionBuilderContext::new();
//! let mut b = FunctionBuilder::new(&mut ctx.func, &mut frontend);
//! let block = b.create_block();
//! b.append_block_params_for_function_params(block);
//! b.switch_to_block(block);
//! b.seal_all_blocks();
//! let slot = b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, 8, 3));
//! let argument = b.block_params(block)[0];
//! let address = b.ins().stack_addr(types::I64, slot, 0);
//! b.ins().store(MemFlagsData::trusted(), argument, address, 0);
//! let again = b.ins().load(types::I64, MemFlagsData::trusted(), address, 0);
//! b.ins().return_(&[again]);
//! b.finalize(module.target_config());
//!
//! module.define_function(id, &mut ctx)?; // optimizes, then compiles
//!
//! // What the module has besides the trait is reached through `inner` and `inner_mut`.
//! module.inner_mut().finalize_definitions()?;
//! let code: *const u8 = module.inner().get_finalized_function(id);
//! # assert!(!code.is_null());
//! println!("{}", module.report());
//! # assert_eq!(module.report().functions, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Methods that take the module by value are reached through [`OptimizingModule::into_inner`]:
//! `module.into_inner().finish()` for an `ObjectModule`.
//!
//! # What is optimized
//!
//! Functions defined from a [`Context`], by [`Module::define_function`] and
//! [`Module::define_function_with_control_plane`]. Functions defined by bytes, data and all
//! declarations are handed to the inner module as they come. To define one function without
//! optimizing it, define it in [`OptimizingModule::inner_mut`].
//!
//! # Errors
//!
//! - *The target is not supported* (its addresses are not 64 bits wide): no error. The function is
//!   compiled as it came, counted in [`ModuleReport::unsupported`], and the log warns once. Wrapping
//!   a module never takes away a target.
//! - *The function is not valid* and the target's `enable_verifier` is on: the verifier runs before
//!   the optimizer, which expects valid functions, and its error is the one that the inner module
//!   would have returned, about the function as the embedder wrote it. With `enable_verifier` off,
//!   validity is the embedder's promise, as it is to Cranelift.
//! - *The optimizer is at fault*, which only [`Options::verify`] looks for: [`ModuleError::Backend`]
//!   around the [`Error`], to be had back by `downcast_ref`. The function is not defined.
#![forbid(unsafe_code)]

use std::fmt;

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{FuncRef, Function, GlobalValue, Signature};
use cranelift_codegen::isa::{TargetFrontendConfig, TargetIsa};
use cranelift_memopt::Optimizer;
use cranelift_module::{
    DataDescription, DataId, FuncId, FuncOrDataId, Linkage, Module, ModuleDeclarations,
    ModuleError, ModuleReloc, ModuleResult,
};

pub use cranelift_memopt::{Error, Options, Remark, Report, Stats};

/// A [`Module`] that optimizes the memory operations of each function before the module it wraps
/// compiles it.
///
/// See the [crate's documentation](crate) for use and errors.
pub struct OptimizingModule<M> {
    inner: M,
    optimizer: Optimizer,
    report: ModuleReport,
    last: Option<Report>,
    remarks: Vec<(FuncId, Remark)>,
}

/// What an [`OptimizingModule`] has done since it was made.
///
/// Functions are counted when the optimizer is done with them, also where the inner module then
/// fails to compile them. By `Display`: a line of counts, then the statistics that are not zero, a
/// line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleReport {
    /// Functions that were optimized, changed or not.
    pub functions: u64,
    /// Those of [`functions`](Self::functions) that were changed.
    pub changed: u64,
    /// Functions that were compiled as they came, because the target is not supported. Not among
    /// [`functions`](Self::functions).
    pub unsupported: u64,
    /// The sum of the statistics of all functions.
    pub stats: Stats,
}

impl fmt::Display for ModuleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} functions changed",
            self.changed, self.functions
        )?;
        if self.unsupported > 0 {
            write!(f, ", {} on an unsupported target", self.unsupported)?;
        }
        for (name, value) in self.stats.iter().filter(|&(_, value)| value > 0) {
            write!(f, "\n{value:>8} {name}")?;
        }
        Ok(())
    }
}

impl<M> OptimizingModule<M> {
    /// Wraps `inner`. Functions that it holds already stay as they are.
    ///
    /// One [`Optimizer`] serves all functions, so that its storage is reused and
    /// [`Options::fuel`] bounds the rewrites of the module as a whole.
    pub fn new(inner: M, options: Options) -> Self {
        OptimizingModule {
            inner,
            optimizer: Optimizer::new(options),
            report: ModuleReport::default(),
            last: None,
            remarks: Vec::new(),
        }
    }

    /// The wrapped module.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// The wrapped module, for what it can do besides the [`Module`] trait, such as
    /// `JITModule::finalize_definitions`. A function defined here is not optimized.
    pub fn inner_mut(&mut self) -> &mut M {
        &mut self.inner
    }

    /// Unwraps the module, for methods that take it by value, such as `ObjectModule::finish`.
    pub fn into_inner(self) -> M {
        self.inner
    }

    /// The options that functions are optimized by.
    pub fn options(&self) -> &Options {
        self.optimizer.options()
    }

    /// What was done for all functions so far.
    pub fn report(&self) -> &ModuleReport {
        &self.report
    }

    /// What was done for the function that was defined last from a [`Context`]; `None` if there is
    /// none, or if it was not optimized: the target is not supported, or there was an error first.
    pub fn last_report(&self) -> Option<&Report> {
        self.last.as_ref()
    }

    /// The remarks since the last call, each with the function it is about. There are some only
    /// with [`Options::remarks`], and they are kept until they are taken.
    pub fn take_remarks(&mut self) -> Vec<(FuncId, Remark)> {
        std::mem::take(&mut self.remarks)
    }
}

impl<M: Module> OptimizingModule<M> {
    /// Optimizes `ctx.func`. On an error the inner module must not compile it.
    #[expect(clippy::result_large_err, reason = "the error type of the trait")]
    fn optimize(&mut self, func: FuncId, ctx: &mut Context) -> ModuleResult<()> {
        self.last = None;
        let isa = self.inner.isa();

        // The inner module verifies too, but what it sees then is our output.
        ctx.verify_if(isa)?;

        match self.optimizer.optimize(&mut ctx.func, isa) {
            Ok(report) => {
                if report.changed {
                    // Compiling computes these anew, but before that Cranelift's verifier holds
                    // against the function those that the embedder may have computed.
                    ctx.cfg.clear();
                    ctx.domtree.clear();
                    ctx.loop_analysis.clear();
                }
                self.report.functions += 1;
                self.report.changed += u64::from(report.changed);
                self.report.stats.add(&report.stats);
                self.remarks
                    .extend(report.remarks.iter().map(|remark| (func, remark.clone())));
                self.last = Some(report);
                Ok(())
            }
            Err(error @ Error::UnsupportedTarget { .. }) => {
                if self.report.unsupported == 0 {
                    log::warn!("{error}; functions are compiled without memory optimizations");
                }
                self.report.unsupported += 1;
                Ok(())
            }
            Err(error) => Err(module_error(error)),
        }
    }
}

/// `Backend` keeps the error's type, and `CodegenError::Verifier` would blame the embedder.
fn module_error(error: Error) -> ModuleError {
    ModuleError::Backend(anyhow::Error::new(error))
}

// Also the methods that have a default: the inner module may have its own.
#[deny(clippy::missing_trait_methods)]
impl<M: Module> Module for OptimizingModule<M> {
    fn isa(&self) -> &dyn TargetIsa {
        self.inner.isa()
    }

    fn declarations(&self) -> &ModuleDeclarations {
        self.inner.declarations()
    }

    fn get_name(&self, name: &str) -> Option<FuncOrDataId> {
        self.inner.get_name(name)
    }

    fn target_config(&self) -> TargetFrontendConfig {
        self.inner.target_config()
    }

    fn make_context(&self) -> Context {
        self.inner.make_context()
    }

    fn clear_context(&self, ctx: &mut Context) {
        self.inner.clear_context(ctx);
    }

    fn make_signature(&self) -> Signature {
        self.inner.make_signature()
    }

    fn clear_signature(&self, sig: &mut Signature) {
        self.inner.clear_signature(sig);
    }

    fn declare_function(
        &mut self,
        name: &str,
        linkage: Linkage,
        signature: &Signature,
    ) -> ModuleResult<FuncId> {
        self.inner.declare_function(name, linkage, signature)
    }

    fn declare_anonymous_function(&mut self, signature: &Signature) -> ModuleResult<FuncId> {
        self.inner.declare_anonymous_function(signature)
    }

    fn declare_data(
        &mut self,
        name: &str,
        linkage: Linkage,
        writable: bool,
        tls: bool,
    ) -> ModuleResult<DataId> {
        self.inner.declare_data(name, linkage, writable, tls)
    }

    fn declare_anonymous_data(&mut self, writable: bool, tls: bool) -> ModuleResult<DataId> {
        self.inner.declare_anonymous_data(writable, tls)
    }

    fn declare_func_in_func(&mut self, func_id: FuncId, func: &mut Function) -> FuncRef {
        self.inner.declare_func_in_func(func_id, func)
    }

    fn declare_data_in_func(&self, data: DataId, func: &mut Function) -> GlobalValue {
        self.inner.declare_data_in_func(data, func)
    }

    fn declare_func_in_data(&self, func_id: FuncId, data: &mut DataDescription) -> FuncRef {
        self.inner.declare_func_in_data(func_id, data)
    }

    fn declare_data_in_data(&self, data_id: DataId, data: &mut DataDescription) -> GlobalValue {
        self.inner.declare_data_in_data(data_id, data)
    }

    fn define_function(&mut self, func: FuncId, ctx: &mut Context) -> ModuleResult<()> {
        self.optimize(func, ctx)?;
        self.inner.define_function(func, ctx)
    }

    fn define_function_with_control_plane(
        &mut self,
        func: FuncId,
        ctx: &mut Context,
        ctrl_plane: &mut ControlPlane,
    ) -> ModuleResult<()> {
        self.optimize(func, ctx)?;
        self.inner
            .define_function_with_control_plane(func, ctx, ctrl_plane)
    }

    fn define_function_bytes(
        &mut self,
        func_id: FuncId,
        alignment: u64,
        bytes: &[u8],
        relocs: &[ModuleReloc],
    ) -> ModuleResult<()> {
        self.inner
            .define_function_bytes(func_id, alignment, bytes, relocs)
    }

    fn define_data(&mut self, data_id: DataId, data: &DataDescription) -> ModuleResult<()> {
        self.inner.define_data(data_id, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optimizer_errors_keep_their_type() {
        let error = Error::Verifier {
            pass: "dse".to_string(),
            message: "v3 is not defined".to_string(),
        };
        let ModuleError::Backend(payload) = module_error(error.clone()) else {
            panic!("not a backend error");
        };
        assert_eq!(payload.to_string(), error.to_string());
        assert_eq!(payload.downcast_ref::<Error>(), Some(&error));
    }
}
