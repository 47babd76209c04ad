//! Every interleaving of one caller and two workers, in a model of the team whose word is the real
//! one. All accesses are sequentially consistent, so an interleaving is all that can happen.

use std::collections::HashSet;

use super::*;

const N_WORKERS: usize = 2;

/// The members that the caller demands for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Run {
    Everybody,
    WhoeverComes,
}
use Run::{Everybody, WhoeverComes};

/// A mistake that the walk must find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A thread parks without looking once more after announcing it.
    ParksWithoutLooking,
    /// The caller returns as soon as the doors are closed.
    DoesNotWait,
    /// Workers look for another epoch only, and not for the end.
    DoesNotSeeTheEnd,
    /// The last to leave wakes nobody.
    LeavesInSilence,
}

/// A thread that waits: whether it announced that it parks, and whether it was unparked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Parking {
    parked: bool,
    token: bool,
}

impl Parking {
    fn wake(&mut self) {
        self.token |= self.parked;
    }
}

/// The next step of a thread that waits for something.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Wait {
    Look,
    Announce,
    LookAgain,
    Park,
    Rise,
}

impl Wait {
    /// Does the step; `None` when it cannot be done now, `Some(None)` after the last.
    fn step(self, parking: &mut Parking, done: bool, fault: Fault) -> Option<Option<Self>> {
        Some(match self {
            Self::Look if done => None,
            Self::Look => Some(Self::Announce),
            Self::Announce => {
                parking.parked = true;
                let looks = fault != Fault::ParksWithoutLooking;
                Some(if looks { Self::LookAgain } else { Self::Park })
            }
            Self::LookAgain => Some(if done { Self::Rise } else { Self::Park }),
            Self::Park if !parking.token => return None,
            Self::Park => {
                parking.token = false;
                Some(Self::LookAgain)
            }
            Self::Rise => {
                parking.parked = false;
                None
            }
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    Open,
    Wake(usize),
    WaitForAll(Wait),
    Close,
    WaitForThoseInside(Wait),
    Free,
    Stop,
    WakeToStop(usize),
    Join,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Worker {
    WaitForRun(Wait),
    Enter,
    AtWork,
    Leave,
    WakeCaller,
    Home,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    word: Word,
    run: usize,
    /// The run whose job may be called.
    job: Option<usize>,
    caller: Caller,
    caller_parking: Parking,
    workers: [(Worker, Parking, u64); N_WORKERS],
    /// Which workers did the current run.
    did: [bool; N_WORKERS],
}

impl State {
    fn new(runs: &[Run]) -> Self {
        let worker = (Worker::WaitForRun(Wait::Look), Parking::default(), 0);
        Self {
            word: Word(0),
            run: 0,
            job: None,
            caller: if runs.is_empty() { Caller::Stop } else { Caller::Open },
            caller_parking: Parking::default(),
            workers: [worker; N_WORKERS],
            did: [false; N_WORKERS],
        }
    }

    fn is_over(&self) -> bool {
        self.caller == Caller::Join && self.workers.iter().all(|worker| worker.0 == Worker::Home)
    }

    /// The state after a step of the caller; `None` if it can do none.
    fn step_caller(&self, runs: &[Run], fault: Fault) -> Option<Self> {
        let mut next = self.clone();
        let word = self.word;
        next.caller = match self.caller {
            Caller::Open => {
                next.job = Some(self.run);
                next.did = [false; N_WORKERS];
                next.word = word.opened();
                Caller::Wake(0)
            }
            Caller::Wake(worker) if worker < N_WORKERS => {
                next.workers[worker].1.wake();
                Caller::Wake(worker + 1)
            }
            Caller::Wake(_) if runs[self.run] == Everybody => Caller::WaitForAll(Wait::Look),
            Caller::Wake(_) => Caller::Close,
            Caller::WaitForAll(wait) => {
                let done = word.n_left() == N_WORKERS as u64;
                let wait = wait.step(&mut next.caller_parking, done, fault)?;
                wait.map_or(Caller::Close, Caller::WaitForAll)
            }
            Caller::Close => {
                next.word = Word(word.0 & !OPEN);
                let waits = fault != Fault::DoesNotWait;
                if waits { Caller::WaitForThoseInside(Wait::Look) } else { Caller::Free }
            }
            Caller::WaitForThoseInside(wait) => {
                let wait = wait.step(&mut next.caller_parking, word.is_empty(), fault)?;
                wait.map_or(Caller::Free, Caller::WaitForThoseInside)
            }
            Caller::Free => {
                if runs[self.run] == Everybody {
                    assert_eq!(self.did, [true; N_WORKERS], "everybody ran");
                }
                next.job = None;
                next.run += 1;
                if next.run < runs.len() { Caller::Open } else { Caller::Stop }
            }
            Caller::Stop => {
                next.word = Word(word.0 | STOPPED);
                Caller::WakeToStop(0)
            }
            Caller::WakeToStop(worker) if worker < N_WORKERS => {
                next.workers[worker].1.wake();
                Caller::WakeToStop(worker + 1)
            }
            Caller::WakeToStop(_) => Caller::Join,
            Caller::Join => return None,
        };
        Some(next)
    }

    /// The state after a step of a worker; `None` if it can do none.
    fn step_worker(&self, worker: usize, fault: Fault) -> Option<Self> {
        let mut next = self.clone();
        let word = self.word;
        let (doing, parking, seen) = &mut next.workers[worker];
        *doing = match *doing {
            Worker::WaitForRun(wait) => {
                let sees_the_end = fault != Fault::DoesNotSeeTheEnd;
                let done = word.epoch() != *seen || (sees_the_end && word.is_stopped());
                wait.step(parking, done, fault)?.map_or(Worker::Enter, Worker::WaitForRun)
            }
            Worker::Enter => match word.entered() {
                Some(entered) => {
                    *seen = word.epoch();
                    next.word = entered;
                    Worker::AtWork
                }
                None if word.is_stopped() => Worker::Home,
                None => {
                    *seen = word.epoch();
                    Worker::WaitForRun(Wait::Look)
                }
            },
            Worker::AtWork => {
                assert_eq!(self.job, Some(self.run), "a worker is at a job that is gone");
                assert!(!self.did[worker], "a worker came twice");
                next.did[worker] = true;
                Worker::Leave
            }
            Worker::Leave => {
                next.word = Word(word.0 + LEFT);
                let wakes = next.word.is_empty() && fault != Fault::LeavesInSilence;
                if wakes { Worker::WakeCaller } else { Worker::WaitForRun(Wait::Look) }
            }
            Worker::WakeCaller => {
                next.caller_parking.wake();
                Worker::WaitForRun(Wait::Look)
            }
            Worker::Home => return None,
        };
        Some(next)
    }
}

/// Walks through all states that `runs` can reach; returns how many there are.
///
/// # Panics
///
/// When a worker is at a job that is gone or comes twice, when a run of everybody lacks somebody,
/// and when nobody can do a step before the end.
fn walk(runs: &[Run], fault: Fault) -> usize {
    let mut known = HashSet::from([State::new(runs)]);
    let mut open = vec![State::new(runs)];
    while let Some(state) = open.pop() {
        let mut is_stuck = true;
        let workers = (0..N_WORKERS).map(|worker| state.step_worker(worker, fault));
        for next in workers.chain([state.step_caller(runs, fault)]).flatten() {
            is_stuck = false;
            if known.insert(next.clone()) {
                open.push(next);
            }
        }
        assert!(!is_stuck || state.is_over(), "everybody waits for somebody");
    }
    known.len()
}

#[test]
fn no_interleaving_loses_a_worker_a_wake_or_a_job() {
    for runs in [
        &[][..],
        &[Everybody],
        &[WhoeverComes],
        &[Everybody, Everybody, Everybody],
        &[WhoeverComes, WhoeverComes, WhoeverComes],
        &[WhoeverComes, Everybody, WhoeverComes],
        &[Everybody, WhoeverComes, Everybody],
    ] {
        let n_states = walk(runs, Fault::None);
        assert!(n_states > 10 * (1 + runs.len()), "{n_states} states of {runs:?}");
    }
}

#[test]
fn the_walk_finds_mistakes() {
    let cases = [
        (Fault::ParksWithoutLooking, "everybody waits for somebody"),
        (Fault::DoesNotWait, "a worker is at a job that is gone"),
        (Fault::DoesNotSeeTheEnd, "everybody waits for somebody"),
        (Fault::LeavesInSilence, "everybody waits for somebody"),
    ];
    for (fault, expected) in cases {
        let found = std::panic::catch_unwind(|| walk(&[WhoeverComes, Everybody], fault));
        let payload = found.expect_err("the walk must find the mistake");
        let message = payload.downcast_ref::<String>().cloned();
        let message = message.or_else(|| payload.downcast_ref::<&str>().map(|&m| m.to_owned()));
        let message = message.expect("a message");
        assert!(message.contains(expected), "{fault:?}: {message}");
    }
}

#[test]
fn the_most_workers_a_team_may_have_fit_in_the_counts() {
    let doors = Doors::shortly_before_the_epoch_returns(1);
    for _ in 0..2 {
        doors.open();
        let epoch = doors.look().epoch();
        for _ in 1..MAX_THREADS {
            assert!(doors.enter().is_ok());
        }
        for n_left in 1..MAX_THREADS {
            assert!(!doors.look().is_empty());
            assert_eq!(doors.leave().n_left(), n_left as u64);
        }
        assert!(doors.look().is_empty() && !doors.look().is_stopped());
        doors.close();
        assert_eq!(doors.enter(), Err(doors.look()));
        assert_eq!(doors.look().epoch(), epoch, "counting does not reach the epoch");
    }
    assert_eq!(doors.look().epoch(), 1, "the epoch went through 0");
}
