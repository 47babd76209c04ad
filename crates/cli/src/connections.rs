//! The runtime that serves connections.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::failure::{Failure, Result};

/// Processors for each thread that serves connections.
const PROCESSORS_PER_WORKER: usize = 4;
/// Time after which a thread that reads requests ends if there are none. A crowd of requests starts
/// many of them, and each keeps the memory of its stack; this is shorter than the time after which
/// an idle server gives its free memory back, which then includes theirs.
const IDLE_THREADS: Duration = Duration::from_secs(1);

/// Starts the runtime of a server.
///
/// Models compute on threads of their own, and reading a request runs on a further one, so a worker
/// only moves bytes. Tokio's default of a worker per processor costs time: whenever one of them finds
/// work, it wakes another to look for more, which a stream of single tokens never has. The variable
/// TOKIO_WORKER_THREADS chooses another number.
///
/// # Errors
///
/// A system that gives no threads.
pub(crate) fn runtime() -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
        builder.worker_threads(n_processors.div_ceil(PROCESSORS_PER_WORKER));
    }
    let runtime = builder.enable_all().thread_keep_alive(IDLE_THREADS).build();
    runtime.map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))
}
