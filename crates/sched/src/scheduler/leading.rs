//! Requests that are led: the caller gives them their tokens, as a beam search does.
//!
//! ```text
//!            computed                      extend                    branch
//! Running ─────────────▶ at rest ─────────────────▶ Running          a second request with the same
//!                          │  preempted    extend                    tokens and another last one
//!                          └──────────▶ resting ──▶ Preempted
//! ```
//!
//! A led request computes the tokens that it has, and the executor sees the logits after the last of
//! them. Then it rests: it keeps its blocks, has no share of any plan, and makes room like any other
//! request where a request that stands before it needs its blocks. A request that lost its blocks at
//! rest waits in no queue, because it has nothing to compute. So requests at rest never keep a request
//! from running: where nothing else can be planned, they give up blocks and places one by one.
//!
//! A branch shares the KV of all computed tokens, full blocks as they are and the last one as a copy.
//! It stands right behind the request that it branched from, ahead of later arrivals.

use super::{Kind, Scheduler};
use crate::Tick;
use crate::sequence::{Parked, Preempted, Sequence, Waiting};
use pelton_base::{Request, RequestId, TokenId};

impl Scheduler {
    /// Adds a request that is led; see [`add_at`](Self::add_at). Whatever is sampled for it is
    /// ignored: [`update`](Self::update) has news without tokens when it comes to rest.
    ///
    /// It ends by [`abort`](Self::abort) or by a failure alone: `max_tokens` only bounds the memory
    /// that it reserves, and stop tokens end nothing.
    ///
    /// # Panics
    ///
    /// As [`add_at`](Self::add_at).
    pub fn add_led_at(&mut self, request: Request, at: Tick, n_cached: usize) {
        self.enter(request, at, n_cached, Kind::Led);
    }

    /// Gives a request at rest its next token.
    ///
    /// # Panics
    ///
    /// Panics if there is no such request at rest, or if it has all tokens that it can have.
    pub fn extend(&mut self, id: RequestId, token: TokenId) {
        let context = self.config.context_tokens();
        let push = |sequence: &mut Sequence| {
            sequence.tokens.push(token);
            let n_most = sequence.most_tokens(context);
            assert!(sequence.tokens.len() <= n_most, "{id} has more than {n_most} tokens");
        };
        let running = self.running.iter_mut().find(|running| running.sequence.id == id);
        if let Some(running) = running {
            assert!(running.sequence.is_led && running.is_at_rest(), "{id} does not rest");
            push(&mut running.sequence);
            return;
        }
        let mut preempted = self.wake(id).unwrap_or_else(|| panic!("{id} does not rest"));
        push(&mut preempted.sequence);
        self.tenants.waits(preempted.sequence.tenant);
        self.queue.push(Parked::Preempted(preempted));
    }

    /// Adds a request `id`, led too, that has all tokens of the request `from` and then `token`. It
    /// begins with the KV of `from`, which has to live until `id` is computed.
    ///
    /// # Panics
    ///
    /// Panics if `from` is not a led request or `id` is a request already, or if `from` has all
    /// tokens that it can have.
    pub fn branch(&mut self, from: RequestId, id: RequestId, token: TokenId) {
        assert!(!self.is_live(id), "{id} is here already");
        let parent = self.sequence(from).unwrap_or_else(|| panic!("{from} is not here"));
        assert!(parent.is_led, "{from} samples its own tokens");
        let branch = parent.branch(id, token);
        let n_most = branch.most_tokens(self.config.context_tokens());
        assert!(branch.tokens.len() <= n_most, "{id} has more than {n_most} tokens");
        self.tenants.waits(branch.tenant);
        self.queue.push(Parked::Waiting(Waiting(branch)));
    }

    /// Takes a request out of those that rest without blocks.
    pub(super) fn wake(&mut self, id: RequestId) -> Option<Preempted> {
        let idx = self.resting.iter().position(|resting| resting.sequence.id == id)?;
        Some(self.resting.remove(idx))
    }

    /// The request at rest that gives up its blocks next, as an index.
    pub(super) fn last_at_rest(&self) -> Option<usize> {
        let at_rest = (0..self.running.len()).filter(|&idx| self.running[idx].is_at_rest());
        at_rest.max_by_key(|&idx| self.precedence(&self.running[idx].sequence))
    }

    /// The request of this name, in whatever state it is.
    pub(super) fn sequence(&self, id: RequestId) -> Option<&Sequence> {
        let placed = self.placed().map(|running| &running.sequence);
        let resting = self.resting.iter().map(|resting| &resting.sequence);
        let queued = self.queue.find(id).map(|spot| self.queue.at(spot).sequence());
        queued.or_else(|| placed.chain(resting).find(|sequence| sequence.id == id))
    }
}
