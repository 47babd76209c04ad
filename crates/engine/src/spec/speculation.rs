//! From rows that generate to drafts, and from outcomes to better guesses.

use super::acceptance::{Acceptance, MOST_PLACES};
use super::lengths::{self, Offer};
use super::{Ngram, Proposer, Row, Suffix};
use pelton_base::{Request, RequestId};
use pelton_sched::{Generating, Scheduler, SchedulerOutput, StepCost, StepLoad, StepOutput};
use std::collections::HashMap;
use std::time::Instant;

/// What is believed of a draft before anything was seen.
const PRIOR: f32 = 0.5;
/// Matches of 1, 2 to 3, 4 to 7, ... tokens are judged apart.
const N_SURE: usize = 6;
/// Steps without drafts after which one is tried, to see whether they pay by now.
const PROBE_AFTER: u32 = 64;
/// Failures after which a proposer is let be.
const MOST_FAILURES: u32 = 3;

/// How drafts are made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SpecMethod {
    /// Not at all.
    #[default]
    Off,
    /// From runs of tokens that occurred before in the prompt or the answer.
    Ngram,
    /// From the longest match in prompt, answer and prediction.
    Suffix,
    /// By a smaller model.
    Draft,
}

impl SpecMethod {
    /// Every method.
    pub const ALL: &[Self] = &[Self::Off, Self::Ngram, Self::Suffix, Self::Draft];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Ngram => "ngram",
            Self::Suffix => "suffix",
            Self::Draft => "draft",
        }
    }

    /// The proposer of a method that needs nothing but what requests say.
    pub fn proposer(self) -> Option<Box<dyn Proposer>> {
        match self {
            Self::Ngram => Some(Box::new(Ngram::default())),
            Self::Suffix => Some(Box::new(Suffix::default())),
            Self::Off | Self::Draft => None,
        }
    }
}

/// Whether and how an engine speculates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpecConfig {
    /// How drafts are made; [`SpecMethod::Draft`] needs a model besides.
    pub method: SpecMethod,
    /// Most drafts of one request in one step.
    pub max_drafts: usize,
    /// Whether every draft that can be made is verified, whatever it costs; for measurements.
    pub is_forced: bool,
}

impl Default for SpecConfig {
    fn default() -> Self {
        Self { method: SpecMethod::Off, max_drafts: 8, is_forced: false }
    }
}

/// What speculation did, as sums.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SpecStats {
    /// Drafts verified.
    pub n_drafted: u64,
    /// Those that were right.
    pub n_accepted: u64,
    /// Drafts verified, by place.
    pub drafted_at: [u64; MOST_PLACES],
    /// Those that were right, by place.
    pub accepted_at: [u64; MOST_PLACES],
    /// Steps of single sequences that had drafts.
    pub n_verified_rows: u64,
    /// Time spent making drafts, in nanoseconds.
    pub draft_ns: u64,
    /// Failures of the proposer.
    pub n_failures: u64,
}

/// One proposer, and what is known of how well it guesses.
#[derive(Debug)]
pub struct Speculation {
    proposer: Box<dyn Proposer>,
    config: SpecConfig,
    /// By how sure the proposer was, over all requests.
    experience: [Acceptance; N_SURE],
    sequences: HashMap<RequestId, Acceptance>,
    /// How sure it was of the drafts that are being verified.
    asked: HashMap<RequestId, usize>,
    offers: Vec<Offer>,
    lengths: Vec<usize>,
    /// Mean time of a draft, in nanoseconds.
    draft_ns: f64,
    n_steps_without: u32,
    n_failures_in_a_row: u32,
    stats: SpecStats,
}

impl Speculation {
    /// Speculates with `proposer`.
    pub fn new(proposer: Box<dyn Proposer>, config: SpecConfig) -> Self {
        Self {
            proposer,
            config,
            experience: Default::default(),
            sequences: HashMap::new(),
            asked: HashMap::new(),
            offers: Vec::new(),
            lengths: Vec::new(),
            draft_ns: 0.0,
            n_steps_without: 0,
            n_failures_in_a_row: 0,
            stats: SpecStats::default(),
        }
    }

    /// What happened so far.
    pub fn stats(&self) -> SpecStats {
        self.stats
    }

    /// Meets a request.
    pub fn add(&mut self, request: &Request) {
        self.sequences.insert(request.id, Acceptance::default());
        self.proposer.add(request);
    }

    /// Forgets a request.
    pub fn finished(&mut self, id: RequestId) {
        self.sequences.remove(&id);
        self.asked.remove(&id);
        self.proposer.finished(id);
    }

    /// Gives drafts to those that generate, as far as they are worth it.
    pub fn draft(&mut self, scheduler: &mut Scheduler, cost: &StepCost) {
        self.asked.clear();
        if self.n_failures_in_a_row >= MOST_FAILURES {
            return;
        }
        let mut generating: Vec<Generating<'_>> = scheduler.generating().collect();
        if generating.is_empty() {
            return;
        }
        let load = self.look(&mut generating);
        self.choose(&load, generating.len(), cost);
        let wanted = generating.iter_mut().zip(&self.lengths).filter(|(_, n)| **n > 0);
        let mut rows: Vec<Row<'_>> = wanted.map(|(row, &n_drafts)| as_row(row, n_drafts)).collect();
        if rows.is_empty() {
            return;
        }
        let started = Instant::now();
        if let Err(error) = self.proposer.propose(&mut rows) {
            self.stats.n_failures += 1;
            self.n_failures_in_a_row += 1;
            let gives_up = self.n_failures_in_a_row == MOST_FAILURES;
            tracing::warn!(%error, gives_up, "decoding goes on without drafts");
            rows.iter_mut().for_each(|row| row.drafts.clear());
            return;
        }
        self.n_failures_in_a_row = 0;
        let elapsed = started.elapsed().as_nanos() as u64;
        let mut n_drafts = 0;
        for row in &mut rows {
            row.drafts.truncate(row.n_drafts);
            n_drafts += row.drafts.len();
        }
        self.stats.draft_ns += elapsed;
        if n_drafts > 0 {
            let each = elapsed as f64 / n_drafts as f64;
            self.draft_ns += 0.1 * (each - self.draft_ns);
        }
    }

    /// Asks the proposer about every row; what the plain step would hold.
    fn look(&mut self, generating: &mut [Generating<'_>]) -> StepLoad {
        let mut load = StepLoad::default();
        self.offers.clear();
        for row in generating {
            let position = row.tokens.len() - 1;
            load.add_rows(position, 1, 1);
            let most = self.config.max_drafts.min(row.most_drafts);
            let (n_drafts, n_matched) = self.proposer.look(&as_row(row, 0), most);
            let sure = sure(n_matched);
            let own = self.sequences.get(&row.id).copied().unwrap_or_default();
            let rate = |place| own.at(place, self.experience[sure].at(place, PRIOR));
            self.asked.insert(row.id, sure);
            let rates = std::array::from_fn(rate);
            self.offers.push(Offer { position: position + 1, n_drafts: n_drafts.min(most), rates });
        }
        load
    }

    fn choose(&mut self, load: &StepLoad, n_rows: usize, cost: &StepCost) {
        let Self { offers, lengths, .. } = self;
        if self.config.is_forced {
            lengths.clear();
            lengths.extend(offers.iter().map(|offer| offer.n_drafts));
            return;
        }
        lengths::choose(offers, load, n_rows, cost, self.draft_ns, lengths);
        let is_plain = lengths.iter().all(|&n| n == 0);
        self.n_steps_without = if is_plain { self.n_steps_without + 1 } else { 0 };
        let is_time = is_plain && cost.is_known() && self.n_steps_without >= PROBE_AFTER;
        let any = offers.iter().position(|offer| offer.n_drafts > 0);
        if let Some(i) = any.filter(|_| is_time) {
            lengths[i] = 1;
            self.n_steps_without = 0;
        }
    }

    /// Learns from what came of a plan.
    pub fn learn(&mut self, plan: &SchedulerOutput, step: &StepOutput) {
        let mut sampled = step.sampled.iter().peekable();
        for share in plan.sequences.iter().filter(|share| share.samples) {
            let mut n_sampled = 0;
            while sampled.next_if(|(id, _)| *id == share.id).is_some() {
                n_sampled += 1;
            }
            if share.n_drafts == 0 || n_sampled == 0 {
                continue;
            }
            let n_accepted = n_sampled - 1;
            if let Some(own) = self.sequences.get_mut(&share.id) {
                own.saw(share.n_drafts, n_accepted);
            }
            if let Some(&sure) = self.asked.get(&share.id) {
                self.experience[sure].saw(share.n_drafts, n_accepted);
            }
            self.stats.n_verified_rows += 1;
            self.stats.n_drafted += share.n_drafts as u64;
            self.stats.n_accepted += n_accepted as u64;
            for place in 0..share.n_drafts.min(MOST_PLACES) {
                self.stats.drafted_at[place] += 1;
                self.stats.accepted_at[place] += u64::from(place < n_accepted);
            }
        }
    }
}

fn as_row<'a>(row: &'a mut Generating<'_>, n_drafts: usize) -> Row<'a> {
    Row { id: row.id, tokens: row.tokens, n_prompt: row.n_prompt, n_drafts, drafts: row.drafts }
}

/// The class of a match of this length.
fn sure(n_matched: usize) -> usize {
    (n_matched.max(1).ilog2() as usize).min(N_SURE - 1)
}
