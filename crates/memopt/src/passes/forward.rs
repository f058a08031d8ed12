//! A load takes the value that a dominating store or load of the same bytes holds.
//!
//! # Example
//!
//! ```text
//! store.i32 notrap v1, v0+4            store.i32 notrap v1, v0+4
//! store.i32 notrap v2, v0+8     ==>    store.i32 notrap v2, v0+8
//! v3 = load.i32 notrap v0+4            v4 = iadd v1, v2
//! v4 = iadd v3, v2
//! ```
//!
//! # Legality
//!
//! - L1: the load is not fixed: not in an outside region, not out of its slot's bounds.
//! - L2: the source dominates the load and names the same bytes, by the same address.
//! - L3: nothing between the source and the load may change the bytes, on any path: the source is
//!   the clobber of the load, or is a load below it. Calls, fences and atomics count as changing
//!   all but private slots, so they also keep pages accessible as they were: the load cannot trap
//!   where the source did not. The bytes of a readonly load never change: one that cannot trap takes
//!   its value, readonly or not. A load that goes itself is a source too, for a load of the same SSA
//!   address that has no other; that one goes first.
//! - L4: the two do not have different regions.
//! - L5: the two have the same byte order, or one byte.
//! - L6: the values differ by a bit-exact conversion of the same width.
//! - L7: a load that Cranelift places by itself (`load readonly notrap can_move`) is no source for
//!   one that it leaves where it stands. It would be computed where the other's result is needed,
//!   or hoisted above a loop, on paths that had no such access.
//! - L8: no store that may trap stores the load's value back to where it comes from, if the value
//!   would need a conversion. Cranelift drops such a store if it sees the load, and could not here.
//!   Of several loads that are equal, the first stays, and the others take its value: Cranelift
//!   would have dropped the stores of all of them.
//! - L9: the flags that the source may keep fit into the function's table.
//!
//! # Needs / keeps
//!
//! Needs the view, MemorySSA and the walker; keeps all of them in step. The control flow graph is
//! not changed.
//!
//! # Cost
//!
//! One hash of an address a load or store; a walk only for loads whose bytes were named before.
//! At most [`CANDIDATES_MAX`] sources that stay, and as many that go, are tried for a load. Walks draw
//! on the budget.
//!
//! # Order
//!
//! Before dse: a store whose readers are gone may be dead. Idempotent.
//!
//! # Not done
//!
//! Sources that come by different paths, of other widths, or parts of the bytes:
//! `keeps-join`, `keeps-partial-overlap`.
//!
//! # Sources
//!
//! LLVM's EarlyCSE with MemorySSA for the equality of clobbers. Cranelift's alias analysis, which
//! this departs from: the address is a number instead of an SSA value, and the last store is the
//! last that may touch *these bytes*.

use cranelift_codegen::ir::immediates::Offset32;
use cranelift_codegen::ir::{Block, Inst, InstructionData, Opcode, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::PassContext;
use crate::alias::{Alias, Instance, alias};
use crate::convert::{Conversion, plan_conversion};
use crate::effects::Access;
use crate::faults::{Fault, planted};
use crate::memssa::{AccessKind, MemoryAccess};
use crate::options::Pass;
use crate::remarks::Action;
use crate::rewrite::Outcome;
use crate::view::{Entry, Location, Sum};

/// How many earlier accesses of the same bytes are tried as the source of a load.
const CANDIDATES_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    sum: Sum,
    offset: i64,
    width: u32,
}

impl Key {
    fn of(location: &Location) -> Option<Key> {
        let address = location.address?;
        Some(Key {
            sum: address.sum,
            offset: address.offset,
            width: location.width,
        })
    }
}

/// A load or store that later loads may take their value from.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    entry: Entry,
    key: Key,
    /// The candidate of the same bytes before this one.
    before: Option<u32>,
    /// The place in the plan of a load that is to be replaced. It is a source only to loads that have
    /// no other.
    planned: Option<usize>,
}

/// What is to be done: a load, and where its value comes from.
#[derive(Debug)]
struct Replacement {
    load: Entry,
    source: Entry,
    value: Value,
    conversion: Conversion,
    /// The first of the loads that are equal to this one and need a conversion, if it is not this one.
    leader: Option<usize>,
    called_off: bool,
}

/// Why a load stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Fixed,
    NoSource,
    Clobbered(Option<Inst>),
    Region(Inst),
    Endianness(Inst),
    Type(Inst),
    MovableSource(Inst),
    StoredBack(Inst),
}

/// A step of the visit of the dominator tree.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(Block),
    /// Back to the number of candidates that there were above the block.
    Leave(usize),
}

/// Storage of the pass, reused across functions.
#[derive(Debug, Default)]
pub(crate) struct Forward {
    latest: FxHashMap<Key, u32>,
    candidates: Vec<Candidate>,
    plan: Vec<Replacement>,
    /// Loads that take the value of a load which goes, with the place in the plan of that. They are
    /// replaced just before it.
    early: Vec<(usize, Replacement)>,
    /// Replaced loads that need a conversion, by their result, with their place in the plan.
    converted: FxHashMap<Value, usize>,
    steps: Vec<Step>,
}

/// Runs the pass. Returns whether the function was changed.
pub(crate) fn run(cx: &mut PassContext<'_>, storage: &mut Forward) -> bool {
    storage.latest.clear();
    storage.candidates.clear();
    storage.plan.clear();
    storage.early.clear();
    storage.converted.clear();
    storage.plan_replacements(cx);
    storage.apply(cx)
}

impl Forward {
    /// Visits the dominator tree in preorder, so that the candidates are those that dominate.
    fn plan_replacements(&mut self, cx: &mut PassContext<'_>) {
        self.steps.clear();
        let entry = cx.flow.rpo().first();
        self.steps.extend(entry.map(|&block| Step::Enter(block)));
        while let Some(step) = self.steps.pop() {
            match step {
                Step::Enter(block) => {
                    self.steps.push(Step::Leave(self.candidates.len()));
                    self.visit_block(cx, block);
                    self.steps.extend(cx.flow.children(block).map(Step::Enter));
                }
                Step::Leave(_) if planted(Fault::DominanceIgnored) => {}
                Step::Leave(mark) => self.forget_candidates(mark),
            }
        }
    }

    fn visit_block(&mut self, cx: &mut PassContext<'_>, block: Block) {
        for entry in cx.view.block_entries(block) {
            let data = cx.view.entry(entry);
            if data.removed || data.bytes.is_none() {
                continue;
            }
            match data.effects.access {
                Access::Load => self.visit_load(cx, entry),
                Access::Store if !data.fixed => {
                    self.call_off_if_stored_back(cx, entry);
                    self.add_candidate(cx, entry, None);
                }
                Access::Store | Access::Atomic { .. } | Access::None => {}
            }
        }
    }

    /// Forgets all candidates but the first `mark`.
    fn forget_candidates(&mut self, mark: usize) {
        while self.candidates.len() > mark {
            let Some(Candidate { key, before, .. }) = self.candidates.pop() else {
                return;
            };
            match before {
                Some(before) => self.latest.insert(key, before),
                None => self.latest.remove(&key),
            };
        }
    }

    fn visit_load(&mut self, cx: &mut PassContext<'_>, load: Entry) {
        let mut going = SmallVec::new();
        let kept = match self.plan_load(cx, load, &mut going) {
            Ok(replacement) => return self.add_replacement(cx, replacement, &going),
            Err(kept) => kept,
        };
        if let Some((place, replacement)) = self.plan_early(cx, load, &going) {
            return self.add_early(cx, place, replacement);
        }
        note_kept(cx, load, kept);
        if kept != Kept::Fixed {
            self.add_candidate(cx, load, None);
        }
    }

    fn add_replacement(
        &mut self,
        cx: &mut PassContext<'_>,
        mut replacement: Replacement,
        going: &[Candidate],
    ) {
        let load = replacement.load;
        let result = result_of(cx, load);
        if replacement.conversion.steps.is_empty() {
            // Addresses made of the result are those made of the value.
            cx.view
                .set_equal(cx.func, cx.flow, result, replacement.value);
        } else {
            replacement.leader = self.plan_equal(cx, load, going).map(|(place, _)| place);
            self.converted.insert(result, self.plan.len());
        }
        if replacement.leader.is_none() && going.len() < CANDIDATES_MAX {
            self.add_candidate(cx, load, Some(self.plan.len()));
        }
        self.plan.push(replacement);
    }

    fn add_early(&mut self, cx: &mut PassContext<'_>, place: usize, replacement: Replacement) {
        let result = result_of(cx, replacement.load);
        cx.view
            .set_equal(cx.func, cx.flow, result, replacement.value);
        if !self.plan[place].conversion.steps.is_empty() {
            self.converted.insert(result, place);
        }
        self.early.push((place, replacement));
    }

    /// Plans to take the value of a load that goes. What is known by then of values is less than
    /// where the load stands, so that this must not rest on it: the two have the same address as they
    /// are written, and no def of the load's class is between them.
    fn plan_early(
        &self,
        cx: &mut PassContext<'_>,
        load: Entry,
        going: &[Candidate],
    ) -> Option<(usize, Replacement)> {
        let (place, replacement) = self.plan_equal(cx, load, going)?;
        let above = cx.ssa.defining_in_class(cx.ssa.access_of(load)?);
        let address = written_address(cx, load)?;
        let is_sure = written_address(cx, replacement.source) == Some(address)
            && is_above(cx, above, replacement.source);
        is_sure.then_some((place, replacement))
    }

    /// L8.
    fn call_off_if_stored_back(&mut self, cx: &mut PassContext<'_>, store: Entry) {
        if self.converted.is_empty() || !cx.view.may_trap(store) {
            return;
        }
        let store_inst = cx.view.entry(store).inst;
        let value = cx
            .func
            .dfg
            .resolve_aliases(cx.func.dfg.inst_args(store_inst)[0]);
        let Some(&place) = self.converted.get(&value) else {
            return;
        };
        let first = self.plan[place].leader.unwrap_or(place);
        let leader = &mut self.plan[first];
        if leader.called_off {
            return;
        }
        let to = cx.view.location(cx.func, cx.flow, store);
        let from = cx.view.location(cx.func, cx.flow, leader.load);
        if Key::of(&to) == Key::of(&from) {
            leader.called_off = true;
            note_kept(cx, leader.load, Kept::StoredBack(store_inst));
        }
    }

    /// Plans to take the value of the nearest of the loads `going` that loads just that, and gives its
    /// place in the plan.
    fn plan_equal(
        &self,
        cx: &mut PassContext<'_>,
        load: Entry,
        going: &[Candidate],
    ) -> Option<(usize, Replacement)> {
        let location = cx.view.location(cx.func, cx.flow, load);
        going.iter().find_map(|candidate| {
            let replacement = plan_from(cx, load, &location, candidate.entry).ok()?;
            let equal = replacement.conversion.steps.is_empty();
            candidate.planned.filter(|_| equal).zip(Some(replacement))
        })
    }

    fn add_candidate(&mut self, cx: &mut PassContext<'_>, entry: Entry, planned: Option<usize>) {
        let location = cx.view.location(cx.func, cx.flow, entry);
        let Some(key) = Key::of(&location) else {
            return;
        };
        let before = self.latest.insert(key, self.candidates.len() as u32);
        self.candidates.push(Candidate {
            entry,
            key,
            before,
            planned,
        });
    }

    /// Plans to take the value of a source that stays; `going` gets those met on the way that do not.
    fn plan_load(
        &self,
        cx: &mut PassContext<'_>,
        load: Entry,
        going: &mut SmallVec<[Candidate; CANDIDATES_MAX]>,
    ) -> Result<Replacement, Kept> {
        // L1
        if cx.view.entry(load).fixed {
            return Err(Kept::Fixed);
        }
        // L2
        let location = cx.view.location(cx.func, cx.flow, load);
        let mut next = Key::of(&location).and_then(|key| self.latest.get(&key).copied());
        let mut kept = Kept::NoSource;
        let mut tried = 0;
        while let Some(index) = next
            && tried < CANDIDATES_MAX
        {
            let candidate = self.candidates[index as usize];
            next = candidate.before;
            if candidate.planned.is_some() {
                going.push(candidate);
                continue;
            }
            tried += 1;
            match plan_from(cx, load, &location, candidate.entry) {
                Ok(replacement) => return Ok(replacement),
                Err(reason) => kept = reason,
            }
        }
        Err(kept)
    }

    fn apply(&mut self, cx: &mut PassContext<'_>) -> bool {
        let mut changed = false;
        self.early.sort_by_key(|&(place, _)| place);
        let mut early = self.early.iter().peekable();
        for (place, replacement) in self.plan.iter().enumerate() {
            while let Some((_, replacement)) = early.next_if(|&&(at, _)| at == place) {
                changed |= replacement.apply(cx);
            }
            let leader = replacement.leader.map(|place| &self.plan[place]);
            changed |= match leader {
                _ if replacement.called_off => false,
                Some(leader) if leader.called_off => {
                    let value = result_of(cx, leader.load);
                    Replacement::equal(replacement.load, leader.load, value).apply(cx)
                }
                _ => replacement.apply(cx),
            };
        }
        changed
    }
}

impl Replacement {
    fn equal(load: Entry, source: Entry, value: Value) -> Replacement {
        Replacement {
            load,
            source,
            value,
            conversion: Conversion::default(),
            leader: None,
            called_off: false,
        }
    }

    fn apply(&self, cx: &mut PassContext<'_>) -> bool {
        let (load, source) = (self.load, self.source);
        let inst = cx.view.entry(load).inst;
        let source_inst = cx.view.entry(source).inst;
        let reason = "takes the value of";
        let outcome = cx.remove(Pass::Forward, inst, reason, Some(source_inst), |rewriter| {
            rewriter.replace_load(load, source, self.value, &self.conversion)
        });
        match outcome {
            Outcome::Done => match cx.view.entry(source).effects.access {
                Access::Store => cx.stats.forward_from_store += 1,
                _ => cx.stats.forward_from_load += 1,
            },
            Outcome::OutOfFuel => {}
            // L9
            Outcome::FlagsFull => cx.stats.forward_kept_flags += 1,
        }
        outcome == Outcome::Done
    }
}

/// Plans to take the value of the load from `source`, which dominates it and names the same bytes.
fn plan_from(
    cx: &mut PassContext<'_>,
    load: Entry,
    location: &Location,
    source: Entry,
) -> Result<Replacement, Kept> {
    let load_inst = location.inst;
    let source_inst = cx.view.entry(source).inst;
    let is_store = cx.view.entry(source).effects.access == Access::Store;
    debug_assert!(
        cx.flow.inst_dominates(cx.func, source_inst, load_inst) || planted(Fault::DominanceIgnored)
    );
    // L4
    let source_location = cx.view.location(cx.func, cx.flow, source);
    let slots = &cx.view.slots;
    if alias(cx.func, slots, &source_location, location, Instance::Same) != Alias::Must
        && !planted(Fault::RegionsUnified)
    {
        return Err(Kept::Region(source_inst));
    }
    // L3
    if !reaches_unchanged(cx, load, source, is_store) {
        return Err(Kept::Clobbered(clobber_inst(cx, load)));
    }
    // L5
    let endianness = |entry: Entry| {
        let bytes = cx.view.entry(entry).bytes;
        let flags = bytes.map(|bytes| cx.view.flags(cx.func, &bytes));
        flags.map(|flags| flags.endianness(cx.view.endianness()))
    };
    let (from, to) = (endianness(source), endianness(load));
    if location.width > 1 && from != to && !planted(Fault::Endianness) {
        return Err(Kept::Endianness(source_inst));
    }
    // L6
    let endianness = to.unwrap_or(cx.view.endianness());
    let planned = plan_conversion(cx.func, source_inst, load_inst, endianness);
    let Some((value, conversion)) = planned else {
        return Err(Kept::Type(source_inst));
    };
    // L7
    if is_placed_by_need(cx, source) && !is_placed_by_need(cx, load) {
        return Err(Kept::MovableSource(source_inst));
    }
    Ok(Replacement {
        load,
        source,
        value,
        conversion,
        leader: None,
        called_off: false,
    })
}

/// L3. A load below the clobber of a load that it dominates sees the same memory: after the last time
/// the clobber executes, the source executes before the load does.
fn reaches_unchanged(cx: &mut PassContext<'_>, load: Entry, source: Entry, is_store: bool) -> bool {
    if !is_store && is_readonly(cx, source) && !cx.view.may_trap(load) {
        return true;
    }
    let (mut walk, walker) = cx.walk();
    let Some(clobber) = walker.clobber_of(&mut walk, load) else {
        return false;
    };
    if is_store {
        return walk.ssa.access_of(source) == Some(clobber.access)
            && clobber.instance == Instance::Same;
    }
    is_above(cx, clobber.access, source) || planted(Fault::MemoryVersion)
}

/// Whether each way to `entry` leads through the def, the phi or the entry of the function.
fn is_above(cx: &PassContext<'_>, access: MemoryAccess, entry: Entry) -> bool {
    let data = cx.view.entry(entry);
    match cx.ssa.kind(access) {
        AccessKind::LiveOnEntry => true,
        AccessKind::Def(def) => {
            let def = cx.view.entry(def).inst;
            cx.flow.inst_dominates(cx.func, def, data.inst)
        }
        AccessKind::Phi(block) => cx.flow.dominates(block, data.block),
        AccessKind::Use(_) => false,
    }
}

/// The value and the offset that a load names.
fn written_address(cx: &PassContext<'_>, entry: Entry) -> Option<(Value, Offset32)> {
    let dfg = &cx.func.dfg;
    match dfg.insts[cx.view.entry(entry).inst] {
        InstructionData::Load { arg, offset, .. } => Some((dfg.resolve_aliases(arg), offset)),
        _ => None,
    }
}

/// Whether the access is a load of bytes that are never written.
fn is_readonly(cx: &PassContext<'_>, entry: Entry) -> bool {
    let data = cx.view.entry(entry);
    let flags = data.bytes.map(|bytes| cx.view.flags(cx.func, &bytes));
    data.effects.access == Access::Load && flags.is_some_and(|flags| flags.readonly())
}

fn result_of(cx: &PassContext<'_>, load: Entry) -> Value {
    cx.func.dfg.first_result(cx.view.entry(load).inst)
}

/// L7: whether Cranelift treats the load as a pure value, which it places where it is needed.
fn is_placed_by_need(cx: &PassContext<'_>, entry: Entry) -> bool {
    let data = cx.view.entry(entry);
    let is_plain_load = cx.func.dfg.insts[data.inst].opcode() == Opcode::Load;
    let flags = data.bytes.map(|bytes| cx.view.flags(cx.func, &bytes));
    is_plain_load
        && flags.is_some_and(|flags| flags.readonly() && flags.notrap() && flags.can_move())
}

/// The instruction that may change the bytes of a load: its clobber, or one that reaches it through
/// the phi that is its clobber. Asked for remarks alone.
fn clobber_inst(cx: &mut PassContext<'_>, load: Entry) -> Option<Inst> {
    if !cx.wants_remarks() {
        return None;
    }
    let (mut walk, walker) = cx.walk();
    let def = walker.some_clobbering_def(&mut walk, load)?;
    Some(cx.view.entry(def).inst)
}

fn note_kept(cx: &mut PassContext<'_>, load: Entry, kept: Kept) {
    let inst = cx.view.entry(load).inst;
    let stats = &mut *cx.stats;
    let (counter, reason, other) = match kept {
        Kept::Fixed => (
            &mut stats.forward_kept_fixed,
            "L1 left alone: outside region, untouched slot or out of bounds",
            None,
        ),
        Kept::NoSource => (
            &mut stats.forward_kept_no_source,
            "L2 no access of the same bytes dominates it",
            None,
        ),
        Kept::Clobbered(Some(by)) => (
            &mut stats.forward_kept_clobbered,
            "L3 the bytes may be changed by",
            Some(by),
        ),
        Kept::Clobbered(None) => (
            &mut stats.forward_kept_clobbered,
            "L3 the bytes may be changed above it",
            None,
        ),
        Kept::Region(source) => (
            &mut stats.forward_kept_region,
            "L4 another region than",
            Some(source),
        ),
        Kept::Endianness(source) => (
            &mut stats.forward_kept_endianness,
            "L5 another byte order than",
            Some(source),
        ),
        Kept::Type(source) => (
            &mut stats.forward_kept_type,
            "L6 no conversion from the value of",
            Some(source),
        ),
        Kept::MovableSource(source) => (
            &mut stats.forward_kept_movable_source,
            "L7 Cranelift would compute elsewhere the load",
            Some(source),
        ),
        Kept::StoredBack(store) => (
            &mut stats.forward_kept_stored_back,
            "L8 stored back by",
            Some(store),
        ),
    };
    *counter += 1;
    cx.note(Pass::Forward, Action::Kept, inst, reason, other);
}
