//! Which slots take the place of which.

use cranelift_codegen::ir::{AliasRegion, Function, StackSlot};

use super::frame_bytes;
use super::live::Lifetimes;
use super::scan::Scan;

/// A slot that gives up its own bytes for those of another one, which is as large.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) slot: StackSlot,
    pub(super) with: StackSlot,
}

/// Slots that share bytes.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// The first and largest of them, of which the others take the place.
    first: StackSlot,
    align_shift: u8,
    region: Option<AliasRegion>,
}

/// See the module. Storage is reused by [`Sharing::compute`].
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// In the order in which they are to be done; any number of the first ones can be.
    pub(super) shares: Vec<Share>,
    groups: Vec<Group>,
    /// By number of the candidate: its group.
    group_of: Vec<Option<usize>>,
    /// By group: the last candidate that could not join, plus one.
    barred: Vec<usize>,
}

impl Sharing {
    /// Puts each candidate, the largest first, into the first group in which it conflicts with no
    /// other.
    pub(super) fn compute(
        &mut self,
        func: &Function,
        scan: &Scan,
        lifetimes: &Lifetimes,
        candidates: &[StackSlot],
    ) {
        self.shares.clear();
        self.groups.clear();
        self.barred.clear();
        self.group_of.clear();
        self.group_of.resize(candidates.len(), None);
        for (number, &slot) in candidates.iter().enumerate() {
            for other in lifetimes.conflicts(number) {
                if let Some(group) = self.group_of[other] {
                    self.barred[group] = number + 1;
                }
            }
            let data = &func.sized_stack_slots[slot];
            let region = scan.slots[slot].region();
            let free = |index: usize| {
                self.barred[index] != number + 1 && self.groups[index].region == region
            };
            let fits = |index: usize| self.groups[index].align_shift >= data.align_shift;
            // Larger alignment may cost padding: less than what it is aligned to.
            let is_worth_it = u64::from(data.size) >= 1 << data.align_shift;
            let groups = 0..self.groups.len();
            let group = groups.clone().find(|&index| free(index) && fits(index));
            let group = group.or_else(|| groups.clone().find(|&index| free(index) && is_worth_it));
            match group {
                Some(index) => {
                    let group = &mut self.groups[index];
                    group.align_shift = group.align_shift.max(data.align_shift);
                    self.group_of[number] = Some(index);
                    let with = group.first;
                    self.shares.push(Share { slot, with });
                }
                None => {
                    self.group_of[number] = Some(self.groups.len());
                    self.barred.push(0);
                    self.groups.push(Group {
                        first: slot,
                        align_shift: data.align_shift,
                        region,
                    });
                }
            }
        }
        if !self.shrinks(func) {
            self.shares.clear();
        }
    }

    /// Whether the frame is smaller with what is planned.
    fn shrinks(&self, func: &Function) -> bool {
        let mut slots = func.sized_stack_slots.clone();
        let before = frame_bytes(&slots);
        for share in &self.shares {
            slots[share.slot].size = 0;
            slots[share.slot].align_shift = 0;
        }
        for group in &self.groups {
            slots[group.first].align_shift = group.align_shift;
        }
        frame_bytes(&slots) < before
    }
}
