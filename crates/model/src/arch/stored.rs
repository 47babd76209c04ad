//! How the files of a family store its tensors: names, fusions, orders of rows.
//!
//! ```text
//! No        q_proj [q, k]     k_proj [kv, k]    v_proj [kv, k]
//! Stacked   | q head 0 .. q head n-1 | k head 0 .. | v head 0 .. |                      one tensor
//! Grouped   | q heads of group 0 | k 0 | v 0 | q heads of group 1 | k 1 | v 1 | ..      one tensor
//! ```
//!
//! A group is a KV head and its query heads. Packing takes apart fused matrices and puts right
//! those transposed or in pairs.

use super::ValueHeads;

/// A tensor's place in the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    Embedding,
    Positions,
    TokenTypes,
    EmbeddingNorm,
    FinalNorm,
    Head,
    AttentionNorm,
    Qkv,
    Q,
    K,
    V,
    O,
    Sinks,
    /// The biases of scores by distance, in the first layer for all of them.
    DistanceBias,
    /// Attention to the rows of an encoder.
    CrossQ,
    CrossK,
    CrossV,
    CrossO,
    /// The latent that queries are made of.
    QDown,
    QUp,
    /// The latent that keys and values are made of, and the rotated part of all keys.
    KvDown,
    /// Keys and values of each head, from the latent.
    KvUp,
    /// The same apart: keys, turned, and values.
    KUp,
    VUp,
    /// The norm of q, or of the latent that q is made of.
    QNorm,
    /// The norm of k, or of the latent that k is made of.
    KNorm,
    /// Queries, keys, values and the gate of a recurrence, or all that is projected for it.
    RecurrentIn,
    /// The gates: how much a recurrence takes in and forgets.
    RecurrentGates,
    /// The same apart: queries, keys and values.
    RecurrentQkv,
    RecurrentGate,
    /// Queries (receptances), keys and values of a recurrence in a tensor each.
    RecurrentQ,
    RecurrentK,
    RecurrentV,
    /// How much of the row before each input of a time mix takes, all in one tensor.
    Mixes,
    /// The same of one input: 0 to 5 of r, w, k, v, a and g.
    Mix(u8),
    /// The latent of in-context learning rates, and the rates from it.
    RateDown,
    RateUp,
    RateBias,
    /// The latent of how much of the first layer's values is mixed in, and that from it.
    ResidualDown,
    ResidualUp,
    ResidualBias,
    /// Factors of keys in removal keys, and of their rates in keys.
    RemovalScale,
    RateScale,
    /// Weight of a row's own value in the output of a time mix.
    Bonus,
    /// How much of the row before a channel mix takes.
    ChannelMix,
    /// The gate of a recurrence, from its latent; `RecurrentGate` is then the latent.
    RecurrentGateUp,
    RecurrentBeta,
    RecurrentDecay,
    /// Decays of a recurrence, from their latent; `RecurrentDecay` is then the latent.
    DecayUp,
    /// Taps of a convolution over time.
    Conv,
    /// The same apart: of queries, keys and values.
    ConvQ,
    ConvK,
    ConvV,
    /// Logarithms of the factors of decays, or the factors.
    Decay,
    DecayBias,
    /// Factors of the values that are added to the output of a recurrence.
    Skip,
    /// The time steps, keys and queries that the channels of a selective scan select; and their
    /// norms.
    Selection,
    StepNorm,
    KeySelectionNorm,
    QuerySelectionNorm,
    /// The time steps of all channels.
    Step,
    /// The norm of the output of a recurrence.
    GatedNorm,
    RecurrentOut,
    /// The projections around a short convolution.
    ConvIn,
    ConvOut,
    AttentionPostNorm,
    /// Vectors of tokens for each layer, and what projects embeddings to such vectors.
    LayerTable,
    LayerProjection,
    LayerProjectionNorm,
    /// The gate, the projection and the norm of a layer's own vectors.
    InputGate,
    InputOut,
    InputNorm,
    /// A number that multiplies what a layer leaves.
    LayerScale,
    /// Projections to streams and from them, their router, coefficients and factors, and the residual beside.
    StreamIn,
    StreamOut,
    StreamRouter,
    StreamRouterNorm,
    StreamPredict,
    StreamCorrect,
    StreamScale,
    ResidualLeft,
    ResidualRight,
    ResidualNorm,
    MlpNorm,
    GateUp,
    Gate,
    Up,
    Down,
    MlpPostNorm,
    /// Norms of experts and of the perceptron beside them: of what each gives, and of what experts read.
    BesidePostNorm,
    ExpertNorm,
    ExpertPostNorm,
    /// The weight of the norm that a router reads, and factors of the weights that it gives.
    RouterNorm,
    ExpertScale,
    Router,
    RouterCorrection,
    /// The projections to and from the width of experts that is not the model's.
    LatentDown,
    LatentUp,
    ExpertGateUp,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    SharedGateUp,
    SharedGate,
    SharedUp,
    SharedDown,
    /// The projection whose sigmoid multiplies the output of the shared experts.
    SharedSwitch,
}

impl Part {
    /// How much a time mix takes of the row before, for each of its inputs.
    pub(crate) const MIXES: [Self; 6] =
        [Self::Mix(0), Self::Mix(1), Self::Mix(2), Self::Mix(3), Self::Mix(4), Self::Mix(5)];

    /// Whether each layer has one.
    pub(crate) fn is_in_layer(self) -> bool {
        !matches!(
            self,
            Self::Embedding
                | Self::Positions
                | Self::TokenTypes
                | Self::EmbeddingNorm
                | Self::FinalNorm
                | Self::Head
                | Self::LayerTable
                | Self::LayerProjection
                | Self::LayerProjectionNorm
                | Self::StreamIn
                | Self::StreamOut
        )
    }
}

/// Whether q, k and v are one tensor, and in which order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fused {
    No,
    Stacked,
    Grouped,
}

/// Whether gate and up are one tensor, and in which order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GateUp {
    /// The gate first.
    Stacked,
    /// A row of the gate and a row of up by turns.
    Interleaved,
}

/// How the experts of a layer are stored: each in tensors of its own where the name has a `*`, else
/// all together in tensors `[n_experts, ..]`.
///
/// ```text
/// apart      experts.0.gate_proj [ffn, k]   experts.0.up_proj [ffn, k]   experts.1.gate_proj ..
/// stacked    | gate 0 | up 0 | gate 1 | up 1 | ..        [n_experts, 2 ffn, k]
/// transposed | g u g u .. |  k lines for each expert     [n_experts, k, 2 ffn], here interleaved
/// ```
///
/// Gate and up are one tensor where the file has one of that name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) gate_up: GateUp,
    /// Whether stacked matrices are `[in, out]`.
    pub(crate) is_transposed: bool,
}

/// Layers of a file that are two layers here, with a mixer each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves {
    /// Names of parts that the second layer does not share with the first.
    pub(crate) second: &'static [(Part, &'static str)],
    /// Begin all names of the first layer and of the second, behind the number of the file's layer.
    pub(crate) begin: [&'static str; 2],
}

/// How one kind of file stores the tensors of a family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    /// Stands before the name of every tensor except the head.
    pub(crate) prefix: &'static str,
    /// Stands between the prefix and the number of a layer.
    pub(crate) layers: &'static str,
    /// Names that only this family uses; where a part has several, a file may use any of them. A
    /// `*` stands for the number of a head or expert, each of which is then a tensor of its own.
    pub(crate) names: &'static [(Part, &'static str)],
    /// Files whose layers are two layers here, with a mixer each.
    pub(crate) halves: Option<Halves>,
    /// How the encoder's tensors are stored, in encoder-decoder models.
    pub(crate) encoder: Option<&'static Stored>,
    /// The names of all parts that are not in `names`.
    pub(crate) usual: fn(Part) -> &'static str,
    /// Whether q, k and v are one tensor; a file that stores them apart is read, too.
    pub(crate) qkv: Fused,
    /// Whether gate and up are one tensor, the gate first.
    pub(crate) is_gate_up_fused: bool,
    /// Whether the rows of q and k that are rotated together are neighbours, instead of half a
    /// rotated width apart.
    pub(crate) is_in_pairs: bool,
    /// Whether matrices of layers are `[in, out]`.
    pub(crate) is_transposed: bool,
    /// Whether latent attention stores the projections of keys (transposed) and of values in two
    /// tensors; a file that stores them in one tensor is read, too.
    pub(crate) is_kv_up_split: bool,
    /// How stacked experts lie.
    pub(crate) experts: Experts,
    /// Whether recurrences store the factors of decays, `-exp(A)`, and not their logarithms `A`.
    pub(crate) decays_are_rates: bool,
    /// The order of the value heads of recurrences.
    pub(crate) value_heads: ValueHeads,
    /// Whether the gates of a recurrence are one tensor, those of a key head together; a file that
    /// stores them apart is read, too.
    pub(crate) are_gates_fused: bool,
    /// Whether all factors of embeddings, projections and logits are multiplied into the weights.
    pub(crate) has_factors_in_weights: bool,
    /// The tensor `[1, vocab]` that is added to logits, in families that do not call it the head's bias.
    pub(crate) logit_bias: Option<&'static str>,
    /// Added to the stored weights of norms, in families that store them minus one.
    pub(crate) norm_offset: f32,
}

impl Stored {
    /// Hugging Face folders, as most families have them.
    pub(crate) const HF: Self = Self {
        prefix: "model.",
        layers: "layers",
        names: &[],
        halves: None,
        encoder: None,
        usual: hf_name,
        qkv: Fused::No,
        is_gate_up_fused: false,
        is_in_pairs: false,
        is_transposed: false,
        is_kv_up_split: false,
        experts: Experts { gate_up: GateUp::Stacked, is_transposed: false },
        decays_are_rates: false,
        value_heads: ValueHeads::Grouped,
        are_gates_fused: false,
        has_factors_in_weights: false,
        logit_bias: None,
        norm_offset: 0.0,
    };

    /// GGUF files, as most families have them.
    pub(crate) const GGUF: Self =
        Self { prefix: "", layers: "blk", usual: gguf_name, is_kv_up_split: true, ..Self::HF };

    /// The names of a part of a layer, without prefix and layer; at least one.
    pub(crate) fn names(&self, part: Part, layer: usize) -> impl Iterator<Item = &'static str> {
        let second = self.halves.filter(|halves| {
            layer % 2 == 1 && halves.second.iter().any(|(named, _)| *named == part)
        });
        let names = second.map_or(self.names, |halves| halves.second);
        let own = names.iter().filter(move |(named, _)| *named == part).map(|(_, name)| *name);
        let usual = names.iter().all(|(named, _)| *named != part);
        own.chain(usual.then(|| (self.usual)(part)))
    }
}

fn hf_name(part: Part) -> &'static str {
    match part {
        Part::Embedding => "embed_tokens",
        Part::Positions => "embed_positions",
        Part::TokenTypes => "token_type_embeddings",
        Part::EmbeddingNorm => "embed_layernorm",
        Part::FinalNorm => "norm",
        Part::Head => "lm_head",
        Part::AttentionNorm => "input_layernorm",
        Part::Qkv => "self_attn.qkv_proj",
        Part::Q => "self_attn.q_proj",
        Part::K => "self_attn.k_proj",
        Part::V => "self_attn.v_proj",
        Part::O => "self_attn.o_proj",
        Part::Sinks => "self_attn.sinks",
        Part::DistanceBias => "self_attn.relative_attention_bias",
        Part::CrossQ => "encoder_attn.q_proj",
        Part::CrossK => "encoder_attn.k_proj",
        Part::CrossV => "encoder_attn.v_proj",
        Part::CrossO => "encoder_attn.out_proj",
        Part::QDown => "self_attn.q_a_proj",
        Part::QUp => "self_attn.q_b_proj",
        Part::KvDown => "self_attn.kv_a_proj_with_mqa",
        Part::KvUp => "self_attn.kv_b_proj",
        Part::KUp => "self_attn.k_b_proj",
        Part::VUp => "self_attn.v_b_proj",
        Part::QNorm => "self_attn.q_norm",
        Part::KNorm => "self_attn.k_norm",
        Part::RecurrentIn => "linear_attn.in_proj_qkvz",
        Part::RecurrentGates => "linear_attn.in_proj_ba",
        Part::RecurrentQkv => "linear_attn.in_proj_qkv",
        Part::RecurrentGate => "linear_attn.in_proj_z",
        Part::RecurrentQ => "linear_attn.q_proj",
        Part::RecurrentK => "linear_attn.k_proj",
        Part::RecurrentV => "linear_attn.v_proj",
        Part::RecurrentGateUp => "linear_attn.g_b_proj",
        Part::Mixes => "attn.x_x",
        Part::Mix(i) => {
            ["attn.x_r", "attn.x_w", "attn.x_k", "attn.x_v", "attn.x_a", "attn.x_g"][i as usize]
        }
        Part::RateDown => "attn.a_lora.lora.0",
        Part::RateUp => "attn.a_lora.lora.2",
        Part::RateBias => "attn.a_lora.lora.2.bias",
        Part::ResidualDown => "attn.v_lora.lora.0",
        Part::ResidualUp => "attn.v_lora.lora.2",
        Part::ResidualBias => "attn.v_lora.lora.2.bias",
        Part::RemovalScale => "attn.k_k",
        Part::RateScale => "attn.k_a",
        Part::Bonus => "attn.r_k",
        Part::ChannelMix => "ffn.x_k",
        Part::RecurrentBeta => "linear_attn.in_proj_b",
        Part::RecurrentDecay => "linear_attn.in_proj_a",
        Part::DecayUp => "linear_attn.f_b_proj",
        Part::Conv => "linear_attn.conv1d",
        Part::ConvQ => "linear_attn.q_conv1d",
        Part::ConvK => "linear_attn.k_conv1d",
        Part::ConvV => "linear_attn.v_conv1d",
        Part::Decay => "linear_attn.A_log",
        Part::DecayBias => "linear_attn.dt_bias",
        Part::Skip => "linear_attn.D",
        Part::Selection => "mamba.x_proj",
        Part::StepNorm => "mamba.dt_layernorm",
        Part::KeySelectionNorm => "mamba.b_layernorm",
        Part::QuerySelectionNorm => "mamba.c_layernorm",
        Part::Step => "mamba.dt_proj",
        Part::GatedNorm => "linear_attn.norm",
        Part::RecurrentOut => "linear_attn.out_proj",
        Part::ConvIn => "conv.in_proj",
        Part::ConvOut => "conv.out_proj",
        Part::AttentionPostNorm => "post_self_attn_layernorm",
        Part::LayerTable => "embed_tokens_per_layer",
        Part::LayerProjection => "per_layer_model_projection",
        Part::LayerProjectionNorm => "per_layer_projection_norm",
        Part::InputGate => "per_layer_input_gate",
        Part::InputOut => "per_layer_projection",
        Part::InputNorm => "post_per_layer_input_norm",
        Part::LayerScale => "layer_scalar",
        Part::StreamIn => "altup_projections.*",
        Part::StreamOut => "altup_unembed_projections.*",
        Part::StreamRouter => "altup.modality_router",
        Part::StreamRouterNorm => "altup.router_norm",
        Part::StreamPredict => "altup.prediction_coefs",
        Part::StreamCorrect => "altup.correction_coefs",
        Part::StreamScale => "altup.correct_output_scale",
        Part::ResidualLeft => "laurel.linear_left",
        Part::ResidualRight => "laurel.linear_right",
        Part::ResidualNorm => "laurel.post_laurel_norm",
        Part::MlpNorm => "post_attention_layernorm",
        Part::GateUp => "mlp.gate_up_proj",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
        Part::MlpPostNorm => "post_mlp_layernorm",
        Part::BesidePostNorm => "post_feedforward_layernorm_1",
        Part::ExpertNorm => "pre_feedforward_layernorm_2",
        Part::ExpertPostNorm => "post_feedforward_layernorm_2",
        Part::RouterNorm => "router.scale",
        Part::ExpertScale => "router.per_expert_scale",
        Part::Router => "mlp.gate",
        Part::RouterCorrection => "mlp.gate.e_score_correction_bias",
        Part::LatentDown => "mlp.fc1_latent_proj",
        Part::LatentUp => "mlp.fc2_latent_proj",
        Part::ExpertGateUp => "mlp.experts.gate_up_proj",
        Part::ExpertGate => "mlp.experts.*.gate_proj",
        Part::ExpertUp => "mlp.experts.*.up_proj",
        Part::ExpertDown => "mlp.experts.*.down_proj",
        Part::SharedGateUp => "mlp.shared_experts.gate_up_proj",
        Part::SharedGate => "mlp.shared_experts.gate_proj",
        Part::SharedUp => "mlp.shared_experts.up_proj",
        Part::SharedDown => "mlp.shared_experts.down_proj",
        Part::SharedSwitch => "mlp.shared_expert_gate",
    }
}

fn gguf_name(part: Part) -> &'static str {
    match part {
        Part::Embedding => "token_embd",
        Part::Positions => "position_embd",
        Part::TokenTypes => "token_types",
        Part::EmbeddingNorm => "token_embd_norm",
        Part::FinalNorm => "output_norm",
        Part::Head => "output",
        Part::AttentionNorm => "attn_norm",
        Part::Qkv => "attn_qkv",
        Part::Q => "attn_q",
        Part::K => "attn_k",
        Part::V => "attn_v",
        Part::O => "attn_output",
        Part::Sinks => "attn_sinks",
        Part::DistanceBias => "attn_rel_b",
        Part::CrossQ => "cross_attn_q",
        Part::CrossK => "cross_attn_k",
        Part::CrossV => "cross_attn_v",
        Part::CrossO => "cross_attn_o",
        Part::QDown => "attn_q_a",
        Part::QUp => "attn_q_b",
        Part::KvDown => "attn_kv_a_mqa",
        Part::KvUp => "attn_kv_b",
        Part::KUp => "attn_k_b",
        Part::VUp => "attn_v_b",
        Part::QNorm => "attn_q_norm",
        Part::KNorm => "attn_k_norm",
        Part::RecurrentIn => "ssm_in",
        Part::RecurrentGates => "ssm_ba",
        Part::RecurrentQkv => "attn_qkv",
        Part::RecurrentGate => "attn_gate",
        Part::RecurrentQ => "attn_q",
        Part::RecurrentK => "attn_k",
        Part::RecurrentV => "attn_v",
        Part::RecurrentGateUp => "ssm_g_b",
        Part::Mixes | Part::Mix(_) => "time_mix_lerp_fused",
        Part::RateDown => "time_mix_a1",
        Part::RateUp => "time_mix_a2",
        Part::RateBias => "time_mix_a0",
        Part::ResidualDown => "time_mix_v1",
        Part::ResidualUp => "time_mix_v2",
        Part::ResidualBias => "time_mix_v0",
        Part::RemovalScale => "time_mix_k_k",
        Part::RateScale => "time_mix_k_a",
        Part::Bonus => "time_mix_r_k",
        Part::ChannelMix => "channel_mix_lerp_k",
        Part::RecurrentBeta => "ssm_beta",
        Part::RecurrentDecay => "ssm_alpha",
        Part::DecayUp => "ssm_f_b",
        Part::Conv => "ssm_conv1d",
        Part::ConvQ => "ssm_conv1d_q",
        Part::ConvK => "ssm_conv1d_k",
        Part::ConvV => "ssm_conv1d_v",
        Part::Decay => "ssm_a",
        Part::DecayBias => "ssm_dt",
        Part::Skip => "ssm_d",
        Part::Selection => "ssm_x",
        Part::StepNorm => "ssm_dt_norm",
        Part::KeySelectionNorm => "ssm_b_norm",
        Part::QuerySelectionNorm => "ssm_c_norm",
        Part::Step => "ssm_dt",
        Part::GatedNorm => "ssm_norm",
        Part::RecurrentOut => "ssm_out",
        Part::ConvIn => "shortconv.in_proj",
        Part::ConvOut => "shortconv.out_proj",
        Part::AttentionPostNorm => "post_attention_norm",
        Part::LayerTable => "per_layer_token_embd",
        Part::LayerProjection => "per_layer_model_proj",
        Part::LayerProjectionNorm => "per_layer_proj_norm",
        Part::InputGate => "inp_gate",
        Part::InputOut => "proj",
        Part::InputNorm => "post_norm",
        Part::LayerScale => "layer_output_scale",
        Part::StreamIn => "altup_proj",
        Part::StreamOut => "altup_unembd_proj",
        Part::StreamRouter => "altup_router",
        Part::StreamRouterNorm => "altup_router_norm",
        Part::StreamPredict => "altup_predict_coef",
        Part::StreamCorrect => "altup_correct_coef",
        Part::StreamScale => "altup_correct_scale",
        Part::ResidualLeft => "laurel_l",
        Part::ResidualRight => "laurel_r",
        Part::ResidualNorm => "laurel_post_norm",
        Part::MlpNorm => "ffn_norm",
        Part::GateUp | Part::Up => "ffn_up",
        Part::Gate => "ffn_gate",
        Part::Down => "ffn_down",
        Part::MlpPostNorm => "post_ffw_norm",
        Part::BesidePostNorm => "post_ffw_norm_1",
        Part::ExpertNorm => "pre_ffw_norm_2",
        Part::ExpertPostNorm => "post_ffw_norm_2",
        Part::RouterNorm => "ffn_gate_inp.scale",
        Part::ExpertScale => "ffn_down_exps.scale",
        Part::Router => "ffn_gate_inp",
        Part::RouterCorrection => "exp_probs_b",
        Part::LatentDown => "ffn_latent_down",
        Part::LatentUp => "ffn_latent_up",
        Part::ExpertGateUp => "ffn_gate_up_exps",
        Part::ExpertGate => "ffn_gate_exps",
        Part::ExpertUp => "ffn_up_exps",
        Part::ExpertDown => "ffn_down_exps",
        Part::SharedGateUp => "ffn_gate_up_shexp",
        Part::SharedGate => "ffn_gate_shexp",
        Part::SharedUp => "ffn_up_shexp",
        Part::SharedDown => "ffn_down_shexp",
        Part::SharedSwitch => "ffn_gate_inp_shexp",
    }
}
