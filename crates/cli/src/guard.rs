//! A panic below the command line becomes an error like any other.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};

use anyhow::anyhow;

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps panics off stderr; [`guarded`] reports them.
pub(crate) fn silence_panics() {
    panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("panic");
        let place = info
            .location()
            .map(|place| format!(" ({}:{})", short(place.file()), place.line()));
        let text = format!("{message}{}", place.unwrap_or_default());
        LAST_PANIC.with(|last| *last.borrow_mut() = text);
    }));
}

/// The end of a path to source text: the package, as far as it goes.
fn short(path: &str) -> &str {
    let start = path.rmatch_indices('/').nth(3).map_or(0, |(at, _)| at + 1);
    &path[start..]
}

/// Runs `work`; a panic in it is an error that asks for a report.
pub(crate) fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let message = LAST_PANIC.with(|last| last.take());
        Err(anyhow!(
            "internal error, please report this input: {message}"
        ))
    })
}
