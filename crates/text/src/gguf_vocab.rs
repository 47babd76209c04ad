//! A vocabulary as GGUF stores it, independent of the file it came from.

use std::borrow::Cow;

use pelton_base::{TokenId, limits};

use crate::byte_table::{ByteTable, byte_level_bytes, fallback_byte};
use crate::error::TextError;
use crate::gguf_models;
use crate::sentencepiece::{SPACE, SentencePiece};
use crate::token_decoder::TokenDecoder;
use crate::tokenizer::{Encoder, Tokenizer};
use crate::world::{World, unescaped};

/// Kind of a token in a GGUF vocabulary (`tokenizer.ggml.token_type`).
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
    /// The kinds in the order of the numbers by which files call them, from 1 on.
    const ALL: [Self; 6] =
        [Self::Normal, Self::Unknown, Self::Control, Self::UserDefined, Self::Unused, Self::Byte];

    /// From the number in the file; `None` when it has no meaning.
    pub fn from_gguf(number: i32) -> Option<Self> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(place).copied()
    }

    /// The number in files.
    pub(crate) fn to_gguf(self) -> i32 {
        Self::ALL.into_iter().zip(1..).find(|(kind, _)| *kind == self).map_or(0, |(_, n)| n)
    }
}

/// The `tokenizer.ggml.*` metadata of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// The file, for errors.
    pub origin: String,
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE), `t5`
    /// (SentencePiece unigram), `bert` (WordPiece), `gemma4` (BPE over characters) or `rwkv` (the
    /// longest token of bytes).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before BPE.
    pub pre: Option<String>,
    /// The tokens, by id; not always UTF-8.
    pub tokens: Vec<Vec<u8>>,
    /// One score per token; only `llama` and `t5` need them.
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
    /// Begins a text of a `bert` vocabulary (`[CLS]`), where `bos` is absent.
    pub class: Option<u32>,
    /// Ends a text of a `bert` vocabulary (`[SEP]`).
    pub separator: Option<u32>,
    /// Whether a text begins with `bos`; the vocabulary's family decides when absent.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`, likewise.
    pub add_eos: Option<bool>,
    /// Whether a text of a `bert` vocabulary ends with its separator; yes when absent.
    pub add_separator: Option<bool>,
    /// Whether a space is put before every text.
    pub add_space_prefix: Option<bool>,
    /// Whether spaces at the ends of a text are removed, and runs of spaces become one; where the
    /// file does not say, `t5` does so and `llama` does not.
    pub remove_extra_whitespaces: Option<bool>,
    /// SentencePiece's table of character replacements; empty when there is none.
    pub precompiled_charsmap: Vec<u8>,
    /// Whether `bert` text becomes lower case; yes when absent.
    pub lowercase: Option<bool>,
    /// Whether `bert` text loses its accents; as `lowercase` when absent.
    pub strip_accents: Option<bool>,
}

/// Spelling of the tokens of a family, and its defaults where the file does not say.
pub(crate) struct Family {
    pub(crate) encoder: Encoder,
    pub(crate) adds_bos: bool,
    pub(crate) adds_eos: bool,
    pub(crate) strips_leading_space: bool,
    /// The decoder that gives the text of a token, where this file has none.
    pub(crate) decoder: Option<TokenDecoder>,
}

impl GgufVocab {
    /// Kind of token `id`.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Normal)
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    ///
    /// Names the metadata key: an unknown model or splitting rule, arrays of different lengths,
    /// ids outside the vocabulary, merges of tokens that do not exist.
    pub fn into_tokenizer(mut self) -> Result<Tokenizer, TextError> {
        self.check()?;
        self.drop_padding();
        if self.model == "bert" {
            self.name_bert_ends();
        }
        let family = self.family()?;
        let mut table = ByteTable::default();
        let mut at_start = std::collections::HashMap::new();
        let mut ids = std::collections::HashMap::with_capacity(self.tokens.len());
        for (id, token) in (0u32..).zip(&self.tokens) {
            let text = std::str::from_utf8(token).map(|text| self.spelling(id, text));
            let bytes = match (&family.decoder, &text) {
                (Some(decoder), Ok(text)) => decoder.bytes_of(text),
                _ => self.bytes_of(id, token),
            };
            table.push(Some(&bytes));
            let Ok(text) = text else { continue };
            let first = family.decoder.as_ref().and_then(|d| d.at_start(&text, &bytes));
            at_start.extend(first.map(|first| (id, first)));
            ids.insert(text.into_owned(), id);
        }
        let is_special = (0..self.tokens.len() as u32)
            .map(|id| matches!(self.kind(id), TokenKind::Control | TokenKind::Unknown))
            .collect();
        let add_bos = self.add_bos.unwrap_or(family.adds_bos);
        let add_eos = self.add_eos.unwrap_or(family.adds_eos);
        Ok(Tokenizer {
            encoder: family.encoder,
            table,
            at_start,
            is_special,
            ids,
            bos: self.bos.map(TokenId),
            eos: self.eos.map(TokenId),
            eot: self.eot.map(TokenId),
            prepend_bos: Some(add_bos && self.bos.is_some()),
            append_eos: Some(add_eos && self.eos.is_some()),
            pair_separator: self.pair_separator().map(TokenId),
            strips_leading_space: family.strips_leading_space,
        })
    }

    /// The token that begins the second text of a pair, after the end of the first.
    fn pair_separator(&self) -> Option<u32> {
        self.separator.filter(|_| self.model != "bert" && self.add_separator == Some(true))
    }

    fn family(&self) -> Result<Family, TextError> {
        match self.model.as_str() {
            "gpt2" => gguf_models::byte_level(self),
            "gemma4" => gguf_models::character_bpe(self),
            "t5" => gguf_models::unigram(self),
            "bert" => gguf_models::word_piece(self),
            "llama" => {
                if self.scores.is_empty() {
                    return Err(self.wrong("tokenizer.ggml.scores", "is missing"));
                }
                let encoder = SentencePiece::new(self)
                    .map_err(|r| self.wrong("tokenizer.ggml.precompiled_charsmap", &r))?;
                Ok(Family {
                    encoder: Encoder::SentencePiece(Box::new(encoder)),
                    adds_bos: true,
                    adds_eos: false,
                    strips_leading_space: self.add_space_prefix.unwrap_or(true),
                    decoder: None,
                })
            }
            "rwkv" => Ok(Family {
                encoder: Encoder::World(World::new(self)?),
                adds_bos: false,
                adds_eos: false,
                strips_leading_space: false,
                decoder: None,
            }),
            "none" | "no_vocab" => {
                let found = "says that the file has no vocabulary; put the `tokenizer.json` of the \
                             model into a folder with it";
                Err(self.wrong("tokenizer.ggml.model", found))
            }
            other => Err(TextError::Unsupported {
                origin: self.origin.clone(),
                field: "tokenizer.ggml.model",
                found: other.chars().take(80).collect(),
                known: "gpt2, llama, t5, bert, gemma4, rwkv".to_owned(),
            }),
        }
    }

    /// Removes the tokens at the end that only fill the vocabulary up to the model's embeddings:
    /// converters write the unused token `[PADn]` for each id `n` that the original tokenizer
    /// lacks. They are never sampled, as in the folder that the file was made from.
    fn drop_padding(&mut self) {
        let named = [self.bos, self.eos, self.eot, self.unknown, self.class, self.separator];
        let is_padding = |id: usize| {
            self.kinds.get(id) == Some(&TokenKind::Unused)
                && self.tokens[id] == format!("[PAD{id}]").as_bytes()
                && !named.iter().flatten().any(|&named| named as usize == id)
        };
        let n_padding = (1..self.tokens.len()).rev().take_while(|&id| is_padding(id)).count();
        let n_tokens = self.tokens.len() - n_padding;
        self.tokens.truncate(n_tokens);
        self.kinds.truncate(n_tokens);
        self.scores.truncate(n_tokens);
    }

    /// A `bert` file names its ends as class and separator, or not at all.
    fn name_bert_ends(&mut self) {
        let find = |text: &str| {
            let id = self.tokens.iter().position(|token| token == text.as_bytes())?;
            u32::try_from(id).ok()
        };
        self.bos = self.class.or(self.bos).or_else(|| find("[CLS]"));
        self.eos = self.separator.or(self.eos).or_else(|| find("[SEP]"));
        self.add_eos = self.add_separator.or(Some(true));
    }

    /// The token as its own family spells it: GGUF writes the words of `bert` as `▁word` and their
    /// continuations bare, where the vocabulary has `word` and `##continuation`.
    pub(crate) fn spelling<'t>(&self, id: u32, token: &'t str) -> Cow<'t, str> {
        let is_marker = || token.starts_with('[') && token.ends_with(']');
        if self.model != "bert" || self.kind(id) == TokenKind::Control || is_marker() {
            return Cow::Borrowed(token);
        }
        match token.strip_prefix(SPACE) {
            Some(word) => Cow::Borrowed(word),
            None => Cow::Owned(format!("##{token}")),
        }
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
        if let Some(id) = self.scores.iter().position(|score| !score.is_finite()) {
            let found = format!("[{id}] is {}; expected a finite number", self.scores[id]);
            return Err(self.wrong("tokenizer.ggml.scores", &found));
        }
        for (key, id) in [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.eot_token_id", self.eot),
            ("tokenizer.ggml.unknown_token_id", self.unknown),
            ("tokenizer.ggml.cls_token_id", self.class),
            ("tokenizer.ggml.seperator_token_id", self.separator),
        ] {
            if let Some(id) = id.filter(|id| *id as usize >= n_tokens) {
                let found = format!("is {id}; the vocabulary has {n_tokens} tokens");
                return Err(self.wrong(key, &found));
            }
        }
        Ok(())
    }

    pub(crate) fn wrong(&self, key: &str, found: &str) -> TextError {
        TextError::malformed(&self.origin, format_args!("`{key}` {found}"))
    }

    fn bytes_of(&self, id: u32, token: &[u8]) -> Vec<u8> {
        let (kind, text) = (self.kind(id), std::str::from_utf8(token));
        match (self.model.as_str(), kind, text) {
            (_, TokenKind::Control | TokenKind::Unknown, _) => token.to_vec(),
            ("rwkv", ..) => unescaped(token),
            (_, _, Err(_)) => token.to_vec(),
            ("gpt2", TokenKind::UserDefined, _) => token.to_vec(),
            ("gpt2", _, Ok(text)) => byte_level_bytes(text),
            (_, TokenKind::Byte, Ok(text)) => {
                fallback_byte(text).map_or_else(|| token.to_vec(), |byte| vec![byte])
            }
            (_, _, Ok(text)) => text.replace(SPACE, " ").into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_at_the_end_of_a_vocabulary_is_no_part_of_the_tokenizer() {
        let tokens: Vec<&str> = "a b [PAD2] c [PAD4] [PAD5] [PAD6]".split(' ').collect();
        let mut kinds = vec![TokenKind::Unused; tokens.len()];
        kinds[..2].fill(TokenKind::Normal);
        let vocab = GgufVocab {
            model: "gpt2".to_owned(),
            tokens: tokens.iter().map(|token| token.as_bytes().to_vec()).collect(),
            scores: vec![0.0; tokens.len()],
            kinds,
            ..GgufVocab::default()
        };
        let size = |change: fn(&mut GgufVocab)| {
            let mut vocab = vocab.clone();
            change(&mut vocab);
            vocab.into_tokenizer().expect("a vocabulary").vocab_size()
        };
        assert_eq!(size(|_| ()), 4);
        assert_eq!(size(|vocab| vocab.eos = Some(5)), 6, "a token with a role stays");
        assert_eq!(size(|vocab| vocab.kinds[6] = TokenKind::Normal), 7);
        assert_eq!(size(|vocab| vocab.tokens[6] = b"[PAD5]".to_vec()), 7, "another token's name");
        assert_eq!(size(|vocab| vocab.kinds.clear()), 7, "all are normal");
    }

    #[test]
    fn a_vocabulary_has_a_token_and_no_more_than_the_limit() {
        let of =
            |n_tokens| GgufVocab { tokens: vec![Vec::new(); n_tokens], ..GgufVocab::default() };
        assert!(of(0).check().is_err());
        assert!(of(1).check().is_ok());
        assert!(of(limits::MODEL_VOCAB).check().is_ok());
        assert!(of(limits::MODEL_VOCAB + 1).check().is_err());
    }

    #[test]
    fn the_tokens_of_bert_are_spelled_as_its_own_files_spell_them() {
        let tokens = ["[PAD]", "[UNK]", "▁a", "b", "▁[", "[", "]", "[x", "x]", "<s>"];
        let mut kinds = vec![TokenKind::Normal; tokens.len()];
        kinds[9] = TokenKind::Control;
        let vocab = GgufVocab {
            model: "bert".to_owned(),
            tokens: tokens.iter().map(|token| token.as_bytes().to_vec()).collect(),
            kinds,
            ..GgufVocab::default()
        };
        let spelled: Vec<_> = (0..).zip(tokens).map(|(id, t)| vocab.spelling(id, t)).collect();
        let expected = ["[PAD]", "[UNK]", "a", "##b", "[", "##[", "##]", "##[x", "##x]", "<s>"];
        assert_eq!(spelled, expected);
        let other = GgufVocab { model: "llama".to_owned(), ..vocab };
        assert_eq!((other.spelling(2, "▁a"), other.spelling(3, "b")), ("▁a".into(), "b".into()));
    }
}
