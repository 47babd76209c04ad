//! From rows that generate to drafts, and from outcomes to better guesses.

use super::acceptance::Acceptance;
use super::lengths::{self, Offer};
use super::rules::Rules;
use super::stats::PlainStep;
use super::trial::{Kind, Trials};
use super::{Odds, Proposer, Row, Seen, SpecConfig, SpecStats};
use crate::Execution;
use pelton_base::{Drafting, Request, RequestId, TokenId};
use pelton_sched::{Generating, Rows, Scheduler, SchedulerOutput, StepCost, StepLoad};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// What is believed of the first draft of a proposer before anything was seen.
const PRIOR: f32 = 0.5;
/// How many drafts of an investment are believed to be right before anything was seen.
const PRIOR_OF_WHOLE: f32 = 1.0;
/// Matches of 1, 2 to 3, 4 to 7, ... tokens are judged apart.
const N_SURE: usize = 6;
/// Steps without drafts after which one is tried, to see whether they pay by now.
const PROBE_AFTER: u32 = 64;
/// Steps in a row for which it is tried: whoever has fallen behind catches up in the first.
const PROBES: u32 = 2;
/// Failures after which a proposer is let be.
const MOST_FAILURES: u32 = 3;

/// Proposers, and what is known of how well each guesses.
#[derive(Debug)]
pub struct Speculation {
    guessers: Vec<Guesser>,
    config: SpecConfig,
    rules: Rules,
    /// Of requests that do not leave it to the engine.
    bounds: HashMap<RequestId, Bounds>,
    /// Who drafted for whom in the plan that is being carried out.
    asked: HashMap<RequestId, Asked>,
    /// What that plan would be without drafts.
    plain: PlainStep,
    offers: Vec<Looked>,
    /// Of all offers, one after the other.
    chances: Vec<f32>,
    lengths: Vec<usize>,
    n_candidates: usize,
    /// Whether drafting pays at all, by the clock, and the kind of the step that is being made.
    trials: Trials,
    kind: Option<Kind>,
    n_steps_without: u32,
    /// Steps for which what does not seem to pay is tried still.
    n_probes: u32,
    /// Drafts before each row, accepted rows and new tokens of one share.
    depths: Vec<usize>,
    accepted: Vec<usize>,
    sampled: Vec<TokenId>,
    stats: SpecStats,
}

/// One proposer.
#[derive(Debug)]
struct Guesser {
    proposer: Box<dyn Proposer>,
    /// By how sure it was, over all requests.
    experience: [Acceptance; N_SURE],
    /// Likewise, of each request alone: a long match in it says nothing of a short one.
    sequences: HashMap<RequestId, [Acceptance; N_SURE]>,
    /// Mean time of a draft, in nanoseconds.
    draft_ns: f64,
    n_failures_in_a_row: u32,
}

/// How far the tokens of a request are guessed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Bounds {
    most: usize,
    /// The only one who may; `None` for all.
    by: Option<usize>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { most: usize::MAX, by: None }
    }
}

/// Whose drafts are being verified.
#[derive(Clone, Copy, Debug)]
struct Asked {
    guesser: usize,
    /// The class of how sure it was.
    sure: usize,
}

/// The best offer for a row.
#[derive(Debug)]
struct Looked {
    position: usize,
    asked: Asked,
    /// Which of all chances are its own.
    chances: Range<usize>,
    draft_ns: f64,
    /// Steps over which all of them pay, where they are made all or none.
    invests_for: Option<u32>,
}

impl Guesser {
    fn gave_up(&self) -> bool {
        self.n_failures_in_a_row >= MOST_FAILURES
    }

    /// Probability of each of `n_drafts` drafts that it and all that it follows are right.
    fn chances(&self, id: RequestId, sure: usize, n_drafts: usize, chances: &mut Vec<f32>) {
        let own = self.sequences.get(&id).map(|own| own[sure]).unwrap_or_default();
        if self.proposer.invests_for().is_some() {
            let n_right = own.at(0, self.experience[sure].at(0, PRIOR_OF_WHOLE));
            chances.extend(std::iter::repeat_n(n_right / n_drafts as f32, n_drafts));
            return;
        }
        let branches = self.proposer.branches();
        let mut path = 1.0;
        for place in 0..n_drafts {
            // In a tree the later ones are there in case the earlier ones are wrong.
            let prior = if branches { PRIOR / (place + 1) as f32 } else { PRIOR };
            let rate = own.at(place, self.experience[sure].at(place, prior));
            path *= rate;
            chances.push(if branches { rate } else { path });
        }
    }

    /// Of its drafts those in the `accepted` rows were right.
    fn learn(&mut self, id: RequestId, sure: usize, n_drafts: usize, accepted: &[usize]) {
        let Self { proposer, experience, sequences, .. } = self;
        let own = sequences.get_mut(&id).map(|own| &mut own[sure]);
        let judges = [own, Some(&mut experience[sure])];
        for acceptance in judges.into_iter().flatten() {
            match (proposer.invests_for(), proposer.branches()) {
                (Some(_), _) => acceptance.saw_whole(accepted.len()),
                (None, true) => acceptance.saw_tree(n_drafts, accepted),
                (None, false) => acceptance.saw_chain(n_drafts, accepted.len()),
            }
        }
    }

    fn made(&mut self, n_drafts: usize, elapsed: Duration) {
        if n_drafts > 0 {
            let each = elapsed.as_nanos() as f64 / n_drafts as f64;
            self.draft_ns += 0.1 * (each - self.draft_ns);
        }
    }
}

impl Looked {
    fn offer<'a>(&self, chances: &'a [f32]) -> Offer<'a> {
        let chances = &chances[self.chances.clone()];
        let is_whole = self.invests_for.is_some();
        Offer { position: self.position, chances, draft_ns: self.draft_ns, is_whole }
    }
}

impl Speculation {
    /// Speculates with whichever of the proposers promises most.
    pub fn new(proposers: Vec<Box<dyn Proposer>>, config: SpecConfig) -> Self {
        let guesser = |proposer| Guesser {
            proposer,
            experience: Default::default(),
            sequences: HashMap::new(),
            draft_ns: 0.0,
            n_failures_in_a_row: 0,
        };
        Self {
            guessers: proposers.into_iter().map(guesser).collect(),
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

    /// What happened so far.
    pub fn stats(&self) -> SpecStats {
        self.stats
    }

    /// How many of the likeliest tokens after each row somebody wants to see who may draft for one of
    /// those that generate now.
    pub fn n_candidates(&self) -> usize {
        self.n_candidates
    }

    /// Meets a request.
    pub fn add(&mut self, request: &Request) {
        self.rules.add(request);
        let drafting = request.ask.service.drafting;
        if drafting != Drafting::default() {
            let bounds = self.bounds_of(drafting);
            self.bounds.insert(request.id, bounds);
        }
        for guesser in &mut self.guessers {
            guesser.sequences.insert(request.id, Default::default());
            guesser.proposer.add(request);
        }
    }

    /// Forgets a request.
    pub fn finished(&mut self, id: RequestId) {
        self.asked.remove(&id);
        self.rules.finished(id);
        self.bounds.remove(&id);
        for guesser in &mut self.guessers {
            guesser.sequences.remove(&id);
            guesser.proposer.finished(id);
        }
    }

    fn bounds_at(&self, id: RequestId) -> Bounds {
        self.bounds.get(&id).copied().unwrap_or_default()
    }

    fn bounds_of(&self, Drafting { most, by }: Drafting) -> Bounds {
        let guesser = |name| self.guessers.iter().position(|known| known.proposer.name() == name);
        // Nobody has the last index there is.
        let by = by.map(|name| guesser(name).unwrap_or(usize::MAX));
        Bounds { most: most.unwrap_or(usize::MAX), by }
    }

    /// Gives drafts to those that generate, as far as they are worth it.
    ///
    /// `odds` are there where drafts are judged by them, see [`Proposer::propose`].
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
        if self.guessers.iter().all(Guesser::gave_up) {
            return;
        }
        let mut generating: Vec<Generating<'_>> = scheduler.generating().collect();
        if generating.is_empty() {
            return;
        }
        self.kind = self.kind_of(&generating);
        if self.kind.is_some_and(|kind| !self.trials.allow(kind)) {
            return;
        }
        let load = self.look(&mut generating, cost);
        self.plain = PlainStep::new(&load, generating.len(), cost);
        self.choose(&load, generating.len(), cost);
        for idx in 0..self.guessers.len() {
            let wanted = generating.iter_mut().zip(self.offers.iter().zip(&self.lengths));
            let wanted = wanted.filter(|(_, (offer, n))| offer.asked.guesser == idx && **n > 0);
            let (mut rows, mut asked) = (Vec::new(), Vec::new());
            for (row, (offer, &n_drafts)) in wanted {
                asked.push((row.id, offer.asked));
                rows.push(as_row(row, n_drafts));
            }
            if !rows.is_empty() {
                self.asked.extend(asked);
                self.propose(idx, &mut rows, odds.as_deref_mut());
            }
        }
        for row in generating.iter_mut().filter(|row| !row.drafts.is_empty()) {
            self.rules.prune(row);
        }
    }

    /// What a step is, where all of its requests may be drafted for, and by the same.
    fn kind_of(&self, generating: &[Generating<'_>]) -> Option<Kind> {
        let mut bounds = generating.iter().map(|row| self.bounds_at(row.id));
        let first = bounds.next()?;
        let is_timed =
            first.most > 0 && bounds.all(|other| other == first) && !self.config.is_forced;
        is_timed.then(|| (first.by, generating.len().ilog2()))
    }

    /// The step of a plan took `elapsed` in all, drafting included, and brought so many tokens.
    pub fn stepped(&mut self, plan: &SchedulerOutput, n_tokens: usize, elapsed: Duration) {
        let decodes = plan.sequences.iter().all(|share| share.samples && share.n_generated > 0);
        if let Some(kind) = self.kind.filter(|_| decodes) {
            self.trials.stepped(kind, n_tokens, elapsed);
        }
    }

    fn propose(&mut self, idx: usize, rows: &mut [Row<'_>], odds: Option<&mut Odds>) {
        let guesser = &mut self.guessers[idx];
        let catches_up = rows.iter().any(|row| guesser.proposer.is_catching_up(row));
        let started = Instant::now();
        if let Err(error) = guesser.proposer.propose(rows, odds) {
            self.stats.n_failures += 1;
            guesser.n_failures_in_a_row += 1;
            let gives_up = guesser.gave_up();
            tracing::warn!(%error, gives_up, "decoding goes on without drafts");
            rows.iter_mut().for_each(|row| row.drafts.clear());
            return;
        }
        guesser.n_failures_in_a_row = 0;
        let elapsed = started.elapsed();
        let mut n_drafts = 0;
        for row in rows {
            row.drafts.truncate(row.n_drafts);
            n_drafts += row.drafts.len();
        }
        self.stats.made(elapsed);
        if !catches_up {
            guesser.made(n_drafts, elapsed);
        }
    }

    /// Asks every proposer about every row, and keeps the best offer for each; what the plain step
    /// would hold.
    fn look(&mut self, generating: &mut [Generating<'_>], cost: &StepCost) -> StepLoad {
        let mut load = StepLoad::default();
        for row in &*generating {
            load.add_rows(row.tokens.len() - 1, 1, 1);
        }
        let n_rows = generating.len();
        self.offers.clear();
        self.chances.clear();
        for row in generating {
            let Bounds { most: bound, by } = self.bounds_at(row.id);
            let position = row.tokens.len();
            let nobody = Asked { guesser: usize::MAX, sure: 0 };
            let (draft_ns, invests_for) = (0.0, None);
            let mut best = Looked { position, asked: nobody, chances: 0..0, draft_ns, invests_for };
            let mut most_worth = 0.0;
            for (idx, guesser) in self.guessers.iter_mut().enumerate() {
                if bound == 0 || by.is_some_and(|only| only != idx) {
                    continue;
                }
                self.n_candidates = self.n_candidates.max(guesser.proposer.n_candidates());
                let most = guesser.proposer.most_drafts(bound.min(self.config.max_drafts));
                let most = most.min(row.most_drafts);
                let (n_drafts, n_matched) = guesser.proposer.look(&as_row(row, 0), most);
                if n_drafts == 0 || guesser.gave_up() {
                    continue;
                }
                let (sure, start) = (sure(n_matched), self.chances.len());
                guesser.chances(row.id, sure, n_drafts.min(most), &mut self.chances);
                let chances = start..self.chances.len();
                let (asked, draft_ns) = (Asked { guesser: idx, sure }, guesser.draft_ns);
                let invests_for = guesser.proposer.invests_for();
                let looked = Looked { position, asked, chances, draft_ns, invests_for };
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

    /// Learns from what came of a plan.
    pub fn learn(&mut self, plan: &SchedulerOutput, execution: &Execution) {
        self.count_late_drafts(plan, execution.drafting);
        let (mut sampled, mut candidates) =
            (&execution.step.sampled[..], &execution.candidates[..]);
        for share in plan.sequences.iter().filter(|share| share.samples) {
            let n_sampled = sampled.iter().take_while(|(id, _)| *id == share.id).count();
            let (own, rest) = sampled.split_at(n_sampled);
            sampled = rest;
            let n_likely = (share.n_drafts + 1) * execution.n_candidates;
            let (likely, rest) = candidates.split_at(n_likely.min(candidates.len()));
            candidates = rest;
            let all = plan.rows_of(share);
            let rows = Rows { tokens: &all.tokens[all.tokens.len() - 1 - share.n_drafts..], ..all };
            self.sampled.clear();
            self.sampled.extend(own.iter().map(|(_, token)| *token));
            if n_sampled > 0 {
                let position = share.first_position + all.tokens.len() - share.n_drafts;
                self.learn_of((share.id, position), rows, likely, execution.n_candidates);
            }
        }
    }

    /// Learns from one share, the first of whose drafts is at `position`; `self.sampled` are its new
    /// tokens.
    fn learn_of(
        &mut self,
        (id, position): (RequestId, usize),
        rows: Rows<'_>,
        candidates: &[TokenId],
        n_candidates: usize,
    ) {
        let n_drafts = rows.tokens.len() - 1;
        self.accepted.clear();
        let mut row = 0;
        for &token in &self.sampled[..self.sampled.len() - 1] {
            // A late draft is known to be right by what was sampled after it, and is in a chain.
            row = rows.draft_after(row, token).unwrap_or(row + 1);
            self.accepted.push(row);
        }
        let accepted = &self.accepted[..];
        if let (Some(asked), true) = (self.asked.get(&id), n_drafts > 0) {
            self.guessers[asked.guesser].learn(id, asked.sure, n_drafts, accepted);
            self.depths.clear();
            self.depths.push(0);
            for row in 1..=n_drafts {
                let parent = rows.parents.map_or(row - 1, |parents| parents[row] as usize);
                self.depths.push(self.depths[parent] + 1);
            }
            // From here on as many as are before it among the drafts.
            self.depths.iter_mut().for_each(|depth| *depth = depth.saturating_sub(1));
            self.stats.verified(&self.depths[1..], accepted.len(), position, &self.plain);
        }
        let sampled = &self.sampled[..];
        let seen = Seen { id, rows, accepted, sampled, candidates, n_candidates };
        for guesser in &mut self.guessers {
            guesser.proposer.observe(&seen);
        }
    }

    /// The executor took `elapsed` to make the drafts that it makes itself.
    fn count_late_drafts(&mut self, plan: &SchedulerOutput, elapsed: Duration) {
        let Some(late) = self.guessers.iter().position(|guesser| guesser.proposer.is_late()) else {
            return;
        };
        let is_late = |id| self.asked.get(id).is_some_and(|asked| asked.guesser == late);
        let shares = plan.sequences.iter().filter(|share| is_late(&share.id));
        let n_drafts = shares.map(|share| share.n_drafts).sum();
        self.guessers[late].made(n_drafts, elapsed);
        self.stats.made(elapsed);
    }
}

fn as_row<'a>(row: &'a mut Generating<'_>, n_drafts: usize) -> Row<'a> {
    Row { id: row.id, tokens: row.tokens, n_prompt: row.n_prompt, n_drafts, drafts: row.drafts }
}

/// The class of a match of this length.
fn sure(n_matched: usize) -> usize {
    (n_matched.max(1).ilog2() as usize).min(N_SURE - 1)
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::super::{Lookahead, Recycle};
    use super::*;
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
        scheduler.update(&StepOutput { sampled, failed: Vec::new() }, &mut updates);
        let step = |_| {
            speculation.draft(&mut scheduler, cost, None);
            let row = scheduler.generating().next().expect("it generates");
            let n_drafts = row.drafts.len();
            row.drafts.clear();
            n_drafts
        };
        (0..n_steps).map(step).collect()
    }

    #[test]
    fn what_short_matches_get_wrong_says_nothing_of_long_ones() {
        let (suffix, id) = (Box::new(super::super::Suffix::default()), RequestId(1));
        let mut speculation = Speculation::new(vec![suffix], SpecConfig::default());
        let guesser = &mut speculation.guessers[0];
        guesser.sequences.insert(id, Default::default());
        for _ in 0..20 {
            guesser.learn(id, 0, 3, &[]);
            guesser.learn(id, 4, 3, &[1, 2, 3]);
        }
        let chances = |sure| {
            let mut chances = Vec::new();
            guesser.chances(id, sure, 3, &mut chances);
            chances
        };
        assert!(chances(0)[0] < 0.1, "{:?}", chances(0));
        assert!(chances(4)[2] > 0.7, "{:?}", chances(4));
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
        // Who knows nothing drafts nothing, not even to try.
        assert_eq!(drafts_at_steps(Box::new(Recycle::default()), &DEAR, 200), [0; 200]);
    }
}
