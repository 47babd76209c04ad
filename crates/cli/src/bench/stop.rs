//! Ctrl-C while something is measured: the first press ends it early, the second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;

/// Exit code after the second press: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// Whether Ctrl-C was pressed; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens to Ctrl-C from now on.
    ///
    /// # Errors
    ///
    /// When the system lets nobody listen.
    pub(crate) fn listen() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
        let mut interrupts = {
            let _guard = runtime.enter();
            Interrupts::listen()?
        };
        let stop = Self(Arc::default());
        let pressed = stop.clone();
        std::thread::spawn(move || {
            runtime.block_on(interrupts.next());
            pressed.0.store(true, Ordering::Relaxed);
            eprintln!("(stopping after what is being measured; Ctrl-C again leaves at once)");
            runtime.block_on(interrupts.next());
            std::process::exit(INTERRUPTED);
        });
        Ok(stop)
    }

    /// Whether to stop.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
