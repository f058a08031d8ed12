//! A function's table of memory flags is bounded. A rewrite that needs new flags when it is full is
//! not done: condition L9 of forward. No filetest, which would need 65,535 different flags in text.

use cranelift_codegen::ir::{AliasRegion, Function, MemFlagsData};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings;
use cranelift_memopt::{Optimizer, Options, Report};

/// The source is `aligned`, the load is not: what stays needs flags that no access has yet.
const WEAKENING: &str = "function %f(i64, i32) -> i32 {
block0(v0: i64, v1: i32):
    store notrap aligned v1, v0
    v2 = load.i32 user1 v0
    return v2
}";

/// As `WEAKENING`, for a store of what is there already. The trap observes the first one.
const STORED_AGAIN: &str = "function %f(i64, i32) {
block0(v0: i64, v1: i32):
    store notrap aligned v1, v0
    trapz v1, user2
    store user1 v1, v0
    return
}";

fn isa() -> OwnedTargetIsa {
    let flags = settings::Flags::new(settings::builder());
    let builder = isa::lookup_by_name("x86_64").expect("x86_64 is supported");
    builder.finish(flags).expect("the default flags are right")
}

fn parse(text: &str) -> Function {
    let mut functions = cranelift_reader::parse_functions(text).expect("test CLIF parses");
    functions.remove(0)
}

/// Fills the table with flags that no instruction uses.
fn fill_flags(func: &mut Function) {
    for number in 0.. {
        let region = Some(AliasRegion::from_u32(number));
        let flags = MemFlagsData::new().with_alias_region(region);
        if func.dfg.mem_flags.insert(flags).is_err() {
            return;
        }
    }
}

fn optimize(func: &mut Function) -> Report {
    let mut optimizer = Optimizer::new(Options::default());
    optimizer.optimize(func, &*isa()).expect("it is optimized")
}

#[test]
fn weaker_flags_are_added_while_there_is_room() {
    let report = optimize(&mut parse(WEAKENING));
    assert_eq!(report.stats.forward_from_store, 1);
    let report = optimize(&mut parse(STORED_AGAIN));
    assert_eq!(report.stats.dse_already_there, 1);
}

#[test]
fn full_means_no_rewrite() {
    for text in [WEAKENING, STORED_AGAIN] {
        let mut func = parse(text);
        fill_flags(&mut func);
        let before = func.display().to_string();
        let report = optimize(&mut func);
        assert_eq!(func.display().to_string(), before);
        assert!(!report.changed);
    }
}

#[test]
fn forward_counts_it() {
    let mut func = parse(WEAKENING);
    fill_flags(&mut func);
    assert_eq!(optimize(&mut func).stats.forward_kept_flags, 1);
}
