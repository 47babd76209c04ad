//! JSON of `POST /classify`: requests and answers in the shape of vLLM.

use pelton_base::limits;
use pelton_llm::{Classes, EmbedInput};
use serde::Serialize;

use super::super::rerank::RankUsage;
use crate::error::ApiError;
use crate::wire::{Accept, Fields, Forms, check_unhonoured, inputs};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("priority", Accept::Only("0")),
    ("activation", Accept::Only("true")),
    ("use_activation", Accept::Only("true")),
    ("add_special_tokens", Accept::Only("true")),
];

const INPUTS: Forms<EmbedInput> = Forms { text: EmbedInput::Text, tokens: EmbedInput::Tokens };

/// A request as it was sent.
#[derive(Debug)]
pub(crate) struct ClassifyBody {
    pub(crate) model: Option<String>,
    pub(crate) inputs: Vec<EmbedInput>,
    pub(crate) truncate: bool,
}

impl ClassifyBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        let input = fields
            .take("input")
            .ok_or_else(|| ApiError::param("input", "`input` is missing: expected a text"))?;
        let body = Self {
            model: fields.string("model")?,
            inputs: inputs("input", input, limits::EMBED_INPUTS, INPUTS)?,
            truncate: fields.bool("truncate")?.unwrap_or(false),
        };
        fields.finish()?;
        Ok(body)
    }
}

/// The answer to a request.
#[derive(Serialize)]
pub(crate) struct ClassifyAnswer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Class>,
    usage: RankUsage,
}

#[derive(Serialize)]
struct Class {
    index: usize,
    /// The likeliest label.
    label: String,
    probs: Vec<f64>,
    num_classes: usize,
}

pub(crate) fn answer(model: String, labels: &[String], classes: Classes) -> ClassifyAnswer {
    let class = |(index, probs): (usize, Vec<f64>)| {
        let best = (0..probs.len()).max_by(|a, b| probs[*a].total_cmp(&probs[*b]).then(b.cmp(a)));
        let label = best.and_then(|best| labels.get(best)).cloned().unwrap_or_default();
        Class { index, label, num_classes: probs.len(), probs }
    };
    ClassifyAnswer {
        id: crate::wire::fresh_id("classify-"),
        object: "list",
        created: crate::wire::unix_seconds(),
        model,
        usage: RankUsage::new(classes.n_tokens.iter().sum()),
        data: classes.probabilities.into_iter().enumerate().map(class).collect(),
    }
}
