//! Ctrl-C as something to wait for, or to look at from time to time.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Runtime;
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
        hand_over();
        Self::begin()
    }

    fn begin() -> Result<Self> {
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

/// Whether another part of the program answers to Ctrl-C, so that [`Leave`] does nothing more.
static IS_HANDED_OVER: AtomicBool = AtomicBool::new(false);

/// From now on another part of the program answers to Ctrl-C.
pub(crate) fn hand_over() {
    IS_HANDED_OVER.store(true, Ordering::Relaxed);
}

/// Whether another part of the program, or another program around it, answers to Ctrl-C.
pub(crate) fn is_handed_over() -> bool {
    IS_HANDED_OVER.load(Ordering::Relaxed)
}

/// A runtime for a thread that waits for interrupts, and the interrupts that `begin` gives there.
fn listening(begin: fn() -> Result<Interrupts>) -> Result<(Runtime, Interrupts)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let guard = runtime.enter();
    let interrupts = begin()?;
    drop(guard);
    Ok((runtime, interrupts))
}

/// Waits for interrupts on a thread of its own, which lives as long as the process.
fn on_thread(wait: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name("interrupts".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))
}

/// From now on Ctrl-C ends the process after `last` has run.
pub(crate) fn leave_after(last: impl FnOnce() + Send + 'static) -> Result<()> {
    let (runtime, mut interrupts) = listening(Interrupts::begin)?;
    on_thread(move || {
        runtime.block_on(interrupts.next());
        last();
        std::process::exit(i32::from(INTERRUPTED));
    })
}

/// Makes Ctrl-C end the process, with a last line while there is one to say.
///
/// For work that can be cut off at any moment, such as a download, whose file on the disk is always
/// a beginning that the next one continues.
#[derive(Debug)]
pub(crate) struct Leave(Arc<Mutex<Option<String>>>);

impl Leave {
    /// Starts to listen, on a thread of its own that lives as long as the process.
    pub(crate) fn with(line: String) -> Result<Self> {
        let (runtime, mut interrupts) = listening(Interrupts::begin)?;
        let last_words = Arc::new(Mutex::new(Some(line)));
        let said = Arc::clone(&last_words);
        let wait = move || loop {
            runtime.block_on(interrupts.next());
            if is_handed_over() {
                continue;
            }
            if let Some(line) = said.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // On a terminal the line of the bar ends here.
                let end = if std::io::stderr().is_terminal() { "\n" } else { "" };
                eprintln!("{end}{line}");
            }
            std::process::exit(i32::from(INTERRUPTED));
        };
        on_thread(wait)?;
        Ok(Self(last_words))
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
        let (runtime, mut interrupts) = listening(Interrupts::listen)?;
        let flag = Arc::new(AtomicBool::new(false));
        let pressed = Arc::clone(&flag);
        let wait = move || {
            runtime.block_on(interrupts.next());
            pressed.store(true, Ordering::Relaxed);
            runtime.block_on(interrupts.next());
            std::process::exit(i32::from(INTERRUPTED));
        };
        on_thread(wait)?;
        Ok(Self(flag))
    }

    /// Whether it is time to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
