//! Text forms of the analyses, for people and for tests.

use std::fmt::{self, Write};

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Function, Inst, InstructionData, Value};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::write::{FuncWriter, PlainWriter, decorate_function};

use crate::alias::{Alias, Instance, alias as relate};
use crate::analysis::{MemoryAnalysis, check_target};
use crate::effects::Effects;
use crate::view::Location;
use crate::{Error, Options, memssa as form};

pub use crate::memssa::Style as MemSsaStyle;

/// The state of the analyses before any pass.
fn analyzed(
    func: &Function,
    isa: &dyn TargetIsa,
    options: &Options,
) -> Result<MemoryAnalysis, Error> {
    let mut analysis = MemoryAnalysis::default();
    analysis.compute(func, isa, options)?;
    Ok(analysis)
}

/// Writing to a string does not fail.
fn to_text(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    write(&mut text).expect("a string takes any text");
    text
}

/// The function with its MemorySSA as comments, in LLVM's form. Parses as CLIF. Uses are printed
/// with their optimized access. The form and every clobber in it are verified.
///
/// # Errors
///
/// [`Error::UnsupportedTarget`] if the target's addresses are not 64 bits wide; [`Error::Verifier`]
/// for a bug of this library.
pub fn memssa(
    func: &Function,
    isa: &dyn TargetIsa,
    options: &Options,
    style: MemSsaStyle,
) -> Result<String, Error> {
    let mut analysis = analyzed(func, isa, options)?;
    let MemoryAnalysis {
        flow,
        view,
        ssa,
        walker,
    } = &mut analysis;
    let text = to_text(|w| form::write_function(w, func, flow, view, ssa, walker, style));
    analysis.verify(func).map_err(|error| Error::Verifier {
        pass: "memssa".to_string(),
        message: error.to_string(),
    })?;
    Ok(text)
}

/// The function's MemorySSA as a Graphviz graph.
///
/// # Errors
///
/// [`Error::UnsupportedTarget`] if the target's addresses are not 64 bits wide.
pub fn memssa_dot(
    func: &Function,
    isa: &dyn TargetIsa,
    options: &Options,
) -> Result<String, Error> {
    let analysis = analyzed(func, isa, options)?;
    let MemoryAnalysis {
        flow, view, ssa, ..
    } = &analysis;
    Ok(to_text(|w| form::write_dot(w, func, flow, view, ssa)))
}

/// Cranelift's own text, but for what it leaves out.
pub(crate) struct ClifWriter;

impl FuncWriter for ClifWriter {
    fn write_block_header(
        &mut self,
        w: &mut dyn Write,
        func: &Function,
        block: Block,
        indent: usize,
    ) -> fmt::Result {
        PlainWriter.write_block_header(w, func, block, indent)
    }

    fn write_instruction(
        &mut self,
        w: &mut dyn Write,
        func: &Function,
        aliases: &SecondaryMap<Value, Vec<Value>>,
        inst: Inst,
        indent: usize,
    ) -> fmt::Result {
        let flags = match func.dfg.insts[inst] {
            InstructionData::AtomicRmw { flags, .. } | InstructionData::AtomicCas { flags, .. } => {
                func.dfg.mem_flags[flags].to_string()
            }
            _ => String::new(),
        };
        if flags.is_empty() {
            return PlainWriter.write_instruction(w, func, aliases, inst, indent);
        }
        let line = to_text(|w| PlainWriter.write_instruction(w, func, aliases, inst, indent));
        // The flags stand between the opcode with its type and the operands.
        let opcode = func.dfg.insts[inst].opcode().to_string();
        let end = line.find(&opcode).and_then(|start| {
            let operands = line[start..].find(' ')?;
            Some(start + operands)
        });
        match end {
            Some(end) => write!(w, "{}{flags}{}", &line[..end], &line[end..]),
            None => w.write_str(&line),
        }
    }
}

/// The function as CLIF that parses back to the same function. Cranelift's own text leaves out the
/// memory flags of `atomic_rmw` and `atomic_cas`, byte order and trap code among them.
pub fn clif(func: &Function) -> String {
    to_text(|w| decorate_function(&mut ClifWriter, w, func))
}

struct EffectsWriter;

impl FuncWriter for EffectsWriter {
    fn write_block_header(
        &mut self,
        w: &mut dyn Write,
        func: &Function,
        block: Block,
        indent: usize,
    ) -> fmt::Result {
        PlainWriter.write_block_header(w, func, block, indent)
    }

    fn write_instruction(
        &mut self,
        w: &mut dyn Write,
        func: &Function,
        aliases: &SecondaryMap<Value, Vec<Value>>,
        inst: Inst,
        indent: usize,
    ) -> fmt::Result {
        let effects = Effects::of(func, inst);
        if effects.any() {
            writeln!(w, "{:indent$}; {effects}", "")?;
        }
        ClifWriter.write_instruction(w, func, aliases, inst, indent)
    }
}

/// The function with the effects of each instruction that has any as a comment. Parses as CLIF.
///
/// # Errors
///
/// [`Error::UnsupportedTarget`] if the target's addresses are not 64 bits wide.
pub fn effects(func: &Function, isa: &dyn TargetIsa, _options: &Options) -> Result<String, Error> {
    check_target(isa)?;
    Ok(to_text(|w| decorate_function(&mut EffectsWriter, w, func)))
}

/// How each two accesses of the function relate, a line a pair, in program order, within one
/// iteration of all loops; before that a line for each access.
///
/// # Errors
///
/// [`Error::UnsupportedTarget`] if the target's addresses are not 64 bits wide.
pub fn alias(func: &Function, isa: &dyn TargetIsa, options: &Options) -> Result<String, Error> {
    let MemoryAnalysis { flow, mut view, .. } = analyzed(func, isa, options)?;
    let mut locations: Vec<Location> = Vec::new();
    let mut text = format!("function {}\n", func.name);
    for entry in view.entries() {
        let data = view.entry(entry);
        if data.bytes.is_none() || !flow.is_reachable(data.block) {
            continue;
        }
        let class = view.classes.kind(data.class);
        let inst = func.dfg.display_inst(data.inst);
        let number = locations.len();
        text.push_str(&to_text(|w| {
            writeln!(w, "a{number}: {inst} ; class {class}")
        }));
        locations.push(view.location(func, &flow, entry));
    }
    for (j, b) in locations.iter().enumerate() {
        for (i, a) in locations[..j].iter().enumerate() {
            let relation = match relate(func, &view.slots, a, b, Instance::Same) {
                Alias::No => "no".to_string(),
                Alias::May => "may".to_string(),
                Alias::Must => "must".to_string(),
                Alias::Partial { offset } => format!("partial({offset})"),
            };
            text.push_str(&to_text(|w| writeln!(w, "a{i}, a{j}: {relation}")));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_atomics_are_printed() {
        let text = "function %f(i64, i32) -> i32, i32 system_v {\n    region0 = 7 \"r\"\n\n\
                    block0(v0: i64, v1: i32):\n    \
                    v2 = atomic_rmw.i32 notrap big region0 add v0, v1\n    \
                    v3 = atomic_cas.i32 user1 little v0, v1, v2\n    return v2, v3\n}\n";
        let functions = cranelift_reader::parse_functions(text).expect("test CLIF parses");
        let printed = clif(&functions[0]);
        let again = cranelift_reader::parse_functions(&printed).expect("printed CLIF parses");
        assert!(printed.contains("notrap big region0 add"), "{printed}");
        assert_eq!(clif(&again[0]), printed);
        assert_eq!(functions[0].dfg.mem_flags, again[0].dfg.mem_flags);
    }
}
