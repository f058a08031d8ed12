//! Stack frames get smaller: slots that nothing names go, and slots that are not in use at the same
//! time share their bytes.
//!
//! # Example
//!
//! ```text
//! ss0 = explicit_slot 64               ss0 = explicit_slot 64
//! ss1 = explicit_slot 48
//! v1 = stack_addr.i64 ss0              v1 = stack_addr.i64 ss0
//! v2 = stack_addr.i64 ss1        ==>   v2 = stack_addr.i64 ss0
//! store notrap v0, v1                  store notrap v0, v1
//! v3 = load.i64 notrap v1              v3 = load.i64 notrap v1
//! store notrap v3, v2                  store notrap v3, v2
//! ```
//!
//! # Legality
//!
//! - L1: nothing from outside names the slot: it has no key, no stack map and no debug tag has it,
//!   and the function does not expose its frame.
//! - L2: a slot goes if no instruction names it but address computations whose results are unused.
//! - L3: slots share only if neither address is compared: that two of them differ can be seen.
//! - L4: all accesses of both are in bounds, not fixed by the options, and no load is
//!   `readonly`: it depends on no store, so that Cranelift may place it where the other is in use.
//! - L5: all accesses of both have the same region, or all have none. If an address escapes, so do
//!   accesses of unknown memory, as far as they have one.
//! - L6: at no access of the one is the other live: accessed before on some path, and read after on
//!   some path before its bytes are all written anew. A slot whose address has escaped is live
//!   wherever a later instruction may touch, or show, escaped memory.
//! - L7: there is no path on which the addresses of both escape.
//! - L8: the slot that is kept has the larger size and the larger alignment, and the frame shrinks.
//!
//! Two reads of bytes that were never written still agree: both are accesses, so that no access of
//! the other slot is between them.
//!
//! # Needs / keeps
//!
//! Needs the control flow graph and the memory view. Slots keep their numbers: of those that go,
//! only the last ones leave the table, the others have size 0, which takes no room in a frame.
//!
//! # Cost
//!
//! A scan of the function; three data-flow problems with a bit for each slot and block, for at most
//! [`SLOTS_MAX`] slots and [`LIVE_BITS_MAX`] bits, the largest slots first; for each access a word
//! for 64 slots.
//!
//! # Order
//!
//! Last: slots that share bytes are one slot to the other passes. Idempotent but for slots that
//! could share more once others have joined.
//!
//! # Not done
//!
//! A slot written piece by piece in several blocks of a loop is live all around it:
//! `keeps-written-in-two-blocks`. Addresses that are selected count as escaped:
//! `keeps-selected-address`.
//!
//! # Sources
//!
//! LLVM's `StackColoring`, without its lifetime markers: accesses bound the lifetimes. Chaitin for
//! interference at each access instead of overlapping intervals.

mod live;
mod scan;
mod share;

use cranelift_codegen::entity::EntityRef;
use cranelift_codegen::ir::{
    Function, InstructionData, StackSlot, StackSlotData, StackSlotKind, StackSlots, ValueDef,
};

use crate::effects::constant_of;
use crate::faults::{Fault, planted};
use crate::options::Pass;
use crate::passes::SlotContext;
use crate::remarks::Action;
use crate::rewrite::Edit;
use live::Lifetimes;
use scan::Scan;
use share::{Share, Sharing};

/// How many slots are looked at for others to share with.
pub(crate) const SLOTS_MAX: usize = 2048;

/// How many (slot, block) pairs: 512 KiB for each of the bit sets.
pub(crate) const LIVE_BITS_MAX: usize = 1 << 22;

/// Why a slot keeps its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Key,
    StackMap,
    DebugTag,
    FrameExposed,
    Compared,
    OutOfBounds,
    Fixed,
    Readonly,
    Region,
    Live,
    Limit,
}

impl Kept {
    /// Something from outside names the slot, so that it stays even if it is unused.
    fn is_from_outside(self) -> bool {
        match self {
            Kept::Key | Kept::StackMap | Kept::DebugTag | Kept::FrameExposed => true,
            Kept::Compared
            | Kept::OutOfBounds
            | Kept::Fixed
            | Kept::Readonly
            | Kept::Region
            | Kept::Live
            | Kept::Limit => false,
        }
    }
}

/// Storage of the pass, reused across functions.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    scan: Scan,
    lifetimes: Lifetimes,
    sharing: Sharing,
    candidates: Vec<StackSlot>,
    /// Slots that other ones took the place of, or that nothing names.
    gone: Vec<bool>,
}

/// Removes and merges slots. Whether it changed something.
pub(crate) fn run(cx: &mut SlotContext<'_>, storage: &mut Frame) -> bool {
    let Frame {
        scan,
        lifetimes,
        sharing,
        candidates,
        gone,
    } = storage;
    cx.stats.frame_bytes_before += frame_bytes(&cx.func.sized_stack_slots);
    scan.compute(cx.func, cx.flow, cx.view);
    find_candidates(cx, scan, candidates);
    gone.clear();
    gone.resize(cx.func.sized_stack_slots.len(), false);
    sharing.shares.clear();
    if candidates.len() >= 2 {
        lifetimes.compute(cx.flow, scan, candidates);
        sharing.compute(cx.func, scan, lifetimes, candidates);
    }
    let mut changed = share(cx, scan, sharing, gone);
    note_kept(cx, scan, candidates, sharing);
    changed |= remove_unused(cx, scan, gone);
    cx.stats.frame_bytes_after += frame_bytes(&cx.func.sized_stack_slots);
    changed
}

/// The slots that may share, the largest first: the rest is kept.
fn find_candidates(cx: &SlotContext<'_>, scan: &mut Scan, candidates: &mut Vec<StackSlot>) {
    candidates.clear();
    let slots = &cx.func.sized_stack_slots;
    for (slot, data) in slots.iter() {
        if data.size > 0 && !scan.is_unused(slot) && scan.slots[slot].kept.is_none() {
            candidates.push(slot);
        }
    }
    candidates.sort_by_key(|&slot| (std::cmp::Reverse(slots[slot].size), slot));
    let most = SLOTS_MAX.min(LIVE_BITS_MAX / cx.flow.rpo().len().max(1));
    for slot in candidates.drain(most.min(candidates.len())..) {
        scan.slots[slot].kept = Some((Kept::Limit, None));
    }
}

/// Has slots take the place of others, as planned, as long as there is fuel. The slots that others
/// took the place of are as good as unused.
fn share(
    cx: &mut SlotContext<'_>,
    scan: &mut Scan,
    sharing: &mut Sharing,
    gone: &mut [bool],
) -> bool {
    let mut done = 0;
    while let Some(&Share { slot, with }) = sharing.shares.get(done) {
        if !spend(cx, slot) {
            break;
        }
        let reason = "the slot shares the bytes of the one whose address is";
        cx.note(
            Pass::Frame,
            slot,
            Action::Removed,
            scan.slots[with].first,
            reason,
        );
        cx.stats.frame_merged += 1;
        gone[slot.index()] = true;
        let shift = cx.func.sized_stack_slots[slot].align_shift;
        let mut kept = cx.func.sized_stack_slots[with].clone();
        if !planted(Fault::FrameAlignment) {
            kept.align_shift = kept.align_shift.max(shift);
        }
        let mut edit = Edit::new(cx.func);
        edit.set_slot(with, kept);
        for &inst in &scan.addrs_of(slot) {
            edit.set_named_slot(inst, with);
        }
        done += 1;
    }
    done > 0
}

/// Removes slots that nothing names any more.
fn remove_unused(cx: &mut SlotContext<'_>, scan: &mut Scan, gone: &mut [bool]) -> bool {
    let mut changed = false;
    let mut length = gone.len();
    for index in (0..gone.len()).rev() {
        let slot = StackSlot::new(index);
        let is_last = length == index + 1;
        if !gone[index] && scan.is_unused(slot) {
            let is_empty = cx.func.sized_stack_slots[slot] == empty_slot();
            if (is_last || !is_empty) && spend(cx, slot) {
                cx.note(
                    Pass::Frame,
                    slot,
                    Action::Removed,
                    None,
                    "nothing names the slot",
                );
                cx.stats.frame_removed += 1;
                remove_addresses(cx.func, scan, slot);
                gone[index] = true;
            }
        }
        if gone[index] {
            changed = true;
            Edit::new(cx.func).set_slot(slot, empty_slot());
            if is_last {
                length = index;
            }
        }
    }
    Edit::new(cx.func).truncate_slots(length);
    changed
}

/// Removes the computations of addresses of an unused slot, and the constants that were for them.
fn remove_addresses(func: &mut Function, scan: &mut Scan, slot: StackSlot) {
    for inst in scan.dead_of(slot) {
        for index in 0..func.dfg.inst_args(inst).len() {
            let arg = func.dfg.resolve_aliases(func.dfg.inst_args(inst)[index]);
            if scan.pointer(func, arg).is_some() {
                continue;
            }
            scan.counts[arg] = scan.counts[arg].saturating_sub(1);
            if let ValueDef::Result(constant, _) = func.dfg.value_def(arg)
                && scan.counts[arg] == 0
                && constant_of(func, arg).is_some()
                && func.layout.inst_block(constant).is_some()
            {
                Edit::new(func).remove(constant);
            }
        }
        debug_assert!(matches!(
            func.dfg.insts[inst],
            InstructionData::StackAddr { .. } | InstructionData::Binary { .. }
        ));
        Edit::new(func).remove(inst);
    }
}

/// What stands in the table for a slot that is gone.
fn empty_slot() -> StackSlotData {
    StackSlotData::new(StackSlotKind::ExplicitSlot, 0, 0)
}

/// The bytes that Cranelift lays out for the slots, on targets with words of 8 bytes.
fn frame_bytes(slots: &StackSlots) -> u64 {
    let mut end = 0u64;
    for data in slots.values() {
        let align = (1u64 << data.align_shift).max(8);
        end = end.next_multiple_of(align) + u64::from(data.size);
    }
    end.next_multiple_of(8)
}

fn spend(cx: &mut SlotContext<'_>, slot: StackSlot) -> bool {
    if cx.fuel.is_spent() {
        cx.stats.rewrite_out_of_fuel += 1;
        cx.note(Pass::Frame, slot, Action::Kept, None, "out of fuel");
        return false;
    }
    cx.fuel.spend();
    true
}

/// Says why slots keep their own bytes. Where there is one slot alone, there is nothing to say.
fn note_kept(
    cx: &mut SlotContext<'_>,
    scan: &mut Scan,
    candidates: &[StackSlot],
    sharing: &Sharing,
) {
    if cx.func.sized_stack_slots.len() < 2 {
        return;
    }
    let mut shares = vec![false; cx.func.sized_stack_slots.len()];
    for &Share { slot, with } in &sharing.shares {
        shares[slot.index()] = true;
        shares[with.index()] = true;
    }
    for &slot in candidates {
        if candidates.len() >= 2 && !shares[slot.index()] {
            scan.slots[slot].kept = Some((Kept::Live, scan.slots[slot].first));
        }
    }
    for index in 0..cx.func.sized_stack_slots.len() {
        let slot = StackSlot::new(index);
        let Some((kept, inst)) = scan.slots[slot].kept else {
            continue;
        };
        if scan.is_unused(slot) {
            continue;
        }
        let stats = &mut *cx.stats;
        let (counter, reason) = match kept {
            Kept::Key => (&mut stats.frame_kept_key, "L1 the slot has a key"),
            Kept::StackMap => (
                &mut stats.frame_kept_stack_map,
                "L1 a stack map names the slot:",
            ),
            Kept::DebugTag => (
                &mut stats.frame_kept_debug_tag,
                "L1 a debug tag names the slot:",
            ),
            Kept::FrameExposed => (
                &mut stats.frame_kept_frame,
                "L1 the function exposes its frame:",
            ),
            Kept::Compared => (
                &mut stats.frame_kept_compared,
                "L3 the address is compared:",
            ),
            Kept::OutOfBounds => (
                &mut stats.frame_kept_out_of_bounds,
                "L4 out of the slot's bounds:",
            ),
            Kept::Fixed => (&mut stats.frame_kept_fixed, "L4 left alone by the options:"),
            Kept::Readonly => (
                &mut stats.frame_kept_readonly,
                "L4 the load depends on no store:",
            ),
            Kept::Region => (
                &mut stats.frame_kept_region,
                "L5 accesses of the slot have several regions, among them",
            ),
            Kept::Live => (
                &mut stats.frame_kept_live,
                "L6 to L8 no slot is free, or not of its kind, where this one is in use, as from",
            ),
            Kept::Limit => (
                &mut stats.frame_kept_limit,
                "too many slots and blocks to compare lifetimes",
            ),
        };
        *counter += 1;
        cx.note(Pass::Frame, slot, Action::Kept, inst, reason);
    }
}
