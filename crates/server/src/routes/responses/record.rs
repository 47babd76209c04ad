//! One stored response: finished, or growing in the background.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pelton_base::TenantId;
use tokio::sync::{Notify, watch};

use super::store::{History, Share};

/// One event of a streamed response, as its name and its data.
pub(crate) type LoggedEvent = (&'static str, Arc<str>);

/// A response that is stored.
#[derive(Debug)]
pub(crate) struct Record {
    id: String,
    tenant: TenantId,
    is_background: bool,
    /// Whether its events are kept for those that follow it.
    is_logged: bool,
    /// The items of its input, each as JSON.
    pub(crate) input: Vec<InputItem>,
    state: Mutex<State>,
    /// Asks a response in the background to end.
    pub(crate) cancel: Notify,
    /// Number of events so far; followers wait for it to change.
    news: watch::Sender<usize>,
}

/// One item of an input.
#[derive(Clone, Debug)]
pub(crate) struct InputItem {
    pub(crate) id: String,
    pub(crate) json: Box<str>,
}

#[derive(Debug)]
struct State {
    /// The response as it is now, as JSON.
    response: Arc<str>,
    is_done: bool,
    /// The conversation up to this response, once it is done.
    history: History,
    /// Events of a streamed response in the background.
    events: Vec<LoggedEvent>,
    event_bytes: usize,
    share: Share,
}

impl Record {
    /// A response that has ended.
    pub(crate) fn ended(
        id: String,
        tenant: TenantId,
        input: Vec<InputItem>,
        response: String,
        history: History,
        share: Share,
    ) -> Arc<Self> {
        let record = Self::new(id, tenant, (false, false), input, share);
        record.end(response, history);
        record
    }

    /// A response that begins to grow in the background.
    pub(crate) fn growing(
        id: String,
        tenant: TenantId,
        input: Vec<InputItem>,
        response: String,
        is_logged: bool,
        share: Share,
    ) -> Arc<Self> {
        let record = Self::new(id, tenant, (true, is_logged), input, share);
        record.update(response);
        record
    }

    fn new(
        id: String,
        tenant: TenantId,
        (is_background, is_logged): (bool, bool),
        input: Vec<InputItem>,
        share: Share,
    ) -> Arc<Self> {
        let state = State {
            response: Arc::from(""),
            is_done: false,
            history: Vec::new(),
            events: Vec::new(),
            event_bytes: 0,
            share,
        };
        let (cancel, news) = (Notify::new(), watch::Sender::new(0));
        let state = Mutex::new(state);
        Arc::new(Self { id, tenant, is_background, is_logged, input, state, cancel, news })
    }

    #[cfg(test)]
    pub(crate) fn for_test(id: &str, tenant: TenantId, share: Share) -> Arc<Self> {
        Self::new(id.to_owned(), tenant, (false, false), Vec::new(), share)
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn tenant(&self) -> TenantId {
        self.tenant
    }

    pub(crate) fn is_background(&self) -> bool {
        self.is_background
    }

    pub(crate) fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// The response as it is now, as JSON.
    pub(crate) fn response(&self) -> Arc<str> {
        Arc::clone(&self.state().response)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state().is_done
    }

    /// The conversation up to this response; `None` while it grows, and where it has no answer.
    pub(crate) fn history(&self) -> Option<History> {
        let state = self.state();
        (state.is_done && !state.history.is_empty()).then(|| state.history.clone())
    }

    /// Shows the response as it is now.
    pub(crate) fn update(&self, response: String) {
        let mut state = self.state();
        state.response = response.into();
        self.weigh(&mut state);
    }

    /// Shows the response as it stays.
    pub(crate) fn end(&self, response: String, history: History) {
        let mut state = self.state();
        (state.response, state.history, state.is_done) = (response.into(), history, true);
        self.weigh(&mut state);
        drop(state);
        self.news.send_modify(|_| {});
    }

    /// Adds an event for those that follow the response.
    pub(crate) fn log(&self, name: &'static str, data: String) {
        let mut state = self.state();
        state.event_bytes += data.len();
        state.events.push((name, data.into()));
        self.weigh(&mut state);
        let n = state.events.len();
        drop(state);
        self.news.send_replace(n);
    }

    /// The event of this number, and whether it can still come.
    pub(crate) fn event(&self, number: usize) -> (Option<LoggedEvent>, bool) {
        let state = self.state();
        (state.events.get(number).cloned(), !state.is_done)
    }

    /// Told of every event and of the end.
    pub(crate) fn news(&self) -> watch::Receiver<usize> {
        self.news.subscribe()
    }

    /// Counts its memory.
    fn weigh(&self, state: &mut State) {
        let input: usize = self.input.iter().map(|item| item.json.len() + item.id.len()).sum();
        let history = state.history.len() * size_of::<usize>();
        let events = state.event_bytes + state.events.len() * size_of::<LoggedEvent>();
        let bytes = size_of::<Self>() + input + state.response.len() + history + events;
        state.share.resize(bytes);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::store::{ResponsesConfig, Store};
    use super::*;

    #[test]
    fn every_part_of_a_response_is_counted() {
        let config =
            ResponsesConfig { ttl: Duration::from_secs(1), memory_bytes: 1 << 20, max_stored: 10 };
        let store = Store::new(config, 1);
        let record = Record::for_test("r", TenantId(0), store.share(TenantId(0), 0));
        record.log("a", String::new());
        let one = store.total();
        record.log("b", "123".to_owned());
        assert_eq!(store.total() - one, size_of::<LoggedEvent>() + 3);
        let before = store.total();
        let turn = store.turn(TenantId(0), Vec::new());
        record.end("12345".to_owned(), vec![Arc::clone(&turn), turn]);
        assert_eq!(store.total() - before, 5 + 2 * size_of::<usize>());
        drop(record);
        assert_eq!(store.total(), 0);
    }
}
