//! JSON of `POST /v1/rerank`: requests and answers in the shapes of Jina and Cohere.

use pelton_base::limits::EMBED_INPUTS;
use pelton_llm::{ScoreRequest, Scores};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::limits;
use crate::wire::json::{self, Extent, Kind};
use crate::wire::{Accept, Fields, check_unhonoured, cut};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("rank_fields", Accept::Only("[\"text\"]")),
    ("priority", Accept::Only("0")),
    ("return_embeddings", Accept::Only("false")),
    ("max_query_length", Accept::Nothing),
    ("max_chunks_per_doc", Accept::Nothing),
    ("instruction", Accept::Nothing),
    ("mm_processor_kwargs", Accept::Empty),
];

/// The largest object around a document, which is sent back as it came.
const OBJECT: Extent =
    Extent { bytes: usize::MAX, depth: limits::FREE_JSON_DEPTH, fields: limits::FIELDS };

/// A document: its text, and all that the client sent of it.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) text: String,
    /// The object that holds the text, as it was sent.
    pub(crate) object: Option<Box<RawValue>>,
}

/// A request as it was sent; types are right, ranges are not checked.
#[derive(Debug)]
pub(crate) struct RerankBody {
    pub(crate) model: Option<String>,
    pub(crate) request: ScoreRequest,
    /// The objects of documents that were sent as objects.
    objects: Vec<Option<Box<RawValue>>>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
}

impl RerankBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let cut = cut(&mut fields)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        let model = fields.string("model")?;
        let query = fields.take("query").ok_or_else(|| missing("query", "a text"))?;
        let query = text("query", query)?.text;
        let expected = "an array of at least one text";
        let documents = fields.list("documents", EMBED_INPUTS, text)?;
        let documents = documents.ok_or_else(|| missing("documents", expected))?;
        if documents.is_empty() {
            return Err(json::wrong("documents", expected, "[]"));
        }
        let activation = fields.activation()?;
        let top_n = fields.usize("top_n")?;
        let return_documents = fields.bool("return_documents")?;
        fields.finish()?;
        let (documents, objects) = documents.into_iter().map(|one| (one.text, one.object)).unzip();
        let names = ["query", "documents"];
        let request = ScoreRequest { queries: vec![query], documents, cut, activation, names };
        Ok(Self { model, request, objects, top_n, return_documents })
    }

    /// The part of the request that the answer needs; documents stay only if they are sent back.
    pub(crate) fn into_wanted(self, returns_documents: bool) -> Wanted {
        // Servers of the same shape take 0 for all.
        let top_n = self.top_n.filter(|n| *n > 0);
        let texts = self.request.documents.into_iter();
        let documents = match self.return_documents.unwrap_or(returns_documents) {
            true => Some(
                texts.zip(self.objects).map(|(text, object)| Document { text, object }).collect(),
            ),
            false => None,
        };
        Wanted { top_n, documents }
    }
}

/// The content of an answer that the request wants.
pub(crate) struct Wanted {
    top_n: Option<usize>,
    documents: Option<Vec<Document>>,
}

fn missing(name: &str, expected: &str) -> ApiError {
    ApiError::param(name, format!("`{name}` is missing: expected {expected}"))
}

/// A text, alone or as the field `text` of an object.
fn text(path: &str, raw: &RawValue) -> Result<Document, ApiError> {
    if Kind::of(raw) != Kind::Object {
        let text = json::typed(path, "a text or an object with `text`", raw)?;
        return Ok(Document { text, object: None });
    }
    json::free_within(path, raw, OBJECT)?;
    let fields = json::object(path, raw, limits::FIELDS)?;
    let param = json::join(path, "text");
    let found = fields.iter().find(|(name, _)| name == "text");
    let (_, found) = found.ok_or_else(|| missing(&param, "the text of the document"))?;
    Ok(Document { text: json::string(&param, found)?, object: Some(raw.to_owned()) })
}

/// The answer to a request.
#[derive(Serialize)]
pub(crate) struct RerankAnswer {
    id: String,
    model: String,
    results: Vec<RankedDocument>,
    usage: RankUsage,
    meta: Meta,
}

#[derive(Serialize)]
struct RankedDocument {
    index: usize,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Returned>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Returned {
    Object(Box<RawValue>),
    Text { text: String },
}

/// Tokens of a request that generates none.
#[derive(Serialize)]
pub(crate) struct RankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl RankUsage {
    pub(crate) fn new(n_tokens: usize) -> Self {
        Self { prompt_tokens: n_tokens, total_tokens: n_tokens }
    }
}

/// Metadata that Cohere's clients read.
#[derive(Serialize)]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
    tokens: MetaTokens,
}

#[derive(Serialize)]
struct ApiVersion {
    version: &'static str,
}

#[derive(Serialize)]
struct BilledUnits {
    search_units: usize,
}

#[derive(Serialize)]
struct MetaTokens {
    input_tokens: usize,
    output_tokens: usize,
}

/// The best documents first; of equal ones the first.
pub(crate) fn answer(
    model: String,
    scores: Scores,
    wanted: Wanted,
    version: &'static str,
) -> RerankAnswer {
    let Scores { scores, n_tokens } = scores;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.truncate(wanted.top_n.unwrap_or(usize::MAX));
    let mut documents: Vec<Option<Document>> =
        wanted.documents.into_iter().flatten().map(Some).collect();
    let result = |index: usize| RankedDocument {
        index,
        relevance_score: scores[index],
        document: documents.get_mut(index).and_then(Option::take).map(|document| {
            match document.object {
                Some(object) => Returned::Object(object),
                None => Returned::Text { text: document.text },
            }
        }),
    };
    RerankAnswer {
        id: crate::wire::fresh_id("rerank-"),
        model,
        results: order.into_iter().map(result).collect(),
        usage: RankUsage::new(n_tokens),
        meta: Meta {
            api_version: ApiVersion { version },
            billed_units: BilledUnits { search_units: 1 },
            tokens: MetaTokens { input_tokens: n_tokens, output_tokens: 0 },
        },
    }
}
