//! Original and optimized functions must do the same in Cranelift's interpreter, too: no code
//! generator has a part in it, and it runs big-endian accesses.
//!
//! The interpreter has no memory but stack slots. So a function is built that holds the buffers in
//! slots of its own, calls the function under test, and returns its results. What these slots hold at
//! the end, be it a return or a trap, is compared. What is outside is written in CLIF ([`LIBRARY`]).

use std::fmt;
use std::sync::LazyLock;

use clif_memopt_filetest::exec::{Argument, Buffer, Invocation, Pointer, PointerTarget};
use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::data_value::DataValue;
use cranelift_codegen::ir::{
    Endianness, ExtFuncData, ExternalName, Function, Inst, InstBuilder, InstructionData, LibCall,
    MemFlagsData, Opcode, Signature, StackSlot, StackSlotData, StackSlotKind, UserFuncName, Value,
    types,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_interpreter::environment::FunctionStore;

use super::machine::{Exception, Machine, Stop};
use super::{Finding, Oracle, guarded};
use crate::case::Case;
use crate::shape::Tally;

/// Instructions that a run may take.
const FUEL: u64 = 1 << 16;
/// Invocations that are interpreted of a case that is compiled, too.
const COMPILED_RUNS_MAX: usize = 1;
/// Sizes of slots are multiples of this, in bytes: the interpreter ignores their alignment.
const SLOT_BYTES: u32 = 16;
/// Bytes after each buffer: the interpreter has no guard pages.
const PADDING_BYTES: u32 = 64;
/// Distance from a buffer to what is out of bounds, in bytes.
const OUT_OF_BOUNDS: i64 = 1 << 40;

/// The functions of the runner and of the C library. What throws or collects is done by [`Machine`]
/// instead.
const LIBRARY: &str = "
function %host_throw(i32, i64) system_v {
block0(v0: i32, v1: i64):
    return
}
function %host_collect() system_v {
block0:
    return
}
function %host_nop() system_v {
block0:
    return
}
function %host_touch(i64) system_v {
block0(v0: i64):
    v1 = load.i8 v0
    v2 = iconst.i8 1
    v3 = iadd v1, v2
    store v3, v0
    return
}
function %host_read(i64) -> i64 system_v {
block0(v0: i64):
    v1 = load.i64 v0
    return v1
}
function %memmove(i64, i64, i64) -> i64 system_v {
block0(v0: i64, v1: i64, v2: i64):
    v3 = icmp ult v1, v0
    v4 = iconst.i64 0
    v13 = iconst.i64 1
    brif v3, block3(v2), block1(v4)
block1(v5: i64):
    v6 = icmp ult v5, v2
    brif v6, block2, block5
block2:
    v7 = iadd v1, v5
    v8 = load.i8 v7
    v9 = iadd v0, v5
    store v8, v9
    v11 = iadd v5, v13
    jump block1(v11)
block3(v12: i64):
    brif v12, block4, block5
block4:
    v14 = isub v12, v13
    v15 = iadd v1, v14
    v16 = load.i8 v15
    v17 = iadd v0, v14
    store v16, v17
    jump block3(v14)
block5:
    return v0
}
function %memset(i64, i32, i64) -> i64 system_v {
block0(v0: i64, v1: i32, v2: i64):
    v3 = ireduce.i8 v1
    v4 = iconst.i64 0
    v5 = iconst.i64 1
    jump block1(v4)
block1(v6: i64):
    v7 = icmp ult v6, v2
    brif v7, block2, block3
block2:
    v8 = iadd v0, v6
    store v3, v8
    v9 = iadd v6, v5
    jump block1(v9)
block3:
    return v0
}
function %memcmp(i64, i64, i64) -> i32 system_v {
block0(v0: i64, v1: i64, v2: i64):
    v4 = iconst.i64 0
    v5 = iconst.i64 1
    jump block1(v4)
block1(v6: i64):
    v7 = icmp ult v6, v2
    brif v7, block2, block4
block2:
    v8 = iadd v0, v6
    v9 = uload8.i32 v8
    v10 = iadd v1, v6
    v11 = uload8.i32 v10
    v12 = iadd v6, v5
    v13 = icmp eq v9, v11
    brif v13, block1(v12), block3
block3:
    v14 = isub v9, v11
    return v14
block4:
    v15 = iconst.i32 0
    return v15
}
";

static FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| {
    cranelift_reader::parse_functions(LIBRARY).expect("the interpreter's library parses")
});

/// Runs invocations on the case's functions and on `optimized`, if the interpreter can: all of them if
/// no host can.
///
/// # Errors
/// A finding: they differ.
pub fn check_interpretation(
    case: &Case,
    optimized: &[Function],
    tally: &mut Tally,
) -> Result<(), Finding> {
    let supported = case.functions.iter().chain(optimized).all(is_supported);
    if !supported {
        tally.mark("interpreter.skipped_cases", 1);
        return Ok(());
    }
    tally.mark("interpreter.cases", 1);
    let variants = [&case.functions[..], optimized].map(prepare);
    let big = !case.is_runnable();
    let runs = if big { usize::MAX } else { COMPILED_RUNS_MAX };
    let invocations = case.invocations.iter().filter(|run| can_start(run));
    for invocation in invocations.take(runs) {
        let start = start(&case.functions[invocation.function], invocation);
        let [before, after] = [&variants[0], &variants[1]].map(|functions| {
            guarded(Oracle::Interpretation, || {
                Ok(interpret(functions, &start, tally))
            })
            .unwrap_or_else(|finding| End::Unknown(finding.message))
        });
        match (&before, &after) {
            (End::Unknown(_), _) => tally.mark("interpreter.unknown", 1),
            (before, after) if is_same(before, after) => tally.mark(before.mark(), 1),
            _ => {
                let message = format!("{invocation}: {}", difference(&before, &after));
                return Err(Finding::new(Oracle::Interpretation, message));
            }
        }
    }
    Ok(())
}

/// How a run ended, and what the buffers held then.
enum End {
    /// With these results, as bits.
    Returned(Vec<u8>, Vec<u8>),
    Trapped(String, Vec<u8>),
    /// With what no handler caught.
    Thrown(Exception, Vec<u8>),
    /// The interpreter does not know, or it took too long.
    Unknown(String),
}

impl End {
    fn mark(&self) -> &'static str {
        match self {
            End::Returned(..) => "interpreter.returned",
            End::Trapped(..) => "interpreter.trapped",
            End::Thrown(..) => "interpreter.thrown",
            End::Unknown(_) => "interpreter.unknown",
        }
    }

    fn memory(&self) -> &[u8] {
        match self {
            End::Returned(_, memory) | End::Trapped(_, memory) | End::Thrown(_, memory) => memory,
            End::Unknown(_) => &[],
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Returned(results, _) => write!(f, "returned {results:02x?}"),
            End::Trapped(trap, _) => write!(f, "trapped {trap}"),
            End::Thrown(Exception { tag, payload }, _) => {
                write!(f, "threw {tag} with {payload:#x}")
            }
            End::Unknown(why) => write!(f, "ended for unknown reasons: {why}"),
        }
    }
}

fn is_same(before: &End, after: &End) -> bool {
    before.to_string() == after.to_string()
        && first_difference(before.memory(), after.memory()).is_none()
}

/// How large the slots of functions under test are taken to be, all together.
const FRAMES_BYTES: u64 = 1 << 16;

/// Where what the buffers hold differs. Frames may be laid out differently: two addresses of stack
/// slots in one aligned cell are the same. Slots come after the buffers, from address 0 on.
fn first_difference(before: &[u8], after: &[u8]) -> Option<usize> {
    const CELL_BYTES: usize = 8;
    let buffers = before.len() as u64;
    let is_slot = |cell: &[u8]| {
        let bytes = cell.try_into().map(u64::from_le_bytes);
        bytes.is_ok_and(|address| (buffers..buffers + FRAMES_BYTES).contains(&address))
    };
    if before.len() != after.len() {
        return Some(0);
    }
    let cells = before.chunks(CELL_BYTES).zip(after.chunks(CELL_BYTES));
    cells
        .enumerate()
        .filter(|(_, (a, b))| a != b && !(is_slot(a) && is_slot(b)))
        .find_map(|(cell, (a, b))| {
            let byte = a.iter().zip(b).position(|(a, b)| a != b)?;
            Some(cell * CELL_BYTES + byte)
        })
}

/// In what the ends differ.
fn difference(before: &End, after: &End) -> String {
    let at = first_difference(before.memory(), after.memory());
    match at {
        Some(at) if before.to_string() == after.to_string() => {
            let [old, new] = [before, after].map(|end| end.memory()[at]);
            format!(
                "memory differs, first at byte {at} of all buffers: original {old:02x}, optimized \
                 {new:02x} (both {before})"
            )
        }
        _ => format!("original {before}, optimized {after}"),
    }
}

/// Whether the interpreter knows all instructions.
fn is_supported(function: &Function) -> bool {
    let mut insts = function
        .layout
        .blocks()
        .flat_map(|block| function.layout.block_insts(block));
    insts.all(|inst| {
        let known = !matches!(
            function.dfg.insts[inst].opcode(),
            Opcode::Uload8x8
                | Opcode::Sload8x8
                | Opcode::Uload16x4
                | Opcode::Sload16x4
                | Opcode::Uload32x2
                | Opcode::Sload32x2
        );
        known && !is_big_vector(function, inst)
    })
}

/// Whether a vector is accessed or converted in big-endian order, for which the interpreter turns the
/// bytes around as if it were one number.
fn is_big_vector(function: &Function, inst: Inst) -> bool {
    let dfg = &function.dfg;
    let flags = dfg.insts[inst].memflags_data(dfg);
    let big = flags.is_some_and(|flags| flags.explicit_endianness() == Some(Endianness::Big));
    let mut values = dfg
        .inst_values(inst)
        .chain(dfg.inst_results(inst).iter().copied());
    big && values.any(|value| dfg.value_type(value).is_vector())
}

/// The functions as the interpreter takes them.
fn prepare(functions: &[Function]) -> Vec<Function> {
    let mut functions = functions.to_vec();
    for function in &mut functions {
        function.dfg.resolve_all_aliases();
        for slot in function.sized_stack_slots.values_mut() {
            slot.size = slot.size.next_multiple_of(SLOT_BYTES);
        }
        for callee in function.dfg.ext_funcs.values_mut() {
            let name = match callee.name {
                ExternalName::LibCall(LibCall::Memcpy | LibCall::Memmove) => "memmove",
                ExternalName::LibCall(LibCall::Memset) => "memset",
                ExternalName::LibCall(LibCall::Memcmp) => "memcmp",
                _ => continue,
            };
            callee.name = ExternalName::testcase(name);
        }
        drop_sequence_points(function);
        add_negative_offsets(function);
    }
    functions
}

/// The interpreter takes offsets to be unsigned.
fn add_negative_offsets(function: &mut Function) {
    let blocks: Vec<_> = function.layout.blocks().collect();
    for block in blocks {
        let insts: Vec<_> = function.layout.block_insts(block).collect();
        for inst in insts {
            let Some(by) = function.dfg.insts[inst].load_store_offset() else {
                continue;
            };
            let (InstructionData::Load { arg: base, .. }
            | InstructionData::Store {
                args: [_, base], ..
            }) = function.dfg.insts[inst]
            else {
                continue;
            };
            if by >= 0 {
                continue;
            }
            let mut cursor = FuncCursor::new(function).at_inst(inst);
            let address = cursor.ins().iadd_imm_s(base, i64::from(by));
            match &mut function.dfg.insts[inst] {
                InstructionData::Load { arg, offset, .. }
                | InstructionData::Store {
                    args: [_, arg],
                    offset,
                    ..
                } => (*arg, *offset) = (address, 0.into()),
                _ => {}
            }
        }
    }
}

fn drop_sequence_points(function: &mut Function) {
    let blocks: Vec<_> = function.layout.blocks().collect();
    for block in blocks {
        let insts: Vec<_> = function.layout.block_insts(block).collect();
        for inst in insts {
            if function.dfg.insts[inst].opcode() == Opcode::SequencePoint {
                function.layout.remove_inst(inst);
            }
        }
    }
}

fn interpret(functions: &[Function], start: &Function, tally: &mut Tally) -> End {
    let mut store = FunctionStore::default();
    for function in functions.iter().chain(&*FUNCTIONS).chain([start]) {
        store.add(function.name.to_string(), function);
    }
    let mut machine = Machine::new(store, FUEL);
    let stop = machine.run(start);
    tally.mark("interpreter.caught", machine.caught);
    tally.mark("interpreter.collected", machine.collected);
    let memory = || machine.stack()[..start.fixed_stack_size() as usize].to_vec();
    match stop {
        Ok(Stop::Returned(values)) => End::Returned(bytes_of(&values), memory()),
        Ok(Stop::Trapped(trap)) => End::Trapped(trap.to_string(), memory()),
        Ok(Stop::Thrown(exception)) => End::Thrown(exception, memory()),
        Err(error) => End::Unknown(format!("{error:#}")),
    }
}

fn bytes_of(values: &[DataValue]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * 16];
    for (value, cell) in values.iter().zip(bytes.chunks_mut(16)) {
        value.write_to_slice_le(cell);
    }
    bytes
}

/// Whether [`start`] can pass the arguments.
fn can_start(invocation: &Invocation) -> bool {
    invocation.arguments.iter().all(|argument| {
        matches!(
            argument,
            Argument::Address(_) | Argument::Value(DataValue::I32(_) | DataValue::I64(_))
        )
    })
}

/// The function that holds the buffers; see the module's documentation.
fn start(callee: &Function, invocation: &Invocation) -> Function {
    let buffers = &invocation.buffers;
    let sizes: Vec<u32> = buffers
        .iter()
        .map(|buffer| (buffer.bytes.len() as u32 + PADDING_BYTES).next_multiple_of(SLOT_BYTES))
        .collect();
    let mut signature = Signature::new(CallConv::SystemV);
    signature.returns.clone_from(&callee.signature.returns);
    let mut function = Function::with_name_signature(UserFuncName::testcase("start"), signature);
    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut function, &mut context);
    let block = b.create_block();
    b.switch_to_block(block);
    b.seal_block(block);
    let slots: Vec<StackSlot> = sizes
        .iter()
        .map(|&size| StackSlotData::new(StackSlotKind::ExplicitSlot, size, 4))
        .map(|data| b.create_sized_stack_slot(data))
        .collect();
    for (buffer, &slot) in buffers.iter().zip(&slots) {
        for (at, &byte) in buffer
            .bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
        {
            let byte = b.ins().iconst(types::I8, i64::from(byte));
            store(&mut b, byte, slot, at);
        }
        for (at, pointer) in &buffer.pointers {
            let address = address(&mut b, buffers, &slots, pointer);
            store(&mut b, address, slot, *at);
        }
    }
    let arguments: Vec<Value> = invocation
        .arguments
        .iter()
        .map(|argument| match argument {
            Argument::Address(pointer) => address(&mut b, buffers, &slots, pointer),
            Argument::Value(DataValue::I32(value)) => {
                b.ins().iconst(types::I32, i64::from(value.cast_unsigned()))
            }
            Argument::Value(DataValue::I64(value)) => b.ins().iconst(types::I64, *value),
            Argument::Value(other) => panic!("no generated function takes {other}"),
        })
        .collect();
    let signature = b.import_signature(callee.signature.clone());
    let reference = b.import_function(ExtFuncData {
        name: ExternalName::testcase(callee.name.to_string().trim_start_matches('%')),
        signature,
        colocated: false,
        patchable: false,
    });
    let call = b.ins().call(reference, &arguments);
    let results = b.inst_results(call).to_vec();
    b.ins().return_(&results);
    b.finalize(TargetFrontendConfig {
        default_call_conv: CallConv::SystemV,
        pointer_width: target_lexicon::PointerWidth::U64,
        page_size_align_log2: 12,
    });
    function
}

fn store(b: &mut FunctionBuilder<'_>, value: Value, slot: StackSlot, at: usize) {
    let base = b.ins().stack_addr(types::I64, slot, at as i32);
    b.ins().store(MemFlagsData::new(), value, base, 0);
}

fn address(
    b: &mut FunctionBuilder<'_>,
    buffers: &[Buffer],
    slots: &[StackSlot],
    pointer: &Pointer,
) -> Value {
    let (index, offset) = match &pointer.target {
        PointerTarget::Buffer(name) => {
            let index = buffers.iter().position(|buffer| buffer.name == *name);
            (index.unwrap_or(0), pointer.offset)
        }
        PointerTarget::OutOfBounds => (0, pointer.offset + OUT_OF_BOUNDS),
    };
    let base = b.ins().stack_addr(types::I64, slots[index], 0);
    b.ins().iadd_imm_s(base, offset)
}
