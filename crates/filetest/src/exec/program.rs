//! The functions of a file as one module: names resolved, compiled, trap records kept.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cranelift_codegen::ir::{
    ExceptionTableData, ExceptionTableItem, ExceptionTag, ExternalName, FuncRef, Function,
    GlobalValueData, Signature, TrapCode, Type, UserExternalName, UserFuncName, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_codegen::{Context, Final, FinalizedMachExceptionHandler, MachBufferFinalized};
use cranelift_module::{FuncId, Linkage, Module};

use super::invocation::Invocation;
use super::outcome::Outcome;
use super::trampoline::{CELL_BYTES, build_trampoline};
use crate::source::InFunction;

/// The functions that a test may import by name, and their parameter and result types.
pub(crate) const HOST_FUNCTIONS: [(&str, &[Type], &[Type]); 5] = [
    ("host_touch", &[types::I64], &[]),
    ("host_nop", &[], &[]),
    ("host_read", &[types::I64], &[types::I64]),
    (HOST_THROW, &[types::I32, types::I64], &[]),
    ("host_collect", &[], &[]),
];
/// The function that throws.
const HOST_THROW: &str = "host_throw";
/// [`HOST_THROW`] in the `tail` convention.
pub(crate) const HOST_THROW_TAIL: &str = "host_throw_tail";
/// The error if Cranelift panics.
pub const PANICKED: &str = "Cranelift panicked while compiling it";
/// A tag that nobody throws.
const NO_TAG: u32 = u32::MAX - 1;

/// A compiled function.
#[derive(Clone, Debug)]
pub(crate) struct CompiledFunction {
    pub(crate) id: FuncId,
    pub(crate) name: String,
    /// Size of its code, in bytes.
    pub(crate) code_bytes: u64,
    traps: Vec<(u64, TrapCode)>,
    /// Calls whose frame an unwinder or a collector has business with.
    pub(crate) sites: Vec<CallSite>,
}

/// A call with exception handlers or a stack map.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallSite {
    /// Where it returns to, from the function's start, in bytes.
    pub(crate) offset: u64,
    /// From the stack pointer at the call to the frame pointer, in bytes.
    pub(crate) frame_bytes: u64,
    /// The handlers: the tag, or none for all, and where the code is, from the function's start.
    pub(crate) handlers: Vec<(Option<u32>, u64)>,
    /// Where the values of the stack map lie, from the stack pointer, in bytes.
    pub(crate) mapped: Vec<u64>,
}

impl CallSite {
    /// The handler for a tag: one that names it, else one for all.
    pub(crate) fn handler(&self, tag: u32) -> Option<u64> {
        let find = |wanted| self.handlers.iter().find(|(tag, _)| *tag == wanted);
        let (_, handler) = find(Some(tag)).or_else(|| find(None))?;
        Some(*handler)
    }
}

/// The compiled functions of a file.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) functions: Vec<CompiledFunction>,
    /// The trampoline of each function that an invocation calls.
    pub(crate) trampolines: Vec<Option<FuncId>>,
}

impl Program {
    /// Defines `functions` in `module` under names that begin with `prefix`, and a trampoline for
    /// each function that `invocations` call.
    pub(crate) fn define<M: Module>(
        module: &mut M,
        prefix: &str,
        functions: &[Function],
        invocations: &[Invocation],
    ) -> Result<Program> {
        let ids = declare(module, prefix, functions)?;
        let names: Vec<&UserFuncName> = functions.iter().map(|f| &f.name).collect();
        let mut compiled = Vec::new();
        for (index, (function, &id)) in functions.iter().zip(&ids).enumerate() {
            let mut resolved = function.clone();
            let defined = resolve_names(module, &mut resolved, &names, &ids)
                .and_then(|()| compile(module, id, function.name.to_string(), resolved))
                .with_context(|| InFunction::new(index, function))?;
            compiled.push(defined);
        }
        let called: BTreeSet<usize> = invocations.iter().map(|run| run.function).collect();
        let mut trampolines = vec![None; functions.len()];
        for index in called {
            let signature = &functions[index].signature;
            let entry = define_entry(module, prefix, index, ids[index], signature)
                .with_context(|| InFunction::new(index, &functions[index]))?;
            trampolines[index] = Some(entry);
        }
        Ok(Program {
            functions: compiled,
            trampolines,
        })
    }

    /// How a run ended that `signal` stopped at `pc`, given where each function begins.
    pub(crate) fn outcome_at(&self, signal: i32, pc: u64, starts: &[u64]) -> Outcome {
        if signal == libc::SIGTRAP {
            return Outcome::Stopped;
        }
        match self.trap_at(pc, starts) {
            Ok(code) => Outcome::Trapped(code),
            Err(place) => Outcome::Crashed(format!("{} {place}", signal_name(signal))),
        }
    }

    /// The trap recorded for `pc`, or what is there instead.
    fn trap_at(&self, pc: u64, starts: &[u64]) -> Result<TrapCode, String> {
        for (function, &start) in self.functions.iter().zip(starts) {
            let Some(offset) = pc.checked_sub(start) else {
                continue;
            };
            if offset >= function.code_bytes {
                continue;
            }
            return match function.traps.iter().find(|(at, _)| *at == offset) {
                Some((_, code)) => Ok(*code),
                None => Err(format!(
                    "at {}+{offset:#x}, where no trap is recorded",
                    function.name
                )),
            };
        }
        Err("outside the code of the file".to_string())
    }
}

/// The symbol of the function with this index.
pub(crate) fn function_symbol(prefix: &str, index: usize) -> String {
    format!("{prefix}_function{index}")
}

/// The symbol of the trampoline of the function with this index.
pub(crate) fn entry_symbol(prefix: &str, index: usize) -> String {
    format!("{prefix}_entry{index}")
}

fn declare<M: Module>(module: &mut M, prefix: &str, functions: &[Function]) -> Result<Vec<FuncId>> {
    let mut names = BTreeSet::new();
    let mut ids = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        ensure!(
            names.insert(function.name.to_string()),
            "function {} is defined twice",
            function.name
        );
        let symbol = function_symbol(prefix, index);
        ids.push(module.declare_function(&symbol, Linkage::Export, &function.signature)?);
    }
    Ok(ids)
}

fn compile<M: Module>(
    module: &mut M,
    id: FuncId,
    name: String,
    function: Function,
) -> Result<CompiledFunction> {
    let mut context = Context::for_function(function);
    // Cranelift panics on some types and settings that it has no code for.
    let define = AssertUnwindSafe(|| Ok(module.define_function(id, &mut context)?));
    catch_unwind(define)
        .unwrap_or_else(|_| bail!("{PANICKED}"))
        .map_err(|error: anyhow::Error| anyhow!("{error}"))?;
    let code = context.compiled_code().context("no code was kept")?;
    let traps = code.buffer.traps().iter();
    Ok(CompiledFunction {
        id,
        name,
        sites: call_sites(&code.buffer)?,
        code_bytes: u64::from(code.buffer.total_size()),
        traps: traps
            .map(|trap| (u64::from(trap.offset), trap.code))
            .collect(),
    })
}

fn call_sites(code: &MachBufferFinalized<Final>) -> Result<Vec<CallSite>> {
    let mut sites: BTreeMap<u32, CallSite> = BTreeMap::new();
    for site in code.call_sites() {
        let handlers: Vec<_> = site
            .exception_handlers
            .iter()
            .filter_map(|handler| match handler {
                FinalizedMachExceptionHandler::Tag(tag, at) => Some((Some(tag.as_u32()), *at)),
                FinalizedMachExceptionHandler::Default(at) => Some((None, *at)),
                FinalizedMachExceptionHandler::Context(_) => None,
            })
            .map(|(tag, at)| (tag, u64::from(at)))
            .collect();
        if !handlers.is_empty() {
            let known = sites.entry(site.ret_addr).or_default();
            let frame_bytes = site.frame_offset.context("a frame of unknown size")?;
            known.frame_bytes = u64::from(frame_bytes);
            known.handlers = handlers;
        }
    }
    for (offset, frame_bytes, map) in code.user_stack_maps() {
        let known = sites.entry(*offset).or_default();
        known.frame_bytes = u64::from(*frame_bytes);
        known.mapped = map.entries().map(|(_, at)| u64::from(at)).collect();
    }
    for (offset, site) in &mut sites {
        site.offset = u64::from(*offset);
    }
    Ok(sites.into_values().collect())
}

/// Defines the trampoline of the function `callee`.
fn define_entry<M: Module>(
    module: &mut M,
    prefix: &str,
    index: usize,
    callee: FuncId,
    signature: &Signature,
) -> Result<FuncId> {
    check_signature(signature)?;
    let entry = build_trampoline(module, callee, signature);
    let name = entry_symbol(prefix, index);
    let id = module.declare_function(&name, Linkage::Export, &entry.signature)?;
    compile(module, id, name, entry)?;
    Ok(id)
}

fn check_signature(signature: &Signature) -> Result<()> {
    for param in signature.params.iter().chain(&signature.returns) {
        ensure!(
            param.value_type.bytes() as usize <= CELL_BYTES,
            "values of type {} cannot be passed by a run line",
            param.value_type
        );
    }
    Ok(())
}

/// Makes the external names of `function` name functions of `module`.
fn resolve_names<M: Module>(
    module: &mut M,
    function: &mut Function,
    names: &[&UserFuncName],
    ids: &[FuncId],
) -> Result<()> {
    for global in function.global_values.values() {
        if let GlobalValueData::Symbol { name, .. } = global {
            bail!(
                "symbol {} has no definition",
                name.display(Some(&function.params))
            );
        }
    }
    hide_handlers(function);
    let references: Vec<FuncRef> = function.dfg.ext_funcs.keys().collect();
    for reference in references {
        // What a file's functions call may lie too far for a short call.
        function.dfg.ext_funcs[reference].colocated = false;
        let callee = match &function.dfg.ext_funcs[reference].name {
            ExternalName::LibCall(_) => {
                use_default_call_conv(module, function, reference);
                continue;
            }
            ExternalName::TestCase(name) => UserFuncName::Testcase(name.clone()),
            ExternalName::User(name) => {
                UserFuncName::User(function.params.user_named_funcs()[*name].clone())
            }
            ExternalName::KnownSymbol(symbol) => bail!("symbol {symbol} cannot be called"),
        };
        let id = match names.iter().position(|name| **name == callee) {
            Some(index) => ids[index],
            None => import_host_function(module, function, reference, &callee)?,
        };
        let name = function.declare_imported_user_function(UserExternalName {
            namespace: 0,
            index: id.as_u32(),
        });
        function.dfg.ext_funcs[reference].name = ExternalName::user(name);
    }
    Ok(())
}

fn import_host_function<M: Module>(
    module: &mut M,
    function: &mut Function,
    reference: FuncRef,
    callee: &UserFuncName,
) -> Result<FuncId> {
    let name = callee.to_string();
    let host = HOST_FUNCTIONS
        .iter()
        .find(|(host, ..)| name.strip_prefix('%') == Some(host));
    let Some(&(mut symbol, params, returns)) = host else {
        let known: Vec<String> = HOST_FUNCTIONS
            .iter()
            .map(|(host, ..)| format!("%{host}"))
            .collect();
        bail!(
            "{name} is neither in the file nor one of {}",
            known.join(", ")
        );
    };
    if symbol == HOST_THROW && call_conv(function, reference) == CallConv::Tail {
        symbol = HOST_THROW_TAIL;
    } else {
        use_default_call_conv(module, function, reference);
    }
    let signature = &function.dfg.signatures[function.dfg.ext_funcs[reference].signature];
    let types_of = |params: &[cranelift_codegen::ir::AbiParam]| -> Vec<Type> {
        params.iter().map(|param| param.value_type).collect()
    };
    ensure!(
        types_of(&signature.params) == params && types_of(&signature.returns) == returns,
        "{name} is declared with the wrong signature: it takes {params:?} and returns {returns:?}"
    );
    Ok(module.declare_function(symbol, Linkage::Import, signature)?)
}

/// Nothing unwinds to the handlers of calls in the platform's convention: on their exception edges,
/// Cranelift takes registers to be kept that only unwind tables of all frames could restore.
fn hide_handlers(function: &mut Function) {
    let dfg = &mut function.dfg;
    for table in dfg.exception_tables.values_mut() {
        if dfg.signatures[table.signature()].call_conv == CallConv::Tail {
            continue;
        }
        let items = table.items().map(|item| match item {
            ExceptionTableItem::Tag(_, target) | ExceptionTableItem::Default(target) => {
                ExceptionTableItem::Tag(ExceptionTag::from_u32(NO_TAG), target)
            }
            context @ ExceptionTableItem::Context(_) => context,
        });
        *table = ExceptionTableData::new(table.signature(), *table.normal_return(), items);
    }
}

fn call_conv(function: &Function, reference: FuncRef) -> CallConv {
    let dfg = &function.dfg;
    dfg.signatures[dfg.ext_funcs[reference].signature].call_conv
}

/// What is not CLIF is called in the platform's convention, whatever the file's default is.
fn use_default_call_conv<M: Module>(module: &M, function: &mut Function, reference: FuncRef) {
    if call_conv(function, reference) == module.isa().default_call_conv() {
        return;
    }
    let declared = function.dfg.ext_funcs[reference].signature;
    let mut signature = function.dfg.signatures[declared].clone();
    signature.call_conv = module.isa().default_call_conv();
    function.dfg.ext_funcs[reference].signature = function.import_signature(signature);
}

/// The name of a signal by which code traps.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGILL => "SIGILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        _ => "signal",
    }
}
