//! The report as JSON and as a table.
//!
//! ```text
//! memory share      bytes per second / read bandwidth
//! arithmetic share  operations per second / the multiplier's ceiling
//! bound             the larger of the two: the ceiling that is nearer
//! ```

use std::fmt::Write as _;

use pelton_kernels::{Ceilings, Cpu, cpu_model, last_level_cache_bytes};
use serde::Serialize;

use super::Named;
use super::block::{Cost, Multiplier};
use super::timing::Timing;
use crate::bytes;
use crate::record::{Measure, Reads, Reported};
use crate::samples::Summary;
use crate::tuned::Tuned;

/// The machine, its ceilings and a row per measured call.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    /// Ceilings at the start, one entry per number of threads; the last is the team's.
    ceilings: Vec<Reading>,
    /// One row per measured call, in order.
    pub(super) rows: Vec<Row>,
    /// The ceilings of the team each time they were measured.
    readings: Vec<Reading>,
    /// Whether the caller stopped before the end.
    pub interrupted: bool,
}

/// The machine and settings of the measurement.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    cpu: String,
    kernels: &'static str,
    threads: usize,
    activation_group: &'static str,
    tuning: Tuned,
    /// Bytes; `None` if the system does not say.
    last_level_cache_bytes: Option<usize>,
}

impl Machine {
    /// This machine with these kernels and threads.
    pub(super) fn this(cpu: &Cpu) -> Self {
        Self {
            cpu: cpu_model(),
            kernels: cpu.kernels.name,
            threads: cpu.team.n_threads(),
            activation_group: cpu.activation_group.name(),
            tuning: Tuned(cpu.tuning),
            last_level_cache_bytes: last_level_cache_bytes(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Reading(#[serde(with = "CeilingsFields")] Ceilings);

/// The names of [`Ceilings`] in JSON.
#[derive(Serialize)]
#[serde(remote = "Ceilings")]
struct CeilingsFields {
    #[serde(rename = "threads")]
    n_threads: usize,
    #[serde(rename = "read_bytes_per_s")]
    read_bandwidth: f64,
    #[serde(rename = "int8_ops_per_s")]
    int8: f64,
    #[serde(rename = "bf16_ops_per_s")]
    bf16: Option<f64>,
    #[serde(rename = "f16_ops_per_s")]
    f16: Option<f64>,
    #[serde(rename = "f32_ops_per_s")]
    f32: f64,
}

/// One call of one block.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    operation: &'static str,
    variant: String,
    shape: String,
    rows: usize,
    /// Median.
    time_s: f64,
    spread_percent: f64,
    rounds: usize,
    bytes_per_s: Option<f64>,
    ops_per_s: Option<f64>,
    memory_percent: Option<f64>,
    arithmetic_percent: Option<f64>,
    /// `None` where a call has neither bytes nor operations.
    bound: Option<&'static str>,
    /// Share of the ceiling that `bound` names.
    percent: Option<f64>,
}

impl Row {
    /// Compares a timing with the ceilings measured around it.
    pub(super) fn new(named: &Named, cost: Cost, timing: Timing, ceilings: &Ceilings) -> Self {
        let peak = match named.block.multiplier {
            Multiplier::Int8 => ceilings.int8,
            // A product with 16-bit weights may be computed either way.
            Multiplier::Bf16 => ceilings.bf16.unwrap_or(0.0).max(ceilings.f32),
            Multiplier::F32 => ceilings.f32,
        };
        let rate = |n: usize| (n > 0).then(|| n as f64 / timing.seconds);
        let (bytes_per_s, ops_per_s) = (rate(cost.n_bytes), rate(cost.n_ops));
        let memory_percent = bytes_per_s.map(|rate| 100.0 * rate / ceilings.read_bandwidth);
        let arithmetic_percent = ops_per_s.map(|rate| 100.0 * rate / peak);
        let shares = [("memory", memory_percent), ("arithmetic", arithmetic_percent)];
        let nearer = shares
            .into_iter()
            .filter_map(|(name, share)| Some((name, share?)))
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        Self {
            operation: named.operation,
            variant: named.block.variant.clone(),
            shape: named.block.shape.clone(),
            rows: cost.n_rows,
            time_s: timing.seconds,
            spread_percent: timing.spread_percent,
            rounds: timing.n_rounds,
            bytes_per_s,
            ops_per_s,
            memory_percent,
            arithmetic_percent,
            bound: nearer.map(|(name, _)| name),
            percent: nearer.map(|(_, share)| share),
        }
    }

    fn render(&self) -> String {
        let giga = |rate: Option<f64>| rate.map_or_else(String::new, |x| format!("{:.1}", x / 1e9));
        let percent = self.percent.map_or_else(String::new, |x| format!("{x:.0} %"));
        let line = columns([
            self.operation,
            &self.variant,
            &self.shape,
            &self.rows.to_string(),
            &time(self.time_s),
            &format!("{:.0} %", self.spread_percent),
            &giga(self.bytes_per_s),
            &giga(self.ops_per_s),
            &percent,
            self.bound.unwrap_or_default(),
        ]);
        line.trim_end().to_owned()
    }
}

impl Report {
    /// A report without rows; `ceilings` are those of [`Ceilings::measure`].
    pub(super) fn new(machine: Machine, ceilings: Vec<Ceilings>) -> Self {
        let readings = ceilings.last().copied().map(Reading).into_iter().collect();
        let ceilings = ceilings.into_iter().map(Reading).collect();
        Self { machine, ceilings, rows: Vec::new(), readings, interrupted: false }
    }

    /// Notes another reading of the team's ceilings.
    pub(super) fn add_reading(&mut self, ceilings: Ceilings) {
        self.readings.push(Reading(ceilings));
    }

    /// The latest reading of the team's ceilings.
    pub(super) fn last_reading(&self) -> Ceilings {
        self.readings.last().expect("invariant: a report begins with a reading").0
    }

    /// The machine, its ceilings, and the head of the table.
    pub(super) fn render_head(&self) -> String {
        let Machine { cpu, kernels, threads, tuning, last_level_cache_bytes, .. } = &self.machine;
        let group = match self.machine.activation_group {
            "32" => String::new(),
            group => format!(", activations share scales in groups of {group}"),
        };
        let cache = last_level_cache_bytes.map_or_else(
            || "caches unknown".to_owned(),
            |n| format!("last-level cache {}", bytes(n as u64)),
        );
        let plural = if *threads == 1 { "" } else { "s" };
        let mut out = format!(
            "{cpu}\nkernels {kernels}, {threads} thread{plural}, {cache}{group}\n{tuning}\n\n"
        );
        line(&mut out, "threads   read GB/s   int8 GOP/s   bf16 GOP/s    f16 GOP/s    f32 GOP/s");
        for Reading(ceilings) in &self.ceilings {
            let [bf16, f16] = [ceilings.bf16, ceilings.f16]
                .map(|ceiling| ceiling.map_or_else(|| "-".to_owned(), giga));
            let [read, int8, f32] =
                [ceilings.read_bandwidth, ceilings.int8, ceilings.f32].map(giga);
            let n_threads = ceilings.n_threads;
            line(
                &mut out,
                &format!("{n_threads:>7} {read:>11} {int8:>12} {bf16:>12} {f16:>12} {f32:>12}"),
            );
        }
        out.push('\n');
        let names = ["operation", "variant", "shape", "M", "time", "spread", "GB/s", "GOP/s"];
        let [operation, variant, shape, rows, time, spread, gb, gop] = names;
        let head =
            [operation, variant, shape, rows, time, spread, gb, gop, "share", "of the ceiling of"];
        line(&mut out, &columns(head));
        out
    }

    /// The rows from `first` on.
    pub(super) fn render_rows(&self, first: usize) -> String {
        let mut out = String::new();
        for row in &self.rows[first..] {
            line(&mut out, &row.render());
        }
        out
    }

    /// The range of the ceilings over the run, which shows how steady the machine was.
    pub(super) fn render_end(&self) -> String {
        let range = |ceiling: fn(&Ceilings) -> f64| {
            let values = self.readings.iter().map(|Reading(ceilings)| ceiling(ceilings));
            let (least, most) = values
                .fold((f64::INFINITY, 0.0_f64), |(least, most), x| (least.min(x), most.max(x)));
            format!("{} to {}", giga(least), giga(most))
        };
        let mut out = String::from("\n");
        if self.interrupted {
            line(&mut out, "Interrupted: the rest was not measured.");
        }
        line(
            &mut out,
            &format!(
                "Ceilings in {} readings: memory {} GB/s, int8 {} GOP/s, f32 {} GOP/s.",
                self.readings.len(),
                range(|ceilings| ceilings.read_bandwidth),
                range(|ceilings| ceilings.int8),
                range(|ceilings| ceilings.f32),
            ),
        );
        out
    }
}

/// Names to the left, figures to the right.
fn columns(cells: [&str; 10]) -> String {
    let [operation, variant, shape, rows, time, spread, gb, gop, percent, bound] = cells;
    format!(
        "{operation:<10} {variant:<13} {shape:<22} {rows:>4} {time:>10} {spread:>7} {gb:>8} \
         {gop:>8} {percent:>6}  {bound}"
    )
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("invariant: writing to a String never fails");
}

fn giga(x: f64) -> String {
    format!("{:.1}", x / 1e9)
}

/// A time with the unit that keeps it between 1 and 1000.
fn time(seconds: f64) -> String {
    for (unit, factor) in [("s", 1.0), ("ms", 1e3), ("µs", 1e6)] {
        if seconds * factor >= 1.0 {
            return format!("{:.2} {unit}", seconds * factor);
        }
    }
    format!("{:.0} ns", seconds * 1e9)
}

impl Reported for Report {
    const KIND: &'static str = "kernels";

    fn measures(&self) -> Vec<Measure> {
        let time = |row: &Row| {
            let Row { operation, variant, shape, rows, time_s, .. } = row;
            let name = format!("{operation} {variant} {shape} {rows}");
            Measure::cost(name, "s", vec![*time_s])
        };
        self.rows.iter().map(time).collect()
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    fn threads(&self) -> Option<usize> {
        Some(self.machine.threads)
    }

    fn reads(&self) -> Option<Reads> {
        let n_threads = self.machine.threads;
        let all = self.readings.iter().filter(|Reading(ceilings)| ceilings.n_threads == n_threads);
        let speeds = Summary::new(all.map(|Reading(ceilings)| ceilings.read_bandwidth).collect())?;
        Some(Reads { n_threads, bytes_per_s: speeds.median })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kernels::block::Block;

    pub(in crate::kernels) const CEILINGS: Ceilings = Ceilings {
        n_threads: 2,
        read_bandwidth: 10e9,
        int8: 400e9,
        bf16: None,
        f16: Some(200e9),
        f32: 100e9,
    };

    fn row(multiplier: Multiplier, n_bytes: usize, n_ops: usize) -> Row {
        let block = Block {
            variant: "q8".to_owned(),
            shape: "[4, 4]".to_owned(),
            multiplier,
            calls: Box::new(|_, _| std::ops::ControlFlow::Continue(())),
        };
        let timing = Timing { seconds: 1e-3, spread_percent: 7.0, n_rounds: 3 };
        let cost = Cost { n_rows: 1, n_bytes, n_ops };
        Row::new(&Named { operation: "matmul", block }, cost, timing, &CEILINGS)
    }

    #[test]
    fn the_nearer_ceiling_is_the_bound() {
        // 5 GB/s of 10 and 40 GOP/s: a tenth of the int8 ceiling, two fifths of the f32 ceiling.
        let decode = row(Multiplier::Int8, 5_000_000, 40_000_000);
        assert_eq!((decode.bound, decode.percent), (Some("memory"), Some(50.0)));
        assert_eq!(decode.arithmetic_percent, Some(10.0));
        let prompt = row(Multiplier::F32, 2_000_000, 40_000_000);
        assert_eq!((prompt.bound, prompt.percent), (Some("arithmetic"), Some(40.0)));
        assert_eq!(prompt.memory_percent, Some(20.0));
    }

    #[test]
    fn what_has_neither_bytes_nor_operations_has_only_a_time() {
        let row = row(Multiplier::F32, 0, 0);
        assert_eq!((row.bound, row.percent, row.bytes_per_s), (None, None, None));
        assert!(!row.render().contains("NaN"), "{}", row.render());
        assert!(row.render().contains("1.00 ms"), "{}", row.render());
    }

    #[test]
    fn the_table_is_aligned_and_tells_everything() {
        let machine = Machine {
            cpu: "Some CPU".to_owned(),
            kernels: "avx2",
            threads: 2,
            activation_group: "32",
            tuning: Tuned(pelton_kernels::Tuning::default()),
            last_level_cache_bytes: Some(32 << 20),
        };
        let mut report = Report::new(machine, vec![CEILINGS]);
        report.rows = vec![
            row(Multiplier::Int8, 5_000_000, 40_000_000),
            row(Multiplier::Int8, 0, 123_000_000),
        ];
        report.add_reading(Ceilings { read_bandwidth: 12e9, ..CEILINGS });
        let head = report.render_head();
        for part in [
            "Some CPU",
            "avx2, 2 threads",
            "32.0 MiB",
            "strips of 4 panels",
            "10.0",
            "400.0",
            "-",
            "200.0",
        ] {
            assert!(head.contains(part), "`{part}` is missing in\n{head}");
        }
        let rows = report.render_rows(0);
        let share = |line: &str| line.rfind(" %  ").or_else(|| line.find("share"));
        let at = share(head.lines().last().expect("a head")).expect("a share");
        for line in rows.lines() {
            assert_eq!(share(line).map(|end| end + 2), Some(at + "share".len()), "{line}");
        }
        assert_eq!(report.reads(), Some(Reads { n_threads: 2, bytes_per_s: 11e9 }));
        report.interrupted = true;
        let end = report.render_end();
        assert!(end.contains("10.0 to 12.0 GB/s") && end.contains("Interrupted"), "{end}");
    }

    #[test]
    fn times_carry_a_unit_that_fits() {
        assert_eq!(time(2.5), "2.50 s");
        assert_eq!(time(0.0025), "2.50 ms");
        assert_eq!(time(2.5e-6), "2.50 µs");
        assert_eq!(time(25e-9), "25 ns");
    }
}
