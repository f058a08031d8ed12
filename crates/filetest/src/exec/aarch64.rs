//! Runs for aarch64 on another host: original and optimized functions in one object file, linked
//! with a small C program (`harness.c`) and run under qemu-user.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_module::default_libcall_names;
use cranelift_object::{ObjectBuilder, ObjectModule};

use super::invocation::Invocation;
use super::memory::Layout;
use super::outcome::{Observation, Outcome, resolve};
use super::program::{Program, entry_symbol, function_symbol};
use super::trampoline::{CELL_BYTES, pack, unpack};
use super::{RUN_SECONDS_MAX, STACK_BYTES, Support};

const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
const INSTALL: &str = "apt-get install -y qemu-user gcc-aarch64-linux-gnu";
const HARNESS: &str = include_str!("harness.c");
/// Where buffers are placed.
const ARENA_BASE: u64 = 0x20_0000_0000;
/// Room for results in the harness, in bytes.
const RESULT_BYTES_MAX: usize = 4096;

/// Whether compiler and emulator are installed.
pub(crate) fn support() -> Support {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let runs = |tool| Command::new(tool).arg("--version").output().is_ok();
    if *INSTALLED.get_or_init(|| runs(COMPILER) && runs(EMULATOR)) {
        Support::Available
    } else {
        Support::Missing(INSTALL.to_string())
    }
}

/// Runs `invocations` on each of `variants`; the observations are in that order.
///
/// # Errors
/// A function cannot be compiled or names what is not there, or a tool is missing or fails.
pub(crate) fn execute(
    isa: &OwnedTargetIsa,
    variants: &[&[Function]],
    invocations: &[Invocation],
) -> Result<Vec<Vec<Observation>>> {
    if let Support::Missing(install) = support() {
        bail!("code for aarch64 cannot be run: {install}");
    }
    let directory = tempfile::tempdir().context("temporary directory")?;
    let object_path = directory.path().join("functions.o");
    let harness_path = directory.path().join("harness.c");
    let (programs, object) = compile_object(isa, variants, invocations)?;
    fs::write(&object_path, object)?;
    fs::write(&harness_path, harness(&programs, variants, invocations)?)?;
    let output = link_and_run(directory.path())?;
    parse_output(&output, &programs, variants, invocations)
}

fn prefix(variant: usize) -> String {
    format!("variant{variant}")
}

fn compile_object(
    isa: &OwnedTargetIsa,
    variants: &[&[Function]],
    invocations: &[Invocation],
) -> Result<(Vec<Program>, Vec<u8>)> {
    let builder = ObjectBuilder::new(isa.clone(), "filetest", default_libcall_names())?;
    let mut module = ObjectModule::new(builder);
    let mut programs = Vec::new();
    for (index, functions) in variants.iter().enumerate() {
        let program = Program::define(&mut module, &prefix(index), functions, invocations)?;
        programs.push(program);
    }
    let object = module
        .finish()
        .emit()
        .map_err(|error| anyhow!("object file: {error}"))?;
    Ok((programs, object))
}

/// The C program: [`HARNESS`] with its tables.
fn harness(
    programs: &[Program],
    variants: &[&[Function]],
    invocations: &[Invocation],
) -> Result<String> {
    let mut tables = format!("#define RUN_SECONDS_MAX {RUN_SECONDS_MAX}\n");
    let mut starts = String::new();
    for (variant, functions) in variants.iter().enumerate() {
        for index in 0..functions.len() {
            let symbol = function_symbol(&prefix(variant), index);
            writeln!(tables, "extern void {symbol}(void);")?;
            writeln!(starts, "    (uint64_t){symbol},")?;
        }
    }
    let functions = variants.iter().map(|functions| functions.len());
    let function_count: usize = functions.sum();
    writeln!(
        tables,
        "static const uint64_t functions[] = {{\n{starts}    0\n}};"
    )?;
    writeln!(
        tables,
        "static const size_t function_count = {function_count};"
    )?;
    write_sites(&mut tables, programs)?;
    let mut runs = String::new();
    for (index, invocation) in invocations.iter().enumerate() {
        write_memory(&mut tables, index, invocation)?;
        for (variant, functions) in variants.iter().enumerate() {
            let entry = entry_symbol(&prefix(variant), invocation.function);
            let returns = &functions[invocation.function].signature.returns;
            let result_bytes = returns.len() * CELL_BYTES;
            ensure!(result_bytes <= RESULT_BYTES_MAX, "too many results");
            let length = Layout::length_of(&invocation.buffers);
            writeln!(tables, "extern void {entry}(const void *, void *);")?;
            writeln!(
                runs,
                "    {{ {entry}, arguments{index}, {result_bytes}, {ARENA_BASE:#x}, {length:#x}, buffers{index}, {} }},",
                invocation.buffers.len()
            )?;
        }
    }
    let run_count = invocations.len() * variants.len();
    writeln!(
        tables,
        "static const struct run runs[] = {{\n{runs}    {{ 0 }}\n}};"
    )?;
    writeln!(tables, "static const size_t run_count = {run_count};")?;
    Ok(HARNESS.replace("/*TABLES*/", &tables))
}

/// The calls that exceptions or collectors have business with.
fn write_sites(tables: &mut String, programs: &[Program]) -> Result<()> {
    let functions = programs.iter().flat_map(|program| &program.functions);
    let sites = functions
        .enumerate()
        .flat_map(|(function, compiled)| compiled.sites.iter().map(move |site| (function, site)));
    let mut rows = String::new();
    let mut count = 0;
    for (index, (function, site)) in sites.enumerate() {
        let handlers = site.handlers.iter().map(|(tag, address)| {
            let any = u8::from(tag.is_none());
            format!("{{{}u,{any},{address}}},", tag.unwrap_or_default())
        });
        let handlers: String = handlers.collect();
        let mapped: String = site.mapped.iter().map(|at| format!("{at},")).collect();
        writeln!(
            tables,
            "static const struct handler handlers{index}[] = {{ {handlers} {{0,0,0}} }};\n\
             static const uint64_t mapped{index}[] = {{ {mapped} 0 }};"
        )?;
        writeln!(
            rows,
            "    {{ {function}, {}, {}, handlers{index}, {}, mapped{index}, {} }},",
            site.offset,
            site.frame_bytes,
            site.handlers.len(),
            site.mapped.len()
        )?;
        count += 1;
    }
    writeln!(
        tables,
        "static const struct site sites[] = {{\n{rows}    {{ 0 }}\n}};"
    )?;
    writeln!(tables, "static const size_t site_count = {count};")?;
    Ok(())
}

/// The arguments and buffers of one run line.
fn write_memory(tables: &mut String, index: usize, invocation: &Invocation) -> Result<()> {
    let arguments = pack(&resolve(invocation, ARENA_BASE, &invocation.arguments)?);
    let list: String = arguments.iter().map(|byte| format!("{byte},")).collect();
    writeln!(
        tables,
        "static const _Alignas(16) uint8_t arguments{index}[] = {{ {list} 0 }};"
    )?;
    let layout = Layout::at(ARENA_BASE, &invocation.buffers);
    let images = layout.images(&invocation.buffers)?;
    let mut rows = String::new();
    for (number, (place, image)) in layout.placements.iter().zip(&images).enumerate() {
        let patches: Vec<(usize, u8)> = image
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, byte)| *byte != 0)
            .collect();
        let list: String = patches
            .iter()
            .map(|(offset, byte)| format!("{{{offset},{byte}}},"))
            .collect();
        writeln!(
            tables,
            "static const struct patch patches{index}_{number}[] = {{ {list} {{0,0}} }};"
        )?;
        writeln!(
            rows,
            "    {{ {:#x}, {:#x}, patches{index}_{number}, {} }},",
            place.pages,
            place.page_bytes,
            patches.len()
        )?;
    }
    writeln!(
        tables,
        "static const struct buffer buffers{index}[] = {{\n{rows}    {{ 0 }}\n}};"
    )?;
    Ok(())
}

fn link_and_run(directory: &Path) -> Result<String> {
    let link = Command::new(COMPILER)
        .current_dir(directory)
        .args(["-static", "-no-pie", "-O1", "-fno-omit-frame-pointer"])
        .args(["-o", "filetest"])
        .args(["harness.c", "functions.o", "-lm"])
        .output()
        .context(COMPILER)?;
    check(COMPILER, &link)?;
    let run = Command::new(EMULATOR)
        .current_dir(directory)
        .arg("./filetest")
        .output()
        .context(EMULATOR)?;
    check(EMULATOR, &run)?;
    String::from_utf8(run.stdout).context(EMULATOR)
}

fn check(tool: &str, output: &Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "{tool} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Reads what the harness printed: where its stack is, where functions begin, then for each run line and variant the end
/// and the buffers.
fn parse_output(
    output: &str,
    programs: &[Program],
    variants: &[&[Function]],
    invocations: &[Invocation],
) -> Result<Vec<Vec<Observation>>> {
    let mut lines = output.lines();
    let stack = parse_address(field(lines.next().unwrap_or_default(), "stack")?)?;
    let mut starts = Vec::new();
    for functions in variants {
        let lines = lines.by_ref().take(functions.len());
        let addresses = lines.map(|line| parse_address(field(line, "function")?));
        starts.push(addresses.collect::<Result<Vec<u64>>>()?);
    }
    let mut observations = vec![Vec::new(); variants.len()];
    for invocation in invocations {
        for (variant, seen) in observations.iter_mut().enumerate() {
            let end = lines.next().context("the harness stopped early")?;
            let function = &variants[variant][invocation.function];
            let outcome = parse_end(end, function, &programs[variant], &starts[variant])?;
            let memory = lines.by_ref().take(invocation.buffers.len());
            let memory = memory.map(|line| parse_bytes(field(line, "memory")?));
            seen.push(Observation {
                outcome,
                memory: memory.collect::<Result<_>>()?,
                base: ARENA_BASE,
                stack: stack.saturating_sub(STACK_BYTES)..stack,
            });
        }
    }
    Ok(observations)
}

fn parse_end(
    line: &str,
    function: &Function,
    program: &Program,
    starts: &[u64],
) -> Result<Outcome> {
    if line == "timeout" {
        return Ok(Outcome::TimedOut);
    }
    if let Ok(bytes) = field(line, "returned") {
        let results = parse_bytes(bytes)?;
        return Ok(Outcome::Returned(unpack(
            &results,
            &function.signature.returns,
        )));
    }
    if let Ok(thrown) = field(line, "threw") {
        let (tag, payload) = thrown
            .split_once(' ')
            .with_context(|| format!("harness: '{line}'"))?;
        return Ok(Outcome::Thrown {
            tag: tag.parse()?,
            payload: parse_address(payload)?,
        });
    }
    let (signal, pc) = field(line, "signal")?
        .split_once(' ')
        .with_context(|| format!("harness: '{line}'"))?;
    Ok(program.outcome_at(signal.parse()?, parse_address(pc)?, starts))
}

fn field<'a>(line: &'a str, name: &str) -> Result<&'a str> {
    line.strip_prefix(name)
        .map(str::trim)
        .with_context(|| format!("harness: expected {name}, found '{line}'"))
}

fn parse_address(text: &str) -> Result<u64> {
    Ok(u64::from_str_radix(text, 16)?)
}

fn parse_bytes(text: &str) -> Result<Vec<u8>> {
    ensure!(text.is_ascii(), "harness: '{text}' is not hex");
    text.as_bytes()
        .chunks(2)
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect()
}
