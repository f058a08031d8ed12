//! Building MemorySSA: phi placement, then renaming along the dominator tree with an explicit
//! stack.

use cranelift_codegen::entity::{PrimaryMap, SecondaryMap};
use cranelift_codegen::ir::{Block, Function};
use cranelift_codegen::packed_option::PackedOption;

use super::{AccessData, AccessKind, MemoryAccess, MemorySsa};
use crate::flow::Flow;
use crate::frontier::Frontier;
use crate::view::{Class, ClassKind, Entry, View};

/// Scratch storage of a build.
#[derive(Debug, Default)]
pub(super) struct Builder {
    frontier: Frontier,
    def_blocks: Vec<Block>,
    /// The state of memory at the end of each block.
    block_out: SecondaryMap<Block, PackedOption<MemoryAccess>>,
    steps: Vec<Step>,
    last: LastDefs,
}

#[derive(Debug)]
enum Step {
    Enter(Block),
    /// Take back what the block and its dominator subtree changed in [`LastDefs`].
    Leave {
        undo: usize,
    },
}

/// An access with the time it was reached on the current path of the dominator tree.
#[derive(Clone, Copy, Debug)]
struct Stamped {
    access: MemoryAccess,
    time: u32,
}

impl Default for Stamped {
    fn default() -> Self {
        Stamped {
            access: MemoryAccess::LIVE_ON_ENTRY,
            time: 0,
        }
    }
}

/// The last defs on the current path of the dominator tree, as a walk from here would meet them.
#[derive(Debug, Default)]
struct LastDefs {
    /// By class: the last def that touches memory of the class alone.
    of_class: SecondaryMap<Class, Stamped>,
    /// The last def that may touch memory of any class but private slots.
    of_all: Stamped,
    /// The last def that may touch memory without a region: any but of a private slot.
    of_shared: Stamped,
    /// The last phi.
    phi: Stamped,
    undo: Vec<(Class, Stamped)>,
    undo_wide: Vec<[Stamped; 3]>,
    time: u32,
}

impl LastDefs {
    fn clear(&mut self) {
        self.of_class.clear();
        self.of_all = Stamped::default();
        self.of_shared = Stamped::default();
        self.phi = Stamped::default();
        self.undo.clear();
        self.undo_wide.clear();
        self.time = 0;
    }

    fn stamp(&mut self, access: MemoryAccess) -> Stamped {
        self.time += 1;
        Stamped {
            access,
            time: self.time,
        }
    }

    /// The nearest access that may have changed memory of `class`.
    fn nearest(&self, class: Class, kind: ClassKind) -> MemoryAccess {
        let candidates = match kind {
            ClassKind::Private(_) => [self.of_class[class], self.phi, self.phi],
            ClassKind::Region(_) => [self.of_class[class], self.of_all, self.phi],
            ClassKind::Rest => [self.of_shared, self.of_all, self.phi],
        };
        let latest = candidates.into_iter().max_by_key(|stamped| stamped.time);
        latest.unwrap_or_default().access
    }

    fn add_def(&mut self, access: MemoryAccess, class: Class, kind: ClassKind, reaches_all: bool) {
        let stamped = self.stamp(access);
        let private = matches!(kind, ClassKind::Private(_));
        if !private {
            self.of_shared = stamped;
        }
        if reaches_all || kind == ClassKind::Rest {
            self.of_all = stamped;
        }
        if kind != ClassKind::Rest {
            self.undo.push((class, self.of_class[class]));
            self.of_class[class] = stamped;
        }
    }

    fn mark(&mut self) -> usize {
        self.undo_wide.push([self.of_all, self.of_shared, self.phi]);
        self.undo.len()
    }

    fn undo_to(&mut self, mark: usize) {
        while self.undo.len() > mark {
            if let Some((class, stamped)) = self.undo.pop() {
                self.of_class[class] = stamped;
            }
        }
        if let Some(wide) = self.undo_wide.pop() {
            [self.of_all, self.of_shared, self.phi] = wide;
        }
    }
}

impl MemorySsa {
    /// Builds the form for the function of which `view` is the memory view. Linear in blocks,
    /// edges and entries, but for the operands of phis.
    pub fn build(&mut self, func: &Function, flow: &Flow, view: &View) {
        self.accesses.clear();
        self.operand_pool.clear();
        self.access_of.clear();
        self.access_of.resize(view.num_entries());
        self.phi_of.clear();
        self.replaced_by.clear();
        self.accesses.push(AccessData {
            kind: AccessKind::LiveOnEntry,
            defining: MemoryAccess::LIVE_ON_ENTRY,
            in_class: MemoryAccess::LIVE_ON_ENTRY,
            operands: 0,
        });
        let mut builder = std::mem::take(&mut self.builder);
        self.create_defs(flow, view, &mut builder);
        builder
            .frontier
            .compute(flow, &builder.def_blocks, |_| true);
        self.create_phis(func, flow, &builder);
        self.create_uses(flow, view);
        self.rename(flow, view, &mut builder);
        self.fill_operands(flow, &builder);
        self.builder = builder;
    }

    fn create_defs(&mut self, flow: &Flow, view: &View, builder: &mut Builder) {
        builder.def_blocks.clear();
        for entry in view.live_entries(flow) {
            let data = view.entry(entry);
            if data.effects.is_def() {
                let access = push(&mut self.accesses, AccessKind::Def(entry));
                self.access_of[entry] = access.into();
                if builder.def_blocks.last() != Some(&data.block) {
                    builder.def_blocks.push(data.block);
                }
            }
        }
        self.defs = self.accesses.len() as u32 - 1;
    }

    fn create_phis(&mut self, func: &Function, flow: &Flow, builder: &Builder) {
        let frontier = &builder.frontier;
        let blocks = func.layout.blocks();
        for block in blocks.filter(|&block| frontier.contains(block)) {
            let phi = push(&mut self.accesses, AccessKind::Phi(block));
            let operands = self.operand_pool.len();
            self.accesses[phi].operands = operands as u32;
            self.operand_pool.resize(
                operands + flow.preds(block).len(),
                MemoryAccess::LIVE_ON_ENTRY,
            );
            self.phi_of[block] = phi.into();
        }
        self.phis = frontier.blocks.len() as u32;
    }

    fn create_uses(&mut self, flow: &Flow, view: &View) {
        for entry in view.live_entries(flow) {
            if view.entry(entry).effects.is_use() {
                let access = push(&mut self.accesses, AccessKind::Use(entry));
                self.access_of[entry] = access.into();
            }
        }
    }

    fn rename(&mut self, flow: &Flow, view: &View, builder: &mut Builder) {
        builder.block_out.clear();
        builder.last.clear();
        builder.steps.clear();
        builder
            .steps
            .extend(flow.rpo().first().map(|&entry| Step::Enter(entry)));
        while let Some(step) = builder.steps.pop() {
            match step {
                Step::Leave { undo } => builder.last.undo_to(undo),
                Step::Enter(block) => {
                    let undo = builder.last.mark();
                    builder.steps.push(Step::Leave { undo });
                    let above = flow
                        .idom(block)
                        .and_then(|idom| builder.block_out[idom].expand());
                    let start = above.unwrap_or(MemoryAccess::LIVE_ON_ENTRY);
                    let end = self.rename_block(view, block, start, &mut builder.last);
                    builder.block_out[block] = end.into();
                    builder.steps.extend(flow.children(block).map(Step::Enter));
                }
            }
        }
    }

    fn rename_block(
        &mut self,
        view: &View,
        block: Block,
        start: MemoryAccess,
        last: &mut LastDefs,
    ) -> MemoryAccess {
        let mut state = start;
        if let Some(phi) = self.phi_of(block) {
            state = phi;
            last.phi = last.stamp(phi);
        }
        for entry in view.block_entries(block) {
            let Some(access) = self.access_of(entry) else {
                continue;
            };
            state = self.rename_entry(view, entry, access, state, last);
        }
        state
    }

    fn rename_entry(
        &mut self,
        view: &View,
        entry: Entry,
        access: MemoryAccess,
        state: MemoryAccess,
        last: &mut LastDefs,
    ) -> MemoryAccess {
        let data = view.entry(entry);
        let kind = view.classes.kind(data.class);
        let in_class = last.nearest(data.class, kind);
        let this = &mut self.accesses[access];
        this.defining = state;
        // An instruction that may touch every class starts its walks at the one chain.
        let reaches_all = data.effects.fence || data.effects.writes_escaped;
        this.in_class = if data.bytes.is_some() {
            in_class
        } else {
            state
        };
        if !data.effects.is_def() {
            return state;
        }
        last.add_def(access, data.class, kind, reaches_all);
        access
    }

    fn fill_operands(&mut self, flow: &Flow, builder: &Builder) {
        for &block in &builder.frontier.blocks {
            let Some(phi) = self.phi_of(block) else {
                continue;
            };
            let start = self.accesses[phi].operands as usize;
            for (index, &pred) in flow.preds(block).iter().enumerate() {
                if let Some(state) = builder.block_out[pred].expand() {
                    self.operand_pool[start + index] = state;
                }
            }
        }
    }
}

fn push(accesses: &mut PrimaryMap<MemoryAccess, AccessData>, kind: AccessKind) -> MemoryAccess {
    let access = accesses.next_key();
    accesses.push(AccessData {
        kind,
        defining: access,
        in_class: access,
        operands: 0,
    })
}

impl View {
    /// The entries of reachable blocks, in layout order.
    pub(super) fn live_entries<'a>(&'a self, flow: &'a Flow) -> impl Iterator<Item = Entry> + 'a {
        self.entries()
            .filter(move |&entry| flow.is_reachable(self.entry(entry).block))
    }
}
