//! More of the same must not make things worse.

use std::panic::{AssertUnwindSafe, catch_unwind};

use clif_memopt_measure::{memory_ops, worse_path};
use cranelift_codegen::Context;
use cranelift_codegen::ir::{Endianness, Function, InstructionData, MemFlagsData, types};

use super::{Finding, Oracle, Setup, optimize_unchecked};
use crate::shape::Tally;

/// The memory operations of a function.
pub(crate) fn count_ops(function: &Function) -> u64 {
    let ops = memory_ops(function);
    function
        .layout
        .blocks()
        .map(|block| u64::from(ops[block]))
        .sum()
}

/// Optimizes an optimized function again: no more memory operations may be left than before.
///
/// # Errors
/// A finding: there are more.
pub fn check_second_run(
    optimized: &Function,
    setup: &Setup,
    tally: &mut Tally,
) -> Result<(), Finding> {
    let again = optimize_unchecked(optimized, setup)?;
    let (first, second) = (count_ops(optimized), count_ops(&again));
    if second > first {
        let message = format!(
            "{}: {first} memory operations, then {second}",
            optimized.name
        );
        return Err(Finding::new(Oracle::SecondRun, message));
    }
    tally.mark("second_run.improved", u64::from(second < first));
    tally.mark("second_run.ops_less", first - second);
    Ok(())
}

/// Takes byte order marks away that say nothing: the target's own, or those of single bytes.
/// Cranelift's optimizer takes a marked and an unmarked access to be of different places, so that it
/// misses what it found before if another one of two equal loads is left.
fn drop_idle_marks(function: &mut Function, native: Endianness) {
    let blocks: Vec<_> = function.layout.blocks().collect();
    for block in blocks {
        let insts: Vec<_> = function.layout.block_insts(block).collect();
        for inst in insts {
            let data = function.dfg.insts[inst];
            let (flags, byte) = match data {
                InstructionData::Load { flags, .. } => {
                    let ty = function.dfg.value_type(function.dfg.first_result(inst));
                    (flags, ty == types::I8)
                }
                InstructionData::Store { flags, args, .. } => {
                    (flags, function.dfg.value_type(args[0]) == types::I8)
                }
                _ => continue,
            };
            let marked = function.dfg.mem_flags[flags];
            let idle = marked
                .explicit_endianness()
                .is_some_and(|order| byte || order == native);
            // A full table of flags leaves the mark.
            if idle && let Ok(unmarked) = function.dfg.mem_flags.insert(without_order(marked)) {
                match &mut function.dfg.insts[inst] {
                    InstructionData::Load { flags, .. } | InstructionData::Store { flags, .. } => {
                        *flags = unmarked;
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The flags without byte order, which has no method to clear it.
fn without_order(flags: MemFlagsData) -> MemFlagsData {
    let mut result = MemFlagsData::new()
        .with_trap_code(flags.trap_code())
        .with_alias_region(flags.alias_region());
    if flags.aligned() {
        result = result.with_aligned();
    }
    if flags.readonly() {
        result = result.with_readonly();
    }
    if flags.can_move() {
        result = result.with_can_move();
    }
    result
}

/// Compares what Cranelift's own optimizer leaves of both. Where that panics, which assertions of
/// debug builds do for some stores in loops, there is nothing to compare, and the tally says so.
///
/// # Errors
/// A finding: a path of `optimized` has more memory operations.
pub fn check_worse_paths(
    original: &Function,
    optimized: &Function,
    setup: &Setup,
    tally: &mut Tally,
) -> Result<(), Finding> {
    let before = after_cranelift(original, setup)?;
    let after = after_cranelift(optimized, setup)?;
    let (Some(before), Some(after)) = (before, after) else {
        tally.mark("worse_path.cranelift_panicked", 1);
        return Ok(());
    };
    match worse_path(&before, &after) {
        None => Ok(()),
        Some(path) => {
            let message = format!("{}: {path}", original.name);
            Err(Finding::new(Oracle::WorsePath, message))
        }
    }
}

/// The function after Cranelift's own optimizer; none if that panics.
fn after_cranelift(function: &Function, setup: &Setup) -> Result<Option<Function>, Finding> {
    let mut context = Context::for_function(function.clone());
    drop_idle_marks(&mut context.func, setup.isa.endianness());
    let optimize = || context.optimize(&*setup.isa, &mut Default::default());
    match catch_unwind(AssertUnwindSafe(optimize)) {
        Ok(Ok(())) => Ok(Some(context.func)),
        Ok(Err(error)) => {
            let message = format!("Cranelift: {error}");
            Err(Finding::new(Oracle::Generator, message))
        }
        Err(_) => Ok(None),
    }
}
