//! One function: entry, statements, exit.

use cranelift_codegen::ir::{
    Block, Function, InstBuilder, MemFlagsData, Signature, StackSlot, StackSlotData, StackSlotKind,
    Type, UserFuncName, Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::access::Hot;
use super::place::{MAIN, OTHER, Place, SLOTS, Space, TABLE};
use super::{Tagging, World};
use crate::choices::Choices;
use crate::shape::Shape;

/// Cells of a table of addresses.
pub(crate) const CELLS: i32 = 8;
/// Bytes that are valid from the parameters `a`, `b` and `c`.
pub(crate) const PARAM_BYTES: i64 = 48;

/// The parameters; see [`generate`](super::generate).
#[derive(Clone, Copy)]
pub(crate) struct Params {
    pub(crate) a: Value,
    pub(crate) b: Value,
    pub(crate) c: Value,
    pub(crate) d: Value,
    pub(crate) t: Value,
    pub(crate) e: Value,
    pub(crate) u: Value,
    pub(crate) g: Value,
    pub(crate) fuel: Value,
}

/// A function that is being built.
pub(crate) struct Gen<'a, 'c, 'u> {
    pub(crate) b: FunctionBuilder<'a>,
    pub(crate) c: &'a mut Choices<'c, 'u>,
    pub(crate) shape: &'a mut Shape,
    pub(crate) world: &'a World,
    pub(crate) index: usize,
    pub(crate) params: Params,
    /// The result so far.
    pub(crate) acc: Variable,
    /// Always an address with 16 valid bytes.
    pub(crate) cursor: Variable,
    /// Data of these types that branches change.
    pub(crate) variables: Vec<Variable>,
    pub(crate) exit: Block,
    pub(crate) places: Vec<Place>,
    pub(crate) values: Vec<Value>,
    pub(crate) hot: Vec<Hot>,
    /// Slots that hold addresses only.
    pub(crate) pointer_slots: Vec<StackSlot>,
    pub(crate) has_slots: bool,
    /// There are slots that statements in a scope have to themselves.
    pub(crate) has_scoped_slots: bool,
    /// Statements that may still be built.
    pub(crate) budget: usize,
    pub(crate) depth: usize,
    pub(crate) loop_depth: usize,
}

/// What was known when a scope began.
pub(crate) struct Scope {
    places: usize,
    values: usize,
    hot: usize,
}

/// Builds function `index` of `world`.
pub(crate) fn build(
    world: &World,
    index: usize,
    choices: &mut Choices<'_, '_>,
    shape: &mut Shape,
    budget: usize,
) -> Function {
    let signature: Signature = world.signatures[index].clone();
    let name = UserFuncName::testcase(format!("f{index}"));
    let mut function = Function::with_name_signature(name, signature);
    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut function, &mut context);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let exit = b.create_block();
    let (acc, cursor) = (b.declare_var(types::I64), b.declare_var(types::I64));
    let params = params(b.block_params(entry));
    let data = b.block_params(entry)[7..9].to_vec();
    let mut building = Gen {
        b,
        c: choices,
        shape,
        world,
        index,
        params,
        acc,
        cursor,
        variables: Vec::new(),
        exit,
        places: Vec::new(),
        values: data,
        hot: Vec::new(),
        pointer_slots: Vec::new(),
        has_slots: false,
        has_scoped_slots: false,
        budget,
        depth: 0,
        loop_depth: 0,
    };
    building.places = places(&params, building.unknown());
    building.start();
    building.statements();
    building.finish();
    building.b.seal_all_blocks();
    building.b.finalize(TargetFrontendConfig {
        default_call_conv: CallConv::SystemV,
        pointer_width: target_lexicon::PointerWidth::U64,
        page_size_align_log2: 12,
    });
    function
}

fn params(values: &[Value]) -> Params {
    Params {
        a: values[0],
        b: values[1],
        c: values[2],
        d: values[3],
        t: values[4],
        e: values[5],
        u: values[6],
        g: values[9],
        fuel: values[10],
    }
}

fn places(params: &Params, unknown: Space) -> Vec<Place> {
    let place = |base, space, high, align| Place {
        base,
        space,
        low: 0,
        high,
        align,
    };
    vec![
        place(params.a, Space::Main, PARAM_BYTES, 8),
        place(params.b, Space::Main, PARAM_BYTES, 1),
        place(params.c, Space::Other, PARAM_BYTES, 8),
        place(params.d, Space::Readonly, 32, 16),
        place(params.u, unknown, 16, 1),
    ]
}

impl Gen<'_, '_, '_> {
    fn start(&mut self) {
        let x = self.values[0];
        self.b.def_var(self.acc, x);
        self.b.def_var(self.cursor, self.params.a);
        for ty in [types::I64, types::I32, types::F64, types::I8X16] {
            let variable = self.b.declare_var(ty);
            let value = self.value(ty);
            self.b.def_var(variable, value);
            self.variables.push(variable);
        }
        // Known from the start: what is generated first may be executed last.
        self.has_scoped_slots = self.c.percent(50);
        self.has_slots = self.has_scoped_slots;
        for number in 0..self.c.below(4) {
            self.new_slot(number);
        }
        if self.c.percent(25) {
            self.new_pointer_slot();
        }
    }

    pub(crate) fn new_slot(&mut self, number: usize) {
        let size = self.c.pick(&[1u32, 2, 4, 8, 12, 16, 24, 40, 48, 64]);
        let align_shift = self.c.pick(&[0u8, 2, 3, 4]);
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, size, align_shift);
        let slot = self.b.create_sized_stack_slot(data);
        let region = match self.c.below(4) {
            0 => Some(MAIN),
            1 => Some(OTHER),
            2 => Some(SLOTS + number as u32),
            _ if self.world.tagging == Tagging::Full => Some(MAIN),
            _ => None,
        };
        self.shape.slots += 1;
        self.has_slots = true;
        let base = self.b.ins().stack_addr(types::I64, slot, 0);
        let place = Place {
            base,
            space: Space::Slot(slot, region),
            low: 0,
            high: i64::from(size),
            align: 1 << align_shift,
        };
        self.initialize(place);
        self.places.push(place);
        if size >= 16 && self.c.percent(30) {
            let at = self.c.between(1, i64::from(size) - 8);
            let base = self.b.ins().stack_addr(types::I64, slot, at as i32);
            self.places.push(Place {
                base,
                low: -at,
                high: place.high - at,
                align: 1,
                ..place
            });
        }
    }

    fn new_pointer_slot(&mut self) {
        let size = CELLS as u32 * 8;
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, size, 3);
        let slot = self.b.create_sized_stack_slot(data);
        self.shape.pointer_slots += 1;
        self.has_slots = true;
        let base = self.b.ins().stack_addr(types::I64, slot, 0);
        let flags = MemFlagsData::trusted();
        for cell in 0..CELLS {
            self.b.ins().store(flags, self.params.a, base, cell * 8);
        }
        self.pointer_slots.push(slot);
    }

    /// Opens a scope: what is known in it is forgotten at its end.
    pub(crate) fn open(&mut self) -> Scope {
        self.depth += 1;
        Scope {
            places: self.places.len(),
            values: self.values.len(),
            hot: self.hot.len(),
        }
    }

    pub(crate) fn close(&mut self, scope: &Scope) {
        self.depth -= 1;
        self.places.truncate(scope.places);
        self.values.truncate(scope.values);
        self.hot.truncate(scope.hot);
    }

    /// No slot of this frame may be found in `t` once the frame is gone.
    pub(crate) fn clear_table(&mut self) {
        if !self.has_slots {
            return;
        }
        let region = Some(self.region(TABLE));
        let flags = MemFlagsData::trusted().with_alias_region(region);
        for cell in 0..CELLS {
            self.b
                .ins()
                .store(flags, self.params.a, self.params.t, cell * 8);
        }
    }

    fn finish(&mut self) {
        let exit = self.exit;
        self.b.ins().jump(exit, &[]);
        self.b.switch_to_block(exit);
        self.places = places(&self.params, self.unknown());
        self.values.clear();
        self.hot.clear();
        self.clear_table();
        let acc = self.b.use_var(self.acc);
        let returns: Vec<Type> = self.world.signatures[self.index]
            .returns
            .iter()
            .map(|param| param.value_type)
            .collect();
        let results: Vec<Value> = returns.iter().map(|&ty| self.result(acc, ty)).collect();
        self.b.ins().return_(&results);
    }

    fn result(&mut self, acc: Value, ty: Type) -> Value {
        match ty {
            types::I32 => self.b.use_var(self.variables[1]),
            types::F64 => self.b.use_var(self.variables[2]),
            types::I8X16 => self.b.use_var(self.variables[3]),
            types::I128 => {
                let high = self.b.use_var(self.variables[0]);
                self.b.ins().iconcat(acc, high)
            }
            _ => acc,
        }
    }
}
