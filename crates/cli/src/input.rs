//! Reads CLIF files, and says of each mistake in one where it is.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use clif_memopt_measure::isa_with;
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_codegen::verifier::VerifierErrors;
use cranelift_codegen::verify_function;
use cranelift_reader::{ParseOptions, SourceMap, parse_test};
use target_lexicon::Triple;

use crate::guard::guarded;
use crate::header::{Header, TargetLine};

/// A CLIF file.
pub(crate) struct Input {
    /// The file's name, for messages.
    pub(crate) name: String,
    /// Its functions: at least one.
    pub(crate) functions: Vec<Parsed>,
    header: Header,
    /// The text with the lines that `header` was read from blank.
    text: String,
}

/// A function, and where its text is.
pub(crate) struct Parsed {
    pub(crate) func: Function,
    line: usize,
    map: SourceMap,
}

impl Input {
    /// Reads a plain CLIF file or a filetest; `-` is standard input.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Input> {
        let (name, text) = read_text(path)?;
        Input::parse(name, &text)
    }

    /// Reads the text of a file.
    pub(crate) fn parse(name: String, text: &str) -> anyhow::Result<Input> {
        let (header, text) = Header::split(text);
        let functions =
            guarded(|| Ok(parse_functions(&name, &text))).with_context(|| name.clone())??;
        if functions.is_empty() {
            bail!("no functions in {name}");
        }
        Ok(Input {
            name,
            functions,
            header,
            text,
        })
    }

    /// The target to compile for: the one asked for, else the file's first, else the host; under
    /// the file's settings.
    pub(crate) fn isa(&self, asked: Option<&str>) -> anyhow::Result<OwnedTargetIsa> {
        self.isa_under(asked, &[])
    }

    /// As [`Input::isa`], with settings that the file's own may change.
    pub(crate) fn isa_under(
        &self,
        asked: Option<&str>,
        defaults: &[&str],
    ) -> anyhow::Result<OwnedTargetIsa> {
        let lines = &self.header.targets;
        let own = match asked {
            Some(triple) => lines.iter().find(|line| same_target(&line.triple, triple)),
            None => lines.first(),
        };
        self.resolve(asked, own, defaults)
    }

    /// The targets to run for: the one asked for, else all of the file, else the host.
    pub(crate) fn isas(&self, asked: Option<&str>) -> anyhow::Result<Vec<OwnedTargetIsa>> {
        if asked.is_some() || self.header.targets.is_empty() {
            return Ok(vec![self.isa(asked)?]);
        }
        let lines = self.header.targets.iter();
        lines
            .map(|line| self.resolve(None, Some(line), &[]))
            .collect()
    }

    fn resolve(
        &self,
        asked: Option<&str>,
        own: Option<&TargetLine>,
        defaults: &[&str],
    ) -> anyhow::Result<OwnedTargetIsa> {
        let host = || Triple::host().to_string();
        let triple = match (asked, own) {
            (Some(triple), _) => triple.to_string(),
            (None, Some(line)) => line.triple.clone(),
            (None, None) => host(),
        };
        // Told apart from a mistake in the file's settings.
        let plain = isa_with(&triple, defaults);
        match (asked, own) {
            (None, Some(line)) => plain.with_context(|| format!("{}:{}", self.name, line.line))?,
            _ => plain?,
        };
        let mut settings = defaults.to_vec();
        for (line, setting) in self.settings(own) {
            settings.push(setting);
            isa_with(&triple, &settings).with_context(|| format!("{}:{line}", self.name))?;
        }
        isa_with(&triple, &settings)
    }

    /// The file's settings for a target, each with its line.
    fn settings<'a>(
        &'a self,
        own: Option<&'a TargetLine>,
    ) -> impl Iterator<Item = (usize, &'a str)> {
        let shared = self.header.settings.iter();
        let own = own.into_iter().flat_map(|target| {
            let settings = target.settings.iter();
            settings.map(move |setting| (target.line, setting.as_str()))
        });
        shared
            .map(|(line, setting)| (*line, setting.as_str()))
            .chain(own)
    }

    /// The text, with the `set` and `target` lines blank.
    pub(crate) fn text_without_targets(&self) -> &str {
        &self.text
    }

    /// Runs Cranelift's verifier on every function.
    pub(crate) fn verify(&self, isa: &dyn TargetIsa) -> anyhow::Result<()> {
        self.functions
            .iter()
            .try_for_each(|parsed| self.verify_one(parsed, isa))
    }

    /// Runs Cranelift's verifier on one function.
    pub(crate) fn verify_one(&self, parsed: &Parsed, isa: &dyn TargetIsa) -> anyhow::Result<()> {
        if parsed.func.layout.entry_block().is_none() {
            return Err(anyhow!("it has no blocks")).with_context(|| self.place(parsed, None));
        }
        let found = guarded(|| Ok(verify_function(&parsed.func, isa)))
            .with_context(|| self.place(parsed, None))?;
        let Err(VerifierErrors(errors)) = found else {
            return Ok(());
        };
        let Some(first) = errors.first() else {
            return Ok(());
        };
        let line = parsed
            .map
            .location(first.location)
            .map(|location| location.line_number);
        Err(anyhow!("verifier: {first}")).with_context(|| self.place(parsed, line))
    }

    /// The file, a line (of the function unless told) and the function, as a message begins.
    pub(crate) fn place(&self, parsed: &Parsed, line: Option<usize>) -> String {
        let line = line.unwrap_or(parsed.line);
        format!("{}:{line}: function {}", self.name, parsed.func.name)
    }
}

/// Whether two names of targets mean the same processor.
fn same_target(one: &str, other: &str) -> bool {
    let architecture = |name: &str| name.split('-').next().unwrap_or_default().to_string();
    architecture(one) == architecture(other)
}

/// The name and the text of a file; `-` is standard input.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<(String, String)> {
    let (name, bytes) = read_bytes(path)?;
    let text = decode(&name, bytes)?;
    Ok((name, text))
}

fn read_bytes(path: &Path) -> anyhow::Result<(String, Vec<u8>)> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
        return Ok(("<stdin>".to_string(), bytes));
    }
    let name = path.display().to_string();
    if path.is_dir() {
        bail!("{name} is a directory: give a CLIF file");
    }
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    Ok((name, bytes))
}

fn decode(name: &str, bytes: Vec<u8>) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..good]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        anyhow!("{name}:{line}: not UTF-8 text")
    })
}

fn parse_functions(name: &str, text: &str) -> anyhow::Result<Vec<Parsed>> {
    let file = parse_test(text, ParseOptions::default()).map_err(|error| {
        match error.location.line_number {
            0 => anyhow!("{name}: {}", error.message),
            line => anyhow!("{name}:{line}: {}", error.message),
        }
    })?;
    let parsed = file.functions.into_iter().map(|(func, details)| Parsed {
        func,
        line: details.location.line_number,
        map: details.map,
    });
    Ok(parsed.collect())
}
