//! Many cases on several threads. Case `i` of a campaign has the seed `seed + i`, whatever the number
//! of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::case::Case;
use crate::generate::{Config, case_of_seed};
use crate::oracle::{Finding, Oracle, Setup, check_all, guarded};
use crate::shape::Tally;

/// What a campaign runs.
#[derive(Clone)]
pub struct Campaign {
    /// The seed of the first case.
    pub seed: u64,
    /// How many cases.
    pub cases: u64,
    /// Threads; at least one is used.
    pub threads: usize,
    /// How large the cases are.
    pub config: Config,
    /// Stop when so many cases have failed; those that other threads are at still come to an end.
    pub failures_max: usize,
}

/// A case that some oracle objects to.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// What a campaign found.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases that were run.
    pub cases: u64,
    /// Functions in them.
    pub functions: u64,
    /// Shapes and statistics.
    pub tally: Tally,
    /// Cases that failed, by seed.
    pub failures: Vec<Failure>,
}

/// Runs a campaign. `progress` is called after each case with the number of cases done so far and,
/// if it failed, the failure.
pub fn run_campaign(
    campaign: &Campaign,
    setup: &Setup,
    progress: &(dyn Fn(u64, Option<&Failure>) + Sync),
) -> Summary {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed = AtomicUsize::new(0);
    let summary = Mutex::new(Summary::default());
    let work = || {
        let mut own = Summary::default();
        while failed.load(Ordering::Relaxed) < campaign.failures_max {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= campaign.cases {
                break;
            }
            let failure = run_case(campaign, setup, index, &mut own);
            failed.fetch_add(usize::from(failure.is_some()), Ordering::Relaxed);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(done, failure.as_ref());
            own.failures.extend(failure);
        }
        if let Ok(mut all) = summary.lock() {
            all.merge(own);
        }
    };
    thread::scope(|scope| {
        for _ in 1..campaign.threads {
            scope.spawn(work);
        }
        work();
    });
    let mut summary = summary.into_inner().unwrap_or_default();
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}

fn run_case(campaign: &Campaign, setup: &Setup, index: u64, own: &mut Summary) -> Option<Failure> {
    let seed = campaign.seed.wrapping_add(index);
    let generated: Result<Case, Finding> = guarded(Oracle::Generator, || {
        Ok(case_of_seed(seed, &campaign.config))
    });
    own.cases += 1;
    let findings = match generated {
        Ok(case) => {
            own.functions += case.functions.len() as u64;
            own.tally.add_shape(&case.shape);
            check_all(&case, setup, &mut own.tally)
        }
        Err(finding) => vec![finding],
    };
    (!findings.is_empty()).then_some(Failure { seed, findings })
}

impl Summary {
    fn merge(&mut self, other: Summary) {
        self.cases += other.cases;
        self.functions += other.functions;
        self.tally.add(&other.tally);
        self.failures.extend(other.failures);
    }
}
