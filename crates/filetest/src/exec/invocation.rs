//! A `; run:` line: the function, its arguments, and what is expected.
//!
//! ```text
//! ; run: %f(1, 2) == 3
//! ; run: u0:4(p0+8, 0x01020304) != 0
//! ; run: %g(p0, 4) == [1, 2], p0[0..4] = 01 02 03 04
//! ; run: %g(oob, 4) traps heap_oob, p0[0] = 01
//! ; run: %h(p0) stops
//! ; run: %h(p0) throws 7
//! ; run: %h(p0)
//! ```
//!
//! `stops` means that a `debugtrap` is reached, which ends the run; `throws` that an exception of this
//! tag is thrown and not caught. `; print:` is the form without expectations. Values are written as in Cranelift's own run lines.

use std::fmt;
use std::ops::Range;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cranelift_codegen::data_value::DataValue;
use cranelift_codegen::ir::{AbiParam, Function, Signature, TrapCode, Type, types};
use cranelift_codegen::isa::CallConv;
use cranelift_reader::{RunCommand, parse_run_command};

use super::memory::{Buffer, Pointer, PointerTarget, buffer_index, parse_byte};
use crate::source::{DirectiveKind, TestSource};

/// A value that a run is given or expected to return.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A plain value.
    Value(DataValue),
    /// An address.
    Address(Pointer),
}

/// What a run must do.
#[derive(Clone, Debug)]
pub enum ExpectedOutcome {
    /// Return these values.
    Returns(Vec<Argument>),
    /// Return, but not these values.
    ReturnsOther(Vec<Argument>),
    /// Trap with this code.
    Traps(TrapCode),
    /// Reach a `debugtrap`.
    Stops,
    /// Throw this tag, which no handler catches.
    Throws(u32),
}

/// What memory must hold after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedBytes {
    /// The buffer's name.
    pub buffer: String,
    /// Offset in the buffer.
    pub offset: usize,
    /// The bytes from there.
    pub bytes: Vec<u8>,
}

/// One run of a function, given the memory it starts from.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The run line as written, without `; run:`.
    pub text: String,
    /// Its line in the file, from 1; 0 if it is from no file.
    pub line: usize,
    /// The index of the function that is called.
    pub function: usize,
    /// Its arguments.
    pub arguments: Vec<Argument>,
    /// The buffers it starts from.
    pub buffers: Vec<Buffer>,
    /// How it must end; `None` if that is left open.
    pub expected_outcome: Option<ExpectedOutcome>,
    /// What memory must hold afterwards.
    pub expected_bytes: Vec<ExpectedBytes>,
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Invocation {
    /// Parses what follows `; run:`, for a function among `functions` and memory `buffers`.
    ///
    /// # Errors
    /// The text is not in the form that the module's documentation gives, or names a function or
    /// buffer that is not there.
    pub fn parse(text: &str, functions: &[Function], buffers: &[Buffer]) -> Result<Invocation> {
        let (name, rest) = text
            .split_once('(')
            .context("expected '%function(arguments)'")?;
        let (arguments, tail) = split_at_close(rest).context("expected ')' after the arguments")?;
        let function = function_index(functions, name.trim())?;
        let signature = &functions[function].signature;
        let mut invocation = Invocation {
            text: text.to_string(),
            line: 0,
            function,
            arguments: parse_values(arguments, &signature.params).context("arguments")?,
            buffers: buffers.to_vec(),
            expected_outcome: None,
            expected_bytes: Vec::new(),
        };
        invocation.parse_expectations(tail.trim(), &signature.returns)?;
        invocation.check_buffers()?;
        Ok(invocation)
    }

    fn parse_expectations(&mut self, tail: &str, returns: &[AbiParam]) -> Result<()> {
        let mut parts = split_list(tail).into_iter().peekable();
        if let Some(first) = parts.peek()
            && let Some(outcome) = parse_outcome(first, returns)?
        {
            self.expected_outcome = Some(outcome);
            parts.next();
        }
        for part in parts.filter(|part| !part.is_empty()) {
            self.expected_bytes.push(parse_expected_bytes(part)?);
        }
        Ok(())
    }

    /// Every buffer that is named must exist, and expected bytes must lie inside.
    fn check_buffers(&self) -> Result<()> {
        let returned = match &self.expected_outcome {
            Some(ExpectedOutcome::Returns(v) | ExpectedOutcome::ReturnsOther(v)) => v.as_slice(),
            _ => &[],
        };
        let contents = self.buffers.iter().flat_map(|buffer| &buffer.pointers);
        let pointers = contents.map(|(_, pointer)| pointer).chain(
            self.arguments
                .iter()
                .chain(returned)
                .filter_map(|a| match a {
                    Argument::Address(pointer) => Some(pointer),
                    Argument::Value(_) => None,
                }),
        );
        for pointer in pointers {
            if let PointerTarget::Buffer(name) = &pointer.target {
                buffer_index(&self.buffers, name)?;
            }
        }
        for expected in &self.expected_bytes {
            let buffer = &self.buffers[buffer_index(&self.buffers, &expected.buffer)?];
            ensure!(
                expected.offset + expected.bytes.len() <= buffer.bytes.len(),
                "expected bytes lie outside the {} bytes of {}",
                buffer.bytes.len(),
                buffer.name
            );
        }
        Ok(())
    }
}

/// The run lines of a file, each with its buffers: those of the file, and those of the function it
/// follows, which replace the former.
///
/// # Errors
/// A `; mem:` or `; run:` line that cannot be parsed, as `name:line: message`.
pub fn invocations_of(source: &TestSource) -> Result<Vec<Invocation>> {
    let functions = source.functions();
    let file_buffers = parse_buffers(
        source,
        source.preamble_directives(DirectiveKind::Mem),
        Vec::new(),
    )?;
    let mut invocations = Vec::new();
    for function in &source.functions {
        let own = function.directives(DirectiveKind::Mem);
        let buffers = parse_buffers(source, own, file_buffers.clone())?;
        for (line, text) in function.directives(DirectiveKind::Run) {
            let mut invocation = Invocation::parse(text, &functions, &buffers)
                .map_err(|error| source.error_at(line, format!("run line: {error:#}")))?;
            invocation.line = line;
            invocations.push(invocation);
        }
    }
    Ok(invocations)
}

fn parse_buffers<'a>(
    source: &TestSource,
    directives: impl Iterator<Item = (usize, &'a str)>,
    mut buffers: Vec<Buffer>,
) -> Result<Vec<Buffer>> {
    for (line, text) in directives {
        let buffer = Buffer::parse(text)
            .map_err(|error| source.error_at(line, format!("mem line: {error:#}")))?;
        buffers.retain(|other| other.name != buffer.name);
        buffers.push(buffer);
    }
    Ok(buffers)
}

fn function_index(functions: &[Function], name: &str) -> Result<usize> {
    functions
        .iter()
        .position(|function| function.name.to_string() == name)
        .with_context(|| format!("there is no function {name} in the file"))
}

fn parse_outcome(text: &str, returns: &[AbiParam]) -> Result<Option<ExpectedOutcome>> {
    if let Some(values) = text.strip_prefix("==") {
        return Ok(Some(ExpectedOutcome::Returns(parse_returns(
            values, returns,
        )?)));
    }
    if let Some(values) = text.strip_prefix("!=") {
        return Ok(Some(ExpectedOutcome::ReturnsOther(parse_returns(
            values, returns,
        )?)));
    }
    if let Some(code) = text.strip_prefix("traps") {
        let code = code.trim();
        let code = code
            .parse()
            .map_err(|()| anyhow!("'{code}' is not a trap code"))?;
        return Ok(Some(ExpectedOutcome::Traps(code)));
    }
    if text == "stops" {
        return Ok(Some(ExpectedOutcome::Stops));
    }
    if let Some(tag) = text.strip_prefix("throws") {
        let tag = tag.trim();
        let tag = tag
            .parse()
            .with_context(|| format!("'{tag}' is not a tag"))?;
        return Ok(Some(ExpectedOutcome::Throws(tag)));
    }
    ensure!(
        text.is_empty() || text.contains('['),
        "expected '==', '!=', 'traps', 'stops' or 'throws', found '{text}'"
    );
    Ok(None)
}

fn parse_returns(text: &str, returns: &[AbiParam]) -> Result<Vec<Argument>> {
    let text = text.trim();
    let list = if returns.len() == 1 {
        text
    } else {
        text.strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .context("expected values in brackets: [1, 2]")?
    };
    parse_values(list, returns).context("returned values")
}

fn parse_values(text: &str, params: &[AbiParam]) -> Result<Vec<Argument>> {
    let parts = split_list(text);
    ensure!(
        parts.len() == params.len(),
        "expected {} values, found {}",
        params.len(),
        parts.len()
    );
    parts
        .iter()
        .zip(params)
        .map(|(part, param)| parse_value(part, param.value_type))
        .collect()
}

fn parse_value(text: &str, ty: Type) -> Result<Argument> {
    if let Some(pointer) = Pointer::parse(text) {
        ensure!(
            ty == types::I64,
            "'{text}' is an address, but the type is {ty}"
        );
        return Ok(Argument::Address(pointer));
    }
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.push(AbiParam::new(ty));
    let command = format!("print: %f({text})");
    match parse_run_command(&command, &signature) {
        Ok(Some(RunCommand::Print(mut call))) if call.args.len() == 1 => {
            Ok(Argument::Value(call.args.remove(0)))
        }
        Ok(_) => bail!("'{text}' is not a value of type {ty}"),
        Err(error) => bail!("'{text}' is not a value of type {ty}: {}", error.message),
    }
}

/// Parses `p0[0..4] = 01 02 03 04` or `p0[0] = 01`.
fn parse_expected_bytes(text: &str) -> Result<ExpectedBytes> {
    let form = || format!("'{text}': expected 'p0[0..4] = 01 02 03 04'");
    let (place, bytes) = text.split_once('=').with_context(form)?;
    let (buffer, range) = place.split_once('[').with_context(form)?;
    let range = range.trim().strip_suffix(']').with_context(form)?;
    let range = parse_range(range).with_context(form)?;
    let bytes = bytes
        .split_whitespace()
        .map(parse_byte)
        .collect::<Result<Vec<u8>>>()?;
    ensure!(
        bytes.len() == range.len(),
        "'{text}': {} bytes for a range of {}",
        bytes.len(),
        range.len()
    );
    Ok(ExpectedBytes {
        buffer: buffer.trim().to_string(),
        offset: range.start,
        bytes,
    })
}

fn parse_range(text: &str) -> Result<Range<usize>> {
    Ok(match text.split_once("..") {
        Some((start, end)) => start.trim().parse()?..end.trim().parse()?,
        None => {
            let at = text.trim().parse()?;
            at..at + 1
        }
    })
}

/// Splits `1, 2) == 3` at the parenthesis.
fn split_at_close(text: &str) -> Option<(&str, &str)> {
    text.split_once(')')
}

/// Splits at the commas that are outside brackets.
fn split_list(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut depth = 0;
    text.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "test run
function %f(i64, i32x4) -> i32, i64 {
block0(v0: i64, v1: i32x4):
    trap user1
}
function u0:7() {
block0:
    return
}
";

    fn parse(text: &str) -> Result<Invocation> {
        let functions = cranelift_reader::parse_functions(TEXT).unwrap();
        let buffers = [Buffer::parse("p0 = 8 bytes 01").unwrap()];
        Invocation::parse(text, &functions, &buffers)
    }

    #[test]
    fn full_form() {
        let run = parse("%f(p0+4, [1 2 3 4]) == [7, p0], p0[0..2] = 01 02, p0[7] = ff").unwrap();
        assert_eq!(run.function, 0);
        assert!(matches!(&run.arguments[0], Argument::Address(p) if p.offset == 4));
        assert!(matches!(&run.expected_outcome, Some(ExpectedOutcome::Returns(v)) if v.len() == 2));
        assert_eq!(run.expected_bytes[1].bytes, [0xff]);
    }

    #[test]
    fn traps_and_open_ends() {
        let run = parse("%f(oob, [1 2 3 4]) traps heap_oob, p0[0] = 01").unwrap();
        assert!(
            matches!(run.expected_outcome, Some(ExpectedOutcome::Traps(c)) if c == TrapCode::HEAP_OUT_OF_BOUNDS)
        );
        assert_eq!(parse("u0:7()").unwrap().function, 1);
        assert_eq!(parse("u0:7(), p0[0] = 01").unwrap().expected_bytes.len(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text| format!("{:#}", parse(text).unwrap_err());
        assert!(error("%g()").contains("no function %g"));
        assert!(error("%f(1)").contains("expected 2 values, found 1"));
        assert!(error("%f(p3, [1 2 3 4])").contains("buffer p3 has no '; mem:' line"));
        assert!(error("u0:7() traps never").contains("'never' is not a trap code"));
        assert!(error("u0:7() = 1").contains("expected '=='"));
        assert!(error("%f(1, p0)").contains("the type is i32x4"));
        assert!(error("u0:7(), p0[6..9] = 01 02 03").contains("outside the 8 bytes"));
        assert!(error("u0:7(), p0[0..2] = 01").contains("1 bytes for a range of 2"));
    }
}
