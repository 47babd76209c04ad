//! Encoders: models in which a token sees the whole text, and of which vectors are wanted.
//!
//! They are data like decoders and run by the same code. Their specs differ from those of decoders:
//! attention that is not causal, norms after each addition (`Wiring::NORMED`), a table of token
//! types, no head ([`Ends`](super::Ends)).

mod bert;
mod distilbert;
mod modernbert;
mod nomic_bert;
mod roberta;

use super::{Arch, ArchSpec, Ends, LearnedPositions, NormKind, Wiring, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

/// Every supported encoder. Conformance tests iterate over this table.
pub static ENCODERS: &[Arch] =
    &[bert::ARCH, distilbert::ARCH, modernbert::ARCH, nomic_bert::ARCH, roberta::ARCH];

/// Most rows that a table of token types may have.
const MOST_TOKEN_TYPES: usize = 1 << 16;

/// The spec that BERT and its relatives share: layer norms after each addition, an embedding norm,
/// biases, and no rotation.
fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("is_decoder", false)?;
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.embedding_norm = true;
    spec.tied_embeddings = true;
    spec.ends = Ends::BERT;
    spec.set_plain_mlp(cfg, true);
    for layer in &mut spec.layers {
        layer.wiring = Wiring::NORMED;
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias, gqa.is_causal) = (true, true, false);
    }
    Ok(spec)
}

/// Learned positions, of which a text uses those from `first_row` on.
fn set_positions(spec: &mut ArchSpec, cfg: &HfConfig, first_row: usize) -> Result<(), ConfigError> {
    let kind = cfg.field("position_embedding_type");
    if !matches!(kind.text()?, None | Some("absolute")) {
        return Err(kind.error("\"absolute\", all that is supported"));
    }
    let n_rows = cfg.max_position_embeddings;
    spec.max_context = n_rows.saturating_sub(first_row);
    if spec.max_context == 0 {
        let field = cfg.field("max_position_embeddings");
        return Err(field.error(format!("more than {first_row}, the first that a text uses")));
    }
    spec.ropes.clear();
    spec.positions = Some(LearnedPositions { n_rows, first_row });
    for layer in &mut spec.layers {
        layer.gqa_mut().rope = None;
    }
    Ok(())
}

/// The number of kinds of tokens.
fn n_token_types(cfg: &HfConfig) -> Result<usize, ConfigError> {
    cfg.field("type_vocab_size").integer(0, MOST_TOKEN_TYPES)
}
