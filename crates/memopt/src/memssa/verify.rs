//! Checks that a MemorySSA form is right, by another way than it was built.
//!
//! - The reaching state of memory is computed by forward data flow over the control flow graph,
//!   without dominators or dominance frontiers; defining accesses and phi operands must agree.
//! - The class access of each def and use must be the first on the chain above it that may touch
//!   its class.
//! - Every clobber that the walker has cached must be justified: a search over *all* ways up from
//!   the access, without memos or merging, meets no def that may change the location before the
//!   clobber.

use std::fmt;

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Function};
use cranelift_codegen::packed_option::PackedOption;
use rustc_hash::FxHashSet;

use super::walk::{Clobber, WalkContext, Walker, may_clobber, up_edge};
use super::{AccessKind, MemoryAccess, MemorySsa};
use crate::alias::Instance;
use crate::flow::Flow;
use crate::view::{ClassKind, Entry, View};

/// What is wrong with a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    message: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for VerifyError {}

fn fail<T>(message: String) -> Result<T, VerifyError> {
    Err(VerifyError { message })
}

/// Verifies the form and the answers that `walker` has cached for it.
///
/// # Errors
/// The first thing found wrong.
pub fn verify(
    func: &Function,
    flow: &Flow,
    view: &mut View,
    ssa: &MemorySsa,
    walker: &Walker,
) -> Result<(), VerifyError> {
    verify_presence(flow, view, ssa)?;
    verify_chain(func, flow, view, ssa)?;
    for entry in view.entries() {
        verify_class_access(view, ssa, entry)?;
    }
    let mut cx = WalkContext {
        func,
        flow,
        view,
        ssa,
    };
    for entry in cx.view.entries() {
        verify_clobber(&mut cx, walker, entry)?;
    }
    Ok(())
}

fn verify_presence(flow: &Flow, view: &View, ssa: &MemorySsa) -> Result<(), VerifyError> {
    for entry in view.entries() {
        let data = view.entry(entry);
        let expected = flow.is_reachable(data.block)
            && !data.removed
            && (data.effects.is_def() || data.effects.is_use());
        if expected != ssa.access_of(entry).is_some() {
            return fail(format!(
                "{} in {} {} a memory access",
                data.inst,
                data.block,
                if expected { "lacks" } else { "has" }
            ));
        }
    }
    Ok(())
}

/// The state of memory at the end of each block, by iteration to a fixed point.
fn verify_chain(
    func: &Function,
    flow: &Flow,
    view: &View,
    ssa: &MemorySsa,
) -> Result<(), VerifyError> {
    let mut out: SecondaryMap<Block, PackedOption<MemoryAccess>> = SecondaryMap::new();
    let mut changed = true;
    while changed {
        changed = false;
        for &block in flow.rpo() {
            let start = match ssa.phi_of(block) {
                Some(phi) => phi,
                None if flow.preds(block).is_empty() => MemoryAccess::LIVE_ON_ENTRY,
                None => match flow
                    .preds(block)
                    .iter()
                    .find_map(|&pred| out[pred].expand())
                {
                    Some(state) => state,
                    None => continue,
                },
            };
            let end = view
                .block_entries(block)
                .rev()
                .filter(|&entry| view.entry(entry).effects.is_def())
                .find_map(|entry| ssa.access_of(entry))
                .unwrap_or(start);
            changed |= out[block].expand() != Some(end);
            out[block] = end.into();
        }
    }
    for &block in flow.rpo() {
        verify_block(func, flow, view, ssa, &out, block)?;
    }
    Ok(())
}

fn verify_block(
    func: &Function,
    flow: &Flow,
    view: &View,
    ssa: &MemorySsa,
    out: &SecondaryMap<Block, PackedOption<MemoryAccess>>,
    block: Block,
) -> Result<(), VerifyError> {
    let mut state = ssa.phi_of(block);
    for (index, &pred) in flow.preds(block).iter().enumerate() {
        let incoming = out[pred].expand();
        if let Some(phi) = ssa.phi_of(block) {
            if incoming != Some(ssa.operand(phi, index)) {
                return fail(format!("the phi of {block} has a wrong operand for {pred}"));
            }
        } else if state.is_none() {
            state = incoming;
        } else if state != incoming {
            return fail(format!("{block} lacks a phi"));
        }
    }
    let mut state = state.unwrap_or(MemoryAccess::LIVE_ON_ENTRY);
    for entry in view.block_entries(block) {
        let Some(access) = ssa.access_of(entry) else {
            continue;
        };
        if ssa.defining(access) != state {
            let inst = view.entry(entry).inst;
            return fail(format!(
                "{inst} ({}) has a wrong defining access",
                func.dfg.display_inst(inst)
            ));
        }
        if view.entry(entry).effects.is_def() {
            state = access;
        }
    }
    Ok(())
}

fn verify_class_access(view: &View, ssa: &MemorySsa, entry: Entry) -> Result<(), VerifyError> {
    let Some(access) = ssa.access_of(entry) else {
        return Ok(());
    };
    if view.entry(entry).bytes.is_none() {
        return Ok(());
    }
    let class = view.classes.kind(view.entry(entry).class);
    let goal = ssa.defining_in_class(access);
    let mut above = ssa.defining(access);
    // What lies between must not touch the class; the goal need not touch it any more, if a
    // removed def handed it down.
    while above != goal {
        match ssa.kind(above) {
            AccessKind::Def(def) if !may_touch_class(view, def, class) => {
                above = ssa.defining(above);
            }
            _ => {
                return fail(format!(
                    "{} has a class access that is too far up",
                    view.entry(entry).inst
                ));
            }
        }
    }
    Ok(())
}

fn may_touch_class(view: &View, def: Entry, class: ClassKind) -> bool {
    let data = view.entry(def);
    if data.effects.fence || data.effects.writes_escaped || data.bytes.is_none() {
        return !matches!(class, ClassKind::Private(_));
    }
    match (view.classes.kind(data.class), class) {
        (ClassKind::Private(a), ClassKind::Private(b)) => a == b,
        (ClassKind::Private(_), _) | (_, ClassKind::Private(_)) => false,
        (ClassKind::Region(a), ClassKind::Region(b)) => a == b,
        (ClassKind::Rest, _) | (_, ClassKind::Rest) => true,
    }
}

fn verify_clobber(
    cx: &mut WalkContext<'_>,
    walker: &Walker,
    entry: Entry,
) -> Result<(), VerifyError> {
    let Some(access) = cx.ssa.access_of(entry) else {
        return Ok(());
    };
    let Some(clobber) = walker.cached(cx.ssa, access) else {
        return Ok(());
    };
    let data = cx.view.entry(entry);
    let Some(bytes) = data.bytes else {
        return Ok(());
    };
    let inst = data.inst;
    let flags = cx.view.flags(cx.func, &bytes);
    if data.effects.is_use() && flags.readonly() && flags.notrap() {
        return Ok(());
    }
    match unjustified(cx, entry, cx.ssa.defining(access), clobber) {
        None => Ok(()),
        Some(missed) => fail(format!(
            "the clobber of {inst} is {:?}, past {:?}, which may change its bytes",
            cx.ssa.kind(clobber.access),
            cx.ssa.kind(missed),
        )),
    }
}

/// The access that the clobber wrongly passed, if any.
fn unjustified(
    cx: &mut WalkContext<'_>,
    entry: Entry,
    start: MemoryAccess,
    clobber: Clobber,
) -> Option<MemoryAccess> {
    let location = cx.view.location(cx.func, cx.flow, entry);
    let mut seen = FxHashSet::default();
    let mut worklist = vec![(start, Instance::Same)];
    while let Some((access, instance)) = worklist.pop() {
        if access == clobber.access || !seen.insert((access, instance == Instance::Same)) {
            continue;
        }
        match cx.ssa.kind(access) {
            AccessKind::LiveOnEntry | AccessKind::Use(_) => return Some(access),
            AccessKind::Def(def) => {
                if may_clobber(cx, def, &location, instance) {
                    return Some(access);
                }
                worklist.push((cx.ssa.defining(access), instance));
            }
            AccessKind::Phi(block) => {
                for (index, &pred) in cx.flow.preds(block).iter().enumerate() {
                    let above = up_edge(cx.flow, cx.view, &location, pred, block, instance);
                    worklist.push((cx.ssa.operand(access, index), above));
                }
            }
        }
    }
    None
}
