//! Runs in a child: as many as it survives, one after the other.

use std::io;
use std::slice;

use anyhow::{Result, bail, ensure};

use super::arena::{Arena, Mapping};
use super::guard::{
    Entry, Guard, Report, SIGNAL_STACK_BYTES, STATE_RETURNED, STATE_RUNNING, STATE_SIGNALLED,
    STATE_THROWN, guard, install_handlers, unblock_signals,
};
use super::unwind::CallTable;
use crate::exec::RUN_SECONDS_MAX;
use crate::exec::memory::PAGE_BYTES;
use crate::exec::trampoline::CELL_BYTES;

/// Reports come after the stack for signal handlers, one for each run.
const REPORTS_OFFSET: usize = SIGNAL_STACK_BYTES;

/// A call of a trampoline.
pub(super) struct Call<'a> {
    pub(super) entry: Entry,
    pub(super) arguments: Vec<u8>,
    pub(super) result_bytes: usize,
    /// What the buffers hold at first.
    pub(super) image: &'a [u8],
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It returned.
    Returned,
    /// It was stopped by a signal.
    Signalled {
        /// The signal.
        signal: i32,
        /// Where.
        pc: u64,
    },
    /// It threw what no handler caught.
    Thrown {
        /// The tag.
        tag: u32,
        /// The payload.
        payload: u64,
    },
    /// It ran for too long.
    TimedOut,
}

/// Calls that share buffers, and the memory in which a child leaves what they did.
pub(super) struct Batch<'a> {
    calls: Vec<Call<'a>>,
    arena: &'a Arena,
    table: &'a CallTable,
    guard: &'static Guard,
    mapping: Mapping,
    /// Where the arguments of each call start; results and buffers follow.
    offsets: Vec<usize>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        calls: Vec<Call<'a>>,
        arena: &'a Arena,
        table: &'a CallTable,
    ) -> Result<Batch<'a>> {
        let reports = calls.len() * size_of::<Report>();
        let mut length = (REPORTS_OFFSET + reports).next_multiple_of(CELL_BYTES);
        let mut offsets = Vec::new();
        for call in &calls {
            offsets.push(length);
            length += call.arguments.len() + call.result_bytes + arena.bytes();
        }
        let length = length.next_multiple_of(PAGE_BYTES as usize);
        let batch = Batch {
            calls,
            arena,
            table,
            guard: guard()?,
            mapping: Mapping::new(0, length, libc::PROT_READ | libc::PROT_WRITE)?,
            offsets,
        };
        Ok(batch)
    }

    /// Runs every call, in as few children as possible.
    ///
    /// # Errors
    /// The system refuses a process, or one ends in an unexpected way.
    pub(super) fn run(&self) -> Result<Vec<End>> {
        let mut ends = Vec::new();
        while ends.len() < self.calls.len() {
            ends.extend(self.run_from(ends.len(), self.calls.len())?);
        }
        Ok(ends)
    }

    /// Runs every call in a child of its own.
    ///
    /// # Errors
    /// As [`Batch::run`].
    pub(super) fn run_apart(&self) -> Result<Vec<End>> {
        let mut ends = Vec::new();
        for index in 0..self.calls.len() {
            ends.extend(self.run_from(index, index + 1)?);
        }
        Ok(ends)
    }

    /// The result array of a call that returned.
    pub(super) fn results(&self, index: usize) -> &[u8] {
        let call = &self.calls[index];
        self.bytes(call.arguments.len(), index, call.result_bytes)
    }

    /// What the buffers held when a call ended.
    pub(super) fn memory(&self, index: usize) -> Vec<Vec<u8>> {
        let call = &self.calls[index];
        let skip = call.arguments.len() + call.result_bytes;
        self.arena
            .split(self.bytes(skip, index, self.arena.bytes()))
    }

    fn bytes(&self, skip: usize, index: usize, length: usize) -> &[u8] {
        let start = self.at(self.offsets[index] + skip);
        // SAFETY: inside the mapping, and no child runs.
        unsafe { slice::from_raw_parts(start, length) }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.mapping.start.wrapping_add(offset)
    }

    fn report(&self, index: usize) -> *mut Report {
        self.at(REPORTS_OFFSET + index * size_of::<Report>()).cast()
    }

    /// Runs calls from `first` up to `limit` in a forked child; gives how those ended that did.
    fn run_from(&self, first: usize, limit: usize) -> Result<Vec<End>> {
        for (index, call) in self.calls.iter().enumerate().take(limit).skip(first) {
            let cells = self.at(self.offsets[index]);
            let fresh = Report {
                state: STATE_RUNNING,
                number: 0,
                word: 0,
            };
            // SAFETY: the mapping has room for the report and for the arguments.
            unsafe {
                self.report(index).write(fresh);
                cells.copy_from_nonoverlapping(call.arguments.as_ptr(), call.arguments.len());
            }
        }
        // SAFETY: the child calls only async-signal-safe functions and the code under test, and never
        // returns from this block.
        let child = unsafe { libc::fork() };
        match child {
            -1 => bail!("fork: {}", io::Error::last_os_error()),
            // SAFETY: this is the child; it has one thread.
            0 => unsafe { self.run_child(first, limit) },
            _ => self.wait(child, first, limit),
        }
    }

    /// # Safety
    /// Only in a child that was just forked.
    unsafe fn run_child(&self, first: usize, limit: usize) -> ! {
        // SAFETY: system calls on memory of this process; the trampoline takes the addresses of the
        // argument and result arrays.
        unsafe {
            install_handlers(self.at(0));
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            unblock_signals();
            self.table.install();
            for index in first..limit {
                let call = &self.calls[index];
                let arguments = self.at(self.offsets[index]);
                let results = arguments.wrapping_add(call.arguments.len());
                self.arena.fill(call.image);
                libc::alarm(RUN_SECONDS_MAX);
                self.guard
                    .call(call.entry, arguments, results, self.report(index));
                self.arena.save(results.wrapping_add(call.result_bytes));
            }
            libc::_exit(0)
        }
    }

    fn wait(&self, child: libc::pid_t, first: usize, limit: usize) -> Result<Vec<End>> {
        let mut status = 0;
        loop {
            // SAFETY: waits for this process's own child.
            if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
                break;
            }
            let error = io::Error::last_os_error();
            ensure!(
                error.kind() == io::ErrorKind::Interrupted,
                "waitpid: {error}"
            );
        }
        let mut ends = Vec::new();
        for index in first..limit {
            // SAFETY: the child has ended; the report is plain data in the mapping.
            let report = unsafe { self.report(index).read_volatile() };
            match report.state {
                STATE_RETURNED => ends.push(End::Returned),
                STATE_SIGNALLED => ends.push(End::Signalled {
                    signal: report.number.cast_signed(),
                    pc: report.word,
                }),
                STATE_THROWN => ends.push(End::Thrown {
                    tag: report.number,
                    payload: report.word,
                }),
                _ if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM => {
                    let call = &self.calls[index];
                    let skip = call.arguments.len() + call.result_bytes;
                    // SAFETY: the mapping has room for the buffers there, and no child runs.
                    unsafe { self.arena.save(self.at(self.offsets[index] + skip)) };
                    ends.push(End::TimedOut);
                    break;
                }
                _ => bail!("a run ended with status {status:#x} and no report"),
            }
        }
        Ok(ends)
    }
}
