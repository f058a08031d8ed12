//! The proofs of claims.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Function, Inst, TrapCode, Value, types};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Claims;
use super::bits::{Shape, is_exact, writes_the_same};
use super::forms::{Form, Forms};
use super::program::{Bytes, Event, Program};
use super::structure::ensure_unaligned;
use crate::certificate::Certificate;
use crate::convert::Conversion;
use crate::effects::Access;

type Proven = Result<(), String>;

fn ensure(condition: bool, otherwise: &str) -> Proven {
    if condition {
        Ok(())
    } else {
        Err(otherwise.to_string())
    }
}

/// A plain load or store that a claim speaks of.
#[derive(Clone, Copy, Debug)]
struct Subject {
    event: Event,
    bytes: Bytes,
    block: Block,
    address: Option<Form>,
}

/// How the bytes of an access lie to those of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Apart,
    Unknown,
    /// They have common bytes; the access starts so many bytes after the subject.
    At(i64),
}

/// What a fact is about, and what ends it.
struct Fact<'a> {
    subject: &'a Subject,
    /// The memory is never written while the function runs.
    readonly: bool,
    /// Its truth rests on pages staying accessible as they are.
    may_trap: bool,
    /// Values that the fact mentions.
    leaves: Vec<Value>,
}

/// Whether the address of the subject is made of the same instances as when it executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Instance {
    Same,
    Other,
}

/// What an event means to a store that is claimed to be unobserved.
enum Meaning {
    Nothing,
    /// The bytes are overwritten, or gone.
    End,
}

/// Proves claims, one after another.
pub(super) struct Prover<'a> {
    program: Program<'a>,
    forms: Forms<'a>,
    removed: SecondaryMap<Inst, bool>,
    /// Whether a proven claim needs the access not to be `aligned`.
    unaligned: SecondaryMap<Inst, bool>,
}

impl<'a> Prover<'a> {
    pub(super) fn new(func: &'a Function, claims: &Claims<'a>) -> Self {
        Prover {
            program: Program::new(func, claims),
            forms: Forms::new(func, claims.endianness, claims.outside),
            removed: SecondaryMap::new(),
            unaligned: SecondaryMap::new(),
        }
    }

    pub(super) fn prove(&mut self, certificate: &Certificate) -> Proven {
        match *certificate {
            Certificate::LoadTakes {
                load,
                source,
                value,
                ref conversion,
            } => {
                self.prove_load_takes(load, source, value, conversion)?;
                self.removed[load] = true;
            }
            Certificate::StoreUnobserved { store } => {
                self.prove_unobserved(store)?;
                self.removed[store] = true;
            }
            Certificate::StoreInVain { store, witness } => {
                self.prove_in_vain(store, witness)?;
                self.removed[store] = true;
            }
        }
        Ok(())
    }

    /// Checks that accesses which stand for others without `aligned` have lost it.
    pub(super) fn check_alignment(&self, optimized: &Function) -> Proven {
        for (inst, &unaligned) in self.unaligned.iter() {
            if unaligned && !self.removed[inst] {
                ensure_unaligned(optimized, inst)?;
            }
        }
        Ok(())
    }

    /// The access `inst` of the kind `access`, which is still there and may be touched.
    fn subject(&mut self, inst: Inst, access: &[Access]) -> Result<Subject, String> {
        let event = self.program.event(inst);
        let event = *event.ok_or_else(|| format!("{inst} is not there, or is no access"))?;
        ensure(!self.removed[inst], &format!("{inst} was removed before"))?;
        let bytes = event
            .bytes
            .filter(|_| access.contains(&event.effects.access));
        let bytes = bytes.ok_or_else(|| format!("{inst} is no such access"))?;
        ensure(
            !bytes.fixed,
            &format!("{inst} is to be left alone: outside, or out of its slot's bounds"),
        )?;
        let place = self.program.place(inst);
        let (block, _) = place.ok_or_else(|| format!("{inst} is unreachable"))?;
        Ok(Subject {
            event,
            bytes,
            block,
            address: self.forms.address(bytes.address, bytes.offset),
        })
    }

    /// Whether two accesses name the same bytes in the same order, and can be one.
    fn ensure_same_bytes(&self, a: &Subject, b: &Subject) -> Proven {
        let same = a.address.is_some() && a.address == b.address;
        ensure(same, "the addresses are not known to be equal")?;
        ensure(a.bytes.width == b.bytes.width, "the widths differ")?;
        let regions = a.bytes.region.zip(b.bytes.region);
        ensure(
            regions.is_none_or(|(a, b)| a == b),
            "the two have different regions",
        )?;
        let order = |subject: &Subject| subject.bytes.flags.endianness(self.program.endianness);
        ensure(
            a.bytes.width == 1 || order(a) == order(b),
            "the byte orders differ",
        )
    }

    fn leaves_of_address(&self, subject: &Subject) -> Vec<Value> {
        let sum = subject.address.map(|form| form.sum);
        sum.map_or_else(Vec::new, |sum| self.forms.leaves(sum))
    }

    // Loads that take a value.

    fn prove_load_takes(
        &mut self,
        load: Inst,
        source: Inst,
        value: Value,
        conversion: &Conversion,
    ) -> Proven {
        ensure(load != source, "a load is no source of itself")?;
        let from = self.subject(source, &[Access::Load, Access::Store])?;
        let to = self.subject(load, &[Access::Load])?;
        let func = self.program.func;
        let held = self.program.value_of(&from.event);
        ensure(
            func.dfg.resolve_aliases(value) == func.dfg.resolve_aliases(held),
            "that is not the value of the source",
        )?;
        self.ensure_same_bytes(&from, &to)?;
        let shapes = self
            .program
            .shape(&from.event)
            .zip(self.program.shape(&to.event));
        ensure(
            shapes.is_some_and(|(from, to)| is_exact(from, conversion, to)),
            "the conversion is not exact",
        )?;
        let mut leaves = self.leaves_of_address(&to);
        leaves.push(func.dfg.resolve_aliases(value));
        let from_load = from.event.effects.access == Access::Load;
        let fact = Fact {
            subject: &to,
            readonly: from_load && (from.bytes.flags.readonly() || to.bytes.flags.readonly()),
            may_trap: to.event.may_trap(),
            leaves,
        };
        self.ensure_holds(&fact, source)?;
        self.keep_alignment(&from, &to);
        if conversion.steps.is_empty() {
            self.forms.set_equal(func.dfg.first_result(load), value);
        } else {
            let result = func.dfg.first_result(load);
            self.forms.set_converted(result, value, conversion);
        }
        Ok(())
    }

    /// The survivor is to be exact for addresses for which the access that goes was.
    fn keep_alignment(&mut self, survivor: &Subject, gone: &Subject) {
        let is_aligned = |subject: &Subject| self.is_aligned(subject.event.inst, &subject.bytes);
        if is_aligned(survivor) && !is_aligned(gone) {
            self.unaligned[survivor.event.inst] = true;
        }
    }

    /// Whether the access is still `aligned` after the claims so far.
    fn is_aligned(&self, inst: Inst, bytes: &Bytes) -> bool {
        bytes.flags.aligned() && !self.unaligned[inst]
    }

    // Stores of what is there.

    fn prove_in_vain(&mut self, store: Inst, witness: Inst) -> Proven {
        ensure(store != witness, "a store is no witness of itself")?;
        let from = self.subject(witness, &[Access::Load, Access::Store])?;
        let to = self.subject(store, &[Access::Store])?;
        self.ensure_same_bytes(&from, &to)?;
        let shapes = self
            .program
            .shape(&from.event)
            .zip(self.program.shape(&to.event));
        let shapes = shapes.ok_or("an access has no shape")?;
        let mut leaves = self.ensure_same_contents(&from, &to, shapes)?;
        leaves.extend(self.leaves_of_address(&to));
        let from_load = from.event.effects.access == Access::Load;
        ensure(
            !(from_load && to.event.may_trap()),
            "a load does not show that the store cannot trap",
        )?;
        let fact = Fact {
            subject: &to,
            readonly: from_load && from.bytes.flags.readonly(),
            may_trap: to.event.may_trap(),
            leaves,
        };
        self.ensure_holds(&fact, witness)?;
        self.keep_alignment(&from, &to);
        Ok(())
    }

    /// Proves that the store writes the bytes that the witness read or wrote. Returns the values
    /// of which both are made.
    fn ensure_same_contents(
        &mut self,
        witness: &Subject,
        store: &Subject,
        (from, to): (Shape, Shape),
    ) -> Result<Vec<Value>, String> {
        let held = self.program.value_of(&witness.event);
        let stored = self.program.value_of(&store.event);
        if let Some(leaves) = self.forms.equality(held, stored) {
            ensure(
                from.ty == to.ty && writes_the_same(from.ty, (from, &[]), (to, &[])),
                "the bytes of the two differ",
            )?;
            return Ok(leaves);
        }
        // A load reads the bytes themselves, so what made them is of no account.
        let (held, held_steps) = match witness.event.effects.access {
            Access::Load => (held, Vec::new()),
            _ => self.forms.peeled(held),
        };
        let (stored, stored_steps) = self.forms.peeled(stored);
        let root = self.program.func.dfg.value_type(held);
        let equal = self.forms.equality(held, stored);
        let leaves = equal.ok_or("the values are not known to be equal")?;
        ensure(
            writes_the_same(root, (from, &held_steps), (to, &stored_steps)),
            "the bytes of the two differ",
        )?;
        Ok(leaves)
    }

    // Facts.

    /// Proves that on every path backward from the subject the source comes before anything that
    /// ends the fact.
    fn ensure_holds(&mut self, fact: &Fact<'_>, source: Inst) -> Proven {
        let place = self.program.place(source);
        let (source_block, source_position) = place.ok_or("the source is unreachable")?;
        let definitions = self.definitions(&fact.leaves);
        let entry = self.program.func.layout.entry_block();
        let mut seen = FxHashSet::default();
        let mut worklist = vec![(fact.subject.block, fact.subject.event.position)];
        while let Some((block, end)) = worklist.pop() {
            let reached = block == source_block && source_position < end;
            ensure(
                reached || Some(block) != entry,
                "a path from the entry avoids the source",
            )?;
            let start = if reached { source_position } else { -1 };
            let defined = definitions.get(&block).is_some_and(|positions| {
                positions
                    .iter()
                    .any(|&position| start < position && position < end)
            });
            ensure(
                !defined,
                &format!("{block} makes a value that it rests on another instance"),
            )?;
            self.ensure_unbroken(fact, block, start, end)?;
            if reached {
                continue;
            }
            for &pred in &self.program.preds[block] {
                if seen.insert(pred) {
                    worklist.push((pred, i64::MAX));
                }
            }
        }
        Ok(())
    }

    /// Where the given values are defined, by block.
    fn definitions(&self, values: &[Value]) -> FxHashMap<Block, Vec<i64>> {
        let mut definitions: FxHashMap<Block, Vec<i64>> = FxHashMap::default();
        for &value in values {
            if let Some((block, position)) = self.program.definition(value) {
                definitions.entry(block).or_default().push(position);
            }
        }
        definitions
    }

    /// Proves that nothing between two places of a block ends the fact.
    fn ensure_unbroken(&mut self, fact: &Fact<'_>, block: Block, start: i64, end: i64) -> Proven {
        let events = &self.program.events[block];
        let mut index = events.partition_point(|event| event.position <= start);
        while let Some(&event) = self.program.events[block].get(index) {
            if event.position >= end {
                break;
            }
            index += 1;
            if !self.removed[event.inst] && self.breaks(fact, &event, block) {
                return Err(format!("{} may change the bytes", self.text(event.inst)));
            }
        }
        Ok(())
    }

    fn text(&self, inst: Inst) -> String {
        format!("{inst} ({})", self.program.func.dfg.display_inst(inst))
    }

    /// Whether the event may change the bytes of the fact, or what it rests on.
    fn breaks(&mut self, fact: &Fact<'_>, event: &Event, block: Block) -> bool {
        let effects = event.effects;
        let private = self.is_private(fact.subject, block, event.position);
        if effects.fence || effects.writes_escaped {
            return !private && (!fact.readonly || fact.may_trap);
        }
        match effects.access {
            Access::None | Access::Load => false,
            Access::Store | Access::Atomic { .. } => {
                !fact.readonly
                    && match event.bytes {
                        None => !private,
                        Some(bytes) => {
                            let subject = fact.subject;
                            let relation =
                                self.relate(subject, event, &bytes, block, Instance::Same);
                            relation != Relation::Apart
                        }
                    }
            }
        }
    }

    fn is_private(&self, subject: &Subject, block: Block, position: i64) -> bool {
        let slot = subject.bytes.slot;
        slot.is_some_and(|slot| self.program.is_private(slot, block, position))
    }

    /// How the bytes of an event in `block` lie to those of the subject.
    fn relate(
        &mut self,
        subject: &Subject,
        event: &Event,
        bytes: &Bytes,
        block: Block,
        instance: Instance,
    ) -> Relation {
        let own = &subject.bytes;
        if own.region.zip(bytes.region).is_some_and(|(a, b)| a != b) {
            return Relation::Apart;
        }
        let apart = match (own.slot, bytes.slot) {
            (Some(a), Some(b)) => a != b,
            // An address that is not made of a slot's does not point into it while it is private.
            (Some(slot), None) => self.program.is_private(slot, block, event.position),
            (None, Some(slot)) => {
                let position = subject.event.position;
                self.program.is_private(slot, subject.block, position)
            }
            (None, None) => false,
        };
        if apart {
            return Relation::Apart;
        }
        let address = self.forms.address(bytes.address, bytes.offset);
        match subject.address.zip(address) {
            Some((a, b)) if a.sum == b.sum && instance == Instance::Same => {
                let distance = b.constant.wrapping_sub(a.constant);
                let behind = distance as u64;
                let before = distance.wrapping_neg() as u64;
                if behind < u64::from(own.width) || before < u64::from(bytes.width) {
                    Relation::At(distance)
                } else {
                    Relation::Apart
                }
            }
            _ => Relation::Unknown,
        }
    }

    // Stores that nothing observes.

    fn prove_unobserved(&mut self, store: Inst) -> Proven {
        let subject = self.subject(store, &[Access::Store])?;
        let definitions = self.definitions(&self.leaves_of_address(&subject));
        let mut seen = FxHashSet::default();
        let mut worklist = vec![(subject.block, subject.event.position, Instance::Same)];
        while let Some((block, start, instance)) = worklist.pop() {
            let none = Vec::new();
            let redefined = definitions.get(&block).unwrap_or(&none);
            let instance_at = |position: i64| match instance {
                Instance::Other => Instance::Other,
                // What an instruction defines it defines after its own access.
                Instance::Same => {
                    let mut redefined = redefined.iter();
                    match redefined.any(|&at| start < at && at < position) {
                        true => Instance::Other,
                        false => Instance::Same,
                    }
                }
            };
            if self.ends_in_block(&subject, block, start, &instance_at)? {
                continue;
            }
            ensure(
                self.program.can_end[block] || self.is_private(&subject, block, i64::MAX),
                &format!("{block} may be followed by an endless loop"),
            )?;
            for succ in self.program.succs[block].clone() {
                let parameters = definitions.get(&succ);
                let passes = parameters.is_some_and(|positions| positions.contains(&0));
                let instance = match passes {
                    true => Instance::Other,
                    false => instance_at(i64::MAX),
                };
                if seen.insert((succ, instance)) {
                    worklist.push((succ, 0, instance));
                }
            }
        }
        Ok(())
    }

    /// Whether the subject's bytes end in the block, after `start`. An error if they are observed.
    fn ends_in_block(
        &mut self,
        subject: &Subject,
        block: Block,
        start: i64,
        instance_at: &dyn Fn(i64) -> Instance,
    ) -> Result<bool, String> {
        let events = &self.program.events[block];
        let mut index = events.partition_point(|event| event.position <= start);
        while let Some(&event) = self.program.events[block].get(index) {
            index += 1;
            if self.removed[event.inst] {
                continue;
            }
            let instance = instance_at(event.position);
            let meaning = self.meaning(subject, &event, block, instance);
            match meaning.map_err(|reason| format!("{} {reason}", self.text(event.inst)))? {
                Meaning::Nothing => {}
                Meaning::End => return Ok(true),
            }
        }
        Ok(false)
    }

    /// What an event means to the store; an error if it may observe the bytes, or could tell that
    /// the store is gone.
    fn meaning(
        &mut self,
        subject: &Subject,
        event: &Event,
        block: Block,
        instance: Instance,
    ) -> Result<Meaning, &'static str> {
        let effects = event.effects;
        let nothing_if = |condition: bool, otherwise: &'static str| match condition {
            true => Ok(Meaning::Nothing),
            false => Err(otherwise),
        };
        if effects.ends_frame {
            let in_frame = subject.bytes.slot.is_some();
            return match in_frame {
                true => Ok(Meaning::End),
                false => Err("leaves the memory to the caller"),
            };
        }
        let private = self.is_private(subject, block, event.position);
        if effects.fence || effects.reads_escaped || effects.writes_escaped {
            return nothing_if(private, "may read the bytes, or orders memory");
        }
        if effects.access == Access::None {
            let observes = effects.observes || effects.may_trap;
            return nothing_if(private || !observes, "observes memory");
        }
        let Some(bytes) = event.bytes else {
            return nothing_if(private, "may touch the bytes");
        };
        let relation = self.relate(subject, event, &bytes, block, instance);
        let own_trap = trap_of(&subject.event, &subject.bytes);
        if effects.access == Access::Load {
            if relation != Relation::Apart && !bytes.flags.readonly() {
                return Err("may read the bytes");
            }
            if event.may_trap() && !private {
                return Err("may trap and show the bytes");
            }
            let in_slot = bytes.slot.is_some();
            return nothing_if(
                own_trap.is_none() || in_slot,
                "may be valid only because the store did not trap",
            );
        }
        let (covers, exact) = match relation {
            Relation::At(distance) if !bytes.fixed => {
                let own = i64::from(subject.bytes.width);
                let covers = distance <= 0 && distance + i64::from(bytes.width) >= own;
                (covers, distance == 0 && subject.bytes.width == bytes.width)
            }
            _ => (false, false),
        };
        let asks_more = self.is_aligned(event.inst, &bytes)
            && !self.is_aligned(subject.event.inst, &subject.bytes);
        if event.may_trap() && !private && (!exact || asks_more) {
            return Err("may trap and show the bytes");
        }
        match own_trap {
            None if covers => Ok(Meaning::End),
            None => Ok(Meaning::Nothing),
            Some(code)
                if exact
                    && trap_of(event, &bytes) == Some(code)
                    && !self.is_in_halves(&subject.event)
                    && !self.is_in_halves(event) =>
            {
                Ok(Meaning::End)
            }
            Some(_) if covers => Err("does not trap as the store does"),
            Some(_) => {
                let slot = bytes.slot;
                let unseen =
                    slot.is_some_and(|slot| self.program.is_private(slot, block, event.position));
                nothing_if(unseen, "would be seen at the trap that comes later")
            }
        }
    }
}

impl Prover<'_> {
    /// Whether machine code stores the value in two steps: the first half is seen if the second one
    /// traps.
    fn is_in_halves(&self, store: &Event) -> bool {
        let value = self.program.value_of(store);
        self.program.func.dfg.value_type(value) == types::I128
    }
}

/// With which code an access may trap.
fn trap_of(event: &Event, bytes: &Bytes) -> Option<TrapCode> {
    bytes.flags.trap_code().filter(|_| event.may_trap())
}
