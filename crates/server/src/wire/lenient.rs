//! Fields that a lenient server ignores instead of refusing the request.
//!
//! ```text
//!   layer ── opens a list for the request
//!     reading ── on a thread of its own: readers note what they ignore ──▶ the list
//!   layer ── writes the list into the header of the answer
//! ```
//!
//! Readers of fields are plain functions that know neither the server nor its settings, so the list of
//! the request at hand belongs to the thread that reads it.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::Ignored;
use crate::state::AppState;

/// Most fields that are noted; a body has no more than 256 in one object.
const MOST_FIELDS: usize = 256;

thread_local! {
    /// The fields that were ignored on this thread; `None` where none may be.
    static READING: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

tokio::task_local! {
    /// The fields that were ignored in the request of this task.
    static REQUEST: Arc<Mutex<Vec<String>>>;
}

/// Where the fields that a request's readers ignore are noted; `None` in a strict server.
#[derive(Clone, Debug)]
pub(crate) struct Lenience(Arc<Mutex<Vec<String>>>);

impl Lenience {
    /// That of the request of this task.
    pub(crate) fn of_request() -> Option<Self> {
        REQUEST.try_with(|list| Self(Arc::clone(list))).ok()
    }

    /// Runs readers of fields, which may ignore some.
    pub(crate) fn read<T>(&self, work: impl FnOnce() -> T) -> T {
        READING.set(Some(Vec::new()));
        let done = work();
        let ignored = READING.take().unwrap_or_default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(ignored);
        done
    }
}

/// Whether a field may be ignored; it is noted then.
pub(crate) fn ignores(path: &str) -> bool {
    READING.with_borrow_mut(|list| {
        let Some(list) = list else { return false };
        if list.len() < MOST_FIELDS {
            list.push(path.to_owned());
        }
        true
    })
}

/// Names the fields that were ignored in the answer of a lenient server.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    if !state.config().lenient {
        return next.run(request).await;
    }
    let list: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut response = REQUEST.scope(Arc::clone(&list), next.run(request)).await;
    let mut ignored = Ignored::default();
    let list = std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner));
    list.into_iter().for_each(|path| ignored.add(path));
    ignored.mark(&mut response);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Fields;

    #[test]
    fn a_reader_ignores_fields_only_while_it_may() {
        let read = || Fields::of_body(br#"{"a": 1, "b": null}"#).and_then(Fields::finish);
        assert!(read().is_err());
        let lenience = Lenience(Arc::default());
        assert!(lenience.read(read).is_ok());
        assert_eq!(*lenience.0.lock().expect("sound"), ["a"], "null is absence");
        assert!(read().is_err(), "strict again");
        assert!(!ignores("c") && Lenience::of_request().is_none());
    }
}
