//! Runs one filetest.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cranelift_codegen::verify_function;

use crate::expect;
use crate::source::{Command, Target, TestSource};
use crate::subtest::{PrintSubtest, Ran, Subtest, run_lines, subtest_of};

/// How filetests are run.
#[derive(Clone, Debug, Default)]
pub struct RunnerSettings {
    /// Rewrite precise output in the file instead of comparing with it.
    pub bless: bool,
    /// Tools that are missing for running aarch64 code are a failure.
    pub require_aarch64: bool,
}

/// How a filetest that did not fail ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It passed after its expected text was rewritten.
    Blessed,
    /// Part of it could not be run here; the rest passed.
    Ignored {
        /// Why.
        reason: String,
    },
}

/// Runs the filetest at `path`: each of its `test` lines for each of its targets.
///
/// # Errors
/// The test failed or the file is not a filetest. The message begins with the file and, where there
/// is one, the line.
pub fn run_file(path: &Path, settings: &RunnerSettings) -> Result<Outcome> {
    let source = TestSource::read(path)?;
    ensure!(
        !source.commands.is_empty(),
        "{}:1: no 'test' line",
        source.name
    );
    let subtests = source
        .commands
        .iter()
        .map(|command| Ok((command, understood(&source, command)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut run = FileRun {
        name: test_name(path),
        source: &source,
        settings,
        blessed: vec![None; source.functions.len()],
        skipped: None,
    };
    for target in &source.targets {
        verify_input(&source, target)?;
        for (command, subtest) in &subtests {
            run.subtest(command, subtest, target)?;
        }
    }
    run.finish(path)
}

fn understood(source: &TestSource, command: &Command) -> Result<Subtest> {
    subtest_of(command).map_err(|error| source.error_at(command.line, format!("{error:#}")))
}

fn verify_input(source: &TestSource, target: &Target) -> Result<()> {
    for function in &source.functions {
        verify_function(&function.function, &*target.isa).map_err(|errors| {
            let name = &function.function.name;
            let errors = errors.to_string();
            source.error_at(function.line, format!("{name}: {}", errors.trim_end()))
        })?;
    }
    Ok(())
}

/// The name by which the test binary knows the file.
fn test_name(path: &Path) -> String {
    let path = path.with_extension("");
    let names: Vec<_> = path
        .components()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    let root = names.iter().rposition(|name| name == "filetests");
    let start = root.map_or(names.len() - 1, |root| root + 1);
    names[start..].join("/")
}

/// A file being run.
struct FileRun<'a> {
    name: String,
    source: &'a TestSource,
    settings: &'a RunnerSettings,
    /// The new precise text of each function.
    blessed: Vec<Option<String>>,
    skipped: Option<String>,
}

impl FileRun<'_> {
    fn subtest(&mut self, command: &Command, subtest: &Subtest, target: &Target) -> Result<()> {
        match subtest {
            Subtest::Print { subtest, precise } => {
                self.print_subtest(command, &**subtest, *precise, target)
            }
            Subtest::Run(options) => {
                match run_lines(self.source, target, options, self.settings)? {
                    Ran::Passed => {}
                    Ran::Skipped(reason) => self.skipped = Some(reason),
                }
                Ok(())
            }
        }
    }

    fn print_subtest(
        &mut self,
        command: &Command,
        subtest: &dyn PrintSubtest,
        precise: bool,
        target: &Target,
    ) -> Result<()> {
        let source = self.source;
        let at_command = |message: String| {
            source.error_at(
                command.line,
                format!("{command}, target {}: {message}", target.name),
            )
        };
        if !precise && !subtest.checks_itself() && !expect::has_checks(source) {
            return Err(at_command(
                "nothing is checked: add 'precise-output' or check lines".to_string(),
            ));
        }
        let printed = subtest
            .print(&source.functions(), &*target.isa)
            .map_err(|error| source.locate(&error, Some(command.line)))?;
        let mut failures = Vec::new();
        for (index, printed) in printed.iter().enumerate() {
            let function = &source.functions[index];
            if let Some(report) = &printed.report {
                failures.extend(expect::check_report(source, function, report).err());
            }
            let checked = if precise {
                self.precise(index, &printed.text, &at_command)
            } else {
                expect::check_lines(source, function, &printed.text)
            };
            failures.extend(checked.err());
        }
        if failures.is_empty() {
            return Ok(());
        }
        let messages: Vec<String> = failures.iter().map(|error| format!("{error:#}")).collect();
        bail!("{}", messages.join("\n"))
    }

    fn precise(
        &mut self,
        index: usize,
        text: &str,
        at_command: &dyn Fn(String) -> anyhow::Error,
    ) -> Result<()> {
        let function = &self.source.functions[index];
        let name = &function.function.name;
        let actual = expect::normalized(text);
        if self.settings.bless {
            let previous = self.blessed[index].replace(actual.clone());
            return match previous {
                Some(previous) if previous != actual => Err(at_command(format!(
                    "{name}: the text differs from that of another command or target; one file holds one"
                ))),
                _ => Ok(()),
            };
        }
        let expected = expect::precise_text(self.source, function);
        match expect::precise_difference(&expected, &actual) {
            None => Ok(()),
            Some(difference) => Err(self.source.error_at(
                function.line,
                format!(
                    "{name}: output is not what the file expects\n{difference}\
                     to accept it: MEMOPT_BLESS=1 cargo test -p clif-memopt-filetest --test filetests -- {}",
                    self.name
                ),
            )),
        }
    }

    fn finish(self, path: &Path) -> Result<Outcome> {
        let text = expect::blessed(self.source, &self.blessed);
        let changed = self.blessed.iter().any(Option::is_some) && text != self.source.text;
        if changed {
            replace_file(path, &text).with_context(|| self.source.name.clone())?;
        }
        Ok(match self.skipped {
            Some(reason) => Outcome::Ignored { reason },
            None if changed => Outcome::Blessed,
            None => Outcome::Passed,
        })
    }
}

/// Replaces the file at `path` in one step.
fn replace_file(path: &Path, text: &str) -> Result<()> {
    let directory = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    fs::set_permissions(file.path(), fs::metadata(path)?.permissions())?;
    file.persist(path).map_err(|error| anyhow!(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "
function %f() -> i32 {
block0:
    v0 = iconst.i32 1
    return v0
}
";

    fn run(
        directory: &tempfile::TempDir,
        text: &str,
        settings: &RunnerSettings,
    ) -> Result<Outcome> {
        let path = directory.path().join("t.clif");
        fs::write(&path, text).unwrap();
        run_file(&path, settings)
    }

    fn error_of(text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let error = run(&directory, text, &RunnerSettings::default()).unwrap_err();
        let message = format!("{error:#}");
        let prefix = format!("{}/", directory.path().display());
        message.replace(&prefix, "")
    }

    #[test]
    fn errors_have_file_and_line() {
        let error = error_of(&format!("test run\ntest compile\n{BODY}"));
        assert!(
            error.starts_with("t.clif:2: unknown test command 'compile'"),
            "{error}"
        );
        let error = error_of(&format!("test run\ntarget z80\n{BODY}"));
        assert!(
            error.starts_with("t.clif:2: unknown target 'z80'"),
            "{error}"
        );
        let error = error_of(&format!("test optimize passes=magic\n{BODY}"));
        assert!(
            error.starts_with("t.clif:1: unknown pass 'magic'"),
            "{error}"
        );
        let error = error_of(BODY);
        assert!(error.starts_with("t.clif:1: no 'test' line"), "{error}");
        let error = error_of("test optimize\nfunction %f() -> i32 {\nblock0:\n    return\n}\n");
        assert!(error.starts_with("t.clif:2: %f: "), "{error}");
    }

    #[test]
    fn bad_run_lines_have_file_and_line() {
        let error = error_of(&format!("test run\n{BODY}; run: %f(1) == 1\n"));
        assert!(error.starts_with("t.clif:8: run line: "), "{error}");
        let error = error_of(&format!(
            "test run\n{BODY}\n; mem: p0 = ten bytes\n; run: %f()\n"
        ));
        assert!(error.starts_with("t.clif:9: mem line: "), "{error}");
        let error = error_of(&format!("test run\n{BODY}; run: %f() == 2\n"));
        assert!(
            error.contains("t.clif:8: target x86_64: %f() == 2: "),
            "{error}"
        );
        assert!(
            error.contains("returned 1, which is not expected"),
            "{error}"
        );
        let symbol = "test run\n\nfunction %s() {\n    gv0 = symbol %data\nblock0:\n    return\n}\n; run: %s()\n";
        let error = error_of(symbol);
        assert_eq!(
            error,
            "t.clif:3: function %s: symbol %data has no definition"
        );
        let error = error_of(&format!("test run\n{BODY}"));
        assert!(error.contains("without any '; run:' line"), "{error}");
    }

    #[test]
    fn intent_lines_are_checked() {
        let error = error_of(&format!("test optimize\n{BODY}; stats: no.such = 1\n"));
        assert!(
            error.starts_with("t.clif:8: unknown counter 'no.such'"),
            "{error}"
        );
        let error = error_of(&format!("test optimize\n{BODY}; remark: magic\n"));
        assert!(
            error.starts_with("t.clif:8: no remark contains 'magic'"),
            "{error}"
        );
        let error = error_of(&format!("test optimize\n{BODY}; check: load\n"));
        assert!(
            error.starts_with("t.clif:3: %f: check lines do not match"),
            "{error}"
        );
        let error = error_of(&format!("test effects\n{BODY}"));
        assert!(error.contains("nothing is checked"), "{error}");
    }

    #[test]
    fn bless_writes_what_then_passes() {
        let directory = tempfile::tempdir().unwrap();
        let settings = RunnerSettings::default();
        let bless = RunnerSettings {
            bless: true,
            ..RunnerSettings::default()
        };
        let text = format!(
            "test optimize precise-output\n{BODY}; stale\n\n;; prose\n{}",
            BODY.replace("%f", "%g")
        );
        let error = run(&directory, &text, &settings).unwrap_err().to_string();
        assert!(error.contains("-stale"), "{error}");
        assert!(error.contains("MEMOPT_BLESS=1"), "{error}");
        assert_eq!(run(&directory, &text, &bless).unwrap(), Outcome::Blessed);
        let path = directory.path().join("t.clif");
        assert_eq!(run_file(&path, &settings).unwrap(), Outcome::Passed);
        assert_eq!(run_file(&path, &bless).unwrap(), Outcome::Passed);
        let blessed = fs::read_to_string(&path).unwrap();
        assert!(
            blessed.contains("}\n; function %f() -> i32 fast {\n"),
            "{blessed}"
        );
        assert!(blessed.contains("\n\n;; prose\n"), "{blessed}");
    }

    #[test]
    fn names_are_relative_to_the_filetests() {
        assert_eq!(test_name(Path::new("/x/filetests/run/a.clif")), "run/a");
        assert_eq!(test_name(Path::new("/x/a.clif")), "a");
    }
}
