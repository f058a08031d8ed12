//! A store that nothing observes before its bytes are overwritten, or that writes what is there
//! already, goes.
//!
//! # Example
//!
//! ```text
//! store.i32 notrap v1, v0
//! v3 = load.i32 notrap v0+4     ==>    v3 = load.i32 notrap v0+4
//! store.i32 notrap v2, v0              store.i32 notrap v2, v0
//! ```
//!
//! # Legality
//!
//! - L1: the store is plain and not fixed: not in an outside region, not out of its slot's bounds.
//! - L2 (already there): memory holds the value on every path: the clobber of the store stored the
//!   same value to the same bytes, or the value is that of a dominating load of the same bytes
//!   with the same clobber, extensions, reductions and bitcasts aside. The store cannot trap: it is `notrap`, in a slot, or the store that
//!   did the same showed that the page may be written. A load does not show it.
//! - L3 (overwritten): on every path from the store, a store covers its bytes, or the frame ends
//!   and the bytes are in one of its slots, before anything may observe them. Observers are loads
//!   that may touch the bytes, and for memory that is not private calls, fences, atomics, return
//!   and every point that can trap.
//! - L4: a loop without an exit does not reach a later overwrite or the end of the frame, so memory
//!   that is not private is observed there.
//! - L5: if the store may trap, what overwrites it names exactly the same bytes with the same trap
//!   code, and nothing stands between but loads of slots and stores to private ones: a `notrap`
//!   access may be valid only because the store did not trap, and a store would be seen at the
//!   trap that is left. Neither is an `i128`: these are stored in halves, and
//!   the first half is seen if the second traps.
//! - L6: an overwriting store that may trap names exactly the same bytes, and is not `aligned` where
//!   the store is not: then it cannot trap where the store did not. Any other is an observation
//!   point.
//! - L7: bytes and addresses are those of this iteration: once the search has gone round a loop
//!   that changes the address, no store overwrites, and any load of the region may read.
//!
//! # Needs / keeps
//!
//! Needs the view, MemorySSA and the walker; keeps all of them in step. The control flow graph is
//! not changed.
//!
//! # Cost
//!
//! One sort of the stores by address. A search goes forward from each store whose bytes another
//! store covers, or that is in a slot. Each entry is looked at twice a search at most; searches draw
//! on a budget of [`Options::walk_steps_per_access`](crate::Options::walk_steps_per_access).
//!
//! # Order
//!
//! After forward, which removes readers. Within the pass, stores of what is there go first; but
//! where the earlier of the two is in a loop and overwritten by the later one, the earlier goes. Each
//! decision is taken on the function as the decisions before it left it, so that two stores are
//! never each other's reason to go.
//!
//! # Not done
//!
//! Overwritten by several narrower stores together: `keeps-narrower-overwrite`. A store that is
//! covered by an earlier one cannot trap, but L5 does not ask: `keeps-trapping-store`.
//!
//! # Sources
//!
//! The rules of trap order are those of the memory contract in the documentation. LLVM's
//! MemorySSA-based DSE, which starts from the overwriting store and asks for post-dominance; here
//! the search starts from the dead store and takes different killers on different paths.

use std::cmp::Reverse;

use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::ir::{Block, Function, Inst, Opcode, TrapCode, Value, ValueDef, types};

use super::PassContext;
use crate::alias::{Alias, Instance, alias};
use crate::effects::Access;
use crate::faults::{Fault, planted};
use crate::memssa::{AccessKind, is_invariant_above, is_private_at};
use crate::options::Pass;
use crate::remarks::Action;
use crate::rewrite::Outcome;
use crate::value::{root_of_bytes, same_value};
use crate::view::{Entry, Location, Sum, View};

/// Steps of searches that every function may take, however few accesses it has.
const SEARCH_STEPS_MIN: u64 = 256;

/// Why a store stays, and the instruction that is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Fixed,
    NoKiller,
    Read(Inst),
    Trap(Inst),
    Fence(Inst),
    Return(Inst),
    MayTrap(Inst),
    Endless,
    Budget,
}

/// What an entry means to a store that the search comes from.
enum Verdict {
    /// Nothing.
    Pass,
    /// The bytes are overwritten, or end with the frame: the path is done.
    Dead,
    Observed(Kept),
}

/// The bytes of a store. Where they wrap around the end of the address space, they cover nothing
/// and are covered by nothing: missing a store there loses nothing but an optimization.
#[derive(Clone, Copy, Debug)]
struct Range {
    sum: Sum,
    start: i64,
    end: i64,
    store: Entry,
}

/// Storage of the pass, reused across functions.
#[derive(Debug, Default)]
pub(crate) struct Dse {
    /// Stores for which there is another one that covers their bytes, somewhere.
    covered: EntitySet<Entry>,
    ranges: Vec<Range>,
    /// Blocks that the search has entered, by instance, stamped with the search.
    entered: SecondaryMap<Block, [u32; 2]>,
    worklist: Vec<(Block, Instance)>,
    search: u32,
    budget: u64,
    reaches_exit: ReachesExit,
}

/// Runs the pass. Returns whether the function was changed.
pub(crate) fn run(cx: &mut PassContext<'_>, storage: &mut Dse) -> bool {
    storage.reset(cx);
    let mut changed = storage.remove_stores_already_there(cx);
    changed |= storage.remove_overwritten(cx);
    changed
}

fn is_candidate(view: &View, entry: Entry) -> bool {
    let data = view.entry(entry);
    !data.removed && data.effects.access == Access::Store && data.bytes.is_some()
}

/// The stores of reachable blocks in reverse postorder.
fn for_each_store(cx: &mut PassContext<'_>, mut visit: impl FnMut(&mut PassContext<'_>, Entry)) {
    for index in 0..cx.flow.rpo().len() {
        let block = cx.flow.rpo()[index];
        for entry in cx.view.block_entries(block) {
            if is_candidate(cx.view, entry) {
                visit(cx, entry);
            }
        }
    }
}

// Stores of what is there already: L2.

impl Dse {
    fn remove_stores_already_there(&mut self, cx: &mut PassContext<'_>) -> bool {
        let mut changed = false;
        for_each_store(cx, |cx, store| {
            if cx.view.entry(store).fixed {
                return;
            }
            let Some(witness) = self.witness_of(cx, store) else {
                return;
            };
            if self.is_repeated_before(cx, witness, store) && self.search(cx, witness).is_ok() {
                changed |= self.remove_as_overwritten(cx, witness);
                return;
            }
            let inst = cx.view.entry(store).inst;
            let witness_inst = cx.view.entry(witness).inst;
            let reason = "L2 memory holds the value since";
            let outcome = cx.remove(Pass::Dse, inst, reason, Some(witness_inst), |rewriter| {
                rewriter.remove_store(store, Some(witness))
            });
            if outcome == Outcome::Done {
                changed = true;
                cx.stats.dse_already_there += 1;
            }
        });
        changed
    }

    /// Whether `witness` is a store in a loop that `store` comes after: of the two, it is the one that
    /// should go. (`store` is in no such loop of its own: there it would be its own clobber.)
    fn is_repeated_before(&mut self, cx: &PassContext<'_>, witness: Entry, store: Entry) -> bool {
        let (above, below) = (cx.view.entry(witness), cx.view.entry(store));
        above.effects.access == Access::Store
            && above.block != below.block
            && self.recurs_without(cx, above.block, below.block)
    }

    /// Whether a path leads from `block` to itself that does not come to `other`. False if the
    /// budget ends.
    fn recurs_without(&mut self, cx: &PassContext<'_>, block: Block, other: Block) -> bool {
        self.search += 1;
        self.worklist.clear();
        self.worklist.push((block, Instance::Same));
        while let Some((from, instance)) = self.worklist.pop() {
            for &succ in cx.flow.succs(from) {
                if succ == block {
                    return true;
                }
                if self.budget == 0 {
                    return false;
                }
                self.budget -= 1;
                let stamp = &mut self.entered[succ][instance as usize];
                if succ != other && *stamp != self.search {
                    *stamp = self.search;
                    self.worklist.push((succ, instance));
                }
            }
        }
        false
    }

    /// The access that shows that memory holds the stored value already.
    fn witness_of(&self, cx: &mut PassContext<'_>, store: Entry) -> Option<Entry> {
        let value = root_of_stored_bytes(cx, store);
        load_witness(cx, store, value).or_else(|| {
            // Only another store to the same bytes can have stored the value.
            let covered = self.covered.contains(store);
            covered.then(|| store_witness(cx, store, value))?
        })
    }
}

/// The load of the same bytes that gave the stored value, if nothing changed them since.
fn load_witness(cx: &mut PassContext<'_>, store: Entry, value: Value) -> Option<Entry> {
    let ValueDef::Result(load_inst, 0) = cx.func.dfg.value_def(value) else {
        return None;
    };
    let load = cx.view.entry_of(load_inst)?;
    let data = cx.view.entry(load);
    let is_source = data.effects.access == Access::Load && !widens_lanes(cx.func, load_inst);
    if !is_source || data.fixed || data.removed {
        return None;
    }
    let store_inst = cx.view.entry(store).inst;
    if (cx.view.may_trap(store) && !planted(Fault::LoadAsWitness))
        || !same_bytes(cx, load, store)
        || !cx.flow.inst_dominates(cx.func, load_inst, store_inst)
    {
        return None;
    }
    let (mut walk, walker) = cx.walk();
    let at_store = walker.clobber_of(&mut walk, store)?;
    let at_load = walker.clobber_of(&mut walk, load)?;
    (at_store.access == at_load.access).then_some(load)
}

/// Whether the low bytes of the load's result are not those in memory.
fn widens_lanes(func: &Function, load: Inst) -> bool {
    let result = func.dfg.value_type(func.dfg.first_result(load));
    func.dfg.insts[load].opcode() != Opcode::Load && result.is_vector()
}

/// The store of the same value to the same bytes that is the store's clobber.
fn store_witness(cx: &mut PassContext<'_>, store: Entry, value: Value) -> Option<Entry> {
    let (mut walk, walker) = cx.walk();
    let clobber = walker.clobber_of(&mut walk, store)?;
    let AccessKind::Def(earlier) = cx.ssa.kind(clobber.access) else {
        return None;
    };
    if !is_candidate(cx.view, earlier) || cx.view.entry(earlier).fixed {
        return None;
    }
    let earlier_value = root_of_stored_bytes(cx, earlier);
    (clobber.instance == Instance::Same
        && same_value(cx.func, earlier_value, value)
        && same_bytes(cx, earlier, store))
    .then_some(earlier)
}

/// Whether the two accesses name the same bytes in the same order.
fn same_bytes(cx: &mut PassContext<'_>, a: Entry, b: Entry) -> bool {
    let x = cx.view.location(cx.func, cx.flow, a);
    let y = cx.view.location(cx.func, cx.flow, b);
    let endianness = |entry: Entry| {
        let bytes = cx.view.entry(entry).bytes;
        bytes.map(|bytes| {
            cx.view
                .flags(cx.func, &bytes)
                .endianness(cx.view.endianness())
        })
    };
    alias(cx.func, &cx.view.slots, &x, &y, Instance::Same) == Alias::Must
        && (x.width == 1 || endianness(a) == endianness(b) || planted(Fault::Endianness))
}

/// The value at the root of what is stored: see [`root_of_bytes`].
fn root_of_stored_bytes(cx: &PassContext<'_>, store: Entry) -> Value {
    let data = cx.view.entry(store);
    let value = stored_value(cx.func, data.inst);
    data.bytes.map_or(value, |bytes| {
        let endianness = cx
            .view
            .flags(cx.func, &bytes)
            .endianness(cx.view.endianness());
        root_of_bytes(cx.func, value, bytes.width, endianness)
    })
}

fn stored_value(func: &Function, store: Inst) -> Value {
    func.dfg.inst_args(store)[0]
}

// Stores that are overwritten: L3 to L7.

/// The store that a search comes from.
struct Subject {
    location: Location,
    /// Its trap code, if it may trap.
    trap_code: Option<TrapCode>,
    aligned: bool,
}

impl Dse {
    fn reset(&mut self, cx: &mut PassContext<'_>) {
        self.entered.clear();
        self.entered.resize(cx.func.dfg.num_blocks());
        self.search = 0;
        self.reaches_exit.computed = false;
        self.budget = SEARCH_STEPS_MIN
            + cx.view.num_entries() as u64 * u64::from(cx.options.walk_steps_per_access);
        self.find_covered(cx);
    }

    /// Sorts the bytes of all stores, so that a store is covered by one that came before it in this
    /// order, or is equal to the next.
    fn find_covered(&mut self, cx: &mut PassContext<'_>) {
        self.covered.clear();
        self.ranges.clear();
        for_each_store(cx, |cx, store| {
            let location = cx.view.location(cx.func, cx.flow, store);
            self.ranges.extend(location.address.map(|address| Range {
                sum: address.sum,
                start: address.offset,
                end: address.offset.wrapping_add(i64::from(location.width)),
                store,
            }));
        });
        self.ranges
            .sort_unstable_by_key(|range| (range.sum, range.start, Reverse(range.end)));
        let mut widest: Option<Range> = None;
        for &range in &self.ranges {
            match widest.filter(|widest| widest.sum == range.sum) {
                Some(wide) if wide.end >= range.end => {
                    self.covered.insert(range.store);
                    if (wide.start, wide.end) == (range.start, range.end) {
                        self.covered.insert(wide.store);
                    }
                }
                _ => widest = Some(range),
            }
        }
    }

    fn remove_overwritten(&mut self, cx: &mut PassContext<'_>) -> bool {
        let mut changed = false;
        for_each_store(cx, |cx, store| match self.search(cx, store) {
            Err(kept) => note_kept(cx, store, kept),
            Ok(()) => changed |= self.remove_as_overwritten(cx, store),
        });
        changed
    }

    fn remove_as_overwritten(&self, cx: &mut PassContext<'_>, store: Entry) -> bool {
        let inst = cx.view.entry(store).inst;
        let reason = "L3 overwritten, or its slot ends, before anything observes it";
        let outcome = cx.remove(Pass::Dse, inst, reason, None, |rewriter| {
            rewriter.remove_store(store, None)
        });
        let done = outcome == Outcome::Done;
        cx.stats.dse_overwritten += u64::from(done);
        done
    }

    /// Looks along every path from the store. Ok if nothing observes its bytes.
    fn search(&mut self, cx: &mut PassContext<'_>, store: Entry) -> Result<(), Kept> {
        // L1
        if cx.view.entry(store).fixed {
            return Err(Kept::Fixed);
        }
        let location = cx.view.location(cx.func, cx.flow, store);
        if location.slot.is_none() && !self.covered.contains(store) {
            return Err(Kept::NoKiller);
        }
        let data = cx.view.entry(store);
        let block = data.block;
        let flags = data.bytes.map(|bytes| cx.view.flags(cx.func, &bytes));
        let may_trap = cx.view.may_trap(store);
        let subject = Subject {
            location,
            aligned: flags.is_some_and(|flags| flags.aligned()),
            trap_code: flags
                .and_then(|flags| flags.trap_code())
                .filter(|_| may_trap),
        };
        self.search += 1;
        self.worklist.clear();
        let rest = cx.view.block_entries_after(store);
        self.scan(cx, &subject, block, rest, Instance::Same)?;
        while let Some((block, instance)) = self.worklist.pop() {
            let entries = cx.view.block_entries(block);
            self.scan(cx, &subject, block, entries, instance)?;
        }
        Ok(())
    }

    /// Looks at the rest of a block, and has its successors looked at if the path goes on.
    fn scan(
        &mut self,
        cx: &mut PassContext<'_>,
        subject: &Subject,
        block: Block,
        entries: impl Iterator<Item = Entry>,
        instance: Instance,
    ) -> Result<(), Kept> {
        for entry in entries {
            if self.budget == 0 {
                return Err(Kept::Budget);
            }
            self.budget -= 1;
            match verdict(cx, subject, entry, instance) {
                Verdict::Pass => {}
                Verdict::Dead => return Ok(()),
                Verdict::Observed(kept) => return Err(kept),
            }
        }
        let location = &subject.location;
        for &succ in cx.flow.succs(block) {
            // L4
            if !self.reaches_exit.from(cx, succ)
                && !is_private_at_end(cx, location, block)
                && !planted(Fault::EndlessLoop)
            {
                return Err(Kept::Endless);
            }
            // L7
            let goes_round = !planted(Fault::LoopCarriedStore)
                && cx.flow.is_retreating(block, succ)
                && !is_invariant_above(cx.flow, cx.view, location, succ);
            let instance = if goes_round {
                Instance::Other
            } else {
                instance
            };
            let stamp = &mut self.entered[succ][instance as usize];
            if *stamp != self.search {
                *stamp = self.search;
                self.worklist.push((succ, instance));
            }
            if planted(Fault::OnePath) {
                break;
            }
        }
        Ok(())
    }
}

/// Whether the location is in a slot that has not escaped where `block` ends.
fn is_private_at_end(cx: &PassContext<'_>, location: &Location, block: Block) -> bool {
    let last = cx.func.layout.last_inst(block);
    last.is_some_and(|last| is_private_at(cx.func, cx.view, location, last))
}

/// What `entry` means to the store from which the search comes.
fn verdict(
    cx: &mut PassContext<'_>,
    subject: &Subject,
    entry: Entry,
    instance: Instance,
) -> Verdict {
    let data = cx.view.entry(entry);
    if data.removed && !planted(Fault::RemovedKiller) {
        return Verdict::Pass;
    }
    let inst = data.inst;
    let effects = data.effects;
    let in_slot = subject.location.slot.is_some();
    if effects.ends_frame {
        return if in_slot || planted(Fault::ReturnIgnored) {
            Verdict::Dead
        } else {
            Verdict::Observed(Kept::Return(inst))
        };
    }
    let private = is_private_at(cx.func, cx.view, &subject.location, inst);
    if effects.fence || effects.reads_escaped || effects.writes_escaped {
        return pass_if(private, Kept::Fence(inst));
    }
    match effects.access {
        Access::Load => verdict_of_load(cx, subject, entry, instance, private),
        Access::Store => verdict_of_store(cx, subject, entry, instance, private),
        Access::Atomic { .. } => pass_if(private, Kept::Fence(inst)),
        Access::None => pass_if(
            private
                || (in_slot && planted(Fault::EscapedAtTrap))
                || !(effects.may_trap || effects.observes),
            Kept::Trap(inst),
        ),
    }
}

fn pass_if(pass: bool, otherwise: Kept) -> Verdict {
    if pass {
        Verdict::Pass
    } else {
        Verdict::Observed(otherwise)
    }
}

fn verdict_of_load(
    cx: &mut PassContext<'_>,
    subject: &Subject,
    entry: Entry,
    instance: Instance,
    private: bool,
) -> Verdict {
    let other = cx.view.location(cx.func, cx.flow, entry);
    let relation = alias(cx.func, &cx.view.slots, &subject.location, &other, instance);
    let bytes = cx.view.entry(entry).bytes;
    let readonly = bytes.is_some_and(|bytes| cx.view.flags(cx.func, &bytes).readonly());
    if relation != Alias::No && !readonly && !planted(Fault::ReadIgnored) {
        return Verdict::Observed(Kept::Read(other.inst));
    }
    if cx.view.may_trap(entry) && !private {
        return Verdict::Observed(Kept::Trap(other.inst));
    }
    // L5
    pass_if(
        subject.trap_code.is_none() || other.slot.is_some() || planted(Fault::NotrapBetween),
        Kept::MayTrap(other.inst),
    )
}

fn verdict_of_store(
    cx: &mut PassContext<'_>,
    subject: &Subject,
    entry: Entry,
    instance: Instance,
    private: bool,
) -> Verdict {
    let other = cx.view.location(cx.func, cx.flow, entry);
    let location = &subject.location;
    let relation = alias(cx.func, &cx.view.slots, location, &other, instance);
    let data = cx.view.entry(entry);
    let fixed = data.fixed;
    let flags = data.bytes.map(|bytes| cx.view.flags(cx.func, &bytes));
    let exact = relation == Alias::Must && !fixed;
    // L6
    let misaligned = flags.is_some_and(|flags| flags.aligned()) && !subject.aligned;
    let traps_by_itself = !exact || (misaligned && !planted(Fault::AlignedKept));
    if cx.view.may_trap(entry) && traps_by_itself && !private && !planted(Fault::WiderKiller) {
        return Verdict::Observed(Kept::Trap(other.inst));
    }
    if relation.second_covers_first(location.width, other.width) && !fixed {
        // L5
        let trap_code = flags.and_then(|flags| flags.trap_code());
        let same_code = subject.trap_code == trap_code || planted(Fault::TrapCode);
        let traps_alike = exact
            && same_code
            && !is_stored_in_halves(cx.func, location.inst)
            && !is_stored_in_halves(cx.func, other.inst);
        if subject.trap_code.is_none() || traps_alike {
            return Verdict::Dead;
        }
        return Verdict::Observed(Kept::MayTrap(other.inst));
    }
    // L5: at the trap that is left, memory that others see would hold this store's bytes too early.
    let unseen = is_private_at(cx.func, cx.view, &other, other.inst);
    pass_if(
        subject.trap_code.is_none() || unseen || planted(Fault::NotrapBetween),
        Kept::MayTrap(other.inst),
    )
}

/// Whether machine code stores the value in two steps, of which the first may be done when the second
/// traps.
fn is_stored_in_halves(func: &Function, store: Inst) -> bool {
    func.dfg.value_type(stored_value(func, store)) == types::I128 && !planted(Fault::HalfStores)
}

/// L4: the blocks from which the function can end.
#[derive(Debug, Default)]
struct ReachesExit {
    blocks: SecondaryMap<Block, bool>,
    worklist: Vec<Block>,
    computed: bool,
}

impl ReachesExit {
    fn from(&mut self, cx: &PassContext<'_>, block: Block) -> bool {
        if !self.computed {
            self.compute(cx);
            self.computed = true;
        }
        self.blocks[block]
    }

    fn compute(&mut self, cx: &PassContext<'_>) {
        self.blocks.clear();
        let exits = cx.flow.rpo().iter().copied();
        self.worklist
            .extend(exits.filter(|&block| cx.flow.succs(block).is_empty()));
        while let Some(block) = self.worklist.pop() {
            if !std::mem::replace(&mut self.blocks[block], true) {
                self.worklist.extend_from_slice(cx.flow.preds(block));
            }
        }
    }
}

fn note_kept(cx: &mut PassContext<'_>, store: Entry, kept: Kept) {
    let inst = cx.view.entry(store).inst;
    let stats = &mut *cx.stats;
    let (counter, reason, other) = match kept {
        Kept::Fixed => (
            &mut stats.dse_kept_fixed,
            "L1 left alone: outside region, untouched slot or out of bounds",
            None,
        ),
        Kept::NoKiller => (
            &mut stats.dse_kept_no_killer,
            "L3 the memory outlives the frame and no other store may overwrite it",
            None,
        ),
        Kept::Read(by) => (&mut stats.dse_kept_read, "L3 may be read by", Some(by)),
        Kept::Trap(at) => (
            &mut stats.dse_kept_trap,
            "L3 observed at the trap of",
            Some(at),
        ),
        Kept::Fence(by) => (&mut stats.dse_kept_fence, "L3 observed by", Some(by)),
        Kept::Return(by) => (&mut stats.dse_kept_return, "L3 observed by", Some(by)),
        Kept::MayTrap(other) => (
            &mut stats.dse_kept_may_trap,
            "L5 may trap, and none traps in its place before",
            Some(other),
        ),
        Kept::Endless => (
            &mut stats.dse_kept_endless,
            "L4 a loop without an exit may come before the overwrite",
            None,
        ),
        Kept::Budget => (
            &mut stats.dse_kept_budget,
            "the search ended for want of budget",
            None,
        ),
    };
    *counter += 1;
    cx.note(Pass::Dse, Action::Kept, inst, reason, other);
}
