//! Vocabularies of tiktoken, as Kimi and Moonlight are published.
//!
//! ```text
//! tiktoken.model           IQ== 0              base64 of the bytes of a token, and its rank
//!                          ICA= 256            ranks are ids, each from 0 on once
//! reserved                 <|reserved_token_163584|>       256 tokens after them, which
//! added_tokens_decoder     "163584": {"content": "[BOS]"}  `tokenizer_config.json` names
//! ```
//!
//! tiktoken joins the two neighbours that make the token of the lowest rank, whatever the two are.
//! BPE knows pairs: so each way to cut a token into two others becomes a merge, in the order of
//! ranks. A word that is a token is taken whole by both.
//!
//! The file does not say how text is split before that: the code beside it does, so code that is
//! not known is refused by its name.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::byte_table::char_of_byte;
use crate::companions::Companions;
use crate::error::{TextError, read_limited};
use crate::gguf_vocab::{GgufVocab, TokenKind};

const NAME: &str = "tiktoken.model";

/// Largest file, in bytes; that of Kimi has 2.8 MB.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// Longest token, in bytes: all ways to cut it are looked at.
const MAX_TOKEN_BYTES: usize = 512;

/// Most bytes of all merges. Tokens that are parts of one another in many ways could have a hundred
/// times as many as the file has bytes.
const MAX_MERGE_BYTES: usize = 128 << 20;

/// Tokens after those of the file, for special ones.
const N_RESERVED: usize = 256;

/// The class of Kimi's tokenizer.
const CLASS: &str = "TikTokenTokenizer";

/// Modules of Python in which this class splits text by the rule `kimi-k2`.
const MODULES: [&str; 2] = ["tokenization_kimi", "tokenization_moonshot"];

/// The file of a folder, if it has one.
pub(crate) fn file_in(folder: &Path) -> Option<PathBuf> {
    Some(folder.join(NAME)).filter(|path| path.exists())
}

/// Reads the file and names the rule by which text is split. Special tokens are reserved, and not
/// named yet.
///
/// # Errors
///
/// Names the line that is no token, or the code of the tokenizer that is not known.
pub(crate) fn read(path: &Path, companions: &Companions) -> Result<GgufVocab, TextError> {
    let origin = path.display().to_string();
    check_code(path, companions)?;
    let bytes = read_limited(path, MAX_FILE_BYTES)?;
    let text =
        String::from_utf8(bytes).map_err(|_| TextError::malformed(&origin, "expected UTF-8"))?;
    let ranks = ranks(&text).map_err(|reason| TextError::malformed(&origin, reason))?;
    let merges = merges(&ranks, MAX_MERGE_BYTES).ok_or_else(|| {
        let most = MAX_MERGE_BYTES >> 20;
        TextError::malformed(
            &origin,
            format_args!("its tokens can be cut in more ways than {most} MiB hold"),
        )
    })?;
    let mut tokens: Vec<Vec<u8>> = ranks.iter().map(|token| spelled(token)).collect();
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    for id in ranks.len()..ranks.len() + N_RESERVED {
        tokens.push(format!("<|reserved_token_{id}|>").into_bytes());
        kinds.push(TokenKind::Control);
    }
    Ok(GgufVocab {
        origin,
        model: "gpt2".to_owned(),
        pre: Some("kimi-k2".to_owned()),
        merges,
        tokens,
        kinds,
        ..GgufVocab::default()
    })
}

/// Refuses a tokenizer whose code is not known: files that name none, too.
fn check_code(path: &Path, companions: &Companions) -> Result<(), TextError> {
    let auto = companions.object("auto_map").and_then(|map| match map.get("AutoTokenizer")? {
        serde_json::Value::Array(classes) => classes.first()?.as_str(),
        class => class.as_str(),
    });
    let class = companions.text("tokenizer_class");
    let origin = path.with_file_name("tokenizer_config.json").display().to_string();
    let Some(found) = auto.or(class) else {
        let reason = format!("expected `tokenizer_class` {CLASS}: {NAME} needs a rule for splits");
        return Err(TextError::malformed(&origin, reason));
    };
    let (field, is_known) = match auto {
        // A class of another repository comes as `owner/name--module.class`.
        Some(auto) => {
            let local = auto.rsplit("--").next().unwrap_or(auto);
            let is_known = local.split('.').next().is_some_and(|module| MODULES.contains(&module));
            ("auto_map.AutoTokenizer", is_known)
        }
        None => ("tokenizer_class", class == Some(CLASS)),
    };
    if is_known {
        return Ok(());
    }
    Err(TextError::Unsupported {
        origin,
        field,
        found: found.chars().take(80).collect(),
        known: format!("{CLASS} of {} beside {NAME}, or a `tokenizer.json`", MODULES.join(" and ")),
    })
}

/// The bytes of each token, by rank.
fn ranks(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let n_tokens = lines().count();
    if n_tokens == 0 {
        return Err("there is no token in it".to_owned());
    }
    let mut tokens: Vec<Option<Vec<u8>>> = vec![None; n_tokens];
    let mut seen = HashSet::new();
    for (i, line) in lines() {
        let wrong = |why: &str| {
            let line: String = line.chars().take(80).collect();
            format!("line {}: `{line}` {why}", i + 1)
        };
        let pair = line.split_once(' ').and_then(|(token, rank)| {
            let token = STANDARD.decode(token).ok().filter(|token| !token.is_empty())?;
            Some((token, rank.trim().parse::<usize>().ok()?))
        });
        let (token, rank) = pair.ok_or_else(|| wrong("is no token in base64 with its rank"))?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(wrong(&format!("has more than {MAX_TOKEN_BYTES} bytes")));
        }
        if !seen.insert(token.clone()) {
            return Err(wrong("is a token that has another rank already"));
        }
        match tokens.get_mut(rank) {
            Some(place @ None) => *place = Some(token),
            _ => {
                let last = n_tokens - 1;
                return Err(wrong(&format!(
                    "has a rank that is not one of 0 to {last}, each once"
                )));
            }
        }
    }
    Ok(tokens.into_iter().flatten().collect())
}

/// The merges of a vocabulary, best first: of one token, in the order of the ranks of its parts.
/// `None` where they take more than `max_bytes`.
fn merges(tokens: &[Vec<u8>], max_bytes: usize) -> Option<Vec<Vec<u8>>> {
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let (mut merges, mut n_bytes) = (Vec::new(), 0);
    let mut cuts = Vec::new();
    for token in tokens {
        cuts.clear();
        for at in 1..token.len() {
            let (left, right) = token.split_at(at);
            if let (Some(&left), Some(&right)) = (ranks.get(left), ranks.get(right)) {
                cuts.push((left, right));
            }
        }
        cuts.sort_unstable();
        for &(left, right) in &cuts {
            let mut merge = spelled(&tokens[left]);
            merge.push(b' ');
            merge.extend(spelled(&tokens[right]));
            n_bytes += merge.len() + size_of::<Vec<u8>>();
            if n_bytes > max_bytes {
                return None;
            }
            merges.push(merge);
        }
    }
    Some(merges)
}

/// A token in the characters of a byte-level vocabulary.
fn spelled(token: &[u8]) -> Vec<u8> {
    token.iter().map(|&byte| char_of_byte(byte)).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cut_into_two_tokens_is_a_merge_in_the_order_of_ranks() {
        let tokens = ["a", "b", "ab", "aa", "aab", "xy"].map(|token| token.as_bytes().to_vec());
        let merges: Vec<String> = merges(&tokens, MAX_MERGE_BYTES)
            .expect("few")
            .into_iter()
            .map(|merge| String::from_utf8(merge).expect("text"))
            .collect();
        assert_eq!(merges, ["a b", "a a", "a ab", "aa b"]);
    }

    #[test]
    fn merges_take_no_more_memory_than_was_allowed() {
        let tokens: Vec<Vec<u8>> = (1..=100).map(|n| vec![b'a'; n]).collect();
        let all = merges(&tokens, MAX_MERGE_BYTES).expect("few");
        // Each token can be cut everywhere.
        assert_eq!(all.len(), (0..100).sum::<usize>());
        let n_bytes: usize = all.iter().map(|merge| merge.len() + size_of::<Vec<u8>>()).sum();
        assert!(merges(&tokens, n_bytes).is_some());
        assert_eq!(merges(&tokens, n_bytes - 1), None);
    }
}
