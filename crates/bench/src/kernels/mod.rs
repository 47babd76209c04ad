//! Each operation of the kernels as a share of what this machine can do.
//!
//! ```text
//! OPERATIONS ── blocks(sizes) ──► Block: one operation, variant and shape     (matmul.rs, experts.rs,
//!                                   │                    rows.rs, head.rs, pages.rs, states.rs, team.rs)
//!      ceilings ─ block ─ ceilings ─ block ─ ceilings ...                     (run.rs)
//!                   └─ calls: M = 1, 2, 5 ..  each timed in rounds            (timing.rs)
//!                        └─ row = median time, bytes, operations,
//!                                 shares of the larger of the ceilings around (report.rs)
//! ```
//!
//! The file of each kernel states the bytes and operations of a call: the bytes that must be read
//! or written at least once, whatever the tiles, and two operations per multiply-add. So 100 % is
//! the limit of the machine, which no implementation can exceed.
//!
//! Matrices and pages are larger than the caches together, as the weights and the keys of a model
//! are, and each call takes the next one; activations stay in the cache, as they do between the
//! layers of a model.

mod baseline;
mod block;
mod experts;
mod head;
mod matmul;
mod operations;
mod pages;
mod report;
mod rows;
mod run;
mod states;
mod team;
mod timing;

use std::io::Write;

use pelton_kernels::Ceilings;
use pelton_llm::{Runtime, RuntimeOptions};
use pelton_tensor::ActivationGroup;

use crate::{BenchError, Progress, Result, Watch};
pub use baseline::{
    Baseline, BaselineConfig, Found, ProductSpeed, STEADY_PERCENT, ThreadCeilings, baseline,
};
pub use block::AttentionSizes;
use block::{Block, Sizes};
use report::Machine;
pub use report::Report;

/// Which operations are measured, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Words that the line of an operation must all hold, in any case; empty for every operation.
    pub filter: String,
    /// Threads that compute; `None` for as many as the process may use.
    pub n_threads: Option<usize>,
    /// Most activations that share a scale in products of quantized weights.
    pub activation_group: ActivationGroup,
    /// Seconds per call, and per reading of the ceilings.
    pub seconds: f64,
    /// The sizes that attention is measured with.
    pub attention: AttentionSizes,
    /// Tiny shapes, which show that everything runs and not how fast.
    pub is_quick: bool,
}

/// One operation of the kernels.
struct Operation {
    /// Its name in the first column.
    name: &'static str,
    /// The variants and shapes that are measured.
    blocks: fn(&Sizes) -> Vec<Block>,
}

/// Everything that is measured, in this order.
const OPERATIONS: &[Operation] = &[
    Operation { name: "matmul", blocks: matmul::blocks },
    Operation { name: "experts", blocks: experts::blocks },
    Operation { name: "quantize", blocks: rows::quantize },
    Operation { name: "rms_norm", blocks: rows::rms_norm },
    Operation { name: "gated", blocks: rows::gated },
    Operation { name: "rope", blocks: rows::rope },
    Operation { name: "argmax", blocks: rows::argmax },
    Operation { name: "head", blocks: head::blocks },
    Operation { name: "attention", blocks: pages::attention },
    Operation { name: "kv_store", blocks: pages::store },
    Operation { name: "recurrence", blocks: states::blocks },
    Operation { name: "team", blocks: team::blocks },
];

/// A block and the name of its operation.
struct Named {
    operation: &'static str,
    block: Block,
}

impl Named {
    /// The text that the filter looks at.
    fn label(&self) -> String {
        format!("{} {} {}", self.operation, self.block.variant, self.block.shape)
    }
}

/// Measures the operations and writes the table to `out` line by line as it grows.
///
/// # Errors
///
/// Sizes of attention that there are not, a filter that leaves nothing, kernels that the machine lacks,
/// an output that takes nothing.
pub fn measure(config: &Config, watch: Watch<'_>, out: &mut dyn Write) -> Result<Report> {
    let sizes = if config.is_quick { Sizes::quick() } else { Sizes::full() };
    let sizes = sizes.with(&config.attention)?;
    let blocks = filtered(all_blocks(&sizes), &config.filter)?;
    // Tuned as for a model that is larger than the caches.
    let model_bytes = if config.is_quick { 0 } else { sizes.beyond_caches_bytes as u64 };
    let mut cpu = Runtime::new(RuntimeOptions::from_env(config.n_threads))?.cpu(model_bytes);
    cpu.activation_group = config.activation_group;
    let progress =
        |n_done, label: &str| (watch.progress)(Progress { n_done, n_steps: blocks.len(), label });
    progress(0, "the machine");
    let (n_threads, n_bytes) = (cpu.team.n_threads(), sizes.beyond_caches_bytes);
    let ceilings = Ceilings::measure(cpu.kernels, n_threads, n_bytes, config.seconds);
    let mut report = Report::new(Machine::this(&cpu), ceilings);
    let mut write = |text: String| out.write_all(text.as_bytes()).map_err(BenchError::Output);
    write(report.render_head())?;

    let bench = run::Bench {
        cpu: &cpu,
        seconds: config.seconds,
        beyond_caches_bytes: n_bytes,
        is_stopped: watch.is_stopped,
    };
    for (idx, named) in blocks.iter().enumerate() {
        if (watch.is_stopped)() {
            break;
        }
        progress(idx, &named.label());
        let first = report.rows.len();
        bench.measure(named, &mut report);
        write(report.render_rows(first))?;
    }
    report.interrupted = (watch.is_stopped)();
    write(report.render_end())?;
    Ok(report)
}

/// Every block of every operation.
fn all_blocks(sizes: &Sizes) -> Vec<Named> {
    let named = |operation: &Operation| {
        let name = operation.name;
        let blocks = (operation.blocks)(sizes).into_iter();
        blocks.map(move |block| Named { operation: name, block }).collect::<Vec<_>>()
    };
    OPERATIONS.iter().flat_map(named).collect()
}

/// The blocks whose label holds every word of `filter`, in any case.
///
/// # Errors
///
/// A filter that leaves none.
fn filtered(blocks: Vec<Named>, filter: &str) -> Result<Vec<Named>> {
    let words: Vec<String> = filter.split_whitespace().map(str::to_lowercase).collect();
    let is_wanted = |named: &Named| {
        let label = named.label().to_lowercase();
        words.iter().all(|word| label.contains(word.as_str()))
    };
    let (wanted, rest): (Vec<Named>, Vec<Named>) = blocks.into_iter().partition(is_wanted);
    if !wanted.is_empty() {
        return Ok(wanted);
    }
    // Shapes are too many to list; variants of one operation follow each other.
    let mut there: Vec<String> = Vec::new();
    for named in &rest {
        let name = format!("{} {}", named.operation, named.block.variant);
        if there.last() != Some(&name) {
            there.push(name);
        }
    }
    let there: Vec<&str> = there.iter().map(|name| name.trim_end()).collect();
    let message = format!("`--filter {filter}` leaves nothing: there is {}", there.join(", "));
    Err(BenchError::invalid(message))
}

#[cfg(test)]
mod tests;
