//! The way back from a trap or an uncaught exception: a compiled function that every run is called through.
//!
//! The guard notes its frame pointer and calls the relay by `try_call`, which calls the trampoline. The
//! relay has the `tail` convention, for which Cranelift takes every register to be lost on the edge to
//! the handler but the stack and frame pointers. So a signal handler can abandon a run: it sets those
//! two as they were in the guard and continues at the exception handler, whereupon the guard returns
//! with everything restored that its caller may rely on.

use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use cranelift_codegen::Context;
use cranelift_codegen::FinalizedMachExceptionHandler;
use cranelift_codegen::ir::{
    AbiParam, BlockCall, ExceptionTableData, ExceptionTableItem, Function, InstBuilder,
    MemFlagsData, Signature, UserFuncName, types,
};
use cranelift_codegen::isa::{self, CallConv};
use cranelift_codegen::settings::{self, Configurable as _};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, default_libcall_names};

use super::unwind::resume;
use crate::exec::trampoline::trampoline_signature;

/// Size of the child's stack for signal handlers, in bytes.
pub(super) const SIGNAL_STACK_BYTES: usize = 64 * 1024;
/// The signals by which code traps.
const TRAP_SIGNALS: [libc::c_int; 5] = [
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// A trampoline's type.
pub(super) type Entry = unsafe extern "C" fn(arguments: *const u8, results: *mut u8);
/// The guard's type. It returns 1 if the run was abandoned.
type GuardEntry = unsafe extern "C" fn(
    entry: Entry,
    arguments: *const u8,
    results: *mut u8,
    frame: *mut u64,
) -> u32;

/// The compiled guard.
pub(super) struct Guard {
    entry: GuardEntry,
    /// Its exception handler.
    landing: u64,
    /// From its stack pointer at the call to its frame pointer, in bytes.
    frame_bytes: u64,
}

static GUARD: OnceLock<Guard> = OnceLock::new();
/// The guard's frame pointer during a run.
static FRAME: AtomicU64 = AtomicU64::new(0);
/// The report of the run that goes on, if this process is a child.
static REPORT: AtomicPtr<Report> = AtomicPtr::new(ptr::null_mut());

/// What the child tells the parent about a run.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Report {
    pub(super) state: u32,
    /// The signal, or the tag of the exception.
    pub(super) number: u32,
    /// The program counter, or the payload of the exception.
    pub(super) word: u64,
}

/// The run has not begun or has not ended.
pub(super) const STATE_RUNNING: u32 = 0;
/// The run returned.
pub(super) const STATE_RETURNED: u32 = 1;
/// The run was stopped by a signal.
pub(super) const STATE_SIGNALLED: u32 = 2;
/// The run threw what no handler caught.
pub(super) const STATE_THROWN: u32 = 3;

/// The guard; it is compiled once and stays.
pub(super) fn guard() -> Result<&'static Guard> {
    if let Some(guard) = GUARD.get() {
        return Ok(guard);
    }
    let guard = Guard::compile().context("compiling the guard")?;
    Ok(GUARD.get_or_init(|| guard))
}

impl Guard {
    fn compile() -> Result<Guard> {
        let mut flags = settings::builder();
        flags.set("preserve_frame_pointers", "true")?;
        let isa = isa::lookup(target_lexicon::HOST)?.finish(settings::Flags::new(flags))?;
        let mut module = JITModule::new(JITBuilder::with_isa(isa, default_libcall_names()));
        let relay = define(&mut module, "relay", |module| Ok(build_relay(module)))?.0;
        let (id, context) = define(&mut module, "guard", |module| build_guard(module, relay))?;
        module.finalize_definitions()?;
        let start = module.get_finalized_function(id);
        let code = context.compiled_code().context("no code was kept")?;
        let sites = code.buffer.call_sites();
        let mut handled = sites.filter_map(|site| match site.exception_handlers {
            [FinalizedMachExceptionHandler::Default(at)] => Some((site.frame_offset?, *at)),
            _ => None,
        });
        let (frame_bytes, landing) = handled.next().context("no call site with a handler")?;
        // The code is never freed.
        mem::forget(module);
        Ok(Guard {
            // SAFETY: it was built with this signature in the platform's convention.
            entry: unsafe { mem::transmute::<*const u8, GuardEntry>(start) },
            landing: start as u64 + u64::from(landing),
            frame_bytes: u64::from(frame_bytes),
        })
    }

    /// Calls `entry` and says in `report` how it ended.
    ///
    /// # Safety
    /// Only in a child, after [`install_handlers`]; the pointers are what the trampoline takes.
    pub(super) unsafe fn call(
        &self,
        entry: Entry,
        arguments: *const u8,
        results: *mut u8,
        report: *mut Report,
    ) {
        REPORT.store(report, Ordering::SeqCst);
        // SAFETY: `entry` gets what it takes. What it does beyond its contract ends at worst this
        // child.
        unsafe {
            if (self.entry)(entry, arguments, results, FRAME.as_ptr()) == 0 {
                (*report).state = STATE_RETURNED;
            }
        }
        REPORT.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

fn define(
    module: &mut JITModule,
    name: &str,
    build: impl FnOnce(&mut JITModule) -> Result<Function>,
) -> Result<(FuncId, Context)> {
    let function = build(module)?;
    let id = module.declare_function(name, Linkage::Local, &function.signature)?;
    let mut context = Context::for_function(function);
    module.define_function(id, &mut context)?;
    Ok((id, context))
}

/// Takes a trampoline and its arguments.
fn build_relay(module: &JITModule) -> Function {
    let mut signature = Signature::new(CallConv::Tail);
    signature.params = vec![AbiParam::new(types::I64); 3];
    let mut function = Function::with_name_signature(UserFuncName::default(), signature);
    let mut context = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut function, &mut context);
    let block = builder.create_block();
    builder.append_block_params_for_function_params(block);
    builder.switch_to_block(block);
    let params = builder.block_params(block).to_vec();
    let callee = builder.import_signature(trampoline_signature(module.isa().default_call_conv()));
    builder
        .ins()
        .call_indirect(callee, params[0], &params[1..3]);
    builder.ins().return_(&[]);
    builder.seal_all_blocks();
    builder.finalize(module.target_config());
    function
}

/// Takes what the relay takes, and where to note the frame pointer.
fn build_guard(module: &mut JITModule, relay: FuncId) -> Result<Function> {
    let mut signature = Signature::new(module.isa().default_call_conv());
    signature.params = vec![AbiParam::new(types::I64); 4];
    signature.returns = vec![AbiParam::new(types::I32)];
    let mut function = Function::with_name_signature(UserFuncName::default(), signature);
    let relay = module.declare_func_in_func(relay, &mut function);
    let callee = function.dfg.ext_funcs[relay].signature;
    let mut context = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut function, &mut context);
    let (block, normal, thrown) = (
        builder.create_block(),
        builder.create_block(),
        builder.create_block(),
    );
    builder.append_block_params_for_function_params(block);
    builder.switch_to_block(block);
    let params = builder.block_params(block).to_vec();
    let frame = builder.ins().get_frame_pointer(types::I64);
    builder
        .ins()
        .store(MemFlagsData::trusted(), frame, params[3], 0);
    let pool = &mut builder.func.dfg.value_lists;
    let to_normal = BlockCall::new(normal, std::iter::empty(), pool);
    let to_thrown = BlockCall::new(thrown, std::iter::empty(), pool);
    let items = [ExceptionTableItem::Default(to_thrown)];
    let table = ExceptionTableData::new(callee, to_normal, items);
    let table = builder.func.dfg.exception_tables.push(table);
    builder.ins().try_call(relay, &params[..3], table);
    for (block, result) in [(normal, 0), (thrown, 1)] {
        builder.switch_to_block(block);
        let result = builder.ins().iconst(types::I32, result);
        builder.ins().return_(&[result]);
    }
    builder.seal_all_blocks();
    builder.finalize(module.target_config());
    Ok(function)
}

/// Makes signals abandon the run that goes on.
///
/// # Safety
/// Only in a child; `stack` has [`SIGNAL_STACK_BYTES`] bytes.
pub(super) unsafe fn install_handlers(stack: *mut u8) {
    let stack = libc::stack_t {
        ss_sp: stack.cast(),
        ss_flags: 0,
        ss_size: SIGNAL_STACK_BYTES,
    };
    // SAFETY: plain system calls with initialised structures; all-zero is a valid `sigaction`.
    unsafe {
        libc::sigaltstack(&raw const stack, ptr::null_mut());
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = note_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        for signal in TRAP_SIGNALS {
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// # Safety
/// Only in a child.
pub(super) unsafe fn unblock_signals() {
    // SAFETY: plain system calls; all-zero is a valid `sigset_t`.
    unsafe {
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// The signal handler: notes where the code was stopped and goes on in the guard, or ends the child.
extern "C" fn note_signal(
    signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let report = REPORT.load(Ordering::SeqCst);
    // SAFETY: the kernel passes the interrupted context; `report` is of the run that was stopped;
    // `_exit` is async-signal-safe.
    unsafe {
        let (Some(report), Some(guard)) = (report.as_mut(), GUARD.get()) else {
            libc::_exit(1)
        };
        if report.state != STATE_RUNNING {
            libc::_exit(1)
        }
        let frame = guard_frame();
        report.number = signal.cast_unsigned();
        report.word = go_to(
            context.cast(),
            guard.landing,
            frame - guard.frame_bytes,
            frame,
        );
        report.state = STATE_SIGNALLED;
    }
}

/// The guard's frame pointer during a run.
pub(super) fn guard_frame() -> u64 {
    FRAME.load(Ordering::SeqCst)
}

/// Notes an exception that no handler caught and goes on in the guard.
///
/// # Safety
/// Only in a child, from the code under test.
pub(super) unsafe fn abandon(tag: u32, payload: u64) -> ! {
    // SAFETY: `report` is of the run that throws, and the guard waits for it.
    unsafe {
        let report = REPORT.load(Ordering::SeqCst);
        let (Some(report), Some(guard)) = (report.as_mut(), GUARD.get()) else {
            libc::_exit(1)
        };
        (report.number, report.word) = (tag, payload);
        report.state = STATE_THROWN;
        let frame = guard_frame();
        resume(guard.landing, frame - guard.frame_bytes, frame, [0, 0])
    }
}

/// Sets program counter, stack and frame pointer; gives the old program counter.
///
/// # Safety
/// `context` is what the kernel passed to a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn go_to(context: *mut libc::ucontext_t, pc: u64, stack: u64, frame: u64) -> u64 {
    // SAFETY: by the caller's promise.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let old = registers[libc::REG_RIP as usize];
    registers[libc::REG_RIP as usize] = pc.cast_signed();
    registers[libc::REG_RSP as usize] = stack.cast_signed();
    registers[libc::REG_RBP as usize] = frame.cast_signed();
    old.cast_unsigned()
}

/// Sets program counter, stack and frame pointer; gives the old program counter.
///
/// # Safety
/// `context` is what the kernel passed to a signal handler.
#[cfg(target_arch = "aarch64")]
unsafe fn go_to(context: *mut libc::ucontext_t, pc: u64, stack: u64, frame: u64) -> u64 {
    // SAFETY: by the caller's promise.
    let machine = unsafe { &mut (*context).uc_mcontext };
    machine.regs[29] = frame;
    machine.sp = stack;
    mem::replace(&mut machine.pc, pc)
}
