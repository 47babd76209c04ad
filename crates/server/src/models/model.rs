//! One loaded version of a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pelton_llm::{Embedder, Llm};
use tokio::sync::watch;

use super::Served;
use super::room::Room;
use crate::error::ApiError;

/// One loaded version of a model; cheap to clone. While a request holds it, this version stays in
/// memory, whatever is loaded under the same name meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    inner: Arc<Loaded>,
    /// Shared with the other requests that use this version; `None` where it is only looked at.
    _pin: Option<Arc<()>>,
}

#[derive(Debug)]
struct Loaded {
    name: String,
    served: Served,
    version: u64,
    since: Instant,
    pins: Arc<()>,
    /// Where the server loaded it itself: the memory that it takes. It then ends with its last
    /// request.
    memory: Option<(Arc<Room>, u64)>,
    /// Whether the room knows that the memory comes back soon.
    is_announced: AtomicBool,
    /// Whether its engine hangs in a step and is given up.
    is_lost: watch::Sender<bool>,
}

impl Model {
    /// A version that takes `memory` until nobody uses it any more. A model without is the caller's.
    pub(super) fn new(
        name: String,
        served: Served,
        version: u64,
        memory: Option<(Arc<Room>, u64)>,
    ) -> Self {
        if let Some((room, n_bytes)) = &memory {
            room.take(*n_bytes);
        }
        let (since, pins, is_lost) = (Instant::now(), Arc::new(()), watch::Sender::new(false));
        let is_announced = AtomicBool::new(false);
        let inner = Loaded { name, served, version, since, pins, memory, is_announced, is_lost };
        Self { inner: Arc::new(inner), _pin: None }
    }

    /// Says that this version is out of service, so that its memory comes back soon if no request
    /// uses it.
    pub(super) fn retire(&self) {
        if !self.is_in_use() {
            self.inner.announce();
        }
    }

    /// The same, in use until the result is dropped.
    pub(super) fn pinned(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), _pin: Some(Arc::clone(&self.inner.pins)) }
    }

    /// Whether requests use it.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.inner.pins) > 1
    }

    /// Its name for clients, never an alias.
    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    /// 1 for the version that was loaded first, then 2 and so on.
    pub(crate) fn version(&self) -> u64 {
        self.inner.version
    }

    /// When it was loaded.
    pub(super) fn since(&self) -> Instant {
        self.inner.since
    }

    pub(crate) fn served(&self) -> &Served {
        &self.inner.served
    }

    /// Most tokens of a sequence.
    pub(crate) fn max_tokens(&self) -> usize {
        self.inner.served.max_tokens()
    }

    /// The model, if it generates text.
    pub(crate) fn llm(&self) -> Result<&Arc<Llm>, ApiError> {
        match self.served() {
            Served::Text(llm) => Ok(llm),
            Served::Vectors(embedder) => {
                let (kind, route) = match embedder.info().labels.len() {
                    0 => ("an embedding model", "embeddings"),
                    1 => ("a ranker", "rerank"),
                    _ => ("a classifier", "classify"),
                };
                Err(ApiError::wrong_model(format!(
                    "`{}` is {kind}: it generates no text; ask POST /v1/{route}",
                    self.name()
                )))
            }
        }
    }

    /// The model, if it makes vectors.
    pub(crate) fn embedder(&self) -> Result<&Arc<Embedder>, ApiError> {
        match self.served() {
            Served::Vectors(embedder) => Ok(embedder),
            Served::Text(_) => Err(ApiError::wrong_model(format!(
                "`{}` is served for text and makes no vectors; `pelton serve --embeddings` serves \
                 a model for these",
                self.name()
            ))),
        }
    }

    /// Whether its engine is at one step for longer than `most`.
    pub(super) fn hangs(&self, most: Duration) -> bool {
        let time = match self.served() {
            Served::Text(llm) => llm.engine().busy_for(),
            Served::Vectors(embedder) => embedder.busy_for(),
        };
        time.is_some_and(|time| time > most)
    }

    /// Whether it answers no more requests, for good.
    pub(super) fn has_failed(&self) -> bool {
        self.served().has_failed() || self.is_lost()
    }

    /// Whether its engine was given up.
    pub(super) fn is_lost(&self) -> bool {
        *self.inner.is_lost.borrow()
    }

    /// Gives its engine up: its requests are run again by another one, or end.
    pub(super) fn give_up(&self) {
        self.inner.is_lost.send_replace(true);
    }

    /// Waits until its engine is given up; for ever where it is not. Safe to cancel.
    pub(crate) fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut is_lost = self.inner.is_lost.subscribe();
        async move {
            if is_lost.wait_for(|is_lost| *is_lost).await.is_err() {
                // It was dropped as a healthy model.
                std::future::pending().await
            }
        }
    }
}

impl Loaded {
    fn announce(&self) {
        let Some((room, n_bytes)) = &self.memory else { return };
        if !self.is_announced.swap(true, Ordering::SeqCst) {
            room.announce(*n_bytes);
        }
    }
}

/// The memory is free when the engine's thread has ended, for which nobody should have to wait.
impl Drop for Loaded {
    fn drop(&mut self) {
        if *self.is_lost.borrow() {
            // Its thread may never end, and keeps the memory.
            return self.served.abandon();
        }
        self.announce();
        let Some((room, n_bytes)) = self.memory.take() else { return };
        let served = self.served.clone();
        let end = move || {
            served.shutdown();
            served.join();
            drop(served);
            room.give_back(n_bytes);
        };
        tracing::info!("model {} (version {}) is unloaded", self.name, self.version);
        let thread = std::thread::Builder::new().name("pelton-unload".to_owned());
        if let Err(error) = thread.spawn(end) {
            // Its thread ends by itself, but its memory stays counted.
            tracing::warn!(%error, "no thread could wait for the end of a model");
            self.served.shutdown();
        }
    }
}
