//! A model that needs no arithmetic: the parrot, which answers with its prompt over and over.
//!
//! Token `n` of a greedy answer is token `n` of the prompt, again from its start after its end.
//! With a temperature the answer begins at a place that depends on seed and choice. After one round
//! a prompt that ends with `!` is answered with the end token, or as soon after it as may be. A
//! prompt with `~` fails, and one with `|` makes the parrot panic. Every third choice is the
//! likeliest. Prompts are scored by place. Drafts are verified as by a model. Processors of
//! requests see logits whose largest is that of the parrot's token, but change nothing.
// Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

use pelton_base::{Request, RequestId, SamplingParams, TokenId};
use pelton_engine::{
    Drafting, Engine, EngineConfig, EngineHandle, Execution, Executor, ExecutorError, Extras,
    KvCapacity, Panicked, ScoredToken, Sources, SpecConfig,
};
use pelton_llm::{Llm, LlmInfo, LlmParts, Runtime, RuntimeOptions};
use pelton_sampling::{RowContext, TokenLogprobs};
use pelton_sched::{Choices, SchedulerOutput};
use pelton_text::{ChatTemplate, TemplateTokens, Tokenizer};

/// The end token.
pub const END: TokenId = TokenId(256);
/// Rows of the parrot's embedding; more than it has tokens.
pub const VOCAB: usize = 300;
/// Tokens of prompt and answer together.
pub const CONTEXT: usize = 512;

/// Lets the parrot speak step by step.
#[derive(Clone, Default)]
pub struct Gate {
    /// `None` is open; otherwise so many more steps may run.
    steps: Arc<(Mutex<Option<usize>>, Condvar)>,
    /// The requests to the parrot, in order.
    heard: Arc<Mutex<Vec<Request>>>,
}

impl Gate {
    /// A gate that lets `n_steps` through.
    pub fn closed(n_steps: usize) -> Self {
        let gate = Self::default();
        gate.set(Some(n_steps));
        gate
    }

    /// Lets everything through.
    pub fn open(&self) {
        self.set(None);
    }

    fn set(&self, n_steps: Option<usize>) {
        *self.steps.0.lock().expect("not poisoned") = n_steps;
        self.steps.1.notify_all();
    }

    /// Lets one more step through.
    pub fn step(&self) {
        let mut steps = self.steps.0.lock().expect("not poisoned");
        if let Some(n) = steps.as_mut() {
            *n += 1;
        }
        self.steps.1.notify_all();
    }

    /// Lets one step through, unless one is still to come.
    pub fn step_once(&self) {
        let mut steps = self.steps.0.lock().expect("not poisoned");
        if let Some(n) = steps.as_mut() {
            *n = 1;
        }
        self.steps.1.notify_all();
    }

    /// The requests to the parrot so far, in order.
    pub fn heard(&self) -> Vec<Request> {
        self.heard.lock().expect("not poisoned").clone()
    }

    /// Waits until a step may run.
    pub fn pass(&self) {
        let steps = self.steps.0.lock().expect("not poisoned");
        let mut steps =
            self.steps.1.wait_while(steps, |steps| *steps == Some(0)).expect("not poisoned");
        if let Some(n) = steps.as_mut() {
            *n -= 1;
        }
    }
}

struct Parrot {
    requests: HashMap<RequestId, (Request, Extras)>,
    gate: Gate,
}

/// Logits whose largest is that of `token`, and whose others fall with the id.
fn logits(token: TokenId) -> Vec<f32> {
    let logit = |id: u32| if id == token.0 { 5.0 } else { -(id as f32) / 64.0 };
    (0..VOCAB as u32).map(logit).collect()
}

/// The parrot finds the token at place `n` of a prompt `n`-th best, with a log probability of `-n / 8`.
fn scores(prompt: &[TokenId], n_top: usize) -> Vec<ScoredToken> {
    let score = |(place, &token): (usize, &TokenId)| {
        let logprob = -(place as f32) / 8.0;
        let top = [(TokenId(b'T'.into()), 0.0), (token, logprob)].into_iter().take(n_top).collect();
        ScoredToken { logprobs: TokenLogprobs { token, logprob, top }, rank: place }
    };
    prompt.iter().enumerate().skip(1).map(score).collect()
}

impl Executor for Parrot {
    fn kv_capacity(&self) -> KvCapacity {
        KvCapacity { n_blocks: 4096, n_host_blocks: 0, block_size: 16, states: None, windows: None }
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn max_context_tokens(&self) -> usize {
        CONTEXT
    }

    fn sources(&self) -> Option<Sources> {
        None
    }

    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        None
    }

    fn add(&mut self, request: &Request, extras: Extras) -> Result<(), Panicked> {
        self.gate.heard.lock().expect("not poisoned").push(request.clone());
        self.requests.insert(request.id, (request.clone(), extras));
        Ok(())
    }

    fn launch(&mut self, _plan: &SchedulerOutput) {}

    fn collect(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        self.gate.pass();
        for share in plan.sequences.iter().filter(|share| share.samples) {
            let (request, extras) = self.requests.get_mut(&share.id).expect("added");
            let prompt = &request.ask.prompt;
            if let Some(n_top) = extras.prompt_logprobs.take() {
                execution.prompts.push((share.id, scores(prompt, n_top)));
            }
            assert!(!prompt.contains(&TokenId(b'|'.into())), "as the test asked");
            if prompt.contains(&TokenId(b'~'.into())) {
                execution.step.failed.push(share.id);
                continue;
            }
            let offset = if request.ask.sampling.is_greedy() {
                0
            } else {
                request.ask.sampling.seed as usize % 1000 + request.ask.choice as usize
            };
            let ends = prompt.last() == Some(&TokenId(b'!'.into()));
            let tokens = plan.tokens_of(share);
            let drafts = &tokens[tokens.len() - share.n_drafts..];
            let mut all_logprobs = Vec::new();
            for n_said in share.n_generated.. {
                let n_least = prompt.len().max(request.ask.sampling.min_tokens);
                let token = if ends && n_said == n_least {
                    END
                } else {
                    prompt[(n_said + offset) % prompt.len()]
                };
                for processor in &mut extras.processors {
                    processor.apply(&RowContext { n_generated: n_said }, &mut logits(token));
                }
                execution.step.sampled.push((share.id, token));
                if let Some(n_top) = request.ask.sampling.logprobs {
                    let logprob = -0.5 - (request.ask.choice % 3) as f32 / 8.0;
                    let top = [(token, logprob), (TokenId(0), f32::NEG_INFINITY)];
                    let top = top.into_iter().take(n_top).collect();
                    all_logprobs.push(TokenLogprobs { token, logprob, top });
                }
                if drafts.get(n_said - share.n_generated) != Some(&token) {
                    break;
                }
            }
            if !all_logprobs.is_empty() {
                execution.logprobs.push((share.id, all_logprobs));
            }
        }
        Ok(())
    }

    fn finished(&mut self, id: RequestId) {
        self.requests.remove(&id);
    }

    fn reset(&mut self) {
        self.requests.clear();
    }
}

/// A tokenizer whose token `b` is byte `b`, and whose token 256 ends an answer.
pub fn byte_tokenizer() -> Arc<Tokenizer> {
    byte_tokenizer_with(&[])
}

/// The same with these control tokens, from 257 on.
pub fn byte_tokenizer_with(control: &[&str]) -> Arc<Tokenizer> {
    tokenizer_of(&byte_tokenizer_json(control))
}

fn tokenizer_of(json: &serde_json::Value) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes()).expect("a tokenizer"))
}

fn byte_tokenizer_json(control: &[&str]) -> serde_json::Value {
    let mut next = 256;
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u8 {
        // The usual alphabet of byte-level tokenizers: printable bytes stand for themselves.
        let is_printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let letter = if is_printable {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).expect("a letter")
        };
        vocab.insert(letter.to_string(), byte.into());
    }
    let names = ["<|end|>"].iter().chain(control);
    let added: Vec<_> = (END.0..)
        .zip(names)
        .map(|(id, name)| {
            serde_json::json!({
                "id": id, "content": name, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true
            })
        })
        .collect();
    serde_json::json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
        },
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    })
}

fn engine(gate: &Gate, max_waiting_requests: usize, spec: SpecConfig) -> EngineHandle {
    let parrot = Parrot { requests: HashMap::new(), gate: gate.clone() };
    let config = EngineConfig {
        choices: Choices { max_running: 32, ..Choices::default() },
        max_waiting_requests,
        max_context_tokens: CONTEXT,
        spec,
        ..EngineConfig::default()
    };
    Engine::spawn(parrot, config)
}

/// A runtime of one thread, which reads and writes no file.
pub fn one_thread() -> Runtime {
    Runtime::new(RuntimeOptions { n_threads: Some(1), ..RuntimeOptions::default() })
        .expect("kernels of this machine")
}

/// The parrot behind a gate.
pub fn gated_parrot(gate: &Gate, max_waiting_requests: usize) -> Arc<Llm> {
    drafting_parrot(gate, max_waiting_requests, SpecConfig::default())
}

/// The parrot behind a gate, some of whose tokens are guessed.
pub fn drafting_parrot(gate: &Gate, max_waiting_requests: usize, spec: SpecConfig) -> Arc<Llm> {
    assembled(byte_tokenizer(), engine(gate, max_waiting_requests, spec), 0)
}

/// A parrot that fills gaps in code.
pub fn coding_parrot() -> Arc<Llm> {
    let names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"];
    let engine = engine(&Gate::default(), 1024, SpecConfig::default());
    assembled(byte_tokenizer_with(&names), engine, 0)
}

/// A parrot whose tokenizer puts the token 257 before a text.
pub fn opening_parrot() -> Arc<Llm> {
    let begin = "<|begin|>";
    let mut json = byte_tokenizer_json(&[begin]);
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        ],
        "pair": [],
        "special_tokens": {begin: {"id": begin, "ids": [257], "tokens": [begin]}}
    });
    let engine = engine(&Gate::default(), 1024, SpecConfig::default());
    assembled(tokenizer_of(&json), engine, 0)
}

/// A parrot with a chat template of its own.
pub fn templated_parrot(template: &str) -> Arc<Llm> {
    let engine = engine(&Gate::default(), 1024, SpecConfig::default());
    assembled_with(template, byte_tokenizer(), engine, 0)
}

/// The parrot, which says that its weights take so many bytes.
pub fn heavy_parrot(gate: &Gate, weight_bytes: u64) -> Arc<Llm> {
    assembled(byte_tokenizer(), engine(gate, 1024, SpecConfig::default()), weight_bytes)
}

fn assembled(tokenizer: Arc<Tokenizer>, engine: EngineHandle, weight_bytes: u64) -> Arc<Llm> {
    assembled_with("{{ messages[-1].content }}", tokenizer, engine, weight_bytes)
}

fn assembled_with(
    template: &str,
    tokenizer: Arc<Tokenizer>,
    engine: EngineHandle,
    weight_bytes: u64,
) -> Arc<Llm> {
    let template = ChatTemplate::from_text(template, "test", TemplateTokens::default());
    let template = template.expect("a template");
    let options = pelton_llm::LlmOptions::default();
    let info = LlmInfo {
        name: "org/parrot".to_owned(),
        architecture: "Parrot".to_owned(),
        vocab_size: VOCAB,
        context_tokens: CONTEXT,
        weight_bytes,
        loaded_bytes: 0,
        rounded_to: None,
        kv_bytes: 0,
        kv_bytes_per_token: 0,
        n_long_requests: 0,
        states: Default::default(),
        n_threads: 1,
    };
    let llm = Llm::from_parts(LlmParts {
        info,
        has_text: true,
        tokenizer,
        dialect: pelton_llm::Dialect::choose(Some(&template), &options).expect("known"),
        template: Ok(template),
        engine,
        eos: vec![END],
        sampling: Some(SamplingParams::greedy()),
        suppressed: Default::default(),
        share_prefixes: false,
        verification: pelton_llm::Verification::Match,
    });
    Arc::new(llm.expect("parts that fit"))
}

/// The parrot.
pub fn parrot() -> Arc<Llm> {
    gated_parrot(&Gate::default(), 1024)
}
