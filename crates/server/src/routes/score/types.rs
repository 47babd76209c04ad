//! JSON of `POST /v1/score`: requests and answers in the shape of vLLM.

use pelton_base::limits;
use pelton_llm::{ScoreRequest, Scores};
use serde::Serialize;
use serde_json::value::RawValue;

use super::super::rerank::RankUsage;
use crate::error::ApiError;
use crate::wire::json::{self, Kind};
use crate::wire::{Accept, Fields, check_unhonoured, cut};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("priority", Accept::Only("0")),
    ("label_token_ids", Accept::Nothing),
    ("apply_softmax", Accept::Nothing),
    ("item_first", Accept::Nothing),
    ("mm_processor_kwargs", Accept::Empty),
];
/// Names of both sides; a request uses one of each.
const FIRST: [&str; 4] = ["text_1", "queries", "query", "data_1"];
const SECOND: [&str; 4] = ["text_2", "documents", "items", "data_2"];
/// A request has one name of each group.
pub(crate) const SIDES: &[&[&str]] = &[&FIRST, &SECOND];

/// A request as it was sent.
#[derive(Debug)]
pub(crate) struct ScoreBody {
    pub(crate) model: Option<String>,
    pub(crate) request: ScoreRequest,
}

impl ScoreBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let cut = cut(&mut fields)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        let model = fields.string("model")?;
        let (first, queries) = side(&mut fields, FIRST)?;
        let (second, documents) = side(&mut fields, SECOND)?;
        let activation = fields.activation()?;
        fields.finish()?;
        let (n, m) = (queries.len(), documents.len());
        if n != 1 && n != m {
            let message = format!(
                "`{first}` has {n} texts and `{second}` {m}: expected one text in `{first}`, or as \
                 many as in `{second}`"
            );
            return Err(ApiError::param(first, message));
        }
        let names = [first, second];
        let request = ScoreRequest { queries, documents, cut, activation, names };
        Ok(Self { model, request })
    }
}

/// A text or a list of texts, under one of several names.
fn side(
    fields: &mut Fields<'_>,
    names: [&'static str; 4],
) -> Result<(&'static str, Vec<String>), ApiError> {
    let name = names[0];
    let mut found = names.into_iter().filter_map(|name| Some((name, fields.take(name)?)));
    let given = found.next();
    if let (Some((first, _)), Some((second, _))) = (given, found.next()) {
        let message = format!("`{first}` and `{second}` mean the same; give one of them");
        return Err(ApiError::param(second, message));
    }
    let Some((name, raw)) = given else {
        let message = format!("`{name}` is missing: expected a text or an array of texts");
        return Err(ApiError::param(name, message));
    };
    let mut texts = Vec::new();
    match Kind::of(raw) {
        Kind::Array => json::each(name, raw, limits::EMBED_INPUTS, |i, text| {
            texts.push(json::string(&format!("{name}[{i}]"), text)?);
            Ok(())
        })?,
        _ => texts.push(one(name, raw)?),
    }
    match texts.is_empty() {
        true => Err(json::wrong(name, "at least one text", "[]")),
        false => Ok((name, texts)),
    }
}

fn one(name: &str, raw: &RawValue) -> Result<String, ApiError> {
    json::typed(name, "a text or an array of texts", raw)
}

/// The answer to a request.
#[derive(Serialize)]
pub(crate) struct ScoreAnswer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Score>,
    usage: RankUsage,
}

#[derive(Serialize)]
struct Score {
    index: usize,
    object: &'static str,
    score: f64,
}

pub(crate) fn answer(model: String, scores: Scores) -> ScoreAnswer {
    let data = scores.scores.into_iter().enumerate();
    ScoreAnswer {
        id: crate::wire::fresh_id("score-"),
        object: "list",
        created: crate::wire::unix_seconds(),
        model,
        data: data.map(|(index, score)| Score { index, object: "score", score }).collect(),
        usage: RankUsage::new(scores.n_tokens),
    }
}
