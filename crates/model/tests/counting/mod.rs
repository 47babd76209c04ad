//! A global allocator that counts, for tests which say that something allocates nothing, or not much.
//!
//! It counts what every thread of the process allocates. So a file of tests that uses it holds one
//! test and runs it without the test harness, whose own thread would be counted too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static N_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes that are allocated now, and the most since `peak` began.
static N_BYTES: AtomicU64 = AtomicU64::new(0);
static MOST_BYTES: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is the system allocator's; counting touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Old and new memory may exist together while the content is copied.
        add(new_size);
        N_BYTES.fetch_sub(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.realloc(data, layout, new_size) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        N_BYTES.fetch_sub(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: the caller's promises are those of the same method.
        unsafe { System.dealloc(data, layout) }
    }
}

fn add(n_bytes: usize) {
    N_ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    let n_bytes = n_bytes as u64;
    let n_now = N_BYTES.fetch_add(n_bytes, Ordering::SeqCst) + n_bytes;
    MOST_BYTES.fetch_max(n_now, Ordering::SeqCst);
}

/// Runs `f`; with its result, the most bytes that were allocated meanwhile beyond those before.
#[allow(dead_code, reason = "most tests count allocations")]
pub(crate) fn peak<R>(f: impl FnOnce() -> R) -> (R, u64) {
    let before = N_BYTES.load(Ordering::SeqCst);
    MOST_BYTES.store(before, Ordering::SeqCst);
    let result = f();
    (result, MOST_BYTES.load(Ordering::SeqCst) - before)
}

/// Runs `f` and adds the allocations that it made to `sum`.
#[allow(dead_code, reason = "some tests measure bytes")]
pub(crate) fn count<R>(sum: &mut u64, f: impl FnOnce() -> R) -> R {
    let before = N_ALLOCATIONS.load(Ordering::SeqCst);
    let result = f();
    *sum += N_ALLOCATIONS.load(Ordering::SeqCst) - before;
    result
}
