//! The check that optimizing a function made no path through it worse.
//!
//! Both functions went through Cranelift's optimizer: `before` alone, `after` once the memory
//! optimizer had run on it. A block of `after` weighs the memory operations it has there, less those
//! it has in `before`. The function is worse if a walk from the entry to a block without successors
//! weighs more than nothing in all, or if a cycle does. Single blocks say nothing: an operation may
//! go from a join into both arms, and Cranelift places a pure load where its first use happens to be.
//!
//! **Why walks of `after` with weights from `before`.** Both come from one original, and neither
//! optimizer gives an existing block another meaning: branches lose edges that are never taken, and
//! edges gain new blocks that only pass through. So one execution visits the same blocks in both,
//! but for the new ones, and the sum over its walk in `after` is exactly how many operations it does
//! more than in `before`. From this follows what a block without counterpart means:
//! - one that `before` never had (its number is past all of `before`) is new: it had no operations;
//! - one that `before` had, but that can no longer be reached there, is never executed, as Cranelift
//!   proved; walks through it in `after` are no executions, so they are not looked at;
//! - one that is reachable in `before` only is on no walk of `after`. If an optimizer dissolved it
//!   into others, its operations are missing on the side of `before`: the check may then call a path
//!   worse that is not, never the reverse.
//!
//! Not seen: an execution that a trap or a callee ends half-way through a walk.

use std::fmt;

use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::ir::{Block, Function};

use crate::counts::{memory_ops, ops_of_memory_function, reachable_blocks};

/// Blocks of a [`WorsePath`] that its text names.
const NAMED_BLOCKS_MAX: usize = 12;

/// A path with more memory operations than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorsePath {
    /// The blocks in order: from the entry to an exit, or once around a cycle.
    pub blocks: Vec<Block>,
    /// Those of them whose number of memory operations changed, and by how much.
    pub changes: Vec<(Block, i64)>,
    /// Memory operations more than before, over the whole path.
    pub extra: i64,
    /// Whether the blocks are a cycle.
    pub cycle: bool,
}

impl fmt::Display for WorsePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.extra == 1 { "" } else { "s" };
        let place = if self.cycle {
            "around a loop"
        } else {
            "on a path"
        };
        write!(
            f,
            "{} more memory operation{plural} {place} through ",
            self.extra
        )?;
        for (index, (block, change)) in self.changes.iter().take(NAMED_BLOCKS_MAX).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{block} ({change:+})")?;
        }
        if self.changes.len() > NAMED_BLOCKS_MAX {
            f.write_str(", …")?;
        }
        Ok(())
    }
}

/// A path of `after` with more memory operations than it has in `before`, if there is one. Both are
/// the same function after Cranelift's optimizer; `before` without the memory optimizer.
///
/// Gives the worst complete path, or any cycle. Takes time proportional to edges × blocks at most;
/// in practice a few scans.
pub fn worse_path(before: &Function, after: &Function) -> Option<WorsePath> {
    let search = Search::new(before, after);
    if search.order.iter().all(|&block| search.weight[block] <= 0) {
        return None;
    }
    search.run()
}

struct Search {
    /// Blocks of `after` that can be executed, in reverse postorder.
    order: Vec<Block>,
    successors: SecondaryMap<Block, Vec<Block>>,
    /// Blocks of `order` that end the function.
    exits: Vec<Block>,
    weight: SecondaryMap<Block, i64>,
}

/// What the memory functions count as that `block` calls in `func` and does not in `other`: doing
/// their work without a call would otherwise look like more.
fn calls_only_in(func: &Function, other: &Function, block: Block) -> i64 {
    if !func.layout.is_block_inserted(block) {
        return 0;
    }
    let calls = func.layout.block_insts(block).filter(|&inst| {
        let is_there = other.dfg.inst_is_valid(inst)
            && other.dfg.insts[inst].opcode().is_call()
            && other.layout.inst_block(inst).is_some();
        !is_there
    });
    calls
        .map(|inst| i64::from(ops_of_memory_function(func, inst)))
        .sum()
}

/// The heaviest known walk to each block.
struct Walks {
    total: SecondaryMap<Block, Option<i64>>,
    parent: SecondaryMap<Block, Option<Block>>,
}

impl Search {
    fn new(before: &Function, after: &Function) -> Search {
        let mut old_reachable = EntitySet::new();
        old_reachable.extend(reachable_blocks(before));
        let can_run =
            |block: Block| !before.dfg.block_is_valid(block) || old_reachable.contains(block);
        let (old, new) = (memory_ops(before), memory_ops(after));
        let mut search = Search {
            order: Vec::new(),
            successors: SecondaryMap::new(),
            exits: Vec::new(),
            weight: SecondaryMap::new(),
        };
        // `reachable_blocks` is in reverse postorder: scans in this order settle quickly.
        for block in reachable_blocks(after)
            .into_iter()
            .filter(|&block| can_run(block))
        {
            search.order.push(block);
            search.weight[block] = i64::from(new[block]) + calls_only_in(after, before, block)
                - i64::from(old[block])
                - calls_only_in(before, after, block);
            search.successors[block] = after
                .block_successors(block)
                .filter(|&next| can_run(next))
                .collect();
            if after.block_successors(block).next().is_none() {
                search.exits.push(block);
            }
        }
        search
    }

    /// Bellman-Ford for the longest walk. The parents close a cycle exactly if one has a positive
    /// weight, so that there is no need to wait for as many scans as there are blocks.
    fn run(&self) -> Option<WorsePath> {
        let mut walks = Walks {
            total: SecondaryMap::new(),
            parent: SecondaryMap::new(),
        };
        let entry = *self.order.first()?;
        walks.total[entry] = Some(self.weight[entry]);
        while self.scan(&mut walks) {
            if let Some(cycle) = self.parent_cycle(&walks) {
                return Some(self.report(cycle, true));
            }
        }
        self.worst_complete(&walks)
    }

    /// Lengthens walks over every edge once; whether any got longer.
    fn scan(&self, walks: &mut Walks) -> bool {
        let mut changed = false;
        for &block in &self.order {
            let Some(total) = walks.total[block] else {
                continue;
            };
            for &next in &self.successors[block] {
                let longer = total + self.weight[next];
                if walks.total[next].is_none_or(|known| known < longer) {
                    walks.total[next] = Some(longer);
                    walks.parent[next] = Some(block);
                    changed = true;
                }
            }
        }
        changed
    }

    fn parent_cycle(&self, walks: &Walks) -> Option<Vec<Block>> {
        // The number of the chain that visited the block first.
        let mut visited: SecondaryMap<Block, usize> = SecondaryMap::new();
        for (index, &start) in self.order.iter().enumerate() {
            let chain = index + 1;
            let mut at = Some(start);
            while let Some(block) = at {
                match visited[block] {
                    0 => visited[block] = chain,
                    seen if seen == chain => return Some(collect_cycle(block, walks)),
                    _ => break,
                }
                at = walks.parent[block];
            }
        }
        None
    }

    fn worst_complete(&self, walks: &Walks) -> Option<WorsePath> {
        let (total, exit) = self
            .exits
            .iter()
            .filter_map(|&block| walks.total[block].map(|total| (total, block)))
            .max_by_key(|&(total, _)| total)?;
        if total <= 0 {
            return None;
        }
        let mut blocks: Vec<Block> =
            std::iter::successors(Some(exit), |&block| walks.parent[block]).collect();
        blocks.reverse();
        Some(self.report(blocks, false))
    }

    fn report(&self, blocks: Vec<Block>, cycle: bool) -> WorsePath {
        let changes: Vec<_> = blocks
            .iter()
            .map(|&block| (block, self.weight[block]))
            .filter(|&(_, weight)| weight != 0)
            .collect();
        let extra = changes.iter().map(|&(_, weight)| weight).sum();
        WorsePath {
            blocks,
            changes,
            extra,
            cycle,
        }
    }
}

/// The cycle of parents that `start` is on, forwards.
fn collect_cycle(start: Block, walks: &Walks) -> Vec<Block> {
    let mut cycle = vec![start];
    let mut at = walks.parent[start];
    while let Some(block) = at.filter(|&block| block != start) {
        cycle.push(block);
        at = walks.parent[block];
    }
    cycle.reverse();
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A diamond with a loop behind it, and `ops` loads in each block: entry, arms, join, loop, exit.
    fn graph(ops: [usize; 6]) -> Function {
        let loads = ops.map(|count| "v9 = load.i64 v0\n".repeat(count));
        let mut number = 9;
        let numbered = |text: &String| -> String {
            text.lines()
                .map(|line| {
                    number += 1;
                    line.replace("v9", &format!("v{number}")) + "\n"
                })
                .collect()
        };
        let [b0, b1, b2, b3, b4, b5] = loads
            .iter()
            .map(numbered)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        parse(&format!(
            "function %f(i64, i32) system_v {{
            block0(v0: i64, v1: i32):
                {b0} brif v1, block1, block2
            block1: {b1} jump block3
            block2: {b2} jump block3
            block3: {b3} jump block4
            block4: {b4} brif v1, block4, block5
            block5: {b5} return
            }}"
        ))
    }

    fn parse(text: &str) -> Function {
        cranelift_reader::parse_functions(text).unwrap().remove(0)
    }

    fn worse(before: [usize; 6], after: [usize; 6]) -> Option<String> {
        worse_path(&graph(before), &graph(after)).map(|path| path.to_string())
    }

    #[test]
    fn the_same_is_not_worse() {
        assert_eq!(worse([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]), None);
        assert_eq!(worse([1, 2, 3, 4, 5, 6], [0, 2, 2, 4, 5, 6]), None);
    }

    #[test]
    fn moved_from_the_join_to_both_arms_is_not_worse() {
        assert_eq!(worse([0, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0]), None);
    }

    #[test]
    fn moved_before_the_branch_is_worse_on_the_other_arm() {
        assert_eq!(
            worse([0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]).unwrap(),
            "1 more memory operation on a path through block0 (+1)"
        );
    }

    #[test]
    fn worse_on_one_arm() {
        assert_eq!(
            worse([0, 0, 0, 1, 0, 0], [0, 3, 1, 0, 0, 0]).unwrap(),
            "2 more memory operations on a path through block1 (+3), block3 (-1)"
        );
    }

    #[test]
    fn moved_into_the_loop_is_worse() {
        assert_eq!(
            worse([0, 0, 0, 9, 0, 0], [0, 0, 0, 0, 1, 0]).unwrap(),
            "1 more memory operation around a loop through block4 (+1)"
        );
    }

    #[test]
    fn moved_out_of_the_loop_is_not_worse() {
        assert_eq!(worse([0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]), None);
        // Unless the loop may be left before the load is reached.
        let before = "function %f(i64, i32) system_v {
            block0(v0: i64, v1: i32): jump block1
            block1: brif v1, block2, block3
            block2: v2 = load.i64 v0  jump block1
            block3: return
            }";
        let after = "function %f(i64, i32) system_v {
            block0(v0: i64, v1: i32): v2 = load.i64 v0  jump block1
            block1: brif v1, block2, block3
            block2: jump block1
            block3: return
            }";
        assert!(worse_path(&parse(before), &parse(after)).is_some());
    }

    #[test]
    fn a_new_block_on_an_edge_had_no_operations() {
        let before = "function %f(i64, i32) system_v {
            block0(v0: i64, v1: i32): brif v1, block1, block2
            block1: v3 = load.i64 v0  jump block2
            block2: return
            }";
        let after = "function %f(i64, i32) system_v {
            block0(v0: i64, v1: i32): brif v1, block1, block3
            block1: v3 = load.i64 v0  jump block2
            block2: return
            block3: store v0, v0  jump block2
            }";
        let path = worse_path(&parse(before), &parse(after)).unwrap();
        assert_eq!(path.blocks.len(), 3);
        assert_eq!(
            path.to_string(),
            "1 more memory operation on a path through block3 (+1)"
        );
    }

    #[test]
    fn a_block_that_before_proved_dead_is_no_part_of_a_path() {
        let before = "function %f(i64, i32) system_v {
            block0(v0: i64, v1: i32): jump block2
            block1: v3 = load.i64 v0  jump block2
            block2: return
            }";
        let after = "function %f(i64, i32) system_v {
            block0(v0: i64, v1: i32): brif v1, block1, block2
            block1: v3 = load.i64 v0  jump block2
            block2: return
            }";
        assert_eq!(worse_path(&parse(before), &parse(after)), None);
    }

    #[test]
    fn a_loop_without_exit_counts() {
        let text = |ops: &str| {
            format!(
                "function %f(i64) system_v {{
                block0(v0: i64): jump block1
                block1: {ops} jump block1
                }}"
            )
        };
        let path = worse_path(&parse(&text("")), &parse(&text("v1 = load.i64 v0"))).unwrap();
        assert!(path.cycle);
        assert_eq!(path.extra, 1);
    }

    #[test]
    fn a_cycle_of_many_blocks_weighs_as_a_whole() {
        let text = |first: &str, second: &str| {
            format!(
                "function %f(i64, i32) system_v {{
                block0(v0: i64, v1: i32): jump block1
                block1: {first} jump block2
                block2: {second} brif v1, block1, block3
                block3: return
                }}"
            )
        };
        let before = parse(&text("", "v2 = load.i64 v0"));
        assert_eq!(
            worse_path(&before, &parse(&text("v2 = load.i64 v0", ""))),
            None
        );
        let after = parse(&text("v2 = load.i64 v0 v3 = load.i64 v0", ""));
        let path = worse_path(&before, &after).unwrap();
        assert!(path.cycle);
        assert_eq!(path.changes.len(), 2);
    }

    /// A random graph whose blocks are all reachable.
    fn random_search(random: &mut impl FnMut(usize) -> usize) -> Search {
        let count = 2 + random(8);
        let mut search = Search {
            order: (0..count)
                .map(|index| Block::from_u32(index as u32))
                .collect(),
            successors: SecondaryMap::new(),
            exits: Vec::new(),
            weight: SecondaryMap::new(),
        };
        for index in 0..count {
            let block = search.order[index];
            search.weight[block] = random(4) as i64 - 2;
            if index > 0 {
                let parent = search.order[random(index)];
                search.successors[parent].push(block);
            }
            let target = search.order[1 + random(count - 1)];
            if random(2) == 0 {
                search.successors[block].push(target);
            }
        }
        let ends = |block: &&Block| search.successors[**block].is_empty();
        search.exits = search.order.iter().filter(ends).copied().collect();
        search
    }

    /// As many rounds as there are blocks, and one more to see whether walks still get longer.
    fn is_worse_by_definition(search: &Search) -> bool {
        let entry = search.order[0];
        let mut total: SecondaryMap<Block, Option<i64>> = SecondaryMap::new();
        total[entry] = Some(search.weight[entry]);
        let mut changed = false;
        for _ in 0..=search.order.len() {
            changed = false;
            let known = total.clone();
            for &block in &search.order {
                for &next in &search.successors[block] {
                    let longer = known[block].map(|total| total + search.weight[next]);
                    if longer > total[next] {
                        total[next] = longer;
                        changed = true;
                    }
                }
            }
        }
        changed || search.exits.iter().any(|&exit| total[exit] > Some(0))
    }

    #[test]
    fn agrees_with_the_definition_on_random_graphs() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut cycles = 0;
        let mut walks = 0;
        for _ in 0..20_000 {
            let search = random_search(&mut random);
            let found = search.run();
            assert_eq!(found.is_some(), is_worse_by_definition(&search));
            let Some(path) = found else { continue };
            assert!(path.extra > 0);
            let steps = path
                .blocks
                .windows(2)
                .all(|two| search.successors[two[0]].contains(&two[1]));
            assert!(steps);
            let last = path.blocks[path.blocks.len() - 1];
            if path.cycle {
                cycles += 1;
                assert!(search.successors[last].contains(&path.blocks[0]));
            } else {
                walks += 1;
                assert!(search.exits.contains(&last) && path.blocks[0] == search.order[0]);
            }
        }
        assert!(
            cycles > 1000 && walks > 1000,
            "{cycles} cycles, {walks} walks"
        );
    }
}
