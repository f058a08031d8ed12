//! Bounds of integers, as far as the instructions that compute them tell.

use cranelift_codegen::ir::{Function, InstructionData, Opcode, Value, ValueDef};

use crate::effects::constant_of;
use crate::faults::{Fault, planted};

/// How deep operands are followed.
const DEPTH_MAX: u32 = 6;

/// Bounds outside of which no distance within a slot lies, so that sums of a few do not overflow.
const MAGNITUDE_MAX: i64 = 1 << 40;

/// A number is at least `low` and at most `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) low: i64,
    pub(super) high: i64,
}

impl Range {
    pub(super) fn exactly(number: i64) -> Range {
        Range {
            low: number,
            high: number,
        }
    }

    fn new(low: i64, high: i64) -> Option<Range> {
        (low <= high && low >= -MAGNITUDE_MAX && high <= MAGNITUDE_MAX)
            .then_some(Range { low, high })
    }

    /// The number, if there is only one.
    pub(super) fn constant(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    pub(super) fn plus(self, other: Range) -> Option<Range> {
        Range::new(
            self.low.checked_add(other.low)?,
            self.high.checked_add(other.high)?,
        )
    }

    pub(super) fn negated(self) -> Option<Range> {
        Range::new(self.high.checked_neg()?, self.low.checked_neg()?)
    }

    fn times(self, factor: i64) -> Option<Range> {
        let (a, b) = (
            self.low.checked_mul(factor)?,
            self.high.checked_mul(factor)?,
        );
        Range::new(a.min(b), a.max(b))
    }

    /// Whether every number of the range is one of a signed integer of so many bits, and of an
    /// unsigned one.
    fn fits(self, bits: u32) -> bool {
        self.low >= 0 && (bits >= 63 || self.high < 1 << (bits - 1))
    }
}

/// Bounds of `value` as a signed number of its type.
pub(super) fn range_of(func: &Function, value: Value) -> Option<Range> {
    bounds(func, value, DEPTH_MAX)
}

fn bounds(func: &Function, value: Value, depth: u32) -> Option<Range> {
    if let Some(number) = constant_of(func, value) {
        return Range::new(number, number);
    }
    let dfg = &func.dfg;
    let value = dfg.resolve_aliases(value);
    let ty = dfg.value_type(value);
    let ValueDef::Result(inst, 0) = dfg.value_def(value) else {
        return None;
    };
    if depth == 0 || !ty.is_int() || ty.bits() > 64 {
        return None;
    }
    let inner = |value: Value| bounds(func, value, depth - 1);
    let result = match dfg.insts[inst] {
        InstructionData::Unary { opcode, arg } => {
            let bits = dfg.value_type(arg).bits();
            let whole = (bits < 32).then(|| Range {
                low: 0,
                high: (1 << bits) - 1,
            });
            match opcode {
                Opcode::Uextend => inner(arg).filter(|range| range.fits(bits)).or(whole),
                Opcode::Sextend => inner(arg),
                _ => None,
            }
        }
        InstructionData::Binary {
            opcode,
            args: [a, b],
        } => match opcode {
            Opcode::Iadd => inner(a)?.plus(inner(b)?),
            Opcode::Isub => inner(a)?.plus(inner(b)?.negated()?),
            Opcode::Imul => match (constant_of(func, a), constant_of(func, b)) {
                (_, Some(factor)) => inner(a)?.times(factor),
                (Some(factor), None) => inner(b)?.times(factor),
                (None, None) => None,
            },
            Opcode::Ishl => {
                let amount = constant_of(func, b).filter(|&amount| (0..32).contains(&amount))?;
                (amount < i64::from(ty.bits())).then_some(())?;
                inner(a)?.times(1 << amount)
            }
            Opcode::Band => {
                let mask = |value: Value| constant_of(func, value).filter(|&mask| mask >= 0);
                let mask = mask(a).or_else(|| mask(b))?;
                Range::new(0, mask)
            }
            Opcode::Urem => {
                let divisor = constant_of(func, b).filter(|&divisor| divisor > 0)?;
                Range::new(0, divisor - 1)
            }
            _ => None,
        },
        InstructionData::Load { opcode, .. } => match opcode {
            Opcode::Uload8 => Range::new(0, 0xff),
            Opcode::Uload16 => Range::new(0, 0xffff),
            _ => None,
        },
        _ => None,
    };
    // The result does not wrap in its type.
    let may_wrap = ty.bits() < 64 && !planted(Fault::RangeWraps);
    let limit = 1i64.checked_shl(ty.bits() - 1).filter(|_| may_wrap);
    result.filter(|range| limit.is_none_or(|limit| range.low >= -limit && range.high < limit))
}
