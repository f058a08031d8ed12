//! Why an access went or stayed.

use std::fmt;

use cranelift_codegen::ir::{Block, Function, Inst, SourceLoc, StackSlot};

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
    /// The access; for a stack slot, the first of its accesses or the one that blocks.
    pub inst: Option<Inst>,
    /// The stack slot, if the remark is about one.
    pub slot: Option<StackSlot>,
    /// Its block.
    pub block: Option<Block>,
    /// The text of the access or slot.
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
            inst: Some(inst),
            slot: None,
            block: func.layout.inst_block(inst),
            text: text(inst),
            reason,
            other: other.map(|other| (other, text(other))),
            srcloc: func.srcloc(inst),
        }
    }

    pub(crate) fn of_slot(
        func: &Function,
        pass: Pass,
        action: Action,
        slot: StackSlot,
        reason: &'static str,
        other: Option<Inst>,
    ) -> Remark {
        Remark {
            pass,
            action,
            inst: None,
            slot: Some(slot),
            block: other.and_then(|other| func.layout.inst_block(other)),
            text: func.sized_stack_slots[slot].to_string(),
            reason,
            other: other.map(|other| (other, func.dfg.display_inst(other).to_string())),
            srcloc: other.map_or_else(SourceLoc::default, |other| func.srcloc(other)),
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Removed => "remove",
            Action::Kept => "keep",
        };
        write!(f, "{}: {action} ", self.pass)?;
        match (self.inst, self.slot) {
            (Some(inst), _) => write!(f, "{inst} ({})", self.text)?,
            (None, Some(slot)) => write!(f, "{slot} ({})", self.text)?,
            (None, None) => f.write_str(&self.text)?,
        }
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
