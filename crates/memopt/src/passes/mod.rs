//! The passes, one file each. A pass imports no other pass.

pub(crate) mod dse;
pub(crate) mod forward;
pub(crate) mod frame;
pub(crate) mod sroa;

use cranelift_codegen::ir::{Function, Inst, StackSlot};

use crate::certificate::Certificate;
use crate::flow::Flow;
use crate::fuel::Fuel;
use crate::memssa::{MemorySsa, WalkContext, Walker};
use crate::options::{Options, Pass};
use crate::remarks::{Action, Remark};
use crate::rewrite::{Outcome, Rewriter};
use crate::stats::Stats;
use crate::view::View;

/// What a pass works on.
pub(crate) struct PassContext<'a> {
    pub(crate) func: &'a mut Function,
    pub(crate) flow: &'a Flow,
    pub(crate) view: &'a mut View,
    pub(crate) ssa: &'a mut MemorySsa,
    pub(crate) walker: &'a mut Walker,
    pub(crate) fuel: &'a mut Fuel,
    pub(crate) options: &'a Options,
    pub(crate) stats: &'a mut Stats,
    pub(crate) remarks: &'a mut Vec<Remark>,
    /// Where claims go, if they are to be checked.
    pub(crate) certificates: Option<&'a mut Vec<Certificate>>,
}

/// What a pass on stack slots works on. It needs no MemorySSA.
pub(crate) struct SlotContext<'a> {
    pub(crate) func: &'a mut Function,
    pub(crate) flow: &'a Flow,
    pub(crate) view: &'a View,
    pub(crate) fuel: &'a mut Fuel,
    pub(crate) options: &'a Options,
    pub(crate) stats: &'a mut Stats,
    pub(crate) remarks: &'a mut Vec<Remark>,
}

impl SlotContext<'_> {
    /// Logs what became of a slot, and makes a remark of it if the options want remarks.
    pub(crate) fn note(
        &mut self,
        pass: Pass,
        slot: StackSlot,
        action: Action,
        inst: Option<Inst>,
        reason: &'static str,
    ) {
        if wants_remarks(self.options) {
            let remark = Remark::of_slot(self.func, pass, action, slot, reason, inst);
            publish(self.options, self.remarks, remark);
        }
    }
}

/// Whether anybody reads remarks.
fn wants_remarks(options: &Options) -> bool {
    options.remarks || log::log_enabled!(log::Level::Debug)
}

fn publish(options: &Options, remarks: &mut Vec<Remark>, remark: Remark) {
    log::debug!("{remark}");
    if options.remarks {
        remarks.push(remark);
    }
}

impl PassContext<'_> {
    pub(crate) fn walk(&mut self) -> (WalkContext<'_>, &mut Walker) {
        let cx = WalkContext {
            func: self.func,
            flow: self.flow,
            view: self.view,
            ssa: self.ssa,
        };
        (cx, self.walker)
    }

    pub(crate) fn rewriter(&mut self) -> Rewriter<'_> {
        Rewriter {
            func: self.func,
            view: self.view,
            ssa: self.ssa,
            fuel: self.fuel,
            certificates: self.certificates.as_deref_mut(),
        }
    }

    /// Whether anybody reads what [`PassContext::note`] says.
    pub(crate) fn wants_remarks(&self) -> bool {
        wants_remarks(self.options)
    }

    /// Does a rewrite that removes `inst`, or not; the remark says which.
    pub(crate) fn remove(
        &mut self,
        pass: Pass,
        inst: Inst,
        reason: &'static str,
        other: Option<Inst>,
        rewrite: impl FnOnce(&mut Rewriter<'_>) -> Outcome,
    ) -> Outcome {
        // The text is that of the instruction before it is removed.
        let remark = self
            .wants_remarks()
            .then(|| Remark::new(self.func, pass, Action::Removed, inst, reason, other));
        let outcome = rewrite(&mut self.rewriter());
        let kept = match outcome {
            Outcome::Done => None,
            Outcome::OutOfFuel => Some("out of fuel"),
            Outcome::FlagsFull => Some("no room for the flags of the access that survives"),
        };
        if let Some(remark) = remark {
            self.publish(match kept {
                None => remark,
                Some(reason) => Remark {
                    action: Action::Kept,
                    reason,
                    other: None,
                    ..remark
                },
            });
        }
        self.stats.rewrite_out_of_fuel += u64::from(outcome == Outcome::OutOfFuel);
        outcome
    }

    /// Logs the decision, and makes a remark of it if the options want remarks.
    pub(crate) fn note(
        &mut self,
        pass: Pass,
        action: Action,
        inst: Inst,
        reason: &'static str,
        other: Option<Inst>,
    ) {
        if !self.wants_remarks() {
            return;
        }
        self.publish(Remark::new(self.func, pass, action, inst, reason, other));
    }

    fn publish(&mut self, remark: Remark) {
        publish(self.options, self.remarks, remark);
    }
}
