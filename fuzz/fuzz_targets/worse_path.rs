//! No path has more memory operations than with Cranelift's own optimizer alone.
#![no_main]

use clif_memopt_fuzz::{case, expect, setup};
use clif_memopt_fuzzgen::{Tally, check_worse_paths, optimize_all};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let case = case(bytes);
    // Cranelift's optimizer has other ideas of accesses that are tagged in part.
    if case.mixed_tags {
        return;
    }
    let optimized = expect(&case, optimize_all(&case.functions, setup()));
    for (before, (after, _)) in case.functions.iter().zip(&optimized) {
        let mut tally = Tally::default();
        let checked = check_worse_paths(before, after, setup(), &mut tally);
        expect(&case, checked);
    }
});
