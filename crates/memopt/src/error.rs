//! Why a function could not be optimized. Not rewriting is never an error.

use std::fmt;

/// The optimizer could not work on the function, which is left as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Addresses of the target are not 64 bits wide.
    UnsupportedTarget {
        /// The target's triple.
        triple: String,
    },
    /// A verifier rejected what a pass left ([`Options::verify`](crate::Options::verify)). A bug in
    /// this library.
    Verifier {
        /// The pass after which the verifier ran.
        pass: String,
        /// What the verifier said.
        message: String,
    },
    /// The checker could not prove a rewrite ([`Options::check`](crate::Options::check)). A bug in
    /// this library: of a pass, or of the checker.
    Unproven {
        /// What was claimed, and where the proof failed.
        message: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::UnsupportedTarget { triple } => {
                write!(
                    f,
                    "target {triple} is not supported: pointers must be 64 bits wide"
                )
            }
            Error::Unproven { message } => {
                write!(f, "internal error: unproven rewrite: {message}")
            }
            Error::Verifier { pass, message } => {
                write!(f, "internal error: verifier failed after {pass}: {message}")
            }
        }
    }
}

impl std::error::Error for Error {}
