//! How two accesses relate: do they touch a common byte, and at which distance?
//!
//! # Rules
//!
//! In this order; the first that applies answers.
//!
//! 1. Two different alias regions: [`Alias::No`].
//! 2. Two different stack slots: [`Alias::No`].
//! 3. A stack slot against an address that is not derived from it, where the slot has not escaped
//!    yet: [`Alias::No`]. The point that counts is the one of the other access.
//! 4. The same sum of terms, so that the distance of the addresses is a constant modulo 2^64:
//!    [`Alias::Must`], [`Alias::Partial`] or [`Alias::No`] by the distance and the widths.
//! 5. Otherwise [`Alias::May`].
//!
//! Rule 4 holds only if the terms are the same *instances* for both accesses: within one iteration
//! of every loop that redefines a term. A walk that leaves the iteration says so by
//! [`Instance::Other`], and rule 4 is out.

use cranelift_codegen::ir::Function;

use crate::faults::{Fault, planted};
use crate::view::{Location, Slots};

/// The relation of two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    /// They touch no common byte.
    No,
    /// Nothing is known.
    May,
    /// The same bytes.
    Must,
    /// They touch common bytes, but not the same: the second starts `offset` bytes after the first
    /// (before it if negative).
    Partial {
        /// The distance in bytes.
        offset: i64,
    },
}

/// Whether the values that make up two addresses are the same instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instance {
    /// No term was redefined between the two accesses.
    Same,
    /// A term may have been redefined: the walk went around a loop.
    Other,
}

/// Relates access `a` to access `b`.
pub fn alias(
    func: &Function,
    slots: &Slots,
    a: &Location,
    b: &Location,
    instance: Instance,
) -> Alias {
    if let (Some(x), Some(y)) = (a.region, b.region)
        && x != y
    {
        return Alias::No;
    }
    if planted(Fault::RegionlessApart) && a.region != b.region {
        return Alias::No;
    }
    match (a.slot, b.slot) {
        (Some(x), Some(y)) if x != y => return Alias::No,
        (Some(slot), None) if !slots.escaped_at(func, slot, b.inst) => return Alias::No,
        (None, Some(slot)) if !slots.escaped_at(func, slot, a.inst) => return Alias::No,
        _ => {}
    }
    let (Some(x), Some(y)) = (a.address, b.address) else {
        return Alias::May;
    };
    if x.sum != y.sum || instance == Instance::Other {
        return Alias::May;
    }
    relate_ranges(y.offset.wrapping_sub(x.offset), a.width, b.width)
}

/// Relates a range of `a` bytes to one of `b` bytes that starts `distance` after it, modulo 2^64.
fn relate_ranges(distance: i64, a: u32, b: u32) -> Alias {
    let before = distance.wrapping_neg() as u64;
    let after = distance as u64;
    if distance == 0 && (a == b || planted(Fault::WidthIgnored)) {
        Alias::Must
    } else if planted(Fault::OverlapIgnored) {
        Alias::No
    } else if after < u64::from(a) || before < u64::from(b) {
        Alias::Partial { offset: distance }
    } else {
        Alias::No
    }
}

impl Alias {
    /// Whether the second access, of `b` bytes, covers all of the first, of `a` bytes.
    pub fn second_covers_first(self, a: u32, b: u32) -> bool {
        match self {
            Alias::Must => true,
            Alias::Partial { offset } => offset <= 0 && offset + i64::from(b) >= i64::from(a),
            Alias::No | Alias::May => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_by_distance() {
        assert_eq!(relate_ranges(0, 4, 4), Alias::Must);
        assert_eq!(relate_ranges(0, 4, 8), Alias::Partial { offset: 0 });
        assert_eq!(relate_ranges(4, 4, 4), Alias::No);
        assert_eq!(relate_ranges(3, 4, 4), Alias::Partial { offset: 3 });
        assert_eq!(relate_ranges(-4, 8, 4), Alias::No);
        assert_eq!(relate_ranges(-3, 8, 4), Alias::Partial { offset: -3 });
    }

    #[test]
    fn ranges_wrap_around_the_address_space() {
        // From the last byte of the address space: the second byte is address 0.
        assert_eq!(relate_ranges(i64::MIN, 8, 8), Alias::No);
        assert_eq!(
            relate_ranges(1i64.wrapping_sub(2), 1, 2),
            Alias::Partial { offset: -1 }
        );
    }

    #[test]
    fn covering() {
        assert!(Alias::Must.second_covers_first(4, 4));
        assert!(Alias::Partial { offset: -2 }.second_covers_first(4, 8));
        assert!(!Alias::Partial { offset: -5 }.second_covers_first(4, 8));
        assert!(!Alias::Partial { offset: 1 }.second_covers_first(4, 8));
        assert!(!Alias::May.second_covers_first(1, 8));
    }
}
