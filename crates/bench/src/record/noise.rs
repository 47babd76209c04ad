//! How much else ran on the machine while a benchmark ran.
//!
//! ```text
//! /proc/stat at the begin and at the end:   user + nice + system + irq + softirq   busy
//!                                           steal                                  stolen
//! others = busy − processor time of this process − that of a server under test on this machine
//! ```
//!
//! Shares are of the time of all processors. The host of a virtual machine takes what is stolen for
//! others, and memory that others read from is seen in neither.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Share of the processors from which other programs make a run noisy.
pub const MOST_OTHERS: f64 = 0.1;
/// Share of the processors from which a host that takes them makes a run noisy.
pub const MOST_STOLEN: f64 = 0.05;
/// Shortest run of which anything is said: the system counts in hundredths of a second.
const SHORTEST_S: f64 = 0.2;

/// Processors while a benchmark ran.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Noise {
    /// Length of the run.
    pub seconds: f64,
    /// Share of the processors that other programs used; absent where a server under test runs on
    /// this machine and publishes no processor time.
    pub others_share: Option<f64>,
    /// Share of the processors that the host of this machine kept for others.
    pub stolen_share: f64,
    /// Whether one of the shares is too large for the figures to hold on a quiet machine.
    pub is_noisy: bool,
}

/// The program that did the work that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Worker {
    /// This process, or a server on another machine.
    OwnOrElsewhere,
    /// A server on this machine, with the processor seconds that it published.
    Here(Option<f64>),
}

/// The processors at the begin of a run.
#[derive(Clone, Copy, Debug)]
pub struct NoiseWatch {
    began: Instant,
    begin: Option<Reading>,
}

/// Counters of the processors, and processor seconds of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    n_processors: usize,
    /// Ticks in all states.
    total: u64,
    busy: u64,
    stolen: u64,
    own_s: f64,
}

impl NoiseWatch {
    /// Begins to watch.
    pub fn begin() -> Self {
        Self { began: Instant::now(), begin: Reading::now() }
    }

    /// The noise until now; `None` where the system does not count or the run was too short.
    pub fn end(self, worker: Worker) -> Option<Noise> {
        let seconds = self.began.elapsed().as_secs_f64();
        Noise::between(&self.begin?, &Reading::now()?, seconds, worker)
    }
}

impl Noise {
    fn between(from: &Reading, to: &Reading, seconds: f64, worker: Worker) -> Option<Self> {
        let total = to.total.checked_sub(from.total).filter(|total| *total > 0)? as f64;
        if seconds < SHORTEST_S || to.n_processors == 0 {
            return None;
        }
        let share = |from: u64, to: u64| to.saturating_sub(from) as f64 / total;
        let of_seconds = |s: f64| s / (seconds * to.n_processors as f64);
        let served_s = match worker {
            Worker::OwnOrElsewhere => Some(0.0),
            Worker::Here(seconds) => seconds,
        };
        let own = of_seconds(to.own_s - from.own_s);
        let others_share = served_s.map(|served_s| {
            (share(from.busy, to.busy) - own - of_seconds(served_s)).clamp(0.0, 1.0)
        });
        let stolen_share = share(from.stolen, to.stolen);
        let is_noisy =
            others_share.is_some_and(|share| share >= MOST_OTHERS) || stolen_share >= MOST_STOLEN;
        Some(Self { seconds, others_share, stolen_share, is_noisy })
    }

    /// The noise in one line.
    pub fn words(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let others = match self.others_share {
            Some(share) => format!("other programs took {} of the processors", percent(share)),
            None => "other programs are not told from the server, which runs here".to_owned(),
        };
        let stolen = percent(self.stolen_share);
        let verdict = if self.is_noisy { "a noisy minute" } else { "a quiet minute" };
        format!("{verdict}: {others}, the host of this machine {stolen}")
    }
}

impl Reading {
    fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let own_s = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        Some(Self { own_s, ..Self::parse(&text)? })
    }

    /// Reads `/proc/stat`.
    fn parse(text: &str) -> Option<Self> {
        let n_processors = text.lines().filter(|line| {
            line.strip_prefix("cpu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        let n_processors = n_processors.count();
        let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Option<Vec<u64>> =
            all.split_ascii_whitespace().take(8).map(|word| word.parse().ok()).collect();
        // Time of guests, which follows, is part of `user` and `nice`.
        let [user, nice, system, idle, wait, irq, softirq, stolen] = *ticks?.as_array()?;
        let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
        let total = [busy, idle, wait, stolen].into_iter().fold(0, u64::saturating_add);
        Some(Self { n_processors, total, busy, stolen, own_s: 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 10 40 800 20 3 7 20 55 0\ncpu0 50 5 20 400 10 1 3 10 0 0\n\
                        cpu1 50 5 20 400 10 2 4 10 0 0\nintr 5\ncpu_other 1\n";

    fn reading(busy: u64, stolen: u64, total: u64, own_s: f64) -> Reading {
        Reading { n_processors: 2, total, busy, stolen, own_s }
    }

    #[test]
    fn the_counters_of_the_system_are_read() {
        let read = Reading::parse(STAT).expect("counters");
        assert_eq!(read, reading(160, 20, 1000, 0.0));
        for broken in ["", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3\n", "cpu  1 2 x 4 5 6 7 8\n"] {
            assert_eq!(Reading::parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn time_of_others_is_what_neither_this_process_nor_its_server_used() {
        // Ten seconds of two processors: 1,200 of 2,000 ticks busy, 40 stolen.
        let (from, to) = (reading(500, 60, 10_000, 1.0), reading(1_700, 100, 12_000, 9.0));
        let noise = |worker| Noise::between(&from, &to, 10.0, worker).expect("long enough");
        let near = |x: f64, y: f64| (x - y).abs() < 1e-9;
        let own = noise(Worker::OwnOrElsewhere);
        assert!(own.others_share.is_some_and(|share| near(share, 0.2)), "{own:?}");
        assert!(near(own.stolen_share, 0.02) && own.is_noisy, "{own:?}");
        let here = noise(Worker::Here(Some(3.0)));
        assert!(here.others_share.is_some_and(|share| near(share, 0.05)), "{here:?}");
        assert!(!here.is_noisy && here.words().contains("quiet"), "{}", here.words());
        let unknown = noise(Worker::Here(None));
        assert_eq!((unknown.others_share, unknown.is_noisy), (None, false));
        let stolen =
            Noise::between(&from, &reading(1_300, 180, 12_000, 9.0), 10.0, Worker::Here(None));
        let stolen = stolen.expect("long enough");
        assert!(stolen.is_noisy && stolen.words().contains("a noisy minute"), "{}", stolen.words());
    }

    #[test]
    fn nothing_is_said_of_a_moment_or_of_counters_that_stand_still() {
        let (from, to) = (reading(0, 0, 0, 0.0), reading(10, 0, 20, 0.0));
        let between = |from, to, seconds| Noise::between(from, to, seconds, Worker::OwnOrElsewhere);
        assert_eq!(between(&from, &to, 0.1), None);
        assert_eq!(between(&to, &to, 1.0), None);
        assert_eq!(between(&to, &from, 1.0), None);
    }
}
