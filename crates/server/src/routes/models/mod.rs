//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::{Path, State};

use crate::error::ApiError;
use crate::state::AppState;

/// One model.
#[derive(serde::Serialize)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Most tokens of prompt and answer together.
    max_model_len: usize,
}

/// All models.
#[derive(serde::Serialize)]
pub(crate) struct Models {
    object: &'static str,
    data: Vec<Model>,
}

fn model(state: &AppState) -> Model {
    let served = state.served();
    Model {
        id: served.name().to_owned(),
        object: "model",
        created: state.created(),
        owned_by: "pelton",
        max_model_len: served.max_tokens(),
    }
}

/// The one model that is served.
pub(crate) async fn list(State(state): State<AppState>) -> Json<Models> {
    Json(Models { object: "list", data: vec![model(&state)] })
}

/// A model by name; names may contain slashes.
pub(crate) async fn one(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<Model>, ApiError> {
    state.check_model(Some(&id))?;
    Ok(Json(model(&state)))
}
