//! Waiting without the interpreter's lock, and with an eye on Ctrl-C.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use pyo3::prelude::*;

/// Longest wait before Ctrl-C is looked for.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker of the current thread.
pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// Calls `slice` without the lock until it has an answer. Each call takes at most about
/// [`PATIENCE`]; between two calls the interpreter handles signals.
///
/// # Errors
///
/// The exception of a signal, such as `KeyboardInterrupt`.
pub(crate) fn until<T: Send>(
    py: Python<'_>,
    mut slice: impl FnMut() -> Option<T> + Send,
) -> PyResult<T> {
    loop {
        if let Some(answer) = py.detach(&mut slice) {
            return Ok(answer);
        }
        py.check_signals()?;
    }
}
