//! Processor time, memory and open files of this process, where the system tells them in `/proc`.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::parts::{Parts, Seconds};

/// Ticks per second in `/proc`, the same on all processors that Pelton runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the figures of this process.
#[derive(Debug, Default)]
pub(super) struct Process {
    parts: Mutex<Parts>,
}

/// Figures of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    cpu_seconds: f64,
    /// Since the start of the machine.
    started_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
    n_threads: f64,
}

impl Figures {
    /// Reads `/proc/PID/stat` and `/proc/PID/status`; `None` where they are not as expected.
    fn read(stat: &str, status: &str) -> Option<Self> {
        // The second field is the program's name in brackets, which may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // Fields are counted from 1 in the manual, and the third is the first here.
        let field = |n: usize| fields.get(n - 3)?.parse::<f64>().ok();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches(" kB").parse::<f64>().ok()
        };
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS_PER_SECOND,
            started_seconds: field(22)? / TICKS_PER_SECOND,
            virtual_bytes: field(23)?,
            resident_bytes: kib("VmRSS:")? * 1024.0,
            n_threads: field(20)?,
        })
    }
}

impl Process {
    /// Processor time for models and for all else.
    fn encode_parts(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        process_seconds: f64,
    ) -> Result<(), fmt::Error> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let Seconds { model, serving } = parts.look(process_seconds);
        let help = "Processor time of models, and of all else that serves requests";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("pelton_cpu_seconds", help, None, kind)?;
        for (part, seconds) in [("model", model), ("serving", serving)] {
            let counter = ConstCounter::new(seconds);
            counter.encode(family.encode_family(&[("part", part)])?)?;
        }
        Ok(())
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let read = |name: &str| std::fs::read_to_string(name).ok();
        let files = read("/proc/self/stat").zip(read("/proc/self/status"));
        let figures = files.and_then(|(stat, status)| Figures::read(&stat, &status));
        let Some(figures) = figures else { return Ok(()) };
        let cpu = ConstCounter::new(figures.cpu_seconds);
        let (name, help) = ("process_cpu_seconds", "Processor time of user and system");
        cpu.encode(encoder.encode_descriptor(name, help, None, cpu.metric_type())?)?;
        self.encode_parts(&mut encoder, figures.cpu_seconds)?;
        let boot = read("/proc/stat").and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix("btime "))?.parse::<f64>().ok()
        });
        let n_files = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        for (name, help, value) in [
            (
                "process_start_time_seconds",
                "Start of the process, in seconds since 1970",
                boot.map(|boot| boot + figures.started_seconds),
            ),
            ("process_resident_memory_bytes", "Memory in use", Some(figures.resident_bytes)),
            ("process_virtual_memory_bytes", "Addresses in use", Some(figures.virtual_bytes)),
            ("process_threads", "Threads", Some(figures.n_threads)),
            ("process_open_fds", "Open files and connections", n_files),
        ] {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_may_hold_anything() {
        let stat = "7 (a) R 1) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 12 0 4200 8192 3 0";
        let figures = Figures::read(stat, "Name:\ta\nVmRSS:\t    2048 kB\n").expect("read");
        let expected = Figures {
            cpu_seconds: 2.0,
            started_seconds: 42.0,
            virtual_bytes: 8192.0,
            resident_bytes: 2_097_152.0,
            n_threads: 12.0,
        };
        assert_eq!(figures, expected);
        for bad in ["", "7 (a)", "7 (a) S 1"] {
            assert_eq!(Figures::read(bad, "VmRSS: 1 kB"), None);
        }
    }
}
