//! The families of GGUF vocabularies that the `tokenizers` crate encodes, each put together as the
//! `tokenizer.json` of that family is.
//!
//! ```text
//!             normalizer                splits                      model        a text is
//!   gpt2      NFC, for some             by `tokenizer.ggml.pre`     BPE          bytes
//!   gemma4    space -> ▁                nothing                     BPE          characters, else bytes
//!   t5        character table           at whitespace, ▁ in front   unigram      pieces, else <unk>
//!   bert      cleaned, lower case       at spaces and punctuation   WordPiece    words, else [UNK]
//! ```
//! The crate adds no special tokens at the ends here: the metadata decides about them, and
//! [`crate::Tokenizer`] adds them.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::strip::Strip;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

use crate::charsmap::CharsMap;
use crate::error::TextError;
use crate::gguf_vocab::{Family, GgufVocab, TokenKind};
use crate::hf::{HfEncoder, Inner, built};
use crate::pre_tokenizer;
use crate::sentencepiece::SPACE;
use crate::token_decoder::TokenDecoder;
use crate::tokenizer::Encoder;

/// Longest word that WordPiece splits, in characters; a longer word is unknown.
const MAX_WORD_CHARS: usize = 100;

/// GPT-2's family: BPE over bytes.
pub(crate) fn byte_level(vocab: &GgufVocab) -> Result<Family, TextError> {
    let name = vocab.pre.as_deref().unwrap_or("default");
    let pre = pre_tokenizer::by_name(name).ok_or_else(|| TextError::Unsupported {
        origin: vocab.origin.clone(),
        field: "tokenizer.ggml.pre",
        found: name.chars().take(80).collect(),
        known: pre_tokenizer::known_pre_tokenizers(),
    })?;
    let pieces = pieces(vocab);
    let merges = merge_pairs(vocab, &pieces)?;
    let build = || -> tokenizers::Result<Inner> {
        let bpe = BPE::builder()
            .vocab_and_merges(pieces, merges)
            .ignore_merges(pre.ignores_merges)
            .build()?;
        let mut tokenizer = Inner::new(bpe.into());
        if pre.normalizes_nfc {
            tokenizer.with_normalizer(Some(NormalizerWrapper::NFC(NFC)))?;
        }
        tokenizer.with_pre_tokenizer(Some(pre.build()?));
        Ok(tokenizer)
    };
    Ok(Family {
        encoder: finish(vocab, build)?,
        adds_bos: pre.adds_bos,
        adds_eos: pre.adds_eos,
        strips_leading_space: false,
        decoder: None,
    })
}

/// Gemma 4's: BPE over characters with `▁` for a space, and bytes for what has no token.
pub(crate) fn character_bpe(vocab: &GgufVocab) -> Result<Family, TextError> {
    let pieces = pieces(vocab);
    let merges = merge_pairs(vocab, &pieces)?;
    let unknown = (0u32..).zip(&vocab.tokens).find_map(|(id, token)| {
        let is_unknown = vocab.unknown == Some(id) || vocab.kind(id) == TokenKind::Unknown;
        is_unknown.then(|| String::from_utf8(token.clone()).ok()).flatten()
    });
    let build = || -> tokenizers::Result<Inner> {
        let mut bpe =
            BPE::builder().vocab_and_merges(pieces, merges).byte_fallback(true).fuse_unk(true);
        if let Some(unknown) = unknown {
            bpe = bpe.unk_token(unknown);
        }
        let mut tokenizer = Inner::new(bpe.build()?.into());
        let spaces = Replace::new(" ", SPACE.to_string())?;
        tokenizer.with_normalizer(Some(NormalizerWrapper::Replace(spaces)))?;
        Ok(tokenizer)
    };
    Ok(Family {
        encoder: finish(vocab, build)?,
        adds_bos: true,
        adds_eos: false,
        strips_leading_space: false,
        decoder: Some(TokenDecoder::metaspace(false)),
    })
}

/// T5's family: the likeliest pieces.
pub(crate) fn unigram(vocab: &GgufVocab) -> Result<Family, TextError> {
    if vocab.scores.is_empty() {
        return Err(vocab.wrong("tokenizer.ggml.scores", "is missing"));
    }
    let unknown = vocab
        .unknown
        .map(|id| id as usize)
        .or_else(|| vocab.kinds.iter().position(|kind| *kind == TokenKind::Unknown));
    let has_bytes = vocab.kinds.contains(&TokenKind::Byte);
    let mut pieces = Vec::with_capacity(vocab.tokens.len());
    for (id, token) in vocab.tokens.iter().enumerate() {
        let text = std::str::from_utf8(token)
            .map_err(|_| vocab.wrong("tokenizer.ggml.tokens", &format!("[{id}] is not UTF-8")))?;
        pieces.push((text.to_owned(), f64::from(vocab.scores[id])));
    }
    let table = match vocab.precompiled_charsmap.as_slice() {
        [] => None,
        bytes => {
            let wrong =
                |reason: String| vocab.wrong("tokenizer.ggml.precompiled_charsmap", &reason);
            CharsMap::parse(bytes).map_err(wrong)?;
            Some(Precompiled::from(bytes).map_err(|error| wrong(error.to_string()))?)
        }
    };
    let scheme = match vocab.add_space_prefix {
        Some(false) => PrependScheme::Never,
        _ => PrependScheme::Always,
    };
    let build = || -> tokenizers::Result<Inner> {
        let mut tokenizer = Inner::new(Unigram::from(pieces, unknown, has_bytes)?.into());
        let mut steps: Vec<NormalizerWrapper> = table.into_iter().map(Into::into).collect();
        let keeps_spaces = vocab.remove_extra_whitespaces == Some(false);
        let has_prefix = scheme == PrependScheme::Always;
        let pre: PreTokenizerWrapper = if has_prefix && !keeps_spaces {
            let words = WhitespaceSplit.into();
            Sequence::new(vec![words, Metaspace::new(SPACE, scheme, true).into()]).into()
        } else {
            Metaspace::new(SPACE, scheme, false).into()
        };
        if !has_prefix && !keeps_spaces {
            // Words have no space in front, so the space must be kept where it is.
            let runs = ReplacePattern::Regex(" {2,}".to_owned());
            steps.extend([Strip::new(true, true).into(), Replace::new(runs, " ")?.into()]);
        }
        if !steps.is_empty() {
            tokenizer.with_normalizer(Some(NormalizerWrapper::from(Normalizers::new(steps))))?;
        }
        tokenizer.with_pre_tokenizer(Some(pre));
        Ok(tokenizer)
    };
    Ok(Family {
        encoder: finish(vocab, build)?,
        adds_bos: false,
        adds_eos: true,
        strips_leading_space: scheme != PrependScheme::Never,
        decoder: Some(TokenDecoder::metaspace(scheme != PrependScheme::Never)),
    })
}

/// BERT's family: the longest pieces of words.
pub(crate) fn word_piece(vocab: &GgufVocab) -> Result<Family, TextError> {
    let pieces = pieces(vocab);
    let unknown = match vocab.unknown {
        Some(id) => String::from_utf8_lossy(&vocab.tokens[id as usize]).into_owned(),
        None => "[UNK]".to_owned(),
    };
    if !pieces.contains_key(&unknown) {
        let found = format!("do not hold `{unknown}`, which stands for unknown words");
        return Err(vocab.wrong("tokenizer.ggml.tokens", &found));
    }
    let build = || -> tokenizers::Result<Inner> {
        let model = WordPiece::builder()
            .vocab(pieces)
            .unk_token(unknown)
            .max_input_chars_per_word(MAX_WORD_CHARS)
            .build()?;
        let mut tokenizer = Inner::new(model.into());
        let lowercase = vocab.lowercase.unwrap_or(true);
        let normalizer = BertNormalizer::new(true, true, vocab.strip_accents, lowercase);
        tokenizer.with_normalizer(Some(NormalizerWrapper::BertNormalizer(normalizer)))?;
        tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::from(BertPreTokenizer)));
        Ok(tokenizer)
    };
    Ok(Family {
        encoder: finish(vocab, build)?,
        adds_bos: true,
        adds_eos: true,
        strips_leading_space: true,
        decoder: Some(TokenDecoder::word_piece()),
    })
}

/// Tokens and ids, in the spelling of the family.
fn pieces(vocab: &GgufVocab) -> Vocab {
    let mut pieces = Vocab::default();
    for (id, token) in (0u32..).zip(&vocab.tokens) {
        if let Ok(text) = std::str::from_utf8(token)
            && !text.is_empty()
        {
            pieces.insert(vocab.spelling(id, text).into_owned(), id);
        }
    }
    pieces
}

/// Adds the tokens that occur in a text as they are written.
fn finish(
    vocab: &GgufVocab,
    build: impl FnOnce() -> tokenizers::Result<Inner>,
) -> Result<Encoder, TextError> {
    let added = (0u32..).zip(&vocab.tokens).filter_map(|(id, token)| {
        let special = match vocab.kind(id) {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => false,
            _ => return None,
        };
        let text = std::str::from_utf8(token).ok().filter(|text| !text.is_empty())?;
        Some(AddedToken::from(text, special).normalized(false))
    });
    let build = || -> tokenizers::Result<Inner> {
        let mut inner = build()?;
        inner.add_tokens(added.collect::<Vec<_>>())?;
        Ok(inner)
    };
    let encoder = HfEncoder::new(built(build, &vocab.origin)?, &vocab.origin)?;
    Ok(Encoder::Hf(Box::new(encoder)))
}

fn merge_pairs(vocab: &GgufVocab, pieces: &Vocab) -> Result<Vec<(String, String)>, TextError> {
    let mut pairs = Vec::with_capacity(vocab.merges.len());
    for (idx, merge) in vocab.merges.iter().enumerate() {
        // The first character of a merge is never the separator.
        let pair = std::str::from_utf8(merge).ok().and_then(|merge| {
            let first = merge.chars().next()?.len_utf8();
            let at = first + merge.get(first..)?.find(' ')?;
            Some((&merge[..at], &merge[at + 1..]))
        });
        let (left, right) = pair
            .filter(|(left, right)| {
                pieces.contains_key(*left)
                    && pieces.contains_key(*right)
                    && pieces.contains_key(&format!("{left}{right}"))
            })
            .ok_or_else(|| {
                let merge: String = String::from_utf8_lossy(merge).chars().take(80).collect();
                let found = format!("[{idx}] `{merge}` is not two tokens that join to a third");
                vocab.wrong("tokenizer.ggml.merges", &found)
            })?;
        pairs.push((left.to_owned(), right.to_owned()));
    }
    Ok(pairs)
}
