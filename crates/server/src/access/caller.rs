//! The tenant of a request and its rights.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use pelton_base::TenantId;
use pelton_gateway::{Scope, Scopes};
use pelton_llm::Generation;

use crate::error::ApiError;
use crate::gateway::{FoundKey, Ticket};
use crate::state::AppState;

/// The tenant of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantId,
    pub(super) priority: i32,
    pub(super) scopes: Scopes,
    /// Number of the request's [`Ticket`].
    pub(crate) ticket: u64,
}

impl Caller {
    /// Whether it may see the load of the whole server, and not only of its tenant.
    pub(crate) fn sees_all(self) -> bool {
        self.scopes.has(Scope::Metrics)
    }

    /// Whether it may see everything, the usage of all keys included.
    pub(crate) fn is_admin(self) -> bool {
        self.scopes.has(Scope::Admin)
    }

    /// The same caller and a ticket of its tenant and key, for a request from inside.
    pub(crate) fn with_ticket(self, app: &AppState, key: Option<&FoundKey>) -> (Self, Arc<Ticket>) {
        let ticket = app.gateway().ticket(self.tenant, key);
        (Self { ticket: ticket.number(), ..self }, ticket)
    }

    /// The same caller with another priority.
    pub(crate) fn at_priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Overrides the defaults of a request by the settings of its tenant.
    pub(crate) fn over(self, mut defaults: Generation) -> Generation {
        defaults.service.tenant = self.tenant;
        defaults.service.priority = self.priority;
        defaults.service.ticket = self.ticket;
        defaults
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        Ok(*parts.extensions.get().expect("invariant: every route lies behind the layer"))
    }
}
