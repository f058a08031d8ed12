//! The examples run, and show what they are there to show.

use std::process::Command;

/// What follows `prefix` in each line that starts with it.
fn values<'a>(stdout: &'a str, prefix: &str) -> Vec<&'a str> {
    stdout
        .lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .map(str::trim)
        .collect()
}

/// `6 before, 2 after`, as two numbers.
fn before_and_after(text: &str) -> (u32, u32) {
    let number = |part: &str, suffix: &str| {
        let number = part.trim().strip_suffix(suffix);
        number.and_then(|number| number.trim().parse().ok())
    };
    text.split_once(',')
        .and_then(|(before, after)| Some((number(before, "before")?, number(after, "after")?)))
        .unwrap_or_else(|| panic!("not two counts: {text}"))
}

#[test]
fn jit_minimal() {
    let output = Command::new(env!("CARGO_BIN_EXE_jit_minimal"))
        .output()
        .expect("the example starts");
    let stdout = String::from_utf8(output.stdout).expect("the output is text");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let shown = format!("--- stdout\n{stdout}--- stderr\n{stderr}");
    assert!(output.status.success(), "{}\n{shown}", output.status);

    // Worked out by hand from the source in the example: 1000 and 30; 1000, 500 and the bonus of 5.
    for (amount, result) in [
        (
            30,
            "(1030, Account { balance: 1030, deposits: 4, last: 30 })",
        ),
        (
            500,
            "(1505, Account { balance: 1505, deposits: 4, last: 505 })",
        ),
    ] {
        for wrapper in ["without", "with"] {
            let prefix = format!("deposit({amount}) {wrapper} wrapper:");
            assert_eq!(values(&stdout, &prefix), [result], "{prefix}\n{shown}");
        }
    }

    for what in ["loads:", "stores:"] {
        let counts = values(&stdout, what);
        assert_eq!(counts.len(), 1, "{what}\n{shown}");
        let (before, after) = before_and_after(counts[0]);
        assert!(after < before, "{what} {}\n{shown}", counts[0]);
    }
}
