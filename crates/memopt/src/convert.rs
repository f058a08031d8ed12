//! Bit-exact conversions between the value one access holds and the value another would load.

use cranelift_codegen::ir::{Endianness, Function, Inst, Opcode, Type, Value};
use smallvec::SmallVec;

use crate::faults::{Fault, planted};
use crate::view::memory_type;

/// One instruction of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// `ireduce`
    Reduce(Type),
    /// `uextend`
    ZeroExtend(Type),
    /// `sextend`
    SignExtend(Type),
    /// `bitcast`; the byte order tells how lanes map onto the bits, where vectors are concerned.
    Bitcast(Type, Option<Endianness>),
}

/// The instructions that turn one value into another; none if they are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) steps: SmallVec<[Step; 2]>,
}

/// How an access relates the value in registers to the bytes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// All bytes of the value.
    Whole,
    /// The low bytes of the value, which is their zero extension if it was loaded.
    Unsigned,
    /// As `Unsigned`, with the sign extension.
    Signed,
    /// The low bytes of the value; the rest of it is anything.
    Truncated,
    /// Lanes that are widened.
    Lanes,
}

fn form_of(opcode: Opcode) -> Option<Form> {
    Some(match opcode {
        Opcode::Load | Opcode::Store => Form::Whole,
        Opcode::Uload8 | Opcode::Uload16 | Opcode::Uload32 => Form::Unsigned,
        Opcode::Sload8 | Opcode::Sload16 | Opcode::Sload32 => Form::Signed,
        Opcode::Istore8 | Opcode::Istore16 | Opcode::Istore32 => Form::Truncated,
        Opcode::Uload8x8
        | Opcode::Sload8x8
        | Opcode::Uload16x4
        | Opcode::Sload16x4
        | Opcode::Uload32x2
        | Opcode::Sload32x2 => Form::Lanes,
        _ => return None,
    })
}

/// The value that `source`, a plain load or store, holds, and the conversion to what `load` would
/// read of the same bytes in the same byte order. None if there is no conversion of at most two
/// cheap instructions.
pub(crate) fn plan_conversion(
    func: &Function,
    source: Inst,
    load: Inst,
    endianness: Endianness,
) -> Option<(Value, Conversion)> {
    let source_opcode = func.dfg.insts[source].opcode();
    let load_opcode = func.dfg.insts[load].opcode();
    let source_form = form_of(source_opcode)?;
    let load_form = form_of(load_opcode)?;
    let value = match func.dfg.inst_results(source) {
        [result] => *result,
        _ => func.dfg.inst_args(source)[0],
    };
    let from = func.dfg.value_type(value);
    let to = func.dfg.value_type(func.dfg.first_result(load));
    let same_form = source_form == Form::Whole
        || source_opcode == load_opcode
        || (planted(Fault::Truncation) && source_form == Form::Truncated);
    if from == to && same_form && load_form == loaded_form(source_form) {
        return Some((value, Conversion::default()));
    }
    if source_form == Form::Lanes || load_form == Form::Lanes {
        return None;
    }
    let source_memory = memory_type(func, source)?;
    let load_memory = memory_type(func, load)?;
    let mut steps: SmallVec<[Step; 2]> = SmallVec::new();
    if from != source_memory {
        steps.push(Step::Reduce(source_memory));
    }
    if source_memory != load_memory {
        steps.push(bitcast(source_memory, load_memory, endianness)?);
    }
    if load_memory != to {
        steps.push(match load_form {
            Form::Signed if !planted(Fault::SignExtension) => Step::SignExtend(to),
            _ => Step::ZeroExtend(to),
        });
    }
    (steps.len() <= 2).then_some((value, Conversion { steps }))
}

/// The form of a load that reads back a value of the given form as it was.
fn loaded_form(form: Form) -> Form {
    match form {
        Form::Truncated => Form::Unsigned,
        form => form,
    }
}

/// The bitcast that both back ends have between two types of the same width.
fn bitcast(from: Type, to: Type, endianness: Endianness) -> Option<Step> {
    if from.bits() != to.bits() {
        return None;
    }
    let scalar = |ty: Type| ty.is_int() || ty.is_float();
    let native_width = from.bits() == 32 || from.bits() == 64;
    if scalar(from) && scalar(to) && native_width {
        return Some(Step::Bitcast(to, None));
    }
    let full_vector = |ty: Type| ty.is_vector() && ty.bits() == 128;
    (full_vector(from) && full_vector(to)).then_some(Step::Bitcast(to, Some(endianness)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_codegen::ir::types;
    use smallvec::smallvec;

    fn plan(source: &str, load: &str) -> Option<Conversion> {
        let text = format!(
            "function %f(i64, i8, i32, i64, f64, i32x4) {{\n\
             block0(v0: i64, v1: i8, v2: i32, v3: i64, v4: f64, v5: i32x4):\n\
             {source}\n{load}\nreturn\n}}"
        );
        let functions = cranelift_reader::parse_functions(&text).expect("test CLIF parses");
        let func = &functions[0];
        let block = func.layout.entry_block().expect("a block");
        let insts: Vec<Inst> = func.layout.block_insts(block).collect();
        plan_conversion(func, insts[0], insts[1], Endianness::Little).map(|(_, c)| c)
    }

    #[test]
    fn same_type_needs_nothing() {
        let none = Some(Conversion::default());
        assert_eq!(plan("store v2, v0", "v9 = load.i32 v0"), none);
        assert_eq!(plan("v8 = uload8.i32 v0", "v9 = uload8.i32 v0"), none);
        assert_eq!(plan("v8 = uload8x8 v0", "v9 = uload8x8 v0"), none);
    }

    #[test]
    fn the_high_bits_of_a_truncating_store_do_not_come_back() {
        let steps = plan("istore8 v2, v0", "v9 = uload8.i32 v0").map(|c| c.steps);
        let expected: SmallVec<[Step; 2]> =
            smallvec![Step::Reduce(types::I8), Step::ZeroExtend(types::I32)];
        assert_eq!(steps, Some(expected));
    }

    #[test]
    fn other_extension() {
        let steps = plan("v8 = uload8.i32 v0", "v9 = sload8.i32 v0").map(|c| c.steps);
        let expected: SmallVec<[Step; 2]> =
            smallvec![Step::Reduce(types::I8), Step::SignExtend(types::I32)];
        assert_eq!(steps, Some(expected));
        let steps = plan("store v1, v0", "v9 = sload8.i64 v0").map(|c| c.steps);
        assert_eq!(steps, Some(smallvec![Step::SignExtend(types::I64)]));
    }

    #[test]
    fn other_type_of_the_same_width() {
        let steps = plan("store v4, v0", "v9 = load.i64 v0").map(|c| c.steps);
        assert_eq!(steps, Some(smallvec![Step::Bitcast(types::I64, None)]));
        let steps = plan("store v5, v0", "v9 = load.i8x16 v0").map(|c| c.steps);
        let little = Some(Endianness::Little);
        assert_eq!(steps, Some(smallvec![Step::Bitcast(types::I8X16, little)]));
        assert_eq!(plan("v8 = uload8x8 v0", "v9 = sload8x8 v0"), None);
        assert_eq!(plan("v8 = load.i128 v0", "v9 = load.i8x16 v0"), None);
    }
}
