//! `pelton bench kernels`: each operation as a share of what this machine can do.
//!
//! ```text
//! OPERATIONS ── blocks(sizes) ──► Block: one operation, variant and shape     (matmul.rs, rows.rs,
//!                                   │                                 head.rs, pages.rs, team.rs)
//!      ceilings ─ block ─ ceilings ─ block ─ ceilings ...                     (run.rs)
//!                   └─ calls: M = 1, 2, 5 ..  each timed in rounds            (timing.rs)
//!                        └─ row = median time, bytes, operations,
//!                                 shares of the larger of the ceilings around (report.rs)
//! ```
//!
//! Bytes and operations of a call are those that the head of each kernel's file states: the bytes
//! that must come in or go out at least once, whatever the tiles, and two operations per
//! multiply-add. So a share of 100 % is the end of the road and not of an implementation.
//!
//! Matrices and pages are larger than the caches together, as the weights and the keys of a model
//! are, and each call takes the next one; activations stay where they are, as they do between the
//! layers of a model.

mod block;
mod head;
mod matmul;
mod pages;
mod report;
mod rows;
mod run;
mod team;
mod timing;

use std::io::Write;

use pelton_kernels::{Ceilings, Cpu};

use crate::args::BenchKernelsArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::progress;
use block::{Block, Sizes};
use report::{Machine, Report};

/// One operation of the kernels.
struct Operation {
    /// Its name in the first column.
    name: &'static str,
    /// What of it is measured.
    blocks: fn(&Sizes) -> Vec<Block>,
}

/// Everything that is measured, in this order.
const OPERATIONS: &[Operation] = &[
    Operation { name: "matmul", blocks: matmul::blocks },
    Operation { name: "quantize", blocks: rows::quantize },
    Operation { name: "rms_norm", blocks: rows::rms_norm },
    Operation { name: "gated", blocks: rows::gated },
    Operation { name: "rope", blocks: rows::rope },
    Operation { name: "argmax", blocks: rows::argmax },
    Operation { name: "head", blocks: head::blocks },
    Operation { name: "attention", blocks: pages::attention },
    Operation { name: "kv_store", blocks: pages::store },
    Operation { name: "team", blocks: team::blocks },
];

/// A block and the name of its operation.
struct Named {
    operation: &'static str,
    block: Block,
}

impl Named {
    /// What `--filter` looks at.
    fn label(&self) -> String {
        format!("{} {} {}", self.operation, self.block.variant, self.block.shape)
    }
}

/// Runs the command.
pub(crate) fn run(args: &BenchKernelsArgs) -> Result<()> {
    let sizes = if args.quick { Sizes::quick() } else { Sizes::full() };
    let blocks = filtered(all_blocks(&sizes), &args.filter)?;
    let mut cpu = Cpu::new(args.threads())?;
    // As a model of this size has it.
    pelton_llm::tune(&mut cpu, if args.quick { 0 } else { sizes.beyond_caches_bytes as u64 });
    let stop = StopFlag::listen()?;
    let bar = progress::steps(blocks.len());
    bar.set_message("the machine");
    bar.tick();
    let n_threads = cpu.team.n_threads();
    let ceilings =
        Ceilings::measure(cpu.kernels, n_threads, sizes.beyond_caches_bytes, args.seconds());
    let mut report = Report::new(Machine::this(&cpu), ceilings);
    let print = |text: String| -> Result<()> {
        if args.json {
            return Ok(());
        }
        bar.suspend(|| std::io::stdout().lock().write_all(text.as_bytes()))
            .map_err(|error| Failure::stdout(&error))
    };
    print(report.render_head())?;

    let bench = run::Bench {
        cpu: &cpu,
        seconds: args.seconds(),
        beyond_caches_bytes: sizes.beyond_caches_bytes,
        is_stopped: &|| stop.is_set(),
    };
    for named in &blocks {
        if stop.is_set() {
            break;
        }
        bar.set_message(named.label());
        let first = report.rows.len();
        bench.measure(named, &mut report);
        print(report.render_rows(first))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.interrupted = stop.is_set();
    print(report.render_end())?;
    if args.json {
        let line = serde_json::to_string(&report)?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{line}").map_err(|error| Failure::stdout(&error))?;
    }
    if report.interrupted { Err(Failure::interrupted()) } else { Ok(()) }
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

/// The blocks whose label holds every word of `filter`, in any case; a filter that leaves none is
/// a bad input.
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
    // Shapes are too many to tell; the rest follows each other.
    let mut there: Vec<String> = Vec::new();
    for named in &rest {
        let name = format!("{} {}", named.operation, named.block.variant);
        if there.last() != Some(&name) {
            there.push(name);
        }
    }
    let there: Vec<&str> = there.iter().map(|name| name.trim_end()).collect();
    let message = format!("`--filter {filter}` leaves nothing: there is {}", there.join(", "));
    Err(Failure::new(message))
}

#[cfg(test)]
mod tests;
