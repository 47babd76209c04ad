//! Lengths, tenants and shared prefixes of requests: one rule per kind of workload.

use super::WorkloadKind;
use crate::random::Random;
use crate::trace::{Prefix, TraceRequest, Turn};
use pelton_base::{Slo, TenantId};
use std::time::Duration;

/// The tenants of the workload of this name, after `default`.
pub(super) const TENANTS: [&str; 2] = ["many", "few"];

/// System prompts that conversations begin with, and tokens of each.
const N_SYSTEMS: u64 = 8;
const SYSTEM_TOKENS: f64 = 512.0;
/// Conversations at the same time, and most questions of each.
const N_CHATS: usize = 64;
const MOST_QUESTIONS: u64 = 5;
/// Mean time from an answer to the next question, in seconds.
const THINK_S: f64 = 4.0;

/// Makes the requests of one kind.
#[derive(Debug)]
pub(super) struct Shape {
    kind: WorkloadKind,
    scale: f64,
    chats: Vec<Chat>,
    n_chats: u64,
}

/// A conversation; its text is one row of tokens, questions and answers alike.
#[derive(Clone, Copy, Debug, Default)]
struct Chat {
    text: u64,
    system: u64,
    /// Tokens so far, without the system prompt.
    n_tokens: usize,
    n_questions_left: u64,
}

impl Shape {
    pub(super) fn new(kind: WorkloadKind, scale: f64) -> Self {
        Self { kind, scale, chats: vec![Chat::default(); N_CHATS], n_chats: 0 }
    }

    /// The next request.
    pub(super) fn request(&mut self, at_ns: u64, random: &mut Random) -> TraceRequest {
        match self.kind {
            WorkloadKind::Poisson | WorkloadKind::Bursty => self.short(at_ns, 128.0, random),
            WorkloadKind::SharedPrefix => self.question(at_ns, random).0,
            WorkloadKind::Sessions => {
                let (request, session) = self.question(at_ns, random);
                let think_ns = (random.exponential(THINK_S) * 1e9) as u64;
                TraceRequest { turn: Some(Turn { session, think_ns }), ..request }
            }
            WorkloadKind::LongTail => {
                let n_prompt = self.tokens(random.log_normal(96.0, 1.5), 16_384.0);
                let n_output = self.tokens(random.pareto(16.0, 1.3), 2_048.0);
                TraceRequest::new(at_ns, n_prompt, n_output)
            }
            WorkloadKind::Mixed if random.below(20) == 0 => {
                let n_prompt = self.tokens(8_000.0, 8_000.0);
                let n_output = self.tokens(random.log_normal(32.0, 0.7), 512.0);
                let slo = targets(60_000, 500);
                TraceRequest { slo, ..TraceRequest::new(at_ns, n_prompt, n_output) }
            }
            WorkloadKind::Mixed => {
                TraceRequest { slo: targets(2_000, 200), ..self.short(at_ns, 64.0, random) }
            }
            WorkloadKind::Tenants => {
                // The first of the table is `default`.
                let tenant = TenantId(if random.below(11) < 10 { 1 } else { 2 });
                TraceRequest { tenant, ..self.short(at_ns, 128.0, random) }
            }
            WorkloadKind::Overload => {
                let is_urgent = random.below(5) == 0;
                let (priority, slo) =
                    if is_urgent { (-1, targets(2_000, 200)) } else { (0, targets(20_000, 500)) };
                TraceRequest { priority, slo, ..self.short(at_ns, 128.0, random) }
            }
            // Log-normal lengths with the means of the paper of vLLM.
            WorkloadKind::ShareGpt => {
                let n_prompt = self.tokens(random.log_normal(60.0, 1.405), 16_384.0);
                let n_output = self.tokens(random.log_normal(260.0, 0.724), 4_096.0);
                TraceRequest::new(at_ns, n_prompt, n_output)
            }
            WorkloadKind::LongContext => {
                let n_prompt = self.tokens(8_000.0 * 4.0_f64.powf(random.uniform()), 32_000.0);
                let n_output = self.tokens(random.log_normal(128.0, 0.5), 1_024.0);
                TraceRequest::new(at_ns, n_prompt, n_output)
            }
        }
    }

    fn short(&self, at_ns: u64, median_prompt: f64, random: &mut Random) -> TraceRequest {
        let n_prompt = self.tokens(random.log_normal(median_prompt, 0.8), 2_048.0);
        TraceRequest::new(at_ns, n_prompt, self.answer(random))
    }

    /// The next question of one of the conversations, and the number of that conversation.
    fn question(&mut self, at_ns: u64, random: &mut Random) -> (TraceRequest, u64) {
        let slot = random.below(N_CHATS as u64) as usize;
        let mut chat = self.chats[slot];
        if chat.n_questions_left == 0 {
            self.n_chats += 1;
            chat = Chat {
                // The numbers before are those of the system prompts.
                text: N_SYSTEMS + self.n_chats,
                system: random.below(N_SYSTEMS),
                n_tokens: 0,
                n_questions_left: 1 + random.below(MOST_QUESTIONS),
            };
        }
        let n_system = self.tokens(SYSTEM_TOKENS, SYSTEM_TOKENS);
        chat.n_tokens += self.tokens(random.log_normal(40.0, 0.8), 1_024.0);
        let n_output = self.answer(random);
        let request = TraceRequest::new(at_ns, n_system + chat.n_tokens, n_output)
            .with_prefix(Prefix { id: chat.system, n_tokens: n_system })
            .and_then(|r| r.with_prefix(Prefix { id: chat.text, n_tokens: chat.n_tokens }))
            .expect("invariant: the two are the prompt");
        chat.n_tokens += n_output;
        chat.n_questions_left -= 1;
        self.chats[slot] = chat;
        (request, chat.text)
    }

    fn answer(&self, random: &mut Random) -> usize {
        self.tokens(random.log_normal(48.0, 0.7), 512.0)
    }

    /// A length, cut off at `most` and scaled.
    fn tokens(&self, length: f64, most: f64) -> usize {
        ((length.min(most) * self.scale).round() as usize).max(1)
    }
}

fn targets(ttft_ms: u64, tpot_ms: u64) -> Slo {
    let (ttft, tpot) = (Duration::from_millis(ttft_ms), Duration::from_millis(tpot_ms));
    Slo { ttft: Some(ttft), tpot: Some(tpot) }
}
