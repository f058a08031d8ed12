//! The control flow graph in dense form: reverse postorder, unique predecessors and successors,
//! dominator tree depth.
//!
//! Blocks that the entry does not reach have no place in it.

use cranelift_codegen::dominator_tree::DominatorTree;
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{Block, Function, Inst};
use cranelift_codegen::loop_analysis::LoopAnalysis;

/// A span of [`Flow::edges`].
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Position in reverse postorder plus one; 0 for unreachable blocks.
    order: u32,
    /// Depth in the dominator tree; the entry has 0.
    level: u32,
    preds: Span,
    succs: Span,
}

/// The control flow of one function. Storage is reused by [`Flow::compute`].
pub struct Flow {
    cfg: ControlFlowGraph,
    domtree: DominatorTree,
    rpo: Vec<Block>,
    nodes: SecondaryMap<Block, Node>,
    edges: Vec<Block>,
    /// The block in whose edge list this block was last entered, to keep lists free of doubles.
    last_source: SecondaryMap<Block, u32>,
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow").field("rpo", &self.rpo).finish()
    }
}

impl Default for Flow {
    fn default() -> Self {
        Flow {
            cfg: ControlFlowGraph::new(),
            domtree: DominatorTree::new(),
            rpo: Vec::new(),
            nodes: SecondaryMap::new(),
            edges: Vec::new(),
            last_source: SecondaryMap::new(),
        }
    }
}

impl Flow {
    /// Computes the control flow of `func`. Linear but for the dominator tree (semi-NCA).
    pub fn compute(&mut self, func: &Function) {
        self.cfg.compute(func);
        self.domtree.compute(func, &self.cfg);
        self.rpo.clear();
        self.rpo.extend(self.domtree.cfg_rpo().copied());
        self.nodes.clear();
        self.nodes.resize(func.dfg.num_blocks());
        self.edges.clear();
        self.last_source.clear();
        self.last_source.resize(func.dfg.num_blocks());
        for (index, &block) in self.rpo.iter().enumerate() {
            self.nodes[block].order = index as u32 + 1;
            if let Some(idom) = self.domtree.idom(block) {
                self.nodes[block].level = self.nodes[idom].level + 1;
            }
        }
        self.compute_successors(func);
        self.compute_predecessors();
    }

    fn compute_successors(&mut self, func: &Function) {
        for (index, &block) in self.rpo.iter().enumerate() {
            let stamp = index as u32 + 1;
            let start = self.edges.len() as u32;
            for succ in func.block_successors(block) {
                if self.last_source[succ] != stamp {
                    self.last_source[succ] = stamp;
                    self.edges.push(succ);
                    self.nodes[succ].preds.end += 1;
                }
            }
            self.nodes[block].succs = Span {
                start,
                end: self.edges.len() as u32,
            };
        }
    }

    /// Turns the counts that [`Flow::compute_successors`] left in `preds.end` into spans.
    fn compute_predecessors(&mut self) {
        let mut start = self.edges.len() as u32;
        for &block in &self.rpo {
            let preds = &mut self.nodes[block].preds;
            let count = preds.end;
            *preds = Span { start, end: start };
            start += count;
        }
        let Some(&entry) = self.rpo.first() else {
            return;
        };
        self.edges.resize(start as usize, entry);
        for index in 0..self.rpo.len() {
            let block = self.rpo[index];
            let succs = self.nodes[block].succs;
            for edge in succs.start..succs.end {
                let succ = self.edges[edge as usize];
                let preds = &mut self.nodes[succ].preds;
                self.edges[preds.end as usize] = block;
                preds.end += 1;
            }
        }
    }

    fn span(&self, span: Span) -> &[Block] {
        &self.edges[span.start as usize..span.end as usize]
    }

    /// Reachable blocks in reverse postorder.
    pub fn rpo(&self) -> &[Block] {
        &self.rpo
    }

    /// The position of a reachable block in [`Flow::rpo`].
    pub fn rpo_index(&self, block: Block) -> u32 {
        debug_assert!(self.is_reachable(block));
        self.nodes[block].order - 1
    }

    /// Whether the entry reaches `block`.
    pub fn is_reachable(&self, block: Block) -> bool {
        self.nodes[block].order != 0
    }

    /// The reachable predecessors, each once, in reverse postorder.
    pub fn preds(&self, block: Block) -> &[Block] {
        self.span(self.nodes[block].preds)
    }

    /// The successors, each once, in the order of the terminator.
    pub fn succs(&self, block: Block) -> &[Block] {
        self.span(self.nodes[block].succs)
    }

    /// The immediate dominator; none for the entry and for unreachable blocks.
    pub fn idom(&self, block: Block) -> Option<Block> {
        self.domtree.idom(block)
    }

    /// The children in the dominator tree.
    pub fn children(&self, block: Block) -> impl Iterator<Item = Block> + '_ {
        self.domtree.children(block)
    }

    /// Depth in the dominator tree. The entry has 0.
    pub fn level(&self, block: Block) -> u32 {
        self.nodes[block].level
    }

    /// Whether `dominator` dominates `block`. A block dominates itself.
    pub fn dominates(&self, dominator: Block, block: Block) -> bool {
        self.domtree.block_dominates(dominator, block)
    }

    /// Whether `dominator` dominates `inst`. An instruction dominates itself.
    pub fn inst_dominates(&self, func: &Function, dominator: Inst, inst: Inst) -> bool {
        self.domtree.dominates(dominator, inst, &func.layout)
    }

    /// The natural loops. Computed anew each time.
    pub(crate) fn loops(&self, func: &Function) -> LoopAnalysis {
        let mut loops = LoopAnalysis::new();
        loops.compute(func, &self.cfg, &self.domtree);
        loops
    }

    /// Whether the edge goes against reverse postorder: every cycle has such an edge.
    pub fn is_retreating(&self, from: Block, to: Block) -> bool {
        self.nodes[from].order >= self.nodes[to].order
    }
}
