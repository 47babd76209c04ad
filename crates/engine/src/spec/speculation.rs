//! Drafts for the rows that generate: whose, how many, and whether at all.

mod learning;

use super::guesser::Guesser;
use super::lengths::{self, Offer};
use super::rules::Rules;
use super::stats::PlainStep;
use super::trial::{Kind, Trials};
use super::{Odds, Proposer, Row, SpecConfig, SpecStats};
use pelton_base::{Drafting, Request, RequestId, TokenId};
use pelton_sched::{Generating, Scheduler, SchedulerOutput, StepCost, StepLoad};
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// Steps without drafts after which one is tried, to see whether they pay by now.
const PROBE_AFTER: u32 = 64;
/// Steps in a row for which drafts are tried: a proposer that fell behind catches up in the first.
const PROBES: u32 = 2;

/// The proposers, and the record of each.
#[derive(Debug)]
pub struct Speculation {
    guessers: Vec<Guesser>,
    config: SpecConfig,
    rules: Rules,
    /// Of the requests that limit their drafts.
    bounds: HashMap<RequestId, Bounds>,
    /// The proposer behind each request's drafts in the plan that is being carried out.
    asked: HashMap<RequestId, Asked>,
    /// That plan without its drafts.
    plain: PlainStep,
    offers: Vec<Looked>,
    /// Chances of all offers, one offer after the other.
    chances: Vec<f32>,
    lengths: Vec<usize>,
    n_candidates: usize,
    /// Whether drafting pays at all, by the clock.
    trials: Trials,
    /// Kind of the step that is being made.
    kind: Option<Kind>,
    n_steps_without: u32,
    /// Steps left in which drafts are tried although they do not seem to pay.
    n_probes: u32,
    /// Drafts before each row, accepted rows and new tokens of one share.
    depths: Vec<usize>,
    accepted: Vec<usize>,
    sampled: Vec<TokenId>,
    stats: SpecStats,
}

/// Limits on the drafts of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Bounds {
    most: usize,
    /// The only guesser that may draft, by its index; `None` for all.
    by: Option<usize>,
    /// Whether all drafts are verified, whatever they cost.
    always: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { most: usize::MAX, by: None, always: false }
    }
}

/// The guesser whose drafts are being verified.
#[derive(Clone, Copy, Debug)]
struct Asked {
    guesser: usize,
    /// The class of the match that the drafts rest on.
    sure: usize,
}

impl Asked {
    const NONE: Self = Self { guesser: usize::MAX, sure: 0 };
}

/// The best offer for a row.
#[derive(Debug)]
struct Looked {
    position: usize,
    asked: Asked,
    /// Its range of all chances.
    chances: Range<usize>,
    draft_ns: f64,
    /// Steps over which its drafts pay, where all of them are made or none.
    invests_for: Option<u32>,
}

impl Looked {
    fn offer<'a>(&self, chances: &'a [f32]) -> Offer<'a> {
        let chances = &chances[self.chances.clone()];
        let is_whole = self.invests_for.is_some();
        Offer { position: self.position, chances, draft_ns: self.draft_ns, is_whole }
    }
}

impl Speculation {
    /// Speculation by these proposers.
    pub fn new(proposers: Vec<Box<dyn Proposer>>, config: SpecConfig) -> Self {
        Self {
            guessers: proposers.into_iter().map(Guesser::new).collect(),
            config,
            rules: Rules::default(),
            bounds: HashMap::new(),
            asked: HashMap::new(),
            plain: PlainStep::default(),
            offers: Vec::new(),
            chances: Vec::new(),
            lengths: Vec::new(),
            n_candidates: 0,
            trials: Trials::default(),
            kind: None,
            n_steps_without: 0,
            n_probes: 0,
            depths: Vec::new(),
            accepted: Vec::new(),
            sampled: Vec::new(),
            stats: SpecStats::default(),
        }
    }

    /// Sums over all steps so far.
    pub fn stats(&self) -> SpecStats {
        self.stats
    }

    /// Likeliest tokens after each row that the proposers of the current rows want to see: the most
    /// that any of them asks for.
    pub fn n_candidates(&self) -> usize {
        self.n_candidates
    }

    /// Meets a request.
    pub fn add(&mut self, request: &Request) {
        self.stats.n_failures += u64::from(!self.rules.add(request));
        let drafting = request.ask.service.drafting;
        if drafting != Drafting::default() {
            let bounds = self.bounds_of(drafting);
            self.bounds.insert(request.id, bounds);
        }
        for guesser in &mut self.guessers {
            self.stats.n_failures += u64::from(!guesser.add(request));
        }
    }

    /// Forgets a request.
    pub fn finished(&mut self, id: RequestId) {
        self.asked.remove(&id);
        self.rules.finished(id);
        self.bounds.remove(&id);
        for guesser in &mut self.guessers {
            self.stats.n_failures += u64::from(!guesser.finished(id));
        }
    }

    fn bounds_at(&self, id: RequestId) -> Bounds {
        self.bounds.get(&id).copied().unwrap_or_default()
    }

    fn bounds_of(&self, Drafting { most, by, always }: Drafting) -> Bounds {
        let guesser = |name| self.guessers.iter().position(|known| known.name() == name);
        // No guesser has the last index there is.
        let by = by.map(|name| guesser(name).unwrap_or(usize::MAX));
        Bounds { most: most.unwrap_or(usize::MAX), by, always }
    }

    /// Gives drafts to the requests that generate, as far as drafts are worth their price.
    ///
    /// `odds` is present where drafts are judged by it, see [`Proposer::propose`].
    pub fn draft(
        &mut self,
        scheduler: &mut Scheduler,
        cost: &StepCost,
        mut odds: Option<&mut Odds>,
    ) {
        if let Some(odds) = odds.as_deref_mut() {
            odds.forget();
        }
        self.asked.clear();
        self.kind = None;
        self.n_candidates = 0;
        if self.rules.is_empty() && self.guessers.iter().all(Guesser::has_given_up) {
            return;
        }
        let mut generating: Vec<Generating<'_>> = scheduler.generating().collect();
        if generating.is_empty() {
            return;
        }
        let mut is_any_forced = false;
        for row in &mut generating {
            if !self.rules.force(row) {
                rule_panicked(row.id, &mut self.bounds, &mut self.stats);
            }
            is_any_forced |= !row.drafts.is_empty();
            self.stats.n_forced += row.drafts.len() as u64;
        }
        if self.guessers.iter().all(Guesser::has_given_up) {
            return;
        }
        // The time of a step with forced tokens says nothing about drafts.
        self.kind = self.kind_of(&generating).filter(|_| !is_any_forced);
        if self.kind.is_some_and(|kind| !self.trials.allow(kind)) {
            return;
        }
        let load = self.look(&mut generating, cost);
        self.plain = PlainStep::new(&load, generating.len(), cost);
        self.choose(&load, generating.len(), cost);
        for (i, row) in generating.iter().enumerate() {
            if self.bounds_at(row.id).always {
                self.lengths[i] = self.offers[i].chances.len();
            }
        }
        for idx in 0..self.guessers.len() {
            self.propose(idx, &mut generating, odds.as_deref_mut());
        }
        for row in generating.iter_mut().filter(|row| self.asked.contains_key(&row.id)) {
            if !self.rules.prune(row) {
                rule_panicked(row.id, &mut self.bounds, &mut self.stats);
            }
        }
    }

    /// The kind of a step, where its requests may all be drafted for, and by the same proposers.
    fn kind_of(&self, generating: &[Generating<'_>]) -> Option<Kind> {
        let mut bounds = generating.iter().map(|row| self.bounds_at(row.id));
        let first = bounds.next()?;
        let is_timed = first.most > 0 && !first.always && bounds.all(|other| other == first);
        let is_timed = is_timed && !self.config.is_forced;
        is_timed.then(|| (first.by, generating.len().ilog2()))
    }

    /// Learns that the step of a plan took `elapsed` in all, drafting included, and brought
    /// `n_tokens` tokens.
    pub fn stepped(&mut self, plan: &SchedulerOutput, n_tokens: usize, elapsed: Duration) {
        let decodes = plan.sequences.iter().all(|share| share.samples && share.n_generated > 0);
        let decodes = decodes && !plan.is_empty();
        if let Some(kind) = self.kind.filter(|_| decodes) {
            self.trials.stepped(kind, n_tokens, elapsed);
        }
    }

    /// Lets one guesser draft for the rows whose best offer is its own.
    fn propose(&mut self, idx: usize, generating: &mut [Generating<'_>], odds: Option<&mut Odds>) {
        // Its offers for some rows are void when it panicked while it looked at a later row.
        if self.guessers[idx].has_given_up() {
            return;
        }
        let wanted = generating.iter_mut().zip(self.offers.iter().zip(&self.lengths));
        let wanted = wanted.filter(|(_, (offer, n))| offer.asked.guesser == idx && **n > 0);
        let mut rows = Vec::new();
        for (row, (offer, &n_drafts)) in wanted {
            self.asked.insert(row.id, offer.asked);
            rows.push(as_row(row, n_drafts));
        }
        if rows.is_empty() {
            return;
        }
        let made = self.guessers[idx].propose(&mut rows, odds);
        match made.has_failed {
            true => self.stats.n_failures += 1,
            false => self.stats.made(made.elapsed),
        }
    }

    /// Asks every proposer about every row and keeps the best offer for each. Returns the load of
    /// the plain step.
    fn look(&mut self, generating: &mut [Generating<'_>], cost: &StepCost) -> StepLoad {
        let mut load = StepLoad::default();
        for row in &*generating {
            load.add_rows(row.tokens.len() - 1, 1 + row.drafts.len(), 1);
        }
        let n_rows = generating.len();
        self.offers.clear();
        self.chances.clear();
        for row in generating {
            let (position, draft_ns, invests_for) = (row.tokens.len(), 0.0, None);
            let asked = Asked::NONE;
            let mut best = Looked { position, asked, chances: 0..0, draft_ns, invests_for };
            let mut most_worth = 0.0;
            // Nothing is guessed where the rule forces the next tokens.
            let n_guessers = if row.drafts.is_empty() { self.guessers.len() } else { 0 };
            for idx in 0..n_guessers {
                let Some(looked) = self.ask(idx, row) else { continue };
                let offer = looked.offer(&self.chances);
                let worth = match cost.is_known() {
                    true => lengths::worth(&offer, &load, n_rows, cost),
                    false => offer.chances.iter().copied().map(f64::from).sum(),
                };
                if worth > most_worth {
                    (best, most_worth) = (looked, worth);
                }
            }
            self.offers.push(best);
        }
        load
    }

    /// The offer of one guesser for a row, if it may and can make one.
    fn ask(&mut self, idx: usize, row: &mut Generating<'_>) -> Option<Looked> {
        let Bounds { most: bound, by, .. } = self.bounds_at(row.id);
        if bound == 0 || by.is_some_and(|only| only != idx) {
            return None;
        }
        let guesser = &mut self.guessers[idx];
        let abilities = guesser.abilities();
        self.n_candidates = self.n_candidates.max(abilities.n_candidates);
        let places = bound.min(self.config.max_drafts);
        let most = places.saturating_mul(abilities.rows_per_place).min(row.most_drafts);
        let Some((n_drafts, sure)) = guesser.look(&as_row(row, 0), most) else {
            self.stats.n_failures += 1;
            return None;
        };
        if n_drafts == 0 || guesser.has_given_up() {
            return None;
        }
        let start = self.chances.len();
        guesser.chances(row.id, sure, n_drafts.min(most), &mut self.chances);
        Some(Looked {
            position: row.tokens.len(),
            asked: Asked { guesser: idx, sure },
            chances: start..self.chances.len(),
            draft_ns: guesser.draft_ns(),
            invests_for: abilities.invests_for,
        })
    }

    /// Chooses how many drafts of each offer to make; now and then some that do not seem to pay.
    fn choose(&mut self, load: &StepLoad, n_rows: usize, cost: &StepCost) {
        let Self { offers, lengths, chances, .. } = self;
        if self.config.is_forced {
            lengths.clear();
            lengths.extend(offers.iter().map(|offer| offer.chances.len()));
            return;
        }
        let all: Vec<Offer<'_>> = offers.iter().map(|looked| looked.offer(chances)).collect();
        lengths::choose(&all, load, n_rows, cost, lengths);
        let is_plain = lengths.iter().all(|&n| n == 0);
        self.n_steps_without = if is_plain { self.n_steps_without + 1 } else { 0 };
        let any = offers.iter().position(|offer| !offer.chances.is_empty());
        let Some(i) = any.filter(|_| is_plain && cost.is_known()) else { return };
        let invests_for = offers[i].invests_for;
        if self.n_steps_without >= PROBE_AFTER {
            self.n_steps_without = 0;
            self.n_probes = invests_for.unwrap_or(PROBES);
        }
        if self.n_probes > 0 {
            self.n_probes -= 1;
            lengths[i] = if invests_for.is_some() { offers[i].chances.len() } else { 1 };
        }
    }
}

fn as_row<'a>(row: &'a mut Generating<'_>, n_drafts: usize) -> Row<'a> {
    Row { id: row.id, tokens: row.tokens, n_prompt: row.n_prompt, n_drafts, drafts: row.drafts }
}

/// Drafts no more for a request whose rule panicked: the executor would call the rule for each draft,
/// and a panic there ends the request.
fn rule_panicked(id: RequestId, bounds: &mut HashMap<RequestId, Bounds>, stats: &mut SpecStats) {
    stats.n_failures += 1;
    bounds.insert(id, Bounds { most: 0, ..Bounds::default() });
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::super::{Lookahead, Recycle};
    use super::*;
    use crate::Execution;
    use pelton_sched::{SchedulerConfig, Signals, StepOutput, StepUpdates, Tick};

    /// A row costs half of a step, which takes so long that making drafts takes no time.
    const DEAR: StepCost = StepCost {
        base_ps: 2_000_000_000_000,
        token_ps: 1_000_000_000_000,
        sample_ps: 0,
        attended_ps: 0,
        moved_block_ps: 0,
    };

    /// Drafts at each step, of a request that never comes a token further.
    fn drafts_at_steps(proposer: Box<dyn Proposer>, cost: &StepCost, n_steps: usize) -> Vec<usize> {
        let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 4));
        let mut speculation = Speculation::new(vec![proposer], SpecConfig::default());
        let asked = request(&[1, 2]);
        speculation.add(&asked);
        let (id, mut plan, mut updates) =
            (asked.id, SchedulerOutput::default(), StepUpdates::default());
        scheduler.add(asked);
        scheduler.schedule(Tick(0), &Signals::default(), &mut plan);
        let sampled = vec![(id, TokenId(2))];
        scheduler.update(&StepOutput { sampled, ..StepOutput::default() }, &mut updates);
        let step = |_| {
            speculation.draft(&mut scheduler, cost, None);
            let row = scheduler.generating().next().expect("it generates");
            let n_drafts = row.drafts.len();
            row.drafts.clear();
            n_drafts
        };
        (0..n_steps).map(step).collect()
    }

    /// Adds a request of this number, and computes its prompt and a token.
    fn generate(scheduler: &mut Scheduler, speculation: &mut Speculation, id: u64, most: usize) {
        let mut asked = request(&[7, 1]);
        asked.id = RequestId(id);
        asked.ask.service.drafting.most = Some(most);
        speculation.add(&asked);
        let (mut plan, mut updates) = (SchedulerOutput::default(), StepUpdates::default());
        scheduler.add(asked);
        scheduler.schedule(Tick(id), &Signals::default(), &mut plan);
        let all = plan.sequences.iter().map(|share| (share.id, TokenId(1)));
        let step = StepOutput { sampled: all.collect(), ..StepOutput::default() };
        // Of the last token of each share, 2 is the likeliest to follow.
        let candidates = plan.sequences.iter().flat_map(|_| (2..10).map(TokenId)).collect();
        let execution =
            Execution { step: step.clone(), candidates, n_candidates: 8, ..Execution::default() };
        speculation.learn(&plan, &execution);
        scheduler.update(&step, &mut updates);
    }

    #[test]
    fn a_step_is_timed_where_all_of_its_requests_may_have_the_same_drafts() {
        for (second, expected) in [(4, Some((None, 1))), (3, None), (0, None)] {
            let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 4));
            let mut speculation = Speculation::new(Vec::new(), SpecConfig::default());
            for (id, most) in [(1, 4), (2, second)] {
                generate(&mut scheduler, &mut speculation, id, most);
            }
            let generating: Vec<Generating<'_>> = scheduler.generating().collect();
            assert_eq!(generating.len(), 2);
            assert_eq!(speculation.kind_of(&generating), expected, "at most 4 and {second}");
        }
    }

    #[test]
    fn the_last_row_of_a_prompt_is_the_one_that_is_learned_from() {
        let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 4));
        let config = SpecConfig { is_forced: true, ..SpecConfig::default() };
        let mut speculation = Speculation::new(vec![Box::new(Recycle::default())], config);
        generate(&mut scheduler, &mut speculation, 1, 1);
        speculation.draft(&mut scheduler, &StepCost::default(), None);
        let row = scheduler.generating().next().expect("it generates");
        assert_eq!(row.drafts.tokens(), [TokenId(2)], "after 1, with which the prompt ends");
    }

    #[test]
    fn an_investment_that_does_not_seem_to_pay_is_tried_for_some_steps_in_a_row() {
        let drafts = drafts_at_steps(Box::new(Lookahead::default()), &DEAR, 200);
        let drafting: Vec<usize> = (0..drafts.len()).filter(|&i| drafts[i] > 0).collect();
        let first = PROBE_AFTER as usize - 1;
        assert_eq!(drafting[..16], (first..first + 16).collect::<Vec<_>>());
        assert!(drafting[16] > first + 16 && drafting.len() < 50, "{drafting:?}");
        // All of the window, not only its first row.
        assert!(drafts[first] > 1, "{drafts:?}");
        let cheap = StepCost { token_ps: 1_000_000_000, ..DEAR };
        let drafts = drafts_at_steps(Box::new(Lookahead::default()), &cheap, 10);
        assert!(drafts.iter().all(|&n| n > 1), "{drafts:?}");
        // A proposer without a guess drafts nothing, not even as a probe.
        assert_eq!(drafts_at_steps(Box::new(Recycle::default()), &DEAR, 200), [0; 200]);
    }
}
