//! How the time of MemorySSA grows with the number of accesses: a quadratic shows as a bend.

use std::time::{Duration, Instant};

use clif_memopt_measure::isa_for;
use comfy_table::{CellAlignment, Table, presets};
use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{
    AbiParam, BlockArg, Function, InstBuilder, MemFlagsData, Value, types,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_memopt::{MemoryAnalysis, Options};

/// How often each size is timed; the fastest time counts.
const ROUNDS: u32 = 3;

/// The shape of a synthetic function.
#[derive(Clone, Copy)]
enum Shape {
    /// One block: stores to different offsets, and a load of each.
    Straight,
    /// Diamonds, a store in each arm and a load at each join.
    Diamonds,
    /// Loops one after another, with a load and a store in each.
    Loops,
}

impl Shape {
    const ALL: [Shape; 3] = [Shape::Straight, Shape::Diamonds, Shape::Loops];

    fn name(self) -> &'static str {
        match self {
            Shape::Straight => "straight",
            Shape::Diamonds => "diamonds",
            Shape::Loops => "loops",
        }
    }

    fn build(self, accesses: u32) -> Function {
        let mut func = Function::new();
        func.signature.params.push(AbiParam::new(types::I64));
        func.signature.params.push(AbiParam::new(types::I32));
        let mut builder = Builder::new(&mut func);
        match self {
            Shape::Straight => builder.straight(accesses),
            Shape::Diamonds => builder.diamonds(accesses),
            Shape::Loops => builder.loops(accesses),
        }
        builder.cursor.ins().return_(&[]);
        func
    }
}

struct Builder<'a> {
    cursor: FuncCursor<'a>,
    pointer: Value,
    number: Value,
}

impl<'a> Builder<'a> {
    fn new(func: &'a mut Function) -> Self {
        let block = func.dfg.make_block();
        let pointer = func.dfg.append_block_param(block, types::I64);
        let number = func.dfg.append_block_param(block, types::I32);
        let mut cursor = FuncCursor::new(func);
        cursor.insert_block(block);
        Builder {
            cursor,
            pointer,
            number,
        }
    }

    fn store(&mut self, slot: u32) {
        let flags = MemFlagsData::trusted();
        let (number, pointer) = (self.number, self.pointer);
        self.cursor
            .ins()
            .store(flags, number, pointer, slot as i32 * 4);
    }

    fn load(&mut self, slot: u32) {
        let flags = MemFlagsData::trusted();
        let pointer = self.pointer;
        self.cursor
            .ins()
            .load(types::I32, flags, pointer, slot as i32 * 4);
    }

    fn straight(&mut self, accesses: u32) {
        (0..accesses / 2).for_each(|slot| self.store(slot));
        // Newest first: each walk is one step longer than the one before.
        (0..accesses / 2).rev().for_each(|slot| self.load(slot));
    }

    fn diamonds(&mut self, accesses: u32) {
        for round in 0..accesses / 3 {
            let [then, otherwise, join] = [(); 3].map(|()| self.cursor.func.dfg.make_block());
            let number = self.number;
            self.cursor.ins().brif(number, then, &[], otherwise, &[]);
            for arm in [then, otherwise] {
                self.cursor.insert_block(arm);
                self.store(round % 64);
                self.cursor.ins().jump(join, &[]);
            }
            self.cursor.insert_block(join);
            self.load((round + 1) % 64);
        }
    }

    fn loops(&mut self, accesses: u32) {
        for round in 0..accesses / 2 {
            let [body, exit] = [(); 2].map(|()| self.cursor.func.dfg.make_block());
            let count = self.cursor.func.dfg.append_block_param(body, types::I32);
            let number = self.number;
            self.cursor.ins().jump(body, &[BlockArg::Value(number)]);
            self.cursor.insert_block(body);
            self.load((round + 1) % 64);
            self.store(round % 64);
            let next = self.cursor.ins().ineg(count);
            self.cursor
                .ins()
                .brif(next, body, &[BlockArg::Value(next)], exit, &[]);
            self.cursor.insert_block(exit);
        }
    }
}

/// Prints a row for each shape and size.
pub(crate) fn run(max: u32) -> anyhow::Result<()> {
    let isa = isa_for("x86_64")?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "shape",
        "accesses",
        "build ns/access",
        "walk ns/access",
        "steps/walk",
        "gave up",
    ]);
    for column in 1..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for shape in Shape::ALL {
        let mut accesses = 1000;
        while accesses <= max {
            table.add_row(time_shape(shape, accesses, &*isa)?);
            accesses *= 2;
        }
    }
    println!("{table}");
    Ok(())
}

fn time_shape(shape: Shape, accesses: u32, isa: &dyn TargetIsa) -> anyhow::Result<Vec<String>> {
    let func = shape.build(accesses);
    let options = Options::default();
    let mut analysis = MemoryAnalysis::default();
    let mut build = Duration::MAX;
    let mut walk = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        analysis.compute(&func, isa, &options)?;
        build = build.min(start.elapsed());
        let entries = analysis.view().entries();
        let start = Instant::now();
        for entry in entries {
            analysis.clobber(&func, entry);
        }
        walk = walk.min(start.elapsed());
    }
    let counts = analysis.walk_counts();
    let per_access = |time: Duration| {
        let nanoseconds = time.as_secs_f64() * 1e9;
        format!("{:.1}", nanoseconds / f64::from(accesses))
    };
    Ok(vec![
        shape.name().to_string(),
        accesses.to_string(),
        per_access(build),
        per_access(walk),
        format!("{:.2}", counts.steps as f64 / counts.walks.max(1) as f64),
        counts.exhausted.to_string(),
    ])
}
