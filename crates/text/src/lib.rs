//! Text to tokens and back: tokenizers, GGUF vocabularies, incremental detokenizer, chat templates.
#![forbid(unsafe_code)]
