//! The most bytes that were allocated at once while something ran.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// Runs `work` and gives its result and the most bytes that it had allocated at once beyond what was
/// allocated before. What other threads do then is counted, too.
pub(crate) fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, u64) {
    LIVE.store(0, Ordering::SeqCst);
    PEAK.store(0, Ordering::SeqCst);
    ON.store(true, Ordering::SeqCst);
    let result = work();
    ON.store(false, Ordering::SeqCst);
    (result, PEAK.load(Ordering::SeqCst).cast_unsigned())
}

/// The system's allocator; it counts while [`peak_bytes`] runs, so that times are as without it.
struct Counting;

impl Counting {
    fn count(freed: usize, allocated: usize) {
        if ON.load(Ordering::Relaxed) {
            let change = allocated as i64 - freed as i64;
            let live = LIVE.fetch_add(change, Ordering::Relaxed) + change;
            PEAK.fetch_max(live, Ordering::Relaxed);
        }
    }
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count(0, layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::count(0, layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        Counting::count(layout.size(), 0);
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new may be there at once while bytes are copied.
        Counting::count(0, size);
        // SAFETY: by the caller's promise.
        let moved = unsafe { System.realloc(start, layout, size) };
        Counting::count(layout.size(), 0);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::peak_bytes;

    #[test]
    fn the_peak_is_what_is_held_at_once() {
        let (_, peak) = peak_bytes(|| {
            for _ in 0..10 {
                drop(std::hint::black_box(vec![1u8; 1 << 20]));
            }
        });
        // Other tests of this program allocate little.
        assert!((1 << 20..1 << 21).contains(&peak), "{peak}");
    }
}
