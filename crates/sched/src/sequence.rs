//! The states of a request, as types: a transition consumes the old state and makes the new one.
//!
//! ```text
//! Waiting ──▶ Running ──▶ completed       Preempted ──▶ Loading ──▶ Running
//! ```
//!
//! A request that is *led* gets its tokens from the caller instead of from the model's samples. It
//! rests when all of its tokens are computed, until the next one is given to it.

use crate::kv::{Admission, Held, Host, Kv};
use crate::radix::common_prefix;
use crate::states::Marks;
use crate::{
    DraftTree, LaneShare, PromptSize, Rows, ScheduledSequence, SchedulerConfig, SchedulerOutput,
    SequenceUpdate, StateConfig, StepLoad, Tick, TransferId,
};
use pelton_base::{FinishReason, Namespace, RequestId, Slo, Source, TokenId, Usage};

/// Place in the order of service; the smaller goes first and is preempted last.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Standing {
    rank: i64,
    /// Rank by arrival; smaller is older.
    pub(crate) arrival: u64,
    /// Rank among the branches of one arrival; zero for the request that arrived.
    branch: u64,
}

impl Standing {
    pub(crate) fn new(rank: i64, arrival: u64) -> Self {
        // The least rank is kept for requests that waited too long.
        Self { rank: rank.max(i64::MIN + 1), arrival, branch: 0 }
    }

    /// The place behind this request and its earlier branches, ahead of later arrivals.
    pub(crate) fn branch(self, branch: u64) -> Self {
        Self { branch, ..self }
    }

    /// Order of arrival, branches behind the request that they branched from.
    pub(crate) fn age(self) -> (u64, u64) {
        (self.arrival, self.branch)
    }

    /// The rank that the policy gave.
    pub(crate) fn rank(self) -> i64 {
        self.rank
    }

    /// The same request ahead of every request that is not promoted.
    pub(crate) fn promoted(self) -> Self {
        Self { rank: i64::MIN, ..self }
    }

    pub(crate) fn is_promoted(self) -> bool {
        self.rank == i64::MIN
    }

    /// Whether this request may take the place of the other: its rank is better. An earlier arrival
    /// alone does not count.
    pub(crate) fn outranks(self, other: Self) -> bool {
        self.rank < other.rank
    }
}

/// The part of a request that stays through all its states.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) standing: Standing,
    pub(crate) arrived_at: Tick,
    /// Index in the table of tenants.
    pub(crate) tenant: usize,
    pub(crate) namespace: Namespace,
    /// Its own latency targets, or those of its tenant.
    pub(crate) slo: Slo,
    pub(crate) fork_of: Option<RequestId>,
    /// Whether the caller gives it its tokens.
    pub(crate) is_led: bool,
    /// Whether its prompt is scored: it computes every row of it, and shares no KV.
    pub(crate) is_scored: bool,
    /// Prompt, then output.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) n_prompt: usize,
    /// The beginning of the prompt that an encoder reads: computed in one step or not at all.
    pub(crate) source: Source,
    pub(crate) max_tokens: usize,
    pub(crate) stop_tokens: Vec<TokenId>,
    /// Prompt tokens found in the cache at the first admission; `None` before it.
    pub(crate) n_cached: Option<usize>,
    /// Tokens at its beginning that were expected in the cache when it came.
    pub(crate) n_expected: usize,
    /// Drafts that were accepted.
    pub(crate) n_accepted: usize,
    /// Drafts that were rejected.
    pub(crate) n_rejected: usize,
    /// When the first plan after its first token was made.
    pub(crate) first_token_at: Option<Tick>,
}

impl Sequence {
    /// Most tokens that it can come to hold.
    pub(crate) fn most_tokens(&self, context: usize) -> usize {
        self.n_prompt.saturating_add(self.max_tokens).min(context)
    }

    /// Most drafts that are of use: a step brings one more token than accepted drafts. They end
    /// where the recurrent layers need them to end.
    pub(crate) fn most_drafts(&self, config: &SchedulerConfig) -> usize {
        let n_known = self.tokens.len();
        let n_more = self.most_tokens(config.context_tokens()).saturating_sub(n_known + 1);
        n_more.min(config.draft_room(n_known))
    }

    /// Removes the drafts that the next step cannot verify.
    ///
    /// Recurrent layers compute the rows of a tree within one chunk. The last known token is one of
    /// these rows. Where it ends a chunk, the drafts lie in the next one, and only the chain that
    /// the tree begins with is kept.
    pub(crate) fn trim(&self, drafts: &mut DraftTree, config: &SchedulerConfig) {
        drafts.truncate(self.most_drafts(config));
        let ends_chunk = |states: &StateConfig| self.tokens.len().is_multiple_of(states.chunk);
        if config.states.as_ref().is_some_and(ends_chunk) {
            drafts.keep_chain();
        }
    }

    /// Its tokens, as they count while it waits.
    pub(crate) fn size(&self) -> PromptSize {
        PromptSize { n_tokens: self.tokens.len(), n_cached: self.n_expected }
    }

    pub(crate) fn n_generated(&self) -> usize {
        self.tokens.len() - self.n_prompt
    }

    /// Another request that goes on with `token` after the same tokens.
    pub(crate) fn branch(&self, id: RequestId, token: TokenId) -> Self {
        let mut tokens = Vec::with_capacity(self.tokens.len() + 1);
        tokens.extend_from_slice(&self.tokens);
        tokens.push(token);
        Self {
            id,
            standing: self.standing.branch(id.0),
            arrived_at: self.arrived_at,
            tenant: self.tenant,
            namespace: self.namespace,
            slo: self.slo,
            fork_of: Some(self.id),
            is_led: self.is_led,
            is_scored: false,
            tokens,
            n_prompt: self.n_prompt,
            source: self.source,
            max_tokens: self.max_tokens,
            stop_tokens: self.stop_tokens.clone(),
            n_cached: None,
            n_expected: self.tokens.len(),
            n_accepted: 0,
            n_rejected: 0,
            first_token_at: None,
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.source.n_sent(self.n_prompt),
            completion_tokens: self.n_generated(),
            cached_tokens: self.n_cached.unwrap_or(0).min(self.source.n_sent(self.n_prompt)),
            accepted_prediction_tokens: self.n_accepted,
            rejected_prediction_tokens: self.n_rejected,
            // The scheduler knows no text.
            reasoning_tokens: 0,
        }
    }

    /// Appends sampled tokens up to the one that ends the sequence, if one does.
    fn append(
        &mut self,
        sampled: impl Iterator<Item = TokenId>,
        context: usize,
    ) -> Option<FinishReason> {
        for token in sampled {
            self.tokens.push(token);
            if self.stop_tokens.contains(&token) {
                return Some(FinishReason::Stop);
            }
            if self.n_generated() >= self.max_tokens || self.tokens.len() >= context {
                return Some(FinishReason::Length);
            }
        }
        None
    }
}

/// Never ran; holds no blocks.
#[derive(Debug)]
pub(crate) struct Waiting(pub(crate) Sequence);

/// Ran, and gave its blocks up. KV that was not copied to the host will be computed anew.
#[derive(Debug)]
pub(crate) struct Preempted {
    pub(crate) sequence: Sequence,
    /// Its KV in the swap store.
    pub(crate) host: Option<Host>,
}

/// One of the two states in which a request waits for blocks.
#[derive(Debug)]
pub(crate) enum Parked {
    Waiting(Waiting),
    Preempted(Preempted),
}

impl Parked {
    pub(crate) fn sequence(&self) -> &Sequence {
        match self {
            Self::Waiting(waiting) => &waiting.0,
            Self::Preempted(preempted) => &preempted.sequence,
        }
    }

    pub(crate) fn sequence_mut(&mut self) -> &mut Sequence {
        match self {
            Self::Waiting(waiting) => &mut waiting.0,
            Self::Preempted(preempted) => &mut preempted.sequence,
        }
    }

    pub(crate) fn host(&self) -> Option<&Host> {
        match self {
            Self::Waiting(_) => None,
            Self::Preempted(preempted) => preempted.host.as_ref(),
        }
    }

    pub(crate) fn into_parts(self) -> (Sequence, Option<Host>) {
        match self {
            Self::Waiting(waiting) => (waiting.0, None),
            Self::Preempted(preempted) => (preempted.sequence, preempted.host),
        }
    }
}

/// Holds blocks whose KV is on its way from the host; it is not computed until the KV is there.
#[derive(Debug)]
pub(crate) struct Loading {
    /// The sequence as it will run.
    pub(crate) running: Running,
    pub(crate) transfer: TransferId,
}

/// A sequence's share of the plan that `update` has not answered yet.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// Known tokens among those planned.
    n_known: usize,
    n_drafts: usize,
    /// Longest path of its drafts.
    n_deep: usize,
    samples: bool,
    /// Its index among the plan's sequences.
    share: usize,
}

/// Holds blocks for its tokens and is computed.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) held: Held,
    /// Tokens whose KV exists.
    pub(crate) n_computed: usize,
    /// Tokens that it had at its admission; while fewer are computed it is catching up.
    n_at_admission: usize,
    /// Guesses at the tokens that follow, for the next plan.
    pub(crate) drafts: DraftTree,
    /// Borders at which its state is kept; none without recurrent layers.
    pub(crate) marks: Marks,
    in_flight: Option<InFlight>,
}

impl Running {
    /// Starts a sequence that was admitted.
    pub(crate) fn new(
        mut sequence: Sequence,
        admission: Admission,
        marks: Marks,
        context: usize,
    ) -> Self {
        let Admission { held, n_computed, n_shared, .. } = admission;
        let n_more = sequence.most_tokens(context) - sequence.tokens.len();
        sequence.tokens.reserve_exact(n_more);
        sequence.n_cached.get_or_insert(n_shared.min(sequence.n_prompt));
        let n_at_admission = sequence.tokens.len();
        Self {
            sequence,
            held,
            n_computed,
            n_at_admission,
            drafts: DraftTree::default(),
            marks,
            in_flight: None,
        }
    }

    /// Whether drafts may follow its last known token in the next step.
    pub(crate) fn takes_drafts(&self) -> bool {
        !self.is_catching_up() && !self.is_in_flight() && !self.sequence.is_led
    }

    /// Tokens for which it needs blocks in the next step, at least: those of a prompt have theirs, but for
    /// layers with a window.
    pub(crate) fn n_tokens_next(&self) -> usize {
        let n_tokens = self.sequence.tokens.len();
        if self.is_catching_up() { n_tokens.min(self.n_computed + 1) } else { n_tokens }
    }

    /// Adds its next `n_known` tokens and its drafts to a plan. The table must already hold blocks
    /// for them.
    pub(crate) fn plan(&mut self, n_known: usize, kv: &Kv, output: &mut SchedulerOutput) {
        assert!(n_known > 0, "an empty share of a step");
        let end = self.n_computed + n_known;
        let samples = end == self.sequence.tokens.len();
        assert!(samples || self.drafts.is_empty(), "drafts follow the last known token");
        let (n_drafts, n_deep) = (self.drafts.len(), self.drafts.depth());
        let share = output.sequences.len();
        self.in_flight = Some(InFlight { n_known, n_drafts, n_deep, samples, share });
        let SchedulerOutput { sequences, tokens, parents, blocks, load, .. } = output;
        let (first_token, first_block, first_parent) = (tokens.len(), blocks.len(), parents.len());
        tokens.extend_from_slice(&self.sequence.tokens[self.n_computed..end]);
        tokens.extend_from_slice(self.drafts.tokens());
        if !self.drafts.is_chain() {
            // The known tokens are a chain; drafts without a parent follow its end.
            let known = (0..n_known).map(|row| row.checked_sub(1));
            let drafts = (0..n_drafts).map(|idx| match self.drafts.parent(idx) {
                None => Some(n_known - 1),
                Some(parent) => Some(n_known + parent),
            });
            let rows = known.chain(drafts);
            parents.extend(rows.map(|row| row.map_or(Rows::ROOT, |row| row as u32)));
        }
        self.drafts.clear();
        kv.write_tables(&self.held, blocks);
        let n_samples = self.n_samples(n_known, samples, n_drafts);
        load.add_rows(self.n_computed, n_known + n_drafts, n_samples);
        sequences.push(ScheduledSequence {
            id: self.sequence.id,
            tokens: first_token..tokens.len(),
            parents: first_parent..parents.len(),
            first_position: self.n_computed,
            blocks: first_block..blocks.len(),
            samples,
            n_drafts,
            n_source: self.sequence.source.n_tokens,
            n_generated: self.sequence.n_generated(),
            lane: self.held.lane.as_ref().map(|lane| LaneShare {
                lane: lane.id,
                border: lane.border,
                saves: 0..0,
            }),
        });
    }

    /// Names the snapshots that its share of the plan fills.
    pub(crate) fn plan_saves(&self, output: &mut SchedulerOutput) {
        let Some(in_flight) = self.in_flight else { return };
        if let Some(lane) = &mut output.sequences[in_flight.share].lane {
            let first = output.saves.len();
            output.saves.extend_from_slice(&self.marks.taken);
            lane.saves = first..output.saves.len();
        }
    }

    /// Rows of a share whose logits are computed.
    fn n_samples(&self, n_known: usize, samples: bool, n_drafts: usize) -> usize {
        let n_sampled = if samples { n_drafts + 1 } else { 0 };
        let Sequence { is_scored, n_prompt, .. } = self.sequence;
        let n_unscored = if is_scored { (n_prompt - 1).saturating_sub(self.n_computed) } else { 0 };
        n_sampled + n_unscored.min(n_known)
    }

    /// The work that its share of the plan asks of the machine; `None` when it has no share.
    pub(crate) fn load(&self) -> Option<StepLoad> {
        let InFlight { n_known, n_drafts, samples, .. } = self.in_flight?;
        let mut load = StepLoad::default();
        let n_samples = self.n_samples(n_known, samples, n_drafts);
        load.add_rows(self.n_computed, n_known + n_drafts, n_samples);
        Some(load)
    }

    /// Takes in the outcome of its share of the step and adds its new tokens to `new_tokens`;
    /// `None` when it had no share or there is no news.
    pub(crate) fn absorb(
        &mut self,
        sampled: impl ExactSizeIterator<Item = TokenId>,
        failed: bool,
        context: usize,
        new_tokens: &mut Vec<TokenId>,
    ) -> Option<SequenceUpdate> {
        let in_flight = self.in_flight.take()?;
        let InFlight { n_known, n_drafts, n_deep, samples, .. } = in_flight;
        if let (Some(lane), false) = (&mut self.held.lane, failed) {
            lane.computed(self.n_computed + n_known + n_drafts - 1);
        }
        let n_before = self.sequence.tokens.len();
        let n_sampled = sampled.len();
        let finish = match (samples, n_sampled) {
            _ if failed => Some(FinishReason::Error),
            // The token that follows comes from the caller, whatever was sampled.
            (true, _) if self.sequence.is_led => {
                self.n_computed += n_known;
                None
            }
            // The last sampled token has no KV yet; the drafts before it were right.
            (true, 1..) if n_sampled <= n_deep + 1 => {
                self.n_computed += n_known + n_sampled - 1;
                let finish = self.sequence.append(sampled, context);
                // Drafts may go on beyond the token that ends the answer.
                let n_accepted = (n_sampled - 1).min(self.sequence.tokens.len() - n_before);
                self.sequence.n_accepted += n_accepted;
                self.sequence.n_rejected += n_drafts - n_accepted;
                self.n_computed = self.n_computed.min(self.sequence.tokens.len());
                finish
            }
            (false, 0) => {
                self.n_computed += n_known;
                return None;
            }
            _ => Some(FinishReason::Error),
        };
        let first = new_tokens.len();
        new_tokens.extend_from_slice(&self.sequence.tokens[n_before..]);
        Some(SequenceUpdate {
            id: self.sequence.id,
            new_tokens: first..new_tokens.len(),
            finish,
            usage: self.sequence.usage(),
        })
    }

    /// Known tokens that have KV, and those that have it after the plan in flight.
    pub(crate) fn n_planned(&self) -> usize {
        self.n_computed + self.in_flight.map_or(0, |in_flight| in_flight.n_known)
    }

    /// Whether its state at a border is still to come, or comes with the plan in flight.
    pub(crate) fn passes(&self, border: usize) -> bool {
        let is_behind = self.held.lane.as_ref().is_some_and(|lane| lane.border < border);
        is_behind && border >= self.n_computed
    }

    /// The last border that it passes within the tokens that it shares with another sequence, whose
    /// last token does not count: it has to be computed for the logits after it.
    pub(crate) fn common_border(&self, states: &StateConfig, other: &[TokenId]) -> usize {
        let n_common = common_prefix(self.prompt(), &other[..other.len() - 1]);
        // The row at the border is computed too; with it the state is folded.
        states.border(n_common.min(self.n_at_admission - 1))
    }

    /// Whether a border is to be passed by a later plan.
    pub(crate) fn is_ahead(&self, border: usize) -> bool {
        self.passes(border) && border >= self.n_planned()
    }

    /// The known tokens that it computes before it generates.
    pub(crate) fn prompt(&self) -> &[TokenId] {
        &self.sequence.tokens[..self.n_at_admission]
    }

    /// Known tokens without KV.
    pub(crate) fn n_remaining(&self) -> usize {
        self.sequence.tokens.len() - self.n_computed
    }

    /// Whether it still computes the tokens that it was admitted with.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.n_computed < self.n_at_admission
    }

    /// Whether all of its tokens are computed and the caller has to give it the next one.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.n_remaining() == 0
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }
}
