//! Which values are one of a few addresses of slots.
//!
//! A data-flow over SSA values: a value is not yet known, is one of some addresses, or is anything.
//! `stack_addr` and sums with constants are one address; select and block parameters are one of
//! what they get.

use cranelift_codegen::entity::{EntityRef, SecondaryMap};
use cranelift_codegen::ir::{
    Block, Function, Inst, InstructionData, Opcode, StackSlot, Value, types,
};
use smallvec::SmallVec;

use crate::effects::constant_of;
use crate::flow::Flow;

/// The most addresses of which a value may be one.
pub(super) const ALTERNATIVES_MAX: usize = 4;

/// Distances beyond which an address is of no use.
const DISTANCE_MAX: i64 = 1 << 32;

/// How often the function is scanned until the addresses are given up.
const SCANS_MAX: usize = 16;

pub(super) type Alternatives = SmallVec<[(StackSlot, i64); ALTERNATIVES_MAX]>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Nothing,
    OneOf(Alternatives),
    Anything,
}

/// See the module. Storage is reused by [`Choices::compute`].
#[derive(Debug, Default)]
pub(super) struct Choices {
    known: SecondaryMap<Value, Known>,
    any: bool,
}

impl Choices {
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.any = false;
    }

    /// The addresses that a select or a block parameter, or a sum of one and a constant, may be.
    pub(super) fn of(&self, func: &Function, value: Value) -> Option<&Alternatives> {
        if !self.any {
            return None;
        }
        match &self.known[func.dfg.resolve_aliases(value)] {
            Known::OneOf(alternatives) => Some(alternatives),
            Known::Nothing | Known::Anything => None,
        }
    }

    pub(super) fn compute(&mut self, func: &Function, flow: &Flow) {
        self.known.clear();
        self.known.resize(func.dfg.num_values());
        self.any = true;
        let entry_params = flow
            .rpo()
            .first()
            .map(|&block| func.dfg.block_params(block));
        for &param in entry_params.unwrap_or_default() {
            self.known[param] = Known::Anything;
        }
        for _ in 0..SCANS_MAX {
            let mut changed = false;
            for &block in flow.rpo() {
                for inst in func.layout.block_insts(block) {
                    changed |= self.visit(func, inst);
                }
            }
            if !changed {
                return;
            }
        }
        self.clear();
    }

    fn known(&self, func: &Function, value: Value) -> &Known {
        &self.known[func.dfg.resolve_aliases(value)]
    }

    fn visit(&mut self, func: &Function, inst: Inst) -> bool {
        let dfg = &func.dfg;
        let data = &dfg.insts[inst];
        if data.opcode().is_branch() {
            return self.visit_branch(func, inst);
        }
        let results = dfg.inst_results(inst);
        let &[result] = results else {
            let mut changed = false;
            for &result in results {
                changed |= self.raise(result, Known::Anything);
            }
            return changed;
        };
        if dfg.value_type(result) != types::I64 {
            return false;
        }
        let known = match *data {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } => {
                let offset = i64::from(i32::from(offset));
                Known::OneOf(Alternatives::from_slice(&[(stack_slot, offset)]))
            }
            InstructionData::Binary {
                opcode: opcode @ (Opcode::Iadd | Opcode::Isub),
                args: [a, b],
            } => match (constant_of(func, a), constant_of(func, b)) {
                (None, Some(distance)) if opcode == Opcode::Iadd => self.moved(func, a, distance),
                (None, Some(distance)) => self.moved(func, a, distance.wrapping_neg()),
                (Some(distance), None) if opcode == Opcode::Iadd => self.moved(func, b, distance),
                _ => Known::Anything,
            },
            InstructionData::Ternary {
                opcode: Opcode::Select,
                args: [_, a, b],
            } => {
                let mut known = self.known(func, a).clone();
                merge(&mut known, self.known(func, b));
                known
            }
            _ => Known::Anything,
        };
        self.raise(result, known)
    }

    fn moved(&self, func: &Function, value: Value, distance: i64) -> Known {
        match self.known(func, value) {
            Known::OneOf(alternatives) => {
                let moved = alternatives.iter().map(|&(slot, offset)| {
                    let offset = offset.checked_add(distance)?;
                    (offset.abs() < DISTANCE_MAX).then_some((slot, offset))
                });
                let moved: Option<Alternatives> = moved.collect();
                moved.map_or(Known::Anything, Known::OneOf)
            }
            known => known.clone(),
        }
    }

    /// Gives the arguments of a branch to the parameters.
    fn visit_branch(&mut self, func: &Function, inst: Inst) -> bool {
        let dfg = &func.dfg;
        let mut changed = false;
        for &result in dfg.inst_results(inst) {
            changed |= self.raise(result, Known::Anything);
        }
        let calls = dfg.insts[inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        for call in calls {
            let block: Block = call.block(&dfg.value_lists);
            for (index, arg) in call.args(&dfg.value_lists).enumerate() {
                let param = dfg.block_params(block)[index];
                if dfg.value_type(param) != types::I64 || self.known[param] == Known::Anything {
                    continue;
                }
                let known = match arg.as_value() {
                    Some(value) => self.known(func, value).clone(),
                    None => Known::Anything,
                };
                changed |= self.raise(param, known);
            }
        }
        changed
    }

    fn raise(&mut self, value: Value, other: Known) -> bool {
        let known = &mut self.known[value];
        let before = match known {
            Known::Nothing => 0,
            Known::OneOf(alternatives) => alternatives.len(),
            Known::Anything => return false,
        };
        merge(known, &other);
        match known {
            Known::Nothing => false,
            Known::OneOf(alternatives) => alternatives.len() != before,
            Known::Anything => true,
        }
    }
}

fn merge(known: &mut Known, other: &Known) {
    match (&mut *known, other) {
        (Known::Anything, _) | (_, Known::Nothing) => {}
        (Known::Nothing, other) => *known = other.clone(),
        (_, Known::Anything) => *known = Known::Anything,
        (Known::OneOf(alternatives), Known::OneOf(others)) => {
            for other in others {
                if !alternatives.contains(other) {
                    alternatives.push(*other);
                }
            }
            alternatives.sort_unstable_by_key(|&(slot, offset)| (slot.index(), offset));
            if alternatives.len() > ALTERNATIVES_MAX {
                *known = Known::Anything;
            }
        }
    }
}
