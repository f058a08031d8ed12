//! Why an access went or stayed.

use std::fmt;

use cranelift_codegen::ir::{Block, Function, Inst, SourceLoc};

use crate::options::Pass;

/// Whether an access went or stayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The access is gone.
    Removed,
    /// The access stays.
    Kept,
}

/// What a pass did with one access, and why.
///
/// Printed as `dse: keep inst7 (store v1, v2) in block0: L3 observed by inst9 (return)`.
#[derive(Clone, Debug)]
pub struct Remark {
    /// The pass.
    pub pass: Pass,
    /// What it did.
    pub action: Action,
    /// The access.
    pub inst: Inst,
    /// Its block.
    pub block: Option<Block>,
    /// Its text.
    pub text: String,
    /// The reason, with the label of the pass's legality condition.
    pub reason: &'static str,
    /// The instruction that blocks the rewrite, or from which the value comes.
    pub other: Option<(Inst, String)>,
    /// Where the access comes from.
    pub srcloc: SourceLoc,
}

impl Remark {
    pub(crate) fn new(
        func: &Function,
        pass: Pass,
        action: Action,
        inst: Inst,
        reason: &'static str,
        other: Option<Inst>,
    ) -> Remark {
        let text = |inst: Inst| func.dfg.display_inst(inst).to_string();
        Remark {
            pass,
            action,
            inst,
            block: func.layout.inst_block(inst),
            text: text(inst),
            reason,
            other: other.map(|other| (other, text(other))),
            srcloc: func.srcloc(inst),
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Removed => "remove",
            Action::Kept => "keep",
        };
        write!(f, "{}: {action} {} ({})", self.pass, self.inst, self.text)?;
        if let Some(block) = self.block {
            write!(f, " in {block}")?;
        }
        if !self.srcloc.is_default() {
            write!(f, " at {}", self.srcloc)?;
        }
        write!(f, ": {}", self.reason)?;
        if let Some((other, text)) = &self.other {
            write!(f, " {other} ({text})")?;
        }
        Ok(())
    }
}
