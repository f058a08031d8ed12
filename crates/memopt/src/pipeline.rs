//! The pass table, and the wrapper that runs, verifies and logs each pass.

use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::verify_function;

use crate::analysis::MemoryAnalysis;
use crate::context::Context;
use crate::error::Error;
use crate::fuel::Fuel;
use crate::options::{Options, Pass};
use crate::passes::{PassContext, dse, forward};
use crate::report::Report;

/// A row of the pass table.
struct Row {
    pass: Pass,
    /// Passes that must not come later.
    after: &'static [Pass],
    /// Why it has its place.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "read by people and by the test")
    )]
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
    for row in TABLE {
        debug_assert!(row.after.iter().all(|&before| before != row.pass));
        if options.passes.contains(&row.pass) {
            run_pass(func, isa, options, context, fuel, &mut report, row.pass)?;
        }
    }
    let counts = context.analysis.walk_counts();
    report.stats.memssa_walks = counts.walks;
    report.stats.memssa_walk_steps = counts.steps;
    report.stats.memssa_walks_exhausted = counts.exhausted;
    Ok(report)
}

/// Whether any pass can do anything: a load needs a source, a store an overwrite or a slot.
fn is_worthwhile(func: &Function, loads: u32, stores: u32) -> bool {
    loads + stores >= 2 || (stores > 0 && !func.sized_stack_slots.is_empty())
}

fn is_untouched(func: &Function, options: &Options) -> bool {
    !options.untouched_functions.is_empty()
        && options.untouched_functions.contains(&func.name.to_string())
}

fn run_pass(
    func: &mut Function,
    isa: &dyn TargetIsa,
    options: &Options,
    context: &mut Context,
    fuel: &mut Fuel,
    report: &mut Report,
    pass: Pass,
) -> Result<(), Error> {
    let Context {
        analysis,
        forward,
        dse,
    } = context;
    let MemoryAnalysis {
        flow,
        view,
        ssa,
        walker,
    } = analysis;
    let mut cx = PassContext {
        func,
        flow,
        view,
        ssa,
        walker,
        fuel,
        options,
        stats: &mut report.stats,
        remarks: &mut report.remarks,
    };
    let changed = match pass {
        Pass::Forward => forward::run(&mut cx, forward),
        Pass::Dse => dse::run(&mut cx, dse),
    };
    report.changed |= changed;
    if changed && options.verify {
        verify(func, isa, context, pass)?;
    }
    Ok(())
}

fn verify(
    func: &Function,
    isa: &dyn TargetIsa,
    context: &mut Context,
    pass: Pass,
) -> Result<(), Error> {
    let failed = |message: String| Error::Verifier {
        pass: pass.to_string(),
        message,
    };
    verify_function(func, isa).map_err(|errors| failed(errors.to_string()))?;
    let verified = context.analysis.verify(func);
    verified.map_err(|error| failed(error.to_string()))
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
