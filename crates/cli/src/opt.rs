//! `clif-memopt opt`: the functions of a file, optimized.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::print::clif;
use cranelift_memopt::{Optimizer, Report, Stats};

use crate::flags::{self, Flags, Target};
use crate::input::Input;
use crate::{Outcome, output};

/// Optimize the memory operations of every function of a file
///
/// Prints CLIF that parses again; the result is read back and verified before it is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt opt in.clif
  clif-memopt opt in.clif -o out.clif --stats --remarks
  clif-memopt opt in.clif --passes forward --target aarch64
  cat in.clif | clif-memopt opt - --check | less")]
pub(crate) struct Args {
    /// CLIF file or filetest; - for standard input
    input: PathBuf,

    /// Where the CLIF goes; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    #[command(flatten)]
    target: Target,

    /// Print the counters of all passes to standard error
    #[arg(long)]
    stats: bool,

    /// Print the counters as JSON (with --stats)
    #[arg(long, requires = "stats")]
    json: bool,

    /// Print what was done, and what was not and why, to standard error
    #[arg(long)]
    remarks: bool,

    /// Prove each rewrite by the independent checker, and run Cranelift's verifier and the MemorySSA
    /// verifier after every pass. Slow; fails at a rewrite without a proof
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Outcome> {
    let input = Input::read(&args.input)?;
    let isa = input.isa(args.target.triple.as_deref())?;
    input.verify(&*isa)?;
    let mut options = args.flags.options(&input);
    options.remarks = args.remarks;
    options.verify = args.check;
    options.check = args.check;
    let mut optimizer = Optimizer::new(options);
    let mut text = String::new();
    let mut stats: Stats = Default::default();
    let mut remarks = Vec::new();
    for (index, parsed) in input.functions.iter().enumerate() {
        let (mut func, report) = flags::optimize(&mut optimizer, &input, index, &*isa)?;
        func.dfg.resolve_all_aliases();
        let gap = if index == 0 { "" } else { "\n" };
        write!(text, "{gap}{}", clif(&func))?;
        let Report {
            stats: more,
            remarks: said,
            ..
        } = report;
        stats.add(&more);
        remarks.extend(
            said.iter()
                .map(|remark| format!("{}: {remark}", parsed.func.name)),
        );
    }
    read_back(&text, &*isa)?;
    output::write(&args.output, text.as_bytes())?;
    remarks.iter().for_each(|line| output::note(line));
    if args.stats {
        output::note(&stats_text(&stats, args.json));
    }
    Ok(Outcome::Success)
}

/// Checks that what is about to be written parses and is valid.
fn read_back(text: &str, isa: &dyn TargetIsa) -> anyhow::Result<()> {
    Input::parse("<output>".to_string(), text)
        .and_then(|output| output.verify(isa))
        .context("internal error: the output cannot be read back")
}

fn stats_text(stats: &Stats, json: bool) -> String {
    if json {
        let counters: serde_json::Map<_, _> = stats
            .iter()
            .map(|(name, value)| (name.to_string(), value.into()))
            .collect();
        return serde_json::Value::Object(counters).to_string();
    }
    let mut table = comfy_table::Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_header(["counter", "value"]);
    for (name, value) in stats.iter() {
        table.add_row([name.to_string(), value.to_string()]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index == 1 {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    table.trim_fmt()
}
