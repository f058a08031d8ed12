//! A case: functions that call one another, the runs they are given, and the memory these start
//! from. It is printed as a filetest.

use std::fmt;

use anyhow::{Context as _, Result};
use clif_memopt_filetest::TestSource;
use clif_memopt_filetest::exec::{Buffer, Invocation, invocations_of};
use cranelift_codegen::ir::{Endianness, Function};
use cranelift_codegen::isa::OwnedTargetIsa;

use crate::oracle::Setup;
use crate::shape::Shape;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Case {
    /// The functions. Function `i` calls itself and those after it only.
    pub functions: Vec<Function>,
    /// What is run; all start from the same buffers.
    pub invocations: Vec<Invocation>,
    /// What the functions contain.
    pub shape: Shape,
    /// Whether the same bytes are accessed with and without their region. Cranelift's own optimizer
    /// takes a load without a region to be independent of stores with one, so that such a case is run
    /// without it.
    pub mixed_tags: bool,
}

impl Case {
    /// Reads what [`Case`] prints.
    ///
    /// # Errors
    /// The text is no filetest.
    pub fn parse(text: &str) -> Result<Case> {
        Case::read("case.clif", text).context("not a filetest")
    }

    /// Reads a filetest: its functions and its `; run:` lines.
    ///
    /// # Errors
    /// A mistake in the text, as `name:line: message`.
    pub fn read(name: &str, text: &str) -> Result<Case> {
        let source = TestSource::parse(name, text)?;
        Ok(Case {
            functions: source.functions(),
            invocations: invocations_of(&source)?,
            shape: Shape::default(),
            mixed_tags: text.contains("\nset opt_level=none"),
        })
    }

    /// The target as the case can be run for it.
    pub fn isa<'a>(&self, setup: &'a Setup) -> &'a OwnedTargetIsa {
        if self.mixed_tags {
            &setup.plain_isa
        } else {
            &setup.isa
        }
    }

    /// Whether targets of today can run it: they compile no big-endian accesses.
    pub fn is_runnable(&self) -> bool {
        !self.functions.iter().any(has_big_endian)
    }

    /// The case as a filetest for a target.
    pub fn filetest<'a>(&'a self, target: &'a str) -> impl fmt::Display + 'a {
        Filetest { case: self, target }
    }

    /// How many instructions all functions have.
    pub fn num_insts(&self) -> usize {
        let blocks = |function: &Function| {
            let layout = &function.layout;
            let lengths = layout
                .blocks()
                .map(|block| layout.block_insts(block).count());
            lengths.sum::<usize>()
        };
        self.functions.iter().map(blocks).sum()
    }
}

/// Whether a function has accesses that the hosts cannot compile.
fn has_big_endian(function: &Function) -> bool {
    let insts = function
        .layout
        .blocks()
        .flat_map(|block| function.layout.block_insts(block));
    insts
        .filter_map(|inst| function.dfg.insts[inst].memflags_data(&function.dfg))
        .any(|flags| flags.explicit_endianness() == Some(Endianness::Big))
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.filetest("x86_64").fmt(f)
    }
}

struct Filetest<'a> {
    case: &'a Case,
    target: &'a str,
}

impl fmt::Display for Filetest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Filetest { case, target } = self;
        let test = if case.is_runnable() {
            "run"
        } else {
            "optimize"
        };
        let level = if case.mixed_tags {
            "set opt_level=none\n"
        } else {
            ""
        };
        writeln!(f, "test {test}\n{level}target {target}\n")?;
        for buffer in case.invocations.first().map_or(&[][..], |run| &run.buffers) {
            writeln!(f, "; mem: {}", BufferText(buffer))?;
        }
        for (index, function) in case.functions.iter().enumerate() {
            write!(f, "\n{function}")?;
            for run in case.invocations.iter().filter(|run| run.function == index) {
                writeln!(f, "; run: {}", run.text)?;
            }
        }
        Ok(())
    }
}

/// A buffer as `; mem:` has it.
struct BufferText<'a>(&'a Buffer);

impl fmt::Display for BufferText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Buffer {
            name,
            bytes,
            pointers,
        } = self.0;
        write!(f, "{name} = {} bytes", bytes.len())?;
        let used = bytes
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |at| at + 1);
        if pointers.is_empty() {
            for byte in &bytes[..used] {
                write!(f, " {byte:02x}")?;
            }
            return Ok(());
        }
        for (offset, pointer) in pointers {
            write!(f, " {offset}: {pointer}")?;
        }
        Ok(())
    }
}
