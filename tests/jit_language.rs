//! The example language from outside: its samples run both ways and print what they should, its
//! programs mean what they say, and each mistake is told with its place.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs the command with a program at its standard input.
fn run(args: &[&str], source: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_jit_language"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let mut stdin = child.stdin.take().expect("its input is a pipe");
    // It may end before it has read everything.
    let _ = stdin.write_all(source.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the example ends")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the output is text")
}

/// The exit code, standard output and standard error.
fn parts(output: &Output) -> (Option<i32>, &str, &str) {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    (output.status.code(), stdout, stderr)
}

/// Compiles and runs a program both ways; `programs[0]` of the JSON.
fn compared(source: &str) -> Value {
    let output = run(&["--json", "--repeat=1", "-"], source);
    let (_, stdout, stderr) = parts(&output);
    let json: Value = serde_json::from_str(stdout).unwrap_or_else(|error| {
        panic!("{error}\n{stdout}{stderr}");
    });
    let program = json["programs"][0].clone();
    assert_eq!(program["equal"], true, "{stdout}{stderr}");
    program
}

/// What `main` with these statements prints, both ways.
#[track_caller]
fn prints(items: &str, statements: &str, expected: &str) {
    let program = compared(&format!("{items}\nfn main() {{ {statements} }}"));
    assert_eq!(program["failure"], Value::Null);
    assert_eq!(program["output"], expected);
}

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples")
}

/// The names of the samples in the folder.
fn sample_names() -> Vec<String> {
    let entries = fs::read_dir(samples()).expect("there are samples");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let programs = paths.filter(|path| path.extension().is_some_and(|found| found == "tin"));
    let mut names: Vec<String> = programs
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_string())
        .collect();
    names.sort();
    names
}

/// All samples in JSON.
fn samples_json() -> Value {
    let output = run(&["--samples", "--json", "--repeat=1"], "");
    let (code, stdout, stderr) = parts(&output);
    assert_eq!((code, stderr), (Some(0), ""));
    serde_json::from_str(stdout).expect("the output is JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

#[test]
fn samples_print_what_they_should_both_ways() {
    let json = samples_json();
    let programs = list(&json["programs"]);
    let names: Vec<&str> = programs
        .iter()
        .map(|program| program["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, sample_names(), "built in, and in the folder");
    assert!(names.len() >= 12);
    for program in programs {
        let name = program["name"].as_str().unwrap();
        assert_eq!(program["equal"], true, "{name}");
        assert_eq!(program["as_expected"], true, "{name}");
        let file = samples().join(name).with_extension("out");
        assert_eq!(
            program["output"],
            fs::read_to_string(file).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn all_variables_start_in_slots_and_none_is_added() {
    for program in list(&samples_json()["programs"]) {
        for function in list(&program["functions"]) {
            let place = format!("{} {}", program["name"], function["name"]);
            let slots = list(&function["slots"]);
            assert_eq!(
                number(&function["slots_before"]),
                slots.len() as u64,
                "{place}"
            );
            assert!(number(&function["loads_before"]) > 0, "{place}");
            for what in ["slots", "loads", "stores"] {
                let after = number(&function[format!("{what}_after")]);
                let without = number(&function[format!("{what}_without")]);
                assert!(after <= without, "{place}: {what} {without} to {after}");
            }
        }
    }
}

/// Slots that are still there at the end, though no address of them leaves the function and no
/// index into them is known at run time only.
fn needless_slots(json: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for program in list(&json["programs"]) {
        for function in list(&program["functions"]) {
            for slot in list(&function["slots"]) {
                let is = |what: &str| slot[what].as_bool().expect("a bool");
                if is("left_with") && !is("indexed") && !is("passed") {
                    let names = [&program["name"], &function["name"], &slot["name"]];
                    let names = names.map(|name| name.as_str().unwrap_or_default());
                    found.push(names.join(" "));
                }
            }
        }
    }
    found
}

#[test]
fn only_arrays_indexed_at_run_time_and_passed_aggregates_stay_in_slots() {
    let needless = needless_slots(&samples_json());
    assert!(needless.is_empty(), "{}", needless.join("\n"));
}

#[test]
fn one_program_by_name_and_from_standard_input() {
    let file = samples().join("gcd.tin");
    let file = file.to_str().unwrap();
    let expected = fs::read_to_string(samples().join("gcd.out")).unwrap();

    let named = run(&["--run", file], "");
    assert_eq!(parts(&named), (Some(0), expected.as_str(), ""));
    let piped = run(&["--run", "-"], &fs::read_to_string(file).unwrap());
    assert_eq!(parts(&piped), (Some(0), expected.as_str(), ""));

    let compared = run(&[file, "--repeat", "1"], "");
    let (code, stdout, stderr) = parts(&compared);
    assert_eq!((code, stderr), (Some(0), ""));
    let table = stdout.strip_prefix(&expected).expect("the output is first");
    assert!(
        table.contains("code bytes") && table.contains("ratio"),
        "{table}"
    );

    let stats = run(&["--stats", file], "");
    let (code, stdout, _) = parts(&stats);
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("slots that stay") && stdout.contains("extended"),
        "{stdout}"
    );
}

#[test]
fn clif_is_shown_before_and_after() {
    let source = "fn main() { let x = 6; print(x * 7); }";
    let shown = |arg: &str| {
        let output = run(&[arg, "-"], source);
        assert_eq!(output.status.code(), Some(0));
        text(&output.stdout).to_string()
    };
    let (both, before, after) = (
        shown("--emit-clif"),
        shown("--emit-clif=before"),
        shown("--emit-clif=after"),
    );
    assert!(both.contains(&before.replace("\n\n", "\n")) || both.starts_with(&before));
    assert!(both.ends_with(&after));
    assert!(before.contains("function %main") && before.contains("load.i64 notrap aligned"));
    assert!(after.matches("load.i64").count() < before.matches("load.i64").count());
}

#[test]
fn aggregates_are_copied() {
    let items = "
        struct Small { a: i64, b: bool, c: f64 }
        struct Large { small: Small, numbers: [i64; 5] }
        fn change(large: Large, small: Small) -> Large {
            large.numbers[2] = small.a;
            small.a = 99;
            large.small = small;
            return large;
        }
        fn pick(large: Large, at: i64) -> i64 { return large.numbers[at]; }";
    prints(
        items,
        "let small = Small { c: 2.5, a: 7, b: true };
         let large = Large { small: small, numbers: [1, 2, 3, 4, 5] };
         let other = change(large, small);
         print(small.a, large.small.a, large.numbers[2]);
         print(other.small.a, other.numbers[2], other.small.b, other.small.c);
         large = change(change(large, small), Small { a: 8, b: false, c: 0.0 });
         print(large.numbers[2], large.small.b, pick(large, 2), pick(change(large, small), 2));
         let many = [large; 3];
         many[1].numbers[4] = 50;
         let i = 1;
         many[i + 1] = many[i];
         many[i] = many[i];
         many[0].numbers[0] += 1;
         print(many[0].numbers[4], many[2].numbers[4], many[0].numbers[0], large.numbers[0]);
         print(change(large, small).numbers[2], [4, 5, 6][i], len(many));",
        "7 7 3\n99 7 true 2.5\n8 false 8 7\n5 50 2 1\n7 5 3\n",
    );
}

#[test]
fn an_aggregate_may_be_made_of_what_it_is_stored_to() {
    prints(
        "struct Pair { a: i64, b: i64 }
         struct Six { p: Pair, q: Pair, r: Pair }",
        "let p = Pair { a: 1, b: 2 };
         p = Pair { a: p.b, b: p.a };
         print(p.a, p.b);
         let six = Six { p: p, q: Pair { a: 3, b: 4 }, r: Pair { a: 5, b: 6 } };
         six = Six { p: six.r, q: six.p, r: six.q };
         print(six.p.a, six.q.a, six.r.a);
         let list = [1, 2, 3, 4, 5, 6];
         list = [list[5], list[4], list[3], list[2], list[1], list[0]];
         print(list[0], list[5]);",
        "2 1\n5 2 3\n6 1\n",
    );
}

#[test]
fn references_are_places_of_the_caller() {
    prints(
        "struct Point { x: i64, y: i64 }
         fn swap(a: &i64, b: &i64) { let old = a; a = b; b = old; }
         fn both(a: &[i64; 3], b: &[i64; 3]) { a[0] = 10; b[0] += 5; a[1] = b[0]; }
         fn next(counter: &i64) -> i64 { counter += 1; return counter; }
         fn deep(p: &Point, n: i64) { if n > 0 { p.x += n; deep(&p, n - 1); } }",
        "let p = Point { x: 1, y: 2 };
         swap(&p.x, &p.y);
         print(p.x, p.y);
         let a = [0, 0, 0];
         both(&a, &a);
         let i = 2;
         swap(&a[i], &a[0]);
         print(a[0], a[1], a[2]);
         let n = 0;
         print(n + next(&n) * 10 + next(&n) * 100 + n * 1000);
         a[next(&n) - 3] = n;
         n += next(&n);
         print(a[0], n);
         deep(&p, 4);
         print(p.x);",
        "2 1\n0 15 15\n2210\n3 7\n12\n",
    );
}

#[test]
fn control_flow() {
    prints(
        "fn yes(calls: &i64) -> bool { calls += 1; return true; }
         fn sign(x: i64) -> i64 {
             if x < 0 { return -1; } else if x == 0 { return 0; } else { return 1; }
         }
         fn first_square_above(limit: i64) -> i64 {
             let n = 0;
             while true { n += 1; if n * n > limit { return n; } }
         }
         fn nothing() { return; }",
        "let calls = 0;
         let a = false && yes(&calls);
         let b = true || yes(&calls);
         let c = true && yes(&calls) || yes(&calls);
         print(a, b, c, calls, !a);
         let sum = 0;
         for i in -2..100 {
             if i == 1 { continue; }
             if i == 5 { break; }
             for j in i..i + 3 { if j % 2 == 0 { continue; } sum += 10 * j; }
             sum += i;
         }
         for i in 5..5 { sum = 0; }
         while true { sum += 1; break; }
         print(sum, sign(-5), sign(0), sign(5), first_square_above(50));
         let x = 1;
         { let x = x + 1; x = 5; }
         let x = x as f64 + 0.5;
         print(x);
         nothing();
         print();
         return;
         print(1);",
        "false true true 1 true\n167 -1 0 1 8\n1.5\n\n",
    );
}

#[test]
fn arithmetic() {
    prints(
        "const LEAST = -9223372036854775808;
         const MASK = (1 << 8) - 1;",
        "let least = LEAST;
         print(least - 1, -least, least / 2, least % -1, -7 / 2, -7 % 2);
         let one = 1;
         print(one << 65, LEAST >> 63, 300 & MASK, 5 ^ 1, 4 | 3, abs(-one), min(one, 2), max(one, 2));
         print(1e300 * 1e10 > 1.0, 0.1 + 0.2, 7.0 / 2.0, -0.0, 1e21, sqrt(2.0), floor(-0.5));
         print(2.9 as i64, -2.9 as i64, 1e30 as i64, true as i64, 3 as f64, 1.5 < 2.5, true != false);
         let nan = 0.0 / 0.0;
         print(nan == nan, nan != nan, nan < 1.0, min(1.5, -2.0), abs(-1.5));",
        "9223372036854775807 -9223372036854775808 -4611686018427387904 0 -3 -1\n\
         2 -1 44 4 7 1 1 2\n\
         true 0.30000000000000004 3.5 -0.0 1e21 1.4142135623730951 -1.0\n\
         2 -2 9223372036854775807 1 3.0 true true\n\
         false true false -2.0 1.5\n",
    );
}

/// A program that stops on its way says where, with what it printed before.
#[test]
fn failures_are_clean_errors() {
    for (source, failure) in [
        (
            "fn main() {\n  print(1);\n  let a = [1, 2, 3];\n  let i = 3;\n  print(a[i]);\n}",
            "5:11: the program failed: index 3 is out of bounds for length 3\n  |   print(a[i]);\n  |           ^",
        ),
        (
            "fn f(a: &[i64; 2], i: i64) { a[i] = 1; }\nfn main() { print(1); let a = [0; 2]; f(&a, -1); }",
            "1:32: the program failed: index -1 is out of bounds for length 2",
        ),
        (
            "fn main() { print(1); let z = 0; print(1 / z); }",
            "1:42: the program failed: division by zero",
        ),
        (
            "fn main() { print(1); let z = 0; z %= z; }",
            "the program failed: division by zero",
        ),
        (
            "fn main() { print(1); let z = -1; print((1 << 63) / z); }",
            "1:51: the program failed: the quotient does not fit an i64",
        ),
        (
            "fn f(n: i64) -> i64 { return f(n + 1) + 1; }\nfn main() { print(1); print(f(0)); }",
            "1:4: the program failed: calls are nested too deep for the stack",
        ),
        (
            "struct L { a: [i64; 100000] }\nfn f(l: L) -> L { return f(l); }\n\
             fn main() { print(1); let l = f(L { a: [0; 100000] }); }",
            "2:4: the program failed: calls are nested too deep for the stack",
        ),
    ] {
        let output = run(&["--run", "-"], source);
        let (code, stdout, stderr) = parts(&output);
        assert_eq!((code, stdout), (Some(1), "1\n"), "{source}\n{stderr}");
        assert!(stderr.starts_with("error: <stdin>:"), "{source}\n{stderr}");
        assert!(stderr.contains(failure), "{source}\n{stderr}");
        assert_ne!(compared(source)["failure"], Value::Null, "{source}");
    }
}

#[test]
fn output_without_end_is_stopped() {
    let source = "fn main() { while true { print(1234567890123456789, 1234567890123456789); } }";
    let output = run(&["--run", "-"], source);
    let (code, stdout, stderr) = parts(&output);
    assert_eq!(code, Some(1));
    assert!(stdout.len() < 20 << 20);
    assert!(
        stderr.contains("1:26: the program failed: the program prints more than"),
        "{stderr}"
    );
}

/// The first line of the error of a program that is not one, without `error: <stdin>:`.
fn mistake(source: &str) -> String {
    let shown = &source[..source.len().min(200)];
    let output = run(&["-"], source);
    let (code, stdout, stderr) = parts(&output);
    assert_eq!((code, stdout), (Some(2), ""), "{shown}\n{stderr}");
    let line = stderr.lines().next().unwrap_or_default();
    let told = line.strip_prefix("error: <stdin>:");
    told.unwrap_or_else(|| panic!("{shown}\n{stderr}"))
        .to_string()
}

#[test]
fn mistakes_have_line_and_column() {
    for (source, expected) in [
        // Lexer
        (
            "fn main() {\n  let a = 1 # 2;\n}",
            "2:13: unexpected character `#`",
        ),
        (
            "fn main() { print(\"\"); }",
            "1:19: unexpected character `\\\"`",
        ),
        (
            "fn main() { print(12ab); }",
            "1:21: a letter follows the number `12`",
        ),
        ("fn main() { print(1e); }", "1:19: `1e` is not a number"),
        (
            "fn main() { print(99999999999999999999); }",
            "1:19: the number 99999999999999999999 does not fit an i64",
        ),
        (
            "fn main() { print(9223372036854775808); }",
            "1:19: the number 9223372036854775808 does not fit an i64",
        ),
        // Parser
        ("", "1:1: there is no `fn main()`"),
        (
            "let a = 1;",
            "1:1: expected `fn`, `struct` or `const`, found `let`",
        ),
        (
            "fn main() {\n\tlet a = ;\n}",
            "2:10: expected an expression, found `;`",
        ),
        ("fn main() { print(1) }", "1:22: expected `;`, found `}`"),
        (
            "fn main() {",
            "1:12: expected an expression, found the end of the file",
        ),
        (
            "fn main() { print(1, 2 3); }",
            "1:24: expected `,` or `)`, found `3`",
        ),
        (
            "fn main() { if true print(1); }",
            "1:21: expected `{`, found `print`",
        ),
        (
            "fn main() { let a = []; }",
            "1:21: an array has at least one element",
        ),
        (
            "fn main() { print(1 < 2 < 3); }",
            "1:25: comparisons do not chain: put `&&` between them",
        ),
        ("struct S { a i64 }", "1:14: expected `:`, found `i64`"),
        // Names
        ("fn main() { print(x); }", "1:19: unknown variable `x`"),
        (
            "fn main() { { let x = 1; } print(x); }",
            "1:34: unknown variable `x`",
        ),
        ("fn main() { f(); }", "1:13: unknown function `f`"),
        (
            "fn main() { let a: T = 1; }",
            "1:20: unknown type `T` (a struct is declared above those that hold it)",
        ),
        (
            "struct S { s: S }\nfn main() { }",
            "1:15: unknown type `S` (a struct is declared above those that hold it)",
        ),
        (
            "fn f() { }\nfn f() { }\nfn main() { }",
            "2:4: a second function with the name `f`",
        ),
        ("fn sqrt() { }\nfn main() { }", "1:4: `sqrt` is built in"),
        (
            "struct i64 { a: f64 }\nfn main() { }",
            "1:8: a second type with the name `i64`",
        ),
        (
            "fn f(a: i64, a: i64) { }\nfn main() { }",
            "1:14: a second parameter with the name `a`",
        ),
        (
            "const A = 1;\nconst A = 2;\nfn main() { }",
            "2:7: a second constant with the name `A`",
        ),
        (
            "fn main(a: i64) { }",
            "1:4: `main` takes nothing and returns nothing",
        ),
        // Types
        (
            "fn main() { let a = 1; a = 2.0; }",
            "1:28: expected `i64`, found `f64`",
        ),
        (
            "fn main() { let a: bool = 1; }",
            "1:27: expected `bool`, found `i64`",
        ),
        (
            "fn main() { print(1 + 2.0); }",
            "1:21: `+` of `i64` and `f64`",
        ),
        (
            "fn main() { print(1.0 % 2.0); }",
            "1:23: `%` of `f64` and `f64`",
        ),
        ("fn main() { print(-true); }", "1:19: `-` of `bool`"),
        ("fn main() { print(!1); }", "1:19: `!` of `i64`"),
        (
            "fn main() { if 1 { } }",
            "1:16: expected `bool`, found `i64`",
        ),
        (
            "fn main() { print([1]); }",
            "1:19: `print` of `[i64; 1]`, which is no scalar",
        ),
        (
            "fn main() { print(1 as bool); }",
            "1:24: no cast of `i64` to `bool`",
        ),
        (
            "fn main() { let a = [1, 2.0]; }",
            "1:25: expected `i64`, found `f64`",
        ),
        (
            "fn main() { let a = 1; print(a[0]); }",
            "1:32: index into `i64`",
        ),
        (
            "fn main() { let a = [1]; print(a[0.0]); }",
            "1:34: expected `i64`, found `f64`",
        ),
        (
            "fn main() { let a = 1; print(a.b); }",
            "1:32: `i64` has no field `b`",
        ),
        (
            "struct S { a: i64 }\nfn main() { let s = S { }; }",
            "2:21: no value for `a`",
        ),
        (
            "struct S { a: i64 }\nfn main() { let s = S { a: 1, a: 2 }; }",
            "2:31: a second value for `a`",
        ),
        (
            "struct S { a: i64 }\nfn main() { let s = S { b: 1 }; }",
            "2:25: `S` has no field `b`",
        ),
        (
            "struct S { }\nfn main() { }",
            "1:8: the struct `S` has no fields",
        ),
        (
            "fn f(a: i64) { }\nfn main() { f(); }",
            "2:13: `f` takes 1, not 0",
        ),
        (
            "fn f(a: i64) { }\nfn main() { f(true); }",
            "2:15: expected `i64`, found `bool`",
        ),
        (
            "fn f() { }\nfn main() { print(f()); }",
            "2:19: `f` returns nothing",
        ),
        (
            "fn f() -> i64 { return 1.0; }\nfn main() { }",
            "1:24: expected `i64`, found `f64`",
        ),
        (
            "fn f() -> i64 { return; }\nfn main() { }",
            "1:17: `return` without a `i64`",
        ),
        (
            "fn main() { return 1; }",
            "1:20: this function returns nothing",
        ),
        ("fn main() { print(sqrt(1)); }", "1:24: `sqrt` of `i64`"),
        ("fn main() { print(min(1)); }", "1:19: `min` takes 2, not 1"),
        ("fn main() { print(len(1)); }", "1:23: `len` of `i64`"),
        // Places and control flow
        (
            "fn main() { 1 = 2; }",
            "1:13: this is a value, not a variable or a part of one",
        ),
        ("fn main() { 1 + 2; }", "1:15: the value is not used"),
        (
            "fn main() { for i in 0..9 { i = 1; } }",
            "1:29: `i` belongs to its `for`",
        ),
        (
            "fn f(a: &i64) { }\nfn main() { let x = 1; f(x); }",
            "2:26: `a` is by reference: write `&` here",
        ),
        (
            "fn f(a: i64) { }\nfn main() { let x = 1; f(&x); }",
            "2:26: `a` is not by reference",
        ),
        (
            "fn f(a: &i64) { }\nfn main() { f(&1); }",
            "2:15: this is a value, not a variable or a part of one",
        ),
        (
            "fn main() { print(sqrt(&1.0)); }",
            "1:24: only a parameter declared with `&` takes one",
        ),
        ("fn main() { break; }", "1:13: not in a loop"),
        (
            "fn f(a: i64) -> i64 {\n  if a > 0 { return 1; }\n}\nfn main() { }",
            "3:1: `f` can end without `return`",
        ),
        (
            "fn f() -> i64 { while true { break; } }\nfn main() { }",
            "1:39: `f` can end without `return`",
        ),
        // Constants and sizes
        (
            "fn main() { let a = [1, 2]; print(a[2]); }",
            "1:37: index 2 is out of bounds for length 2",
        ),
        (
            "const N = 0;\nfn main() { let a = [1; N]; }",
            "2:25: an array has at least one element, not 0",
        ),
        (
            "fn main() { let a = [1; 1.0]; }",
            "1:25: the length of an array is an `i64`",
        ),
        (
            "fn main() { let n = 3; let a = [1; n]; }",
            "1:36: unknown variable `n`",
        ),
        ("const A = 1 / 0;\nfn main() { }", "1:13: division by zero"),
        (
            "const A = sqrt(2.0);\nfn main() { }",
            "1:11: this is not a constant",
        ),
        (
            "fn main() { let a = [[0; 100000]; 100000]; }",
            "1:35: the type takes more than 1048576 bytes",
        ),
        (
            "fn main() { let a = [0; 9223372036854775807]; }",
            "1:25: the type takes more than 1048576 bytes",
        ),
    ] {
        assert_eq!(mistake(source), expected, "{source}");
    }
}

#[test]
fn a_mistake_is_shown_with_its_line() {
    let output = run(&["-"], "fn main() {\n\tprint(1 + true);\n}");
    let (_, _, stderr) = parts(&output);
    assert_eq!(
        stderr,
        "error: <stdin>:2:10: `+` of `i64` and `bool`\n  | \tprint(1 + true);\n  | \t        ^\n"
    );
}

#[test]
fn large_frames_are_an_error() {
    let variables = "let a = [0; 131072]; ".repeat(5);
    let source = format!("fn main() {{ {variables} }}");
    assert_eq!(
        mistake(&source),
        "1:4: the variables of `main` take more than 4194304 bytes"
    );
}

#[test]
fn deep_nesting_is_an_error_or_works() {
    let deep = 20_000;
    for source in [
        format!("fn main() {{ print({}", "(".repeat(deep)),
        format!("fn main() {{ print(1{}); }}", " + 1".repeat(deep)),
        format!("fn main() {{ {}", "while true {".repeat(deep)),
        format!("fn main() {{ let a: {}", "[".repeat(deep)),
    ] {
        assert!(mistake(&source).contains("nested more than 200 levels deep"));
    }
    // Below the limit, all stages get through.
    let sum = " + x".repeat(190);
    let brackets = ("(".repeat(95), ")".repeat(95));
    let (open, close) = ("if true { ".repeat(150), "}".repeat(150));
    prints(
        "",
        &format!(
            "let x = 1; print(x{sum}, {}x{}); {open} print(x); {close}",
            brackets.0, brackets.1
        ),
        "191 1\n1\n",
    );
    // Long is not deep.
    let arms = "else if x == 2 { print(2); } ".repeat(500);
    prints(
        "",
        &format!("let x = 1; if x == 3 {{ }} {arms} else {{ print(3); }}"),
        "3\n",
    );
}

#[test]
fn bad_usage_is_exit_code_2() {
    for args in [
        &[][..],
        &["--samples", "x.tin"],
        &["--json", "--stats", "--samples"],
        &["--emit-clif=never", "-"],
        &["--repeat", "0", "--samples"],
        &["no/such/file.tin"],
        &["."],
    ] {
        let output = run(args, "");
        let (code, stdout, stderr) = parts(&output);
        assert_eq!((code, stdout), (Some(2), ""), "{args:?}");
        assert!(stderr.starts_with("error: "), "{args:?}\n{stderr}");
    }
    let help = run(&["--help"], "");
    let (code, stdout, _) = parts(&help);
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("Examples:") && stdout.contains("Exit code"),
        "{stdout}"
    );
}
