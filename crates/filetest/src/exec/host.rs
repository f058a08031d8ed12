//! Runs on the host: the file's functions in a JIT module, their runs in a forked child.
//!
//! Buffers, arguments and results are shared between parent and child. The child does nothing but
//! install signal handlers and call the code, because other threads of the parent may have held locks
//! at the fork. One child does all runs; a handler notes the program counter of a trap and abandons
//! the run, and the parent looks it up in the trap records. A run that crashes elsewhere may have
//! broken what later ones need: then each run is done again in a child of its own.

mod arena;
mod batch;
mod guard;
mod unwind;

use std::iter;
use std::mem;
use std::ops::Range;

use anyhow::{Context as _, Result};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::default_libcall_names;

use self::arena::Arena;
use self::batch::{Batch, Call, End};
use self::guard::Entry;
use self::unwind::{CallTable, host_collect, host_throw, host_throw_tail};
use super::STACK_BYTES;
use super::invocation::Invocation;
use super::outcome::{Observation, Outcome, resolve};
use super::program::{HOST_THROW_TAIL, Program};
use super::trampoline::{CELL_BYTES, pack, unpack};

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
    let programs = HostPrograms::compile(isa, variants, invocations)?;
    let mut observations = vec![Vec::new(); variants.len()];
    for group in invocations.chunk_by(share_arena) {
        programs.run(variants, group, &mut observations)?;
    }
    Ok(observations)
}

/// Whether the buffers of both can lie at the same addresses.
fn share_arena(one: &Invocation, other: &Invocation) -> bool {
    let sizes =
        |run: &Invocation| -> Vec<usize> { run.buffers.iter().map(|b| b.bytes.len()).collect() };
    sizes(one) == sizes(other)
}

/// The compiled functions of all variants in executable memory.
struct HostPrograms {
    module: Option<JITModule>,
    programs: Vec<HostProgram>,
    calls: CallTable,
}

/// Those of one variant.
struct HostProgram {
    program: Program,
    starts: Vec<u64>,
}

impl HostPrograms {
    fn compile(
        isa: &OwnedTargetIsa,
        variants: &[&[Function]],
        invocations: &[Invocation],
    ) -> Result<HostPrograms> {
        let mut builder = JITBuilder::with_isa(isa.clone(), default_libcall_names());
        builder
            .symbol("host_touch", host_touch as *const u8)
            .symbol("host_nop", host_nop as *const u8)
            .symbol("host_read", host_read as *const u8)
            .symbol("host_throw", host_throw as *const u8)
            .symbol(HOST_THROW_TAIL, host_throw_tail as *const u8)
            .symbol("host_collect", host_collect as *const u8);
        let mut all = HostPrograms {
            module: Some(JITModule::new(builder)),
            programs: Vec::new(),
            calls: CallTable::new(iter::empty()),
        };
        let module = all.module.as_mut().context("the module is gone")?;
        let programs: Vec<Program> = variants
            .iter()
            .enumerate()
            .map(|(index, functions)| {
                Program::define(module, &format!("variant{index}"), functions, invocations)
            })
            .collect::<Result<_>>()?;
        module.finalize_definitions()?;
        for program in programs {
            let functions = program.functions.iter();
            let starts = functions
                .map(|function| module.get_finalized_function(function.id) as u64)
                .collect();
            all.programs.push(HostProgram { program, starts });
        }
        let functions = all
            .programs
            .iter()
            .flat_map(|HostProgram { program, starts }| starts.iter().zip(&program.functions));
        all.calls = CallTable::new(functions.map(|(&start, one)| (start, &one.sites[..])));
        Ok(all)
    }

    /// Runs `invocations`, which share an arena, so that all variants see the same addresses.
    fn run(
        &self,
        variants: &[&[Function]],
        invocations: &[Invocation],
        observations: &mut [Vec<Observation>],
    ) -> Result<()> {
        let arena = Arena::new(&invocations[0])?;
        let images: Vec<Vec<u8>> = invocations
            .iter()
            .map(|invocation| arena.image(invocation))
            .collect::<Result<_>>()?;
        let mut calls = Vec::new();
        let mut runs = Vec::new();
        for (invocation, image) in invocations.iter().zip(&images) {
            for (variant, functions) in variants.iter().enumerate() {
                let returns = &functions[invocation.function].signature.returns;
                calls.push(Call {
                    entry: self.entry(variant, invocation)?,
                    arguments: pack(&resolve(invocation, arena.base(), &invocation.arguments)?),
                    result_bytes: returns.len() * CELL_BYTES,
                    image,
                });
                runs.push((variant, returns));
            }
        }
        let batch = Batch::new(calls, &arena, &self.calls)?;
        let outcomes = |ends: &[End]| -> Vec<Outcome> {
            let pairs = ends.iter().zip(&runs).enumerate();
            pairs
                .map(|(index, (end, (variant, returns)))| match *end {
                    End::Returned => Outcome::Returned(unpack(batch.results(index), returns)),
                    End::Signalled { signal, pc } => {
                        let HostProgram { program, starts } = &self.programs[*variant];
                        program.outcome_at(signal, pc, starts)
                    }
                    End::Thrown { tag, payload } => Outcome::Thrown { tag, payload },
                    End::TimedOut => Outcome::TimedOut,
                })
                .collect()
        };
        let mut ends = outcomes(&batch.run()?);
        if ends.iter().any(|end| matches!(end, Outcome::Crashed(_))) {
            ends = outcomes(&batch.run_apart()?);
        }
        for (index, (outcome, (variant, _))) in ends.into_iter().zip(&runs).enumerate() {
            observations[*variant].push(Observation {
                outcome,
                memory: batch.memory(index),
                base: arena.base(),
                stack: stack_here(),
            });
        }
        Ok(())
    }

    fn entry(&self, variant: usize, invocation: &Invocation) -> Result<Entry> {
        let module = self.module.as_ref().context("the module is gone")?;
        let entry = self.programs[variant].program.trampolines[invocation.function]
            .context("the function has no trampoline")?;
        let entry = module.get_finalized_function(entry);
        // SAFETY: the trampoline was built with this signature in the platform's convention, and
        // lives as long as `module`.
        Ok(unsafe { mem::transmute::<*const u8, Entry>(entry) })
    }
}

impl Drop for HostPrograms {
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
