//! Which values Cranelift will compute anyway.
//!
//! Cranelift drops a load that cannot trap and whose result nothing needs. Giving such a load a
//! new use would bring it back to life, and with it a memory access that no path had before.

use cranelift_codegen::entity::EntitySet;
use cranelift_codegen::ir::{Function, Inst, Value, ValueDef};

use crate::flow::Flow;

/// The instructions that are needed. Storage is reused by [`Needed::compute`].
#[derive(Debug, Default)]
pub(crate) struct Needed {
    insts: EntitySet<Inst>,
    worklist: Vec<Value>,
    computed: bool,
}

impl Needed {
    pub(crate) fn clear(&mut self) {
        self.computed = false;
    }

    /// Whether a side effect of the function depends on `inst`. Computed when first asked, for the
    /// function as it is then.
    pub(crate) fn contains(&mut self, func: &Function, flow: &Flow, inst: Inst) -> bool {
        if !self.computed {
            self.compute(func, flow);
            self.computed = true;
        }
        self.insts.contains(inst)
    }

    fn compute(&mut self, func: &Function, flow: &Flow) {
        self.insts.clear();
        for &block in flow.rpo() {
            for inst in func.layout.block_insts(block) {
                if has_side_effect(func, inst) && self.insts.insert(inst) {
                    self.worklist.extend(func.dfg.inst_values(inst));
                }
            }
        }
        while let Some(value) = self.worklist.pop() {
            let value = func.dfg.resolve_aliases(value);
            if let ValueDef::Result(inst, _) = func.dfg.value_def(value)
                && self.insts.insert(inst)
            {
                self.worklist.extend(func.dfg.inst_values(inst));
            }
        }
    }
}

/// What Cranelift keeps for its own sake.
fn has_side_effect(func: &Function, inst: Inst) -> bool {
    let data = &func.dfg.insts[inst];
    let opcode = data.opcode();
    let may_trap = || {
        let flags = data.memflags_data(&func.dfg);
        opcode.can_load() && flags.is_none_or(|flags| !flags.notrap())
    };
    opcode.is_terminator()
        || opcode.is_branch()
        || opcode.is_call()
        || opcode.is_return()
        || opcode.can_trap()
        || opcode.can_store()
        || opcode.other_side_effects()
        || may_trap()
}
