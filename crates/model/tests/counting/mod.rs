//! A global allocator that counts, for tests which say that something allocates nothing.
//!
//! It counts what every thread of the process allocates. So a file of tests that uses it holds one
//! test and runs it without the test harness, whose own thread would be counted too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static N_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is the system allocator's; counting touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.realloc(data, layout, new_size) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.dealloc(data, layout) }
    }
}

/// Runs `f` and adds the allocations that it made to `sum`.
pub(crate) fn count<R>(sum: &mut u64, f: impl FnOnce() -> R) -> R {
    let before = N_ALLOCATIONS.load(Ordering::SeqCst);
    let result = f();
    *sum += N_ALLOCATIONS.load(Ordering::SeqCst) - before;
    result
}
