//! Packed weights of channel mixers.

use super::Linear;
use crate::arch::{Act, Router};
use crate::backend::Backend;

/// Weights of one channel mixer.
#[derive(Debug)]
pub enum MlpWeights<B: Backend> {
    /// `up` is gate and up stacked: `[2 ffn, hidden]`.
    Gated(TwoLayers<B>),
    /// `up` is `[ffn, hidden]`.
    Plain(TwoLayers<B>),
    /// Experts, of which each row goes through some.
    Moe(Box<MoeWeights<B>>),
}

/// Weights of one perceptron.
#[derive(Debug)]
pub struct TwoLayers<B: Backend> {
    /// What reads the layer's input.
    pub up: Linear<B>,
    /// `[hidden, ffn]`.
    pub down: Linear<B>,
    /// Activation of the gate, or of the hidden layer where there is no gate.
    pub act: Act,
}

/// Weights of a mixture of experts.
#[derive(Debug)]
pub struct MoeWeights<B: Backend> {
    /// `[n_experts, hidden]`, in f32 and as wide as any arithmetic here.
    pub router: Linear<B>,
    /// Added to scores to rank by, `[n_experts]`.
    pub correction: Option<B::Vector>,
    /// How experts are chosen.
    pub routing: Router,
    /// Whether a weight multiplies the expert's input instead of its output.
    pub weighs_input: bool,
    /// Bound of gates from above and of ups on both sides, to which one is added then.
    pub limit: Option<f32>,
    /// Of each expert; `up` is gate and up stacked: `[2 ffn, hidden]`.
    pub experts: Vec<TwoLayers<B>>,
    /// What every row goes through beside its experts.
    pub shared: Option<SharedWeights<B>>,
}

/// Weights of what every row goes through beside its experts.
#[derive(Debug)]
pub struct SharedWeights<B: Backend> {
    /// `up` is gate and up stacked.
    pub mlp: TwoLayers<B>,
    /// `[1, hidden]` in f32, whose sigmoid multiplies the output.
    pub switch: Option<Linear<B>>,
}

impl<B: Backend> TwoLayers<B> {
    fn linears(&self) -> [&Linear<B>; 2] {
        [&self.up, &self.down]
    }
}

impl<B: Backend> MlpWeights<B> {
    /// Every projection.
    pub(crate) fn linears(&self) -> Vec<&Linear<B>> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => mlp.linears().into(),
            Self::Moe(moe) => {
                let shared = moe.shared.iter().flat_map(|shared| shared.mlp.linears());
                let experts = moe.experts.iter().flat_map(TwoLayers::linears);
                moe.alone().into_iter().chain(shared).chain(experts).collect()
            }
        }
    }

    /// The projections that read the layer's input.
    pub(crate) fn inputs(&self) -> Vec<&Linear<B>> {
        match self {
            Self::Gated(mlp) | Self::Plain(mlp) => vec![&mlp.up],
            Self::Moe(moe) => {
                let shared = moe.shared.iter().map(|shared| &shared.mlp.up);
                let experts = moe.experts.iter().map(|expert| &expert.up);
                moe.alone().into_iter().chain(shared).chain(experts).collect()
            }
        }
    }

    /// Bytes of the matrices that one row goes through: of experts, as many as are chosen.
    pub(crate) fn active_bytes(&self) -> usize {
        let bytes = |linear: &Linear<B>| linear.weights().map(B::weight_bytes).sum::<usize>();
        let all = self.linears().into_iter().map(bytes).sum::<usize>();
        let Self::Moe(moe) = self else { return all };
        let experts = moe.experts.iter().flat_map(TwoLayers::linears).map(bytes).sum::<usize>();
        all - experts + experts / moe.routing.n_experts * moe.routing.top_k
    }
}

impl<B: Backend> MoeWeights<B> {
    /// What is in no expert.
    fn alone(&self) -> Vec<&Linear<B>> {
        let switch = self.shared.iter().filter_map(|shared| shared.switch.as_ref());
        [&self.router].into_iter().chain(switch).collect()
    }
}
