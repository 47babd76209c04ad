//! `pelton doctor`: this machine in facts and figures, what limits inference on it, and what would help.

mod advice;
mod disk;
mod facts;
mod record;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pelton_bench::Watch;
use pelton_bench::kernels::{
    Baseline, BaselineConfig, Found, ProductSpeed, ThreadCeilings, baseline,
};
use pelton_bench::record::{Baseline as KnownBaseline, Machine};
use pelton_kernels::{Kernels, cpu_model, default_threads};
use pelton_plan::{Arithmetic, Hardware, HardwareKind, MeasuredProduct, Peaks};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::bench;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::progress;
use crate::stats::bytes;
use advice::Advice;
use facts::Facts;
use record::{Entry, Fingerprint};

/// Seconds per measurement.
const SECONDS: f64 = 0.25;
/// Bytes of the file that is read from the disk.
const DISK_BYTES: usize = 128 << 20;

/// The printed report.
#[derive(Debug, Serialize)]
struct Report {
    machine: Facts,
    /// `None` with `--no-measure`, and where Ctrl-C came before the end.
    measured: Option<Measured>,
    /// The ceilings, where Ctrl-C came after them and before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceilings_until_stop: Option<Vec<ThreadCeilings>>,
    advice: Vec<Advice>,
    /// The file that keeps the record; `None` where none is kept.
    record: Option<String>,
}

#[derive(Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    baseline: Baseline,
    /// Bytes per second of a file in the cache folder; `None` where there is none.
    disk_read_bytes_per_s: Option<f64>,
}

/// This machine as it was measured and whether that minute was noisy; `None` where there is no record.
pub(crate) fn known_machine() -> Option<(Hardware, bool)> {
    let entry = record::of_this_machine(&record::path()?)?;
    Some((entry.hardware, entry.is_noisy))
}

/// The kernels that compute here; the best ones where the environment names none that exist.
fn kernels_in_use() -> &'static Kernels {
    Kernels::get().unwrap_or_else(|_| Kernels::best())
}

/// This machine in the form of reports, with its record where there is one.
pub(crate) fn machine() -> Machine {
    let facts = Facts::read(Path::new("/"));
    let entry = record::path().and_then(|file| record::of_this_machine(&file));
    Machine {
        cpu: cpu_model(),
        n_processors: facts.n_processors,
        kernels: kernels_in_use().name.to_owned(),
        threads: default_threads(),
        cpu_quota: facts.cpu_quota,
        memory_bytes: facts.memory_bytes,
        kernel: facts.kernel,
        governor: facts.governor,
        huge_pages: facts.huge_pages,
        load: facts.load,
        baseline: entry.map(|entry| {
            let Hardware { read_bandwidth, peaks, .. } = entry.hardware;
            KnownBaseline {
                measured_at: entry.measured_at,
                is_noisy: entry.is_noisy,
                read_bytes_per_s: read_bandwidth,
                f32_ops_per_s: peaks.f32,
                bf16_ops_per_s: peaks.bf16,
                f16_ops_per_s: peaks.f16,
                int8_ops_per_s: peaks.int8,
            }
        }),
    }
}

/// Runs the command.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<()> {
    let facts = Facts::read(Path::new("/"));
    let n_threads = args.threads().unwrap_or_else(default_threads);
    let mut advice = advice::of_facts(&facts, n_threads);
    advice.splice(0..0, advice::of_kernels(&facts, Kernels::best().name, kernels_in_use().name));
    let (mut measured, mut kept, mut ceilings_until_stop) = (None, None, None);
    let found = if args.no_measure { None } else { Some(measure(args)?) };
    if let Some(Err(ceilings)) = found {
        ceilings_until_stop = Some(ceilings);
    } else if let Some(Ok(found)) = found {
        advice.splice(0..0, advice::of_baseline(&found.baseline));
        if let Some(file) = record::path().filter(|_| !args.quick) {
            record::keep(&file, entry(&facts, &found)?)
                .map_err(|error| Failure::write(&file, &error))?;
            kept = Some(file.display().to_string());
        }
        measured = Some(found);
    }
    let is_stopped = ceilings_until_stop.is_some();
    let report = Report { machine: facts, measured, ceilings_until_stop, advice, record: kept };
    let text = match args.json {
        true => serde_json::to_string(&report)? + "\n",
        false => report.render(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))?;
    if is_stopped { Err(Failure::interrupted()) } else { Ok(()) }
}

/// Measures everything, or the ceilings alone where Ctrl-C comes before the end.
///
/// # Errors
///
/// Kernels that the machine lacks.
fn measure(args: &DoctorArgs) -> Result<std::result::Result<Measured, Vec<ThreadCeilings>>> {
    let stop = StopFlag::listen()?;
    eprintln!("measuring; Ctrl-C prints the ceilings until then");
    let bar = progress::steps(0);
    let is_stopped = || stop.is_set();
    let watch = Watch { is_stopped: &is_stopped, progress: &|at| bench::show(&bar, at) };
    let config = BaselineConfig {
        n_threads: args.threads(),
        seconds: if args.quick { 0.001 } else { SECONDS },
        is_quick: args.quick,
    };
    let found = baseline(&config, watch);
    bar.finish_and_clear();
    let baseline = match found.map_err(bench::failure)? {
        Found::All(baseline) => *baseline,
        Found::Stopped(ceilings) => return Ok(Err(ceilings)),
    };
    let n_bytes = if args.quick { 1 << 20 } else { DISK_BYTES };
    let folder = record::path().and_then(|file| Some(file.parent()?.to_owned()));
    let disk = folder.and_then(|folder| disk::read_bytes_per_s(&folder, n_bytes, &is_stopped));
    if stop.is_set() {
        return Ok(Err(baseline.ceilings));
    }
    Ok(Ok(Measured { baseline, disk_read_bytes_per_s: disk }))
}

/// The record of a measurement.
///
/// # Errors
///
/// When the system does not say how much memory there is.
fn entry(facts: &Facts, measured: &Measured) -> Result<Entry> {
    let baseline = &measured.baseline;
    let team = baseline.ceilings.last().expect("invariant: ceilings of the team");
    let memory_bytes = facts.usable_memory_bytes().or_else(pelton_tensor::available_memory_bytes);
    let unknown = || Failure::new("the system does not say how much memory there is");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let product = |&ProductSpeed { layout, rows, bytes_per_s, .. }: &ProductSpeed| {
        MeasuredProduct { layout: layout.to_owned(), rows, bytes_per_s }
    };
    let hardware = Hardware {
        name: "here".to_owned(),
        words: format!("{}, {} threads", facts.cpu, baseline.threads),
        kind: HardwareKind::Processor,
        memory_bytes: memory_bytes.ok_or_else(unknown)?,
        read_bandwidth: baseline.read_bytes_per_s,
        peaks: Peaks {
            f32: team.f32_ops_per_s,
            bf16: team.bf16_ops_per_s,
            f16: team.f16_ops_per_s,
            int8: Some(team.int8_ops_per_s),
            ..Peaks::default()
        },
        quantized_by: Arithmetic::Int8,
        link_bandwidth: None,
        sources: vec!["memory, bandwidth, peaks: measured by `pelton doctor`".to_owned()],
        products: baseline.products.iter().map(product).collect(),
        rows: Some(baseline.rows),
        attention: baseline.attention.clone(),
        barrier_s: Some(baseline.barrier_s),
    };
    Ok(Entry {
        fingerprint: Fingerprint {
            cpu: cpu_model(),
            kernels: baseline.kernels.to_owned(),
            threads: baseline.threads,
        },
        measured_at: now,
        is_noisy: baseline.is_noisy,
        spread_percent: baseline.spread_percent,
        hardware,
    })
}

impl Report {
    fn render(&self) -> String {
        let mut text: String =
            (self.facts().iter()).map(|(name, value)| format!("{name:<15}{value}\n")).collect();
        if let Some(measured) = &self.measured {
            text.push_str(&measured.render());
        }
        if let Some(ceilings) = &self.ceilings_until_stop {
            text.push('\n');
            text.push_str(&render_ceilings(ceilings));
            text.push_str("interrupted: the rest was not measured, and no record is kept\n");
        }
        text.push_str("\nwhat limits inference here\n");
        for Advice { finding, change } in &self.advice {
            let _ = writeln!(text, "- {finding}");
            if let Some(change) = change {
                let _ = writeln!(text, "    {change}");
            }
        }
        if self.advice.is_empty() {
            text.push_str("- nothing that the system says; `pelton doctor` measures the rest\n");
        }
        if let Some(file) = &self.record {
            let _ = writeln!(text, "\nkept in {file}; `pelton plan` uses it");
        }
        text
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let facts = &self.machine;
        let unknown = || "unknown".to_owned();
        let caches = facts.caches.iter().map(|(level, n)| format!("{level} {}", bytes(*n)));
        let caches = caches.collect::<Vec<_>>().join(", ");
        let limit = facts.memory_limit_bytes.filter(|limit| Some(*limit) < facts.memory_bytes);
        let limit = limit.map(|limit| format!(", limited to {}", bytes(limit))).unwrap_or_default();
        let nodes = match facts.n_nodes {
            1 => String::new(),
            n => format!(" on {n} nodes"),
        };
        let quota = facts.cpu_quota.map(|quota| format!(", {quota:.1} paid for"));
        let kind = if facts.is_virtual { ", virtual" } else { "" };
        vec![
            ("processor", format!("{}{kind}", facts.cpu)),
            ("processors", format!("{}{}", facts.n_processors, quota.unwrap_or_default())),
            ("instructions", facts.instructions.join(" ")),
            ("caches", if caches.is_empty() { unknown() } else { caches }),
            (
                "memory",
                facts.memory_bytes.map_or_else(unknown, |n| format!("{}{nodes}{limit}", bytes(n))),
            ),
            ("huge pages", facts.huge_pages.clone().unwrap_or_else(unknown)),
            ("governor", facts.governor.clone().unwrap_or_else(unknown)),
            ("kernel", facts.kernel.clone().unwrap_or_else(unknown)),
            ("load", facts.load.map_or_else(unknown, |load| format!("{load:.2}"))),
        ]
    }
}

/// A figure in billions.
fn giga(x: f64) -> String {
    format!("{:.1}", x / 1e9)
}

/// A line for each number of threads.
fn render_ceilings(ceilings: &[ThreadCeilings]) -> String {
    let mut text =
        "threads   read GB/s   int8 GOP/s   bf16 GOP/s    f16 GOP/s    f32 GOP/s\n".to_owned();
    let any = |ceiling: Option<f64>| ceiling.map_or_else(|| "-".to_owned(), giga);
    for reading in ceilings {
        let _ = writeln!(
            text,
            "{:>7} {:>11} {:>12} {:>12} {:>12} {:>12}",
            reading.threads,
            giga(reading.read_bytes_per_s),
            giga(reading.int8_ops_per_s),
            any(reading.bf16_ops_per_s),
            any(reading.f16_ops_per_s),
            giga(reading.f32_ops_per_s),
        );
    }
    text
}

impl Measured {
    fn render(&self) -> String {
        let Baseline { kernels, threads, ceilings, spread_percent, is_noisy, .. } = &self.baseline;
        let mut text = format!("\nkernels {kernels} on {threads} threads\n");
        text.push_str(&render_ceilings(ceilings));
        let _ = writeln!(
            text,
            "\nreads of all rounds {} GB/s, within {spread_percent:.0} %{}; all threads meet in {:.1} µs",
            giga(self.baseline.read_bytes_per_s),
            if *is_noisy { " (noisy)" } else { "" },
            self.baseline.barrier_s * 1e6,
        );
        if let Some(disk) = self.disk_read_bytes_per_s {
            let _ = writeln!(text, "a file in the cache folder is read at {:.2} GB/s", disk / 1e9);
        }
        text.push_str(&self.render_products());
        text
    }

    /// Products: layouts in rows, rows in columns.
    fn render_products(&self) -> String {
        let products = &self.baseline.products;
        let mut text = format!("\n{:<10}", "GOP/s of");
        for product in products.iter().take_while(|p| p.layout == products[0].layout) {
            let _ = write!(text, " {:>9}", format!("{} rows", product.rows));
        }
        text.push('\n');
        for row in products.chunk_by(|a, b| a.layout == b.layout) {
            let _ = write!(text, "{:<10}", row[0].layout);
            for product in row {
                let _ = write!(text, " {:>9.0}", product.ops_per_s / 1e9);
            }
            text.push('\n');
        }
        text
    }
}
