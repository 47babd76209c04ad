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
//! Work is handed out in tiles, from one atomic counter ([`ThreadTeam::for_each_tile`]) or from one
//! for each thread's share of neighbouring tiles ([`ThreadTeam::for_each_tile_of_table`]). In both,
//! a thread without work takes the next tile, so one slow core does not hold up the rest; and when
//! the tiles are gone the caller closes the doors and waits only for workers that came in. A worker
//! whose core is busy with another program, and which was therefore never scheduled, is not waited
//! for.
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
//! stays keeps its caches. A smaller team floats, because the core it would be pinned to may be
//! busy with another program while others are idle. The same holds for a team of the performance
//! cores of a hybrid machine: the system's scheduler knows these cores and the other programs on
//! them.
//!
//! The caller is never pinned, because its thread does not belong to the team. An affinity mask
//! outlives the team unless each run pays two system calls to set and restore it; all threads that
//! the caller starts later inherit it (they would crowd on one core, and [`default_threads`] would
//! return 1 there); and callers may change from run to run. Pinned workers leave the first core
//! free, and the system moves a floating caller to that idle core.
//!
//! # The files
//!
//! [`doors`] is the protocol of a run, [`turns`] the order of several users, [`shares`] the order
//! of tiles, [`rest`] how threads wait, [`job`] the closure between the threads, [`topology`] (on
//! [`cpu_list`], [`quota`] and [`affinity`]) what the machine is.
//!
//! Tried and dropped: waiting for every worker in every run (with one of two cores taken by another
//! program, decoding a small model on two threads was several times slower than on one); condition
//! variables (two system calls per wake and per join); spinning without end (on shared cores it
//! takes the time slice from the very thread it waits for).

mod affinity;
mod cpu_list;
mod doors;
mod job;
mod parts;
mod quota;
mod rest;
mod shares;
mod topology;
mod turns;

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
use shares::Shares;
use turns::Turns;

pub(crate) use parts::Parts;
pub use rest::StayAwake;
pub use topology::Topology;
pub use turns::Turn;

/// Most threads a team may have.
const MAX_THREADS: usize = 1024;

/// A fixed set of threads that run one closure together.
pub struct ThreadTeam {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a run: a second caller waits for the first to finish.
    running: Mutex<()>,
}

/// State shared by the caller and the workers.
struct Shared {
    doors: Doors,
    /// Written by the caller before the doors open; read by workers that entered.
    job: JobSlot,
    /// Whether waiting threads may park.
    rest: Rest,
    /// Order in which users compute.
    turns: Turns,
    /// The place where the caller of the current run sleeps until the last worker inside wakes it.
    caller: Parking,
    /// `parking[t]` is the place where worker `t + 1` sleeps.
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
    /// Starts a team of `n_threads` (0 counts as 1, at most 1024); the caller of
    /// [`run`](Self::run) counts as one of them.
    ///
    /// If the system refuses to start a thread, the team has the threads started so far.
    pub fn new(n_threads: usize) -> Self {
        Self::behind(Doors::new(), n_threads)
    }

    fn behind(doors: Doors, n_threads: usize) -> Self {
        let n_threads = n_threads.clamp(1, MAX_THREADS);
        let shared = Arc::new(Shared {
            doors,
            job: JobSlot::new(),
            rest: Rest::default(),
            turns: Turns::default(),
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
    /// The caller is thread 0. A second caller waits until the run of the first one has ended.
    ///
    /// # Panics
    ///
    /// Panics with the payload of the first panic of `f`, after all threads have finished; the
    /// team stays usable. A team of more than one thread also panics when `f` itself starts a run,
    /// because that run would wait for its own end.
    pub fn run<F: Fn(usize) + Sync>(&self, f: F) {
        self.open(&f, true);
    }

    /// Runs `f(0)` on the caller, and `f(t)` at most once on each other thread `t` that becomes
    /// free before the caller's own `f(0)` has returned.
    ///
    /// `f` must therefore complete all the work on any subset of the threads, for example by taking
    /// tiles from a counter until none is left.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn run_on_whoever_comes<F: Fn(usize) + Sync>(&self, f: F) {
        self.open(&f, false);
    }

    /// Keeps idle workers, and a caller that waits for them, from parking while the returned guard
    /// lives: they spin, and yield now and then, until the next run.
    ///
    /// Hold it over many short runs, such as one forward pass: only the first run has to wake
    /// sleeping workers. It costs two atomic additions, and it occupies the team's cores while it
    /// lives. A leaked guard occupies them until the team is dropped, and does no other harm.
    pub fn stay_awake(&self) -> StayAwake {
        self.shared.rest.stay_awake()
    }

    /// Waits until it is this thread's turn to use the team, and keeps other users, and sleep, away
    /// until the guard is dropped.
    ///
    /// A decoder holds a turn for one forward pass; where several models share a team, their passes
    /// alternate in the order in which they ask. Runs without a turn are not held up, and wait only
    /// for single runs. No user may wait during a turn for another user of the same team.
    ///
    /// Allocates nothing.
    ///
    /// # Panics
    ///
    /// When this thread has a turn with this team already: it would wait for itself.
    pub fn turn(&self) -> Turn {
        Turn::take(&self.shared)
    }

    /// One run; with `everybody` it also waits for workers that have not entered yet.
    ///
    /// Not generic, so that it is compiled once and not for every operation.
    fn open(&self, f: &(dyn Fn(usize) + Sync), everybody: bool) {
        if self.workers.is_empty() {
            return f(0);
        }
        let shared = &*self.shared;
        let _inside = Inside::enter(shared);
        let running = lock(&self.running);
        // SAFETY: we hold `running`, and the run before closed the doors and saw all workers leave.
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
        // SAFETY: we still hold `running`, the doors are closed, and all workers have left.
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

    /// Calls `f(tile)` once for each tile in `0..n_tiles`; a free thread takes the next tile.
    ///
    /// With one tile or none the caller does the work alone.
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

    /// Calls `f(tile)` once for each tile of a table, counted row by row. Each thread takes
    /// neighbouring columns, and these in order, one row after the other, before it helps other
    /// threads.
    ///
    /// For tiles whose data lie one behind the other in a row and are the same in a column.
    ///
    /// # Panics
    ///
    /// As [`for_each_tile`](Self::for_each_tile).
    pub fn for_each_tile_of_table<F: Fn(usize) + Sync>(
        &self,
        n_rows: usize,
        n_columns: usize,
        f: F,
    ) {
        let n_tiles = n_rows * n_columns;
        if n_tiles <= 1 || self.workers.is_empty() {
            return (0..n_tiles).for_each(f);
        }
        let shares = Shares::new(n_rows, n_columns, self.n_threads());
        self.run_on_whoever_comes(|thread| {
            while let Some(tile) = shares.take(thread) {
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
            // A worker catches the panics of its jobs and cannot panic outside of them.
            let _ = worker.join();
        }
    }
}

thread_local! {
    /// Address of the team whose job this thread runs; null between jobs.
    static AT_WORK: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// Marks this thread as running a job of a team, until dropped.
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

/// Loop of worker `thread`, until the team ends.
fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    let _inside = Inside::enter(shared);
    loop {
        shared.rest.wait_until(&shared.parking[thread - 1], || {
            let doors = shared.doors.look();
            doors.epoch() != seen || doors.is_stopped()
        });
        // Where the doors have closed meanwhile, the run went on without this worker.
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

/// Locks and ignores poison: no lock of this module is held while foreign code runs, except
/// `running`, which protects no data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Default number of threads: one per physical core that this process may run on, without the
/// efficiency cores where there are faster ones; fewer when the container's CPU quota pays for
/// fewer; at least 1.
pub fn default_threads() -> usize {
    Topology::of_this_process().default_threads()
}

#[cfg(test)]
mod tests;
