//! Rings callbacks of asyncio when an answer has news.
//!
//! The engine's thread must not wait for the interpreter's lock, so it only leaves a note here. One
//! thread of the process takes the lock, once for all notes that came meanwhile, and calls the
//! callbacks.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

use pyo3::prelude::*;

/// A callback to ring, without arguments.
struct Ring {
    callback: Py<PyAny>,
    notes: Sender<Arc<Ring>>,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        let notes = self.notes.clone();
        // The thread lives as long as the process.
        let _ = notes.send(self);
    }
}

/// A waker that has `callback` called.
///
/// # Errors
///
/// When the system gives no thread.
pub(crate) fn waker(callback: Py<PyAny>) -> std::io::Result<Waker> {
    static NOTES: OnceLock<Sender<Arc<Ring>>> = OnceLock::new();
    let notes = match NOTES.get() {
        Some(notes) => notes,
        None => {
            let (sender, receiver) = channel();
            let name = "pelton-bell".to_owned();
            std::thread::Builder::new().name(name).spawn(move || ring(&receiver))?;
            // Where two threads come here at once, the bell of one of them is never rung.
            NOTES.get_or_init(|| sender)
        }
    };
    Ok(Waker::from(Arc::new(Ring { callback, notes: notes.clone() })))
}

fn ring(notes: &Receiver<Arc<Ring>>) {
    while let Ok(first) = notes.recv() {
        // Nothing is left to ring once the interpreter has ended.
        Python::try_attach(|py| {
            for ring in std::iter::once(first).chain(notes.try_iter()) {
                // A loop that was closed meanwhile wants no news.
                let _ = ring.callback.call0(py);
            }
        });
    }
}
