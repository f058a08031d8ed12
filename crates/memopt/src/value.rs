//! When two values are the same bits.

use cranelift_codegen::ir::{
    Endianness, Function, Inst, InstructionData, Opcode, Type, Value, ValueDef,
};

use crate::faults::{Fault, planted};

/// How deep [`same_value`] compares operands.
const DEPTH_MAX: u32 = 3;

/// The value at the root of extensions, reductions and bitcasts whose low `bytes` bytes are those
/// of `value`, when either is stored in the byte order `endianness`.
pub(crate) fn root_of_bytes(
    func: &Function,
    value: Value,
    bytes: u32,
    endianness: Endianness,
) -> Value {
    let mut value = func.dfg.resolve_aliases(value);
    while let Some(inner) = inner_of_bytes(func, value, bytes, endianness) {
        value = func.dfg.resolve_aliases(inner);
    }
    value
}

fn inner_of_bytes(
    func: &Function,
    value: Value,
    bytes: u32,
    endianness: Endianness,
) -> Option<Value> {
    match func.dfg.insts[inst_of(func, value)?] {
        InstructionData::Unary {
            opcode: Opcode::Uextend | Opcode::Sextend | Opcode::Ireduce,
            arg,
        } => (func.dfg.value_type(arg).bytes() >= bytes).then_some(arg),
        InstructionData::LoadNoOffset {
            opcode: Opcode::Bitcast,
            flags,
            arg,
        } => {
            let scalar = |ty: Type| ty.is_int() || ty.is_float();
            let (from, to) = (func.dfg.value_type(arg), func.dfg.value_type(value));
            let explicit = func.dfg.mem_flags[flags].explicit_endianness();
            let keeps_order = (scalar(from) && scalar(to)) || explicit == Some(endianness);
            (keeps_order && to.bytes() == bytes).then_some(arg)
        }
        _ => None,
    }
}

/// Whether the two are one value, or are computed by the same pure instructions from the same
/// values and constants.
pub(crate) fn same_value(func: &Function, a: Value, b: Value) -> bool {
    same_to_depth(func, a, b, DEPTH_MAX)
}

fn same_to_depth(func: &Function, a: Value, b: Value, depth: u32) -> bool {
    let (a, b) = (func.dfg.resolve_aliases(a), func.dfg.resolve_aliases(b));
    if func.dfg.value_type(a) != func.dfg.value_type(b) {
        return false;
    }
    if a == b || planted(Fault::DifferentValue) {
        return true;
    }
    let (Some(x), Some(y)) = (inst_of(func, a), inst_of(func, b)) else {
        return false;
    };
    depth > 0
        && same_operation(&func.dfg.insts[x], &func.dfg.insts[y])
        && func
            .dfg
            .inst_args(x)
            .iter()
            .zip(func.dfg.inst_args(y))
            .all(|(&a, &b)| same_to_depth(func, a, b, depth - 1))
}

/// Whether the two are the same operation, operands aside, and have no effects.
fn same_operation(a: &InstructionData, b: &InstructionData) -> bool {
    let opcode = a.opcode();
    if opcode != b.opcode() || opcode.can_trap() || opcode.other_side_effects() {
        return false;
    }
    match (a, b) {
        (InstructionData::Unary { .. }, InstructionData::Unary { .. })
        | (InstructionData::Binary { .. }, InstructionData::Binary { .. }) => true,
        (
            InstructionData::UnaryImm { .. }
            | InstructionData::UnaryIeee16 { .. }
            | InstructionData::UnaryIeee32 { .. }
            | InstructionData::UnaryIeee64 { .. }
            | InstructionData::UnaryConst { .. },
            _,
        ) => a == b,
        _ => false,
    }
}

/// The instruction of which `value` is the only result.
fn inst_of(func: &Function, value: Value) -> Option<Inst> {
    match func.dfg.value_def(value) {
        ValueDef::Result(inst, _) if func.dfg.inst_results(inst).len() == 1 => Some(inst),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_codegen::ir::types;

    fn parsed(body: &str) -> Function {
        let text = format!(
            "function %f(i64, i32, f64) {{\nblock0(v0: i64, v1: i32, v2: f64):\n{body}\nreturn\n}}"
        );
        cranelift_reader::parse_functions(&text)
            .expect("test CLIF parses")
            .remove(0)
    }

    fn value(number: u32) -> Value {
        Value::from_u32(number)
    }

    #[test]
    fn roots_keep_the_low_bytes() {
        let func = parsed("v3 = ireduce.i8 v1\nv4 = uextend.i32 v3\nv5 = bitcast.i64 v2");
        let root = |number, bytes| root_of_bytes(&func, value(number), bytes, Endianness::Little);
        assert_eq!(root(4, 1), value(1));
        assert_eq!(root(4, 4), value(4), "the high bytes are others");
        assert_eq!(root(5, 8), value(2));
        assert_eq!(root(5, 4), value(5), "part of a bitcast");
    }

    #[test]
    fn vector_casts_keep_the_order_they_name() {
        let func = parsed("v3 = splat.i32x4 v1\nv4 = bitcast.i8x16 little v3");
        assert_eq!(func.dfg.value_type(value(4)), types::I8X16);
        assert_eq!(
            root_of_bytes(&func, value(4), 16, Endianness::Little),
            value(3)
        );
        assert_eq!(
            root_of_bytes(&func, value(4), 16, Endianness::Big),
            value(4)
        );
    }

    #[test]
    fn equal_computations() {
        let func = parsed(
            "v3 = iconst.i32 7\nv4 = iconst.i32 7\nv5 = iconst.i32 8\nv6 = splat.i32x4 v3\n\
             v7 = splat.i32x4 v4\nv8 = splat.i32x4 v5\nv9 = load.i32 v0\nv10 = load.i32 v0\n\
             v11 = udiv v1, v3\nv12 = udiv v1, v3\nv13 = iconst.i64 7",
        );
        let same = |a, b| same_value(&func, value(a), value(b));
        assert!(same(3, 4) && same(6, 7));
        assert!(!same(3, 5) && !same(6, 8) && !same(3, 13));
        assert!(!same(9, 10) && !same(11, 12));
    }
}
