//! Cutting values into bytes and putting them together.
//!
//! A *part* of a value is the integer made of some of its bytes as they lie in memory.

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::ir::{
    Endianness, Function, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode, Type, Value,
    ValueDef, types,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::partition::int_of_bytes;
use crate::effects::constant_of;
use crate::faults::{Fault, planted};
use crate::rewrite::Edit;

/// Some bytes of a value: from `start`, in memory order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) width: u32,
    /// An integer of `width` bytes, or a value of another type of `width` bytes.
    pub(super) value: Value,
}

pub(super) type Pieces = SmallVec<[Piece; 4]>;

/// Makes values of bytes. Storage is reused across functions.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// What a value was put together of.
    pieces: FxHashMap<Value, Pieces>,
}

impl Joined {
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }
}

/// Inserts instructions before `at`.
pub(super) struct Builder<'a, 'b> {
    pub(super) edit: &'a mut Edit<'b>,
    pub(super) at: Inst,
    pub(super) endianness: Endianness,
    pub(super) joined: &'a mut Joined,
}

impl Builder<'_, '_> {
    fn func(&self) -> &Function {
        self.edit.func()
    }

    fn cursor(&mut self) -> FuncCursor<'_> {
        self.edit.before(self.at)
    }

    fn type_of(&self, value: Value) -> Type {
        self.func().dfg.value_type(value)
    }

    fn flags(&self, from: Type, to: Type) -> MemFlagsData {
        // Lanes lie on the bytes as in memory.
        let flags = MemFlagsData::new();
        if from.is_vector() || to.is_vector() {
            flags.with_endianness(self.endianness)
        } else {
            flags
        }
    }

    /// The value as another type of the same width.
    pub(super) fn convert(&mut self, value: Value, to: Type) -> Value {
        let from = self.type_of(value);
        if from == to {
            return value;
        }
        debug_assert_eq!(from.bytes(), to.bytes());
        if let Some(inner) = self.bitcast_inner(value)
            && self.type_of(inner) == to
        {
            return inner;
        }
        if from == types::I128 || to == types::I128 {
            let (low, high) = self.halves(value);
            return self.of_halves(low, high, to);
        }
        let flags = self.flags(from, to);
        self.cursor().ins().bitcast(to, flags, value)
    }

    /// The operand of a bitcast whose lanes lie as in memory.
    fn bitcast_inner(&self, value: Value) -> Option<Value> {
        let dfg = &self.func().dfg;
        let ValueDef::Result(inst, 0) = dfg.value_def(dfg.resolve_aliases(value)) else {
            return None;
        };
        match dfg.insts[inst] {
            InstructionData::LoadNoOffset {
                opcode: Opcode::Bitcast,
                arg,
                flags,
            } => {
                let inner = dfg.resolve_aliases(arg);
                let expected = self.flags(dfg.value_type(inner), dfg.value_type(value));
                (dfg.mem_flags[flags] == expected).then_some(inner)
            }
            _ => None,
        }
    }

    /// The bytes of 16 in two words, in memory order.
    fn halves(&mut self, value: Value) -> (Value, Value) {
        if let Some(pieces) = self.joined.pieces.get(&value)
            && let [first, second] = pieces[..]
        {
            return (first.value, second.value);
        }
        if self.type_of(value) == types::I128 {
            let (low, high) = self.cursor().ins().isplit(value);
            return match self.endianness {
                _ if planted(Fault::HalvesSwapped) => (high, low),
                Endianness::Little => (low, high),
                Endianness::Big => (high, low),
            };
        }
        let words = self.convert(value, types::I64X2);
        let first = self.cursor().ins().extractlane(words, 0);
        let second = self.cursor().ins().extractlane(words, 1);
        (first, second)
    }

    /// The value of 16 bytes whose words, in memory order, are given.
    fn of_halves(&mut self, first: Value, second: Value, ty: Type) -> Value {
        let value = if ty == types::I128 {
            let (low, high) = match self.endianness {
                Endianness::Little => (first, second),
                Endianness::Big => (second, first),
            };
            self.cursor().ins().iconcat(low, high)
        } else {
            let words = self.cursor().ins().splat(types::I64X2, first);
            let words = self.cursor().ins().insertlane(words, second, 1);
            self.convert(words, ty)
        };
        let pieces = [(0, first), (8, second)].map(|(start, value)| Piece {
            start,
            width: 8,
            value,
        });
        self.joined
            .pieces
            .insert(value, pieces.into_iter().collect());
        value
    }

    /// The integer with the value's bytes; the value is at most 8 bytes wide.
    fn int_of(&mut self, value: Value) -> Value {
        let ty = int_of_bytes(self.type_of(value).bytes());
        self.convert(value, ty)
    }

    /// A part of the value. Of the same width, it is the value itself.
    pub(super) fn part(&mut self, value: Value, start: u32, width: u32) -> Value {
        let value = self.func().dfg.resolve_aliases(value);
        let ty = self.type_of(value);
        if width == ty.bytes() {
            return value;
        }
        if let Some(pieces) = self.joined.pieces.get(&value) {
            let within =
                |piece: &&Piece| piece.start <= start && start + width <= piece.start + piece.width;
            if let Some(&piece) = pieces.iter().find(within) {
                return self.part(piece.value, start - piece.start, width);
            }
        }
        if ty.bytes() == 16 {
            let lane = ty.lane_type();
            if ty.is_vector() && lane.bytes() == width && start.is_multiple_of(width) {
                let lane = (start / width) as u8;
                return self.cursor().ins().extractlane(value, lane);
            }
            let (first, second) = self.halves(value);
            if start + width <= 8 {
                return self.part(first, start, width);
            }
            if start >= 8 {
                return self.part(second, start - 8, width);
            }
            let pieces = [(first, start, 8), (second, 0, start + width - 8)];
            let pieces = pieces.map(|(half, from, to)| (half, from, to - from));
            return self.join_parts(&pieces, width);
        }
        let shift = self.shift(start, width, ty.bytes());
        let narrow = int_of_bytes(width);
        let int = self.int_of(value);
        if int != value && self.joined.pieces.contains_key(&int) {
            return self.part(int, start, width);
        }
        if let Some(number) = constant_of(self.func(), int) {
            let part = (number as u64 >> shift) as i64;
            return self.constant(narrow, part);
        }
        let shifted = match shift {
            0 => int,
            _ => self.ushr(int, shift),
        };
        self.cursor().ins().ireduce(narrow, shifted)
    }

    fn join_parts(&mut self, parts: &[(Value, u32, u32)], width: u32) -> Value {
        let mut pieces = Pieces::new();
        let mut start = 0;
        for &(value, from, length) in parts {
            for (offset, word) in words(from, length) {
                pieces.push(Piece {
                    start: start + offset - from,
                    width: word,
                    value: self.part(value, offset, word),
                });
            }
            start += length;
        }
        self.join(&pieces, int_of_bytes(width))
    }

    fn ushr(&mut self, value: Value, amount: u32) -> Value {
        let amount = self.constant(types::I32, i64::from(amount));
        self.cursor().ins().ushr(value, amount)
    }

    /// How far a part of an integer of `whole` bytes lies above the lowest bit.
    fn shift(&self, start: u32, width: u32, whole: u32) -> u32 {
        match self.endianness {
            Endianness::Little => start * 8,
            Endianness::Big => (whole - start - width) * 8,
        }
    }

    pub(super) fn constant(&mut self, ty: Type, number: i64) -> Value {
        let mask = u64::MAX >> (64 - ty.bits());
        let number = (number as u64 & mask) as i64;
        self.cursor().ins().iconst(ty, number)
    }

    /// The value of type `ty` made of pieces that cover its bytes, by start.
    pub(super) fn join(&mut self, pieces: &[Piece], ty: Type) -> Value {
        if let &[only] = pieces {
            return self.convert(only.value, ty);
        }
        if ty.bytes() == 16 {
            let halves = [0, 8].map(|start| {
                let half = pieces.iter().filter(|piece| piece.start / 8 * 8 == start);
                let half: Pieces = half
                    .map(|piece| Piece {
                        start: piece.start - start,
                        ..*piece
                    })
                    .collect();
                self.join(&half, types::I64)
            });
            return self.of_halves(halves[0], halves[1], ty);
        }
        let wide = int_of_bytes(ty.bytes());
        let mut number = Some(0);
        for piece in pieces {
            let shift = self.shift(piece.start, piece.width, ty.bytes());
            let part = constant_of(self.func(), piece.value);
            let mask = u64::MAX >> (64 - piece.width * 8);
            number = number
                .zip(part)
                .map(|(number, part)| number | (part as u64 & mask) << shift);
        }
        if let Some(number) = number {
            let whole = self.constant(wide, number as i64);
            return self.convert(whole, ty);
        }
        let mut whole: Option<Value> = None;
        for piece in pieces {
            if constant_of(self.func(), piece.value) == Some(0) {
                continue;
            }
            let int = self.int_of(piece.value);
            let wider = self.cursor().ins().uextend(wide, int);
            let placed = match self.shift(piece.start, piece.width, ty.bytes()) {
                0 => wider,
                shift => {
                    let amount = self.constant(types::I32, i64::from(shift));
                    self.cursor().ins().ishl(wider, amount)
                }
            };
            whole = Some(match whole {
                None => placed,
                Some(whole) => self.cursor().ins().bor(whole, placed),
            });
        }
        let whole = whole.expect("not all pieces are zero");
        self.joined
            .pieces
            .insert(whole, pieces.iter().copied().collect());
        self.convert(whole, ty)
    }

    /// The value with some of its bytes replaced by those of `part`.
    pub(super) fn with_part(&mut self, value: Value, start: u32, part: Value) -> Value {
        let ty = self.type_of(value);
        let (width, whole) = (self.type_of(part).bytes(), ty.bytes());
        debug_assert!(width < whole);
        if ty.is_vector() && ty.lane_type().bytes() == width && start.is_multiple_of(width) {
            let lane = self.convert(part, ty.lane_type());
            let index = (start / width) as u8;
            return self.cursor().ins().insertlane(value, lane, index);
        }
        if whole == 16 || constant_of(self.func(), value).is_some() {
            return self.with_piece(value, start, part);
        }
        let int = self.int_of(value);
        let wide = self.type_of(int);
        let shift = self.shift(start, width, whole);
        let mask = !((u64::MAX >> (64 - width * 8)) << shift);
        let mask = self.constant(wide, mask as i64);
        let kept = if planted(Fault::UpdateWhole) {
            int
        } else if planted(Fault::UpdateDrops) {
            self.constant(wide, 0)
        } else {
            self.cursor().ins().band(int, mask)
        };
        let part = self.int_of(part);
        if constant_of(self.func(), part) == Some(0) {
            return self.convert(kept, ty);
        }
        let wider = self.cursor().ins().uextend(wide, part);
        let placed = match shift {
            0 => wider,
            _ => {
                let amount = self.constant(types::I32, i64::from(shift));
                self.cursor().ins().ishl(wider, amount)
            }
        };
        let both = self.cursor().ins().bor(kept, placed);
        self.convert(both, ty)
    }

    /// As [`Builder::with_part`], by cutting all of the value.
    fn with_piece(&mut self, value: Value, start: u32, part: Value) -> Value {
        let ty = self.type_of(value);
        let width = self.type_of(part).bytes();
        let mut pieces = Pieces::new();
        for (offset, word) in words(0, start) {
            pieces.push(Piece {
                start: offset,
                width: word,
                value: self.part(value, offset, word),
            });
        }
        // A part that crosses the middle of 16 bytes is cut there.
        for (offset, word) in words(start, width) {
            pieces.push(Piece {
                start: offset,
                width: word,
                value: self.part(part, offset - start, word),
            });
        }
        let end = start + width;
        for (offset, word) in words(end, ty.bytes() - end) {
            pieces.push(Piece {
                start: offset,
                width: word,
                value: self.part(value, offset, word),
            });
        }
        self.join(&pieces, ty)
    }

    /// The integer with its bytes in the other order.
    pub(super) fn swap(&mut self, value: Value) -> Value {
        let ty = self.type_of(value);
        if ty.bytes() == 1 {
            return value;
        }
        let int = self.int_of(value);
        let swapped = self.cursor().ins().bswap(int);
        self.convert(swapped, ty)
    }

    /// A value of which all bytes are the low byte of `byte`.
    pub(super) fn repeat(&mut self, byte: Value, ty: Type) -> Value {
        let word = if ty.bytes() == 16 { 8 } else { ty.bytes() };
        let int = int_of_bytes(word);
        let pattern = match planted(Fault::FillOnce) {
            true => 1,
            false => 0x0101_0101_0101_0101u64 >> (64 - word * 8),
        };
        let number = constant_of(self.func(), byte);
        let repeated = match number {
            Some(number) => {
                let number = pattern.wrapping_mul(number as u64 & 0xff);
                self.constant(int, number as i64)
            }
            None => {
                let byte = match self.type_of(byte) {
                    types::I8 => byte,
                    _ => self.cursor().ins().ireduce(types::I8, byte),
                };
                if word == 1 {
                    byte
                } else {
                    let wide = self.cursor().ins().uextend(int, byte);
                    let pattern = self.constant(int, pattern as i64);
                    self.cursor().ins().imul(wide, pattern)
                }
            }
        };
        if ty.bytes() == 16 {
            self.of_halves(repeated, repeated, ty)
        } else {
            self.convert(repeated, ty)
        }
    }
}

/// A range of bytes in words that are aligned to their width.
pub(super) fn words(start: u32, length: u32) -> impl Iterator<Item = (u32, u32)> {
    let end = start + length;
    let mut from = start;
    std::iter::from_fn(move || {
        if from >= end {
            return None;
        }
        let fits = |width: &u32| from.is_multiple_of(*width) && from + width <= end;
        let width = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        from += width;
        Some((from - width, width))
    })
}
