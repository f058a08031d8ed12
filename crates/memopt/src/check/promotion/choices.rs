//! Addresses that are one of a few.
//!
//! Which addresses a value may be is a data flow over select and block parameters. An access at such
//! an address is proven for each of them, its *cases*: what was put in its place is evaluated on
//! condition that the address is the one, which decides selects that ask for it.

use cranelift_codegen::ir::{
    BlockArg, Inst, InstructionData, Opcode, StackSlot, Value, ValueDef, condcodes::IntCC, types,
};

use super::{Byte, Bytes, Derived, Promoted, in_memory, memory_type};
use crate::effects::constant_of;

/// How deep values are followed on a condition.
const DEPTH_MAX: u32 = 64;

/// The most addresses of which a value may be one.
const ADDRESSES_MAX: usize = 8;

/// A slot, and a distance from its first byte.
pub(super) type Address = (StackSlot, i128);

/// A value that is one of several addresses is this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    address: Value,
    chosen: Address,
}

impl Promoted<'_> {
    /// Iterates up from "nothing".
    pub(super) fn compute_addresses(&mut self) {
        let entry = self.before.layout.entry_block();
        for &param in entry.map_or(&[][..], |entry| self.before.dfg.block_params(entry)) {
            self.addresses.insert(param, None);
        }
        let mut changed = true;
        while changed {
            changed = false;
            for index in 0..self.order.len() {
                for inst in self.before.layout.block_insts(self.order[index]) {
                    changed |= self.flow_addresses(inst);
                }
            }
        }
    }

    fn add_addresses(&mut self, value: Value, more: Option<Vec<Address>>) -> bool {
        let Some(more) = more else {
            return self.addresses.insert(value, None) != Some(None);
        };
        if more.is_empty() {
            return false;
        }
        let known = self
            .addresses
            .entry(value)
            .or_insert_with(|| Some(Vec::new()));
        let Some(addresses) = known else { return false };
        let before = addresses.len();
        for address in more {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let after = addresses.len();
        if after > ADDRESSES_MAX {
            *known = None;
        }
        after != before
    }

    /// The addresses that a value may be, no address if nothing is known yet, none if it may be
    /// anything.
    pub(super) fn addresses_of(&self, value: Value) -> Option<Vec<Address>> {
        let value = self.before.dfg.resolve_aliases(value);
        self.addresses
            .get(&value)
            .cloned()
            .unwrap_or(Some(Vec::new()))
    }

    fn flow_addresses(&mut self, inst: Inst) -> bool {
        let dfg = &self.before.dfg;
        let mut changed = false;
        if dfg.insts[inst].opcode().is_branch() {
            let calls = dfg.insts[inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
            for call in calls {
                let params = dfg.block_params(call.block(&dfg.value_lists));
                let args: Vec<BlockArg> = call.args(&dfg.value_lists).collect();
                for (&param, arg) in params.iter().zip(args) {
                    let more = arg.as_value().and_then(|value| self.addresses_of(value));
                    changed |= self.add_addresses(param, more);
                }
            }
        }
        for &result in dfg.inst_results(inst) {
            let more = self.addresses_of_result(inst, result);
            changed |= self.add_addresses(result, more);
        }
        changed
    }

    fn addresses_of_result(&self, inst: Inst, result: Value) -> Option<Vec<Address>> {
        let dfg = &self.before.dfg;
        match dfg.insts[inst] {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } if dfg.value_type(result) == types::I64 => {
                Some(vec![(stack_slot, i128::from(i32::from(offset)))])
            }
            InstructionData::Binary {
                opcode: opcode @ (Opcode::Iadd | Opcode::Isub),
                args: [a, b],
            } => {
                let (base, distance) = match (constant_of(self.before, a), opcode) {
                    (Some(distance), Opcode::Iadd) => (b, Some(distance)),
                    _ => (a, constant_of(self.before, b)),
                };
                let sign = if opcode == Opcode::Isub { -1 } else { 1 };
                let by = sign * i128::from(distance?);
                let known = self.addresses_of(base)?;
                Some(known.iter().map(|&(slot, at)| (slot, at + by)).collect())
            }
            InstructionData::Ternary {
                opcode: Opcode::Select,
                args: [_, a, b],
            } => Some([self.addresses_of(a)?, self.addresses_of(b)?].concat()),
            _ => None,
        }
    }

    /// The addresses that a value may be, if they are known and not one alone.
    pub(super) fn choice(&self, value: Value) -> Option<Vec<Address>> {
        self.addresses_of(value).filter(|known| known.len() > 1)
    }

    /// A value that can only be one address is derived from its slot.
    pub(super) fn derive_single(&mut self, value: Value) {
        if let Some(&[(slot, at)]) = self.addresses_of(value).as_deref() {
            let derived = Derived {
                slot,
                low: at,
                high: at,
            };
            self.derived.insert(value, derived);
        }
    }

    /// Addresses may be sent to parameters of which all addresses are known.
    pub(super) fn visit_branch(&self, inst: Inst) -> Result<(), String> {
        let dfg = &self.before.dfg;
        let escapes = || Err("the address of a slot with cells escapes".to_string());
        if dfg.inst_args(inst).iter().any(|&arg| self.has_cells(arg)) {
            return escapes();
        }
        let calls = dfg.insts[inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        for call in calls {
            let params = dfg.block_params(call.block(&dfg.value_lists));
            for (&param, arg) in params.iter().zip(call.args(&dfg.value_lists)) {
                let unknown = |value| self.has_cells(value) && self.addresses_of(param).is_none();
                if arg.as_value().is_some_and(unknown) {
                    return escapes();
                }
            }
        }
        Ok(())
    }

    /// The bytes of cells that an access touches in each case.
    pub(super) fn cases(
        &self,
        inst: Inst,
        address: Value,
    ) -> Result<Vec<(Case, Vec<usize>)>, String> {
        let data = &self.before.dfg.insts[inst];
        let flags = data.memflags_data(&self.before.dfg).ok_or("no flags")?;
        let region = flags.alias_region();
        if region.is_some_and(|region| self.outside[region.as_u32() as usize]) {
            return Err("is in an outside region".to_string());
        }
        let ty = memory_type(self.before, inst).ok_or("no type")?;
        let offset = i128::from(data.load_store_offset().unwrap_or(0));
        let address = self.before.dfg.resolve_aliases(address);
        let chosen = self.choice(address).unwrap_or_default();
        chosen
            .into_iter()
            .map(|(slot, at)| {
                let start = u32::try_from(at + offset).ok()?;
                let bytes = (0..ty.bytes()).map(|index| self.byte_of(slot, start + index));
                let case = Case {
                    address,
                    chosen: (slot, at),
                };
                Some((case, bytes.collect::<Option<Vec<usize>>>()?))
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| "went, but may touch bytes that are in no cell".to_string())
    }

    /// Whether a condition holds in a case; none if that does not tell.
    fn decide(&self, condition: Value, case: &Case) -> Option<bool> {
        let dfg = &self.after.dfg;
        let condition = dfg.resolve_aliases(condition);
        if let ValueDef::Result(inst, 0) = self.before.dfg.value_def(case.address)
            && let InstructionData::Ternary {
                opcode: Opcode::Select,
                args: [asked, a, b],
            } = self.before.dfg.insts[inst]
            && self.same(asked, condition)
        {
            let exactly = |value| match self.addresses_of(value).as_deref() {
                Some(&[address]) => Some(address == case.chosen),
                _ => None,
            };
            return match (exactly(a)?, exactly(b)?) {
                (true, false) => Some(true),
                (false, true) => Some(false),
                _ => None,
            };
        }
        let InstructionData::IntCompare {
            cond: IntCC::Equal,
            args: [a, b],
            ..
        } = dfg.insts[dfg.value_def(condition).inst()?]
        else {
            return None;
        };
        if !self.same(case.address, a) {
            return None;
        }
        match dfg.insts[dfg.value_def(dfg.resolve_aliases(b)).inst()?] {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } => Some((stack_slot, i128::from(i32::from(offset))) == case.chosen),
            _ => None,
        }
    }

    /// The operand that a select gives in a case.
    fn selected(&self, inst: Inst, case: &Case) -> Option<Value> {
        match self.after.dfg.insts[inst] {
            InstructionData::Ternary {
                opcode: Opcode::Select,
                args: [condition, a, b],
            } => Some(if self.decide(condition, case)? { a } else { b }),
            _ => None,
        }
    }

    /// The bytes of a value in a case.
    fn bytes_in_case(&self, value: Value, case: &Case, depth: u32) -> Bytes {
        let dfg = &self.after.dfg;
        let value = dfg.resolve_aliases(value);
        let own = self.value_bytes(value);
        let ValueDef::Result(inst, number) = dfg.value_def(value) else {
            return own;
        };
        if depth == 0 || !self.is_new(inst) {
            return own;
        }
        if let Some(selected) = self.selected(inst, case) {
            return self.bytes_in_case(selected, case, depth - 1);
        }
        let operand = |value| self.bytes_in_case(value, case, depth - 1);
        match self.evaluate_inst(inst, number, dfg.value_type(value), &operand) {
            Some(bytes) if bytes.len() == own.len() => bytes
                .into_iter()
                .zip(own)
                .map(|(byte, own)| if byte == Byte::Unknown { own } else { byte })
                .collect(),
            _ => own,
        }
    }

    /// Whether a value is these bytes in a case.
    pub(super) fn agrees(&self, value: Value, expected: &[Byte], case: &Case) -> bool {
        let equal = |found: &[Byte], expected: &[Byte]| {
            found.len() == expected.len() && found.iter().zip(expected).all(|(&a, &b)| a.is(b))
        };
        let dfg = &self.after.dfg;
        // Selects first: a state names values that the case would take apart.
        let mut chosen = dfg.resolve_aliases(value);
        loop {
            if equal(&self.value_bytes(chosen), expected) {
                return true;
            }
            let ValueDef::Result(inst, 0) = dfg.value_def(chosen) else {
                break;
            };
            let Some(selected) = self.selected(inst, case) else {
                break;
            };
            chosen = dfg.resolve_aliases(selected);
        }
        let in_case = |value, index: u8| {
            let bytes = self.bytes_in_case(value, case, DEPTH_MAX);
            bytes[usize::from(index)]
        };
        let expected: Bytes = expected
            .iter()
            .map(|&byte| match byte {
                Byte::Of(value, index) => in_case(value, index),
                Byte::Sign(value, index) => in_case(value, index).sign(),
                Byte::Unknown | Byte::Constant(_) => byte,
            })
            .collect();
        equal(&self.bytes_in_case(value, case, DEPTH_MAX), &expected)
    }

    /// In each case, the values claimed are what the cells hold after the store.
    pub(super) fn prove_store_any(
        &self,
        cases: &[(Case, Vec<(usize, Byte)>)],
        values: &[(Vec<usize>, Value)],
        state: &[Byte],
    ) -> Result<(), String> {
        for (case, written) in cases {
            let mut after = state.to_vec();
            for &(place, byte) in written {
                after[place] = byte;
            }
            for (places, value) in values {
                let ty = self.after.dfg.value_type(*value);
                let expected: Bytes = places.iter().map(|&place| after[place]).collect();
                let expected = in_memory(&expected, ty, self.endianness);
                if !self.agrees(*value, &expected, case) {
                    return Err(format!("{value} is not what a cell holds then"));
                }
            }
        }
        Ok(())
    }

    /// What the state is after such a store.
    pub(super) fn store_any(
        &self,
        cases: &[(Case, Vec<(usize, Byte)>)],
        values: &[(Vec<usize>, Value)],
        state: &mut [Byte],
    ) {
        for &(place, _) in cases.iter().flat_map(|(_, written)| written) {
            state[place] = Byte::Unknown;
        }
        for (places, value) in values {
            let ty = self.after.dfg.value_type(*value);
            let bytes = in_memory(&self.value_bytes(*value), ty, self.endianness);
            for (&place, byte) in places.iter().zip(bytes) {
                state[place] = byte;
            }
        }
    }
}
