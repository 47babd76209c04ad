//! The closure of a run, as the workers see it.

use std::cell::UnsafeCell;

/// A closure on the caller's stack, with its type and its lifetime erased.
#[derive(Clone, Copy)]
pub(super) struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

impl Job {
    /// The closure `f`, which may be called from several threads at once.
    pub(super) fn new<F: Fn(usize) + Sync>(f: &F) -> Self {
        unsafe fn call<F: Fn(usize)>(data: *const (), thread: usize) {
            // SAFETY: the caller of `Job::call` promises that the `F` behind `data` is alive.
            unsafe { (*data.cast::<F>())(thread) }
        }
        Self { data: (&raw const *f).cast(), call: call::<F> }
    }

    /// Calls the closure as thread `thread`.
    ///
    /// # Safety
    ///
    /// The closure is still alive.
    pub(super) unsafe fn call(self, thread: usize) {
        // SAFETY: `call` was made for the type of `data`, which is alive.
        unsafe { (self.call)(self.data, thread) }
    }
}

/// The job of the current run.
///
/// The doors order all accesses to it, so it has no lock at which workers would queue in every run.
pub(super) struct JobSlot(UnsafeCell<Option<Job>>);

// SAFETY: only the caller writes, while the doors are closed and no worker is inside; only workers
// inside read, as the methods demand; and a `Job` points to a closure that is `Sync`.
unsafe impl Sync for JobSlot {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for JobSlot {}

impl JobSlot {
    pub(super) fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Publishes the job of the next run, or removes that of the last one (`None`).
    ///
    /// # Safety
    ///
    /// The doors are closed, no worker is inside, and this is the only caller.
    pub(super) unsafe fn set(&self, job: Option<Job>) {
        // SAFETY: no other thread reads or writes it, as promised.
        unsafe { *self.0.get() = job }
    }

    /// The job of this run.
    ///
    /// # Safety
    ///
    /// The calling thread has entered the doors and not left them.
    pub(super) unsafe fn get(&self) -> Option<Job> {
        // SAFETY: no thread writes it while a worker is inside, as promised.
        unsafe { *self.0.get() }
    }
}
