//! The pass table, and the wrapper that runs, verifies and logs each pass.

use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::verify_function;

use crate::analysis::MemoryAnalysis;
use crate::certificate::Certificate;
use crate::check::{Claims, check};
use crate::context::Context;
use crate::error::Error;
use crate::fuel::Fuel;
use crate::options::{Options, Pass};
use crate::passes::{PassContext, dse, forward};
use crate::report::Report;

/// A row of the pass table.
struct Row {
    pass: Pass,
    /// Passes that must come before it.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the test"))]
    after: &'static [Pass],
    /// Why it has its place.
    #[cfg_attr(not(test), expect(dead_code, reason = "for people and the test"))]
    reason: &'static str,
}

/// The pipeline.
const TABLE: &[Row] = &[
    Row {
        pass: Pass::Forward,
        after: &[],
        reason: "loads that are gone observe no store",
    },
    Row {
        pass: Pass::Dse,
        after: &[Pass::Forward],
        reason: "a store is dead once its readers are gone",
    },
];

/// Runs the passes that the options name on `func`.
pub(crate) fn run(
    func: &mut Function,
    isa: &dyn TargetIsa,
    options: &Options,
    context: &mut Context,
    fuel: &mut Fuel,
) -> Result<Report, Error> {
    let mut report = Report::default();
    if is_untouched(func, options) {
        return Ok(report);
    }
    let view = &mut context.analysis.view;
    view.scan(func, isa.endianness(), options);
    let (loads, stores) = (view.num_loads(), view.num_stores());
    report.stats.view_loads = u64::from(loads);
    report.stats.view_stores = u64::from(stores);
    if !is_worthwhile(func, loads, stores) {
        return Ok(report);
    }
    context.analysis.analyze(func, options);
    report.stats.memssa_defs = u64::from(context.analysis.ssa.num_defs());
    report.stats.memssa_phis = u64::from(context.analysis.ssa.num_phis());
    let mut run = Run {
        original: options.check.then(|| func.clone()),
        certificates: Vec::new(),
        func,
        isa,
        options,
        context,
        fuel,
        report,
    };
    for row in TABLE {
        if options.passes.contains(&row.pass) {
            run.pass(row.pass)?;
        }
    }
    run.check()?;
    let counts = run.context.analysis.walk_counts();
    run.report.stats.memssa_walks = counts.walks;
    run.report.stats.memssa_walk_steps = counts.steps;
    run.report.stats.memssa_walks_exhausted = counts.exhausted;
    Ok(run.report)
}

/// Whether any pass can do anything: a load needs a source, a store an overwrite or a slot.
fn is_worthwhile(func: &Function, loads: u32, stores: u32) -> bool {
    loads + stores >= 2 || (stores > 0 && !func.sized_stack_slots.is_empty())
}

fn is_untouched(func: &Function, options: &Options) -> bool {
    !options.untouched_functions.is_empty()
        && options.untouched_functions.contains(&func.name.to_string())
}

/// One function on its way through the pipeline.
struct Run<'a> {
    func: &'a mut Function,
    isa: &'a dyn TargetIsa,
    options: &'a Options,
    context: &'a mut Context,
    fuel: &'a mut Fuel,
    report: Report,
    /// The function as it came, if rewrites are to be checked.
    original: Option<Function>,
    certificates: Vec<Certificate>,
}

impl Run<'_> {
    fn pass(&mut self, pass: Pass) -> Result<(), Error> {
        let Context {
            analysis,
            forward,
            dse,
        } = &mut *self.context;
        let MemoryAnalysis {
            flow,
            view,
            ssa,
            walker,
        } = analysis;
        let mut cx = PassContext {
            func: self.func,
            flow,
            view,
            ssa,
            walker,
            fuel: self.fuel,
            options: self.options,
            stats: &mut self.report.stats,
            remarks: &mut self.report.remarks,
            certificates: self.options.check.then_some(&mut self.certificates),
        };
        let changed = match pass {
            Pass::Forward => forward::run(&mut cx, forward),
            Pass::Dse => dse::run(&mut cx, dse),
        };
        self.report.changed |= changed;
        if changed && self.options.verify {
            self.verify(pass)?;
        }
        Ok(())
    }

    fn verify(&mut self, pass: Pass) -> Result<(), Error> {
        let failed = |message: String| Error::Verifier {
            pass: pass.to_string(),
            message,
        };
        verify_function(self.func, self.isa).map_err(|errors| failed(errors.to_string()))?;
        let verified = self.context.analysis.verify(self.func);
        verified.map_err(|error| failed(error.to_string()))
    }

    fn check(&self) -> Result<(), Error> {
        let Some(original) = &self.original else {
            return Ok(());
        };
        let outside: Vec<bool> = original
            .dfg
            .alias_regions
            .iter()
            .map(|(_, region)| {
                let mut names = self.options.outside_regions.iter();
                names.any(|name| name.matches(region))
            })
            .collect();
        let claims = Claims {
            certificates: &self.certificates,
            endianness: self.isa.endianness(),
            outside: &outside,
            untouched_slot_keys: &self.options.untouched_slot_keys,
        };
        check(original, self.func, &claims).map_err(|message| Error::Unproven { message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_keeps_its_own_order() {
        let order: Vec<Pass> = TABLE.iter().map(|row| row.pass).collect();
        assert_eq!(order, Pass::ALL, "Pass::ALL is in pipeline order");
        for (index, row) in TABLE.iter().enumerate() {
            assert!(!row.reason.is_empty());
            for before in row.after {
                let at = order.iter().position(|pass| pass == before);
                assert!(
                    at.is_some_and(|at| at < index),
                    "{} after {before}",
                    row.pass
                );
            }
        }
    }
}
