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

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pelton_base::{TenantId, limits};
use pelton_gateway::{Scope, Scopes};
use pelton_llm::Generation;
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::gateway::{FoundKey, Ticket};
use crate::routes;
use crate::state::AppState;

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

/// What a key of the settings is for; each scope includes those before it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum KeyScope {
    /// Requests of its tenant.
    User,
    /// Sees the load of the whole server.
    Metrics,
    /// Changes the server.
    Admin,
}

impl KeyScope {
    fn named(name: &str) -> Option<Self> {
        match name {
            "user" => Some(Self::User),
            "metrics" => Some(Self::Metrics),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }

    fn scopes(self) -> Scopes {
        match self {
            Self::User => Scopes::of(&[Scope::User]),
            Self::Metrics => Scopes::of(&[Scope::User, Scope::Metrics]),
            Self::Admin => ALL_SCOPES,
        }
    }
}

/// A secret that grants access; only its digest is kept.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct ApiKey {
    digest: [u8; 32],
    scope: KeyScope,
}

impl ApiKey {
    /// Reads a key in the form in which clients send it, or a key, a space, and a scope: `user`,
    /// `metrics` or `admin`.
    ///
    /// # Errors
    ///
    /// [`AccessError::BadKey`] for a key that no client can send, or that is too long, and for an
    /// unknown scope.
    pub fn new(text: &str) -> Result<Self, AccessError> {
        let (key, scope) = match text.split_once([' ', '\t']) {
            None => (text, None),
            Some((key, scope)) => (key, Some(scope.trim())),
        };
        let is_sendable = (1..=limits::API_KEY_BYTES).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_graphic());
        let scope = scope.map_or(Some(KeyScope::User), KeyScope::named);
        match scope.filter(|_| is_sendable) {
            Some(scope) => Ok(Self { digest: digest(key.as_bytes()), scope }),
            None => Err(AccessError::BadKey),
        }
    }

    /// Whether this is the key of a digest, in a time that does not depend on where they differ.
    fn is(&self, other: &[u8; 32]) -> bool {
        let differences = self.digest.iter().zip(other).map(|(a, b)| a ^ b);
        black_box(differences.fold(0, |all, one| all | one)) == 0
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(not shown)")
    }
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

/// The tenant of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantId,
    priority: i32,
    scopes: Scopes,
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
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn tenant(name: &str, keys: &[&str]) -> Tenant {
        let keys = keys.iter().map(|key| ApiKey::new(key).expect("sendable")).collect();
        Tenant { name: name.to_owned(), priority: name.len() as i32, keys }
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pair = |(name, value): &(HeaderName, &str)| {
            (name.clone(), HeaderValue::from_str(value).expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_key_is_its_tenant_and_nothing_else_is() {
        let access = Access::new(vec![tenant("default", &["k0"]), tenant("blue", &["k1", "k2"])]);
        let access = access.expect("distinct");
        let ask = |value: &str| {
            let headers = headers(&[(header::AUTHORIZATION, value)]);
            access.caller(Need::User, &headers, None).map(|caller| caller.tenant.0)
        };
        assert_eq!((ask("Bearer k0"), ask("bearer  k2 ")), (Ok(0), Ok(1)));
        for wrong in ["Bearer k", "Bearer k00", "Bearer", "Bearer ", "Basic k0", "k0", "", "é"] {
            let error = ask(wrong).expect_err(wrong);
            assert_eq!(error.status, 401, "{wrong}");
            assert!(!error.body.message.contains("k0"), "{}", error.body.message);
        }
        let other = |pairs: &[(HeaderName, &str)]| {
            access.caller(Need::User, &headers(pairs), None).map(|caller| caller.tenant.0)
        };
        assert_eq!(other(&[(KEY_HEADER, " k2 ")]), Ok(1), "the header of Anthropic's clients");
        let basic = (header::AUTHORIZATION, "Basic k0");
        assert_eq!(other(&[basic, (KEY_HEADER, "k2")]), Ok(1), "a proxy has a password of its own");
        let both = [(header::AUTHORIZATION, "Bearer k0"), (KEY_HEADER, "k2")];
        assert_eq!(other(&both), Ok(0), "a token comes first");
        for wrong in ["", "k", "Bearer k0"] {
            assert_eq!(other(&[(KEY_HEADER, wrong)]).expect_err(wrong).status, 401, "{wrong}");
        }
        let none = HeaderMap::new();
        assert_eq!(access.caller(Need::User, &none, None).expect_err("no key").status, 401);
        let scopes = Scopes::default();
        let caller = Caller { tenant: TenantId(0), priority: 7, scopes, ticket: 0 };
        assert_eq!(access.caller(Need::Open, &none, None), Ok(caller));
        let both = headers(&[(header::AUTHORIZATION, "Bearer k1"), (TENANT_HEADER, "default")]);
        assert_eq!(access.caller(Need::User, &both, None).expect_err("contradiction").status, 400);
    }

    #[test]
    fn only_a_key_with_the_scope_sees_all_tenants() {
        let access =
            Access::new(vec![tenant("default", &["k0", "k1\t metrics", "k2", "k2 metrics"])]);
        let access = access.expect("distinct");
        let sees_all = |need: Need, key: &str| {
            let headers = headers(&[(header::AUTHORIZATION, &format!("Bearer {key}"))]);
            access.caller(need, &headers, None).map(Caller::sees_all)
        };
        for (key, expected) in [("k0", false), ("k1", true), ("k2", true)] {
            assert_eq!(sees_all(Need::User, key), Ok(expected), "{key}");
            assert_eq!(sees_all(Need::Open, key), Ok(expected), "{key}");
        }
        assert_eq!(sees_all(Need::Open, "wrong"), Ok(false), "a monitor with an old key");
        assert_eq!(
            sees_all(Need::User, "k1 metrics").expect_err("the scope is not sent").status,
            401
        );
        let shared = vec![tenant("a", &["k"]), tenant("b", &["k metrics"])];
        assert!(matches!(Access::new(shared), Err(AccessError::SharedKey { .. })));
        for bad in ["k root", "k metrics metrics", "k ", " metrics"] {
            assert_eq!(ApiKey::new(bad), Err(AccessError::BadKey), "{bad:?}");
        }
    }

    #[test]
    fn a_route_is_open_to_the_scopes_that_include_its_need() {
        let access = Access::new(vec![tenant("default", &["u user", "m metrics", "a admin"])]);
        let access = access.expect("distinct");
        let status = |need: Need, key: &str| {
            let headers = headers(&[(header::AUTHORIZATION, &format!("Bearer {key}"))]);
            access.caller(need, &headers, None).map_or_else(|error| error.status.as_u16(), |_| 200)
        };
        for (need, expected) in [
            (Need::Open, [200, 200, 200, 200]),
            (Need::User, [200, 200, 200, 401]),
            (Need::Metrics, [403, 200, 200, 401]),
            (Need::Admin, [403, 403, 200, 401]),
        ] {
            assert_eq!(["u", "m", "a", "x"].map(|key| status(need, key)), expected, "{need:?}");
        }
    }

    #[test]
    fn without_keys_a_header_names_the_tenant() {
        let access = Access::new(vec![tenant("default", &[]), tenant("blue", &[])]).expect("open");
        let ask = |name: &str| access.caller(Need::User, &headers(&[(TENANT_HEADER, name)]), None);
        let blue = Caller { tenant: TenantId(1), priority: 4, scopes: ALL_SCOPES, ticket: 0 };
        assert_eq!(ask("blue"), Ok(blue));
        assert_eq!(
            access.caller(Need::User, &HeaderMap::new(), None).expect("the first").tenant,
            TenantId(0)
        );
        let message = ask("red").expect_err("unknown").body.message;
        assert!(message.contains("`default`, `blue`"), "{message}");
    }

    #[test]
    fn tenants_that_nobody_or_two_could_be_are_refused() {
        let first = || tenant("default", &[]);
        let shared = vec![first(), tenant("a", &["k"]), tenant("b", &["x", "k"])];
        let error = Access::new(shared).expect_err("shared").to_string();
        assert_eq!(error, "`a` and `b` have an API key in common");
        let error = Access::new(vec![first(), tenant("a", &["k"]), tenant("b", &[])]);
        assert_eq!(error.expect_err("no key"), AccessError::NoKey { tenant: "b".to_owned() });
        Access::new(vec![first(), tenant("a", &["k", "k"])]).expect("twice is once");
        for bad in ["", "a b", "a\n", "\u{e9}", &"x".repeat(limits::API_KEY_BYTES + 1)] {
            assert_eq!(ApiKey::new(bad), Err(AccessError::BadKey));
        }
        assert!(!format!("{:?}", tenant("a", &["secret"])).contains("secret"));
    }
}
