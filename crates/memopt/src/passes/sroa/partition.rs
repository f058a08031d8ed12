//! Cutting slots into cells, each of which becomes one SSA variable.
//!
//! Loads and stores that overlap, directly or through others, make a component. If one byte of it
//! must stay in memory, all of it does. Otherwise those of its accesses that cannot be cut for
//! nothing make clusters, and a cluster is one cell, or is cut where its accesses start and end,
//! whichever [`Costs`] says is cheaper. What is left is only copied or filled: it is cut like the
//! cells at the other side of the copy, or else in words.

use std::collections::BTreeMap;

use cranelift_codegen::entity::{PrimaryMap, SecondaryMap, entity_impl};
use cranelift_codegen::ir::{Function, Inst, StackSlot, Type, types};
use smallvec::SmallVec;

use super::Kept;
use super::uses::{OpKind, Place, Slice, SliceKind, Uses};

/// The most bytes in a row that are only copied or filled and become values. More of them are
/// better moved by the memory function.
const BLOCK_BYTES_MAX: u32 = 64;

/// The most bytes that a load or store touches.
const SCALAR_BYTES_MAX: u32 = 16;

/// How many memory functions are looked at, that may touch the same bytes.
const BLOCKS_MAX: usize = 256;

/// How many cells a copy may have at a side to be short: each copy costs as much time.
pub(super) const COPY_CELLS_MAX: usize = 256;

/// How often all copies are looked at, to cut both sides alike.
const MIRROR_ROUNDS_MAX: usize = 4;

/// Some bytes of a slot that are one SSA variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Cell(u32);
entity_impl!(Cell, "cell");

#[derive(Clone, Copy, Debug)]
pub(super) struct CellData {
    pub(super) slot: StackSlot,
    pub(super) start: u32,
    pub(super) end: u32,
    /// None if the bytes are never read.
    pub(super) ty: Option<Type>,
}

/// The cells of a function. Storage is reused by [`Partition::compute`].
#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) cells: PrimaryMap<Cell, CellData>,
    /// The numbers of each slot's cells, which are by start.
    ranges: SecondaryMap<StackSlot, (u32, u32)>,
    /// Why bytes of a slot stay in memory, if some do.
    pub(super) pinned: SecondaryMap<StackSlot, Option<(Kept, Inst)>>,
    drafts: Vec<CellData>,
    gaps: Vec<Gap>,
    taken: Vec<(u32, u32)>,
    /// What memory functions touch, by slot, then by start, and the last end of those so far.
    blocks: Vec<(Slice, u32)>,
}

/// Bytes that are only copied or filled.
#[derive(Clone, Copy, Debug)]
struct Gap {
    slot: StackSlot,
    start: u32,
    end: u32,
    /// Loads and stores touch them, which cannot be cut any more once bytes stay in memory.
    scalar: bool,
}

/// What a grouping of the bytes of a cluster costs, in instructions, over all accesses.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// All bytes are one cell: a part is cut out by a shift and a reduction, and put in by a mask,
    /// an extension, a shift and an or.
    whole: u32,
    /// Each part is a cell: wide loads are put together, wide stores are cut.
    parts: u32,
}

impl Partition {
    /// Cuts the slots that are not kept. Sorts the slices.
    pub(super) fn compute(&mut self, func: &Function, uses: &mut Uses) {
        self.cells.clear();
        self.ranges.clear();
        self.ranges.resize(func.sized_stack_slots.len());
        self.pinned.clear();
        self.pinned.resize(func.sized_stack_slots.len());
        self.drafts.clear();
        self.gaps.clear();
        self.blocks.clear();
        uses.slices
            .sort_unstable_by_key(|slice| (slice.slot, slice.start, slice.end, slice.inst));
        for slices in uses.slices.chunk_by(|a, b| a.slot == b.slot) {
            if uses.kept[slices[0].slot].is_none() {
                self.cut_slot(slices);
            }
        }
        self.mirror(uses);
        self.cut_gaps(uses);
        self.number();
    }

    /// The cells of a slot, by start.
    pub(super) fn cells_of(&self, slot: StackSlot) -> impl Iterator<Item = Cell> + use<> {
        let (start, end) = self.ranges[slot];
        (start..end).map(Cell)
    }

    /// The cells that have bytes in a range of a slot, by start.
    pub(super) fn cells_in(
        &self,
        slot: StackSlot,
        start: u32,
        end: u32,
    ) -> impl Iterator<Item = Cell> + '_ {
        let (first, last) = self.ranges[slot];
        let cells = &self.cells.as_values_slice()[first as usize..last as usize];
        let skipped = cells.partition_point(|cell| cell.end <= start) as u32;
        (first + skipped..last)
            .map(Cell)
            .take_while(move |&cell| self.cells[cell].start < end)
    }

    /// How many cells have bytes in a range.
    pub(super) fn num_cells_in(&self, place: Place, length: u32) -> usize {
        let (first, last) = self.ranges[place.slot];
        let cells = &self.cells.as_values_slice()[first as usize..last as usize];
        let below = cells.partition_point(|cell| cell.end <= place.offset);
        cells.partition_point(|cell| cell.start < place.offset + length) - below
    }

    fn cut_slot(&mut self, slices: &[Slice]) {
        let slot = slices[0].slot;
        self.taken.clear();
        let mut component: Vec<Slice> = Vec::new();
        let mut end = 0;
        for slice in slices.iter().filter(|slice| slice.kind != SliceKind::Block) {
            if slice.start >= end && !component.is_empty() {
                self.cut_component(slot, &component, end);
                component.clear();
            }
            end = if component.is_empty() {
                slice.end
            } else {
                end.max(slice.end)
            };
            component.push(*slice);
        }
        if !component.is_empty() {
            self.cut_component(slot, &component, end);
        }
        self.find_gaps(slot, slices);
    }

    /// Cuts accesses that overlap, up to the byte `end`.
    fn cut_component(&mut self, slot: StackSlot, component: &[Slice], end: u32) {
        let start = component[0].start;
        self.taken.push((start, end));
        // Most often a variable of one type.
        let is_split = |slice: &Slice| {
            matches!(
                slice.kind,
                SliceKind::Scalar {
                    splittable: true,
                    ..
                }
            )
        };
        if let SliceKind::Scalar { ty, .. } = component[0].kind
            && ty != types::I128
            && !component.iter().all(is_split)
            && component.iter().all(|slice| {
                let same = scalar_type(slice) == Some(ty);
                same && slice.start == start && slice.end == end
            })
        {
            self.drafts.push(CellData {
                slot,
                start,
                end,
                ty: Some(ty),
            });
            return;
        }
        let pinned = component.iter().find_map(|slice| match slice.kind {
            SliceKind::Pinned(kept) => Some((kept, slice.inst)),
            _ => None,
        });
        if let Some(pinned) = pinned {
            self.pinned[slot].get_or_insert(pinned);
            return;
        }
        let component = &in_halves(component);
        let is_whole = |slice: &&Slice| !is_split(slice);
        let mut cluster: Vec<Slice> = Vec::new();
        let mut done = start;
        let mut cluster_end = start;
        for slice in component.iter().filter(is_whole) {
            if slice.start >= cluster_end {
                self.cut_cluster(slot, &mut cluster, component);
                self.add_gap(slot, done, slice.start, true);
            }
            cluster_end = cluster_end.max(slice.end);
            done = cluster_end;
            cluster.push(*slice);
        }
        self.cut_cluster(slot, &mut cluster, component);
        self.add_gap(slot, done, end, true);
    }

    fn add_gap(&mut self, slot: StackSlot, start: u32, end: u32, scalar: bool) {
        if start < end {
            self.gaps.push(Gap {
                slot,
                start,
                end,
                scalar,
            });
        }
    }

    fn cut_cluster(&mut self, slot: StackSlot, cluster: &mut Vec<Slice>, component: &[Slice]) {
        let Some(first) = cluster.first() else { return };
        let start = first.start;
        let end = cluster.iter().fold(start, |end, slice| end.max(slice.end));
        match type_of_whole(cluster, start, end) {
            Some(ty) => self.drafts.push(CellData {
                slot,
                start,
                end,
                ty: Some(ty),
            }),
            None => {
                let near =
                    component.partition_point(|slice| slice.start + SCALAR_BYTES_MAX <= start);
                let until = component.partition_point(|slice| slice.start < end);
                let bounds = bounds_within(&component[near..until], start, end);
                self.cut_at(slot, start, end, &bounds, cluster);
            }
        }
        cluster.clear();
    }

    /// Cuts a range at the given bytes, and then into words.
    fn cut_at(&mut self, slot: StackSlot, start: u32, end: u32, bounds: &[u32], scalars: &[Slice]) {
        let mut from = start;
        for to in bounds.iter().copied().chain([end]) {
            while from < to {
                let width = if vector_of(scalars, from, to).is_some() {
                    16
                } else {
                    word_at(from, to)
                };
                self.drafts.push(CellData {
                    slot,
                    start: from,
                    end: from + width,
                    ty: Some(type_of_part(scalars, from, from + width)),
                });
                from += width;
            }
        }
    }

    /// Bytes that memory functions touch and no load or store.
    fn find_gaps(&mut self, slot: StackSlot, slices: &[Slice]) {
        let taken = std::mem::take(&mut self.taken);
        let mut taken_from = 0;
        let mut done = 0;
        let mut last_end = 0;
        for slice in slices.iter().filter(|slice| slice.kind == SliceKind::Block) {
            last_end = slice.end.max(last_end);
            self.blocks.push((*slice, last_end));
            let mut from = slice.start.max(done);
            while from < slice.end {
                while taken.get(taken_from).is_some_and(|&(_, end)| end <= from) {
                    taken_from += 1;
                }
                match taken.get(taken_from) {
                    Some(&(start, end)) if start <= from => from = end,
                    Some(&(start, _)) => {
                        self.add_gap(slot, from, start.min(slice.end), false);
                        from = start.min(slice.end);
                    }
                    None => {
                        self.add_gap(slot, from, slice.end, false);
                        from = slice.end;
                    }
                }
            }
            done = done.max(from);
        }
        self.taken = taken;
    }

    /// Cuts gaps like what is at the other side of copies.
    fn mirror(&mut self, uses: &Uses) {
        let copies = || {
            uses.ops.iter().filter_map(|op| match op.kind {
                OpKind::Copy {
                    to: Some(to),
                    from: Some(from),
                    length,
                } => Some((to, from, length)),
                _ => None,
            })
        };
        if self.gaps.is_empty() || copies().next().is_none() {
            return;
        }
        let mut cells: BTreeMap<(StackSlot, u32), CellData> = self
            .drafts
            .drain(..)
            .map(|cell| ((cell.slot, cell.start), cell))
            .collect();
        let mut gaps: BTreeMap<(StackSlot, u32), Gap> = self
            .gaps
            .drain(..)
            .map(|gap| ((gap.slot, gap.start), gap))
            .collect();
        for _ in 0..MIRROR_ROUNDS_MAX {
            let mut changed = false;
            for (to, from, length) in copies() {
                changed |= mirror_copy(&mut cells, &mut gaps, from, to, length);
                changed |= mirror_copy(&mut cells, &mut gaps, to, from, length);
            }
            if !changed {
                break;
            }
        }
        self.drafts.extend(cells.into_values());
        self.gaps.extend(gaps.into_values());
    }

    fn cut_gaps(&mut self, uses: &Uses) {
        let gaps = std::mem::take(&mut self.gaps);
        for gap in &gaps {
            let (blocks, are_all) = self.blocks_over(gap);
            let is_read = |slice: &Slice| uses.is_copied_from(slice.inst, slice.slot);
            if !gap.scalar && are_all && !blocks.iter().any(is_read) {
                self.drafts.push(CellData {
                    slot: gap.slot,
                    start: gap.start,
                    end: gap.end,
                    ty: None,
                });
                continue;
            }
            if !gap.scalar && gap.end - gap.start > BLOCK_BYTES_MAX {
                let by = blocks.first().map(|slice| (Kept::Block, slice.inst));
                self.pinned[gap.slot] = self.pinned[gap.slot].or(by);
                continue;
            }
            let scalars = scalars_over(uses, gap);
            let mut bounds = bounds_within(&blocks, gap.start, gap.end);
            bounds.extend(bounds_within(&scalars, gap.start, gap.end));
            bounds.sort_unstable();
            bounds.dedup();
            self.cut_at(gap.slot, gap.start, gap.end, &bounds, &scalars);
        }
        self.gaps = gaps;
    }

    /// The slices of memory functions that have bytes in the gap, and whether these are all: it
    /// looks at [`BLOCKS_MAX`].
    fn blocks_over(&self, gap: &Gap) -> (Vec<Slice>, bool) {
        let below = |(slice, _): &(Slice, u32)| (slice.slot, slice.start) < (gap.slot, gap.end);
        let before = &self.blocks[..self.blocks.partition_point(below)];
        let mut near = before
            .iter()
            .rev()
            .take_while(|(slice, last_end)| slice.slot == gap.slot && *last_end > gap.start);
        let slices = near.by_ref().take(BLOCKS_MAX).map(|(slice, _)| *slice);
        let slices = slices.filter(|slice| slice.end > gap.start).collect();
        (slices, near.next().is_none())
    }

    fn number(&mut self) {
        self.drafts
            .sort_unstable_by_key(|cell| (cell.slot, cell.start));
        for &draft in &self.drafts {
            let cell = self.cells.push(draft);
            let range = &mut self.ranges[draft.slot];
            if range.0 == range.1 {
                range.0 = cell.0;
            }
            range.1 = cell.0 + 1;
        }
    }
}

/// The loads and stores that have bytes in the gap, by start.
fn scalars_over(uses: &Uses, gap: &Gap) -> Vec<Slice> {
    let slot = slices_of(uses, gap.slot);
    let near = slot.partition_point(|slice| slice.start + SCALAR_BYTES_MAX <= gap.start);
    slot[near..]
        .iter()
        .take_while(|slice| slice.start < gap.end)
        .filter(|slice| slice.kind != SliceKind::Block && slice.end > gap.start)
        .copied()
        .collect()
}

fn slices_of(uses: &Uses, slot: StackSlot) -> &[Slice] {
    let first = uses.slices.partition_point(|slice| slice.slot < slot);
    let rest = &uses.slices[first..];
    &rest[..rest.partition_point(|slice| slice.slot == slot)]
}

/// Makes cells in gaps of the slot at `to` after those of the slot at `from`.
fn mirror_copy(
    cells: &mut BTreeMap<(StackSlot, u32), CellData>,
    gaps: &mut BTreeMap<(StackSlot, u32), Gap>,
    from: Place,
    to: Place,
    length: u32,
) -> bool {
    let range = (from.slot, from.offset)..(from.slot, from.offset + length);
    let images: Vec<CellData> = cells
        .range(range)
        .map(|(_, cell)| *cell)
        .take(COPY_CELLS_MAX + 1)
        .filter(|cell| cell.end <= from.offset + length && cell.ty.is_some())
        .map(|cell| CellData {
            slot: to.slot,
            start: cell.start - from.offset + to.offset,
            end: cell.end - from.offset + to.offset,
            ty: cell.ty,
        })
        .collect();
    let mut changed = false;
    if images.len() > COPY_CELLS_MAX {
        return false;
    }
    for image in images {
        let below = gaps.range(..=(image.slot, image.start)).next_back();
        let Some((_, &gap)) = below else { continue };
        if gap.slot != image.slot || gap.start > image.start || gap.end < image.end {
            continue;
        }
        gaps.remove(&(gap.slot, gap.start));
        let rest = [(gap.start, image.start), (image.end, gap.end)];
        for (start, end) in rest.into_iter().filter(|(start, end)| start < end) {
            gaps.insert((gap.slot, start), Gap { start, end, ..gap });
        }
        cells.insert((image.slot, image.start), image);
        changed = true;
    }
    changed
}

/// The accesses, by start, with those of 128-bit integers cut in two, as registers hold them.
fn in_halves(component: &[Slice]) -> Vec<Slice> {
    let mut slices = Vec::with_capacity(component.len());
    for slice in component {
        match slice.kind {
            SliceKind::Scalar {
                ty: types::I128,
                is_load,
                splittable,
            } => {
                let middle = slice.start + 8;
                let kind = SliceKind::Scalar {
                    ty: types::I64,
                    is_load,
                    splittable,
                };
                for (start, end) in [(slice.start, middle), (middle, slice.end)] {
                    slices.push(Slice {
                        start,
                        end,
                        kind,
                        ..*slice
                    });
                }
            }
            _ => slices.push(*slice),
        }
    }
    slices.sort_by_key(|slice| (slice.start, slice.end));
    slices
}

/// The type of the one cell that a cluster becomes; none if it is better cut.
fn type_of_whole(cluster: &[Slice], start: u32, end: u32) -> Option<Type> {
    let is_full = |slice: &&Slice| slice.start == start && slice.end == end;
    let width = end - start;
    if cluster.iter().all(|slice| is_full(&slice)) {
        return Some(type_of_part(cluster, start, end));
    }
    match width {
        2 | 4 | 8 => {
            let costs = Costs::of(cluster, start, end);
            (costs.whole <= costs.parts).then(|| int_of_bytes(width))
        }
        16 => {
            let narrow: Vec<&Slice> = cluster.iter().filter(|slice| !is_full(slice)).collect();
            let lane = scalar_type(narrow[0])?;
            let fits = |slice: &&Slice| {
                let ty = scalar_type(slice);
                let aligned = (slice.start - start).is_multiple_of(lane.bytes());
                aligned && ty.is_some_and(|ty| ty.bytes() == lane.bytes())
            };
            (narrow.iter().all(fits) && !narrow.iter().all(|slice| is_vector(slice)))
                .then(|| lane.by(16 / lane.bytes()))?
        }
        _ => None,
    }
}

fn is_vector(slice: &Slice) -> bool {
    scalar_type(slice).is_some_and(|ty| ty.is_vector())
}

fn scalar_type(slice: &Slice) -> Option<Type> {
    match slice.kind {
        SliceKind::Scalar { ty, .. } => Some(ty),
        _ => None,
    }
}

impl Costs {
    fn of(cluster: &[Slice], start: u32, end: u32) -> Costs {
        let bounds = bounds_within(cluster, start, end);
        let mut costs = Costs::default();
        for slice in cluster {
            let SliceKind::Scalar { is_load, .. } = slice.kind else {
                continue;
            };
            let inner = bounds
                .iter()
                .filter(|&&bound| slice.start < bound && bound < slice.end);
            let parts = inner.count() as u32 + 1;
            let is_full = slice.start == start && slice.end == end;
            costs.whole += match (is_full, is_load) {
                (true, _) => 0,
                (false, true) => 2,
                (false, false) => 4,
            };
            costs.parts += if is_load {
                3 * (parts - 1)
            } else {
                2 * (parts - 1)
            };
        }
        costs
    }
}

/// Where slices start and end within a range, in order.
fn bounds_within(slices: &[Slice], start: u32, end: u32) -> Vec<u32> {
    let mut bounds: Vec<u32> = slices
        .iter()
        .flat_map(|slice| [slice.start, slice.end])
        .filter(|&bound| start < bound && bound < end)
        .collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}

/// The widest word of at most 8 bytes that starts at `from` in a slot, is aligned to its width and
/// ends at `to` or before.
fn word_at(from: u32, to: u32) -> u32 {
    let fits = |width: &u32| from.is_multiple_of(*width) && from + width <= to;
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// The vector type as which the range is accessed, if it is one.
fn vector_of(slices: &[Slice], start: u32, end: u32) -> Option<Type> {
    let ty = exactly(slices, start, start + 16).find(|ty| ty.is_vector());
    ty.filter(|_| start + 16 <= end)
}

/// The types of the loads and stores of exactly these bytes. Slices are by start.
fn exactly(slices: &[Slice], start: u32, end: u32) -> impl Iterator<Item = Type> + '_ {
    let first = slices.partition_point(|slice| slice.start < start);
    slices[first..]
        .iter()
        .take_while(move |slice| slice.start == start)
        .filter(move |slice| slice.end == end)
        .filter_map(scalar_type)
}

/// The type that most accesses of exactly these bytes have.
fn type_of_part(slices: &[Slice], start: u32, end: u32) -> Type {
    let mut votes: SmallVec<[(Type, u32); 4]> = SmallVec::new();
    for ty in exactly(slices, start, end) {
        match votes.iter_mut().find(|(voted, _)| *voted == ty) {
            Some((_, count)) => *count += 1,
            None => votes.push((ty, 1)),
        }
    }
    let most = votes.iter().max_by_key(|(_, count)| *count);
    most.map_or_else(|| int_of_bytes(end - start), |&(ty, _)| ty)
}

/// The integer, or for 16 bytes the vector of two, that has so many bytes.
pub(super) fn int_of_bytes(bytes: u32) -> Type {
    match bytes {
        16 => types::I64X2,
        _ => Type::int_with_byte_size(bytes as u16).expect("cells are words"),
    }
}
