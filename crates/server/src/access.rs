//! Access: who may send requests, and for which tenant.
//!
//! ```text
//!   keys are set      Authorization: Bearer KEY   -> the key's tenant
//!   no keys are set   X-Pelton-Tenant: NAME       -> that tenant; without it, the first
//! ```
//!
//! A key that is followed by the scope `metrics` also sees the load of the whole server: every
//! series of `/metrics`, and the gauges of `/health`. Other keys see the series of their own tenant.
//! Without keys everyone sees everything. `/health` and `/ready` need no key.
//!
//! Only the SHA-256 of a key is kept, so neither a log nor a core dump reveals the key. The digest
//! of a client's key is compared with every known digest to its last byte, so the time of a request
//! does not reveal how close a wrong key is.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hint::black_box;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pelton_base::{TenantId, limits};
use pelton_llm::Generation;
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::state::AppState;

/// Header that names the tenant where there are no keys.
const TENANT_HEADER: HeaderName = HeaderName::from_static("x-pelton-tenant");
/// Paths that need no key, because process monitors have none.
const OPEN_PATHS: [&str; 2] = ["/health", "/ready"];
/// Scope of a key that sees the load of the whole server.
const METRICS_SCOPE: &str = "metrics";

/// A secret that grants access; only its digest is kept.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct ApiKey {
    digest: [u8; 32],
    /// Whether it has the scope `metrics`.
    sees_all: bool,
}

impl ApiKey {
    /// Reads a key in the form in which clients send it, or a key, a space, and `metrics`.
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
        let sees_all = scope == Some(METRICS_SCOPE);
        if is_sendable && (scope.is_none() || sees_all) {
            Ok(Self { digest: digest(key.as_bytes()), sees_all })
        } else {
            Err(AccessError::BadKey)
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
}

/// Tenants and keys that contradict each other. No message holds a key.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A key that no client can send.
    #[error(
        "an API key must have 1 to 512 visible ASCII characters and no spaces; only the scope \
         `metrics` may follow it, after a space"
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
        Self { tenants: vec![tenant] }
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
        let unreachable = tenants.iter().skip(1).find(|tenant| tenant.keys.is_empty());
        if let Some(tenant) = unreachable.filter(|_| n_keys > 0) {
            return Err(AccessError::NoKey { tenant: tenant.name.clone() });
        }
        Ok(Self { tenants })
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
        self.tenants.iter().any(|tenant| !tenant.keys.is_empty())
    }

    /// The tenant of a request, and what it may see.
    fn caller(&self, path: &str, headers: &HeaderMap) -> Result<Caller, ApiError> {
        match self.identify(headers) {
            Err(_) if OPEN_PATHS.contains(&path) => Ok(self.as_tenant(0, !self.has_keys())),
            caller => caller,
        }
    }

    fn identify(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let named = headers.get(TENANT_HEADER);
        if !self.has_keys() {
            let Some(name) = named else { return Ok(self.as_tenant(0, true)) };
            let idx = self.tenants.iter().position(|tenant| tenant.name.as_bytes() == name);
            return idx.map(|idx| self.as_tenant(idx, true)).ok_or_else(|| self.unknown_tenant());
        }
        let sent = headers.get(header::AUTHORIZATION).ok_or_else(ApiError::no_key)?;
        let key = digest(bearer(sent.as_bytes()).ok_or_else(ApiError::no_key)?);
        let (mut found, mut sees_all) = (None, false);
        for (idx, tenant) in self.tenants.iter().enumerate() {
            for known in &tenant.keys {
                if known.is(&key) {
                    found = Some(idx);
                    sees_all |= known.sees_all;
                }
            }
        }
        let idx = found.ok_or_else(ApiError::wrong_key)?;
        match named {
            Some(name) if name != self.tenants[idx].name.as_str() => {
                let message = "`X-Pelton-Tenant` names another tenant than the API key";
                Err(ApiError::param("X-Pelton-Tenant", message))
            }
            _ => Ok(self.as_tenant(idx, sees_all)),
        }
    }

    fn as_tenant(&self, idx: usize, sees_all: bool) -> Caller {
        let tenant = TenantId(u32::try_from(idx).expect("invariant: tenants are few"));
        Caller { tenant, priority: self.tenants[idx].priority, sees_all }
    }

    fn unknown_tenant(&self) -> ApiError {
        let mut message = "`X-Pelton-Tenant` must be one of ".to_owned();
        for (i, name) in self.names().enumerate() {
            let _ = write!(message, "{}`{name}`", if i > 0 { ", " } else { "" });
        }
        ApiError::param("X-Pelton-Tenant", message)
    }
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
    /// Whether it may see the load of the whole server, and not only of its tenant.
    pub(crate) sees_all: bool,
}

impl Caller {
    /// Overrides the defaults of a request by the settings of its tenant.
    pub(crate) fn over(self, mut defaults: Generation) -> Generation {
        defaults.service.tenant = self.tenant;
        defaults.service.priority = self.priority;
        defaults
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        Ok(*parts.extensions.get().expect("invariant: every route lies behind the layer"))
    }
}

/// Admits requests, attaches their tenant, and counts refused ones.
pub(crate) async fn layer(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = app.config().access.caller(request.uri().path(), request.headers());
    let (tenant, response) = match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            (caller.tenant, next.run(request).await)
        }
        Err(error) => (TenantId::default(), error.into_response()),
    };
    app.count_refusal(tenant, &response);
    response
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
            access.caller("/v1/models", &headers).map(|caller| caller.tenant.0)
        };
        assert_eq!((ask("Bearer k0"), ask("bearer  k2 ")), (Ok(0), Ok(1)));
        for wrong in ["Bearer k", "Bearer k00", "Bearer", "Bearer ", "Basic k0", "k0", "", "é"] {
            let error = ask(wrong).expect_err(wrong);
            assert_eq!(error.status, 401, "{wrong}");
            assert!(!error.body.message.contains("k0"), "{}", error.body.message);
        }
        let none = HeaderMap::new();
        assert_eq!(access.caller("/v1/models", &none).expect_err("no key").status, 401);
        for path in OPEN_PATHS {
            let caller = Caller { tenant: TenantId(0), priority: 7, sees_all: false };
            assert_eq!(access.caller(path, &none), Ok(caller));
        }
        let both = headers(&[(header::AUTHORIZATION, "Bearer k1"), (TENANT_HEADER, "default")]);
        assert_eq!(access.caller("/v1/models", &both).expect_err("contradiction").status, 400);
    }

    #[test]
    fn only_a_key_with_the_scope_sees_all_tenants() {
        let access =
            Access::new(vec![tenant("default", &["k0", "k1\t metrics", "k2", "k2 metrics"])]);
        let access = access.expect("distinct");
        let sees_all = |path: &str, key: &str| {
            let headers = headers(&[(header::AUTHORIZATION, &format!("Bearer {key}"))]);
            access.caller(path, &headers).map(|caller| caller.sees_all)
        };
        for (key, expected) in [("k0", false), ("k1", true), ("k2", true)] {
            assert_eq!(sees_all("/metrics", key), Ok(expected), "{key}");
            assert_eq!(sees_all("/health", key), Ok(expected), "{key}");
        }
        assert_eq!(sees_all("/health", "wrong"), Ok(false), "a monitor with an old key");
        assert_eq!(
            sees_all("/metrics", "k1 metrics").expect_err("the scope is not sent").status,
            401
        );
        let shared = vec![tenant("a", &["k"]), tenant("b", &["k metrics"])];
        assert!(matches!(Access::new(shared), Err(AccessError::SharedKey { .. })));
        for bad in ["k admin", "k metrics metrics", "k ", " metrics"] {
            assert_eq!(ApiKey::new(bad), Err(AccessError::BadKey), "{bad:?}");
        }
    }

    #[test]
    fn without_keys_a_header_names_the_tenant() {
        let access = Access::new(vec![tenant("default", &[]), tenant("blue", &[])]).expect("open");
        let ask = |name: &str| access.caller("/", &headers(&[(TENANT_HEADER, name)]));
        let blue = Caller { tenant: TenantId(1), priority: 4, sees_all: true };
        assert_eq!(ask("blue"), Ok(blue));
        assert_eq!(access.caller("/", &HeaderMap::new()).expect("the first").tenant, TenantId(0));
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
