//! A second run of the optimizer leaves no more memory operations than the first.
#![no_main]

use clif_memopt_fuzz::{case, expect, setup};
use clif_memopt_fuzzgen::{Tally, check_second_run, optimize_all};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let case = case(bytes);
    for (function, _) in expect(&case, optimize_all(&case.functions, setup())) {
        expect(
            &case,
            check_second_run(&function, setup(), &mut Tally::default()),
        );
    }
});
