//! Instructions, memory operations, stack slots and machine code of one function after Cranelift.

use std::collections::BTreeSet;
use std::ops::{Add, AddAssign};

use anyhow::{Context as _, anyhow};
use cranelift_codegen::Context;
use cranelift_codegen::dominator_tree::DominatorTree;
use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{
    Block, ExternalName, Function, Inst, InstructionData, LibCall, Opcode, StackSlot, Value,
    ValueDef,
};
use cranelift_codegen::isa::TargetIsa;

/// What is left of a function after Cranelift's optimizer, and the machine code made of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// CLIF instructions that are lowered: in reachable blocks, and with an effect or a use.
    pub insts: u64,
    /// Instructions among them that read memory. Calls do not count.
    pub loads: u64,
    /// Instructions among them that write memory. Calls do not count; an atomic read-modify-write
    /// is a load and a store.
    pub stores: u64,
    /// Sized stack slots whose address is still taken.
    pub slots: u64,
    /// Bytes of the frame below the frame pointer: slots, spills, saved registers and outgoing
    /// arguments. Cranelift lays out every declared slot, also one that nothing names.
    pub frame_bytes: u64,
    /// Bytes of machine code.
    pub code_bytes: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        let Counts {
            insts,
            loads,
            stores,
            slots,
            frame_bytes,
            code_bytes,
        } = other;
        self.insts += insts;
        self.loads += loads;
        self.stores += stores;
        self.slots += slots;
        self.frame_bytes += frame_bytes;
        self.code_bytes += code_bytes;
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(mut self, other: Counts) -> Counts {
        self += other;
        self
    }
}

/// A function after Cranelift's optimizer, with what was counted in it.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The function as it was lowered: the input of [`worse_path`](crate::worse_path).
    pub optimized: Function,
    /// What was counted.
    pub counts: Counts,
}

/// Counts what is left of `func` after Cranelift's optimizer at the level that `isa` sets.
///
/// # Errors
/// Cranelift cannot compile the function.
pub fn measure(func: &Function, isa: &dyn TargetIsa) -> anyhow::Result<Counts> {
    compile(func, isa).map(|compiled| compiled.counts)
}

/// As [`measure`], and gives the optimized function too.
///
/// # Errors
/// Cranelift cannot compile the function.
pub fn compile(func: &Function, isa: &dyn TargetIsa) -> anyhow::Result<Compiled> {
    let mut context = Context::for_function(func.clone());
    context
        .optimize(isa, &mut Default::default())
        .map_err(|error| anyhow!("{error}"))
        .context("Cranelift's optimizer failed")?;
    // The second half of `Context::compile`, which would run the optimizer again.
    let code = isa
        .compile_function(
            &context.func,
            &context.domtree,
            &mut Default::default(),
            false,
            &mut Default::default(),
        )
        .map_err(|error| anyhow!("{error}"))
        .context("Cranelift cannot compile it")?;
    let mut counts = count_clif(&context.func);
    counts.code_bytes = code.buffer.data().len() as u64;
    counts.frame_bytes = match code.buffer.frame_layout() {
        Some(layout) => u64::from(layout.frame_to_fp_offset),
        None => slot_bytes(&context.func),
    };
    Ok(Compiled {
        optimized: context.func,
        counts,
    })
}

/// The memory operations of each reachable block that Cranelift lowers: a load, a store and an
/// atomic access are one each. Blocks that cannot be reached have none.
///
/// A load whose value is not used counts: Cranelift's lowering keeps every load that its optimizer
/// left in the block, `notrap` or not.
pub fn memory_ops(func: &Function) -> SecondaryMap<Block, u32> {
    let mut ops = SecondaryMap::new();
    for block in reachable_blocks(func) {
        ops[block] = func
            .layout
            .block_insts(block)
            .filter(|&inst| is_memory_op(func.dfg.insts[inst].opcode()))
            .count() as u32;
    }
    ops
}

/// The memory operations that a call costs besides what the callee does: the return address, and
/// values kept over it.
const CALL_OPS: u32 = 4;

/// What the call of a memory function that is told how many bytes counts as: 4 for the call, and what
/// it does to words of 8 bytes. 0 for any other instruction.
pub fn ops_of_memory_function(func: &Function, inst: Inst) -> u32 {
    let dfg = &func.dfg;
    let InstructionData::Call { func_ref, .. } = dfg.insts[inst] else {
        return 0;
    };
    let ops_a_word = match dfg.ext_funcs[func_ref].name {
        ExternalName::LibCall(LibCall::Memcpy | LibCall::Memmove) => 2,
        ExternalName::LibCall(LibCall::Memset) => 1,
        _ => return 0,
    };
    let length = dfg.inst_args(inst).get(2).and_then(|&length| {
        let def = dfg.value_def(dfg.resolve_aliases(length)).inst()?;
        match dfg.insts[def] {
            InstructionData::UnaryImm { imm, .. } => u32::try_from(imm.bits()).ok(),
            _ => None,
        }
    });
    length.map_or(0, |length| CALL_OPS + ops_a_word * length.div_ceil(8))
}

fn is_memory_op(opcode: Opcode) -> bool {
    reads(opcode) || writes(opcode)
}

fn reads(opcode: Opcode) -> bool {
    opcode.can_load() && !acts_on_control(opcode)
}

fn writes(opcode: Opcode) -> bool {
    opcode.can_store() && !acts_on_control(opcode)
}

/// Instructions that Cranelift says may load and store, though they are no access themselves.
fn acts_on_control(opcode: Opcode) -> bool {
    opcode.is_call() || matches!(opcode, Opcode::Debugtrap | Opcode::StackSwitch)
}

/// The blocks of `func` that can be reached from its entry, in reverse postorder.
pub(crate) fn reachable_blocks(func: &Function) -> Vec<Block> {
    let cfg = ControlFlowGraph::with_function(func);
    let domtree = DominatorTree::with_function(func, &cfg);
    domtree.cfg_rpo().copied().collect()
}

fn count_clif(func: &Function) -> Counts {
    let mut counts = Counts::default();
    let mut slots = BTreeSet::new();
    for inst in lowered_insts(func) {
        let opcode = func.dfg.insts[inst].opcode();
        counts.insts += 1;
        counts.loads += u64::from(reads(opcode));
        counts.stores += u64::from(writes(opcode));
        slots.extend(named_slots(func, inst));
    }
    counts.slots = slots.len() as u64;
    counts
}

fn named_slots(func: &Function, inst: Inst) -> impl Iterator<Item = StackSlot> + '_ {
    let address = match func.dfg.insts[inst] {
        InstructionData::StackAddr { stack_slot, .. } => Some(stack_slot),
        _ => None,
    };
    let mapped = func.dfg.user_stack_map_entries(inst).unwrap_or(&[]);
    address
        .into_iter()
        .chain(mapped.iter().map(|entry| entry.slot))
}

/// The instructions that are lowered: those with an effect, every load, and what they use.
fn lowered_insts(func: &Function) -> Vec<Inst> {
    let mut seen = EntitySet::new();
    let mut lowered = Vec::new();
    for block in reachable_blocks(func) {
        for inst in func.layout.block_insts(block) {
            if is_root(func.dfg.insts[inst].opcode()) && seen.insert(inst) {
                lowered.push(inst);
            }
        }
    }
    let mut next = 0;
    while let Some(&user) = lowered.get(next) {
        next += 1;
        for value in func.dfg.inst_values(user) {
            if let Some(inst) = defining_inst(func, value)
                && seen.insert(inst)
            {
                lowered.push(inst);
            }
        }
    }
    lowered
}

fn is_root(opcode: Opcode) -> bool {
    opcode.is_call()
        || opcode.is_branch()
        || opcode.is_terminator()
        || opcode.is_return()
        || opcode.can_trap()
        || opcode.other_side_effects()
        || opcode.can_store()
        || opcode.can_load()
}

fn defining_inst(func: &Function, value: Value) -> Option<Inst> {
    match func.dfg.value_def(func.dfg.resolve_aliases(value)) {
        ValueDef::Result(inst, _) => Some(inst),
        ValueDef::Param(..) | ValueDef::Union(..) => None,
    }
}

fn slot_bytes(func: &Function) -> u64 {
    let mut end = 0_u64;
    for (_, slot) in func.sized_stack_slots.iter() {
        let align = 1_u64 << slot.align_shift.min(16);
        end = end.next_multiple_of(align) + u64::from(slot.size);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_for;

    fn counts(text: &str) -> Counts {
        let func = cranelift_reader::parse_functions(text).unwrap().remove(0);
        measure(&func, &*isa_for("x86_64").unwrap()).unwrap()
    }

    #[test]
    fn counts_what_is_lowered() {
        let counts = counts(
            "function %f(i64) -> i64 system_v {
                ss0 = explicit_slot 8
                ss1 = explicit_slot 8
            block0(v0: i64):
                v1 = stack_addr.i64 ss0
                v2 = stack_addr.i64 ss1
                v3 = load.i64 v0
                v4 = iadd v3, v3
                v5 = load.i64 notrap aligned v0+8
                store v3, v1
                v6 = atomic_rmw.i64 add v0, v3
                return v4
            }",
        );
        // stack_addr, load, iadd, load, store, atomic_rmw, return.
        assert_eq!(
            (counts.insts, counts.loads, counts.stores, counts.slots),
            (7, 3, 2, 1)
        );
        assert!(counts.code_bytes > 0 && counts.frame_bytes >= 16);
    }

    #[test]
    fn a_load_without_use_is_still_lowered() {
        let used = "function %f(i64) system_v { block0(v0: i64): v1 = load.i64 notrap v0 return }";
        let without = "function %f(i64) system_v { block0(v0: i64): return }";
        let (used, without) = (counts(used), counts(without));
        assert_eq!((used.loads, without.loads), (1, 0));
        assert!(used.code_bytes > without.code_bytes);
    }

    #[test]
    fn calls_are_no_memory_operations() {
        let counts = counts(
            "function %f(i64) system_v {
                fn0 = %g(i64) system_v
            block0(v0: i64):
                call fn0(v0)
                debugtrap
                return
            }",
        );
        assert_eq!((counts.loads, counts.stores), (0, 0));
    }

    #[test]
    fn counts_add_up() {
        let one = Counts {
            insts: 1,
            loads: 2,
            stores: 3,
            slots: 4,
            frame_bytes: 5,
            code_bytes: 6,
        };
        let two = one + one;
        assert_eq!((two.insts, two.code_bytes), (2, 12));
    }
}
