//! A thread team, not a task queue.
//!
//! ```text
//! caller (thread 0)   publish job, open the doors, wake sleepers | f(0) | close | wait for those inside
//! worker t            spin for open doors, then park             | enter, f(t), leave
//! ```
//!
//! One wake per run, or one per forward pass under a [`StayAwake`] guard. Waiting spins for a
//! bounded time (decode operations follow each other within microseconds) and then parks, so an
//! idle team costs nothing and a machine with fewer free cores than threads still makes progress:
//! the spin yields the core after its first part.
//!
//! Work is handed out in tiles from an atomic counter ([`ThreadTeam::for_each_tile`]), so one slow
//! core does not hold up the rest; and when the tiles are gone the caller closes the doors and waits
//! only for workers that came in. A worker whose core is busy with another program, and which was
//! therefore never scheduled, is not waited for.
//!
//! # Which thread runs where
//!
//! ```text
//! n_threads = all allowed logical CPUs     one thread on each
//! n_threads = all allowed physical cores   one thread on each core, on its first CPU
//! any other number                         the threads float
//! ```
//!
//! A team that covers the machine is pinned: there is no idle core to move to, and a worker that
//! stays keeps its caches. A smaller team floats, because the core it would be pinned to may be busy
//! with another program while others are idle; that holds for a team of the performance cores of a
//! hybrid machine too, whose scheduler knows these cores and also who else is on them.
//!
//! The caller is never pinned. Its thread is not ours: a mask outlives the team unless each run pays
//! two system calls to set and restore it, is inherited by all threads that the caller starts later
//! (which would all crowd on one core, and make [`default_threads`] answer 1 there), and callers may
//! change from run to run. Pinned workers leave the first core free, and that is where an idle core
//! draws a floating caller.
//!
//! # The files
//!
//! [`doors`] is the protocol of a run, [`rest`] how threads wait, [`job`] the closure between the
//! threads, [`topology`] (on [`cpu_list`], [`quota`] and [`affinity`]) what the machine is.
//!
//! Tried and dropped: waiting for every worker in every run (with one of two cores taken by another
//! program, decoding a small model on two threads was several times slower than on one); condition
//! variables (two system calls per wake and per join); spinning without end (on shared cores it
//! takes the time slice from the very thread it waits for).

mod affinity;
mod cpu_list;
mod doors;
mod job;
mod quota;
mod rest;
mod topology;

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use affinity::pin_to;
use doors::Doors;
use job::{Job, JobSlot};
use rest::{Parking, Rest};

pub use rest::StayAwake;
pub use topology::Topology;

/// Most threads a team may have.
const MAX_THREADS: usize = 1024;

/// A fixed set of threads that run one closure together.
pub struct ThreadTeam {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a run: a second caller waits for the first to finish.
    running: Mutex<()>,
}

/// What the caller and the workers have in common.
struct Shared {
    doors: Doors,
    /// Put down by the caller before the doors open; read by workers that entered.
    job: JobSlot,
    /// Whether waiting threads may park.
    rest: Rest,
    /// Where the caller of the current run sleeps, to be woken by the last worker inside.
    caller: Parking,
    /// `parking[t]` is where worker `t + 1` sleeps.
    parking: Vec<Parking>,
    /// First panic of the current run.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for ThreadTeam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadTeam").field("n_threads", &self.n_threads()).finish_non_exhaustive()
    }
}

impl ThreadTeam {
    /// Starts a team of `n_threads` (0 counts as 1, at most 1024), the caller of
    /// [`run`](Self::run) being one of them.
    ///
    /// If the system refuses a thread the team is as large as it allows.
    pub fn new(n_threads: usize) -> Self {
        Self::behind(Doors::new(), n_threads)
    }

    fn behind(doors: Doors, n_threads: usize) -> Self {
        let n_threads = n_threads.clamp(1, MAX_THREADS);
        let shared = Arc::new(Shared {
            doors,
            job: JobSlot::new(),
            rest: Rest::default(),
            caller: Parking::default(),
            parking: (1..n_threads).map(|_| Parking::default()).collect(),
            panic: Mutex::new(None),
        });
        let pins = if n_threads > 1 { Topology::of_this_process().pins(n_threads) } else { None };
        let mut workers = Vec::with_capacity(n_threads - 1);
        for thread in 1..n_threads {
            let shared = Arc::clone(&shared);
            let cpu = pins.as_ref().map(|pins| pins[thread]);
            let worker =
                std::thread::Builder::new().name(format!("team-{thread}")).spawn(move || {
                    if let Some(cpu) = cpu {
                        pin_to(cpu);
                    }
                    work(&shared, thread);
                });
            match worker {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        Self { shared, workers, running: Mutex::new(()) }
    }

    /// Number of threads that run each closure, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(t)` once on each thread `t` of the team and returns when all have finished.
    ///
    /// The caller is thread 0. A second caller waits until the first is served.
    ///
    /// # Panics
    ///
    /// Panics with the payload of the first panic of `f`, after all threads have finished; the
    /// team stays usable. On more than one thread it also panics when called from inside `f`, which
    /// would wait for itself.
    pub fn run<F: Fn(usize) + Sync>(&self, f: F) {
        self.open(f, true);
    }

    /// Runs `f(0)` on the caller and `f(t)` at most once on each other thread `t` that is free to
    /// come before the caller's own `f(0)` has returned.
    ///
    /// `f` must therefore do all the work on whichever threads it runs, for example by taking tiles
    /// from a counter until none is left.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn run_on_whoever_comes<F: Fn(usize) + Sync>(&self, f: F) {
        self.open(f, false);
    }

    /// Keeps idle workers, and a caller that waits for them, from parking for as long as any such
    /// guard lives: they spin, and yield now and then, until the next run.
    ///
    /// To be held over work of many short runs, such as one forward pass: workers that sleep are
    /// woken by its first run and by no other. Costs two atomic additions, and the team's cores while
    /// it lives. A guard that is leaked costs them until the team is dropped, and nothing else.
    pub fn stay_awake(&self) -> StayAwake {
        self.shared.rest.stay_awake()
    }

    /// One run; `everybody` waits for workers that have not entered yet.
    fn open<F: Fn(usize) + Sync>(&self, f: F, everybody: bool) {
        if self.workers.is_empty() {
            return f(0);
        }
        let shared = &*self.shared;
        let _inside = Inside::enter(shared);
        let running = lock(&self.running);
        // SAFETY: we hold `running`, and the run before closed the doors and saw everybody leave.
        unsafe { shared.job.set(Some(Job::new(&f))) };
        shared.doors.open();
        shared.parking.iter().for_each(|worker| shared.rest.wake(worker));
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        if everybody {
            let n_workers = self.workers.len() as u64;
            let all_left = || shared.doors.look().n_left() == n_workers;
            shared.rest.wait_until(&shared.caller, all_left);
        }
        shared.doors.close();
        // Every worker inside must be done with `f` before this frame may unwind or return.
        shared.rest.wait_until(&shared.caller, || shared.doors.look().is_empty());
        // SAFETY: we still hold `running`, the doors are closed, and all who entered have left.
        unsafe { shared.job.set(None) };
        let theirs = lock(&shared.panic).take();
        drop(running);
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if let Some(payload) = theirs {
            resume_unwind(payload);
        }
    }

    /// Calls `f(tile)` once for each tile in `0..n_tiles`, handed out in order to whichever thread
    /// is free.
    ///
    /// With one tile or none the team is not woken.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run); the tiles not yet handed out may then be skipped.
    pub fn for_each_tile<F: Fn(usize) + Sync>(&self, n_tiles: usize, f: F) {
        if n_tiles <= 1 || self.workers.is_empty() {
            return (0..n_tiles).for_each(f);
        }
        let next = AtomicUsize::new(0);
        self.run_on_whoever_comes(|_| {
            loop {
                let tile = next.fetch_add(1, Ordering::Relaxed);
                if tile >= n_tiles {
                    break;
                }
                f(tile);
            }
        });
    }
}

impl Drop for ThreadTeam {
    fn drop(&mut self) {
        self.shared.doors.stop();
        self.shared.parking.iter().for_each(|worker| self.shared.rest.wake(worker));
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs, so it cannot have one of its own to tell.
            let _ = worker.join();
        }
    }
}

thread_local! {
    /// The team whose job this thread is at, by address; null between jobs.
    static AT_WORK: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// Marks this thread as being at a team's job, until dropped.
struct Inside {
    /// A job of one team may run another team.
    outer: *const Shared,
}

impl Inside {
    fn enter(shared: &Shared) -> Self {
        let outer = AT_WORK.replace(shared);
        assert!(!std::ptr::eq(outer, shared), "invariant: a team is not run from inside its job");
        Self { outer }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        AT_WORK.set(self.outer);
    }
}

/// Life of worker `thread`.
fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    let _inside = Inside::enter(shared);
    loop {
        shared.rest.wait_until(&shared.parking[thread - 1], || {
            let doors = shared.doors.look();
            doors.epoch() != seen || doors.is_stopped()
        });
        // Enter, unless the doors have closed meanwhile; then this run went on without us.
        match shared.doors.enter() {
            Ok(doors) => seen = doors.epoch(),
            Err(doors) if doors.is_stopped() => return,
            Err(doors) => {
                seen = doors.epoch();
                continue;
            }
        }
        // SAFETY: we entered and have not left.
        let job = unsafe { shared.job.get() };
        let job = job.expect("invariant: a run publishes its job before it opens");
        // SAFETY: the caller waits for us to leave, so the closure is alive.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { job.call(thread) }));
        if let Err(payload) = result {
            lock(&shared.panic).get_or_insert(payload);
        }
        if shared.doors.leave().is_empty() {
            shared.rest.wake(&shared.caller);
        }
    }
}

/// Locks, ignoring poison: no lock of this module is held while foreign code runs, except
/// `running`, which guards nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads to use when nobody says: one per physical core this process may run on, efficiency cores
/// not counted where there are faster ones, or fewer when the container's CPU quota pays for fewer;
/// at least 1.
pub fn default_threads() -> usize {
    Topology::of_this_process().default_threads()
}

#[cfg(test)]
mod tests;
