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

/// The job of the current run. Its accesses are ordered by the doors, so it needs no lock of its
/// own, at which all workers would queue in every run.
pub(super) struct JobSlot(UnsafeCell<Option<Job>>);

// SAFETY: written only by the caller while the doors are closed and nobody is inside, read only by
// workers inside, as the methods demand; and a `Job` points to a closure that is `Sync`.
unsafe impl Sync for JobSlot {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for JobSlot {}

impl JobSlot {
    pub(super) fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Puts down the job of the next run, or takes that of the last away.
    ///
    /// # Safety
    ///
    /// The doors are closed, nobody is inside, and this is the only caller.
    pub(super) unsafe fn set(&self, job: Option<Job>) {
        // SAFETY: nobody else reads or writes it, as promised.
        unsafe { *self.0.get() = job }
    }

    /// The job of this run.
    ///
    /// # Safety
    ///
    /// The calling thread has entered the doors and not left them.
    pub(super) unsafe fn get(&self) -> Option<Job> {
        // SAFETY: nobody writes it while somebody is inside, as promised.
        unsafe { *self.0.get() }
    }
}
