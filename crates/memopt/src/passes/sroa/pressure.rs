//! Whether values are worth being carried around.
//!
//! A parameter of a block costs a move on each way into it, or memory traffic if registers do not
//! suffice. Up to [`PARAMS_MAX`] new ones a block, that is nothing to what their accesses cost.
//! Where a block would get more, the slots that have cells among them are weighed: each access of a
//! cell that goes is worth 1, each parameter costs 1, times how often the block is estimated to
//! execute. A slot that costs more than it is worth stays in memory.
//!
//! Estimates: branches go either way alike, but stay in loops, and a loop runs [`LOOP_RUNS`] times.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Function, StackSlot};

use super::partition::Partition;
use super::place::{Placement, touches};
use super::uses::Uses;
use crate::flow::Flow;

/// The most new parameters of a block that are not weighed: about as many as there are registers,
/// less those that the function needs anyway.
const PARAMS_MAX: usize = 12;

/// How often a loop is taken to run.
const LOOP_RUNS: f32 = 8.0;

/// Bounds what deep nests come to, so that differences of sums are numbers.
const FREQUENCY_MAX: f32 = 1e24;

/// Slots that are better left in memory.
pub(super) fn slots_not_worthwhile(
    func: &Function,
    flow: &Flow,
    uses: &Uses,
    partition: &Partition,
    placement: &Placement,
) -> Vec<StackSlot> {
    let params = placement.params.chunk_by(|a, b| a.0 == b.0);
    let mut crowded: Vec<StackSlot> = params
        .filter(|params| params.len() > PARAMS_MAX)
        .flatten()
        .map(|&(_, cell)| partition.cells[cell].slot)
        .collect();
    crowded.sort_unstable();
    crowded.dedup();
    if crowded.is_empty() {
        return crowded;
    }
    let frequency = frequencies(func, flow);
    let mut gain = SecondaryMap::<StackSlot, f32>::new();
    for &block in flow.rpo() {
        for index in uses.block_ops(block) {
            touches(uses, partition, &uses.ops[index], |cell, _| {
                gain[partition.cells[cell].slot] += frequency[block];
            });
        }
    }
    for &(block, cell) in &placement.params {
        gain[partition.cells[cell].slot] -= frequency[block];
    }
    crowded.retain(|&slot| gain[slot] < 0.0);
    crowded
}

/// How often each block is estimated to execute when the function is called once.
fn frequencies(func: &Function, flow: &Flow) -> SecondaryMap<Block, f32> {
    let loops = flow.loops(func);
    let mut frequency = SecondaryMap::<Block, f32>::new();
    if let Some(&entry) = flow.rpo().first() {
        frequency[entry] = 1.0;
    }
    for &block in flow.rpo() {
        if loops.is_loop_header(block).is_some() {
            frequency[block] = (frequency[block] * LOOP_RUNS).min(FREQUENCY_MAX);
        }
        let own = loops.innermost_loop(block);
        let stays = |succ: Block| own.is_none_or(|own| loops.is_in_loop(succ, own));
        let inside = flow
            .succs(block)
            .iter()
            .filter(|&&succ| stays(succ))
            .count();
        for &succ in flow.succs(block) {
            if flow.is_retreating(block, succ) {
                continue;
            }
            if stays(succ) {
                frequency[succ] += frequency[block] / inside as f32;
            } else if let Some(own) = own {
                // A loop is left as often as it is entered, whichever way.
                let entered = frequency[loops.loop_header(own)] / LOOP_RUNS;
                frequency[succ] = frequency[succ].max(entered);
            }
        }
    }
    frequency
}
