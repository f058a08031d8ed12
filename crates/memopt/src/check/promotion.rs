//! The proof that bytes of stack slots live in values.
//!
//! The claim names the bytes, the *cells*, and the block parameters that were added. The rest
//! follows from the two functions, which are walked in step: a state maps each byte of a cell to a
//! byte of a value of the optimized function. Stores that went change the state, loads that went
//! and arguments of added parameters must agree with it.
//!
//! - *Bytes*. Byte `k` of a value counts from the lowest bit, lanes from the first. What pure
//!   instructions do to bytes is evaluated; a byte that is not understood is a byte of the result.
//! - *Joins*. A byte has the value on which all ways into a block agree, or that of a parameter
//!   added for it, whose arguments are proven on each way. Executing the definition of a value
//!   makes bytes of it in the state another instance's, so they are unknown in its block.
//! - *Choices*. A value may be one of a few addresses: see `choices`.
//! - *Never written*: zero, everywhere.
//! - *Privacy*. The address of a slot with cells is only added to, compared, and used as address of
//!   plain accesses and memory functions, within the slot; an access at a variable distance does
//!   not reach a cell. No key, no stack map, no frame pointer.
//! - *Memory functions* that went are done byte by byte by what stands in their place: loads and
//!   stores that cannot trap, calls for the bytes that are in memory at both sides.

mod choices;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    Block, BlockArg, Endianness, Function, Inst, InstructionData, MemFlagsData, Opcode, StackSlot,
    Type, Value, ValueDef, types,
};
use rustc_hash::FxHashMap;

use choices::{Address, Case};

use super::bits::Shape;
use super::program::Order;
use super::structure::{compare_instruction, compare_tables};
use crate::certificate::{PromotedCell, PromotedParam, Promotion};
use crate::effects::{Effects, MemoryFunction, constant_of, memory_function};

/// What a byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    /// Not the same on all ways.
    Unknown,
    Constant(u8),
    /// A byte of a value.
    Of(Value, u8),
    /// The sign of a byte of a value, eight times.
    Sign(Value, u8),
}

impl Byte {
    fn sign(self) -> Byte {
        match self {
            Byte::Unknown => Byte::Unknown,
            Byte::Constant(byte) => Byte::Constant(if byte < 0x80 { 0 } else { 0xff }),
            Byte::Of(value, index) | Byte::Sign(value, index) => Byte::Sign(value, index),
        }
    }

    fn value(self) -> Option<Value> {
        match self {
            Byte::Unknown | Byte::Constant(_) => None,
            Byte::Of(value, _) | Byte::Sign(value, _) => Some(value),
        }
    }

    /// Whether the two are known to be equal.
    fn is(self, other: Byte) -> bool {
        self == other && self != Byte::Unknown
    }
}

type Bytes = Vec<Byte>;

/// An address within a slot, at a distance between two numbers.
#[derive(Clone, Copy, Debug)]
struct Derived {
    slot: StackSlot,
    low: i128,
    high: i128,
}

/// What a part of a block does to the state, or asks of it. Numbers are those of bytes of cells.
#[derive(Clone, Debug)]
enum Action {
    Write(Vec<(usize, Byte)>),
    Move(Vec<(usize, usize)>),
    /// The bytes must be these.
    Expect {
        inst: Inst,
        bytes: Vec<(usize, Byte)>,
    },
    /// The value must be what a load of these bytes gives.
    Load {
        inst: Inst,
        from: Vec<usize>,
    },
    /// The same, of the bytes that go with each case.
    LoadAny {
        inst: Inst,
        cases: Vec<(Case, Vec<usize>)>,
    },
    /// In each case its bytes are written; bytes of cells are values from then on.
    StoreAny {
        inst: Inst,
        cases: Vec<(Case, Vec<(usize, Byte)>)>,
        values: Vec<(Vec<usize>, Value)>,
    },
}

struct Promoted<'a> {
    before: &'a Function,
    after: &'a Function,
    endianness: Endianness,
    outside: &'a [bool],
    promotion: &'a Promotion,
    /// Cells by slot: start, end, number of the first byte.
    cells: FxHashMap<StackSlot, Vec<(u32, u32, usize)>>,
    num_bytes: usize,
    params: FxHashMap<Block, Vec<PromotedParam>>,
    derived: FxHashMap<Value, Derived>,
    /// Which addresses a value may be; none if it may be anything.
    addresses: FxHashMap<Value, Option<Vec<Address>>>,
    bytes: SecondaryMap<Value, Option<Bytes>>,
    order: Vec<Block>,
    preds: SecondaryMap<Block, Vec<Block>>,
    actions: SecondaryMap<Block, Vec<Action>>,
    /// Both functions, with operands named as the optimized one does.
    named: (Function, Function),
}

/// Proves that `after` does what `before` does, with the cells of the claim in values.
///
/// # Errors
/// What is not proven.
pub(crate) fn check_promotion(
    before: &Function,
    after: &Function,
    endianness: Endianness,
    outside: &[bool],
    promotion: &Promotion,
) -> Result<(), String> {
    let order = Order::of(before);
    let mut proof = Promoted {
        before,
        after,
        endianness,
        outside,
        promotion,
        cells: FxHashMap::default(),
        num_bytes: 0,
        params: FxHashMap::default(),
        derived: FxHashMap::default(),
        addresses: FxHashMap::default(),
        bytes: SecondaryMap::new(),
        order: order.blocks,
        preds: order.preds,
        actions: SecondaryMap::new(),
        named: (before.clone(), after.clone()),
    };
    proof.name_operands();
    proof.number_cells()?;
    proof.compare_frames()?;
    proof.compute_addresses();
    proof.ensure_private()?;
    proof.evaluate();
    for block in before.layout.blocks() {
        proof.walk_block(block)?;
    }
    let states = proof.solve();
    proof.prove_states(&states)
}

impl<'a> Promoted<'a> {
    fn name_operands(&mut self) {
        let (before, after) = &mut self.named;
        let name = |value: Value| self.after.dfg.resolve_aliases(value);
        for block in self.before.layout.blocks() {
            for inst in self.before.layout.block_insts(block) {
                before.dfg.map_inst_values(inst, name);
            }
        }
        for block in self.after.layout.blocks() {
            for inst in self.after.layout.block_insts(block) {
                after.dfg.map_inst_values(inst, name);
            }
        }
    }

    fn number_cells(&mut self) -> Result<(), String> {
        for cell in &self.promotion.cells {
            let slot = &self.before.sized_stack_slots[cell.slot];
            if cell.start >= cell.end || cell.end > slot.size {
                return Err(format!("a cell of {} is out of bounds", cell.slot));
            }
            if slot.key.is_some() {
                return Err(format!("{} has a key", cell.slot));
            }
            let cells = self.cells.entry(cell.slot).or_default();
            if cells
                .iter()
                .any(|&(start, end, _)| cell.start < end && start < cell.end)
            {
                return Err(format!("cells of {} overlap", cell.slot));
            }
            cells.push((cell.start, cell.end, self.num_bytes));
            self.num_bytes += (cell.end - cell.start) as usize;
        }
        for param in &self.promotion.params {
            self.params.entry(param.block).or_default().push(*param);
        }
        Ok(())
    }

    fn byte_of(&self, slot: StackSlot, offset: u32) -> Option<usize> {
        let cells = self.cells.get(&slot)?;
        cells
            .iter()
            .find(|(start, end, _)| *start <= offset && offset < *end)
            .map(|(start, _, first)| first + (offset - start) as usize)
    }

    fn bytes_of_cell(&self, cell: &PromotedCell) -> Option<Vec<usize>> {
        (cell.start..cell.end)
            .map(|offset| self.byte_of(cell.slot, offset))
            .collect()
    }

    /// Tables, blocks and parameters are the same, but for the parameters that are claimed.
    fn compare_frames(&self) -> Result<(), String> {
        let (a, b) = (self.before, self.after);
        compare_tables(a, b, true)?;
        if !a.layout.blocks().eq(b.layout.blocks()) {
            return Err("the function's blocks changed".to_string());
        }
        for block in a.layout.blocks() {
            let (before, after) = (a.dfg.block_params(block), b.dfg.block_params(block));
            let added = self
                .params
                .get(&block)
                .map_or(&[][..], |params| &params[..]);
            let claimed = added.iter().map(|param| param.value);
            let expected: Vec<Value> = before.iter().copied().chain(claimed).collect();
            let same_types = before
                .iter()
                .all(|&param| a.dfg.value_type(param) == b.dfg.value_type(param));
            if after != expected || !same_types {
                return Err(format!("the parameters of {block} are not those claimed"));
            }
            let fits = |param: &PromotedParam| {
                let ty = b.dfg.value_type(param.value);
                !ty.is_dynamic_vector() && ty.bytes() == param.cell.end - param.cell.start
            };
            if !added.iter().all(fits) {
                return Err(format!("a parameter of {block} does not fit its cell"));
            }
        }
        Ok(())
    }

    // Privacy.

    fn derived(&self, value: Value) -> Option<Derived> {
        let value = self.before.dfg.resolve_aliases(value);
        self.derived.get(&value).copied()
    }

    fn ensure_private(&mut self) -> Result<(), String> {
        for index in 0..self.order.len() {
            let block = self.order[index];
            for &param in self.before.dfg.block_params(block) {
                self.derive_single(param);
            }
            for inst in self.before.layout.block_insts(block) {
                self.visit_uses(inst)
                    .map_err(|what| format!("{}: {what}", self.text(inst)))?;
            }
        }
        Ok(())
    }

    fn text(&self, inst: Inst) -> String {
        format!("{inst} ({})", self.before.dfg.display_inst(inst))
    }

    fn visit_uses(&mut self, inst: Inst) -> Result<(), String> {
        let func = self.before;
        let dfg = &func.dfg;
        if Effects::of(func, inst).exposes_frame && !self.cells.is_empty() {
            return Err("exposes the frame".to_string());
        }
        let maps = dfg.user_stack_map_entries(inst).unwrap_or_default();
        if maps
            .iter()
            .any(|entry| self.cells.contains_key(&entry.slot))
        {
            return Err("a stack map names a slot with cells".to_string());
        }
        match dfg.insts[inst] {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } => {
                let offset = i128::from(i32::from(offset));
                let result = dfg.first_result(inst);
                let derived = Derived {
                    slot: stack_slot,
                    low: offset,
                    high: offset,
                };
                if dfg.value_type(result) == types::I64 {
                    self.derived.insert(result, derived);
                } else if self.cells.contains_key(&stack_slot) {
                    return Err("a slot with cells has a narrow address".to_string());
                }
                Ok(())
            }
            InstructionData::Binary {
                opcode: opcode @ (Opcode::Iadd | Opcode::Isub),
                args: [a, b],
            } => {
                let (base, distance) = match (self.derived(a), self.derived(b)) {
                    (Some(base), None) => (base, b),
                    (None, Some(base)) if opcode == Opcode::Iadd => (base, a),
                    (None, None) if self.choice(dfg.first_result(inst)).is_some() => return Ok(()),
                    _ => return self.ensure_unused(inst),
                };
                if self.choice(distance).is_some() {
                    return self.ensure_unused(inst);
                }
                let (low, high) = bounds(func, distance, 8);
                let (low, high) = match opcode {
                    Opcode::Iadd => (low, high),
                    _ => (-high, -low),
                };
                let derived = Derived {
                    slot: base.slot,
                    low: base.low + low,
                    high: base.high + high,
                };
                self.derived.insert(dfg.first_result(inst), derived);
                Ok(())
            }
            InstructionData::IntCompare { .. } => Ok(()),
            InstructionData::Ternary {
                opcode: Opcode::Select,
                ..
            } => {
                let result = dfg.first_result(inst);
                if self.addresses_of(result).is_none() {
                    return self.ensure_unused(inst);
                }
                self.derive_single(result);
                Ok(())
            }
            data if data.opcode().is_branch() && !data.opcode().is_call() => {
                self.visit_branch(inst)
            }
            InstructionData::Load { arg, .. } => self.ensure_access(inst, arg),
            InstructionData::Store { args, .. } => {
                if self.has_cells(args[0]) {
                    return Err("stores the address of a slot with cells".to_string());
                }
                self.ensure_access(inst, args[1])
            }
            _ => match memory_function(func, inst) {
                Some(function) => self.visit_memory_function(inst, function),
                None => self.ensure_unused(inst),
            },
        }
    }

    fn has_cells(&self, value: Value) -> bool {
        let chosen = self.choice(value).unwrap_or_default();
        self.derived(value)
            .is_some_and(|derived| self.cells.contains_key(&derived.slot))
            || chosen.iter().any(|(slot, _)| self.cells.contains_key(slot))
    }

    fn ensure_unused(&self, inst: Inst) -> Result<(), String> {
        let mut values = self.before.dfg.inst_values(inst);
        match values.any(|value| self.has_cells(value)) {
            true => Err("the address of a slot with cells escapes".to_string()),
            false => Ok(()),
        }
    }

    fn ensure_access(&self, inst: Inst, address: Value) -> Result<(), String> {
        let Some(derived) = self.derived(address) else {
            return Ok(());
        };
        let Some(cells) = self.cells.get(&derived.slot) else {
            return Ok(());
        };
        let ty = memory_type(self.before, inst).filter(|ty| !ty.is_dynamic_vector());
        let ty = ty.ok_or("how many bytes it touches is not known")?;
        let offset = self.before.dfg.insts[inst].load_store_offset().unwrap_or(0);
        let (low, high) = (
            derived.low + i128::from(offset),
            derived.high + i128::from(offset) + i128::from(ty.bytes()),
        );
        let size = i128::from(self.before.sized_stack_slots[derived.slot].size);
        if derived.low == derived.high {
            return match low >= 0 && high <= size {
                true => Ok(()),
                false => Err("is out of bounds".to_string()),
            };
        }
        let reaches = |&(start, end, _): &(u32, u32, usize)| {
            low < i128::from(end) && i128::from(start) < high
        };
        match cells.iter().any(reaches) {
            true => Err("may touch cells, or not".to_string()),
            false => Ok(()),
        }
    }

    fn visit_memory_function(
        &mut self,
        inst: Inst,
        function: MemoryFunction,
    ) -> Result<(), String> {
        let (to, from, length) = match function {
            MemoryFunction::Copy { to, from, length } => (to, Some(from), length),
            MemoryFunction::Set { to, byte, length } => {
                if self.has_cells(byte) {
                    return Err("the address of a slot with cells escapes".to_string());
                }
                (to, None, length)
            }
        };
        if self.has_cells(length) {
            return Err("the address of a slot with cells escapes".to_string());
        }
        let known = constant_of(self.before, length);
        for side in [Some(to), from].into_iter().flatten() {
            if self.has_cells(side) && self.choice(side).is_some() {
                return Err("which bytes of cells it touches is not known".to_string());
            }
            if known == Some(0) || !self.has_cells(side) {
                continue;
            }
            let derived = self.derived(side).ok_or("no address")?;
            let size = i128::from(self.before.sized_stack_slots[derived.slot].size);
            let end = known.map(|length| derived.high + i128::from(length));
            let within = known.is_some_and(|length| length > 0)
                && derived.low == derived.high
                && derived.low >= 0
                && end.is_some_and(|end| end <= size);
            if !within {
                return Err("which bytes of cells it touches is not known".to_string());
            }
        }
        let slots = (
            self.derived(to).map(|derived| derived.slot),
            from.and_then(|from| self.derived(from))
                .map(|derived| derived.slot),
        );
        if let (Some(a), Some(b)) = slots
            && a == b
            && known != Some(0)
            && self.cells.contains_key(&a)
        {
            return Err("copies within a slot with cells".to_string());
        }
        if let (Some(derived), Some(&result)) =
            (self.derived(to), self.before.dfg.inst_results(inst).first())
        {
            self.derived.insert(result, derived);
        }
        Ok(())
    }

    // Bytes of values.

    /// Evaluates the pure instructions of the optimized function.
    fn evaluate(&mut self) {
        for index in 0..self.order.len() {
            let block = self.order[index];
            for inst in self.after.layout.block_insts(block) {
                let results = self.after.dfg.inst_results(inst);
                for (number, &result) in results.iter().enumerate() {
                    let ty = self.after.dfg.value_type(result);
                    if ty.is_dynamic_vector() {
                        continue;
                    }
                    let own = own_bytes(result, ty);
                    let known =
                        self.evaluate_inst(inst, number, ty, &|value| self.value_bytes(value));
                    let known = known.filter(|bytes| bytes.len() == own.len());
                    if let Some(bytes) = known {
                        let bytes = bytes.iter().zip(own);
                        let bytes = bytes.map(|(&byte, own)| match byte {
                            Byte::Unknown => own,
                            byte => byte,
                        });
                        self.bytes[result] = Some(bytes.collect());
                    }
                }
            }
        }
    }

    fn value_bytes(&self, value: Value) -> Bytes {
        let value = self.after.dfg.resolve_aliases(value);
        match &self.bytes[value] {
            Some(bytes) => bytes.clone(),
            None => own_bytes(value, self.after.dfg.value_type(value)),
        }
    }

    fn evaluate_inst(
        &self,
        inst: Inst,
        number: usize,
        ty: Type,
        operand: &dyn Fn(Value) -> Bytes,
    ) -> Option<Bytes> {
        let dfg = &self.after.dfg;
        let width = ty.bytes() as usize;
        let constant = |number: u128| {
            let bytes = number.to_le_bytes();
            bytes[..width]
                .iter()
                .map(|&byte| Byte::Constant(byte))
                .collect()
        };
        match dfg.insts[inst] {
            InstructionData::UnaryImm { imm, .. } if ty.is_int() && ty.bits() <= 64 => {
                Some(constant(imm.bits() as u64 as u128))
            }
            InstructionData::UnaryIeee32 { imm, .. } => Some(constant(imm.bits().into())),
            InstructionData::UnaryIeee64 { imm, .. } => Some(constant(imm.bits().into())),
            InstructionData::Unary { opcode, arg } => {
                let mut bytes = operand(arg);
                match opcode {
                    Opcode::Ireduce => bytes.truncate(width),
                    Opcode::Uextend => bytes.resize(width, Byte::Constant(0)),
                    Opcode::Sextend => {
                        let sign = bytes.last()?.sign();
                        bytes.resize(width, sign);
                    }
                    Opcode::Bswap => bytes.reverse(),
                    Opcode::Isplit => {
                        let half = bytes.len() / 2;
                        bytes = match number {
                            0 => bytes[..half].to_vec(),
                            _ => bytes[half..].to_vec(),
                        };
                    }
                    Opcode::Splat => bytes = bytes.repeat(ty.lane_count() as usize),
                    _ => return None,
                }
                Some(bytes)
            }
            InstructionData::LoadNoOffset {
                opcode: Opcode::Bitcast,
                flags,
                arg,
            } => {
                let from = dfg.value_type(arg);
                let bytes = operand(arg);
                if from.lane_count() == ty.lane_count() {
                    return Some(bytes);
                }
                let order = dfg.mem_flags[flags].explicit_endianness()?;
                let memory = in_memory(&bytes, from, order);
                Some(in_memory(&memory, ty, order))
            }
            InstructionData::Binary {
                opcode,
                args: [a, b],
            } => {
                let (x, y) = (operand(a), operand(b));
                self.evaluate_binary(opcode, ty, &x, &y)
            }
            InstructionData::BinaryImm8 {
                opcode: Opcode::Extractlane,
                arg,
                imm,
            } => {
                let bytes = operand(arg);
                let start = usize::from(imm) * width;
                Some(bytes.get(start..start + width)?.to_vec())
            }
            InstructionData::TernaryImm8 {
                opcode: Opcode::Insertlane,
                args: [vector, lane],
                imm,
            } => {
                let (mut bytes, lane) = (operand(vector), operand(lane));
                let start = usize::from(imm) * lane.len();
                bytes
                    .get_mut(start..start + lane.len())?
                    .copy_from_slice(&lane);
                Some(bytes)
            }
            _ => None,
        }
    }

    fn evaluate_binary(&self, opcode: Opcode, ty: Type, x: &[Byte], y: &[Byte]) -> Option<Bytes> {
        if ty.is_vector() {
            return None;
        }
        let number = |bytes: &[Byte]| {
            bytes
                .iter()
                .rev()
                .try_fold(0u128, |number, byte| match byte {
                    Byte::Constant(byte) => Some(number << 8 | u128::from(*byte)),
                    _ => None,
                })
        };
        let width = x.len();
        match opcode {
            Opcode::Iconcat => Some([x, y].concat()),
            Opcode::Band | Opcode::Bor => {
                // The byte that leaves the other one, and the one that is the result.
                let (neutral, absorbing) = match opcode {
                    Opcode::Band => (0xff, 0),
                    _ => (0, 0xff),
                };
                let combine = |(&a, &b): (&Byte, &Byte)| match (a, b) {
                    (Byte::Constant(a), Byte::Constant(b)) => Byte::Constant(match opcode {
                        Opcode::Band => a & b,
                        _ => a | b,
                    }),
                    (Byte::Constant(one), other) | (other, Byte::Constant(one)) => {
                        if one == neutral {
                            other
                        } else if one == absorbing {
                            Byte::Constant(absorbing)
                        } else {
                            Byte::Unknown
                        }
                    }
                    _ => Byte::Unknown,
                };
                Some(x.iter().zip(y).map(combine).collect())
            }
            Opcode::Ishl | Opcode::Ushr => {
                let amount = number(y)? as u64 as usize % (width * 8);
                if !amount.is_multiple_of(8) {
                    return None;
                }
                let zeros = vec![Byte::Constant(0); amount / 8];
                Some(match opcode {
                    Opcode::Ishl => [&zeros[..], &x[..width - amount / 8]].concat(),
                    _ => [&x[amount / 8..], &zeros[..]].concat(),
                })
            }
            Opcode::Imul => {
                let ones = |bytes: &[Byte]| bytes.iter().all(|&byte| byte == Byte::Constant(1));
                let (narrow, pattern) = if ones(y) { (x, y) } else { (y, x) };
                let is_byte = narrow[1..].iter().all(|&byte| byte == Byte::Constant(0));
                (ones(pattern) && is_byte).then(|| vec![narrow[0]; width])
            }
            _ => None,
        }
    }

    // The two functions in step.

    fn is_new(&self, inst: Inst) -> bool {
        self.before.layout.inst_block(inst).is_none()
    }

    /// Whether a value of the original function and one of the optimized function are one.
    fn same(&self, before: Value, after: Value) -> bool {
        self.after.dfg.resolve_aliases(before) == self.after.dfg.resolve_aliases(after)
    }

    fn walk_block(&mut self, block: Block) -> Result<(), String> {
        let reachable =
            self.before.layout.entry_block() == Some(block) || !self.preds[block].is_empty();
        let mut actions = Vec::new();
        let mut parts = VecDeque::new();
        let mut rest = self.after.layout.block_insts(block).peekable();
        for inst in self.before.layout.block_insts(block) {
            while let Some(new) = rest.next_if(|&next| self.is_new(next)) {
                self.ensure_defined(new)?;
                if self.is_part(new)? {
                    parts.push_back(new);
                }
            }
            let is_kept = rest.peek() == Some(&inst);
            if is_kept && !parts.is_empty() {
                return Err(format!("new accesses stand before {}", self.text(inst)));
            }
            if rest.next_if_eq(&inst).is_some() {
                self.ensure_defined(inst)?;
                self.compare(inst)?;
                if reachable && self.touches_cells(inst) {
                    return Err(format!("{} touches cells, and stays", self.text(inst)));
                }
            } else if !reachable {
                return Err(format!("{} went, but is unreachable", self.text(inst)));
            } else {
                self.walk_removed(inst, &mut parts, &mut actions)
                    .map_err(|what| format!("{}: {what}", self.text(inst)))?;
            }
        }
        if rest.next().is_some() {
            return Err(format!("{block} has got instructions at its end"));
        }
        self.actions[block] = actions;
        Ok(())
    }

    /// Whether an access at known places touches cells.
    fn touches_cells(&self, inst: Inst) -> bool {
        let dfg = &self.before.dfg;
        let ranges: Vec<(Value, i64)> = match dfg.insts[inst] {
            InstructionData::Load { arg: address, .. }
            | InstructionData::Store {
                args: [_, address], ..
            } => {
                let ty = memory_type(self.before, inst).filter(|ty| !ty.is_dynamic_vector());
                vec![(address, ty.map_or(0, |ty| ty.bytes().into()))]
            }
            _ => match memory_function(self.before, inst) {
                Some(MemoryFunction::Copy { to, from, length }) => {
                    let length = constant_of(self.before, length).unwrap_or(0);
                    vec![(to, length), (from, length)]
                }
                Some(MemoryFunction::Set { to, length, .. }) => {
                    vec![(to, constant_of(self.before, length).unwrap_or(0))]
                }
                None => Vec::new(),
            },
        };
        let offset = i128::from(dfg.insts[inst].load_store_offset().unwrap_or(0));
        ranges.iter().any(|&(address, width)| {
            let mut starts = self.choice(address).unwrap_or_default();
            let exact = self.derived(address);
            let exact = exact.filter(|derived| derived.low == derived.high);
            starts.extend(exact.map(|derived| (derived.slot, derived.low)));
            starts.iter().any(|&(slot, start)| {
                let start = start + offset;
                let cells = self.cells.get(&slot).map_or(&[][..], |cells| &cells[..]);
                cells.iter().any(|&(from, to, _)| {
                    start < i128::from(to) && i128::from(from) < start + i128::from(width)
                })
            })
        })
    }

    /// Nothing uses what is not there any more.
    fn ensure_defined(&self, inst: Inst) -> Result<(), String> {
        let func = self.after;
        let is_defined = |value: Value| match func.dfg.value_def(func.dfg.resolve_aliases(value)) {
            ValueDef::Result(def, _) => func.layout.inst_block(def).is_some(),
            ValueDef::Param(block, _) => func.layout.is_block_inserted(block),
            ValueDef::Union(..) => false,
        };
        match func.dfg.inst_values(inst).all(is_defined) {
            true => Ok(()),
            false => Err(format!("an operand of {inst} is not there any more")),
        }
    }

    /// Whether a new instruction has effects, and so must be a part of a memory function that went.
    fn is_part(&self, inst: Inst) -> Result<bool, String> {
        let effects = Effects::of(self.after, inst);
        let opcode = self.after.dfg.insts[inst].opcode();
        let flags = self.after.dfg.insts[inst].memflags_data(&self.after.dfg);
        let is_plain = flags == Some(MemFlagsData::new().with_notrap());
        match opcode {
            Opcode::Load | Opcode::Store if is_plain => Ok(true),
            Opcode::Call => Ok(true),
            _ if !effects.any() && !opcode.can_trap() && !opcode.is_terminator() => Ok(false),
            _ => Err(format!("{inst} is new and has effects")),
        }
    }

    fn compare(&self, inst: Inst) -> Result<(), String> {
        let name = |value: Value| self.after.dfg.resolve_aliases(value);
        let changed = |what: &str| Err(format!("{what} of {} changed", self.text(inst)));
        let (a, b) = (&self.before.dfg, &self.after.dfg);
        let is_branch = a.insts[inst].opcode().is_branch();
        if is_branch {
            let operands = a.inst_args(inst).iter().map(|&arg| name(arg));
            if !operands.eq(b.inst_args(inst).iter().map(|&arg| name(arg)))
                || a.insts[inst].opcode() != b.insts[inst].opcode()
            {
                return changed("an operand");
            }
            return self.compare_targets(inst);
        }
        let (before, after) = &self.named;
        match compare_instruction(before, after, inst) {
            Ok(()) => Ok(()),
            Err(what) => changed(what),
        }
    }

    /// A branch goes where it went, with arguments for the parameters that were added.
    fn compare_targets(&self, inst: Inst) -> Result<(), String> {
        let wrong = || Err(format!("the targets of {} changed", self.text(inst)));
        let (a, b) = (&self.before.dfg, &self.after.dfg);
        let before = a.insts[inst].branch_destination(&a.jump_tables, &a.exception_tables);
        let after = b.insts[inst].branch_destination(&b.jump_tables, &b.exception_tables);
        if before.len() != after.len() {
            return wrong();
        }
        for (x, y) in before.iter().zip(after) {
            let block = x.block(&a.value_lists);
            let added = self.params.get(&block).map_or(0, Vec::len);
            let named =
                |arg: BlockArg| arg.map_value(|value| self.after.dfg.resolve_aliases(value));
            let old: Vec<BlockArg> = x.args(&a.value_lists).map(named).collect();
            let new: Vec<BlockArg> = y.args(&b.value_lists).map(named).collect();
            if block != y.block(&b.value_lists)
                || new.len() != old.len() + added
                || new[..old.len()] != old[..]
                || new[old.len()..].iter().any(|arg| arg.as_value().is_none())
            {
                return wrong();
            }
        }
        let same_data = match (a.insts[inst], b.insts[inst]) {
            (InstructionData::Jump { .. }, InstructionData::Jump { .. })
            | (InstructionData::Brif { .. }, InstructionData::Brif { .. }) => true,
            (InstructionData::TryCall { exception, .. }, _)
            | (InstructionData::TryCallIndirect { exception, .. }, _) => {
                let (x, y) = (
                    &a.exception_tables[exception],
                    &b.exception_tables[exception],
                );
                let tags = |table: &cranelift_codegen::ir::ExceptionTableData| {
                    let items = table.items().map(|item| match item {
                        cranelift_codegen::ir::ExceptionTableItem::Tag(tag, _) => {
                            (0, Some(tag), None)
                        }
                        cranelift_codegen::ir::ExceptionTableItem::Default(_) => (1, None, None),
                        cranelift_codegen::ir::ExceptionTableItem::Context(value) => {
                            (2, None, Some(self.after.dfg.resolve_aliases(value)))
                        }
                    });
                    items.collect::<Vec<_>>()
                };
                let callee = |data: InstructionData| match data {
                    InstructionData::TryCall { func_ref, .. } => Some(func_ref),
                    _ => None,
                };
                b.insts[inst].exception_table() == Some(exception)
                    && callee(a.insts[inst]) == callee(b.insts[inst])
                    && x.signature() == y.signature()
                    && tags(x) == tags(y)
            }
            (x, y) => x == y,
        };
        let results = a.inst_results(inst) == b.inst_results(inst);
        let maps = a.user_stack_map_entries(inst) == b.user_stack_map_entries(inst);
        let srcloc = self.before.srcloc(inst) == self.after.srcloc(inst);
        match same_data && results && maps && srcloc {
            true => Ok(()),
            false => wrong(),
        }
    }

    fn walk_removed(
        &self,
        inst: Inst,
        parts: &mut VecDeque<Inst>,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let dfg = &self.before.dfg;
        let data = dfg.insts[inst];
        match data {
            InstructionData::Load { arg, .. } if self.choice(arg).is_some() => {
                let cases = self.cases(inst, arg)?;
                actions.push(Action::LoadAny { inst, cases });
                Ok(())
            }
            InstructionData::Store { args, .. } if self.choice(args[1]).is_some() => {
                let cases = self.cases(inst, args[1])?;
                let bytes = self.stored_bytes(inst, args[0])?;
                let written = |(case, places): (Case, Vec<usize>)| {
                    let written = places.into_iter().zip(bytes.iter().copied());
                    (case, written.collect())
                };
                let cases = cases.into_iter().map(written).collect();
                let claimed = self.promotion.choices.iter();
                let claimed = claimed.filter(|(store, _, _)| *store == inst);
                let values = claimed
                    .map(|(_, cell, value)| Some((self.bytes_of_cell(cell)?, *value)))
                    .collect::<Option<Vec<_>>>()
                    .ok_or("a claim is not about cells")?;
                actions.push(Action::StoreAny {
                    inst,
                    cases,
                    values,
                });
                Ok(())
            }
            InstructionData::Load { arg, .. } => {
                let from = self.cell_bytes(inst, arg)?;
                actions.push(Action::Load { inst, from });
                Ok(())
            }
            InstructionData::Store { args, .. } => {
                let to = self.cell_bytes(inst, args[1])?;
                let bytes = self.stored_bytes(inst, args[0])?;
                actions.push(Action::Write(to.into_iter().zip(bytes).collect()));
                Ok(())
            }
            _ if matches!(
                data.opcode(),
                Opcode::StackAddr | Opcode::Iadd | Opcode::Isub | Opcode::Iconst | Opcode::Select
            ) =>
            {
                // Nothing uses it: operands are there.
                Ok(())
            }
            _ => match memory_function(self.before, inst) {
                Some(function) => {
                    let calls = &self.promotion.calls;
                    let claimed = calls.iter().find(|(call, _)| *call == inst);
                    let claimed = claimed.map_or(&[][..], |(_, parts)| &parts[..]);
                    for &part in claimed {
                        if parts.pop_front() != Some(part) {
                            return Err(format!("{part} does not stand in its place"));
                        }
                    }
                    let parts = claimed;
                    self.walk_memory_function(inst, function, parts, actions)
                }
                None => Err("went, and no claim says so".to_string()),
            },
        }
    }

    /// What a plain store of the original function writes.
    fn stored_bytes(&self, inst: Inst, value: Value) -> Result<Bytes, String> {
        let ty = memory_type(self.before, inst).ok_or("no type")?;
        let mut bytes = self.value_bytes(value);
        bytes.truncate(ty.bytes() as usize);
        Ok(in_memory(&bytes, ty, self.order_of(inst)))
    }

    fn order_of(&self, inst: Inst) -> Endianness {
        let flags = self.before.dfg.insts[inst].memflags_data(&self.before.dfg);
        flags.map_or(self.endianness, |flags| flags.endianness(self.endianness))
    }

    /// The bytes of cells that a plain access touches.
    fn cell_bytes(&self, inst: Inst, address: Value) -> Result<Vec<usize>, String> {
        let derived = self.derived(address).ok_or("is no access of a slot")?;
        let data = &self.before.dfg.insts[inst];
        let flags = data.memflags_data(&self.before.dfg).ok_or("no flags")?;
        let region = flags.alias_region();
        if region.is_some_and(|region| self.outside[region.as_u32() as usize]) {
            return Err("is in an outside region".to_string());
        }
        let ty = memory_type(self.before, inst).ok_or("no type")?;
        let offset = data.load_store_offset().unwrap_or(0);
        let start = derived.low + i128::from(offset);
        if derived.low != derived.high || start < 0 {
            return Err("touches bytes that are not known".to_string());
        }
        (0..ty.bytes())
            .map(|index| self.byte_of(derived.slot, start as u32 + index))
            .collect::<Option<Vec<usize>>>()
            .ok_or_else(|| "went, but touches bytes that are in no cell".to_string())
    }

    fn walk_memory_function(
        &self,
        inst: Inst,
        function: MemoryFunction,
        parts: &[Inst],
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let (to, from, length) = match function {
            MemoryFunction::Copy { to, from, length } => (to, Some(from), length),
            MemoryFunction::Set { to, length, .. } => (to, None, length),
        };
        let length = constant_of(self.before, length).unwrap_or(-1);
        if length <= 0 {
            return Err("moves a number of bytes that is not known".to_string());
        }
        let cell_of = |address: Option<Value>, index: u32| {
            let derived = self.derived(address?)?;
            self.byte_of(derived.slot, derived.low as u32 + index)
        };
        if let Some(&result) = self.before.dfg.inst_results(inst).first()
            && !self.same(result, to)
        {
            return Err("returned its first argument, and now does not".to_string());
        }
        let length = length as usize;
        // What each byte of the source is, where it is loaded; and what is written to memory.
        let mut loaded: Vec<Byte> = vec![Byte::Unknown; length];
        let mut stored: Vec<Option<Byte>> = vec![None; length];
        let mut called = vec![false; length];
        for &part in parts {
            match self.after.dfg.insts[part].opcode() {
                Opcode::Load => {
                    let result = self.after.dfg.first_result(part);
                    let ty = self.after.dfg.value_type(result);
                    let from = from.ok_or("a load is new")?;
                    let start = self.start_within(part, from, ty, length)?;
                    let bytes = self.value_bytes(result);
                    let bytes = in_memory(&bytes, ty, self.endianness);
                    loaded[start..start + bytes.len()].copy_from_slice(&bytes);
                }
                Opcode::Store => {
                    let value = self.after.dfg.inst_args(part)[0];
                    let ty = self.after.dfg.value_type(value);
                    let start = self.start_within(part, to, ty, length)?;
                    let bytes = in_memory(&self.value_bytes(value), ty, self.endianness);
                    for (index, byte) in bytes.into_iter().enumerate() {
                        stored[start + index] = Some(byte);
                    }
                }
                _ => {
                    let (start, count) = self.call_within(inst, part, function, length)?;
                    called[start..start + count].fill(true);
                }
            }
        }
        let mut moves = Vec::new();
        let mut writes = Vec::new();
        let mut expected = Vec::new();
        for index in 0..length {
            let (to, from) = (cell_of(Some(to), index as u32), cell_of(from, index as u32));
            if to.is_some() && (stored[index].is_some() || called[index]) {
                return Err("a byte that is a value is written".to_string());
            }
            match (to, from) {
                (Some(to), Some(from)) => moves.push((to, from)),
                (Some(to), None) => writes.push((
                    to,
                    match function {
                        MemoryFunction::Set { byte, .. } => self.value_bytes(byte)[0],
                        MemoryFunction::Copy { .. } => loaded[index],
                    },
                )),
                (None, Some(from)) => {
                    let byte = stored[index].ok_or("a byte is not written")?;
                    if called[index] {
                        return Err("a byte is written twice".to_string());
                    }
                    expected.push((from, byte));
                }
                (None, None) => {
                    if stored[index].is_some() || !called[index] {
                        return Err("bytes in memory are not moved".to_string());
                    }
                }
            }
        }
        // Reads come first.
        actions.push(Action::Expect {
            inst,
            bytes: expected,
        });
        actions.push(Action::Move(moves));
        actions.push(Action::Write(writes));
        Ok(())
    }

    /// Where a new access lies in the range of a memory function.
    fn start_within(
        &self,
        part: Inst,
        base: Value,
        ty: Type,
        length: usize,
    ) -> Result<usize, String> {
        let dfg = &self.after.dfg;
        let address = match dfg.insts[part] {
            InstructionData::Load { arg, .. } => arg,
            InstructionData::Store { args, .. } => args[1],
            _ => return Err(format!("{part} is no access")),
        };
        let start = i64::from(dfg.insts[part].load_store_offset().unwrap_or(-1));
        let fits = start >= 0 && start as usize + ty.bytes() as usize <= length;
        if !self.same(base, address) || !fits {
            return Err(format!("{part} is out of its range"));
        }
        Ok(start as usize)
    }

    /// Where a new call lies in the range of the call that went, and how many bytes it moves.
    fn call_within(
        &self,
        inst: Inst,
        part: Inst,
        function: MemoryFunction,
        length: usize,
    ) -> Result<(usize, usize), String> {
        let callee = |func: &Function, inst: Inst| match func.dfg.insts[inst] {
            InstructionData::Call { func_ref, .. } => Some(func_ref),
            _ => None,
        };
        let wrong = || format!("{part} is not a part of the call");
        if callee(self.before, inst) != callee(self.after, part) {
            return Err(wrong());
        }
        let new = memory_function(self.after, part).ok_or_else(wrong)?;
        let (start, count) = match (function, new) {
            (
                MemoryFunction::Copy { to, from, .. },
                MemoryFunction::Copy {
                    to: new_to,
                    from: new_from,
                    length,
                },
            ) => {
                let start = self.distance(to, new_to).ok_or_else(wrong)?;
                if self.distance(from, new_from) != Some(start) {
                    return Err(wrong());
                }
                (start, constant_of(self.after, length))
            }
            (
                MemoryFunction::Set { to, byte, .. },
                MemoryFunction::Set {
                    to: new_to,
                    byte: new_byte,
                    length,
                },
            ) => {
                let start = self.distance(to, new_to).ok_or_else(wrong)?;
                if !self.same(byte, new_byte) {
                    return Err(wrong());
                }
                (start, constant_of(self.after, length))
            }
            _ => return Err(wrong()),
        };
        let count = count.and_then(|count| usize::try_from(count).ok());
        let start = usize::try_from(start).ok();
        let (start, count) = start.zip(count).ok_or_else(wrong)?;
        match start + count <= length {
            true => Ok((start, count)),
            false => Err(wrong()),
        }
    }

    /// How far a new address lies above one of the original function.
    fn distance(&self, base: Value, address: Value) -> Option<i64> {
        if self.same(base, address) {
            return Some(0);
        }
        let dfg = &self.after.dfg;
        let ValueDef::Result(inst, 0) = dfg.value_def(dfg.resolve_aliases(address)) else {
            return None;
        };
        match dfg.insts[inst] {
            InstructionData::Binary {
                opcode: Opcode::Iadd,
                args: [a, b],
            } if self.same(base, a) => constant_of(self.after, b),
            _ => None,
        }
    }

    // States.

    /// The state at the start of each block, by iteration down from "anything".
    fn solve(&self) -> SecondaryMap<Block, Option<Bytes>> {
        let mut starts: SecondaryMap<Block, Option<Bytes>> = SecondaryMap::new();
        let mut ends: SecondaryMap<Block, Option<Bytes>> = SecondaryMap::new();
        loop {
            let mut changed = false;
            for &block in &self.order {
                let Some(start) = self.start_of(block, &ends) else {
                    continue;
                };
                if starts[block].as_ref() == Some(&start) {
                    continue;
                }
                let mut state = start.clone();
                for action in &self.actions[block] {
                    apply(self, action, &mut state);
                }
                starts[block] = Some(start);
                ends[block] = Some(state);
                changed = true;
            }
            if !changed {
                return starts;
            }
        }
    }

    fn start_of(&self, block: Block, ends: &SecondaryMap<Block, Option<Bytes>>) -> Option<Bytes> {
        let mut start: Option<Bytes> = None;
        if self.before.layout.entry_block() == Some(block) {
            start = Some(vec![Byte::Constant(0); self.num_bytes]);
        }
        for &pred in &self.preds[block] {
            let Some(end) = &ends[pred] else { continue };
            match &mut start {
                None => start = Some(end.clone()),
                Some(start) => {
                    for (byte, &other) in start.iter_mut().zip(end) {
                        if *byte != other {
                            *byte = Byte::Unknown;
                        }
                    }
                }
            }
        }
        let mut start = start?;
        for byte in &mut start {
            if byte
                .value()
                .is_some_and(|value| self.is_defined_in(value, block))
            {
                *byte = Byte::Unknown;
            }
        }
        for param in self.params.get(&block).into_iter().flatten() {
            let ty = self.after.dfg.value_type(param.value);
            let bytes = in_memory(&own_bytes(param.value, ty), ty, self.endianness);
            let places = self.bytes_of_cell(&param.cell).unwrap_or_default();
            for (place, byte) in places.into_iter().zip(bytes) {
                start[place] = byte;
            }
        }
        Some(start)
    }

    fn is_defined_in(&self, value: Value, block: Block) -> bool {
        match self.after.dfg.value_def(value) {
            ValueDef::Result(inst, _) => self.after.layout.inst_block(inst) == Some(block),
            ValueDef::Param(home, _) => home == block,
            ValueDef::Union(..) => true,
        }
    }

    fn prove_states(&self, starts: &SecondaryMap<Block, Option<Bytes>>) -> Result<(), String> {
        for &block in &self.order {
            let mut state = starts[block].clone().ok_or("a block has no state")?;
            for action in &self.actions[block] {
                match action {
                    Action::Expect { inst, bytes } => {
                        if !bytes.iter().all(|&(place, byte)| state[place].is(byte)) {
                            return Err(format!("{}: other bytes are stored", self.text(*inst)));
                        }
                    }
                    Action::Load { inst, from } => self.prove_load(*inst, from, None, &state)?,
                    Action::LoadAny { inst, cases } => {
                        for (case, from) in cases {
                            self.prove_load(*inst, from, Some(case), &state)?;
                        }
                    }
                    Action::StoreAny {
                        inst,
                        cases,
                        values,
                    } => self
                        .prove_store_any(cases, values, &state)
                        .map_err(|what| format!("{}: {what}", self.text(*inst)))?,
                    Action::Write(_) | Action::Move(_) => {}
                }
                apply(self, action, &mut state);
            }
            self.prove_arguments(block, &state)?;
        }
        Ok(())
    }

    fn prove_load(
        &self,
        inst: Inst,
        from: &[usize],
        case: Option<&Case>,
        state: &[Byte],
    ) -> Result<(), String> {
        let dfg = &self.before.dfg;
        let ty = memory_type(self.before, inst).ok_or("no type")?;
        let result = dfg.first_result(inst);
        let width = dfg.value_type(result).bytes() as usize;
        let bytes: Bytes = from.iter().map(|&place| state[place]).collect();
        let mut expected = in_memory(&bytes, ty, self.order_of(inst));
        let fill = match dfg.insts[inst].opcode() {
            Opcode::Sload8 | Opcode::Sload16 | Opcode::Sload32 => {
                expected.last().map(|byte| byte.sign())
            }
            Opcode::Load | Opcode::Uload8 | Opcode::Uload16 | Opcode::Uload32 => {
                Some(Byte::Constant(0))
            }
            _ => None,
        };
        expected.resize(width, fill.ok_or("widens lanes")?);
        let found = self.value_bytes(result);
        let same_type = self
            .after
            .dfg
            .value_type(self.after.dfg.resolve_aliases(result))
            == dfg.value_type(result);
        let agree = match case {
            Some(case) => self.agrees(result, &expected, case),
            None => {
                found.len() == expected.len() && found.iter().zip(&expected).all(|(&a, &b)| a.is(b))
            }
        };
        match agree && same_type {
            true => Ok(()),
            false => Err(format!(
                "{} is {} now, which memory does not hold",
                self.text(inst),
                self.after.dfg.resolve_aliases(result)
            )),
        }
    }

    /// What is given to parameters that were added is what the cells hold.
    fn prove_arguments(&self, block: Block, state: &[Byte]) -> Result<(), String> {
        let func = self.after;
        let Some(branch) = func.layout.last_inst(block) else {
            return Ok(());
        };
        let dfg = &func.dfg;
        let calls = dfg.insts[branch].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        for call in calls {
            let to = call.block(&dfg.value_lists);
            let Some(params) = self.params.get(&to) else {
                continue;
            };
            let args: Vec<BlockArg> = call.args(&dfg.value_lists).collect();
            let added = &args[args.len() - params.len()..];
            for (param, arg) in params.iter().zip(added) {
                let value = arg.as_value().ok_or("an argument is no value")?;
                let ty = dfg.value_type(value);
                let bytes = in_memory(&self.value_bytes(value), ty, self.endianness);
                let places = self.bytes_of_cell(&param.cell).ok_or("no such cell")?;
                let same = bytes.len() == places.len()
                    && places
                        .iter()
                        .zip(bytes)
                        .all(|(&place, byte)| state[place].is(byte));
                if !same {
                    return Err(format!(
                        "{value} is given to {} on the way from {block} to {to}, but is not what \
                         {} holds from byte {}",
                        param.value, param.cell.slot, param.cell.start
                    ));
                }
            }
        }
        Ok(())
    }
}

fn apply(promoted: &Promoted<'_>, action: &Action, state: &mut [Byte]) {
    match action {
        Action::StoreAny { cases, values, .. } => promoted.store_any(cases, values, state),
        Action::Write(bytes) => {
            for &(place, byte) in bytes {
                state[place] = byte;
            }
        }
        Action::Move(moves) => {
            let bytes: Bytes = moves.iter().map(|&(_, from)| state[from]).collect();
            for (&(to, _), byte) in moves.iter().zip(bytes) {
                state[to] = byte;
            }
        }
        Action::Expect { .. } | Action::Load { .. } | Action::LoadAny { .. } => {}
    }
}

fn own_bytes(value: Value, ty: Type) -> Bytes {
    (0..ty.bytes())
        .map(|index| Byte::Of(value, index as u8))
        .collect()
}

/// The bytes of a value as they lie in memory, or the other way round.
fn in_memory(bytes: &[Byte], ty: Type, order: Endianness) -> Bytes {
    let lane = (ty.lane_bits() / 8) as usize;
    match order {
        Endianness::Little => bytes.to_vec(),
        Endianness::Big => bytes
            .chunks(lane)
            .flat_map(|lane| lane.iter().rev().copied())
            .collect(),
    }
}

/// The type that a plain load or store touches.
fn memory_type(func: &Function, inst: Inst) -> Option<Type> {
    // The byte order is of no account.
    Shape::of(func, inst, Endianness::Little)?.memory_type()
}

/// Numbers between which `value` lies, as a signed number of its type.
fn bounds(func: &Function, value: Value, depth: u32) -> (i128, i128) {
    let dfg = &func.dfg;
    let value = dfg.resolve_aliases(value);
    let ty = dfg.value_type(value);
    let limit = |bits: u32| 1i128 << (bits - 1).min(100);
    let all = (-limit(ty.bits()), limit(ty.bits()) - 1);
    if let Some(number) = constant_of(func, value) {
        return (number.into(), number.into());
    }
    let ValueDef::Result(inst, 0) = dfg.value_def(value) else {
        return all;
    };
    if depth == 0 || !ty.is_int() {
        return all;
    }
    let inner = |value: Value| bounds(func, value, depth - 1);
    let number = |value: Value| constant_of(func, value).map(i128::from);
    let scaled = |(low, high): (i128, i128), factor: i128| {
        let (a, b) = (low * factor, high * factor);
        (a.min(b), a.max(b))
    };
    let found = match dfg.insts[inst] {
        InstructionData::Unary {
            opcode: Opcode::Sextend,
            arg,
        } => Some(inner(arg)),
        InstructionData::Unary {
            opcode: Opcode::Uextend,
            arg,
        } => {
            let (low, high) = inner(arg);
            match low >= 0 {
                true => Some((low, high)),
                false => Some((0, 2 * limit(dfg.value_type(arg).bits()) - 1)),
            }
        }
        InstructionData::Binary {
            opcode,
            args: [a, b],
        } => match opcode {
            Opcode::Iadd => {
                let ((a, b), (c, d)) = (inner(a), inner(b));
                Some((a + c, b + d))
            }
            Opcode::Isub => {
                let ((a, b), (c, d)) = (inner(a), inner(b));
                Some((a - d, b - c))
            }
            Opcode::Imul => match (number(a), number(b)) {
                (_, Some(factor)) if factor.abs() < 1 << 32 => Some(scaled(inner(a), factor)),
                (Some(factor), _) if factor.abs() < 1 << 32 => Some(scaled(inner(b), factor)),
                _ => None,
            },
            Opcode::Ishl => match number(b) {
                Some(amount) if amount >= 0 && amount < i128::from(ty.bits()).min(32) => {
                    Some(scaled(inner(a), 1 << amount))
                }
                _ => None,
            },
            Opcode::Band => {
                let masks = [number(a), number(b)].into_iter().flatten();
                masks.filter(|&mask| mask >= 0).min().map(|mask| (0, mask))
            }
            Opcode::Urem => match number(b) {
                Some(divisor) if divisor > 0 => Some((0, divisor - 1)),
                _ => None,
            },
            _ => None,
        },
        InstructionData::Load { opcode, .. } => match opcode {
            Opcode::Uload8 => Some((0, 0xff)),
            Opcode::Uload16 => Some((0, 0xffff)),
            _ => None,
        },
        _ => None,
    };
    // A result that may wrap is anything.
    found
        .filter(|&(low, high)| low >= all.0 && high <= all.1)
        .unwrap_or(all)
}
