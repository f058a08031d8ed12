//! MemorySSA: one SSA variable for all of memory.
//!
//! The vocabulary is LLVM's. A *MemoryDef* may write memory or orders it; a *MemoryUse* only reads;
//! a *MemoryPhi* joins the states of memory at a block. Each def and use has a *defining access*,
//! the nearest access above it that may have changed any memory; *live on entry* is the state when
//! the function starts. Unreachable blocks have no accesses.
//!
//! Each def and use also has a *class access*: the nearest access above it that may have changed
//! memory of its own [`Class`](crate::view::Class), a phi included. It is an index over the one chain, so that a walk
//! does not step over the stores of other classes.
//!
//! Defs are numbered in layout order from 1, phis after them. Storage is dense and is reused by
//! [`MemorySsa::build`].

mod build;
mod print;
#[cfg(test)]
mod tests;
mod verify;
mod walk;

use cranelift_codegen::entity::{PrimaryMap, SecondaryMap, entity_impl};
use cranelift_codegen::ir::Block;
use cranelift_codegen::packed_option::PackedOption;

use crate::view::Entry;

pub use print::{Style, write_dot, write_function};
pub use verify::{VerifyError, verify};
pub use walk::{Clobber, WalkCounts, Walker};

pub(crate) use walk::{WalkContext, is_invariant_above, is_private_at};

/// A def, use or phi of memory, or the state of memory on entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryAccess(u32);
entity_impl!(MemoryAccess, "access");

impl MemoryAccess {
    /// The state of memory when the function starts.
    pub const LIVE_ON_ENTRY: MemoryAccess = MemoryAccess(0);
}

/// What a [`MemoryAccess`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// The state of memory on entry.
    LiveOnEntry,
    /// A MemoryDef.
    Def(Entry),
    /// A MemoryUse.
    Use(Entry),
    /// A MemoryPhi at the start of the block.
    Phi(Block),
}

#[derive(Clone, Copy, Debug)]
struct AccessData {
    kind: AccessKind,
    /// For a def or use; otherwise itself.
    defining: MemoryAccess,
    /// The nearest access above that may change memory of this access's class.
    in_class: MemoryAccess,
    /// For a phi, the start of its operands in the pool: one for each predecessor, in the order of
    /// [`Flow::preds`](crate::flow::Flow::preds).
    operands: u32,
}

/// The MemorySSA form of one function.
#[derive(Debug, Default)]
pub struct MemorySsa {
    accesses: PrimaryMap<MemoryAccess, AccessData>,
    operand_pool: Vec<MemoryAccess>,
    access_of: SecondaryMap<Entry, PackedOption<MemoryAccess>>,
    phi_of: SecondaryMap<Block, PackedOption<MemoryAccess>>,
    /// For a def that was removed, the access that stands for it.
    replaced_by: SecondaryMap<MemoryAccess, PackedOption<MemoryAccess>>,
    defs: u32,
    phis: u32,
    builder: build::Builder,
}

impl MemorySsa {
    /// What `access` is.
    pub fn kind(&self, access: MemoryAccess) -> AccessKind {
        self.accesses[access].kind
    }

    /// The access of `entry`: none if it is neither a def nor a use, if its block is unreachable,
    /// or if it was removed.
    pub fn access_of(&self, entry: Entry) -> Option<MemoryAccess> {
        self.access_of[entry].expand()
    }

    /// The phi at the start of `block`.
    pub fn phi_of(&self, block: Block) -> Option<MemoryAccess> {
        self.phi_of[block].expand()
    }

    /// The access itself, or what stands for it if it was removed.
    fn resolve(&self, mut access: MemoryAccess) -> MemoryAccess {
        while let Some(next) = self.replaced_by[access].expand() {
            access = next;
        }
        access
    }

    /// The nearest access above a def or use that may have changed any memory.
    pub fn defining(&self, access: MemoryAccess) -> MemoryAccess {
        self.resolve(self.accesses[access].defining)
    }

    /// The nearest access above a def or use that may have changed memory of its class.
    pub fn defining_in_class(&self, access: MemoryAccess) -> MemoryAccess {
        self.resolve(self.accesses[access].in_class)
    }

    /// An operand of the phi: the state of memory at the end of the predecessor with that index in
    /// [`Flow::preds`](crate::flow::Flow::preds).
    pub fn operand(&self, phi: MemoryAccess, pred: usize) -> MemoryAccess {
        let start = self.accesses[phi].operands as usize;
        self.resolve(self.operand_pool[start + pred])
    }

    /// How many MemoryDefs were built.
    pub fn num_defs(&self) -> u32 {
        self.defs
    }

    /// How many MemoryPhis there are.
    pub fn num_phis(&self) -> u32 {
        self.phis
    }

    /// How many accesses there are, live on entry, uses and removed ones included.
    pub fn num_accesses(&self) -> usize {
        self.accesses.len()
    }

    /// The number by which the access is printed; none for uses. Live on entry has 0.
    pub fn number(&self, access: MemoryAccess) -> Option<u32> {
        (access.0 <= self.defs + self.phis).then_some(access.0)
    }

    /// The entry of a def or use.
    pub fn entry_of(&self, access: MemoryAccess) -> Option<Entry> {
        match self.kind(access) {
            AccessKind::Def(entry) | AccessKind::Use(entry) => Some(entry),
            AccessKind::LiveOnEntry | AccessKind::Phi(_) => None,
        }
    }

    /// Removes the access of an entry whose instruction is being removed. Accesses below take what
    /// stood above it.
    pub fn remove(&mut self, entry: Entry) {
        if let Some(access) = self.access_of[entry].take() {
            // Resolved now, so that removals from the top down leave no chains.
            self.replaced_by[access] = self.defining(access).into();
        }
    }
}
