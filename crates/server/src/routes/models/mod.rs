//! `GET /v1/models` and `GET /v1/models/{id}`; and for operators `POST /models/load`,
//! `/models/unload` and `/models/reload`, with the body `{"model": NAME}`.

pub(crate) mod anthropic;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::models::{AUTO, Catalog, Standing};
use crate::state::AppState;
use crate::wire::{Body, Fields, Id};

use anthropic::{AnthropicModel, AnthropicModels};

/// One model, loaded or not.
#[derive(serde::Serialize)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Most tokens of prompt and answer together; known once it was loaded.
    max_model_len: Option<usize>,
    /// `text` or `vectors`; known once it was loaded.
    kind: Option<&'static str>,
    /// Whether it has a chat template; known once it was loaded.
    chat: Option<bool>,
    /// Further names.
    aliases: Vec<String>,
    /// `loaded`, `loading`, `unloaded` or `failed`; `rules` of the name `auto`, for which rules choose
    /// a model.
    state: &'static str,
    /// Number of the loaded version: 1, and one more with each load.
    version: Option<u64>,
    /// Bytes of weights, keys and values.
    memory_bytes: Option<u64>,
    /// Why the last attempt to load it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

/// All models.
#[derive(serde::Serialize)]
pub(crate) struct Models {
    object: &'static str,
    data: Vec<Model>,
}

fn model(state: &AppState, standing: Standing) -> Model {
    Model {
        id: standing.name,
        object: "model",
        created: state.created(),
        owned_by: "pelton",
        max_model_len: standing.max_tokens,
        kind: standing.kind,
        chat: standing.chat,
        aliases: standing.aliases,
        state: standing.state,
        version: standing.version,
        memory_bytes: standing.memory_bytes,
        trouble: standing.trouble,
    }
}

/// The name `auto`, where rules choose a model for it.
fn auto(state: &AppState) -> Option<Model> {
    let auto = || Standing {
        name: AUTO.to_owned(),
        aliases: Vec::new(),
        state: "rules",
        version: None,
        memory_bytes: None,
        max_tokens: None,
        kind: Some("text"),
        chat: Some(true),
        trouble: None,
    };
    state.models().has_auto().then(|| model(state, auto()))
}

/// The models of the server, in the shape of the client's dialect.
pub(crate) async fn list(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let standing = state.models().standing().into_iter();
    let mut data: Vec<_> = standing.map(|one| model(&state, one)).collect();
    data.extend(auto(&state));
    if anthropic::asks(&headers) {
        let data = data.into_iter().map(|model| AnthropicModel::new(model.id, model.created));
        return Json(AnthropicModels::new(data.collect())).into_response();
    }
    Json(Models { object: "list", data }).into_response()
}

/// A model by name or alias; names may contain slashes.
pub(crate) async fn one(
    State(state): State<AppState>,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let model = match auto(&state).filter(|_| id == AUTO) {
        Some(auto) => auto,
        None => model(&state, state.models().standing_of(&id)?),
    };
    if anthropic::asks(&headers) {
        return Ok(Json(AnthropicModel::new(model.id, model.created)).into_response());
    }
    Ok(Json(model).into_response())
}

/// Loads a model that is not loaded.
pub(crate) async fn load(
    State(state): State<AppState>,
    body: Body,
) -> Result<Json<Model>, ApiError> {
    change(state, body, Catalog::load).await
}

/// Takes a model out of memory once its requests have ended.
pub(crate) async fn unload(
    State(state): State<AppState>,
    body: Body,
) -> Result<Json<Model>, ApiError> {
    change(state, body, Catalog::unload).await
}

/// Loads a model anew from its files; running requests end on the old version.
pub(crate) async fn reload(
    State(state): State<AppState>,
    body: Body,
) -> Result<Json<Model>, ApiError> {
    change(state, body, Catalog::reload).await
}

async fn change(
    state: AppState,
    body: Body,
    how: fn(&Catalog, &str) -> Result<Standing, ApiError>,
) -> Result<Json<Model>, ApiError> {
    let app = state.clone();
    let standing =
        super::reading(&state, body, move |bytes| how(app.models(), &named(&bytes)?)).await?;
    Ok(Json(model(&state, standing)))
}

/// The name in a body `{"model": NAME}`.
fn named(bytes: &[u8]) -> Result<String, ApiError> {
    let mut fields = Fields::of_body(bytes)?;
    let name = fields.string("model")?;
    fields.finish()?;
    name.ok_or_else(|| ApiError::param("model", "`model` is missing"))
}

/// Reads a body as the handlers do.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    named(bytes).map(drop)
}
