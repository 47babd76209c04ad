//! The sampling state of one request, kept between its tokens.

use crate::stages::{MirostatState, Plan};
use crate::{
    Allowed, BadWords, DryPenalty, LogitBias, LogitsProcessor, LogprobsMode, Masked, MinTokens,
    Penalties, Philox, Suppressed,
};
use pelton_base::{Ask, Constraint, Request, RuleState, SamplingParams, TokenId};

/// The parameters, processors and random numbers of one request.
pub struct SamplerState {
    pub(crate) plan: Plan,
    pub(crate) mirostat: Option<MirostatState>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) logprobs_mode: LogprobsMode,
    pub(crate) rng: Philox,
    pub(crate) processors: Vec<Box<dyn LogitsProcessor>>,
    /// Leading processors that make no token impossible: bias, penalties, DRY.
    n_mild: usize,
    /// Applies after all processors, so that none of them can allow what it forbids.
    pub(crate) rule: Option<Masked>,
}

impl SamplerState {
    /// Starts a request with everything that shapes its tokens: its parameters, `min_tokens`, and
    /// its rule.
    pub fn of(request: &Request) -> Self {
        Self::ruled(request, request.ask.constraint.as_ref().map(|constraint| constraint.begin()))
    }

    /// The state of a proposer that drafts for the request: without log probabilities, and with its
    /// rule only where that binds drafts.
    pub fn of_drafts(request: &Request) -> Self {
        let rule = request.ask.constraint.as_ref().and_then(Constraint::begin_for_drafts);
        Self { logprobs: None, ..Self::ruled(request, rule) }
    }

    fn ruled(request: &Request, rule: Option<Box<dyn RuleState>>) -> Self {
        let Ask { sampling, prompt, choice, stop_tokens, service, .. } = &request.ask;
        // Penalties count the decoder's own tokens, not those that an encoder reads.
        let mut state = Self::new(sampling, &prompt[service.source.end()..], *choice);
        let min_tokens = MinTokens::new(sampling.min_tokens, stop_tokens.clone());
        if !min_tokens.preserves_argmax() {
            state.push_processor(Box::new(min_tokens));
        }
        state.rule = rule.map(Masked::new);
        state
    }

    /// Starts a sequence, or one choice of it, from its parameters alone. `min_tokens` is not
    /// applied, because only a request knows the tokens that end it; see [`of`](Self::of). `params`
    /// are valid (see [`SamplingParams::validate`]); nonsense gives nonsense tokens but no panic.
    pub fn new(params: &SamplingParams, prompt: &[TokenId], choice: u32) -> Self {
        let plan = Plan::new(params);
        let mirostat = params.mirostat.filter(|_| plan.staged.is_some());
        let mut processors = mild_processors(params, prompt);
        let n_mild = processors.len();
        if !params.suppressed.is_empty() {
            processors.push(Box::new(Suppressed::new(params.suppressed.clone())));
        }
        if let Some(tokens) = &params.allowed_tokens {
            processors.push(Box::new(Allowed::new(tokens)));
        }
        if !params.bad_words.is_empty() {
            processors.push(Box::new(BadWords::new(&params.bad_words)));
        }
        Self {
            plan,
            mirostat: mirostat.map(MirostatState::new),
            logprobs: params.logprobs,
            logprobs_mode: LogprobsMode::default(),
            rng: Philox::new(params.seed, choice),
            processors,
            n_mild,
            rule: None,
        }
    }

    /// Adds a processor after those of the parameters and before the rule and temperature.
    pub fn push_processor(&mut self, processor: Box<dyn LogitsProcessor>) {
        self.processors.push(processor);
    }

    /// Reports log probabilities of another distribution than the model's.
    pub fn set_logprobs_mode(&mut self, mode: LogprobsMode) {
        self.logprobs_mode = mode;
    }

    /// The random numbers of this choice. Drawing drafts and verifying them take a
    /// [`Stream`](crate::Stream) each.
    pub fn rng(&self) -> Philox {
        self.rng
    }

    /// Whether a row of logits matters only by its largest logit: the request is greedy, no
    /// processor changes which logit is the largest, and no log probabilities are reported.
    ///
    /// The model may then compute the token instead of the row: the token of the largest logit, the
    /// lowest id among equals. NaN counts as minus infinity, and plus infinity as the largest
    /// finite number.
    pub fn takes_largest(&self) -> bool {
        let mut processors = self.processors.iter();
        self.plan.temperature == 0.0
            && self.rule.is_none()
            && self.logprobs.is_none()
            && processors.all(|processor| processor.preserves_argmax())
    }

    /// Allocates the memory for `n_tokens` more tokens, so that as many calls of
    /// [`accepted`](Self::accepted) allocate nothing.
    pub fn reserve(&mut self, n_tokens: usize) {
        for processor in &mut self.processors {
            processor.reserve(n_tokens);
        }
    }

    /// A copy that continues on its own, to draft with; it reports no log probabilities.
    pub fn fork(&self) -> Self {
        Self {
            plan: self.plan.clone(),
            mirostat: self.mirostat.as_ref().map(MirostatState::fork),
            logprobs: None,
            logprobs_mode: self.logprobs_mode,
            rng: self.rng,
            n_mild: self.n_mild,
            rule: self.rule.as_ref().map(Masked::fork),
            processors: self.processors.iter().map(|processor| processor.fork()).collect(),
        }
    }

    /// Learns, and passes on to the processors, which token the sequence went on with.
    pub fn accepted(&mut self, token: TokenId) {
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.accepted(token);
        }
        for processor in &mut self.processors {
            processor.accepted(token);
        }
        if let Some(rule) = &mut self.rule {
            rule.accepted(token);
        }
    }

    /// Puts a rule in place of the one it has.
    pub fn set_rule(&mut self, rule: Option<Masked>) {
        self.rule = rule;
    }

    /// The rule, to compute its masks elsewhere; give it back before a row is sampled from.
    pub fn take_rule(&mut self) -> Option<Masked> {
        self.rule.take()
    }

    /// The rule.
    pub fn rule(&self) -> Option<&Masked> {
        self.rule.as_ref()
    }

    /// The number of `drafts`, from the first one on, that are certain: the rule forces them, and
    /// nothing is to be reported about them.
    pub fn n_certain(&mut self, drafts: &[TokenId], forced: &mut Vec<TokenId>) -> usize {
        // A mask may forbid the one token that the rule allows; the row then says that none is left.
        let is_masked = !self.processors[self.n_mild..].iter().all(|it| it.preserves_argmax());
        let is_certain = !is_masked && self.logprobs.is_none();
        let Some(rule) = self.rule.as_mut().filter(|_| is_certain) else { return 0 };
        forced.clear();
        if !drafts.is_empty() {
            rule.forced(forced);
        }
        forced.iter().zip(drafts).take_while(|(forced, draft)| forced == draft).count()
    }
}

/// The processors that parameters ask for and that make no token impossible, in their order; those
/// that would change nothing are left out.
fn mild_processors(params: &SamplingParams, prompt: &[TokenId]) -> Vec<Box<dyn LogitsProcessor>> {
    let mut processors: Vec<Box<dyn LogitsProcessor>> = Vec::new();
    if !params.logit_bias.is_empty() {
        processors.push(Box::new(LogitBias::new(params.logit_bias.clone())));
    }
    let weights = [params.repetition_penalty, params.presence_penalty, params.frequency_penalty];
    if weights != [1.0, 0.0, 0.0] && params.repeat_last_n != Some(0) {
        processors.push(Box::new(match params.repeat_last_n {
            Some(last_n) => Penalties::of_latest(last_n, weights, prompt),
            None => Penalties::new(weights[0], weights[1], weights[2], prompt),
        }));
    }
    if params.dry.multiplier > 0.0 && params.dry.last_n != Some(0) {
        processors.push(Box::new(DryPenalty::new(&params.dry, prompt)));
    }
    processors
}

impl std::fmt::Debug for SamplerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplerState")
            .field("temperature", &self.plan.temperature)
            .field("rng", &self.rng)
            .field("n_processors", &self.processors.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pelton_base::{Dry, TokenSet};

    use super::*;

    /// Allows the token after the last one alone.
    #[derive(Clone, Debug)]
    struct Counting(u32);

    impl RuleState for Counting {
        fn allow(&mut self, allowed: &mut TokenSet) {
            allowed.insert(TokenId(self.0 + 1));
        }

        fn accept(&mut self, token: TokenId) -> bool {
            self.0 += 1;
            token.0 == self.0
        }

        fn forced(&mut self, tokens: &mut Vec<TokenId>) {
            tokens.extend((self.0 + 1..self.0 + 4).map(TokenId));
        }

        fn stuck(&self) -> Option<String> {
            None
        }

        fn fork(&self) -> Box<dyn RuleState> {
            Box::new(self.clone())
        }
    }

    #[test]
    fn drafts_are_certain_where_a_rule_forces_them_and_nothing_else_is_asked() {
        let plain = SamplingParams::default();
        let n_certain = |params: &SamplingParams, has_rule: bool, drafts: &[u32]| {
            let mut state = SamplerState::new(params, &[], 0);
            state.set_rule(has_rule.then(|| Masked::new(Box::new(Counting(5)))));
            let drafts: Vec<TokenId> = drafts.iter().copied().map(TokenId).collect();
            state.n_certain(&drafts, &mut vec![TokenId(1)])
        };
        assert_eq!(n_certain(&plain, true, &[6, 7, 8, 9]), 3);
        assert_eq!(n_certain(&plain, true, &[6, 9, 8]), 1);
        assert_eq!(n_certain(&plain, true, &[9]), 0);
        assert_eq!(n_certain(&plain, true, &[]), 0);
        assert_eq!(n_certain(&plain, false, &[6, 7]), 0);
        let reported = SamplingParams { logprobs: Some(0), ..plain.clone() };
        assert_eq!(n_certain(&reported, true, &[6, 7]), 0);
        let allowed_tokens = Some(vec![TokenId(6)]);
        let masked = SamplingParams { allowed_tokens, ..plain.clone() };
        assert_eq!(n_certain(&masked, true, &[6, 7]), 0);
        // A penalty takes no token away.
        let penalized = SamplingParams { presence_penalty: 1.0, ..plain };
        assert_eq!(n_certain(&penalized, true, &[6, 7]), 2);
    }

    #[test]
    fn processors_that_would_change_nothing_are_left_out() {
        let plain = SamplingParams::default();
        let dry = |multiplier, last_n| Dry { multiplier, last_n, ..Dry::default() };
        for (params, n) in [
            (plain.clone(), 0),
            (SamplingParams { repeat_last_n: Some(8), ..plain.clone() }, 0),
            (SamplingParams { presence_penalty: 1.0, ..plain.clone() }, 1),
            (SamplingParams { presence_penalty: 1.0, repeat_last_n: Some(0), ..plain.clone() }, 0),
            (SamplingParams { presence_penalty: 1.0, repeat_last_n: Some(8), ..plain.clone() }, 1),
            (SamplingParams { dry: dry(0.0, Some(8)), ..plain.clone() }, 0),
            (SamplingParams { dry: dry(0.5, Some(0)), ..plain.clone() }, 0),
            (SamplingParams { dry: dry(0.5, Some(8)), ..plain.clone() }, 1),
            (SamplingParams { dry: dry(0.5, None), ..plain }, 1),
        ] {
            assert_eq!(SamplerState::new(&params, &[], 0).processors.len(), n, "{params:?}");
        }
    }
}
