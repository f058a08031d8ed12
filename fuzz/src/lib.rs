//! What the fuzz targets have in common.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

use clif_memopt_fuzzgen::{Case, Config, Finding, Setup, case_of_bytes};

static SETUP: LazyLock<Setup> = LazyLock::new(|| match Setup::new(std::env::consts::ARCH) {
    Ok(setup) => setup,
    Err(error) => panic!("no setup for this machine: {error:#}"),
});

/// The setup for the host, with all verifiers and the checker on.
pub fn setup() -> &'static Setup {
    &SETUP
}

/// The case of a fuzzer's bytes.
pub fn case(bytes: &[u8]) -> Case {
    case_of_bytes(bytes, &Config::default())
}

/// The result of an oracle for `case`.
///
/// # Panics
/// With the case and the finding, if there is one.
pub fn expect<T>(case: &Case, result: Result<T, Finding>) -> T {
    result.unwrap_or_else(|finding| panic!("{finding}\n{case}"))
}
