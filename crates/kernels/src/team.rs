//! A thread team, not a task queue.
//!
//! ```text
//! caller    publish job, epoch += 1, unpark sleepers | f(0) | spin, then park until n_busy = 0
//! worker t  spin on epoch, then park                 | f(t) | n_busy -= 1, last unparks caller
//! ```
//!
//! One wake per [`ThreadTeam::run`]. Waiting spins for a bounded time (decode operations follow
//! each other within microseconds) and then parks, so an idle team costs nothing and a machine with
//! fewer free cores than threads still makes progress: the spin yields the core after its first
//! part. Work inside a run is handed out in tiles from an atomic counter
//! ([`ThreadTeam::for_each_tile`]), so one slow core does not hold up the rest.
//!
//! Threads are pinned, one per allowed core, when the team is as large as the set of allowed
//! cores; a smaller team floats, because the core it would be pinned to may be busy with another
//! program while others are idle.
//!
//! Considered and not taken (reasoned, not measured): condition variables (two system calls per
//! wake and per join); spinning without end (on shared cores it takes the time slice from the very
//! thread it waits for).

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Spins with a pause instruction before the first yield: about 10 microseconds.
const N_SPINS: u32 = 400;
/// Yields after the spins and before parking.
const N_YIELDS: u32 = 40;
/// Most threads a team may have.
const MAX_THREADS: usize = 1024;

/// A fixed set of threads that run one closure together.
pub struct ThreadTeam {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a run: a second caller waits for the first to finish.
    running: Mutex<()>,
}

/// A closure on the caller's stack, with its lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

// SAFETY: a `Job` points to a closure that is `Sync` (demanded by `run`), and `run` does not return
// before every worker is done with it.
unsafe impl Send for Job {}

struct Shared {
    /// Incremented once per run; workers wait for it to change.
    epoch: AtomicUsize,
    /// Workers that have not finished the current run.
    n_busy: AtomicUsize,
    stop: AtomicBool,
    /// Written by the caller before `epoch` changes; read by workers after.
    job: Mutex<Option<Job>>,
    /// Caller of the current run, to be unparked by the last worker.
    caller: Mutex<Option<Thread>>,
    /// `parked[t]` is set while worker `t + 1` is about to park or parked.
    parked: Vec<AtomicBool>,
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
        let n_threads = n_threads.clamp(1, MAX_THREADS);
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            n_busy: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            job: Mutex::new(None),
            caller: Mutex::new(None),
            parked: (1..n_threads).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        let cores = allowed_cores();
        let pin = n_threads > 1 && cores.len() == n_threads;
        let mut workers = Vec::with_capacity(n_threads - 1);
        for thread in 1..n_threads {
            let shared = Arc::clone(&shared);
            let core = cores.get(thread).copied().filter(|_| pin);
            let worker =
                std::thread::Builder::new().name(format!("team-{thread}")).spawn(move || {
                    if let Some(core) = core {
                        pin_to(core);
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
        if self.workers.is_empty() {
            return f(0);
        }
        let _inside = Inside::enter(&self.shared);
        unsafe fn call<F: Fn(usize)>(data: *const (), thread: usize) {
            // SAFETY: `data` points to an `F` that outlives the run, see `Job`.
            unsafe { (*data.cast::<F>())(thread) }
        }
        let _running = lock(&self.running);
        let shared = &*self.shared;
        *lock(&shared.job) = Some(Job { data: (&raw const f).cast(), call: call::<F> });
        *lock(&shared.caller) = Some(std::thread::current());
        shared.n_busy.store(self.workers.len(), Ordering::Relaxed);
        // SeqCst: ordered against the workers' `parked` stores, so that either we see a worker
        // parked or it sees the new epoch.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        // Every worker must be done with `f` before this frame may unwind or return.
        wait_until(|| shared.n_busy.load(Ordering::Acquire) == 0, None);
        *lock(&shared.job) = None;
        let theirs = lock(&shared.panic).take();
        drop(_running);
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
        self.run(|_| {
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
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
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
        let is_new = || shared.epoch.load(Ordering::SeqCst) != seen;
        wait_until(is_new, Some(&shared.parked[thread - 1]));
        seen = shared.epoch.load(Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = lock(&shared.job).expect("invariant: a run publishes its job before its epoch");
        // SAFETY: the caller of `run` waits for `n_busy`, decremented below, so the closure is
        // alive.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, thread) }));
        if let Err(payload) = result {
            lock(&shared.panic).get_or_insert(payload);
        }
        if shared.n_busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A caller that spun may be gone, and another may have come: it is woken for nothing,
            // which its wait allows for. One that sleeps is still there, and is the one to wake.
            if let Some(caller) = &*lock(&shared.caller) {
                caller.unpark();
            }
        }
    }
}

/// Spins, then yields, then parks until `done`; sets `parked` around the parking.
fn wait_until(done: impl Fn() -> bool, parked: Option<&AtomicBool>) {
    for spin in 0..N_SPINS + N_YIELDS {
        if done() {
            return;
        }
        if spin < N_SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
    if let Some(parked) = parked {
        parked.store(true, Ordering::SeqCst);
    }
    while !done() {
        std::thread::park();
    }
    if let Some(parked) = parked {
        parked.store(false, Ordering::SeqCst);
    }
}

/// Locks, ignoring poison: no lock of this module is held while foreign code runs, except
/// `running`, which guards nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads to use when nobody says: the cores this process may run on, or fewer when the
/// container's CPU quota pays for fewer; at least 1.
pub fn default_threads() -> usize {
    let n_cores = match allowed_cores().len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    n_cores.min(cgroup_quota_cores().unwrap_or(usize::MAX)).clamp(1, MAX_THREADS)
}

/// Cores in the affinity mask of the calling thread; empty when the system does not say.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<usize> {
    // SAFETY: an all-zero `cpu_set_t` is a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer and the size describe `set`.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: `core` is below CPU_SETSIZE, the number of bits of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> Vec<usize> {
    Vec::new()
}

/// Pins the calling thread to `core`; without effect where that is refused.
#[cfg(target_os = "linux")]
fn pin_to(core: usize) {
    // SAFETY: an all-zero `cpu_set_t` is a valid empty set, and `core` came from a set of this
    // type.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        set
    };
    // SAFETY: the pointer and the size describe `set`; a refusal leaves the thread floating.
    let _ = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

#[cfg(not(target_os = "linux"))]
fn pin_to(_core: usize) {}

/// Whole cores paid for by the cgroup's CPU quota (v2, then v1), rounded up; `None` = no quota.
fn cgroup_quota_cores() -> Option<usize> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    if let Some(text) = read("/sys/fs/cgroup/cpu.max") {
        return parse_cpu_max(&text);
    }
    let quota = read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
    let period = read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")?;
    parse_cpu_max(&format!("{} {}", quota.trim(), period.trim()))
}

/// Parses `"<quota> <period>"` in microseconds; `max` or a negative quota means none.
fn parse_cpu_max(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<u64>().ok()?, period.trim().parse::<u64>().ok()?);
    let n_cores = quota.div_ceil(period.max(1)).max(1);
    usize::try_from(n_cores).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_once_per_run() {
        for n_threads in [1, 2, 3, 8] {
            let team = ThreadTeam::new(n_threads);
            let counts: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..200 {
                team.run(|thread| {
                    counts[thread].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 200), "{counts:?}");
        }
    }

    #[test]
    fn every_tile_is_handed_out_exactly_once() {
        let team = ThreadTeam::new(5);
        for n_tiles in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..n_tiles).map(|_| AtomicUsize::new(0)).collect();
            team.for_each_tile(n_tiles, |tile| {
                counts[tile].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{n_tiles}");
        }
    }

    #[test]
    fn a_panic_on_any_thread_reaches_the_caller_and_the_team_lives_on() {
        let team = ThreadTeam::new(3);
        for unlucky in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(|thread| assert_ne!(thread, unlucky, "unlucky {thread}"));
            }));
            let payload = result.expect_err("the panic must reach the caller");
            let message = payload.downcast_ref::<String>().expect("a formatted message");
            assert!(message.contains(&format!("unlucky {unlucky}")), "{message}");
            let sum = AtomicUsize::new(0);
            team.run(|thread| {
                sum.fetch_add(thread, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 3);
        }
    }

    #[test]
    fn running_a_team_from_inside_its_own_job_is_a_panic_and_not_a_deadlock() {
        let (team, other) = (ThreadTeam::new(2), ThreadTeam::new(2));
        for thread in 0..2 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(|t| {
                    if t == thread {
                        team.run(|_| {});
                    }
                });
            }));
            let payload = result.expect_err("the panic must reach the caller");
            let message = payload.downcast_ref::<&str>().expect("a message");
            assert!(message.contains("from inside its job"), "{message}");
        }
        let sum = AtomicUsize::new(0);
        team.run(|_| {
            other.run(|t| {
                sum.fetch_add(t + 1, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 6, "another team may run");
    }

    #[test]
    fn callers_on_several_threads_are_served_one_after_another() {
        let team = ThreadTeam::new(2);
        let n_inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        team.run(|_| {
                            assert!(n_inside.fetch_add(1, Ordering::SeqCst) < 2);
                            n_inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn a_cpu_quota_rounds_up_to_whole_cores() {
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("-1 100000"), None);
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(2));
        assert_eq!(parse_cpu_max("1000 100000"), Some(1));
        assert_eq!(parse_cpu_max("nonsense"), None);
        assert!(default_threads() >= 1);
    }
}
