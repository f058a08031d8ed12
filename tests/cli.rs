//! The command line from outside: exit codes, messages, and that bad input leaves nothing behind.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use object::{Object, ObjectSymbol};

const GOOD: &str = "\
function %twice(i64) -> i64 system_v {
    ss0 = explicit_slot 8, align = 8
    sig0 = (i64) -> i64 system_v
    fn0 = %outside sig0
    fn1 = colocated %local sig0
    gv0 = symbol %data

block0(v0: i64):
    v1 = stack_addr.i64 ss0
    store notrap aligned v0, v1
    v2 = load.i64 notrap aligned v1
    v3 = call fn0(v2)
    v4 = call fn1(v3)
    v5 = symbol_value.i64 gv0
    v6 = iadd v4, v5
    return v6
}

function %local(i64) -> i64 system_v {
block0(v0: i64):
    v1 = iadd v0, v0
    return v1
}

function u0:7(i64) system_v {
    sig0 = (i64, i32, i64) -> i64 system_v
    fn0 = %Memset sig0
block0(v0: i64):
    v1 = iconst.i32 0
    v2 = iconst.i64 64
    v3 = call fn0(v0, v1, v2)
    return
}
";

/// A folder of its own for a test, with some files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The names of the files in it.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_clif-memopt"))
}

fn run(args: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    command()
        .args(args.iter().map(|arg| arg.as_ref()))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn run_on(stdin: &str, args: &[&str]) -> Output {
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(stdin.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line on stderr of a command that must have refused its input.
#[track_caller]
fn refusal(output: &Output) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "not one line: {stderr}");
    assert!(!stderr.contains("internal error"), "{stderr}");
    assert_eq!(text(&output.stdout), "");
    stderr.trim_end().to_string()
}

#[track_caller]
fn success(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs `opt`, `print`, `size` and `compile` on a bad file: each must refuse it with `expected` in
/// its line, and leave no file.
#[track_caller]
fn all_refuse(folder: &Folder, input: &Path, expected: &[&str]) {
    let names = folder.names();
    let out = folder.path("out");
    for output in [
        run(&[&"opt", &input, &"-o", &out]),
        run(&[&"print", &input, &"--dot", &out]),
        run(&[&"size", &input]),
        run(&[&"compile", &input, &"-o", &out]),
    ] {
        let line = refusal(&output);
        for part in expected {
            assert!(line.contains(part), "no '{part}' in: {line}");
        }
    }
    assert_eq!(folder.names(), names);
}

#[test]
fn syntax_error() {
    let folder = Folder::new();
    let input = folder.file(
        "bad.clif",
        "function %f() {\nblock0:\n    v1 = nonsense\n}\n",
    );
    all_refuse(&folder, &input, &["bad.clif:3: ", "nonsense"]);
}

#[test]
fn verifier_error() {
    let folder = Folder::new();
    let clif = "; twice\n\nfunction %bad(i64) -> i32 system_v {\nblock0(v0: i64):\n    \
                v1 = iadd v0, v0\n    return v1\n}\n";
    let input = folder.file("bad.clif", clif);
    all_refuse(
        &folder,
        &input,
        &["bad.clif:6: ", "function %bad", "return v1"],
    );
}

#[test]
fn missing_file() {
    let folder = Folder::new();
    all_refuse(
        &folder,
        &folder.path("none.clif"),
        &["none.clif", "No such file"],
    );
}

#[test]
fn empty_file() {
    let folder = Folder::new();
    let input = folder.file("empty.clif", "");
    all_refuse(&folder, &input, &["no functions in", "empty.clif"]);
    let input = folder.file("comment.clif", "; nothing\n");
    all_refuse(&folder, &input, &["no functions in", "comment.clif"]);
}

#[test]
fn function_without_blocks() {
    let folder = Folder::new();
    let input = folder.file("none.clif", "\nfunction %f() system_v {\n}\n");
    all_refuse(
        &folder,
        &input,
        &["none.clif:2: ", "function %f", "no blocks"],
    );
}

#[test]
fn not_utf8() {
    let folder = Folder::new();
    let input = folder.file("bytes.clif", b"; one\n; \xff\n");
    all_refuse(&folder, &input, &["bytes.clif:2: ", "UTF-8"]);
}

#[test]
fn folder_for_a_file() {
    let folder = Folder::new();
    fs::create_dir(folder.path("sub")).unwrap();
    all_refuse(&folder, &folder.path("sub"), &["sub"]);
    let line = refusal(&run(&[&"opt", &folder.path("sub")]));
    assert!(line.contains("is a directory"), "{line}");
}

#[test]
fn folder_without_clif() {
    let folder = Folder::new();
    folder.file("readme.txt", "");
    let line = refusal(&run(&[&"size", &folder.0.path()]));
    assert!(line.contains("no .clif files in"), "{line}");
}

#[test]
fn unknown_and_unsupported_targets() {
    let folder = Folder::new();
    let input = folder.file("good.clif", GOOD);
    let out = folder.path("out");
    for target in [
        "nonsense",
        "",
        "i686",
        "i686-unknown-linux-gnu",
        "riscv32",
        "riscv64",
        "wasm32",
    ] {
        for output in [
            run(&[&"opt", &input, &"-o", &out, &"--target", &target]),
            run(&[&"print", &input, &"--target", &target]),
            run(&[&"size", &input, &"--target", &target]),
            run(&[&"compile", &input, &"-o", &out, &"--target", &target]),
        ] {
            refusal(&output);
        }
    }
    let line = refusal(&run(&[&"opt", &input, &"--target", &"i686"]));
    assert!(line.contains("pointers must be 64 bits wide"), "{line}");
    assert_eq!(folder.names(), ["good.clif"]);
}

#[test]
fn targets_and_settings_of_the_file() {
    let folder = Folder::new();
    let input = folder.file("t.clif", format!("test optimize\ntarget i686\n{GOOD}"));
    let line = refusal(&run(&[&"opt", &input]));
    assert!(
        line.contains("t.clif:2: ") && line.contains("64 bits"),
        "{line}"
    );
    success(&run(&[&"opt", &input, &"--target", &"aarch64"]));
    let input = folder.file(
        "s.clif",
        format!("set no_such_setting\ntarget x86_64\n{GOOD}"),
    );
    let line = refusal(&run(&[&"opt", &input]));
    assert!(
        line.contains("s.clif:1: ") && line.contains("no_such_setting"),
        "{line}"
    );
}

#[test]
fn unwritable_output() {
    let folder = Folder::new();
    let input = folder.file("good.clif", GOOD);
    let names = folder.names();
    for out in [folder.path("none/out"), folder.path("good.clif/out")] {
        let line = refusal(&run(&[&"opt", &input, &"-o", &out]));
        assert!(line.contains("cannot write"), "{line}");
        refusal(&run(&[&"compile", &input, &"-o", &out]));
    }
    let line = refusal(&run(&[&"opt", &input, &"-o", &folder.0.path()]));
    assert!(line.contains("is a directory"), "{line}");
    assert_eq!(folder.names(), names);
}

#[test]
fn bad_usage_is_one_line() {
    let folder = Folder::new();
    let input = folder.file("good.clif", GOOD);
    let line = refusal(&run(&[&"opt", &input, &"--passes", &"forward,nonsense"]));
    assert!(
        line.contains("unknown pass 'nonsense'") && line.contains("forward, dse"),
        "{line}"
    );
    let line = refusal(&run(&[&"opt", &input, &"--preset", &"fastest"]));
    assert!(line.contains("unknown preset 'fastest'"), "{line}");
    refusal(&run(&[&"opt", &input, &"--no-such-flag"]));
    refusal(&run(&[&"opt", &input, &"--fuel", &"some"]));
    refusal(&run(&[&"compile", &input]));
    refusal(&run(&[&"size"]));
    refusal(&run(&[&"frobnicate"]));
}

#[test]
fn help_has_examples() {
    for command in [
        "opt", "print", "size", "compile", "run", "test", "bisect", "fuzz",
    ] {
        let output = run(&[&command, &"--help"]);
        assert!(success(&output).contains("Examples:"), "{command}");
    }
}

#[test]
fn opt_reads_what_it_writes() {
    let first = run_on(GOOD, &["opt", "-", "--check"]);
    let first = success(&first);
    let second = run_on(first, &["opt", "-"]);
    let second = success(&second);
    for name in ["function %twice(", "function %local(", "function u0:7("] {
        assert!(first.contains(name) && second.contains(name));
    }
    let third = run_on(second, &["opt", "-"]);
    assert_eq!(success(&third), second);
}

#[test]
fn opt_writes_files_and_reports() {
    let folder = Folder::new();
    let input = folder.file("good.clif", format!("test optimize\ntarget x86_64\n{GOOD}"));
    let out = folder.path("out.clif");
    let output = run(&[
        &"opt",
        &input,
        &"-o",
        &out,
        &"--stats",
        &"--json",
        &"--remarks",
    ]);
    assert_eq!(success(&output), "");
    assert!(
        fs::read_to_string(&out)
            .unwrap()
            .contains("function %twice(")
    );
    let last = text(&output.stderr).lines().last().unwrap();
    assert!(
        serde_json::from_str::<serde_json::Value>(last)
            .unwrap()
            .is_object()
    );
    assert_eq!(folder.names(), ["good.clif", "out.clif"]);
}

#[test]
fn opt_may_write_over_its_input() {
    let folder = Folder::new();
    let input = folder.file("good.clif", GOOD);
    success(&run(&[&"opt", &input, &"-o", &input]));
    success(&run(&[&"opt", &input]));
    assert_eq!(folder.names(), ["good.clif"]);
}

#[test]
fn print_shows_every_function() {
    let plain = run_on(GOOD, &["print", "-"]);
    let plain = success(&plain);
    assert!(plain.contains("MemoryDef") && plain.contains("%local") && plain.contains("u0:7"));
    success(&run_on(plain, &["opt", "-"]));
    for flags in [&["--walker", "--classes"][..], &["--effects"], &["--alias"]] {
        success(&run_on(GOOD, &[&["print", "-"], flags].concat()));
    }
    let folder = Folder::new();
    let input = folder.file("good.clif", GOOD);
    let graph = folder.path("good.dot");
    assert_eq!(success(&run(&[&"print", &input, &"--dot", &graph])), "");
    assert!(fs::read_to_string(graph).unwrap().contains("digraph"));
}

#[test]
fn size_as_json() {
    let folder = Folder::new();
    let input = folder.file("good.clif", GOOD);
    let other = folder.file(
        "other.clif",
        "function %f() system_v {\nblock0:\n    return\n}\n",
    );
    let output = run(&[&"size", &folder.0.path(), &"--json"]);
    let value: serde_json::Value = serde_json::from_str(success(&output)).unwrap();
    assert_eq!(value["total"]["functions"], 4);
    assert_eq!(value["total"]["worse"], 0);
    assert_eq!(value["total"]["failed"], 0);
    for (file, name) in [(0, &input), (1, &other)] {
        assert_eq!(value["files"][file]["file"], name.display().to_string());
        assert_eq!(value["files"][file]["preset"], "speed");
    }
    for name in ["instructions", "loads", "stores", "slots"] {
        assert!(value["total"][name]["before"].is_u64() && value["total"][name]["after"].is_u64());
    }
    for target in ["x86_64", "aarch64"] {
        let of_target = &value["total"]["targets"][target];
        assert!(of_target["code_bytes"]["after"].as_u64().unwrap() > 0);
        assert!(of_target["code_bytes"]["ratio"].is_f64());
        assert!(of_target["frame_bytes"]["before"].is_u64());
    }
}

#[test]
fn size_as_a_table() {
    let output = run_on(GOOD, &["size", "-", "--target", "aarch64"]);
    let table = success(&output);
    for word in [
        "instructions",
        "loads",
        "frame",
        "aarch64",
        "worse",
        "total",
        "<stdin>",
        " -> ",
    ] {
        assert!(table.contains(word), "no '{word}' in:\n{table}");
    }
    assert!(!table.contains("x86_64"));
}

#[test]
fn size_goes_on_after_a_bad_file() {
    let folder = Folder::new();
    folder.file("bad.clif", "function");
    folder.file("good.clif", GOOD);
    let output = run(&[&"size", &folder.0.path(), &"--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("bad.clif:1: "));
    let value: serde_json::Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(value["total"]["functions"], 3);
}

#[test]
fn wasmtime_is_recognized() {
    let clif = "function u0:1(i64 vmctx) -> i64 tail {\n    region0 = 8 \"VMContext+0x8\"\n\n\
                block0(v0: i64):\n    v1 = load.i64 notrap aligned region0 v0+8\n    return v1\n}\n";
    let preset = |flags: &[&str]| {
        let output = run_on(clif, &[&["size", "-", "--json"], flags].concat());
        let value: serde_json::Value = serde_json::from_str(success(&output)).unwrap();
        value["files"][0]["preset"].as_str().unwrap().to_string()
    };
    assert_eq!(preset(&[]), "wasmtime");
    assert_eq!(preset(&["--preset", "minimal"]), "minimal");
}

#[test]
fn compile_writes_objects() {
    let folder = Folder::new();
    let input = folder.file("good.clif", GOOD);
    let targets = [
        ("x86_64", object::Architecture::X86_64),
        ("aarch64", object::Architecture::Aarch64),
    ];
    for (target, architecture) in targets {
        for flags in [&[][..], &["--no-opt"]] {
            let out = folder.path(&format!("{target}.o"));
            let output = command()
                .args(["compile", "--target", target, "-o"])
                .args([&out, &input])
                .args(flags)
                .output()
                .unwrap();
            assert_eq!(success(&output), "");
            check_object(&fs::read(out).unwrap(), architecture);
        }
    }
}

#[track_caller]
fn check_object(bytes: &[u8], architecture: object::Architecture) {
    let file = object::File::parse(bytes).unwrap();
    assert_eq!(file.format(), object::BinaryFormat::Elf);
    assert_eq!(file.architecture(), architecture);
    let symbol = |name: &str| {
        file.symbols()
            .find(|symbol| symbol.name() == Ok(name))
            .unwrap()
    };
    for name in ["twice", "local", "u0_7"] {
        assert!(
            symbol(name).is_definition() && symbol(name).is_global(),
            "{name}"
        );
    }
    for name in ["outside", "data", "memset"] {
        assert!(symbol(name).is_undefined(), "{name}");
    }
}

#[test]
fn compile_refuses_two_functions_of_one_name() {
    let folder = Folder::new();
    let function = "function %same() system_v {\nblock0:\n    return\n}\n";
    let input = folder.file("same.clif", format!("{function}{function}"));
    let line = refusal(&run(&[&"compile", &input, &"-o", &folder.path("out.o")]));
    assert!(
        line.contains("same.clif:5: ") && line.contains("'same'"),
        "{line}"
    );
    assert_eq!(folder.names(), ["same.clif"]);
}

const RUNS: &str = "\
test run

function %add(i64, i64) -> i64 system_v {
block0(v0: i64, v1: i64):
    v2 = load.i64 v0
    v3 = iadd v2, v1
    store v3, v0
    return v3
}
; mem: p0 = 8 bytes 01
; run: %add(p0, 2) == 3, p0[0] = 03
; run: %add(oob, 2) traps heap_oob
";

#[test]
#[cfg(target_os = "linux")]
fn run_executes_run_lines() {
    let output = run_on(RUNS, &["run", "-"]);
    let shown = success(&output);
    assert!(
        shown.contains("same: %add(p0, 2) == 3, p0[0] = 03: returned 3"),
        "{shown}"
    );
    assert!(
        shown.ends_with("2 same, 0 different, 0 undefined\n"),
        "{shown}"
    );
    let wrong = RUNS.replace("== 3", "== 4");
    let output = run_on(&wrong, &["run", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("<stdin>:11: "));
    assert!(text(&output.stdout).contains("1 same, 1 different, 0 undefined"));
    let line = refusal(&run_on(
        &RUNS.replace("%add(p0", "%other(p0"),
        &["run", "-"],
    ));
    assert!(
        line.contains("<stdin>:11: ") && line.contains("%other"),
        "{line}"
    );
    let line = refusal(&run_on(GOOD, &["run", "-"]));
    assert!(line.contains("no '; run:' lines"), "{line}");
    refusal(&run_on(RUNS, &["run", "-", "--target", "i686"]));
}

#[test]
#[cfg(target_os = "linux")]
fn test_reports_every_file() {
    let folder = Folder::new();
    let target = format!("test run\ntarget {}\n", std::env::consts::ARCH);
    let good = folder.file("a.clif", RUNS.replace("test run\n", &target));
    let output = run(&[&"test", &folder.0.path()]);
    assert_eq!(
        success(&output),
        format!("ok {}\n1 passed, 0 failed, 0 skipped\n", good.display())
    );
    folder.file(
        "b.clif",
        RUNS.replace("test run\n", &target).replace("== 3", "== 4"),
    );
    folder.file("c.clif", "function");
    let output = run(&[&"test", &folder.0.path()]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("b.clif:12: ") && shown.contains("c.clif:1: "),
        "{shown}"
    );
    assert!(
        shown.ends_with("1 passed, 2 failed, 0 skipped\n"),
        "{shown}"
    );
    refusal(&run(&[&"test", &folder.path("none")]));
}

#[test]
#[cfg(target_os = "linux")]
fn bisect_tells_what_differs() {
    let folder = Folder::new();
    let input = folder.file("good.clif", RUNS);
    let shown = run(&[&"bisect", &input]);
    let shown = success(&shown).to_string();
    let last = "no difference after any of 0 rewrites\n";
    assert!(
        shown.ends_with(last) && shown.lines().count() == 1,
        "{shown}"
    );
    // No rewrite is at fault if the run line asks for what the original does not do.
    let output = run_on(&RUNS.replace("== 3", "== 4"), &["bisect", "-"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(
        shown.contains(": fuel 0: no rewrite is at fault"),
        "{shown}"
    );
    assert!(shown.contains("<stdin>:11: "), "{shown}");
    assert_eq!(folder.names(), ["good.clif"]);
}

#[test]
#[cfg(target_os = "linux")]
fn bisect_needs_something_to_compare() {
    let line = refusal(&run_on(GOOD, &["bisect", "-"]));
    assert!(line.contains("no '; run:' lines"), "{line}");
    let output = run_on(GOOD, &["bisect", "-", "--check"]);
    assert!(success(&output).contains("no difference after any of 2 rewrites"));
    let wrong = RUNS.replace("%add(p0", "%other(p0");
    let line = refusal(&run_on(&wrong, &["bisect", "-"]));
    assert!(line.contains("<stdin>:11: "), "{line}");
    refusal(&run_on("function", &["bisect", "-"]));
    refusal(&run_on(RUNS, &["bisect", "-", "--target", "i686"]));
    refusal(&run(&[&"bisect"]));
}

#[test]
#[cfg(target_os = "linux")]
fn fuzz_counts_what_it_ran() {
    let folder = Folder::new();
    let fuzz = |flags: &[&str]| {
        let arguments = ["fuzz", "--cases", "8", "--seed", "1"];
        let output = command()
            .args(arguments)
            .args(flags)
            .current_dir(folder.0.path())
            .output();
        output.unwrap()
    };
    let output = fuzz(&["--threads", "2"]);
    let table = success(&output);
    assert_eq!(text(&output.stderr), "");
    let last = table.lines().last().unwrap();
    assert!(last.starts_with("8 cases, ") && last.ends_with(" functions/s, 0 failures"));
    for name in ["loads ", "forward.from_store ", "runs.returned "] {
        assert!(table.contains(name), "no {name} in\n{table}");
    }
    let output = fuzz(&["--json", "--threads", "1"]);
    let value: serde_json::Value = serde_json::from_str(success(&output)).unwrap();
    assert_eq!(value["cases"], 8);
    assert_eq!(value["failures"], serde_json::json!([]));
    // Threads change nothing.
    let loads = value["counts"]["loads"].as_u64().unwrap();
    let line = table.lines().find(|line| line.starts_with("loads "));
    assert!(line.unwrap().ends_with(&format!(" {loads}")));
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
#[cfg(target_os = "linux")]
fn fuzz_shows_a_case() {
    let shown = run(&[&"fuzz", &"--show", &"5"]);
    let shown = success(&shown);
    assert!(shown.starts_with("test run\n") && shown.contains("; run: "));
    let again = run(&[&"fuzz", &"--show", &"5"]);
    assert_eq!(success(&again), shown);
    success(&run_on(shown, &["run", "-"]));
}

#[test]
#[cfg(target_os = "linux")]
fn fuzz_replays_a_file() {
    let shown = run(&[&"fuzz", &"--show", &"5"]);
    let shown = success(&shown);
    let replayed = run_on(shown, &["fuzz", "--replay", "-"]);
    assert!(success(&replayed).ends_with(" 5 runs, 0 findings\n"));
    let folder = Folder::new();
    let wrong = "test run\ntarget x86_64\n\nfunction %f() -> i32 system_v {\nblock0:\n    \
                 v0 = iconst.i32 3\n    return v0\n}\n; run: %f() == 4\n";
    let file = folder.file("wrong.clif", wrong);
    let output = run(&[&"fuzz", &"--replay", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stdout),
        "execution: %f() == 4: original and optimized agree, but returned 3, which is not expected\n\
         1 functions, 1 runs, 1 findings\n"
    );
    let output = run(&[&"fuzz", &"--replay", &file, &"--json"]);
    assert_eq!(output.status.code(), Some(1));
    let value: serde_json::Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(value["findings"][0]["oracle"], "execution");
    for bad in ["function %f() {\nblock0:\n", "; nothing\n"] {
        let file = folder.file("bad.clif", bad);
        refusal(&run(&[&"fuzz", &"--replay", &file]));
    }
}

#[test]
fn fuzz_refuses_bad_arguments() {
    for arguments in [
        &["--cases", "some"][..],
        &["--cases", "-1"],
        &["--seed", "1.5"],
        &["--threads", "0"],
        &["--threads", "100000"],
        &["--target", "i686"],
        &["--target", "nonsense"],
        &["--output", "/no/such/folder"],
        &["--show", "x"],
        &["--show", "1", "--cases", "2"],
        &["--replay", "/no/such/file"],
        &["--replay", "x.clif", "--seed", "2"],
        &["stray"],
    ] {
        let output = command().arg("fuzz").args(arguments).output().unwrap();
        refusal(&output);
    }
}

#[test]
fn a_reader_that_stops_is_no_error() {
    let many: String = (0..2000)
        .map(|index| format!("function %f{index}() system_v {{\nblock0:\n    return\n}}\n"))
        .collect();
    let folder = Folder::new();
    let input = folder.file("many.clif", many);
    let mut child = command()
        .arg("opt")
        .arg(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}
