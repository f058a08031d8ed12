//! The walker against two other ways to find clobbers, on random small functions:
//!
//! - a search over the control flow graph, instruction by instruction, without MemorySSA: the
//!   answer must be the nearest, and not a phi where a search finds one def;
//! - an interpreter that remembers when each byte was written: nothing may have written a byte of
//!   an access since its clobber was last executed, and the distance of the two addresses must be
//!   what the alias rules say. It knows none of them.

use std::fmt::Write as _;

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Endianness, Function, Inst, InstructionData, Opcode, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use super::walk::{WalkContext, may_clobber, up_edge};
use super::{AccessKind, Clobber, verify};
use crate::Options;
use crate::alias::{Alias, Instance, alias};
use crate::analysis::MemoryAnalysis;
use crate::effects::Access;
use crate::view::{Entry, Location};

const FUNCTIONS: u64 = 800;
const RUNS: u64 = 8;
const STEPS_MAX: usize = 40;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// A function of up to seven blocks, the edges of which are arbitrary. Every block but the entry
/// has a parameter, an address that may change around a loop. Half of the functions access nothing
/// else, so that walks get far.
fn random_text(random: &mut Random) -> String {
    let blocks = 2 + random.below(6);
    let only_parameters = random.below(2) == 0;
    let mut text = String::from(
        "function %f(i64, i64, i32) {\n    ss0 = explicit_slot 16\n    ss1 = explicit_slot 16\n    \
         region0 = 0 \"a\"\n    region1 = 1 \"b\"\n    sig0 = (i64)\n    fn0 = %g sig0\n\
         block0(v0: i64, v1: i64, v2: i32):\n    v3 = stack_addr.i64 ss0\n    \
         v4 = stack_addr.i64 ss1\n    v6 = iconst.i64 4\n    v5 = iadd v0, v6\n",
    );
    let mut next = 100;
    for block in 0..blocks {
        let mut pointers = vec!["v0", "v0", "v1", "v3", "v4", "v5"]
            .into_iter()
            .map(String::from)
            .collect::<Vec<_>>();
        if block > 0 {
            if only_parameters {
                pointers.clear();
            }
            let _ = writeln!(text, "block{block}(v{}: i64):", 10 + block);
            pointers.push(format!("v{}", 10 + block));
            let _ = writeln!(text, "    v{next} = iadd v{}, v6", 10 + block);
            pointers.push(format!("v{next}"));
            next += 1;
        }
        for _ in 0..random.below(4) {
            random_inst(random, &mut text, &pointers, &mut next);
        }
        let target = |random: &mut Random| {
            let pointer = &pointers[random.below(pointers.len() as u64) as usize];
            format!("block{}({pointer})", 1 + random.below(blocks - 1))
        };
        let _ = match random.below(6) {
            0 if block > 0 => writeln!(text, "    return"),
            1 => writeln!(text, "    jump {}", target(random)),
            _ => {
                let (first, second) = (target(random), target(random));
                writeln!(text, "    brif v2, {first}, {second}")
            }
        };
    }
    text.push_str("}\n");
    text
}

fn random_inst(random: &mut Random, text: &mut String, pointers: &[String], next: &mut u32) {
    let quiet = pointers.len() == 2;
    let pointer = &pointers[random.below(pointers.len() as u64) as usize];
    let of_slot = pointer == "v3" || pointer == "v4";
    let offset = 4 * random.below(3);
    // Regions are honest: no slot is accessed through one, and the pointers of tagged accesses are
    // disjoint by offset, see `Machine`.
    let _ = match random.below(16).max(if quiet { 4 } else { 0 }) {
        0 => writeln!(text, "    call fn0({pointer})"),
        1 => writeln!(text, "    fence"),
        2..=7 => writeln!(text, "    store notrap v2, {pointer}+{offset}"),
        8 if !of_slot => writeln!(text, "    store notrap region0 v2, v0+64"),
        9 if !of_slot => writeln!(text, "    store notrap region1 v2, v0+68"),
        kind => {
            let (address, flags) = match kind {
                10 => ("v0+64".to_string(), "notrap region0"),
                11 => ("v0+68".to_string(), "notrap region1"),
                _ => (format!("{pointer}+{offset}"), "notrap"),
            };
            let result = *next;
            *next += 1;
            writeln!(text, "    v{result} = load.i32 {flags} {address}")
        }
    };
}

fn analyzed(func: &Function, options: &Options) -> MemoryAnalysis {
    let mut context = MemoryAnalysis::default();
    context.view.scan(func, Endianness::Little, options);
    context.flow.compute(func);
    context.analyze(func, options);
    context
}

/// What a search up the control flow graph can end at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    LiveOnEntry,
    Def(Entry),
    Phi(Block),
}

/// The ends that a search from `entry` meets if it does not pass the start of `closed`, and
/// whether it met the start of each block.
fn search(
    cx: &mut WalkContext<'_>,
    entry: Entry,
    location: &Location,
    closed: Option<Block>,
) -> (FxHashSet<End>, SecondaryMap<Block, bool>) {
    let start = cx.view.entry(entry).block;
    let mut ends = FxHashSet::default();
    let mut met = SecondaryMap::new();
    let mut seen = FxHashSet::default();
    let mut worklist = vec![(start, Some(entry), Instance::Same)];
    while let Some((block, below, instance)) = worklist.pop() {
        let above = cx
            .view
            .block_entries(block)
            .rev()
            .filter(|&other| below.is_none_or(|below| other < below))
            .filter(|&other| cx.view.entry(other).effects.is_def())
            .collect::<Vec<_>>();
        if let Some(def) = above
            .into_iter()
            .find(|&def| may_clobber(cx, def, location, instance))
        {
            ends.insert(End::Def(def));
            continue;
        }
        met[block] = true;
        if closed == Some(block) {
            continue;
        }
        if cx.flow.preds(block).is_empty() {
            ends.insert(End::LiveOnEntry);
        }
        for &pred in cx.flow.preds(block) {
            let above = up_edge(cx.flow, cx.view, location, pred, block, instance);
            if seen.insert((pred, above == Instance::Same)) {
                worklist.push((pred, None, above));
            }
        }
    }
    (ends, met)
}

/// The one def that all ways up lead to, or the block farthest up that all pass.
fn nearest(cx: &mut WalkContext<'_>, entry: Entry) -> End {
    let location = cx.view.location(cx.func, cx.flow, entry);
    let (ends, met) = search(cx, entry, &location, None);
    if ends.len() == 1 {
        return ends.into_iter().next().expect("there is one");
    }
    let cuts = cx
        .flow
        .rpo()
        .to_vec()
        .into_iter()
        .filter(|&block| met[block])
        .filter_map(|block| {
            let (ends, met) = search(cx, entry, &location, Some(block));
            ends.is_empty().then_some((block, met))
        })
        .collect::<Vec<_>>();
    let farthest = cuts.iter().find(|(block, _)| {
        cuts.iter()
            .all(|(other, met)| other == block || !met[*block])
    });
    End::Phi(farthest.expect("the ways up part somewhere").0)
}

/// A clobber as it is checked by execution.
#[derive(Clone, Copy)]
struct Claim {
    end: End,
    /// From the access to its clobber.
    distance: Option<i64>,
}

fn claim_of(cx: &mut WalkContext<'_>, entry: Entry, clobber: Clobber) -> Claim {
    let end = end_of(cx, clobber);
    let relation = match end {
        End::Def(def) if cx.view.entry(def).bytes.is_some() => {
            let a = cx.view.location(cx.func, cx.flow, entry);
            let b = cx.view.location(cx.func, cx.flow, def);
            alias(cx.func, &cx.view.slots, &a, &b, clobber.instance)
        }
        _ => Alias::May,
    };
    let distance = match relation {
        Alias::Must => Some(0),
        Alias::Partial { offset } => Some(offset),
        Alias::May | Alias::No => None,
    };
    Claim { end, distance }
}

fn end_of(cx: &WalkContext<'_>, clobber: Clobber) -> End {
    match cx.ssa.kind(clobber.access) {
        AccessKind::LiveOnEntry => End::LiveOnEntry,
        AccessKind::Def(entry) => End::Def(entry),
        AccessKind::Phi(block) => End::Phi(block),
        AccessKind::Use(_) => panic!("a use clobbers nothing"),
    }
}

/// Executes a function, with branches taken at random.
struct Machine<'a> {
    func: &'a Function,
    values: FxHashMap<Value, u64>,
    /// When each byte was last written.
    written: FxHashMap<u64, u32>,
    /// When each def and each block start was last executed.
    def_time: FxHashMap<Inst, u32>,
    /// Where each store last went.
    stored_at: FxHashMap<Inst, u64>,
    block_time: FxHashMap<Block, u32>,
    /// Which slots another function may know.
    escaped: [bool; 2],
    call_time: u32,
    now: u32,
}

const SLOT_BASE: u64 = 0x9000;
const SLOT_SIZE: u64 = 16;
/// Slots are so far apart that a pointer that leaves one never comes to the next.
const SLOT_STRIDE: u64 = 0x1000;

impl Machine<'_> {
    fn value(&self, value: Value) -> u64 {
        self.values[&self.func.dfg.resolve_aliases(value)]
    }

    /// The slot that an address is in or was computed from.
    fn slot_of(address: u64) -> Option<usize> {
        let distance = address.checked_sub(SLOT_BASE)?;
        Some((distance / SLOT_STRIDE) as usize)
    }

    fn last_write(&self, address: u64) -> u32 {
        let by_call = match Self::slot_of(address) {
            Some(slot) if !self.escaped[slot] => 0,
            _ => self.call_time,
        };
        self.written
            .get(&address)
            .copied()
            .unwrap_or(0)
            .max(by_call)
    }

    /// Executes an instruction that is not a terminator. An access with its clobber is checked.
    fn step(&mut self, inst: Inst, claim: Option<Claim>, entry_inst: impl Fn(Entry) -> Inst) {
        self.now += 1;
        let data = self.func.dfg.insts[inst];
        let result = self.func.dfg.inst_results(inst).first().copied();
        let access = match data {
            InstructionData::Load { arg, offset, .. } => Some((arg, i32::from(offset), false)),
            InstructionData::Store { args, offset, .. } => Some((args[1], i32::from(offset), true)),
            _ => None,
        };
        if let Some((pointer, offset, writes)) = access {
            let address = self.value(pointer).wrapping_add(offset as u64);
            let Claim { end, distance } = claim.expect("an access has a clobber");
            if let (End::Def(entry), Some(distance)) = (end, distance) {
                let stored_at = self.stored_at[&entry_inst(entry)];
                assert_eq!(address.wrapping_add(distance as u64), stored_at, "{inst}");
            }
            let since = match end {
                End::LiveOnEntry => 0,
                End::Def(entry) => self.def_time[&entry_inst(entry)],
                End::Phi(block) => self.block_time[&block],
            };
            for byte in address..address + 4 {
                let last = self.last_write(byte);
                assert!(last <= since, "{inst} passed a write at {last} > {since}");
            }
            if writes {
                self.written
                    .extend((address..address + 4).map(|byte| (byte, self.now)));
                self.stored_at.insert(inst, address);
            }
        }
        self.def_time.insert(inst, self.now);
        let number = match data {
            InstructionData::UnaryImm { imm, .. } => imm.bits() as u64,
            InstructionData::StackAddr { stack_slot, .. } => {
                SLOT_BASE + u64::from(stack_slot.as_u32()) * SLOT_STRIDE
            }
            InstructionData::Binary {
                opcode: Opcode::Iadd,
                args,
            } => self.value(args[0]).wrapping_add(self.value(args[1])),
            InstructionData::Call { .. } => {
                let pointer = self.value(self.func.dfg.inst_args(inst)[0]);
                if let Some(slot) = Self::slot_of(pointer) {
                    self.escaped[slot] = true;
                }
                self.call_time = self.now;
                0
            }
            _ => 0,
        };
        if let Some(result) = result {
            self.values.insert(result, number);
        }
    }

    /// Leaves the block. None: the function returns.
    fn leave(&mut self, block: Block, random: &mut Random) -> Option<Block> {
        let terminator = self.func.layout.last_inst(block)?;
        let dfg = &self.func.dfg;
        let targets = dfg.insts[terminator]
            .branch_destination(&dfg.jump_tables, &dfg.exception_tables)
            .to_vec();
        if targets.is_empty() {
            return None;
        }
        let call = targets[random.below(targets.len() as u64) as usize];
        let args = call
            .args(&dfg.value_lists)
            .filter_map(|arg| arg.as_value())
            .map(|value| self.value(value))
            .collect::<Vec<_>>();
        let next = call.block(&dfg.value_lists);
        for (&param, number) in dfg.block_params(next).iter().zip(args) {
            self.values.insert(param, number);
        }
        Some(next)
    }
}

/// Whether four bytes are within the slot that the address was computed from, if it is one's.
fn in_bounds(address: u64) -> bool {
    let distance = address.wrapping_sub(SLOT_BASE) % SLOT_STRIDE;
    Machine::slot_of(address).is_none() || distance + 4 <= SLOT_SIZE
}

fn execute(
    func: &Function,
    cx: &WalkContext<'_>,
    claims: &SecondaryMap<Entry, Option<Claim>>,
    random: &mut Random,
) {
    let mut machine = Machine {
        func,
        values: FxHashMap::default(),
        written: FxHashMap::default(),
        def_time: FxHashMap::default(),
        stored_at: FxHashMap::default(),
        block_time: FxHashMap::default(),
        escaped: [false; 2],
        call_time: 0,
        now: 0,
    };
    let mut block = func.layout.entry_block().expect("there is an entry");
    let arguments = [0x1000, 0x1000 + 4 * random.below(4), 1];
    for (&param, number) in func.dfg.block_params(block).iter().zip(arguments) {
        machine.values.insert(param, number);
    }
    let mut steps = 0;
    loop {
        machine.now += 1;
        machine.block_time.insert(block, machine.now);
        for inst in func.layout.block_insts(block) {
            if func.dfg.insts[inst].opcode().is_terminator() {
                break;
            }
            let entry = cx.view.entry_of(inst);
            if let Some(data) = entry.map(|entry| cx.view.entry(entry))
                && let Some(bytes) = data.bytes
            {
                let pointer = machine.value(bytes.address);
                let address = pointer.wrapping_add(bytes.offset as u64);
                if !in_bounds(address) {
                    return;
                }
            }
            let claim = entry.and_then(|entry| claims[entry]);
            machine.step(inst, claim, |entry| cx.view.entry(entry).inst);
        }
        steps += 1;
        match machine.leave(block, random) {
            Some(next) if steps < STEPS_MAX => block = next,
            _ => return,
        }
    }
}

#[test]
fn clobbers_agree_with_search_and_execution() {
    let options = Options {
        walk_steps_per_access: 1 << 20,
        ..Options::default()
    };
    let mut accesses = 0;
    for seed in 0..FUNCTIONS {
        let random = &mut Random::new(seed);
        let text = random_text(random);
        let func = &cranelift_reader::parse_functions(&text).expect("generated CLIF parses")[0];
        let mut context = analyzed(func, &options);
        let mut claims = SecondaryMap::new();
        let mut cx = WalkContext {
            func,
            flow: &context.flow,
            view: &mut context.view,
            ssa: &context.ssa,
        };
        for entry in cx.view.entries() {
            let reachable = cx.flow.is_reachable(cx.view.entry(entry).block);
            if !reachable || cx.view.entry(entry).effects.access == Access::None {
                continue;
            }
            let clobber = context
                .walker
                .clobber_of(&mut cx, entry)
                .expect("an access has a clobber");
            claims[entry] = Some(claim_of(&mut cx, entry, clobber));
            accesses += 1;
            assert_eq!(
                end_of(&cx, clobber),
                nearest(&mut cx, entry),
                "seed {seed}: the clobber of {}\n{text}",
                cx.view.entry(entry).inst
            );
        }
        for _ in 0..RUNS {
            execute(func, &cx, &claims, random);
        }
        verify(
            func,
            &context.flow,
            &mut context.view,
            &context.ssa,
            &context.walker,
        )
        .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
    }
    assert!(accesses > 1000, "only {accesses} accesses were generated");
}
