//! Runs a campaign: `memopt-campaign SEED CASES THREADS`. Failures go to standard error as they are
//! found, the tally to standard output at the end. `memopt-campaign show SEED` prints a case and what
//! is found in it, `memopt-campaign reduce SEED` a smaller one that fails in the same way.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clif_memopt_fuzzgen::{
    Campaign, Case, Config, Failure, Finding, Setup, case_of_seed, check_all, first_bad_fuel,
    reduce, run_campaign,
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> Result<u64> {
        let text = arguments
            .get(at)
            .context("SEED CASES THREADS, show SEED, reduce SEED")?;
        Ok(text.parse()?)
    };
    let setup = Setup::new("x86_64")?;
    match arguments.first().map(String::as_str) {
        Some("show") => show(&case_of_seed(number(1)?, &Config::default()), &setup),
        Some("reduce") => shrink(&case_of_seed(number(1)?, &Config::default()), &setup)?,
        _ => campaign(number(0)?, number(1)?, number(2)? as usize, &setup),
    }
    Ok(())
}

fn show(case: &Case, setup: &Setup) {
    println!("{case}");
    for finding in check_all(case, setup, &mut Default::default()) {
        println!(";; {finding}");
    }
}

/// Whether a case fails as another one did: the same oracle and the same kind of message.
fn same_kind(finding: &Finding, other: &Finding) -> bool {
    let kind = |finding: &Finding| {
        let text = &finding.message;
        let panics = text.starts_with("panic");
        let known = ["memory differs", "clobber", "Missing", "trap", "returned"];
        let word = known.iter().position(|word| text.contains(word));
        (panics, word)
    };
    finding.oracle == other.oracle && kind(finding) == kind(other)
}

fn shrink(case: &Case, setup: &Setup) -> Result<()> {
    let findings = check_all(case, setup, &mut Default::default());
    let Some(first) = findings.into_iter().next() else {
        bail!("nothing is found in this case");
    };
    std::panic::set_hook(Box::new(|_| {}));
    let fails = |case: &Case| {
        let findings = check_all(case, setup, &mut Default::default());
        findings
            .first()
            .is_some_and(|finding| same_kind(finding, &first))
    };
    let small = reduce(case, &*setup.isa, &fails);
    show(&small, setup);
    if let Some(bad) = first_bad_fuel(&small, setup) {
        println!(
            ";; fuel {}: {:?}: {}",
            bad.fuel, bad.remarks, bad.difference
        );
    }
    Ok(())
}

fn campaign(seed: u64, cases: u64, threads: usize, setup: &Setup) {
    std::panic::set_hook(Box::new(|_| {}));
    let campaign = Campaign {
        seed,
        cases,
        threads,
        config: Config::default(),
        failures_max: 10_000,
    };
    let start = Instant::now();
    let progress = |done: u64, failure: Option<&Failure>| {
        if let Some(failure) = failure {
            for finding in &failure.findings {
                eprintln!("{done}: seed {}: {finding}", failure.seed);
            }
        }
    };
    let summary = run_campaign(&campaign, setup, &progress);
    let seconds = start.elapsed().as_secs_f64();
    print!("{}", summary.tally);
    println!(
        "{} cases, {} functions, {:.0} functions/s, {} failures",
        summary.cases,
        summary.functions,
        summary.functions as f64 / seconds,
        summary.failures.len()
    );
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for finding in summary
        .failures
        .iter()
        .flat_map(|failure| &failure.findings)
    {
        *kinds.entry(finding.oracle.to_string()).or_default() += 1;
    }
    println!("{kinds:?}");
}
