//! The memory view: what a function does to memory, in program order.
//!
//! One [`Entry`] for each instruction with an effect on memory, an observation point among them.
//! Entries of a block are neighbours, so that passes walk memory without walking instructions.
//! Addresses are numbered when they are first asked for.

mod address;
mod class;
mod slots;

use cranelift_codegen::entity::{PrimaryMap, SecondaryMap, entity_impl};
use cranelift_codegen::ir::{
    AliasRegion, Block, Endianness, Function, Inst, InstructionData, MemFlags, MemFlagsData,
    Opcode, StackSlot, Type, Value, types,
};
use cranelift_codegen::packed_option::PackedOption;

pub use address::{Addresses, Linear, Sum};
pub use class::{Class, ClassKind, Classes};
pub use slots::{Derived, Slots};

pub(crate) use address::AddressContext;

use crate::effects::{Access, Effects};
use crate::faults::{Fault, planted};
use crate::flow::Flow;
use crate::options::Options;

/// An instruction with an effect on memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry(u32);
entity_impl!(Entry, "entry");

/// The bytes an instruction names.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// The address operand.
    pub address: Value,
    /// The immediate added to it.
    pub offset: i32,
    /// How many bytes; 1 to 256.
    pub width: u32,
    /// The index of its flags.
    pub flags: MemFlags,
    /// Its region.
    pub region: PackedOption<AliasRegion>,
    /// The stack slot that its address is derived from, unless it is out of the slot's bounds.
    pub slot: PackedOption<StackSlot>,
}

/// See [`Entry`].
#[derive(Clone, Debug)]
pub struct EntryData {
    /// The instruction.
    pub inst: Inst,
    /// Its block.
    pub block: Block,
    /// Its effects.
    pub effects: Effects,
    /// The bytes it names, if it does.
    pub bytes: Option<Bytes>,
    /// Its alias class; that of memory without a region if it names no bytes.
    pub class: Class,
    /// Never merged, removed or moved: in an outside region, in an untouched slot, or provably out
    /// of its slot's bounds.
    pub fixed: bool,
    /// A rewrite has removed the instruction.
    pub removed: bool,
    /// The number of the first byte's address, once it was asked for.
    address: Option<Linear>,
}

/// Where an access stands and what it touches: one side of an alias question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The instruction.
    pub inst: Inst,
    /// The address; none if the address model does not know it.
    pub address: Option<Linear>,
    /// How many bytes.
    pub width: u32,
    /// The region it is tagged with.
    pub region: Option<AliasRegion>,
    /// The stack slot it is derived from.
    pub slot: Option<StackSlot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct EntrySpan {
    start: u32,
    end: u32,
}

/// The memory view of one function. Storage is reused by [`View::scan`].
#[derive(Debug)]
pub struct View {
    entries: PrimaryMap<Entry, EntryData>,
    spans: SecondaryMap<Block, EntrySpan>,
    entry_of_inst: SecondaryMap<Inst, PackedOption<Entry>>,
    outside: Vec<bool>,
    endianness: Endianness,
    exposes_frame: bool,
    loads: u32,
    stores: u32,
    /// Which slots are private where.
    pub slots: Slots,
    /// The function's alias classes.
    pub classes: Classes,
    /// The numbers of addresses.
    pub addresses: Addresses,
}

impl Default for View {
    fn default() -> Self {
        View {
            entries: PrimaryMap::new(),
            spans: SecondaryMap::new(),
            entry_of_inst: SecondaryMap::new(),
            outside: Vec::new(),
            endianness: Endianness::Little,
            exposes_frame: false,
            loads: 0,
            stores: 0,
            slots: Slots::default(),
            classes: Classes::default(),
            addresses: Addresses::default(),
        }
    }
}

impl View {
    /// Collects the entries of `func`, for a target of the given byte order. [`View::analyze`] must
    /// follow before alias questions are asked.
    pub fn scan(&mut self, func: &Function, endianness: Endianness, options: &Options) {
        self.entries.clear();
        self.spans.clear();
        self.entry_of_inst.clear();
        self.entry_of_inst.resize(func.dfg.num_insts());
        self.addresses.reset(func);
        self.exposes_frame = false;
        self.loads = 0;
        self.stores = 0;
        self.endianness = endianness;
        self.classes = Classes::of(func);
        self.outside.clear();
        self.outside
            .extend(func.dfg.alias_regions.iter().map(|(_, region)| {
                let mut names = options.outside_regions.iter();
                names.any(|name| name.matches(region)) && !planted(Fault::OutsideIgnored)
            }));
        for block in func.layout.blocks() {
            let start = self.entries.len() as u32;
            for inst in func.layout.block_insts(block) {
                self.scan_inst(func, block, inst);
            }
            let end = self.entries.len() as u32;
            if end > start {
                self.spans[block] = EntrySpan { start, end };
            }
        }
    }

    fn scan_inst(&mut self, func: &Function, block: Block, inst: Inst) {
        let mut effects = Effects::of(func, inst);
        if !effects.any() {
            return;
        }
        self.exposes_frame |= effects.exposes_frame;
        self.loads += u32::from(effects.access == Access::Load);
        self.stores += u32::from(effects.access == Access::Store);
        let bytes = bytes_of(func, inst);
        if bytes.is_none() && effects.access != Access::None {
            // Which bytes it touches is not known.
            effects.reads_escaped = true;
            effects.writes_escaped = effects.access != Access::Load;
            effects.access = Access::None;
        }
        let fixed = bytes.is_some_and(|bytes| {
            let region = bytes.region.expand();
            region.is_some_and(|region| self.outside[region.as_u32() as usize])
        });
        let entry = self.entries.push(EntryData {
            inst,
            block,
            effects,
            bytes,
            class: self.classes.class(ClassKind::Rest),
            fixed,
            removed: false,
            address: None,
        });
        self.entry_of_inst[inst] = entry.into();
    }

    /// How many plain loads the function has.
    pub fn num_loads(&self) -> u32 {
        self.loads
    }

    /// How many plain stores the function has.
    pub fn num_stores(&self) -> u32 {
        self.stores
    }

    /// Finds private slots and the classes of accesses.
    pub fn analyze(&mut self, func: &Function, flow: &Flow, options: &Options) {
        self.slots.compute(func, flow);
        if !func.sized_stack_slots.is_empty() {
            self.bind_slots(func, options);
        }
        for data in self.entries.values_mut() {
            let Some(bytes) = &data.bytes else { continue };
            let private = bytes
                .slot
                .expand()
                .filter(|&slot| self.slots.is_always_private(slot));
            data.class = self.classes.class(match (private, bytes.region.expand()) {
                (Some(slot), _) => ClassKind::Private(slot),
                (None, Some(region)) => ClassKind::Region(region),
                (None, None) => ClassKind::Rest,
            });
        }
    }

    fn bind_slots(&mut self, func: &Function, options: &Options) {
        if self.exposes_frame {
            self.slots.expose_all(func);
        }
        for data in self.entries.values_mut() {
            let Some(bytes) = &mut data.bytes else {
                continue;
            };
            let Some(derived) = self.slots.derived(func, bytes.address) else {
                continue;
            };
            let slot = &func.sized_stack_slots[derived.slot];
            let untouched = slot
                .key
                .is_some_and(|key| options.untouched_slot_keys.contains(&key.bits()));
            data.fixed |= untouched;
            let in_bounds = derived.offset.is_none_or(|offset| {
                let start = offset.saturating_add(i64::from(bytes.offset));
                start >= 0 && start.saturating_add(i64::from(bytes.width)) <= i64::from(slot.size)
            });
            if in_bounds || planted(Fault::OutOfBounds) {
                bytes.slot = derived.slot.into();
            } else {
                data.fixed = true;
                self.slots.expose(derived.slot);
            }
        }
    }

    /// The entry with the given number.
    pub fn entry(&self, entry: Entry) -> &EntryData {
        &self.entries[entry]
    }

    /// All entries in layout order, those of unreachable blocks too.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + use<> {
        self.entries.keys()
    }

    /// How many entries there are.
    pub fn num_entries(&self) -> usize {
        self.entries.len()
    }

    /// The entries of `block` in program order.
    pub fn block_entries(&self, block: Block) -> impl DoubleEndedIterator<Item = Entry> + use<> {
        let span = self.spans[block];
        (span.start..span.end).map(Entry)
    }

    /// The entries after `entry` in its block.
    pub fn block_entries_after(&self, entry: Entry) -> impl Iterator<Item = Entry> + use<> {
        let span = self.spans[self.entries[entry].block];
        (entry.0 + 1..span.end).map(Entry)
    }

    /// The entry of `inst`, if it has an effect on memory.
    pub fn entry_of(&self, inst: Inst) -> Option<Entry> {
        self.entry_of_inst[inst].expand()
    }

    pub(crate) fn mark_removed(&mut self, entry: Entry) {
        self.entries[entry].removed = true;
    }

    pub(crate) fn set_flags(&mut self, entry: Entry, flags: MemFlags) {
        if let Some(bytes) = &mut self.entries[entry].bytes {
            bytes.flags = flags;
        }
    }

    /// The byte order of accesses whose flags name none.
    pub fn endianness(&self) -> Endianness {
        self.endianness
    }

    /// The flags of an access.
    pub fn flags(&self, func: &Function, bytes: &Bytes) -> MemFlagsData {
        func.dfg.mem_flags[bytes.flags]
    }

    /// Whether the access may trap: its flags say so, and it is not within a stack slot.
    pub fn may_trap(&self, entry: Entry) -> bool {
        let data = &self.entries[entry];
        data.effects.may_trap && data.bytes.is_none_or(|bytes| bytes.slot.is_none())
    }

    /// Where the access of `entry` stands and what it touches.
    ///
    /// # Panics
    /// If the entry names no bytes.
    pub fn location(&mut self, func: &Function, flow: &Flow, entry: Entry) -> Location {
        let data = &self.entries[entry];
        let bytes = data.bytes.expect("the entry names bytes");
        let inst = data.inst;
        let address = data
            .address
            .or_else(|| self.number_address(func, flow, entry, &bytes));
        Location {
            inst,
            address,
            width: bytes.width,
            region: bytes.region.expand(),
            slot: bytes.slot.expand(),
        }
    }

    fn number_address(
        &mut self,
        func: &Function,
        flow: &Flow,
        entry: Entry,
        bytes: &Bytes,
    ) -> Option<Linear> {
        if func.dfg.value_type(bytes.address) != types::I64 {
            return None;
        }
        let cx = AddressContext {
            func,
            flow,
            endianness: self.endianness,
            outside: &self.outside,
        };
        let number = self.addresses.number(cx, bytes.address);
        let address = Linear {
            sum: number.sum,
            offset: number.offset.wrapping_add(i64::from(bytes.offset)),
        };
        self.entries[entry].address = Some(address);
        Some(address)
    }

    /// Declares that `value` is the same number as `other`, if both are numbers of addresses.
    pub(crate) fn set_equal(&mut self, func: &Function, flow: &Flow, value: Value, other: Value) {
        let ty = func.dfg.value_type(value);
        if !ty.is_int() || ty.bits() > 64 || func.dfg.value_type(other) != ty {
            return;
        }
        let cx = AddressContext {
            func,
            flow,
            endianness: self.endianness,
            outside: &self.outside,
        };
        let number = self.addresses.number(cx, other);
        self.addresses.set_equal(value, number);
    }
}

/// The type as which a plain load or store and an atomic access touch memory; extending loads and
/// truncating stores touch an integer that is narrower than the value.
pub(crate) fn memory_type(func: &Function, inst: Inst) -> Option<Type> {
    let data = &func.dfg.insts[inst];
    let ty = match data.opcode() {
        Opcode::Load | Opcode::AtomicLoad | Opcode::AtomicRmw | Opcode::AtomicCas => {
            func.dfg.value_type(func.dfg.first_result(inst))
        }
        Opcode::Store | Opcode::AtomicStore => func.dfg.value_type(func.dfg.inst_args(inst)[0]),
        Opcode::Uload8 | Opcode::Sload8 | Opcode::Istore8 => types::I8,
        Opcode::Uload16 | Opcode::Sload16 | Opcode::Istore16 => types::I16,
        Opcode::Uload32 | Opcode::Sload32 | Opcode::Istore32 => types::I32,
        Opcode::Uload8x8 | Opcode::Sload8x8 => types::I8X8,
        Opcode::Uload16x4 | Opcode::Sload16x4 => types::I16X4,
        Opcode::Uload32x2 | Opcode::Sload32x2 => types::I32X2,
        _ => return None,
    };
    Some(ty)
}

fn bytes_of(func: &Function, inst: Inst) -> Option<Bytes> {
    let (address, offset, flags) = match func.dfg.insts[inst] {
        InstructionData::Load {
            flags, arg, offset, ..
        } => (arg, i32::from(offset), flags),
        InstructionData::Store {
            flags,
            args,
            offset,
            ..
        } => (args[1], i32::from(offset), flags),
        InstructionData::LoadNoOffset { flags, arg, .. } => (arg, 0, flags),
        InstructionData::StoreNoOffset { flags, args, .. } => (args[1], 0, flags),
        InstructionData::AtomicRmw { flags, args, .. } => (args[0], 0, flags),
        InstructionData::AtomicCas { flags, args, .. } => (args[0], 0, flags),
        _ => return None,
    };
    let ty = memory_type(func, inst)?;
    // The size of a dynamic vector is not known.
    if ty.is_dynamic_vector() {
        return None;
    }
    Some(Bytes {
        address,
        offset,
        width: ty.bytes(),
        flags,
        region: func.dfg.mem_flags[flags].alias_region().into(),
        slot: None.into(),
    })
}
