//! Texts to tokens and back, without an answer.
//!
//! ```text
//! POST /tokenize         a text, or messages       vLLM's shape; llama-server's with `content`
//! POST /detokenize       ids                       both shapes at once
//! POST /apply-template   messages                  the prompt, as llama-server answers
//! POST /v1/chat/completions/render   a chat request   its prompt and tokens, without an answer
//! GET  /tokenizer_info                             facts about the tokenizer
//! ```
//!
//! A model that makes vectors has a tokenizer, too; it has no chat template.

mod types;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_base::TokenId;
use pelton_llm::{ChatOptions, LlmError};
use pelton_text::{EncodeOptions, TextError, Tokenizer};
use serde_json::{Value, json};

use super::chat::{Rendered, error as chat_error};
use crate::error::ApiError;
use crate::models::Model;
use crate::state::{AppState, Running};
use crate::wire::{Body, Fields, Parameters, token_text};
use types::{DetokenizeBody, Source, TokenizeBody};

/// Reads a body of `/tokenize` as the handler does.
pub(crate) fn read_tokenize(bytes: &[u8]) -> Result<(), ApiError> {
    TokenizeBody::read(bytes, true).map(drop)
}

/// Reads a body of `/detokenize` as the handler does.
pub(crate) fn read_detokenize(bytes: &[u8]) -> Result<(), ApiError> {
    DetokenizeBody::read(bytes).map(drop)
}

/// Reads a body of `/apply-template` as the handler does.
pub(crate) fn read_rendered(bytes: &[u8]) -> Result<(), ApiError> {
    Rendered::read(Fields::of_body(bytes)?, true).map(drop)
}

/// `POST /tokenize`.
pub(super) async fn tokenize(
    State(state): State<AppState>,
    _running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let app = state.clone();
    let answer = super::reading(&state, body, move |bytes| {
        let body = TokenizeBody::read(&bytes, app.config().trust_request_chat_template)?;
        drop(bytes);
        let model = app.model(body.model.as_deref())?;
        let tokenizer = tokenizer_of(&model)?;
        let encode = |text: &str, options| tokenizer.encode_with(text, options).map_err(text_error);
        Ok(match body.source {
            Source::Text { text, add_special } => {
                let options = EncodeOptions { add_special, parse_special: true };
                vllm(&encode(&text, options)?, &model, &tokenizer, body.with_texts)
            }
            Source::Content { text, add_special, parse_special, with_pieces } => {
                let options = EncodeOptions { add_special, parse_special };
                llama(&encode(&text, options)?, &tokenizer, with_pieces)
            }
            Source::Chat { rendered, add_special } => {
                let (_, tokens) = render(&model, &rendered, add_special)?;
                vllm(&tokens, &model, &tokenizer, body.with_texts)
            }
        })
    })
    .await?;
    Ok(Json(answer).into_response())
}

/// `POST /detokenize`. Control tokens have their names, as in vLLM and in llama-server.
pub(super) async fn detokenize(
    State(state): State<AppState>,
    _running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let app = state.clone();
    let text = super::reading(&state, body, move |bytes| {
        let DetokenizeBody { model, tokens } = DetokenizeBody::read(&bytes)?;
        drop(bytes);
        let tokenizer = tokenizer_of(&app.model(model.as_deref())?)?;
        let n_tokens = tokenizer.vocab_size();
        if let Some(token) = tokens.iter().find(|token| token.0 as usize >= n_tokens) {
            let message = format!("`tokens`: {token} is no token: expected ids below {n_tokens}");
            return Err(ApiError::param("tokens", message));
        }
        Ok(tokenizer.decode(&tokens, false))
    })
    .await?;
    Ok(Json(json!({"prompt": text, "content": text})).into_response())
}

/// `POST /apply-template`.
pub(super) async fn apply_template(
    state: State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let (prompt, _) = rendered(state, running, body).await?;
    Ok(Json(json!({ "prompt": prompt })).into_response())
}

/// `POST /v1/chat/completions/render`.
pub(super) async fn render_chat(
    state: State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let (prompt, tokens) = rendered(state, running, body).await?;
    let count = tokens.len();
    Ok(Json(json!({"prompt": prompt, "prompt_token_ids": tokens, "count": count})).into_response())
}

/// The prompt of a chat request, which may have every field of one.
async fn rendered(
    State(state): State<AppState>,
    _running: Running,
    body: Body,
) -> Result<(String, Vec<TokenId>), ApiError> {
    let app = state.clone();
    super::reading(&state, body, move |bytes| {
        let is_trusted = app.config().trust_request_chat_template;
        let (model, rendered, add_special) = Rendered::read(Fields::of_body(&bytes)?, is_trusted)?;
        drop(bytes);
        let model = app.model(model.as_deref())?;
        render(&model, &rendered, add_special.unwrap_or(false))
    })
    .await
}

/// `GET /tokenizer_info`; `?model=` chooses one of several models.
pub(super) async fn info(
    State(state): State<AppState>,
    _running: Running,
    query: Parameters,
) -> Result<Response, ApiError> {
    let asked = types::asked_model(&query)?;
    let app = state.clone();
    // A model may have to be loaded first.
    let model = super::blocking(move || app.model(asked.as_deref())).await?;
    let tokenizer = tokenizer_of(&model)?;
    let name = |token: Option<TokenId>| token.map(|token| text_of(&tokenizer, token));
    let chat = model.llm().ok();
    let template =
        chat.and_then(|llm| llm.template()).and_then(|template| template.sources().first());
    let beginning = tokenizer.beginning().map_err(text_error)?;
    let ends = chat.map(|llm| llm.eos().to_vec()).unwrap_or_else(|| tokenizer.end_tokens());
    let answer = json!({
        "model": model.name(),
        "vocab_size": tokenizer.vocab_size(),
        "model_max_length": model.max_tokens(),
        "bos_token": name(tokenizer.bos()),
        "bos_token_id": tokenizer.bos(),
        "eos_token": name(tokenizer.eos()),
        "eos_token_id": tokenizer.eos(),
        "end_token_ids": ends,
        "add_bos_token": beginning.is_some(),
        "fills_gaps": tokenizer.gap().is_some(),
        "chat_template": template.map(|template| &template.text),
    });
    Ok(Json(answer).into_response())
}

/// The tokenizer of a model of either kind.
fn tokenizer_of(model: &Model) -> Result<Arc<Tokenizer>, ApiError> {
    match model.llm() {
        Ok(llm) => Ok(Arc::clone(llm.tokenizer())),
        Err(_) => Ok(Arc::clone(model.embedder()?.tokenizer())),
    }
}

fn render(
    model: &Model,
    rendered: &Rendered,
    add_special: bool,
) -> Result<(String, Vec<TokenId>), ApiError> {
    let (messages, options): (_, &ChatOptions) = (&rendered.messages, &rendered.options);
    model.llm()?.render_chat(messages, options, add_special).map_err(chat_error)
}

fn text_error(error: TextError) -> ApiError {
    LlmError::from(error).into()
}

/// A token as text; bytes that are part of a character are replaced.
fn text_of(tokenizer: &Tokenizer, token: TokenId) -> String {
    token_text(tokenizer.token_bytes(token).unwrap_or_default())
}

fn vllm(tokens: &[TokenId], model: &Model, tokenizer: &Tokenizer, with_texts: bool) -> Value {
    let texts = || -> Vec<String> { tokens.iter().map(|&id| text_of(tokenizer, id)).collect() };
    json!({
        "count": tokens.len(),
        "max_model_len": model.max_tokens(),
        "tokens": tokens,
        "token_strs": with_texts.then(texts),
    })
}

/// Ids, or ids with their pieces: text where the bytes are text, else the bytes.
fn llama(tokens: &[TokenId], tokenizer: &Tokenizer, with_pieces: bool) -> Value {
    if !with_pieces {
        return json!({ "tokens": tokens });
    }
    let piece = |&id: &TokenId| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        let piece = match std::str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!(bytes),
        };
        json!({"id": id, "piece": piece})
    };
    json!({"tokens": tokens.iter().map(piece).collect::<Vec<_>>()})
}
