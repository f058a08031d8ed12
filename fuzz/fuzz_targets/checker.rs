//! The optimizer succeeds: its verifiers are content, and the checker proves every rewrite.
#![no_main]

use clif_memopt_fuzz::{case, expect, setup};
use clif_memopt_fuzzgen::optimize_all;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let case = case(bytes);
    expect(&case, optimize_all(&case.functions, setup()));
});
