//! The flags that say what the optimizer may do, common to all commands that run it.

use anyhow::Context;
use cranelift_codegen::ir::Function;
use cranelift_memopt::{Options, Pass, Preset, RegionName};

use crate::input::Input;

/// How a region's description begins in CLIF made by Wasmtime.
const WASMTIME_REGIONS: &[&str] = &["VMContext+0x", "EpochCounter+0x"];

/// What the optimizer may do.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Optimizer")]
pub(crate) struct Flags {
    /// Passes to run, comma-separated; they run in pipeline order. Default: the preset's
    #[arg(long, value_name = "PASS,...", value_delimiter = ',')]
    passes: Option<Vec<Pass>>,

    /// Set of options to start from: speed, minimal or wasmtime. Default: wasmtime for CLIF whose
    /// regions look like Wasmtime's, speed for all other
    #[arg(long)]
    preset: Option<Preset>,

    /// Region that changes from outside, by user id or description; repeatable
    #[arg(long, value_name = "ID_OR_DESCRIPTION")]
    outside: Vec<String>,

    /// Function to leave as it is, by name as CLIF prints it (%name, u0:7); repeatable
    #[arg(long, value_name = "NAME")]
    untouched: Vec<String>,

    /// Rewrites that may be done in all; `size` counts for each function
    #[arg(long, value_name = "N")]
    fuel: Option<u64>,
}

impl Flags {
    /// The options for a file.
    pub(crate) fn options(&self, input: &Input) -> Options {
        let mut options = Options::preset(self.preset(input));
        if let Some(passes) = &self.passes {
            options.passes.clone_from(passes);
        }
        options
            .outside_regions
            .extend(self.outside.iter().map(|text| region_name(text)));
        options
            .untouched_functions
            .extend(self.untouched.iter().cloned());
        options.fuel = self.fuel;
        options
    }

    /// The preset for a file.
    pub(crate) fn preset(&self, input: &Input) -> Preset {
        let from_wasmtime = || {
            input
                .functions
                .iter()
                .any(|parsed| is_from_wasmtime(&parsed.func))
        };
        match self.preset {
            Some(preset) => preset,
            None if from_wasmtime() => Preset::Wasmtime,
            None => Preset::Speed,
        }
    }
}

/// The target of a command that works for one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// Target: x86_64, aarch64 or a full triple. Default: the file's `target` line, else the host
    #[arg(long = "target", value_name = "TRIPLE")]
    pub(crate) triple: Option<String>,
}

fn region_name(text: &str) -> RegionName {
    match text.parse() {
        Ok(id) => RegionName::UserId(id),
        Err(_) => RegionName::Description(text.to_string()),
    }
}

fn is_from_wasmtime(func: &Function) -> bool {
    func.dfg.alias_regions.iter().any(|(_, region)| {
        WASMTIME_REGIONS
            .iter()
            .any(|start| region.description.starts_with(start))
    })
}

/// Runs the optimizer on a function of a file, with the place in any error.
pub(crate) fn optimize(
    optimizer: &mut cranelift_memopt::Optimizer,
    input: &Input,
    index: usize,
    isa: &dyn cranelift_codegen::isa::TargetIsa,
) -> anyhow::Result<(Function, cranelift_memopt::Report)> {
    let parsed = &input.functions[index];
    let mut func = parsed.func.clone();
    let report = crate::guard::guarded(|| Ok(optimizer.optimize(&mut func, isa)?))
        .with_context(|| input.place(parsed, None))?;
    if let Err(errors) = cranelift_codegen::verify_function(&func, isa) {
        let first = errors
            .0
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        return Err(anyhow::anyhow!(
            "internal error: the optimized function is not valid: {first}"
        ))
        .with_context(|| input.place(parsed, None));
    }
    Ok((func, report))
}
