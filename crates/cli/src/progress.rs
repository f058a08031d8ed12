//! A progress bar on a terminal, for work that takes long enough.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Work shorter than this shows no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// A bar that counts steps, from any thread.
pub(crate) struct Progress {
    start: Instant,
    bar: ProgressBar,
    shown: OnceLock<()>,
    on_terminal: bool,
}

impl Progress {
    /// A bar for that many steps, not yet shown.
    pub(crate) fn new(steps: usize) -> Progress {
        let bar = ProgressBar::hidden();
        bar.set_length(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} ({eta} left)") {
            bar.set_style(style);
        }
        let on_terminal = io::stderr().is_terminal();
        Progress {
            start: Instant::now(),
            bar,
            shown: OnceLock::new(),
            on_terminal,
        }
    }

    /// A step is done.
    pub(crate) fn step(&self) {
        if self.on_terminal && self.start.elapsed() > SHOWN_AFTER {
            self.shown.get_or_init(|| {
                self.bar
                    .set_draw_target(indicatif::ProgressDrawTarget::stderr());
            });
        }
        self.bar.inc(1);
    }

    /// How many steps there are, known late.
    pub(crate) fn set_steps(&self, steps: u64) {
        self.bar.set_length(steps);
    }

    /// Writes a line to standard error, above the bar.
    pub(crate) fn note(&self, line: &str) {
        self.bar.suspend(|| output::note(line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
