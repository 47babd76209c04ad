//! Ctrl-C as something to wait for, or to look at from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::failure::{Failure, INTERRUPTED, Result};

/// Ctrl-C presses, one at a time: SIGINT, and the key where a terminal sends no signal for it.
///
/// From its creation on, Ctrl-C no longer ends the process by itself.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signal: Signal,
    presses: Option<watch::Receiver<u64>>,
}

impl Interrupts {
    /// Starts to listen; needs a running runtime.
    pub(crate) fn listen() -> Result<Self> {
        signal(SignalKind::interrupt())
            .map(|signal| Self { signal, presses: None })
            .map_err(|error| Failure::internal(format!("cannot listen to Ctrl-C: {error}")))
    }

    /// Listens to presses of the key, too.
    pub(crate) fn listen_to(&mut self, presses: watch::Receiver<u64>) {
        self.presses = Some(presses);
    }

    /// Waits for the next press.
    pub(crate) async fn next(&mut self) {
        let key = async {
            let is_pressed = match &mut self.presses {
                Some(presses) => presses.changed().await.is_ok(),
                None => false,
            };
            if !is_pressed {
                // No key will ever come again.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            Some(()) = self.signal.recv() => {}
            () = key => {}
            else => std::future::pending().await,
        }
    }

    /// Forgets presses that came too late for what they were to stop.
    pub(crate) async fn forget(&mut self) {
        // The runtime looks for signals between two tasks only.
        tokio::task::yield_now().await;
        while tokio::select! {
            biased;
            () = self.next() => true,
            () = std::future::ready(()) => false,
        } {}
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
