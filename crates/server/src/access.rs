//! Access: who may send requests, and for which tenant.
//!
//! ```text
//!   keys are set      Authorization: Bearer KEY   -> the key's tenant
//!                     X-Api-Key: KEY              -> likewise, without `Authorization: Bearer`
//!   no keys are set   X-Pelton-Tenant: NAME       -> that tenant; without it, the first
//! ```
//!
//! A key may be followed by a scope. The scope `admin` may change the server, such as its models; it
//! and the scope `metrics` also see the load of the whole server: every
//! series of `/metrics`, and the gauges of `/health`. Other keys see the series of their own tenant.
//! Without keys everyone sees everything. `/health` and `/ready` need no key.
//!
//! Only the SHA-256 of a key is kept, so neither a log nor a core dump reveals the key. The digest
//! of a client's key is compared with every known digest to its last byte, so the time of a request
//! does not reveal how close a wrong key is.

mod caller;
mod key;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pelton_base::{TenantId, limits};
use pelton_gateway::{Scope, Scopes};

use crate::error::ApiError;
use crate::gateway::{FoundKey, Ticket};
use crate::otlp::Stated;
use crate::routes;
use crate::state::AppState;
pub(crate) use caller::Caller;
pub use key::ApiKey;
use key::{KeyScope, digest};

/// Header that names the tenant where there are no keys.
const TENANT_HEADER: HeaderName = HeaderName::from_static("x-pelton-tenant");
/// The rights of everyone where there are no keys.
const ALL_SCOPES: Scopes = Scopes::ALL;
/// Header in which clients of Anthropic's API send their key.
const KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");

/// The right that a route needs where keys are set. Without keys, everyone has all rights.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    /// None: process monitors have no key.
    Open,
    /// Any key, whatever its scope.
    Key,
    /// A key that may send requests to models.
    User,
    /// A key with the scope `metrics` or `admin`.
    #[allow(dead_code, reason = "for routes that show the load of the whole server")]
    Metrics,
    /// A key with the scope `admin`.
    Admin,
}

/// A tenant of the server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tenant {
    /// Its name in metrics and for users.
    pub name: String,
    /// Priority of its requests that state none.
    pub priority: i32,
    /// Keys, each of which grants access.
    pub keys: Vec<ApiKey>,
}

/// Tenants and their keys; by default one tenant, without keys.
#[derive(Clone, Debug)]
pub struct Access {
    tenants: Vec<Tenant>,
    /// Whether keys of a key file are known, too.
    has_key_file: bool,
}

/// Tenants and keys that contradict each other. No message holds a key.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A key that no client can send.
    #[error(
        "an API key must have 1 to 512 visible ASCII characters and no spaces; only a scope \
         may follow it, after a space: `user`, `metrics` or `admin`"
    )]
    BadKey,
    /// A key that belongs to two tenants.
    #[error("`{first}` and `{second}` have an API key in common")]
    SharedKey {
        /// The first tenant.
        first: String,
        /// The second tenant.
        second: String,
    },
    /// A tenant without a key, where other tenants have keys.
    #[error("`{tenant}` has no API key, so no client could be `{tenant}`; add a key to it")]
    NoKey {
        /// Its name.
        tenant: String,
    },
    /// Too many keys to compare for each request.
    #[error("{n_keys} API keys; expected at most 65536")]
    TooManyKeys {
        /// Their number.
        n_keys: usize,
    },
}

impl Default for Access {
    fn default() -> Self {
        let tenant = Tenant { name: "default".to_owned(), priority: 0, keys: Vec::new() };
        Self { tenants: vec![tenant], has_key_file: false }
    }
}

impl Access {
    /// Admits these tenants, in the order of the tenants of
    /// [`LlmOptions::choices`](pelton_llm::LlmOptions::choices): the first entry is for clients
    /// without a tenant of their own.
    ///
    /// # Errors
    ///
    /// See [`AccessError`].
    ///
    /// # Panics
    ///
    /// Panics when there is no tenant.
    pub fn new(tenants: Vec<Tenant>) -> Result<Self, AccessError> {
        let access = Self::checked(tenants)?;
        let unreachable = access.tenants.iter().skip(1).find(|tenant| tenant.keys.is_empty());
        match unreachable.filter(|_| access.has_keys()) {
            Some(tenant) => Err(AccessError::NoKey { tenant: tenant.name.clone() }),
            None => Ok(access),
        }
    }

    fn checked(tenants: Vec<Tenant>) -> Result<Self, AccessError> {
        assert!(!tenants.is_empty(), "there is at least the tenant without an entry");
        let n_keys = tenants.iter().map(|tenant| tenant.keys.len()).sum();
        if n_keys > limits::API_KEYS {
            return Err(AccessError::TooManyKeys { n_keys });
        }
        let mut owners: HashMap<[u8; 32], &str> = HashMap::new();
        for tenant in &tenants {
            for key in &tenant.keys {
                match owners.insert(key.digest, &tenant.name) {
                    Some(first) if first != tenant.name => {
                        let (first, second) = (first.to_owned(), tenant.name.clone());
                        return Err(AccessError::SharedKey { first, second });
                    }
                    _ => {}
                }
            }
        }
        Ok(Self { tenants, has_key_file: false })
    }

    /// Admits these tenants, whose keys may also stand in a key file.
    ///
    /// # Errors
    ///
    /// See [`AccessError`].
    ///
    /// # Panics
    ///
    /// As [`Access::new`].
    pub fn with_key_file(tenants: Vec<Tenant>) -> Result<Self, AccessError> {
        Ok(Self { has_key_file: true, ..Self::checked(tenants)? })
    }

    /// The tenants, in order.
    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// The names of the tenants, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tenants.iter().map(|tenant| tenant.name.as_str())
    }

    /// Whether requests need a key.
    pub fn has_keys(&self) -> bool {
        self.has_key_file || self.tenants.iter().any(|tenant| !tenant.keys.is_empty())
    }

    /// The tenant of a request, and what it may do. `found` is its key, if that is one of the key
    /// file.
    fn caller(
        &self,
        need: Need,
        headers: &HeaderMap,
        found: Option<&FoundKey>,
    ) -> Result<Caller, ApiError> {
        let caller = match self.identify(headers, found) {
            Err(_) if need == Need::Open => {
                let scopes = if self.has_keys() { Scopes::default() } else { ALL_SCOPES };
                return Ok(self.as_tenant(0, scopes));
            }
            caller => caller?,
        };
        let needed = match need {
            Need::Open | Need::Key => return Ok(caller),
            Need::User => Scope::User,
            Need::Metrics => Scope::Metrics,
            Need::Admin => Scope::Admin,
        };
        match caller.scopes.has(needed) {
            true => Ok(caller),
            false => Err(ApiError::lacks_scope(needed.name())),
        }
    }

    fn identify(&self, headers: &HeaderMap, found: Option<&FoundKey>) -> Result<Caller, ApiError> {
        let named = headers.get(TENANT_HEADER);
        if !self.has_keys() {
            let Some(name) = named else { return Ok(self.as_tenant(0, ALL_SCOPES)) };
            let idx = self.tenants.iter().position(|tenant| tenant.name.as_bytes() == name);
            return idx
                .map(|idx| self.as_tenant(idx, ALL_SCOPES))
                .ok_or_else(|| self.unknown_tenant());
        }
        let (idx, scopes) = match found {
            Some(key) => (key.tenant.0 as usize, key.scopes),
            None => self.configured_key(sent_key(headers).ok_or_else(ApiError::no_key)?)?,
        };
        match named {
            Some(name) if name != self.tenants[idx].name.as_str() => {
                let message = "`X-Pelton-Tenant` names another tenant than the API key";
                Err(ApiError::param("X-Pelton-Tenant", message))
            }
            _ => Ok(self.as_tenant(idx, scopes)),
        }
    }

    /// The tenant and the scopes of a key of the settings.
    fn configured_key(&self, sent: &[u8]) -> Result<(usize, Scopes), ApiError> {
        let key = digest(sent);
        let (mut found, mut scope) = (None, KeyScope::User);
        for (idx, tenant) in self.tenants.iter().enumerate() {
            for known in &tenant.keys {
                if known.is(&key) {
                    found = Some(idx);
                    scope = scope.max(known.scope);
                }
            }
        }
        let idx = found.ok_or_else(ApiError::wrong_key)?;
        Ok((idx, scope.scopes()))
    }

    /// The first tenant, for a run without clients.
    pub(crate) fn first(&self) -> Caller {
        self.as_tenant(0, KeyScope::User.scopes())
    }

    /// A tenant of this name, for its work that an earlier process began.
    pub(crate) fn named(&self, name: &str) -> Option<Caller> {
        let idx = self.tenants.iter().position(|tenant| tenant.name == name)?;
        Some(self.as_tenant(idx, KeyScope::User.scopes()))
    }

    fn as_tenant(&self, idx: usize, scopes: Scopes) -> Caller {
        let tenant = TenantId(u32::try_from(idx).expect("invariant: tenants are few"));
        Caller { tenant, priority: self.tenants[idx].priority, scopes, ticket: 0 }
    }

    fn unknown_tenant(&self) -> ApiError {
        let mut message = "`X-Pelton-Tenant` must be one of ".to_owned();
        for (i, name) in self.names().enumerate() {
            let _ = write!(message, "{}`{name}`", if i > 0 { ", " } else { "" });
        }
        ApiError::param("X-Pelton-Tenant", message)
    }
}

/// The key of a request, in either header.
fn sent_key(headers: &HeaderMap) -> Option<&[u8]> {
    let token = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let plain = || Some(headers.get(KEY_HEADER)?.as_bytes().trim_ascii());
    token.or_else(plain).filter(|key| !key.is_empty())
}

/// The token of an `Authorization: Bearer` header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

fn need(request: &Request) -> Need {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    routes::need(request.method(), path)
}

/// Admits requests, attaches their tenant and their ticket, and counts refused ones.
pub(crate) async fn layer(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let need = need(&request);
    let sent = sent_key(request.headers()).map(<[u8]>::to_vec);
    let found = match app.gateway().find_key(sent.as_deref()).await {
        // A monitor with an old key still sees whether the server lives.
        Err(_) if need == Need::Open => Ok(None),
        found => found,
    };
    let admitted = found.and_then(|found| admit(&app, need, request.headers(), found.as_ref()));
    let (tenant, mut response, ticket) = match admitted {
        Ok((caller, ticket)) => {
            if let Some(stated) = request.extensions().get::<Arc<Stated>>() {
                stated.note_tenant(caller.tenant);
            }
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(Arc::clone(&ticket));
            (caller.tenant, next.run(request).await, Some(ticket))
        }
        Err(error) => (TenantId::default(), error.into_response(), None),
    };
    if let Some(ticket) = ticket {
        ticket.mark(response.headers_mut());
    }
    app.count_refusal(tenant, &response);
    response
}

fn admit(
    app: &AppState,
    need: Need,
    headers: &HeaderMap,
    found: Option<&FoundKey>,
) -> Result<(Caller, Arc<Ticket>), ApiError> {
    let mut caller = app.config().access.caller(need, headers, found)?;
    let ticket = app.gateway().ticket(caller.tenant, found);
    caller.ticket = ticket.number();
    Ok((caller, ticket))
}

#[cfg(test)]
mod tests;
