//! `tokenizer.model`: SentencePiece's own file, read without SentencePiece.
//!
//! ```text
//!   ModelProto:     1 pieces (many)          2 trainer_spec    3 normalizer_spec
//!                   5 denormalizer_spec
//!   piece:          1 text    2 score, f32   3 kind: 1 normal, 2 unknown, 3 control,
//!                                              4 user defined, 5 unused, 6 byte
//!   trainer_spec:   3 model_type: 1 unigram, 2 BPE, 3 word, 4 char
//!                   24 whitespace is a suffix   40 .. 42 ids of unknown, BOS, EOS
//!   normalizer:     2 table   3 dummy prefix   4 remove extra spaces   5 escape spaces
//! ```
//! A protocol buffer is a list of (field number, wire type, value); fields that are not listed here
//! say nothing about encoding and are skipped. The kinds are GGUF's numbers, so the pieces become a
//! [`GgufVocab`] and take the same way as a file of that format.

use pelton_base::limits;

use crate::error::TextError;
use crate::gguf_vocab::{GgufVocab, TokenKind};

/// Reads the model; `origin` names the file in errors.
pub(crate) fn read(bytes: &[u8], origin: &str) -> Result<GgufVocab, TextError> {
    let malformed = |reason: String| TextError::malformed(origin, reason);
    let mut vocab = GgufVocab {
        origin: origin.to_owned(),
        add_space_prefix: Some(true),
        remove_extra_whitespaces: Some(true),
        ..GgufVocab::default()
    };
    let mut trainer = Trainer { model_type: 1, unknown: 0, bos: 1, eos: 2 };
    for field in fields(bytes) {
        match field.map_err(malformed)? {
            (1, Wire::Bytes(piece)) => {
                let idx = vocab.tokens.len();
                if idx >= limits::MODEL_VOCAB {
                    let reason = format!("has more than {} pieces", limits::MODEL_VOCAB);
                    return Err(malformed(reason));
                }
                add_piece(&mut vocab, piece)
                    .map_err(|reason| malformed(format!("`pieces`[{idx}] {reason}")))?;
            }
            (2, Wire::Bytes(spec)) => trainer
                .read(spec)
                .map_err(|reason| malformed(format!("`trainer_spec` {reason}")))?,
            (3, Wire::Bytes(spec)) => read_normalizer(&mut vocab, spec)
                .map_err(|reason| malformed(format!("`normalizer_spec` {reason}")))?,
            (5, Wire::Bytes(spec)) => {
                let has_table =
                    fields(spec).any(|f| matches!(f, Ok((2, Wire::Bytes(b))) if !b.is_empty()));
                if has_table {
                    return Err(malformed(format!("`denormalizer_spec` {UNSUPPORTED}")));
                }
            }
            _ => {}
        }
    }
    if vocab.tokens.is_empty() {
        return Err(malformed("`pieces` is empty; this is no SentencePiece model".to_owned()));
    }
    vocab.model = match trainer.model_type {
        1 => "t5".to_owned(),
        2 => "llama".to_owned(),
        other => {
            let reason = format!("`trainer_spec.model_type` is {other}, which {UNSUPPORTED}");
            return Err(malformed(reason));
        }
    };
    let id = |id: i32| u32::try_from(id).ok().filter(|id| (*id as usize) < vocab.tokens.len());
    (vocab.unknown, vocab.bos, vocab.eos) = (id(trainer.unknown), id(trainer.bos), id(trainer.eos));
    Ok(vocab)
}

/// Advice for a file that this reader does not support.
const UNSUPPORTED: &str = "is not supported; load the model with `transformers` and save it, which \
                           writes a `tokenizer.json`";

struct Trainer {
    model_type: i32,
    unknown: i32,
    bos: i32,
    eos: i32,
}

impl Trainer {
    fn read(&mut self, spec: &[u8]) -> Result<(), String> {
        for field in fields(spec) {
            match field? {
                (3, Wire::Varint(n)) => self.model_type = n as i32,
                (24, Wire::Varint(n)) if n != 0 => {
                    return Err(format!("has `treat_whitespace_as_suffix`, which {UNSUPPORTED}"));
                }
                (40, Wire::Varint(n)) => self.unknown = n as i32,
                (41, Wire::Varint(n)) => self.bos = n as i32,
                (42, Wire::Varint(n)) => self.eos = n as i32,
                _ => {}
            }
        }
        Ok(())
    }
}

fn add_piece(vocab: &mut GgufVocab, piece: &[u8]) -> Result<(), String> {
    let (mut text, mut score, mut kind) = (None, 0.0, TokenKind::Normal);
    for field in fields(piece) {
        match field? {
            (1, Wire::Bytes(bytes)) => {
                let bytes = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
                text = Some(bytes.as_bytes().to_vec());
            }
            (2, Wire::Fixed32(bits)) => score = f32::from_bits(bits),
            (3, Wire::Varint(n)) => {
                let known = i32::try_from(n).ok().and_then(TokenKind::from_gguf);
                kind = known.ok_or_else(|| format!("is of kind {n}; expected 1 to 6"))?;
            }
            _ => {}
        }
    }
    if !score.is_finite() {
        return Err(format!("has the score {score}; expected a finite number"));
    }
    vocab.tokens.push(text.ok_or_else(|| "has no text".to_owned())?);
    vocab.scores.push(score);
    vocab.kinds.push(kind);
    Ok(())
}

fn read_normalizer(vocab: &mut GgufVocab, spec: &[u8]) -> Result<(), String> {
    for field in fields(spec) {
        match field? {
            (2, Wire::Bytes(table)) => vocab.precompiled_charsmap = table.to_vec(),
            (3, Wire::Varint(n)) => vocab.add_space_prefix = Some(n != 0),
            (4, Wire::Varint(n)) => vocab.remove_extra_whitespaces = Some(n != 0),
            (5, Wire::Varint(0)) => {
                return Err(format!("does not escape whitespaces, which {UNSUPPORTED}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The value of one field.
enum Wire<'b> {
    Varint(u64),
    Fixed64,
    Bytes(&'b [u8]),
    Fixed32(u32),
}

/// The fields of a message, in order; after an error there is nothing more.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u64, Wire<'_>), String>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or_else(|| "ends in the middle of a field".to_owned()))
    })
}

fn field<'b>(rest: &mut &'b [u8]) -> Option<(u64, Wire<'b>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Wire::Varint(varint(rest)?),
        1 => take(rest, 8).map(|_| Wire::Fixed64)?,
        2 => {
            let n_bytes = varint(rest)?;
            Wire::Bytes(take(rest, n_bytes)?)
        }
        5 => Wire::Fixed32(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?)),
        // Groups were given up before SentencePiece was written.
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn take<'b>(rest: &mut &'b [u8], n_bytes: u64) -> Option<&'b [u8]> {
    let (taken, after) = rest.split_at_checked(usize::try_from(n_bytes).ok()?)?;
    *rest = after;
    Some(taken)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
