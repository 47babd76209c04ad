//! A server on the way to the advised one, and the plans of its variants.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use pelton_model::{KvDtype, ModelOutline, StateDtype};
use pelton_quant::for_name;
use serde::Deserialize;

use super::words::{size, time};
use super::{Check, Figures, Goal, Scenario, Settings, Wish};
use crate::plan::{Plan, Request, plan};
use crate::ranks::Split;
use crate::weights::{WeightSizes, Weights};

/// Formats that are tried, the most exact first.
const FORMATS: [&str; 7] = ["bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k"];
/// Most drafts that are tried.
const MOST_DRAFTS: usize = 6;

#[derive(Deserialize)]
struct Losses {
    perplexity_percent: BTreeMap<String, f64>,
}

/// All published losses, the smallest first.
pub(super) fn published_losses() -> Vec<f64> {
    let mut all: Vec<f64> = losses().into_values().collect();
    all.sort_by(f64::total_cmp);
    all
}

fn losses() -> BTreeMap<String, f64> {
    let losses: Losses =
        serde_json::from_str(include_str!("losses.json")).expect("invariant: a test reads it");
    losses.perplexity_percent
}

/// The published loss of a format in per cent of perplexity; `None` where there is no figure.
fn loss_of(format: &str) -> Option<f64> {
    losses().get(format).copied()
}

/// A technique that a server can take up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Technique {
    Weights,
    KvDtype,
    Batching,
    PrefixCache,
    Speculation,
}

impl Technique {
    pub(super) const ALL: [Self; 5] =
        [Self::Weights, Self::KvDtype, Self::Batching, Self::PrefixCache, Self::Speculation];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Weights => "quantized weights",
            Self::KvDtype => "smaller keys and values",
            Self::Batching => "batching",
            Self::PrefixCache => "prefix cache",
            Self::Speculation => "speculation",
        }
    }
}

/// The choices so far.
#[derive(Clone, Debug)]
pub(super) struct State {
    weights: Weights,
    kv_dtype: KvDtype,
    batch: usize,
    has_prefix_cache: bool,
    drafts: Option<usize>,
    acceptance: f64,
}

impl State {
    /// One request at a time, weights as they are.
    pub(super) fn plain(wish: &Wish<'_>) -> Self {
        Self {
            weights: wish.weights,
            kv_dtype: KvDtype::Bf16,
            batch: 1,
            has_prefix_cache: false,
            drafts: None,
            acceptance: wish.scenario.acceptance,
        }
    }

    /// A server with so many places that keeps the beginnings of prompts.
    pub(super) fn of_batch(wish: &Wish<'_>, batch: usize) -> Self {
        Self { batch, has_prefix_cache: true, ..Self::plain(wish) }
    }

    /// The same where drafts are right more or less often.
    pub(super) fn with_acceptance(&self, by: f64) -> Self {
        Self { acceptance: (self.acceptance + by).clamp(0.0, 0.99), ..self.clone() }
    }
}

/// The choices in which plans for the same model and wish differ: name of the weights, type of keys and
/// values, whether there is a prefix cache, requests at the same time.
type PlanKey = (String, KvDtype, bool, usize);

/// The model and the wish.
pub(super) struct Bench<'a> {
    pub(super) model: &'a ModelOutline,
    pub(super) wish: &'a Wish<'a>,
    /// Plans so far: variants are compared by several figures of the same plan.
    plans: RefCell<HashMap<PlanKey, Rc<Plan>>>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(model: &'a ModelOutline, wish: &'a Wish<'a>) -> Self {
        Self { model, wish, plans: RefCell::default() }
    }

    pub(super) fn plan(&self, state: &State, batch: usize) -> Rc<Plan> {
        let key = (state.weights.name(), state.kv_dtype, state.has_prefix_cache, batch);
        let mut plans = self.plans.borrow_mut();
        Rc::clone(plans.entry(key).or_insert_with(|| Rc::new(self.new_plan(state, batch))))
    }

    pub(super) fn new_plan(&self, state: &State, batch: usize) -> Plan {
        let Wish { hardware, memory_bytes, scenario, block_tokens, step_tokens, .. } = *self.wish;
        let shared = if state.has_prefix_cache { scenario.shared_prefix } else { 0.0 };
        let input = (scenario.input_tokens as f64 * (1.0 - shared)).ceil().max(1.0) as usize;
        plan(
            self.model,
            &Request {
                hardware,
                memory_bytes,
                weights: state.weights,
                kv_dtype: state.kv_dtype,
                state_dtype: StateDtype::F32,
                block_tokens,
                context_tokens: self.pool_tokens(batch),
                batch,
                input_tokens: input,
                output_tokens: scenario.output_tokens,
                step_tokens,
                n_ranks: 1,
                split: Split::Outputs,
                price_per_hour: None,
            },
        )
    }

    /// Tokens of the longest request.
    fn context(&self) -> usize {
        let Scenario { input_tokens, output_tokens, longest_tokens, .. } = *self.wish.scenario;
        longest_tokens.unwrap_or(0).max(input_tokens + output_tokens)
    }

    /// Tokens of each of so many sequences in memory: those of a usual request, and more where the
    /// longest one would not fit in beside none.
    fn pool_tokens(&self, batch: usize) -> usize {
        let Scenario { input_tokens, output_tokens, .. } = *self.wish.scenario;
        (input_tokens + output_tokens).max(self.context().div_ceil(batch))
    }

    /// Seconds of a prompt alone, of a step, and tokens of a request per step.
    fn times(&self, state: &State) -> (f64, f64, f64) {
        let times = |state: &State, batch| {
            let plan = self.plan(state, batch);
            let times = plan.times.as_ref().expect("invariant: a speed is known");
            (times.ttft_s, times.tpot_s)
        };
        let (ttft_s, _) = times(state, state.batch);
        // A cached beginning is not computed again, but every later token attends to it.
        let whole = State { has_prefix_cache: false, ..state.clone() };
        let step_s = |batch| times(&whole, batch).1;
        match state.drafts {
            None => (ttft_s, step_s(state.batch), 1.0),
            Some(k) => {
                let a = state.acceptance;
                let tokens = (1.0 - a.powi(k as i32 + 1)) / (1.0 - a);
                // Rows of one sequence share its keys and values; here each has its own, which
                // makes the wider step look a little slower than it is.
                (ttft_s, step_s(state.batch * (k + 1)), tokens)
            }
        }
    }

    /// Figures of a server that always has the scenario's number of requests.
    ///
    /// A server with fewer places than requests makes the rest wait, so that the time of an answer
    /// is the number of requests by those that end per second (Little's law).
    pub(super) fn figures(&self, state: &State) -> Figures {
        let scenario = self.wish.scenario;
        let (ttft_s, step_s, tokens) = self.times(state);
        let tpot_s = step_s / tokens;
        let requests_per_place = (scenario.batch as f64 / state.batch as f64).max(1.0);
        let generation_s = tpot_s * (scenario.output_tokens as f64 - 1.0);
        let own_s = ttft_s * state.batch as f64 + generation_s;
        let answer_s = requests_per_place * own_s;
        let n_tokens = (state.batch * scenario.output_tokens) as f64;
        let cost = |per_hour: f64| per_hour / 3600.0 * own_s / n_tokens * 1e6;
        Figures {
            total_bytes: self.plan(state, state.batch).fit.total_bytes,
            ttft_s,
            tpot_s,
            answer_s,
            output_tokens_per_s: n_tokens / own_s,
            cost_per_million: self.wish.price_per_hour.map(cost),
        }
    }

    /// The figure of the goal; more is better.
    pub(super) fn score(&self, state: &State) -> f64 {
        let figures = self.figures(state);
        match self.wish.goal {
            Goal::Latency => 1.0 / figures.answer_s,
            Goal::Throughput | Goal::Cost => figures.output_tokens_per_s,
            Goal::Memory => 1.0 / figures.total_bytes as f64,
        }
    }

    /// Bytes that are missing.
    pub(super) fn missing(&self, state: &State) -> u64 {
        let plan = self.plan(state, state.batch);
        plan.fit.shortage.as_ref().map_or(0, |shortage| shortage.missing_bytes)
    }

    /// The best way to take up a technique; `None` where there is none that is allowed.
    pub(super) fn best(&self, state: &State, technique: Technique) -> Option<State> {
        let is_short = self.missing(state) > 0;
        let variants = self.variants(state, technique);
        let allowed = variants.into_iter().filter(|next| match is_short {
            // A step towards fitting need not reach it.
            true => self.missing(next) < self.missing(state),
            false => self.missing(next) == 0,
        });
        allowed.max_by(|a, b| {
            // Formats whose blocks divide no row of the model all fall back to the same bytes.
            let loss = |state: &State| loss_of(&state.weights.name()).unwrap_or(0.0);
            let key =
                |state: &State| (-(self.missing(state) as f64), self.score(state), -loss(state));
            key(a).partial_cmp(&key(b)).expect("numbers")
        })
    }

    pub(super) fn variants(&self, state: &State, technique: Technique) -> Vec<State> {
        let with = |change: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            next
        };
        match technique {
            Technique::Weights => {
                let formats = self.smaller_formats(state);
                let allowed = formats.filter(|(name, _)| {
                    loss_of(name).is_some_and(|loss| loss <= self.wish.loss_percent)
                });
                allowed.map(|(_, weights)| with(&|next| next.weights = weights)).collect()
            }
            // Eight bits have a scale per token and head, or the range of E4M3.
            Technique::KvDtype if self.wish.loss_percent > 0.0 => {
                vec![with(&|next| next.kv_dtype = KvDtype::Int8)]
            }
            Technique::KvDtype => Vec::new(),
            Technique::Batching => {
                let most = self.wish.scenario.batch;
                let sizes = std::iter::successors(Some(2), |n: &usize| n.checked_mul(2))
                    .take_while(|&n| n < most);
                let sizes: Vec<usize> = sizes.chain([most]).filter(|&n| n > state.batch).collect();
                sizes.into_iter().map(|n| with(&|next| next.batch = n)).collect()
            }
            Technique::PrefixCache if self.wish.scenario.shared_prefix > 0.0 => {
                vec![with(&|next| next.has_prefix_cache = true)]
            }
            Technique::PrefixCache => Vec::new(),
            Technique::Speculation if state.acceptance > 0.0 => {
                (1..=MOST_DRAFTS).map(|k| with(&|next| next.drafts = Some(k))).collect()
            }
            Technique::Speculation => Vec::new(),
        }
    }

    /// Formats that are tried and take fewer bytes than the weights of a state.
    fn smaller_formats(&self, state: &State) -> impl Iterator<Item = (&'static str, Weights)> {
        let n_bytes =
            |weights: &Weights| WeightSizes::new(self.model, weights, self.wish.hardware).n_bytes;
        let own = n_bytes(&state.weights);
        let known = FORMATS.into_iter().filter_map(|name| Some((name, for_name(name)?)));
        // Files that hold one format and a few vectors of another are in that format.
        let others = known.filter(|(_, format)| format.name() != state.weights.format().name());
        let weights = others.map(|(name, format)| (name, Weights::Format(format)));
        weights.filter(move |(_, weights)| n_bytes(weights) < own)
    }

    /// The reason why a technique is not taken up.
    pub(super) fn why_not(&self, state: &State, technique: Technique) -> String {
        let variants = self.variants(state, technique);
        if variants.is_empty() {
            return self.why_none(state, technique);
        }
        match self.best(state, technique) {
            None if self.missing(state) > 0 => "memory is short, and it saves none".to_owned(),
            None => "its memory is not there".to_owned(),
            Some(next) => {
                let gain = self.score(&next) / self.score(state);
                let (change, goal) = (self.change(technique, &next), self.wish.goal.name());
                format!("{change}: {goal} would change by {gain:.2}x, after the steps above")
            }
        }
    }

    /// The reason why there is no way to take up a technique.
    fn why_none(&self, state: &State, technique: Technique) -> String {
        match technique {
            Technique::Weights => {
                let (own, most) = (state.weights.name(), self.wish.loss_percent);
                match self.smaller_formats(state).next() {
                    Some(_) => format!(
                        "weights are {own}, and formats that are smaller lose more than {most} % of \
                         perplexity"
                    ),
                    None => format!("weights are {own}, and no format that is tried is smaller"),
                }
            }
            Technique::KvDtype => "eight bits cost quality, and none may be lost".to_owned(),
            Technique::PrefixCache => "prompts of this workload share nothing".to_owned(),
            Technique::Batching => "there is one request at a time".to_owned(),
            Technique::Speculation => "drafts are never right here".to_owned(),
        }
    }

    /// The setting of a technique, in words.
    pub(super) fn change(&self, technique: Technique, to: &State) -> String {
        match technique {
            Technique::Weights => format!("weights as {}", to.weights.name()),
            Technique::KvDtype => format!("keys and values as {}", to.kv_dtype.name()),
            Technique::Batching => format!("up to {} requests at once", to.batch),
            Technique::PrefixCache => "beginnings of prompts are kept".to_owned(),
            Technique::Speculation => {
                format!("up to {} drafted tokens", to.drafts.unwrap_or_default())
            }
        }
    }

    /// The settings of a technique, as a server's file has them.
    pub(super) fn keys(&self, technique: Technique, to: &State) -> Vec<String> {
        match technique {
            Technique::Weights => Vec::new(),
            Technique::KvDtype => vec![format!("kv_dtype={}", to.kv_dtype.name())],
            Technique::Batching => vec![format!("max_running={}", to.batch)],
            Technique::PrefixCache => vec!["prefix_cache=true".to_owned()],
            Technique::Speculation => {
                vec!["spec=auto".to_owned(), format!("spec_max={}", to.drafts.unwrap_or_default())]
            }
        }
    }

    /// The reason for a technique, in figures.
    pub(super) fn reason(&self, technique: Technique, from: &State, to: &State) -> String {
        let (before, after) = (self.plan(from, from.batch), self.plan(to, to.batch));
        let (old, new) = (self.figures(from), self.figures(to));
        match technique {
            Technique::Weights => format!(
                "a step reads {} of weights instead of {}: {} per token instead of {}",
                size(after.weights.step_bytes),
                size(before.weights.step_bytes),
                time(new.tpot_s),
                time(old.tpot_s)
            ),
            Technique::KvDtype => format!(
                "a request keeps {} instead of {}",
                size(after.kv.sequence_bytes),
                size(before.kv.sequence_bytes)
            ),
            Technique::Batching => {
                let ridge = after.times.as_ref().map_or(0.0, |times| times.ridge_rows);
                format!(
                    "weights are read once for all, which pays up to {ridge:.0} rows: {:.0} tokens/s \
                     instead of {:.0}",
                    new.output_tokens_per_s, old.output_tokens_per_s
                )
            }
            Technique::PrefixCache => format!(
                "{:.0} % of a prompt is known: the first token after {} instead of {}",
                100.0 * self.wish.scenario.shared_prefix,
                time(new.ttft_s),
                time(old.ttft_s)
            ),
            Technique::Speculation => format!(
                "if {:.0} % of the drafts are right: {} per token instead of {}",
                100.0 * to.acceptance,
                time(new.tpot_s),
                time(old.tpot_s)
            ),
        }
    }

    /// Loss of quality of a technique, in words.
    pub(super) fn loss(&self, technique: Technique, to: &State) -> Option<String> {
        let measure = "`pelton eval` measures that of your model";
        match technique {
            Technique::Weights => {
                let loss = loss_of(&to.weights.name()).filter(|loss| *loss > 0.0)?;
                Some(format!(
                    "perplexity {loss} % higher for LLaMA-7B in llama.cpp's mix of medium size, and more in \
                     one format alone; {measure}"
                ))
            }
            Technique::KvDtype => Some(format!("of 8 bits; {measure}")),
            _ => None,
        }
    }

    /// The hard constraints that no choice breaks: formats that lose more are never tried.
    pub(super) fn kept(&self, state: &State) -> Vec<String> {
        let most = self.wish.loss_percent;
        let lost = match self.settings(state).weights.and_then(|name| loss_of(&name)) {
            Some(loss) => format!("{loss} % of perplexity lost by weights"),
            None => "weights stay as they are, which loses nothing".to_owned(),
        };
        vec![format!("{lost}, of at most {most} %")]
    }

    /// The hard constraints that advice can break.
    pub(super) fn checks(&self, state: &State) -> Vec<Check> {
        let memory_bytes = self.wish.memory_bytes;
        let total = self.figures(state).total_bytes;
        let longest = self.model.spec.longest_context();
        let check = |constraint: String, holds| Check { constraint, holds };
        vec![
            check(
                format!("{} of {} of memory", size(total), size(memory_bytes)),
                total <= memory_bytes,
            ),
            check(
                format!(
                    "{} of {} that {} has",
                    size(total),
                    size(self.wish.hardware.memory_bytes),
                    self.wish.hardware.name
                ),
                total <= self.wish.hardware.memory_bytes,
            ),
            check(
                format!(
                    "{} tokens of the longest request within the model's {longest}",
                    self.context()
                ),
                self.context() <= longest,
            ),
        ]
    }

    pub(super) fn settings(&self, state: &State) -> Settings {
        let is_converted = matches!(state.weights, Weights::Format(_))
            && state.weights.name() != self.wish.weights.name();
        Settings {
            weights: is_converted.then(|| state.weights.name()),
            kv_dtype: state.kv_dtype.name(),
            max_running: state.batch,
            max_context: self.context(),
            prefix_cache: state.has_prefix_cache,
            drafts: state.drafts,
        }
    }
}
