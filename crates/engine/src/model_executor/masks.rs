//! Masks of rules, computed on a thread of their own while the model computes the rows.
//!
//! ```text
//! engine thread   plan ─ rules of all shares ─▶ forward pass ───────────▶ sample with masks
//! mask thread                 └─▶ masks of every row, drafts included ──┘
//! ```
//!
//! The thread starts with the first rule. Where the system refuses a thread, each mask is computed
//! when its row is sampled from; the tokens are the same.

use crate::engine::STACK_BYTES;
use crate::{Panicked, guard};
use pelton_base::{RequestId, TokenId};
use pelton_sampling::Masked;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The part of a request's work that is guarded here, for errors.
const RULE: &str = "the rule of a request, while its masks were computed";

/// The rules whose masks are being computed, and the thread that computes them.
#[derive(Debug, Default)]
pub(super) struct MaskThread {
    /// `None` before the first rule, and where there is no thread.
    lane: Option<Lane>,
    was_refused: bool,
    jobs: Vec<Job>,
    /// Whether the thread has the jobs.
    is_under_way: bool,
    /// Drafts of finished jobs, whose memory is used again.
    spare: Vec<Vec<Draft>>,
}

/// The index of the draft before a draft, `None` for the last known token, and its token.
type Draft = (Option<usize>, TokenId);

#[derive(Debug)]
struct Lane {
    there: Sender<(usize, Vec<Job>)>,
    back: Receiver<Vec<Job>>,
}

/// One share of a request under a rule.
#[derive(Debug)]
struct Job {
    id: RequestId,
    /// `Err` once its rule has panicked.
    rule: Result<Masked, Panicked>,
    n_certain: usize,
    drafts: Vec<Draft>,
}

impl Job {
    fn run(self, n_tokens: usize) -> Self {
        let Self { id, rule, n_certain, drafts } = self;
        // A panic drops the rule, which may be half changed, and with it the request.
        let rule = rule.and_then(|mut rule| {
            guard(RULE, || {
                rule.look_ahead(n_tokens, n_certain, drafts.iter().copied());
                rule
            })
        });
        Self { id, rule, n_certain, drafts }
    }
}

impl MaskThread {
    /// Adds the rule of a share of the step, with the drafts of the share.
    pub(super) fn add(
        &mut self,
        id: RequestId,
        rule: Masked,
        n_certain: usize,
        drafts: impl Iterator<Item = Draft>,
    ) {
        let mut own = self.spare.pop().unwrap_or_default();
        own.clear();
        own.extend(drafts);
        self.jobs.push(Job { id, rule: Ok(rule), n_certain, drafts: own });
    }

    /// Starts to compute the masks of all rules that were added, over `n_tokens` tokens.
    pub(super) fn launch(&mut self, n_tokens: usize) {
        if self.jobs.is_empty() || self.was_refused {
            return;
        }
        if self.lane.is_none() {
            self.lane = Lane::open();
            self.was_refused = self.lane.is_none();
        }
        let Some(lane) = &self.lane else { return };
        match lane.there.send((n_tokens, std::mem::take(&mut self.jobs))) {
            Ok(()) => self.is_under_way = true,
            // The thread is gone; the jobs come back.
            Err(refused) => (self.jobs, self.lane) = (refused.0.1, None),
        }
    }

    /// Whether there are rules to wait for or to hand back.
    pub(super) fn is_used(&self) -> bool {
        self.is_under_way || !self.jobs.is_empty()
    }

    /// Waits for the masks and hands every rule back, or the panic of its code.
    pub(super) fn collect(&mut self, mut each: impl FnMut(RequestId, Result<Masked, Panicked>)) {
        if self.is_under_way {
            self.is_under_way = false;
            let back = self.lane.as_ref().and_then(|lane| lane.back.recv().ok());
            self.jobs = back.expect("invariant: the thread guards every job and sends all back");
        }
        for Job { id, rule, drafts, .. } in self.jobs.drain(..) {
            self.spare.push(drafts);
            each(id, rule);
        }
    }
}

impl Lane {
    /// Starts the thread, which ends when the lane is dropped.
    fn open() -> Option<Self> {
        let (there, jobs) = channel::<(usize, Vec<Job>)>();
        let (done, back) = channel();
        let work = move || {
            while let Ok((n_tokens, jobs)) = jobs.recv() {
                let jobs = jobs.into_iter().map(|job| job.run(n_tokens)).collect();
                if done.send(jobs).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("pelton-masks".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work);
        match thread {
            Ok(_) => Some(Self { there, back }),
            Err(error) => {
                tracing::warn!(%error, "no thread for masks: they are computed between the passes");
                None
            }
        }
    }
}
