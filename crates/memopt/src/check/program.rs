//! What the proofs know of a function: control flow, events, the bytes that accesses name, and
//! where stack slots are private.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    AliasRegion, Block, Endianness, Function, Inst, InstructionData, MemFlagsData, Opcode,
    StackSlot, Value, ValueDef, types,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Claims;
use super::bits::Shape;
use crate::effects::{Access, Effects, constant_of};

/// The bytes that an instruction names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    pub(super) address: Value,
    pub(super) offset: i64,
    pub(super) width: u32,
    pub(super) flags: MemFlagsData,
    pub(super) region: Option<AliasRegion>,
    /// The slot within which they are.
    pub(super) slot: Option<StackSlot>,
    /// In an outside region, in a slot that is to be left alone, or provably out of the bounds of a slot: left alone.
    pub(super) fixed: bool,
}

/// An instruction with an effect on memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) inst: Inst,
    pub(super) position: i64,
    pub(super) effects: Effects,
    /// The bytes it names. None for a load or store if its bytes are not known.
    pub(super) bytes: Option<Bytes>,
}

impl Event {
    /// Whether the instruction may trap. Bytes within a slot are always accessible.
    pub(super) fn may_trap(&self) -> bool {
        self.effects.may_trap && self.bytes.is_none_or(|bytes| bytes.slot.is_none())
    }
}

/// An address within a slot.
#[derive(Clone, Copy, Debug)]
struct Derived {
    slot: StackSlot,
    /// The distance from the slot's first byte, if it is known.
    offset: Option<i64>,
}

/// The reachable blocks of a function, and where control flows between them, edge by edge.
pub(super) struct Order {
    /// In an order in which definitions come before their uses.
    pub(super) blocks: Vec<Block>,
    pub(super) preds: SecondaryMap<Block, Vec<Block>>,
    pub(super) succs: SecondaryMap<Block, Vec<Block>>,
}

impl Order {
    /// A depth-first search; its postorder, reversed, has each block after its dominators.
    pub(super) fn of(func: &Function) -> Order {
        let mut order = Order {
            blocks: Vec::new(),
            preds: SecondaryMap::new(),
            succs: SecondaryMap::new(),
        };
        let Some(entry) = func.layout.entry_block() else {
            return order;
        };
        let mut seen = SecondaryMap::<Block, bool>::new();
        let mut stack = vec![(entry, 0)];
        seen[entry] = true;
        order.succs[entry] = func.block_successors(entry).collect();
        while let Some((block, next)) = stack.last_mut() {
            let block = *block;
            let Some(&succ) = order.succs[block].get(*next) else {
                order.blocks.push(block);
                stack.pop();
                continue;
            };
            *next += 1;
            order.preds[succ].push(block);
            if !std::mem::replace(&mut seen[succ], true) {
                order.succs[succ] = func.block_successors(succ).collect();
                stack.push((succ, 0));
            }
        }
        order.blocks.reverse();
        order
    }
}

/// The facts of one function.
pub(super) struct Program<'a> {
    pub(super) func: &'a Function,
    pub(super) endianness: Endianness,
    outside: &'a [bool],
    untouched_slot_keys: &'a [u64],
    /// Reachable blocks, in an order in which definitions come before their uses.
    pub(super) order: Vec<Block>,
    pub(super) preds: SecondaryMap<Block, Vec<Block>>,
    pub(super) succs: SecondaryMap<Block, Vec<Block>>,
    /// Whether the function can end from here. False for unreachable blocks.
    pub(super) can_end: SecondaryMap<Block, bool>,
    /// The place of each instruction of a reachable block within its block, from 1; else 0.
    positions: SecondaryMap<Inst, i64>,
    pub(super) events: SecondaryMap<Block, Vec<Event>>,
    derived: FxHashMap<Value, Derived>,
    /// Slots that are private nowhere.
    exposed: SecondaryMap<StackSlot, bool>,
    /// Where in a block the address of a slot first escapes.
    escapes: FxHashMap<(Block, StackSlot), i64>,
    /// Which slots may have escaped at the start of a block, a bit each.
    escaped_in: SecondaryMap<Block, Vec<u64>>,
}

impl<'a> Program<'a> {
    pub(super) fn new(func: &'a Function, claims: &Claims<'a>) -> Self {
        let order = Order::of(func);
        let mut program = Program {
            func,
            endianness: claims.endianness,
            outside: claims.outside,
            untouched_slot_keys: claims.untouched_slot_keys,
            order: order.blocks,
            preds: order.preds,
            succs: order.succs,
            can_end: SecondaryMap::new(),
            positions: SecondaryMap::new(),
            events: SecondaryMap::new(),
            derived: FxHashMap::default(),
            exposed: SecondaryMap::new(),
            escapes: FxHashMap::default(),
            escaped_in: SecondaryMap::new(),
        };
        program.compute_ends();
        program.number_instructions();
        program.compute_slots();
        program.compute_events();
        program.compute_escapes();
        program
    }

    fn compute_ends(&mut self) {
        let blocks = self.order.iter().copied();
        let mut worklist: Vec<Block> = blocks
            .filter(|&block| self.succs[block].is_empty())
            .collect();
        while let Some(block) = worklist.pop() {
            if !std::mem::replace(&mut self.can_end[block], true) {
                worklist.extend_from_slice(&self.preds[block]);
            }
        }
    }

    fn number_instructions(&mut self) {
        for &block in &self.order {
            for (inst, position) in self.func.layout.block_insts(block).zip(1..) {
                self.positions[inst] = position;
            }
        }
    }

    /// The place of an instruction; none if it is not in a reachable block.
    pub(super) fn place(&self, inst: Inst) -> Option<(Block, i64)> {
        let position = self.positions[inst];
        let block = self.func.layout.inst_block(inst)?;
        (position > 0).then_some((block, position))
    }

    /// Where a value is defined: 0 for a block parameter.
    pub(super) fn definition(&self, value: Value) -> Option<(Block, i64)> {
        match self.func.dfg.value_def(value) {
            ValueDef::Result(inst, _) => self.place(inst),
            ValueDef::Param(block, _) => Some((block, 0)),
            ValueDef::Union(..) => None,
        }
    }

    pub(super) fn event(&self, inst: Inst) -> Option<&Event> {
        let (block, position) = self.place(inst)?;
        let events = &self.events[block];
        let index = events.binary_search_by_key(&position, |event| event.position);
        index.ok().map(|index| &events[index])
    }

    /// The plain load or store `inst`, as far as bits go.
    pub(super) fn shape(&self, event: &Event) -> Option<Shape> {
        let bytes = event.bytes?;
        let dfg = &self.func.dfg;
        Some(Shape {
            opcode: dfg.insts[event.inst].opcode(),
            ty: dfg.value_type(self.value_of(event)),
            endianness: bytes.flags.endianness(self.endianness),
        })
    }

    /// The value that a plain load reads or a plain store writes.
    pub(super) fn value_of(&self, event: &Event) -> Value {
        match event.effects.access {
            Access::Store => self.func.dfg.inst_args(event.inst)[0],
            _ => self.func.dfg.first_result(event.inst),
        }
    }

    // Events.

    fn compute_events(&mut self) {
        for index in 0..self.order.len() {
            let block = self.order[index];
            let mut events = Vec::new();
            for inst in self.func.layout.block_insts(block) {
                let effects = Effects::of(self.func, inst);
                if effects.any() {
                    events.push(Event {
                        inst,
                        position: self.positions[inst],
                        effects,
                        bytes: self.bytes_of(inst, effects.access),
                    });
                }
            }
            self.events[block] = events;
        }
    }

    fn bytes_of(&mut self, inst: Inst, access: Access) -> Option<Bytes> {
        let dfg = &self.func.dfg;
        let data = dfg.insts[inst];
        let opcode = data.opcode();
        let args = dfg.inst_args(inst);
        let first_result = || dfg.inst_results(inst).first().copied();
        let (address, value) = match access {
            Access::None => return None,
            Access::Load => (args[0], first_result()?),
            Access::Store => (args[1], args[0]),
            Access::Atomic { .. } => match opcode {
                Opcode::AtomicStore => (args[1], args[0]),
                _ => (args[0], first_result()?),
            },
        };
        let offset = match data {
            InstructionData::Load { offset, .. } | InstructionData::Store { offset, .. } => {
                i64::from(i32::from(offset))
            }
            _ => 0,
        };
        let flags = data.memflags_data(dfg)?;
        let ty = dfg.value_type(value);
        let width = match access {
            Access::Atomic { .. } => ty.bytes(),
            _ => {
                let shape = Shape {
                    opcode,
                    ty,
                    endianness: self.endianness,
                };
                shape.width()?
            }
        };
        let region = flags.alias_region();
        let mut bytes = Bytes {
            address,
            offset,
            width,
            flags,
            region,
            slot: None,
            fixed: region.is_some_and(|region| self.outside[region.as_u32() as usize]),
        };
        if let Some(derived) = self.derived_of(address) {
            let slot = &self.func.sized_stack_slots[derived.slot];
            let key = slot.key.map(|key| key.bits());
            bytes.fixed |= key.is_some_and(|key| self.untouched_slot_keys.contains(&key));
            let size = i64::from(slot.size);
            let start = derived.offset.map(|start| start.saturating_add(offset));
            if start.is_some_and(|start| start < 0 || start.saturating_add(i64::from(width)) > size)
            {
                bytes.fixed = true;
                self.exposed[derived.slot] = true;
            } else {
                bytes.slot = Some(derived.slot);
            }
        }
        Some(bytes)
    }

    // Slots.

    fn derived_of(&self, value: Value) -> Option<Derived> {
        let value = self.func.dfg.resolve_aliases(value);
        self.derived.get(&value).copied()
    }

    /// Finds the addresses within slots: `stack_addr`, plus or minus what is no such address.
    fn compute_slots(&mut self) {
        let func = self.func;
        for (slot, data) in &func.sized_stack_slots {
            self.exposed[slot] = data.key.is_some();
        }
        let blocks = func.layout.blocks();
        let mut insts = blocks.flat_map(|block| func.layout.block_insts(block));
        if insts.any(|inst| Effects::of(func, inst).exposes_frame) {
            for slot in func.sized_stack_slots.keys() {
                self.exposed[slot] = true;
            }
        }
        if func.sized_stack_slots.is_empty() {
            return;
        }
        // What gets an address that is not known to be of the same slot is mixed; whatever that
        // makes mixed is found in another round, until no more is.
        let mut mixed: FxHashSet<Value> = FxHashSet::default();
        while !self.derive_all(&mut mixed) {}
    }

    /// Derives what is not mixed, and adds to what is. Returns whether nothing was added.
    fn derive_all(&mut self, mixed: &mut FxHashSet<Value>) -> bool {
        let func = self.func;
        self.derived.clear();
        // Grows until all that follows from the addresses is derived; then what does not agree is
        // looked for.
        loop {
            let before = self.derived.len();
            for index in 0..self.order.len() {
                for inst in func.layout.block_insts(self.order[index]) {
                    if let Some(derived) = self.derive(inst)
                        && !mixed.contains(&func.dfg.first_result(inst))
                    {
                        self.derived.insert(func.dfg.first_result(inst), derived);
                    }
                    for (target, derived) in self.passed(inst) {
                        if !mixed.contains(&target) {
                            // Not to be exact where ways meet costs nothing.
                            let derived = derived.map(|derived| Derived {
                                offset: None,
                                ..derived
                            });
                            if let Some(derived) = derived {
                                self.derived.entry(target).or_insert(derived);
                            }
                        }
                    }
                }
            }
            if self.derived.len() == before {
                break;
            }
        }
        let before = mixed.len();
        for index in 0..self.order.len() {
            for inst in func.layout.block_insts(self.order[index]) {
                let is_sum = matches!(func.dfg.insts[inst], InstructionData::Binary { .. });
                if is_sum && self.derive(inst).is_none() {
                    // Of two addresses, one of which was not known to be one at first.
                    let result = func.dfg.first_result(inst);
                    if self.derived.contains_key(&result) {
                        mixed.insert(result);
                    }
                }
                for (target, derived) in self.passed(inst) {
                    let slot = self.derived.get(&target).map(|derived| derived.slot);
                    if slot.is_some() && slot != derived.map(|derived| derived.slot) {
                        mixed.insert(target);
                    }
                }
            }
        }
        mixed.len() == before
    }

    /// The values that a select gives to its result, and a branch to block parameters.
    fn passed(&self, inst: Inst) -> Vec<(Value, Option<Derived>)> {
        let dfg = &self.func.dfg;
        let data = &dfg.insts[inst];
        if let InstructionData::Ternary {
            opcode: Opcode::Select,
            args: [_, a, b],
        } = *data
        {
            let result = dfg.first_result(inst);
            return [a, b]
                .map(|value| (result, self.derived_of(value)))
                .to_vec();
        }
        if !data.opcode().is_branch() {
            return Vec::new();
        }
        let calls = data.branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        let mut passed = Vec::new();
        for call in calls {
            let params = dfg.block_params(call.block(&dfg.value_lists));
            for (&param, arg) in params.iter().zip(call.args(&dfg.value_lists)) {
                let derived = arg.as_value().and_then(|value| self.derived_of(value));
                passed.push((param, derived));
            }
        }
        passed
    }

    fn derive(&self, inst: Inst) -> Option<Derived> {
        let dfg = &self.func.dfg;
        match dfg.insts[inst] {
            InstructionData::StackAddr {
                opcode: Opcode::StackAddr,
                stack_slot,
                offset,
            } => (dfg.value_type(dfg.first_result(inst)) == types::I64).then_some(Derived {
                slot: stack_slot,
                offset: Some(i64::from(i32::from(offset))),
            }),
            InstructionData::Binary {
                opcode: opcode @ (Opcode::Iadd | Opcode::Isub),
                args: [a, b],
            } => {
                let (base, distance) = match (self.derived_of(a), self.derived_of(b)) {
                    (Some(base), None) => (base, b),
                    (None, Some(base)) if opcode == Opcode::Iadd => (base, a),
                    _ => return None,
                };
                let distance = constant_of(self.func, distance);
                let distance = match opcode {
                    Opcode::Isub => distance.and_then(i64::checked_neg),
                    _ => distance,
                };
                let offset = base.offset.zip(distance);
                Some(Derived {
                    offset: offset.and_then(|(base, distance)| base.checked_add(distance)),
                    ..base
                })
            }
            _ => None,
        }
    }

    fn compute_escapes(&mut self) {
        if self.func.sized_stack_slots.is_empty() {
            return;
        }
        for index in 0..self.order.len() {
            let block = self.order[index];
            for inst in self.func.layout.block_insts(block) {
                let position = self.positions[inst];
                for slot in self.escaping(inst) {
                    self.escapes.entry((block, slot)).or_insert(position);
                }
            }
        }
        let words = self.func.sized_stack_slots.len().div_ceil(64);
        let mut out = SecondaryMap::<Block, Vec<u64>>::new();
        for &block in &self.order {
            self.escaped_in[block] = vec![0; words];
            out[block] = vec![0; words];
        }
        for &(block, slot) in self.escapes.keys() {
            let slot = slot.as_u32() as usize;
            out[block][slot / 64] |= 1 << (slot % 64);
        }
        let mut worklist = self.order.clone();
        while let Some(block) = worklist.pop() {
            for &succ in &self.succs[block] {
                let mut grown = false;
                for word in 0..words {
                    let bits = out[block][word];
                    grown |= bits & !out[succ][word] != 0;
                    self.escaped_in[succ][word] |= bits;
                    out[succ][word] |= bits;
                }
                if grown {
                    worklist.push(succ);
                }
            }
        }
    }

    /// The slots whose address `inst` lets out. The address of a known access, a comparison, and
    /// what [`Program::derive`] follows do not.
    fn escaping(&self, inst: Inst) -> Vec<StackSlot> {
        let dfg = &self.func.dfg;
        let data = dfg.insts[inst];
        let known_access = self.event(inst).is_some_and(|event| event.bytes.is_some());
        let mut slots: Vec<StackSlot> = Vec::new();
        let follows = self.derive(inst).is_some() || data.opcode() == Opcode::Icmp;
        match data {
            InstructionData::StackAddr { stack_slot, .. } if !follows => slots.push(stack_slot),
            InstructionData::Load { .. } if known_access => {}
            InstructionData::Store { args, .. } if known_access => {
                slots.extend(self.derived_of(args[0]).map(|derived| derived.slot));
            }
            _ if follows => {}
            InstructionData::Ternary {
                opcode: Opcode::Select,
                ..
            } if self.derived_of(dfg.first_result(inst)).is_some() => {}
            _ if data.opcode().is_branch() && !data.opcode().is_call() => {
                let operands = dfg.inst_args(inst).iter();
                let escaping = operands.filter_map(|&value| self.derived_of(value));
                slots.extend(escaping.map(|derived| derived.slot));
                // What a parameter of the same slot gets is followed.
                for (param, derived) in self.passed(inst) {
                    if self.derived_of(param).is_none() {
                        slots.extend(derived.map(|derived| derived.slot));
                    }
                }
            }
            _ => {
                let derived = dfg
                    .inst_values(inst)
                    .filter_map(|value| self.derived_of(value));
                slots.extend(derived.map(|derived| derived.slot));
            }
        }
        let maps = dfg.user_stack_map_entries(inst).unwrap_or_default();
        slots.extend(maps.iter().map(|entry| entry.slot));
        slots
    }

    /// Whether `slot` is private at a place in a block: whatever has been executed there, the
    /// instruction of the place included, nothing knows its address.
    pub(super) fn is_private(&self, slot: StackSlot, block: Block, position: i64) -> bool {
        let bit = slot.as_u32() as usize;
        let words = &self.escaped_in[block];
        let escaped_before = words
            .get(bit / 64)
            .is_none_or(|word| word >> (bit % 64) & 1 == 1);
        let site = self.escapes.get(&(block, slot));
        !self.exposed[slot] && !escaped_before && site.is_none_or(|&site| site > position)
    }
}
