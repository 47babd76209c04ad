//! Beams of real models: against plain forward passes over whole sequences, and the same to the bit in
//! every world.

use pelton_base::{Ask, FinishReason, SamplingParams, TokenId};
use pelton_engine::{Beam, BeamEvent, BeamParams, BeamStream, EarlyStopping, EngineConfig};
use pelton_engine::{EngineMetrics, SpecMethod};
use pelton_kernels::Kernels;
use pelton_model::{BlockTables, Compute, Decoder, ForwardInput, ForwardSequence, LoadOptions};
use pelton_model::{ModelFiles, load as load_model};
use pelton_sched::{Choices, PreemptionMode};
use pelton_testkit::PlainDevice;
use pelton_testkit::beams::{NaiveBeams, log_softmax};

use crate::worlds::*;

/// The logits after a sequence, computed at once and from its start.
fn logits_after(decoder: &mut Decoder<PlainDevice>, tokens: &[TokenId]) -> Vec<f32> {
    let blocks: Vec<u32> = (0..tokens.len().div_ceil(16) as u32).collect();
    let mut kv = decoder.new_kv(blocks.len(), 16);
    let sequence = ForwardSequence {
        rows: 0..tokens.len(),
        n_source: 0,
        first_position: 0,
        block_tables: BlockTables::one(&blocks),
        lane: None,
        tree: None,
    };
    let logits_rows = [tokens.len() - 1];
    let input = ForwardInput {
        tokens,
        sequences: std::slice::from_ref(&sequence),
        logits_rows: &logits_rows,
    };
    let mut logits = Vec::new();
    decoder.forward(&mut kv, &input, &mut logits);
    logits
}

fn search(i: u32, width: usize) -> (Ask, BeamParams) {
    let ask = Ask {
        prompt: (0..3 + i * 7).map(|j| TokenId((i * 31 + j * 7 + j * j) % VOCAB)).collect(),
        sampling: SamplingParams::greedy(),
        max_tokens: 6 + i as usize * 3,
        // Some of the likelier tokens of these models, so that answers end at different lengths.
        stop_tokens: (0..VOCAB).step_by(17).map(TokenId).collect(),
        constraint: None,
        ..requests().swap_remove(0)
    };
    let params = BeamParams {
        length_penalty: [1.0, 0.0, 1.5][i as usize % 3],
        ..BeamParams::of_width(width)
    };
    (ask, params)
}

pub(crate) fn collect_beams(mut stream: BeamStream) -> Vec<Beam> {
    while let Some(event) = stream.blocking_recv() {
        if let BeamEvent::Ended { answers, failure, fault, .. } = event {
            assert_eq!((failure, fault), (None, None));
            return answers;
        }
    }
    panic!("the stream broke off without an end");
}

/// The answers to searches, all at once beside requests that are sampled, or one after the other.
fn found(
    files: &ModelFiles,
    compute: Compute,
    world: &World,
    together: bool,
) -> (Vec<Vec<Beam>>, EngineMetrics) {
    let (engine, hold) = start(files, compute, world);
    let searches: Vec<(Ask, BeamParams)> = (0..5).map(|i| search(i, 1 + i as usize)).collect();
    let submit = |(ask, params): &(Ask, BeamParams)| {
        engine.submit_beams(ask.clone(), *params).expect("taken")
    };
    let answers = if together {
        let neighbours: Vec<_> =
            requests().into_iter().map(|ask| engine.submit(ask).expect("taken")).collect();
        let streams: Vec<BeamStream> = searches.iter().map(submit).collect();
        drop(hold);
        let answers = streams.into_iter().map(collect_beams).collect();
        neighbours.into_iter().for_each(|stream| drop(collect(stream)));
        answers
    } else {
        drop(hold);
        searches.iter().map(|search| collect_beams(submit(search))).collect()
    };
    (answers, stop(engine))
}

#[test]
fn beams_are_those_of_plain_passes_over_whole_sequences() {
    for fixture in FIXTURES {
        let (files, _folder) = open(fixture, "F32");
        let options = LoadOptions { compute: Compute::F32, ..LoadOptions::default() };
        let mut plain = load_model(&files, PlainDevice::new(), &options).expect("it loads");
        let (engine, hold) = start(&files, Compute::F32, &World::plain());
        drop(hold);
        let (mut n_stopped, mut n_cut) = (0, 0);
        for width in 1..=5 {
            let (ask, params) = search(width as u32 % 3, width);
            for early_stopping in [EarlyStopping::Never, EarlyStopping::Always] {
                let params = BeamParams { early_stopping, ..params };
                let stream = engine.submit_beams(ask.clone(), params).expect("taken");
                let found = collect_beams(stream);
                let naive = NaiveBeams {
                    width,
                    length_penalty: params.length_penalty,
                    stops_early: (early_stopping == EarlyStopping::Always).then_some(true),
                    n_prompt: ask.prompt.len(),
                    n_most: ask.max_tokens,
                    ends: &ask.stop_tokens,
                };
                let expected = naive.search(|tokens| {
                    let all: Vec<TokenId> = ask.prompt.iter().chain(tokens).copied().collect();
                    log_softmax(&logits_after(&mut plain, &all))
                });
                assert_eq!(found.len(), expected.len(), "{fixture}, {width} beams");
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found.tokens, expected.tokens, "{fixture}, {width} beams");
                    let is_stopped = found.finish == FinishReason::Stop;
                    assert_eq!(is_stopped, expected.is_stopped);
                    let error = (found.cumulative_logprob - expected.sum).abs();
                    assert!(error < 1e-4, "{fixture}, {width} beams: {error}");
                    assert!((found.score - expected.score).abs() < 1e-4);
                    *(if is_stopped { &mut n_stopped } else { &mut n_cut }) += 1;
                }
            }
        }
        assert!(n_stopped > 0 && n_cut > 0, "{fixture}: {n_stopped} stopped, {n_cut} cut");
        stop(engine);
    }
}

#[test]
fn beams_are_the_same_to_the_bit_in_every_world() {
    for format in ["Q8_0", "BF16"] {
        let (files, _folder) = open("qwen3", format);
        let plain = World::plain();
        let (alone, _) = found(&files, Compute::Auto, &plain, false);
        let with = |choices: Choices| World {
            config: EngineConfig { choices, ..Default::default() },
            ..plain.clone()
        };
        let uncached = Choices { prefix_cache: false, ..Choices::default() };
        let swapping = Choices { preemption: PreemptionMode::Swap, ..chunked() };
        let two_threads = World { n_threads: 2, ..plain.clone() };
        let scalar = World { kernels: Kernels::available().last().expect("one"), ..plain.clone() };
        for (what, world) in [
            ("in a batch", plain.clone()),
            ("by two threads", two_threads),
            ("by other kernels", scalar),
            ("in chunks", with(chunked())),
            ("without a prefix cache", with(uncached.clone())),
            ("in three places", with(Choices { max_running: 3, ..Choices::default() })),
            ("in little memory", World { n_blocks: 84, ..plain.clone() }),
            ("in little memory without a cache", World { n_blocks: 84, ..with(uncached) }),
            ("swapping", World { n_blocks: 84, n_host_blocks: 60, ..with(swapping) }),
            ("beside drafts", World { config: forced(SpecMethod::Suffix), ..plain.clone() }),
            ("with everything", World { n_blocks: 84, config: everything(), ..plain.clone() }),
        ] {
            let (answers, metrics) = found(&files, Compute::Auto, &world, true);
            assert_eq!(answers, alone, "{format}, {what}");
            assert!(metrics.copied_blocks > 0, "{what}: {metrics:?}");
        }
        let (again, _) = found(&files, Compute::Auto, &plain, false);
        assert_eq!(again, alone, "{format}, a second time");
    }
}
