//! `clif-memopt print`: the analyses as text.

use std::path::PathBuf;

use anyhow::Context;
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::Options;
use cranelift_memopt::print::{self, MemSsaStyle};

use crate::flags::{Flags, Target};
use crate::guard::guarded;
use crate::input::Input;
use crate::{Outcome, output};

/// Print MemorySSA, or another analysis, of every function of a file
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt print in.clif
  clif-memopt print in.clif --walker --classes
  clif-memopt print in.clif --alias
  clif-memopt print in.clif --dot - | dot -Tsvg > memory.svg")]
pub(crate) struct Args {
    /// CLIF file or filetest; - for standard input
    input: PathBuf,

    /// Add the clobber that the walker finds for each access
    #[arg(long)]
    walker: bool,

    /// Add the alias class of each access, and the previous access of that class
    #[arg(long)]
    classes: bool,

    /// Print what each instruction does to memory
    #[arg(long, conflicts_with_all = ["walker", "classes", "alias", "dot"])]
    effects: bool,

    /// Print how each two accesses alias
    #[arg(long, conflicts_with_all = ["walker", "classes", "dot"])]
    alias: bool,

    /// Write MemorySSA as a Graphviz graph for each function; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["walker", "classes"])]
    dot: Option<PathBuf>,

    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let input = Input::read(&args.input)?;
    let isa = input.isa(args.target.triple.as_deref())?;
    input.verify(&*isa)?;
    let options = args.flags.options(&input);
    let mut texts = Vec::new();
    for parsed in &input.functions {
        let text = guarded(|| args.text(&parsed.func, &*isa, &options))
            .with_context(|| input.place(parsed, None))?;
        texts.push(if text.ends_with('\n') {
            text
        } else {
            text + "\n"
        });
    }
    let file = args.dot.clone().unwrap_or_else(|| PathBuf::from("-"));
    output::write(&file, texts.join("\n").as_bytes())?;
    Ok(Outcome::Success)
}

impl Args {
    fn text(
        &self,
        func: &Function,
        isa: &dyn TargetIsa,
        options: &Options,
    ) -> anyhow::Result<String> {
        let style = MemSsaStyle {
            walker: self.walker,
            classes: self.classes,
        };
        let text = if self.effects {
            print::effects(func, isa, options)
        } else if self.alias {
            print::alias(func, isa, options)
        } else if self.dot.is_some() {
            print::memssa_dot(func, isa, options)
        } else {
            print::memssa(func, isa, options, style)
        };
        Ok(text?)
    }
}
