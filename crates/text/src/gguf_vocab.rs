//! A vocabulary as GGUF stores it, independent of the file it came from.

use std::sync::OnceLock;

use pelton_base::{TokenId, limits};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::{AddedToken, NormalizerWrapper};

use crate::byte_table::{ByteTable, byte_level_bytes, fallback_byte};
use crate::error::TextError;
use crate::hf::HfEncoder;
use crate::pre_tokenizer::{self, PreTokenizer};
use crate::sentencepiece::{SPACE, SentencePiece};
use crate::tokenizer::{Encoder, Tokenizer};

/// What a token of a GGUF vocabulary is for (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// Structure of the prompt, not text: begin, end, roles.
    Control,
    /// Text that is always one token, never split or joined.
    UserDefined,
    /// Never produced, but may be a step on the way to a longer token.
    Unused,
    /// One byte of text that has no token, written `<0xNN>`.
    Byte,
}

impl TokenKind {
    /// From the number in the file; `None` when it has no meaning.
    pub fn from_gguf(number: i32) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The `tokenizer.ggml.*` metadata of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// The file, for errors.
    pub origin: String,
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before BPE.
    pub pre: Option<String>,
    /// The tokens, by id; not always UTF-8.
    pub tokens: Vec<Vec<u8>>,
    /// One score per token; only `llama` needs them.
    pub scores: Vec<f32>,
    /// One kind per token; empty when all are normal.
    pub kinds: Vec<TokenKind>,
    /// Merges of BPE, best first, each two tokens joined by a space.
    pub merges: Vec<Vec<u8>>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn of a chat.
    pub eot: Option<u32>,
    /// Stands for text that has no token.
    pub unknown: Option<u32>,
    /// Whether a text begins with `bos`; the vocabulary's family decides when absent.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether a space is put before every text.
    pub add_space_prefix: Option<bool>,
}

impl GgufVocab {
    /// What token `id` is for.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Normal)
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    ///
    /// Names the metadata key: an unknown model or splitting rule, arrays of different lengths,
    /// ids outside the vocabulary, merges of tokens that do not exist.
    pub fn into_tokenizer(self) -> Result<Tokenizer, TextError> {
        self.check()?;
        let (encoder, family_adds_bos, strips_leading_space) = match self.model.as_str() {
            "gpt2" => {
                let pre = self.pre_tokenizer()?;
                (Encoder::Hf(Box::new(self.byte_level(pre)?)), pre.adds_bos, false)
            }
            "llama" => {
                if self.scores.is_empty() {
                    return Err(self.wrong("tokenizer.ggml.scores", "is missing"));
                }
                let prefix = self.add_space_prefix.unwrap_or(true);
                (Encoder::SentencePiece(Box::new(SentencePiece::new(&self))), true, prefix)
            }
            other => {
                return Err(TextError::Unsupported {
                    origin: self.origin.clone(),
                    field: "tokenizer.ggml.model",
                    found: other.to_owned(),
                    known: "gpt2, llama".to_owned(),
                });
            }
        };
        let mut table = ByteTable::default();
        for (id, token) in (0u32..).zip(&self.tokens) {
            table.push(Some(&self.bytes_of(id, token)));
        }
        let is_special = (0..self.tokens.len() as u32)
            .map(|id| matches!(self.kind(id), TokenKind::Control | TokenKind::Unknown))
            .collect();
        let ids = self
            .tokens
            .iter()
            .zip(0u32..)
            .filter_map(|(token, id)| Some((std::str::from_utf8(token).ok()?.to_owned(), id)))
            .collect();
        let add_bos = self.add_bos.unwrap_or(family_adds_bos);
        Ok(Tokenizer {
            encoder,
            table,
            is_special,
            ids,
            bos: self.bos.map(TokenId),
            eos: self.eos.map(TokenId),
            eot: self.eot.map(TokenId),
            prepend_bos: Some(add_bos && self.bos.is_some()),
            append_eos: Some(self.add_eos == Some(true) && self.eos.is_some()),
            strips_leading_space,
        })
    }

    fn check(&self) -> Result<(), TextError> {
        let n_tokens = self.tokens.len();
        if n_tokens == 0 || n_tokens > limits::MODEL_VOCAB {
            let found = format!("has {n_tokens} entries; expected 1 to {}", limits::MODEL_VOCAB);
            return Err(self.wrong("tokenizer.ggml.tokens", &found));
        }
        for (key, len) in [
            ("tokenizer.ggml.scores", self.scores.len()),
            ("tokenizer.ggml.token_type", self.kinds.len()),
        ] {
            if len != 0 && len != n_tokens {
                let found = format!("has {len} entries for {n_tokens} tokens");
                return Err(self.wrong(key, &found));
            }
        }
        if let Some(id) = self.scores.iter().position(|score| score.is_nan()) {
            return Err(self.wrong("tokenizer.ggml.scores", &format!("[{id}] is not a number")));
        }
        for (key, id) in [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.eot_token_id", self.eot),
            ("tokenizer.ggml.unknown_token_id", self.unknown),
        ] {
            if let Some(id) = id.filter(|id| *id as usize >= n_tokens) {
                let found = format!("is {id}; the vocabulary has {n_tokens} tokens");
                return Err(self.wrong(key, &found));
            }
        }
        Ok(())
    }

    fn wrong(&self, key: &str, found: &str) -> TextError {
        TextError::malformed(&self.origin, format_args!("`{key}` {found}"))
    }

    fn pre_tokenizer(&self) -> Result<&'static PreTokenizer, TextError> {
        let name = self.pre.as_deref().unwrap_or("default");
        pre_tokenizer::by_name(name).ok_or_else(|| TextError::Unsupported {
            origin: self.origin.clone(),
            field: "tokenizer.ggml.pre",
            found: name.to_owned(),
            known: pre_tokenizer::known_pre_tokenizers(),
        })
    }

    fn byte_level(&self, pre: &PreTokenizer) -> Result<HfEncoder, TextError> {
        let mut vocab = tokenizers::models::bpe::Vocab::default();
        let mut added = Vec::new();
        for (id, token) in (0u32..).zip(&self.tokens) {
            let Ok(text) = std::str::from_utf8(token) else { continue };
            if text.is_empty() {
                continue;
            }
            vocab.insert(text.to_owned(), id);
            let special = match self.kind(id) {
                TokenKind::Control => true,
                TokenKind::UserDefined => false,
                _ => continue,
            };
            added.push(AddedToken::from(text, special).normalized(false));
        }
        let merges = self.merge_pairs(&vocab)?;
        let build = || -> tokenizers::Result<tokenizers::Tokenizer> {
            let bpe = BPE::builder()
                .vocab_and_merges(vocab, merges)
                .ignore_merges(pre.ignores_merges)
                .build()?;
            let mut tokenizer = tokenizers::Tokenizer::new(bpe);
            if pre.normalizes_nfc {
                tokenizer.with_normalizer(Some(NormalizerWrapper::NFC(NFC)))?;
            }
            tokenizer.with_pre_tokenizer(Some(pre.build()?));
            tokenizer.add_tokens(added)?;
            Ok(tokenizer)
        };
        let inner = build().map_err(|error| TextError::malformed(&self.origin, error))?;
        Ok(HfEncoder { inner, plain: OnceLock::new() })
    }

    fn merge_pairs(
        &self,
        vocab: &tokenizers::models::bpe::Vocab,
    ) -> Result<Vec<(String, String)>, TextError> {
        let mut pairs = Vec::with_capacity(self.merges.len());
        for (idx, merge) in self.merges.iter().enumerate() {
            // The first character of a merge is never the separator.
            let pair = std::str::from_utf8(merge).ok().and_then(|merge| {
                let first = merge.chars().next()?.len_utf8();
                let at = first + merge.get(first..)?.find(' ')?;
                Some((&merge[..at], &merge[at + 1..]))
            });
            let (left, right) = pair
                .filter(|(left, right)| {
                    vocab.contains_key(*left)
                        && vocab.contains_key(*right)
                        && vocab.contains_key(&format!("{left}{right}"))
                })
                .ok_or_else(|| {
                    let found = format!(
                        "[{idx}] `{}` is not two tokens that join to a third",
                        String::from_utf8_lossy(merge)
                    );
                    self.wrong("tokenizer.ggml.merges", &found)
                })?;
            pairs.push((left.to_owned(), right.to_owned()));
        }
        Ok(pairs)
    }

    fn bytes_of(&self, id: u32, token: &[u8]) -> Vec<u8> {
        let (kind, text) = (self.kind(id), std::str::from_utf8(token));
        match (self.model.as_str(), kind, text) {
            (_, TokenKind::Control | TokenKind::Unknown, _) | (_, _, Err(_)) => token.to_vec(),
            ("gpt2", TokenKind::UserDefined, _) => token.to_vec(),
            ("gpt2", _, Ok(text)) => byte_level_bytes(text),
            (_, TokenKind::Byte, Ok(text)) => {
                fallback_byte(text).map_or_else(|| token.to_vec(), |byte| vec![byte])
            }
            (_, _, Ok(text)) => text.replace(SPACE, " ").into_bytes(),
        }
    }
}
