//! What a run did, and the verdict on original against optimized.

use std::fmt;
use std::ops::Range;

use anyhow::Result;
use cranelift_codegen::data_value::{DataValue, DisplayDataValues};
use cranelift_codegen::ir::TrapCode;

use super::invocation::{Argument, ExpectedOutcome, Invocation};
use super::memory::{Layout, buffer_index};

/// Size of an address in a buffer, in bytes.
const CELL_BYTES: usize = 8;

/// How a run ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It returned these values.
    Returned(Vec<DataValue>),
    /// It trapped.
    Trapped(TrapCode),
    /// It reached a `debugtrap`, where it was ended.
    Stopped,
    /// It threw what no handler caught.
    Thrown {
        /// The tag.
        tag: u32,
        /// The payload.
        payload: u64,
    },
    /// It was stopped by a signal at a place where no trap is recorded.
    Crashed(String),
    /// It ran longer than [`RUN_SECONDS_MAX`](super::RUN_SECONDS_MAX).
    TimedOut,
}

impl Outcome {
    /// Whether both ended alike; values are compared bit by bit.
    pub fn same(&self, other: &Outcome) -> bool {
        match (self, other) {
            (Outcome::Returned(a), Outcome::Returned(b)) => same_values(a, b),
            (Outcome::Trapped(a), Outcome::Trapped(b)) => a == b,
            (Outcome::Stopped, Outcome::Stopped) => true,
            (
                Outcome::Thrown { tag, payload },
                Outcome::Thrown {
                    tag: other_tag,
                    payload: other_payload,
                },
            ) => (tag, payload) == (other_tag, other_payload),
            (Outcome::Crashed(_), Outcome::Crashed(_)) => true,
            (Outcome::TimedOut, Outcome::TimedOut) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Returned(values) => write!(f, "returned {}", DisplayDataValues(values)),
            Outcome::Trapped(code) => write!(f, "trapped {code}"),
            Outcome::Stopped => f.write_str("stopped at a debugtrap"),
            Outcome::Thrown { tag, payload } => write!(f, "threw {tag} with {payload:#x}"),
            Outcome::Crashed(how) => write!(f, "crashed: {how}"),
            Outcome::TimedOut => f.write_str("timed out"),
        }
    }
}

fn same_values(a: &[DataValue], b: &[DataValue]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.bitwise_eq(b))
}

/// How a run ended and what memory held then.
#[derive(Clone, Debug)]
pub struct Observation {
    /// How it ended.
    pub outcome: Outcome,
    /// The accessible pages of each buffer; the buffer is at their end.
    pub memory: Vec<Vec<u8>>,
    /// The address at which the run's buffers were placed.
    pub(crate) base: u64,
    /// Where stack slots lie, which differs from run to run and with the layout of frames.
    pub(crate) stack: Range<u64>,
}

/// The verdict on one run line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both did the same, and what the run line expects.
    Same,
    /// They differ, or one of them differs from what the run line expects.
    Different {
        /// In what.
        detail: String,
    },
    /// The original neither returned nor trapped: the line tests nothing.
    Undefined {
        /// What it did.
        detail: String,
    },
}

/// A run line's runs and the verdict on them.
#[derive(Clone, Debug)]
pub struct InvocationResult {
    /// The run line as written, without `; run:`.
    pub text: String,
    /// Its line in the file, from 1; 0 if it is from no file.
    pub line: usize,
    /// What the original did.
    pub original: Observation,
    /// What the optimized code did.
    pub optimized: Observation,
    /// The verdict.
    pub verdict: Verdict,
}

/// Compares the two runs of `invocation`.
///
/// # Errors
/// The invocation names a buffer that it does not have.
pub(crate) fn judge(
    invocation: &Invocation,
    original: Observation,
    optimized: Observation,
) -> Result<InvocationResult> {
    let verdict = verdict_on(invocation, &original, &optimized)?;
    Ok(InvocationResult {
        text: invocation.text.clone(),
        line: invocation.line,
        original,
        optimized,
        verdict,
    })
}

fn verdict_on(
    invocation: &Invocation,
    original: &Observation,
    optimized: &Observation,
) -> Result<Verdict> {
    if matches!(original.outcome, Outcome::Crashed(_) | Outcome::TimedOut) {
        return Ok(Verdict::Undefined {
            detail: format!("the original {}", original.outcome),
        });
    }
    let difference = match difference(invocation, original, optimized) {
        Some(detail) => Some(detail),
        None => unexpected(invocation, original)?
            .map(|detail| format!("original and optimized agree, but {detail}")),
    };
    Ok(match difference {
        Some(detail) => Verdict::Different { detail },
        None => Verdict::Same,
    })
}

/// In what the two runs differ.
fn difference(
    invocation: &Invocation,
    original: &Observation,
    optimized: &Observation,
) -> Option<String> {
    if !original.outcome.same(&optimized.outcome) {
        return Some(format!(
            "original {}, optimized {}",
            original.outcome, optimized.outcome
        ));
    }
    let pairs = original.memory.iter().zip(&optimized.memory);
    for (buffer, (before, after)) in invocation.buffers.iter().zip(pairs) {
        if let Some(at) = first_difference(original, before, optimized, after) {
            return Some(format!(
                "memory differs, first at {}[{}]: original {:02x}, optimized {:02x} (both {})",
                buffer.name,
                at as i64 - (before.len() - buffer.bytes.len()) as i64,
                before[at],
                after[at],
                original.outcome
            ));
        }
    }
    None
}

/// Where two buffers differ. Frames may be laid out differently: two addresses of stack slots in one
/// aligned cell are the same.
fn first_difference(
    original: &Observation,
    before: &[u8],
    optimized: &Observation,
    after: &[u8],
) -> Option<usize> {
    let cells = before.chunks(CELL_BYTES).zip(after.chunks(CELL_BYTES));
    cells
        .enumerate()
        .filter(|(_, (a, b))| a != b && !(original.is_slot(a) && optimized.is_slot(b)))
        .find_map(|(cell, (a, b))| {
            let byte = a.iter().zip(b).position(|(a, b)| a != b)?;
            Some(cell * CELL_BYTES + byte)
        })
}

impl Observation {
    /// Whether a cell holds the address of a stack slot.
    fn is_slot(&self, cell: &[u8]) -> bool {
        let bytes = cell.try_into().map(u64::from_le_bytes);
        bytes.is_ok_and(|address| self.stack.contains(&address))
    }
}

/// In what a run differs from the run line.
fn unexpected(invocation: &Invocation, run: &Observation) -> Result<Option<String>> {
    if let Some(expected) = &invocation.expected_outcome
        && !is_expected(invocation, expected, run)?
    {
        return Ok(Some(format!("{}, which is not expected", run.outcome)));
    }
    for expected in &invocation.expected_bytes {
        let index = buffer_index(&invocation.buffers, &expected.buffer)?;
        let pages = &run.memory[index];
        let start = pages.len() - invocation.buffers[index].bytes.len() + expected.offset;
        let actual = &pages[start..start + expected.bytes.len()];
        if actual != expected.bytes {
            return Ok(Some(format!(
                "{}[{}..{}] is {}, expected {} ({})",
                expected.buffer,
                expected.offset,
                expected.offset + expected.bytes.len(),
                hex(actual),
                hex(&expected.bytes),
                run.outcome
            )));
        }
    }
    Ok(None)
}

fn is_expected(
    invocation: &Invocation,
    expected: &ExpectedOutcome,
    run: &Observation,
) -> Result<bool> {
    let values = |arguments: &[Argument]| resolve(invocation, run.base, arguments);
    Ok(match (expected, &run.outcome) {
        (ExpectedOutcome::Returns(a), Outcome::Returned(b)) => same_values(&values(a)?, b),
        (ExpectedOutcome::ReturnsOther(a), Outcome::Returned(b)) => !same_values(&values(a)?, b),
        (ExpectedOutcome::Traps(a), Outcome::Trapped(b)) => a == b,
        (ExpectedOutcome::Stops, Outcome::Stopped) => true,
        (ExpectedOutcome::Throws(expected), Outcome::Thrown { tag, .. }) => expected == tag,
        _ => false,
    })
}

/// The values that `arguments` stand for when the buffers are placed at `base`.
pub(crate) fn resolve(
    invocation: &Invocation,
    base: u64,
    arguments: &[Argument],
) -> Result<Vec<DataValue>> {
    let layout = Layout::at(base, &invocation.buffers);
    arguments
        .iter()
        .map(|argument| match argument {
            Argument::Value(value) => Ok(value.clone()),
            Argument::Address(pointer) => Ok(DataValue::I64(
                layout.resolve(&invocation.buffers, pointer)?.cast_signed(),
            )),
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(" ")
}
