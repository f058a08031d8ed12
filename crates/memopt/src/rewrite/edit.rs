//! Edits of a function before MemorySSA is built: what promotion of slots is made of.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{Block, BlockArg, BlockCall, Function, Inst, Type, Value};
use smallvec::SmallVec;

/// Changes a function of which no analysis but the control flow graph is to be kept.
pub(crate) struct Edit<'a> {
    func: &'a mut Function,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(func: &'a mut Function) -> Self {
        Edit { func }
    }

    /// The function as it is.
    pub(crate) fn func(&self) -> &Function {
        self.func
    }

    /// Inserts instructions before `inst`, at its source location.
    pub(crate) fn before(&mut self, inst: Inst) -> FuncCursor<'_> {
        let srcloc = self.func.srcloc(inst);
        let mut cursor = FuncCursor::new(self.func).at_inst(inst);
        cursor.set_srcloc(srcloc);
        cursor
    }

    pub(crate) fn append_param(&mut self, block: Block, ty: Type) -> Value {
        self.func.dfg.append_block_param(block, ty)
    }

    /// Gives a further argument to `to` wherever the branch `from` goes there.
    pub(crate) fn append_arguments(&mut self, from: Inst, to: Block, values: &[Value]) {
        let dfg = &mut self.func.dfg;
        let calls =
            dfg.insts[from].branch_destination_mut(&mut dfg.jump_tables, &mut dfg.exception_tables);
        for call in calls {
            if call.block(&dfg.value_lists) != to {
                continue;
            }
            // A new list: the old one may be shared by branches that were copied.
            let mut args: SmallVec<[BlockArg; 8]> = call.args(&dfg.value_lists).collect();
            args.extend(values.iter().map(|&value| BlockArg::Value(value)));
            *call = BlockCall::new(to, args, &mut dfg.value_lists);
        }
    }

    /// Declares that the only result of `inst`, which is to be removed, is `value`.
    pub(crate) fn replace_result(&mut self, inst: Inst, value: Value) {
        let result = self.func.dfg.first_result(inst);
        self.func.dfg.clear_results(inst);
        self.func.dfg.change_to_alias(result, value);
    }

    pub(crate) fn remove(&mut self, inst: Inst) {
        self.func.layout.remove_inst(inst);
    }
}
