//! What each rewrite claims, for the checker to prove.

use cranelift_codegen::ir::{Inst, Value};

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
