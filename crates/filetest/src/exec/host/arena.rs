//! Memory shared between parent and child.

use std::io;
use std::ptr;

use anyhow::{Result, bail, ensure};

use crate::exec::invocation::Invocation;
use crate::exec::memory::Layout;

/// Where buffers are placed if nothing else lies there.
const ARENA_HINT: u64 = 0x2000_0000_0000;

/// Memory shared with children.
pub(super) struct Mapping {
    pub(super) start: *mut u8,
    length: usize,
}

impl Mapping {
    pub(super) fn new(hint: u64, length: usize, protection: libc::c_int) -> Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping; without MAP_FIXED it replaces nothing.
        let start = unsafe { libc::mmap(hint as *mut _, length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            bail!("mmap of {length} bytes: {}", io::Error::last_os_error());
        }
        Ok(Mapping {
            start: start.cast(),
            length,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no slice into it is left.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// The buffers of a run line, between inaccessible pages.
pub(super) struct Arena {
    mapping: Mapping,
    layout: Layout,
}

impl Arena {
    /// For the buffers of `invocation`.
    pub(super) fn new(invocation: &Invocation) -> Result<Arena> {
        let length = usize::try_from(Layout::length_of(&invocation.buffers))?;
        let mapping = Mapping::new(ARENA_HINT, length, libc::PROT_NONE)?;
        let layout = Layout::at(mapping.start as u64, &invocation.buffers);
        for place in layout.placements.iter().filter(|p| p.page_bytes > 0) {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: whole pages inside `mapping`.
            let result = unsafe {
                libc::mprotect(place.pages as *mut _, place.page_bytes as usize, protection)
            };
            ensure!(result == 0, "mprotect: {}", io::Error::last_os_error());
        }
        Ok(Arena { mapping, layout })
    }

    pub(super) fn base(&self) -> u64 {
        self.mapping.start as u64
    }

    /// What the accessible pages of all buffers hold at first, one after the other.
    pub(super) fn image(&self, invocation: &Invocation) -> Result<Vec<u8>> {
        Ok(self.layout.images(&invocation.buffers)?.concat())
    }

    /// Length of the accessible pages of all buffers, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.pages().map(|(_, length)| length).sum()
    }

    /// Copies `image` into the buffers. Allocates nothing.
    pub(super) fn fill(&self, image: &[u8]) {
        let mut from = image;
        for (pages, length) in self.pages() {
            let (head, tail) = from.split_at(length);
            // SAFETY: accessible pages of `mapping`, and nothing else uses them now.
            unsafe { ptr::copy_nonoverlapping(head.as_ptr(), pages, length) };
            from = tail;
        }
    }

    /// Copies the buffers to `into`. Allocates nothing.
    ///
    /// # Safety
    /// There are [`Arena::bytes`] bytes at `into`, outside of the arena.
    pub(super) unsafe fn save(&self, mut into: *mut u8) {
        for (pages, length) in self.pages() {
            // SAFETY: accessible pages of `mapping`; by the caller's promise there is room.
            unsafe { ptr::copy_nonoverlapping(pages, into, length) };
            into = into.wrapping_add(length);
        }
    }

    /// What [`Arena::save`] wrote, by buffer.
    pub(super) fn split(&self, saved: &[u8]) -> Vec<Vec<u8>> {
        let mut rest = saved;
        self.pages()
            .map(|(_, length)| {
                let (head, tail) = rest.split_at(length);
                rest = tail;
                head.to_vec()
            })
            .collect()
    }

    /// The accessible pages of each buffer and their length in bytes.
    fn pages(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let placements = self.layout.placements.iter();
        placements.map(|place| (place.pages as *mut u8, place.page_bytes as usize))
    }
}
