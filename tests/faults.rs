//! Plants each fault of `cranelift_memopt::faults` in turn and runs the filetests: one of them must
//! fail. Prints the first that does. The one that `docs/testing.md` names for a fault goes first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use clif_memopt_filetest::{Outcome, RunnerSettings, run_file};
use cranelift_memopt::faults::{Fault, plant};

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory)
        .expect("a folder of filetests")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|ext| ext == "clif") {
            paths.push(path);
        }
    }
}

/// A panic is a failure like any other.
fn fails(path: &Path, settings: &RunnerSettings) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| run_file(path, settings)));
    !matches!(outcome, Ok(Ok(Outcome::Passed | Outcome::Ignored { .. })))
}

/// The row of a fault in the table of the documentation, up to the test.
fn row(fault: Fault) -> String {
    format!("| `{}` | {} |", fault.name(), fault.breaks())
}

/// The test that the documentation names for a fault.
fn documented(docs: &str, fault: Fault, root: &Path) -> Option<PathBuf> {
    let (_, rest) = docs.split_once(&row(fault))?;
    let name = rest.lines().next()?.split('`').nth(1)?;
    Some(root.join(name).with_extension("clif"))
}

fn main() {
    // Faults break invariants: their panics are expected, and only counted.
    std::panic::set_hook(Box::new(|_| {}));
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../filetests");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    paths.sort();
    let settings = RunnerSettings {
        bless: false,
        require_aarch64: false,
    };
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testing.md");
    let docs = std::fs::read_to_string(docs).expect("docs/testing.md is there");
    let (mut caught, mut missed) = (0, 0);
    for &fault in Fault::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == fault.name()) {
            continue;
        }
        let first = documented(&docs, fault, &root);
        plant(Some(fault));
        let catcher = first
            .iter()
            .chain(&paths)
            .find(|path| path.is_file() && fails(path, &settings));
        plant(None);
        match catcher {
            Some(path) => {
                caught += 1;
                let path = path.strip_prefix(&root).unwrap_or(path);
                println!("{:24} caught by {}", fault.name(), path.display());
            }
            None => {
                missed += 1;
                println!("{:24} MISSED: {}", fault.name(), fault.breaks());
            }
        }
    }
    for &fault in Fault::ALL {
        if !docs.contains(&row(fault)) {
            missed += 1;
            println!("{:24} is not listed in docs/testing.md", fault.name());
        }
    }
    println!("{caught} passed, {missed} failed");
    if missed > 0 {
        std::process::exit(1);
    }
}
