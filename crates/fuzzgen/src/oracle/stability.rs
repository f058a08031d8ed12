//! More of the same must not make things worse.

use std::panic::{AssertUnwindSafe, catch_unwind};

use clif_memopt_measure::{memory_ops, ops_of_memory_function, worse_path};
use cranelift_codegen::Context;
use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{
    AbiParam, Block, Endianness, Function, Inst, InstBuilder, InstructionData, MemFlagsData,
    Opcode, Type, ValueDef, types,
};

use super::{Finding, Oracle, Setup, optimize_unchecked};
use crate::shape::Tally;

/// The memory operations of a function, those of memory functions by the word.
pub(crate) fn count_ops(function: &Function) -> u64 {
    let ops = memory_ops(function);
    let in_block = |block: Block| {
        let insts = function.layout.block_insts(block);
        let calls = insts.map(|inst| u64::from(ops_of_memory_function(function, inst)));
        u64::from(ops[block]) + calls.sum::<u64>()
    };
    function.layout.blocks().map(in_block).sum()
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

/// Gives each plain load and store the flags that `change` makes of them, if any. A full table of
/// flags leaves them as they were.
fn change_flags(
    function: &mut Function,
    change: impl Fn(MemFlagsData, Type) -> Option<MemFlagsData>,
) {
    for (inst, flags, ty) in plain_accesses(function) {
        if let Some(changed) = change(flags, ty)
            && let Ok(changed) = function.dfg.mem_flags.insert(changed)
            && let InstructionData::Load { flags, .. } | InstructionData::Store { flags, .. } =
                &mut function.dfg.insts[inst]
        {
            *flags = changed;
        }
    }
}

/// The plain loads and stores of a function, with their flags and the type of the loaded or stored
/// value.
fn plain_accesses(function: &Function) -> Vec<(Inst, MemFlagsData, Type)> {
    let blocks = function.layout.blocks();
    let insts = blocks.flat_map(|block| function.layout.block_insts(block));
    let plain = insts.filter_map(|inst| {
        let (flags, value) = match function.dfg.insts[inst] {
            InstructionData::Load { flags, .. } => (flags, function.dfg.first_result(inst)),
            InstructionData::Store { flags, args, .. } => (flags, args[0]),
            _ => return None,
        };
        let flags = function.dfg.mem_flags[flags];
        Some((inst, flags, function.dfg.value_type(value)))
    });
    plain.collect()
}

/// Takes byte order marks away that say nothing: the target's own, or those of single bytes.
/// Cranelift's optimizer takes a marked and an unmarked access to be of different places, so that it
/// misses what it found before if another one of two equal loads is left.
fn drop_idle_marks(function: &mut Function, native: Endianness) {
    change_flags(function, |flags, ty| {
        let order = flags.explicit_endianness()?;
        (ty == types::I8 || order == native).then(|| without_order(flags))
    });
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

/// Whether some accesses have a region and some have none.
fn mixes_tags(function: &Function) -> bool {
    let accesses = plain_accesses(function);
    let mut tagged = accesses
        .iter()
        .map(|(_, flags, _)| flags.alias_region().is_some());
    let first = tagged.next();
    tagged.any(|tagged| Some(tagged) != first)
}

/// Takes away the regions of all accesses.
fn drop_regions(function: &mut Function) {
    change_flags(function, |flags, _| {
        flags.alias_region().map(|_| flags.with_alias_region(None))
    });
}

/// The stores that may trap and store what a load of the same bytes gave, if `optimized` has no such
/// store or it does the same there.
fn stored_back(original: &Function, optimized: &Function) -> Vec<Inst> {
    let stores = plain_accesses(original).into_iter();
    let may_trap = stores.filter(|(_, flags, _)| flags.trap_code().is_some());
    let stored_back = may_trap.filter(|&(inst, ..)| {
        is_stored_back(original, inst)
            && (optimized.layout.inst_block(inst).is_none() || is_stored_back(optimized, inst))
    });
    stored_back.map(|(inst, ..)| inst).collect()
}

/// Whether the instruction is a store of what a load of the same bytes gave.
fn is_stored_back(function: &Function, store: Inst) -> bool {
    let dfg = &function.dfg;
    let place = |inst: Inst| match dfg.insts[inst] {
        InstructionData::Load { arg, offset, .. } => Some((dfg.resolve_aliases(arg), offset)),
        InstructionData::Store { args, offset, .. } => Some((dfg.resolve_aliases(args[1]), offset)),
        _ => None,
    };
    if dfg.insts[store].opcode() != Opcode::Store {
        return false;
    }
    let value = dfg.resolve_aliases(dfg.inst_args(store)[0]);
    matches!(dfg.value_def(value), ValueDef::Result(load, _)
        if dfg.insts[load].opcode() == Opcode::Load && place(load) == place(store))
}

/// Has the stores store parameters that nothing is known of.
fn hide_stored_values(function: &mut Function, stores: &[Inst]) {
    let Some(entry) = function.layout.entry_block() else {
        return;
    };
    for &store in stores {
        if function.layout.inst_block(store).is_some() {
            let ty = function.dfg.value_type(function.dfg.inst_args(store)[0]);
            function.signature.params.push(AbiParam::new(ty));
            let hidden = function.dfg.append_block_param(entry, ty);
            function.dfg.inst_args_mut(store)[0] = hidden;
        }
    }
}

/// Has each block begin with an instruction that does nothing.
fn begin_blocks_with_nops(function: &mut Function) {
    let blocks: Vec<Block> = function.layout.blocks().collect();
    let mut cursor = FuncCursor::new(function);
    for block in blocks {
        cursor.goto_first_insertion_point(block);
        cursor.ins().nop();
    }
}

/// Compares what Cranelift's own optimizer leaves of both. Where that panics, which assertions of
/// debug builds do for some stores in loops, there is nothing to compare, and the tally says so.
///
/// Cranelift alone is no measure where it removes what the contract does not let anybody remove, or
/// where what it finds in a block depends on which instruction is the first. So a path that is worse
/// is judged once more:
/// - Cranelift takes an access without a region to touch no region. Where a function mixes the two,
///   the path must also be worse than what Cranelift makes of the original without any regions.
/// - It removes a store that may trap if memory holds the value according to a load. Whether it
///   sees that depends on which store or join it takes for the last one before each of the two, and
///   so on stores that are gone; and without the store, more loads are equal. The path must also be
///   worse if such stores, as far as they are in both, store values that nothing is known of. (Where
///   the optimized function stores a value made from what a load gave, they are as they were.)
/// - Where ways meet with different last stores, it takes the first instruction of the block for the
///   last store. If that is a store, it finds that the store observes itself, and keeps it. The path
///   must also be worse with an instruction that does nothing at the top of each block.
///
/// # Errors
/// A finding: a path of `optimized` has more memory operations.
pub fn check_worse_paths(
    original: &Function,
    optimized: &Function,
    setup: &Setup,
    tally: &mut Tally,
) -> Result<(), Finding> {
    let before = after_cranelift(original.clone(), setup)?;
    let after = after_cranelift(optimized.clone(), setup)?;
    let (Some(before), Some(after)) = (before, after) else {
        tally.mark("worse_path.cranelift_panicked", 1);
        return Ok(());
    };
    let Some(path) = worse_path(&before, &after) else {
        return Ok(());
    };
    let stored_back = stored_back(original, optimized);
    if !stored_back.is_empty() {
        let hide = |function: &mut Function| hide_stored_values(function, &stored_back);
        let before = after_cranelift(changed(original, hide), setup)?;
        let after = after_cranelift(changed(optimized, hide), setup)?;
        if is_not_worse(before, after) {
            tally.mark("worse_path.but_for_stored_back", 1);
            return Ok(());
        }
    }
    if mixes_tags(original) {
        let before = after_cranelift(changed(original, drop_regions), setup)?;
        if is_not_worse(before, Some(after)) {
            tally.mark("worse_path.but_for_mixed_tags", 1);
            return Ok(());
        }
    }
    let before = after_cranelift(changed(original, begin_blocks_with_nops), setup)?;
    let after = after_cranelift(changed(optimized, begin_blocks_with_nops), setup)?;
    if is_not_worse(before, after) {
        tally.mark("worse_path.but_for_first_store", 1);
        return Ok(());
    }
    let message = format!("{}: {path}", original.name);
    Err(Finding::new(Oracle::WorsePath, message))
}

/// Whether no path of `after` is worse, as far as Cranelift did not panic.
fn is_not_worse(before: Option<Function>, after: Option<Function>) -> bool {
    let both = before.zip(after);
    both.is_none_or(|(before, after)| worse_path(&before, &after).is_none())
}

fn changed(function: &Function, change: impl FnOnce(&mut Function)) -> Function {
    let mut function = function.clone();
    change(&mut function);
    function
}

/// The function after Cranelift's own optimizer; none if that panics.
fn after_cranelift(function: Function, setup: &Setup) -> Result<Option<Function>, Finding> {
    let mut context = Context::for_function(function);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the oracle tallies for an original and what could have been made of it; none if it
    /// objects.
    fn judge(original: &str, optimized: &str) -> Option<String> {
        let parse = |body: &str| {
            let body = body.replace("  ", "\n");
            let text = format!(
                "function %f(i64, i64, i32) -> i32 {{\nregion0 = 1 \"r1\"\n\
                 block0(v0: i64, v1: i64, v2: i32):\n{body}\n}}"
            );
            cranelift_reader::parse_functions(&text)
                .expect("test CLIF parses")
                .remove(0)
        };
        let setup = Setup::new("x86_64").expect("a known target");
        let mut tally = Tally::default();
        check_worse_paths(&parse(original), &parse(optimized), &setup, &mut tally)
            .is_ok()
            .then(|| {
                let marks = tally
                    .iter()
                    .filter(|(name, _)| name.starts_with("worse_path"));
                marks.map(|(name, _)| name.to_owned()).collect()
            })
    }

    #[test]
    fn one_load_more_is_worse() {
        let (one, two) = (
            "v3 = load.i32 v0  return v3",
            "v3 = load.i32 v0  v4 = load.i32 v1  return v3",
        );
        assert_eq!(judge(one, two), None);
        assert_eq!(judge(two, one), Some(String::new()));
    }

    #[test]
    fn tags_are_mixed() {
        let rest = "store notrap region0 v2, v1  store user2 v2, v0+8
                    v3 = load.i32 notrap region0 v1  return v3";
        let original = format!("store notrap v2, v0+8  {rest}");
        let tally = judge(&original, rest);
        assert_eq!(tally.as_deref(), Some("worse_path.but_for_mixed_tags"));
        // More stores than that are worse with regions and without.
        let more = "store v2, v0+16  store v2, v0+24  store v2, v0+32";
        let worse = format!("{more}  {original}");
        assert_eq!(judge(&original, &worse), None);
    }

    #[test]
    fn a_store_of_what_was_loaded_does_not_count() {
        let text = |store: &str, stored: &str| {
            format!(
                "brif v2, block1, block2
                block1: debugtrap  jump block2
                block2: jump block3
                block3: v4 = load.i32 region0 v1  {store}  jump block4
                block4: v5 = load.i32 region0 v0  v6 = iadd v5, v2  jump block5
                block5: store region0 {stored}, v0  return v4"
            )
        };
        let original = text("store notrap region0 v4, v1", "v5");
        let tally = judge(&original, &text("nop", "v5"));
        assert_eq!(tally.as_deref(), Some("worse_path.but_for_stored_back"));
        // A store of another value does.
        assert_eq!(judge(&original, &text("nop", "v6")), None);
    }

    #[test]
    fn loads_across_a_store_of_what_was_loaded_do_not_count() {
        let text = |load: &str, value: &str| {
            format!(
                "v3 = iadd v2, v2  store v3, v0+8  store v2, v0
                {load}  v5 = load.i32 v1  store v5, v1
                v6 = load.i32 v0+8  store notrap {value}, v0+8  return v6"
            )
        };
        let original = text("v4 = load.i32 notrap v0+8", "v4");
        let tally = judge(&original, &text("nop", "v3"));
        assert_eq!(tally.as_deref(), Some("worse_path.but_for_stored_back"));
    }

    #[test]
    fn the_first_store_of_a_loop_is_observed_by_itself() {
        let text = |stores: &str| {
            format!(
                "v3 = iadd v2, v2  v4 = iadd v3, v2  jump block1
                block1: {stores}  jump block1"
            )
        };
        let original = text(
            "store region0 v2, v0  store region0 v3, v0
            store aligned region0 v4, v0  store region0 v2, v0",
        );
        let optimized = text("store region0 v3, v0  store region0 v2, v0");
        let tally = judge(&original, &optimized);
        assert_eq!(tally.as_deref(), Some("worse_path.but_for_first_store"));
        // Stores of other bytes are worse by all measures.
        let worse = text("store region0 v3, v0  store region0 v3, v0+8");
        assert_eq!(judge(&original, &worse), None);
    }
}
