//! Original and optimized functions do the same when run.
#![no_main]

use clif_memopt_fuzz::{case, expect, setup};
use clif_memopt_fuzzgen::{Tally, check_execution, optimize_all};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let case = case(bytes);
    let optimized = expect(&case, optimize_all(&case.functions, setup()));
    let optimized: Vec<_> = optimized.into_iter().map(|(func, _)| func).collect();
    expect(
        &case,
        check_execution(&case, &optimized, setup(), &mut Tally::default()),
    );
});
