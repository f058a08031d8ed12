//! Claims of the optimizer are proven; claims that are wrong by one rule each are not.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{
    AliasRegion, Endianness, Function, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode,
    types,
};
use cranelift_codegen::isa::{self, TargetIsa};
use cranelift_codegen::{settings, verify_function};
use smallvec::SmallVec;

use super::{Claims, check};
use crate::certificate::Certificate;
use crate::convert::{Conversion, Step};
use crate::{Optimizer, Options, Pass, RegionName};

/// A claim about loads (`l0`, `l1`, …) and stores (`s0`, …), numbered in layout order.
enum Claim {
    /// Load, source, steps of the conversion.
    Takes(&'static str, &'static str, &'static [Step]),
    Unobserved(&'static str),
    /// Store, witness.
    InVain(&'static str, &'static str),
}

use Claim::{InVain, Takes, Unobserved};

pub(super) fn target() -> std::sync::Arc<dyn TargetIsa> {
    isa::lookup_by_name("x86_64")
        .map(|builder| builder.finish(settings::Flags::new(settings::builder())))
        .expect("the target is built in")
        .expect("default settings are valid")
}

/// A valid function with the given body, two pointers, two numbers, and things to use.
fn function(body: &str) -> Function {
    let slots = if body.contains("keyed") {
        "ss0 = explicit_slot 8, key = 7\n"
    } else {
        "ss0 = explicit_slot 8\n"
    };
    let text = format!(
        "function %f(i64, i64, i32, i32) -> i32 {{\n\
         {slots} ss1 = explicit_slot 16\n\
         region0 = 1 \"a\"\n region1 = 2 \"b\"\n region2 = 3 \"outside\"\n\
         sig0 = (i64) system_v\n fn0 = %g(i64) system_v\n fn1 = %f(i64, i64, i32, i32) -> i32\n\
         {body}\n}}"
    );
    let functions = cranelift_reader::parse_functions(&text);
    let func = functions.expect("test CLIF parses").remove(0);
    let verified = verify_function(&func, &*target());
    verified.unwrap_or_else(|errors| panic!("test CLIF is invalid: {errors}"));
    func
}

/// The function whose one block begins with the parameters of [`function`].
fn block(body: &str) -> Function {
    function(&format!(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n{body}\nreturn v2"
    ))
}

fn insts(func: &Function) -> impl Iterator<Item = Inst> + '_ {
    let blocks = func.layout.blocks();
    blocks.flat_map(|block| func.layout.block_insts(block))
}

fn access(func: &Function, name: &str) -> Inst {
    let (kind, number) = name.split_at(1);
    let number: usize = number.parse().expect("a number");
    let found = insts(func)
        .filter(|&inst| match func.dfg.insts[inst] {
            InstructionData::Load { .. } => kind == "l",
            InstructionData::Store { .. } => kind == "s",
            _ => false,
        })
        .nth(number);
    found.unwrap_or_else(|| panic!("there is no access {name}"))
}

fn certify(func: &Function, claim: &Claim) -> Certificate {
    match *claim {
        Takes(load, source, steps) => {
            let source = access(func, source);
            let value = match func.dfg.inst_results(source) {
                [result] => *result,
                _ => func.dfg.inst_args(source)[0],
            };
            Certificate::LoadTakes {
                load: access(func, load),
                source,
                value,
                conversion: Conversion {
                    steps: SmallVec::from_slice(steps),
                },
            }
        }
        Unobserved(store) => Certificate::StoreUnobserved {
            store: access(func, store),
        },
        InVain(store, witness) => Certificate::StoreInVain {
            store: access(func, store),
            witness: access(func, witness),
        },
    }
}

/// Does the rewrites that the certificates claim.
fn rewrite(func: &mut Function, certificates: &[Certificate]) {
    for certificate in certificates {
        match certificate {
            Certificate::LoadTakes {
                load,
                source,
                value,
                conversion,
            } => {
                lose_aligned(func, *source, *load);
                let mut value = *value;
                let mut cursor = FuncCursor::new(func).at_inst(*load);
                for &step in &conversion.steps {
                    value = match step {
                        Step::Reduce(ty) => cursor.ins().ireduce(ty, value),
                        Step::ZeroExtend(ty) => cursor.ins().uextend(ty, value),
                        Step::SignExtend(ty) => cursor.ins().sextend(ty, value),
                        Step::Bitcast(ty, _) => {
                            cursor.ins().bitcast(ty, MemFlagsData::new(), value)
                        }
                    };
                }
                let result = func.dfg.first_result(*load);
                func.dfg.clear_results(*load);
                func.dfg.change_to_alias(result, value);
                func.layout.remove_inst(*load);
            }
            Certificate::StoreUnobserved { store } => {
                func.layout.remove_inst(*store);
            }
            Certificate::StoreInVain { store, witness } => {
                lose_aligned(func, *witness, *store);
                func.layout.remove_inst(*store);
            }
        }
    }
}

fn lose_aligned(func: &mut Function, survivor: Inst, gone: Inst) {
    let flags = |func: &Function, inst: Inst| func.dfg.insts[inst].memflags_data(&func.dfg);
    let both = flags(func, survivor).zip(flags(func, gone));
    if both.is_some_and(|(kept, gone)| kept.aligned() && !gone.aligned()) {
        set_flags(func, survivor, MemFlagsData::new().with_notrap());
    }
}

fn set_flags(func: &mut Function, inst: Inst, flags: MemFlagsData) {
    let flags = func.dfg.mem_flags.insert_unchecked(flags);
    *func.dfg.insts[inst].memflags_mut().expect("an access") = flags;
}

fn check_both(
    original: &Function,
    optimized: &Function,
    certificates: &[Certificate],
) -> Result<(), String> {
    let claims = Claims {
        certificates,
        endianness: Endianness::Little,
        outside: &[false, false, true],
        untouched_slot_keys: &[],
    };
    check(original, optimized, &claims)
}

/// Checks claims after they were carried out to the letter.
fn check_claims(func: &Function, claims: &[Claim]) -> Result<(), String> {
    let certificates: Vec<_> = claims.iter().map(|claim| certify(func, claim)).collect();
    let mut optimized = func.clone();
    rewrite(&mut optimized, &certificates);
    check_both(func, &optimized, &certificates)
}

#[track_caller]
fn assert_proven(func: &Function, claims: &[Claim]) {
    if let Err(message) = check_claims(func, claims) {
        panic!("rejected: {message}");
    }
}

#[track_caller]
fn assert_rejected(func: &Function, claims: &[Claim], reason: &str) {
    match check_claims(func, claims) {
        Ok(()) => panic!("proven, but should be rejected: {reason}"),
        Err(message) => assert!(message.contains(reason), "other reason: {message}"),
    }
}

/// Checks what is left of a proven claim after the optimized function was tampered with.
#[track_caller]
fn assert_tampering_found(
    func: &Function,
    claims: &[Claim],
    tamper: impl FnOnce(&mut Function),
    reason: &str,
) {
    let certificates: Vec<_> = claims.iter().map(|claim| certify(func, claim)).collect();
    let mut optimized = func.clone();
    rewrite(&mut optimized, &certificates);
    assert_eq!(check_both(func, &optimized, &certificates), Ok(()));
    tamper(&mut optimized);
    let message = check_both(func, &optimized, &certificates).expect_err("tampering is found");
    assert!(message.contains(reason), "other reason: {message}");
}

/// Has the optimizer make and check its own claims, of which there must be `count`.
#[track_caller]
fn assert_optimizer_proven(func: &Function, count: u64) {
    let mut options = Options {
        check: true,
        verify: true,
        // Slots are to be there for them.
        passes: vec![Pass::Forward, Pass::Dse],
        ..Options::default()
    };
    options.outside_regions.push(RegionName::UserId(3));
    let mut func = func.clone();
    let report = Optimizer::new(options).optimize(&mut func, &*target());
    let stats = report.unwrap_or_else(|error| panic!("{error}")).stats;
    let done = stats.forward_from_load
        + stats.forward_from_store
        + stats.dse_overwritten
        + stats.dse_already_there;
    assert_eq!(done, count, "other number of rewrites:\n{func}");
}

// What the optimizer does is proven.

#[test]
fn optimizer_in_one_block() {
    assert_optimizer_proven(
        &block(
            "store notrap v2, v0\nstore notrap v3, v0+4\nv4 = load.i32 notrap v0\n\
             v5 = load.f32 notrap v0+4\nstore notrap v4, v0\nstore notrap v3, v0",
        ),
        4,
    );
}

#[test]
fn optimizer_with_conversions() {
    assert_optimizer_proven(
        &block(
            "istore8 v2, v0\nv4 = sload8.i64 v0\nv5 = uload8.i32 v0\n\
             v6 = load.i64 v1\nv7 = load.f64 v1\nv8 = load.i8x16 v1+16\nv9 = load.i32x4 v1+16",
        ),
        4,
    );
}

#[test]
fn optimizer_with_slots_across_calls() {
    assert_optimizer_proven(
        &block(
            "v4 = stack_addr.i64 ss0\nstore v2, v4\ncall fn0(v0)\nv5 = load.i32 v4\n\
             store v5, v4+4\nv6 = load.i32 v4+4\ncall fn0(v4)",
        ),
        2,
    );
    assert_optimizer_proven(
        &block("v4 = stack_addr.i64 ss0\nstore v2, v4\ncall fn0(v0)\nstore v3, v4"),
        2,
    );
}

#[test]
fn optimizer_with_forwarded_pointer() {
    assert_optimizer_proven(
        &block(
            "v4 = stack_addr.i64 ss0\nstore v0, v4\nstore v2, v0+8\n\
             v5 = load.i64 v4\nv6 = load.i32 v5+8\nv7 = iadd v5, v1\nstore v2, v7",
        ),
        3,
    );
}

#[test]
fn optimizer_with_readonly_pointers() {
    assert_optimizer_proven(
        &block(
            "v4 = load.i64 notrap readonly can_move v0+8\nv5 = load.i32 v4+4\n\
             store notrap v5, v1\nv6 = load.i64 notrap readonly can_move v0+8\n\
             store v2, v6+4\nv7 = load.i32 v4+4",
        ),
        2,
    );
}

#[test]
fn optimizer_on_both_arms() {
    assert_optimizer_proven(
        &function(
            "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store v2, v0\n brif v3, block1, block2\n\
             block1:\n store v3, v0\n jump block3\n\
             block2:\n v4 = iadd v3, v3\n store v4, v0\n jump block3\n\
             block3:\n v5 = load.i32 v0\n v6 = load.i32 v0\n return v6",
        ),
        2,
    );
}

#[test]
fn optimizer_in_a_loop() {
    assert_optimizer_proven(
        &function(
            "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n v8 = stack_addr.i64 ss0\n\
             store v2, v8\n jump block1(v0)\n\
             block1(v4: i64):\n v5 = load.i32 v4\n store v5, v4\n v6 = load.i32 v8\n\
             store v3, v4+4\n v7 = load.i32 v4+4\n v9 = iadd v4, v0\n brif v7, block1(v9), block2\n\
             block2:\n return v6",
        ),
        3,
    );
}

#[test]
fn optimizer_with_traps_alike() {
    assert_optimizer_proven(&block("store user1 v2, v0\nstore user1 v3, v0"), 1);
}

// Loads that take a value.

#[test]
fn load_takes_stored_value() {
    let func = block("store v2, v0\nstore v3, v0+4\nv4 = load.i32 v0");
    assert_proven(&func, &[Takes("l0", "s0", &[])]);
    assert_rejected(&func, &[Takes("l0", "s1", &[])], "addresses");
}

#[test]
fn wrong_value() {
    let func = block("store v2, v0\nv4 = load.i32 v0");
    let mut certificate = certify(&func, &Takes("l0", "s0", &[]));
    let entry = func.layout.entry_block().expect("an entry");
    if let Certificate::LoadTakes { value, .. } = &mut certificate {
        *value = func.dfg.block_params(entry)[3];
    }
    let mut optimized = func.clone();
    rewrite(&mut optimized, std::slice::from_ref(&certificate));
    let message = check_both(&func, &optimized, &[certificate]).expect_err("rejected");
    assert!(message.contains("not the value of the source"), "{message}");
}

#[test]
fn other_byte_order() {
    let func = block("store notrap little v2, v0\nv4 = load.i32 notrap big v0");
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "byte orders");
}

#[test]
fn other_width() {
    let func = block("v4 = load.i64 v0\nv5 = load.i32 v0");
    let reduce = &[Step::Reduce(types::I32)];
    assert_rejected(&func, &[Takes("l1", "l0", reduce)], "widths");
}

#[test]
fn wrong_extension() {
    let func = block("istore8 v2, v0\nv4 = uload8.i64 v0");
    let zero = &[Step::Reduce(types::I8), Step::ZeroExtend(types::I64)];
    let sign = &[Step::Reduce(types::I8), Step::SignExtend(types::I64)];
    assert_proven(&func, &[Takes("l0", "s0", zero)]);
    assert_rejected(&func, &[Takes("l0", "s0", sign)], "not exact");
    let func = block("istore8 v2, v0\nv4 = uload8.i32 v0");
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "not exact");
}

#[test]
fn partial_overlap_between() {
    let func = block("store v2, v0\nstore v3, v0+2\nv4 = load.i32 v0");
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
}

#[test]
fn unknown_pointer_between() {
    let func = block("store v2, v0\nstore v3, v1\nv4 = load.i32 v0");
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
    let func = block("store region0 v2, v0\nstore region1 v3, v1\nv4 = load.i32 region0 v0");
    assert_proven(&func, &[Takes("l0", "s0", &[])]);
}

#[test]
fn call_fence_or_atomic_between() {
    for between in ["call fn0(v1)", "fence", "atomic_store v3, v1", "debugtrap"] {
        let func = block(&format!("store v2, v0\n{between}\nv4 = load.i32 v0"));
        assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
    }
}

#[test]
fn escape_before_call() {
    let private = block(
        "v5 = stack_addr.i64 ss0\nstore v2, v5\ncall fn0(v1)\nv4 = load.i32 v5\nstore v5, v0",
    );
    assert_proven(&private, &[Takes("l0", "s0", &[])]);
    for escape in ["store v5, v0", "call fn0(v5)", "v6 = bxor v5, v1"] {
        let func = block(&format!(
            "v5 = stack_addr.i64 ss0\n{escape}\nistore32 v1, v5+4\ncall fn0(v1)\nv4 = load.i32 v5+4"
        ));
        let source = if escape.starts_with("store") {
            "s1"
        } else {
            "s0"
        };
        let steps = &[Step::Reduce(types::I32)];
        assert_rejected(&func, &[Takes("l0", source, steps)], "may change");
    }
}

#[test]
fn escape_in_a_loop_comes_round() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n v5 = stack_addr.i64 ss0\n jump block1\n\
         block1:\n store v2, v5\n call fn0(v1)\n v4 = load.i32 v5\n brif v4, block2, block3\n\
         block2:\n store v5, v0\n jump block1\n\
         block3:\n return v4",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
}

#[test]
fn slots_that_are_never_private() {
    let keyed =
        block("; keyed\nv5 = stack_addr.i64 ss0\nstore v2, v5\ncall fn0(v1)\nv4 = load.i32 v5");
    assert_rejected(&keyed, &[Takes("l0", "s0", &[])], "may change");
    let exposed = block(
        "v5 = stack_addr.i64 ss0\nv6 = get_stack_pointer.i64\nstore v2, v5\ncall fn0(v1)\n\
         v4 = load.i32 v5",
    );
    assert_rejected(&exposed, &[Takes("l0", "s0", &[])], "may change");
    let out_of_bounds = block(
        "v5 = stack_addr.i64 ss0\nv6 = load.i32 v5+8\nstore v2, v5\ncall fn0(v1)\n\
         v4 = load.i32 v5",
    );
    assert_rejected(&out_of_bounds, &[Takes("l1", "s0", &[])], "may change");
}

#[test]
fn stack_map_between() {
    let func = block(
        "v5 = stack_addr.i64 ss0\nstore v0, v5\ncall fn0(v1), stack_map=[i64 @ ss0+0]\n\
         v4 = load.i64 v5",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
}

#[test]
fn loop_carried_address() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n jump block1(v0)\n\
         block1(v4: i64):\n v5 = load.i32 notrap v4\n store notrap v3, v4\n v6 = iadd v4, v1\n\
         brif v5, block1(v6), block2\n\
         block2:\n return v5",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "another instance");
}

#[test]
fn source_on_one_arm() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n brif v3, block1, block2\n\
         block1:\n store v2, v0\n jump block2\n\
         block2:\n v4 = load.i32 v0\n return v4",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "avoids the source");
}

#[test]
fn clobber_on_one_arm() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store v2, v0\n brif v3, block1, block2\n\
         block1:\n store v3, v1\n jump block2\n\
         block2:\n v4 = load.i32 v0\n return v4",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
}

#[test]
fn clobber_on_the_back_edge() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store v2, v0\n jump block1\n\
         block1:\n v4 = load.i32 v0\n store v3, v1\n brif v4, block1, block2\n\
         block2:\n return v4",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
}

#[test]
fn exception_edge() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store v2, v0\n\
         try_call fn0(v1), sig0, block1(), [ default: block2() ]\n\
         block1:\n return v2\n\
         block2:\n v4 = load.i32 v0\n return v4",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "may change");
}

#[test]
fn two_regions() {
    let func = block("store region0 v2, v0\nv4 = load.i32 region1 v0");
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "different regions");
}

#[test]
fn outside_region() {
    let func = block("v4 = load.i32 notrap region2 v0\nv5 = load.i32 notrap region2 v0");
    assert_rejected(&func, &[Takes("l1", "l0", &[])], "left alone");
    let func = block("store notrap region2 v2, v0\nstore notrap region2 v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "left alone");
}

#[test]
fn out_of_bounds_of_a_slot() {
    let func = block("v5 = stack_addr.i64 ss0\nstore v2, v5+6\nv4 = load.i32 v5+6");
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "left alone");
}

#[test]
fn readonly_load_across_call() {
    let func =
        block("v4 = load.i32 notrap readonly v0\ncall fn0(v1)\nv5 = load.i32 notrap readonly v0");
    assert_proven(&func, &[Takes("l1", "l0", &[])]);
    // A call may make a page inaccessible.
    let func = block("v4 = load.i32 readonly v0\ncall fn0(v1)\nv5 = load.i32 readonly v0");
    assert_rejected(&func, &[Takes("l1", "l0", &[])], "may change");
}

#[test]
fn source_that_went_before() {
    let func = block("v4 = load.i32 v0\nv5 = load.i32 v0\nv6 = load.i32 v0");
    assert_proven(&func, &[Takes("l1", "l0", &[]), Takes("l2", "l0", &[])]);
    let claims = [Takes("l1", "l0", &[]), Takes("l2", "l1", &[])];
    assert_rejected(&func, &claims, "removed before");
}

#[test]
fn address_from_a_later_claim() {
    let func = block(
        "v4 = stack_addr.i64 ss0\nstore v0, v4\nstore v2, v0+8\nv5 = load.i64 v4\n\
         v6 = load.i32 v5+8",
    );
    let (first, second) = (Takes("l0", "s0", &[]), Takes("l1", "s1", &[]));
    assert_rejected(&func, &[Takes("l1", "s1", &[])], "addresses");
    assert_proven(&func, &[first, second]);
}

#[test]
fn constants_of_other_types() {
    let func = block(
        "v4 = iconst.i8 -1\nv5 = iconst.i32 -1\nv6 = uextend.i64 v4\nv7 = uextend.i64 v5\n\
         v8 = iadd v0, v6\nv9 = iadd v0, v7\nstore v2, v8\nv10 = load.i32 v9",
    );
    assert_rejected(&func, &[Takes("l0", "s0", &[])], "addresses");
}

// Stores of what is there.

#[test]
fn store_in_vain() {
    let func = block("v4 = load.i32 notrap v0\nstore notrap v4, v0");
    assert_proven(&func, &[InVain("s0", "l0")]);
    let func = block("store v2, v0\nstore v2, v0");
    assert_proven(&func, &[InVain("s1", "s0")]);
    let func = block("store v2, v0\nstore v3, v0");
    assert_rejected(&func, &[InVain("s1", "s0")], "values");
}

#[test]
fn load_shows_no_writable_page() {
    let func = block("v4 = load.i32 v0\nstore v4, v0");
    assert_rejected(&func, &[InVain("s0", "l0")], "cannot trap");
}

#[test]
fn swapped_bytes_in_vain() {
    let func = block("v4 = load.i32 notrap little v0\nstore notrap big v4, v0");
    assert_rejected(&func, &[InVain("s0", "l0")], "byte orders");
}

#[test]
fn narrower_store_in_vain() {
    let func = block("v4 = load.i32 notrap v0\nistore8 notrap v4, v0");
    assert_rejected(&func, &[InVain("s0", "l0")], "widths");
}

#[test]
fn changed_before_store_in_vain() {
    let func = block("v4 = load.i32 notrap v0\nstore v3, v1\nstore notrap v4, v0");
    assert_rejected(&func, &[InVain("s1", "l0")], "may change");
}

#[test]
fn two_stores_for_each_other() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n jump block1\n\
         block1:\n store v2, v0\n store v2, v0\n brif v3, block1, block2\n\
         block2:\n return v2",
    );
    assert_proven(&func, &[InVain("s1", "s0")]);
    assert_rejected(&func, &[InVain("s0", "s1")], "avoids the source");
    let func = block("store v2, v0\nstore v2, v0");
    let in_vain = InVain("s1", "s0");
    assert_rejected(&func, &[in_vain, Unobserved("s0")], "leaves the memory");
    let claims = [Unobserved("s0"), InVain("s1", "s0")];
    assert_rejected(&func, &claims, "removed before");
}

#[test]
fn loop_value_in_vain() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store v2, v0\n jump block1(v2)\n\
         block1(v4: i32):\n store v4, v0\n v5 = iadd v4, v3\n brif v5, block1(v5), block2\n\
         block2:\n return v2",
    );
    assert_rejected(&func, &[InVain("s1", "s0")], "values");
}

// Stores that nothing observes.

#[test]
fn store_overwritten() {
    let func = block("store v2, v0\nstore v3, v0");
    assert_proven(&func, &[Unobserved("s0")]);
    assert_rejected(&func, &[Unobserved("s1")], "leaves the memory");
}

#[test]
fn observers() {
    for (observer, reason) in [
        ("v4 = load.i32 notrap v1", "may read"),
        ("v4 = load.i32 notrap v0+2", "may read"),
        ("v4 = load.i32 notrap region0 v0", "may read"),
        ("v4 = load.i32 v0+4", "may trap"),
        ("store v3, v0+4", "may trap"),
        ("call fn0(v1)", "orders memory"),
        ("fence", "orders memory"),
        ("atomic_store notrap v3, v1", "orders memory"),
        ("trapz v3, user1", "observes"),
        ("v4 = udiv v2, v3", "observes"),
        ("debugtrap", "orders memory"),
        ("sequence_point", "orders memory"),
    ] {
        let func = block(&format!("store notrap v2, v0\n{observer}\nstore v3, v0"));
        assert_rejected(&func, &[Unobserved("s0")], reason);
    }
}

#[test]
fn passed_on_the_way_to_the_overwrite() {
    for between in [
        "v4 = load.i32 notrap v0+4",
        "store notrap v3, v0+4",
        "store notrap v3, v1",
        "v4 = load.i32 notrap readonly v1",
        "v4 = stack_addr.i64 ss0\nv5 = load.i32 v4",
    ] {
        let func = block(&format!("store notrap v2, v0\n{between}\nstore v3, v0"));
        assert_proven(&func, &[Unobserved("s0")]);
    }
}

#[test]
fn other_region_overwrites_nothing() {
    let func = block("store region0 v2, v0\nstore notrap region1 v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "would be seen");
    let func = block("store notrap region0 v2, v0\nstore notrap region1 v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "leaves the memory");
}

#[test]
fn narrower_and_wider_overwrite() {
    let func = block("store notrap v2, v0\nistore16 notrap v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "leaves the memory");
    let func = block("store notrap v2, v0+4\nstore notrap v1, v0");
    assert_proven(&func, &[Unobserved("s0")]);
    let func = block("store notrap v2, v0+4\nstore v1, v0");
    assert_rejected(&func, &[Unobserved("s0")], "may trap");
}

#[test]
fn overwrite_on_one_arm() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store notrap v2, v0\n\
         brif v3, block1, block2\n\
         block1:\n store v3, v0\n jump block2\n\
         block2:\n return v3",
    );
    assert_rejected(&func, &[Unobserved("s0")], "leaves the memory");
}

#[test]
fn reader_on_one_arm() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store notrap v2, v0\n\
         brif v3, block1, block2\n\
         block1:\n v4 = load.i32 notrap v0\n store v3, v0\n return v4\n\
         block2:\n store v3, v0\n return v3",
    );
    assert_rejected(&func, &[Unobserved("s0")], "may read");
}

#[test]
fn reader_on_the_exception_edge() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n v5 = stack_addr.i64 ss0\n store v2, v5\n\
         try_call fn0(v1), sig0, block1(), [ default: block2() ]\n\
         block1:\n return v2\n\
         block2:\n v4 = load.i32 v5\n return v4",
    );
    assert_rejected(&func, &[Unobserved("s0")], "may read");
}

#[test]
fn other_trap_code() {
    let func = block("store user1 v2, v0\nstore user2 v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "does not trap as");
    let func = block("store user1 v2, v0\nstore notrap v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "does not trap as");
    let func = block("store user1 v2, v0\nstore user1 v3, v0");
    assert_proven(&func, &[Unobserved("s0")]);
}

#[test]
fn access_that_rests_on_the_store() {
    let func = block("store v2, v0\nv4 = load.i32 notrap v0+8\nstore v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "may be valid only because");
    let func = block("store v2, v0\nstore notrap v3, v0+8\nstore v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "would be seen");
}

#[test]
fn escaped_slot_is_seen_at_the_later_trap() {
    let escaped =
        block("v4 = stack_addr.i64 ss0\ncall fn0(v4)\nstore v2, v0\nstore v2, v4\nstore v3, v0");
    assert_rejected(&escaped, &[Unobserved("s0")], "would be seen");
    let private = block("v4 = stack_addr.i64 ss0\nstore v2, v0\nstore v2, v4\nstore v3, v0");
    assert_proven(&private, &[Unobserved("s0")]);
}

#[test]
fn half_of_a_store_is_seen() {
    let func = block("v4 = iconcat v0, v1\nv5 = iconcat v1, v0\nstore v4, v0\nstore v5, v0");
    assert_rejected(&func, &[Unobserved("s0")], "does not trap as");
}

#[test]
fn overwrite_that_asks_for_alignment() {
    let func = block("store v2, v0\nstore aligned v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "may trap");
    let func = block("store aligned v2, v0\nstore aligned v3, v0");
    assert_proven(&func, &[Unobserved("s0")]);
}

#[test]
fn endless_loop_before_the_overwrite() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store notrap v2, v0\n\
         brif v3, block1, block2\n\
         block1:\n jump block1\n\
         block2:\n store v3, v0\n return v3",
    );
    assert_rejected(&func, &[Unobserved("s0")], "endless loop");
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n store notrap v2, v0\n jump block1\n\
         block1:\n brif v3, block1, block2\n\
         block2:\n store v3, v0\n return v3",
    );
    assert_proven(&func, &[Unobserved("s0")]);
}

#[test]
fn endless_loop_and_a_slot() {
    let text = |escape: &str| {
        function(&format!(
            "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n v4 = stack_addr.i64 ss0\n\
             {escape}\n store v2, v4\n jump block1\n\
             block1:\n jump block1"
        ))
    };
    assert_proven(&text(""), &[Unobserved("s0")]);
    assert_rejected(&text("call fn0(v4)"), &[Unobserved("s0")], "endless loop");
}

#[test]
fn slot_dies_with_the_frame() {
    let func = block("v4 = stack_addr.i64 ss0\ncall fn0(v4)\nstore v2, v4");
    assert_proven(&func, &[Unobserved("s0")]);
    let func = block("v4 = stack_addr.i64 ss0\ncall fn0(v4)\nstore v2, v4\ncall fn0(v1)");
    assert_rejected(&func, &[Unobserved("s0")], "orders memory");
    let func = block("v4 = stack_addr.i64 ss0\ncall fn0(v4)\nstore v2, v4\ntrapz v3, user1");
    assert_rejected(&func, &[Unobserved("s0")], "observes");
    let func = block("v4 = stack_addr.i64 ss0\nstore v2, v4\ntrapz v3, user1");
    assert_proven(&func, &[Unobserved("s0")]);
}

#[test]
fn tail_call() {
    let text = |address: &str| {
        let text = function(&format!(
            "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n v4 = stack_addr.i64 ss0\n\
             store v2, {address}\n return v2"
        ));
        let mut func = text;
        let last = insts(&func).last().expect("a return");
        let values = func
            .dfg
            .block_params(func.layout.entry_block().expect("an entry"));
        let values = values.to_vec();
        let callee = func.dfg.ext_funcs.keys().nth(1).expect("a function");
        func.replace(last).return_call(callee, &values);
        func
    };
    assert_proven(&text("v4"), &[Unobserved("s0")]);
    assert_rejected(&text("v0"), &[Unobserved("s0")], "leaves the memory");
}

#[test]
fn next_iteration_reads_through_another_address() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n jump block1(v0)\n\
         block1(v4: i64):\n v5 = load.i32 notrap v4\n store notrap v3, v4+4\n v6 = iadd v4, v1\n\
         brif v5, block1(v6), block2\n\
         block2:\n store notrap v3, v4+4\n return v5",
    );
    assert_rejected(&func, &[Unobserved("s0")], "may read");
}

#[test]
fn next_iteration_overwrites_through_another_address() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n jump block1(v0)\n\
         block1(v4: i64):\n store notrap v3, v4\n v6 = iadd v4, v1\n store notrap v2, v4\n\
         jump block2\n\
         block2:\n brif v3, block1(v6), block3\n\
         block3:\n store notrap v2, v4\n return v3",
    );
    assert_rejected(&func, &[Unobserved("s1")], "leaves the memory");
    assert_proven(&func, &[Unobserved("s0")]);
}

#[test]
fn reader_is_gone_first() {
    let func = block("store notrap v2, v0\nv4 = load.i32 notrap v0\nstore v4, v1\nstore v3, v0");
    assert_rejected(&func, &[Unobserved("s0")], "may read");
    let func = block("store notrap v2, v0\nv4 = load.i32 notrap v0\nstore v3, v0");
    let (forward, dead) = (Takes("l0", "s0", &[]), Unobserved("s0"));
    assert_proven(&func, &[forward, dead]);
}

#[test]
fn overwrite_is_gone_first() {
    let func = block("store notrap v2, v0\nstore notrap v3, v0\nstore notrap v2, v0+8");
    assert_proven(&func, &[Unobserved("s0")]);
    let claims = [Unobserved("s0"), Unobserved("s1")];
    assert_rejected(&func, &claims, "leaves the memory");
}

// Structure.

fn forwarded() -> Function {
    block(
        "store notrap v2, v0\nstore notrap v3, v0+4\nistore8 notrap v3, v1\n\
         v4 = uload8.i64 notrap v1\nv5 = iadd v4, v0\nstore notrap v2, v5",
    )
}

const FORWARD: Claim = Takes(
    "l0",
    "s2",
    &[Step::Reduce(types::I8), Step::ZeroExtend(types::I64)],
);

#[test]
fn store_deleted_without_claim() {
    let func = forwarded();
    let store = access(&func, "s1");
    assert_tampering_found(
        &func,
        &[FORWARD],
        |func| {
            func.layout.remove_inst(store);
        },
        "no claim says so",
    );
}

#[test]
fn claim_without_rewrite() {
    let func = block("store v2, v0\nstore v3, v0");
    let certificate = certify(&func, &Unobserved("s0"));
    let message = check_both(&func, &func, &[certificate]).expect_err("rejected");
    assert!(message.contains("is not where it was"), "{message}");
}

#[test]
fn extra_instruction() {
    let func = forwarded();
    let before = access(&func, "s1");
    assert_tampering_found(
        &func,
        &[FORWARD],
        |func| {
            let mut cursor = FuncCursor::new(func).at_inst(before);
            cursor.ins().iconst(types::I32, 1);
        },
        "is not where it was",
    );
}

#[test]
fn moved_instruction() {
    let func = forwarded();
    let (first, third) = (access(&func, "s0"), access(&func, "s2"));
    assert_tampering_found(
        &func,
        &[FORWARD],
        |func| {
            func.layout.remove_inst(first);
            func.layout.insert_inst(first, third);
        },
        "is not where it was",
    );
}

#[test]
fn changed_operand() {
    let func = forwarded();
    let (store, last) = (access(&func, "s1"), access(&func, "s3"));
    for inst in [store, last] {
        assert_tampering_found(
            &func,
            &[FORWARD],
            |func| {
                let entry = func.layout.entry_block().expect("an entry");
                let other = func.dfg.block_params(entry)[1];
                func.dfg.inst_args_mut(inst)[1] = other;
            },
            "an operand or immediate",
        );
    }
}

#[test]
fn changed_offset() {
    let func = forwarded();
    let store = access(&func, "s1");
    assert_tampering_found(
        &func,
        &[FORWARD],
        |func| {
            if let InstructionData::Store { offset, .. } = &mut func.dfg.insts[store] {
                *offset = 8.into();
            }
        },
        "an operand or immediate",
    );
}

#[test]
fn changed_branch() {
    let func = function(
        "block0(v0: i64, v1: i64, v2: i32, v3: i32):\n brif v3, block1(v2), block1(v3)\n\
         block1(v4: i32):\n return v4",
    );
    assert_tampering_found(
        &func,
        &[],
        |func| {
            let last = insts(func).next().expect("a branch");
            let other = func.dfg.inst_args(last)[0];
            func.dfg.map_inst_values(last, |_| other);
        },
        "a branch",
    );
}

#[test]
fn changed_flags() {
    let func = block("store aligned v2, v0\nv4 = load.i32 region0 v1");
    let (store, load) = (access(&func, "s0"), access(&func, "l0"));
    let plain = MemFlagsData::new();
    let region = |index: u32| plain.with_alias_region(Some(AliasRegion::from_u32(index)));
    for (inst, flags) in [
        (store, plain.with_aligned().with_notrap()),
        (load, region(0).with_aligned()),
        (load, region(1)),
        (load, plain),
    ] {
        let tamper = |func: &mut Function| set_flags(func, inst, flags);
        assert_tampering_found(&func, &[], tamper, "a flag");
    }
    let mut weaker = func.clone();
    set_flags(&mut weaker, store, plain);
    assert_eq!(check_both(&func, &weaker, &[]), Ok(()));
}

#[test]
fn survivor_stays_aligned() {
    let func = block("store notrap aligned v2, v0\nv4 = load.i32 notrap v0");
    let store = access(&func, "s0");
    assert_tampering_found(
        &func,
        &[Takes("l0", "s0", &[])],
        |func| {
            let flags = MemFlagsData::new().with_notrap().with_aligned();
            set_flags(func, store, flags);
        },
        "stands for an access that is not",
    );
}

#[test]
fn other_conversion_than_claimed() {
    let func = forwarded();
    assert_tampering_found(
        &func,
        &[FORWARD],
        |func| {
            let extend = insts(func)
                .find(|&inst| func.dfg.insts[inst].opcode() == Opcode::Uextend)
                .expect("a conversion");
            if let InstructionData::Unary { opcode, .. } = &mut func.dfg.insts[extend] {
                *opcode = Opcode::Sextend;
            }
        },
        "not the claimed one",
    );
}

#[test]
fn changed_slot() {
    let func = forwarded();
    assert_tampering_found(
        &func,
        &[FORWARD],
        |func| {
            let slot = func.sized_stack_slots.keys().next().expect("a slot");
            func.sized_stack_slots[slot].size = 4;
        },
        "stack slots",
    );
}

#[test]
fn changed_stack_map() {
    let func = block("call fn0(v1), stack_map=[i64 @ ss0+0]");
    assert_tampering_found(
        &func,
        &[],
        |func| {
            let call = insts(func).next().expect("a call");
            let entry = cranelift_codegen::ir::UserStackMapEntry {
                ty: types::I64,
                slot: func.sized_stack_slots.keys().nth(1).expect("a slot"),
                offset: 0,
            };
            func.dfg.append_user_stack_map_entry(call, entry);
        },
        "the stack map",
    );
}

#[test]
fn claimed_twice() {
    let func = block("store v2, v0\nstore v3, v0");
    let certificate = certify(&func, &Unobserved("s0"));
    let mut optimized = func.clone();
    rewrite(&mut optimized, std::slice::from_ref(&certificate));
    let twice = [certificate.clone(), certificate];
    let message = check_both(&func, &optimized, &twice).expect_err("rejected");
    assert!(message.contains("not twice"), "{message}");
}
