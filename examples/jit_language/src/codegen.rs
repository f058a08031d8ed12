//! The checked program to CLIF, as a simple front end does it: every variable, every parameter and
//! every temporary is a stack slot, and each use of one is a `stack_addr` with a load or a store.
//!
//! - **Flags.** All accesses are `notrap aligned`: slots are there, and the places behind references
//!   are slots of callers. An index is checked first, unless it is constant.
//! - **Addresses.** Indexing is address arithmetic, which keeps a slot private. The address of a
//!   slot leaves the function only for `&` arguments, and for aggregates of more than
//!   [`SMALL_SCALARS_MAX`] scalars: those are passed as a pointer to a copy, returned into memory of
//!   the caller, and copied by `memcpy`. Smaller ones are passed and returned as their scalars.
//! - **Failures.** A check that fails calls the host's `fail` with a number for what and where, and
//!   returns. The first result of every function tells whether it failed; a caller returns too.
//! - **Recursion.** The first argument is how many bytes of stack are left. A function subtracts
//!   its own share and fails if there is not enough.

use std::collections::HashMap;

use anyhow::Context as _;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{
    self, AbiParam, Block, FuncRef, Function, Inst, InstBuilder, InstructionData, MemFlagsData,
    Opcode, Signature, StackSlot, StackSlotData, StackSlotKind, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{FuncId, Linkage, Module};

use crate::ast::{BinaryOp, UnaryOp};
use crate::error::{Error, Position, Result};
use crate::runtime::{FailureKind, FailureSite};
use crate::typed::{self, Builtin, Expr, ExprKind, LocalId, Program, Statement};
use crate::types::{Leaf, SMALL_SCALARS_MAX, Scalar, Type, Types};

/// Bytes of all slots of a function.
const FRAME_BYTES_MAX: u64 = 4 << 20;

/// Elements of `[value; count]` that are stored one by one; more are stored by a loop.
const UNROLLED_ELEMENTS_MAX: u64 = 8;

/// All that is behind a place of this front end's is there and aligned.
const FLAGS: MemFlagsData = MemFlagsData::trusted();

/// The functions of the program and of the host, as the module knows them.
pub(crate) struct Imports {
    functions: Vec<FuncId>,
    print_i64: FuncId,
    print_f64: FuncId,
    print_bool: FuncId,
    print_end: FuncId,
    fail: FuncId,
    /// What the host calls.
    pub(crate) start: FuncId,
}

/// A slot, and what the front end knows of its use.
#[derive(Clone, Debug)]
pub(crate) struct SlotInfo {
    pub(crate) slot: StackSlot,
    /// The variable, or in round brackets what it is for.
    pub(crate) name: String,
    pub(crate) bytes: u32,
    /// An index into it is known at run time only.
    pub(crate) indexed: bool,
    /// Its address leaves the function: an argument, or a `memcpy`.
    pub(crate) passed: bool,
}

/// Declares all functions, the host's too.
pub(crate) fn declare(module: &mut impl Module, program: &Program) -> anyhow::Result<Imports> {
    let host = |params: &[AbiParam], results: &[AbiParam], module: &dyn Module| Signature {
        params: params.to_vec(),
        returns: results.to_vec(),
        call_conv: module.target_config().default_call_conv,
    };
    let (int, float) = (AbiParam::new(types::I64), AbiParam::new(types::F64));
    let bool = AbiParam::new(types::I8).uext();
    let mut import = |name: &str, linkage, params: &[AbiParam], results: &[AbiParam]| {
        let signature = host(params, results, module);
        let declared = module.declare_function(name, linkage, &signature);
        declared.with_context(|| format!("cannot declare {name}"))
    };
    let print_i64 = import("print_i64", Linkage::Import, &[int], &[])?;
    let print_f64 = import("print_f64", Linkage::Import, &[float], &[])?;
    let print_bool = import("print_bool", Linkage::Import, &[bool], &[])?;
    let print_end = import("print_end", Linkage::Import, &[], &[bool])?;
    let fail = import("fail", Linkage::Import, &[int, int], &[])?;
    let start = import("(start)", Linkage::Export, &[int], &[bool])?;
    let functions = program.functions.iter().map(|function| {
        // Function names are the program's own, and must not meet those of the host.
        let name = format!("tin.{}", function.name);
        let signature = signature(&program.types, function);
        let declared = module.declare_function(&name, Linkage::Local, &signature);
        declared.with_context(|| format!("cannot declare {name}"))
    });
    Ok(Imports {
        functions: functions.collect::<anyhow::Result<_>>()?,
        print_i64,
        print_f64,
        print_bool,
        print_end,
        fail,
        start,
    })
}

impl Imports {
    pub(crate) fn function(&self, at: usize) -> FuncId {
        self.functions[at]
    }
}

/// How a value of a type is passed and returned.
fn leaves(types: &Types, ty: Type) -> Option<&[Leaf]> {
    types.layout(ty).leaves.as_deref()
}

fn clif_type(scalar: Scalar) -> ir::Type {
    match scalar {
        Scalar::I64 => types::I64,
        Scalar::F64 => types::F64,
        Scalar::Bool => types::I8,
    }
}

/// Bytes of stack that are left, where to put a large result, and the parameters; to whether it
/// failed, and the scalars of a small result.
pub(crate) fn signature(types: &Types, function: &typed::Function) -> Signature {
    let pointer = AbiParam::new(types::I64);
    // Of Cranelift's calling conventions, the one that returns five values in registers.
    let mut signature = Signature::new(CallConv::Tail);
    signature.params.push(AbiParam::new(types::I64));
    signature.returns.push(AbiParam::new(types::I8));
    let scalars = |leaves: &[Leaf]| -> Vec<AbiParam> {
        let scalars = leaves.iter().map(|leaf| clif_type(leaf.scalar));
        scalars.map(AbiParam::new).collect()
    };
    if let Some(result) = function.result {
        match leaves(types, result) {
            Some(leaves) => signature.returns.extend(scalars(leaves)),
            None => signature.params.push(pointer),
        }
    }
    for param in &function.locals[..function.params] {
        match leaves(types, param.ty) {
            Some(leaves) if !param.by_reference => signature.params.extend(scalars(leaves)),
            _ => signature.params.push(pointer),
        }
    }
    signature
}

/// Builds what the host calls: from its calling convention to that of `main`.
pub(crate) fn build_start<M: Module>(
    module: &mut M,
    imports: &Imports,
    program: &Program,
    func: &mut Function,
    context: &mut FunctionBuilderContext,
) {
    let declared = module.declarations().get_function_decl(imports.start);
    func.signature = declared.signature.clone();
    let main = module.declare_func_in_func(imports.functions[program.main], func);
    let mut b = FunctionBuilder::new(func, context);
    let block = b.create_block();
    b.switch_to_block(block);
    b.append_block_params_for_function_params(block);
    b.seal_all_blocks();
    let stack_bytes = b.block_params(block)[0];
    let call = b.ins().call(main, &[stack_bytes]);
    let failed = b.inst_results(call)[0];
    b.ins().return_(&[failed]);
    b.finalize(module.target_config());
}

/// Builds function number `at` into `func`, and gives its slots. What may fail in it is added to
/// `sites`.
pub(crate) fn build_function<M: Module>(
    module: &mut M,
    imports: &Imports,
    program: &Program,
    at: usize,
    func: &mut Function,
    context: &mut FunctionBuilderContext,
    sites: &mut Vec<FailureSite>,
) -> Result<Vec<SlotInfo>> {
    let function = &program.functions[at];
    func.signature = signature(&program.types, function);
    let config = module.target_config();
    let mut b = FunctionBuilder::new(func, context);
    let entry = b.create_block();
    b.switch_to_block(entry);
    b.append_block_params_for_function_params(entry);
    let failed = b.create_block();
    b.set_cold_block(failed);
    let mut builder = Builder {
        module,
        imports,
        program,
        function,
        b,
        references: HashMap::new(),
        slots: Vec::new(),
        locals: Vec::new(),
        stack_left: None,
        result_pointer: None,
        failed,
        loops: Vec::new(),
        ended: false,
        sites,
    };
    let share = builder.entry(entry);
    builder.statements(&function.body);
    if !builder.ended {
        builder.return_values(false, &[]);
    }
    builder.b.switch_to_block(failed);
    builder.return_values(true, &[]);
    builder.set_share(share)?;
    builder.b.seal_all_blocks();
    builder.b.finalize(config);
    Ok(builder.slots)
}

/// A place in memory.
#[derive(Clone, Copy)]
struct Place {
    base: Base,
    offset: u32,
    /// The slot that `base` was computed from, if it is one of this function.
    slot: Option<StackSlot>,
}

#[derive(Clone, Copy)]
enum Base {
    Slot(StackSlot),
    Address(Value),
}

impl Place {
    fn slot(slot: StackSlot) -> Place {
        Place {
            base: Base::Slot(slot),
            offset: 0,
            slot: Some(slot),
        }
    }

    fn at(self, offset: u32) -> Place {
        Place {
            offset: self.offset + offset,
            ..self
        }
    }
}

/// Where a variable is.
#[derive(Clone, Copy)]
enum Storage {
    Slot(StackSlot),
    /// The slot holds its address: a reference, or a large parameter.
    Behind(StackSlot),
}

struct Loop {
    continue_block: Block,
    break_block: Block,
    /// Whether something jumps to `break_block`.
    left: bool,
}

struct Builder<'a, M> {
    module: &'a mut M,
    imports: &'a Imports,
    program: &'a Program,
    function: &'a typed::Function,
    b: FunctionBuilder<'a>,
    references: HashMap<FuncId, FuncRef>,
    slots: Vec<SlotInfo>,
    /// Those declared so far.
    locals: Vec<Option<Storage>>,
    stack_left: Option<StackSlot>,
    result_pointer: Option<StackSlot>,
    /// Returns that the function failed.
    failed: Block,
    loops: Vec<Loop>,
    /// Whether the current block has its terminator: what follows cannot be reached.
    ended: bool,
    sites: &'a mut Vec<FailureSite>,
}

/// Slots, addresses, and the frame.
impl<'a, M: Module> Builder<'a, M> {
    fn new_slot(&mut self, name: &str, bytes: u32, align_shift: u8) -> StackSlot {
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, align_shift);
        let slot = self.b.create_sized_stack_slot(data);
        self.slots.push(SlotInfo {
            slot,
            name: name.to_string(),
            bytes,
            indexed: false,
            passed: false,
        });
        slot
    }

    fn slot_for(&mut self, name: &str, ty: Type) -> StackSlot {
        let layout = self.program.types.layout(ty);
        self.new_slot(name, layout.size, layout.align_shift)
    }

    fn temporary(&mut self, ty: Type) -> Place {
        Place::slot(self.slot_for("(temporary)", ty))
    }

    /// The address of a place, less an offset.
    fn address(&mut self, place: Place) -> (Value, i32) {
        let base = match place.base {
            Base::Slot(slot) => self.b.ins().stack_addr(types::I64, slot, 0),
            Base::Address(address) => address,
        };
        (base, place.offset as i32)
    }

    /// The address of a place as one value, which leaves the function.
    fn passed_address(&mut self, place: Place) -> Value {
        if let Some(slot) = place.slot {
            self.slots[slot.as_u32() as usize].passed = true;
        }
        self.whole_address(place)
    }

    fn whole_address(&mut self, place: Place) -> Value {
        match place.base {
            Base::Slot(slot) => {
                let offset = place.offset as i32;
                self.b.ins().stack_addr(types::I64, slot, offset)
            }
            Base::Address(address) if place.offset == 0 => address,
            Base::Address(address) => {
                let offset = i64::from(place.offset);
                self.b.ins().iadd_imm_s(address, offset)
            }
        }
    }

    fn load(&mut self, place: Place, ty: ir::Type) -> Value {
        let (address, offset) = self.address(place);
        self.b.ins().load(ty, FLAGS, address, offset)
    }

    fn store(&mut self, place: Place, value: Value) {
        let (address, offset) = self.address(place);
        self.b.ins().store(FLAGS, value, address, offset);
    }

    fn load_leaves(&mut self, place: Place, leaves: &[Leaf]) -> Vec<Value> {
        leaves
            .iter()
            .map(|leaf| self.load(place.at(leaf.offset), clif_type(leaf.scalar)))
            .collect()
    }

    fn store_leaves(&mut self, place: Place, leaves: &[Leaf], values: &[Value]) {
        for (leaf, &value) in leaves.iter().zip(values) {
            self.store(place.at(leaf.offset), value);
        }
    }

    /// Copies between places of a type, which are the same place or do not overlap.
    fn copy(&mut self, target: Place, source: Place, ty: Type) {
        let program = self.program;
        if let Some(leaves) = leaves(&program.types, ty) {
            let values = self.load_leaves(source, leaves);
            self.store_leaves(target, leaves, &values);
            return;
        }
        let target = self.passed_address(target);
        let source = self.passed_address(source);
        let size = i64::from(program.types.layout(ty).size);
        let size = self.b.ins().iconst(types::I64, size);
        // All implementations take equal pointers; C compilers rely on it for struct assignment.
        let config = self.module.target_config();
        self.b.call_memcpy(config, target, source, size);
    }

    /// Puts the parameters into slots and takes this function's share of the stack, which is an
    /// `iconst` that [`Self::set_share`] completes.
    fn entry(&mut self, entry: Block) -> Inst {
        let program = self.program;
        let params = self.b.block_params(entry).to_vec();
        let mut params = params.into_iter();
        let mut next = || params.next().expect("the signature has all parameters");

        let slot = self.new_slot("(stack left)", 8, 3);
        let given = next();
        let share = self.b.ins().iconst(types::I64, 0);
        let share_inst = self.b.func.dfg.value_def(share).unwrap_inst();
        let left = self.b.ins().isub(given, share);
        self.store(Place::slot(slot), left);
        self.stack_left = Some(slot);
        let pointer_slot = |builder: &mut Self, name: &str, value| {
            let slot = builder.new_slot(name, 8, 3);
            builder.store(Place::slot(slot), value);
            slot
        };
        if let Some(result) = self.function.result
            && leaves(&program.types, result).is_none()
        {
            self.result_pointer = Some(pointer_slot(self, "(result)", next()));
        }
        self.locals = vec![None; self.function.locals.len()];
        let function = self.function;
        for (at, param) in function.locals[..function.params].iter().enumerate() {
            let storage = match leaves(&program.types, param.ty) {
                Some(leaves) if !param.by_reference => {
                    let slot = self.slot_for(&param.name, param.ty);
                    let values: Vec<Value> = leaves.iter().map(|_| next()).collect();
                    self.store_leaves(Place::slot(slot), leaves, &values);
                    Storage::Slot(slot)
                }
                _ => Storage::Behind(pointer_slot(self, &param.name, next())),
            };
            self.locals[at] = Some(storage);
        }
        let none = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, left, 0);
        self.fail_if(none, FailureKind::StackOverflow, self.function.at, None);
        share_inst
    }

    /// What the frame takes at most: slots, and a spill for each value.
    fn set_share(&mut self, share: Inst) -> Result<()> {
        let slots: u64 = self
            .slots
            .iter()
            .map(|slot| u64::from(slot.bytes) + 8)
            .sum();
        if slots > FRAME_BYTES_MAX {
            let name = &self.function.name;
            let message =
                format!("the variables of `{name}` take more than {FRAME_BYTES_MAX} bytes");
            return Err(Error::new(self.function.at, message));
        }
        let bytes = slots + 8 * self.b.func.dfg.num_values() as u64 + 128;
        self.b.func.dfg.insts[share] = InstructionData::UnaryImm {
            opcode: Opcode::Iconst,
            imm: i64::try_from(bytes).unwrap_or(i64::MAX).into(),
        };
        Ok(())
    }

    /// Returns whether the function failed, and the scalars of its result.
    fn return_values(&mut self, failed: bool, values: &[Value]) {
        let failed = self.b.ins().iconst(types::I8, i64::from(failed));
        let mut all = vec![failed];
        all.extend(values);
        // Those of a failure, which nobody looks at.
        let missing: Vec<ir::Type> = self.b.func.signature.returns[all.len()..]
            .iter()
            .map(|result| result.value_type)
            .collect();
        for ty in missing {
            all.push(match ty {
                types::F64 => self.b.ins().f64const(0.0),
                ty => self.b.ins().iconst(ty, 0),
            });
        }
        self.b.ins().return_(&all);
        self.ended = true;
    }

    /// Ends the current block by a jump, if it can be reached.
    fn jump(&mut self, target: Block) {
        if !self.ended {
            self.b.ins().jump(target, &[]);
            self.ended = true;
        }
    }

    fn start(&mut self, block: Block) {
        self.b.switch_to_block(block);
        self.ended = false;
    }

    fn reference(&mut self, id: FuncId) -> FuncRef {
        let (module, func) = (&mut *self.module, &mut *self.b.func);
        let known = self.references.entry(id);
        *known.or_insert_with(|| module.declare_func_in_func(id, func))
    }

    /// Fails at `at` if `condition` holds; `value` goes into the message.
    fn fail_if(&mut self, condition: Value, kind: FailureKind, at: Position, value: Option<Value>) {
        let fails = self.b.create_block();
        let goes_on = self.b.create_block();
        self.b.set_cold_block(fails);
        self.b.ins().brif(condition, fails, &[], goes_on, &[]);
        self.b.switch_to_block(fails);
        let site = self.sites.len() as i64;
        self.sites.push(FailureSite { kind, at });
        let site = self.b.ins().iconst(types::I64, site);
        let value = value.unwrap_or(site);
        let fail = self.reference(self.imports.fail);
        self.b.ins().call(fail, &[site, value]);
        self.b.ins().jump(self.failed, &[]);
        self.b.switch_to_block(goes_on);
    }
}

/// Statements.
impl<'a, M: Module> Builder<'a, M> {
    fn statements(&mut self, statements: &'a [Statement]) {
        for statement in statements {
            if self.ended {
                return;
            }
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &'a Statement) {
        match statement {
            Statement::Let(local, value) => {
                let slot = self.declare(*local);
                self.expr_into(Place::slot(slot), value);
            }
            Statement::Assign { target, op, value } => self.assign(target, *op, value),
            Statement::Call(call) => match &call.kind {
                ExprKind::Call(callee, arguments) => {
                    let function = &self.program.functions[*callee];
                    let large = function
                        .result
                        .filter(|&ty| leaves(&self.program.types, ty).is_none());
                    let result = large.map(|ty| self.temporary(ty));
                    self.call(*callee, arguments, result);
                }
                _ => {
                    self.scalar(call);
                }
            },
            Statement::Print(values, at) => self.print(values, *at),
            Statement::If { arms, otherwise } => self.if_else(arms, otherwise),
            Statement::While { condition, body } => self.while_loop(condition, body),
            Statement::For {
                local,
                from,
                to,
                body,
            } => self.for_loop(*local, from, to, body),
            Statement::Return(value) => self.return_statement(value.as_ref()),
            Statement::Break => {
                let around = self.loops.last_mut().expect("`break` is in a loop");
                around.left = true;
                let target = around.break_block;
                self.jump(target);
            }
            Statement::Continue => {
                let around = self.loops.last().expect("`continue` is in a loop");
                let target = around.continue_block;
                self.jump(target);
            }
            Statement::Block(statements) => self.statements(statements),
        }
    }

    fn declare(&mut self, local: LocalId) -> StackSlot {
        let typed::Local { name, ty, .. } = &self.function.locals[local.0];
        let slot = self.slot_for(name, *ty);
        self.locals[local.0] = Some(Storage::Slot(slot));
        slot
    }

    /// The place is found first, then the value computed, then stored.
    fn assign(&mut self, target: &'a Expr, op: Option<(BinaryOp, Position)>, value: &'a Expr) {
        let place = self.place(target);
        match self.program.types.scalar(target.ty) {
            Some(scalar) => {
                let result = match op {
                    None => self.scalar(value),
                    Some((op, at)) if matches!(op, BinaryOp::BothTrue | BinaryOp::EitherTrue) => {
                        unreachable!("no such assignment is parsed: {op:?} at {at:?}")
                    }
                    Some((op, at)) => {
                        let old = self.load(place, clif_type(scalar));
                        let value = self.scalar(value);
                        self.binary_values(op, scalar, old, value, at)
                    }
                };
                self.store(place, result);
            }
            None => {
                // A value may be made of what it is stored to.
                let source = self.place(value);
                self.copy(place, source, target.ty);
            }
        }
    }

    fn print(&mut self, values: &'a [Expr], at: Position) {
        for value in values {
            let scalar = self.program.types.scalar(value.ty);
            let print = match scalar.expect("only scalars are printed") {
                Scalar::I64 => self.imports.print_i64,
                Scalar::F64 => self.imports.print_f64,
                Scalar::Bool => self.imports.print_bool,
            };
            let value = self.scalar(value);
            let print = self.reference(print);
            self.b.ins().call(print, &[value]);
        }
        let end = self.reference(self.imports.print_end);
        let call = self.b.ins().call(end, &[]);
        let full = self.b.inst_results(call)[0];
        self.fail_if(full, FailureKind::TooMuchOutput, at, None);
    }

    fn if_else(&mut self, arms: &'a [(Expr, Vec<Statement>)], otherwise: &'a [Statement]) {
        let end = self.b.create_block();
        let mut reached = false;
        for (condition, body) in arms {
            let condition = self.scalar(condition);
            let (then, next) = (self.b.create_block(), self.b.create_block());
            self.b.ins().brif(condition, then, &[], next, &[]);
            self.start(then);
            self.statements(body);
            reached |= !self.ended;
            self.jump(end);
            self.start(next);
        }
        self.statements(otherwise);
        reached |= !self.ended;
        self.jump(end);
        if reached {
            self.start(end);
        }
    }

    fn while_loop(&mut self, condition: &'a Expr, body: &'a [Statement]) {
        let [header, inside, end] = [(); 3].map(|()| self.b.create_block());
        self.jump(header);
        self.start(header);
        let mut left = false;
        if matches!(condition.kind, ExprKind::Bool(true)) {
            self.b.ins().jump(inside, &[]);
        } else {
            left = true;
            let condition = self.scalar(condition);
            self.b.ins().brif(condition, inside, &[], end, &[]);
        }
        self.start(inside);
        left |= self.loop_body(body, header, end);
        self.jump(header);
        if left {
            self.start(end);
        }
    }

    /// Whether a `break` leaves it.
    fn loop_body(&mut self, body: &'a [Statement], continue_block: Block, end: Block) -> bool {
        self.loops.push(Loop {
            continue_block,
            break_block: end,
            left: false,
        });
        self.statements(body);
        self.loops.pop().is_some_and(|around| around.left)
    }

    fn for_loop(&mut self, local: LocalId, from: &'a Expr, to: &'a Expr, body: &'a [Statement]) {
        let from = self.scalar(from);
        let to = self.scalar(to);
        let variable = Place::slot(self.declare(local));
        let limit = Place::slot(self.new_slot("(limit)", 8, 3));
        self.store(variable, from);
        self.store(limit, to);
        let [header, inside, step, end] = [(); 4].map(|()| self.b.create_block());
        self.jump(header);

        self.start(header);
        let (at, to) = (
            self.load(variable, types::I64),
            self.load(limit, types::I64),
        );
        let more = self.b.ins().icmp(IntCC::SignedLessThan, at, to);
        self.b.ins().brif(more, inside, &[], end, &[]);

        self.start(inside);
        self.loop_body(body, step, end);
        self.jump(step);

        self.start(step);
        let at = self.load(variable, types::I64);
        let next = self.b.ins().iadd_imm_s(at, 1);
        self.store(variable, next);
        self.jump(header);
        self.start(end);
    }

    fn return_statement(&mut self, value: Option<&'a Expr>) {
        let Some(value) = value else {
            return self.return_values(false, &[]);
        };
        if let Some(values) = self.small(value) {
            return self.return_values(false, &values);
        }
        let pointer = self.result_pointer.expect("a large result has a pointer");
        let address = self.load(Place::slot(pointer), types::I64);
        let target = Place {
            base: Base::Address(address),
            offset: 0,
            slot: None,
        };
        self.expr_into(target, value);
        self.return_values(false, &[]);
    }
}

/// Expressions.
impl<'a, M: Module> Builder<'a, M> {
    /// The place that an expression names, or a temporary with its value.
    fn place(&mut self, expr: &'a Expr) -> Place {
        match &expr.kind {
            ExprKind::Local(local) => {
                match self.locals[local.0].expect("variables are declared before use") {
                    Storage::Slot(slot) => Place::slot(slot),
                    Storage::Behind(slot) => {
                        let address = self.load(Place::slot(slot), types::I64);
                        Place {
                            base: Base::Address(address),
                            offset: 0,
                            slot: None,
                        }
                    }
                }
            }
            ExprKind::Part { base, offset } => self.place(base).at(*offset),
            ExprKind::Element {
                base,
                index,
                length,
            } => {
                let base = self.place(base);
                let value = self.scalar(index);
                let limit = self.b.ins().iconst(types::I64, *length as i64);
                let outside = IntCC::UnsignedGreaterThanOrEqual;
                let outside = self.b.ins().icmp(outside, value, limit);
                let kind = FailureKind::OutOfBounds { length: *length };
                self.fail_if(outside, kind, index.at, Some(value));
                self.element(base, value, self.program.types.layout(expr.ty).size)
            }
            _ => {
                let place = self.temporary(expr.ty);
                self.expr_into(place, expr);
                place
            }
        }
    }

    /// Element number `index` of an array at `base`.
    fn element(&mut self, base: Place, index: Value, size: u32) -> Place {
        if let Some(slot) = base.slot {
            self.slots[slot.as_u32() as usize].indexed = true;
        }
        let start = self.whole_address(base);
        let distance = self.b.ins().imul_imm_s(index, i64::from(size));
        let address = self.b.ins().iadd(start, distance);
        Place {
            base: Base::Address(address),
            offset: 0,
            slot: base.slot,
        }
    }

    /// The scalars of a value, unless there are more than [`SMALL_SCALARS_MAX`].
    fn small(&mut self, expr: &'a Expr) -> Option<Vec<Value>> {
        let program = self.program;
        let leaves = leaves(&program.types, expr.ty)?;
        debug_assert!(leaves.len() <= SMALL_SCALARS_MAX);
        if program.types.scalar(expr.ty).is_some() {
            return Some(vec![self.scalar(expr)]);
        }
        let place = self.place(expr);
        Some(self.load_leaves(place, leaves))
    }

    /// Writes the value of an expression to `target`, which the expression does not name.
    fn expr_into(&mut self, target: Place, expr: &'a Expr) {
        let program = self.program;
        match &expr.kind {
            ExprKind::Aggregate(parts) => {
                for (offset, part) in parts {
                    self.expr_into(target.at(*offset), part);
                }
            }
            ExprKind::Repeat(value, count) => self.repeat(target, value, *count),
            ExprKind::Call(callee, arguments) => match leaves(&program.types, expr.ty) {
                Some(leaves) => {
                    let values = self.call(*callee, arguments, None);
                    self.store_leaves(target, leaves, &values);
                }
                None => {
                    self.call(*callee, arguments, Some(target));
                }
            },
            _ if expr.is_place() => {
                let source = self.place(expr);
                self.copy(target, source, expr.ty);
            }
            _ => {
                let value = self.scalar(expr);
                self.store(target, value);
            }
        }
    }

    fn repeat(&mut self, target: Place, value: &'a Expr, count: u64) {
        // An array of arrays is filled as one.
        let (mut value, mut count) = (value, count);
        while let ExprKind::Repeat(inner, times) = &value.kind {
            value = inner;
            count *= times;
        }
        let ty = value.ty;
        let size = self.program.types.layout(ty).size;
        let source = if self.program.types.scalar(ty).is_some() {
            Err(self.scalar(value))
        } else {
            Ok(self.place(value))
        };
        let fill = |builder: &mut Self, target| match source {
            Ok(place) => builder.copy(target, place, ty),
            Err(value) => builder.store(target, value),
        };
        if count <= UNROLLED_ELEMENTS_MAX {
            for at in 0..count as u32 {
                fill(self, target.at(at * size));
            }
            return;
        }
        let counter = Place::slot(self.new_slot("(counter)", 8, 3));
        let zero = self.b.ins().iconst(types::I64, 0);
        self.store(counter, zero);
        let [header, inside, end] = [(); 3].map(|()| self.b.create_block());
        self.jump(header);
        self.start(header);
        let at = self.load(counter, types::I64);
        let limit = self.b.ins().iconst(types::I64, count as i64);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, at, limit);
        self.b.ins().brif(more, inside, &[], end, &[]);
        self.start(inside);
        let at = self.load(counter, types::I64);
        let element = self.element(target, at, size);
        fill(self, element);
        let next = self.b.ins().iadd_imm_s(at, 1);
        self.store(counter, next);
        self.jump(header);
        self.start(end);
    }

    /// Calls a function of the program. A large result goes to `target`; the scalars of a small one
    /// are returned.
    fn call(&mut self, callee: usize, arguments: &'a [Expr], target: Option<Place>) -> Vec<Value> {
        let program = self.program;
        let function = &program.functions[callee];
        let mut values = Vec::new();
        for (param, argument) in function.locals.iter().zip(arguments) {
            if param.by_reference {
                let place = self.place(argument);
                values.push(self.passed_address(place));
            } else if let Some(scalars) = self.small(argument) {
                values.extend(scalars);
            } else {
                let copy = self.temporary(argument.ty);
                self.expr_into(copy, argument);
                values.push(self.passed_address(copy));
            }
        }
        let stack_left = self.stack_left.expect("set on entry");
        let mut all = vec![self.load(Place::slot(stack_left), types::I64)];
        if let Some(target) = target {
            all.push(self.passed_address(target));
        }
        all.append(&mut values);
        let reference = self.reference(self.imports.functions[callee]);
        let call = self.b.ins().call(reference, &all);
        let results = self.b.inst_results(call).to_vec();
        let goes_on = self.b.create_block();
        self.b
            .ins()
            .brif(results[0], self.failed, &[], goes_on, &[]);
        self.start(goes_on);
        results[1..].to_vec()
    }

    /// The value of an expression of scalar type.
    fn scalar(&mut self, expr: &'a Expr) -> Value {
        match &expr.kind {
            ExprKind::Int(value) => self.b.ins().iconst(types::I64, *value),
            ExprKind::Float(value) => self.b.ins().f64const(*value),
            ExprKind::Bool(value) => self.b.ins().iconst(types::I8, i64::from(*value)),
            ExprKind::Unary(op, value) => {
                let ty = value.ty;
                let value = self.scalar(value);
                match (op, ty) {
                    (UnaryOp::Not, _) => self.b.ins().bxor_imm_u(value, 1),
                    (UnaryOp::Negate, Type::F64) => self.b.ins().fneg(value),
                    (UnaryOp::Negate, _) => self.b.ins().ineg(value),
                }
            }
            ExprKind::Binary(op @ (BinaryOp::BothTrue | BinaryOp::EitherTrue), left, right) => {
                self.short_circuit(*op == BinaryOp::BothTrue, left, right)
            }
            ExprKind::Binary(op, left, right) => {
                let scalar = self.program.types.scalar(left.ty);
                let left = self.scalar(left);
                let right = self.scalar(right);
                let scalar = scalar.expect("operands are scalars");
                self.binary_values(*op, scalar, left, right, expr.at)
            }
            ExprKind::Cast(value) => {
                let from = value.ty;
                let value = self.scalar(value);
                match (from, expr.ty) {
                    (Type::I64, Type::F64) => self.b.ins().fcvt_from_sint(types::F64, value),
                    (Type::F64, Type::I64) => self.b.ins().fcvt_to_sint_sat(types::I64, value),
                    (Type::BOOL, _) => self.b.ins().uextend(types::I64, value),
                    _ => value,
                }
            }
            ExprKind::Builtin(builtin, values) => {
                let float = expr.ty == Type::F64;
                let values: Vec<Value> = values.iter().map(|value| self.scalar(value)).collect();
                let ins = self.b.ins();
                match (builtin, float) {
                    (Builtin::Abs, true) => ins.fabs(values[0]),
                    (Builtin::Abs, false) => ins.iabs(values[0]),
                    (Builtin::Max, true) => ins.fmax(values[0], values[1]),
                    (Builtin::Max, false) => ins.smax(values[0], values[1]),
                    (Builtin::Min, true) => ins.fmin(values[0], values[1]),
                    (Builtin::Min, false) => ins.smin(values[0], values[1]),
                    (Builtin::Floor, _) => ins.floor(values[0]),
                    (Builtin::Sqrt, _) => ins.sqrt(values[0]),
                }
            }
            ExprKind::Call(callee, arguments) => self.call(*callee, arguments, None)[0],
            ExprKind::Local(_) | ExprKind::Part { .. } | ExprKind::Element { .. } => {
                let scalar = self.program.types.scalar(expr.ty);
                let place = self.place(expr);
                self.load(place, clif_type(scalar.expect("the type is scalar")))
            }
            ExprKind::Aggregate(_) | ExprKind::Repeat(..) => unreachable!("no scalar"),
        }
    }

    /// `&&` and `||`, by way of a temporary.
    fn short_circuit(&mut self, both: bool, left: &'a Expr, right: &'a Expr) -> Value {
        let result = self.temporary(Type::BOOL);
        let left = self.scalar(left);
        self.store(result, left);
        let (other, end) = (self.b.create_block(), self.b.create_block());
        let (then, otherwise) = if both { (other, end) } else { (end, other) };
        self.b.ins().brif(left, then, &[], otherwise, &[]);
        self.start(other);
        let right = self.scalar(right);
        self.store(result, right);
        self.jump(end);
        self.start(end);
        self.load(result, types::I8)
    }

    fn binary_values(
        &mut self,
        op: BinaryOp,
        scalar: Scalar,
        left: Value,
        right: Value,
        at: Position,
    ) -> Value {
        if op.is_comparison() {
            return match scalar {
                Scalar::F64 => self.b.ins().fcmp(float_condition(op), left, right),
                Scalar::I64 | Scalar::Bool => self.b.ins().icmp(int_condition(op), left, right),
            };
        }
        if scalar == Scalar::F64 {
            let ins = self.b.ins();
            return match op {
                BinaryOp::Add => ins.fadd(left, right),
                BinaryOp::Subtract => ins.fsub(left, right),
                BinaryOp::Multiply => ins.fmul(left, right),
                BinaryOp::Divide => ins.fdiv(left, right),
                _ => unreachable!("{op:?} of f64"),
            };
        }
        if matches!(op, BinaryOp::Divide | BinaryOp::Remainder) {
            return self.division(op, left, right, at);
        }
        let ins = self.b.ins();
        match op {
            BinaryOp::Add => ins.iadd(left, right),
            BinaryOp::Subtract => ins.isub(left, right),
            BinaryOp::Multiply => ins.imul(left, right),
            BinaryOp::And => ins.band(left, right),
            BinaryOp::Or => ins.bor(left, right),
            BinaryOp::Xor => ins.bxor(left, right),
            BinaryOp::ShiftLeft => ins.ishl(left, right),
            BinaryOp::ShiftRight => ins.sshr(left, right),
            _ => unreachable!("{op:?} of i64"),
        }
    }

    /// `sdiv` and `srem` trap; here the program fails, or they are known not to.
    fn division(&mut self, op: BinaryOp, left: Value, right: Value, at: Position) -> Value {
        let constant = self.constant(right);
        if constant.is_none_or(|value| value == 0) {
            let zero = self.b.ins().icmp_imm_s(IntCC::Equal, right, 0);
            self.fail_if(zero, FailureKind::DivisionByZero, at, None);
        }
        if op == BinaryOp::Divide {
            if constant.is_none_or(|value| value == -1) {
                let least = self.b.ins().icmp_imm_s(IntCC::Equal, left, i64::MIN);
                let minus = self.b.ins().icmp_imm_s(IntCC::Equal, right, -1);
                let both = self.b.ins().band(least, minus);
                self.fail_if(both, FailureKind::QuotientOverflow, at, None);
            }
            self.b.ins().sdiv(left, right)
        } else {
            // Cranelift defines the remainder by -1, which is 0.
            self.b.ins().srem(left, right)
        }
    }

    fn constant(&self, value: Value) -> Option<i64> {
        let dfg = &self.b.func.dfg;
        match dfg.insts[dfg.value_def(value).inst()?] {
            InstructionData::UnaryImm {
                opcode: Opcode::Iconst,
                imm,
            } => Some(imm.bits()),
            _ => None,
        }
    }
}

fn int_condition(op: BinaryOp) -> IntCC {
    match op {
        BinaryOp::Equal => IntCC::Equal,
        BinaryOp::NotEqual => IntCC::NotEqual,
        BinaryOp::Less => IntCC::SignedLessThan,
        BinaryOp::LessEqual => IntCC::SignedLessThanOrEqual,
        BinaryOp::Greater => IntCC::SignedGreaterThan,
        BinaryOp::GreaterEqual => IntCC::SignedGreaterThanOrEqual,
        _ => unreachable!("{op:?} is no comparison"),
    }
}

fn float_condition(op: BinaryOp) -> FloatCC {
    match op {
        BinaryOp::Equal => FloatCC::Equal,
        BinaryOp::NotEqual => FloatCC::NotEqual,
        BinaryOp::Less => FloatCC::LessThan,
        BinaryOp::LessEqual => FloatCC::LessThanOrEqual,
        BinaryOp::Greater => FloatCC::GreaterThan,
        BinaryOp::GreaterEqual => FloatCC::GreaterThanOrEqual,
        _ => unreachable!("{op:?} is no comparison"),
    }
}
