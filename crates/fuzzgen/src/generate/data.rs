//! Values that are data, and what becomes of them: they are mixed into the result.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::{Ieee32, Ieee64};
use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Type, Value, types};

use super::function::Gen;

/// The types that memory holds.
pub(crate) const TYPES: [(usize, Type); 13] = [
    (4, types::I8),
    (3, types::I16),
    (8, types::I32),
    (10, types::I64),
    (2, types::I128),
    (2, types::F32),
    (3, types::F64),
    (2, types::I8X16),
    (1, types::I16X8),
    (2, types::I32X4),
    (1, types::I64X2),
    (1, types::F32X4),
    (1, types::F64X2),
];

impl Gen<'_, '_, '_> {
    /// A value of the type: an older one, or a new one.
    pub(crate) fn value(&mut self, ty: Type) -> Value {
        let old: Vec<Value> = self
            .values
            .iter()
            .copied()
            .filter(|&value| self.b.func.dfg.value_type(value) == ty)
            .collect();
        if !old.is_empty() && self.c.percent(65) {
            return self.c.pick(&old);
        }
        let value = self.new_value(ty);
        self.values.push(value);
        value
    }

    fn new_value(&mut self, ty: Type) -> Value {
        if ty.is_vector() {
            let lane = self.value(ty.lane_type());
            return self.b.ins().splat(ty, lane);
        }
        match ty {
            types::I128 => {
                let (low, high) = (self.value(types::I64), self.value(types::I64));
                self.b.ins().iconcat(low, high)
            }
            types::F32 => {
                let bits = self.float_bits() as u32;
                self.b.ins().f32const(Ieee32::with_bits(bits))
            }
            types::F64 => {
                let bits = self.float_bits();
                self.b.ins().f64const(Ieee64::with_bits(bits))
            }
            _ => self.new_int(ty),
        }
    }

    fn float_bits(&mut self) -> u64 {
        match self.c.below(3) {
            0 => 0x7ff4_0000_7fa0_0001,
            1 => 0x3ff8_0000_3f80_0000,
            _ => self.c.bits(),
        }
    }

    fn new_int(&mut self, ty: Type) -> Value {
        let wide = self.values.iter().copied().find(|&value| {
            let other = self.b.func.dfg.value_type(value);
            other.is_int() && other.bits() <= 64 && other.bits() > ty.bits()
        });
        if let Some(wide) = wide
            && self.c.percent(30)
        {
            return self.b.ins().ireduce(ty, wide);
        }
        let number = match self.c.below(3) {
            0 => 0,
            1 => self.c.between(-2, 2),
            _ => self.c.bits().cast_signed(),
        };
        let shift = 64 - ty.bits();
        // As CLIF has it: the bits of the type, unsigned.
        let masked = (number.cast_unsigned() << shift >> shift).cast_signed();
        self.b.ins().iconst(ty, masked)
    }

    /// A condition that depends on data.
    pub(crate) fn condition(&mut self) -> Value {
        let value = self.value(types::I64);
        let mask = self.c.pick(&[1i64, 2, 4, 8, 0x100]);
        let bit = self.b.ins().band_imm_u(value, mask);
        self.b.ins().icmp_imm_s(IntCC::NotEqual, bit, 0)
    }

    /// A condition that is true in about one of eight cases.
    pub(crate) fn rare_condition(&mut self) -> Value {
        let acc = self.b.use_var(self.acc);
        let at = self.c.between(0, 7);
        let bits = self.b.ins().band_imm_u(acc, 7);
        self.b.ins().icmp_imm_s(IntCC::Equal, bits, at)
    }

    /// Makes the value part of the result.
    pub(crate) fn mix(&mut self, value: Value) {
        let number = self.as_number(value);
        let acc = self.b.use_var(self.acc);
        let scaled = self.b.ins().imul_imm_s(acc, 31);
        let mixed = self.b.ins().iadd(scaled, number);
        self.b.def_var(self.acc, mixed);
        self.values.push(value);
    }

    /// The bits of a value as i64.
    pub(crate) fn as_number(&mut self, value: Value) -> Value {
        let ty = self.b.func.dfg.value_type(value);
        let plain = MemFlagsData::new();
        match ty {
            types::I64 => value,
            types::I128 => {
                let (low, high) = self.b.ins().isplit(value);
                self.b.ins().bxor(low, high)
            }
            types::F32 => {
                let bits = self.b.ins().bitcast(types::I32, plain, value);
                self.b.ins().uextend(types::I64, bits)
            }
            types::F64 => self.b.ins().bitcast(types::I64, plain, value),
            _ if ty.is_vector() => {
                let little = plain.with_endianness(Endianness::Little);
                let pair = match ty {
                    types::I64X2 => value,
                    _ => self.b.ins().bitcast(types::I64X2, little, value),
                };
                let low = self.b.ins().extractlane(pair, 0);
                let high = self.b.ins().extractlane(pair, 1);
                let turned = self.b.ins().rotl_imm_u(high, 1);
                self.b.ins().bxor(low, turned)
            }
            _ => self.b.ins().uextend(types::I64, value),
        }
    }
}
