//! Text to tokens and back: tokenizers, GGUF vocabularies, incremental detokenizer, chat templates.
//!
//! ```text
//!   messages --ChatTemplate--> text --Tokenizer--> tokens --Detokenizer--> text, as it grows
//! ```
//!
//! A [`Tokenizer`] comes from a Hugging Face `tokenizer.json`, from the files that models had
//! before there was one, or from a GGUF vocabulary alone. It keeps one table with the bytes of
//! every token; the [`Detokenizer`], stop strings and log probabilities all read that table, so
//! they cannot disagree about the text of a token.
//!
//! Every file read here is hostile: sizes are checked before memory is taken, an error names the
//! file, and a chat template runs under limits of steps, bytes and work.
//!
//! **Architecture invariant:** this crate knows nothing of models, engines or requests.
#![forbid(unsafe_code)]

mod byte_table;
mod charsmap;
mod companions;
mod detokenizer;
mod error;
mod gap;
mod gguf;
mod gguf_models;
mod gguf_vocab;
mod hf;
mod older_files;
mod pair;
mod pre_tokenizer;
mod sentencepiece;
mod sentencepiece_file;
mod template;
mod tiktoken;
mod token_decoder;
mod tokenizer;
mod world;

pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use gap::Gap;
pub use gguf_vocab::{GgufVocab, TokenKind};
pub use pair::{PairFrame, PairTokens};
pub use pre_tokenizer::known_pre_tokenizers;
pub use template::{
    ChatTemplate, FolderError, Message, RenderOptions, TemplateError, TemplateSource,
    TemplateTokens,
};
pub use tokenizer::{EncodeOptions, Tokenizer};
