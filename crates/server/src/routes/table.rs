//! Every route, with the right that it needs.
//!
//! The router, the check of keys and the test of both are made from this table.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::Method;
use axum::routing::{MethodRouter, delete, get, post};

use super::{
    batches, chat, classify, completions, embeddings, files, health, live, metrics, models, page,
    ready, rerank, score, timeline, tokens, version,
};
use crate::access::Need;
use crate::state::AppState;

/// One method of one path.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The path as axum writes it: `{id}` is one segment, `{*id}` the rest.
    pub(crate) path: &'static str,
    pub(crate) need: Need,
    handler: fn() -> MethodRouter<AppState>,
}

impl Route {
    const fn get(path: &'static str, need: Need, handler: fn() -> MethodRouter<AppState>) -> Self {
        Self { method: Method::GET, path, need, handler }
    }

    const fn post(path: &'static str, need: Need, handler: fn() -> MethodRouter<AppState>) -> Self {
        Self { method: Method::POST, path, need, handler }
    }

    const fn delete(
        path: &'static str,
        need: Need,
        handler: fn() -> MethodRouter<AppState>,
    ) -> Self {
        Self { method: Method::DELETE, path, need, handler }
    }
}

/// All routes.
pub(crate) static ROUTES: &[Route] = &[
    Route::get("/health", Need::Open, || get(health::handle)),
    Route::get("/ready", Need::Open, || get(ready::handle)),
    Route::get("/version", Need::Key, || get(version::handle)),
    Route::get("/metrics", Need::Key, || get(metrics::handle)),
    Route::get("/openapi.json", Need::Open, || get(super::openapi::handle)),
    // To see the server work.
    Route::get("/v1/live", Need::Key, || get(live::handle)),
    Route::get("/v1/requests/{id}/timeline", Need::User, || get(timeline::handle)),
    // The page, which holds no data.
    Route::get("/", Need::Open, || get(page::index)),
    Route::get("/page/{file}", Need::Open, || get(page::file)),
    // Usage.
    Route::get("/v1/usage", Need::Key, || get(super::usage::handle)),
    // Models.
    Route::get("/v1/models", Need::User, || get(models::list)),
    Route::get("/v1/models/{*id}", Need::User, || get(models::one)),
    Route::post("/models/load", Need::Admin, || post(models::load)),
    Route::post("/models/unload", Need::Admin, || post(models::unload)),
    Route::post("/models/reload", Need::Admin, || post(models::reload)),
    // OpenAI.
    Route::post("/v1/chat/completions", Need::User, || post(chat::handle)),
    Route::post("/v1/completions", Need::User, || post(completions::handle)),
    Route::post("/v1/embeddings", Need::User, || post(embeddings::handle)),
    // Tokens without an answer.
    Route::post("/tokenize", Need::User, || post(tokens::tokenize)),
    Route::post("/detokenize", Need::User, || post(tokens::detokenize)),
    Route::get("/tokenizer_info", Need::User, || get(tokens::info)),
    Route::post("/apply-template", Need::User, || post(tokens::apply_template)),
    Route::post("/v1/chat/completions/render", Need::User, || post(tokens::render_chat)),
    // Anthropic.
    Route::post("/v1/messages", Need::User, || post(super::messages::handle)),
    Route::post("/v1/messages/count_tokens", Need::User, || post(super::messages::count_tokens)),
    // Pairs of texts and labels.
    Route::post("/v1/rerank", Need::User, || post(rerank::handle)),
    Route::post("/rerank", Need::User, || post(rerank::handle)),
    Route::post("/v2/rerank", Need::User, || post(rerank::handle_v2)),
    Route::post("/v1/score", Need::User, || post(score::handle)),
    Route::post("/score", Need::User, || post(score::handle)),
    Route::post("/v1/classify", Need::User, || post(classify::handle)),
    Route::post("/classify", Need::User, || post(classify::handle)),
    // Files and batches.
    Route::post("/v1/files", Need::User, || {
        // The handler counts the bytes itself.
        post(files::create).layer(DefaultBodyLimit::disable())
    }),
    Route::get("/v1/files", Need::User, || get(files::list)),
    Route::get("/v1/files/{id}", Need::User, || get(files::one)),
    Route::delete("/v1/files/{id}", Need::User, || delete(files::delete)),
    Route::get("/v1/files/{id}/content", Need::User, || get(files::content)),
    Route::post("/v1/batches", Need::User, || post(batches::create)),
    Route::get("/v1/batches", Need::User, || get(batches::list)),
    Route::get("/v1/batches/{id}", Need::User, || get(batches::one)),
    Route::post("/v1/batches/{id}/cancel", Need::User, || post(batches::cancel)),
    // OpenAI's Responses.
    Route::post("/v1/responses", Need::User, || post(super::responses::create)),
    Route::post("/v1/responses/input_tokens", Need::User, || post(super::responses::input_tokens)),
    Route::get("/v1/responses/{id}", Need::User, || get(super::responses::one)),
    Route::delete("/v1/responses/{id}", Need::User, || delete(super::responses::remove)),
    Route::post("/v1/responses/{id}/cancel", Need::User, || post(super::responses::cancel)),
    Route::get("/v1/responses/{id}/input_items", Need::User, || get(super::responses::input_items)),
];

/// The right that a request needs; paths without a route need a key like most that have one.
pub(crate) fn need(method: &Method, path: Option<&str>) -> Need {
    static NEEDS: LazyLock<HashMap<(&Method, &str), Need>> = LazyLock::new(|| {
        ROUTES.iter().map(|route| ((&route.method, route.path), route.need)).collect()
    });
    // A HEAD request is answered by the route for GET, without a body.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let found = path.and_then(|path| NEEDS.get(&(method, path)));
    found.copied().unwrap_or(Need::User)
}

/// The route that a path without one meant: the nearest that has more or less of a base URL before it,
/// or that has no slash at its end.
pub(super) fn meant(path: &str) -> Option<&'static str> {
    let asked = path.trim_end_matches('/');
    let is_near = |route: &&str| route.ends_with(asked) || asked.ends_with(route);
    let plain = ROUTES.iter().map(|route| route.path).filter(|path| !path.contains('{'));
    let near = plain.filter(|path| !asked.is_empty() && *path != "/").filter(is_near);
    near.min_by_key(|route| route.len().abs_diff(asked.len()))
}

/// The methods of a path as axum writes it.
pub(super) fn methods(path: &str) -> Vec<&'static str> {
    ROUTES.iter().filter(|route| route.path == path).map(|route| route.method.as_str()).collect()
}

/// A router of all routes.
pub(super) fn routed() -> Router<AppState> {
    ROUTES.iter().fold(Router::new(), |all, route| all.route(route.path, (route.handler)()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_needs_what_its_own_method_needs() {
        assert_eq!(need(&Method::GET, Some("/health")), Need::Open);
        assert_eq!(need(&Method::HEAD, Some("/health")), Need::Open);
        assert_eq!(need(&Method::POST, Some("/health")), Need::User);
        assert_eq!(need(&Method::GET, Some("/v1/models/{*id}")), Need::User);
        assert_eq!(need(&Method::GET, None), Need::User);
    }

    #[test]
    fn every_url_of_batches_is_a_route() {
        for url in crate::batch::URLS {
            let is_its = |route: &&Route| route.path == *url && route.method == Method::POST;
            assert!(ROUTES.iter().any(|route| is_its(&route)), "{url}");
        }
    }

    #[test]
    fn a_path_with_more_or_less_of_a_base_url_means_a_route() {
        for (path, route) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/completions", Some("/v1/completions")),
            ("/models", Some("/v1/models")),
            ("/v1/v1/messages", Some("/v1/messages")),
            ("/openai/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/health", Some("/health")),
            ("/v1/chat/completions/", Some("/v1/chat/completions")),
            ("/v1", None),
            ("/v1/completion", None),
            ("/completions/v1", None),
            ("//", None),
        ] {
            assert_eq!(meant(path), route, "{path}");
        }
    }

    #[test]
    fn no_route_stands_twice() {
        for (i, route) in ROUTES.iter().enumerate() {
            let is_same =
                |other: &&Route| (&other.method, other.path) == (&route.method, route.path);
            assert_eq!(ROUTES[i + 1..].iter().find(is_same).map(|other| other.path), None);
        }
        drop(routed());
    }
}
