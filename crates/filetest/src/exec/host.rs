//! Runs on the host: the file's functions in a JIT module, each run in a forked child.
//!
//! Buffers, arguments and results are shared between parent and child. The child does nothing but
//! install signal handlers and call the code, because other threads of the parent may have held locks
//! at the fork. A handler notes the program counter and ends the child; the parent looks it up in the
//! trap records.

use std::io;
use std::mem;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::default_libcall_names;

use super::RUN_SECONDS_MAX;
use super::invocation::Invocation;
use super::memory::{Layout, PAGE_BYTES};
use super::outcome::{Observation, Outcome, resolve};
use super::program::Program;
use super::trampoline::{CELL_BYTES, pack, unpack};

/// Where buffers are placed if nothing else lies there.
const ARENA_HINT: u64 = 0x2000_0000_0000;
/// Size of the child's stack for signal handlers, in bytes.
const SIGNAL_STACK_BYTES: usize = 64 * 1024;
/// Stack that a run may take, in bytes.
const STACK_BYTES: u64 = 8 << 20;
/// The signals by which code traps.
const TRAP_SIGNALS: [libc::c_int; 5] = [
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGTRAP,
];
/// The alternative signal stack and the report share a mapping: the report is after the stack.
const REPORT_OFFSET: usize = SIGNAL_STACK_BYTES;
const CELLS_OFFSET: usize = REPORT_OFFSET + mem::size_of::<Report>().next_multiple_of(CELL_BYTES);

/// A trampoline's type.
type Entry = unsafe extern "C" fn(arguments: *const u8, results: *mut u8);

/// Runs `invocations` on each of `variants`; the observations are in that order.
///
/// # Errors
/// A function cannot be compiled or names what is not there, or the system refuses memory or a
/// process.
pub(crate) fn execute(
    isa: &OwnedTargetIsa,
    variants: &[&[Function]],
    invocations: &[Invocation],
) -> Result<Vec<Vec<Observation>>> {
    let programs = variants
        .iter()
        .map(|functions| HostProgram::compile(isa, functions, invocations))
        .collect::<Result<Vec<_>>>()?;
    let mut observations = vec![Vec::new(); variants.len()];
    for invocation in invocations {
        // One arena for all variants, so that they see the same addresses.
        let arena = Arena::new(invocation)?;
        for (program, functions, seen) in side_by_side(&programs, variants, &mut observations) {
            seen.push(program.run(functions, invocation, &arena)?);
        }
    }
    Ok(observations)
}

/// Programs, their functions, and where their observations go, side by side.
fn side_by_side<'a, 'b>(
    programs: &'a [HostProgram],
    variants: &'a [&'b [Function]],
    observations: &'a mut [Vec<Observation>],
) -> impl Iterator<Item = (&'a HostProgram, &'b [Function], &'a mut Vec<Observation>)> {
    programs
        .iter()
        .zip(variants)
        .zip(observations)
        .map(|((program, functions), seen)| (program, *functions, seen))
}

/// Compiled functions in executable memory.
struct HostProgram {
    module: Option<JITModule>,
    program: Program,
    starts: Vec<u64>,
}

impl HostProgram {
    fn compile(
        isa: &OwnedTargetIsa,
        functions: &[Function],
        invocations: &[Invocation],
    ) -> Result<HostProgram> {
        let mut builder = JITBuilder::with_isa(isa.clone(), default_libcall_names());
        builder
            .symbol("host_touch", host_touch as *const u8)
            .symbol("host_nop", host_nop as *const u8)
            .symbol("host_read", host_read as *const u8);
        let mut module = JITModule::new(builder);
        let program = Program::define(&mut module, "jit", functions, invocations)?;
        module.finalize_definitions()?;
        let starts = program
            .functions
            .iter()
            .map(|function| module.get_finalized_function(function.id) as u64)
            .collect();
        Ok(HostProgram {
            module: Some(module),
            program,
            starts,
        })
    }

    fn run(
        &self,
        functions: &[Function],
        invocation: &Invocation,
        arena: &Arena,
    ) -> Result<Observation> {
        let module = self.module.as_ref().context("the module is gone")?;
        let entry = self.program.trampolines[invocation.function]
            .context("the function has no trampoline")?;
        let entry = module.get_finalized_function(entry);
        // SAFETY: the trampoline was built with this signature in the platform's convention, and
        // lives as long as `module`.
        let entry: Entry = unsafe { mem::transmute::<*const u8, Entry>(entry) };
        let returns = &functions[invocation.function].signature.returns;
        let arguments = pack(&resolve(invocation, arena.base(), &invocation.arguments)?);
        arena.fill(invocation)?;
        let channel = Channel::new(&arguments, returns.len() * CELL_BYTES)?;
        let outcome = match channel.call_in_child(entry)? {
            ChildEnd::Returned => Outcome::Returned(unpack(channel.results(), returns)),
            ChildEnd::Signalled { signal, pc } => self.program.outcome_at(signal, pc, &self.starts),
            ChildEnd::TimedOut => Outcome::TimedOut,
        };
        Ok(Observation {
            outcome,
            memory: arena.contents(),
            base: arena.base(),
            stack: stack_here(),
        })
    }
}

impl Drop for HostProgram {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: only children ran this code, and they have ended.
            unsafe { module.free_memory() };
        }
    }
}

/// About where the stack of this thread is, and so that of a child.
fn stack_here() -> Range<u64> {
    let local = 0u8;
    let here = &raw const local as u64;
    here.saturating_sub(STACK_BYTES)..here
}

/// Adds 1 to the byte at `at`.
extern "C" fn host_touch(at: *mut u8) {
    // SAFETY: the test passes a pointer to one of its buffers; otherwise the child faults.
    unsafe { at.write_volatile(at.read_volatile().wrapping_add(1)) };
}

extern "C" fn host_nop() {}

/// Reads the 8 bytes at `at`.
extern "C" fn host_read(at: *const u64) -> u64 {
    // SAFETY: as in `host_touch`.
    unsafe { at.read_unaligned() }
}

/// Memory shared with children.
struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    fn new(hint: u64, length: usize, protection: libc::c_int) -> Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping; without MAP_FIXED it replaces nothing.
        let start = unsafe { libc::mmap(hint as *mut _, length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            bail!("mmap of {length} bytes: {}", io::Error::last_os_error());
        }
        Ok(Mapping {
            start: start.cast(),
            length,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no slice into it is left.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// The buffers of a run line, between inaccessible pages.
struct Arena {
    mapping: Mapping,
    layout: Layout,
}

impl Arena {
    fn new(invocation: &Invocation) -> Result<Arena> {
        let length = usize::try_from(Layout::length_of(&invocation.buffers))?;
        let mapping = Mapping::new(ARENA_HINT, length, libc::PROT_NONE)?;
        let layout = Layout::at(mapping.start as u64, &invocation.buffers);
        for place in layout.placements.iter().filter(|p| p.page_bytes > 0) {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: whole pages inside `mapping`.
            let result = unsafe {
                libc::mprotect(place.pages as *mut _, place.page_bytes as usize, protection)
            };
            ensure!(result == 0, "mprotect: {}", io::Error::last_os_error());
        }
        Ok(Arena { mapping, layout })
    }

    fn base(&self) -> u64 {
        self.mapping.start as u64
    }

    /// Writes the contents that the buffers have at first.
    fn fill(&self, invocation: &Invocation) -> Result<()> {
        let images = self.layout.images(&invocation.buffers)?;
        for (place, image) in self.layout.placements.iter().zip(&images) {
            // SAFETY: the image has the length of the accessible pages, and no child runs.
            unsafe {
                ptr::copy_nonoverlapping(image.as_ptr(), place.pages as *mut u8, image.len());
            }
        }
        Ok(())
    }

    /// The accessible pages of each buffer.
    fn contents(&self) -> Vec<Vec<u8>> {
        let read = |pages: u64, length: u64| {
            // SAFETY: accessible pages of `mapping`; the child that wrote them has ended.
            unsafe { std::slice::from_raw_parts(pages as *const u8, length as usize) }.to_vec()
        };
        let placements = self.layout.placements.iter();
        placements
            .map(|place| match place.page_bytes {
                0 => Vec::new(),
                length => read(place.pages, length),
            })
            .collect()
    }
}

/// What the child tells the parent.
#[repr(C)]
struct Report {
    state: u32,
    signal: i32,
    pc: u64,
}

const STATE_RUNNING: u32 = 0;
const STATE_RETURNED: u32 = 1;
const STATE_SIGNALLED: u32 = 2;

/// How a child ended.
enum ChildEnd {
    Returned,
    Signalled { signal: i32, pc: u64 },
    TimedOut,
}

/// The shared memory of one call: signal stack, report, arguments, results.
struct Channel {
    mapping: Mapping,
    argument_bytes: usize,
    result_bytes: usize,
}

impl Channel {
    fn new(arguments: &[u8], result_bytes: usize) -> Result<Channel> {
        let length =
            (CELLS_OFFSET + arguments.len() + result_bytes).next_multiple_of(PAGE_BYTES as usize);
        let mapping = Mapping::new(0, length, libc::PROT_READ | libc::PROT_WRITE)?;
        let channel = Channel {
            mapping,
            argument_bytes: arguments.len(),
            result_bytes,
        };
        // SAFETY: the mapping has room for the arguments after the report.
        unsafe {
            ptr::copy_nonoverlapping(
                arguments.as_ptr(),
                channel.at(CELLS_OFFSET),
                arguments.len(),
            );
        }
        Ok(channel)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.mapping.start.wrapping_add(offset)
    }

    fn report(&self) -> *mut Report {
        self.at(REPORT_OFFSET).cast()
    }

    fn results(&self) -> &[u8] {
        let start = self.at(CELLS_OFFSET + self.argument_bytes);
        // SAFETY: inside the mapping; the child has ended.
        unsafe { std::slice::from_raw_parts(start, self.result_bytes) }
    }

    /// Calls `entry` in a forked child and waits for its end.
    fn call_in_child(&self, entry: Entry) -> Result<ChildEnd> {
        // SAFETY: the child calls only async-signal-safe functions and the code under test, and never
        // returns from this block.
        let child = unsafe { libc::fork() };
        match child {
            -1 => bail!("fork: {}", io::Error::last_os_error()),
            // SAFETY: this is the child; it has one thread.
            0 => unsafe { self.run_child(entry) },
            _ => self.wait(child),
        }
    }

    /// # Safety
    /// Only in a child that was just forked.
    unsafe fn run_child(&self, entry: Entry) -> ! {
        REPORT.store(self.report(), Ordering::SeqCst);
        // SAFETY: system calls on memory of this process; `entry` takes the addresses of the argument
        // and result arrays. What it does beyond its contract ends at worst this child.
        unsafe {
            install_handlers(self.at(0));
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            unblock_signals();
            libc::alarm(RUN_SECONDS_MAX);
            entry(
                self.at(CELLS_OFFSET),
                self.at(CELLS_OFFSET + self.argument_bytes),
            );
            (*self.report()).state = STATE_RETURNED;
            libc::_exit(0)
        }
    }

    fn wait(&self, child: libc::pid_t) -> Result<ChildEnd> {
        let mut status = 0;
        loop {
            // SAFETY: waits for this process's own child.
            if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
                break;
            }
            let error = io::Error::last_os_error();
            ensure!(
                error.kind() == io::ErrorKind::Interrupted,
                "waitpid: {error}"
            );
        }
        // SAFETY: the child has ended; the report is plain data in the mapping.
        let report = unsafe { self.report().read_volatile() };
        Ok(match report.state {
            STATE_RETURNED => ChildEnd::Returned,
            STATE_SIGNALLED => ChildEnd::Signalled {
                signal: report.signal,
                pc: report.pc,
            },
            _ if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM => {
                ChildEnd::TimedOut
            }
            _ => bail!("a run ended with status {status:#x} and no report"),
        })
    }
}

/// The report of this process, if it is a child.
static REPORT: AtomicPtr<Report> = AtomicPtr::new(ptr::null_mut());

/// # Safety
/// Only in a child; `stack` has [`SIGNAL_STACK_BYTES`] bytes.
unsafe fn install_handlers(stack: *mut u8) {
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
unsafe fn unblock_signals() {
    // SAFETY: plain system calls; all-zero is a valid `sigset_t`.
    unsafe {
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// The signal handler: notes where the code was stopped and ends the child.
extern "C" fn note_signal(
    signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let report = REPORT.load(Ordering::SeqCst);
    // SAFETY: the kernel passes the interrupted context; `report` was set before handlers were
    // installed; `_exit` is async-signal-safe.
    unsafe {
        if (*report).state == STATE_RUNNING {
            (*report).signal = signal;
            (*report).pc = program_counter(context.cast());
            (*report).state = STATE_SIGNALLED;
        }
        libc::_exit(0)
    }
}

/// # Safety
/// `context` is what the kernel passed to a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn program_counter(context: *const libc::ucontext_t) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned() }
}

/// # Safety
/// `context` is what the kernel passed to a signal handler.
#[cfg(target_arch = "aarch64")]
unsafe fn program_counter(context: *const libc::ucontext_t) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { (*context).uc_mcontext.pc }
}
