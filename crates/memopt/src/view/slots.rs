//! Which values are addresses of a stack slot, and where a slot's address escapes.
//!
//! A value is *derived* from slot `ssN` if it is `stack_addr ssN`, or a derived value plus or minus
//! a value that is not derived, or a select or block parameter that gets nothing but values derived
//! from `ssN`. Any other use of a derived value but as the address of an access or in a comparison
//! is an escape: stored, passed, returned, selected or sent to a block parameter together with
//! others, used in other arithmetic. That is more than what the memory contract calls an escape,
//! never less.
//!
//! Escape is a property of a program point: before the first escape on a path the slot is private.
//! For each slot that escapes, its escape sites flood the control flow graph forward.

use std::cmp::Ordering;

use cranelift_codegen::entity::{EntityRef, SecondaryMap};
use cranelift_codegen::ir::{
    Block, Function, Inst, InstructionData, Opcode, StackSlot, Value, types,
};
use rustc_hash::FxHashMap;

use crate::effects::constant_of;
use crate::faults::{Fault, planted};
use crate::flow::Flow;
use crate::view::memory_type;

/// Above this many (escaping slot, block) pairs, a slot that escapes anywhere counts as escaped
/// everywhere. It bounds memory (512 KiB) and the time of the flood alike.
const FLOOD_BITS_MAX: usize = 1 << 22;

/// How often a function is scanned to follow addresses through selects and block parameters. Then
/// they count as escaped there.
const SCANS_MAX: usize = 16;

/// A value that is an address within a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The slot.
    pub slot: StackSlot,
    /// The distance from the slot's first byte, if it is a constant.
    pub offset: Option<i64>,
}

/// When a slot is private.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Privacy {
    /// Everywhere: its address never escapes.
    #[default]
    Always,
    /// Before its address escapes. The number of its row of bits.
    UntilEscape(u32),
    /// Nowhere: it has a key, it is accessed out of bounds, or the function exposes its frame.
    Never,
}

/// What is known of a value while addresses are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Nothing,
    Derived(Derived),
    Anything,
}

/// The slots of one function. Storage is reused by [`Slots::compute`].
#[derive(Debug, Default)]
pub struct Slots {
    derived: SecondaryMap<Value, Option<Derived>>,
    privacy: SecondaryMap<StackSlot, Privacy>,
    /// The first escape of a slot in a block.
    sites: FxHashMap<(StackSlot, Block), Inst>,
    site_list: Vec<(StackSlot, Block)>,
    /// The place of each instruction among all, from 1. The layout does not tell any more once a
    /// rewrite has removed an escape site.
    order: SecondaryMap<Inst, u32>,
    /// A bit for each (escaping slot, block): the slot may have escaped where the block starts.
    escaped_in: Vec<u64>,
    blocks: usize,
    worklist: Vec<Block>,
    any: bool,
    /// An address goes to a select or a block parameter.
    flows: bool,
    known: SecondaryMap<Value, Known>,
}

impl Slots {
    /// Finds derived values and escapes. Costs nothing but one test for a function without slots.
    pub fn compute(&mut self, func: &Function, flow: &Flow) {
        self.derived.clear();
        self.privacy.clear();
        self.sites.clear();
        self.site_list.clear();
        self.order.clear();
        self.escaped_in.clear();
        self.any = !func.sized_stack_slots.is_empty();
        if !self.any {
            return;
        }
        self.privacy.resize(func.sized_stack_slots.len());
        for (slot, data) in func.sized_stack_slots.iter() {
            if data.key.is_some() && !planted(Fault::SlotKeyIgnored) {
                self.privacy[slot] = Privacy::Never;
            }
        }
        self.order.resize(func.dfg.num_insts());
        self.flows = false;
        self.visit_all(func, flow);
        if self.flows && self.follow(func, flow) {
            self.sites.clear();
            self.site_list.clear();
            for privacy in self.privacy.values_mut() {
                if *privacy != Privacy::Never {
                    *privacy = Privacy::Always;
                }
            }
            self.visit_all(func, flow);
        }
        self.flood(func, flow);
    }

    fn visit_all(&mut self, func: &Function, flow: &Flow) {
        let mut place = 0;
        for &block in flow.rpo() {
            for inst in func.layout.block_insts(block) {
                place += 1;
                self.order[inst] = place;
                self.visit(func, block, inst);
            }
        }
    }

    /// Finds the selects and block parameters that are derived, by iteration up from "nothing".
    /// Returns whether that has come to an end.
    fn follow(&mut self, func: &Function, flow: &Flow) -> bool {
        self.known.clear();
        self.known.resize(func.dfg.num_values());
        let entry = flow.rpo().first();
        for &param in entry.map_or(&[][..], |&entry| func.dfg.block_params(entry)) {
            self.known[param] = Known::Anything;
        }
        for _ in 0..SCANS_MAX {
            let mut changed = false;
            for &block in flow.rpo() {
                for inst in func.layout.block_insts(block) {
                    changed |= self.follow_inst(func, inst);
                }
            }
            if !changed {
                for (value, known) in self.known.iter() {
                    if let Known::Derived(derived) = *known {
                        self.derived[value] = Some(derived);
                    }
                }
                return true;
            }
        }
        false
    }

    fn follow_inst(&mut self, func: &Function, inst: Inst) -> bool {
        let dfg = &func.dfg;
        let data = &dfg.insts[inst];
        let known_of = |slots: &Self, value: Value| slots.known[dfg.resolve_aliases(value)];
        let mut changed = false;
        if data.opcode().is_branch() {
            let calls = data.branch_destination(&dfg.jump_tables, &dfg.exception_tables);
            for call in calls {
                let params = dfg.block_params(call.block(&dfg.value_lists));
                for (&param, arg) in params.iter().zip(call.args(&dfg.value_lists)) {
                    let known = match arg.as_value() {
                        Some(value) => known_of(self, value),
                        None => Known::Anything,
                    };
                    changed |= self.raise(param, known);
                }
            }
        }
        for &result in dfg.inst_results(inst) {
            let known = match *data {
                InstructionData::StackAddr {
                    opcode: Opcode::StackAddr,
                    stack_slot,
                    offset,
                } if dfg.value_type(result) == types::I64 => Known::Derived(Derived {
                    slot: stack_slot,
                    offset: Some(i64::from(i32::from(offset))),
                }),
                InstructionData::Binary {
                    opcode: opcode @ (Opcode::Iadd | Opcode::Isub),
                    args: [a, b],
                } => match (known_of(self, a), known_of(self, b)) {
                    (Known::Derived(base), Known::Anything) => {
                        let sign = if opcode == Opcode::Isub { -1 } else { 1 };
                        Known::Derived(moved(func, base, b, sign))
                    }
                    (Known::Anything, Known::Derived(base)) if opcode == Opcode::Iadd => {
                        Known::Derived(moved(func, base, a, 1))
                    }
                    (Known::Nothing, _) | (_, Known::Nothing) => Known::Nothing,
                    _ => Known::Anything,
                },
                InstructionData::Ternary {
                    opcode: Opcode::Select,
                    args: [_, a, b],
                } => merged(known_of(self, a), known_of(self, b)),
                _ => Known::Anything,
            };
            changed |= self.raise(result, known);
        }
        changed
    }

    fn raise(&mut self, value: Value, other: Known) -> bool {
        let merged = merged(self.known[value], other);
        let changed = self.known[value] != merged;
        self.known[value] = merged;
        changed
    }

    /// The slot that `value` points into.
    pub fn derived(&self, func: &Function, value: Value) -> Option<Derived> {
        if !self.any {
            return None;
        }
        self.derived[func.dfg.resolve_aliases(value)]
    }

    /// Declares that no point of the function may count on `slot` being private.
    pub(crate) fn expose(&mut self, slot: StackSlot) {
        self.privacy[slot] = Privacy::Never;
    }

    /// Declares that no slot of the function is private.
    pub(crate) fn expose_all(&mut self, func: &Function) {
        for slot in func.sized_stack_slots.keys() {
            self.expose(slot);
        }
    }

    /// Whether the address of `slot` never escapes.
    pub fn is_always_private(&self, slot: StackSlot) -> bool {
        self.privacy[slot] == Privacy::Always
    }

    /// Whether the address of `slot` may have escaped when `inst` has executed.
    pub fn escaped_at(&self, func: &Function, slot: StackSlot, inst: Inst) -> bool {
        let row = match self.privacy[slot] {
            Privacy::Always => return false,
            Privacy::Never => return true,
            Privacy::UntilEscape(row) => row,
        };
        let Some(block) = func.layout.inst_block(inst) else {
            return true;
        };
        self.bit(row, block)
            || self.sites.get(&(slot, block)).is_some_and(|&site| {
                match self.order[site].cmp(&self.order[inst]) {
                    Ordering::Less => true,
                    Ordering::Equal => !planted(Fault::EscapeAtOnce),
                    Ordering::Greater => false,
                }
            })
    }

    fn visit(&mut self, func: &Function, block: Block, inst: Inst) {
        let data = &func.dfg.insts[inst];
        match *data {
            InstructionData::StackAddr {
                opcode: Opcode::StackAddr,
                stack_slot,
                offset,
            } => {
                let offset = i64::from(i32::from(offset));
                if func.dfg.value_type(func.dfg.first_result(inst)) == types::I64 {
                    self.derive(func, inst, stack_slot, Some(offset));
                } else {
                    self.add_site(stack_slot, block, inst);
                }
            }
            InstructionData::Binary {
                opcode: Opcode::Iadd,
                args: [a, b],
            } => match (self.derived(func, a), self.derived(func, b)) {
                (Some(base), None) => self.derive_sum(func, inst, base, b, 1),
                (None, Some(base)) => self.derive_sum(func, inst, base, a, 1),
                _ => self.escape_all(func, block, inst, &[a, b]),
            },
            InstructionData::Binary {
                opcode: Opcode::Isub,
                args: [a, b],
            } => match (self.derived(func, a), self.derived(func, b)) {
                (Some(base), None) => self.derive_sum(func, inst, base, b, -1),
                _ => self.escape_all(func, block, inst, &[a, b]),
            },
            InstructionData::IntCompare { .. } => {}
            InstructionData::Ternary {
                opcode: Opcode::Select,
                args: [_, a, b],
            } => {
                self.flows |= self.derived(func, a).is_some() || self.derived(func, b).is_some();
                if self.derived[func.dfg.first_result(inst)].is_none() {
                    self.escape_all(func, block, inst, &[a, b]);
                }
            }
            _ if data.opcode().is_branch() && !data.opcode().is_call() => {
                self.visit_branch(func, block, inst);
            }
            // The size of a dynamic vector is not known, so such an access has no byte range.
            InstructionData::Load { .. } | InstructionData::Store { .. }
                if memory_type(func, inst).is_none_or(|ty| ty.is_dynamic_vector()) =>
            {
                self.escape_all(func, block, inst, func.dfg.inst_args(inst));
            }
            InstructionData::Load { .. } => {}
            InstructionData::Store { args, .. } => {
                self.escape_all(func, block, inst, &args[..1]);
            }
            _ => {
                for value in func.dfg.inst_values(inst) {
                    self.escape_all(func, block, inst, &[value]);
                }
            }
        }
        if data.opcode().is_safepoint() && !planted(Fault::StackMapIgnored) {
            for entry in func.dfg.user_stack_map_entries(inst).unwrap_or_default() {
                self.add_site(entry.slot, block, inst);
            }
        }
    }

    /// An address may be sent to a parameter that is derived.
    fn visit_branch(&mut self, func: &Function, block: Block, inst: Inst) {
        let dfg = &func.dfg;
        self.escape_all(func, block, inst, dfg.inst_args(inst));
        let calls = dfg.insts[inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        for call in calls {
            let params = dfg.block_params(call.block(&dfg.value_lists));
            for (&param, arg) in params.iter().zip(call.args(&dfg.value_lists)) {
                let Some(value) = arg.as_value() else {
                    continue;
                };
                self.flows |= self.derived(func, value).is_some();
                if self.derived[param].is_none() {
                    self.escape_all(func, block, inst, &[value]);
                }
            }
        }
    }

    fn derive(&mut self, func: &Function, inst: Inst, slot: StackSlot, offset: Option<i64>) {
        self.derived[func.dfg.first_result(inst)] = Some(Derived { slot, offset });
    }

    fn derive_sum(
        &mut self,
        func: &Function,
        inst: Inst,
        base: Derived,
        distance: Value,
        sign: i64,
    ) {
        let derived = moved(func, base, distance, sign);
        self.derive(func, inst, derived.slot, derived.offset);
    }

    fn escape_all(&mut self, func: &Function, block: Block, inst: Inst, values: &[Value]) {
        if is_forgotten(func, inst) {
            return;
        }
        for &value in values {
            if let Some(derived) = self.derived(func, value) {
                self.add_site(derived.slot, block, inst);
            }
        }
    }

    fn add_site(&mut self, slot: StackSlot, block: Block, inst: Inst) {
        if self.privacy[slot] == Privacy::Never {
            return;
        }
        self.privacy[slot] = Privacy::UntilEscape(0);
        // Blocks are scanned in order, so the first site to come is the first of its block.
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.sites.entry((slot, block)) {
            vacant.insert(inst);
            self.site_list.push((slot, block));
        }
    }

    fn flood(&mut self, func: &Function, flow: &Flow) {
        self.blocks = func.dfg.num_blocks();
        let mut rows = 0;
        for slot in func.sized_stack_slots.keys() {
            if matches!(self.privacy[slot], Privacy::UntilEscape(_)) {
                self.privacy[slot] = Privacy::UntilEscape(rows);
                rows += 1;
            }
        }
        if rows as usize * self.blocks > FLOOD_BITS_MAX {
            for slot in func.sized_stack_slots.keys() {
                if self.privacy[slot] != Privacy::Always {
                    self.privacy[slot] = Privacy::Never;
                }
            }
            return;
        }
        self.escaped_in
            .resize((rows as usize * self.blocks).div_ceil(64), 0);
        for index in 0..self.site_list.len() {
            let (slot, block) = self.site_list[index];
            if let Privacy::UntilEscape(row) = self.privacy[slot] {
                self.flood_from(flow, row, block);
            }
        }
    }

    fn flood_from(&mut self, flow: &Flow, row: u32, block: Block) {
        self.worklist.clear();
        if planted(Fault::EscapeInBlock) {
            return;
        }
        self.worklist.push(block);
        while let Some(block) = self.worklist.pop() {
            for &succ in flow.succs(block) {
                let index = self.bit_index(row, succ);
                let word = &mut self.escaped_in[index / 64];
                if *word & (1 << (index % 64)) == 0 {
                    *word |= 1 << (index % 64);
                    self.worklist.push(succ);
                }
            }
        }
    }

    fn bit_index(&self, row: u32, block: Block) -> usize {
        row as usize * self.blocks + block.index()
    }

    fn bit(&self, row: u32, block: Block) -> bool {
        let index = self.bit_index(row, block);
        self.escaped_in[index / 64] & (1 << (index % 64)) != 0
    }
}

/// An address so far above `base`.
fn moved(func: &Function, base: Derived, distance: Value, sign: i64) -> Derived {
    let distance = constant_of(func, distance).map(|distance| distance.wrapping_mul(sign));
    let offset = match (base.offset, distance) {
        (Some(offset), Some(distance)) => offset.checked_add(distance),
        _ => None,
    };
    Derived {
        slot: base.slot,
        offset,
    }
}

fn merged(a: Known, b: Known) -> Known {
    match (a, b) {
        (Known::Nothing, known) | (known, Known::Nothing) => known,
        (Known::Derived(a), Known::Derived(b))
            if a.slot == b.slot || planted(Fault::SlotsMerged) =>
        {
            Known::Derived(Derived {
                slot: a.slot,
                offset: a.offset.filter(|_| a.offset == b.offset),
            })
        }
        _ => Known::Anything,
    }
}

/// Whether a planted fault has escapes at `inst` forgotten.
fn is_forgotten(func: &Function, inst: Inst) -> bool {
    let opcode = func.dfg.insts[inst].opcode();
    if opcode.can_store() {
        planted(Fault::EscapeByStore)
    } else if opcode.is_call() {
        planted(Fault::EscapeByCall)
    } else if opcode.is_branch() {
        planted(Fault::EscapeByBranch)
    } else {
        planted(Fault::EscapeByArithmetic)
    }
}
