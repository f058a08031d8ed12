//! What the `test` lines of a file do, one file each.

mod alias;
mod effects;
mod memssa;
mod optimize;
mod run;
mod size;

use anyhow::{Result, bail};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::{Options, Report};

use crate::options::optimizer_options;
use crate::source::{Command, CommandOption};

pub(crate) use run::{Ran, run_lines};

/// The names of the commands, for people.
const KNOWN: &str = "memssa, effects, alias, optimize, run, size";

/// What a subtest prints for a function.
pub(crate) struct Printed {
    pub(crate) text: String,
    /// What the optimizer reported, if it ran.
    pub(crate) report: Option<Report>,
}

impl From<String> for Printed {
    fn from(text: String) -> Printed {
        Printed { text, report: None }
    }
}

/// A subtest that prints a text for each function of a file.
pub(crate) trait PrintSubtest {
    /// Prints each of `functions`.
    fn print(&self, functions: &[Function], isa: &dyn TargetIsa) -> Result<Vec<Printed>>;

    /// Whether running it checks something even if the file has no expected text.
    fn checks_itself(&self) -> bool {
        false
    }
}

/// A `test` line, understood.
pub(crate) enum Subtest {
    /// Prints a text that is compared with the file's.
    Print {
        subtest: Box<dyn PrintSubtest>,
        precise: bool,
    },
    /// Executes the file's run lines.
    Run(Options),
}

/// The subtest that `command` asks for.
pub(crate) fn subtest_of(command: &Command) -> Result<Subtest> {
    let (flags, values) = split_options(&command.options);
    let precise = flags.contains(&"precise-output");
    let flags: Vec<&str> = flags
        .into_iter()
        .filter(|flag| *flag != "precise-output")
        .collect();
    let options = optimizer_options(&values)?;
    let subtest: Box<dyn PrintSubtest> = match command.name.as_str() {
        "memssa" => Box::new(memssa::MemSsa::new(&flags, options)?),
        "effects" => {
            no_flags(&flags)?;
            Box::new(effects::Effects { options })
        }
        "alias" => {
            no_flags(&flags)?;
            Box::new(alias::Alias { options })
        }
        "optimize" => {
            no_flags(&flags)?;
            Box::new(optimize::Optimize { options })
        }
        "run" => {
            no_flags(&flags)?;
            if precise {
                bail!("'test run' has no 'precise-output'");
            }
            return Ok(Subtest::Run(options));
        }
        "size" => {
            no_flags(&flags)?;
            Box::new(size::Size { options })
        }
        "" => bail!("expected a command after 'test' (known: {KNOWN})"),
        name => bail!("unknown test command '{name}' (known: {KNOWN})"),
    };
    Ok(Subtest::Print { subtest, precise })
}

fn split_options(options: &[CommandOption]) -> (Vec<&str>, Vec<CommandOption>) {
    let mut flags = Vec::new();
    let mut values = Vec::new();
    for option in options {
        match option {
            CommandOption::Flag(name) => flags.push(name.as_str()),
            CommandOption::Value(..) => values.push(option.clone()),
        }
    }
    (flags, values)
}

fn no_flags(flags: &[&str]) -> Result<()> {
    match flags.first() {
        Some(flag) => bail!("unknown option '{flag}'"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        let source = crate::TestSource::parse("t.clif", text).unwrap();
        subtest_of(&source.commands[0]).err().unwrap().to_string()
    }

    #[test]
    fn mistakes_in_test_lines_are_named() {
        assert!(error_of("test compile").starts_with("unknown test command 'compile'"));
        assert_eq!(error_of("test optimize walker"), "unknown option 'walker'");
        assert_eq!(error_of("test memssa speed=1"), "unknown option 'speed=1'");
        assert!(error_of("test run precise-output").contains("precise-output"));
    }
}
