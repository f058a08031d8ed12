//! MemorySSA against what it stands for: the walker's answers against a search over all ways up.

use std::collections::BTreeSet;

use cranelift_codegen::entity::EntityRef as _;
use cranelift_codegen::ir::{Block, Function};
use cranelift_memopt::MemoryAnalysis;
use cranelift_memopt::alias::{Alias, Instance, alias};
use cranelift_memopt::effects::Access;
use cranelift_memopt::flow::Flow;
use cranelift_memopt::memssa::MemoryAccess;
use cranelift_memopt::view::{Entry, Location, View};

use super::{Finding, Oracle, Setup};
use crate::shape::Tally;

fn analyze(function: &Function, setup: &Setup) -> Result<MemoryAnalysis, Finding> {
    let mut analysis = MemoryAnalysis::default();
    let mut options = setup.options.clone();
    // The search has no budget either.
    options.walk_steps_per_access = u32::MAX / 2;
    analysis
        .compute(function, &*setup.isa, &options)
        .map_err(|error| Finding::new(Oracle::Form, error))?;
    Ok(analysis)
}

/// Builds MemorySSA, asks for every clobber, and runs the verifier.
///
/// # Errors
/// A finding: the verifier objects.
pub fn check_form(function: &Function, setup: &Setup) -> Result<(), Finding> {
    let mut analysis = analyze(function, setup)?;
    for entry in analysis.view().entries() {
        analysis.clobber(function, entry);
    }
    analysis
        .verify(function)
        .map_err(|error| Finding::new(Oracle::Form, format!("{}: {error}", function.name)))
}

/// Checks each clobber of `function` that the walker finds: nothing between may change the bytes,
/// and where only one def, or the state on entry, can be met first, that is the answer.
///
/// # Errors
/// A finding: an answer is too high up, or needlessly low.
pub fn check_clobbers(
    function: &Function,
    setup: &Setup,
    tally: &mut Tally,
) -> Result<(), Finding> {
    let mut analysis = analyze(function, setup)?;
    let ground = Ground::new(function, setup);
    for entry in analysis.view().entries() {
        let Some(clobber) = analysis.clobber(function, entry) else {
            continue;
        };
        let Some(mut search) = Search::new(function, &analysis, &ground, entry) else {
            continue;
        };
        search.run(None);
        let first = std::mem::take(&mut search.met);
        search.run(Some(clobber.access));
        let between = std::mem::take(&mut search.met);
        let inst = analysis.view().entry(entry).inst;
        let complain = |what: String| {
            let text = function.dfg.display_inst(inst);
            let message = format!("{}: {inst} ({text}): {what}", function.name);
            Err(Finding::new(Oracle::Clobbers, message))
        };
        tally.mark("clobbers.asked", 1);
        if let Some(missed) = between.iter().find(|&&access| access != clobber.access) {
            return complain(format!(
                "{missed} comes before the clobber {}",
                clobber.access
            ));
        }
        let only = first.iter().next().copied().filter(|_| first.len() == 1);
        let Some(only) = only.filter(|&only| only != clobber.access) else {
            continue;
        };
        if search.cyclic {
            tally.mark("clobbers.low_in_loop", 1);
            continue;
        }
        return complain(format!(
            "the clobber is {}, {only} expected",
            clobber.access
        ));
    }
    Ok(())
}

/// Control flow, view and locations, computed apart from the analysis that is checked.
struct Ground {
    flow: Flow,
    view: View,
    /// Of each entry that names bytes.
    locations: Vec<Option<Location>>,
}

impl Ground {
    fn new(function: &Function, setup: &Setup) -> Ground {
        let (mut flow, mut view) = (Flow::default(), View::default());
        flow.compute(function);
        view.scan(function, setup.isa.endianness(), &setup.options);
        view.analyze(function, &flow, &setup.options);
        let locations = view
            .entries()
            .map(|entry| {
                let names_bytes = view.entry(entry).bytes.is_some();
                let reachable = flow.is_reachable(view.entry(entry).block);
                (names_bytes && reachable).then(|| view.location(function, &flow, entry))
            })
            .collect();
        Ground {
            flow,
            view,
            locations,
        }
    }
}

/// A search upwards from an entry for the accesses that are met first.
struct Search<'a> {
    function: &'a Function,
    analysis: &'a MemoryAnalysis,
    entry: Entry,
    location: Location,
    /// Whether a way up leads around a loop.
    cyclic: bool,
    met: BTreeSet<MemoryAccess>,
    ground: &'a Ground,
}

impl<'a> Search<'a> {
    fn new(
        function: &'a Function,
        analysis: &'a MemoryAnalysis,
        ground: &'a Ground,
        entry: Entry,
    ) -> Option<Search<'a>> {
        let data = analysis.view().entry(entry);
        let bytes = data.bytes?;
        let flags = analysis.view().flags(function, &bytes);
        if data.effects.access == Access::Load && flags.readonly() && flags.notrap() {
            return None;
        }
        Some(Search {
            function,
            analysis,
            entry,
            location: ground.locations[entry.index()]?,
            cyclic: false,
            met: BTreeSet::new(),
            ground,
        })
    }

    /// Collects what is met first on each way up. A way ends at `stop`, which is met there.
    fn run(&mut self, stop: Option<MemoryAccess>) {
        let start = self.analysis.view().entry(self.entry).block;
        let above = self.entries_above(start, Some(self.entry));
        let mut seen = BTreeSet::new();
        let mut worklist = Vec::new();
        if !self.scan(&above, Instance::Same, stop) {
            self.leave(start, Instance::Same, stop, &mut worklist);
        }
        while let Some((block, instance)) = worklist.pop() {
            if !seen.insert((block, instance == Instance::Other)) {
                continue;
            }
            let above = self.entries_above(block, None);
            if !self.scan(&above, instance, stop) {
                self.leave(block, instance, stop, &mut worklist);
            }
        }
    }

    fn entries_above(&self, block: Block, end: Option<Entry>) -> Vec<Entry> {
        let entries = self.analysis.view().block_entries(block);
        let above: Vec<Entry> = entries.take_while(|&entry| Some(entry) != end).collect();
        above.into_iter().rev().collect()
    }

    /// Whether one of the entries, from the last up, ends the way.
    fn scan(&mut self, above: &[Entry], instance: Instance, stop: Option<MemoryAccess>) -> bool {
        for &entry in above {
            let Some(access) = self.analysis.ssa().access_of(entry) else {
                continue;
            };
            if !self.analysis.view().entry(entry).effects.is_def() {
                continue;
            }
            if Some(access) == stop || self.may_clobber(entry, instance) {
                self.met.insert(access);
                return true;
            }
        }
        false
    }

    /// Goes on above `block`.
    fn leave(
        &mut self,
        block: Block,
        instance: Instance,
        stop: Option<MemoryAccess>,
        worklist: &mut Vec<(Block, Instance)>,
    ) {
        let analysis = self.analysis;
        let phi = analysis.ssa().phi_of(block);
        if phi.is_some() && phi == stop {
            self.met.extend(phi);
            return;
        }
        let preds = analysis.flow().preds(block);
        if self.function.layout.entry_block() == Some(block) {
            self.met.insert(MemoryAccess::LIVE_ON_ENTRY);
        }
        for &pred in preds {
            let around = analysis.flow().rpo_index(pred) >= analysis.flow().rpo_index(block);
            self.cyclic |= around;
            let instance = match around && !self.is_invariant(block) {
                true => Instance::Other,
                false => instance,
            };
            worklist.push((pred, instance));
        }
    }

    fn is_invariant(&self, block: Block) -> bool {
        let Some(address) = self.location.address else {
            return false;
        };
        let flow = &self.ground.flow;
        match self.ground.view.addresses.deepest(address.sum) {
            None => true,
            Some(deepest) => deepest != block && flow.dominates(deepest, block),
        }
    }

    fn may_clobber(&self, entry: Entry, instance: Instance) -> bool {
        let view = &self.ground.view;
        let data = view.entry(entry);
        if data.effects.fence || data.effects.writes_escaped {
            let slot = self.location.slot;
            let private =
                slot.is_some_and(|slot| !view.slots.escaped_at(self.function, slot, data.inst));
            return !private;
        }
        match self.ground.locations[entry.index()] {
            None => true,
            Some(other) => {
                alias(self.function, &view.slots, &self.location, &other, instance) != Alias::No
            }
        }
    }
}
