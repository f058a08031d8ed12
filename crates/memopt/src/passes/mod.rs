//! The passes, one file each. A pass imports no other pass.

pub(crate) mod dse;
pub(crate) mod forward;

use cranelift_codegen::ir::{Function, Inst};

use crate::flow::Flow;
use crate::fuel::Fuel;
use crate::memssa::{MemorySsa, WalkContext, Walker};
use crate::options::{Options, Pass};
use crate::remarks::{Action, Remark};
use crate::rewrite::Rewriter;
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
        }
    }

    /// Whether anybody reads what [`PassContext::note`] says.
    pub(crate) fn wants_remarks(&self) -> bool {
        self.options.remarks || log::log_enabled!(log::Level::Debug)
    }

    /// Logs the decision, and makes a remark of it if the options want remarks. Called before the
    /// instruction is removed.
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
        let remark = Remark::new(self.func, pass, action, inst, reason, other);
        log::debug!("{remark}");
        if self.options.remarks {
            self.remarks.push(remark);
        }
    }
}
