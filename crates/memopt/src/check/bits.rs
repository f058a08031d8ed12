//! What accesses and conversions do to bits: the proof that a conversion is exact.
//!
//! A value is its lanes; memory is bytes. Loads, stores and the steps of a conversion move and copy
//! bits, so each is a linear map of bits, and so are their compositions: two of them that agree on
//! every input with a single bit set agree on all inputs. The proof evaluates both on those.

use cranelift_codegen::ir::{Endianness, Function, Inst, Opcode, Type, types};

use crate::convert::{Conversion, Step};

/// The bits of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bits {
    ty: Type,
    lanes: Vec<u128>,
}

/// A plain load or store, as far as bits go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) opcode: Opcode,
    /// The type of the value in registers.
    pub(super) ty: Type,
    pub(super) endianness: Endianness,
}

/// How a load fills the bits that it does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Zero,
    Sign,
}

impl Shape {
    /// The shape of `inst`, if it is a plain access, when accesses that name no byte order have the
    /// given one.
    pub(super) fn of(func: &Function, inst: Inst, endianness: Endianness) -> Option<Shape> {
        let dfg = &func.dfg;
        let opcode = dfg.insts[inst].opcode();
        let value = match opcode.can_store() {
            true => *dfg.inst_args(inst).first()?,
            false => *dfg.inst_results(inst).first()?,
        };
        let shape = Shape {
            opcode,
            ty: dfg.value_type(value),
            endianness: dfg.insts[inst].memflags_data(dfg)?.endianness(endianness),
        };
        shape.memory().map(|_| shape)
    }

    /// The type in memory. None if this is no plain access.
    pub(super) fn memory_type(self) -> Option<Type> {
        self.memory().map(|(ty, _)| ty)
    }

    /// The type in memory, and how a load widens it. None if this is no plain access.
    fn memory(self) -> Option<(Type, Fill)> {
        Some(match self.opcode {
            Opcode::Load | Opcode::Store => (self.ty, Fill::Zero),
            Opcode::Uload8 | Opcode::Istore8 => (types::I8, Fill::Zero),
            Opcode::Sload8 => (types::I8, Fill::Sign),
            Opcode::Uload16 | Opcode::Istore16 => (types::I16, Fill::Zero),
            Opcode::Sload16 => (types::I16, Fill::Sign),
            Opcode::Uload32 | Opcode::Istore32 => (types::I32, Fill::Zero),
            Opcode::Sload32 => (types::I32, Fill::Sign),
            Opcode::Uload8x8 => (types::I8X8, Fill::Zero),
            Opcode::Sload8x8 => (types::I8X8, Fill::Sign),
            Opcode::Uload16x4 => (types::I16X4, Fill::Zero),
            Opcode::Sload16x4 => (types::I16X4, Fill::Sign),
            Opcode::Uload32x2 => (types::I32X2, Fill::Zero),
            Opcode::Sload32x2 => (types::I32X2, Fill::Sign),
            _ => return None,
        })
    }

    /// How many bytes it touches. None if this is no plain access, or its size is not known.
    pub(super) fn width(self) -> Option<u32> {
        let (memory, _) = self.memory()?;
        (!memory.is_dynamic_vector()).then(|| memory.bytes())
    }

    fn is_store(self) -> bool {
        self.opcode.can_store()
    }

    fn read(self, bytes: &[u8]) -> Option<Bits> {
        let (memory, fill) = self.memory()?;
        let loaded = from_bytes(memory, bytes, self.endianness);
        widen(&loaded, self.ty, fill)
    }

    fn write(self, value: &Bits) -> Option<Vec<u8>> {
        let (memory, _) = self.memory()?;
        let lanes = value.lanes.iter().map(|lane| lane & mask(memory));
        let stored = Bits {
            ty: memory,
            lanes: lanes.collect(),
        };
        (value.ty == self.ty && stored.lanes.len() == memory.lane_count() as usize)
            .then(|| to_bytes(&stored, self.endianness))
    }
}

fn mask(ty: Type) -> u128 {
    u128::MAX >> (128 - ty.lane_bits())
}

fn from_bytes(ty: Type, bytes: &[u8], endianness: Endianness) -> Bits {
    let lane_of = |chunk: &[u8]| {
        let fold = |number: u128, &byte: &u8| number << 8 | u128::from(byte);
        match endianness {
            Endianness::Big => chunk.iter().fold(0, fold),
            Endianness::Little => chunk.iter().rev().fold(0, fold),
        }
    };
    let lanes = bytes.chunks(ty.lane_bits() as usize / 8).map(lane_of);
    Bits {
        ty,
        lanes: lanes.collect(),
    }
}

fn to_bytes(value: &Bits, endianness: Endianness) -> Vec<u8> {
    let width = value.ty.lane_bits() as usize / 8;
    let bytes_of = |lane: &u128| {
        let mut bytes = lane.to_le_bytes()[..width].to_vec();
        if endianness == Endianness::Big {
            bytes.reverse();
        }
        bytes
    };
    value.lanes.iter().flat_map(bytes_of).collect()
}

/// The value with each lane widened to those of `ty`.
fn widen(value: &Bits, ty: Type, fill: Fill) -> Option<Bits> {
    let (from, to) = (value.ty.lane_bits(), ty.lane_bits());
    if value.ty.lane_count() != ty.lane_count() || from > to {
        return None;
    }
    let lane_of = |&lane: &u128| {
        let negative = lane >> (from - 1) & 1 == 1;
        if fill == Fill::Sign && negative {
            (lane | !mask(value.ty)) & mask(ty)
        } else {
            lane
        }
    };
    Some(Bits {
        ty,
        lanes: value.lanes.iter().map(lane_of).collect(),
    })
}

fn apply(step: Step, value: &Bits) -> Option<Bits> {
    let is_int = |ty: Type| ty.is_int() && !ty.is_vector();
    let from = value.ty;
    match step {
        Step::Reduce(ty) => (is_int(from) && is_int(ty) && ty.bits() < from.bits()).then(|| Bits {
            ty,
            lanes: vec![value.lanes[0] & mask(ty)],
        }),
        Step::ZeroExtend(ty) | Step::SignExtend(ty) => {
            let fill = match step {
                Step::SignExtend(_) => Fill::Sign,
                _ => Fill::Zero,
            };
            (is_int(from) && is_int(ty) && ty.bits() > from.bits())
                .then(|| widen(value, ty, fill))?
        }
        Step::Bitcast(ty, endianness) => {
            if ty.is_dynamic_vector() || ty.bits() != from.bits() {
                return None;
            }
            if ty.lane_count() == from.lane_count() {
                return Some(Bits {
                    ty,
                    lanes: value.lanes.clone(),
                });
            }
            // By definition the same as a store and a load of this byte order.
            let endianness = endianness?;
            Some(from_bytes(ty, &to_bytes(value, endianness), endianness))
        }
    }
}

fn convert(conversion: &Conversion, value: Bits) -> Option<Bits> {
    let mut steps = conversion.steps.iter();
    steps.try_fold(value, |value, &step| apply(step, &value))
}

/// All byte strings of the given length with one bit set.
fn single_bits(width: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..width as usize * 8).map(move |bit| {
        let mut bytes = vec![0; width as usize];
        bytes[bit / 8] = 1 << (bit % 8);
        bytes
    })
}

/// All values of a type with one bit set.
fn single_bit_values(ty: Type) -> impl Iterator<Item = Bits> {
    let bytes = single_bits(if ty.is_dynamic_vector() {
        0
    } else {
        ty.bytes()
    });
    bytes.map(move |bytes| from_bytes(ty, &bytes, Endianness::Little))
}

/// Whether the conversion of the value that `source` read or wrote is, for all bits, what `load`
/// would read of the same bytes.
pub(super) fn is_exact(source: Shape, conversion: &Conversion, load: Shape) -> bool {
    let (Some(from), Some(to)) = (source.width(), load.width()) else {
        return false;
    };
    if from != to {
        return false;
    }
    let agree = |value: Bits, bytes: &[u8]| {
        let read = load.read(bytes);
        read.is_some() && convert(conversion, value) == read
    };
    if source.is_store() {
        single_bit_values(source.ty).all(|value| {
            let bytes = source.write(&value);
            bytes.is_some_and(|bytes| agree(value, &bytes))
        })
    } else {
        single_bits(from).all(|bytes| {
            let value = source.read(&bytes);
            value.is_some_and(|value| agree(value, &bytes))
        })
    }
}

/// Whether `store` writes the bytes that are there since `witness`. Both values are made of one
/// root by the steps given; of a load, the root is the value that it read.
///
/// Steps copy bits, so that roots with one bit set show all there is to see.
pub(super) fn writes_the_same(
    root: Type,
    (witness, witness_steps): (Shape, &[Step]),
    (store, store_steps): (Shape, &[Step]),
) -> bool {
    let (Some(from), Some(to)) = (witness.width(), store.width()) else {
        return false;
    };
    if from != to || !store.is_store() {
        return false;
    }
    let written = |shape: Shape, steps: &[Step], root: &Bits| {
        let value = steps
            .iter()
            .try_fold(root.clone(), |value, &step| apply(step, &value))?;
        shape.write(&value)
    };
    if witness.is_store() {
        single_bit_values(root).all(|root| {
            let bytes = written(store, store_steps, &root);
            bytes.is_some() && bytes == written(witness, witness_steps, &root)
        })
    } else {
        single_bits(from).all(|bytes| {
            let value = witness.read(&bytes);
            value.is_some_and(|value| written(store, store_steps, &value) == Some(bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::SmallVec;

    const LITTLE: Endianness = Endianness::Little;
    const BIG: Endianness = Endianness::Big;

    fn shape(opcode: Opcode, ty: Type, endianness: Endianness) -> Shape {
        Shape {
            opcode,
            ty,
            endianness,
        }
    }

    fn exact(source: (Opcode, Type), steps: &[Step], load: (Opcode, Type)) -> bool {
        let conversion = Conversion {
            steps: SmallVec::from_slice(steps),
        };
        [LITTLE, BIG].iter().all(|&order| {
            let source = shape(source.0, source.1, order);
            is_exact(source, &conversion, shape(load.0, load.1, order))
        })
    }

    #[test]
    fn exact_conversions() {
        use Opcode::*;
        use types::*;
        assert!(exact((Store, I32), &[], (Load, I32)));
        assert!(exact((Store, I128), &[], (Load, I128)));
        assert!(exact(
            (Store, F64),
            &[Step::Bitcast(I64, None)],
            (Load, I64)
        ));
        assert!(exact((Uload8, I32), &[], (Uload8, I32)));
        assert!(exact((Sload8x8, I16X8), &[], (Sload8x8, I16X8)));
        let narrow_signed = [Step::Reduce(I8), Step::SignExtend(I64)];
        assert!(exact((Istore8, I64), &narrow_signed, (Sload8, I64)));
        assert!(exact((Uload8, I64), &narrow_signed, (Sload8, I64)));
        assert!(exact((Store, I8), &[Step::ZeroExtend(I32)], (Uload8, I32)));
    }

    #[test]
    fn inexact_conversions() {
        use Opcode::*;
        use types::*;
        assert!(!exact((Istore8, I32), &[], (Uload8, I32)), "high bits");
        assert!(!exact((Uload8, I32), &[], (Sload8, I32)), "sign");
        assert!(
            !exact((Store, I8), &[Step::SignExtend(I32)], (Uload8, I32)),
            "sign"
        );
        assert!(!exact((Store, F64), &[], (Load, I64)), "type");
        assert!(
            !exact((Store, I64), &[Step::Reduce(I32)], (Load, I32)),
            "width"
        );
        assert!(!exact((Uload8x8, I16X8), &[], (Sload8x8, I16X8)), "lanes");
        let without_order = [Step::Bitcast(I8X16, None)];
        assert!(!exact((Store, I32X4), &without_order, (Load, I8X16)));
        let little = [Step::Bitcast(I8X16, Some(LITTLE))];
        assert!(!exact((Store, I32X4), &little, (Load, I8X16)), "big lanes");
    }

    #[test]
    fn bitcast_of_lanes_goes_by_byte_order() {
        for order in [LITTLE, BIG] {
            let conversion = Conversion {
                steps: SmallVec::from_slice(&[Step::Bitcast(types::I8X16, Some(order))]),
            };
            let source = shape(Opcode::Store, types::I32X4, order);
            let load = shape(Opcode::Load, types::I8X16, order);
            assert!(is_exact(source, &conversion, load));
        }
    }

    #[test]
    fn other_byte_order() {
        let source = shape(Opcode::Store, types::I32, LITTLE);
        let load = shape(Opcode::Load, types::I32, BIG);
        assert!(!is_exact(source, &Conversion::default(), load));
        let swapped = shape(Opcode::Store, types::I32, BIG);
        assert!(!writes_the_same(types::I32, (source, &[]), (swapped, &[])));
    }

    fn in_vain(root: Type, witness: (Opcode, Type), store: (Opcode, Type), steps: &[Step]) -> bool {
        let witness = shape(witness.0, witness.1, LITTLE);
        let store = shape(store.0, store.1, LITTLE);
        writes_the_same(root, (witness, &[]), (store, steps))
    }

    #[test]
    fn stores_of_what_is_there() {
        let uload8 = (Opcode::Uload8, types::I32);
        let store = (Opcode::Store, types::I32);
        assert!(in_vain(
            types::I32,
            uload8,
            (Opcode::Istore8, types::I32),
            &[]
        ));
        assert!(in_vain(types::I32, store, store, &[]));
        assert!(!in_vain(types::I32, uload8, store, &[]));
        let istore16 = (Opcode::Istore16, types::I32);
        assert!(!in_vain(types::I32, store, istore16, &[]));
    }

    #[test]
    fn stores_of_what_is_there_through_conversions() {
        let load = (Opcode::Load, types::I32);
        let float = (Opcode::Store, types::F32);
        assert!(in_vain(
            types::I32,
            load,
            float,
            &[Step::Bitcast(types::F32, None)]
        ));
        let low = [Step::Reduce(types::I8), Step::ZeroExtend(types::I32)];
        assert!(!in_vain(
            types::I32,
            load,
            (Opcode::Store, types::I32),
            &low
        ));
        let uload8 = (Opcode::Uload8, types::I32);
        assert!(in_vain(
            types::I32,
            uload8,
            (Opcode::Istore8, types::I32),
            &low
        ));
    }
}
