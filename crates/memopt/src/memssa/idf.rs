//! Iterated dominance frontier in linear time.
//!
//! Sreedhar and Gao, *A linear time algorithm for placing φ-nodes*, POPL 1995: dominator tree
//! nodes are processed from the deepest level up; a node's subtree is searched once for edges that
//! leave it to a node no deeper than its root. Their piggybank is a list of blocks for each level.

use cranelift_codegen::entity::EntitySet;
use cranelift_codegen::ir::Block;

use crate::flow::Flow;

/// Storage for [`Frontier::compute`], reused across functions.
#[derive(Debug, Default)]
pub(super) struct Frontier {
    /// Roots to be processed, by level.
    piggybank: Vec<Vec<Block>>,
    visited: EntitySet<Block>,
    in_frontier: EntitySet<Block>,
    stack: Vec<Block>,
    /// The result: the blocks that need a phi, in no order.
    pub(super) blocks: Vec<Block>,
}

impl Frontier {
    /// Computes the iterated dominance frontier of the reachable blocks `roots`, without doubles.
    pub(super) fn compute(&mut self, flow: &Flow, roots: &[Block]) {
        self.visited.clear();
        self.in_frontier.clear();
        self.blocks.clear();
        for &root in roots {
            self.deposit(flow, root);
        }
        for level in (0..self.piggybank.len()).rev() {
            while let Some(root) = self.piggybank[level].pop() {
                self.search_subtree(flow, root, level as u32);
            }
        }
    }

    fn deposit(&mut self, flow: &Flow, block: Block) {
        let level = flow.level(block) as usize;
        if self.piggybank.len() <= level {
            self.piggybank.resize(level + 1, Vec::new());
        }
        self.piggybank[level].push(block);
    }

    fn search_subtree(&mut self, flow: &Flow, root: Block, root_level: u32) {
        if !self.visited.insert(root) {
            return;
        }
        self.stack.push(root);
        while let Some(block) = self.stack.pop() {
            for &succ in flow.succs(block) {
                // An edge of the dominator tree leads one level down, so the level tells it apart.
                if flow.level(succ) <= root_level && self.in_frontier.insert(succ) {
                    self.blocks.push(succ);
                    if !self.visited.contains(succ) {
                        self.deposit(flow, succ);
                    }
                }
            }
            for child in flow.children(block) {
                if self.visited.insert(child) {
                    self.stack.push(child);
                }
            }
        }
    }
}
