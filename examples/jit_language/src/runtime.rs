//! What a running program calls: printing into a buffer, and failing.
//!
//! The state is one a thread: the program runs on the thread that asked for it.

use std::cell::RefCell;
use std::fmt::Write;
use std::mem;

use cranelift_jit::JITBuilder;

use crate::error::{Error, Position};

/// Bytes of stack for a program: what it may use by its own count.
const PROGRAM_STACK_BYTES: i64 = 64 << 20;

/// Bytes of stack for the thread. A program's count of its stack is not exact.
pub(crate) const THREAD_STACK_BYTES: usize = 160 << 20;

/// Bytes of output after which a program is stopped.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Why a program stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    OutOfBounds { length: u64 },
    DivisionByZero,
    QuotientOverflow,
    StackOverflow,
    TooMuchOutput,
}

/// A place where a program may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureSite {
    pub(crate) kind: FailureKind,
    pub(crate) at: Position,
}

/// What a program did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) output: String,
    pub(crate) failure: Option<Error>,
}

#[derive(Default)]
struct State {
    output: String,
    /// Whether the current line has something on it.
    in_line: bool,
    /// The site and the value that it failed on.
    failure: Option<(i64, i64)>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

fn print(value: std::fmt::Arguments<'_>) {
    STATE.with_borrow_mut(|state| {
        if mem::replace(&mut state.in_line, true) {
            state.output.push(' ');
        }
        // Writing to a string does not fail.
        let _ = state.output.write_fmt(value);
    });
}

extern "C" fn print_i64(value: i64) {
    print(format_args!("{value}"));
}

extern "C" fn print_f64(value: f64) {
    print(format_args!("{value:?}"));
}

extern "C" fn print_bool(value: u8) {
    print(format_args!("{}", value != 0));
}

/// Ends the line, and says whether there is too much output.
extern "C" fn print_end() -> u8 {
    STATE.with_borrow_mut(|state| {
        state.output.push('\n');
        state.in_line = false;
        u8::from(state.output.len() > OUTPUT_BYTES_MAX)
    })
}

extern "C" fn fail(site: i64, value: i64) {
    STATE.with_borrow_mut(|state| state.failure = Some((site, value)));
}

/// Makes the functions known under the names that the front end declares.
pub(crate) fn register(builder: &mut JITBuilder) {
    builder.symbol("print_i64", print_i64 as *const u8);
    builder.symbol("print_f64", print_f64 as *const u8);
    builder.symbol("print_bool", print_bool as *const u8);
    builder.symbol("print_end", print_end as *const u8);
    builder.symbol("fail", fail as *const u8);
}

/// Runs a program from its start to its end or failure, which is one of `sites`.
///
/// # Safety
///
/// `start` is finalized code of `codegen::build_start`, in a module that is still alive, and the
/// current thread has [`THREAD_STACK_BYTES`] of stack.
pub(crate) unsafe fn run(start: *const u8, sites: &[FailureSite]) -> Outcome {
    STATE.take();
    // SAFETY: a pointer to code that takes and returns what `codegen::declare` says, in the default
    // calling convention of this machine, which is `extern "C"`.
    let start: extern "C" fn(i64) -> u8 = unsafe { mem::transmute(start) };
    let failed = start(PROGRAM_STACK_BYTES) != 0;
    let state = STATE.take();
    let failure = state.failure.filter(|_| failed).and_then(|(site, value)| {
        let site = sites.get(usize::try_from(site).ok()?)?;
        Some(site.error(value))
    });
    Outcome {
        output: state.output,
        failure,
    }
}

impl FailureSite {
    fn error(&self, value: i64) -> Error {
        let message = match self.kind {
            FailureKind::OutOfBounds { length } => {
                format!("index {value} is out of bounds for length {length}")
            }
            FailureKind::DivisionByZero => "division by zero".to_string(),
            FailureKind::QuotientOverflow => "the quotient does not fit an i64".to_string(),
            FailureKind::StackOverflow => "calls are nested too deep for the stack".to_string(),
            FailureKind::TooMuchOutput => {
                format!("the program prints more than {OUTPUT_BYTES_MAX} bytes")
            }
        };
        Error::new(self.at, format!("the program failed: {message}"))
    }
}
