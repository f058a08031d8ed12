//! The optimizer's options as a `test` line gives them, and the optimizer applied to a whole file.

use anyhow::{Context as _, Result, bail};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::{Optimizer, Options, Pass, Preset, RegionName, Report};

use crate::source::{CommandOption, InFunction};

/// The optimizer options that `options` of a `test` line ask for: `preset=NAME`, `passes=A,B`,
/// `outside=USERID` (any number) and `fuel=N`. Verifiers and remarks are on.
///
/// # Errors
/// An option that is none of these, or a value that is not right for it.
pub fn optimizer_options(options: &[CommandOption]) -> Result<Options> {
    let mut result = Options::preset(preset_of(options)?);
    result.verify = true;
    result.check = true;
    result.remarks = true;
    for option in options {
        match option {
            CommandOption::Value(name, value) => apply(&mut result, name, value)?,
            CommandOption::Flag(name) => bail!("unknown option '{name}'"),
        }
    }
    Ok(result)
}

fn preset_of(options: &[CommandOption]) -> Result<Preset> {
    let mut preset = Preset::Speed;
    for option in options {
        if let CommandOption::Value(name, value) = option
            && name == "preset"
        {
            preset = value.parse()?;
        }
    }
    Ok(preset)
}

fn apply(options: &mut Options, name: &str, value: &str) -> Result<()> {
    match name {
        "preset" => {}
        "passes" => options.passes = parse_passes(value)?,
        "outside" => options.outside_regions.push(RegionName::UserId(
            value
                .parse()
                .with_context(|| format!("'outside={value}': expected a region's user id"))?,
        )),
        "fuel" => {
            options.fuel = Some(
                value
                    .parse()
                    .with_context(|| format!("'fuel={value}': expected a number"))?,
            );
        }
        _ => bail!("unknown option '{name}={value}'"),
    }
    Ok(())
}

fn parse_passes(names: &str) -> Result<Vec<Pass>> {
    names
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| Ok(name.parse()?))
        .collect()
}

/// Optimizes the functions of a file, in order, with one optimizer.
///
/// # Errors
/// As [`Optimizer::optimize`], with the function's name.
pub fn optimize_functions(
    functions: &[Function],
    options: &Options,
    isa: &dyn TargetIsa,
) -> Result<Vec<(Function, Report)>> {
    let mut optimizer = Optimizer::new(options.clone());
    functions
        .iter()
        .enumerate()
        .map(|(index, function)| {
            let mut optimized = function.clone();
            let report = optimizer
                .optimize(&mut optimized, isa)
                .with_context(|| InFunction::new(index, function))?;
            optimized.dfg.resolve_all_aliases();
            Ok((optimized, report))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str, value: &str) -> CommandOption {
        CommandOption::Value(name.to_string(), value.to_string())
    }

    #[test]
    fn options_apply_over_the_preset() {
        let options = optimizer_options(&[
            value("passes", "dse"),
            value("outside", "7"),
            value("preset", "wasmtime"),
        ])
        .unwrap();
        assert_eq!(options.passes, [Pass::Dse]);
        assert_eq!(options.outside_regions.len(), 2);
        assert!(options.verify && options.remarks);
    }

    #[test]
    fn unknown_options_are_errors() {
        let error = |option| optimizer_options(&[option]).unwrap_err().to_string();
        assert_eq!(error(value("color", "red")), "unknown option 'color=red'");
        assert!(error(value("passes", "magic")).contains("magic"));
        assert!(error(CommandOption::Flag("fast".to_string())).contains("'fast'"));
    }
}
