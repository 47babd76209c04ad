//! Signals to stop, from the system or from a test.

use tokio::sync::mpsc;

/// Signals to stop: the first drains, the second aborts.
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
    /// Signals that the caller sends.
    pub fn manual() -> (SignalSender, Self) {
        let (sender, receiver) = mpsc::channel(4);
        (SignalSender { sender }, Self { receiver })
    }

    /// SIGTERM and SIGINT (Ctrl-C) of this process.
    ///
    /// # Errors
    ///
    /// When the system refuses to install the handlers.
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

    /// Waits for the next signal; for ever where none can come.
    pub(crate) async fn next(&mut self) {
        if self.receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl SignalSender {
    /// Sends one more signal.
    pub fn send(&self) {
        // A full channel holds more signals than the server reads.
        let _ = self.sender.try_send(());
    }
}
