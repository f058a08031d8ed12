//! Compiles a program, through [`OptimizingModule`] or not, runs it, and counts what is left of its
//! slots.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clif_memopt_measure::{Counts, compile as measure};
use cranelift_codegen::ir::{Function, InstructionData, StackSlot, UserFuncName};
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_memopt::{Optimizer, Options};
use cranelift_memopt_module::OptimizingModule;
use cranelift_module::{FuncId, Module, default_libcall_names};

use crate::codegen::{self, Imports, SlotInfo};
use crate::runtime::{self, FailureSite, Outcome};
use crate::typed::Program;

/// A program in memory, ready to run.
pub(crate) struct Executable {
    module: JITModule,
    start: FuncId,
    sites: Vec<FailureSite>,
    /// Bytes of machine code of the program's functions.
    pub(crate) code_bytes: u64,
    /// From the checked program to code that can be called.
    pub(crate) compile_time: Duration,
}

fn jit_module() -> anyhow::Result<JITModule> {
    // Cranelift's optimizer on, in both modules: what is measured comes on top of what it does.
    let mut builder = JITBuilder::with_flags(&[("opt_level", "speed")], default_libcall_names())?;
    runtime::register(&mut builder);
    Ok(JITModule::new(builder))
}

/// Compiles a program for this machine, with the memory optimizer or without.
pub(crate) fn compile(program: &Program, optimized: bool) -> anyhow::Result<Executable> {
    let mut module = jit_module()?;
    let begin = Instant::now();
    let defined = if optimized {
        let mut optimizing = OptimizingModule::new(module, Options::default());
        let defined = define_all(&mut optimizing, program)?;
        module = optimizing.into_inner();
        defined
    } else {
        define_all(&mut module, program)?
    };
    module
        .finalize_definitions()
        .context("the code cannot be made executable")?;
    Ok(Executable {
        module,
        start: defined.start,
        sites: defined.sites,
        code_bytes: defined.code_bytes,
        compile_time: begin.elapsed(),
    })
}

struct Defined {
    start: FuncId,
    sites: Vec<FailureSite>,
    code_bytes: u64,
}

/// Builds and defines all functions. The same code serves any module, wrapped or not.
fn define_all<M: Module>(module: &mut M, program: &Program) -> anyhow::Result<Defined> {
    let imports = codegen::declare(module, program)?;
    let mut ctx = module.make_context();
    let mut frontend = FunctionBuilderContext::new();
    let mut sites = Vec::new();
    let mut code_bytes = 0;
    for (at, function) in program.functions.iter().enumerate() {
        codegen::build_function(
            module,
            &imports,
            program,
            at,
            &mut ctx.func,
            &mut frontend,
            &mut sites,
        )?;
        module
            .define_function(imports.function(at), &mut ctx)
            .with_context(|| format!("cannot compile `{}`", function.name))?;
        if let Some(code) = ctx.compiled_code() {
            code_bytes += u64::from(code.code_info().total_size);
        }
        module.clear_context(&mut ctx);
    }
    codegen::build_start(module, &imports, program, &mut ctx.func, &mut frontend);
    module
        .define_function(imports.start, &mut ctx)
        .context("cannot compile the program's start")?;
    Ok(Defined {
        start: imports.start,
        sites,
        code_bytes,
    })
}

impl Executable {
    /// Runs the program, and says how long it took. The thread is one with
    /// [`runtime::THREAD_STACK_BYTES`].
    pub(crate) fn run(&self) -> (Outcome, Duration) {
        let start = self.module.get_finalized_function(self.start);
        let begin = Instant::now();
        // SAFETY: `compile` has built and finalized it, and the module is alive in `self`; `main`
        // starts the thread that all is done on.
        let outcome = unsafe { runtime::run(start, &self.sites) };
        (outcome, begin.elapsed())
    }
}

/// Loads, stores and slots of a function as the front end makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) slots: u64,
    pub(crate) loads: u64,
    pub(crate) stores: u64,
}

/// A slot, and whether it is still named at the end.
pub(crate) struct SlotReport {
    pub(crate) info: SlotInfo,
    /// By Cranelift's optimizer alone.
    pub(crate) left_without: bool,
    /// By the memory optimizer and Cranelift's.
    pub(crate) left_with: bool,
}

/// A function of the program, and what becomes of its memory operations.
pub(crate) struct FunctionReport {
    pub(crate) name: String,
    pub(crate) slots: Vec<SlotReport>,
    pub(crate) before: Before,
    /// After Cranelift's optimizer alone.
    pub(crate) without: Counts,
    /// After the memory optimizer and Cranelift's.
    pub(crate) with: Counts,
    /// As the front end makes it.
    pub(crate) clif_before: String,
    /// After the memory optimizer.
    pub(crate) clif_after: String,
}

/// What becomes of each function of the program.
pub(crate) fn report(program: &Program) -> anyhow::Result<Vec<FunctionReport>> {
    let mut module = jit_module()?;
    let imports = codegen::declare(&mut module, program)?;
    let mut optimizer = Optimizer::new(Options::default());
    let functions = 0..program.functions.len();
    functions
        .map(|at| report_function(&mut module, &imports, program, at, &mut optimizer))
        .collect()
}

fn report_function(
    module: &mut JITModule,
    imports: &Imports,
    program: &Program,
    at: usize,
    optimizer: &mut Optimizer,
) -> anyhow::Result<FunctionReport> {
    let name = &program.functions[at].name;
    let mut func = Function::new();
    func.name = UserFuncName::testcase(name.as_bytes());
    let slots = codegen::build_function(
        module,
        imports,
        program,
        at,
        &mut func,
        &mut FunctionBuilderContext::new(),
        &mut Vec::new(),
    )?;
    let before = count(&func);
    let clif_before = func.to_string();
    let without = measure(&func, module.isa())?;
    optimizer
        .optimize(&mut func, module.isa())
        .with_context(|| format!("the optimizer fails on `{name}`"))?;
    let clif_after = func.to_string();
    let with = measure(&func, module.isa())?;
    let (left_without, left_with) = (named(&without.optimized), named(&with.optimized));
    let slots = slots.into_iter().map(|info| SlotReport {
        left_without: left_without.contains(&info.slot),
        left_with: left_with.contains(&info.slot),
        info,
    });
    Ok(FunctionReport {
        name: name.clone(),
        slots: slots.collect(),
        before,
        without: without.counts,
        with: with.counts,
        clif_before,
        clif_after,
    })
}

fn count(func: &Function) -> Before {
    let mut counts = Before {
        slots: named(func).len() as u64,
        ..Before::default()
    };
    let blocks = func.layout.blocks();
    for inst in blocks.flat_map(|block| func.layout.block_insts(block)) {
        let opcode = func.dfg.insts[inst].opcode();
        if !opcode.is_call() {
            counts.loads += u64::from(opcode.can_load());
            counts.stores += u64::from(opcode.can_store());
        }
    }
    counts
}

/// The slots that the function names, each once.
fn named(func: &Function) -> Vec<StackSlot> {
    let blocks = func.layout.blocks();
    let insts = blocks.flat_map(|block| func.layout.block_insts(block));
    let slots = insts.filter_map(|inst| match func.dfg.insts[inst] {
        InstructionData::StackAddr { stack_slot, .. } => Some(stack_slot),
        _ => None,
    });
    let mut slots: Vec<StackSlot> = slots.collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}
