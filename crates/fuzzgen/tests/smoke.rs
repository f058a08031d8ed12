//! A short run of everything: the generator keeps its word, the oracles are content with the
//! optimizer and object to wrong code, the reducer reduces.

use clif_memopt_fuzzgen::{
    Campaign, Case, Config, Oracle, Setup, Tally, case_of_seed, check_clobbers, check_execution,
    check_interpretation, first_bad_fuel, permuted, reduce, run_campaign,
};
use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{Block, Function, Inst, InstBuilder, Opcode, TrapCode, types};
use cranelift_codegen::verify_function;

fn setup() -> Setup {
    Setup::new("x86_64").unwrap()
}

/// The rewrites that every campaign must set off.
const REWRITES: [&str; 4] = [
    "forward.from_store",
    "forward.from_load",
    "dse.overwritten",
    "dse.already_there",
];

#[test]
fn a_campaign_finds_nothing_and_exercises_everything() {
    let campaign = Campaign {
        seed: 1,
        cases: 250,
        threads: 2,
        config: Config::default(),
        failures_max: 1,
    };
    let summary = run_campaign(&campaign, &setup(), &|_, _| {});
    if let Some(failure) = summary.failures.first() {
        panic!("seed {}: {}", failure.seed, failure.findings[0]);
    }
    for rewrite in REWRITES {
        assert!(summary.tally.get(rewrite) > 0, "{rewrite} never fires");
    }
    let ends = [
        "runs.returned",
        "runs.trapped",
        "runs.stopped",
        "interpreter.returned",
        "interpreter.trapped",
        "runs.thrown",
        "interpreter.thrown",
        "interpreter.caught",
        "interpreter.collected",
    ];
    for end in ends {
        assert!(summary.tally.get(end) > 0, "{end}: none");
    }
    assert_eq!(summary.tally.get("runs.timed_out"), 0);
}

#[test]
fn generated_functions_are_valid_for_every_target() {
    let setups = ["x86_64", "aarch64"].map(|target| Setup::new(target).unwrap());
    let mut tally = Tally::default();
    for seed in 0..1500 {
        let case = case_of_seed(seed, &Config::default());
        tally.add_shape(&case.shape);
        for function in &case.functions {
            for setup in &setups {
                if let Err(errors) = verify_function(function, &*setup.isa) {
                    panic!("seed {seed}: {errors}\n{function}");
                }
            }
        }
    }
    assert_eq!(tally.missing_shapes(), Vec::<&str>::new());
    for shape in ["stack_maps", "tail_calls", "throws", "try_calls"] {
        assert!(tally.get(shape) >= 30, "{shape}: {}", tally.get(shape));
    }
}

#[test]
fn a_case_reads_back_as_it_is_printed() {
    for seed in 0..40 {
        let case = case_of_seed(seed, &Config::default());
        let again = Case::parse(&case.to_string()).unwrap();
        assert_eq!(again.functions.len(), case.functions.len());
        assert_eq!(again.invocations.len(), case.invocations.len());
        assert_eq!(again.num_insts(), case.num_insts(), "seed {seed}");
        assert_eq!(again.mixed_tags, case.mixed_tags);
    }
}

#[test]
fn fewer_bytes_give_a_case_too() {
    for bytes in [&[][..], &[0xff; 7], &[0x5a; 300]] {
        let case = clif_memopt_fuzzgen::case_of_bytes(bytes, &Config::default());
        for function in &case.functions {
            verify_function(function, &*setup().isa).unwrap();
        }
    }
}

fn stores(function: &Function) -> Vec<Inst> {
    let insts = function
        .layout
        .blocks()
        .flat_map(|block| function.layout.block_insts(block));
    insts
        .filter(|&inst| function.dfg.insts[inst].opcode() == Opcode::Store)
        .collect()
}

/// How many of the wrong versions that `break_at` makes of the functions are found to differ.
fn caught(break_at: impl Fn(&mut Function, Inst)) -> (usize, usize) {
    let (mut caught, mut all) = (0, 0);
    for seed in 0..24 {
        let case = case_of_seed(seed, &Config::default());
        let Some(&store) = stores(&case.functions[0]).last() else {
            continue;
        };
        let mut wrong = case.functions.clone();
        break_at(&mut wrong[0], store);
        let found = check_execution(&case, &wrong, &setup(), &mut Tally::default());
        all += 1;
        caught += usize::from(found.is_err_and(|finding| finding.oracle == Oracle::Execution));
    }
    (caught, all)
}

/// Makes every exception handler trap at once.
fn break_handlers(function: &mut Function) {
    let tables = function.dfg.exception_tables.values();
    let handlers: Vec<Block> = tables
        .flat_map(|table| {
            let targets = table.all_branches();
            let handlers = &targets[..targets.len() - 1];
            handlers
                .iter()
                .map(|call| call.block(&function.dfg.value_lists))
        })
        .collect();
    for handler in handlers {
        let mut cursor = FuncCursor::new(function).at_first_insertion_point(handler);
        let never = cursor.ins().iconst(types::I8, 0);
        cursor.ins().trapz(never, TrapCode::unwrap_user(77));
    }
}

#[test]
fn exception_handlers_are_executed() {
    let (mut by_execution, mut by_interpreter) = (0, 0);
    for seed in 0..150 {
        let case = case_of_seed(seed, &Config::default());
        let mut wrong = case.functions.clone();
        wrong.iter_mut().for_each(break_handlers);
        let found = check_execution(&case, &wrong, &setup(), &mut Tally::default());
        by_execution += u32::from(found.is_err());
        let found = check_interpretation(&case, &wrong, &mut Tally::default());
        by_interpreter += u32::from(found.is_err());
    }
    println!("{by_execution} {by_interpreter}");
    assert!(by_execution >= 5, "{by_execution}");
    assert!(by_interpreter >= 5, "{by_interpreter}");
}

/// Takes the stack maps away, which the optimizer never does.
fn without_maps(case: &Case) -> Vec<Function> {
    let text = case.to_string();
    let lines = text
        .lines()
        .map(|line| match line.split_once(", stack_map=") {
            Some((call, _)) => format!("{call}\n"),
            None => format!("{line}\n"),
        });
    Case::parse(&lines.collect::<String>()).unwrap().functions
}

#[test]
fn slots_in_stack_maps_are_changed_by_the_callee() {
    let (mut by_execution, mut by_interpreter) = (0, 0);
    for seed in 0..150 {
        let case = case_of_seed(seed, &Config::default());
        let wrong = without_maps(&case);
        let found = check_execution(&case, &wrong, &setup(), &mut Tally::default());
        by_execution += u32::from(found.is_err());
        let found = check_interpretation(&case, &wrong, &mut Tally::default());
        by_interpreter += u32::from(found.is_err());
    }
    println!("{by_execution} {by_interpreter}");
    assert!(by_execution >= 5, "{by_execution}");
    assert!(by_interpreter >= 5, "{by_interpreter}");
}

#[test]
fn a_lost_store_is_caught_by_the_interpreter() {
    let (mut caught, mut all) = (0, 0);
    for seed in 0..24 {
        let case = case_of_seed(seed, &Config::default());
        let Some(&store) = stores(&case.functions[0]).last() else {
            continue;
        };
        let mut wrong = case.functions.clone();
        wrong[0].layout.remove_inst(store);
        all += 1;
        caught += usize::from(check_interpretation(&case, &wrong, &mut Tally::default()).is_err());
    }
    assert!(caught * 5 >= all, "{caught} of {all}");
}

/// What the interpreter finds if the `at`th store of the only function is lost.
fn interpreted_without_store(at: usize, text: &str) -> Option<String> {
    let case = Case::parse(text).unwrap();
    let mut wrong = case.functions.clone();
    let store = stores(&wrong[0])[at];
    wrong[0].layout.remove_inst(store);
    let found = check_interpretation(&case, &wrong, &mut Tally::default());
    found.err().map(|finding| finding.message)
}

#[test]
fn the_interpreter_compares_memory_at_the_trap() {
    let text = "test run\ntarget x86_64\n\nfunction %f(i64, i32) {\n ss0 = explicit_slot 4\n\
        block0(v0: i64, v1: i32):\n v2 = stack_addr.i64 ss0\n store v1, v2\n \
        store v1, v0+8\n trap user1\n}\n; mem: p0 = 16 bytes\n; run: %f(p0, 258)\n";
    assert_eq!(interpreted_without_store(0, text), None);
    let found = interpreted_without_store(1, text).unwrap();
    assert!(
        found.contains("memory differs, first at byte 8 of all buffers: original 02, optimized 00"),
        "{found}"
    );
}

#[test]
fn a_lost_store_is_caught() {
    let (caught, all) = caught(|function, store| {
        function.layout.remove_inst(store);
    });
    assert!(caught * 4 >= all, "{caught} of {all}");
}

#[test]
fn a_misplaced_store_is_caught() {
    let (caught, all) = caught(|function, store| {
        let offset = function.dfg.insts[store].load_store_offset().unwrap_or(0);
        if let cranelift_codegen::ir::InstructionData::Store { offset: at, .. } =
            &mut function.dfg.insts[store]
        {
            *at = (offset + 1).into();
        }
    });
    assert!(caught * 4 >= all, "{caught} of {all}");
}

#[test]
fn a_permuted_function_is_the_same_function() {
    for seed in 0..60 {
        let case = case_of_seed(seed, &Config::default());
        let other: Vec<Function> = case.functions.iter().map(permuted).collect();
        for function in &other {
            verify_function(function, &*setup().isa).unwrap();
        }
        if let Err(finding) = check_execution(&case, &other, &setup(), &mut Tally::default()) {
            panic!("seed {seed}: {finding}");
        }
    }
}

#[test]
fn clobbers_of_a_diamond_are_exact() {
    let text = "function %f(i64, i32) -> i32 {\nblock0(v0: i64, v1: i32):\n store v1, v0\n \
        brif v1, block1, block2\nblock1:\n store v1, v0+8\n jump block2\nblock2:\n \
        v2 = load.i32 v0\n return v2\n}";
    let function = &cranelift_reader::parse_functions(text).unwrap()[0];
    let mut tally = Tally::default();
    check_clobbers(function, &setup(), &mut tally).unwrap();
    assert_eq!(tally.get("clobbers.asked"), 3);
}

#[test]
fn the_reducer_keeps_what_fails_and_little_else() {
    let divides = |function: &Function| {
        let mut insts = function
            .layout
            .blocks()
            .flat_map(|b| function.layout.block_insts(b));
        insts.any(|inst| function.dfg.insts[inst].opcode() == Opcode::Fence)
    };
    let fails = |case: &Case| case.functions.iter().any(divides);
    let case = (0..)
        .map(|seed| case_of_seed(seed, &Config::default()))
        .find(&fails)
        .unwrap();
    let small = reduce(&case, &*setup().isa, &fails);
    assert!(fails(&small));
    assert_eq!(small.functions.len(), 1);
    assert!(small.num_insts() <= 12, "{small}");
    assert!(case.num_insts() > small.num_insts());
}

#[test]
fn right_code_has_no_bad_fuel() {
    let case = case_of_seed(3, &Config::default());
    assert!(first_bad_fuel(&case, &setup()).is_none());
}
