//! Answers to repeatable requests, kept for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pelton_gateway::ResultCache;
use pelton_llm::Event;

/// The events of whole answers by the fingerprint of their request, which covers the tenant.
#[derive(Debug)]
pub(super) struct Results(Mutex<ResultCache<Arc<Vec<Event>>>>);

impl Results {
    pub(super) fn new(most_bytes: usize, time_to_live: Duration) -> Self {
        Self(Mutex::new(ResultCache::new(most_bytes, time_to_live)))
    }

    pub(super) fn get(&self, fingerprint: &[u8; 32], elapsed: Duration) -> Option<Arc<Vec<Event>>> {
        self.cache().get(fingerprint, elapsed).cloned()
    }

    pub(super) fn put(&self, fingerprint: [u8; 32], events: Vec<Event>, elapsed: Duration) {
        let n_bytes = events.iter().map(n_bytes).sum();
        self.cache().put(fingerprint, Arc::new(events), n_bytes, elapsed);
    }

    fn cache(&self) -> MutexGuard<'_, ResultCache<Arc<Vec<Event>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of an event, with what it points to; vectors may hold up to twice their length.
fn n_bytes(event: &Event) -> usize {
    let tokens = event.tokens.iter().map(|token| {
        let top = token.logprob.iter().flat_map(|logprob| &logprob.top);
        let top: usize = top.map(|top| size_of_val(top) + top.bytes.capacity()).sum();
        size_of_val(token) + token.bytes.capacity() + 2 * top
    });
    let calls = event.calls.iter().map(|call| {
        let name = call.name.as_ref().map_or(0, String::capacity);
        size_of_val(call) + name + call.arguments.capacity()
    });
    let scored = event.prompt.iter().flat_map(|prompt| prompt.iter()).map(|prompt| {
        let top = prompt.token.logprob.iter().flat_map(|logprob| &logprob.top);
        let top: usize = top.map(|top| size_of_val(top) + top.bytes.capacity()).sum();
        size_of_val(prompt) + prompt.token.bytes.capacity() + 2 * top
    });
    let texts = event.text.capacity() + event.thought.capacity() + scored.sum::<usize>();
    size_of::<Event>() + texts + 2 * (tokens.sum::<usize>() + calls.sum::<usize>())
}
