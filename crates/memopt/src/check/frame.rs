use cranelift_codegen::ir::Function;
pub(crate) fn check_frame(_: &Function, _: &Function, _: &[bool]) -> Result<(), String> { Ok(()) }
