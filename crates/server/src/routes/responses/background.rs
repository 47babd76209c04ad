//! Responses that grow without a client, and the streams of clients that follow one.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use futures_util::FutureExt;
use serde::Serialize;

use super::growing::{Growing, Sink};
use super::keep::Keep;
use super::record::Record;
use crate::answering::Answering;
use crate::error::ApiError;
use crate::state::Running;
use crate::wire::{stream, write_line};

/// The log of a response, for the clients that follow it.
struct Log<'a>(&'a Record);

impl Sink for Log<'_> {
    fn put(&mut self, name: &'static str, event: &impl Serialize) {
        if self.0.is_logged() {
            let data = serde_json::to_string(event).expect("invariant: events are plain data");
            self.0.log(name, data);
        }
    }
}

/// How a response in the background ended.
enum End {
    Whole,
    Cancelled,
}

/// Lets a response grow until it ends or is cancelled; its client need not wait.
///
/// # Errors
///
/// There is no room for it beside those that run.
pub(crate) fn start(
    growing: Growing,
    answering: Answering,
    running: Running,
    mut keep: Keep,
    is_logged: bool,
) -> Result<Arc<Record>, ApiError> {
    let (id, items) = (growing.id().to_owned(), std::mem::take(&mut keep.items));
    let share = keep.store.share(keep.tenant, 0);
    let record = Record::growing(id, keep.tenant, items, growing.json(), is_logged, share);
    if !keep.store.insert(&record, Instant::now()) {
        return Err(ApiError::responses_full());
    }
    tokio::spawn(run(growing, answering, running, keep, Arc::clone(&record)));
    Ok(record)
}

async fn run(
    mut growing: Growing,
    mut answering: Answering,
    running: Running,
    keep: Keep,
    record: Arc<Record>,
) {
    let mut log = Log(&record);
    let grown = AssertUnwindSafe(grow(&mut growing, &mut answering, &record)).catch_unwind();
    let end = grown.await.unwrap_or_else(|_| Err(ApiError::internal("a response panicked")));
    let usage = answering.usage();
    // A cancelled request is free before its client hears of it.
    drop(answering);
    let store = Arc::clone(&keep.store);
    let history = match end {
        Ok(End::Whole) => {
            growing.settle(usage, &mut log);
            growing.conclude(&mut log);
            keep.turned(&growing).2
        }
        Ok(End::Cancelled) => {
            growing.cancel(usage, &mut log);
            Vec::new()
        }
        Err(error) => {
            growing.fail(error, &mut log);
            Vec::new()
        }
    };
    record.end(growing.json(), history);
    store.settled(&record, Instant::now());
    drop(running);
}

async fn grow(
    growing: &mut Growing,
    answering: &mut Answering,
    record: &Record,
) -> Result<End, ApiError> {
    let mut log = Log(record);
    growing.start(&mut log);
    loop {
        let event = tokio::select! {
            biased;
            () = record.cancel.notified() => return Ok(End::Cancelled),
            event = answering.next() => event,
        };
        match event {
            Some(event) => growing.event(event, &mut log)?,
            None => return Ok(End::Whole),
        }
    }
}

/// Waits until a response in the background has ended.
pub(crate) async fn ended(record: &Record) {
    let mut news = record.news();
    while !record.is_done() {
        if news.changed().await.is_err() {
            return;
        }
    }
}

/// The events of a response from number `from` on, those that come included.
pub(crate) fn follow(record: Arc<Record>, from: usize, keep_alive: Duration) -> Response {
    stream(Some(keep_alive), async move |outbox| {
        let (mut out, mut news) = (Vec::new(), record.news());
        for number in from.. {
            let (name, data) = loop {
                match record.event(number) {
                    (Some(event), _) => break event,
                    (None, false) => return,
                    (None, true) if news.changed().await.is_err() => return,
                    (None, true) => {}
                }
            };
            write_line(&mut out, Some(name), &data);
            outbox.give(&mut out).await;
        }
    })
}
