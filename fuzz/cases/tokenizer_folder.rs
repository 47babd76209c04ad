//! Any files of a folder without a `tokenizer.json` are a tokenizer whose ids stay inside its
//! vocabulary, or an error of one line; never a panic.
//!
//! An input is `kind:u8 len:u16`, then the first file of this length and a second one of the rest.

use std::sync::Arc;

use pelton_testkit::MemoryFolder;
use pelton_text::Tokenizer;

use super::tokenizer::encode;

/// The two files of each kind.
const KINDS: [[&str; 2]; 6] = [
    ["tiktoken.model", "tokenizer_config.json"],
    ["tokenizer.model", "tokenizer_config.json"],
    ["vocab.json", "merges.txt"],
    ["vocab.txt", "tokenizer_config.json"],
    ["rwkv_vocab_v20230424.txt", "tokenizer_config.json"],
    ["tokenizer.model", "added_tokens.json"],
];

pub(crate) fn run(bytes: &[u8]) {
    let Some((&[kind, low, high], rest)) = bytes.split_first_chunk::<3>() else { return };
    let names = KINDS[usize::from(kind) % KINDS.len()];
    let (first, second) =
        rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()));
    let folder = MemoryFolder::new();
    for (name, bytes) in names.iter().zip([first, second]) {
        std::fs::write(folder.path().join(name), bytes).expect("written");
    }
    match Tokenizer::from_folder(folder.path()) {
        Ok(tokenizer) => encode(Arc::new(tokenizer)),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message:?}");
        }
    }
}
