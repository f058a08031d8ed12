//! The reducer: makes a case smaller as long as it still fails.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{
    Block, BlockArg, BlockCall, Function, Inst, InstBuilder, InstructionData, Opcode, Value, types,
};
use cranelift_codegen::isa::TargetIsa;

use crate::case::Case;
use crate::oracle::{Finding, Setup, check_all};
use crate::shape::Tally;

/// Rounds over all steps, at most.
const ROUNDS_MAX: usize = 8;

/// Makes `case` smaller while `still_fails`. Every case that is tried is accepted by Cranelift's
/// verifier for `isa`.
pub fn reduce(case: &Case, isa: &dyn TargetIsa, still_fails: &dyn Fn(&Case) -> bool) -> Case {
    let mut reducer = Reducer {
        case: case.clone(),
        isa,
        still_fails,
    };
    for _ in 0..ROUNDS_MAX {
        let before = reducer.size();
        reducer.drop_invocations();
        reducer.drop_functions();
        for function in 0..reducer.case.functions.len() {
            reducer.simplify_branches(function);
            reducer.join_blocks(function);
            reducer.drop_insts(function);
        }
        if reducer.size() == before {
            break;
        }
    }
    reducer.case
}

/// Makes a case smaller in which `finding` was found, as long as that kind of finding is the first.
/// Gives what is found in the smaller one. If the finding is there when the case is printed and read
/// back, where values and instructions have other numbers, then also in the smaller one.
pub fn reduce_finding(case: &Case, finding: &Finding, setup: &Setup) -> (Case, Finding) {
    let first_as_is = |case: &Case| {
        let findings = check_all(case, setup, &mut Tally::default());
        findings
            .into_iter()
            .next()
            .filter(|other| other.is_like(finding))
    };
    let first_read_back = |case: &Case| first_as_is(&Case::parse(&case.to_string()).ok()?);
    let replays = first_read_back(case).is_some();
    let first = |case: &Case| match replays {
        true => first_read_back(case),
        false => first_as_is(case),
    };
    let small = reduce(case, &*setup.isa, &|case| first(case).is_some());
    let found = first(&small).unwrap_or_else(|| finding.clone());
    (small, found)
}

struct Reducer<'a> {
    case: Case,
    isa: &'a dyn TargetIsa,
    still_fails: &'a dyn Fn(&Case) -> bool,
}

impl Reducer<'_> {
    fn size(&self) -> (usize, usize, usize) {
        let case = &self.case;
        (
            case.functions.len(),
            case.invocations.len(),
            case.num_insts(),
        )
    }

    /// Takes the case if it is valid and fails.
    fn take(&mut self, case: Case) -> bool {
        let valid = case
            .functions
            .iter()
            .all(|function| cranelift_codegen::verify_function(function, self.isa).is_ok());
        let taken = valid && (self.still_fails)(&case);
        if taken {
            self.case = case;
        }
        taken
    }

    fn take_function(&mut self, index: usize, function: Function) -> bool {
        let mut case = self.case.clone();
        case.functions[index] = function;
        self.take(case)
    }

    fn drop_invocations(&mut self) {
        let mut at = 0;
        while at < self.case.invocations.len() {
            let mut case = self.case.clone();
            case.invocations.remove(at);
            if !self.take(case) {
                at += 1;
            }
        }
    }

    fn drop_functions(&mut self) {
        for index in (0..self.case.functions.len()).rev() {
            let mut case = self.case.clone();
            case.functions.remove(index);
            case.invocations.retain(|run| run.function != index);
            for run in &mut case.invocations {
                run.function -= usize::from(run.function > index);
            }
            self.take(case);
        }
    }

    /// Branches become jumps to one of their targets, or returns; blocks that nothing reaches go.
    fn simplify_branches(&mut self, index: usize) {
        let blocks: Vec<Block> = self.case.functions[index].layout.blocks().collect();
        for block in blocks {
            let function = &self.case.functions[index];
            if !function.layout.is_block_inserted(block) {
                continue;
            }
            let Some(terminator) = function.layout.last_inst(block) else {
                continue;
            };
            let ends = function.dfg.insts[terminator].opcode() == Opcode::Trap;
            if !ends {
                let mut function = function.clone();
                function.replace(terminator).trap(trap_code());
                drop_unreachable(&mut function);
                if self.take_function(index, function) {
                    continue;
                }
            }
            for call in targets(&self.case.functions[index], terminator) {
                let mut function = self.case.functions[index].clone();
                jump_instead(&mut function, terminator, call);
                drop_unreachable(&mut function);
                if self.take_function(index, function) {
                    break;
                }
            }
        }
    }

    /// Blocks that are reached by one jump only become part of the block that jumps.
    fn join_blocks(&mut self, index: usize) {
        let blocks: Vec<Block> = self.case.functions[index].layout.blocks().collect();
        for block in blocks {
            loop {
                let mut function = self.case.functions[index].clone();
                if !join_with_next(&mut function, block) || !self.take_function(index, function) {
                    break;
                }
            }
        }
    }

    /// Instructions go, the last first: those in bulk, then one by one.
    fn drop_insts(&mut self, index: usize) {
        let mut chunk = 16;
        while chunk > 0 {
            let function = &self.case.functions[index];
            let insts: Vec<Inst> = function
                .layout
                .blocks()
                .flat_map(|block| function.layout.block_insts(block))
                .filter(|&inst| !function.dfg.insts[inst].opcode().is_terminator())
                .collect();
            for group in insts.rchunks(chunk) {
                let mut function = self.case.functions[index].clone();
                let fresh = group
                    .iter()
                    .rev()
                    .filter(|&&inst| drop_inst(&mut function, inst));
                if fresh.count() > 0 {
                    self.take_function(index, function);
                }
            }
            chunk /= 4;
        }
    }
}

fn trap_code() -> cranelift_codegen::ir::TrapCode {
    cranelift_codegen::ir::TrapCode::unwrap_user(1)
}

/// The targets of a branch with two or more.
fn targets(function: &Function, terminator: Inst) -> Vec<BlockCall> {
    let calls = function.dfg.insts[terminator]
        .branch_destination(&function.dfg.jump_tables, &function.dfg.exception_tables);
    if calls.len() < 2 {
        return Vec::new();
    }
    calls.to_vec()
}

fn jump_instead(function: &mut Function, terminator: Inst, call: BlockCall) {
    let call = call.deep_clone(&mut function.dfg.value_lists);
    function.dfg.clear_results(terminator);
    function.dfg.insts[terminator] = InstructionData::Jump {
        opcode: Opcode::Jump,
        destination: call,
    };
}

/// Moves the instructions of the block that `block` jumps to behind those of `block`. Whether there is
/// one, and nothing else goes there.
fn join_with_next(function: &mut Function, block: Block) -> bool {
    if !function.layout.is_block_inserted(block) {
        return false;
    }
    let Some(jump) = function.layout.last_inst(block) else {
        return false;
    };
    function.dfg.resolve_all_aliases();
    let InstructionData::Jump { destination, .. } = function.dfg.insts[jump] else {
        return false;
    };
    let next = destination.block(&function.dfg.value_lists);
    let mut flow = ControlFlowGraph::new();
    flow.compute(function);
    if flow.pred_iter(next).count() > 1 || Some(next) == function.layout.entry_block() {
        return false;
    }
    let arguments: Vec<BlockArg> = destination.args(&function.dfg.value_lists).collect();
    let params = function.dfg.detach_block_params(next);
    let params = params.as_slice(&function.dfg.value_lists).to_vec();
    for (param, argument) in params.into_iter().zip(arguments) {
        if let BlockArg::Value(value) = argument {
            replace_uses(function, param, value);
        }
    }
    function.layout.remove_inst(jump);
    while let Some(inst) = function.layout.first_inst(next) {
        function.layout.remove_inst(inst);
        function.layout.append_inst(inst, block);
    }
    function.layout.remove_block(next);
    true
}

fn drop_unreachable(function: &mut Function) {
    let mut flow = cranelift_memopt::flow::Flow::default();
    flow.compute(function);
    let blocks: Vec<Block> = function.layout.blocks().collect();
    for block in blocks
        .into_iter()
        .filter(|&block| !flow.is_reachable(block))
    {
        while let Some(inst) = function.layout.first_inst(block) {
            function.layout.remove_inst(inst);
        }
        function.layout.remove_block(block);
    }
}

/// Removes an instruction; its results become zero. Whether anything changed.
fn drop_inst(function: &mut Function, inst: Inst) -> bool {
    if function.layout.inst_block(inst).is_none() {
        return false;
    }
    let opcode = function.dfg.insts[inst].opcode();
    let results: Vec<Value> = function.dfg.inst_results(inst).to_vec();
    let unused = results.iter().all(|&value| !is_used(function, value));
    if !unused && opcode == Opcode::Iconst {
        return false;
    }
    if !unused {
        for value in results {
            let ty = function.dfg.value_type(value);
            let mut cursor = FuncCursor::new(function).at_inst(inst);
            let Some(zero) = zero(&mut cursor, ty) else {
                return false;
            };
            replace_uses(function, value, zero);
        }
    }
    function.layout.remove_inst(inst);
    true
}

fn zero(cursor: &mut FuncCursor<'_>, ty: types::Type) -> Option<Value> {
    Some(match ty {
        types::I128 => {
            let half = cursor.ins().iconst(types::I64, 0);
            cursor.ins().iconcat(half, half)
        }
        types::F32 => cursor.ins().f32const(0.0),
        types::F64 => cursor.ins().f64const(0.0),
        _ if ty.is_int() => cursor.ins().iconst(ty, 0),
        _ if ty.is_vector() => {
            let lane = zero(cursor, ty.lane_type())?;
            cursor.ins().splat(ty, lane)
        }
        _ => return None,
    })
}

fn is_used(function: &Function, value: Value) -> bool {
    let layout = &function.layout;
    layout
        .blocks()
        .flat_map(|block| layout.block_insts(block))
        .any(|inst| {
            let mut values = function.dfg.inst_values(inst);
            values.any(|used| function.dfg.resolve_aliases(used) == value)
        })
}

fn replace_uses(function: &mut Function, value: Value, by: Value) {
    function.dfg.resolve_all_aliases();
    let insts: Vec<Inst> = function
        .layout
        .blocks()
        .flat_map(|block| function.layout.block_insts(block))
        .collect();
    for inst in insts {
        function
            .dfg
            .map_inst_values(inst, |used| if used == value { by } else { used });
    }
}
