//! The vocabulary of a folder as GGUF arrays: a byte-level `tokenizer.json`, or the files from which
//! other tokenizers are made (`tokenizer.model`, `tiktoken.model`, a list of World tokens).

use std::path::Path;

use pelton_base::limits;
use pelton_tensor::{GgufValue, GgufWriter};
use pelton_text::{GgufVocab, TokenKind};
use serde_json::Value;

use super::read_json;
use crate::arch::ArchSpec;
use crate::error::ModelError;

/// Score of a token that no text has.
const NO_SCORE: f32 = -10_000.0;

/// Adds the tokenizer of `folder`; does nothing where there is none.
pub(super) fn write(
    folder: &Path,
    spec: &ArchSpec,
    writer: &mut GgufWriter,
) -> Result<(), ModelError> {
    let Some(mut vocab) = read(folder, spec)? else { return Ok(()) };
    let n = vocab.tokens.len();
    if n > spec.vocab_size {
        let why = format!("{}: {n} tokens, and {} embeddings", vocab.origin, spec.vocab_size);
        return Err(ModelError::Export(why));
    }
    vocab.kinds.resize(n, TokenKind::Normal);
    for id in n..spec.vocab_size {
        vocab.tokens.push(format!("[PAD{id}]").into_bytes());
        vocab.kinds.push(TokenKind::Unused);
    }
    if !vocab.scores.is_empty() {
        vocab.scores.resize(spec.vocab_size, NO_SCORE);
    }
    vocab.bos = vocab.bos.or(spec.bos_token.map(|token| token.0));
    // The one that ends every text comes first.
    let (mut ends, after) = (spec.eos_tokens.clone(), vocab.eos);
    ends.sort_by_key(|token| after.is_some() && after != Some(token.0));
    if let [eos, rest @ ..] = ends.as_slice() {
        (vocab.eos, vocab.eot) = (Some(eos.0), rest.first().map(|token| token.0));
    }
    for (key, value) in vocab.metadata() {
        writer.metadata(key, value);
    }
    if let Some(token) = ends.get(2) {
        writer.metadata("tokenizer.ggml.eom_token_id", GgufValue::U32(token.0));
    }
    if let Some(template) = chat_template(folder)? {
        writer.metadata("tokenizer.chat_template", GgufValue::String(template));
    }
    Ok(())
}

/// The vocabulary of a byte-level `tokenizer.json`, or of the files from which others are made.
fn read(folder: &Path, spec: &ArchSpec) -> Result<Option<GgufVocab>, ModelError> {
    let file = folder.join("tokenizer.json");
    let json = read_json(&file)?;
    if let Some(json) = &json {
        let pre = pre_tokenizer(json);
        if let Some(pre) = pre {
            return byte_level(json, pre, spec, &file.display().to_string()).map(Some);
        }
        if !folder.join("tokenizer.model").exists() {
            let why = "neither a byte-level tokenizer known here, nor beside a `tokenizer.model`";
            return Err(ModelError::Export(format!("{}: {why}", file.display())));
        }
    }
    GgufVocab::from_folder(folder).map_err(|error| ModelError::Export(error.to_string()))
}

fn byte_level(
    json: &Value,
    pre: &str,
    spec: &ArchSpec,
    origin: &str,
) -> Result<GgufVocab, ModelError> {
    let refuse = |why: &str| ModelError::Export(format!("{origin}: {why}"));
    let model = &json["model"];
    let ids = model["vocab"].as_object().ok_or_else(|| refuse("no `model.vocab`"))?;
    let mut tokens: Vec<Option<(String, TokenKind)>> = vec![None; spec.vocab_size];
    let mut place = |text: &str, id: &Value, kind: TokenKind| -> Result<(), ModelError> {
        let slot = id.as_u64().and_then(|id| tokens.get_mut(usize::try_from(id).ok()?));
        let slot =
            slot.ok_or_else(|| refuse(&format!("token {text:?} is beyond the embedding")))?;
        *slot = Some((text.to_owned(), kind));
        Ok(())
    };
    for (text, id) in ids {
        place(text, id, TokenKind::Normal)?;
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let text = added["content"].as_str().unwrap_or_default();
        let is_special = added["special"].as_bool() == Some(true);
        let kind = if is_special { TokenKind::Control } else { TokenKind::UserDefined };
        place(text, &added["id"], kind)?;
    }
    let (tokens, kinds): (Vec<Vec<u8>>, Vec<TokenKind>) = tokens
        .into_iter()
        .enumerate()
        .map(|(i, token)| token.unwrap_or_else(|| (format!("[PAD{i}]"), TokenKind::Unused)))
        .map(|(text, kind)| (text.into_bytes(), kind))
        .unzip();
    let merges = model["merges"].as_array().ok_or_else(|| refuse("no `model.merges`"))?;
    let merges: Option<Vec<Vec<u8>>> = merges.iter().map(merge_text).collect();
    let around = Around::read(json);
    Ok(GgufVocab {
        origin: origin.to_owned(),
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens,
        kinds,
        merges: merges.ok_or_else(|| refuse("a merge that is not a pair of texts"))?,
        bos: around.bos(),
        add_bos: Some(around.bos().is_some()),
        eos: around.eos(spec),
        add_eos: around.eos(spec).is_some().then_some(true),
        ..GgufVocab::default()
    })
}

/// GGUF's name for the way in which this tokenizer splits text.
fn pre_tokenizer(json: &Value) -> Option<&'static str> {
    if json["model"]["type"].as_str() != Some("BPE") {
        return None;
    }
    let pre = &json["pre_tokenizer"];
    let steps = match pre["pretokenizers"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![pre],
    };
    let steps: Option<Vec<Step<'_>>> = steps.into_iter().map(Step::read).collect();
    let composes = composes(&json["normalizer"]);
    let takes_words = json["model"]["ignore_merges"].as_bool() == Some(true);
    match steps?.as_slice() {
        [Step::Gpt2] => Some(if composes { "olmo" } else { "gpt-2" }),
        [Step::SingleDigits, Step::Gpt2] => Some(if composes { "command-r" } else { "smollm" }),
        [Step::Punctuation, Step::Gpt2, Step::DigitRuns, Step::Regex("[0-9][0-9][0-9]")] => {
            Some("falcon")
        }
        [Step::Regex(first), Step::Regex(_), Step::Regex(_), Step::Bytes]
            if *first == r"\p{N}{1,3}" =>
        {
            Some("deepseek-v3")
        }
        [Step::Regex(expression), Step::Bytes] => by_expression(expression, composes, takes_words),
        _ => None,
    }
}

/// A step of splitting text.
enum Step<'j> {
    /// GPT-2's expression, and bytes as characters.
    Gpt2,
    /// Bytes as characters.
    Bytes,
    SingleDigits,
    DigitRuns,
    Punctuation,
    Regex(&'j str),
}

impl<'j> Step<'j> {
    fn read(json: &'j Value) -> Option<Self> {
        let flag = |name: &str, usual| json[name].as_bool().unwrap_or(usual);
        match json["type"].as_str()? {
            "ByteLevel" if flag("use_regex", true) => Some(Self::Gpt2),
            "ByteLevel" => Some(Self::Bytes),
            "Digits" if flag("individual_digits", false) => Some(Self::SingleDigits),
            "Digits" => Some(Self::DigitRuns),
            "Punctuation" => Some(Self::Punctuation),
            "Split" => json["pattern"]["Regex"].as_str().map(Self::Regex),
            _ => None,
        }
    }
}

/// The name of a rule that is one expression. Its parts tell the published ones apart, which spell
/// contractions in several ways.
fn by_expression(expression: &str, composes: bool, takes_words: bool) -> Option<&'static str> {
    let has = |part: &str| expression.contains(part);
    let knows_case = has(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+");
    match composes {
        false if has(r"?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+") => {
            Some(if takes_words { "llama-bpe" } else { "dbrx" })
        }
        false if knows_case && has("'ll") && has(r"|\p{N}{1,3}| ?") => Some("gpt-4o"),
        false if knows_case && !has("'ll") && has(r"|\p{N}| ?") => Some("tekken"),
        true if has(r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+") => Some("qwen35"),
        _ if has(r"?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+") => {
            Some(if composes { "qwen2" } else { "hunyuan" })
        }
        _ => None,
    }
}

/// Whether characters are composed before text is split.
fn composes(normalizer: &Value) -> bool {
    let steps = normalizer["normalizers"].as_array();
    normalizer["type"] == "NFC" || steps.is_some_and(|steps| steps.iter().any(composes))
}

/// A merge as one text; files hold texts or, since some tokens contain blanks, pairs.
fn merge_text(merge: &Value) -> Option<Vec<u8>> {
    match merge {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(a), Value::String(b)] => Some(format!("{a} {b}").into_bytes()),
            _ => None,
        },
        _ => None,
    }
}

/// Special tokens that the post-processor puts before and after every text.
#[derive(Debug, Default, PartialEq)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Around {
    fn read(json: &Value) -> Self {
        let post = &json["post_processor"];
        let steps = match post["processors"].as_array() {
            Some(steps) => steps.iter().collect(),
            None => vec![post],
        };
        let mut around = Self::default();
        let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        for step in steps {
            // In the steps of BERT and RoBERTa: `["</s>", 2]`.
            around.before.extend(number(&step["cls"][1]));
            around.after.extend(number(&step["sep"][1]));
            let mut is_before = true;
            for part in step["single"].as_array().into_iter().flatten() {
                is_before &= !part["Sequence"].is_object();
                let name = part["SpecialToken"]["id"].as_str().unwrap_or_default();
                let ids = step["special_tokens"][name]["ids"].as_array().into_iter().flatten();
                let side = if is_before { &mut around.before } else { &mut around.after };
                side.extend(ids.filter_map(number));
            }
        }
        around
    }

    /// The one token before a text; a GGUF file can say no other number of them.
    fn bos(&self) -> Option<u32> {
        if let [bos] = self.before[..] { Some(bos) } else { None }
    }

    /// The one token after a text; in a GGUF file it is one that ends an answer, too.
    fn eos(&self, spec: &ArchSpec) -> Option<u32> {
        let ends = &spec.eos_tokens;
        match self.after[..] {
            [eos] if ends.is_empty() || ends.iter().any(|token| token.0 == eos) => Some(eos),
            _ => None,
        }
    }
}

/// The special tokens around a text that the tokenizer of `folder` adds and a GGUF file of it cannot
/// say.
pub(super) fn left_out(folder: &Path, spec: &ArchSpec) -> Result<Vec<String>, ModelError> {
    let json = read_json(&folder.join("tokenizer.json"))?;
    let Some(json) = json.filter(|json| pre_tokenizer(json).is_some()) else {
        return Ok(Vec::new());
    };
    let around = Around::read(&json);
    let list = |tokens: &[u32], place: &str| {
        let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        format!("the tokens {} that the tokenizer puts {place} each text", tokens.join(", "))
    };
    let mut left_out = Vec::new();
    if around.bos().is_none() && !around.before.is_empty() {
        left_out.push(list(&around.before, "before"));
    }
    if around.eos(spec).is_none() && !around.after.is_empty() {
        left_out.push(list(&around.after, "after"));
    }
    Ok(left_out)
}

fn chat_template(folder: &Path) -> Result<Option<String>, ModelError> {
    let file = folder.join("chat_template.jinja");
    if file.exists() {
        let text = pelton_tensor::read_limited_text(&file, limits::TEMPLATE_BYTES as u64);
        return text.map(Some).map_err(ModelError::io(&file));
    }
    let config = read_json(&folder.join("tokenizer_config.json"))?;
    Ok(config.and_then(|config| config["chat_template"].as_str().map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_around_a_text_are_those_of_the_post_processor() {
        let step = |kind: &str, cls: u32, sep: u32| json!({"type": kind, "cls": ["<s>", cls], "sep": ["</s>", sep]});
        let around = |before: &[u32], after: &[u32]| Around {
            before: before.to_vec(),
            after: after.to_vec(),
        };
        for (post, expected) in [
            (Value::Null, around(&[], &[])),
            (json!({"type": "ByteLevel"}), around(&[], &[])),
            (step("RobertaProcessing", 0, 2), around(&[0], &[2])),
            (
                json!({"type": "Sequence", "processors": [{"type": "ByteLevel"},
                    step("BertProcessing", 5, 6)]}),
                around(&[5], &[6]),
            ),
        ] {
            assert_eq!(Around::read(&json!({"post_processor": post})), expected, "{post}");
        }
    }

    #[test]
    fn rules_are_told_apart_by_their_steps_and_expressions() {
        let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}});
        let (bytes, gpt2) =
            (json!({"type": "ByteLevel", "use_regex": false}), json!({"type": "ByteLevel"}));
        let words = |letters: &str, digits: &str, marks: &str| {
            split(&format!(
                r"(?i:'s|'ll)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s{marks}]+|\s+"
            ))
        };
        let cased = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";
        let digits = |single: bool| json!({"type": "Digits", "individual_digits": single});
        let llama = words(r"\p{L}", r"\p{N}{1,3}", r"\p{L}\p{N}");
        let qwen = words(r"\p{L}", r"\p{N}", r"\p{L}\p{N}");
        let marks = words(r"[\p{L}\p{M}]", r"\p{N}", r"\p{L}\p{M}\p{N}");
        for (steps, nfc, whole, expected) in [
            (vec![gpt2.clone()], false, false, Some("gpt-2")),
            (vec![gpt2.clone()], true, false, Some("olmo")),
            (vec![digits(true), gpt2.clone()], false, false, Some("smollm")),
            (vec![digits(false), gpt2.clone()], false, false, None),
            (
                vec![json!({"type": "Punctuation"}), gpt2, digits(false), split("[0-9][0-9][0-9]")],
                false,
                false,
                Some("falcon"),
            ),
            (vec![llama.clone(), bytes.clone()], false, true, Some("llama-bpe")),
            (vec![llama.clone(), bytes.clone()], false, false, Some("dbrx")),
            (vec![llama], false, false, None),
            (vec![qwen.clone(), bytes.clone()], true, false, Some("qwen2")),
            (vec![qwen, bytes.clone()], false, false, Some("hunyuan")),
            (vec![marks, bytes.clone()], true, false, Some("qwen35")),
            (
                vec![split(&format!(r"{cased}|\p{{N}}| ?\S+")), bytes.clone()],
                false,
                true,
                Some("tekken"),
            ),
            (
                vec![split(&format!(r"{cased}(?i:'s|'ll)?|\p{{N}}{{1,3}}| ?\S+")), bytes.clone()],
                false,
                false,
                Some("gpt-4o"),
            ),
            (
                vec![split(r"\p{N}{1,3}"), split("[a]+"), split("[b]+"), bytes.clone()],
                false,
                false,
                Some("deepseek-v3"),
            ),
            (vec![split(r"\p{N}{1,3}"), bytes], false, false, None),
        ] {
            let normalizer = if nfc { json!({"type": "NFC"}) } else { Value::Null };
            let json = json!({
                "model": {"type": "BPE", "ignore_merges": whole},
                "normalizer": normalizer,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            });
            assert_eq!(pre_tokenizer(&json), expected, "{json}");
        }
    }
}
