//! The clobber walker: the nearest access above that may have changed a location.
//!
//! The walk goes up the chain of defining accesses, asks an alias question at each def, and is
//! exact through phis: a phi whose operands all lead to one clobber is passed. A path that leads
//! back to a phi which is being passed has met no clobber and does not count, as in the phi
//! elimination of Braun et al., *Simple and efficient construction of SSA form*, CC 2013.
//!
//! # Instances
//!
//! An address stands for one location within an iteration. Where the walk goes up a retreating
//! edge, values defined at or below its target are those of the iteration before. If the address
//! has such a term, alias questions further up are asked with [`Instance::Other`].
//!
//! # Budget
//!
//! Steps are drawn from one budget for the whole function. When it is spent, a walk ends where it
//! stands, which loses an optimization and nothing else.

use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::ir::{Block, Function};

use super::{AccessKind, MemoryAccess, MemorySsa};
use crate::alias::{Alias, Instance, alias};
use crate::effects::Access;
use crate::flow::Flow;
use crate::view::{Class, Entry, Location, View};

/// Steps that every function may take, however few accesses it has.
const WALK_STEPS_MIN: u64 = 256;

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clobber {
    /// The nearest def that may have changed the location, or the phi where different ones meet,
    /// or live on entry. Nothing between it and the start changed the location.
    pub access: MemoryAccess,
    /// Whether the terms of the location's address are the same instances there.
    pub instance: Instance,
}

/// What is asked: whether anything above changed this location.
#[derive(Clone, Copy)]
struct Query {
    location: Location,
    class: Class,
}

#[derive(Clone, Copy, Debug, Default)]
enum Memo {
    #[default]
    Unvisited,
    /// On the stack of phis that are being passed.
    Open,
    Done(Clobber),
}

#[derive(Clone, Copy, Debug, Default)]
struct Stamped {
    query: u32,
    memo: Memo,
}

#[derive(Debug)]
struct Frame {
    phi: MemoryAccess,
    block: Block,
    instance: Instance,
    next_operand: usize,
    merged: Option<Clobber>,
}

/// Counts of one function's walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCounts {
    /// Walks that were asked for and not answered from the cache.
    pub walks: u64,
    /// Defs and phis looked at.
    pub steps: u64,
    /// Walks that ended for want of budget.
    pub exhausted: u64,
}

/// The parts of a function that a walk reads.
pub(crate) struct WalkContext<'a> {
    pub(crate) func: &'a Function,
    pub(crate) flow: &'a Flow,
    pub(crate) view: &'a mut View,
    pub(crate) ssa: &'a MemorySsa,
}

/// Finds clobbers. Holds the cache of one function; storage is reused by [`Walker::reset`].
#[derive(Debug, Default)]
pub struct Walker {
    cache: SecondaryMap<MemoryAccess, Option<Clobber>>,
    memos: SecondaryMap<MemoryAccess, [Stamped; 2]>,
    frames: Vec<Frame>,
    query: u32,
    budget: u64,
    counts: WalkCounts,
}

impl Walker {
    /// Forgets the last function and grants the budget for one of `accesses` accesses.
    pub fn reset(&mut self, accesses: usize, steps_per_access: u32) {
        self.cache.clear();
        self.memos.clear();
        self.frames.clear();
        self.query = 0;
        self.budget = WALK_STEPS_MIN + accesses as u64 * u64::from(steps_per_access);
        self.counts = WalkCounts::default();
    }

    /// What the walks since the last reset took.
    pub fn counts(&self) -> WalkCounts {
        self.counts
    }

    /// The answer that is cached for a def or use.
    pub fn cached(&self, ssa: &MemorySsa, access: MemoryAccess) -> Option<Clobber> {
        self.cache[access].map(|clobber| Clobber {
            access: ssa.resolve(clobber.access),
            ..clobber
        })
    }

    /// The nearest access above `entry` that may have changed the bytes it names. A readonly load
    /// that cannot trap depends on no store, so memory on entry is its clobber.
    ///
    /// None if the entry has no access in `ssa` or names no bytes.
    pub(crate) fn clobber_of(&mut self, cx: &mut WalkContext<'_>, entry: Entry) -> Option<Clobber> {
        let access = cx.ssa.access_of(entry)?;
        if let Some(clobber) = self.cached(cx.ssa, access) {
            return Some(clobber);
        }
        let data = cx.view.entry(entry);
        let bytes = data.bytes?;
        let flags = cx.view.flags(cx.func, &bytes);
        let clobber = if data.effects.access == Access::Load && flags.readonly() && flags.notrap() {
            Clobber {
                access: MemoryAccess::LIVE_ON_ENTRY,
                instance: Instance::Same,
            }
        } else {
            let query = Query {
                class: data.class,
                location: cx.view.location(cx.func, cx.flow, entry),
            };
            self.walk(cx, query, cx.ssa.defining_in_class(access))
        };
        self.cache[access] = Some(clobber);
        Some(clobber)
    }

    /// A def that may have changed the bytes that `entry` names: its clobber, or one of those that
    /// meet in the phi that is its clobber. For remarks: neither cached nor counted.
    pub(crate) fn some_clobbering_def(
        &mut self,
        cx: &mut WalkContext<'_>,
        entry: Entry,
    ) -> Option<Entry> {
        let clobber = self.clobber_of(cx, entry)?;
        let location = cx.view.location(cx.func, cx.flow, entry);
        let mut seen = EntitySet::new();
        let mut worklist = vec![clobber.access];
        while let Some(access) = worklist.pop() {
            if !seen.insert(access) {
                continue;
            }
            match cx.ssa.kind(access) {
                AccessKind::LiveOnEntry | AccessKind::Use(_) => {}
                AccessKind::Def(def) if may_clobber(cx, def, &location, Instance::Other) => {
                    return Some(def);
                }
                AccessKind::Def(_) => worklist.push(cx.ssa.defining(access)),
                AccessKind::Phi(block) => {
                    let operands = 0..cx.flow.preds(block).len();
                    worklist.extend(operands.map(|pred| cx.ssa.operand(access, pred)));
                }
            }
        }
        None
    }

    fn walk(&mut self, cx: &mut WalkContext<'_>, query: Query, start: MemoryAccess) -> Clobber {
        self.counts.walks += 1;
        self.query += 1;
        self.frames.clear();
        let mut next = (start, Instance::Same);
        loop {
            let (access, instance) = next;
            let Some(end) = self.climb(cx, query, access, instance) else {
                return self.give_up(access, instance);
            };
            let mut found = self.enter(cx, end, instance);
            // Hand the answer to the phi that asked, as long as there is one.
            loop {
                if let Some(clobber) = found {
                    match self.frames.last_mut() {
                        None => return clobber,
                        Some(frame) => {
                            found = frame.merge(clobber);
                            if let Some(closed) = found {
                                found = Some(self.close(closed));
                                continue;
                            }
                        }
                    }
                }
                let Some(frame) = self.frames.last_mut() else {
                    unreachable!("memssa: a walk without an answer has a phi open");
                };
                match frame.next_operand(cx, query) {
                    Some(operand) => {
                        next = operand;
                        break;
                    }
                    None => {
                        let closed = frame.merged.unwrap_or(frame.itself());
                        found = Some(self.close(closed));
                    }
                }
            }
        }
    }

    /// Goes up from `access` to the first def that may have changed the location, a phi, or live
    /// on entry. None when the budget is spent.
    fn climb(
        &mut self,
        cx: &mut WalkContext<'_>,
        query: Query,
        mut access: MemoryAccess,
        instance: Instance,
    ) -> Option<MemoryAccess> {
        loop {
            let AccessKind::Def(def) = cx.ssa.kind(access) else {
                return Some(access);
            };
            if self.budget == 0 {
                return None;
            }
            self.budget -= 1;
            self.counts.steps += 1;
            if may_clobber(cx, def, &query.location, instance) {
                return Some(access);
            }
            access = if cx.view.entry(def).class == query.class {
                cx.ssa.defining_in_class(access)
            } else {
                cx.ssa.defining(access)
            };
        }
    }

    /// Answers at once for a def or live on entry; for a phi from the memo, or opens it.
    fn enter(
        &mut self,
        cx: &WalkContext<'_>,
        access: MemoryAccess,
        instance: Instance,
    ) -> Option<Clobber> {
        let found = Clobber { access, instance };
        let AccessKind::Phi(block) = cx.ssa.kind(access) else {
            return Some(found);
        };
        match self.memo(found) {
            Memo::Done(_) => Some(self.resolve(found)),
            Memo::Open => Some(found),
            Memo::Unvisited => {
                self.counts.steps += 1;
                self.set_memo(found, Memo::Open);
                self.frames.push(Frame {
                    phi: access,
                    block,
                    instance,
                    next_operand: 0,
                    merged: None,
                });
                None
            }
        }
    }

    /// Takes the answer of the last phi that was opened off the stack.
    fn close(&mut self, answer: Clobber) -> Clobber {
        if let Some(frame) = self.frames.pop() {
            self.set_memo(frame.itself(), Memo::Done(answer));
        }
        answer
    }

    fn give_up(&mut self, access: MemoryAccess, instance: Instance) -> Clobber {
        self.counts.exhausted += 1;
        match self.frames.first() {
            Some(frame) => frame.itself(),
            None => Clobber { access, instance },
        }
    }

    fn memo(&self, key: Clobber) -> Memo {
        let stamped = self.memos[key.access][key.instance as usize];
        if stamped.query == self.query {
            stamped.memo
        } else {
            Memo::Unvisited
        }
    }

    fn set_memo(&mut self, key: Clobber, memo: Memo) {
        self.memos[key.access][key.instance as usize] = Stamped {
            query: self.query,
            memo,
        };
    }

    /// Follows answers that named a phi which was open then and is answered now.
    fn resolve(&self, mut clobber: Clobber) -> Clobber {
        while let Memo::Done(answer) = self.memo(clobber) {
            if answer == clobber {
                break;
            }
            clobber = answer;
        }
        clobber
    }
}

impl Frame {
    fn itself(&self) -> Clobber {
        Clobber {
            access: self.phi,
            instance: self.instance,
        }
    }

    /// Takes in the answer of an operand. An answer for the phi as a whole if it is certain now:
    /// two operands with different clobbers.
    fn merge(&mut self, clobber: Clobber) -> Option<Clobber> {
        if clobber == self.itself() {
            return None;
        }
        match self.merged {
            None => self.merged = Some(clobber),
            Some(merged) if merged.access != clobber.access => return Some(self.itself()),
            Some(_) if clobber.instance == Instance::Other => self.merged = Some(clobber),
            Some(_) => {}
        }
        None
    }

    /// The next operand that is to be walked, and whether terms are the same instances there.
    fn next_operand(
        &mut self,
        cx: &WalkContext<'_>,
        query: Query,
    ) -> Option<(MemoryAccess, Instance)> {
        let &pred = cx.flow.preds(self.block).get(self.next_operand)?;
        let operand = cx.ssa.operand(self.phi, self.next_operand);
        self.next_operand += 1;
        let instance = up_edge(
            cx.flow,
            cx.view,
            &query.location,
            pred,
            self.block,
            self.instance,
        );
        Some((operand, instance))
    }
}

/// Whether the location's terms are the same instances above the edge `pred` → `block` as below it,
/// where they are `below`.
pub(crate) fn up_edge(
    flow: &Flow,
    view: &View,
    location: &Location,
    pred: Block,
    block: Block,
    below: Instance,
) -> Instance {
    if flow.is_retreating(pred, block) && !is_invariant_above(flow, view, location, block) {
        Instance::Other
    } else {
        below
    }
}

/// Whether every term of the location's address is defined strictly above `block`, so that going
/// around a loop through `block` leaves the address as it is.
pub(crate) fn is_invariant_above(
    flow: &Flow,
    view: &View,
    location: &Location,
    block: Block,
) -> bool {
    let Some(address) = location.address else {
        return false;
    };
    match view.addresses.deepest(address.sum) {
        None => true,
        Some(deepest) => deepest != block && flow.dominates(deepest, block),
    }
}

/// Whether `def` may change the location, or orders memory so that it has to count as if it did.
pub(crate) fn may_clobber(
    cx: &mut WalkContext<'_>,
    def: Entry,
    location: &Location,
    instance: Instance,
) -> bool {
    let data = cx.view.entry(def);
    if data.effects.fence || data.effects.writes_escaped {
        let inst = data.inst;
        return !is_private_at(cx.func, cx.view, location, inst);
    }
    if data.bytes.is_none() {
        return true;
    }
    let other = cx.view.location(cx.func, cx.flow, def);
    alias(cx.func, &cx.view.slots, location, &other, instance) != Alias::No
}

/// Whether the location is in a slot that has not escaped when `inst` has executed.
pub(crate) fn is_private_at(
    func: &Function,
    view: &View,
    location: &Location,
    inst: cranelift_codegen::ir::Inst,
) -> bool {
    location
        .slot
        .is_some_and(|slot| !view.slots.escaped_at(func, slot, inst))
}
