//! Any files of a folder without a `tokenizer.json` are a tokenizer whose ids stay inside its
//! vocabulary, or an error of one line; never a panic.
//!
//! An input is `kind:u8 len:u16`, then the first file of this length and a second one of the rest.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

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

/// A folder of this process in memory, where the system has such folders.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = root.join(format!("pelton-fuzz-tokenizer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
});

pub(crate) fn run(bytes: &[u8]) {
    let Some((&[kind, low, high], rest)) = bytes.split_first_chunk::<3>() else { return };
    let names = KINDS[usize::from(kind) % KINDS.len()];
    let (first, second) =
        rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()));
    for (name, bytes) in names.iter().zip([first, second]) {
        std::fs::write(FOLDER.join(name), bytes).expect("written");
    }
    match Tokenizer::from_folder(&FOLDER) {
        Ok(tokenizer) => encode(Arc::new(tokenizer)),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message:?}");
        }
    }
    names.iter().for_each(|name| std::fs::remove_file(FOLDER.join(name)).expect("removed"));
}
