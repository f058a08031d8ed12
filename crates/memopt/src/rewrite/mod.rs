//! The only code that changes a [`Function`].
//!
//! Each method does one whole rewrite or none, spends fuel for it, and keeps the memory view and
//! MemorySSA in step. Decisions are the passes'; what is kept here is what every rewrite owes to
//! the function: flags of the access that survives, source locations, detached results.

mod edit;

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{Function, Inst, InstBuilder, MemFlagsData, Value};
use smallvec::SmallVec;

use crate::certificate::Certificate;
use crate::convert::{Conversion, Step};
use crate::faults::{Fault, planted};
use crate::fuel::Fuel;
use crate::memssa::MemorySsa;
use crate::view::{Entry, View};

pub(crate) use edit::Edit;

/// Whether a rewrite was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    OutOfFuel,
    /// The function's table of memory flags has no room for the flags that would be needed.
    FlagsFull,
}

/// Changes a function and what is known of it.
pub(crate) struct Rewriter<'a> {
    pub(crate) func: &'a mut Function,
    pub(crate) view: &'a mut View,
    pub(crate) ssa: &'a mut MemorySsa,
    pub(crate) fuel: &'a mut Fuel,
    /// Where claims go, if they are to be checked.
    pub(crate) certificates: Option<&'a mut Vec<Certificate>>,
}

impl Rewriter<'_> {
    /// Replaces the result of a load by `value`, converted, which the access `source` wrote or
    /// read.
    pub(crate) fn replace_load(
        &mut self,
        load: Entry,
        source: Entry,
        value: Value,
        conversion: &Conversion,
    ) -> Outcome {
        if self.fuel.is_spent() {
            return Outcome::OutOfFuel;
        }
        if !self.weaken_flags(source, load) {
            return Outcome::FlagsFull;
        }
        self.fuel.spend();
        let inst = self.view.entry(load).inst;
        let source = self.view.entry(source).inst;
        self.certify(|| Certificate::LoadTakes {
            load: inst,
            source,
            value,
            conversion: conversion.clone(),
        });
        let value = self.insert_conversion(inst, value, conversion);
        let results: SmallVec<[Value; 1]> = SmallVec::from_slice(self.func.dfg.inst_results(inst));
        self.func.dfg.clear_results(inst);
        for result in results {
            self.func.dfg.change_to_alias(result, value);
        }
        self.remove(load, inst);
        Outcome::Done
    }

    /// Removes a store. `justification` is an access that did what the store did, if the rewrite
    /// rests on one.
    pub(crate) fn remove_store(&mut self, store: Entry, justification: Option<Entry>) -> Outcome {
        if self.fuel.is_spent() {
            return Outcome::OutOfFuel;
        }
        if let Some(justification) = justification
            && !self.weaken_flags(justification, store)
        {
            return Outcome::FlagsFull;
        }
        self.fuel.spend();
        let inst = self.view.entry(store).inst;
        let witness = justification.map(|witness| self.view.entry(witness).inst);
        self.certify(|| match witness {
            None => Certificate::StoreUnobserved { store: inst },
            Some(witness) => Certificate::StoreInVain {
                store: inst,
                witness,
            },
        });
        self.remove(store, inst);
        Outcome::Done
    }

    fn certify(&mut self, certificate: impl FnOnce() -> Certificate) {
        if let Some(certificates) = &mut self.certificates {
            certificates.push(certificate());
        }
    }

    fn remove(&mut self, entry: Entry, inst: Inst) {
        self.func.layout.remove_inst(inst);
        self.view.mark_removed(entry);
        self.ssa.remove(entry);
    }

    /// Takes from the surviving access the flag `aligned` if the one that goes does not have it: a
    /// misaligned address may make an aligned access wrong, and did not make the other one so.
    ///
    /// The other flags of the survivor hold where it stands, whatever the other access had.
    fn weaken_flags(&mut self, survivor: Entry, gone: Entry) -> bool {
        let flags_of = |entry: Entry| {
            let bytes = self.view.entry(entry).bytes;
            bytes.map(|bytes| self.func.dfg.mem_flags[bytes.flags])
        };
        let (Some(kept), Some(other)) = (flags_of(survivor), flags_of(gone)) else {
            return true;
        };
        if !kept.aligned() || other.aligned() || planted(Fault::AlignedKept) {
            return true;
        }
        let Ok(flags) = self.func.dfg.mem_flags.insert(without_aligned(kept)) else {
            return false;
        };
        let inst = self.view.entry(survivor).inst;
        if let Some(slot) = self.func.dfg.insts[inst].memflags_mut() {
            *slot = flags;
        }
        self.view.set_flags(survivor, flags);
        true
    }

    fn insert_conversion(&mut self, before: Inst, value: Value, conversion: &Conversion) -> Value {
        let srcloc = self.func.srcloc(before);
        let mut cursor = FuncCursor::new(self.func).at_inst(before);
        cursor.set_srcloc(srcloc);
        let mut value = value;
        for &step in &conversion.steps {
            value = match step {
                Step::Reduce(ty) => cursor.ins().ireduce(ty, value),
                Step::ZeroExtend(ty) => cursor.ins().uextend(ty, value),
                Step::SignExtend(ty) => cursor.ins().sextend(ty, value),
                Step::Bitcast(ty, endianness) => {
                    let flags = match endianness {
                        None => MemFlagsData::new(),
                        Some(endianness) => MemFlagsData::new().with_endianness(endianness),
                    };
                    cursor.ins().bitcast(ty, flags, value)
                }
            };
        }
        value
    }
}

/// The flags without `aligned`, which has no method to clear it.
fn without_aligned(flags: MemFlagsData) -> MemFlagsData {
    let mut result = MemFlagsData::new()
        .with_trap_code(flags.trap_code())
        .with_alias_region(flags.alias_region());
    if let Some(endianness) = flags.explicit_endianness() {
        result = result.with_endianness(endianness);
    }
    if flags.readonly() {
        result = result.with_readonly();
    }
    if flags.can_move() {
        result = result.with_can_move();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_codegen::ir::{Endianness, TrapCode};

    #[test]
    fn only_aligned_is_cleared() {
        let flags = MemFlagsData::new()
            .with_trap_code(Some(TrapCode::INTEGER_OVERFLOW))
            .with_endianness(Endianness::Big)
            .with_readonly()
            .with_can_move();
        assert_eq!(without_aligned(flags.with_aligned()), flags);
        assert_eq!(without_aligned(flags), flags);
    }
}
