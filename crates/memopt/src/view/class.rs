//! Alias classes: a partition of accesses by which kind of memory they touch.
//!
//! | class | accesses | may touch memory of |
//! |---|---|---|
//! | rest | no region, not a slot that stays private | rest and every region |
//! | `regionN` | tagged with that region | the region and rest |
//! | `ssN` | of a stack slot that never escapes | itself |
//!
//! Calls and fences touch every class but the private slots.

use std::fmt;

use cranelift_codegen::entity::{EntityRef, entity_impl};
use cranelift_codegen::ir::{AliasRegion, Function, StackSlot};

/// An alias class of one function, densely numbered: rest, then regions, then slots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(u32);
entity_impl!(Class, "class");

/// Numbers the classes of one function.
#[derive(Clone, Copy, Debug, Default)]
pub struct Classes {
    regions: u32,
    slots: u32,
}

/// What a [`Class`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassKind {
    /// Memory without a region.
    Rest,
    /// An alias region.
    Region(AliasRegion),
    /// A stack slot whose address never escapes.
    Private(StackSlot),
}

impl Classes {
    /// The classes of `func`.
    pub fn of(func: &Function) -> Classes {
        Classes {
            regions: func.dfg.alias_regions.len() as u32,
            slots: func.sized_stack_slots.len() as u32,
        }
    }

    /// How many classes there are.
    pub fn len(self) -> usize {
        (1 + self.regions + self.slots) as usize
    }

    /// Never: there is always the class of memory without a region.
    pub fn is_empty(self) -> bool {
        false
    }

    /// The class that stands for `kind`.
    pub fn class(self, kind: ClassKind) -> Class {
        match kind {
            ClassKind::Rest => Class(0),
            ClassKind::Region(region) => Class(1 + region.as_u32()),
            ClassKind::Private(slot) => Class(1 + self.regions + slot.as_u32()),
        }
    }

    /// What `class` stands for.
    pub fn kind(self, class: Class) -> ClassKind {
        match class.0 {
            0 => ClassKind::Rest,
            number if number <= self.regions => {
                ClassKind::Region(AliasRegion::new(number as usize - 1))
            }
            number => ClassKind::Private(StackSlot::new((number - 1 - self.regions) as usize)),
        }
    }
}

impl fmt::Display for ClassKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClassKind::Rest => f.write_str("rest"),
            ClassKind::Region(region) => write!(f, "{region}"),
            ClassKind::Private(slot) => write!(f, "{slot}"),
        }
    }
}
