//! Every route and every method, asked by every kind of caller.
//!
//! The expectations come from the table of routes alone, so a new route is tested as soon as it
//! stands there. The routes that need less or more than a user's key are named once more here: such a
//! route is a decision, not an accident.

use axum::body::Body as HttpBody;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::Response;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use pelton_gateway::{Key, Limits, Scope, Scopes, SecretHash};

use super::*;
use crate::access::Need;
use crate::files::Store;
use crate::gateway::{Gateway, KeysError, change_keys};
use crate::models::{Catalog, Loader, ModelSpec, Served};
use crate::state::Listening;
use crate::{Access, ApiKey, GatewayConfig, ServeConfig, Tenant};

/// Routes that everyone may ask.
const OPEN: [&str; 5] = ["/health", "/ready", "/openapi.json", "/", "/page/{file}"];
/// Routes for keys of any scope; they show what the key may see.
const ANY_KEY: [&str; 4] = ["/version", "/metrics", "/v1/live", "/v1/usage"];
/// Routes that change the server.
const ADMIN: [&str; 3] = ["/models/load", "/models/unload", "/models/reload"];

/// Someone who asks.
struct Caller {
    name: &'static str,
    /// A header and its value.
    header: Option<(&'static str, &'static str)>,
    /// The scopes of the key, or the status and the code of an answer that refuses it.
    may: Result<&'static [Scope], &'static str>,
}

const USER: &[Scope] = &[Scope::User];
const METRICS: &[Scope] = &[Scope::Metrics];
const ALL: &[Scope] = &[Scope::User, Scope::Metrics, Scope::Admin];

const CALLERS: [Caller; 16] = [
    Caller { name: "no key", header: None, may: Err("missing_api_key") },
    caller("an empty key", "authorization", "Bearer ", Err("missing_api_key")),
    caller("a password", "authorization", "Basic sk-admin", Err("missing_api_key")),
    caller("the wrong key", "authorization", "Bearer sk-wrong", Err("invalid_api_key")),
    caller("the wrong key", "x-api-key", "sk-wrong", Err("invalid_api_key")),
    caller("a key with its scope", "x-api-key", "sk-admin admin", Err("invalid_api_key")),
    caller("a wrong secret", "authorization", "Bearer pelton_admin_x", Err("invalid_api_key")),
    caller("an expired key", "authorization", "Bearer pelton_old_secret", Err("expired_api_key")),
    caller("a revoked key", "x-api-key", "pelton_gone_secret", Err("revoked_api_key")),
    caller("a user", "authorization", "Bearer pelton_user_secret", Ok(USER)),
    caller("a monitor", "authorization", "Bearer pelton_metrics_secret", Ok(METRICS)),
    caller("an admin", "x-api-key", "pelton_admin_secret", Ok(ALL)),
    caller("a user of the settings", "authorization", "Bearer sk-user", Ok(USER)),
    caller("the same", "x-api-key", "sk-user", Ok(USER)),
    // In the settings, a scope includes those before it.
    caller(
        "a monitor of the settings",
        "authorization",
        "Bearer sk-metrics",
        Ok(&[Scope::User, Scope::Metrics]),
    ),
    caller("an admin of the settings", "authorization", "Bearer sk-admin", Ok(ALL)),
];

const fn caller(
    name: &'static str,
    header: &'static str,
    value: &'static str,
    may: Result<&'static [Scope], &'static str>,
) -> Caller {
    Caller { name, header: Some((header, value)), may }
}

impl Caller {
    /// The status and the code of the refusal, or `None` where the request gets through.
    fn refusal(&self, need: Need) -> Option<(u16, &'static str)> {
        let needed = match need {
            Need::Open => return None,
            Need::Key => None,
            Need::User => Some(Scope::User),
            Need::Metrics => Some(Scope::Metrics),
            Need::Admin => Some(Scope::Admin),
        };
        match (self.may, needed) {
            (Err(code), _) => Some((401, code)),
            (Ok(scopes), Some(needed)) if !scopes.contains(&needed) => Some((403, "missing_scope")),
            _ => None,
        }
    }
}

/// A model that is never there.
struct NoModel;

impl Loader for NoModel {
    fn weight_bytes(&self) -> Result<u64, String> {
        Ok(0)
    }

    fn load(&self, _: Option<u64>) -> Result<Served, String> {
        Err("there is none".to_owned())
    }
}

/// A server with keys of both kinds, in a folder.
fn server(folder: &std::path::Path) -> TowerToHyperService<Router> {
    let path = folder.join("keys");
    let key = |id: &str, scopes: &[Scope], expires, revoked| Key {
        id: id.to_owned(),
        hash: SecretHash::fast(&Key::text(id, "secret")),
        scopes: Scopes::of(scopes),
        tenant: "default".to_owned(),
        created: 0,
        expires,
        revoked,
        limits: Limits::default(),
    };
    change_keys(&path, |file| {
        file.keys.push(key("user", USER, None, None));
        file.keys.push(key("metrics", METRICS, None, None));
        file.keys.push(key("admin", &[Scope::Admin], None, None));
        file.keys.push(key("old", ALL, Some(1000), None));
        file.keys.push(key("gone", ALL, None, Some(1000)));
        Ok::<(), KeysError>(())
    })
    .expect("written");
    let keys = ["sk-user", "sk-metrics metrics", "sk-admin admin"];
    let keys = keys.iter().map(|key| ApiKey::new(key).expect("a key")).collect();
    let tenant = Tenant { name: "default".to_owned(), priority: 0, keys };
    let access = Access::with_key_file(vec![tenant]).expect("one tenant");
    let gateway = GatewayConfig { key_file: Some(path), ..GatewayConfig::default() };
    let config = ServeConfig { access, gateway, ..ServeConfig::default() };
    let model = ModelSpec {
        name: "none".to_owned(),
        aliases: Vec::new(),
        preload: false,
        keep_alive: None,
        settings: String::new(),
        loader: std::sync::Arc::new(NoModel),
    };
    let models = Catalog::new(vec![model], None).expect("one model");
    let gateway = Gateway::open(&config.gateway, &["default".to_owned()]).expect("a key file");
    let listening = Listening::default();
    let state = AppState::listening(models, config, gateway, Store::default(), listening);
    TowerToHyperService::new(router(state))
}

/// Asks for a path as a caller does.
async fn ask(
    app: &TowerToHyperService<Router>,
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Response {
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    if let Some((name, value)) = caller.header {
        request = request.header(name, value);
    }
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let request = request.body(HttpBody::from("{}")).expect("a request");
    app.call(request).await.expect("infallible")
}

/// The code of an error; `None` in the form of Anthropic's API, which has none.
async fn code(response: Response) -> Option<String> {
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert!(body["error"]["message"].is_string(), "{body}");
    body["error"]["code"].as_str().map(str::to_owned)
}

/// A path of a route, with segments in the places of its parameters.
fn path_of(route: &Route) -> String {
    let path = route.path.replace("{*id}", "org/name").replace("{id}", "id");
    path.replace("{file}", "chat.js")
}

fn methods() -> impl Iterator<Item = Method> {
    let names = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"];
    names.into_iter().map(|name| Method::from_bytes(name.as_bytes()).expect("a method"))
}

/// Asks, and checks whether the answer is a refusal where it must be one, and only there.
async fn check(
    app: &TowerToHyperService<Router>,
    caller: &Caller,
    method: &Method,
    path: &str,
    need: Need,
) -> StatusCode {
    let what = format!("{method} {path} by {}", caller.name);
    let response = ask(app, caller, method, path).await;
    let status = response.status();
    match caller.refusal(need) {
        None => assert!(!matches!(status.as_u16(), 401 | 403), "{what}: {status}"),
        Some((expected, code_of_it)) => {
            assert_eq!(status, expected, "{what}");
            let asks_back = response.headers().contains_key(header::WWW_AUTHENTICATE);
            assert_eq!(asks_back, expected == 401, "{what}");
            if method != Method::HEAD && !path.starts_with("/v1/messages") {
                assert_eq!(code(response).await.as_deref(), Some(code_of_it), "{what}");
            }
        }
    }
    status
}

#[tokio::test]
async fn every_route_and_method_heeds_the_right_that_it_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let app = server(folder.path());
    let mut n_asked = 0;
    for route in ROUTES {
        let path = path_of(route);
        for (method, caller) in methods().flat_map(|m| CALLERS.iter().map(move |c| (m.clone(), c)))
        {
            // Other methods of the same path may be routes of their own.
            let of_route = if method == Method::HEAD { &Method::GET } else { &method };
            let found = ROUTES.iter().find(|r| r.path == route.path && r.method == *of_route);
            let need = found.map_or(Need::User, |route| route.need);
            let status = check(&app, caller, &method, &path, need).await;
            if found.is_none() && caller.refusal(need).is_none() {
                assert_eq!(status, 405, "{method} {path} by {}", caller.name);
            }
            n_asked += 1;
        }
    }
    assert_eq!(n_asked, ROUTES.len() * methods().count() * CALLERS.len());
}

#[tokio::test]
async fn a_question_of_a_browser_reaches_no_route() {
    let folder = tempfile::tempdir().expect("a folder");
    let app = server(folder.path());
    // Browsers ask with OPTIONS before a request with a key, and have none then. The rules for other
    // pages answer, so it says nothing but what these are.
    for (route, caller) in ROUTES.iter().flat_map(|r| CALLERS.iter().map(move |c| (r, c))) {
        let response = ask(&app, caller, &Method::OPTIONS, &path_of(route)).await;
        assert_eq!(response.status(), 200, "{} by {}", route.path, caller.name);
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        assert!(body.is_empty(), "{} by {}: {body:?}", route.path, caller.name);
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_gets_around_its_right() {
    let folder = tempfile::tempdir().expect("a folder");
    let app = server(folder.path());
    for route in ROUTES.iter().filter(|route| route.need != Need::Open) {
        let path = path_of(route);
        let last = path.rsplit('/').next().expect("a segment");
        let first = last.chars().next().expect("a letter");
        let encoded = path.replacen(last, &format!("%{:02X}{}", first as u32, &last[1..]), 1);
        for spelling in [
            format!("{path}/"),
            format!("/{path}"),
            format!("{path}//"),
            format!("{path}/../{last}"),
            format!("/health/..{path}"),
            format!("/health?{path}"),
            format!("{path}?/health"),
            format!("{path};/health"),
            path.to_uppercase(),
            encoded,
        ] {
            for caller in &CALLERS {
                let response = ask(&app, caller, &route.method, &spelling).await;
                let what = format!("{} {spelling} by {}", route.method, caller.name);
                let is_open = spelling.starts_with("/health?") && route.method == Method::GET;
                if caller.may.is_err() && !is_open {
                    assert_eq!(response.status(), 401, "{what}");
                }
                if caller.refusal(route.need).is_some() && !is_open {
                    // Refused, or another path, of which there is none.
                    let status = response.status().as_u16();
                    assert!(matches!(status, 401 | 403 | 404 | 405), "{what}: {status}");
                }
            }
        }
    }
}

#[test]
fn routes_that_need_less_or_more_than_a_users_key_are_named_here() {
    let with = |need: Need| -> Vec<&str> {
        ROUTES.iter().filter(|route| route.need == need).map(|route| route.path).collect()
    };
    assert_eq!(with(Need::Open), OPEN);
    assert_eq!(with(Need::Key), ANY_KEY);
    assert_eq!(with(Need::Metrics), [""; 0]);
    assert_eq!(with(Need::Admin), ADMIN);
}
