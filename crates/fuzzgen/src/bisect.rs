//! Which rewrite is at fault: the smallest fuel that shows a difference.

use std::collections::BTreeSet;

use clif_memopt_filetest::exec::{Verdict, compare};
use cranelift_codegen::ir::Function;
use cranelift_memopt::{Action, Optimizer};

use crate::case::Case;
use crate::oracle::Setup;

/// The first rewrite that makes a case differ.
#[derive(Clone, Debug)]
pub struct BadRewrite {
    /// The smallest fuel that shows the difference.
    pub fuel: u64,
    /// The remarks that are new with this fuel: the rewrite.
    pub remarks: Vec<String>,
    /// How the runs differ.
    pub difference: String,
}

/// Searches for the smallest fuel with which optimized and original functions differ when run. None
/// if they do not differ, or only without a bound.
pub fn first_bad_fuel(case: &Case, setup: &Setup) -> Option<BadRewrite> {
    difference(case, setup, None)?;
    // Rewrites are few, but do not only add up: a search in steps finds the first.
    let most = case.num_insts() as u64 * 2;
    let fuel = (1..=most).find(|&fuel| difference(case, setup, Some(fuel)).is_some())?;
    let before = removals(case, setup, fuel - 1);
    let remarks = removals(case, setup, fuel);
    Some(BadRewrite {
        fuel,
        remarks: remarks.difference(&before).cloned().collect(),
        difference: difference(case, setup, Some(fuel))?,
    })
}

fn optimize(case: &Case, setup: &Setup, fuel: Option<u64>) -> Option<Vec<(Function, Vec<String>)>> {
    let mut options = setup.options.clone();
    options.fuel = fuel;
    options.remarks = true;
    let mut optimizer = Optimizer::new(options);
    case.functions
        .iter()
        .map(|function| {
            let mut function = function.clone();
            let report = optimizer.optimize(&mut function, &*setup.isa).ok()?;
            function.dfg.resolve_all_aliases();
            let removed = report
                .remarks
                .iter()
                .filter(|remark| remark.action == Action::Removed);
            let name = function.name.clone();
            let texts = removed.map(|remark| format!("{name}: {remark}")).collect();
            Some((function, texts))
        })
        .collect()
}

fn difference(case: &Case, setup: &Setup, fuel: Option<u64>) -> Option<String> {
    let optimized = optimize(case, setup, fuel)?;
    let optimized: Vec<Function> = optimized
        .into_iter()
        .map(|(function, _)| function)
        .collect();
    let isa = if case.mixed_tags {
        &setup.plain_isa
    } else {
        &setup.isa
    };
    let results = compare(&case.functions, &optimized, &case.invocations, isa).ok()?;
    results.iter().find_map(|result| match &result.verdict {
        Verdict::Different { detail } => Some(format!("{}: {detail}", result.text)),
        _ => None,
    })
}

fn removals(case: &Case, setup: &Setup, fuel: u64) -> BTreeSet<String> {
    let optimized = optimize(case, setup, Some(fuel)).unwrap_or_default();
    optimized
        .into_iter()
        .flat_map(|(_, remarks)| remarks)
        .collect()
}
