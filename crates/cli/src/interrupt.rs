//! Ctrl-C as something to wait for.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Result};

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
