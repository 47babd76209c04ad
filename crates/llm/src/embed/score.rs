//! Scores of pairs: how well a document answers a query.
//!
//! ```text
//! cross-encoder     [CLS] query [SEP] document [SEP] ── model, classifier ──> logit ── sigmoid ──> score
//! model of vectors  query ──> vector ┐
//!                   document ──> vector ┴── cosine ──> score
//! ```
//!
//! A cross-encoder reads both texts together; the tokenizer's own template frames them. A model of
//! vectors reads each text once, the query after the prompt `query` and documents after the prompt
//! `document`, `passage` or `corpus`, where the model's files have these.

use pelton_base::{ParamError, TokenId};
use pelton_model::embed::{ClassActivation, TypedTokens};
use pelton_text::{EncodeOptions, TextError};

use super::{EmbedTicket, Embedder, cosine, waiting};
use crate::error::LlmError;

/// Most tokens of all pairs of a request: what waits in the queue stays within some megabytes.
const MOST_TOKENS: usize = 1 << 22;
/// Bytes per token of a prefix that surely has enough tokens.
const BYTES_PER_TOKEN: usize = 32;
/// Prompts of documents, the first of which that a model has is used.
const DOCUMENT_PROMPTS: [&str; 3] = ["document", "passage", "corpus"];
const QUERY_PROMPTS: [&str; 1] = ["query"];

/// A request for scores of pairs: one query with each document, or each with its own.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScoreRequest {
    /// One query, or one for each document.
    pub queries: Vec<String>,
    /// The documents.
    pub documents: Vec<String>,
    /// The part that is cut off texts that are too long; by default they are refused.
    pub cut: Cut,
    /// `false` for the logits of a cross-encoder as they are; `None` as the model's files say.
    pub activation: Option<bool>,
    /// Names of queries and documents in the request, for errors.
    pub names: [&'static str; 2],
}

/// The part that is cut off pairs that are too long.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cut {
    /// Most tokens of a pair with its special tokens, or of a text for a vector; the longer text
    /// of a pair loses tokens first.
    pub pair_tokens: Option<usize>,
    /// Most tokens of a document, which is cut before it is put into a pair.
    pub document_tokens: Option<usize>,
}

/// Scores of pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// One per document, in order; larger is better.
    pub scores: Vec<f64>,
    /// Tokens that were computed.
    pub n_tokens: usize,
}

/// Pairs that are checked and ready to be computed.
#[derive(Debug)]
pub struct PreparedScores {
    texts: Vec<TypedTokens>,
    kind: Kind,
}

/// How the rows of the model become scores.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One logit per pair.
    Pairs(ClassActivation),
    /// Vectors of this many queries, and then of the documents.
    Vectors { n_queries: usize },
}

impl PreparedScores {
    /// Tokens of all texts, special tokens included.
    pub fn n_tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens.len()).sum()
    }
}

impl Embedder {
    /// Turns pairs into tokens on the calling thread, and checks everything.
    ///
    /// # Errors
    ///
    /// Names the text that is empty or too long; and refuses a classifier of several labels.
    ///
    /// # Panics
    ///
    /// When there are several queries, and not as many as documents.
    pub fn prepare_scores(&self, request: &ScoreRequest) -> Result<PreparedScores, LlmError> {
        let (n_queries, n_documents) = (request.queries.len(), request.documents.len());
        assert!(n_queries == 1 || n_queries == n_documents, "{n_queries} to {n_documents}");
        let sides = Sides { embedder: self, request };
        let prepared = match &self.spec.classes {
            None => sides.vectors()?,
            Some(classes) if classes.labels.len() != 1 => {
                let why = format!(
                    "has {} labels, and a score needs a model with one; POST /classify gives labels",
                    classes.labels.len()
                );
                return Err(self.wrong_task(&why));
            }
            Some(classes) => {
                let activation = match request.activation {
                    Some(false) => ClassActivation::Identity,
                    Some(true) => ClassActivation::Sigmoid,
                    None => classes.activation,
                };
                sides.pairs(activation)?
            }
        };
        Ok(prepared)
    }

    /// Puts pairs into the queue; `reply` is called on the thread that computes, once, unless the
    /// ticket is dropped before.
    ///
    /// # Errors
    ///
    /// As [`Embedder::submit`].
    pub fn submit_scores(
        &self,
        prepared: PreparedScores,
        reply: impl FnOnce(Result<Scores, LlmError>) + Send + 'static,
    ) -> Result<EmbedTicket, LlmError> {
        let PreparedScores { texts, kind } = prepared;
        let n_tokens = texts.iter().map(|text| text.tokens.len()).sum();
        let finish = move |rows: Result<Vec<Vec<f32>>, LlmError>| {
            reply(rows.and_then(|rows| Ok(Scores { scores: kind.scores(&rows)?, n_tokens })));
        };
        self.queue.push(texts, Box::new(finish))
    }

    /// Scores of pairs; waits for them.
    ///
    /// # Errors
    ///
    /// As [`prepare_scores`](Self::prepare_scores) and [`submit_scores`](Self::submit_scores), and
    /// [`LlmError::NotFinite`] for weights that overflow.
    pub fn score(&self, request: &ScoreRequest) -> Result<Scores, LlmError> {
        let prepared = self.prepare_scores(request)?;
        waiting(|reply| self.submit_scores(prepared, reply))
    }
}

impl Kind {
    fn scores(self, rows: &[Vec<f32>]) -> Result<Vec<f64>, LlmError> {
        if let Some(index) = rows.iter().position(|row| row.iter().any(|x| !x.is_finite())) {
            return Err(LlmError::NotFinite { index });
        }
        Ok(match self {
            Self::Pairs(activation) => {
                rows.iter().map(|logits| activation.apply(logits)[0]).collect()
            }
            Self::Vectors { n_queries } => {
                let (queries, documents) = rows.split_at(n_queries);
                let query = |i: usize| if n_queries == 1 { &queries[0] } else { &queries[i] };
                documents.iter().enumerate().map(|(i, row)| cosine(query(i), row)).collect()
            }
        })
    }
}

/// The texts of a request on their way to tokens.
struct Sides<'a> {
    embedder: &'a Embedder,
    request: &'a ScoreRequest,
}

impl Sides<'_> {
    /// Each text by itself, queries first.
    fn vectors(&self) -> Result<PreparedScores, LlmError> {
        if self.request.activation == Some(true) {
            let expected = "absent or false with a model of vectors, whose score is a cosine";
            let (param, got) = ("use_activation", "true".to_owned());
            return Err(ParamError { param, expected, got }.into());
        }
        let ScoreRequest { queries, documents, cut, .. } = self.request;
        let limit = self.embedder.info.max_tokens;
        let most = cut.pair_tokens.map(|n| n.min(limit));
        let of_document = cut.document_tokens.map(|n| n.min(limit));
        let of_document = [most, of_document].into_iter().flatten().min();
        let mut total = 0;
        let mut side = |which: usize, texts: &[String], prompts: &[&str], most: Option<usize>| {
            let prompt = self.prompt(prompts)?;
            let one = |(index, text): (usize, &String)| {
                self.check_not_empty(which, index, text)?;
                let input = super::EmbedInput::Text(text.clone());
                let cut_to = most.unwrap_or(limit);
                let tokens =
                    self.embedder.tokens_within(index, &input, prompt, most.is_some(), cut_to);
                let tokens = tokens.map_err(|error| self.in_words(which, index, error))?;
                total += tokens.len();
                self.check_total(total)?;
                Ok(TypedTokens::from(tokens))
            };
            texts.iter().enumerate().map(one).collect::<Result<Vec<_>, LlmError>>()
        };
        let mut texts = side(0, queries, &QUERY_PROMPTS, most)?;
        texts.extend(side(1, documents, &DOCUMENT_PROMPTS, of_document)?);
        Ok(PreparedScores { texts, kind: Kind::Vectors { n_queries: queries.len() } })
    }

    /// Both texts of a pair together.
    fn pairs(&self, activation: ClassActivation) -> Result<PreparedScores, LlmError> {
        let ScoreRequest { queries, documents, cut, .. } = self.request;
        let frame = self.embedder.tokenizer.pair_frame()?;
        let limit = self.embedder.info.max_tokens;
        let room = limit.saturating_sub(frame.n_special());
        let most = cut.pair_tokens.map(|n| n.min(limit));
        let side = |which: usize, texts: &[String], index: usize, cut: Option<usize>| {
            self.check_not_empty(which, index, &texts[index])?;
            self.tokens(which, index, &texts[index], room, cut)
        };
        let mut query = Vec::new();
        let (mut texts, mut total) = (Vec::with_capacity(documents.len()), 0);
        for index in 0..documents.len() {
            if index < queries.len() {
                query = side(0, queries, index, most.map(|_| room))?;
            }
            // A cut of its own makes a document shorter; one of the pair looks at both texts.
            let of_document = cut.document_tokens.or(most.map(|_| room));
            let document = side(1, documents, index, of_document)?;
            let (mut a, mut b) = (query.len(), document.len());
            if let Some(most) = most {
                (a, b) = frame.lengths_within(a, b, most);
            }
            let n_tokens = a + b + frame.n_special();
            if n_tokens > limit {
                let why = format!(
                    "the pair has {n_tokens} tokens, at most {limit} fit; `truncate` cuts it to that"
                );
                // The longer text is to blame.
                return Err(self.error(usize::from(a < b), index, why, true));
            }
            total += n_tokens;
            self.check_total(total)?;
            let pair = frame.join(&query[..a], &document[..b]);
            texts.push(TypedTokens { tokens: pair.tokens, types: pair.kinds });
        }
        Ok(PreparedScores { texts, kind: Kind::Pairs(activation) })
    }

    /// Tokens of a text without special ones; with `cut` the first ones, without it at most `room`.
    fn tokens(
        &self,
        which: usize,
        index: usize,
        text: &str,
        room: usize,
        cut: Option<usize>,
    ) -> Result<Vec<TokenId>, LlmError> {
        let Embedder { tokenizer, spec, .. } = self.embedder;
        let options = EncodeOptions { add_special: false, parse_special: true };
        let lower;
        let text = match spec.lower_case {
            true => {
                lower = text.to_lowercase();
                &lower
            }
            false => text,
        };
        let Some(most) = cut else {
            return match tokenizer.encode_at_most(text, options, room) {
                Err(TextError::TooManyTokens { at_least, .. }) => {
                    let why = format!(
                        "has {at_least} tokens or more, at most {room} fit beside special tokens; \
                         `truncate` cuts it to that"
                    );
                    Err(self.error(which, index, why, true))
                }
                other => Ok(other?),
            };
        };
        let mut n_bytes = most.saturating_mul(BYTES_PER_TOKEN).max(1024);
        loop {
            let beginning = &text[..text.floor_char_boundary(n_bytes)];
            let mut tokens = tokenizer.encode_with(beginning, options)?;
            if tokens.len() > most || beginning.len() == text.len() {
                tokens.truncate(most);
                return Ok(tokens);
            }
            n_bytes = n_bytes.saturating_mul(4);
        }
    }

    /// The first of these prompts that the model has, or its default prompt.
    fn prompt(&self, names: &[&str]) -> Result<&str, LlmError> {
        let known = &self.embedder.spec.prompts;
        match names.iter().find_map(|name| known.get(*name)) {
            Some(prompt) => Ok(prompt),
            None => self.embedder.prompt(None),
        }
    }

    fn check_not_empty(&self, which: usize, index: usize, text: &str) -> Result<(), LlmError> {
        match text.is_empty() {
            true => {
                Err(self.error(which, index, "expected a text that is not empty".into(), false))
            }
            false => Ok(()),
        }
    }

    fn check_total(&self, total: usize) -> Result<(), LlmError> {
        match total <= MOST_TOKENS {
            true => Ok(()),
            false => {
                let param = self.request.names[1].to_owned();
                let why = format!("all pairs together have more than {MOST_TOKENS} tokens");
                Err(LlmError::Pair { param, why, is_too_long: true })
            }
        }
    }

    /// An error about one text, by its name in the request.
    fn error(&self, which: usize, index: usize, why: String, is_too_long: bool) -> LlmError {
        let name = self.request.names[which];
        let is_alone = which == 0 && self.request.queries.len() == 1;
        let param = if is_alone { name.to_owned() } else { format!("{name}[{index}]") };
        LlmError::Pair { param, why, is_too_long }
    }

    /// An error about an input, by its name in the request.
    fn in_words(&self, which: usize, index: usize, error: LlmError) -> LlmError {
        match error {
            LlmError::InputTooLong { n_tokens, limit, .. } => {
                let why = format!(
                    "has {n_tokens} tokens or more, at most {limit} fit; `truncate` cuts it to that"
                );
                self.error(which, index, why, true)
            }
            LlmError::EmptyInput { .. } => {
                self.error(which, index, "has no token: expected at least one".into(), false)
            }
            other => other,
        }
    }
}
