//! The wrapper over real modules, and over one that records what reaches it.

use std::cell::RefCell;
use std::str::FromStr;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{FuncRef, Function, GlobalValue, Signature, UserFuncName};
use cranelift_codegen::isa::{self, OwnedTargetIsa, TargetFrontendConfig, TargetIsa};
use cranelift_codegen::settings::{self, Flags};
use cranelift_codegen::{CodegenError, Context};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_memopt_module::{OptimizingModule, Options};
use cranelift_module::{
    DataDescription, DataId, FuncId, FuncOrDataId, Linkage, Module, ModuleDeclarations,
    ModuleError, ModuleReloc, ModuleRelocTarget, ModuleResult, default_libcall_names,
};
use cranelift_object::{ObjectBuilder, ObjectModule};
use object::{Object, ObjectSection, ObjectSymbol};
use target_lexicon::Triple;

/// Stores both arguments to a slot, loads them back, and returns the sum.
const SUM: &str = "
function %sum(i64, i64) -> i64 {
    ss0 = explicit_slot 16, align = 8
block0(v0: i64, v1: i64):
    v2 = stack_addr.i64 ss0
    store notrap aligned v0, v2
    store notrap aligned v1, v2+8
    v3 = load.i64 notrap aligned v2
    v4 = load.i64 notrap aligned v2+8
    v5 = iadd v3, v4
    return v5
}";

/// The same for 32-bit addresses.
const SUM_32: &str = "
function %sum(i64, i64) -> i64 {
    ss0 = explicit_slot 8, align = 8
block0(v0: i64, v1: i64):
    v2 = stack_addr.i32 ss0
    store notrap aligned v0, v2
    v3 = load.i64 notrap aligned v2
    v4 = iadd v3, v1
    return v4
}";

/// The block has no terminator: the verifier rejects this.
const INVALID: &str = "
function %sum(i64, i64) -> i64 {
block0(v0: i64, v1: i64):
    v2 = iadd v0, v1
}";

fn parse(clif: &str) -> Function {
    let mut functions = cranelift_reader::parse_functions(clif).expect("the test's CLIF parses");
    assert_eq!(functions.len(), 1);
    functions.remove(0)
}

/// A context with the function of `clif`, in the module's calling convention.
fn context(module: &impl Module, clif: &str) -> Context {
    let mut ctx = module.make_context();
    let call_conv = ctx.func.signature.call_conv;
    ctx.func = parse(clif);
    ctx.func.signature.call_conv = call_conv;
    ctx
}

fn target(triple: &str) -> OwnedTargetIsa {
    let triple = Triple::from_str(triple).expect("the test's target is one");
    isa::lookup(triple)
        .expect("the target is compiled in")
        .finish(Flags::new(settings::builder()))
        .expect("the default flags fit every target")
}

fn jit() -> JITModule {
    JITModule::new(JITBuilder::new(default_libcall_names()).expect("the host is supported"))
}

fn object_module() -> ObjectModule {
    let isa = target("x86_64-unknown-linux-gnu");
    let builder = ObjectBuilder::new(isa, "test", default_libcall_names());
    ObjectModule::new(builder.expect("the target has an object format"))
}

/// Declares `sum` in `module` and defines it from `clif`.
#[expect(clippy::result_large_err, reason = "the error type of the trait")]
fn define_sum<M: Module>(module: &mut M, clif: &str) -> ModuleResult<FuncId> {
    let mut ctx = context(module, clif);
    let id = module.declare_function("sum", Linkage::Export, &ctx.func.signature)?;
    ctx.func.name = UserFuncName::user(0, id.as_u32());
    module.define_function(id, &mut ctx)?;
    Ok(id)
}

/// Calls finalized code of the type of `SUM`.
///
/// # Safety
///
/// `code` is such code, for this machine.
unsafe fn call_sum(code: *const u8, a: i64, b: i64) -> i64 {
    // SAFETY: of the type of `SUM`, in the host's default calling convention.
    let sum: extern "C" fn(i64, i64) -> i64 = unsafe { std::mem::transmute(code) };
    sum(a, b)
}

#[test]
fn jit_code_runs() {
    let mut module = OptimizingModule::new(jit(), Options::default());
    let id = define_sum(&mut module, SUM).unwrap();
    module.inner_mut().finalize_definitions().unwrap();
    // SAFETY: the code was made from `SUM` and is finalized; its module is alive.
    let sum = unsafe { call_sum(module.inner().get_finalized_function(id), 40, 2) };
    assert_eq!(sum, 42);
    // SAFETY: nothing holds a pointer to the code any more.
    unsafe { module.into_inner().free_memory() };
}

#[test]
fn jit_control_plane_is_passed_on() {
    let mut module = OptimizingModule::new(jit(), Options::default());
    let mut ctx = context(&module, SUM);
    let id = module
        .declare_anonymous_function(&ctx.func.signature)
        .unwrap();
    module
        .define_function_with_control_plane(id, &mut ctx, &mut ControlPlane::default())
        .unwrap();
    assert_eq!(module.report().functions, 1);
    module.inner_mut().finalize_definitions().unwrap();
    // SAFETY: the code was made from `SUM` and is finalized; its module is alive.
    let sum = unsafe { call_sum(module.inner().get_finalized_function(id), -1, 2) };
    assert_eq!(sum, 1);
}

#[test]
fn object_has_the_symbol() {
    let mut module = OptimizingModule::new(object_module(), Options::default());
    define_sum(&mut module, SUM).unwrap();
    let bytes = module.into_inner().finish().emit().unwrap();
    let object = object::File::parse(&*bytes).unwrap();
    let symbol = object.symbol_by_name("sum").expect("a symbol `sum`");
    assert!(symbol.is_definition() && symbol.is_global());
    assert!(symbol.size() > 0);
}

#[test]
fn bytes_are_untouched() {
    // `mov eax, 7; ret`, or any bytes: they are not looked at.
    let code = [0xb8, 7, 0, 0, 0, 0xc3];
    let mut module = OptimizingModule::new(object_module(), Options::default());
    let signature = module.make_signature();
    let id = module
        .declare_function("seven", Linkage::Export, &signature)
        .unwrap();
    module.define_function_bytes(id, 1, &code, &[]).unwrap();
    assert_eq!(module.report().functions, 0);
    assert!(module.last_report().is_none());

    let bytes = module.into_inner().finish().emit().unwrap();
    let object = object::File::parse(&*bytes).unwrap();
    let symbol = object.symbol_by_name("seven").expect("a symbol `seven`");
    let section = object.section_by_index(symbol.section_index().unwrap());
    let text = section.unwrap().data().unwrap();
    let start = symbol.address() as usize;
    assert_eq!(text[start..start + code.len()], code);
}

#[test]
fn reports_add_up() {
    let options = Options {
        remarks: true,
        ..Options::default()
    };
    let mut module = OptimizingModule::new(jit(), options);
    assert!(module.options().remarks);
    assert_eq!(module.report().functions, 0);
    assert!(module.last_report().is_none());

    let signature = context(&module, SUM).func.signature.clone();
    let (mut changed, mut counters, mut remarks) = (0, 0, Vec::new());
    for _ in 0..3 {
        let id = module.declare_anonymous_function(&signature).unwrap();
        let mut ctx = context(&module, SUM);
        module.define_function(id, &mut ctx).unwrap();
        let last = module.last_report().expect("the function was optimized");
        changed += u64::from(last.changed);
        counters += last.stats.iter().map(|(_, value)| value).sum::<u64>();
        remarks.extend(last.remarks.iter().map(|r| (id, r.to_string())));
    }
    let taken = module.take_remarks();
    let taken: Vec<_> = taken.iter().map(|(id, r)| (*id, r.to_string())).collect();
    assert_eq!(taken, remarks);
    assert!(module.take_remarks().is_empty());

    let report = module.report();
    assert_eq!((report.functions, report.changed), (3, changed));
    assert_eq!(report.stats.iter().map(|(_, v)| v).sum::<u64>(), counters);
    let text = report.to_string();
    let head = format!("{changed} of 3 functions changed");
    assert_eq!(text.lines().next(), Some(head.as_str()));
}

#[test]
fn unsupported_target_compiles_unoptimized() {
    let isa = target("pulley32");
    assert_eq!(isa.pointer_bits(), 32);
    let inner = JITModule::new(JITBuilder::with_isa(isa, default_libcall_names()));
    let mut module = OptimizingModule::new(inner, Options::default());
    define_sum(&mut module, SUM_32).unwrap();

    let report = module.report();
    assert_eq!((report.functions, report.changed), (0, 0));
    assert_eq!(report.unsupported, 1);
    assert!(module.last_report().is_none());
    assert_eq!(
        report.to_string(),
        "0 of 0 functions changed, 1 on an unsupported target"
    );
}

#[test]
fn invalid_function_gets_the_verifiers_error() {
    let without = define_sum(&mut jit(), INVALID).unwrap_err();
    let mut module = OptimizingModule::new(jit(), Options::default());
    let with = define_sum(&mut module, INVALID).unwrap_err();
    assert!(matches!(
        with,
        ModuleError::Compilation(CodegenError::Verifier(_))
    ));
    assert_eq!(with.to_string(), without.to_string());
    assert_eq!(module.report().functions, 0);
}

#[test]
fn errors_of_the_inner_module_come_through() {
    let mut module = OptimizingModule::new(jit(), Options::default());
    let id = define_sum(&mut module, SUM).unwrap();
    let mut ctx = context(&module, SUM);
    let again = module.define_function(id, &mut ctx).unwrap_err();
    assert!(matches!(again, ModuleError::DuplicateDefinition(_)));
}

/// A function defined in the inner module is not optimized.
#[test]
fn inner_mut_is_the_way_around() {
    let mut module = OptimizingModule::new(jit(), Options::default());
    define_sum(module.inner_mut(), SUM).unwrap();
    assert_eq!(module.report().functions, 0);
    assert!(module.get_name("sum").is_some());
}

#[test]
fn wraps_modules_behind_pointers() {
    let mut inner = jit();
    let mut borrowed = OptimizingModule::new(&mut inner as &mut dyn Module, Options::default());
    define_sum(&mut borrowed, SUM).unwrap();
    assert_eq!(borrowed.report().functions, 1);

    let boxed: Box<dyn Module> = Box::new(object_module());
    let mut boxed = OptimizingModule::new(boxed, Options::default());
    define_sum(&mut boxed, SUM).unwrap();
    assert_eq!(boxed.report().functions, 1);
}

#[test]
fn is_send_where_the_inner_module_is() {
    fn assert_send<T: Send>(_: &T) {}
    assert_send(&OptimizingModule::new(jit(), Options::default()));
}

/// A module that notes the name of every method that is called on it. It overrides all of them, so
/// that one which falls back to the trait's default in the wrapper shows as a missing name.
struct Recorder {
    inner: JITModule,
    calls: RefCell<Vec<&'static str>>,
}

impl Recorder {
    fn new() -> Self {
        Recorder {
            inner: jit(),
            calls: RefCell::default(),
        }
    }

    fn note(&self, name: &'static str) {
        self.calls.borrow_mut().push(name);
    }
}

/// Makes each method note its name and do what the inner module does.
macro_rules! recording {
    ($($name:ident(& $($mut:ident)? $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        /// The methods of the trait.
        const METHODS: &[&str] = &[$(stringify!($name)),*];

        impl Module for Recorder {
            $(recording!(@method $name ($($mut)?) ($($arg: $type),*) ($($result)?));)*
        }
    };
    (@method $name:ident () ($($arg:ident: $type:ty),*) ($($result:ty)?)) => {
        fn $name(&self $(, $arg: $type)*) $(-> $result)? {
            self.note(stringify!($name));
            self.inner.$name($($arg),*)
        }
    };
    (@method $name:ident (mut) ($($arg:ident: $type:ty),*) ($($result:ty)?)) => {
        fn $name(&mut self $(, $arg: $type)*) $(-> $result)? {
            self.note(stringify!($name));
            self.inner.$name($($arg),*)
        }
    };
}

recording! {
    isa(&) -> &dyn TargetIsa;
    declarations(&) -> &ModuleDeclarations;
    get_name(&, name: &str) -> Option<FuncOrDataId>;
    target_config(&) -> TargetFrontendConfig;
    make_context(&) -> Context;
    clear_context(&, ctx: &mut Context);
    make_signature(&) -> Signature;
    clear_signature(&, sig: &mut Signature);
    declare_function(&mut, name: &str, linkage: Linkage, sig: &Signature) -> ModuleResult<FuncId>;
    declare_anonymous_function(&mut, sig: &Signature) -> ModuleResult<FuncId>;
    declare_data(&mut, name: &str, linkage: Linkage, writable: bool, tls: bool)
        -> ModuleResult<DataId>;
    declare_anonymous_data(&mut, writable: bool, tls: bool) -> ModuleResult<DataId>;
    declare_func_in_func(&mut, id: FuncId, func: &mut Function) -> FuncRef;
    declare_data_in_func(&, id: DataId, func: &mut Function) -> GlobalValue;
    declare_func_in_data(&, id: FuncId, data: &mut DataDescription) -> FuncRef;
    declare_data_in_data(&, id: DataId, data: &mut DataDescription) -> GlobalValue;
    define_function(&mut, id: FuncId, ctx: &mut Context) -> ModuleResult<()>;
    define_function_with_control_plane(&mut, id: FuncId, ctx: &mut Context, plane: &mut ControlPlane)
        -> ModuleResult<()>;
    define_function_bytes(&mut, id: FuncId, alignment: u64, bytes: &[u8], relocs: &[ModuleReloc])
        -> ModuleResult<()>;
    define_data(&mut, id: DataId, data: &DataDescription) -> ModuleResult<()>;
}

#[test]
fn every_method_is_delegated() {
    let mut module = OptimizingModule::new(Recorder::new(), Options::default());
    let mut delegated = Vec::new();
    // Calls one method and takes note of what reached the inner module: the same one, once. The
    // optimizer may ask for `isa` besides.
    macro_rules! call {
        ($name:ident($($arg:expr),*)) => {{
            let result = module.$name($($arg),*);
            let name = stringify!($name);
            let mut calls = module.inner().calls.take();
            calls.retain(|&call| call == name || call != "isa");
            assert_eq!(calls, [name]);
            delegated.push(name);
            result
        }};
    }

    call!(isa());
    call!(declarations());
    call!(target_config());
    let mut ctx = call!(make_context());
    call!(clear_context(&mut ctx));
    let mut signature = call!(make_signature());
    call!(clear_signature(&mut signature));

    let f = call!(declare_function("f", Linkage::Export, &signature)).unwrap();
    let g = call!(declare_anonymous_function(&signature)).unwrap();
    let d = call!(declare_data("d", Linkage::Local, true, false)).unwrap();
    let e = call!(declare_anonymous_data(false, false)).unwrap();
    assert_eq!(call!(get_name("f")), Some(FuncOrDataId::Func(f)));
    assert_eq!(call!(get_name("g")), None, "anonymous");
    let declarations = module.inner().inner.declarations();
    assert_eq!(declarations.get_function_decl(f).linkage, Linkage::Export);
    assert_eq!(declarations.get_function_decl(g).name, None);
    assert!(declarations.get_data_decl(d).writable);
    assert!(!declarations.get_data_decl(e).writable);

    call!(declare_func_in_func(g, &mut ctx.func));
    call!(declare_data_in_func(d, &mut ctx.func));
    let mut data = DataDescription::new();
    data.define(Box::new([1, 2, 3, 4]));
    call!(declare_func_in_data(f, &mut data));
    call!(declare_data_in_data(e, &mut data));
    call!(define_data(d, &data)).unwrap();

    let parsed = parse(SUM);
    let call_conv = signature.call_conv;
    signature = parsed.signature.clone();
    signature.call_conv = call_conv;
    let h = module.declare_anonymous_function(&signature).unwrap();
    let i = module.declare_anonymous_function(&signature).unwrap();
    module.inner().calls.take();
    ctx.func = parsed.clone();
    call!(define_function(h, &mut ctx)).unwrap();
    ctx.clear();
    ctx.func = parsed;
    let mut plane = ControlPlane::default();
    call!(define_function_with_control_plane(i, &mut ctx, &mut plane)).unwrap();
    let target = ModuleRelocTarget::user(0, f.as_u32());
    let reloc = ModuleReloc {
        offset: 0,
        kind: Reloc::Abs8,
        name: target,
        addend: 0,
    };
    call!(define_function_bytes(g, 16, &[0; 8], &[reloc])).unwrap();

    delegated.sort_unstable();
    delegated.dedup();
    let mut methods = METHODS.to_vec();
    methods.sort_unstable();
    assert_eq!(delegated, methods);
}
