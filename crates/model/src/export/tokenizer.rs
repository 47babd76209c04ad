//! A byte-level `tokenizer.json` as GGUF arrays.

use std::path::Path;

use pelton_base::limits;
use pelton_tensor::{GgufArray, GgufValue, GgufWriter};
use serde_json::Value;

use super::read_json;
use crate::arch::ArchSpec;
use crate::error::ModelError;

/// Kinds of token in GGUF files.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Adds the tokenizer of `folder`; does nothing where there is none.
pub(super) fn write(
    folder: &Path,
    spec: &ArchSpec,
    writer: &mut GgufWriter,
) -> Result<(), ModelError> {
    let file = folder.join("tokenizer.json");
    let Some(json) = read_json(&file)? else { return Ok(()) };
    let refuse = |why: &str| ModelError::Export(format!("{}: {why}", file.display()));
    let model = &json["model"];
    let pre =
        pre_tokenizer(&json).ok_or_else(|| refuse("not a byte-level tokenizer known here"))?;
    let vocab = model["vocab"].as_object().ok_or_else(|| refuse("no `model.vocab`"))?;

    let mut tokens: Vec<Option<(String, i32)>> = vec![None; spec.vocab_size];
    let mut place = |text: &str, id: &Value, kind: i32| -> Result<(), ModelError> {
        let slot = id.as_u64().and_then(|id| tokens.get_mut(usize::try_from(id).ok()?));
        let slot =
            slot.ok_or_else(|| refuse(&format!("token {text:?} is beyond the embedding")))?;
        *slot = Some((text.to_owned(), kind));
        Ok(())
    };
    for (text, id) in vocab {
        place(text, id, NORMAL)?;
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let text = added["content"].as_str().unwrap_or_default();
        let is_special = added["special"].as_bool() == Some(true);
        place(text, &added["id"], if is_special { CONTROL } else { USER_DEFINED })?;
    }
    let (texts, kinds): (Vec<Vec<u8>>, Vec<i32>) = tokens
        .into_iter()
        .enumerate()
        .map(|(i, token)| token.unwrap_or_else(|| (format!("[PAD{i}]"), UNUSED)))
        .map(|(text, kind)| (text.into_bytes(), kind))
        .unzip();
    let merges = model["merges"].as_array().ok_or_else(|| refuse("no `model.merges`"))?;
    let merges: Option<Vec<Vec<u8>>> = merges.iter().map(merge_text).collect();
    let merges = merges.ok_or_else(|| refuse("a merge that is not a pair of texts"))?;

    let text = |x: &str| GgufValue::String(x.to_owned());
    writer
        .metadata("tokenizer.ggml.model", text("gpt2"))
        .metadata("tokenizer.ggml.pre", text(pre))
        .metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::Strings(texts)))
        .metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(kinds)))
        .metadata("tokenizer.ggml.merges", GgufValue::Array(GgufArray::Strings(merges)))
        .metadata("tokenizer.ggml.add_bos_token", GgufValue::Bool(adds_bos(&json)));
    if let Some(bos) = spec.bos_token {
        writer.metadata("tokenizer.ggml.bos_token_id", GgufValue::U32(bos.0));
    }
    for (key, token) in ["eos", "eot", "eom"].iter().zip(&spec.eos_tokens) {
        writer.metadata(format!("tokenizer.ggml.{key}_token_id"), GgufValue::U32(token.0));
    }
    if let Some(template) = chat_template(folder)? {
        writer.metadata("tokenizer.chat_template", GgufValue::String(template));
    }
    Ok(())
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
    let byte_level = steps.iter().find(|step| step["type"] == "ByteLevel")?;
    let pattern = steps.iter().find_map(|step| step["pattern"]["Regex"].as_str());
    match pattern {
        None if byte_level["use_regex"].as_bool() != Some(false) => Some("gpt-2"),
        Some(pattern) if pattern.contains(r"\p{N}{1,3}") => Some("llama-bpe"),
        Some(pattern) if pattern.contains(r"|\p{N}|") => Some("qwen2"),
        _ => None,
    }
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

/// Whether the post-processor begins every text with a special token.
fn adds_bos(json: &Value) -> bool {
    let post = &json["post_processor"];
    let steps = match post["processors"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![post],
    };
    steps.iter().any(|step| step["single"][0]["SpecialToken"].is_object())
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
