//! `clif-memopt compile`: an object file of the functions of a file.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use cranelift_codegen::Context;
use cranelift_codegen::ir::{
    ExternalName, FuncRef, Function, GlobalValue, GlobalValueData, UserExternalName, UserFuncName,
};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_memopt::Optimizer;
use cranelift_module::{DataId, FuncId, Linkage, Module, default_libcall_names};
use cranelift_object::{ObjectBuilder, ObjectModule};

use crate::flags::{self, Flags, Target};
use crate::guard::guarded;
use crate::input::Input;
use crate::{Outcome, output};

/// Settings that the file may change: code that links into any executable.
const SETTINGS: &[&str] = &["is_pic=true"];

/// Compile the functions of a file to an object file
///
/// Every function is exported: %name as `name`, u0:7 as `u0_7`. Names that the file does not define
/// are imports, known library calls (%Memcpy) under their C names.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  clif-memopt compile in.clif -o out.o
  clif-memopt compile in.clif -o out.o --target aarch64
  clif-memopt compile in.clif -o plain.o --no-opt")]
pub(crate) struct Args {
    /// CLIF file or filetest; - for standard input
    input: PathBuf,

    /// Where the object file goes; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    target: Target,

    /// Leave out the memory optimizer; Cranelift's own still runs
    #[arg(long)]
    no_opt: bool,

    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let input = Input::read(&args.input)?;
    let isa = input.isa_under(args.target.triple.as_deref(), SETTINGS)?;
    input.verify(&*isa)?;
    let functions = functions(args, &input, &isa)?;
    let object = guarded(|| Object::new(isa)?.compile(&input, functions))?;
    output::write(&args.output, &object)?;
    Ok(Outcome::Success)
}

/// The functions to compile, optimized unless that was declined.
fn functions(args: &Args, input: &Input, isa: &OwnedTargetIsa) -> anyhow::Result<Vec<Function>> {
    if args.no_opt {
        return Ok(input
            .functions
            .iter()
            .map(|parsed| parsed.func.clone())
            .collect());
    }
    let mut optimizer = Optimizer::new(args.flags.options(input));
    (0..input.functions.len())
        .map(|index| Ok(flags::optimize(&mut optimizer, input, index, &**isa)?.0))
        .collect()
}

/// What a linker name stands for in the module.
#[derive(Clone, Copy)]
enum Symbol {
    Func(FuncId),
    Data { id: DataId, tls: bool },
}

impl Symbol {
    /// The name under which a module knows it: space 0 is functions, 1 is data.
    fn name(self) -> UserExternalName {
        match self {
            Symbol::Func(id) => UserExternalName::new(0, id.as_u32()),
            Symbol::Data { id, .. } => UserExternalName::new(1, id.as_u32()),
        }
    }
}

struct Object {
    module: ObjectModule,
    symbols: HashMap<String, Symbol>,
}

impl Object {
    fn new(isa: OwnedTargetIsa) -> anyhow::Result<Object> {
        let builder = ObjectBuilder::new(isa, "clif", default_libcall_names())?;
        Ok(Object {
            module: ObjectModule::new(builder),
            symbols: HashMap::new(),
        })
    }

    fn compile(mut self, input: &Input, functions: Vec<Function>) -> anyhow::Result<Vec<u8>> {
        let place = |index: usize| input.place(&input.functions[index], None);
        let mut ids = Vec::new();
        for (index, func) in functions.iter().enumerate() {
            ids.push(self.declare(func).with_context(|| place(index))?);
        }
        for (index, (func, id)) in functions.into_iter().zip(ids).enumerate() {
            self.define(func, id).with_context(|| place(index))?;
        }
        Ok(self.module.finish().emit()?)
    }

    fn declare(&mut self, func: &Function) -> anyhow::Result<FuncId> {
        let name = func_linker_name(&func.name);
        if self.symbols.contains_key(&name) {
            bail!("an earlier function has the linker name '{name}' too: compile them apart");
        }
        let id = self
            .module
            .declare_function(&name, Linkage::Export, &func.signature)?;
        self.remember(name, Symbol::Func(id));
        Ok(id)
    }

    fn define(&mut self, mut func: Function, id: FuncId) -> anyhow::Result<()> {
        self.resolve_functions(&mut func)?;
        self.resolve_globals(&mut func)?;
        let mut context = Context::for_function(func);
        guarded(|| {
            self.module
                .define_function(id, &mut context)
                .map_err(|error| anyhow!("{error}"))
        })
    }

    /// Puts the module's names in place of those of the functions that `func` refers to.
    fn resolve_functions(&mut self, func: &mut Function) -> anyhow::Result<()> {
        let refs: Vec<FuncRef> = func.dfg.ext_funcs.keys().collect();
        for func_ref in refs {
            let callee = &func.dfg.ext_funcs[func_ref];
            let Some(name) = linker_name(func, &callee.name) else {
                continue;
            };
            let symbol = match self.symbols.get(&name) {
                Some(&symbol) => symbol,
                None => {
                    let signature = &func.dfg.signatures[callee.signature];
                    let id = self
                        .module
                        .declare_function(&name, Linkage::Import, signature)?;
                    self.remember(name, Symbol::Func(id))
                }
            };
            let name = func.declare_imported_user_function(symbol.name());
            func.dfg.ext_funcs[func_ref].name = ExternalName::user(name);
        }
        Ok(())
    }

    /// Puts the module's names in place of those of the symbols that `func` refers to.
    fn resolve_globals(&mut self, func: &mut Function) -> anyhow::Result<()> {
        let globals: Vec<GlobalValue> = func.global_values.keys().collect();
        for global in globals {
            let GlobalValueData::Symbol { name, tls, .. } = &func.global_values[global] else {
                continue;
            };
            let tls = *tls;
            let Some(name) = linker_name(func, name) else {
                continue;
            };
            let symbol = self.data_symbol(name, tls)?;
            let resolved = ExternalName::user(func.declare_imported_user_function(symbol.name()));
            if let GlobalValueData::Symbol { name, .. } = &mut func.global_values[global] {
                *name = resolved;
            }
        }
        Ok(())
    }

    fn data_symbol(&mut self, name: String, tls: bool) -> anyhow::Result<Symbol> {
        match self.symbols.get(&name) {
            Some(Symbol::Data { tls: known, .. }) if *known != tls => Err(anyhow!(
                "symbol '{name}' is thread-local in one function and not in another"
            )),
            Some(&symbol) => Ok(symbol),
            None => {
                let id = self
                    .module
                    .declare_data(&name, Linkage::Import, true, tls)?;
                Ok(self.remember(name, Symbol::Data { id, tls }))
            }
        }
    }

    fn remember(&mut self, name: String, symbol: Symbol) -> Symbol {
        self.symbols.insert(name, symbol);
        symbol
    }
}

fn func_linker_name(name: &UserFuncName) -> String {
    match name {
        UserFuncName::User(name) => user_linker_name(name),
        UserFuncName::Testcase(name) => String::from_utf8_lossy(name.raw()).into_owned(),
    }
}

/// The linker's name for what `func` refers to; `None` for what Cranelift resolves by itself.
fn linker_name(func: &Function, name: &ExternalName) -> Option<String> {
    match name {
        ExternalName::User(name) => Some(user_linker_name(&func.params.user_named_funcs()[*name])),
        ExternalName::TestCase(name) => Some(String::from_utf8_lossy(name.raw()).into_owned()),
        ExternalName::LibCall(_) | ExternalName::KnownSymbol(_) => None,
    }
}

fn user_linker_name(name: &UserExternalName) -> String {
    format!("u{}_{}", name.namespace, name.index)
}
