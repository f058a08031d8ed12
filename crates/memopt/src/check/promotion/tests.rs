//! Honest promotions are proven; those that are wrong by one rule each are not.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{
    BlockArg, Endianness, Function, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode,
    StackSlot, UserStackMapEntry, Value, types,
};
use cranelift_codegen::verify_function;

use super::super::tests::target;
use super::check_promotion;
use crate::certificate::{PromotedCell, Promotion};
use crate::context::Context;
use crate::fuel::Fuel;
use crate::options::Options;
use crate::passes::{SlotContext, sroa};
use crate::stats::Stats;

/// A valid function of two pointers and two numbers; `ss0` and `ss1` are at `v4` and `v5`.
fn function(body: &str) -> Function {
    let key = if body.contains("keyed") {
        ", key = 7"
    } else {
        ""
    };
    let text = format!(
        "function %f(i64, i64, i32, i32) -> i32 {{\n\
         ss0 = explicit_slot 8{key}\n ss1 = explicit_slot 16\n ss2 = explicit_slot 8\n\
         region0 = 1 \"a\"\n region1 = 2 \"outside\"\n\
         sig0 = (i64, i64, i64) -> i64\n fn0 = %Memcpy sig0\n sig1 = (i64)\n fn1 = %g sig1\n\
         block0(v0: i64, v1: i64, v2: i32, v3: i32):\n\
         v4 = stack_addr.i64 ss0\n v5 = stack_addr.i64 ss1\n{body}\n}}"
    );
    let functions = cranelift_reader::parse_functions(&text);
    let func = functions.expect("test CLIF parses").remove(0);
    let verified = verify_function(&func, &*target());
    verified.unwrap_or_else(|errors| panic!("test CLIF is invalid: {errors}"));
    func
}

fn check(before: &Function, after: &Function, promotion: &Promotion) -> Result<(), String> {
    check_promotion(before, after, Endianness::Little, &[false, true], promotion)
}

/// Has the pass promote what it can.
fn promote(before: &Function) -> (Function, Promotion) {
    let mut func = before.clone();
    let promotion = promotion_in(&mut func);
    (func, promotion.expect("something is promoted"))
}

fn promotion_in(func: &mut Function) -> Option<Promotion> {
    let mut context = Context::default();
    let options = Options {
        check: true,
        ..Options::default()
    };
    let analysis = &mut context.analysis;
    analysis.view.scan(func, Endianness::Little, &options);
    analysis.flow.compute(func);
    let mut cx = SlotContext {
        func,
        flow: &analysis.flow,
        view: &analysis.view,
        fuel: &mut Fuel::new(None),
        options: &options,
        stats: &mut Stats::default(),
        remarks: &mut Vec::new(),
    };
    sroa::run_round(&mut cx, Endianness::Little, &mut context.slots.sroa).promotion
}

/// L8 of the pass. Text gives each branch a table of its own.
#[test]
fn branches_that_share_a_table_keep_slots() {
    let mut func = function(
        "store notrap v2, v4\nbr_table v2, block3, [block1, block2]\n\
         block1:\nstore notrap v3, v4\nbr_table v3, block3, [block2, block3]\n\
         block2:\njump block3\nblock3:\nv6 = load.i32 notrap v4\nreturn v6",
    );
    assert!(promotion_in(&mut func.clone()).is_some());
    let tables: Vec<Inst> = func
        .layout
        .blocks()
        .filter_map(|block| func.layout.last_inst(block))
        .filter(|&inst| func.dfg.insts[inst].opcode() == Opcode::BrTable)
        .collect();
    let InstructionData::BranchTable { table: shared, .. } = func.dfg.insts[tables[0]] else {
        panic!("no table");
    };
    if let InstructionData::BranchTable { table, .. } = &mut func.dfg.insts[tables[1]] {
        *table = shared;
    }
    assert!(promotion_in(&mut func).is_none());
}

#[track_caller]
fn assert_reason(checked: Result<(), String>, reason: &str) {
    match checked {
        Ok(()) => panic!("proven, but should be rejected: {reason}"),
        Err(message) => assert!(message.contains(reason), "other reason: {message}"),
    }
}

/// Proves what the pass does, and then that tampering with it is found.
#[track_caller]
fn assert_tampering_found(
    body: &str,
    tamper: impl FnOnce(&mut Function, &mut Promotion),
    reason: &str,
) {
    let before = function(body);
    let (mut after, mut promotion) = promote(&before);
    assert_eq!(check(&before, &after, &promotion), Ok(()), "{after}");
    tamper(&mut after, &mut promotion);
    assert_reason(check(&before, &after, &promotion), reason);
}

/// Claims that the bytes of a cell are values, after `edit` did what follows from it.
#[track_caller]
fn assert_rejected(
    body: &str,
    cells: &[(u32, u32, u32)],
    edit: impl FnOnce(&mut Function),
    reason: &str,
) {
    let before = function(body);
    let mut after = before.clone();
    edit(&mut after);
    let cell = |&(slot, start, end): &(u32, u32, u32)| PromotedCell {
        slot: StackSlot::from_u32(slot),
        start,
        end,
    };
    let promotion = Promotion {
        cells: cells.iter().map(cell).collect(),
        ..Promotion::default()
    };
    assert_reason(check(&before, &after, &promotion), reason);
}

fn find(func: &Function, opcode: Opcode, number: usize) -> Inst {
    let blocks = func.layout.blocks();
    let mut insts = blocks.flat_map(|block| func.layout.block_insts(block));
    let found = insts.by_ref();
    let mut found = found.filter(|&inst| func.dfg.insts[inst].opcode() == opcode);
    let found = found.nth(number);
    found.unwrap_or_else(|| panic!("there is no {opcode} {number}:\n{func}"))
}

fn param(func: &Function, number: usize) -> Value {
    let entry = func.layout.entry_block().expect("an entry block");
    func.dfg.block_params(entry)[number]
}

fn remove(func: &mut Function, opcode: Opcode, number: usize) {
    let inst = find(func, opcode, number);
    func.layout.remove_inst(inst);
}

/// A load goes; a parameter of the function stands for it.
fn take_param(func: &mut Function, load: usize, number: usize) {
    let load = find(func, Opcode::Load, load);
    let (result, value) = (func.dfg.first_result(load), param(func, number));
    func.dfg.clear_results(load);
    func.dfg.change_to_alias(result, value);
    func.layout.remove_inst(load);
}

/// The store and the load of one variable go.
fn take_stored(func: &mut Function) {
    take_param(func, 0, 2);
    remove(func, Opcode::Store, 0);
}

const SIMPLE: &str = "store notrap v2, v4\nv6 = load.i32 notrap v4\nreturn v6";
const DIAMOND: &str = "store notrap v2, v4\nstore notrap v3, v4+4\nbrif v2, block1, block2\n\
     block1:\nstore notrap v3, v4\nstore notrap v2, v4+4\njump block2\n\
     block2:\nv6 = load.i32 notrap v4\nv7 = load.i32 notrap v4+4\nv8 = isub v6, v7\nreturn v8";
const LOOP: &str = "store notrap v2, v4\njump block1\n\
     block1:\nv6 = load.i32 notrap v4\nv7 = iadd v6, v3\nstore notrap v7, v4\n\
     brif v7, block1, block2\n\
     block2:\nv8 = load.i32 notrap v4\nreturn v8";
const CHOICE: &str = "store notrap v2, v4\nstore notrap v3, v5\nv6 = select v3, v4, v5\n\
     v7 = load.i32 notrap v6\nv8 = iadd v7, v7\nstore notrap v8, v6\n\
     v9 = load.i32 notrap v4\nv10 = load.i32 notrap v5\nv11 = isub v9, v10\nreturn v11";
const COPY_OUT: &str = "store notrap v2, v5\nstore notrap v3, v5+4\nv6 = iconst.i64 8\n\
     v7 = call fn0(v0, v5, v6)\nreturn v2";
const COPY_PART: &str = "store notrap v2, v5\nv6 = iconst.i64 15\nv7 = band v0, v6\n\
     v8 = iconst.i64 7\nv9 = band v7, v8\nv10 = iadd v5, v9\nistore8 notrap v2, v10+8\n\
     v11 = iconst.i64 16\nv12 = call fn0(v0, v5, v11)\nreturn v2";

#[test]
fn pass_is_proven() {
    for body in [SIMPLE, DIAMOND, LOOP, CHOICE, COPY_OUT, COPY_PART] {
        let before = function(body);
        let (after, promotion) = promote(&before);
        assert_eq!(check(&before, &after, &promotion), Ok(()), "{after}");
        let nothing = Promotion::default();
        assert_reason(check(&before, &after, &nothing), "");
    }
}

// Values.

#[test]
fn lost_store() {
    let body = "store notrap v2, v4\nstore notrap v3, v4\nv6 = load.i32 notrap v4\nreturn v6";
    let edit = |func: &mut Function| {
        take_stored(func);
        remove(func, Opcode::Store, 0);
    };
    assert_rejected(body, &[(0, 0, 4)], edit, "which memory does not hold");
}

#[test]
fn other_bytes() {
    let body = "store notrap v2, v4\nstore notrap v3, v4+4\nv6 = load.i32 notrap v4+4\nreturn v6";
    let edit = |func: &mut Function| {
        take_stored(func);
        remove(func, Opcode::Store, 0);
    };
    assert_rejected(body, &[(0, 0, 8)], edit, "which memory does not hold");
}

#[test]
fn wrong_extension() {
    let body = "istore8 notrap v2, v4\nv6 = sload8.i32 notrap v4\nreturn v6";
    let tamper = |func: &mut Function, _: &mut Promotion| {
        let inst = find(func, Opcode::Sextend, 0);
        if let InstructionData::Unary { opcode, .. } = &mut func.dfg.insts[inst] {
            *opcode = Opcode::Uextend;
        }
    };
    assert_tampering_found(body, tamper, "which memory does not hold");
}

#[test]
fn stale_value_around_loop() {
    let edit = |func: &mut Function| {
        take_stored(func);
        take_param(func, 0, 2);
        remove(func, Opcode::Store, 0);
    };
    assert_rejected(LOOP, &[(0, 0, 4)], edit, "which memory does not hold");
}

#[test]
fn value_of_this_iteration() {
    // What the load gave is defined anew before it is asked what memory holds.
    let body = "jump block1\nblock1:\nv6 = load.i32 v0\nv7 = load.i32 notrap v4\n\
         store notrap v6, v4\nbrif v7, block1, block2\nblock2:\nreturn v7";
    let edit = |func: &mut Function| {
        let load = find(func, Opcode::Load, 1);
        let value = func.dfg.first_result(find(func, Opcode::Load, 0));
        let result = func.dfg.first_result(load);
        func.dfg.clear_results(load);
        func.dfg.change_to_alias(result, value);
        func.layout.remove_inst(load);
        remove(func, Opcode::Store, 0);
    };
    assert_rejected(body, &[(0, 0, 4)], edit, "which memory does not hold");
}

#[test]
fn wrong_argument() {
    let tamper = |func: &mut Function, _: &mut Promotion| {
        let branch = find(func, Opcode::Brif, 0);
        let value = param(func, 3);
        let dfg = &mut func.dfg;
        let calls = dfg.insts[branch]
            .branch_destination_mut(&mut dfg.jump_tables, &mut dfg.exception_tables);
        calls[1].update_args(&mut dfg.value_lists, |_| BlockArg::Value(value));
    };
    assert_tampering_found(DIAMOND, tamper, "is given to");
}

#[test]
fn parameter_of_other_bytes() {
    let tamper = |_: &mut Function, promotion: &mut Promotion| {
        let cell = promotion.params[0].cell;
        promotion.params[0].cell = promotion.params[1].cell;
        promotion.params[1].cell = cell;
    };
    assert_tampering_found(DIAMOND, tamper, "is given to");
}

#[test]
fn parameter_that_does_not_fit() {
    let tamper = |_: &mut Function, promotion: &mut Promotion| promotion.params[0].cell.end += 4;
    assert_tampering_found(DIAMOND, tamper, "does not fit");
}

#[test]
fn parameter_that_is_not_claimed() {
    let tamper = |_: &mut Function, promotion: &mut Promotion| promotion.params.clear();
    assert_tampering_found(LOOP, tamper, "are not those claimed");
}

// Cells.

#[test]
fn cell_out_of_bounds() {
    assert_rejected(SIMPLE, &[(0, 0, 9)], take_stored, "out of bounds");
}

#[test]
fn cells_that_overlap() {
    let cells = [(0, 0, 4), (0, 2, 6)];
    assert_rejected(SIMPLE, &cells, take_stored, "overlap");
}

#[test]
fn no_cell() {
    assert_rejected(SIMPLE, &[(0, 4, 8)], take_stored, "in no cell");
}

#[test]
fn access_that_stays() {
    let edit = |func: &mut Function| remove(func, Opcode::Store, 0);
    assert_rejected(SIMPLE, &[(0, 0, 4)], edit, "touches cells, and stays");
}

#[test]
fn outside_region() {
    let body = "store notrap region1 v2, v4\nv6 = load.i32 notrap region1 v4\nreturn v6";
    assert_rejected(body, &[(0, 0, 4)], take_stored, "outside region");
}

#[test]
fn unreachable_access() {
    let body = "store notrap v2, v4\nreturn v2\nblock1:\nv6 = load.i32 notrap v4\nreturn v6";
    assert_rejected(body, &[(0, 0, 4)], take_stored, "is unreachable");
}

// Privacy.

#[test]
fn key() {
    let body = format!("; keyed\n{SIMPLE}");
    assert_rejected(&body, &[(0, 0, 4)], take_stored, "has a key");
}

#[test]
fn stack_map() {
    let body = "call fn1(v0)\nstore notrap v2, v4\nv6 = load.i32 notrap v4\nreturn v6";
    let mut before = function(body);
    let call = find(&before, Opcode::Call, 0);
    let entry = UserStackMapEntry {
        ty: types::I64,
        slot: StackSlot::from_u32(0),
        offset: 0,
    };
    before.dfg.append_user_stack_map_entry(call, entry);
    let mut after = before.clone();
    take_stored(&mut after);
    let (_, promotion) = promote(&function(body));
    assert_reason(check(&before, &after, &promotion), "a stack map names");
}

#[test]
fn stack_pointer() {
    let body = format!("v9 = get_stack_pointer.i64\n{SIMPLE}");
    assert_rejected(&body, &[(0, 0, 4)], take_stored, "exposes the frame");
}

#[test]
fn stored_address() {
    let body = "store notrap v2, v4\nv6 = load.i32 notrap v4\nstore v4, v0\nreturn v6";
    let reason = "stores the address of a slot with cells";
    assert_rejected(body, &[(0, 0, 4)], take_stored, reason);
}

#[test]
fn escapes() {
    let ways = [
        "call fn1(v4)",
        "v9 = imul v4, v4",
        "v9 = select v2, v4, v0",
        "v9 = isub v0, v4",
        "v9 = iadd v4, v4",
        "v9 = call fn0(v0, v1, v4)",
        "jump block1(v4)\nblock1(v9: i64):",
    ];
    for way in ways {
        let other = if way.starts_with("jump") {
            "brif v6, block1(v0), block2\nblock2:\n"
        } else {
            ""
        };
        let body = format!("store notrap v2, v4\nv6 = load.i32 notrap v4\n{way}\n{other}return v6");
        assert_rejected(&body, &[(0, 0, 4)], take_stored, "escapes");
    }
}

#[test]
fn hidden_choice() {
    let body = "store notrap v2, v4\nv6 = load.i32 notrap v4\nv7 = stack_addr.i64 ss2\n\
         v8 = select v3, v4, v5\nv9 = iadd v7, v8\nv10 = isub v9, v7\n\
         v11 = load.i32 notrap v10\nreturn v11";
    assert_rejected(body, &[(0, 0, 4)], take_stored, "escapes");
}

#[test]
fn out_of_bounds() {
    let body = "store notrap v2, v4\nv6 = load.i32 notrap v4\nstore notrap v3, v4+6\nreturn v6";
    assert_rejected(body, &[(0, 0, 4)], take_stored, "is out of bounds");
}

#[test]
fn variable_index() {
    let body = "store notrap v2, v4\nv6 = load.i32 notrap v4\nv7 = iconst.i64 7\n\
         v8 = band v0, v7\nv9 = iadd v4, v8\nistore8 notrap v3, v9\nreturn v6";
    assert_rejected(body, &[(0, 0, 4)], take_stored, "may touch cells, or not");
}

#[test]
fn index_that_wraps() {
    // -128 to 126, whatever the mask says.
    let body = "store notrap v2, v4\nv6 = load.i32 notrap v4\nv7 = iconst.i8 127\n\
         v8 = ireduce.i8 v0\nv9 = band v8, v7\nv10 = iadd v9, v9\nv11 = sextend.i64 v10\n\
         v12 = iadd v4, v11\nistore8 notrap v3, v12+4\nreturn v6";
    assert_rejected(body, &[(0, 0, 4)], take_stored, "may touch cells, or not");
}

// Memory functions.

#[test]
fn copy_within_slot() {
    let body = "store notrap v2, v5\nv6 = load.i32 notrap v5\nv7 = iconst.i64 8\n\
         v8 = iadd v5, v7\nv9 = call fn0(v8, v5, v7)\nreturn v6";
    assert_rejected(body, &[(1, 0, 4)], take_stored, "copies within");
}

#[test]
fn copy_of_unknown_length() {
    let body = "store notrap v2, v5\nv6 = load.i32 notrap v5\nv7 = call fn0(v0, v5, v1)\nreturn v6";
    assert_rejected(body, &[(1, 0, 4)], take_stored, "is not known");
}

#[test]
fn copy_left_out_in_part() {
    let tamper = |func: &mut Function, promotion: &mut Promotion| {
        remove(func, Opcode::Store, 1);
        promotion.calls[0].1.pop();
    };
    assert_tampering_found(COPY_OUT, tamper, "is not written");
}

#[test]
fn copy_not_claimed() {
    let tamper = |_: &mut Function, promotion: &mut Promotion| promotion.calls.clear();
    assert_tampering_found(COPY_OUT, tamper, "is not written");
}

#[test]
fn copy_in_other_order() {
    let tamper = |_: &mut Function, promotion: &mut Promotion| promotion.calls[0].1.reverse();
    assert_tampering_found(COPY_OUT, tamper, "does not stand in its place");
}

#[test]
fn copy_to_other_place() {
    let tamper = |func: &mut Function, _: &mut Promotion| {
        let store = find(func, Opcode::Store, 1);
        if let InstructionData::Store { offset, .. } = &mut func.dfg.insts[store] {
            *offset = 5.into();
        }
    };
    assert_tampering_found(COPY_OUT, tamper, "is out of its range");
}

#[test]
fn copy_of_other_bytes() {
    let tamper = |func: &mut Function, _: &mut Promotion| {
        let store = find(func, Opcode::Store, 1);
        let value = param(func, 2);
        func.dfg.inst_args_mut(store)[0] = value;
    };
    assert_tampering_found(COPY_OUT, tamper, "other bytes are stored");
}

#[test]
fn copy_of_rest_left_out() {
    let tamper = |func: &mut Function, promotion: &mut Promotion| {
        remove(func, Opcode::Call, 0);
        promotion.calls[0].1.pop();
    };
    assert_tampering_found(COPY_PART, tamper, "bytes in memory are not moved");
}

#[test]
fn copy_of_rest_to_other_place() {
    let tamper = |func: &mut Function, _: &mut Promotion| {
        let call = find(func, Opcode::Call, 0);
        let value = param(func, 0);
        func.dfg.inst_args_mut(call)[0] = value;
    };
    assert_tampering_found(COPY_PART, tamper, "is not a part of the call");
}

// What else changed.

#[test]
fn new_effects() {
    let insert = |flags: MemFlagsData| {
        move |func: &mut Function, _: &mut Promotion| {
            let last = find(func, Opcode::Return, 0);
            let (address, value) = (param(func, 0), param(func, 2));
            let mut cursor = FuncCursor::new(func).at_inst(last);
            cursor.ins().store(flags, value, address, 0);
        }
    };
    let trapping = insert(MemFlagsData::new());
    assert_tampering_found(SIMPLE, trapping, "is new and has effects");
    let plain = insert(MemFlagsData::new().with_notrap());
    assert_tampering_found(SIMPLE, plain, "new accesses stand before");
}

#[test]
fn operand_that_is_gone() {
    let body = format!("v9 = icmp eq v4, v0\n{SIMPLE}");
    let tamper = |func: &mut Function, _: &mut Promotion| remove(func, Opcode::StackAddr, 0);
    assert_tampering_found(&body, tamper, "is not there any more");
}

#[test]
fn operand_that_changed() {
    let tamper = |func: &mut Function, _: &mut Promotion| {
        let inst = find(func, Opcode::Isub, 0);
        func.dfg.inst_args_mut(inst).swap(0, 1);
    };
    assert_tampering_found(DIAMOND, tamper, "changed");
}

#[test]
fn instruction_that_went() {
    let tamper = |func: &mut Function, _: &mut Promotion| remove(func, Opcode::Call, 0);
    let body = format!("call fn1(v0)\n{SIMPLE}");
    assert_tampering_found(&body, tamper, "no claim says so");
}

// Choices.

#[test]
fn choice_with_wrong_condition() {
    for number in 0..3 {
        let tamper = |func: &mut Function, _: &mut Promotion| {
            let inst = find(func, Opcode::Select, number);
            func.dfg.inst_args_mut(inst).swap(1, 2);
        };
        assert_tampering_found(CHOICE, tamper, "hold");
    }
}

#[test]
fn choice_on_other_condition() {
    let tamper = |func: &mut Function, _: &mut Promotion| {
        let inst = find(func, Opcode::Select, 0);
        let value = param(func, 2);
        func.dfg.inst_args_mut(inst)[0] = value;
    };
    assert_tampering_found(CHOICE, tamper, "which memory does not hold");
}

#[test]
fn choice_without_an_alternative() {
    let tamper = |_: &mut Function, promotion: &mut Promotion| {
        promotion.choices.pop();
    };
    assert_tampering_found(CHOICE, tamper, "which memory does not hold");
}

#[test]
fn choice_of_other_value() {
    let tamper = |func: &mut Function, promotion: &mut Promotion| {
        promotion.choices[0].2 = param(func, 2);
    };
    assert_tampering_found(CHOICE, tamper, "is not what a cell holds then");
}
