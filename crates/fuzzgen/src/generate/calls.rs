//! Calls: of the case's functions, of memory functions, of the runner's opaque ones.

use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, BlockCall, ExceptionTableData, ExceptionTableItem, ExceptionTag,
    ExtFuncData, ExternalName, FuncRef, Inst, InstBuilder, LibCall, MemFlagsData, SigRef,
    Signature, StackSlot, TrapCode, Type, UserStackMapEntry, Value, types,
};
use cranelift_codegen::isa::CallConv;

use super::function::{CELLS, Gen, PARAM_BYTES};
use super::place::{MAIN, OTHER, Place, Space, TABLE};

/// How many tags of exceptions there are.
const TAGS: usize = 3;

impl Gen<'_, '_, '_> {
    fn declare(&mut self, name: ExternalName, signature: Signature) -> (FuncRef, SigRef) {
        let known = self.b.func.dfg.ext_funcs.iter().find(|(_, data)| {
            data.name == name && self.b.func.dfg.signatures[data.signature] == signature
        });
        if let Some((reference, data)) = known {
            return (reference, data.signature);
        }
        let signature = self.b.import_signature(signature);
        let data = ExtFuncData {
            name,
            signature,
            colocated: false,
            patchable: false,
        };
        (self.b.import_function(data), signature)
    }

    fn declare_function(&mut self, index: usize) -> (FuncRef, SigRef) {
        let signature = self.world.signatures[index].clone();
        self.declare(ExternalName::testcase(format!("f{index}")), signature)
    }

    /// The runner's function that throws a tag with a payload.
    fn declare_throw(&mut self, conv: CallConv) -> (FuncRef, SigRef) {
        let mut signature = Signature::new(conv);
        signature.params = [types::I32, types::I64].map(AbiParam::new).to_vec();
        self.declare(ExternalName::testcase("host_throw"), signature)
    }

    fn declare_host(&mut self, name: ExternalName, params: &[Type], returns: &[Type]) -> FuncRef {
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params = params.iter().copied().map(AbiParam::new).collect();
        signature.returns = returns.iter().copied().map(AbiParam::new).collect();
        self.declare(name, signature).0
    }

    /// A function after this one.
    fn callee(&mut self) -> Option<usize> {
        let later = self.world.signatures.len() - self.index - 1;
        (later > 0).then(|| self.index + 1 + self.c.below(later))
    }

    /// An address for a parameter of the region; the slot it is in. Only `b` may be unaligned.
    fn argument(&mut self, region: u32, is_b: bool) -> (Value, Option<StackSlot>) {
        let slots: Vec<Place> = self
            .places
            .iter()
            .copied()
            .filter(|place| matches!(place.space, Space::Slot(..)))
            .filter(|place| place.holds(PARAM_BYTES) && place.align >= 8 && place.low % 8 == 0)
            .filter(|place| place.space.fits(region) && may_go(place, region))
            .collect();
        if !slots.is_empty() && self.c.percent(60) {
            let place = self.c.pick(&slots);
            let Space::Slot(slot, _) = place.space else {
                unreachable!("generator: only slots are in the list");
            };
            self.shape.escapes_by_call += 1;
            return (self.moved(place.base, place.low), Some(slot));
        }
        match (region, self.c.below(2)) {
            (MAIN, 0) if is_b => (self.params.b, None),
            (MAIN, _) => (self.params.a, None),
            _ => (self.params.c, None),
        }
    }

    /// Arguments for a call of one of the case's functions, and a slot among them.
    fn arguments(&mut self) -> (Vec<Value>, Option<StackSlot>) {
        let ((a, slot), (b, _), (c, _)) = (
            self.argument(MAIN, false),
            self.argument(MAIN, true),
            self.argument(OTHER, false),
        );
        let t = match self.pointer_slots.first() {
            Some(&slot) if self.c.percent(50) => self.b.ins().stack_addr(types::I64, slot, 0),
            _ => self.params.t,
        };
        let place = self.pointee();
        let u = self.address_in(place, 16);
        let (x, y) = (self.value(types::I64), self.value(types::I32));
        let fuel = self.b.ins().ushr_imm_u(self.params.fuel, 1);
        let (d, e, g) = (self.params.d, self.params.e, self.params.g);
        (vec![a, b, c, d, t, e, u, x, y, g, fuel], slot)
    }

    fn mix_results(&mut self, call: Inst) {
        for result in self.b.inst_results(call).to_vec() {
            self.mix(result);
        }
    }

    /// A call that changes what stack maps name: one here, and those of the callers.
    pub(crate) fn collect(&mut self) {
        self.shape.collections += 1;
        let function = self.declare_host(ExternalName::testcase("host_collect"), &[], &[]);
        let call = self.b.ins().call(function, &[]);
        self.map_slot(call, None, 80);
    }

    /// Gives a call a stack map, perhaps; and reads the value after it, unless it ends the block.
    fn map_slot(&mut self, call: Inst, slot: Option<StackSlot>, percent: usize) {
        let places: Vec<(Place, StackSlot)> = self
            .places
            .iter()
            .filter_map(|&place| match place.space {
                // One that no argument gives away, too: then the map alone names it.
                Space::Slot(other, _) if slot.is_none_or(|slot| slot == other) => {
                    Some((place, other))
                }
                _ => None,
            })
            .filter(|&(_, slot)| self.b.func.sized_stack_slots[slot].size >= 4)
            .collect();
        if places.is_empty() || !self.c.percent(percent) {
            return;
        }
        self.shape.stack_maps += 1;
        let (place, slot) = self.c.pick(&places);
        let size = self.b.func.sized_stack_slots[slot].size;
        let ty = match size {
            8.. => self.c.pick(&[types::I64, types::I32]),
            _ => types::I32,
        };
        let offset = 4 * self.c.below(1 + (size - ty.bytes()) as usize / 4) as u32;
        let entry = UserStackMapEntry { ty, slot, offset };
        self.b.func.dfg.append_user_stack_map_entry(call, entry);
        let ends = self.b.func.dfg.insts[call].opcode().is_terminator();
        if !ends && self.c.percent(60) {
            self.load_in(place, i64::from(offset), ty);
        }
    }

    pub(crate) fn call(&mut self) {
        let Some(callee) = self.callee() else {
            return self.host_call();
        };
        self.call_of(callee);
    }

    fn call_of(&mut self, callee: usize) {
        let (function, signature) = self.declare_function(callee);
        let (arguments, slot) = self.arguments();
        let call = if self.c.percent(20) {
            self.shape.indirect_calls += 1;
            let address = self.b.ins().func_addr(types::I64, function);
            self.b.ins().call_indirect(signature, address, &arguments)
        } else {
            self.shape.calls += 1;
            self.b.ins().call(function, &arguments)
        };
        self.map_slot(call, slot, 30);
        self.mix_results(call);
    }

    /// A call of the function itself, while fuel lasts.
    pub(crate) fn recursion(&mut self) {
        if self.loop_depth > 0 {
            return;
        }
        self.shape.recursions += 1;
        let (call, rest) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(self.params.fuel, call, &[], rest, &[]);
        self.b.switch_to_block(call);
        let scope = self.open();
        self.call_of(self.index);
        self.close(&scope);
        self.b.ins().jump(rest, &[]);
        self.b.switch_to_block(rest);
    }

    /// A tag and a payload to throw.
    fn exception(&mut self) -> [Value; 2] {
        let tag = self.c.below(TAGS) as i64;
        let tag = self.b.ins().iconst(types::I32, tag);
        [tag, self.value(types::I64)]
    }

    /// Throws in a rare case.
    pub(crate) fn throw(&mut self) {
        self.shape.throws += 1;
        let condition = self.rare_condition();
        let (thrower, rest) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(condition, thrower, &[], rest, &[]);
        self.b.switch_to_block(thrower);
        let scope = self.open();
        let (function, _) = self.declare_throw(CallConv::SystemV);
        let exception = self.exception();
        self.b.ins().call(function, &exception);
        self.close(&scope);
        self.b.ins().jump(rest, &[]);
        self.b.switch_to_block(rest);
    }

    /// A call with exits for exceptions: of a function that may throw, or of the runner's, which does.
    pub(crate) fn try_call(&mut self) {
        let callee = match self.c.percent(70) {
            true => self.callee(),
            false => None,
        };
        let convs = [CallConv::Tail, CallConv::SystemV];
        let throws = callee.is_none();
        let ((function, signature), arguments, slot) = match callee {
            Some(callee) => {
                let conv = self.world.signatures[callee].call_conv;
                if !convs.contains(&conv) {
                    return;
                }
                let (arguments, slot) = self.arguments();
                (self.declare_function(callee), arguments, slot)
            }
            None => {
                let exception = self.exception().to_vec();
                (self.declare_throw(CallConv::Tail), exception, None)
            }
        };
        self.shape.try_calls += 1;
        let (normal, rest) = (self.b.create_block(), self.b.create_block());
        let returns = self.b.func.dfg.signatures[signature].returns.clone();
        let results: Vec<Value> = returns
            .iter()
            .map(|param| self.b.append_block_param(normal, param.value_type))
            .collect();
        let handlers: Vec<Block> = (0..1 + self.c.below(2))
            .map(|_| self.b.create_block())
            .collect();
        let passed = (0..results.len() as u32).map(BlockArg::TryCallRet);
        let pool = &mut self.b.func.dfg.value_lists;
        let to_normal = BlockCall::new(normal, passed, pool);
        let items: Vec<ExceptionTableItem> = handlers
            .iter()
            .enumerate()
            .map(|(at, &handler)| {
                self.b.append_block_param(handler, types::I64);
                let pool = &mut self.b.func.dfg.value_lists;
                let target = BlockCall::new(handler, [BlockArg::TryCallExn(0)], pool);
                match at == 0 && self.c.percent(70) {
                    true => ExceptionTableItem::Default(target),
                    false => {
                        let tag = self.c.below(TAGS) as u32;
                        ExceptionTableItem::Tag(ExceptionTag::from_u32(tag), target)
                    }
                }
            })
            .collect();
        let table = ExceptionTableData::new(signature, to_normal, items);
        let table = self.b.func.dfg.exception_tables.push(table);
        let call = self.b.ins().try_call(function, &arguments, table);
        self.map_slot(call, slot, 30);
        for handler in handlers {
            self.b.switch_to_block(handler);
            self.handler(handler, throws, rest);
        }
        self.b.switch_to_block(normal);
        let scope = self.open();
        for result in results {
            self.mix(result);
        }
        self.close(&scope);
        self.b.ins().jump(rest, &[]);
        self.b.switch_to_block(rest);
    }

    /// What an exception handler does. Unless the runner itself threw, frames are gone.
    fn handler(&mut self, handler: Block, frames_stand: bool, rest: Block) {
        let scope = self.open();
        if !frames_stand {
            self.forget_frames();
        }
        let payload = self.b.block_params(handler)[0];
        self.mix(payload);
        self.load();
        self.store();
        self.close(&scope);
        match self.c.below(3) {
            0 => self.b.ins().jump(self.exit, &[]),
            1 => self.b.ins().trap(TrapCode::unwrap_user(9)),
            _ => self.b.ins().jump(rest, &[]),
        };
    }

    /// Neither `t` nor a slot of this frame may hold addresses of frames that are gone.
    fn forget_frames(&mut self) {
        let flags = MemFlagsData::trusted();
        let region = Some(self.region(TABLE));
        let mut tables = vec![(self.params.t, flags.with_alias_region(region))];
        for slot in self.pointer_slots.clone() {
            let base = self.b.ins().stack_addr(types::I64, slot, 0);
            tables.push((base, flags));
        }
        for (base, flags) in tables {
            for cell in 0..CELLS {
                self.b.ins().store(flags, self.params.a, base, cell * 8);
            }
        }
    }

    /// Ends the function in a rare case. No slot's address is passed on.
    pub(crate) fn tail_call(&mut self) {
        let Some(callee) = self.callee() else {
            return;
        };
        let (own, other) = (
            &self.world.signatures[self.index],
            &self.world.signatures[callee],
        );
        let fits = own.call_conv == CallConv::Tail && own == other;
        if !fits {
            return;
        }
        self.shape.tail_calls += 1;
        let (function, _) = self.declare_function(callee);
        let condition = self.rare_condition();
        let (tail, rest) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(condition, tail, &[], rest, &[]);
        self.b.switch_to_block(tail);
        self.clear_table();
        let fuel = self.b.ins().ushr_imm_u(self.params.fuel, 1);
        let x = self.b.use_var(self.acc);
        let y = self.b.use_var(self.variables[1]);
        let p = self.params;
        let arguments = [p.a, p.b, p.c, p.d, p.t, p.e, p.u, x, y, p.g, fuel];
        self.b.ins().return_call(function, &arguments);
        self.b.switch_to_block(rest);
    }

    pub(crate) fn host_call(&mut self) {
        self.shape.host_calls += 1;
        match self.c.below(4) {
            0 => {
                let function = self.declare_host(ExternalName::testcase("host_nop"), &[], &[]);
                self.b.ins().call(function, &[]);
            }
            3 => self.collect(),
            1 => {
                let name = ExternalName::testcase("host_touch");
                let function = self.declare_host(name, &[types::I64], &[]);
                let place = self.place(1, true);
                self.count_escape(place);
                let address = self.address_in(place, 1);
                self.b.ins().call(function, &[address]);
            }
            _ => {
                let name = ExternalName::testcase("host_read");
                let function = self.declare_host(name, &[types::I64], &[types::I64]);
                let place = self.place(8, false);
                self.count_escape(place);
                let address = self.address_in(place, 8);
                let call = self.b.ins().call(function, &[address]);
                self.mix_results(call);
            }
        }
    }

    fn count_escape(&mut self, place: Place) {
        if matches!(place.space, Space::Slot(..)) {
            self.shape.escapes_by_call += 1;
        }
    }

    /// A length up to `most`, often a constant.
    fn length(&mut self, most: i64) -> Value {
        if self.c.percent(65) {
            let length = self.c.between(0, most);
            let length = if self.c.percent(60) {
                length & !7
            } else {
                length
            };
            return self.b.ins().iconst(types::I64, length);
        }
        self.shape.variable_lengths += 1;
        let mask = [7i64, 15, 31]
            .into_iter()
            .rfind(|&mask| mask <= most)
            .unwrap_or(1);
        self.index(mask)
    }

    pub(crate) fn memory_function(&mut self) {
        self.shape.memory_functions += 1;
        match self.c.below(4) {
            0 => self.copy(LibCall::Memcpy),
            1 => self.copy(LibCall::Memmove),
            2 => {
                let place = self.place(8, true);
                self.memset(place, None);
            }
            _ => self.compare(),
        }
    }

    fn copy(&mut self, mut libcall: LibCall) {
        let (from, to) = (self.place(8, false), self.place(8, true));
        if !are_apart(from.space, to.space) {
            libcall = LibCall::Memmove;
        }
        let most = (from.high - from.low).min(to.high - to.low);
        let length = self.length(most);
        let (source, target) = (self.moved(from.base, from.low), self.moved(to.base, to.low));
        let function = self.declare_host(
            ExternalName::LibCall(libcall),
            &[types::I64, types::I64, types::I64],
            &[types::I64],
        );
        let call = self.b.ins().call(function, &[target, source, length]);
        // The result is the target's address.
        let base = self.b.inst_results(call)[0];
        if self.c.percent(30) {
            self.places.push(Place {
                base,
                low: 0,
                high: to.high - to.low,
                align: 1,
                ..to
            });
        }
    }

    fn memset(&mut self, place: Place, length: Option<i64>) {
        let length = match length {
            Some(length) => self.b.ins().iconst(types::I64, length),
            None => self.length(place.high - place.low),
        };
        let byte = self.value(types::I32);
        let target = self.moved(place.base, place.low);
        let function = self.declare_host(
            ExternalName::LibCall(LibCall::Memset),
            &[types::I64, types::I32, types::I64],
            &[types::I64],
        );
        self.b.ins().call(function, &[target, byte, length]);
    }

    pub(crate) fn initialize_by_memset(&mut self, place: Place) {
        self.shape.memory_functions += 1;
        self.memset(place, Some(place.high - place.low));
    }

    fn compare(&mut self) {
        let (one, two) = (self.place(8, false), self.place(8, false));
        let most = (one.high - one.low).min(two.high - two.low);
        let length = self.length(most);
        let (first, second) = (self.moved(one.base, one.low), self.moved(two.base, two.low));
        let function = self.declare_host(
            ExternalName::LibCall(LibCall::Memcmp),
            &[types::I64, types::I64, types::I64],
            &[types::I32],
        );
        let call = self.b.ins().call(function, &[first, second, length]);
        let result = self.b.inst_results(call)[0];
        // Only its sign is defined.
        let sign = self.b.ins().sshr_imm_u(result, 31);
        self.mix(sign);
    }
}

/// A slot without a home goes to one of the regions only: that of its number's parity.
fn may_go(place: &Place, region: u32) -> bool {
    match place.space {
        Space::Slot(slot, None) => slot.as_u32().is_multiple_of(2) == (region == MAIN),
        _ => true,
    }
}

/// Whether places of these spaces have no common byte.
fn are_apart(one: Space, two: Space) -> bool {
    match (one, two) {
        (Space::Unknown, _) | (_, Space::Unknown) => false,
        (Space::Slot(a, _), Space::Slot(b, _)) => a != b,
        // A space of two places joined may be that of a parameter while one of them is a slot.
        (Space::Slot(..), Space::Readonly) | (Space::Readonly, Space::Slot(..)) => true,
        (Space::Slot(..), _) | (_, Space::Slot(..)) => false,
        (a, b) => a != b,
    }
}
