//! MemorySSA as comments in CLIF, in LLVM's form, and as a Graphviz graph.

use std::fmt::{self, Write};

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Function, Inst, Value};
use cranelift_codegen::write::{FuncWriter, PlainWriter, decorate_function};

use super::walk::{WalkContext, Walker};
use super::{AccessKind, MemoryAccess, MemorySsa};
use crate::flow::Flow;
use crate::print::ClifWriter;
use crate::view::{Entry, View};

/// What is added to the plain form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The clobber of each access.
    pub walker: bool,
    /// The class of each access, and its previous access of that class.
    pub classes: bool,
}

struct Name<'a>(&'a MemorySsa, MemoryAccess);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.number(self.1) {
            Some(0) => f.write_str("liveOnEntry"),
            Some(number) => write!(f, "{number}"),
            None => f.write_str("MemoryUse"),
        }
    }
}

/// The clobber of each entry, asked before anything is written.
struct Clobbers(SecondaryMap<Entry, Option<MemoryAccess>>);

impl Clobbers {
    fn compute(cx: &mut WalkContext<'_>, walker: &mut Walker) -> Clobbers {
        let mut clobbers = SecondaryMap::new();
        for entry in cx.view.entries() {
            clobbers[entry] = walker.clobber_of(cx, entry).map(|clobber| clobber.access);
        }
        Clobbers(clobbers)
    }
}

struct Writer<'a> {
    flow: &'a Flow,
    view: &'a View,
    ssa: &'a MemorySsa,
    clobbers: Clobbers,
    style: Style,
}

impl Writer<'_> {
    fn write_phi(&self, w: &mut dyn Write, phi: MemoryAccess, block: Block) -> fmt::Result {
        write!(w, "{} = MemoryPhi(", Name(self.ssa, phi))?;
        let mut preds: Vec<(usize, Block)> =
            self.flow.preds(block).iter().copied().enumerate().collect();
        preds.sort_by_key(|&(_, pred)| pred);
        let mut separator = "";
        for (index, pred) in preds {
            let operand = Name(self.ssa, self.ssa.operand(phi, index));
            write!(w, "{separator}{pred}:{operand}")?;
            separator = ", ";
        }
        write!(w, ")")
    }

    fn write_access(&self, w: &mut dyn Write, entry: Entry, access: MemoryAccess) -> fmt::Result {
        let defining = Name(self.ssa, self.ssa.defining(access));
        let clobber = self.clobbers.0[entry];
        if let AccessKind::Def(_) = self.ssa.kind(access) {
            write!(w, "{} = MemoryDef({defining})", Name(self.ssa, access))?;
        } else {
            // As LLVM does, a use is printed with its optimized access.
            let optimized = Name(self.ssa, clobber.unwrap_or(self.ssa.defining(access)));
            write!(w, "MemoryUse({optimized})")?;
        }
        if self.style.classes && self.view.entry(entry).bytes.is_some() {
            let class = self.view.classes.kind(self.view.entry(entry).class);
            let above = Name(self.ssa, self.ssa.defining_in_class(access));
            write!(w, " class {class} after {above}")?;
        }
        if let (true, Some(clobber)) = (self.style.walker, clobber) {
            write!(w, " - clobbered by ")?;
            self.write_clobber(w, clobber)?;
        }
        Ok(())
    }

    fn write_clobber(&self, w: &mut dyn Write, clobber: MemoryAccess) -> fmt::Result {
        let name = Name(self.ssa, clobber);
        match self.ssa.kind(clobber) {
            AccessKind::Def(_) => {
                let defining = Name(self.ssa, self.ssa.defining(clobber));
                write!(w, "{name} = MemoryDef({defining})")
            }
            AccessKind::Phi(block) => self.write_phi(w, clobber, block),
            AccessKind::LiveOnEntry | AccessKind::Use(_) => write!(w, "{name}"),
        }
    }
}

impl FuncWriter for Writer<'_> {
    fn write_block_header(
        &mut self,
        w: &mut dyn Write,
        func: &Function,
        block: Block,
        indent: usize,
    ) -> fmt::Result {
        PlainWriter.write_block_header(w, func, block, indent)?;
        if let Some(phi) = self.ssa.phi_of(block) {
            write!(w, "{:indent$}; ", "")?;
            self.write_phi(w, phi, block)?;
            writeln!(w)?;
        }
        Ok(())
    }

    fn write_instruction(
        &mut self,
        w: &mut dyn Write,
        func: &Function,
        aliases: &SecondaryMap<Value, Vec<Value>>,
        inst: Inst,
        indent: usize,
    ) -> fmt::Result {
        if let Some(entry) = self.view.entry_of(inst)
            && let Some(access) = self.ssa.access_of(entry)
        {
            write!(w, "{:indent$}; ", "")?;
            self.write_access(w, entry, access)?;
            writeln!(w)?;
        }
        ClifWriter.write_instruction(w, func, aliases, inst, indent)
    }
}

/// Writes the function with its memory accesses as comments, which parses as CLIF.
///
/// # Errors
/// Those of `w`.
pub fn write_function(
    w: &mut dyn Write,
    func: &Function,
    flow: &Flow,
    view: &mut View,
    ssa: &MemorySsa,
    walker: &mut Walker,
    style: Style,
) -> fmt::Result {
    let mut cx = WalkContext {
        func,
        flow,
        view: &mut *view,
        ssa,
    };
    let clobbers = Clobbers::compute(&mut cx, walker);
    let mut writer = Writer {
        flow,
        view,
        ssa,
        clobbers,
        style,
    };
    decorate_function(&mut writer, w, func)
}

/// Writes the memory accesses as a Graphviz graph: a node for each, an edge to the defining access
/// (solid) and to the operands of phis (labelled with the predecessor).
///
/// # Errors
/// Those of `w`.
pub fn write_dot(
    w: &mut dyn Write,
    func: &Function,
    flow: &Flow,
    view: &View,
    ssa: &MemorySsa,
) -> fmt::Result {
    writeln!(w, "digraph memssa {{")?;
    writeln!(w, "  node [shape=box, fontname=monospace];")?;
    writeln!(w, "  access0 [label=\"liveOnEntry\"];")?;
    for &block in flow.rpo() {
        if let Some(phi) = ssa.phi_of(block) {
            let name = Name(ssa, phi);
            writeln!(w, "  {phi} [label=\"{block}: {name} = MemoryPhi\"];")?;
            for (index, pred) in flow.preds(block).iter().enumerate() {
                let operand = ssa.operand(phi, index);
                writeln!(w, "  {phi} -> {operand} [label=\"{pred}\"];")?;
            }
        }
        for entry in view.block_entries(block) {
            let Some(access) = ssa.access_of(entry) else {
                continue;
            };
            let inst = func.dfg.display_inst(view.entry(entry).inst).to_string();
            let inst = inst.replace('\\', "\\\\").replace('"', "\\\"");
            let kind = match ssa.number(access) {
                Some(number) => format!("{number} = MemoryDef"),
                None => "MemoryUse".to_string(),
            };
            writeln!(w, "  {access} [label=\"{block}: {kind}\\n{inst}\"];")?;
            writeln!(w, "  {access} -> {};", ssa.defining(access))?;
        }
    }
    writeln!(w, "}}")
}
