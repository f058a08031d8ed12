//! Adversarial functions, sizes doubling: time and memory must grow near-linearly, on the stack of
//! a small thread.

use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clif_memopt_measure::isa_for;
use comfy_table::{CellAlignment, Table, presets};
use cranelift_memopt::{Optimizer, Options};

use crate::allocations::peak_bytes;

/// The stack of the thread that the optimizer runs in.
const STACK_BYTES: usize = 512 << 10;

/// The smallest size, in memory operations.
const OPERATIONS_MIN: u32 = 3125;

/// A family of functions: its name, and the text of the one of about that many memory operations.
type Shape = (&'static str, fn(u32) -> String);

const SHAPES: &[Shape] = &[
    ("distinct stores", distinct_stores),
    ("stores, then loads", stores_then_loads),
    ("diamond ladder", diamond_ladder),
    ("nested loops", nested_loops),
    ("wide br_table", wide_br_table),
    ("phi web", phi_web),
    ("one slot, many slices", one_slot),
    ("many slots", many_slots),
    ("many escaping slots", many_escaping_slots),
    ("irreducible nest", irreducible_nest),
    ("overwritten chains", overwritten_chains),
    ("many regions", many_regions),
];

/// A function with the given lines before the first block, and blocks.
fn function(preamble: &str, blocks: &str) -> String {
    format!(
        "function %worst(i64, i64, i32) system_v {{\n{preamble}block0(v0: i64, v1: i64, v2: i32):\n{blocks}}}\n"
    )
}

/// Writing to a string does not fail.
macro_rules! line {
    ($text:expr, $($args:tt)*) => { let _ = writeln!($text, $($args)*); };
}

fn distinct_stores(operations: u32) -> String {
    let mut text = String::new();
    for at in 0..operations {
        line!(text, "store notrap v2, v0+{}", 4 * at);
    }
    function("", &(text + "return\n"))
}

fn stores_then_loads(operations: u32) -> String {
    let mut text = String::new();
    for at in 0..operations / 2 {
        line!(text, "store notrap v2, v0+{}", 4 * at);
    }
    for at in (0..operations / 2).rev() {
        line!(text, "v{} = load.i32 notrap v0+{}", 10 + at, 4 * at);
    }
    function("", &(text + "return\n"))
}

fn diamond_ladder(operations: u32) -> String {
    let mut text = String::new();
    for rung in 0..operations / 6 {
        let [left, right, join] = [1, 2, 3].map(|offset| 3 * rung + offset);
        let (a, b) = (4 * (rung % 64), 4 * ((rung + 7) % 64));
        line!(text, "brif v2, block{left}, block{right}");
        for arm in [left, right] {
            line!(text, "block{arm}:\nstore notrap v2, v0+{a}");
            line!(text, "store notrap v2, v1+{b}\njump block{join}");
        }
        line!(
            text,
            "block{join}:\nv{} = load.i32 notrap v0+{a}",
            10 + 2 * rung
        );
        line!(text, "v{} = load.i32 notrap v0+{b}", 11 + 2 * rung);
    }
    function("", &(text + "return\n"))
}

/// Nests of 100 loops, one after another, with two loads and two stores at each depth.
fn nested_loops(operations: u32) -> String {
    const DEPTH: u32 = 100;
    let mut text = String::new();
    let nests = (operations / (4 * DEPTH)).max(1);
    let mut block = 0;
    let mut value = 10;
    for _ in 0..nests {
        let first = block + 1;
        for _ in 0..DEPTH {
            block += 1;
            line!(text, "jump block{block}\nblock{block}:");
            line!(text, "v{value} = load.i32 notrap v0+{}", 4 * (block % 64));
            line!(text, "store notrap v{value}, v1+{}", 4 * (block % 32));
            line!(text, "v{} = load.i32 notrap v0", value + 1);
            line!(text, "store notrap v{}, v1+512", value + 1);
            value += 2;
        }
        for header in (first..first + DEPTH).rev() {
            block += 1;
            line!(text, "brif v2, block{header}, block{block}\nblock{block}:");
        }
    }
    function("", &(text + "return\n"))
}

fn wide_br_table(operations: u32) -> String {
    let arms = operations / 2;
    let list: Vec<String> = (1..=arms).map(|arm| format!("block{arm}")).collect();
    let exit = arms + 1;
    let mut text = format!(
        "store notrap v2, v0+400\nbr_table v2, block{exit}, [{}]\n",
        list.join(", ")
    );
    for arm in 1..=arms {
        line!(text, "block{arm}:\nv{} = load.i32 notrap v0+400", 10 + arm);
        line!(
            text,
            "store notrap v2, v0+{}\njump block{exit}",
            4 * (arm % 64)
        );
    }
    function(
        "",
        &(text + &format!("block{exit}:\nv9 = load.i32 notrap v0+400\nreturn\n")),
    )
}

/// Chains of joins, each of which is reached from its neighbour and from the entry.
fn phi_web(operations: u32) -> String {
    let joins = operations / 2;
    let list: Vec<String> = (1..=joins).map(|join| format!("block{join}")).collect();
    let mut text = format!("br_table v2, block1, [{}]\n", list.join(", "));
    for join in 1..=joins {
        line!(text, "block{join}:\nv{} = load.i32 notrap v0", 10 + join);
        line!(
            text,
            "store notrap v2, v1+{}\njump block{}",
            4 * (join % 512),
            join + 1
        );
    }
    function("", &(text + &format!("block{}:\nreturn\n", joins + 1)))
}

fn one_slot(operations: u32) -> String {
    let mut text = String::from("v3 = stack_addr.i64 ss0\n");
    for at in 0..operations / 2 {
        line!(text, "store notrap v2, v3+{}", 4 * at);
    }
    for at in 0..operations / 2 {
        line!(text, "v{} = load.i32 notrap v3+{}", 10 + at, 4 * at);
    }
    function(
        &format!("ss0 = explicit_slot {}\n", 4 * operations),
        &(text + "return\n"),
    )
}

fn many_slots(operations: u32) -> String {
    let (mut preamble, mut text) = (String::new(), String::new());
    for slot in 0..operations / 3 {
        line!(preamble, "ss{slot} = explicit_slot 4");
        line!(text, "v{} = stack_addr.i64 ss{slot}", 10 + slot);
        line!(text, "store notrap v2, v{}", 10 + slot);
    }
    let first = 10 + operations / 3;
    for slot in 0..operations / 3 {
        line!(text, "v{} = load.i32 notrap v{}", first + slot, 10 + slot);
        line!(
            text,
            "store notrap v{}, v0+{}",
            first + slot,
            4 * (slot % 64)
        );
    }
    function(&preamble, &(text + "return\n"))
}

/// Each slot escapes in a block of its own, and is written before and after.
fn many_escaping_slots(operations: u32) -> String {
    let (mut preamble, mut text) = (String::new(), String::new());
    for slot in 0..operations / 4 {
        line!(preamble, "ss{slot} = explicit_slot 8");
        line!(text, "jump block{}\nblock{}:", slot + 1, slot + 1);
        line!(text, "v{} = stack_addr.i64 ss{slot}", 10 + slot);
        line!(
            text,
            "store notrap v2, v{}\nstore notrap v{}, v0",
            10 + slot,
            10 + slot
        );
        line!(
            text,
            "store notrap v2, v{}+4\nstore notrap v2, v1",
            10 + slot
        );
    }
    function(&preamble, &(text + "return\n"))
}

/// Pairs of blocks that both loop to each other and are both entered from above.
fn irreducible_nest(operations: u32) -> String {
    let mut text = String::new();
    for pair in 0..operations / 4 {
        let [a, b, next] = [1, 2, 3].map(|offset| 3 * pair + offset);
        line!(text, "brif v2, block{a}, block{b}");
        line!(
            text,
            "block{a}:\nv{} = load.i32 notrap v0+{}",
            10 + 2 * pair,
            4 * (pair % 16)
        );
        line!(text, "store notrap v2, v1\njump block{b}");
        line!(text, "block{b}:\nv{} = load.i32 notrap v0", 11 + 2 * pair);
        line!(
            text,
            "store notrap v2, v1+8\nbrif v2, block{a}, block{next}\nblock{next}:"
        );
    }
    function("", &(text + "return\n"))
}

fn overwritten_chains(operations: u32) -> String {
    let mut text = String::new();
    for at in 0..operations {
        line!(text, "store notrap v2, v0+{}", 4 * (at % 1000));
    }
    function("", &(text + "return\n"))
}

fn many_regions(operations: u32) -> String {
    let (mut preamble, mut text) = (String::new(), String::new());
    let regions = (operations / 4).min(2000);
    for region in 0..regions {
        line!(preamble, "region{region} = {region} \"r\"");
    }
    for at in 0..operations / 2 {
        let region = at % regions;
        line!(text, "store notrap region{region} v2, v0+{}", 8 * region);
    }
    for at in 0..operations / 2 {
        let region = at % regions;
        line!(
            text,
            "v{} = load.i32 notrap region{region} v0+{}",
            10 + at,
            8 * region
        );
    }
    function(&preamble, &(text + "return\n"))
}

/// Prints time and memory, each as a row for each shape with a column for each size.
pub(crate) fn run(max: u32) -> anyhow::Result<()> {
    let mut sizes = vec![OPERATIONS_MIN];
    while sizes.last().is_some_and(|&size| 2 * size <= max) {
        sizes.extend(sizes.last().map(|size| 2 * size));
    }
    let mut times = table("ns/operation at", &sizes);
    let mut peaks = table("peak bytes/operation at", &sizes);
    for &(name, build) in SHAPES {
        let costs: Vec<Cost> = sizes
            .iter()
            .map(|&size| cost_in_small_thread(build(size)))
            .collect::<anyhow::Result<_>>()?;
        let add = |table: &mut Table, of: fn(&Cost) -> f64| {
            let pairs = costs.iter().zip(&sizes);
            let cells = pairs.map(|(cost, &size)| format!("{:.0}", of(cost) / f64::from(size)));
            table.add_row([name.to_string()].into_iter().chain(cells));
        };
        add(&mut times, |cost| cost.time.as_secs_f64() * 1e9);
        add(&mut peaks, |cost| cost.peak_bytes as f64);
    }
    println!("{times}\n\n{peaks}");
    Ok(())
}

fn table(head: &str, sizes: &[u32]) -> Table {
    let mut table = Table::new();
    let header = sizes.iter().map(|size| format!("{size}"));
    table
        .load_preset(presets::NOTHING)
        .set_header([head.to_string()].into_iter().chain(header));
    for column in 1..=sizes.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// What one function costs.
struct Cost {
    time: Duration,
    /// The most that the optimizer has allocated at once, growth of the function included.
    peak_bytes: u64,
}

fn cost_in_small_thread(text: String) -> anyhow::Result<Cost> {
    // Parsing may need more stack than the optimizer.
    let functions =
        cranelift_reader::parse_functions(&text).map_err(|error| anyhow!("worst case: {error}"))?;
    let isa = isa_for("x86_64")?;
    let worker = move || -> anyhow::Result<Cost> {
        let mut func = functions[0].clone();
        let (result, peak_bytes) = peak_bytes(|| {
            let mut optimizer = Optimizer::new(Options::default());
            optimizer.optimize(&mut func, &*isa).map(|_| ())
        });
        result?;
        let mut time = Duration::MAX;
        let mut optimizer = Optimizer::new(Options::default());
        for _ in 0..3 {
            let mut func = functions[0].clone();
            let start = Instant::now();
            optimizer.optimize(&mut func, &*isa)?;
            time = time.min(start.elapsed());
        }
        Ok(Cost { time, peak_bytes })
    };
    let thread = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(worker)?;
    match thread.join() {
        Ok(cost) => cost,
        Err(_) => bail!("the optimizer panicked on a worst case"),
    }
}
