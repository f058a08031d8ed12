//! The proof of smaller frames: stack slots that are gone had no use, and slots that share bytes
//! are not in use together.
//!
//! Nothing is claimed: what was done is read from the two functions. Where a `stack_addr` names
//! another slot than before, the two share bytes. For each access of the one, and each of the
//! others that share with it, the control flow graph is searched: for a path on which the other
//! was accessed before, and one on which its bytes are read later, before all of them are written
//! anew. One of them may be there, not both. A slot whose address has escaped may be read by
//! whatever touches, or shows, memory that is not known.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    AliasRegion, Block, DebugTag, Endianness, Function, Inst, InstructionData, MemFlagsData,
    Opcode, StackSlot, StackSlotData, StackSlotKind, Value, types,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::program::Program;
use super::{Claims, structure};
use crate::effects::{Access, Effects, MemoryFunction, constant_of, memory_function};

/// Proves that `after` is `before` with a smaller frame, and with no other change. `outside` says
/// of each region whether it changes from outside.
///
/// # Errors
/// The first difference that has no proof.
pub(crate) fn check_frame(
    before: &Function,
    after: &Function,
    outside: &[bool],
) -> Result<(), String> {
    let targets = find_targets(before, after)?;
    check_table(before, after, &targets)?;
    let expected = with_new_names(before, after, &targets)?;
    structure::check(&expected, after, &[])?;
    let mut groups: FxHashMap<StackSlot, Vec<StackSlot>> = FxHashMap::default();
    for slot in before.sized_stack_slots.keys() {
        if let Some(target) = targets[slot]
            && target != slot
        {
            groups
                .entry(target)
                .or_insert_with(|| vec![target])
                .push(slot);
        }
    }
    if groups.is_empty() {
        return Ok(());
    }
    let claims = Claims {
        certificates: &[],
        endianness: Endianness::Little,
        outside,
        untouched_slot_keys: &[],
    };
    let lives = Lives::new(before, &claims);
    for group in groups.values() {
        lives.check_kinds(group, outside)?;
        for &slot in group {
            let life = lives.of_slot(slot);
            for &other in group {
                if other != slot {
                    lives.check_apart(&life, other)?;
                }
            }
        }
    }
    Ok(())
}

/// Which slot the instructions that named a slot name now; none if they are all gone.
type Targets = SecondaryMap<StackSlot, Option<StackSlot>>;

fn find_targets(before: &Function, after: &Function) -> Result<Targets, String> {
    let mut targets = Targets::new();
    for inst in insts(before) {
        let named = |func: &Function| match func.dfg.insts[inst] {
            InstructionData::StackAddr { stack_slot, .. } => Some(stack_slot),
            _ => None,
        };
        let (Some(old), Some(new)) = (named(before), named(after)) else {
            continue;
        };
        if after.layout.inst_block(inst).is_none() {
            continue;
        }
        if targets[old].is_some_and(|target| target != new) {
            return Err(format!(
                "{inst} names {new}, others that named {old} do not"
            ));
        }
        targets[old] = Some(new);
    }
    for slot in before.sized_stack_slots.keys() {
        let Some(target) = targets[slot] else {
            continue;
        };
        if targets[target].is_some_and(|further| further != target) {
            return Err(format!("{slot} became {target}, which became another slot"));
        }
    }
    Ok(targets)
}

fn insts(func: &Function) -> impl Iterator<Item = Inst> + '_ {
    let blocks = func.layout.blocks();
    blocks.flat_map(|block| func.layout.block_insts(block))
}

/// The slots that are known outside of the function's own accesses.
fn known_outside(func: &Function) -> FxHashSet<StackSlot> {
    let slots = func.sized_stack_slots.iter();
    let keyed = slots.filter(|(_, data)| data.key.is_some());
    let mut known: FxHashSet<StackSlot> = keyed.map(|(slot, _)| slot).collect();
    for inst in insts(func) {
        if Effects::of(func, inst).exposes_frame {
            known.extend(func.sized_stack_slots.keys());
        }
        let maps = func.dfg.user_stack_map_entries(inst).unwrap_or_default();
        known.extend(maps.iter().map(|entry| entry.slot));
        known.extend(
            func.debug_tags
                .get(inst)
                .iter()
                .filter_map(|tag| match tag {
                    DebugTag::StackSlot(slot) => Some(*slot),
                    DebugTag::User(_) => None,
                }),
        );
    }
    known
}

/// Proves that each slot is what it was, large enough for all that share it, or gone without a
/// name.
fn check_table(before: &Function, after: &Function, targets: &Targets) -> Result<(), String> {
    let (old, new) = (&before.sized_stack_slots, &after.sized_stack_slots);
    if new.len() > old.len() {
        return Err("there are new stack slots".to_string());
    }
    let known = known_outside(before);
    let named: FxHashSet<StackSlot> = targets.values().filter_map(|&target| target).collect();
    let empty = StackSlotData::new(StackSlotKind::ExplicitSlot, 0, 0);
    for (slot, data) in old {
        let now = new.get(slot);
        if now == Some(data) && targets[slot].is_none_or(|target| target == slot) {
            continue;
        }
        if known.contains(&slot) {
            return Err(format!(
                "{slot} is known outside of the function, and changed"
            ));
        }
        if !named.contains(&slot) {
            if now.is_some_and(|now| *now != empty && now != data) {
                return Err(format!("{slot} is gone, but takes room"));
            }
            continue;
        }
        let (kind, key) = (data.kind, data.key);
        if now.is_none_or(|now| now.kind != kind || now.key != key) {
            return Err(format!("{slot} is in use, and changed"));
        }
    }
    for (slot, data) in old {
        let Some(target) = targets[slot] else {
            continue;
        };
        let holds =
            |now: &StackSlotData| now.size >= data.size && now.align_shift >= data.align_shift;
        if !new.get(target).is_some_and(holds) {
            return Err(format!(
                "{target} has no room for {slot}, or not its alignment"
            ));
        }
        if target != slot && known.contains(&target) {
            return Err(format!("{target}, which {slot} became, is known outside"));
        }
    }
    Ok(())
}

/// The function as it should be now: with the new table and the new names, and without the
/// computations of no use that were removed.
fn with_new_names(
    before: &Function,
    after: &Function,
    targets: &Targets,
) -> Result<Function, String> {
    let mut used: FxHashSet<Value> = FxHashSet::default();
    for inst in insts(after) {
        let values = after.dfg.inst_values(inst);
        used.extend(values.map(|value| after.dfg.resolve_aliases(value)));
    }
    let mut expected = before.clone();
    expected.sized_stack_slots = after.sized_stack_slots.clone();
    for inst in insts(before) {
        if after.layout.inst_block(inst).is_none() {
            let opcode = before.dfg.insts[inst].opcode();
            let pure = matches!(
                opcode,
                Opcode::StackAddr | Opcode::Iadd | Opcode::Isub | Opcode::Iconst
            );
            let mut results = before.dfg.inst_results(inst).iter();
            if !pure || results.any(|result| used.contains(result)) {
                let text = before.dfg.display_inst(inst);
                return Err(format!("{inst} ({text}) is gone, and was of use"));
            }
            expected.layout.remove_inst(inst);
        } else if let InstructionData::StackAddr { stack_slot, .. } = &mut expected.dfg.insts[inst]
        {
            *stack_slot = targets[*stack_slot].unwrap_or(*stack_slot);
        }
    }
    Ok(expected)
}

/// Bytes of a slot: ranges in order, with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bytes(Vec<(i64, i64)>);

impl Bytes {
    fn add(&mut self, (mut start, mut end): (i64, i64)) {
        if start >= end {
            return;
        }
        self.0.retain(|&(low, high)| {
            let joins = low <= end && start <= high;
            if joins {
                start = start.min(low);
                end = end.max(high);
            }
            !joins
        });
        let at = self.0.partition_point(|&(low, _)| low < start);
        self.0.insert(at, (start, end));
    }

    fn cover(&self, (start, end): (i64, i64)) -> bool {
        let around = |&(low, high): &(i64, i64)| low <= start && end <= high;
        start >= end || self.0.iter().any(around)
    }

    fn cover_all(&self, other: &Bytes) -> bool {
        other.0.iter().all(|&range| self.cover(range))
    }
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// It may read these bytes, or any byte.
    Read(StackSlot, Option<(i64, i64)>),
    /// It writes these bytes, or some byte.
    Write(StackSlot, Option<(i64, i64)>),
    /// It lets the address out.
    Escape(StackSlot),
    /// It touches memory that is not known, or shows it.
    Touch,
}

impl Use {
    fn slot(self) -> Option<StackSlot> {
        match self {
            Use::Read(slot, _) | Use::Write(slot, _) | Use::Escape(slot) => Some(slot),
            Use::Touch => None,
        }
    }
}

/// What becomes of the bytes that a slot holds at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Read,
    Overwritten,
    /// Neither before the end of the block.
    Passed,
}

/// The uses of slots in a function.
struct Lives<'a> {
    func: &'a Function,
    program: Program<'a>,
    derived: FxHashMap<Value, (StackSlot, Option<i64>)>,
    /// In reachable blocks, in program order; reads of an instruction before its writes.
    uses: SecondaryMap<Block, Vec<(Inst, Use)>>,
    /// Some instruction from the start of the block on touches memory that is not known.
    touches: FxHashSet<Block>,
    accessed: FxHashMap<StackSlot, Bytes>,
    escaping: FxHashSet<StackSlot>,
    /// Slots that must not share, and why.
    unfit: FxHashMap<StackSlot, &'static str>,
    regions: FxHashMap<StackSlot, Vec<Option<AliasRegion>>>,
    unknown_regions: FxHashSet<AliasRegion>,
}

/// Where one slot is in use.
struct Life {
    slot: StackSlot,
    /// It was accessed on some path to the start of the block.
    accessed: FxHashSet<Block>,
    /// Its address was let out on some path to the start of the block.
    escaped: FxHashSet<Block>,
    /// What it holds at the start of the block is read on some path from there.
    needed: FxHashSet<Block>,
}

impl<'a> Lives<'a> {
    fn new(func: &'a Function, claims: &Claims<'a>) -> Self {
        let mut lives = Lives {
            func,
            program: Program::new(func, claims),
            derived: FxHashMap::default(),
            uses: SecondaryMap::new(),
            touches: FxHashSet::default(),
            accessed: FxHashMap::default(),
            escaping: FxHashSet::default(),
            unfit: FxHashMap::default(),
            regions: FxHashMap::default(),
            unknown_regions: FxHashSet::default(),
        };
        for index in 0..lives.program.order.len() {
            let block = lives.program.order[index];
            for inst in func.layout.block_insts(block) {
                let start = lives.uses[block].len();
                lives.scan(block, inst);
                lives.uses[block][start..].sort_by_key(|(_, what)| matches!(what, Use::Write(..)));
            }
        }
        let order = &lives.program.order;
        let sites = order.iter().copied().filter(|&block| {
            let mut uses = lives.uses[block].iter();
            uses.any(|&(_, what)| what == Use::Touch)
        });
        let preds = &lives.program.preds;
        lives.touches = flood(sites.collect(), |block| &preds[block], |_| true);
        lives
    }

    fn derived(&self, value: Value) -> Option<(StackSlot, Option<i64>)> {
        let value = self.func.dfg.resolve_aliases(value);
        self.derived.get(&value).copied()
    }

    fn scan(&mut self, block: Block, inst: Inst) {
        let func = self.func;
        let data = func.dfg.insts[inst];
        match data {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } => {
                let result = func.dfg.first_result(inst);
                if func.dfg.value_type(result) == types::I64 {
                    let offset = i64::from(i32::from(offset));
                    self.derived.insert(result, (stack_slot, Some(offset)));
                } else {
                    self.unfit
                        .insert(stack_slot, "has an address that is no i64");
                }
                return;
            }
            InstructionData::Binary {
                opcode: Opcode::Iadd | Opcode::Isub,
                args: [a, b],
            } => {
                let adds = data.opcode() == Opcode::Iadd;
                let sum = match (self.derived(a), self.derived(b)) {
                    (Some(base), None) => Some((base, b)),
                    (None, Some(base)) if adds => Some((base, a)),
                    _ => None,
                };
                if let Some(((slot, offset), distance)) = sum {
                    let distance = constant_of(func, distance);
                    let offset = offset.zip(distance).and_then(|(offset, distance)| {
                        if adds {
                            offset.checked_add(distance)
                        } else {
                            offset.checked_sub(distance)
                        }
                    });
                    self.derived
                        .insert(func.dfg.first_result(inst), (slot, offset));
                    return;
                }
            }
            InstructionData::IntCompare { args, .. } => {
                let addresses = args.map(|value| self.derived(value));
                for (slot, _) in addresses.into_iter().flatten() {
                    self.unfit.insert(slot, "is compared");
                }
                return;
            }
            _ => {}
        }
        let effects = Effects::of(func, inst);
        if effects.access != Access::None {
            return self.scan_access(block, inst, effects.access);
        }
        if let Some(function) = memory_function(func, inst) {
            return self.scan_memory_function(block, inst, function);
        }
        for value in func.dfg.inst_values(inst) {
            self.escape(block, inst, value);
        }
        if effects != Effects::NONE && !effects.ends_frame {
            self.uses[block].push((inst, Use::Touch));
        }
    }

    fn escape(&mut self, block: Block, inst: Inst, value: Value) {
        if let Some((slot, _)) = self.derived(value) {
            self.escaping.insert(slot);
            self.uses[block].push((inst, Use::Escape(slot)));
        }
    }

    fn scan_access(&mut self, block: Block, inst: Inst, access: Access) {
        let func = self.func;
        let data = func.dfg.insts[inst];
        let args = func.dfg.inst_args(inst);
        let stores = matches!(data.opcode(), Opcode::AtomicStore) || access == Access::Store;
        let address = if stores { args[1] } else { args[0] };
        for (index, &value) in args.iter().enumerate() {
            if index != usize::from(stores) {
                self.escape(block, inst, value);
            }
        }
        let flags = data.memflags_data(&func.dfg);
        let region = flags.and_then(MemFlagsData::alias_region);
        if matches!(access, Access::Atomic { .. }) {
            self.uses[block].push((inst, Use::Touch));
        }
        let Some((slot, offset)) = self.derived(address) else {
            self.unknown_regions.extend(region);
            return self.uses[block].push((inst, Use::Touch));
        };
        self.regions.entry(slot).or_default().push(region);
        if flags.is_none_or(MemFlagsData::readonly) {
            self.unfit.insert(slot, "is read wherever it suits");
        }
        let plain = matches!(access, Access::Load | Access::Store);
        let bytes = self.program.event(inst).and_then(|event| event.bytes);
        let range = offset.map(|offset| {
            let immediate = i64::from(data.load_store_offset().unwrap_or(0));
            let start = offset.saturating_add(immediate);
            let width = bytes.filter(|_| plain).map_or(1, |bytes| bytes.width);
            (start, start.saturating_add(i64::from(width)))
        });
        let exact = range.filter(|_| plain && bytes.is_some());
        self.note(slot, range, exact);
        let what = match access {
            Access::Store => Use::Write(slot, exact),
            _ => Use::Read(slot, exact),
        };
        self.uses[block].push((inst, what));
    }

    fn scan_memory_function(&mut self, block: Block, inst: Inst, function: MemoryFunction) {
        let (to, from, others, length) = match function {
            MemoryFunction::Copy { to, from, length } => (to, Some(from), None, length),
            MemoryFunction::Set { to, byte, length } => (to, None, Some(byte), length),
        };
        for value in others.into_iter().chain([length]) {
            self.escape(block, inst, value);
        }
        let length = constant_of(self.func, length).filter(|&length| length >= 0);
        for (value, writes) in from
            .map(|from| (from, false))
            .into_iter()
            .chain([(to, true)])
        {
            let Some((slot, offset)) = self.derived(value) else {
                self.uses[block].push((inst, Use::Touch));
                continue;
            };
            if writes && let Some(&result) = self.func.dfg.inst_results(inst).first() {
                self.derived.insert(result, (slot, offset));
            }
            let range = match length {
                Some(0) => Some((0, 0)),
                _ => offset
                    .zip(length)
                    .map(|(start, length)| (start, start.saturating_add(length))),
            };
            self.note(slot, range, range);
            let what = match writes {
                true => Use::Write(slot, range),
                false => Use::Read(slot, range),
            };
            self.uses[block].push((inst, what));
        }
    }

    /// Takes note of an access of a slot, at a place that is known or not.
    fn note(&mut self, slot: StackSlot, range: Option<(i64, i64)>, exact: Option<(i64, i64)>) {
        let size = i64::from(self.func.sized_stack_slots[slot].size);
        if range.is_some_and(|(start, end)| start < 0 || end > size) {
            self.unfit.insert(slot, "is accessed out of its bounds");
        }
        let accessed = self.accessed.entry(slot).or_default();
        accessed.add(exact.unwrap_or((0, size)));
    }

    /// Proves that the slots may share as far as what they are goes.
    fn check_kinds(&self, group: &[StackSlot], outside: &[bool]) -> Result<(), String> {
        let mut regions: Vec<Option<AliasRegion>> = Vec::new();
        for slot in group {
            if let Some(reason) = self.unfit.get(slot) {
                return Err(format!("{slot} shares its bytes, but {reason}"));
            }
            regions.extend(self.regions.get(slot).into_iter().flatten());
            if self.escaping.contains(slot) {
                regions.extend(self.unknown_regions.iter().map(|&region| Some(region)));
            }
        }
        if regions.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("{} shares its bytes with another region", group[0]));
        }
        let is_outside = |region: &AliasRegion| outside[region.as_u32() as usize];
        if regions.iter().flatten().any(is_outside) {
            return Err(format!(
                "{} shares its bytes, but changes from outside",
                group[0]
            ));
        }
        Ok(())
    }

    fn of_slot(&self, slot: StackSlot) -> Life {
        let program = &self.program;
        let blocks_with = |condition: &dyn Fn(Use) -> bool| -> Vec<Block> {
            let has = |block: &Block| self.uses[*block].iter().any(|&(_, what)| condition(what));
            program.order.iter().copied().filter(has).collect()
        };
        // What happens in a block has happened where the next ones start.
        let after = |sites: Vec<Block>| {
            let succs = sites.iter().flat_map(|&site| &program.succs[site]).copied();
            flood(succs.collect(), |block| &program.succs[block], |_| true)
        };
        let readers = program.order.iter().copied();
        let readers = readers.filter(|&block| self.fate(slot, block, 0) == Fate::Read);
        Life {
            slot,
            accessed: after(blocks_with(&|what| what.slot() == Some(slot))),
            escaped: after(blocks_with(&|what| what == Use::Escape(slot))),
            needed: flood(
                readers.collect(),
                |block| &program.preds[block],
                |block| self.fate(slot, block, 0) == Fate::Passed,
            ),
        }
    }

    /// What becomes of the bytes of a slot, in the block, from the use with the given number on.
    fn fate(&self, slot: StackSlot, block: Block, from: usize) -> Fate {
        let size = i64::from(self.func.sized_stack_slots[slot].size);
        let whole = Bytes(vec![(0, size)]);
        let used = match self.escaping.contains(&slot) {
            true => Some(&whole),
            false => self.accessed.get(&slot),
        };
        let mut written = Bytes::default();
        for &(_, what) in &self.uses[block][from..] {
            match what {
                Use::Escape(of) if of == slot => return Fate::Read,
                Use::Read(of, range)
                    if of == slot && !written.cover(range.unwrap_or((0, size))) =>
                {
                    return Fate::Read;
                }
                Use::Write(of, range) if of == slot => {
                    written.add(range.unwrap_or((0, 0)));
                    if used.is_some_and(|used| written.cover_all(used)) {
                        return Fate::Overwritten;
                    }
                }
                _ => {}
            }
        }
        Fate::Passed
    }

    /// Proves that no access of `other` is where the slot of `life` is in use.
    fn check_apart(&self, life: &Life, other: StackSlot) -> Result<(), String> {
        for &block in &self.program.order {
            let uses = &self.uses[block];
            for (index, &(inst, what)) in uses.iter().enumerate() {
                if what.slot() == Some(other) {
                    self.check_place(life, block, index).map_err(|reason| {
                        let text = self.func.dfg.display_inst(inst);
                        let slot = life.slot;
                        format!("{inst} ({text}) of {other} comes where {slot} {reason}")
                    })?;
                }
            }
        }
        Ok(())
    }

    fn check_place(&self, life: &Life, block: Block, index: usize) -> Result<(), &'static str> {
        let slot = life.slot;
        let uses = &self.uses[block];
        let (inst, what) = uses[index];
        let of_inst = |(at, _): &&(Inst, Use)| *at == inst;
        let start = index - uses[..index].iter().rev().take_while(of_inst).count();
        let end = index + uses[index..].iter().take_while(of_inst).count();
        if uses[start..end]
            .iter()
            .any(|(_, what)| what.slot() == Some(slot))
        {
            return Err("is accessed, too");
        }
        let succs = &self.program.succs[block];
        let earlier = |condition: &dyn Fn(Use) -> bool| {
            uses[..start].iter().any(|&(_, what)| condition(what))
        };
        let accessed = life.accessed.contains(&block) || earlier(&|what| what.slot() == Some(slot));
        let needed = match self.fate(slot, block, end) {
            Fate::Read => true,
            Fate::Overwritten => false,
            Fate::Passed => succs.iter().any(|succ| life.needed.contains(succ)),
        };
        if accessed && needed {
            return Err("holds what is read later");
        }
        let escaped = life.escaped.contains(&block) || earlier(&|what| what == Use::Escape(slot));
        let touched = uses[start..].iter().any(|&(_, what)| what == Use::Touch)
            || succs.iter().any(|succ| self.touches.contains(succ));
        if escaped && touched {
            return Err("has escaped, and may be touched later");
        }
        if escaped && matches!(what, Use::Escape(_)) {
            return Err("has escaped, so that the addresses may be compared");
        }
        Ok(())
    }
}

/// The blocks that are reached from some, themselves included, through blocks that let pass.
fn flood<'b>(
    sites: Vec<Block>,
    next: impl Fn(Block) -> &'b [Block],
    passes: impl Fn(Block) -> bool,
) -> FxHashSet<Block> {
    let mut reached: FxHashSet<Block> = sites.iter().copied().collect();
    let mut worklist = sites;
    while let Some(block) = worklist.pop() {
        for &next in next(block) {
            if passes(next) && reached.insert(next) {
                worklist.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(slots: &str, body: &str) -> Function {
        let text = format!(
            "function %f(i64, i64) -> i64 {{\n region0 = 1 \"a\"\n region1 = 2 \"b\"\n {slots}\n \
             fn0 = %g(i64)\nblock0(v0: i64, v1: i64):\n{body}\n}}"
        );
        let mut functions = cranelift_reader::parse_functions(&text).expect("test CLIF parses");
        functions.remove(0)
    }

    const TWO: &str = "ss0 = explicit_slot 16\n ss1 = explicit_slot 16";

    /// The proof that `ss1` may share the bytes of `ss0`.
    fn share(body: &str) -> Result<(), String> {
        let before = parse(TWO, body);
        let one = "ss0 = explicit_slot 16";
        let after = parse(one, &body.replace("ss1", "ss0"));
        check_frame(&before, &after, &[false, true])
    }

    fn refuses(body: &str, reason: &str) {
        let error = share(body).expect_err("no proof is expected");
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn one_after_another() {
        let honest = "v2 = stack_addr.i64 ss0
            v3 = stack_addr.i64 ss1
            store notrap v0, v2
            v4 = load.i64 notrap v2
            store notrap v4, v3
            v5 = load.i64 notrap v3
            return v5";
        assert_eq!(share(honest), Ok(()));
        refuses(
            &honest.replace("return v5", "v6 = load.i64 v2\nreturn v6"),
            "read later",
        );
        refuses(
            &honest.replace("return v5", "v6 = icmp eq v2, v1\nreturn v5"),
            "compared",
        );
        refuses(
            &honest.replace("v4 = load.i64", "v4 = load.i64 readonly"),
            "wherever",
        );
        refuses(
            &honest.replace("v4 = load.i64 notrap v2", "v4 = load.i64 notrap v2+9"),
            "bounds",
        );
        refuses(
            &honest.replace("v0, v2", "region0 v0, v2"),
            "another region",
        );
        refuses(&honest.replace("notrap", "notrap region1"), "from outside");
    }

    #[test]
    fn each_iteration_writes_anew() {
        let honest = "v2 = stack_addr.i64 ss0
            v3 = stack_addr.i64 ss1
            jump block1
            block1:
            store notrap v0, v2
            store notrap v0, v2+8
            v4 = load.i64 notrap v2+8
            store notrap v4, v3
            v5 = load.i64 notrap v3
            brif v5, block1, block2
            block2:
            return v5";
        assert_eq!(share(honest), Ok(()));
        refuses(
            &honest.replace(
                "store notrap v0, v2\n",
                "istore32 notrap v0, v2+8\n v9 = load.i64 v2\n",
            ),
            "read later",
        );
        refuses(
            &honest.replace("store notrap v0, v2+8", "istore8 notrap v0, v2+8"),
            "read later",
        );
        refuses(
            &honest.replace("block2:", "block2:\nv9 = load.i64 v2"),
            "read later",
        );
    }

    #[test]
    fn escapes() {
        let honest = "v2 = stack_addr.i64 ss0
            v3 = stack_addr.i64 ss1
            store notrap v0, v2
            call fn0(v2)
            store notrap v0, v3
            v5 = load.i64 notrap v3
            return v5";
        assert_eq!(share(honest), Ok(()));
        refuses(&honest.replace("return v5", "trap user1"), "touched later");
        refuses(
            &honest.replace("return v5", "v6 = load.i64 v1\nreturn v6"),
            "touched later",
        );
        refuses(
            &honest.replace("return v5", "v6 = bnot v3\nreturn v6"),
            "compared",
        );
        refuses(
            &honest.replace("call fn0(v2)", "store v3, v2"),
            "accessed, too",
        );
    }

    #[test]
    fn tables() {
        let body = "v2 = stack_addr.i64 ss0\n store notrap v0, v2\n return v0";
        let before = parse("ss0 = explicit_slot 16\n ss1 = explicit_slot 8", body);
        let proof = |slots| check_frame(&before, &parse(slots, body), &[]);
        assert_eq!(proof("ss0 = explicit_slot 16"), Ok(()));
        assert_eq!(
            proof("ss0 = explicit_slot 16\n ss1 = explicit_slot 0"),
            Ok(())
        );
        for wrong in [
            "ss0 = explicit_slot 8",
            "ss0 = explicit_slot 16\n ss1 = explicit_slot 4",
            "ss0 = explicit_slot 16\n ss1 = explicit_slot 8\n ss2 = explicit_slot 8",
        ] {
            assert!(proof(wrong).is_err(), "{wrong}");
        }
        let keyed = parse(
            "ss0 = explicit_slot 16\n ss1 = explicit_slot 8, key = 1",
            body,
        );
        let after = parse("ss0 = explicit_slot 16", body);
        assert!(check_frame(&keyed, &after, &[]).is_err());
        let known = body.replace("return", "call fn0(v0), stack_map=[i64 @ ss1+0]\n return");
        let mapped = parse("ss0 = explicit_slot 16\n ss1 = explicit_slot 8", &known);
        let after = parse("ss0 = explicit_slot 16\n ss1 = explicit_slot 0", &known);
        assert!(check_frame(&mapped, &after, &[]).is_err());
    }

    #[test]
    fn alignment_and_size() {
        let body = "v2 = stack_addr.i64 ss0
            v3 = stack_addr.i64 ss1
            store notrap v0, v2
            store notrap v0, v3
            return v0";
        let before = parse(
            "ss0 = explicit_slot 16\n ss1 = explicit_slot 8, align = 16",
            body,
        );
        let after = |slots| parse(slots, &body.replace("ss1", "ss0"));
        let proof = |slots| check_frame(&before, &after(slots), &[]);
        assert_eq!(proof("ss0 = explicit_slot 16, align = 16"), Ok(()));
        assert!(proof("ss0 = explicit_slot 16").is_err());
        assert!(proof("ss0 = explicit_slot 8, align = 16").is_err());
    }

    #[test]
    fn only_what_is_of_no_use_goes() {
        let slots = "ss0 = explicit_slot 16";
        let before = parse(
            slots,
            "v2 = stack_addr.i64 ss0\n v3 = iadd v2, v0\n return v0",
        );
        let gone = |count: usize| {
            let mut after = before.clone();
            let insts: Vec<Inst> = insts(&before).collect();
            for &inst in &insts[..count] {
                after.layout.remove_inst(inst);
            }
            after.sized_stack_slots.clear();
            check_frame(&before, &after, &[])
        };
        assert_eq!(gone(2), Ok(()));
        assert!(gone(1).is_err());
        assert!(gone(3).is_err());
    }
}
