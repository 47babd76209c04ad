//! Signals to stop, from the system or from a test.

use tokio::sync::mpsc;

/// Signals to stop, of which the first drains and the second aborts; and to read the settings anew.
#[derive(Debug)]
pub struct Signals {
    receiver: mpsc::Receiver<()>,
    hangups: mpsc::Receiver<()>,
}

/// Asks a server to stop; see [`Signals::manual`].
#[derive(Clone, Debug)]
pub struct SignalSender {
    sender: mpsc::Sender<()>,
    hangups: mpsc::Sender<()>,
}

impl Signals {
    /// Signals that the caller sends.
    pub fn manual() -> (SignalSender, Self) {
        let (sender, receiver) = mpsc::channel(4);
        let (hangups, heard) = mpsc::channel(1);
        (SignalSender { sender, hangups }, Self { receiver, hangups: heard })
    }

    /// SIGTERM, SIGINT (Ctrl-C) and SIGHUP of this process. SIGHUP asks to read the settings anew if
    /// `hangup_reloads`; else it asks to stop, because the terminal is closed, and stays ignored where
    /// the parent ignored it, as `nohup` does.
    ///
    /// # Errors
    ///
    /// When the system refuses to install the handlers.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn from_os(hangup_reloads: bool) -> std::io::Result<Self> {
        let (sender, signals) = Self::manual();
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut hangup = match !hangup_reloads && ignores_hangup() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            };
            tokio::spawn(async move {
                loop {
                    let name = tokio::select! {
                        _ = terminate.recv() => "SIGTERM",
                        _ = interrupt.recv() => "SIGINT",
                        () = next_of(&mut hangup) => {
                            if hangup_reloads {
                                tracing::info!("SIGHUP: the settings are read anew");
                                sender.hang_up();
                                continue;
                            }
                            "SIGHUP"
                        }
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

    /// Takes out the part that asks to read the settings anew.
    pub(crate) fn hangups(&mut self) -> mpsc::Receiver<()> {
        let (_, none) = mpsc::channel(1);
        std::mem::replace(&mut self.hangups, none)
    }

    /// Waits for the next signal to stop; for ever where none can come.
    pub(crate) async fn next(&mut self) {
        if self.receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl SignalSender {
    /// Asks to read the settings anew.
    pub fn hang_up(&self) {
        // A full channel says so already.
        let _ = self.hangups.try_send(());
    }

    /// Sends one more signal to stop.
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
