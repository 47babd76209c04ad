//! Tokenizers of model folders that have no `tokenizer.json`.
//!
//! ```text
//!   tokenizer.model               SentencePiece, as Llama 1 and 2 and T5 were published
//!   vocab.json + merges.txt       byte-level BPE: GPT-2, RoBERTa, Qwen2
//!   vocab.txt                     WordPiece: BERT
//!   rwkv_vocab_v20230424.txt      the longest token of bytes: RWKV World
//!   tiktoken.model                tiktoken: Kimi, Moonlight
//! ```
//! `tokenizer_config.json` and `added_tokens.json` complete these files: tokens beyond the
//! vocabulary, whether they are special, and whether texts get a BOS. All kinds become a
//! [`GgufVocab`], so they are read, checked and encoded as a GGUF file is.

use std::collections::HashMap;
use std::path::Path;

use pelton_base::limits;
use serde_json::Value;

use crate::companions::Companions;
use crate::error::{TextError, read_limited, read_optional};
use crate::gguf_vocab::{GgufVocab, TokenKind};
use crate::sentencepiece_file;
use crate::tiktoken;
use crate::tokenizer::Tokenizer;
use crate::world;

/// Whether a folder has a tokenizer without `tokenizer.json`, or one in a format that is refused by name.
pub(crate) fn are_in(folder: &Path) -> bool {
    let exists = |name: &&str| folder.join(name).exists();
    ["tokenizer.model", "vocab.txt", "tekken.json"].iter().any(exists)
        || ["vocab.json", "merges.txt"].iter().all(exists)
        || world::list_in(folder).is_some()
        || tiktoken::file_in(folder).is_some()
}

/// Reads the vocabulary of a folder from other files than `tokenizer.json`; `None` where there is none
/// at all.
pub(crate) fn vocabulary(folder: &Path) -> Result<Option<GgufVocab>, TextError> {
    let exists = |name: &str| folder.join(name).exists();
    let mut vocab = if exists("tokenizer.model") {
        sentencepiece(folder)?
    } else if exists("vocab.json") && exists("merges.txt") {
        byte_level(folder)?
    } else if let Some(list) = world::list_in(folder) {
        world::read_list(&list)?
    } else if let Some(file) = tiktoken::file_in(folder) {
        tiktoken::read(&file, &Companions::from_folder(folder)?)?
    } else if exists("vocab.txt") {
        word_piece(folder)?
    } else if exists("tekken.json") {
        let origin = folder.join("tekken.json").display().to_string();
        let reason = "this format is not supported; the model's repository for `transformers` has \
                      a `tokenizer.json`";
        return Err(TextError::malformed(&origin, reason));
    } else {
        return Ok(None);
    };
    let companions = Companions::from_folder(folder)?;
    add_tokens(&mut vocab, folder, &companions)?;
    let named = |field: &str| {
        let text = companions.token(field)?;
        let spelled = world::escaped(text.as_bytes());
        let is_it = |(id, token): (usize, &Vec<u8>)| match vocab.model.as_str() {
            // Control tokens are not escaped.
            "rwkv" if vocab.kinds.get(id) != Some(&TokenKind::Control) => *token == spelled,
            _ => token == text.as_bytes(),
        };
        let id = vocab.tokens.iter().enumerate().position(is_it)?;
        u32::try_from(id).ok()
    };
    vocab.bos = named("bos_token").or(vocab.bos);
    vocab.eos = named("eos_token").or(vocab.eos);
    vocab.class = named("cls_token").or(vocab.class);
    vocab.separator = named("sep_token").or(vocab.separator);
    vocab.unknown = named("unk_token").or(vocab.unknown);
    vocab.add_bos = companions.flag("add_bos_token").or(vocab.add_bos);
    vocab.add_eos = companions.flag("add_eos_token").or(vocab.add_eos);
    Ok(Some(vocab))
}

/// Reads the tokenizer of a folder without `tokenizer.json`; `None` where there is none at all.
pub(crate) fn from_folder(folder: &Path) -> Result<Option<Tokenizer>, TextError> {
    vocabulary(folder)?.map(GgufVocab::into_tokenizer).transpose()
}

fn sentencepiece(folder: &Path) -> Result<GgufVocab, TextError> {
    let path = folder.join("tokenizer.model");
    let bytes = read_limited(&path, limits::TOKENIZER_BYTES)?;
    sentencepiece_file::read(&bytes, &path.display().to_string())
}

/// GPT-2's pair of files. The class of the tokenizer says how text is split.
fn byte_level(folder: &Path) -> Result<GgufVocab, TextError> {
    let path = folder.join("vocab.json");
    let origin = path.display().to_string();
    let json = read_limited(&path, limits::TOKENIZER_BYTES)?;
    let ids: HashMap<String, u64> = serde_json::from_slice(&json)
        .map_err(|error| TextError::malformed(&origin, format_args!("expected ids: {error}")))?;
    let mut tokens = vec![None; ids.len()];
    for (token, id) in ids {
        let place = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id));
        match place {
            Some(place @ None) => *place = Some(token.into_bytes()),
            _ => {
                let n_tokens = tokens.len();
                let token: String = token.chars().take(80).collect();
                let reason = format!(
                    "`{token}` has the id {id}; expected each of 0 to {} once",
                    n_tokens - 1
                );
                return Err(TextError::malformed(&origin, reason));
            }
        }
    }
    let merges_path = folder.join("merges.txt");
    let merges = read_text(&merges_path)?;
    let class =
        Companions::from_folder(folder)?.text("tokenizer_class").unwrap_or("GPT2").to_owned();
    let pre = match class.trim_end_matches("Fast").trim_end_matches("Tokenizer") {
        "GPT2" => "gpt-2",
        "Qwen2" => "qwen2",
        "Roberta" => "roberta-bpe",
        _ => {
            return Err(TextError::Unsupported {
                origin: folder.join("tokenizer_config.json").display().to_string(),
                field: "tokenizer_class",
                found: class.chars().take(80).collect(),
                known: "GPT2Tokenizer, Qwen2Tokenizer, RobertaTokenizer without a tokenizer.json"
                    .to_owned(),
            });
        }
    };
    Ok(GgufVocab {
        origin,
        // Between two texts RoBERTa has the end of the first and a second one.
        add_separator: Some(pre == "roberta-bpe"),
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens: tokens.into_iter().flatten().collect(),
        merges: merges
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("#version"))
            .map(|line| line.as_bytes().to_vec())
            .collect(),
        ..GgufVocab::default()
    })
}

/// BERT's list of words, one a line.
fn word_piece(folder: &Path) -> Result<GgufVocab, TextError> {
    let path = folder.join("vocab.txt");
    let text = read_text(&path)?;
    let companions = Companions::from_folder(folder)?;
    if companions.flag("tokenize_chinese_chars") == Some(false) {
        let origin = folder.join("tokenizer_config.json").display().to_string();
        let reason = "`tokenize_chinese_chars` false is not supported without a `tokenizer.json`";
        return Err(TextError::malformed(&origin, reason));
    }
    let special = ["cls_token", "sep_token", "pad_token", "unk_token", "mask_token"]
        .map(|field| companions.token(field));
    let standard = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"];
    let mut vocab = GgufVocab {
        origin: path.display().to_string(),
        model: "bert".to_owned(),
        lowercase: companions.flag("do_lower_case"),
        strip_accents: companions.flag("strip_accents"),
        ..GgufVocab::default()
    };
    for line in text.lines() {
        let is_special = standard.contains(&line) || special.contains(&Some(line));
        // As in GGUF: a word follows the sign of a space, a continuation does not.
        let token = match line.strip_prefix("##") {
            _ if is_special => line.to_owned(),
            Some(rest) => rest.to_owned(),
            None => format!("▁{line}"),
        };
        vocab.tokens.push(token.into_bytes());
        vocab.kinds.push(if is_special { TokenKind::Control } else { TokenKind::Normal });
    }
    Ok(vocab)
}

/// Adds the tokens of `added_tokens.json` and of `added_tokens_decoder`.
fn add_tokens(
    vocab: &mut GgufVocab,
    folder: &Path,
    companions: &Companions,
) -> Result<(), TextError> {
    let mut added: Vec<(usize, String, bool)> = Vec::new();
    let path = folder.join("added_tokens.json");
    let origin = path.display().to_string();
    if let Some(json) = read_optional(&path, limits::TOKENIZER_BYTES)? {
        let ids: HashMap<String, u32> = serde_json::from_slice(&json).map_err(|error| {
            TextError::malformed(&origin, format_args!("expected ids: {error}"))
        })?;
        added.extend(ids.into_iter().map(|(token, id)| (id as usize, token, true)));
    }
    for (id, token) in companions.object("added_tokens_decoder").into_iter().flatten() {
        let content = token.get("content").and_then(Value::as_str);
        let (Ok(id), Some(content)) = (id.parse::<u32>(), content) else {
            let origin = folder.join("tokenizer_config.json").display().to_string();
            let id: String = id.chars().take(80).collect();
            let reason = format!("`added_tokens_decoder`[`{id}`] is no token with `content`");
            return Err(TextError::malformed(&origin, reason));
        };
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        added.push((id as usize, content.to_owned(), special));
    }
    // The entry of the later file wins where two entries have one id.
    added.sort_by_key(|(id, ..)| *id);
    if vocab.kinds.is_empty() {
        vocab.kinds = vec![TokenKind::Normal; vocab.tokens.len()];
    }
    for (id, token, special) in added {
        let kind = if special { TokenKind::Control } else { TokenKind::UserDefined };
        let n_tokens = vocab.tokens.len();
        if id > n_tokens || id >= limits::MODEL_VOCAB {
            let reason =
                format!("the added token with id {id} leaves a gap after {n_tokens} tokens");
            return Err(TextError::malformed(&vocab.origin, reason));
        }
        if id == n_tokens {
            vocab.tokens.push(Vec::new());
            vocab.kinds.push(kind);
            if !vocab.scores.is_empty() {
                vocab.scores.push(0.0);
            }
        }
        vocab.tokens[id] = match vocab.model == "rwkv" && !special {
            true => world::escaped(token.as_bytes()),
            false => token.into_bytes(),
        };
        if vocab.kinds[id] != TokenKind::Unknown {
            vocab.kinds[id] = kind;
        }
    }
    Ok(())
}

fn read_text(path: &Path) -> Result<String, TextError> {
    let bytes = read_limited(path, limits::TOKENIZER_BYTES)?;
    String::from_utf8(bytes)
        .map_err(|_| TextError::malformed(&path.display().to_string(), "expected UTF-8"))
}
