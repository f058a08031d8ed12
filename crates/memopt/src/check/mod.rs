//! The independent checker of rewrites.
//!
//! It proves that the optimized function is the original one with the claimed rewrites and no
//! other change, and proves each claim, in the order of the rewrites, on the function that the
//! claims before it left. It shares nothing with what made the claims but the effects of
//! instructions ([`crate::effects`]): no MemorySSA, no memory view, no alias analysis.
//!
//! # What a claim means, and its proof
//!
//! - *Structure*. Blocks, parameters, instructions, operands, tables and slots are equal. An
//!   instruction is missing if and only if a claim removes it; a new one belongs to the conversion
//!   of a load that went, and stands in its place. Flags of an access may lose `aligned`.
//! - *A fact* is "these bytes hold what the source read or wrote the last time it executed". It
//!   holds at a point if every path backward from the point comes to the source before it comes to
//!   the function's entry, to an instruction that may change the bytes or orders memory, or to the
//!   definition of a value that the fact mentions: executing that would make the value another
//!   instance. So loops need no treatment of their own, and dominance follows.
//! - `LoadTakes`: the fact holds at the load; source and load name the same bytes in the same
//!   order, not in two regions, not outside; a load that may trap is not separated from its source
//!   by what may change which pages are accessible. The conversion is exact in bits.
//! - `StoreInVain`: the fact holds at the store, and the bytes it would write are the bytes that
//!   the witness read or wrote: both values are made of equal roots by conversions that copy bits. If the store may trap, the witness is a store.
//! - `StoreUnobserved`: every path forward from the store comes to a store that covers its bytes,
//!   or to the end of the frame that holds them, before it comes to an observer. Once a path has
//!   passed the definition of a value that makes up the address, the address may name other bytes:
//!   from there nothing overwrites, and what is not apart by region, slot or privacy observes.
//!   The end of a block from which the function cannot end observes, unless the bytes are private.
//! - *Traps* observe all memory but private slots. A store that may trap goes only if each
//!   overwriting store names exactly the same bytes and has the same trap code, neither is an `i128`,
//!   of which one half may be stored when the other traps, and nothing stands between that others could see or that may have been valid only because the store did not
//!   trap: only loads of slots, and stores to private ones. An overwriting store that may trap is
//!   an observer, unless it names exactly the same bytes and asks for no alignment that the store
//!   did not ask for.
//! - *Addresses* are equal if their normal forms are: `Σ scale·term + constant`, modulo 2^bits,
//!   terms being values, slots, symbols, or pure operations and readonly loads of equal operands.
//!   A result of a load that took a value unconverted is that value from its claim on.
//!
//! # Cost
//!
//! One linear scan of the function, and for each claim the part of it between source and load, or
//! between store and overwrite.

mod bits;
mod forms;
mod program;
mod promotion;
mod proof;
mod structure;
#[cfg(test)]
mod tests;

use cranelift_codegen::ir::{Endianness, Function};

use crate::certificate::Certificate;
pub(crate) use promotion::check_promotion;
use proof::Prover;

/// What the checker is told besides the functions.
pub(crate) struct Claims<'a> {
    /// The claims, in the order in which the rewrites were done.
    pub(crate) certificates: &'a [Certificate],
    /// Byte order of accesses whose flags name none.
    pub(crate) endianness: Endianness,
    /// Regions that change from outside, by index.
    pub(crate) outside: &'a [bool],
    /// Keys of stack slots whose accesses are left alone.
    pub(crate) untouched_slot_keys: &'a [u64],
}

/// Proves that `optimized` is `original` with the claimed rewrites and no other change, and proves
/// each claim.
///
/// # Errors
/// The first claim that has no proof, or the first difference that no claim covers.
pub(crate) fn check(
    original: &Function,
    optimized: &Function,
    claims: &Claims<'_>,
) -> Result<(), String> {
    structure::check(original, optimized, claims.certificates)?;
    let mut prover = Prover::new(original, claims);
    for certificate in claims.certificates {
        prover
            .prove(certificate)
            .map_err(|reason| format!("{}: {reason}", describe(original, certificate)))?;
    }
    prover.check_alignment(optimized)
}

fn describe(func: &Function, certificate: &Certificate) -> String {
    let text = |inst| format!("{inst} ({})", func.dfg.display_inst(inst));
    match certificate {
        Certificate::LoadTakes {
            load,
            source,
            value,
            ..
        } => format!("{} takes {value} of {}", text(*load), text(*source)),
        Certificate::StoreUnobserved { store } => format!("{} is unobserved", text(*store)),
        Certificate::StoreInVain { store, witness } => {
            format!("{} does what {} did", text(*store), text(*witness))
        }
    }
}
