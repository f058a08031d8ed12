//! The pass table, and the wrapper that runs, verifies and logs each pass.

use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::verify_function;

use crate::analysis::MemoryAnalysis;
use crate::certificate::Certificate;
use crate::check::{Claims, check, check_frame, check_promotion};
use crate::context::{Context, SlotPasses};
use crate::error::Error;
use crate::fuel::Fuel;
use crate::options::{Options, Pass};
use crate::passes::{PassContext, SlotContext, dse, forward, frame, sroa};
use crate::report::Report;
use crate::view::View;

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
        pass: Pass::Sroa,
        after: &[],
        reason: "what becomes values needs no analysis of memory",
    },
    Row {
        pass: Pass::Forward,
        after: &[Pass::Sroa],
        reason: "loads that are gone observe no store",
    },
    Row {
        pass: Pass::Dse,
        after: &[Pass::Forward],
        reason: "a store is dead once its readers are gone",
    },
    Row {
        pass: Pass::Frame,
        after: &[Pass::Sroa, Pass::Forward, Pass::Dse],
        reason: "slots that share bytes are one slot to the others, and slots without accesses go",
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
    report.stats.view_loads = u64::from(view.num_loads());
    report.stats.view_stores = u64::from(view.num_stores());
    let promotes = options.passes.contains(&Pass::Sroa) && !func.sized_stack_slots.is_empty();
    let frames = options.passes.contains(&Pass::Frame) && !func.sized_stack_slots.is_empty();
    if !promotes && !frames && !is_worthwhile(func, view) {
        return Ok(report);
    }
    context.analysis.flow.compute(func);
    let mut run = Run {
        original: None,
        certificates: Vec::new(),
        func,
        isa,
        options,
        context,
        fuel,
        report,
    };
    if promotes {
        run.promote()?;
    }
    run.forward_and_dse()?;
    if frames {
        run.frame()?;
    }
    Ok(run.report)
}

/// Whether any pass on MemorySSA can do anything: a load needs a source, a store an overwrite or a
/// slot.
fn is_worthwhile(func: &Function, view: &View) -> bool {
    let (loads, stores) = (view.num_loads(), view.num_stores());
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
    /// Scalar replacement, which comes before there is MemorySSA.
    fn promote(&mut self) -> Result<(), Error> {
        for _ in 0..sroa::ROUNDS_MAX {
            let before = self.options.check.then(|| self.func.clone());
            let order = self.isa.endianness();
            let round = self.on_slots(|cx, storage| sroa::run_round(cx, order, &mut storage.sroa));
            let Some(promotion) = round.promotion else {
                break;
            };
            self.report.changed = true;
            self.context
                .analysis
                .view
                .scan(self.func, self.isa.endianness(), self.options);
            if self.options.verify {
                self.verify_function(Pass::Sroa)?;
            }
            if let Some(before) = &before {
                let outside = self.outside(before);
                check_promotion(before, self.func, order, &outside, &promotion)
                    .map_err(|message| Error::Unproven { message })?;
            }
            if !round.again {
                break;
            }
        }
        Ok(())
    }

    /// The passes on MemorySSA.
    fn forward_and_dse(&mut self) -> Result<(), Error> {
        if !is_worthwhile(self.func, &self.context.analysis.view) {
            return Ok(());
        }
        self.context.analysis.analyze(self.func, self.options);
        let ssa = &self.context.analysis.ssa;
        self.report.stats.memssa_defs = u64::from(ssa.num_defs());
        self.report.stats.memssa_phis = u64::from(ssa.num_phis());
        self.original = self.options.check.then(|| self.func.clone());
        let own_stage = |pass: Pass| matches!(pass, Pass::Sroa | Pass::Frame);
        for row in TABLE.iter().filter(|row| !own_stage(row.pass)) {
            if self.options.passes.contains(&row.pass) {
                self.pass(row.pass)?;
            }
        }
        self.check()?;
        let counts = self.context.analysis.walk_counts();
        self.report.stats.memssa_walks = counts.walks;
        self.report.stats.memssa_walk_steps = counts.steps;
        self.report.stats.memssa_walks_exhausted = counts.exhausted;
        Ok(())
    }

    /// Smaller frames, once no analysis of memory is needed any more.
    fn frame(&mut self) -> Result<(), Error> {
        let before = self.options.check.then(|| self.func.clone());
        if !self.on_slots(|cx, storage| frame::run(cx, &mut storage.frame)) {
            return Ok(());
        }
        self.report.changed = true;
        if self.options.verify {
            self.verify_function(Pass::Frame)?;
        }
        if let Some(before) = &before {
            let outside = self.outside(before);
            check_frame(before, self.func, &outside)
                .map_err(|message| Error::Unproven { message })?;
        }
        Ok(())
    }

    /// Runs a pass on stack slots.
    fn on_slots<T>(&mut self, pass: impl FnOnce(&mut SlotContext<'_>, &mut SlotPasses) -> T) -> T {
        let mut cx = SlotContext {
            func: self.func,
            flow: &self.context.analysis.flow,
            view: &self.context.analysis.view,
            fuel: self.fuel,
            options: self.options,
            stats: &mut self.report.stats,
            remarks: &mut self.report.remarks,
        };
        pass(&mut cx, &mut self.context.slots)
    }

    fn pass(&mut self, pass: Pass) -> Result<(), Error> {
        let Context {
            analysis,
            forward,
            dse,
            slots: _,
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
            Pass::Sroa | Pass::Frame => false,
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
        self.verify_function(pass)?;
        let verified = self.context.analysis.verify(self.func);
        verified.map_err(|error| Error::Verifier {
            pass: pass.to_string(),
            message: error.to_string(),
        })
    }

    fn verify_function(&self, pass: Pass) -> Result<(), Error> {
        verify_function(self.func, self.isa).map_err(|errors| Error::Verifier {
            pass: pass.to_string(),
            message: errors.to_string(),
        })
    }

    /// Which regions change from outside.
    fn outside(&self, func: &Function) -> Vec<bool> {
        let regions = func.dfg.alias_regions.iter();
        let is_outside = |region| {
            let mut names = self.options.outside_regions.iter();
            names.any(|name| name.matches(region))
        };
        regions.map(|(_, region)| is_outside(region)).collect()
    }

    fn check(&self) -> Result<(), Error> {
        let Some(original) = &self.original else {
            return Ok(());
        };
        let outside = self.outside(original);
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
