//! What each rewrite claims, for the checker to prove.

use cranelift_codegen::ir::{Block, Inst, StackSlot, Value};

use crate::convert::Conversion;

/// The claim of one rewrite, in terms of the function before any rewrite. Claims are made one after
/// another: each holds for the function that the ones before it left.
#[derive(Clone, Debug)]
pub(crate) enum Certificate {
    /// At the load, memory holds what `source`, a load or store of the same bytes, read or wrote
    /// the last time it executed. `value` is its value, and the conversion gives what the load
    /// would have read.
    LoadTakes {
        load: Inst,
        source: Inst,
        value: Value,
        conversion: Conversion,
    },
    /// Nothing observes the bytes of the store before they are overwritten, or end with the frame.
    StoreUnobserved { store: Inst },
    /// At the store, memory holds the stored value already: `witness` read or wrote it.
    StoreInVain { store: Inst, witness: Inst },
}

/// Some bytes of a stack slot that are held in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromotedCell {
    pub(crate) slot: StackSlot,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// A block parameter that was added, and the bytes that it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromotedParam {
    pub(crate) block: Block,
    pub(crate) value: Value,
    pub(crate) cell: PromotedCell,
}

/// The claim of one round of promotion: the function does what it did, with the bytes of `cells`
/// in values instead of memory. What a value stands for follows from the two functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promotion {
    pub(crate) cells: Vec<PromotedCell>,
    pub(crate) params: Vec<PromotedParam>,
    /// For each call of a memory function that went and is not wholly done by values, the accesses
    /// and calls that stand in its place.
    pub(crate) calls: Vec<(Inst, Vec<Inst>)>,
    /// For each store that went and whose address was one of a few, the cells that it may have
    /// changed, and their values from then on.
    pub(crate) choices: Vec<(Inst, PromotedCell, Value)>,
}
