//! Who names the slots of a function, and what it does with their bytes, in program order.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    AliasRegion, Block, DebugTag, Function, Inst, InstructionData, MemFlagsData, Opcode, StackSlot,
    Value, ValueDef, types,
};

use super::Kept;
use crate::effects::{Access, Effects, MemoryFunction, constant_of, memory_function};
use crate::faults::{Fault, planted};
use crate::flow::Flow;
use crate::view::{View, memory_type};

/// An address within a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) slot: StackSlot,
    /// The distance from the slot's first byte; none if it is not constant.
    offset: Option<i64>,
}

/// Parts of a slot, a bit each. A slot has at most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts(u64);

impl Parts {
    const NONE: Parts = Parts(0);

    /// The bytes of a part.
    fn unit(size: u32) -> u32 {
        size.div_ceil(64).next_power_of_two()
    }

    fn all(size: u32) -> Parts {
        Parts::touched(size, 0, size)
    }

    fn between(low: u32, high: u32) -> Parts {
        if low >= high {
            return Parts::NONE;
        }
        let ones = u64::MAX >> (64 - (high - low).min(64));
        Parts(ones << low)
    }

    /// The parts of which some of the bytes are.
    fn touched(size: u32, start: u32, end: u32) -> Parts {
        let unit = Parts::unit(size);
        Parts::between(start / unit, end.div_ceil(unit))
    }

    /// The parts all of whose bytes are.
    fn covered(size: u32, start: u32, end: u32) -> Parts {
        let unit = Parts::unit(size);
        let high = match end == size {
            true => end.div_ceil(unit),
            false => end / unit,
        };
        Parts::between(start.div_ceil(unit), high)
    }

    pub(super) fn is_within(self, other: Parts) -> bool {
        self.0 & !other.0 == 0
    }

    pub(super) fn with(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }
}

/// What an instruction does with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It may read these parts.
    Read(Parts),
    /// It writes at least these parts, and reads none.
    Write(Parts),
    /// It lets the address out, so that anybody may access the slot from here on.
    Escape,
}

/// What an instruction does with slots. Of one instruction, reads and escapes come first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) inst: Inst,
    /// The slot, or none if it is whatever slots have escaped.
    pub(super) slot: Option<StackSlot>,
    pub(super) what: What,
}

/// The regions of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Regions {
    /// There are no accesses.
    #[default]
    Unknown,
    /// All accesses have the region, or none has one.
    One(Option<AliasRegion>),
    /// There are several, or accesses with and without.
    Several,
}

impl Regions {
    fn add(&mut self, region: Option<AliasRegion>) {
        *self = match *self {
            Regions::Unknown => Regions::One(region),
            Regions::One(one) if one == region => Regions::One(one),
            Regions::One(_) | Regions::Several => Regions::Several,
        };
    }
}

/// What is known of a slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotFacts {
    /// How many instructions name it, and how many of them are of no use.
    names: u32,
    dead_names: u32,
    /// Why it is not shared, and the instruction because of which.
    pub(super) kept: Option<(Kept, Option<Inst>)>,
    regions: Regions,
    /// The parts that are accessed anywhere.
    pub(super) used: Parts,
    /// Where its address escapes first.
    pub(super) escape: Option<Inst>,
    /// The first instruction that accesses it or lets its address out.
    pub(super) first: Option<Inst>,
}

impl SlotFacts {
    /// The region of all its accesses.
    pub(super) fn region(&self) -> Option<AliasRegion> {
        match self.regions {
            Regions::One(region) => region,
            Regions::Unknown | Regions::Several => None,
        }
    }
}

/// See the module. Storage is reused by [`Scan::compute`].
#[derive(Debug, Default)]
pub(super) struct Scan {
    pointers: SecondaryMap<Value, Option<Pointer>>,
    /// How often a value is used.
    pub(super) counts: SecondaryMap<Value, u32>,
    pub(super) slots: SecondaryMap<StackSlot, SlotFacts>,
    events: Vec<Event>,
    spans: SecondaryMap<Block, (u32, u32)>,
    /// The regions of accesses of unknown memory that have one.
    unknown_regions: Regions,
    /// The instructions that name slots.
    names: Vec<(StackSlot, Inst)>,
    /// Computations of addresses whose results are unused, uses before definitions.
    dead: Vec<(StackSlot, Inst)>,
}

impl Scan {
    pub(super) fn compute(&mut self, func: &Function, flow: &Flow, view: &View) {
        self.pointers.clear();
        self.pointers.resize(func.dfg.num_values());
        self.counts.clear();
        self.counts.resize(func.dfg.num_values());
        self.slots.clear();
        self.slots.resize(func.sized_stack_slots.len());
        self.events.clear();
        self.spans.clear();
        self.unknown_regions = Regions::Unknown;
        self.names.clear();
        self.dead.clear();
        for (slot, data) in func.sized_stack_slots.iter() {
            if data.key.is_some() && !planted(Fault::SlotKeyIgnored) {
                self.keep(slot, Kept::Key, None);
            }
        }
        for &block in flow.rpo() {
            let start = self.events.len() as u32;
            for inst in func.layout.block_insts(block) {
                let effects = Effects::of(func, inst);
                self.visit_names(func, inst, effects);
                if !self.derive(func, inst) {
                    self.visit_bytes(func, view, inst, effects);
                }
            }
            self.spans[block] = (start, self.events.len() as u32);
        }
        for block in func.layout.blocks() {
            if flow.is_reachable(block) {
                continue;
            }
            for inst in func.layout.block_insts(block) {
                self.visit_names(func, inst, Effects::of(func, inst));
                self.derive(func, inst);
            }
        }
        self.check_regions();
        self.find_dead(func);
    }

    /// What a reachable block does with slots, by number, in program order.
    pub(super) fn block_events(&self, block: Block) -> std::ops::Range<usize> {
        let (start, end) = self.spans[block];
        start as usize..end as usize
    }

    pub(super) fn event(&self, index: usize) -> Event {
        self.events[index]
    }

    pub(super) fn num_events(&self) -> usize {
        self.events.len()
    }

    pub(super) fn pointer(&self, func: &Function, value: Value) -> Option<Pointer> {
        self.pointers[func.dfg.resolve_aliases(value)]
    }

    /// Whether nothing names the slot but computations of no use.
    pub(super) fn is_unused(&self, slot: StackSlot) -> bool {
        let facts = &self.slots[slot];
        let from_outside = facts.kept.is_some_and(|(kept, _)| kept.is_from_outside());
        facts.names == facts.dead_names && !from_outside
    }

    /// The instructions that name the slot.
    pub(super) fn addrs_of(&self, slot: StackSlot) -> Vec<Inst> {
        of_slot(&self.names, slot)
    }

    /// The computations of the slot's address whose results are unused, uses before definitions.
    pub(super) fn dead_of(&self, slot: StackSlot) -> Vec<Inst> {
        of_slot(&self.dead, slot)
    }

    fn keep(&mut self, slot: StackSlot, kept: Kept, inst: Option<Inst>) {
        let entry = &mut self.slots[slot].kept;
        let outweighs = |(old, _): (Kept, _)| kept.is_from_outside() && !old.is_from_outside();
        if entry.is_none_or(outweighs) {
            *entry = Some((kept, inst));
        }
    }

    /// Uses of values and names of slots, in unreachable code, too.
    fn visit_names(&mut self, func: &Function, inst: Inst, effects: Effects) {
        let dfg = &func.dfg;
        for value in dfg.inst_values(inst) {
            self.counts[dfg.resolve_aliases(value)] += 1;
        }
        if let InstructionData::StackAddr { stack_slot, .. } = dfg.insts[inst] {
            self.slots[stack_slot].names += 1;
            self.names.push((stack_slot, inst));
        }
        if effects.exposes_frame {
            for slot in func.sized_stack_slots.keys() {
                self.keep(slot, Kept::FrameExposed, Some(inst));
            }
        }
        if dfg.insts[inst].opcode().is_safepoint() && !planted(Fault::StackMapIgnored) {
            for entry in dfg.user_stack_map_entries(inst).unwrap_or_default() {
                self.keep(entry.slot, Kept::StackMap, Some(inst));
            }
        }
        if func.debug_tags.is_empty() {
            return;
        }
        for tag in func.debug_tags.get(inst) {
            match tag {
                DebugTag::StackSlot(slot) if !planted(Fault::FrameDebugTag) => {
                    self.keep(*slot, Kept::DebugTag, Some(inst));
                }
                DebugTag::StackSlot(_) | DebugTag::User(_) => {}
            }
        }
    }

    /// Whether the instruction computes an address within a slot, and no more.
    fn derive(&mut self, func: &Function, inst: Inst) -> bool {
        let dfg = &func.dfg;
        let pointer = match dfg.insts[inst] {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } if dfg.value_type(dfg.first_result(inst)) == types::I64 => Pointer {
                slot: stack_slot,
                offset: Some(i64::from(i32::from(offset))),
            },
            InstructionData::Binary {
                opcode: opcode @ (Opcode::Iadd | Opcode::Isub),
                args: [a, b],
            } => {
                let (base, distance) = match (self.pointer(func, a), self.pointer(func, b)) {
                    (Some(base), None) => (base, b),
                    (None, Some(base)) if opcode == Opcode::Iadd => (base, a),
                    _ => return false,
                };
                let distance = constant_of(func, distance);
                let distance = match opcode {
                    Opcode::Isub => distance.and_then(i64::checked_neg),
                    _ => distance,
                };
                let offset = base.offset.zip(distance);
                Pointer {
                    slot: base.slot,
                    offset: offset.and_then(|(base, distance)| base.checked_add(distance)),
                }
            }
            _ => return false,
        };
        self.pointers[dfg.first_result(inst)] = Some(pointer);
        true
    }

    /// What an instruction that is no address computation does with slots.
    fn visit_bytes(&mut self, func: &Function, view: &View, inst: Inst, effects: Effects) {
        let data = &func.dfg.insts[inst];
        let args = func.dfg.inst_args(inst);
        if let InstructionData::IntCompare { args, .. } = data {
            for value in args {
                if let Some(pointer) = self.pointer(func, *value)
                    && !planted(Fault::FrameCompare)
                {
                    self.keep(pointer.slot, Kept::Compared, Some(inst));
                }
            }
            return;
        }
        if let InstructionData::StackAddr { stack_slot, .. } = *data {
            return self.add(inst, stack_slot, What::Escape);
        }
        match effects.access {
            Access::Load => self.visit_access(func, view, inst, args[0], &[], effects),
            Access::Store => self.visit_access(func, view, inst, args[1], &args[..1], effects),
            Access::Atomic { .. } if data.opcode() == Opcode::AtomicStore => {
                self.visit_access(func, view, inst, args[1], &args[..1], effects);
            }
            Access::Atomic { .. } => {
                self.visit_access(func, view, inst, args[0], &args[1..], effects);
            }
            Access::None => match memory_function(func, inst) {
                Some(function) => self.visit_memory_function(func, inst, function),
                None => {
                    for value in func.dfg.inst_values(inst) {
                        self.escape(func, inst, value);
                    }
                    // Slots end where the frame does, escaped or not.
                    if effects.any() && !effects.ends_frame {
                        self.touch_escaped(inst);
                    }
                }
            },
        }
    }

    fn visit_access(
        &mut self,
        func: &Function,
        view: &View,
        inst: Inst,
        address: Value,
        operands: &[Value],
        effects: Effects,
    ) {
        for &value in operands {
            self.escape(func, inst, value);
        }
        let data = &func.dfg.insts[inst];
        let flags = data.memflags_data(&func.dfg);
        let region = flags.and_then(MemFlagsData::alias_region);
        let Some(pointer) = self.pointer(func, address) else {
            if let Some(region) = region {
                self.unknown_regions.add(Some(region));
            }
            return self.touch_escaped(inst);
        };
        let slot = pointer.slot;
        if !planted(Fault::FrameRegion) {
            self.slots[slot].regions.add(region);
        }
        if self.slots[slot].regions == Regions::Several {
            self.keep(slot, Kept::Region, Some(inst));
        }
        let readonly = flags.is_none_or(MemFlagsData::readonly);
        let size = func.sized_stack_slots[slot].size;
        let width = match effects.access {
            Access::Load | Access::Store => memory_type(func, inst)
                .filter(|ty| !ty.is_dynamic_vector())
                .map(|ty| ty.bytes()),
            _ => None,
        };
        let immediate = data.load_store_offset().unwrap_or(0);
        let start = pointer
            .offset
            .and_then(|offset| offset.checked_add(i64::from(immediate)));
        let end = start.map(|start| start.saturating_add(i64::from(width.unwrap_or(1))));
        if start.is_some_and(|start| start < 0) || end.is_some_and(|end| end > i64::from(size)) {
            self.keep(slot, Kept::OutOfBounds, Some(inst));
            return self.add(inst, slot, What::Read(Parts::all(size)));
        }
        let fixed = view
            .entry_of(inst)
            .is_some_and(|entry| view.entry(entry).fixed);
        if fixed {
            self.keep(slot, Kept::Fixed, Some(inst));
        }
        if readonly {
            self.keep(slot, Kept::Readonly, Some(inst));
        }
        let range = start.zip(end).filter(|_| width.is_some());
        let range = range.map(|(start, end)| (start as u32, end as u32));
        let what = match effects.access {
            Access::Store => self.write(slot, size, range),
            _ => self.read(slot, size, range),
        };
        self.add(inst, slot, what);
        if effects.fence {
            self.touch_escaped(inst);
        }
    }

    fn visit_memory_function(&mut self, func: &Function, inst: Inst, function: MemoryFunction) {
        let (to, from, length) = match function {
            MemoryFunction::Copy { to, from, length } => (to, Some(from), length),
            MemoryFunction::Set { to, byte, length } => {
                self.escape(func, inst, byte);
                (to, None, length)
            }
        };
        self.escape(func, inst, length);
        let length = constant_of(func, length).filter(|&length| length >= 0);
        let sides = [from, Some(to)].map(|value| value.map(|value| self.pointer(func, value)));
        if sides.iter().flatten().any(Option::is_none) {
            self.touch_escaped(inst);
        }
        let [from, to] = sides.map(Option::flatten);
        // The call returns its first argument.
        if let Some(&result) = func.dfg.inst_results(inst).first() {
            self.pointers[result] = to;
        }
        for (pointer, writes) in [(from, false), (to, true)] {
            let Some(pointer) = pointer else { continue };
            let size = func.sized_stack_slots[pointer.slot].size;
            let start = pointer.offset;
            let end = start
                .zip(length)
                .and_then(|(start, length)| start.checked_add(length));
            let range = start.zip(end);
            if length != Some(0)
                && (start.is_some_and(|start| start < 0)
                    || end.is_some_and(|end| end > i64::from(size)))
            {
                self.keep(pointer.slot, Kept::OutOfBounds, Some(inst));
                self.add(inst, pointer.slot, What::Read(Parts::all(size)));
                continue;
            }
            let range = range
                .filter(|_| length != Some(0))
                .map(|(start, end)| (start as u32, end as u32));
            let what = match writes {
                true => self.write(pointer.slot, size, range),
                false => self.read(pointer.slot, size, range),
            };
            self.add(inst, pointer.slot, what);
        }
    }

    fn read(&mut self, slot: StackSlot, size: u32, range: Option<(u32, u32)>) -> What {
        let parts = match range {
            Some((start, end)) => Parts::touched(size, start, end),
            None => Parts::all(size),
        };
        self.use_parts(slot, parts);
        What::Read(parts)
    }

    fn write(&mut self, slot: StackSlot, size: u32, range: Option<(u32, u32)>) -> What {
        let touched = match range {
            Some((start, end)) => Parts::touched(size, start, end),
            None => Parts::all(size),
        };
        self.use_parts(slot, touched);
        if planted(Fault::FrameOverwrite) {
            return What::Write(Parts::all(size));
        }
        What::Write(range.map_or(Parts::NONE, |(start, end)| Parts::covered(size, start, end)))
    }

    fn use_parts(&mut self, slot: StackSlot, parts: Parts) {
        let used = &mut self.slots[slot].used;
        *used = used.with(parts);
    }

    fn escape(&mut self, func: &Function, inst: Inst, value: Value) {
        if let Some(pointer) = self.pointer(func, value) {
            self.add(inst, pointer.slot, What::Escape);
        }
    }

    fn add(&mut self, inst: Inst, slot: StackSlot, what: What) {
        let facts = &mut self.slots[slot];
        facts.first.get_or_insert(inst);
        if what == What::Escape {
            facts.escape.get_or_insert(inst);
        }
        self.events.push(Event {
            inst,
            slot: Some(slot),
            what,
        });
    }

    fn touch_escaped(&mut self, inst: Inst) {
        self.events.push(Event {
            inst,
            slot: None,
            what: What::Read(Parts::NONE),
        });
    }

    /// Accesses of unknown memory may be of any slot whose address escapes.
    fn check_regions(&mut self) {
        let unknown = self.unknown_regions;
        if unknown == Regions::Unknown {
            return;
        }
        for slot in self.slots.keys() {
            if let Some(escape) = self.slots[slot].escape
                && self.slots[slot].regions != unknown
            {
                self.keep(slot, Kept::Region, Some(escape));
            }
        }
    }

    /// Finds computations of addresses that are unused, or used by such computations only.
    fn find_dead(&mut self, func: &Function) {
        let mut worklist: Vec<Value> = Vec::new();
        for value in self.pointers.keys() {
            if self.pointers[value].is_some() && self.counts[value] == 0 {
                worklist.push(value);
            }
        }
        while let Some(value) = worklist.pop() {
            let Some(pointer) = self.pointers[value] else {
                continue;
            };
            let ValueDef::Result(inst, _) = func.dfg.value_def(value) else {
                continue;
            };
            match func.dfg.insts[inst] {
                InstructionData::StackAddr { stack_slot, .. } => {
                    self.slots[stack_slot].dead_names += 1;
                }
                InstructionData::Binary { args, .. } => {
                    for arg in args {
                        let arg = func.dfg.resolve_aliases(arg);
                        if self.pointers[arg].is_none() {
                            continue;
                        }
                        self.counts[arg] -= 1;
                        if self.counts[arg] == 0 {
                            worklist.push(arg);
                        }
                    }
                }
                // The result of a memory function.
                _ => continue,
            }
            self.dead.push((pointer.slot, inst));
        }
        self.names.sort_unstable();
        // Stable: uses stay before definitions.
        self.dead.sort_by_key(|&(slot, _)| slot);
    }
}

fn of_slot(list: &[(StackSlot, Inst)], slot: StackSlot) -> Vec<Inst> {
    let start = list.partition_point(|&(of, _)| of < slot);
    let rest = list[start..].iter();
    rest.take_while(|&&(of, _)| of == slot)
        .map(|&(_, inst)| inst)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_large_slots_are_rounded_to_the_safe_side() {
        assert_eq!(Parts::unit(64), 1);
        assert_eq!(Parts::unit(65), 2);
        let size = 100;
        assert_eq!(Parts::touched(size, 1, 3), Parts(0b11));
        assert_eq!(Parts::covered(size, 1, 3), Parts::NONE);
        assert_eq!(Parts::covered(size, 2, 4), Parts(0b10));
        assert_eq!(Parts::covered(101, 100, 101), Parts(1 << 50));
        assert_eq!(Parts::covered(64, 0, 64), Parts(u64::MAX));
        assert_eq!(Parts::all(3), Parts(0b111));
    }

    #[test]
    fn regions_with_and_without_are_several() {
        let mut regions = Regions::default();
        regions.add(None);
        assert_eq!(regions, Regions::One(None));
        regions.add(Some(AliasRegion::from_u32(0)));
        assert_eq!(regions, Regions::Several);
    }
}
