//! What the options name is left alone: functions by name, slots by key.

use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings;
use cranelift_memopt::{Optimizer, Options};

const TEXT: &str = "function %f(i32) -> i32 {
    ss0 = explicit_slot 4, align = 4, key = 77
block0(v0: i32):
    v1 = stack_addr.i64 ss0
    store notrap v0, v1
    v2 = load.i32 notrap v1
    return v2
}";

fn isa() -> OwnedTargetIsa {
    isa::lookup_by_name("x86_64")
        .expect("the target is built in")
        .finish(settings::Flags::new(settings::builder()))
        .expect("default settings are valid")
}

fn changed(options: Options) -> bool {
    let mut func: Function = cranelift_reader::parse_functions(TEXT)
        .expect("test CLIF parses")
        .remove(0);
    let options = Options {
        check: true,
        verify: true,
        ..options
    };
    let report = Optimizer::new(options).optimize(&mut func, &*isa());
    report.expect("it can be optimized").changed
}

#[test]
fn others_are_optimized() {
    let other = Options {
        untouched_functions: vec!["%g".to_string()],
        untouched_slot_keys: vec![78],
        ..Options::default()
    };
    assert!(changed(other));
}

#[test]
fn function_by_name() {
    assert!(!changed(Options {
        untouched_functions: vec!["%f".to_string()],
        ..Options::default()
    }));
}

#[test]
fn slot_by_key() {
    assert!(!changed(Options {
        untouched_slot_keys: vec![77],
        ..Options::default()
    }));
}
