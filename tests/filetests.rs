//! Every `.clif` file under `filetests`, as a test of its own.
//!
//! `MEMOPT_BLESS=1` rewrites precise output. With `CI` set, missing tools for aarch64 are a failure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clif_memopt_filetest::{Outcome, RunnerSettings, run_file};
use libtest_mimic::{Arguments, Completion, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let settings = RunnerSettings {
        bless: is_set("MEMOPT_BLESS"),
        require_aarch64: is_set("CI"),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../filetests");
    let root = root.canonicalize().unwrap_or(root);
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    paths.sort();
    if paths.is_empty() {
        eprintln!("no filetests under {}", root.display());
        return ExitCode::FAILURE;
    }
    let trials = paths
        .into_iter()
        .map(|path| trial(&root, path, &settings))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, paths);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "clif")
        {
            paths.push(path);
        }
    }
}

fn trial(root: &Path, path: PathBuf, settings: &RunnerSettings) -> Trial {
    let relative = path.strip_prefix(root).unwrap_or(&path).with_extension("");
    let name = relative.to_string_lossy().replace('\\', "/");
    let settings = settings.clone();
    Trial::ignorable_test(name, move || match run_file(&path, &settings) {
        Ok(Outcome::Passed | Outcome::Blessed) => Ok(Completion::Completed),
        Ok(Outcome::Ignored { reason }) => Ok(Completion::ignored_with(reason)),
        Err(error) => Err(format!("{error:#}").into()),
    })
}
