//! A thread team, not a task queue.
//!
//! ```text
//! caller (thread 0)   publish job, open the doors, unpark sleepers | f(0) | close | wait for those inside
//! worker t            spin for open doors, then park               | enter, f(t), leave
//! ```
//!
//! One wake per run. Waiting spins for a bounded time (decode operations follow each other within
//! microseconds) and then parks, so an idle team costs nothing and a machine with fewer free cores
//! than threads still makes progress: the spin yields the core after its first part.
//!
//! Work is handed out in tiles from an atomic counter ([`ThreadTeam::for_each_tile`]), so one slow
//! core does not hold up the rest; and when the tiles are gone the caller closes the doors and waits
//! only for workers that came in. A worker whose core is busy with another program, and which was
//! therefore never scheduled, is not waited for.
//!
//! The doors are one word, so that entering and closing are atomic against each other:
//!
//! ```text
//! bits 63..32 epoch | 31 open | 30..16 workers that entered | 15..0 workers that left
//! ```
//!
//! Threads are pinned, one per allowed core, when the team is as large as the set of allowed
//! cores; a smaller team floats, because the core it would be pinned to may be busy with another
//! program while others are idle.
//!
//! Tried and dropped: waiting for every worker in every run (with one of two cores taken by another
//! program, decoding a small model on two threads was several times slower than on one); condition
//! variables (two system calls per wake and per join); spinning without end (on shared cores it
//! takes the time slice from the very thread it waits for).

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Spins with a pause instruction before the first yield: about 10 microseconds.
const N_SPINS: u32 = 400;
/// Yields after the spins and before parking.
const N_YIELDS: u32 = 40;
/// Most threads a team may have.
const MAX_THREADS: usize = 1024;

/// One run in the upper half of the doors.
const EPOCH: u64 = 1 << 32;
/// Workers may enter.
const OPEN: u64 = 1 << 31;
/// One worker that entered.
const ENTERED: u64 = 1 << 16;
/// One worker that left.
const LEFT: u64 = 1;

/// The number of the run.
fn epoch(doors: u64) -> u64 {
    doors / EPOCH
}

/// Workers that entered in this run.
fn n_entered(doors: u64) -> u64 {
    (doors & (OPEN - 1)) / ENTERED
}

/// Workers that left in this run.
fn n_left(doors: u64) -> u64 {
    doors & (ENTERED - 1)
}

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

// SAFETY: a `Job` points to a closure that is `Sync` (demanded by `open`), and `open` does not return
// before the doors are closed and every worker that entered has left.
unsafe impl Send for Job {}

struct Shared {
    /// Epoch, whether workers may enter, how many did and how many left; see the chapter.
    doors: AtomicU64,
    stop: AtomicBool,
    /// Written by the caller before the doors open; read by workers that entered.
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
            doors: AtomicU64::new(0),
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

    /// One run; `everybody` waits for workers that have not entered yet.
    fn open<F: Fn(usize) + Sync>(&self, f: F, everybody: bool) {
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
        // Nobody is inside and the doors are closed, so nobody else writes them. SeqCst: ordered
        // against the workers' `parked` stores, so that either we see a worker parked or it sees
        // the open doors.
        let closed = shared.doors.load(Ordering::SeqCst);
        shared.doors.store((epoch(closed) + 1).wrapping_mul(EPOCH) | OPEN, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        if everybody {
            let n_workers = self.workers.len() as u64;
            wait_until(|| n_left(shared.doors.load(Ordering::SeqCst)) == n_workers, None);
        }
        shared.doors.fetch_and(!OPEN, Ordering::SeqCst);
        // Every worker inside must be done with `f` before this frame may unwind or return.
        let is_empty = || {
            let doors = shared.doors.load(Ordering::SeqCst);
            n_left(doors) == n_entered(doors)
        };
        wait_until(is_empty, None);
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
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.doors.fetch_add(EPOCH, Ordering::SeqCst);
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
        let is_new = || epoch(shared.doors.load(Ordering::SeqCst)) != seen;
        wait_until(is_new, Some(&shared.parked[thread - 1]));
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // Enter, unless the doors have closed meanwhile; then this run went on without us.
        let enter = |doors: u64| (doors & OPEN != 0).then_some(doors + ENTERED);
        let entered = shared.doors.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter);
        seen = epoch(entered.unwrap_or_else(|doors| doors));
        if entered.is_err() {
            continue;
        }
        let job = lock(&shared.job).expect("invariant: a run publishes its job before it opens");
        // SAFETY: we entered and have not left, and the caller waits for that, so the closure is
        // alive.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, thread) }));
        if let Err(payload) = result {
            lock(&shared.panic).get_or_insert(payload);
        }
        let doors = shared.doors.fetch_add(LEFT, Ordering::SeqCst) + LEFT;
        if n_left(doors) == n_entered(doors) {
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
    fn no_tile_is_lost_or_late_whoever_comes() {
        // More threads than cores and tiny runs: workers come early, late and not at all.
        let team = ThreadTeam::new(6);
        let sums: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for run in 1..=5_000 {
            team.for_each_tile(3, |tile| {
                // Long enough for the caller to run out of tiles while others are still at theirs.
                (0..500).for_each(|_| std::hint::spin_loop());
                sums[tile].fetch_add(run, Ordering::Relaxed);
            });
            // Relaxed is enough only because the run itself orders its tiles before its return.
            let expected = run * (run + 1) / 2;
            assert!(sums.iter().all(|sum| sum.load(Ordering::Relaxed) == expected), "run {run}");
        }
        let n_came = AtomicUsize::new(0);
        team.run_on_whoever_comes(|_| {
            n_came.fetch_add(1, Ordering::Relaxed);
        });
        assert!((1..=6).contains(&n_came.into_inner()), "the caller always runs");
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
