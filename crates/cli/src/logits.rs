//! `pelton logits`: the logits of a model, before any token is chosen.
//!
//! The decoder runs here without engine and scheduler, so that another implementation can be
//! compared with the arithmetic alone.

use std::io::Write;

use pelton_base::TokenId;
use pelton_base::limits::BLOCK_TOKENS;
use pelton_model::{BlockTables, EncoderSpec, ForwardInput, ForwardSequence, Lane};
use serde::Serialize;

use crate::args::LogitsArgs;
use crate::failure::{Failure, Result};
use crate::model;

/// Rows computed at once: bounds the memory of the logits, changes no bit of them.
const CHUNK_TOKENS: usize = 64;

/// One line of output.
#[derive(Debug, PartialEq, Serialize)]
struct Line {
    position: usize,
    /// Token ids and logits, largest first, lowest id first among equals.
    top: Vec<(u32, f32)>,
    mean: f64,
    std: f64,
}

/// Runs the command.
pub(crate) fn logits(args: &LogitsArgs) -> Result<()> {
    let tokens = args.tokens();
    if tokens.is_empty() {
        return Err(Failure::new("`--tokens` is empty: expected at least one id"));
    }
    let chosen = args.model.chosen();
    let reference = model::reference(Some(&chosen.model))?;
    let files = model::open(&reference, chosen.llm.quantize)?;
    model::expect_generates(&reference, &files)?;
    let spec = files.spec()?;
    check_tokens(tokens, spec.vocab_size)?;
    let context = chosen.llm.max_context.unwrap_or(spec.max_context);
    if tokens.len() > context {
        let n = tokens.len();
        return Err(Failure::new(format!(
            "`--tokens` has {n} ids: expected at most the context of {context} tokens"
        )));
    }
    let source = spec.encoder.as_ref().map(|encoder| Source::new(tokens, encoder)).transpose()?;
    let tokens = source.as_ref().map_or(tokens, |source| source.sequence.as_slice());
    let mut decoder = model::load_decoder(&chosen.runtime()?, &files, &chosen.llm)?;
    let n_blocks = tokens.len().div_ceil(BLOCK_TOKENS);
    let mut kv = decoder
        .try_new_kv(n_blocks, BLOCK_TOKENS)
        .map_err(|error| Failure::internal(format!("no memory for keys and values: {error}")))?;
    let block_table: Vec<u32> = (0..n_blocks as u32).collect();
    // Chunks of a text follow each other; what an encoder reads is one chunk with the rows after it.
    let chunk_tokens = if source.is_some() { tokens.len() } else { CHUNK_TOKENS };
    let own_start = source.as_ref().map_or(0, |source| source.own_start);
    let mut logits = Vec::new();
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    for (chunk_idx, chunk) in tokens.chunks(chunk_tokens).enumerate() {
        let first_position = chunk_idx * chunk_tokens;
        let is_last = first_position + chunk.len() == tokens.len();
        let rows: Vec<usize> = match (args.all, is_last) {
            (true, _) => (own_start..chunk.len()).collect(),
            (false, true) => vec![chunk.len() - 1],
            (false, false) => Vec::new(),
        };
        let sequence = ForwardSequence {
            rows: 0..chunk.len(),
            n_source: source.as_ref().map_or(0, |source| source.n_tokens),
            first_position,
            block_tables: BlockTables::one(&block_table),
            lane: spec.is_recurrent().then(|| Lane::at(0, first_position)),
            tree: None,
        };
        let input =
            ForwardInput { tokens: chunk, sequences: &[sequence], logits_rows: rows.as_slice() };
        decoder.forward(&mut kv, &input, &mut logits);
        for (row, values) in rows.iter().zip(logits.chunks_exact(spec.vocab_size)) {
            let line = Line::new(first_position + row - own_start, values, args.top);
            serde_json::to_writer(&mut stdout, &line)
                .map_err(std::io::Error::from)
                .and_then(|()| stdout.write_all(b"\n"))
                .map_err(|error| Failure::stdout(&error))?;
        }
    }
    stdout.flush().map_err(|error| Failure::stdout(&error))
}

/// A sequence of a model with an encoder: the tokens given are those that the encoder reads, and the rows
/// are those of the tokens that the decoder begins with.
struct Source {
    n_tokens: usize,
    own_start: usize,
    sequence: Vec<TokenId>,
}

impl Source {
    fn new(tokens: &[TokenId], encoder: &EncoderSpec) -> Result<Self> {
        let (n_tokens, most) = (tokens.len(), encoder.max_source);
        if n_tokens > most {
            return Err(Failure::new(format!(
                "`--tokens` has {n_tokens} ids: expected at most {most}, the longest source"
            )));
        }
        let own_start = n_tokens.next_multiple_of(BLOCK_TOKENS);
        let mut sequence = tokens.to_vec();
        sequence.resize(own_start, TokenId(0));
        sequence.extend_from_slice(&encoder.first_tokens);
        Ok(Self { n_tokens, own_start, sequence })
    }
}

impl Line {
    fn new(position: usize, logits: &[f32], n_top: usize) -> Self {
        let n = logits.len() as f64;
        let mean = logits.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = logits.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        order.truncate(n_top);
        let top = order.into_iter().map(|id| (id, logits[id as usize])).collect();
        Self { position, top, mean, std: variance.sqrt() }
    }
}

fn check_tokens(tokens: &[TokenId], vocab_size: usize) -> Result<()> {
    match tokens.iter().find(|token| token.0 as usize >= vocab_size) {
        None => Ok(()),
        Some(token) => Err(Failure::new(format!(
            "`--tokens`: {token} is no token of this model: expected ids below {vocab_size}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logits_come_first_and_the_lowest_id_among_equals() {
        let line = Line::new(3, &[1.0, 5.0, -2.0, 5.0, 1.0], 3);
        assert_eq!(line.top, [(1, 5.0), (3, 5.0), (0, 1.0)]);
        assert_eq!((line.position, line.mean), (3, 2.0));
        // Deviations -1, 3, -4, 3, -1: the mean of the squares is 36 / 5.
        assert!((line.std - 7.2_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn asking_for_more_than_the_vocabulary_gives_the_vocabulary() {
        assert_eq!(Line::new(0, &[0.5, 1.5], 20).top.len(), 2);
        assert_eq!(Line::new(0, &[0.5, 1.5], 0).top.len(), 0);
    }

    #[test]
    fn a_line_is_the_documented_json() {
        let json = serde_json::to_string(&Line::new(0, &[1.0, 3.0], 1)).expect("serializes");
        assert_eq!(json, r#"{"position":0,"top":[[1,3.0]],"mean":2.0,"std":1.0}"#);
    }

    #[test]
    fn a_token_beyond_the_vocabulary_is_named() {
        let failure = check_tokens(&[TokenId(3), TokenId(4)], 4).expect_err("out of range");
        assert!(failure.line().expect("a line").contains("4 is no token of this model"));
        assert!(check_tokens(&[TokenId(3)], 4).is_ok());
    }
}
