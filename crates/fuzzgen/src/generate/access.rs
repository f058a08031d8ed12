//! Loads and stores.

use cranelift_codegen::ir::{
    AtomicRmwOp, Endianness, InstBuilder, MemFlagsData, TrapCode, Type, Value, types,
};

use super::Tagging;
use super::data::TYPES;
use super::function::{CELLS, Gen};
use super::place::{Place, Space, TABLE};

/// An access that was made, to be made again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hot {
    place: Place,
    offset: i64,
    ty: Type,
    tagged: bool,
}

impl Gen<'_, '_, '_> {
    /// Where and as what the next access is made: mostly close to an older one.
    pub(crate) fn spot(&mut self, writable: bool) -> Hot {
        let old: Vec<Hot> = self
            .hot
            .iter()
            .copied()
            .filter(|hot| hot.place.is_writable() || !writable)
            .collect();
        if !old.is_empty() && self.c.percent(70) {
            self.shape.repeated += 1;
            let hot = old[old.len() - 1 - self.c.below(old.len().min(5))];
            return self.near(hot);
        }
        let mut ty = self.c.weighted(&TYPES);
        let mut place = self.place(1, writable);
        if self.c.percent(8) {
            place = self.cursor_place();
        }
        if !place.holds(i64::from(ty.bytes())) {
            ty = types::I8;
        }
        self.spot_in(place, ty)
    }

    fn cursor_place(&mut self) -> Place {
        Place {
            base: self.b.use_var(self.cursor),
            space: self.unknown(),
            low: 0,
            high: 16,
            align: 1,
        }
    }

    fn spot_in(&mut self, place: Place, ty: Type) -> Hot {
        let width = i64::from(ty.bytes());
        let count = (place.high - place.low) / width;
        // Multiples of the width from the start meet again; odd offsets overlap.
        let offset = match self.c.percent(75) {
            true => place.low + width * self.c.below(count.min(3) as usize) as i64,
            false => self.c.between(place.low, place.high - width),
        };
        let hot = Hot {
            place,
            offset,
            ty,
            tagged: self.is_tagged(place.space),
        };
        self.hot.push(hot);
        hot
    }

    /// The same bytes, as another type, or bytes that overlap.
    fn near(&mut self, hot: Hot) -> Hot {
        let (mut offset, mut ty) = (hot.offset, hot.ty);
        match self.c.below(10) {
            0..5 => {}
            5 | 6 => {
                let width = ty.bytes();
                let same: Vec<Type> = TYPES.iter().map(|(_, ty)| *ty).collect();
                let same: Vec<Type> = same.into_iter().filter(|ty| ty.bytes() == width).collect();
                ty = self.c.pick(&same);
            }
            7 | 8 => ty = self.c.weighted(&TYPES),
            _ => offset += self.c.between(-4, 4),
        }
        let (low, high) = (hot.place.low, hot.place.high);
        let width = i64::from(ty.bytes());
        if offset < low || offset + width > high {
            (offset, ty) = (hot.offset, hot.ty);
        }
        let near = Hot { offset, ty, ..hot };
        if self.c.percent(40) {
            self.hot.push(near);
        }
        near
    }

    /// The flags of an access at `hot` that is valid for certain.
    fn flags(&mut self, hot: Hot, is_load: bool) -> MemFlagsData {
        let mut flags = self.plain_flags();
        let width = i64::from(hot.ty.bytes());
        if hot.place.align >= width && hot.offset % width == 0 && self.c.percent(50) {
            flags.set_aligned();
            self.shape.aligned += 1;
        }
        if hot.place.space == Space::Readonly && is_load && self.c.percent(60) {
            flags.set_readonly();
            self.shape.readonly += 1;
        }
        if flags.notrap() && self.c.percent(15) {
            flags.set_can_move();
            self.shape.can_move += 1;
        }
        match hot.place.space.region() {
            Some(region) if hot.tagged => {
                flags.set_alias_region(Some(self.region(region)));
                self.shape.tagged += 1;
            }
            _ => self.shape.untagged += 1,
        }
        flags
    }

    /// Byte order and trap code.
    fn plain_flags(&mut self) -> MemFlagsData {
        let mut flags = MemFlagsData::new();
        if self.c.percent(55) {
            flags.set_notrap();
            self.shape.notrap += 1;
        } else {
            let code = self
                .c
                .pick(&[TrapCode::HEAP_OUT_OF_BOUNDS, TrapCode::unwrap_user(2)]);
            flags = flags.with_trap_code(Some(code));
            self.shape.may_trap += 1;
        }
        match self.c.below(20) {
            14..=18 if self.world.big_endian => {
                flags.set_endianness(Endianness::Big);
                self.shape.big_endian += 1;
            }
            19 => {
                flags.set_endianness(Endianness::Little);
                self.shape.little_endian += 1;
            }
            _ => {}
        }
        flags
    }

    fn count_type(&mut self, ty: Type) {
        self.shape.vector_accesses += u64::from(ty.is_vector());
        self.shape.wide_accesses += u64::from(ty == types::I128);
        self.shape.float_accesses += u64::from(ty.is_float());
    }

    pub(crate) fn load_at(&mut self, hot: Hot) -> Value {
        self.shape.loads += 1;
        self.count_type(hot.ty);
        let flags = self.flags(hot, true);
        let (base, offset) = (hot.place.base, hot.offset as i32);
        if hot.ty.is_int() && hot.ty.bits() < 64 && self.c.percent(25) {
            self.shape.extending_loads += 1;
            return self.extending_load(hot.ty, flags, base, offset);
        }
        if hot.ty == types::F64 && self.c.percent(20) {
            self.shape.extending_loads += 1;
            return self.extending_vector_load(flags, base, offset);
        }
        self.b.ins().load(hot.ty, flags, base, offset)
    }

    fn extending_load(&mut self, ty: Type, flags: MemFlagsData, base: Value, offset: i32) -> Value {
        let signed = self.c.percent(50);
        let wide = match ty {
            types::I8 => self.c.pick(&[types::I16, types::I32, types::I64]),
            types::I16 => self.c.pick(&[types::I32, types::I64]),
            _ => types::I64,
        };
        let ins = self.b.ins();
        match (ty, signed) {
            (types::I8, false) => ins.uload8(wide, flags, base, offset),
            (types::I8, true) => ins.sload8(wide, flags, base, offset),
            (types::I16, false) => ins.uload16(wide, flags, base, offset),
            (types::I16, true) => ins.sload16(wide, flags, base, offset),
            (_, false) => ins.uload32(flags, base, offset),
            (_, true) => ins.sload32(flags, base, offset),
        }
    }

    fn extending_vector_load(&mut self, flags: MemFlagsData, base: Value, offset: i32) -> Value {
        // Lane order within the register is the target's for these.
        let kind = self.c.below(6);
        let ins = self.b.ins();
        match kind {
            0 => ins.uload8x8(flags, base, offset),
            1 => ins.sload8x8(flags, base, offset),
            2 => ins.uload16x4(flags, base, offset),
            3 => ins.sload16x4(flags, base, offset),
            4 => ins.uload32x2(flags, base, offset),
            _ => ins.sload32x2(flags, base, offset),
        }
    }

    pub(crate) fn store_at(&mut self, hot: Hot, value: Value) {
        self.shape.stores += 1;
        self.count_type(hot.ty);
        let flags = self.flags(hot, false);
        self.b
            .ins()
            .store(flags, value, hot.place.base, hot.offset as i32);
    }

    fn truncating_store(&mut self, hot: Hot) {
        self.shape.stores += 1;
        self.shape.truncating_stores += 1;
        let flags = self.flags(hot, false);
        let (base, offset) = (hot.place.base, hot.offset as i32);
        let wide = self.value(types::I64);
        let ins = self.b.ins();
        match hot.ty {
            types::I8 => ins.istore8(flags, wide, base, offset),
            types::I16 => ins.istore16(flags, wide, base, offset),
            _ => ins.istore32(flags, wide, base, offset),
        };
    }

    pub(crate) fn load(&mut self) {
        let hot = self.spot(false);
        let value = self.load_at(hot);
        if self.c.percent(85) {
            self.mix(value);
        }
    }

    /// A load from so many bytes after the start of a place, if it holds them.
    pub(crate) fn load_in(&mut self, place: Place, offset: i64, ty: Type) {
        if place.holds(offset + i64::from(ty.bytes())) {
            let tagged = self.is_tagged(place.space);
            let offset = place.low + offset;
            let hot = Hot {
                place,
                offset,
                ty,
                tagged,
            };
            self.hot.push(hot);
            let value = self.load_at(hot);
            self.mix(value);
        }
    }

    pub(crate) fn store(&mut self) {
        let hot = self.spot(true);
        if hot.ty.is_int() && hot.ty.bits() < 64 && self.c.percent(20) {
            return self.truncating_store(hot);
        }
        let value = self.value(hot.ty);
        self.store_at(hot, value);
    }

    pub(crate) fn store_somewhere_in(&mut self, place: Place) {
        let ty = if place.holds(8) {
            types::I64
        } else {
            types::I8
        };
        let hot = self.spot_in(place, ty);
        let value = self.value(ty);
        self.store_at(hot, value);
    }

    /// What was loaded is stored back.
    pub(crate) fn store_back(&mut self) {
        let hot = self.spot(true);
        self.shape.loads += 1;
        let flags = self.flags(hot, true);
        let value = self
            .b
            .ins()
            .load(hot.ty, flags, hot.place.base, hot.offset as i32);
        self.shape.store_backs += 1;
        if self.c.percent(30) {
            self.small_statement();
        }
        self.store_at(hot, value);
    }

    /// The same value twice, perhaps with something between.
    pub(crate) fn double_store(&mut self) {
        let hot = self.spot(true);
        let value = self.value(hot.ty);
        self.shape.double_stores += 1;
        self.store_at(hot, value);
        if self.c.percent(40) {
            self.small_statement();
        }
        self.store_at(hot, value);
    }

    /// A store, and one over it.
    pub(crate) fn overwrite(&mut self) {
        let hot = self.spot(true);
        self.shape.overwrites += 1;
        for _ in 0..2 {
            let value = self.value(hot.ty);
            self.store_at(hot, value);
            if self.c.percent(30) {
                self.small_statement();
            }
        }
    }

    /// Copies bytes piece by piece.
    pub(crate) fn copy_pieces(&mut self) {
        let (from, to) = (self.place(8, false), self.place(8, true));
        let ty = self
            .c
            .pick(&[types::I8, types::I16, types::I32, types::I64]);
        self.shape.copies += 1;
        let pieces = (8 / i64::from(ty.bytes())).min(3);
        for piece in 0..pieces {
            let at = piece * i64::from(ty.bytes());
            let [source, target] = [from, to].map(|place| Hot {
                place,
                offset: place.low + at,
                ty,
                tagged: self.is_tagged(place.space),
            });
            let flags = self.flags(source, true);
            self.shape.loads += 1;
            let offset = (from.low + at) as i32;
            let value = self.b.ins().load(ty, flags, from.base, offset);
            self.store_at(target, value);
        }
    }

    /// Writes all of a slot.
    pub(crate) fn initialize(&mut self, place: Place) {
        let size = place.high;
        if size >= 8 && self.c.percent(25) {
            return self.initialize_by_memset(place);
        }
        let (mut at, mut value) = (0, self.value(types::I64));
        while at < size {
            let ty = match size - at {
                left if left >= 16 && self.c.percent(50) => types::I8X16,
                left if left >= 8 => types::I64,
                left if left >= 4 => types::I32,
                _ => types::I8,
            };
            if self.c.percent(50) || self.b.func.dfg.value_type(value) != ty {
                value = self.value(ty);
            }
            let tagged = self.is_tagged(place.space);
            let hot = Hot {
                place,
                offset: at,
                ty,
                tagged,
            };
            self.store_at(hot, value);
            at += i64::from(ty.bytes());
        }
    }

    /// An access through `e`, which may trap; perhaps one after it that cannot, since this did not.
    pub(crate) fn far_access(&mut self) {
        let ty = self
            .c
            .pick(&[types::I8, types::I32, types::I64, types::I64]);
        let offset = 8 * self.c.below(3) as i32;
        let code = self
            .c
            .pick(&[TrapCode::HEAP_OUT_OF_BOUNDS, TrapCode::unwrap_user(5)]);
        let flags = MemFlagsData::new().with_trap_code(Some(code));
        self.shape.far_accesses += 1;
        let store = self.c.percent(50);
        self.far(flags, ty, offset, store);
        for _ in 0..self.c.below(3) {
            self.small_statement();
        }
        if self.c.percent(40) {
            // After a load, a store may still trap on a page that is only readable.
            let store_again = store && self.c.percent(50);
            self.shape.covered_notrap += 1;
            self.far(flags.with_notrap(), ty, offset, store_again);
        } else if self.c.percent(60) {
            let again = self.c.percent(50);
            self.far(flags, ty, offset, again);
        }
    }

    /// Accesses through `e` in an arm where `g` says that it is in bounds.
    pub(crate) fn guarded_access(&mut self) {
        let bit = self.b.ins().band_imm_u(self.params.g, 1);
        let (then, join) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(bit, then, &[], join, &[]);
        self.b.switch_to_block(then);
        let scope = self.open();
        let flags = MemFlagsData::new().with_notrap();
        for _ in 0..1 + self.c.below(3) {
            let ty = self.c.pick(&[types::I32, types::I64]);
            let (offset, store) = (8 * self.c.below(3) as i32, self.c.percent(50));
            self.shape.guarded_notrap += 1;
            self.far(flags, ty, offset, store);
        }
        self.close(&scope);
        self.b.ins().jump(join, &[]);
        self.b.switch_to_block(join);
    }

    fn far(&mut self, flags: MemFlagsData, ty: Type, offset: i32, store: bool) {
        let address = self.params.e;
        if store {
            let value = self.value(ty);
            self.shape.stores += 1;
            self.b.ins().store(flags, value, address, offset);
        } else {
            self.shape.loads += 1;
            let value = self.b.ins().load(ty, flags, address, offset);
            self.mix(value);
        }
    }

    pub(crate) fn atomic(&mut self) {
        let ty = self.c.pick(&[types::I32, types::I64]);
        let width = i64::from(ty.bytes());
        let aligned: Vec<Place> = self
            .places
            .iter()
            .copied()
            .filter(|place| place.is_writable() && place.align >= width && place.holds(width))
            .filter(|place| place.low % width == 0)
            .collect();
        let place = self.c.pick(&aligned);
        let slots = (place.high - place.low) / width;
        let offset = place.low + width * self.c.below(slots.min(3) as usize) as i64;
        let address = self.moved(place.base, offset);
        let mut flags = self.plain_flags();
        if flags.explicit_endianness() == Some(Endianness::Big) {
            // Not for atomics.
            flags = MemFlagsData::new();
        }
        self.shape.atomics += 1;
        match self.c.below(4) {
            0 => {
                let value = self.b.ins().atomic_load(ty, flags, address);
                self.mix(value);
            }
            1 => {
                let value = self.value(ty);
                self.b.ins().atomic_store(flags, value, address);
            }
            2 => {
                let (expected, value) = (self.value(ty), self.value(ty));
                let old = self.b.ins().atomic_cas(flags, address, expected, value);
                self.mix(old);
            }
            _ => {
                let value = self.value(ty);
                let op = self
                    .c
                    .pick(&[AtomicRmwOp::Add, AtomicRmwOp::Xchg, AtomicRmwOp::Umax]);
                let old = self.b.ins().atomic_rmw(ty, flags, op, address, value);
                self.mix(old);
            }
        }
    }

    /// A cell that holds an address: in `t`, or in a slot of this function.
    fn pointer_cell(&mut self) -> (Value, i32, MemFlagsData) {
        let cell = 8 * self.c.below(CELLS as usize / 2) as i32;
        let mut flags = MemFlagsData::trusted();
        let slots = self.pointer_slots.clone();
        if !slots.is_empty() && self.c.percent(60) {
            let slot = self.c.pick(&slots);
            let base = self.b.ins().stack_addr(types::I64, slot, 0);
            return (base, cell, flags);
        }
        if self.world.tagging != Tagging::Mixed || self.c.percent(60) {
            flags.set_alias_region(Some(self.region(TABLE)));
        }
        (self.params.t, cell, flags)
    }

    pub(crate) fn load_pointer(&mut self) -> Value {
        let (base, offset, flags) = self.pointer_cell();
        self.shape.loaded_pointers += 1;
        self.b.ins().load(types::I64, flags, base, offset)
    }

    /// Stores an address, often of a slot, into a cell.
    pub(crate) fn store_pointer(&mut self) {
        let place = self.pointee();
        let address = self.address_in(place, 16);
        let (base, offset, flags) = self.pointer_cell();
        if matches!(place.space, Space::Slot(..)) {
            self.shape.escapes_by_store += 1;
        }
        self.b.ins().store(flags, address, base, offset);
    }
}
