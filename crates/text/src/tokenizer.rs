//! The tokenizer, whatever kind of file it comes from.

use std::collections::HashMap;
use std::path::Path;

use pelton_base::{TokenId, limits};

use crate::byte_table::ByteTable;
use crate::companions::Companions;
use crate::detokenizer::Detokenizer;
use crate::error::{TextError, read_limited};
use crate::gguf_vocab::GgufVocab;
use crate::hf::{self, HfEncoder};
use crate::older_files;
use crate::sentencepiece::SentencePiece;
use crate::world::World;

/// Text to tokens, and the bytes of every token.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) encoder: Encoder,
    pub(crate) table: ByteTable,
    /// Bytes of tokens at the start of a text, where they differ from `table` without one space.
    pub(crate) at_start: HashMap<u32, Vec<u8>>,
    pub(crate) is_special: Vec<bool>,
    pub(crate) ids: HashMap<String, u32>,
    pub(crate) bos: Option<TokenId>,
    pub(crate) eos: Option<TokenId>,
    pub(crate) eot: Option<TokenId>,
    /// Whether texts begin with BOS by the vocabulary's metadata; `None` leaves it to the encoder.
    pub(crate) prepend_bos: Option<bool>,
    pub(crate) append_eos: Option<bool>,
    /// Begins the second text of a pair, in files of GGUF that ask for it.
    pub(crate) pair_separator: Option<TokenId>,
    pub(crate) strips_leading_space: bool,
}

#[derive(Debug)]
pub(crate) enum Encoder {
    Hf(Box<HfEncoder>),
    SentencePiece(Box<SentencePiece>),
    World(World),
}

/// Spellings of the end of a turn in chat formats.
const END_OF_TURN: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<turn|>",
    HARMONY_ENDS[0],
    HARMONY_ENDS[1],
];

/// The ends of an answer in the Harmony format, where `<|end|>` only ends one of its messages.
const HARMONY_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];

/// Bytes that a token rarely exceeds on average.
const BYTES_PER_TOKEN: usize = 8;

/// How text is encoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EncodeOptions {
    /// Adds the tokens that begin and end every text, as the model's files say.
    pub add_special: bool,
    /// Reads control tokens such as `<|im_start|>` in the text as tokens, not as characters.
    ///
    /// A rendered chat template needs this. Text from a user that must not be able to forge a role
    /// does not.
    pub parse_special: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, with `tokenizer_config.json` and `special_tokens_map.json` from
    /// the same folder where they exist.
    ///
    /// # Errors
    ///
    /// Names the file when it cannot be read, is larger than
    /// [`limits::TOKENIZER_BYTES`], is malformed, or needs something that is not built.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let json = read_limited(path, limits::TOKENIZER_BYTES)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        hf::build(&json, &Companions::from_folder(folder)?, &path.display().to_string())
    }

    /// Reads the tokenizer of a model folder: its `tokenizer.json`, else its `tokenizer.model`
    /// (SentencePiece), its `vocab.json` with `merges.txt` (GPT-2), its `vocab.txt` (BERT), its
    /// `rwkv_vocab_v20230424.txt` (RWKV World), or its `tiktoken.model` (Kimi).
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::from_file`].
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        if !path.exists()
            && let Some(tokenizer) = older_files::from_folder(folder)?
        {
            return Ok(tokenizer);
        }
        Self::from_file(&path)
    }

    /// Whether a folder has the files of a tokenizer.
    pub fn is_in(folder: &Path) -> bool {
        folder.join("tokenizer.json").exists() || older_files::are_in(folder)
    }

    /// From the bytes of a `tokenizer.json` alone; BOS and EOS are not known then.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::from_file`], naming `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> Result<Self, TextError> {
        hf::build(json, &Companions::default(), "tokenizer.json")
    }

    /// From the bytes of a `tokenizer.json` and a `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::from_file`], naming the one that is wrong.
    pub fn from_bytes_with_config(json: &[u8], config: &[u8]) -> Result<Self, TextError> {
        let companions = Companions::from_config(config, "tokenizer_config.json")?;
        hf::build(json, &companions, "tokenizer.json")
    }

    /// From the metadata of a GGUF file alone.
    ///
    /// # Errors
    ///
    /// Names the file and the metadata key.
    pub fn from_gguf(gguf: &pelton_tensor::Gguf) -> Result<Self, TextError> {
        GgufVocab::from_gguf(gguf)?.into_tokenizer()
    }

    /// Tokens of `text`; special tokens in it are recognized, as Hugging Face does by default.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode_with`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, TextError> {
        self.encode_with(text, EncodeOptions { add_special, parse_special: true })
    }

    /// Tokens of `text`.
    ///
    /// # Errors
    ///
    /// When the text is longer than [`limits::PROMPT_BYTES`] or has no tokens in this vocabulary.
    pub fn encode_with(
        &self,
        text: &str,
        options: EncodeOptions,
    ) -> Result<Vec<TokenId>, TextError> {
        if text.len() > limits::PROMPT_BYTES {
            return Err(TextError::TooLarge {
                what: "the prompt".to_owned(),
                n_bytes: text.len() as u64,
                limit: limits::PROMPT_BYTES as u64,
            });
        }
        let EncodeOptions { add_special, parse_special } = options;
        // Where metadata decides about BOS, the encoder's own rule is ignored.
        let decided = self.prepend_bos.is_some();
        let mut ids = match &self.encoder {
            Encoder::Hf(encoder) => encoder.encode(text, add_special && !decided, parse_special)?,
            Encoder::SentencePiece(encoder) => encoder.encode(text, parse_special),
            Encoder::World(encoder) => encoder.encode(text, parse_special)?,
        };
        if add_special {
            if let (Some(true), Some(bos)) = (self.prepend_bos, self.bos) {
                ids.insert(0, bos);
            }
            if let (Some(true), Some(eos)) = (self.append_eos, self.eos) {
                ids.push(eos);
            }
        }
        Ok(ids)
    }

    /// Tokens of `text`, unless there are clearly more than `limit` of them.
    ///
    /// Megabytes of text take seconds to encode, so a text that is too long for a model is refused
    /// by its beginning: after a few times `limit` tokens. A text only slightly over the limit is
    /// encoded all the same; the caller counts.
    ///
    /// # Errors
    ///
    /// [`TextError::TooManyTokens`], and as [`Tokenizer::encode_with`].
    pub fn encode_at_most(
        &self,
        text: &str,
        options: EncodeOptions,
        limit: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let mut n_bytes = limit.saturating_mul(BYTES_PER_TOKEN).max(1024);
        while n_bytes < text.len() {
            let beginning = &text[..text.floor_char_boundary(n_bytes)];
            let n_tokens = self.encode_with(beginning, options)?.len();
            // The cut changes a few tokens at the end; this margin makes the result certain.
            if n_tokens > limit.saturating_add(limit / 4).saturating_add(64) {
                return Err(TextError::TooManyTokens { at_least: n_tokens - 64, limit });
            }
            n_bytes = n_bytes.saturating_mul(4);
        }
        self.encode_with(text, options)
    }

    /// The text of `tokens`: all bytes joined, invalid UTF-8 replaced by `U+FFFD`.
    ///
    /// Ids outside the vocabulary have no text. The space that some vocabularies put before every
    /// text is removed again.
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        let mut at_start = self.strips_leading_space;
        for token in tokens {
            if !(skip_special && self.is_special(*token)) {
                bytes.extend_from_slice(self.bytes_after(&mut at_start, *token));
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of a token in its place; `at_start` is true at the start of the text, and becomes
    /// false after the first token that has bytes.
    pub(crate) fn bytes_after(&self, at_start: &mut bool, token: TokenId) -> &[u8] {
        let bytes = self.token_bytes(token).unwrap_or_default();
        if !*at_start || bytes.is_empty() {
            return bytes;
        }
        *at_start = false;
        match self.at_start.get(&token.0) {
            Some(first) => first,
            None => bytes.strip_prefix(b" ").unwrap_or(bytes),
        }
    }

    /// Number of ids, gaps included: the largest id plus one.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The bytes of a token, which need not be UTF-8; `None` for an id that is no token.
    ///
    /// A leading space is part of the token here, whatever its place in the text.
    pub fn token_bytes(&self, token: TokenId) -> Option<&[u8]> {
        self.table.get(token)
    }

    /// Whether the token is structure, not text.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.is_special.get(token.0 as usize).copied().unwrap_or(false)
    }

    /// The id of a token, as its vocabulary spells it (`<|im_end|>`, `Ġthe`).
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.ids.get(token).copied().map(TokenId)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token that ends a turn of a chat, where the files name one.
    pub fn eot(&self) -> Option<TokenId> {
        self.eot
    }

    /// Every token that ends an answer: EOS, the end of turn, and the special tokens that chat
    /// formats are known to end a turn with; ascending.
    pub fn end_tokens(&self) -> Vec<TokenId> {
        let is_harmony = HARMONY_ENDS.iter().all(|text| self.token_id(text).is_some());
        let known = END_OF_TURN
            .iter()
            .filter(|text| !(is_harmony && **text == "<|end|>"))
            .filter_map(|text| self.token_id(text))
            .filter(|token| self.is_special(*token));
        let mut tokens: Vec<TokenId> = self.eos.into_iter().chain(self.eot).chain(known).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// Whether a text that begins with a space token loses that space when decoded.
    pub fn strips_leading_space(&self) -> bool {
        self.strips_leading_space
    }

    /// A detokenizer for the start of a text; see [`Detokenizer::new`].
    pub fn detokenizer(self: &std::sync::Arc<Self>, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self, skip_special)
    }
}
