//! The proof that the optimized function is the original one but for the claimed rewrites.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    Block, Endianness, Function, Inst, InstructionData, MemFlags, MemFlagsData, Opcode, Value,
    ValueDef,
};
use rustc_hash::FxHashMap;

use crate::certificate::Certificate;
use crate::convert::{Conversion, Step};

/// What a claim says of an instruction that went.
#[derive(Clone, Copy)]
enum Removal<'a> {
    Load {
        value: Value,
        conversion: &'a Conversion,
    },
    Store,
}

struct Comparison<'a> {
    original: &'a Function,
    optimized: &'a Function,
    removals: FxHashMap<Inst, Removal<'a>>,
    /// The instructions that convert a value for a load that went.
    conversions: FxHashMap<Inst, Vec<Inst>>,
}

/// Fails at the first difference that no claim covers.
pub(super) fn check(
    original: &Function,
    optimized: &Function,
    certificates: &[Certificate],
) -> Result<(), String> {
    let mut comparison = Comparison {
        original,
        optimized,
        removals: FxHashMap::default(),
        conversions: FxHashMap::default(),
    };
    comparison.collect_removals(certificates)?;
    compare_tables(original, optimized, false)?;
    comparison.match_layouts()?;
    comparison.compare_instructions()
}

/// Fails if the access is still `aligned`.
pub(super) fn ensure_unaligned(optimized: &Function, inst: Inst) -> Result<(), String> {
    let flags = optimized.dfg.insts[inst].memflags_data(&optimized.dfg);
    if flags.is_some_and(|flags| flags.aligned()) {
        return Err(format!(
            "{inst} ({}) is aligned, but stands for an access that is not",
            optimized.dfg.display_inst(inst)
        ));
    }
    Ok(())
}

impl<'a> Comparison<'a> {
    fn collect_removals(&mut self, certificates: &'a [Certificate]) -> Result<(), String> {
        for certificate in certificates {
            let (inst, removal) = match certificate {
                Certificate::LoadTakes {
                    load,
                    value,
                    conversion,
                    ..
                } => (
                    *load,
                    Removal::Load {
                        value: *value,
                        conversion,
                    },
                ),
                Certificate::StoreUnobserved { store } | Certificate::StoreInVain { store, .. } => {
                    (*store, Removal::Store)
                }
            };
            let data = self.original.dfg.insts[inst];
            let fits = match removal {
                Removal::Load { .. } => self.original.dfg.inst_results(inst).len() == 1,
                Removal::Store => self.original.dfg.inst_results(inst).is_empty(),
            };
            if !fits || self.removals.insert(inst, removal).is_some() {
                return Err(format!(
                    "{inst} ({}) cannot be removed, or not twice",
                    data.opcode()
                ));
            }
        }
        Ok(())
    }

    /// Walks both layouts in parallel: what is missing is claimed, what is new is a conversion.
    fn match_layouts(&mut self) -> Result<(), String> {
        let (a, b) = (self.original, self.optimized);
        if !a.layout.blocks().eq(b.layout.blocks()) {
            return Err("the function's blocks changed".to_string());
        }
        for block in a.layout.blocks() {
            self.match_block(block)?;
        }
        Ok(())
    }

    fn match_block(&mut self, block: Block) -> Result<(), String> {
        let (a, b) = (self.original, self.optimized);
        let types = |func: &'a Function, values: &'a [Value]| {
            values.iter().map(|&value| func.dfg.value_type(value))
        };
        let (before, after) = (a.dfg.block_params(block), b.dfg.block_params(block));
        if before != after || !types(a, before).eq(types(b, after)) {
            return Err(format!("the parameters of {block} changed"));
        }
        let mut rest = b.layout.block_insts(block).peekable();
        for inst in a.layout.block_insts(block) {
            match self.removals.get(&inst) {
                None => {
                    if rest.next() != Some(inst) {
                        return Err(format!(
                            "{inst} ({}) is not where it was, and no claim says so",
                            a.dfg.display_inst(inst)
                        ));
                    }
                }
                Some(Removal::Store) => {}
                Some(Removal::Load { conversion, .. }) => {
                    let count = conversion.steps.len();
                    let new: Vec<Inst> = rest.by_ref().take(count).collect();
                    let is_new = |inst: &Inst| a.layout.inst_block(*inst).is_none();
                    if new.len() != count || !new.iter().all(is_new) {
                        return Err(format!("{inst} lacks its conversion"));
                    }
                    self.conversions.insert(inst, new);
                }
            }
        }
        match rest.next() {
            Some(inst) => Err(format!(
                "{inst} ({}) is there, and no claim says why",
                b.dfg.display_inst(inst)
            )),
            None => Ok(()),
        }
    }

    /// What the optimized function calls a value of the original one.
    fn renamed(&self, value: Value) -> Value {
        let mut value = self.original.dfg.resolve_aliases(value);
        // Each step goes to a value that is defined above.
        for _ in 0..=self.removals.len() {
            let ValueDef::Result(inst, 0) = self.original.dfg.value_def(value) else {
                return value;
            };
            let Some(Removal::Load { value: taken, .. }) = self.removals.get(&inst) else {
                return value;
            };
            let conversions = self.conversions.get(&inst);
            if let Some(&last) = conversions.and_then(|new| new.last()) {
                return self.optimized.dfg.first_result(last);
            }
            value = self.original.dfg.resolve_aliases(*taken);
        }
        value
    }

    fn compare_instructions(&self) -> Result<(), String> {
        let mut names = SecondaryMap::<Value, Option<Value>>::new();
        for value in self.original.dfg.values() {
            names[value] = Some(self.renamed(value));
        }
        let name = |value: Value| names[value].unwrap_or(value);
        // With all operands named alike, equal instructions have equal data.
        let mut original = self.original.clone();
        let mut optimized = self.optimized.clone();
        for block in self.original.layout.blocks() {
            for inst in self.original.layout.block_insts(block) {
                if let Some(removal) = self.removals.get(&inst) {
                    if let Removal::Load { value, conversion } = removal {
                        self.compare_conversion(inst, name(*value), conversion)?;
                    }
                    continue;
                }
                original.dfg.map_inst_values(inst, name);
                optimized
                    .dfg
                    .map_inst_values(inst, |value| self.optimized.dfg.resolve_aliases(value));
                compare_instruction(&original, &optimized, inst).map_err(|what| {
                    format!(
                        "{what} of {inst} ({}) changed",
                        self.original.dfg.display_inst(inst)
                    )
                })?;
            }
        }
        Ok(())
    }

    fn compare_conversion(
        &self,
        load: Inst,
        value: Value,
        conversion: &Conversion,
    ) -> Result<(), String> {
        let func = self.optimized;
        let wrong = || Err(format!("the conversion for {load} is not the claimed one"));
        let new = self.conversions.get(&load).map_or(&[][..], |new| &new[..]);
        let mut value = value;
        for (&inst, &step) in new.iter().zip(&conversion.steps) {
            let (opcode, ty, endianness) = match step {
                Step::Reduce(ty) => (Opcode::Ireduce, ty, None),
                Step::ZeroExtend(ty) => (Opcode::Uextend, ty, None),
                Step::SignExtend(ty) => (Opcode::Sextend, ty, None),
                Step::Bitcast(ty, endianness) => (Opcode::Bitcast, ty, endianness),
            };
            let as_claimed = match func.dfg.insts[inst] {
                InstructionData::Unary { .. } => true,
                InstructionData::LoadNoOffset { flags, .. } => {
                    func.dfg.mem_flags[flags] == bitcast_flags(endianness)
                }
                _ => false,
            };
            let operands = func.dfg.inst_args(inst);
            let same_operand = matches!(*operands, [arg] if func.dfg.resolve_aliases(arg) == value);
            let &[result] = func.dfg.inst_results(inst) else {
                return wrong();
            };
            if !as_claimed
                || !same_operand
                || func.dfg.insts[inst].opcode() != opcode
                || func.dfg.value_type(result) != ty
                || func.srcloc(inst) != self.original.srcloc(load)
            {
                return wrong();
            }
            value = result;
        }
        Ok(())
    }
}

fn bitcast_flags(endianness: Option<Endianness>) -> MemFlagsData {
    let flags = MemFlagsData::new();
    endianness.map_or(flags, |endianness| flags.with_endianness(endianness))
}

/// Compares what a function has besides its instructions. Tables of branches hold the arguments
/// of their targets; whoever lets them grow compares them.
pub(super) fn compare_tables(
    a: &Function,
    b: &Function,
    branches_grow: bool,
) -> Result<(), String> {
    let same = [
        ("name", a.name == b.name),
        ("signature", a.signature == b.signature),
        ("stack slots", a.sized_stack_slots == b.sized_stack_slots),
        (
            "dynamic stack slots",
            a.dynamic_stack_slots == b.dynamic_stack_slots,
        ),
        ("global values", a.global_values == b.global_values),
        ("stack limit", a.stack_limit == b.stack_limit),
        ("debug tags", a.debug_tags == b.debug_tags),
        (
            "function names",
            a.params.user_named_funcs() == b.params.user_named_funcs(),
        ),
        ("signatures", a.dfg.signatures == b.dfg.signatures),
        ("functions", a.dfg.ext_funcs == b.dfg.ext_funcs),
        ("dynamic types", a.dfg.dynamic_types == b.dfg.dynamic_types),
        ("constants", a.dfg.constants == b.dfg.constants),
        ("immediates", a.dfg.immediates == b.dfg.immediates),
        (
            "jump tables",
            branches_grow || a.dfg.jump_tables == b.dfg.jump_tables,
        ),
        (
            "exception tables",
            branches_grow || a.dfg.exception_tables == b.dfg.exception_tables,
        ),
        ("value labels", a.dfg.values_labels == b.dfg.values_labels),
        ("alias regions", a.dfg.alias_regions == b.dfg.alias_regions),
        ("memory flags", extends_flags(a, b)),
    ];
    match same.iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(format!("the function's {what} changed")),
        None => Ok(()),
    }
}

/// Whether `b` has the flags of `a`, and perhaps more.
fn extends_flags(a: &Function, b: &Function) -> bool {
    (0..)
        .map_while(MemFlags::with_number)
        .take_while(|&flags| a.dfg.mem_flags.is_valid(flags))
        .all(|flags| {
            b.dfg.mem_flags.is_valid(flags) && a.dfg.mem_flags[flags] == b.dfg.mem_flags[flags]
        })
}

/// Compares an instruction whose operands are named alike in both functions. The error is what
/// changed.
pub(super) fn compare_instruction(
    a: &Function,
    b: &Function,
    inst: Inst,
) -> Result<(), &'static str> {
    let mut data = a.dfg.insts[inst];
    let flags = |func: &Function| func.dfg.insts[inst].memflags_data(&func.dfg);
    if let (Some(before), Some(after)) = (flags(a), flags(b)) {
        let aligned = |flags: MemFlagsData| flags.with_aligned();
        let lost = before.aligned() && !after.aligned() && before == aligned(after);
        if before != after && !lost {
            return Err("a flag");
        }
        if let (Some(flags), Some(new)) = (data.memflags_mut(), b.dfg.insts[inst].memflags()) {
            *flags = new;
        }
    }
    if data != b.dfg.insts[inst] || a.dfg.inst_args(inst) != b.dfg.inst_args(inst) {
        return Err("an operand or immediate");
    }
    if !targets(a, inst).eq(targets(b, inst)) {
        return Err("a branch");
    }
    let results = a.dfg.inst_results(inst);
    let types = |func: &Function| -> Vec<_> {
        let results = func.dfg.inst_results(inst).iter();
        results.map(|&result| func.dfg.value_type(result)).collect()
    };
    if results != b.dfg.inst_results(inst) || types(a) != types(b) {
        return Err("a result");
    }
    if a.dfg.user_stack_map_entries(inst) != b.dfg.user_stack_map_entries(inst) {
        return Err("the stack map");
    }
    if a.srcloc(inst) != b.srcloc(inst) {
        return Err("the source location");
    }
    Ok(())
}

/// The targets of a branch and what they are given.
fn targets(
    func: &Function,
    inst: Inst,
) -> impl Iterator<Item = (Block, Vec<cranelift_codegen::ir::BlockArg>)> + '_ {
    let dfg = &func.dfg;
    let calls = dfg.insts[inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
    calls.iter().map(|call| {
        (
            call.block(&dfg.value_lists),
            call.args(&dfg.value_lists).collect(),
        )
    })
}
