//! When to stop: signals of the system, or of a test.

use tokio::sync::mpsc;

/// Requests to stop: the first asks gently, the second insists.
#[derive(Debug)]
pub struct Signals {
    receiver: mpsc::Receiver<()>,
}

/// Asks a server to stop; see [`Signals::manual`].
#[derive(Clone, Debug)]
pub struct SignalSender {
    sender: mpsc::Sender<()>,
}

impl Signals {
    /// Signals that are sent by hand.
    pub fn manual() -> (SignalSender, Self) {
        let (sender, receiver) = mpsc::channel(4);
        (SignalSender { sender }, Self { receiver })
    }

    /// SIGTERM and SIGINT (Ctrl-C) of this process.
    ///
    /// # Errors
    ///
    /// The system's, when handlers cannot be installed.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn from_os() -> std::io::Result<Self> {
        let (sender, signals) = Self::manual();
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::spawn(async move {
                loop {
                    let name = tokio::select! {
                        _ = terminate.recv() => "SIGTERM",
                        _ = interrupt.recv() => "SIGINT",
                        () = sender.sender.closed() => return,
                    };
                    tracing::info!(name, "signal received");
                    sender.send();
                }
            });
        }
        #[cfg(not(unix))]
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() && !sender.sender.is_closed() {
                sender.send();
            }
        });
        Ok(signals)
    }

    /// Waits for the next request to stop; for ever when none can come.
    pub(crate) async fn next(&mut self) {
        if self.receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl SignalSender {
    /// Asks once more.
    pub fn send(&self) {
        // A full channel has more requests than anyone will read.
        let _ = self.sender.try_send(());
    }
}
