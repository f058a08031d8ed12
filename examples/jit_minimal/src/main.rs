//! One function, compiled by Cranelift with and without `cranelift-memopt`: what changes in the
//! CLIF, what is left in the machine code, and that both give the same results.
//!
//! Run it with `cargo run -p jit_minimal`. The lines that an embedder of the library needs are in
//! `main`: step 1 for [`Optimizer`], the library itself, and step 2 for [`OptimizingModule`], which
//! does the same inside `define_function`.

use std::mem;

use anyhow::{Result, ensure};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Function, InstBuilder, MemFlagsData, Signature, StackSlotData, StackSlotKind, types,
};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_memopt::{Optimizer, Options};
use cranelift_memopt_module::OptimizingModule;
use cranelift_module::{FuncId, Linkage, Module, default_libcall_names};

/// The struct that the compiled function is given a pointer to.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    balance: i64,
    deposits: i64,
    last: i64,
}

const BALANCE: i32 = mem::offset_of!(Account, balance) as i32;
const DEPOSITS: i32 = mem::offset_of!(Account, deposits) as i32;
const LAST: i32 = mem::offset_of!(Account, last) as i32;

/// Writes into `func` what a simple frontend makes of the source below: each variable lives in
/// memory, and is loaded and stored wherever it is named.
///
/// ```text
/// fn deposit(account: &mut Account, amount: i64) -> i64 {
///     let mut entry = Entry { amount, count: 1 }; // a stack slot of 16 bytes
///     account.last = 0;                           // dead: overwritten below
///     if amount > 100 {
///         entry.amount += 5;                      // this load: `amount`
///     }
///     account.balance += entry.amount;
///     account.deposits += entry.count;            // this load: 1, though paths join between
///     account.last = entry.amount;                // this load: the one two lines above
///     account.balance                             // this load: what was stored three lines above
/// }
/// ```
fn build_deposit(func: &mut Function, config: TargetFrontendConfig) {
    /// Offsets in the slot.
    const AMOUNT: i32 = 0;
    const COUNT: i32 = 8;

    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(func, &mut context);
    let [entry_block, bonus_block, book_block] = [(); 3].map(|()| b.create_block());
    let slot = b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, 16, 3));
    // The frontend knows that the accesses are valid: they are aligned and do not trap. Say so: an
    // access that may trap keeps the stores before it, because a trap shows memory to others.
    let flags = MemFlagsData::trusted();

    b.switch_to_block(entry_block);
    b.append_block_params_for_function_params(entry_block);
    let account = b.block_params(entry_block)[0];
    let amount = b.block_params(entry_block)[1];
    let entry = b.ins().stack_addr(types::I64, slot, 0);
    b.ins().store(flags, amount, entry, AMOUNT);
    let one = b.ins().iconst(types::I64, 1);
    b.ins().store(flags, one, entry, COUNT);
    let zero = b.ins().iconst(types::I64, 0);
    b.ins().store(flags, zero, account, LAST);
    let large = b.ins().icmp_imm_s(IntCC::SignedGreaterThan, amount, 100);
    b.ins().brif(large, bonus_block, &[], book_block, &[]);

    b.switch_to_block(bonus_block);
    let value = b.ins().load(types::I64, flags, entry, AMOUNT);
    let value = b.ins().iadd_imm_s(value, 5);
    b.ins().store(flags, value, entry, AMOUNT);
    b.ins().jump(book_block, &[]);

    b.switch_to_block(book_block);
    for (variable, field) in [(AMOUNT, BALANCE), (COUNT, DEPOSITS)] {
        let old = b.ins().load(types::I64, flags, account, field);
        let value = b.ins().load(types::I64, flags, entry, variable);
        let new = b.ins().iadd(old, value);
        b.ins().store(flags, new, account, field);
    }
    let value = b.ins().load(types::I64, flags, entry, AMOUNT);
    b.ins().store(flags, value, account, LAST);
    let result = b.ins().load(types::I64, flags, account, BALANCE);
    b.ins().return_(&[result]);

    b.seal_all_blocks();
    b.finalize(config);
}

/// Loads and stores in the text of the function, once each, however often they run.
fn count_loads_and_stores(func: &Function) -> (usize, usize) {
    let (mut loads, mut stores) = (0, 0);
    let blocks = func.layout.blocks();
    for inst in blocks.flat_map(|block| func.layout.block_insts(block)) {
        let opcode = func.dfg.insts[inst].opcode();
        if !opcode.is_call() {
            loads += usize::from(opcode.can_load());
            stores += usize::from(opcode.can_store());
        }
    }
    (loads, stores)
}

fn signature(module: &impl Module) -> Signature {
    let mut signature = module.make_signature();
    signature.params.push(AbiParam::new(types::I64)); // account
    signature.params.push(AbiParam::new(types::I64)); // amount
    signature.returns.push(AbiParam::new(types::I64));
    signature
}

/// A function in a module, and what Cranelift made of it.
struct Compiled {
    id: FuncId,
    loads: usize,
    stores: usize,
    code_bytes: u32,
}

/// Compiles the function in `module`. The same code serves any module, wrapped or not.
fn compile(module: &mut impl Module) -> Result<Compiled> {
    let mut ctx = module.make_context();
    ctx.func.signature = signature(module);
    let id = module.declare_function("deposit", Linkage::Export, &ctx.func.signature)?;
    build_deposit(&mut ctx.func, module.target_config());
    module.define_function(id, &mut ctx)?;

    // The function in `ctx` has been through Cranelift's own optimizer by now.
    let (loads, stores) = count_loads_and_stores(&ctx.func);
    let code = ctx.compiled_code().expect("the function was just compiled");
    Ok(Compiled {
        id,
        loads,
        stores,
        code_bytes: code.code_info().total_size,
    })
}

fn jit() -> Result<JITModule> {
    // Cranelift's optimizer on, in both modules: what is shown comes on top of what it does.
    let builder = JITBuilder::with_flags(&[("opt_level", "speed")], default_libcall_names())?;
    Ok(JITModule::new(builder))
}

/// Calls the machine code at `code` on a fresh account.
///
/// # Safety
///
/// `code` is the finalized code of `build_deposit`, for this machine.
unsafe fn call(code: *const u8, amount: i64) -> (i64, Account) {
    // SAFETY: a pointer to code that takes and returns what `signature` says, in the default
    // calling convention of this machine, which is `extern "C"`.
    let deposit: extern "C" fn(&mut Account, i64) -> i64 = unsafe { mem::transmute(code) };
    let mut account = Account {
        balance: 1000,
        deposits: 3,
        last: -1,
    };
    let result = deposit(&mut account, amount);
    (result, account)
}

fn main() -> Result<()> {
    // 1. The optimizer by itself: CLIF in, CLIF out.
    let mut plain = jit()?;
    let mut func = Function::new();
    func.signature = signature(&plain);
    build_deposit(&mut func, plain.target_config());
    let (loads_before, stores_before) = count_loads_and_stores(&func);
    println!("== CLIF before: as the frontend made it ==\n\n{func}");

    let report = Optimizer::new(Options::default()).optimize(&mut func, plain.isa())?;
    let (loads_after, stores_after) = count_loads_and_stores(&func);
    println!("== CLIF after cranelift-memopt ==\n\n{func}");

    println!("== What changed in the CLIF ==\n");
    println!("loads:  {loads_before} before, {loads_after} after");
    println!("stores: {stores_before} before, {stores_after} after");
    for (counter, value) in report.stats.iter().filter(|&(_, value)| value > 0) {
        println!("  {counter} = {value}");
    }

    // 2. The same inside a JIT: the wrapper optimizes each function that is defined.
    let without = compile(&mut plain)?;
    plain.finalize_definitions()?;

    let mut optimizing = OptimizingModule::new(jit()?, Options::default());
    let with = compile(&mut optimizing)?;
    optimizing.inner_mut().finalize_definitions()?;

    println!("\n== What is left after Cranelift's own optimizer ==\n");
    println!("                  loads  stores  bytes of machine code");
    for (name, it) in [("without wrapper", &without), ("with wrapper", &with)] {
        let (loads, stores, bytes) = (it.loads, it.stores, it.code_bytes);
        println!("{name:<16} {loads:>6} {stores:>7} {bytes:>6}");
    }
    let total = optimizing.report();
    println!("{} of {} functions changed", total.changed, total.functions);

    // 3. Both give the same results, on either path.
    println!("\n== Results ==\n");
    let code_without = plain.get_finalized_function(without.id);
    let code_with = optimizing.inner().get_finalized_function(with.id);
    for amount in [30, 500] {
        // SAFETY: both are finalized code of `build_deposit`, in modules that are still alive.
        let (expected, actual) = unsafe { (call(code_without, amount), call(code_with, amount)) };
        println!("deposit({amount}) without wrapper: {expected:?}");
        println!("deposit({amount}) with wrapper:    {actual:?}");
        ensure!(
            expected == actual,
            "the results of deposit({amount}) differ"
        );
    }
    println!("\nThe results are equal.");
    Ok(())
}
