//! What a tensor is called in each kind of checkpoint.

/// A tensor's place in the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    Embedding,
    FinalNorm,
    Head,
    AttentionNorm,
    Q,
    K,
    V,
    O,
    QNorm,
    KNorm,
    MlpNorm,
    Gate,
    Up,
    Down,
}

/// How a checkpoint spells its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Naming {
    /// Hugging Face; `prefix` is `"model."`, or empty in base models.
    Hf { prefix: &'static str },
    /// GGUF.
    Gguf,
}

impl Naming {
    /// The weight of a part; `layer` is ignored for parts outside of layers.
    pub(crate) fn weight(self, part: Part, layer: usize) -> String {
        format!("{}.weight", self.stem(part, layer))
    }

    /// The bias of a part.
    pub(crate) fn bias(self, part: Part, layer: usize) -> String {
        format!("{}.bias", self.stem(part, layer))
    }

    fn stem(self, part: Part, layer: usize) -> String {
        match self {
            Self::Hf { prefix } => match part {
                Part::Head => "lm_head".to_owned(),
                Part::Embedding => format!("{prefix}embed_tokens"),
                Part::FinalNorm => format!("{prefix}norm"),
                _ => format!("{prefix}layers.{layer}.{}", hf_layer_name(part)),
            },
            Self::Gguf => match part {
                Part::Head => "output".to_owned(),
                Part::Embedding => "token_embd".to_owned(),
                Part::FinalNorm => "output_norm".to_owned(),
                _ => format!("blk.{layer}.{}", gguf_layer_name(part)),
            },
        }
    }
}

fn hf_layer_name(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "input_layernorm",
        Part::Q => "self_attn.q_proj",
        Part::K => "self_attn.k_proj",
        Part::V => "self_attn.v_proj",
        Part::O => "self_attn.o_proj",
        Part::QNorm => "self_attn.q_norm",
        Part::KNorm => "self_attn.k_norm",
        Part::MlpNorm => "post_attention_layernorm",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
        Part::Embedding | Part::FinalNorm | Part::Head => {
            unreachable!("invariant: {part:?} is in no layer")
        }
    }
}

fn gguf_layer_name(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "attn_norm",
        Part::Q => "attn_q",
        Part::K => "attn_k",
        Part::V => "attn_v",
        Part::O => "attn_output",
        Part::QNorm => "attn_q_norm",
        Part::KNorm => "attn_k_norm",
        Part::MlpNorm => "ffn_norm",
        Part::Gate => "ffn_gate",
        Part::Up => "ffn_up",
        Part::Down => "ffn_down",
        Part::Embedding | Part::FinalNorm | Part::Head => {
            unreachable!("invariant: {part:?} is in no layer")
        }
    }
}
