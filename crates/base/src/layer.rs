//! Nouns of a layer that a model's description and the arithmetic of a device share.

/// Activation function of a gate, or of a hidden layer where there is no gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Act {
    /// `x / (1 + e⁻ˣ)`, also called swish: Llama, Mistral, Qwen.
    Silu,
    /// The tanh form of GELU: Gemma, GPT-2.
    GeluTanh,
    /// GELU by the error function: GPT-NeoX, Falcon.
    Gelu,
    /// GELU by a sigmoid of `1.702 x`.
    QuickGelu,
    /// `max(x, 0)`: OPT.
    Relu,
    /// The square of `max(x, 0)`.
    ReluSquared,
}

impl Act {
    /// Every activation, in the order of the variants.
    pub const ALL: [Self; 6] =
        [Self::Silu, Self::GeluTanh, Self::Gelu, Self::QuickGelu, Self::Relu, Self::ReluSquared];
}

/// How a router chooses the experts of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// Number of experts.
    pub n_experts: usize,
    /// Experts that a row goes to; 1 to `n_experts`.
    pub top_k: usize,
    /// Score that the router makes of a logit.
    pub score: RouterScore,
    /// Groups of experts of which only some are chosen from; `n_experts` is a multiple of them.
    pub groups: Option<ExpertGroups>,
    /// Whether weights are divided by their sum.
    pub renormalized: bool,
    /// Factor of the weights.
    pub scale: f32,
}

/// Score of an expert, by which it is ranked and weighed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RouterScore {
    /// Softmax of the logits of all experts.
    Softmax,
    /// Softmax of the logits of the chosen experts.
    SoftmaxOfChosen,
    /// Sigmoid of the logit.
    Sigmoid,
}

/// Neighbouring experts in groups of one size.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub n_groups: usize,
    /// Groups that are chosen from; together they have at least `top_k` experts.
    pub top_groups: usize,
    /// Score that ranks a group.
    pub rank: GroupRank,
}

/// Score that ranks a group of experts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GroupRank {
    /// Score of its best expert.
    Best,
    /// Sum of the scores of its two best experts.
    TwoBest,
}
