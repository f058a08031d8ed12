//! Where cells need block parameters: pruned SSA form.
//!
//! A cell needs a parameter in a block of the iterated dominance frontier of the blocks that write
//! it, if the block may read it before it writes it.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::Block;

use super::partition::{Cell, Partition};
use super::uses::{Op, OpKind, Place, Uses};
use crate::faults::{Fault, planted};
use crate::flow::Flow;
use crate::frontier::Frontier;

/// Storage is reused by [`Placement::compute`].
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// Blocks that write a cell.
    writes: Vec<(Cell, Block)>,
    /// Blocks that read a cell before they write it.
    reads: Vec<(Cell, Block)>,
    /// The last block, by number in reverse postorder from 1, that touched the cell.
    written_in: SecondaryMap<Cell, u32>,
    read_in: SecondaryMap<Cell, u32>,
    /// The last cell, by number from 1, that is live on entry of the block, or is written in it.
    live_for: SecondaryMap<Block, u32>,
    writes_for: SecondaryMap<Block, u32>,
    worklist: Vec<Block>,
    roots: Vec<Block>,
    frontier: Frontier,
    /// The result: block and cell of each parameter, by block, then by cell.
    pub(super) params: Vec<(Block, Cell)>,
}

/// How an operation touches a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read,
    Write,
    /// A part of the cell is written, and the rest stays.
    Update,
}

/// Calls `touch` for each cell that the operation touches, reads first.
pub(super) fn touches(
    uses: &Uses,
    partition: &Partition,
    op: &Op,
    mut touch: impl FnMut(Cell, Touch),
) {
    let mut read = |place: Place, length: u32| {
        for cell in partition.cells_in(place.slot, place.offset, place.offset + length) {
            touch(cell, Touch::Read);
        }
    };
    let written = match op.kind {
        OpKind::Load { from, ty } => return read(from, ty.bytes()),
        OpKind::LoadAny { choice, ty } => {
            for &place in &uses.choices[choice as usize].places {
                read(place, ty.bytes());
            }
            return;
        }
        OpKind::StoreAny { choice, ty } => {
            for place in &uses.choices[choice as usize].places {
                let end = place.offset + ty.bytes();
                for cell in partition.cells_in(place.slot, place.offset, end) {
                    touch(cell, Touch::Update);
                }
            }
            return;
        }
        OpKind::Store { to, ty } => Some((to, ty.bytes())),
        OpKind::Set { to, length } => Some((to, length)),
        OpKind::Copy { to, from, length } => {
            if let Some(from) = from {
                read(from, length);
            }
            to.map(|to| (to, length))
        }
    };
    if let Some((to, length)) = written {
        let end = to.offset + length;
        for cell in partition.cells_in(to.slot, to.offset, end) {
            let data = &partition.cells[cell];
            let whole = to.offset <= data.start && data.end <= end;
            touch(cell, if whole { Touch::Write } else { Touch::Update });
        }
    }
}

impl Placement {
    pub(super) fn compute(&mut self, flow: &Flow, uses: &Uses, partition: &Partition) {
        self.collect(flow, uses, partition);
        self.params.clear();
        self.live_for.clear();
        self.writes_for.clear();
        let reads = std::mem::take(&mut self.reads);
        let writes = std::mem::take(&mut self.writes);
        let mut next_write = 0;
        for reads in reads.chunk_by(|a, b| a.0 == b.0) {
            let cell = reads[0].0;
            while writes.get(next_write).is_some_and(|write| write.0 < cell) {
                next_write += 1;
            }
            let own = writes[next_write..].partition_point(|write| write.0 == cell);
            let writes = &writes[next_write..next_write + own];
            if !writes.is_empty() {
                self.place(flow, cell, reads, writes);
            }
        }
        self.reads = reads;
        self.writes = writes;
        self.params.sort_unstable();
    }

    /// The cells that need a parameter in `block`.
    pub(super) fn params_of(&self, block: Block) -> &[(Block, Cell)] {
        let first = self.params.partition_point(|param| param.0 < block);
        let rest = &self.params[first..];
        &rest[..rest.partition_point(|param| param.0 == block)]
    }

    fn collect(&mut self, flow: &Flow, uses: &Uses, partition: &Partition) {
        self.writes.clear();
        self.reads.clear();
        self.written_in.clear();
        self.written_in.resize(partition.cells.len());
        self.read_in.clear();
        self.read_in.resize(partition.cells.len());
        for (&block, stamp) in flow.rpo().iter().zip(1..) {
            for index in uses.block_ops(block) {
                touches(uses, partition, &uses.ops[index], |cell, touch| {
                    if partition.cells[cell].ty.is_none() {
                        return;
                    }
                    let first = self.written_in[cell] != stamp;
                    let reads = match touch {
                        Touch::Read => true,
                        Touch::Update => !planted(Fault::UpdateReads),
                        Touch::Write => false,
                    };
                    if reads && first && self.read_in[cell] != stamp {
                        self.read_in[cell] = stamp;
                        self.reads.push((cell, block));
                    }
                    if touch != Touch::Read && first {
                        self.written_in[cell] = stamp;
                        self.writes.push((cell, block));
                    }
                });
            }
        }
        self.reads.sort_unstable();
        self.writes.sort_unstable();
    }

    fn place(
        &mut self,
        flow: &Flow,
        cell: Cell,
        reads: &[(Cell, Block)],
        writes: &[(Cell, Block)],
    ) {
        // Its values come from one block only.
        if let [(_, write)] = writes
            && reads
                .iter()
                .all(|(_, read)| read != write && flow.dominates(*write, *read))
        {
            return;
        }
        let stamp = cell.as_u32() + 1;
        self.roots.clear();
        for &(_, block) in writes {
            self.writes_for[block] = stamp;
            self.roots.push(block);
        }
        self.worklist.clear();
        for &(_, block) in reads {
            self.live_for[block] = stamp;
            self.worklist.push(block);
        }
        while let Some(block) = self.worklist.pop() {
            for &pred in flow.preds(block) {
                if self.writes_for[pred] != stamp && self.live_for[pred] != stamp {
                    self.live_for[pred] = stamp;
                    self.worklist.push(pred);
                }
            }
        }
        let live_for = &self.live_for;
        self.frontier
            .compute(flow, &self.roots, |block| live_for[block] == stamp);
        let forgotten = |block: Block| {
            let preds = flow.preds(block);
            let is_head = || preds.iter().any(|&pred| flow.dominates(block, pred));
            let writes = |pred: &Block| self.writes_for[*pred] == stamp;
            (planted(Fault::LoopParam) && is_head())
                || (planted(Fault::OneWayParam) && !preds.iter().all(writes))
        };
        let blocks = self.frontier.blocks.iter();
        let blocks = blocks.filter(|&&block| !forgotten(block));
        self.params.extend(blocks.map(|&block| (block, cell)));
    }
}
