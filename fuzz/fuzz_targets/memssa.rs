//! MemorySSA is well-formed, and the walker's answers are those of a search over all ways up.
#![no_main]

use clif_memopt_fuzz::{case, expect, setup};
use clif_memopt_fuzzgen::{Tally, check_clobbers, check_form};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let case = case(bytes);
    for function in &case.functions {
        expect(&case, check_form(function, setup()));
        expect(
            &case,
            check_clobbers(function, setup(), &mut Tally::default()),
        );
    }
});
