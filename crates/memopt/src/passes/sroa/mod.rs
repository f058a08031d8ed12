//! Stack slots become SSA values: scalar replacement of aggregates and promotion.
//!
//! # Example
//!
//! ```text
//! v1 = stack_addr.i64 ss0              brif v0, block1, block2(v2)
//! store notrap v2, v1              block1:
//! brif v0, block1, block2              jump block2(v3)
//! block1:                     ==>  block2(v5: i32):
//! store notrap v3, v1                  return v5
//! jump block2
//! block2:
//! v4 = load.i32 notrap v1
//! return v4
//! ```
//!
//! # Legality
//!
//! - L1: nothing outside of the function's own accesses sees the slot: it has no key, no stack map
//!   names it, the function does not expose its frame.
//! - L2: the address is only added to, compared, and the address of loads, stores and memory
//!   functions. Then no call, trap or fence sees the slot, and none of its accesses traps.
//! - L3: all accesses are within the slot.
//! - L4: no access of a byte that becomes a value is fixed by the options.
//! - L5: all accesses of a byte that becomes a value are at a known distance. A variable index
//!   keeps the bytes that it may reach, by the bounds that its own computation gives.
//! - L6: a memory function is given a known number of bytes, and not the same slot twice.
//! - L7: registers hold values of the type: integers, `f32`, `f64`, vectors of 16 bytes.
//! - L8: no two branches share a table, which would then need different arguments.
//! - L9: no memory function becomes more work than it was.
//! - L10: where many values would be carried into one block, accesses outweigh parameters.
//!
//! Bytes that were never written are zero: one value, as two reads must agree.
//!
//! # Needs / keeps
//!
//! Needs the control flow graph and keeps it. Runs before MemorySSA is built; the memory view is to
//! be scanned again.
//!
//! # Cost
//!
//! A scan of the function a round; sorting of accesses; for each cell the part of the function
//! where it is live; for each copy its cells, which are few once all copies together have many.
//! Another round follows only if an address was stored to a slot that went.
//!
//! # Order
//!
//! First: it leaves less to look at, and addresses that were kept in slots become values.
//!
//! # Not done
//!
//! Copies and fills at one of a few addresses, copies within a slot, addresses that `try_call` sends
//! to its targets.
//!
//! # Sources
//!
//! LLVM's SROA for slices and partitions; unlike it, cells are cut in one step and values are read
//! and written in bytes, so that no partition has to be rewritten to a type first. Sreedhar and Gao
//! for the placement of parameters, pruned by liveness.

mod bytes;
mod choices;
mod partition;
mod place;
mod pressure;
mod range;
mod rename;
mod uses;

use cranelift_codegen::entity::EntityRef;
use cranelift_codegen::ir::{
    Endianness, Function, InstructionData, Opcode, StackSlot, Value, ValueDef,
};

use smallvec::SmallVec;

use crate::certificate::{PromotedCell, PromotedParam, Promotion};
use crate::effects::{MemoryFunction, memory_function};
use crate::faults::{Fault, planted};
use crate::options::Pass;
use crate::passes::SlotContext;
use crate::remarks::Action;
use crate::rewrite::Edit;
use partition::{COPY_CELLS_MAX, Partition};
use place::Placement;
use pressure::slots_not_worthwhile;
use rename::{RenameContext, Renaming, runs, touches_cells};
use uses::{OpKind, Place, Uses, places_of};

/// How often slots are looked at again, since the addresses in slots that went are known then.
pub(crate) const ROUNDS_MAX: usize = 8;

/// How often slots are cut anew because others stay in memory. Then all that are connected stay.
const SETTLE_ROUNDS_MAX: usize = 16;

/// Why bytes of a slot stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Key,
    StackMap,
    FrameExposed,
    Escapes,
    OutOfBounds,
    Fixed,
    VariableIndex,
    Block,
    Type,
    SharedTable,
    Pressure,
    OutOfFuel,
}

/// Storage of the pass, reused across functions.
#[derive(Debug, Default)]
pub(crate) struct Sroa {
    uses: Uses,
    partition: Partition,
    placement: Placement,
    renaming: Renaming,
    worklist: Vec<Value>,
}

/// What a round did.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// What it claims, if it changed the function; empty if claims are not checked.
    pub(crate) promotion: Option<Promotion>,
    /// Another round may find more.
    pub(crate) again: bool,
}

/// Promotes what can be promoted.
pub(crate) fn run_round(
    cx: &mut SlotContext<'_>,
    endianness: Endianness,
    storage: &mut Sroa,
) -> Round {
    let Sroa {
        uses,
        partition,
        placement,
        renaming,
        worklist,
    } = storage;
    uses.compute(cx.func, cx.flow, cx.view, cx.options);
    if uses.ops.is_empty() {
        note_kept(cx, uses, partition);
        return Round::default();
    }
    settle(cx.func, uses, partition);
    placement.compute(cx.flow, uses, partition);
    if keep_under_pressure(cx, uses, partition, placement) {
        settle(cx.func, uses, partition);
        placement.compute(cx.flow, uses, partition);
    }
    if partition.cells.is_empty() {
        note_kept(cx, uses, partition);
        return Round::default();
    }
    if limit_by_fuel(cx, uses, partition) {
        settle(cx.func, uses, partition);
        placement.compute(cx.flow, uses, partition);
        if partition.cells.is_empty() {
            note_kept(cx, uses, partition);
            return Round::default();
        }
    }
    note_promoted(cx, uses, partition);
    let mut rename = RenameContext {
        edit: Edit::new(cx.func),
        flow: cx.flow,
        uses,
        partition,
        placement,
        endianness,
        stats: cx.stats,
    };
    renaming.run(&mut rename);
    let again = uses.stores_pointer;
    let promotion = match cx.options.check {
        true => promotion_of(partition, placement, renaming),
        false => Promotion::default(),
    };
    remove_dead(cx.func, uses, renaming, worklist);
    cx.stats.sroa_rounds += 1;
    if !again {
        note_kept(cx, uses, partition);
    }
    Round {
        promotion: Some(promotion),
        again,
    }
}

/// Cuts the slots, and keeps those that others would become values without.
fn settle(func: &Function, uses: &mut Uses, partition: &mut Partition) {
    for _ in 0..SETTLE_ROUNDS_MAX {
        partition.compute(func, uses);
        if !keep_where_choices_mix(uses, partition) && !keep_where_copies_grow(uses, partition) {
            return;
        }
    }
    keep_connected(uses);
    partition.compute(func, uses);
}

/// Keeps all slots that share an access with others.
fn keep_connected(uses: &mut Uses) {
    for op in &uses.ops {
        if matches!(op.kind, OpKind::Load { .. } | OpKind::Store { .. }) {
            continue;
        }
        for place in places_of(&op.kind, &uses.choices) {
            uses.kept[place.slot].get_or_insert((Kept::Block, Some(op.inst)));
        }
    }
}

/// Keeps slots that share an access with one whose bytes stay in memory. Returns whether it has
/// found any.
fn keep_where_choices_mix(uses: &mut Uses, partition: &Partition) -> bool {
    let mut found = false;
    if planted(Fault::ChoiceMixed) {
        return false;
    }
    for op in &uses.ops {
        let (OpKind::LoadAny { choice, ty } | OpKind::StoreAny { choice, ty }) = op.kind else {
            continue;
        };
        let places = &uses.choices[choice as usize].places;
        let is_value = |place: &Place| {
            uses.kept[place.slot].is_none() && touches_cells(partition, *place, ty.bytes())
        };
        let values: SmallVec<[Place; 4]> = places.iter().copied().filter(is_value).collect();
        if values.len() == places.len() {
            continue;
        }
        found |= !values.is_empty();
        for place in values {
            uses.kept[place.slot] = Some((Kept::Escapes, Some(op.inst)));
        }
    }
    found
}

/// What the call of a memory function weighs, in loads and stores, besides what it does to each
/// word of 8 bytes: to return, and to keep values over the call.
const CALL_WEIGHT: u32 = 4;

/// How many cells copies and fills may change in all. Beyond, only short ones may.
const CELLS_MOVED_MAX: usize = 1 << 16;

/// L9. Keeps slots of which a copy or fill would become more work: more loads and stores and calls,
/// by weight, than the call was. Returns whether it has found any.
fn keep_where_copies_grow(uses: &mut Uses, partition: &Partition) -> bool {
    let mut found = false;
    let mut moved = 0;
    for op in &uses.ops {
        let (to, from, length) = match op.kind {
            OpKind::Copy { to, from, length } => (to, from, length),
            OpKind::Set { to, length } => (Some(to), None, length),
            _ => continue,
        };
        let is_set = matches!(op.kind, OpKind::Set { .. });
        let sides = [to, from].into_iter().flatten();
        let cells = sides.map(|place| partition.num_cells_in(place, length));
        let cells = cells.max().unwrap_or(0);
        moved += cells;
        let is_long = cells > COPY_CELLS_MAX && moved > CELLS_MOVED_MAX;
        let weight_of = |bytes: u32| {
            let words = bytes.div_ceil(8);
            CALL_WEIGHT + if is_set { words } else { 2 * words }
        };
        let weight = || {
            runs(partition, to, from, length)
                .iter()
                .map(|run| match (run.to, run.from) {
                    (None, None) => weight_of(run.len()),
                    (Some(_), None) if is_set => 0,
                    (Some(_), Some(_)) => 0,
                    (Some(cell), None) if partition.cells[cell].ty.is_none() => 0,
                    (Some(_), None) | (None, Some(_)) => run.num_accesses(partition),
                })
                .sum::<u32>()
        };
        if !is_long && weight() <= weight_of(length) {
            continue;
        }
        for place in [to, from].into_iter().flatten() {
            if partition.cells_of(place.slot).next().is_some() {
                uses.kept[place.slot] = Some((Kept::Block, Some(op.inst)));
                found = true;
            }
        }
    }
    found
}

/// L10. Keeps slots that are better left in memory. Returns whether it has found any.
fn keep_under_pressure(
    cx: &SlotContext<'_>,
    uses: &mut Uses,
    partition: &Partition,
    placement: &Placement,
) -> bool {
    let slots = slots_not_worthwhile(cx.func, cx.flow, uses, partition, placement);
    for &slot in &slots {
        uses.kept[slot] = Some((Kept::Pressure, None));
    }
    !slots.is_empty()
}

/// Keeps the slots for which there is no fuel. Returns whether there are any.
fn limit_by_fuel(cx: &mut SlotContext<'_>, uses: &mut Uses, partition: &Partition) -> bool {
    let promoted =
        |partition: &Partition, slot: &StackSlot| partition.cells_of(*slot).next().is_some();
    let mut kept = false;
    for slot in cx.func.sized_stack_slots.keys() {
        if !promoted(partition, &slot) {
            continue;
        }
        if cx.fuel.is_spent() {
            uses.kept[slot] = Some((Kept::OutOfFuel, None));
            cx.stats.rewrite_out_of_fuel += 1;
            kept = true;
        } else {
            cx.fuel.spend();
        }
    }
    kept
}

/// Removes what was replaced, and address arithmetic that was for it alone.
fn remove_dead(
    func: &mut Function,
    uses: &mut Uses,
    renaming: &Renaming,
    worklist: &mut Vec<Value>,
) {
    for &value in &renaming.new_uses {
        uses.counts[func.dfg.resolve_aliases(value)] += 1;
    }
    for &(gone, value) in &renaming.renamed {
        let count = uses.counts[gone];
        uses.counts[func.dfg.resolve_aliases(value)] += count;
    }
    worklist.clear();
    for &inst in &renaming.removed {
        let args = func.dfg.inst_args(inst);
        let addresses = match func.dfg.insts[inst] {
            InstructionData::Load { .. } => &args[..1],
            InstructionData::Store { .. } => &args[1..2],
            _ => match memory_function(func, inst) {
                Some(MemoryFunction::Copy { .. }) => &args[..2],
                _ => &args[..1],
            },
        };
        for &address in addresses {
            release(func, uses, worklist, address);
        }
    }
    let mut edit = Edit::new(func);
    for &inst in &renaming.removed {
        edit.remove(inst);
    }
    while let Some(value) = worklist.pop() {
        let ValueDef::Result(inst, _) = func.dfg.value_def(value) else {
            continue;
        };
        let opcode = func.dfg.insts[inst].opcode();
        let is_address = matches!(
            opcode,
            Opcode::StackAddr | Opcode::Iadd | Opcode::Isub | Opcode::Iconst | Opcode::Select
        );
        if !is_address || func.layout.inst_block(inst).is_none() {
            continue;
        }
        for index in 0..func.dfg.inst_args(inst).len() {
            let arg = func.dfg.inst_args(inst)[index];
            release(func, uses, worklist, arg);
        }
        Edit::new(func).remove(inst);
    }
}

/// One use of the value is gone.
fn release(func: &Function, uses: &mut Uses, worklist: &mut Vec<Value>, value: Value) {
    let value = func.dfg.resolve_aliases(value);
    let count = &mut uses.counts[value];
    *count = count.saturating_sub(1);
    if *count == 0 {
        worklist.push(value);
    }
}

fn promotion_of(partition: &Partition, placement: &Placement, renaming: &Renaming) -> Promotion {
    let cell_of = |data: &partition::CellData| PromotedCell {
        slot: data.slot,
        start: data.start,
        end: data.end,
    };
    Promotion {
        cells: partition.cells.values().map(cell_of).collect(),
        params: placement
            .params
            .iter()
            .zip(renaming.params())
            .map(|(&(block, cell), &value)| PromotedParam {
                block,
                value,
                cell: cell_of(&partition.cells[cell]),
            })
            .collect(),
        calls: renaming
            .parts
            .chunk_by(|a, b| a.0 == b.0)
            .map(|parts| (parts[0].0, parts.iter().map(|part| part.1).collect()))
            .collect(),
        choices: renaming
            .chosen
            .iter()
            .map(|&(inst, cell, value)| (inst, cell_of(&partition.cells[cell]), value))
            .collect(),
    }
}

/// A remark for each slot that is promoted, at its first access.
fn note_promoted(cx: &mut SlotContext<'_>, uses: &Uses, partition: &Partition) {
    cx.stats.sroa_cells += partition.cells.len() as u64;
    let mut noted = vec![false; cx.func.sized_stack_slots.len()];
    for op in &uses.ops {
        for place in places_of(&op.kind, &uses.choices) {
            let slot = place.slot;
            if noted[slot.index()] || partition.cells_of(slot).next().is_none() {
                continue;
            }
            noted[slot.index()] = true;
            cx.stats.sroa_slots += 1;
            let reason = "the slot becomes values, of which this is the first access:";
            cx.note(Pass::Sroa, slot, Action::Removed, Some(op.inst), reason);
        }
    }
}

fn note_kept(cx: &mut SlotContext<'_>, uses: &Uses, partition: &Partition) {
    for index in 0..cx.func.sized_stack_slots.len() {
        let slot = StackSlot::new(index);
        let pinned = partition.pinned.get(slot).copied().flatten();
        let kept = uses.kept[slot].or(pinned.map(|(kept, inst)| (kept, Some(inst))));
        let Some((kept, inst)) = kept else { continue };
        let stats = &mut *cx.stats;
        let (counter, reason) = match kept {
            Kept::Key => (&mut stats.sroa_kept_key, "L1 the slot has a key"),
            Kept::StackMap => (
                &mut stats.sroa_kept_stack_map,
                "L1 a stack map names the slot:",
            ),
            Kept::FrameExposed => (
                &mut stats.sroa_kept_frame,
                "L1 the function exposes its frame:",
            ),
            Kept::Escapes => (&mut stats.sroa_kept_escapes, "L2 the address escapes to"),
            Kept::OutOfBounds => (
                &mut stats.sroa_kept_out_of_bounds,
                "L3 out of the slot's bounds:",
            ),
            Kept::Fixed => (&mut stats.sroa_kept_fixed, "L4 left alone by the options:"),
            Kept::VariableIndex => (
                &mut stats.sroa_kept_index,
                "L5 bytes at a variable index are accessed by",
            ),
            Kept::Block => (
                &mut stats.sroa_kept_block,
                "L6 too many bytes, or not known which, are moved by",
            ),
            Kept::Type => (
                &mut stats.sroa_kept_type,
                "L7 not a type that registers hold in parts:",
            ),
            Kept::SharedTable => (
                &mut stats.sroa_kept_shared_table,
                "L8 a table is shared by two branches:",
            ),
            Kept::Pressure => (
                &mut stats.sroa_kept_pressure,
                "L10 its values would be carried around for more than they are used",
            ),
            Kept::OutOfFuel => {
                cx.note(Pass::Sroa, slot, Action::Kept, None, "out of fuel");
                continue;
            }
        };
        *counter += 1;
        cx.note(Pass::Sroa, slot, Action::Kept, inst, reason);
    }
}
