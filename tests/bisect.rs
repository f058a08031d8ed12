//! Plants a fault in the optimizer and looks for the rewrite at fault.

use clif_memopt_filetest::TestSource;
use clif_memopt_filetest::exec::{Bisection, bisect, invocations_of};
use cranelift_memopt::Options;
use cranelift_memopt::faults::{Fault, plant};

/// Of three rewrites the second is wrong once calls count for nothing.
const TEXT: &str = "\
test run
target x86_64

function %f(i64, i64) -> i64 system_v {
    sig0 = (i64) system_v
    fn0 = %host_touch sig0

block0(v0: i64, v1: i64):
    store v1, v0+8
    v2 = load.i64 v0+8
    v3 = load.i64 v0
    call fn0(v0)
    v4 = load.i64 v0
    v5 = load.i64 v0+8
    v6 = iadd v2, v3
    v7 = iadd v6, v4
    v8 = iadd v7, v5
    return v8
}
; mem: p0 = 16 bytes 01
; run: %f(p0, 5) == 13
";

#[test]
fn the_wrong_rewrite_is_named() {
    let source = TestSource::parse("t.clif", TEXT).unwrap();
    let (functions, isa) = (source.functions(), &source.targets[0].isa);
    let invocations = invocations_of(&source).unwrap();
    let search =
        |options: &Options| bisect(&functions, &invocations, options, isa, &|_, _| {}).unwrap();
    let plain = Options::default();
    assert!(matches!(search(&plain), Bisection::Same { rewrites: 1 }));
    plant(Some(Fault::CallIgnored));
    let checked = Options {
        check: true,
        ..Options::default()
    };
    let short = Options {
        fuel: Some(1),
        ..Options::default()
    };
    let found = [&plain, &checked, &short].map(search);
    plant(None);
    for found in &found[..2] {
        let Bisection::Different(bad) = found else {
            panic!("{found:?}");
        };
        assert_eq!(bad.fuel, 2, "{bad:?}");
        let rewrite = bad.rewrite.as_deref().unwrap();
        assert!(
            rewrite.starts_with("function %f: forward: remove inst4"),
            "{rewrite}"
        );
    }
    assert!(matches!(found[2], Bisection::Same { rewrites: 1 }));
}

#[test]
fn a_wrong_run_line_is_no_rewrite_s_fault() {
    let source = TestSource::parse("t.clif", &TEXT.replace("== 13", "== 14")).unwrap();
    let invocations = invocations_of(&source).unwrap();
    let isa = &source.targets[0].isa;
    let functions = source.functions();
    let found = bisect(
        &functions,
        &invocations,
        &Options::default(),
        isa,
        &|_, _| {},
    );
    let Ok(Bisection::Different(bad)) = found else {
        panic!("{found:?}");
    };
    assert_eq!((bad.fuel, bad.rewrite.is_none()), (0, true));
    assert_eq!(bad.difference.line, 21);
}
