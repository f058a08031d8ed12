//! What a function does with the addresses of its stack slots.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    Block, Function, Inst, InstructionData, Opcode, StackSlot, Type, Value, ValueDef, types,
};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::Kept;
use super::choices::{Alternatives, Choices};
use super::range::{Range, range_of};
use crate::effects::{Access, Effects, MemoryFunction, constant_of, memory_function};
use crate::faults::{Fault, planted};
use crate::flow::Flow;
use crate::options::Options;
use crate::view::{View, memory_type};

/// An address within a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) slot: StackSlot,
    /// The distance from the slot's first byte; none if nothing is known of it.
    pub(super) offset: Option<Range>,
}

/// A byte of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: StackSlot,
    pub(super) offset: u32,
}

/// What an instruction does to bytes of slots.
#[derive(Clone, Copy, Debug)]
pub(super) enum OpKind {
    /// A plain load.
    Load { from: Place, ty: Type },
    /// A plain store.
    Store { to: Place, ty: Type },
    /// A plain load whose address is one of a few.
    LoadAny { choice: u32, ty: Type },
    /// A plain store whose address is one of a few.
    StoreAny { choice: u32, ty: Type },
    /// A memory function that copies; of a side that is no slot there is no place.
    Copy {
        to: Option<Place>,
        from: Option<Place>,
        length: u32,
    },
    /// A memory function that fills.
    Set { to: Place, length: u32 },
}

/// An address that is one of a few.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// The addresses, with the access's own offset.
    pub(super) places: SmallVec<[Place; 4]>,
    /// The value that is one of `chosen`, in the order of `places`.
    pub(super) address: Value,
    pub(super) chosen: SmallVec<[(StackSlot, i64); 4]>,
}

/// An instruction that touches bytes of slots at a known distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) inst: Inst,
    pub(super) kind: OpKind,
}

/// Where an operation touches slots.
pub(super) fn places_of(kind: &OpKind, choices: &[Choice]) -> SmallVec<[Place; 4]> {
    match *kind {
        OpKind::Load { from: place, .. }
        | OpKind::Store { to: place, .. }
        | OpKind::Set { to: place, .. } => SmallVec::from_slice(&[place]),
        OpKind::LoadAny { choice, .. } | OpKind::StoreAny { choice, .. } => {
            choices[choice as usize].places.clone()
        }
        OpKind::Copy { to, from, .. } => to.into_iter().chain(from).collect(),
    }
}

/// Why bytes are grouped as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceKind {
    /// They must stay in memory.
    Pinned(Kept),
    /// A load or store touches them as one value.
    Scalar {
        ty: Type,
        is_load: bool,
        /// It can be cut without cost: a constant is stored, or the value is only copied.
        splittable: bool,
    },
    /// A memory function touches them.
    Block,
}

/// A range of bytes of a slot that one instruction touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) slot: StackSlot,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kind: SliceKind,
    pub(super) inst: Inst,
}

/// See the module. Storage is reused by [`Uses::compute`].
#[derive(Debug, Default)]
pub(super) struct Uses {
    pointers: SecondaryMap<Value, Option<Pointer>>,
    /// How often a value is used.
    pub(super) counts: SecondaryMap<Value, u32>,
    /// How often a value is stored to a slot.
    stored: SecondaryMap<Value, u32>,
    /// Why a slot cannot be promoted as a whole, and the instruction because of which.
    pub(super) kept: SecondaryMap<StackSlot, Option<(Kept, Option<Inst>)>>,
    pub(super) ops: Vec<Op>,
    spans: SecondaryMap<Block, (u32, u32)>,
    pub(super) slices: Vec<Slice>,
    /// An address of a slot is stored to a slot, so that another round may find more.
    pub(super) stores_pointer: bool,
    tables: FxHashSet<u32>,
    copied_from: FxHashSet<(Inst, StackSlot)>,
    addresses: Choices,
    /// Addresses go to a select or a block parameter.
    chooses: bool,
    pub(super) choices: Vec<Choice>,
}

impl Uses {
    pub(super) fn compute(&mut self, func: &Function, flow: &Flow, view: &View, options: &Options) {
        self.addresses.clear();
        self.scan(func, flow, view, options);
        if self.chooses {
            self.addresses.compute(func, flow);
            self.scan(func, flow, view, options);
        }
    }

    fn scan(&mut self, func: &Function, flow: &Flow, view: &View, options: &Options) {
        self.chooses = false;
        self.choices.clear();
        self.pointers.clear();
        self.pointers.resize(func.dfg.num_values());
        self.counts.clear();
        self.counts.resize(func.dfg.num_values());
        self.stored.clear();
        self.kept.clear();
        self.kept.resize(func.sized_stack_slots.len());
        self.ops.clear();
        self.spans.clear();
        self.slices.clear();
        self.stores_pointer = false;
        self.tables.clear();
        self.copied_from.clear();
        for (slot, data) in func.sized_stack_slots.iter() {
            let untouched = data
                .key
                .is_some_and(|key| options.untouched_slot_keys.contains(&key.bits()));
            if untouched || (data.key.is_some() && !planted(Fault::SlotKeyIgnored)) {
                self.keep(slot, Kept::Key, None);
            }
        }
        self.visit_blocks(func, flow, view);
        self.count_unreachable(func, flow);
        self.mark_splittable(func);
    }

    fn visit_blocks(&mut self, func: &Function, flow: &Flow, view: &View) {
        for &block in flow.rpo() {
            let start = self.ops.len() as u32;
            for &param in func.dfg.block_params(block) {
                self.follow(func, param);
            }
            for inst in func.layout.block_insts(block) {
                self.visit(func, view, inst);
            }
            self.spans[block] = (start, self.ops.len() as u32);
        }
    }

    /// A select or parameter of which all addresses are one is that address.
    fn follow(&mut self, func: &Function, value: Value) {
        if let Some(&[(slot, offset)]) = self.addresses.of(func, value).map(|known| &known[..]) {
            self.pointers[value] = Some(Pointer {
                slot,
                offset: Some(Range::exactly(offset)),
            });
        }
    }

    /// The operations of a block, by number, in program order.
    pub(super) fn block_ops(&self, block: Block) -> std::ops::Range<usize> {
        let (start, end) = self.spans[block];
        start as usize..end as usize
    }

    pub(super) fn pointer(&self, func: &Function, value: Value) -> Option<Pointer> {
        self.pointers[func.dfg.resolve_aliases(value)]
    }

    /// Whether `inst` is a memory function that copies from `slot`.
    pub(super) fn is_copied_from(&self, inst: Inst, slot: StackSlot) -> bool {
        self.copied_from.contains(&(inst, slot))
    }

    fn keep(&mut self, slot: StackSlot, kept: Kept, inst: Option<Inst>) {
        let entry = &mut self.kept[slot];
        if entry.is_none() {
            *entry = Some((kept, inst));
        }
    }

    fn keep_all(&mut self, func: &Function, kept: Kept, inst: Inst) {
        for slot in func.sized_stack_slots.keys() {
            self.keep(slot, kept, Some(inst));
        }
    }

    fn visit(&mut self, func: &Function, view: &View, inst: Inst) {
        let dfg = &func.dfg;
        for value in dfg.inst_values(inst) {
            self.counts[dfg.resolve_aliases(value)] += 1;
        }
        let data = &dfg.insts[inst];
        let opcode = data.opcode();
        match *data {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } => {
                let result = dfg.first_result(inst);
                if dfg.value_type(result) == types::I64 {
                    let offset = Range::exactly(i64::from(i32::from(offset)));
                    self.pointers[result] = Some(Pointer {
                        slot: stack_slot,
                        offset: Some(offset),
                    });
                } else {
                    self.keep(stack_slot, Kept::Escapes, Some(inst));
                }
                return;
            }
            InstructionData::Binary {
                opcode: Opcode::Iadd | Opcode::Isub,
                args: [a, b],
            } => {
                let pointers = (self.pointer(func, a), self.pointer(func, b));
                if self.choice_of(func, dfg.first_result(inst)).is_some() {
                    return;
                }
                let (base, distance, negative) = match pointers {
                    (None, None) => {
                        // A choice at a distance that is not known.
                        return self.escape_all(func, inst);
                    }
                    (Some(base), None) => (base, b, opcode == Opcode::Isub),
                    (None, Some(base)) if opcode == Opcode::Iadd => (base, a, false),
                    _ => return self.escape_all(func, inst),
                };
                // Less the base, the sum would be the address that is the distance.
                if self.choice_of(func, distance).is_some() {
                    return self.escape_all(func, inst);
                }
                let distance = range_of(func, distance);
                let distance = if negative {
                    distance.and_then(Range::negated)
                } else {
                    distance
                };
                let offset = base
                    .offset
                    .zip(distance)
                    .and_then(|(offset, distance)| offset.plus(distance));
                self.pointers[dfg.first_result(inst)] = Some(Pointer {
                    slot: base.slot,
                    offset,
                });
                return;
            }
            InstructionData::IntCompare { .. } => return,
            InstructionData::Ternary {
                opcode: Opcode::Select,
                args: [_, a, b],
            } => {
                let is_address = |value| self.pointer(func, value).is_some();
                self.chooses |= is_address(a) || is_address(b);
                let result = dfg.first_result(inst);
                if self.addresses.of(func, result).is_none() {
                    return self.escape_all(func, inst);
                }
                return self.follow(func, result);
            }
            _ if opcode.is_branch() && !opcode.is_call() => return self.visit_branch(func, inst),
            _ => {}
        }
        let effects = match view.entry_of(inst) {
            Some(entry) => view.entry(entry).effects,
            None => Effects::NONE,
        };
        if effects.exposes_frame && !planted(Fault::FrameExposed) {
            self.keep_all(func, Kept::FrameExposed, inst);
        }
        match effects.access {
            Access::Load => self.visit_access(func, view, inst, true),
            Access::Store => self.visit_access(func, view, inst, false),
            _ => match memory_function(func, inst) {
                Some(function) => self.visit_memory_function(func, inst, function),
                None => self.escape_all(func, inst),
            },
        }
        if opcode.is_safepoint() && !planted(Fault::StackMapIgnored) {
            for entry in dfg.user_stack_map_entries(inst).unwrap_or_default() {
                self.keep(entry.slot, Kept::StackMap, Some(inst));
            }
        }
        self.check_table(func, inst);
    }

    /// Two branches with one table could not get different arguments.
    fn check_table(&mut self, func: &Function, inst: Inst) {
        let table = match func.dfg.insts[inst] {
            InstructionData::BranchTable { table, .. } => table.as_u32() << 1,
            InstructionData::TryCall { exception, .. }
            | InstructionData::TryCallIndirect { exception, .. } => exception.as_u32() << 1 | 1,
            _ => return,
        };
        if !self.tables.insert(table) {
            self.keep_all(func, Kept::SharedTable, inst);
        }
    }

    /// The addresses of which a value is one, if there are several.
    fn choice_of(&self, func: &Function, value: Value) -> Option<&Alternatives> {
        let known = self.addresses.of(func, value)?;
        (known.len() > 1).then_some(known)
    }

    /// An address may be sent to a parameter that is followed.
    fn visit_branch(&mut self, func: &Function, inst: Inst) {
        let dfg = &func.dfg;
        for &arg in dfg.inst_args(inst) {
            self.escape(func, inst, arg);
        }
        let calls = dfg.insts[inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        for call in calls {
            let block = call.block(&dfg.value_lists);
            for (index, arg) in call.args(&dfg.value_lists).enumerate() {
                let Some(value) = arg.as_value() else {
                    continue;
                };
                let param = dfg.block_params(block)[index];
                self.chooses |= self.pointer(func, value).is_some();
                if self.addresses.of(func, param).is_none() {
                    self.escape(func, inst, value);
                }
            }
        }
        self.check_table(func, inst);
    }

    fn escape_all(&mut self, func: &Function, inst: Inst) {
        for value in func.dfg.inst_values(inst) {
            self.escape(func, inst, value);
        }
    }

    fn escape(&mut self, func: &Function, inst: Inst, value: Value) {
        if planted(Fault::SroaEscape) {
            return;
        }
        if let Some(pointer) = self.pointer(func, value) {
            self.keep(pointer.slot, Kept::Escapes, Some(inst));
        }
        let chosen = self.choice_of(func, value).cloned().unwrap_or_default();
        for (slot, _) in chosen {
            self.keep(slot, Kept::Escapes, Some(inst));
        }
    }

    fn visit_access(&mut self, func: &Function, view: &View, inst: Inst, is_load: bool) {
        let args = func.dfg.inst_args(inst);
        let address = if is_load { args[0] } else { args[1] };
        let stored = (!is_load).then(|| func.dfg.resolve_aliases(args[0]));
        let pointer = self.pointer(func, address);
        if let Some(value) = stored {
            self.stores_pointer |= pointer.is_some() && self.pointers[value].is_some();
            self.escape(func, inst, value);
        }
        let Some(pointer) = pointer else {
            return self.visit_choice(func, view, inst, address, is_load);
        };
        let ty = memory_type(func, inst).filter(|ty| !ty.is_dynamic_vector());
        let data = &func.dfg.insts[inst];
        let (Some(ty), Some(flags), Some(offset)) =
            (ty, data.memflags_data(&func.dfg), data.load_store_offset())
        else {
            return self.keep(pointer.slot, Kept::Escapes, Some(inst));
        };
        let width = ty.bytes();
        let size = func.sized_stack_slots[pointer.slot].size;
        let Some(range) = pointer
            .offset
            .and_then(|range| range.plus(Range::exactly(i64::from(offset))))
        else {
            return self.pin(pointer.slot, 0, size, Kept::VariableIndex, inst);
        };
        let Some(start) = range.constant() else {
            // A pointer made of a slot's address touches only the slot.
            let start = range.low.clamp(0, i64::from(size)) as u32;
            let end = range.high.saturating_add(i64::from(width));
            let end = end.clamp(0, i64::from(size)) as u32;
            return self.pin(pointer.slot, start, end, Kept::VariableIndex, inst);
        };
        let end = start.saturating_add(i64::from(width));
        if start < 0 || end > i64::from(size) {
            if planted(Fault::SroaOutOfBounds) {
                return;
            }
            return self.keep(pointer.slot, Kept::OutOfBounds, Some(inst));
        }
        let (start, end) = (start as u32, end as u32);
        let place = Place {
            slot: pointer.slot,
            offset: start,
        };
        let fixed = view
            .entry_of(inst)
            .is_some_and(|entry| view.entry(entry).fixed);
        if fixed {
            return self.pin(pointer.slot, start, end, Kept::Fixed, inst);
        }
        let kind = match is_load {
            true => OpKind::Load { from: place, ty },
            false => OpKind::Store { to: place, ty },
        };
        let opcode = data.opcode();
        if !is_supported(ty) || is_lanewise(opcode) {
            return self.pin(pointer.slot, start, end, Kept::Type, inst);
        }
        let native = flags.explicit_endianness().is_none();
        if !native && (ty.is_vector() || ty == types::I128) {
            return self.pin(pointer.slot, start, end, Kept::Type, inst);
        }
        self.ops.push(Op { inst, kind });
        let splittable = stored.is_some_and(|value| constant_of(func, value).is_some());
        if let Some(value) = stored {
            self.stored[value] += 1;
        }
        self.slices.push(Slice {
            slot: pointer.slot,
            start,
            end,
            kind: SliceKind::Scalar {
                ty,
                is_load,
                splittable,
            },
            inst,
        });
    }

    /// An access of one of a few addresses.
    fn visit_choice(
        &mut self,
        func: &Function,
        view: &View,
        inst: Inst,
        address: Value,
        is_load: bool,
    ) {
        let Some(chosen) = self.choice_of(func, address).cloned() else {
            return;
        };
        let data = &func.dfg.insts[inst];
        let offset = data.load_store_offset().map(i64::from);
        let ty = memory_type(func, inst).filter(|&ty| is_supported(ty) && ty != types::I128);
        let flags = data.memflags_data(&func.dfg);
        let is_native = flags.is_some_and(|flags| flags.explicit_endianness().is_none());
        let fixed = view
            .entry_of(inst)
            .is_some_and(|entry| view.entry(entry).fixed);
        let (Some(ty), Some(offset), true, false) =
            (ty, offset, is_native && !is_lanewise(data.opcode()), fixed)
        else {
            return self.escape(func, inst, address);
        };
        let width = i64::from(ty.bytes());
        let places: Option<SmallVec<[Place; 4]>> = chosen
            .iter()
            .map(|&(slot, start)| {
                let start = start + offset;
                let size = i64::from(func.sized_stack_slots[slot].size);
                (start >= 0 && start + width <= size).then_some(Place {
                    slot,
                    offset: start as u32,
                })
            })
            .collect();
        let Some(places) = places else {
            return self.escape(func, inst, address);
        };
        for place in &places {
            self.slices.push(Slice {
                slot: place.slot,
                start: place.offset,
                end: place.offset + ty.bytes(),
                kind: SliceKind::Scalar {
                    ty,
                    is_load,
                    splittable: false,
                },
                inst,
            });
        }
        let choice = self.choices.len() as u32;
        self.choices.push(Choice {
            places,
            address: func.dfg.resolve_aliases(address),
            chosen,
        });
        self.ops.push(Op {
            inst,
            kind: match is_load {
                true => OpKind::LoadAny { choice, ty },
                false => OpKind::StoreAny { choice, ty },
            },
        });
    }

    fn pin(&mut self, slot: StackSlot, start: u32, end: u32, kept: Kept, inst: Inst) {
        let ignored = kept == Kept::VariableIndex && planted(Fault::IndexIgnored);
        if start < end && !ignored {
            self.slices.push(Slice {
                slot,
                start,
                end,
                kind: SliceKind::Pinned(kept),
                inst,
            });
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
        for side in [Some(to), from].into_iter().flatten() {
            if self.choice_of(func, side).is_some() {
                self.escape(func, inst, side);
            }
        }
        let sides = [Some(to), from].map(|value| value.and_then(|value| self.pointer(func, value)));
        let [to, from] = sides;
        if to.is_none() && from.is_none() {
            return;
        }
        let is_set = matches!(function, MemoryFunction::Set { .. });
        let length = constant_of(func, length);
        // The call returns its first argument.
        let returned = func.dfg.inst_results(inst).first().copied();
        if let Some(result) = returned
            && !planted(Fault::CopyResult)
        {
            self.pointers[result] = to;
        }
        if length == Some(0) {
            return;
        }
        let place_of = |pointer: Option<Pointer>, length: i64| -> Option<Place> {
            let pointer = pointer?;
            let start = pointer.offset?.constant()?;
            let size = i64::from(func.sized_stack_slots[pointer.slot].size);
            let end = start.checked_add(length)?;
            (start >= 0 && end <= size).then_some(Place {
                slot: pointer.slot,
                offset: start as u32,
            })
        };
        let places = length.filter(|&length| length > 0).map(|length| {
            let places = [place_of(to, length), place_of(from, length)];
            (places, length)
        });
        let known = places.filter(|([a, b], _)| {
            a.is_some() == to.is_some()
                && b.is_some() == from.is_some()
                && (a.zip(*b).is_none_or(|(a, b)| a.slot != b.slot) || planted(Fault::CopyWithin))
        });
        let Some(([to_place, from_place], length)) = known else {
            // Which bytes it touches is not known, or they may lie in both ranges.
            for pointer in [to, from].into_iter().flatten() {
                let size = func.sized_stack_slots[pointer.slot].size;
                self.pin(pointer.slot, 0, size, Kept::Block, inst);
            }
            return;
        };
        let length = length as u32;
        let kind = match (is_set, to_place) {
            (true, Some(to)) => OpKind::Set { to, length },
            _ => OpKind::Copy {
                to: to_place,
                from: from_place,
                length,
            },
        };
        self.ops.push(Op { inst, kind });
        self.copied_from
            .extend(from_place.map(|from| (inst, from.slot)));
        for place in [to_place, from_place].into_iter().flatten() {
            self.slices.push(Slice {
                slot: place.slot,
                start: place.offset,
                end: place.offset + length,
                kind: SliceKind::Block,
                inst,
            });
        }
    }

    /// Uses in unreachable blocks keep an address alive, and are no use otherwise.
    fn count_unreachable(&mut self, func: &Function, flow: &Flow) {
        for block in func.layout.blocks() {
            if flow.is_reachable(block) || planted(Fault::UnreachableUses) {
                continue;
            }
            for inst in func.layout.block_insts(block) {
                for value in func.dfg.inst_values(inst) {
                    self.counts[func.dfg.resolve_aliases(value)] += 1;
                }
            }
        }
    }

    /// A value that is loaded from a slot and goes nowhere but to slots can be cut on both sides.
    fn mark_splittable(&mut self, func: &Function) {
        for index in 0..self.slices.len() {
            let slice = self.slices[index];
            let SliceKind::Scalar { is_load, .. } = slice.kind else {
                continue;
            };
            let dfg = &func.dfg;
            let value = match is_load {
                true => dfg.first_result(slice.inst),
                false => dfg.resolve_aliases(dfg.inst_args(slice.inst)[0]),
            };
            let ValueDef::Result(def, _) = dfg.value_def(value) else {
                continue;
            };
            let whole =
                |inst: Inst| matches!(dfg.insts[inst].opcode(), Opcode::Load | Opcode::Store);
            let from_slot = dfg.insts[def].opcode() == Opcode::Load
                && self.pointer(func, dfg.inst_args(def)[0]).is_some();
            let only_copied =
                from_slot && self.counts[value] == self.stored[value] && whole(slice.inst);
            if only_copied
                && let SliceKind::Scalar { splittable, .. } = &mut self.slices[index].kind
            {
                *splittable = true;
            }
        }
    }
}

/// Whether values of the type can be held in registers, cut and put together.
fn is_supported(ty: Type) -> bool {
    let int = ty.is_int() && !ty.is_vector();
    int || ty == types::F32 || ty == types::F64 || (ty.is_vector() && ty.bits() == 128)
}

/// Loads that widen each lane.
fn is_lanewise(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Uload8x8
            | Opcode::Sload8x8
            | Opcode::Uload16x4
            | Opcode::Sload16x4
            | Opcode::Uload32x2
            | Opcode::Sload32x2
    )
}
