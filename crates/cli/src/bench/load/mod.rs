//! `pelton bench load`: a workload against the real engine, told as the simulator tells it.
//!
//! ```text
//! model flags ─▶ Llm ─▶ engine ◀─ submit ── driver ◀─ trace
//!                         └─ events of each request ─▶ records ─▶ report
//! ```
//!
//! Moments are those that the engine notes (begin of the first step, end of the step that brought a
//! token), so that a driver that is late does not make the engine look fast. A request arrives when
//! the trace says, also when the driver comes to it later: nothing is left out because the machine
//! was busy.

mod driver;

use pelton_llm::LlmOptions;

use pelton_bench::trace::Trace;

use super::served::Served;
use crate::args::BenchLoadArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::model;
use crate::stats::bytes;
use driver::Pace;

/// Requests where nobody says how many.
const DEFAULT_REQUESTS: u64 = 64;

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, a trace that is wrong, an engine that stops, Ctrl-C.
pub(crate) fn load(args: &BenchLoadArgs) -> Result<()> {
    let trace = args.workload.trace(DEFAULT_REQUESTS)?;
    let reference = model::reference(args.model.model.as_deref())?;
    let options = options(args, &trace)?;
    let slo = options.scheduling.slo;
    let llm = model::load(&reference, &options)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let pace = args.concurrency().map_or(Pace::Clock, Pace::Concurrency);
    let run = runtime.block_on(async {
        let interrupts = Interrupts::listen()?;
        eprintln!("serving {}", args.workload.describe(&trace));
        driver::drive(&llm, &args.workload, &trace, pace, slo, interrupts).await
    })?;
    let info = llm.info();
    let server = format!(
        "{}, {} threads, contexts of {} tokens, {} of keys and values",
        info.name,
        info.n_threads,
        info.context_tokens,
        bytes(info.kv_bytes)
    );
    let mut served = Served::new(&args.workload, &trace, server);
    served.add(info.name.clone(), &run.ledger, &args.workload, &trace);
    served.print(args.json, run.is_interrupted)
}

/// How the model is loaded and its requests are scheduled.
fn options(args: &BenchLoadArgs, trace: &Trace) -> Result<LlmOptions> {
    let tenants = args.workload.tenants(trace.tenants())?;
    args.scheduling.apply(model::options(&args.model), tenants, false)
}
