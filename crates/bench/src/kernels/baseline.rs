//! The speeds of this machine that other measurements and plans are compared with.
//!
//! ```text
//! ceilings by threads ─ bandwidth ─ barrier, rows ─ attention ─ products of a layout ─ bandwidth ─ ...
//! ```
//!
//! The bandwidth is read between all other measurements: how far these readings lie apart says how
//! steady the machine was meanwhile.

use pelton_kernels::{Ceilings, Cpu, KvDtype, WeightLayout};
use pelton_llm::{Runtime, RuntimeOptions};
use pelton_plan::{MeasuredAttention, MeasuredRows};
use serde::Serialize;

use super::block::Sizes;
use super::matmul;
use super::operations::{self, Clock};
use super::team;
use super::timing::Timing;
use crate::samples::Summary;
use crate::{Progress, Result, Watch};

/// Layouts whose products are measured: those of the formats that models mostly come in.
const LAYOUTS: [&str; 8] = ["f32", "f16", "bf16", "q8", "q4", "q4k", "q5k", "q6k"];
/// Rows of a product: decoding alone, in batches, and prompts.
const ROWS: &[usize] = &[1, 8, 32, 128, 512];
/// Matrices of the products.
const MATRIX: [usize; 2] = [2048, 2048];
/// Largest distance of bandwidth readings from their median, in per cent, at which a record counts as
/// steady.
pub const STEADY_PERCENT: f64 = 10.0;

/// How the machine is measured.
#[derive(Clone, Debug)]
pub struct BaselineConfig {
    /// Threads that compute; `None` for as many as the process may use.
    pub n_threads: Option<usize>,
    /// Seconds per measurement.
    pub seconds: f64,
    /// Tiny sizes, which show that everything runs and not how fast.
    pub is_quick: bool,
}

/// The ceilings of a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThreadCeilings {
    /// Threads that worked together.
    pub threads: usize,
    /// Streaming reads, bytes per second.
    pub read_bytes_per_s: f64,
    /// Operations per second.
    pub int8_ops_per_s: f64,
    /// The same; `None` where there is no such instruction.
    pub bf16_ops_per_s: Option<f64>,
    /// The same, of IEEE half precision.
    pub f16_ops_per_s: Option<f64>,
    /// The same.
    pub f32_ops_per_s: f64,
}

impl From<Ceilings> for ThreadCeilings {
    fn from(ceilings: Ceilings) -> Self {
        let Ceilings { n_threads, read_bandwidth, int8, bf16, f16, f32 } = ceilings;
        Self {
            threads: n_threads,
            read_bytes_per_s: read_bandwidth,
            int8_ops_per_s: int8,
            bf16_ops_per_s: bf16,
            f16_ops_per_s: f16,
            f32_ops_per_s: f32,
        }
    }
}

/// Products with weights of one layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProductSpeed {
    /// Name of the layout.
    pub layout: &'static str,
    /// Rows that are multiplied at once.
    pub rows: usize,
    /// Packed bytes of weights per second.
    pub bytes_per_s: f64,
    /// Operations per second.
    pub ops_per_s: f64,
}

/// The speeds of a machine.
#[derive(Clone, Debug, Serialize)]
pub struct Baseline {
    /// Name of the kernels.
    pub kernels: &'static str,
    /// Threads of the team.
    pub threads: usize,
    /// Ceilings by number of threads; the last entry is the team's.
    pub ceilings: Vec<ThreadCeilings>,
    /// Median of all readings of the bandwidth, bytes per second.
    pub read_bytes_per_s: f64,
    /// The readings, in order.
    pub bandwidth_readings: Vec<f64>,
    /// Largest distance of a reading from the median, in per cent of it.
    pub spread_percent: f64,
    /// Whether the readings lie further apart than [`STEADY_PERCENT`].
    pub is_noisy: bool,
    /// Seconds in which all threads are woken and meet again.
    pub barrier_s: f64,
    /// Operations on rows.
    pub rows: MeasuredRows,
    /// Attention by stored type.
    pub attention: Vec<MeasuredAttention>,
    /// Products by layout and rows.
    pub products: Vec<ProductSpeed>,
}

/// The figures that were measured until the end, or until the caller stopped.
#[derive(Clone, Debug)]
pub enum Found {
    /// All of them.
    All(Box<Baseline>),
    /// The ceilings alone, since the caller stopped after them.
    Stopped(Vec<ThreadCeilings>),
}

/// Measures this machine.
///
/// # Errors
///
/// Kernels that the machine lacks.
pub fn baseline(config: &BaselineConfig, watch: Watch<'_>) -> Result<Found> {
    let base = if config.is_quick { Sizes::quick() } else { Sizes::full() };
    let rows = if config.is_quick { base.matmul_rows } else { ROWS };
    let sizes = Sizes { matmul_rows: rows, ..base };
    let n_bytes = sizes.beyond_caches_bytes;
    let model_bytes = if config.is_quick { 0 } else { n_bytes as u64 };
    let cpu = Runtime::new(RuntimeOptions::from_env(config.n_threads))?.cpu(model_bytes);
    let step = |n_done, label: &str| {
        (watch.progress)(Progress { n_done, n_steps: LAYOUTS.len() + 3, label });
    };
    step(0, "ceilings by threads");
    let n_threads = cpu.team.n_threads();
    let ceilings = Ceilings::measure(cpu.kernels, n_threads, n_bytes, config.seconds * 3.0);
    let mut readings = vec![cpu.measure_read_bandwidth(n_bytes, config.seconds)];
    step(1, "meetings of all threads");
    let ceilings: Vec<ThreadCeilings> = ceilings.into_iter().map(ThreadCeilings::from).collect();
    let stopped = |ceilings| Ok(Found::Stopped(ceilings));
    let Some(barrier_s) = barrier(&cpu, config.seconds, watch.is_stopped) else {
        return stopped(ceilings);
    };
    let small = operations::sizes(config.is_quick);
    let clock = Clock { cpu: &cpu, seconds: config.seconds, is_stopped: watch.is_stopped };
    step(2, "rows");
    let Some(rows) = clock.rows(&small) else { return stopped(ceilings) };
    let mut attention = Vec::new();
    for dtype in KvDtype::ALL {
        step(2, &format!("attention with {}", dtype.name()));
        let Some(measured) = clock.attention(dtype, &small) else { return stopped(ceilings) };
        attention.push(measured);
    }
    readings.push(cpu.measure_read_bandwidth(n_bytes, config.seconds));
    let mut products = Vec::new();
    for (i, name) in LAYOUTS.into_iter().enumerate() {
        step(3 + i, &format!("products of {name}"));
        let Some(speeds) = speeds(&cpu, name, &sizes, config, watch) else {
            return stopped(ceilings);
        };
        products.extend(speeds);
        readings.push(cpu.measure_read_bandwidth(n_bytes, config.seconds));
    }
    let parts = Parts { barrier_s, rows, attention, products };
    Ok(Found::All(Box::new(Baseline::new(&cpu, ceilings, readings, parts))))
}

/// Figures of the operations.
struct Parts {
    barrier_s: f64,
    rows: MeasuredRows,
    attention: Vec<MeasuredAttention>,
    products: Vec<ProductSpeed>,
}

/// Seconds of one meeting of all threads; `None` when the caller stopped.
fn barrier(cpu: &Cpu, seconds: f64, is_stopped: &dyn Fn() -> bool) -> Option<f64> {
    let mut found = None;
    for block in team::blocks(&Sizes::quick()) {
        let _ = (block.calls)(cpu, &mut |call| {
            found = Timing::of(call.run, seconds, is_stopped).map(|timing| timing.seconds);
            std::ops::ControlFlow::Break(())
        });
    }
    found
}

/// The speeds of one layout; `None` when the caller stopped.
fn speeds(
    cpu: &Cpu,
    name: &str,
    sizes: &Sizes,
    config: &BaselineConfig,
    watch: Watch<'_>,
) -> Option<Vec<ProductSpeed>> {
    let layout = WeightLayout::ALL.iter().find(|layout| layout.name() == name);
    let layout = *layout.expect("invariant: a test looks up every layout");
    let matrix = if config.is_quick { sizes.matrices[0] } else { MATRIX };
    let mut speeds = Vec::new();
    let mut is_stopped = false;
    let _ = matmul::calls(layout, matrix, sizes)(cpu, &mut |call| {
        let Some(timing) = Timing::of(call.run, config.seconds, watch.is_stopped) else {
            is_stopped = true;
            return std::ops::ControlFlow::Break(());
        };
        speeds.push(ProductSpeed {
            layout: layout.name(),
            rows: call.cost.n_rows,
            bytes_per_s: call.cost.n_bytes as f64 / timing.seconds,
            ops_per_s: call.cost.n_ops as f64 / timing.seconds,
        });
        std::ops::ControlFlow::Continue(())
    });
    (!is_stopped).then_some(speeds)
}

impl Baseline {
    fn new(
        cpu: &Cpu,
        ceilings: Vec<ThreadCeilings>,
        readings: Vec<f64>,
        Parts { barrier_s, rows, attention, products }: Parts,
    ) -> Self {
        let (median, spread_percent) = spread(&readings);
        Self {
            kernels: cpu.kernels.name,
            threads: cpu.team.n_threads(),
            ceilings,
            read_bytes_per_s: median,
            bandwidth_readings: readings,
            spread_percent,
            is_noisy: spread_percent > STEADY_PERCENT,
            barrier_s,
            rows,
            attention,
            products,
        }
    }
}

/// Median of at least one reading, and the largest distance from it in per cent.
fn spread(readings: &[f64]) -> (f64, f64) {
    let summary = Summary::new(readings.to_vec()).expect("invariant: at least one reading");
    let Summary { median, lowest, highest, .. } = summary;
    (median, 100.0 * (highest - median).max(median - lowest) / median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_of_the_baseline_is_one_of_the_kernels() {
        for name in LAYOUTS {
            assert!(WeightLayout::ALL.iter().any(|layout| layout.name() == name), "{name}");
        }
    }

    #[test]
    fn one_reading_far_away_makes_a_record_noisy() {
        assert_eq!(spread(&[10.0, 10.0, 10.5]), (10.0, 5.0));
        assert_eq!(spread(&[10.0, 8.0, 10.0]), (10.0, 20.0));
        assert_eq!(spread(&[4.0]), (4.0, 0.0));
    }

    #[test]
    fn a_stop_keeps_the_ceilings_alone_and_a_quick_run_has_every_layout_and_row() {
        let config = BaselineConfig { n_threads: Some(1), seconds: 0.001, is_quick: true };
        let stopped = Watch { is_stopped: &|| true, progress: &|_| {} };
        // The caller writes no record of these: products and rows are missing.
        let Found::Stopped(ceilings) = baseline(&config, stopped).expect("runs") else {
            panic!("a stop has no effect");
        };
        assert_eq!(ceilings.iter().map(|found| found.threads).collect::<Vec<_>>(), [1]);
        assert!(ceilings[0].read_bytes_per_s > 0.0 && ceilings[0].f32_ops_per_s > 0.0);
        let watch = Watch { is_stopped: &|| false, progress: &|_| {} };
        let Found::All(found) = baseline(&config, watch).expect("runs") else { panic!("stopped") };
        let rows = Sizes::quick().matmul_rows;
        assert_eq!(found.products.len(), LAYOUTS.len() * rows.len());
        assert_eq!(found.bandwidth_readings.len(), LAYOUTS.len() + 2);
        assert!(found.barrier_s > 0.0 && found.read_bytes_per_s > 0.0);
        assert!(found.products.iter().all(|product| product.bytes_per_s > 0.0));
        let dtypes: Vec<&str> = found.attention.iter().map(|a| a.kv_dtype.as_str()).collect();
        assert_eq!(dtypes, KvDtype::ALL.map(KvDtype::name));
        assert!(
            found.attention.iter().all(|a| a.read_s + a.query_s > 0.0 && a.prompt_query_s > 0.0)
        );
        let MeasuredRows { norm, quantize, activation, rotation, store } = found.rows;
        for line in [norm, quantize, activation, rotation, store] {
            assert!(line.fixed_s + line.s_per_element > 0.0, "{:?}", found.rows);
        }
    }
}
