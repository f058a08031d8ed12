//! Replacing the accesses of cells by values, along the dominator tree.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    Block, Endianness, Function, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode, Type,
    Value, ValueDef, condcodes::IntCC, types,
};
use cranelift_codegen::packed_option::PackedOption;
use smallvec::SmallVec;

use super::bytes::{Builder, Joined, Piece, Pieces, words};
use super::partition::{Cell, Partition, int_of_bytes};
use super::place::Placement;
use super::uses::{Choice, Op, OpKind, Place, Uses};
use crate::effects::{MemoryFunction, constant_of, memory_function};
use crate::faults::{Fault, planted};
use crate::flow::Flow;
use crate::rewrite::Edit;
use crate::stats::Stats;

/// A step of the visit of the dominator tree.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(Block),
    /// Back to the values above the block: so many changes ago.
    Leave(usize),
}

/// Storage is reused by [`Renaming::run`].
#[derive(Debug, Default)]
pub(super) struct Renaming {
    /// The value that a cell holds; none before it is written.
    current: SecondaryMap<Cell, PackedOption<Value>>,
    undo: Vec<(Cell, PackedOption<Value>)>,
    steps: Vec<Step>,
    /// The values of the parameters of [`Placement::params`].
    params: Vec<Value>,
    /// The zero that stands for bytes that were never written, by type.
    zeros: Vec<(Type, Value)>,
    joined: Joined,
    /// Instructions that were replaced, to be removed.
    pub(super) removed: Vec<Inst>,
    /// Addresses that new instructions use, and for each result of a call that went, what stands
    /// for it.
    pub(super) new_uses: Vec<Value>,
    pub(super) renamed: Vec<(Value, Value)>,
    /// What does parts of a call that went, by the call.
    pub(super) parts: Vec<(Inst, Inst)>,
    /// What cells are after a store to one of a few addresses.
    pub(super) chosen: Vec<(Inst, Cell, Value)>,
}

/// What renaming works on.
pub(super) struct RenameContext<'a, 'b> {
    pub(super) edit: Edit<'b>,
    pub(super) flow: &'a Flow,
    pub(super) uses: &'a Uses,
    pub(super) partition: &'a Partition,
    pub(super) placement: &'a Placement,
    pub(super) endianness: Endianness,
    pub(super) stats: &'a mut Stats,
}

impl Renaming {
    /// The values of the new parameters, in the order of [`Placement::params`].
    pub(super) fn params(&self) -> &[Value] {
        &self.params
    }

    pub(super) fn run(&mut self, cx: &mut RenameContext<'_, '_>) {
        self.current.clear();
        self.current.resize(cx.partition.cells.len());
        self.undo.clear();
        self.steps.clear();
        self.params.clear();
        self.zeros.clear();
        self.joined.clear();
        self.removed.clear();
        self.new_uses.clear();
        self.renamed.clear();
        self.parts.clear();
        self.chosen.clear();
        for &(block, cell) in &cx.placement.params {
            let ty = cx.partition.cells[cell].ty.expect("a cell that is read");
            self.params.push(cx.edit.append_param(block, ty));
        }
        cx.stats.sroa_params += self.params.len() as u64;
        let entry = cx.flow.rpo().first();
        self.steps.extend(entry.map(|&block| Step::Enter(block)));
        while let Some(step) = self.steps.pop() {
            match step {
                Step::Enter(block) => {
                    self.steps.push(Step::Leave(self.undo.len()));
                    self.visit_block(cx, block);
                    self.steps.extend(cx.flow.children(block).map(Step::Enter));
                }
                Step::Leave(mark) => {
                    while self.undo.len() > mark {
                        let Some((cell, value)) = self.undo.pop() else {
                            return;
                        };
                        self.current[cell] = value;
                    }
                }
            }
        }
        self.feed_from_unreachable(cx);
    }

    fn visit_block(&mut self, cx: &mut RenameContext<'_, '_>, block: Block) {
        for index in span_of(cx.placement, block) {
            let (_, cell) = cx.placement.params[index];
            self.set(cell, self.params[index]);
        }
        let mut ops = cx.uses.ops[cx.uses.block_ops(block)].iter().peekable();
        if ops.peek().is_some() {
            for inst in cx.edit.take_insts(block) {
                cx.edit.append(block, inst);
                while let Some(op) = ops.next_if(|op| op.inst == inst) {
                    self.visit_op(cx, op);
                }
            }
        }
        let Some(branch) = cx.edit.func().layout.last_inst(block) else {
            return;
        };
        for (edge, succ) in cx.edit.targets(branch).into_iter().enumerate() {
            let params = cx.placement.params_of(succ);
            if params.is_empty() {
                continue;
            }
            let args: SmallVec<[Value; 8]> = params
                .iter()
                .map(|&(_, cell)| self.value_of(cx, cell))
                .collect();
            cx.edit.append_arguments(branch, edge, &args);
        }
    }

    /// Branches that are never taken need arguments, too.
    fn feed_from_unreachable(&mut self, cx: &mut RenameContext<'_, '_>) {
        if cx.placement.params.is_empty() {
            return;
        }
        let func = cx.edit.func();
        let unreachable: Vec<Block> = func
            .layout
            .blocks()
            .filter(|&block| !cx.flow.is_reachable(block))
            .collect();
        for block in unreachable {
            let func = cx.edit.func();
            let Some(branch) = func.layout.last_inst(block) else {
                continue;
            };
            for (edge, succ) in cx.edit.targets(branch).into_iter().enumerate() {
                let params = cx.placement.params_of(succ);
                let args: Vec<Value> = params
                    .iter()
                    .map(|&(_, cell)| {
                        let ty = cx.partition.cells[cell].ty.expect("a cell that is read");
                        zero_before(&mut cx.edit, branch, ty)
                    })
                    .collect();
                if !args.is_empty() {
                    cx.edit.append_arguments(branch, edge, &args);
                }
            }
        }
    }

    fn set(&mut self, cell: Cell, value: Value) {
        let old = std::mem::replace(&mut self.current[cell], value.into());
        self.undo.push((cell, old));
    }

    fn value_of(&mut self, cx: &mut RenameContext<'_, '_>, cell: Cell) -> Value {
        if let Some(value) = self.current[cell].expand() {
            return value;
        }
        let ty = cx.partition.cells[cell].ty.expect("a cell that is read");
        if let Some(&(_, zero)) = self.zeros.iter().find(|(known, _)| *known == ty) {
            return zero;
        }
        let func = cx.edit.func();
        let entry = func.layout.entry_block();
        let first = entry.and_then(|block| func.layout.first_inst(block));
        let zero = zero_before(
            &mut cx.edit,
            first.expect("the entry block has a branch"),
            ty,
        );
        self.zeros.push((ty, zero));
        zero
    }

    fn visit_op(&mut self, cx: &mut RenameContext<'_, '_>, op: &Op) {
        match op.kind {
            OpKind::Load { from, ty } => self.visit_load(cx, op.inst, from, ty),
            OpKind::Store { to, ty } => self.visit_store(cx, op.inst, to, ty),
            OpKind::LoadAny { choice, ty } => self.visit_load_any(cx, op.inst, choice, ty),
            OpKind::StoreAny { choice, ty } => self.visit_store_any(cx, op.inst, choice, ty),
            OpKind::Copy { to, from, length } => self.visit_copy(cx, op.inst, to, from, length),
            OpKind::Set { to, length } => self.visit_set(cx, op.inst, to, length),
        }
    }

    fn visit_load(&mut self, cx: &mut RenameContext<'_, '_>, inst: Inst, from: Place, ty: Type) {
        if !touches_cells(cx.partition, from, ty.bytes()) {
            return;
        }
        let func = cx.edit.func();
        let swapped = is_swapped(func, inst, cx.endianness);
        let as_loaded = if swapped {
            int_of_bytes(ty.bytes())
        } else {
            ty
        };
        let mut value = self.read(cx, inst, from, as_loaded);
        let mut builder = self.builder(cx, inst);
        if swapped {
            value = builder.swap(value);
            value = builder.convert(value, ty);
        }
        self.finish_load(cx, inst, value);
    }

    /// Widens what was read to what the load gives, and has that stand for the load.
    fn finish_load(&mut self, cx: &mut RenameContext<'_, '_>, inst: Inst, value: Value) {
        let dfg = &cx.edit.func().dfg;
        let opcode = dfg.insts[inst].opcode();
        let result = dfg.value_type(dfg.first_result(inst));
        let mut value = value;
        if result != dfg.value_type(value) {
            let signed = matches!(opcode, Opcode::Sload8 | Opcode::Sload16 | Opcode::Sload32)
                && !planted(Fault::SroaSignExtension);
            let mut cursor = cx.edit.before(inst);
            value = match signed {
                true => cursor.ins().sextend(result, value),
                false => cursor.ins().uextend(result, value),
            };
        }
        cx.edit.replace_result(inst, value);
        self.removed.push(inst);
        cx.stats.sroa_loads += 1;
    }

    /// Whether the address of a choice is the one of its alternatives with this number.
    fn is_chosen(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        choice: &Choice,
        number: usize,
    ) -> Chosen {
        // A select of two addresses tells by its condition.
        let func = cx.edit.func();
        if let ValueDef::Result(def, 0) = func.dfg.value_def(choice.address)
            && let InstructionData::Ternary {
                opcode: Opcode::Select,
                args: [condition, a, b],
            } = func.dfg.insts[def]
        {
            let exact = |value: Value| {
                let pointer = cx.uses.pointer(func, value)?;
                Some((pointer.slot, pointer.offset?.constant()?))
            };
            if let (Some(a), Some(b)) = (exact(a), exact(b))
                && choice.chosen.len() == 2
            {
                self.new_uses.push(condition);
                return if (choice.chosen[number] == a) != planted(Fault::ChoiceInverted) {
                    Chosen::If(condition)
                } else {
                    debug_assert!([a, b].contains(&choice.chosen[number]));
                    Chosen::IfNot(condition)
                };
            }
        }
        let (slot, offset) = choice.chosen[number];
        let mut cursor = cx.edit.before(inst);
        let address = cursor.ins().stack_addr(types::I64, slot, offset as i32);
        self.new_uses.push(choice.address);
        Chosen::If(cursor.ins().icmp(IntCC::Equal, choice.address, address))
    }

    fn select(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        chosen: Chosen,
        value: Value,
        other: Value,
    ) -> Value {
        if value == other {
            return value;
        }
        let mut cursor = cx.edit.before(inst);
        match chosen {
            Chosen::If(condition) => cursor.ins().select(condition, value, other),
            Chosen::IfNot(condition) => cursor.ins().select(condition, other, value),
        }
    }

    /// Reads all alternatives and selects.
    fn visit_load_any(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        choice: u32,
        ty: Type,
    ) {
        let choice = cx.uses.choices[choice as usize].clone();
        if !touches_cells(cx.partition, choice.places[0], ty.bytes()) {
            return;
        }
        let mut value: Option<Value> = None;
        for (number, &place) in choice.places.iter().enumerate() {
            let read = self.read(cx, inst, place, ty);
            value = Some(match value {
                None => read,
                Some(other) if other == read => other,
                Some(other) => {
                    let chosen = self.is_chosen(cx, inst, &choice, number);
                    self.select(cx, inst, chosen, read, other)
                }
            });
        }
        if let Some(value) = value {
            self.finish_load(cx, inst, value);
        }
    }

    /// Changes all alternatives, each on condition that it is the one.
    fn visit_store_any(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        choice: u32,
        ty: Type,
    ) {
        let choice = cx.uses.choices[choice as usize].clone();
        if !touches_cells(cx.partition, choice.places[0], ty.bytes()) {
            return;
        }
        let func = cx.edit.func();
        let mut value = func.dfg.resolve_aliases(func.dfg.inst_args(inst)[0]);
        if func.dfg.value_type(value) != ty {
            value = cx.edit.before(inst).ins().ireduce(ty, value);
        }
        for (number, &place) in choice.places.iter().enumerate() {
            if number > 0 && planted(Fault::ChoiceForgotten) {
                continue;
            }
            let chosen = self.is_chosen(cx, inst, &choice, number);
            let end = place.offset + ty.bytes();
            let partition = cx.partition;
            let old: SmallVec<[(Cell, Value); 2]> = partition
                .cells_in(place.slot, place.offset, end)
                .filter(|&cell| partition.cells[cell].ty.is_some())
                .map(|cell| (cell, self.value_of(cx, cell)))
                .collect();
            self.write(cx, inst, place, value);
            for (cell, old) in old {
                let new = self.value_of(cx, cell);
                let value = self.select(cx, inst, chosen, new, old);
                self.set(cell, value);
            }
        }
        for &place in &choice.places {
            let end = place.offset + ty.bytes();
            for cell in cx.partition.cells_in(place.slot, place.offset, end) {
                if let Some(value) = self.current[cell].expand() {
                    self.chosen.push((inst, cell, value));
                }
            }
        }
        self.removed.push(inst);
        cx.stats.sroa_stores += 1;
    }

    fn visit_store(&mut self, cx: &mut RenameContext<'_, '_>, inst: Inst, to: Place, ty: Type) {
        if !touches_cells(cx.partition, to, ty.bytes()) {
            return;
        }
        let func = cx.edit.func();
        let mut value = func.dfg.resolve_aliases(func.dfg.inst_args(inst)[0]);
        let swapped = is_swapped(func, inst, cx.endianness);
        let mut builder = self.builder(cx, inst);
        if builder.edit.func().dfg.value_type(value) != ty {
            value = match constant_of(builder.edit.func(), value) {
                Some(number) => builder.constant(ty, number),
                None => builder.edit.before(inst).ins().ireduce(ty, value),
            };
        }
        if swapped {
            value = builder.swap(value);
        }
        self.write(cx, inst, to, value);
        self.removed.push(inst);
        cx.stats.sroa_stores += 1;
    }

    fn visit_set(&mut self, cx: &mut RenameContext<'_, '_>, inst: Inst, to: Place, length: u32) {
        if !touches_cells(cx.partition, to, length) {
            return;
        }
        let func = cx.edit.func();
        let Some(MemoryFunction::Set { byte, .. }) = memory_function(func, inst) else {
            return;
        };
        let end = to.offset + length;
        for cell in cx.partition.cells_in(to.slot, to.offset, end) {
            let data = cx.partition.cells[cell];
            let Some(ty) = data.ty else { continue };
            let whole = to.offset <= data.start && data.end <= end;
            if whole || planted(Fault::FillWhole) {
                let value = self.builder(cx, inst).repeat(byte, ty);
                self.set(cell, value);
                continue;
            }
            let (start, end) = (data.start.max(to.offset), data.end.min(end));
            for (from, width) in words(start - data.start, end - start) {
                let part = self.builder(cx, inst).repeat(byte, int_of_bytes(width));
                self.update(cx, inst, cell, from, part);
            }
        }
        for (start, end) in rest_of(cx.partition, to, length) {
            self.call_part(cx, inst, start - to.offset, end - start);
        }
        self.replace_call(cx, inst);
    }

    fn visit_copy(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        to: Option<Place>,
        from: Option<Place>,
        length: u32,
    ) {
        let in_cells = |place: Option<Place>| {
            place.is_some_and(|place| touches_cells(cx.partition, place, length))
        };
        if !in_cells(to) && !in_cells(from) {
            return;
        }
        let func = cx.edit.func();
        let Some(MemoryFunction::Copy {
            to: to_address,
            from: from_address,
            ..
        }) = memory_function(func, inst)
        else {
            return;
        };
        // All is read before anything is written.
        let mut writes: SmallVec<[(u32, Value); 8]> = SmallVec::new();
        let mut calls: SmallVec<[(u32, u32); 2]> = SmallVec::new();
        for run in runs(cx.partition, to, from, length) {
            match run {
                Run {
                    start,
                    end,
                    to: None,
                    from: None,
                } => calls.push((start, end)),
                // Bytes that nothing reads.
                Run { to: Some(cell), .. } if cx.partition.cells[cell].ty.is_none() => {}
                run => self.copy_run(cx, inst, run, from_address, from, &mut writes),
            }
        }
        for (start, value) in writes {
            match to.filter(|to| is_cell(cx.partition, *to, start)) {
                Some(to) => {
                    let place = Place {
                        slot: to.slot,
                        offset: to.offset + start,
                    };
                    self.write(cx, inst, place, value);
                }
                None => {
                    let mut cursor = cx.edit.before(inst);
                    let flags = MemFlagsData::new().with_notrap();
                    let part = cursor.ins().store(flags, value, to_address, start as i32);
                    self.parts.push((inst, part));
                    self.new_uses.push(to_address);
                    cx.stats.sroa_copied_stores += 1;
                }
            }
        }
        for (start, end) in calls {
            self.call_part(cx, inst, start, end - start);
        }
        self.replace_call(cx, inst);
    }

    /// Reads the bytes of a run, which are one cell at one of the sides.
    fn copy_run(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        run: Run,
        from_address: Value,
        from: Option<Place>,
        writes: &mut SmallVec<[(u32, Value); 8]>,
    ) {
        let whole = run.whole_type(cx.partition);
        let pieces: SmallVec<[(u32, Type); 4]> = match whole {
            Some(ty) => SmallVec::from_slice(&[(run.start, ty)]),
            None => words(run.start, run.end - run.start)
                .map(|(start, width)| (start, int_of_bytes(width)))
                .collect(),
        };
        for (start, ty) in pieces {
            let value = match (run.from, from) {
                (Some(_), Some(from)) => {
                    let place = Place {
                        slot: from.slot,
                        offset: from.offset + start,
                    };
                    self.read(cx, inst, place, ty)
                }
                _ => {
                    let mut cursor = cx.edit.before(inst);
                    let flags = MemFlagsData::new().with_notrap();
                    cx.stats.sroa_copied_loads += 1;
                    self.new_uses.push(from_address);
                    let value = cursor.ins().load(ty, flags, from_address, start as i32);
                    let part = cursor.func.dfg.value_def(value).unwrap_inst();
                    self.parts.push((inst, part));
                    value
                }
            };
            writes.push((start, value));
        }
    }

    /// The call of a memory function goes; it returned its first argument.
    fn replace_call(&mut self, cx: &mut RenameContext<'_, '_>, inst: Inst) {
        let dfg = &cx.edit.func().dfg;
        let to = dfg.resolve_aliases(dfg.inst_args(inst)[0]);
        if !dfg.inst_results(inst).is_empty() {
            self.renamed.push((dfg.first_result(inst), to));
            cx.edit.replace_result(inst, to);
        }
        self.removed.push(inst);
        cx.stats.sroa_copies += 1;
    }

    /// Calls the memory function that `inst` calls for a part of its range.
    fn call_part(&mut self, cx: &mut RenameContext<'_, '_>, inst: Inst, start: u32, length: u32) {
        if planted(Fault::CopyRest) {
            return;
        }
        let dfg = &cx.edit.func().dfg;
        let InstructionData::Call { func_ref, .. } = dfg.insts[inst] else {
            return;
        };
        let args: SmallVec<[Value; 3]> = SmallVec::from_slice(dfg.inst_args(inst));
        let is_copy = matches!(
            memory_function(cx.edit.func(), inst),
            Some(MemoryFunction::Copy { .. })
        );
        let mut cursor = cx.edit.before(inst);
        let mut moved = |value: Value| match start {
            0 => value,
            _ => {
                let distance = cursor.ins().iconst(types::I64, i64::from(start));
                cursor.ins().iadd(value, distance)
            }
        };
        self.new_uses.extend_from_slice(&args[..2]);
        let to = moved(args[0]);
        let second = if is_copy { moved(args[1]) } else { args[1] };
        let length = cursor.ins().iconst(types::I64, i64::from(length));
        let part = cursor.ins().call(func_ref, &[to, second, length]);
        self.parts.push((inst, part));
    }

    fn builder<'c, 'b>(
        &'c mut self,
        cx: &'c mut RenameContext<'_, 'b>,
        at: Inst,
    ) -> Builder<'c, 'b> {
        Builder {
            edit: &mut cx.edit,
            at,
            endianness: cx.endianness,
            joined: &mut self.joined,
        }
    }

    /// The bytes at `place` as a value of type `ty`.
    fn read(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        place: Place,
        ty: Type,
    ) -> Value {
        let end = place.offset + ty.bytes();
        let mut pieces = Pieces::new();
        for cell in cx.partition.cells_in(place.slot, place.offset, end) {
            let data = cx.partition.cells[cell];
            let value = self.value_of(cx, cell);
            let (start, end) = (data.start.max(place.offset), data.end.min(end));
            let whole = start == place.offset && end - start == ty.bytes();
            let mut builder = self.builder(cx, inst);
            if whole {
                let part = builder.part(value, start - data.start, end - start);
                return builder.convert(part, ty);
            }
            for (offset, width) in words(start - place.offset, end - start) {
                let from = place.offset + offset - data.start;
                pieces.push(Piece {
                    start: offset,
                    width,
                    value: builder.part(value, from, width),
                });
            }
        }
        self.builder(cx, inst).join(&pieces, ty)
    }

    /// The bytes at `place` are those of `value` from now on.
    fn write(&mut self, cx: &mut RenameContext<'_, '_>, inst: Inst, place: Place, value: Value) {
        let width = cx.edit.func().dfg.value_type(value).bytes();
        let end = place.offset + width;
        for cell in cx.partition.cells_in(place.slot, place.offset, end) {
            let data = cx.partition.cells[cell];
            let Some(ty) = data.ty else { continue };
            let (start, end) = (data.start.max(place.offset), data.end.min(end));
            if start == data.start && end == data.end {
                let value = self.part_of(cx, inst, value, start - place.offset, ty);
                self.set(cell, value);
                continue;
            }
            for (offset, width) in words(start - data.start, end - start) {
                let from = data.start + offset - place.offset;
                let part = self.builder(cx, inst).part(value, from, width);
                self.update(cx, inst, cell, offset, part);
            }
        }
    }

    /// The bytes of `value` from `start`, as a value of type `ty`.
    fn part_of(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        value: Value,
        start: u32,
        ty: Type,
    ) -> Value {
        let mut builder = self.builder(cx, inst);
        let part = builder.part(value, start, ty.bytes());
        builder.convert(part, ty)
    }

    fn update(
        &mut self,
        cx: &mut RenameContext<'_, '_>,
        inst: Inst,
        cell: Cell,
        start: u32,
        part: Value,
    ) {
        let old = self.value_of(cx, cell);
        let new = self.builder(cx, inst).with_part(old, start, part);
        self.set(cell, new);
    }
}

/// The zero of a type, computed before `inst`.
fn zero_before(edit: &mut Edit<'_>, inst: Inst, ty: Type) -> Value {
    let mut cursor = edit.before(inst);
    if ty.is_vector() {
        let zero = cursor.ins().iconst(types::I64, 0);
        let words = cursor.ins().splat(types::I64X2, zero);
        return match ty {
            types::I64X2 => words,
            _ => {
                let flags = MemFlagsData::new().with_endianness(Endianness::Little);
                cursor.ins().bitcast(ty, flags, words)
            }
        };
    }
    match ty {
        types::F32 => cursor.ins().f32const(0.0),
        types::F64 => cursor.ins().f64const(0.0),
        _ => cursor.ins().iconst(ty, 0),
    }
}

/// Whether the access is in the byte order that is not the target's.
fn is_swapped(func: &Function, inst: Inst, native: Endianness) -> bool {
    let flags = func.dfg.insts[inst].memflags_data(&func.dfg);
    let flags = flags.filter(|_| !planted(Fault::SroaByteOrder));
    flags.is_some_and(|flags| flags.endianness(native) != native)
}

pub(super) fn touches_cells(partition: &Partition, place: Place, length: u32) -> bool {
    let end = place.offset + length;
    partition
        .cells_in(place.slot, place.offset, end)
        .next()
        .is_some()
}

fn is_cell(partition: &Partition, place: Place, start: u32) -> bool {
    touches_cells(
        partition,
        Place {
            slot: place.slot,
            offset: place.offset + start,
        },
        1,
    )
}

/// The bytes of a range that are not in cells.
fn rest_of(partition: &Partition, place: Place, length: u32) -> SmallVec<[(u32, u32); 4]> {
    let mut rest = SmallVec::new();
    let end = place.offset + length;
    let mut from = place.offset;
    for cell in partition.cells_in(place.slot, from, end) {
        let data = &partition.cells[cell];
        if from < data.start {
            rest.push((from, data.start));
        }
        from = data.end;
    }
    if from < end {
        rest.push((from, end));
    }
    rest
}

/// The condition on which an address is a certain one.
#[derive(Clone, Copy, Debug)]
enum Chosen {
    If(Value),
    IfNot(Value),
}

/// Bytes of a copy that are all in one cell, or in none, at either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    start: u32,
    end: u32,
    pub(super) to: Option<Cell>,
    pub(super) from: Option<Cell>,
}

impl Run {
    pub(super) fn len(&self) -> u32 {
        self.end - self.start
    }

    /// How many loads or stores it takes, if one side is in memory.
    pub(super) fn num_accesses(&self, partition: &Partition) -> u32 {
        match self.whole_type(partition) {
            None => words(self.start, self.len()).count() as u32,
            Some(_) => 1,
        }
    }

    /// The type of the cell that the run is; none if it is a part of one, or of several.
    fn whole_type(&self, partition: &Partition) -> Option<Type> {
        let ty_of = |cell: Option<Cell>| {
            let cell = &partition.cells[cell?];
            let ty = cell.ty?;
            (cell.end - cell.start == self.len()).then_some(ty)
        };
        ty_of(self.to).or_else(|| ty_of(self.from))
    }
}

/// Cuts a copy into runs. If a cell is written as a whole, its bytes are one run, whatever they
/// come from, as long as all of them come from cells.
pub(super) fn runs(
    partition: &Partition,
    to: Option<Place>,
    from: Option<Place>,
    length: u32,
) -> SmallVec<[Run; 8]> {
    let to_spans = spans(partition, to, length);
    let from_spans = spans(partition, from, length);
    let mut runs: SmallVec<[Run; 8]> = SmallVec::new();
    let (mut a, mut b) = (0, 0);
    let mut start = 0;
    while start < length {
        while to_spans[a].1 <= start {
            a += 1;
        }
        while from_spans[b].1 <= start {
            b += 1;
        }
        let (_, to_end, to_cell) = to_spans[a];
        let (_, from_end, from_cell) = from_spans[b];
        let end = match (to_cell, from_cell) {
            (Some(_), Some(_)) => {
                let mut last = b;
                while from_spans[last].1 < to_end && from_spans[last + 1].2.is_some() {
                    last += 1;
                }
                to_end.min(from_spans[last].1)
            }
            _ => to_end.min(from_end),
        };
        runs.push(Run {
            start,
            end,
            to: to_cell,
            from: from_cell,
        });
        start = end;
    }
    runs
}

/// The range of a copy cut where cells of one side start and end, relative to its start.
fn spans(
    partition: &Partition,
    place: Option<Place>,
    length: u32,
) -> SmallVec<[(u32, u32, Option<Cell>); 8]> {
    let mut spans = SmallVec::new();
    let mut done = 0;
    if let Some(place) = place {
        let end = place.offset + length;
        for cell in partition.cells_in(place.slot, place.offset, end) {
            let data = &partition.cells[cell];
            let start = data.start.max(place.offset) - place.offset;
            let end = data.end.min(end) - place.offset;
            if done < start {
                spans.push((done, start, None));
            }
            spans.push((start, end, Some(cell)));
            done = end;
        }
    }
    if done < length {
        spans.push((done, length, None));
    }
    spans
}

/// The places in [`Placement::params`] of a block's parameters.
fn span_of(placement: &Placement, block: Block) -> std::ops::Range<usize> {
    let start = placement.params.partition_point(|param| param.0 < block);
    start..start + placement.params_of(block).len()
}
