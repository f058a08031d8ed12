//! An interpreter of CLIF out of the single steps of Cranelift's: it keeps hold of memory when a run
//! ends, and it unwinds to the exception edges of calls and changes what stack maps name.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use cranelift_codegen::data_value::DataValue;
use cranelift_codegen::ir::{
    Block, BlockArg, BlockCall, ExceptionTableItem, Function, Inst, InstructionData, UserFuncName,
};
use cranelift_interpreter::address::Address;
use cranelift_interpreter::environment::FunctionStore;
use cranelift_interpreter::instruction::DfgInstructionContext;
use cranelift_interpreter::interpreter::InterpreterState;
use cranelift_interpreter::state::{InterpreterFunctionRef, State};
use cranelift_interpreter::step::{ControlFlow, CraneliftTrap, step};

/// How a run ended.
#[derive(Debug, PartialEq)]
pub(super) enum Stop {
    Returned(Vec<DataValue>),
    Trapped(CraneliftTrap),
    Thrown(Exception),
}

/// What was thrown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exception {
    pub(super) tag: u32,
    pub(super) payload: i64,
}

impl Exception {
    fn of(arguments: &[DataValue]) -> Result<Exception> {
        match arguments {
            [DataValue::I32(tag), DataValue::I64(payload)] => Ok(Exception {
                tag: tag.cast_unsigned(),
                payload: *payload,
            }),
            _ => bail!("host_throw takes a tag and a payload"),
        }
    }
}

/// See the module's documentation.
pub(super) struct Machine<'a> {
    state: InterpreterState<'a>,
    /// The calls at which all frames but the last stand.
    waiting: Vec<Inst>,
    /// Instructions that it may still take.
    fuel: u64,
    /// Exceptions that a handler caught.
    pub(super) caught: u64,
    /// Values that were changed because a stack map names them.
    pub(super) collected: u64,
}

/// What the machine does by itself.
enum Special {
    Throw,
    Collect,
}

fn special(function: &Function) -> Option<Special> {
    match &function.name {
        UserFuncName::Testcase(name) if name.raw() == b"host_throw" => Some(Special::Throw),
        UserFuncName::Testcase(name) if name.raw() == b"host_collect" => Some(Special::Collect),
        _ => None,
    }
}

impl<'a> Machine<'a> {
    pub(super) fn new(functions: FunctionStore<'a>, fuel: u64) -> Machine<'a> {
        Machine {
            state: InterpreterState::default().with_function_store(functions),
            waiting: Vec::new(),
            fuel,
            caught: 0,
            collected: 0,
        }
    }

    /// The frames' slots, those of the first function first.
    pub(super) fn stack(&self) -> &[u8] {
        &self.state.stack
    }

    /// Runs a function, once. Its frame stays when it returns.
    ///
    /// # Errors
    /// The interpreter does not know an instruction, or the fuel is spent.
    pub(super) fn run(&mut self, function: &'a Function) -> Result<Stop> {
        let mut next = self.enter(function, &[]);
        loop {
            let inst = next.context("a block without an end")?;
            ensure!(self.fuel > 0, "fuel");
            self.fuel -= 1;
            next = match self.step(inst)? {
                ControlFlow::Assign(values) => {
                    self.assign(inst, &values);
                    self.after(inst)
                }
                ControlFlow::Continue => self.after(inst),
                ControlFlow::ContinueAt(block, arguments) => self.go_to(block, arguments.to_vec()),
                ControlFlow::Call(callee, arguments) => {
                    self.waiting.push(inst);
                    match special(callee) {
                        None => self.enter(callee, &arguments),
                        Some(Special::Collect) => {
                            self.collect();
                            self.waiting.pop();
                            self.resume(inst, &[])?
                        }
                        Some(Special::Throw) => {
                            let exception = Exception::of(&arguments)?;
                            match self.unwind(exception)? {
                                Some(next) => next,
                                None => return Ok(Stop::Thrown(exception)),
                            }
                        }
                    }
                }
                ControlFlow::ReturnCall(callee, arguments) => {
                    self.state.pop_frame();
                    self.enter(callee, &arguments)
                }
                ControlFlow::Return(values) => {
                    let Some(call) = self.waiting.pop() else {
                        return Ok(Stop::Returned(values.to_vec()));
                    };
                    self.state.pop_frame();
                    self.resume(call, &values)?
                }
                ControlFlow::Trap(trap) => return Ok(Stop::Trapped(trap)),
            };
        }
    }

    fn function(&self) -> &'a Function {
        self.state.current_frame().function()
    }

    fn after(&self, inst: Inst) -> Option<Inst> {
        self.function().layout.next_inst(inst)
    }

    fn assign(&mut self, inst: Inst, values: &[DataValue]) {
        let results = self.function().dfg.inst_results(inst);
        self.state
            .current_frame_mut()
            .set_all(results, values.to_vec());
    }

    fn go_to(&mut self, block: Block, arguments: Vec<DataValue>) -> Option<Inst> {
        let function = self.function();
        let params = function.dfg.block_params(block);
        self.state.current_frame_mut().set_all(params, arguments);
        function.layout.first_inst(block)
    }

    fn enter(&mut self, function: &'a Function, arguments: &[DataValue]) -> Option<Inst> {
        self.state.push_frame(function);
        let entry = function.layout.entry_block()?;
        self.go_to(entry, arguments.to_vec())
    }

    fn step(&mut self, inst: Inst) -> Result<ControlFlow<'a>> {
        let dfg = &self.function().dfg;
        let (callee, arguments) = match dfg.insts[inst] {
            InstructionData::TryCall { func_ref, .. } => {
                let callee = self.state.get_function(func_ref);
                (callee, dfg.inst_args(inst))
            }
            InstructionData::TryCallIndirect { .. } => {
                let (address, arguments) = dfg.inst_args(inst).split_at(1);
                let address = self.state.current_frame().get(address[0]).clone();
                let callee = match self
                    .state
                    .get_function_from_address(Address::try_from(address)?)
                {
                    Some(InterpreterFunctionRef::Function(function)) => Some(function),
                    _ => None,
                };
                (callee, arguments)
            }
            _ => {
                return Ok(step(
                    &mut self.state,
                    DfgInstructionContext::new(inst, dfg),
                )?);
            }
        };
        let callee = callee.context("a try_call of an unknown function")?;
        Ok(ControlFlow::Call(
            callee,
            self.state.collect_values(arguments),
        ))
    }

    /// Goes on in the caller when a call returns.
    fn resume(&mut self, call: Inst, results: &[DataValue]) -> Result<Option<Inst>> {
        let dfg = &self.function().dfg;
        let Some(table) = dfg.insts[call].exception_table() else {
            self.assign(call, results);
            return Ok(self.after(call));
        };
        let target = *dfg.exception_tables[table].normal_return();
        self.take_edge(target, results, &[])
    }

    /// Goes on at the nearest handler; none if there is none. The first frame stays.
    fn unwind(&mut self, exception: Exception) -> Result<Option<Option<Inst>>> {
        while let Some(call) = self.waiting.pop() {
            if let Some(target) = self.handler(call, exception.tag) {
                self.caught += 1;
                let payload = [exception.payload, i64::from(exception.tag)].map(DataValue::I64);
                return self.take_edge(target, &[], &payload).map(Some);
            }
            if !self.waiting.is_empty() {
                self.state.pop_frame();
            }
        }
        Ok(None)
    }

    /// The handler of a call for a tag: one that names it, else one for all.
    fn handler(&self, call: Inst, tag: u32) -> Option<BlockCall> {
        let dfg = &self.function().dfg;
        let table = &dfg.exception_tables[dfg.insts[call].exception_table()?];
        let named = table.items().find_map(|item| match item {
            ExceptionTableItem::Tag(other, target) if other.as_u32() == tag => Some(target),
            _ => None,
        });
        named.or_else(|| {
            table.items().find_map(|item| match item {
                ExceptionTableItem::Default(target) => Some(target),
                _ => None,
            })
        })
    }

    /// Adds 1 to the first byte of every value that the stack maps of the frames name.
    fn collect(&mut self) {
        let mut start = 0;
        for (frame, &call) in self.state.frame_stack.iter().zip(&self.waiting) {
            let function = frame.function();
            let slots = &function.sized_stack_slots;
            let entries = function.dfg.user_stack_map_entries(call);
            let named: BTreeSet<u32> = entries
                .unwrap_or_default()
                .iter()
                .map(|entry| {
                    let before = slots.keys().filter(|&slot| slot < entry.slot);
                    before.map(|slot| slots[slot].size).sum::<u32>() + entry.offset
                })
                .collect();
            for at in named {
                let byte = &mut self.state.stack[(start + at) as usize];
                *byte = byte.wrapping_add(1);
                self.collected += 1;
            }
            start += function.fixed_stack_size();
        }
    }

    fn take_edge(
        &mut self,
        target: BlockCall,
        results: &[DataValue],
        payload: &[DataValue],
    ) -> Result<Option<Inst>> {
        let pool = &self.function().dfg.value_lists;
        let value = |argument| {
            let (values, index) = match argument {
                BlockArg::Value(value) => {
                    return Some(self.state.current_frame().get(value).clone());
                }
                BlockArg::TryCallRet(index) => (results, index),
                BlockArg::TryCallExn(index) => (payload, index),
            };
            values.get(index as usize).cloned()
        };
        let arguments: Option<Vec<DataValue>> = target.args(pool).map(value).collect();
        let Some(arguments) = arguments else {
            bail!("an edge takes more than the call gives");
        };
        Ok(self.go_to(target.block(pool), arguments))
    }
}
