//! What a runtime does with the frames of its callers: `%host_throw` unwinds to an exception handler,
//! and `%host_collect` changes the slots that stack maps name.
//!
//! Frames are chained by their frame pointers, and at each return address the tables say what
//! Cranelift knows of the call: its handlers, its stack map, and the distance from frame pointer to
//! stack pointer. For the exception edges of a `tail` call Cranelift takes all other registers to be
//! lost, so that to jump to the handler is all there is to do. What no handler catches ends the run.
//!
//! All of it runs in a child only.

use std::arch::{asm, naked_asm};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::guard::{abandon, guard_frame};
use crate::exec::program::CallSite;

/// The calls of all programs, each with the address to which it returns, in ascending order.
pub(super) struct CallTable {
    sites: Vec<(u64, CallSite)>,
}

/// The table of this process, if it is a child.
static TABLE: AtomicPtr<CallTable> = AtomicPtr::new(ptr::null_mut());

impl CallTable {
    /// Of functions that start at the addresses given.
    pub(super) fn new<'a>(functions: impl Iterator<Item = (u64, &'a [CallSite])>) -> CallTable {
        let mut sites: Vec<(u64, CallSite)> = functions
            .flat_map(|(start, sites)| {
                sites.iter().map(move |site| {
                    let mut site = site.clone();
                    for (_, handler) in &mut site.handlers {
                        *handler += start;
                    }
                    (start + site.offset, site)
                })
            })
            .collect();
        sites.sort_by_key(|(address, _)| *address);
        CallTable { sites }
    }

    fn site(&self, address: u64) -> Option<&CallSite> {
        let found = self.sites.binary_search_by_key(&address, |(at, _)| *at);
        found.ok().map(|index| &self.sites[index].1)
    }

    /// Makes this the table of the process.
    ///
    /// # Safety
    /// Only in a child, which ends before the table does.
    pub(super) unsafe fn install(&self) {
        TABLE.store(ptr::from_ref(self).cast_mut(), Ordering::SeqCst);
    }
}

/// The frames from a caller of this module's functions up to the guard, each with the address at which
/// it goes on.
struct Frames {
    frame: u64,
    address: u64,
}

impl Iterator for Frames {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.frame == guard_frame() {
            return None;
        }
        let here = (self.frame, self.address);
        // SAFETY: up to the guard all code is Cranelift's with frame pointers, so that the frame begins
        // with its caller's frame pointer and return address.
        unsafe {
            self.frame = *(here.0 as *const u64);
            self.address = *(here.0 as *const u64).wrapping_add(1);
        }
        Some(here)
    }
}

/// The calls at which frames stand that the table knows, each with its frame pointer.
fn sites(frames: Frames) -> impl Iterator<Item = (u64, &'static CallSite)> {
    // SAFETY: `install` was called; the table outlives the child.
    let table = unsafe { TABLE.load(Ordering::SeqCst).as_ref() };
    frames.filter_map(move |(frame, address)| Some((frame, table?.site(address)?)))
}

/// `%host_throw` in the platform's convention. It passes on its caller's frame and return address.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) extern "C" fn host_throw(tag: u32, payload: u64) {
    naked_asm!(
        "mov rdx, rbp",
        "mov rcx, [rsp]",
        "jmp {}",
        sym throw_from
    )
}

/// `%host_throw` in the `tail` convention, which passes arguments in the same registers.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) extern "C" fn host_throw_tail(tag: u32, payload: u64) {
    naked_asm!("jmp {}", sym host_throw)
}

/// `%host_collect`. It passes on its caller's frame and return address.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) extern "C" fn host_collect() {
    naked_asm!(
        "mov rdi, rbp",
        "mov rsi, [rsp]",
        "jmp {}",
        sym collect_from
    )
}

/// `%host_throw` in the platform's convention. It passes on its caller's frame and return address.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) extern "C" fn host_throw(tag: u32, payload: u64) {
    naked_asm!(
        "mov x2, x29",
        "mov x3, x30",
        "b {}",
        sym throw_from
    )
}

/// `%host_throw` in the `tail` convention, whose arguments begin at `x2`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) extern "C" fn host_throw_tail(tag: u32, payload: u64) {
    naked_asm!(
        "mov x0, x2",
        "mov x1, x3",
        "b {}",
        sym host_throw
    )
}

/// `%host_collect`. It passes on its caller's frame and return address.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) extern "C" fn host_collect() {
    naked_asm!(
        "mov x0, x29",
        "mov x1, x30",
        "b {}",
        sym collect_from
    )
}

/// Goes on at the nearest handler for the tag, or ends the run.
extern "C" fn throw_from(tag: u32, payload: u64, frame: u64, address: u64) -> ! {
    for (frame, site) in sites(Frames { frame, address }) {
        if let Some(handler) = site.handler(tag) {
            // SAFETY: what Cranelift expects at this handler.
            unsafe {
                resume(
                    handler,
                    frame - site.frame_bytes,
                    frame,
                    [payload, u64::from(tag)],
                )
            }
        }
    }
    // SAFETY: the code under test runs, in a child.
    unsafe { abandon(tag, payload) }
}

/// Adds 1 to the first byte of every value that the callers' stack maps name.
extern "C" fn collect_from(frame: u64, address: u64) {
    for (frame, site) in sites(Frames { frame, address }) {
        for at in &site.mapped {
            let byte = (frame - site.frame_bytes + at) as *mut u8;
            // SAFETY: a byte of a slot of a frame that waits.
            unsafe { byte.write_volatile(byte.read_volatile().wrapping_add(1)) };
        }
    }
}

/// Sets stack and frame pointer and goes on at `handler`.
///
/// # Safety
/// They are those of a frame of Cranelift's that waits, and `handler` is one of its call's.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn resume(handler: u64, stack: u64, frame: u64, payload: [u64; 2]) -> ! {
    // SAFETY: by the caller's promise. Nothing of the frames below is used again.
    unsafe {
        asm!(
            "mov rsp, rcx",
            "mov rbp, rsi",
            "jmp rdi",
            in("rax") payload[0],
            in("rdx") payload[1],
            in("rcx") stack,
            in("rsi") frame,
            in("rdi") handler,
            options(noreturn)
        )
    }
}

/// Sets stack and frame pointer and goes on at `handler`.
///
/// # Safety
/// They are those of a frame of Cranelift's that waits, and `handler` is one of its call's.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn resume(handler: u64, stack: u64, frame: u64, payload: [u64; 2]) -> ! {
    // SAFETY: by the caller's promise. Nothing of the frames below is used again.
    unsafe {
        asm!(
            "mov sp, x2",
            "mov x29, x3",
            "br x4",
            in("x0") payload[0],
            in("x1") payload[1],
            in("x2") stack,
            in("x3") frame,
            in("x4") handler,
            options(noreturn)
        )
    }
}
