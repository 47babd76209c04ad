use super::*;
use crate::KvMemory;
use pelton_base::{Ask, FinishReason, SamplingParams, ServiceParams};
use pelton_model::{CpuDevice, LoadOptions, ModelFiles, load_cpu};
use pelton_sampling::{LogitsProcessor, RowContext};
use pelton_sched::{Scheduler, SchedulerConfig, Signals, StepUpdates, Tick};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

const N_TOKENS: usize = 8;
/// The request with the faulty processor, between two neighbours.
const FAULTY: RequestId = RequestId(1);

/// Changes nothing, and panics in one call, once there are three output tokens.
#[derive(Clone, Debug)]
struct Faulty {
    call: &'static str,
    n_seen: usize,
}

impl Faulty {
    fn check(&self, call: &str) {
        assert!(!(self.n_seen == 3 && self.call == call), "as the test asked");
    }
}

impl LogitsProcessor for Faulty {
    fn apply(&mut self, _row: &RowContext, _logits: &mut [f32]) {
        self.check("apply");
    }

    fn accepted(&mut self, _token: TokenId) {
        self.check("accepted");
        self.n_seen += 1;
    }

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        self.check("preserves_argmax");
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

fn request(i: u64) -> Request {
    Request {
        id: RequestId(i),
        ask: Ask {
            prompt: (0..5).map(|j| TokenId(7 * j + i as u32)).collect(),
            sampling: SamplingParams::greedy(),
            choice: 0,
            max_tokens: N_TOKENS,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        },
    }
}

/// The tokens of an answer, and its end.
type Answer = (Vec<TokenId>, Option<FinishReason>);

/// Tokens and end of three requests that share each step, and the panics of their steps.
fn answers(
    mut executor: ModelExecutor<CpuDevice>,
    faulty: Option<Faulty>,
) -> (Vec<Answer>, Vec<(RequestId, Fault)>) {
    let mut scheduler = Scheduler::new(SchedulerConfig::new(32, 4));
    for i in 0..3 {
        let own: Option<Box<dyn LogitsProcessor>> = match &faulty {
            Some(faulty) if RequestId(i) == FAULTY => Some(Box::new(faulty.clone())),
            _ => None,
        };
        let own: Vec<_> = own.into_iter().collect();
        executor.add(&request(i), own.into()).expect("nothing panics yet");
        scheduler.add(request(i));
    }
    let (mut plan, mut execution) = (SchedulerOutput::default(), Execution::default());
    let (mut updates, mut panics) = (StepUpdates::default(), Vec::new());
    let mut answers = vec![(Vec::new(), None); 3];
    for step in 0.. {
        if scheduler.is_idle() {
            break;
        }
        scheduler.schedule(Tick(step), &Signals::default(), &mut plan);
        execution.clear();
        executor.launch(&plan);
        executor.collect(&plan, &mut execution).expect("it computes");
        panics.append(&mut execution.faults);
        scheduler.update(&execution.step, &mut updates);
        for update in &updates.sequences {
            let (tokens, finish) = &mut answers[update.id.0 as usize];
            tokens.extend_from_slice(updates.tokens_of(update));
            *finish = update.finish;
            if finish.is_some() {
                executor.finished(update.id);
            }
        }
    }
    assert!(executor.states.is_empty());
    (answers, panics)
}

#[test]
fn a_processor_that_panics_ends_its_request_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.gguf");
    TinyModel { tokenizer: false, ..TinyModel::default() }.write_gguf(&file, DType::Bf16);
    let files = ModelFiles::open(&file).expect("a model");
    let executor = || {
        let options = LoadOptions { n_threads: Some(1), ..LoadOptions::default() };
        let config = ModelExecutorConfig {
            block_size: 4,
            memory: KvMemory::Blocks(32),
            host_blocks: 0,
            sampled_vocab: None,
            exit_layers: None,
            verification: Verification::Match,
            states: Default::default(),
        };
        let decoder = load_cpu(&files, &options).expect("it loads");
        ModelExecutor::new(decoder, config).expect("memory")
    };
    let (plain, panics) = answers(executor(), None);
    assert!(panics.is_empty() && plain.iter().all(|(tokens, _)| tokens.len() == N_TOKENS));
    for call in ["apply", "accepted", "preserves_argmax"] {
        let (got, panics) = answers(executor(), Some(Faulty { call, n_seen: 0 }));
        for i in [0, 2] {
            assert_eq!(got[i], plain[i], "{call}: request {i}");
        }
        assert_eq!(got[1].0, plain[1].0[..3], "{call}: right as far as it comes");
        assert_eq!(got[1].1, Some(FinishReason::Error), "{call}");
        let [(FAULTY, panicked)] = &panics[..] else { panic!("{call}: {panics:?}") };
        assert!(panicked.to_string().contains("as the test asked"), "{panicked}");
    }
}
