//! A plan: sizes, what fits, times and costs of one workload on one machine.

use pelton_model::{KvDtype, ModelOutline, StateDtype};
use serde::Serialize;

use crate::fit::Fit;
use crate::hardware::Hardware;
use crate::kv::KvSizes;
use crate::ranks::{RankSizes, Split};
use crate::time::{Load, Roofline, Times};
use crate::weights::{WeightSizes, Weights};

/// A workload and the machine that it is planned for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The machine; one of the ranks where there are several.
    pub hardware: &'a Hardware,
    /// Memory of one rank, in bytes.
    pub memory_bytes: u64,
    /// How the weights are stored.
    pub weights: Weights,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// How the states of recurrent layers are stored.
    pub state_dtype: StateDtype,
    /// Tokens of a block of keys and values; at least 1.
    pub block_tokens: usize,
    /// Most tokens of one sequence; at least 1.
    pub context_tokens: usize,
    /// Sequences at the same time; at least 1.
    pub batch: usize,
    /// Tokens of a prompt; at least 1.
    pub input_tokens: usize,
    /// Tokens of an answer; at least 1.
    pub output_tokens: usize,
    /// Most tokens of one step; at least 1.
    pub step_tokens: usize,
    /// Machines that run the model together; at least 1.
    pub n_ranks: usize,
    /// The way in which they share it.
    pub split: Split,
    /// Price of one machine for an hour.
    pub price_per_hour: Option<f64>,
}

/// Prices of a million tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Price of all machines for an hour.
    pub per_hour: f64,
    /// Price of a million tokens of prompts, where the machines do nothing else.
    pub per_million_input: f64,
    /// Price of a million tokens of answers, where the machines do nothing else.
    pub per_million_output: f64,
    /// Price of the workload for a million tokens of answers, their prompts included.
    pub workload_per_million_output: f64,
}

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Weights of all ranks together.
    pub weights: WeightSizes,
    /// Keys and values of all ranks together.
    #[serde(skip_serializing_if = "KvSizes::are_none")]
    pub kv: KvSizes,
    /// One rank.
    pub rank: RankSizes,
    /// Memory of one rank.
    pub fit: Fit,
    /// Times; also where the workload does not fit, as if it did. `None` where the speed of the machine
    /// is unknown.
    pub times: Option<Times>,
    /// Costs, where a price is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Plans a workload of a model.
///
/// # Panics
///
/// When a number of the request that has to be at least 1 is 0, or the model has no layer.
pub fn plan(model: &ModelOutline, request: &Request<'_>) -> Plan {
    let spec = &model.spec;
    let Request { batch, input_tokens, output_tokens, step_tokens, .. } = *request;
    assert!(
        batch.min(input_tokens).min(output_tokens).min(step_tokens).min(request.n_ranks) > 0,
        "invariant: numbers of at least 1"
    );
    let weights = WeightSizes::new(model, &request.weights, request.hardware);
    let kv = KvSizes::new(spec, request.kv_dtype, request.block_tokens, request.context_tokens)
        .with_states_in(spec, request.state_dtype);
    let rank = RankSizes::new(spec, &weights, (request.split, request.n_ranks));
    let roofline =
        Roofline { spec, weights: &weights, kv: &kv, hardware: request.hardware, ranks: &rank };
    let load = Load { batch, input_tokens, output_tokens, step_tokens };
    let times = request.hardware.has_speed().then(|| roofline.times(&load));
    let cost = request.price_per_hour.zip(times.as_ref()).map(|(price, times)| {
        let per_hour = price * request.n_ranks as f64;
        let per_million = |tokens_per_s: f64| per_hour / 3600.0 / tokens_per_s * 1e6;
        Cost {
            per_hour,
            per_million_input: per_million(times.prompt_tokens_per_s),
            per_million_output: per_million(times.decode_tokens_per_s),
            workload_per_million_output: per_million(times.output_tokens_per_s),
        }
    });
    let fit = Fit::new(model, request);
    Plan { weights, kv, rank, fit, times, cost }
}
