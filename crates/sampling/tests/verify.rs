//! Verified drafts against the target's distribution, enumerated.
//!
//! ```text
//! chain of processors and cuts x kind of draft ─▶ 20 sets of 2,000 sequences of 3 tokens
//!     ─▶ counts of all 512 sequences against their exact probabilities ─▶ 20 p-values
//! ```
//!
//! A toy target and a toy draft model are functions of the tokens so far over a vocabulary of eight.
//! Sequences are generated as an engine would: draft two places, verify, go on until there are three
//! tokens. The exact probabilities come from the oracle, not from the sampler.

mod common;
// By its path, for the crate it belongs to stands on the kernels, and these take minutes to compile.
#[allow(unreachable_pub)]
#[path = "../../testkit/src/statistics.rs"]
mod statistics;

#[path = "common/tree.rs"]
mod tree;

use common::{Moment, naive, random_logits};
use pelton_base::{Dynatemp, Mirostat, SamplingParams, TokenId};
use pelton_sampling::verify::{Place, Proposal, SiblingScratch, Verdict, Verifier, draw_siblings};
use pelton_sampling::{
    KeptDistribution, LogitsProcessor, Philox, RowContext, Sampler, SamplerState, Stream,
};
use statistics::{at_least_so_many, combined, p_values_over_sets, uniformity};
use tree::Tree;

const VOCAB: usize = 8;
const LENGTH: usize = 3;
const N_SETS: usize = 20;
const N_DRAWS: usize = 2000;
/// Statements that the file makes at the level of 0.01 together: each pair, and two of each kind.
const LEVEL: f64 = 0.01 / (9.0 * 7.0 + 2.0 * 7.0);

/// How the target is drawn from.
struct Chain {
    name: &'static str,
    params: SamplingParams,
    is_masked: bool,
}

fn chains() -> Vec<Chain> {
    let plain = SamplingParams::default();
    let chain = |name, params| Chain { name, params, is_masked: false };
    let penalties = SamplingParams {
        repetition_penalty: 1.4,
        presence_penalty: 0.5,
        frequency_penalty: 0.4,
        logit_bias: vec![(TokenId(1), 1.0), (TokenId(6), -1.5)],
        ..plain.clone()
    };
    let stages = SamplingParams {
        typical_p: 0.9,
        top_n_sigma: 2.0,
        dynatemp: Dynatemp { range: 0.5, exponent: 1.0 },
        min_keep: 2,
        ..plain.clone()
    };
    let mirostat = Some(Mirostat { version: 2, tau: 1.0, eta: 0.5 });
    vec![
        chain("greedy", SamplingParams::greedy()),
        chain("temperature", SamplingParams { temperature: 0.7, ..plain.clone() }),
        chain("top-k", SamplingParams { top_k: 3, ..plain.clone() }),
        chain("top-p", SamplingParams { top_p: 0.8, ..plain.clone() }),
        chain("min-p", SamplingParams { min_p: 0.15, temperature: 1.5, ..plain.clone() }),
        chain("penalties and bias", penalties),
        chain("stages", stages),
        chain("Mirostat", SamplingParams { mirostat, ..plain.clone() }),
        Chain { name: "mask", params: plain, is_masked: true },
    ]
}

/// Which tokens the mask forbids changes from step to step.
fn is_forbidden(id: usize, n_generated: usize) -> bool {
    (id + n_generated).is_multiple_of(3)
}

#[derive(Debug)]
struct Mask;

impl LogitsProcessor for Mask {
    fn apply(&mut self, row: &RowContext, logits: &mut [f32]) {
        for (id, logit) in logits.iter_mut().enumerate() {
            if is_forbidden(id, row.n_generated) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accepted(&mut self, _token: TokenId) {}

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(Self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Draft {
    OneHot,
    Same,
    Near,
    Disjoint,
    Uniform,
    KnownTree,
    DrawnTree,
}

impl Draft {
    fn is_known(self) -> bool {
        matches!(self, Self::OneHot | Self::KnownTree)
    }

    /// Siblings at the first and at the second drafted place.
    fn n_siblings(self) -> [usize; 2] {
        if matches!(self, Self::KnownTree | Self::DrawnTree) { [3, 2] } else { [1, 1] }
    }
}

/// The tokens before a place, as a number: 0, then 1 to 8, then 9 to 72.
fn index_of(prefix: &[TokenId]) -> usize {
    prefix.iter().fold(0, |idx, token| idx * VOCAB + token.0 as usize + 1)
}

/// Everything that can be known about a place before it is sampled.
struct Context {
    target: KeptDistribution,
    draft: KeptDistribution,
    /// Tokens as a known draft offers them.
    ranked: Vec<TokenId>,
    oracle: Vec<f64>,
}

/// The logits of the two models after `prefix`.
fn logits_after(prefix: &[TokenId], kind: Draft) -> [Vec<f32>; 2] {
    let mut target = random_logits(VOCAB, 2.0, 1000 + index_of(prefix) as u64);
    let noise = random_logits(VOCAB, 1.0, 2000 + index_of(prefix) as u64);
    let mut draft: Vec<f32> = target.iter().zip(noise).map(|(l, n)| l + n).collect();
    match kind {
        Draft::Same => draft.clone_from(&target),
        Draft::Uniform => draft.fill(0.0),
        Draft::Disjoint => {
            target[VOCAB / 2..].fill(f32::NEG_INFINITY);
            draft[..VOCAB / 2].fill(f32::NEG_INFINITY);
        }
        _ => {}
    }
    [target, draft]
}

/// The processors, written once more.
fn processed(chain: &Chain, prefix: &[TokenId], mut logits: Vec<f32>) -> Vec<f32> {
    for &(token, bias) in &chain.params.logit_bias {
        logits[token.0 as usize] += bias;
    }
    for (id, logit) in logits.iter_mut().enumerate() {
        let n_seen = prefix.iter().filter(|token| token.0 as usize == id).count() as f32;
        if n_seen > 0.0 {
            let penalty = chain.params.repetition_penalty;
            *logit *= if *logit > 0.0 { 1.0 / penalty } else { penalty };
            *logit -= chain.params.presence_penalty + n_seen * chain.params.frequency_penalty;
        }
        if chain.is_masked && is_forbidden(id, prefix.len()) {
            *logit = f32::NEG_INFINITY;
        }
    }
    logits
}

fn state_after(params: &SamplingParams, is_masked: bool, prefix: &[TokenId]) -> SamplerState {
    let mut state = SamplerState::new(params, &[], 0);
    if is_masked {
        state.push_processor(Box::new(Mask));
    }
    prefix.iter().for_each(|&token| state.accepted(token));
    state
}

/// The exact probabilities of the token after `prefix`; Mirostat follows the tokens before.
fn oracle(chain: &Chain, kind: Draft, prefix: &[TokenId]) -> Vec<f64> {
    let mut moment = Moment::default();
    let mut probabilities = Vec::new();
    for n in 0..=prefix.len() {
        let (before, next) = (&prefix[..n], prefix.get(n));
        let [logits, _] = logits_after(before, kind);
        probabilities = naive(&chain.params, &processed(chain, before, logits), moment);
        let surprise = next.map(|token| -probabilities[token.0 as usize].log2());
        if let (Some(Mirostat { tau, eta, .. }), Some(surprise)) = (chain.params.mirostat, surprise)
            && surprise.is_finite()
        {
            let mu = moment.mu.unwrap_or(2.0 * f64::from(tau));
            moment.mu = Some(mu - f64::from(eta) * (surprise - f64::from(tau)));
        }
    }
    probabilities
}

/// The state of the target, which saw the row of every token of `prefix`.
fn followed(chain: &Chain, kind: Draft, prefix: &[TokenId]) -> SamplerState {
    let (mut sampler, mut state) =
        (Sampler::new(), state_after(&chain.params, chain.is_masked, &[]));
    for (n, &token) in prefix.iter().enumerate() {
        let [mut row, _] = logits_after(&prefix[..n], kind);
        sampler.distribution(&mut state, &mut row, n);
        state.accepted(token);
    }
    state
}

fn context(chain: &Chain, kind: Draft, prefix: &[TokenId]) -> Context {
    let [mut target_logits, mut draft_logits] = logits_after(prefix, kind);
    let oracle = oracle(chain, kind, prefix);
    let mut ranked: Vec<TokenId> = (0..VOCAB as u32).map(TokenId).collect();
    ranked.sort_by(|a, b| draft_logits[b.0 as usize].total_cmp(&draft_logits[a.0 as usize]));
    let mut sampler = Sampler::new();
    let [mut target, mut draft] = [KeptDistribution::default(), KeptDistribution::default()];
    let mut state = followed(chain, kind, prefix);
    target.keep(&sampler.distribution(&mut state, &mut target_logits, prefix.len()));
    let mut state = match kind {
        Draft::Same => followed(chain, kind, prefix),
        _ => state_after(&SamplingParams::default(), false, prefix),
    };
    draft.keep(&sampler.distribution(&mut state, &mut draft_logits, prefix.len()));
    Context { target, draft, ranked, oracle }
}

/// One chain with one kind of draft.
struct Pair {
    kind: Draft,
    contexts: Vec<Context>,
    verifier: Verifier,
    scratch: SiblingScratch,
    n_judged: usize,
    n_accepted: usize,
}

/// A way to decide a place: [`judge`] or something that is wrong.
type Judge = fn(&mut Verifier, &Place<'_>, &[TokenId], Proposal<'_>) -> Verdict;
/// A way to draw siblings: [`draw`] or something that is wrong.
type Draw = fn(&Place<'_>, usize, &mut SiblingScratch, &mut Vec<TokenId>);

fn judge(
    verifier: &mut Verifier,
    place: &Place<'_>,
    siblings: &[TokenId],
    proposal: Proposal<'_>,
) -> Verdict {
    verifier.judge(place, siblings.iter().copied(), proposal)
}

impl Pair {
    fn new(chain: &Chain, kind: Draft) -> Self {
        let mut prefixes: Vec<Vec<TokenId>> = vec![Vec::new()];
        for idx in 0.. {
            if prefixes[idx].len() == LENGTH - 1 {
                break;
            }
            for id in 0..VOCAB as u32 {
                let longer = [&prefixes[idx][..], &[TokenId(id)]].concat();
                prefixes.push(longer);
            }
        }
        let contexts = prefixes.iter().map(|prefix| context(chain, kind, prefix)).collect();
        let (verifier, scratch) = Default::default();
        Self { kind, contexts, verifier, scratch, n_judged: 0, n_accepted: 0 }
    }

    /// The exact probability of each sequence, first token first.
    fn probabilities(&self) -> Vec<f64> {
        let sequences = 0..VOCAB.pow(LENGTH as u32);
        let probability = |cell: usize| {
            let tokens = [cell / 64, cell / 8 % 8, cell % 8].map(|id| TokenId(id as u32));
            let place =
                |n: usize| self.contexts[index_of(&tokens[..n])].oracle[tokens[n].0 as usize];
            (0..LENGTH).map(place).product()
        };
        sequences.map(probability).collect()
    }

    /// Drafts for what follows `output`: tokens and parents.
    fn draft(
        &mut self,
        output: &[TokenId],
        rng: Philox,
        draw: Draw,
    ) -> (Vec<TokenId>, Vec<Option<u32>>) {
        let (mut tokens, mut parents) = (Vec::new(), Vec::new());
        let mut level = vec![(None, output.to_vec())];
        for n_siblings in self.kind.n_siblings() {
            let mut next = Vec::new();
            for (parent, prefix) in level.into_iter().filter(|(_, prefix)| prefix.len() < LENGTH) {
                let context = &self.contexts[index_of(&prefix)];
                let first = tokens.len();
                if self.kind.is_known() {
                    tokens.extend_from_slice(&context.ranked[..n_siblings]);
                } else {
                    let target = context.draft.get().expect("kept");
                    let place = Place { target, rng, position: prefix.len() as u64 };
                    draw(&place, n_siblings, &mut self.scratch, &mut tokens);
                }
                parents.resize(tokens.len(), parent);
                for (node, &token) in tokens.iter().enumerate().skip(first) {
                    next.push((Some(node as u32), [&prefix[..], &[token]].concat()));
                }
            }
            level = next;
        }
        (tokens, parents)
    }

    /// The cell of the sequence that a seed gives.
    fn generate(&mut self, seed: u64, draw: Draw, judge: Judge) -> usize {
        let rng = Philox::new(seed, 0);
        let mut output: Vec<TokenId> = Vec::new();
        while output.len() < LENGTH {
            let (tokens, parents) = self.draft(&output, rng, draw);
            let tree = Tree::new(&tokens, &parents);
            let mut node = None;
            while output.len() < LENGTH {
                let context = &self.contexts[index_of(&output)];
                let position = output.len() as u64;
                let place = Place { target: context.target.get().expect("kept"), rng, position };
                let children: Vec<u32> = tree.children(node).collect();
                let siblings: Vec<TokenId> =
                    children.iter().map(|&child| tree.token(child)).collect();
                let proposal = match self.kind.is_known() {
                    true => Proposal::Known,
                    false => Proposal::Drawn(context.draft.get().expect("kept")),
                };
                let verdict = judge(&mut self.verifier, &place, &siblings, proposal);
                output.push(verdict.token);
                self.n_judged += usize::from(!siblings.is_empty());
                let Some(sibling) = verdict.accepted else { break };
                self.n_accepted += 1;
                assert_eq!(siblings[sibling], verdict.token);
                node = Some(children[sibling]);
            }
        }
        index_of(&output) - 73
    }

    fn p_values(&mut self, draw: Draw, judge: Judge) -> Vec<f64> {
        let probabilities = self.probabilities();
        assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        p_values_over_sets(&probabilities, N_SETS, N_DRAWS, |seed| self.generate(seed, draw, judge))
    }
}

/// Every chain with one kind of draft has the target's distribution.
fn assert_exact(kind: Draft) {
    let mut all = Vec::new();
    for chain in chains() {
        let mut pair = Pair::new(&chain, kind);
        let p_values = pair.p_values(draw_siblings, judge);
        let (p, name) = (combined(&p_values), chain.name);
        assert!(p > LEVEL, "{kind:?}, {name}: {p} from {p_values:?}");
        match kind {
            Draft::Same => assert_eq!(pair.n_accepted, pair.n_judged, "{name}"),
            Draft::Disjoint => assert_eq!(pair.n_accepted, 0, "{name}"),
            _ => assert!(0 < pair.n_accepted && pair.n_accepted < pair.n_judged, "{name}"),
        }
        // Where there is one answer, every p-value is 1 and says nothing about the others.
        all.extend(p_values.into_iter().filter(|p| *p < 1.0));
    }
    let n_small = all.iter().filter(|p| **p < 0.01).count();
    let tail = at_least_so_many(n_small, all.len(), 0.01);
    assert!(tail > LEVEL, "{kind:?}: {n_small} of {} are small: {all:?}", all.len());
    assert!(uniformity(&all) > LEVEL, "{kind:?}: not uniform: {all:?}");
}

#[test]
fn one_known_draft_leaves_the_distribution_as_it_is() {
    assert_exact(Draft::OneHot);
}

#[test]
fn drafts_from_the_target_itself_are_all_accepted_and_exact() {
    assert_exact(Draft::Same);
}

#[test]
fn drafts_from_a_similar_model_leave_the_distribution_as_it_is() {
    assert_exact(Draft::Near);
}

#[test]
fn impossible_drafts_are_all_rejected_and_do_no_harm() {
    assert_exact(Draft::Disjoint);
}

#[test]
fn blind_drafts_leave_the_distribution_as_it_is() {
    assert_exact(Draft::Uniform);
}

#[test]
fn a_tree_of_known_drafts_leaves_the_distribution_as_it_is() {
    assert_exact(Draft::KnownTree);
}

#[test]
fn a_tree_drawn_without_replacement_leaves_the_distribution_as_it_is() {
    assert_exact(Draft::DrawnTree);
}

/// Recovers from the target, as if nothing had been rejected.
fn judge_without_residual(
    _: &mut Verifier,
    place: &Place<'_>,
    siblings: &[TokenId],
    proposal: Proposal<'_>,
) -> Verdict {
    for (sibling, &token) in siblings.iter().enumerate() {
        let q = match proposal {
            Proposal::Known => 1.0,
            Proposal::Drawn(draft) => draft.probability(token),
        };
        let u = place.rng.uniform_of(Stream::Accept, place.position, sibling as u32);
        if u * q < place.target.probability(token) {
            return Verdict { token, accepted: Some(sibling) };
        }
    }
    let u = place.rng.uniform_of(Stream::Recovered, place.position, 0);
    Verdict { token: place.target.draw(u), accepted: None }
}

/// Draws a draft with the number that judges it.
fn draw_with_the_coin(
    place: &Place<'_>,
    _: usize,
    _: &mut SiblingScratch,
    siblings: &mut Vec<TokenId>,
) {
    siblings.push(place.target.draw(place.rng.uniform_of(Stream::Accept, place.position, 0)));
}

#[test]
fn wrong_verifiers_are_caught_by_the_same_statistic() {
    let temperature = &chains()[1];
    let wrong: [(Draft, Draw, Judge); 5] = [
        (Draft::OneHot, draw_siblings, judge_without_residual),
        (Draft::Near, draw_siblings, judge_without_residual),
        (Draft::KnownTree, draw_siblings, judge_without_residual),
        (Draft::DrawnTree, draw_siblings, judge_without_residual),
        (Draft::Near, draw_with_the_coin, judge),
    ];
    for (i, (kind, draw, judge)) in wrong.into_iter().enumerate() {
        let p_values = Pair::new(temperature, kind).p_values(draw, judge);
        assert!(combined(&p_values) < 1e-9 && uniformity(&p_values) < LEVEL, "{i}: {p_values:?}");
        let n_small = p_values.iter().filter(|p| **p < 0.01).count();
        assert!(at_least_so_many(n_small, N_SETS, 0.01) < LEVEL, "{i}: {p_values:?}");
    }
}
