//! Calls: of the case's functions, of memory functions, of the runner's opaque ones.

use cranelift_codegen::ir::{
    AbiParam, BlockArg, BlockCall, ExceptionTableData, ExceptionTableItem, ExtFuncData,
    ExternalName, FuncRef, Inst, InstBuilder, LibCall, SigRef, Signature, StackSlot, TrapCode,
    Type, UserStackMapEntry, Value, types,
};
use cranelift_codegen::isa::CallConv;

use super::function::{Gen, PARAM_BYTES};
use super::place::{MAIN, OTHER, Place, Space};

impl Gen<'_, '_, '_> {
    fn declare(&mut self, name: ExternalName, signature: Signature) -> (FuncRef, SigRef) {
        let known = self
            .b
            .func
            .dfg
            .ext_funcs
            .iter()
            .find(|(_, data)| data.name == name);
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

    fn map_slot(&mut self, call: Inst, slot: Option<StackSlot>) {
        // One that no argument gives away, too: then the map alone names it.
        let slot = slot.or_else(|| self.own_slot());
        if let Some(slot) = slot
            && self.c.percent(30)
        {
            self.shape.stack_maps += 1;
            let entry = UserStackMapEntry {
                ty: types::I64,
                slot,
                offset: 8 * self.c.below(2) as u32,
            };
            self.b.func.dfg.append_user_stack_map_entry(call, entry);
        }
    }

    /// A slot that can be in a stack map.
    fn own_slot(&mut self) -> Option<StackSlot> {
        let slots: Vec<StackSlot> = self
            .places
            .iter()
            .filter(|place| place.holds(16))
            .filter_map(|place| match place.space {
                Space::Slot(slot, _) => Some(slot),
                _ => None,
            })
            .filter(|&slot| self.b.func.sized_stack_slots[slot].align_shift >= 3)
            .collect();
        (!slots.is_empty()).then(|| self.c.pick(&slots))
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
        self.map_slot(call, slot);
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

    /// A call with a second exit, which no run takes.
    pub(crate) fn try_call(&mut self) {
        let Some(callee) = self.callee() else {
            return;
        };
        let conv = self.world.signatures[callee].call_conv;
        if !matches!(conv, CallConv::Tail | CallConv::SystemV) {
            return;
        }
        self.shape.try_calls += 1;
        let (function, signature) = self.declare_function(callee);
        let (arguments, _) = self.arguments();
        let (normal, thrown) = (self.b.create_block(), self.b.create_block());
        let returns = self.world.signatures[callee].returns.clone();
        let results: Vec<Value> = returns
            .iter()
            .map(|param| self.b.append_block_param(normal, param.value_type))
            .collect();
        let passed = (0..results.len() as u32).map(BlockArg::TryCallRet);
        let pool = &mut self.b.func.dfg.value_lists;
        let to_normal = BlockCall::new(normal, passed, pool);
        let to_thrown = BlockCall::new(thrown, std::iter::empty(), pool);
        let table = ExceptionTableData::new(
            signature,
            to_normal,
            [ExceptionTableItem::Default(to_thrown)],
        );
        let table = self.b.func.dfg.exception_tables.push(table);
        self.b.ins().try_call(function, &arguments, table);
        self.b.switch_to_block(thrown);
        let scope = self.open();
        self.load();
        self.store();
        self.close(&scope);
        match self.c.percent(50) {
            true => self.b.ins().jump(self.exit, &[]),
            false => self.b.ins().trap(TrapCode::unwrap_user(9)),
        };
        self.b.switch_to_block(normal);
        for result in results {
            self.mix(result);
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
        match self.c.below(3) {
            0 => {
                let function = self.declare_host(ExternalName::testcase("host_nop"), &[], &[]);
                self.b.ins().call(function, &[]);
            }
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
