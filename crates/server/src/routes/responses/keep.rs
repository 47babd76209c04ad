//! From a request to the stored response: its conversation, and where it goes when it has ended.

use std::sync::Arc;
use std::time::Instant;

use pelton_base::TenantId;
use pelton_text::Message;

use super::growing::Growing;
use super::record::{InputItem, Record};
use super::store::{History, Store};
use super::types::Conversation;
use crate::error::ApiError;
use crate::models::Traits;
use crate::routes::conversation::Turns;
use crate::state::AppState;

/// The turns before a request.
///
/// # Errors
///
/// Names a response that is not stored, is another tenant's, or has not ended.
pub(crate) fn history(
    app: &AppState,
    tenant: TenantId,
    previous: Option<&str>,
) -> Result<History, ApiError> {
    let Some(id) = previous else { return Ok(Vec::new()) };
    let record = app.responses().get(id, tenant, Instant::now());
    let record = record.ok_or_else(|| ApiError::no_previous_response(id))?;
    record.history().ok_or_else(|| {
        let why = if record.is_done() { "has no answer" } else { "is still in progress" };
        let message = format!("`previous_response_id`: the response `{id}` {why}");
        ApiError::param("previous_response_id", message)
    })
}

/// The whole conversation as the model reads it.
pub(crate) fn messages(conversation: &Conversation, history: &History) -> Vec<Message> {
    let mut turns = Turns::default();
    if let Some(instructions) = &conversation.instructions {
        turns.text("system", instructions.clone());
    }
    for turn in history {
        turns.extend(turn.messages.iter().cloned());
    }
    turns.extend(conversation.input.turns.clone().finish());
    turns.finish()
}

/// The facts that rules ask for which choose a model.
pub(crate) fn traits(conversation: &Conversation, history: &History) -> Traits {
    let has_tools = !conversation.tools.tools.is_empty();
    Traits { has_tools, ..Traits::of_messages(&messages(conversation, history)) }
}

/// The parts of a request that are stored with its response.
#[derive(Debug)]
pub(crate) struct Keep {
    pub(crate) store: Arc<Store>,
    pub(crate) tenant: TenantId,
    pub(crate) history: History,
    pub(crate) turns: Turns,
    pub(crate) items: Vec<InputItem>,
}

impl Keep {
    /// Stores a response that has ended; it says so where there is no room.
    pub(crate) fn store(self, growing: &mut Growing) {
        let items = self.items.clone();
        let (store, tenant, history) = self.turned(growing);
        let (id, share) = (growing.id().to_owned(), store.share(tenant, 0));
        let record = Record::ended(id, tenant, items, growing.json(), history, share);
        if !store.finished(&record, Instant::now()) {
            growing.forget();
            tracing::warn!("a response is larger than `--responses-memory` and is not stored");
        }
    }

    /// The conversation with this response as its last turn.
    pub(crate) fn turned(mut self, growing: &Growing) -> (Arc<Store>, TenantId, History) {
        growing.tell(&mut self.turns);
        let turn = self.store.turn(self.tenant, self.turns.finish());
        self.history.push(turn);
        (self.store, self.tenant, self.history)
    }
}
