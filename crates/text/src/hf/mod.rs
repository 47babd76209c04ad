//! Tokenizers from `tokenizer.json`, and the border to the `tokenizers` crate.
//!
//! The crate trusts its files: some make it panic, some make it search for hours. So no call into
//! it is made but through [`guarded`], regular expressions are [bounded](regex), and a tokenizer is
//! tried out before it is used.

mod regex;
mod steps;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::OnceLock;

use pelton_base::{TokenId, limits};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::unigram::Unigram;
use tokenizers::{DecoderWrapper, Encoding, ModelWrapper, PostProcessorWrapper, TokenizerImpl};

use crate::byte_table::ByteTable;
use crate::charsmap::{self, CharsMap};
use crate::companions::Companions;
use crate::error::TextError;
use crate::token_decoder::TokenDecoder;
use crate::tokenizer::{Encoder, Tokenizer};
use regex::within_budget;
use steps::{Normalize, PreTokenize};

/// A tokenizer of the crate with our own steps around its expressions.
pub(crate) type Inner =
    TokenizerImpl<ModelWrapper, Normalize, PreTokenize, PostProcessorWrapper, DecoderWrapper>;

/// A text with what steps look for: letters, digits, marks, white space, a special token, two
/// scripts, an emoji and a combining mark.
const TRIAL: &str =
    " Once upon a time, 1234!\n\n\t<|im_start|>caf\u{e9} \u{65e5}\u{672c} \u{1f600}\u{301}";

/// An encoder of the `tokenizers` crate.
#[derive(Debug)]
pub(crate) struct HfEncoder {
    inner: Inner,
    /// The same encoder without recognition of special tokens in the text; made at its first use.
    plain: OnceLock<Box<Inner>>,
}

impl HfEncoder {
    /// Tries the tokenizer out; `origin` names its file in errors.
    pub(crate) fn new(inner: Inner, origin: &str) -> Result<Self, TextError> {
        let encoder = Self { inner, plain: OnceLock::new() };
        for text in ["", TRIAL] {
            // Other errors are no fault: a vocabulary need not know every character.
            if let Err(error @ TextError::Panicked { .. }) = encoder.encode(text, true, true) {
                return Err(TextError::malformed(origin, error));
            }
        }
        Ok(encoder)
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TextError> {
        let encode = || self.encode_unguarded(text, add_special, parse_special);
        guarded(|| within_budget(text.len(), encode))?.map_err(|expression| {
            let expression: String = expression.chars().take(80).collect();
            let reason =
                format!("the tokenizer's regular expression `{expression}` takes too long on it");
            TextError::Encode { reason }
        })?
    }

    /// Two texts of one token each as the post-processor joins them, and the kind of each token.
    pub(crate) fn join(&self, marks: [TokenId; 2]) -> Result<Vec<(TokenId, u8)>, TextError> {
        let encoding = |kind: u32| {
            let token = tokenizers::Token::new(marks[kind as usize].0, String::new(), (0, 0));
            Encoding::from_tokens(vec![token], kind)
        };
        let joined = guarded(|| self.inner.post_process(encoding(0), Some(encoding(1)), true))?
            .map_err(|error| TextError::Encode { reason: error.to_string() })?;
        let kinds = joined.get_type_ids().iter().map(|kind| u8::try_from(*kind).unwrap_or(1));
        Ok(joined.get_ids().iter().copied().map(TokenId).zip(kinds).collect())
    }

    fn encode_unguarded(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TextError> {
        let tokenizer = if parse_special {
            &self.inner
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.inner.clone();
                plain.set_encode_special_tokens(true);
                hide_special_pieces(&mut plain);
                Box::new(plain)
            })
        };
        let encoding = tokenizer
            .encode_fast(text, add_special)
            .map_err(|error| TextError::Encode { reason: error.to_string() })?;
        Ok(encoding.get_ids().iter().copied().map(TokenId).collect())
    }
}

/// Removes the spelling of its special tokens from a unigram model.
///
/// Their own pieces score zero, better than all text, so the model would find `</s>` in a text
/// even where special tokens are not recognized. A piece without characters matches nothing.
fn hide_special_pieces(tokenizer: &mut Inner) {
    let ModelWrapper::Unigram(model) = tokenizer.get_model() else { return };
    let added = tokenizer.get_added_tokens_decoder();
    let pieces = model.iter().enumerate().map(|(id, (piece, score))| {
        let is_special = u32::try_from(id).ok().and_then(|id| added.get(&id));
        match is_special.filter(|token| token.special) {
            Some(_) => (String::new(), *score),
            None => (piece.clone(), *score),
        }
    });
    // The unknown token has an id and no getter.
    let state = serde_json::to_value(model).ok();
    let unknown = state.as_ref().and_then(|state| state.get("unk_id")?.as_u64());
    let unknown = unknown.and_then(|id| usize::try_from(id).ok());
    if let Ok(hidden) = Unigram::from(pieces.collect(), unknown, model.byte_fallback()) {
        tokenizer.with_model(ModelWrapper::Unigram(hidden));
    }
}

/// Builds a tokenizer; `origin` names the file in errors.
pub(crate) fn build(
    json: &[u8],
    companions: &Companions,
    origin: &str,
) -> Result<Tokenizer, TextError> {
    if json.len() as u64 > limits::TOKENIZER_BYTES {
        return Err(TextError::TooLarge {
            what: origin.to_owned(),
            n_bytes: json.len() as u64,
            limit: limits::TOKENIZER_BYTES,
        });
    }
    let outline: Outline<'_> =
        serde_json::from_slice(json).map_err(|error| TextError::malformed(origin, error))?;
    outline.check(origin)?;
    let decoder = TokenDecoder::new(outline.decoder.as_ref(), origin)?;

    let mut inner = built(|| Inner::from_bytes(json), origin)?;
    // A prompt is neither cut nor padded, even if the file asks for it.
    inner
        .with_truncation(None)
        .map_err(|error| TextError::malformed(origin, error))?
        .with_padding(None);

    let ids: HashMap<String, u32> = inner.get_vocab(true);
    let n_ids = ids.values().max().map_or(0, |id| *id as usize + 1);
    if n_ids > limits::MODEL_VOCAB {
        let reason =
            format!("token id {} is beyond the limit of {}", n_ids - 1, limits::MODEL_VOCAB);
        return Err(TextError::malformed(origin, reason));
    }
    let mut texts: Vec<Option<Cow<'_, [u8]>>> = vec![None; n_ids];
    for (text, id) in &ids {
        texts[*id as usize] = Some(Cow::Owned(decoder.bytes_of(text)));
    }
    let mut is_special = vec![false; n_ids];
    let added = inner.get_added_tokens_decoder();
    for (id, token) in &added {
        is_special[*id as usize] = token.special;
        texts[*id as usize] = Some(Cow::Owned(decoder.bytes_of_added(&token.content)));
    }
    let mut table = ByteTable::default();
    for text in &texts {
        table.push(text.as_deref());
    }
    let at_start = ids
        .iter()
        .filter_map(|(text, id)| Some((*id, decoder.at_start(text, table.get(TokenId(*id))?)?)))
        .collect();

    let named = |field| companions.token(field).and_then(|text| ids.get(text)).copied();
    Ok(Tokenizer {
        table,
        is_special,
        bos: named("bos_token").map(TokenId),
        eos: named("eos_token").map(TokenId),
        eot: named("eot_token").map(TokenId),
        // As in transformers 5, the file's own post-processor decides; `add_bos_token` and
        // `add_eos_token` of `tokenizer_config.json` are ignored.
        prepend_bos: None,
        append_eos: None,
        pair_separator: None,
        strips_leading_space: decoder.strips_leading_space,
        at_start,
        encoder: Encoder::Hf(Box::new(HfEncoder::new(inner, origin)?)),
        ids,
    })
}

/// The parts of `tokenizer.json` that are checked before the crate reads the file.
#[derive(Deserialize)]
#[serde(expecting = "expected a JSON object with `model`")]
struct Outline<'j> {
    #[serde(borrow)]
    model: ModelOutline<'j>,
    #[serde(default)]
    decoder: Option<Value>,
    #[serde(default)]
    normalizer: Option<Value>,
    #[serde(default)]
    post_processor: Option<Value>,
}

#[derive(Deserialize)]
#[serde(expecting = "expected `model` to be a JSON object")]
struct ModelOutline<'j> {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default, borrow)]
    vocab: VocabOutline<'j>,
    #[serde(default, borrow)]
    merges: Vec<MergeOutline<'j>>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum VocabOutline<'j> {
    Map(#[serde(borrow)] HashMap<Cow<'j, str>, u64>),
    /// Pieces with scores (Unigram), which are not checked here.
    Other(serde::de::IgnoredAny),
}

impl Default for VocabOutline<'_> {
    fn default() -> Self {
        Self::Other(serde::de::IgnoredAny)
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected each of `model.merges` to be two tokens")]
enum MergeOutline<'j> {
    Pair(#[serde(borrow)] Cow<'j, str>, #[serde(borrow)] Cow<'j, str>),
    Joined(#[serde(borrow)] Cow<'j, str>),
}

impl Outline<'_> {
    /// Refuses content that would make the `tokenizers` crate panic or exhaust the memory.
    fn check(&self, origin: &str) -> Result<(), TextError> {
        if let Some(kind) = self.model.kind.as_deref().filter(|kind| !MODELS.contains(kind)) {
            return Err(TextError::Unsupported {
                origin: origin.to_owned(),
                field: "model.type",
                found: kind.chars().take(80).collect(),
                known: MODELS.join(", "),
            });
        }
        if let Some(token) = self.post_processor.as_ref().and_then(|p| unlisted_token(p, 0)) {
            let reason = format!(
                "`post_processor` names `{}`, expected a token of its `special_tokens`",
                token.chars().take(80).collect::<String>()
            );
            return Err(TextError::malformed(origin, reason));
        }
        let growth = self.normalizer.as_ref().map_or(1, |normalizer| growth(normalizer, 0));
        if growth > MAX_GROWTH {
            let reason = format!(
                "`normalizer` makes text more than {MAX_GROWTH} times longer; that is not a tokenizer"
            );
            return Err(TextError::malformed(origin, reason));
        }
        if self.normalizer.as_ref().is_some_and(|n| replaces_nothing(n, 0)) {
            let reason = "`normalizer.pattern` of a `Replace` is empty; expected a text to replace";
            return Err(TextError::malformed(origin, reason));
        }
        if let Some(reason) = self.normalizer.as_ref().and_then(|n| wrong_charsmap(n, 0)) {
            let reason = format!("`normalizer.precompiled_charsmap` {reason}");
            return Err(TextError::malformed(origin, reason));
        }
        let VocabOutline::Map(vocab) = &self.model.vocab else { return Ok(()) };
        if self.model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
            return Ok(());
        }
        if self.model.continuing_subword_prefix.as_deref().is_some_and(|p| !p.is_empty()) {
            return Err(TextError::malformed(
                origin,
                "`model.continuing_subword_prefix` is not supported",
            ));
        }
        let mut joined = String::new();
        for (idx, merge) in self.model.merges.iter().enumerate() {
            let pair = match merge {
                MergeOutline::Pair(left, right) => Some((left.as_ref(), right.as_ref())),
                MergeOutline::Joined(text) => text.split_once(' '),
            };
            let fits = pair.is_some_and(|(left, right)| {
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                vocab.contains_key(left)
                    && vocab.contains_key(right)
                    && vocab.contains_key(joined.as_str())
            });
            if !fits {
                let reason =
                    format!("`model.merges[{idx}]` is not two tokens that join to a third");
                return Err(TextError::malformed(origin, reason));
            }
        }
        Ok(())
    }
}

/// Kinds of models that the crate knows.
const MODELS: &[&str] = &["BPE", "Unigram", "WordLevel", "WordPiece"];
/// Largest factor by which the replacements of a normalizer may lengthen a text; models in use make
/// three bytes of one (`▁` for a space).
const MAX_GROWTH: usize = 64;

/// A token that a template of the post-processor names and does not define; the crate panics on it
/// when it encodes.
fn unlisted_token(processor: &Value, depth: usize) -> Option<String> {
    let listed = processor.get("special_tokens");
    let pieces =
        ["single", "pair"].into_iter().filter_map(|field| processor.get(field)?.as_array());
    let unlisted = pieces.flatten().find_map(|piece| {
        let token = piece.pointer("/SpecialToken/id")?.as_str()?;
        let is_listed = listed.is_some_and(|listed| listed.get(token).is_some());
        (!is_listed).then(|| token.to_owned())
    });
    let steps = processor.get("processors").and_then(Value::as_array).filter(|_| depth < 8);
    unlisted
        .or_else(|| steps.into_iter().flatten().find_map(|step| unlisted_token(step, depth + 1)))
}

/// Largest factor by which the replacements of a normalizer lengthen a text.
fn growth(normalizer: &Value, depth: usize) -> usize {
    let len = |pointer| normalizer.pointer(pointer).and_then(Value::as_str).map(str::len);
    match normalizer.get("type").and_then(Value::as_str) {
        _ if depth > 8 => usize::MAX,
        Some("Sequence") => {
            let steps = normalizer.get("normalizers").and_then(Value::as_array);
            steps
                .into_iter()
                .flatten()
                .fold(1, |product: usize, step| product.saturating_mul(growth(step, depth + 1)))
        }
        Some("Replace") => {
            let content = len("/content").unwrap_or(0);
            // A regular expression may match one byte, or nothing between any two.
            match len("/pattern/String") {
                Some(pattern) if pattern > 0 => content.div_ceil(pattern).max(1),
                _ => content.saturating_add(1),
            }
        }
        // Added once to every text.
        Some("Prepend") if len("/prepend").unwrap_or(0) > 1024 => usize::MAX,
        _ => 1,
    }
}

/// Whether a step replaces the empty text, on which the steps after it panic.
fn replaces_nothing(normalizer: &Value, depth: usize) -> bool {
    let is_replace = normalizer.get("type").and_then(Value::as_str) == Some("Replace");
    let pattern = normalizer.get("pattern").and_then(Value::as_object);
    let is_empty = pattern.is_some_and(|kinds| kinds.values().any(|text| text == ""));
    let steps = normalizer.get("normalizers").and_then(Value::as_array).filter(|_| depth < 8);
    let in_steps = steps.is_some_and(|steps| steps.iter().any(|s| replaces_nothing(s, depth + 1)));
    (is_replace && is_empty) || in_steps
}

/// Checks the table of a `Precompiled` step, which the crate walks without checks.
fn wrong_charsmap(normalizer: &Value, depth: usize) -> Option<String> {
    if let Some(table) = normalizer.get("precompiled_charsmap").and_then(Value::as_str) {
        return match charsmap::from_base64(table) {
            Some(bytes) => CharsMap::parse(&bytes).err(),
            None => Some("is not base 64".to_owned()),
        };
    }
    let steps = normalizer.get("normalizers").and_then(Value::as_array).filter(|_| depth < 8);
    steps.into_iter().flatten().find_map(|step| wrong_charsmap(step, depth + 1))
}

/// Builds a part of the crate; a panic in it becomes an error that names the file.
pub(crate) fn built<T>(
    build: impl FnOnce() -> tokenizers::Result<T>,
    origin: &str,
) -> Result<T, TextError> {
    match guarded(build) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(TextError::malformed(origin, error)),
        Err(error) => Err(TextError::malformed(origin, error)),
    }
}

/// Calls the crate; a panic in it comes back as an error.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, TextError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        TextError::Panicked { message: text.unwrap_or("no message").to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replace(pattern: Value, content: usize) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": "x".repeat(content)})
    }

    /// A step inside `n` sequences of steps of this field.
    fn nested(field: &str, n: usize, step: Value) -> Value {
        (0..n).fold(step, |inner, _| json!({"type": "Sequence", field: [inner]}))
    }

    /// A tokenizer of letters with other values in these fields.
    fn letters(edits: &[(&str, Value)]) -> Result<Tokenizer, TextError> {
        let mut json = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []}});
        for (pointer, value) in edits {
            let (parent, field) = pointer.rsplit_once('/').expect("a path");
            json.pointer_mut(parent).expect("an object")[field] = value.clone();
        }
        Tokenizer::from_bytes(json.to_string().as_bytes())
    }

    #[test]
    fn a_normalizer_grows_a_text_by_its_replacements() {
        let text = |text: &str| json!({"String": text});
        let lower = json!({"type": "Lowercase"});
        let prepend = |n: usize| json!({"type": "Prepend", "prepend": "x".repeat(n)});
        let both = json!({"type": "Sequence",
            "normalizers": [replace(text("a"), 3), replace(text("a"), 6)]});
        for (step, expected) in [
            (lower.clone(), 1),
            (replace(text("ab"), 5), 3),
            (replace(text("ab"), 0), 1),
            (replace(text(""), 5), 6),
            (replace(json!({"Regex": "a"}), 5), 6),
            (prepend(1024), 1),
            (prepend(1025), usize::MAX),
            (both, 18),
            (nested("normalizers", 8, lower.clone()), 1),
            (nested("normalizers", 9, lower), usize::MAX),
        ] {
            assert_eq!(growth(&step, 0), expected, "{step}");
        }
        letters(&[("/normalizer", replace(text("a"), MAX_GROWTH))]).expect("just allowed");
        let error = letters(&[("/normalizer", replace(text("a"), MAX_GROWTH + 1))]).map(drop);
        let error = error.expect_err("grows too much").to_string();
        assert!(error.contains("more than 64 times longer"), "{error}");
    }

    #[test]
    fn what_the_crate_panics_on_is_found_down_to_eight_levels() {
        let empty = || replace(json!({"String": ""}), 1);
        assert!(!replaces_nothing(&replace(json!({"String": "a"}), 1), 0));
        assert!(!replaces_nothing(&json!({"type": "Split", "pattern": {"String": ""}}), 0));
        let table = |table: &str| json!({"type": "Precompiled", "precompiled_charsmap": table});
        assert_eq!(wrong_charsmap(&table("#"), 0).as_deref(), Some("is not base 64"));
        assert!(wrong_charsmap(&table("AAAA"), 0).is_some_and(|why| why.contains("fewer")));
        let template = |id: &str| {
            json!({"type": "TemplateProcessing", "pair": [{"SpecialToken": {"id": id}}],
                "special_tokens": {"known": {}}})
        };
        assert_eq!(unlisted_token(&template("known"), 0), None);
        for (n, is_found) in [(0, true), (1, true), (8, true), (9, false)] {
            assert_eq!(replaces_nothing(&nested("normalizers", n, empty()), 0), is_found, "{n}");
            let step = nested("normalizers", n, table("#"));
            assert_eq!(wrong_charsmap(&step, 0).is_some(), is_found, "{n}");
            let step = nested("processors", n, template("x"));
            assert_eq!(unlisted_token(&step, 0).as_deref(), is_found.then_some("x"), "{n}");
        }
    }

    #[test]
    fn a_file_is_refused_by_its_size_its_ids_and_its_merges() {
        let most = limits::TOKENIZER_BYTES as usize;
        let error_of = |n_bytes| {
            Tokenizer::from_bytes(&vec![0; n_bytes]).map(drop).expect_err("no JSON").to_string()
        };
        assert!(!error_of(most).contains("the limit is"));
        assert!(error_of(most + 1).contains("the limit is"));
        let vocab = |id: usize| [("/model/vocab", json!({"a": id}))];
        let largest = letters(&vocab(limits::MODEL_VOCAB - 1)).expect("the largest id");
        assert_eq!(largest.vocab_size(), limits::MODEL_VOCAB);
        let error = letters(&vocab(limits::MODEL_VOCAB)).map(drop).expect_err("too large");
        assert!(error.to_string().contains("token id 4194304"), "{error}");
        letters(&[("/model/merges", json!([["a", "b"]]))]).expect("a merge");
        letters(&[("/model/merges", json!(["a b"]))]).expect("a merge");
        for merges in [[["a", "z"]], [["z", "b"]], [["b", "a"]]] {
            let error = letters(&[("/model/merges", json!(merges))]).map(drop).expect_err("no");
            assert!(error.to_string().contains("not two tokens that join"), "{error}");
        }
        letters(&[("/model/continuing_subword_prefix", json!(""))]).expect("no prefix");
        let error = letters(&[("/model/continuing_subword_prefix", json!("##"))]).map(drop);
        assert!(error.expect_err("a prefix").to_string().contains("continuing_subword_prefix"));
    }
}
