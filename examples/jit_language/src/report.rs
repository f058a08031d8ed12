//! What is measured, as tables and as JSON.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use crate::jit::{self, FunctionReport};
use crate::runtime::Outcome;
use crate::typed::Program;

/// A program compiled one way.
pub(crate) struct Measured {
    pub(crate) outcome: Outcome,
    optimized: bool,
    code_bytes: u64,
    /// The best.
    compile_time: Duration,
    /// The best.
    run_time: Duration,
}

impl Measured {
    /// Compiles and runs for the first time.
    pub(crate) fn new(program: &Program, optimized: bool) -> anyhow::Result<Measured> {
        let executable = jit::compile(program, optimized)?;
        let (outcome, run_time) = executable.run();
        Ok(Measured {
            outcome,
            optimized,
            code_bytes: executable.code_bytes,
            compile_time: executable.compile_time,
            run_time,
        })
    }

    /// Once more, for better times.
    pub(crate) fn again(&mut self, program: &Program) -> anyhow::Result<()> {
        let again = Measured::new(program, self.optimized)?;
        self.compile_time = self.compile_time.min(again.compile_time);
        self.run_time = self.run_time.min(again.run_time);
        Ok(())
    }
}

/// A program compiled both ways.
pub(crate) struct Comparison {
    pub(crate) name: String,
    pub(crate) without: Measured,
    pub(crate) with: Measured,
    /// Whether the output is the expected one, if that is known.
    pub(crate) as_expected: Option<bool>,
}

impl Comparison {
    pub(crate) fn equal(&self) -> bool {
        self.without.outcome == self.with.outcome
    }
}

/// Size and times of programs, and of all of them.
pub(crate) fn comparison_table(comparisons: &[Comparison]) -> String {
    let row = |name: &str, sums: [f64; 6]| {
        let [code, code_with, compile, compile_with, run, run_with] = sums;
        let number = |value: f64| format!("{value:.2}");
        vec![
            name.to_string(),
            format!("{code}"),
            format!("{code_with}"),
            ratio(code_with, code),
            number(compile),
            number(compile_with),
            ratio(compile_with, compile),
            number(run),
            number(run_with),
            ratio(run_with, run),
        ]
    };
    let mut rows = Vec::new();
    let mut total = [0.0; 6];
    for Comparison {
        name,
        without,
        with,
        ..
    } in comparisons
    {
        let sums = [
            without.code_bytes as f64,
            with.code_bytes as f64,
            milliseconds(without.compile_time),
            milliseconds(with.compile_time),
            milliseconds(without.run_time),
            milliseconds(with.run_time),
        ];
        for (total, value) in total.iter_mut().zip(sums) {
            *total += value;
        }
        rows.push(row(name, sums));
    }
    if comparisons.len() > 1 {
        rows.push(row("total", total));
    }
    let titles = [
        "program",
        "code bytes\nwithout",
        "\nwith",
        "\nratio",
        "compile ms\nwithout",
        "\nwith",
        "\nratio",
        "run ms\nwithout",
        "\nwith",
        "\nratio",
    ];
    table(&titles, rows, 1..titles.len())
}

/// What becomes of the memory operations of each function, and which slots stay.
pub(crate) fn stats_table(programs: &[(&str, Vec<FunctionReport>)]) -> String {
    let mut rows = Vec::new();
    for (program, functions) in programs {
        for function in functions {
            let FunctionReport {
                before,
                without,
                with,
                ..
            } = function;
            let left = function.slots.iter().filter(|slot| slot.left_with);
            let left = left.map(|slot| {
                let info = &slot.info;
                let why = match (info.indexed, info.passed) {
                    (true, true) => " [indexed, passed]",
                    (true, false) => " [indexed]",
                    (false, true) => " [passed]",
                    (false, false) => "",
                };
                format!("{}{why}", info.name)
            });
            let left: Vec<String> = left.collect();
            let counts = [
                [before.slots, without.slots, with.slots],
                [before.loads, without.loads, with.loads],
                [before.stores, without.stores, with.stores],
            ];
            let mut row = vec![program.to_string(), function.name.clone()];
            row.extend(counts.iter().flatten().map(u64::to_string));
            row.push(counted(&left));
            rows.push(row);
        }
    }
    let titles = [
        "program",
        "function",
        "slots\nbefore",
        "\nwithout",
        "\nwith",
        "loads\nbefore",
        "\nwithout",
        "\nwith",
        "stores\nbefore",
        "\nwithout",
        "\nwith",
        "slots that stay",
    ];
    let mut text = table(&titles, rows, 2..titles.len() - 1);
    text += "\nbefore: as the front end makes it; without: after Cranelift's optimizer; with: after\n\
             cranelift-memopt, then Cranelift's. indexed: at run time; passed: its address is an\n\
             argument of a call.\n";
    text
}

/// Equal texts once, with how often they were there.
fn counted(texts: &[String]) -> String {
    let mut seen: Vec<(&String, u32)> = Vec::new();
    for text in texts {
        match seen.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => seen.push((text, 1)),
        }
    }
    let shown = seen.iter().map(|(text, count)| match count {
        1 => text.to_string(),
        count => format!("{count} × {text}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Everything but CLIF, a report of functions for each comparison.
pub(crate) fn json(comparisons: &[Comparison], reports: &[Vec<FunctionReport>]) -> String {
    let programs = comparisons.iter().zip(reports);
    let programs = programs.map(|(comparison, functions)| {
        let Comparison {
            name,
            without,
            with,
            as_expected,
        } = comparison;
        let failure = with.outcome.failure.as_ref().map(|failure| {
            json!({
                "line": failure.at.line,
                "column": failure.at.column,
                "message": failure.message,
            })
        });
        json!({
            "name": name,
            "output": with.outcome.output,
            "failure": failure,
            "equal": comparison.equal(),
            "as_expected": as_expected,
            "without": measured(without),
            "with": measured(with),
            "functions": functions.iter().map(function).collect::<Vec<_>>(),
        })
    });
    let programs: Vec<Value> = programs.collect();
    format!("{:#}\n", json!({ "programs": programs }))
}

fn measured(measured: &Measured) -> Value {
    json!({
        "code_bytes": measured.code_bytes,
        "compile_ms": milliseconds(measured.compile_time),
        "run_ms": milliseconds(measured.run_time),
    })
}

fn function(function: &FunctionReport) -> Value {
    let FunctionReport {
        name,
        slots,
        before,
        without,
        with,
        ..
    } = function;
    let indexed = slots.iter().filter(|slot| slot.info.indexed);
    let indexed: Vec<&str> = indexed.map(|slot| slot.info.name.as_str()).collect();
    let slots = slots.iter().map(|slot| {
        json!({
            "name": slot.info.name,
            "bytes": slot.info.bytes,
            "indexed": slot.info.indexed,
            "passed": slot.info.passed,
            "left_without": slot.left_without,
            "left_with": slot.left_with,
        })
    });
    json!({
        "name": name,
        "slots_before": before.slots,
        "slots_without": without.slots,
        "slots_after": with.slots,
        "loads_before": before.loads,
        "loads_without": without.loads,
        "loads_after": with.loads,
        "stores_before": before.stores,
        "stores_without": without.stores,
        "stores_after": with.stores,
        "frame_bytes_without": without.frame_bytes,
        "frame_bytes_after": with.frame_bytes,
        "indexed": indexed,
        "slots": slots.collect::<Vec<_>>(),
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn ratio(with: f64, without: f64) -> String {
    match without > 0.0 {
        true => format!("{:.2}", with / without),
        false => "-".to_string(),
    }
}

fn table(titles: &[&str], rows: Vec<Vec<String>>, numbers: std::ops::Range<usize>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(titles);
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}
