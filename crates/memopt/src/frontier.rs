//! Iterated dominance frontier in linear time.
//!
//! Sreedhar and Gao, *A linear time algorithm for placing φ-nodes*, POPL 1995: dominator tree
//! nodes are processed from the deepest level up; a node's subtree is searched once for edges that
//! leave it to a node no deeper than its root. Their piggybank is a list of blocks for each level.
//!
//! For a pruned form the search stays in the blocks where the variable is live on entry. It loses
//! nothing by that: a definition that reaches out of the subtree of a block where the variable is
//! not live on entry stands within that subtree, and is searched from there.

use cranelift_codegen::entity::EntitySet;
use cranelift_codegen::ir::Block;

use crate::flow::Flow;

/// Storage for [`Frontier::compute`], reused across functions.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    /// Roots to be processed, by level.
    piggybank: Vec<Vec<Block>>,
    /// How many levels of the piggybank are in use.
    levels: usize,
    visited: EntitySet<Block>,
    in_frontier: EntitySet<Block>,
    stack: Vec<Block>,
    /// The result: the blocks that need a phi, in no order.
    pub(crate) blocks: Vec<Block>,
}

impl Frontier {
    /// Computes the iterated dominance frontier of the reachable blocks `roots`, without doubles,
    /// as far as it lies in blocks for which `is_live` holds.
    pub(crate) fn compute(
        &mut self,
        flow: &Flow,
        roots: &[Block],
        is_live: impl Fn(Block) -> bool,
    ) {
        self.visited.clear();
        self.in_frontier.clear();
        self.blocks.clear();
        self.levels = 0;
        for &root in roots {
            self.deposit(flow, root);
        }
        // Blocks are deposited at levels no deeper than the one that is searched.
        for level in (0..self.levels).rev() {
            while let Some(root) = self.piggybank[level].pop() {
                self.search_subtree(flow, root, level as u32, &is_live);
            }
        }
    }

    /// Whether the last computation found that `block` needs a phi.
    pub(crate) fn contains(&self, block: Block) -> bool {
        self.in_frontier.contains(block)
    }

    fn deposit(&mut self, flow: &Flow, block: Block) {
        let level = flow.level(block) as usize;
        self.levels = self.levels.max(level + 1);
        if self.piggybank.len() <= level {
            self.piggybank.resize(level + 1, Vec::new());
        }
        self.piggybank[level].push(block);
    }

    fn search_subtree(
        &mut self,
        flow: &Flow,
        root: Block,
        root_level: u32,
        is_live: &impl Fn(Block) -> bool,
    ) {
        if !self.visited.insert(root) {
            return;
        }
        self.stack.push(root);
        while let Some(block) = self.stack.pop() {
            for &succ in flow.succs(block) {
                // An edge of the dominator tree leads one level down, so the level tells it apart.
                if flow.level(succ) <= root_level && is_live(succ) && self.in_frontier.insert(succ)
                {
                    self.blocks.push(succ);
                    if !self.visited.contains(succ) {
                        self.deposit(flow, succ);
                    }
                }
            }
            for child in flow.children(block) {
                if is_live(child) && self.visited.insert(child) {
                    self.stack.push(child);
                }
            }
        }
    }
}
