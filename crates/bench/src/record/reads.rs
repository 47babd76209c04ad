//! The speed of memory while a benchmark ran, beside what `pelton doctor` found.
//!
//! No counter of the processors shows what other programs read from memory, and the host of a
//! virtual machine may place its processors so that they share a path to memory at one time and not
//! at another.

use serde::{Deserialize, Serialize};

use super::Machine;

/// The factor from which two speeds of one machine differ.
const MOST_FACTOR: f64 = 1.25;

/// Reads from memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reads {
    /// Threads that read.
    pub n_threads: usize,
    /// Bytes per second of all of them, the median of what was measured.
    pub bytes_per_s: f64,
}

/// Reads of a run, and those of the baseline.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct BesideBaseline {
    /// Bytes per second while the benchmark ran.
    pub bytes_per_s: f64,
    /// Bytes per second that `pelton doctor` measured.
    pub baseline_bytes_per_s: f64,
}

impl BesideBaseline {
    /// `None` where either was not measured, or with other threads.
    pub(super) fn of(reads: Option<Reads>, machine: &Machine) -> Option<Self> {
        let Reads { n_threads, bytes_per_s } = reads?;
        let baseline_bytes_per_s = machine.baseline.as_ref()?.read_bytes_per_s;
        (n_threads == machine.threads).then_some(Self { bytes_per_s, baseline_bytes_per_s })
    }

    /// Whether the two are so far apart that figures of one do not hold at the other.
    pub fn differs(&self) -> bool {
        let factor = self.bytes_per_s / self.baseline_bytes_per_s;
        !(1.0 / MOST_FACTOR..=MOST_FACTOR).contains(&factor)
    }

    /// Both in one line.
    pub fn words(&self) -> String {
        let [now, then] = [self.bytes_per_s, self.baseline_bytes_per_s].map(|speed| speed / 1e9);
        format!(
            "memory gave {now:.1} GB/s meanwhile, and {then:.1} when `pelton doctor` measured this machine"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Baseline;

    #[test]
    fn memory_that_is_slower_or_faster_than_the_baseline_is_told() {
        let baseline = Baseline { read_bytes_per_s: 50e9, ..Baseline::default() };
        let machine = Machine { threads: 2, baseline: Some(baseline), ..Machine::default() };
        for (speed, differs) in
            [(39e9, true), (41e9, false), (62e9, false), (88e9, true), (f64::NAN, true)]
        {
            let reads = Some(Reads { n_threads: 2, bytes_per_s: speed });
            let beside = BesideBaseline::of(reads, &machine).expect("both are known");
            assert_eq!(beside.differs(), differs, "{}", beside.words());
        }
        let reads = Reads { n_threads: 2, bytes_per_s: 39e9 };
        let beside = BesideBaseline::of(Some(reads), &machine).expect("both are known");
        assert!(
            beside.words().contains("39.0 GB/s meanwhile, and 50.0 when"),
            "{}",
            beside.words()
        );
        let alone = Reads { n_threads: 1, ..reads };
        assert_eq!(
            BesideBaseline::of(Some(alone), &machine),
            None,
            "one thread reads less than two"
        );
        assert_eq!(BesideBaseline::of(None, &machine), None);
        assert_eq!(BesideBaseline::of(Some(reads), &Machine { baseline: None, ..machine }), None);
    }
}
