//! Text forms of the analyses, for people and for tests.

use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;

use crate::{Error, Options};

/// What [`memssa`] adds to the plain form.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemSsaStyle {
    /// Add to each access the clobber that the walker finds.
    pub walker: bool,
    /// Add to each access its alias class and its previous access of that class.
    pub classes: bool,
}

/// The function with its MemorySSA as comments, in LLVM's form. Parses as CLIF.
///
/// # Errors
/// [`Error::UnsupportedTarget`] if the target's addresses are not 64 bits wide.
pub fn memssa(_func: &Function, _isa: &dyn TargetIsa, _options: &Options, _style: MemSsaStyle) -> Result<String, Error> {
    todo!()
}

/// The function's MemorySSA as a Graphviz graph.
///
/// # Errors
/// As [`memssa`].
pub fn memssa_dot(_func: &Function, _isa: &dyn TargetIsa, _options: &Options) -> Result<String, Error> {
    todo!()
}

/// The function with the effects of each instruction that has any as a comment.
///
/// # Errors
/// As [`memssa`].
pub fn effects(_func: &Function, _isa: &dyn TargetIsa, _options: &Options) -> Result<String, Error> {
    todo!()
}

/// One line for each pair of accesses: how they alias.
///
/// # Errors
/// As [`memssa`].
pub fn alias(_func: &Function, _isa: &dyn TargetIsa, _options: &Options) -> Result<String, Error> {
    todo!()
}
