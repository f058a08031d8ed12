//! Where slots are live, and which of them are live at each other's accesses.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, StackSlot};

use super::scan::{Event, Parts, Scan, What};
use crate::faults::{Fault, planted};
use crate::flow::Flow;

/// The number of a candidate: a bit.
type Number = usize;

/// Rows of bits, one for each candidate.
#[derive(Debug, Default)]
struct Rows {
    words: usize,
    data: Vec<u64>,
}

impl Rows {
    fn reset(&mut self, rows: usize, bits: usize) {
        self.words = bits.div_ceil(64);
        self.data.clear();
        self.data.resize(rows * self.words, 0);
    }

    fn row(&self, row: usize) -> &[u64] {
        &self.data[row * self.words..(row + 1) * self.words]
    }

    fn row_mut(&mut self, row: usize) -> &mut [u64] {
        &mut self.data[row * self.words..(row + 1) * self.words]
    }
}

fn has(row: &[u64], bit: Number) -> bool {
    row[bit / 64] >> (bit % 64) & 1 == 1
}

fn set(row: &mut [u64], bit: Number) {
    row[bit / 64] |= 1 << (bit % 64);
}

fn clear(row: &mut [u64], bit: Number) {
    row[bit / 64] &= !(1 << (bit % 64));
}

fn join(into: &mut [u64], from: &[u64]) {
    for (into, from) in into.iter_mut().zip(from) {
        *into |= from;
    }
}

/// Writes to a slot in a block, in a row, that together may write all that is used of it.
#[derive(Clone, Copy, Debug, Default)]
struct WriteRun {
    /// The block it is in, by place in reverse postorder, plus one.
    block: u32,
    first: usize,
    written: Parts,
    /// Nothing of what was there before is left.
    is_complete: bool,
}

/// See the module. Storage is reused by [`Lifetimes::compute`].
#[derive(Debug, Default)]
pub(super) struct Lifetimes {
    numbers: SecondaryMap<StackSlot, Option<Number>>,
    // By block, in reverse postorder.
    /// Accessed, or let out, in the block or on a path to it.
    accessed: Rows,
    /// Let out in the block or on a path to it.
    escaped: Rows,
    /// Read from the start of the block, on some path, before it is overwritten.
    needed: Rows,
    /// All written in the block before any of it is read.
    overwritten: Rows,
    /// Some instruction from the start of the block on touches escaped memory.
    touched: Vec<bool>,
    /// By event: what the slot held before is overwritten before it is read, in the same block.
    ends_before: Vec<bool>,
    /// By event: the first access, or the first escape, of the slot on all paths to it.
    is_first_access: Vec<bool>,
    is_first_escape: Vec<bool>,
    runs: Vec<WriteRun>,
    dirty: Vec<bool>,
    conflicts: Rows,
    state: State,
}

/// What is known between two instructions.
#[derive(Debug, Default)]
struct State {
    accessed: Vec<u64>,
    escaped: Vec<u64>,
    needed: Vec<u64>,
    touched: bool,
}

impl State {
    /// The slots that are live, but for those that are accessed by the instruction itself.
    fn live(&self) -> impl Iterator<Item = u64> + '_ {
        let touched = match self.touched && !planted(Fault::FrameEscape) {
            true => u64::MAX,
            false => 0,
        };
        let words = self.accessed.iter().zip(&self.needed).zip(&self.escaped);
        words.map(move |((accessed, needed), escaped)| accessed & needed | escaped & touched)
    }
}

impl Lifetimes {
    /// Compares the lifetimes of the candidates, of which each gets its place as its number.
    pub(super) fn compute(&mut self, flow: &Flow, scan: &Scan, candidates: &[StackSlot]) {
        self.numbers.clear();
        for (number, &slot) in candidates.iter().enumerate() {
            self.numbers[slot] = Some(number);
        }
        let (blocks, slots) = (flow.rpo().len(), candidates.len());
        for rows in [
            &mut self.accessed,
            &mut self.escaped,
            &mut self.needed,
            &mut self.overwritten,
        ] {
            rows.reset(blocks, slots);
        }
        self.touched.clear();
        self.touched.resize(blocks, false);
        for flags in [
            &mut self.ends_before,
            &mut self.is_first_access,
            &mut self.is_first_escape,
        ] {
            flags.clear();
            flags.resize(scan.num_events(), false);
        }
        self.runs.clear();
        self.runs.resize(slots, WriteRun::default());
        for (index, &block) in flow.rpo().iter().enumerate() {
            self.summarize(scan, index, block);
        }
        self.flow_forward(flow);
        self.flow_backward(flow);
        self.conflicts.reset(slots, slots);
        for (index, &block) in flow.rpo().iter().enumerate() {
            self.find_conflicts(flow, scan, index, block);
        }
        self.mirror_conflicts(slots);
    }

    /// The candidates that cannot share bytes with this one.
    pub(super) fn conflicts(&self, number: Number) -> impl Iterator<Item = Number> + '_ {
        bits(self.conflicts.row(number))
    }

    fn number(&self, event: Event) -> Option<Number> {
        self.numbers[event.slot?]
    }

    /// What a block does to each slot, without what comes before and after.
    fn summarize(&mut self, scan: &Scan, index: usize, block: Block) {
        for place in scan.block_events(block) {
            let event = scan.event(place);
            self.touched[index] |= event.slot.is_none();
            let (Some(number), Some(slot)) = (self.number(event), event.slot) else {
                continue;
            };
            set(self.accessed.row_mut(index), number);
            let facts = &scan.slots[slot];
            let run = &mut self.runs[number];
            let stamp = index as u32 + 1;
            if run.block != stamp {
                *run = WriteRun {
                    block: stamp,
                    is_complete: true,
                    ..WriteRun::default()
                };
            }
            let read = match event.what {
                What::Escape => {
                    set(self.escaped.row_mut(index), number);
                    Some(facts.used)
                }
                What::Read(parts) => Some(parts),
                What::Write(parts) => {
                    if run.is_complete {
                        *run = WriteRun {
                            block: stamp,
                            first: place,
                            ..WriteRun::default()
                        };
                    }
                    run.written = run.written.with(parts);
                    // What has escaped may be read in ways that are no events of the slot.
                    if facts.used.is_within(run.written) && facts.escape.is_none() {
                        run.is_complete = true;
                        self.ends_before[run.first] = true;
                        if !has(self.needed.row(index), number) {
                            set(self.overwritten.row_mut(index), number);
                        }
                    }
                    None
                }
            };
            if let Some(parts) = read
                && !(parts.is_within(run.written) && facts.escape.is_none())
            {
                // What was written so far is not all that is read: it ends nothing.
                run.is_complete = true;
                run.written = Parts::default();
                if !has(self.overwritten.row(index), number) {
                    set(self.needed.row_mut(index), number);
                }
            }
        }
    }

    fn all_dirty(&mut self) {
        self.dirty.clear();
        self.dirty.resize(self.touched.len(), true);
    }

    /// From what happens in each block to what happened on some path to its end.
    fn flow_forward(&mut self, flow: &Flow) {
        self.all_dirty();
        let rpo = flow.rpo();
        let mut again = true;
        while again {
            again = false;
            for (index, &block) in rpo.iter().enumerate() {
                if !std::mem::replace(&mut self.dirty[index], false) {
                    continue;
                }
                for &succ in flow.succs(block) {
                    let to = flow.rpo_index(succ) as usize;
                    let grows = spread(&mut self.accessed, index, to)
                        | spread(&mut self.escaped, index, to);
                    if grows {
                        self.dirty[to] = true;
                        again |= to <= index;
                    }
                }
            }
        }
    }

    /// From what happens in each block to what happens on some path from its start.
    fn flow_backward(&mut self, flow: &Flow) {
        self.all_dirty();
        let rpo = flow.rpo();
        let mut again = true;
        while again {
            again = false;
            for (index, &block) in rpo.iter().enumerate().rev() {
                if !std::mem::replace(&mut self.dirty[index], false) {
                    continue;
                }
                for &pred in flow.preds(block) {
                    let to = flow.rpo_index(pred) as usize;
                    let mut grows = self.touched[index] && !self.touched[to];
                    self.touched[to] |= self.touched[index];
                    for word in 0..self.needed.words {
                        let needed = self.needed.row(index)[word];
                        let new = needed & !self.overwritten.row(to)[word];
                        let into = &mut self.needed.row_mut(to)[word];
                        grows |= new & !*into != 0;
                        *into |= new;
                    }
                    if grows {
                        self.dirty[to] = true;
                        again |= to >= index;
                    }
                }
            }
        }
    }

    /// The state at the end of a block, and which of its events are the first ones of their slots.
    fn enter(&mut self, flow: &Flow, scan: &Scan, index: usize, block: Block) {
        let words = self.needed.words;
        let State {
            accessed,
            escaped,
            needed,
            touched,
        } = &mut self.state;
        for row in [&mut *accessed, &mut *escaped, &mut *needed] {
            row.clear();
            row.resize(words, 0);
        }
        for &pred in flow.preds(block) {
            let pred = flow.rpo_index(pred) as usize;
            join(accessed, self.accessed.row(pred));
            join(escaped, self.escaped.row(pred));
        }
        *touched = false;
        for &succ in flow.succs(block) {
            let succ = flow.rpo_index(succ) as usize;
            if !planted(Fault::FrameOverlap) {
                join(needed, self.needed.row(succ));
            }
            *touched |= self.touched[succ];
        }
        for place in scan.block_events(block) {
            let event = scan.event(place);
            let Some(number) = self.number(event) else {
                continue;
            };
            if !has(&self.state.accessed, number) {
                set(&mut self.state.accessed, number);
                self.is_first_access[place] = true;
            }
            if event.what == What::Escape && !has(&self.state.escaped, number) {
                set(&mut self.state.escaped, number);
                self.is_first_escape[place] = true;
            }
        }
        debug_assert_eq!(self.state.accessed, self.accessed.row(index));
    }

    /// Looks at each access in the block, from the last one to the first.
    fn find_conflicts(&mut self, flow: &Flow, scan: &Scan, index: usize, block: Block) {
        self.enter(flow, scan, index, block);
        let places = scan.block_events(block);
        let mut end = places.end;
        while end > places.start {
            let inst = scan.event(end - 1).inst;
            let mut start = end - 1;
            while start > places.start && scan.event(start - 1).inst == inst {
                start -= 1;
            }
            self.state.touched |= (start..end).any(|place| scan.event(place).slot.is_none());
            for place in start..end {
                self.note_conflicts(scan, place, start..end);
            }
            for place in (start..end).rev() {
                self.step_back(scan, place);
            }
            end = start;
        }
    }

    /// The slot of an event conflicts with what is live after the instruction and what it accesses.
    fn note_conflicts(&mut self, scan: &Scan, place: usize, same_inst: std::ops::Range<usize>) {
        let event = scan.event(place);
        let Some(number) = self.number(event) else {
            return;
        };
        let row = self.conflicts.row_mut(number);
        for (word, live) in row.iter_mut().zip(self.state.live()) {
            *word |= live;
        }
        // Addresses that are out can be compared, even if nothing touches their slots any more.
        if event.what == What::Escape && !planted(Fault::FrameTwoEscapes) {
            join(row, &self.state.escaped);
        }
        for other in same_inst {
            if let Some(other) = self.number(scan.event(other)) {
                set(self.conflicts.row_mut(number), other);
            }
        }
    }

    fn step_back(&mut self, scan: &Scan, place: usize) {
        let event = scan.event(place);
        let Some(number) = self.number(event) else {
            return;
        };
        match event.what {
            What::Write(_) => {}
            What::Read(_) | What::Escape => set(&mut self.state.needed, number),
        }
        if self.ends_before[place] {
            clear(&mut self.state.needed, number);
        }
        if self.is_first_access[place] {
            clear(&mut self.state.accessed, number);
        }
        if self.is_first_escape[place] {
            clear(&mut self.state.escaped, number);
        }
    }

    fn mirror_conflicts(&mut self, slots: usize) {
        let mut list: Vec<Number> = Vec::new();
        for number in 0..slots {
            clear(self.conflicts.row_mut(number), number);
            list.clear();
            list.extend(bits(self.conflicts.row(number)));
            for &other in &list {
                set(self.conflicts.row_mut(other), number);
            }
        }
    }
}

/// Adds a row to another one. Whether that grows.
fn spread(rows: &mut Rows, from: usize, to: usize) -> bool {
    let mut grows = false;
    for word in 0..rows.words {
        let bits = rows.row(from)[word];
        let into = &mut rows.row_mut(to)[word];
        grows |= bits & !*into != 0;
        *into |= bits;
    }
    grows
}

fn bits(row: &[u64]) -> impl Iterator<Item = Number> + '_ {
    row.iter().enumerate().flat_map(|(index, &word)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            let bit = rest.trailing_zeros() as usize;
            (rest != 0).then(|| {
                rest &= rest - 1;
                index * 64 + bit
            })
        })
    })
}
