//! Edits of a function where there is no MemorySSA to keep in step: what promotion of slots and
//! smaller frames are made of.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{
    Block, BlockArg, BlockCall, Function, Inst, InstructionData, StackSlot, StackSlotData, Type,
    Value,
};
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

    /// The instructions of `block`, which has none until they are put back with
    /// [`Edit::append`]. Insertion is cheap only near the end of a block: elsewhere all that follow
    /// get new numbers.
    pub(crate) fn take_insts(&mut self, block: Block) -> Vec<Inst> {
        let insts: Vec<Inst> = self.func.layout.block_insts(block).collect();
        for &inst in &insts {
            self.func.layout.remove_inst(inst);
        }
        insts
    }

    pub(crate) fn append(&mut self, block: Block, inst: Inst) {
        self.func.layout.append_inst(inst, block);
    }

    /// Where the branch goes by each of its edges.
    pub(crate) fn targets(&self, branch: Inst) -> SmallVec<[Block; 2]> {
        let dfg = &self.func.dfg;
        let calls = dfg.insts[branch].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        calls
            .iter()
            .map(|call| call.block(&dfg.value_lists))
            .collect()
    }

    /// Gives further arguments by an edge of a branch, as numbered by [`Edit::targets`].
    pub(crate) fn append_arguments(&mut self, branch: Inst, edge: usize, values: &[Value]) {
        let dfg = &mut self.func.dfg;
        let calls = dfg.insts[branch]
            .branch_destination_mut(&mut dfg.jump_tables, &mut dfg.exception_tables);
        let call = &mut calls[edge];
        // A new list: the old one may be shared by branches that were copied.
        let mut args: SmallVec<[BlockArg; 8]> = call.args(&dfg.value_lists).collect();
        args.extend(values.iter().map(|&value| BlockArg::Value(value)));
        *call = BlockCall::new(call.block(&dfg.value_lists), args, &mut dfg.value_lists);
    }

    /// Declares that the only result of `inst`, which is to be removed, is `value`.
    pub(crate) fn replace_result(&mut self, inst: Inst, value: Value) {
        let result = self.func.dfg.first_result(inst);
        self.func.dfg.clear_results(inst);
        self.func.dfg.change_to_alias(result, value);
    }

    /// Has `inst`, a `stack_addr`, name another slot.
    pub(crate) fn set_named_slot(&mut self, inst: Inst, slot: StackSlot) {
        if let InstructionData::StackAddr { stack_slot, .. } = &mut self.func.dfg.insts[inst] {
            *stack_slot = slot;
        }
    }

    pub(crate) fn set_slot(&mut self, slot: StackSlot, data: StackSlotData) {
        self.func.sized_stack_slots[slot] = data;
    }

    /// Drops the slots from number `length` on, which nothing names.
    pub(crate) fn truncate_slots(&mut self, length: usize) {
        if length < self.func.sized_stack_slots.len() {
            let kept = self.func.sized_stack_slots.values().take(length).cloned();
            self.func.sized_stack_slots = kept.collect();
        }
    }

    pub(crate) fn remove(&mut self, inst: Inst) {
        self.func.layout.remove_inst(inst);
    }
}
