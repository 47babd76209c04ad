//! A [`GgufVocab`] as GGUF files have it: the only place that knows their reader and their values.

use std::path::Path;

use pelton_base::limits;
use pelton_tensor::{Gguf, GgufArray, GgufValue, TensorError, TensorSource};

use crate::error::TextError;
use crate::gguf_vocab::{GgufVocab, TokenKind};
use crate::older_files;

impl From<TensorError> for TextError {
    fn from(error: TensorError) -> Self {
        Self::Gguf { source: Box::new(error) }
    }
}

impl GgufVocab {
    /// Reads the vocabulary of a GGUF file.
    ///
    /// # Errors
    ///
    /// Names the file and the metadata key that is missing or of the wrong type.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        let origin = gguf.origin().display().to_string();
        let missing = |key: &str| TextError::malformed(&origin, format_args!("`{key}` is missing"));
        let model = gguf.str("tokenizer.ggml.model")?;
        if matches!(model, Some("none" | "no_vocab")) {
            let model = model.unwrap_or_default().to_owned();
            return Ok(Self { model, origin, tokens: vec![Vec::new()], ..Self::default() });
        }
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let tokens = tokens.ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        if tokens.len() > limits::MODEL_VOCAB {
            let reason = format!(
                "`tokenizer.ggml.tokens` has {} entries; the limit is {}",
                tokens.len(),
                limits::MODEL_VOCAB
            );
            return Err(TextError::malformed(&origin, reason));
        }
        let kinds = gguf.i32_array("tokenizer.ggml.token_type")?.unwrap_or_default();
        let kinds = kinds
            .iter()
            .enumerate()
            // Writers that know no kind write 0.
            .map(|(idx, n)| match *n {
                0 => Ok(TokenKind::Normal),
                n => TokenKind::from_gguf(n).ok_or_else(|| {
                    let reason =
                        format!("`tokenizer.ggml.token_type`[{idx}] is {n}; expected 1 to 6");
                    TextError::malformed(&origin, reason)
                }),
            })
            .collect::<Result<_, _>>()?;
        // Without merges every text would become single bytes, and the model would answer nonsense.
        if model.is_some_and(has_merges) && !gguf.metadata().contains_key("tokenizer.ggml.merges") {
            return Err(missing("tokenizer.ggml.merges"));
        }
        Ok(Self {
            model: model.ok_or_else(|| missing("tokenizer.ggml.model"))?.to_owned(),
            pre: gguf.str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: tokens.to_vec(),
            scores: gguf.f32_array("tokenizer.ggml.scores")?.unwrap_or_default().to_vec(),
            kinds,
            merges: gguf.strings("tokenizer.ggml.merges")?.unwrap_or_default().to_vec(),
            bos: gguf.u32("tokenizer.ggml.bos_token_id")?,
            eos: gguf.u32("tokenizer.ggml.eos_token_id")?,
            eot: gguf.u32("tokenizer.ggml.eot_token_id")?,
            unknown: gguf.u32("tokenizer.ggml.unknown_token_id")?,
            add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: gguf.bool("tokenizer.ggml.add_eos_token")?,
            class: gguf.u32("tokenizer.ggml.cls_token_id")?,
            // The format's own spelling; newer writers know the other one, too.
            separator: match gguf.u32("tokenizer.ggml.seperator_token_id")? {
                Some(id) => Some(id),
                None => gguf.u32("tokenizer.ggml.separator_token_id")?,
            },
            add_separator: gguf.bool("tokenizer.ggml.add_sep_token")?,
            add_space_prefix: gguf.bool("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: gguf.bool("tokenizer.ggml.remove_extra_whitespaces")?,
            precompiled_charsmap: charsmap(gguf, &origin)?,
            lowercase: gguf.bool("tokenizer.ggml.normalizer.lowercase")?,
            strip_accents: gguf.bool("tokenizer.ggml.normalizer.strip_accents")?,
            origin,
        })
    }

    /// Reads the vocabulary of a model folder from `tokenizer.model`, `vocab.json` and `merges.txt`, a list
    /// of World tokens or `vocab.txt`; `None` where there are none. `tokenizer.json` is not read.
    ///
    /// # Errors
    ///
    /// Names the file and what is wrong with it.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, TextError> {
        older_files::vocabulary(folder)
    }

    /// The metadata of a GGUF file with this vocabulary, as [`from_gguf`](Self::from_gguf) reads it.
    pub fn metadata(&self) -> Vec<(String, GgufValue)> {
        let text = |text: &str| GgufValue::String(text.to_owned());
        let texts = |list: &Vec<Vec<u8>>| GgufArray::Strings(list.clone());
        let kinds = self.kinds.iter().map(|kind| kind.to_gguf()).collect();
        let list = |array: GgufArray| (!array.is_empty()).then_some(GgufValue::Array(array));
        // Written even where it is empty, as the reader asks for it.
        let merges = match has_merges(&self.model) {
            true => Some(GgufValue::Array(texts(&self.merges))),
            false => list(texts(&self.merges)),
        };
        let id = |id: Option<u32>| id.map(GgufValue::U32);
        let flag = |flag: Option<bool>| flag.map(GgufValue::Bool);
        let all = [
            ("model", Some(text(&self.model))),
            ("pre", self.pre.as_deref().map(text)),
            ("tokens", list(texts(&self.tokens))),
            ("scores", list(GgufArray::F32(self.scores.clone()))),
            ("token_type", list(GgufArray::I32(kinds))),
            ("merges", merges),
            ("bos_token_id", id(self.bos)),
            ("eos_token_id", id(self.eos)),
            ("eot_token_id", id(self.eot)),
            ("unknown_token_id", id(self.unknown)),
            ("cls_token_id", id(self.class)),
            ("seperator_token_id", id(self.separator)),
            ("add_bos_token", flag(self.add_bos)),
            ("add_eos_token", flag(self.add_eos)),
            ("add_sep_token", flag(self.add_separator)),
            ("add_space_prefix", flag(self.add_space_prefix)),
            ("remove_extra_whitespaces", flag(self.remove_extra_whitespaces)),
            ("precompiled_charsmap", list(GgufArray::U8(self.precompiled_charsmap.clone()))),
            ("normalizer.lowercase", flag(self.lowercase)),
            ("normalizer.strip_accents", flag(self.strip_accents)),
        ];
        let named = |(key, value): (&str, Option<GgufValue>)| {
            Some((format!("tokenizer.ggml.{key}"), value?))
        };
        all.into_iter().filter_map(named).collect()
    }
}

/// Whether vocabularies of this kind (`tokenizer.ggml.model`) have a list of merges.
fn has_merges(model: &str) -> bool {
    matches!(model, "gpt2" | "gemma4")
}

fn charsmap(gguf: &Gguf, origin: &str) -> Result<Vec<u8>, TextError> {
    let key = "tokenizer.ggml.precompiled_charsmap";
    match gguf.array(key)? {
        None => Ok(Vec::new()),
        Some(GgufArray::U8(bytes)) => Ok(bytes.clone()),
        Some(GgufArray::I8(bytes)) => Ok(bytes.iter().map(|byte| *byte as u8).collect()),
        Some(other) => {
            let reason = format!("`{key}` is an array of {}; expected bytes", other.type_name());
            Err(TextError::malformed(origin, reason))
        }
    }
}

/// The origin, chat template and named special tokens of a GGUF file.
type GgufTemplate = (String, String, Vec<(String, String)>);

pub(crate) fn template(gguf: &Gguf) -> Result<Option<GgufTemplate>, TextError> {
    let Some(text) = gguf.str("tokenizer.chat_template")? else { return Ok(None) };
    let all = gguf.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
    let mut tokens = Vec::new();
    for (variable, key) in [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ] {
        if let Some(token) = gguf.u32(key)?.and_then(|id| all.get(id as usize)) {
            let token = String::from_utf8_lossy(token).into_owned();
            tokens.push((variable.to_owned(), token));
        }
    }
    Ok(Some((gguf.origin().display().to_string(), text.to_owned(), tokens)))
}
