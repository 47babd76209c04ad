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

    /// SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the terminal is closed) of this process. SIGHUP stays
    /// ignored where the parent ignored it, as `nohup` does.
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
            let mut hangup = match ignores_hangup() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            };
            tokio::spawn(async move {
                loop {
                    let name = tokio::select! {
                        _ = terminate.recv() => "SIGTERM",
                        _ = interrupt.recv() => "SIGINT",
                        () = next_of(&mut hangup) => "SIGHUP",
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

/// The next signal of a kind that may be ignored; for ever if it is.
#[cfg(unix)]
async fn next_of(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether the parent of this process had it started with SIGHUP ignored. A handler would replace
/// that. Linux alone says so in a file; elsewhere the answer is no.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    const SIGHUP_BIT: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & SIGHUP_BIT != 0)
}
