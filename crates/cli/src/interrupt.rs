//! Ctrl-C as something to wait for, or to look at from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, INTERRUPTED, Result};

/// Ctrl-C presses (SIGINT), one at a time.
///
/// From its creation on, Ctrl-C no longer ends the process by itself.
#[derive(Debug)]
pub(crate) struct Interrupts(Signal);

impl Interrupts {
    /// Starts to listen; needs a running runtime.
    pub(crate) fn listen() -> Result<Self> {
        signal(SignalKind::interrupt())
            .map(Self)
            .map_err(|error| Failure::internal(format!("cannot listen to Ctrl-C: {error}")))
    }

    /// Waits for the next press.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // No signal will ever come again.
            std::future::pending::<()>().await;
        }
    }
}

/// Whether Ctrl-C was pressed, for work that computes and cannot wait.
///
/// The first press sets it; a second one ends the process.
#[derive(Clone, Debug)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Starts to listen, on a thread of its own that lives as long as the process.
    pub(crate) fn listen() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
        let mut interrupts = {
            let _guard = runtime.enter();
            Interrupts::listen()?
        };
        let flag = Arc::new(AtomicBool::new(false));
        let pressed = Arc::clone(&flag);
        let wait = move || {
            runtime.block_on(interrupts.next());
            pressed.store(true, Ordering::Relaxed);
            runtime.block_on(interrupts.next());
            std::process::exit(i32::from(INTERRUPTED));
        };
        std::thread::Builder::new()
            .name("interrupts".to_owned())
            .spawn(wait)
            .map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))?;
        Ok(Self(flag))
    }

    /// Whether it is time to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
