//! Models of an encoder and a decoder: the same answers in every world, and sources that are read once.

use pelton_base::{Ask, SamplingParams, TokenId};
use pelton_engine::{BeamParams, EngineConfig, SpecMethod, SubmitError};
use pelton_kernels::Kernels;
use pelton_model::{Compute, ModelFiles, StateDtype};
use pelton_sched::{Choices, PreemptionMode};
use pelton_testkit::golden::{GoldenSeq2Seq, encoder_decoders};
use tempfile::TempDir;

use crate::Law;
use crate::worlds::*;

fn open_golden(golden: &GoldenSeq2Seq) -> (ModelFiles, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    golden.checkpoint.write_bare_folder(folder.path());
    (ModelFiles::open(folder.path()).expect("opens"), folder)
}

/// The requests of all laws, with sources that fit into the smallest steps; two of them share a source,
/// and one source is the beginning of another one.
fn sources() -> Vec<Ask> {
    let mut all = requests();
    for (i, ask) in all.iter_mut().enumerate() {
        ask.prompt.truncate(36 - i);
    }
    all[5].prompt = all[3].prompt.clone();
    all[6].prompt = all[3].prompt[..20].to_vec();
    all
}

#[test]
fn an_answer_is_the_one_of_the_reference() {
    for golden in encoder_decoders() {
        let (files, _folder) = open_golden(&golden);
        let request = Ask {
            sampling: SamplingParams::greedy(),
            ..ask(golden.source.clone(), golden.greedy.len())
        };
        let (found, _) = answers(&files, Compute::F32, &World::plain(), vec![request], false);
        let (tokens, _, usage) = &found[0];
        let tokens: Vec<TokenId> = tokens.iter().map(|sampled| sampled.token).collect();
        assert_eq!(tokens, golden.greedy, "{}", golden.checkpoint.name());
        // Neither padding nor the decoder's first tokens.
        assert_eq!(usage.prompt_tokens, golden.source.len());
    }
}

#[test]
fn every_encoder_decoder_answers_alike_in_every_world() {
    let mut n_from_texts = 0;
    for golden in encoder_decoders() {
        let name = golden.checkpoint.name().to_owned();
        let (files, _folder) = open_golden(&golden);
        let (plain, compute) = (World::plain(), Compute::Auto);
        let (alone, _) = answers(&files, compute, &plain, sources(), false);
        let state_dtype = StateDtype::F32;
        let law = Law { name, files, compute, state_dtype, alone };
        let holds = |what: &str, world: &World| law.holds_for(what, world, sources());
        let chosen = |choices| EngineConfig { choices, ..Default::default() };
        holds("in a batch of eight", &plain);
        holds("in small steps", &World { config: chosen(chunked()), ..plain.clone() });
        let few = World { pool: Some(34), ..plain.clone() };
        let metrics = holds("preempted", &few);
        assert!(metrics.n_preemptions > 0, "{metrics:?}");
        let swap = Choices { preemption: PreemptionMode::Swap, ..Choices::default() };
        let swapped = World { n_host_blocks: 400, config: chosen(swap), ..few };
        let metrics = holds("swapped out", &swapped);
        assert!(metrics.swapped_in_blocks > 0, "{metrics:?}");
        let uncached = Choices { prefix_cache: false, ..Choices::default() };
        holds("without a cache", &World { config: chosen(uncached), ..plain.clone() });
        for method in [SpecMethod::Ngram, SpecMethod::Suffix, SpecMethod::EarlyExit] {
            // Drafts that come blank are chains.
            for branches in [false, method != SpecMethod::EarlyExit] {
                let world = World { config: forced(method), branches, ..plain.clone() };
                let metrics = holds("drafted", &world);
                match method {
                    SpecMethod::EarlyExit => assert!(metrics.spec.n_drafted > 0, "{metrics:?}"),
                    _ => n_from_texts += metrics.spec.n_drafted,
                }
            }
        }
        let all = World { n_threads: 2, config: everything(), ..swapped };
        holds("with everything at once", &all);
        for kernels in Kernels::available().skip(1) {
            holds(kernels.name, &World { kernels, ..plain.clone() });
        }
    }
    assert!(n_from_texts > 0, "nothing was drafted from texts");
}

#[test]
fn a_source_is_read_once_for_all_requests_that_have_it() {
    let golden = &encoder_decoders()[0];
    let (files, _folder) = open_golden(golden);
    let (engine, hold) = start(&files, Compute::Auto, &World::plain());
    drop(hold);
    let request = |source: &[TokenId]| ask(source.to_vec(), 6);
    let source = tokens(1, 30);
    let first = collect(engine.submit(request(&source)).expect("taken"));
    let second = collect(engine.submit(request(&source)).expect("taken"));
    assert_eq!(first, second);
    // A source that ends earlier, goes on or ends otherwise has other rows throughout.
    let mut changed = source.clone();
    changed[29] = TokenId(255 - changed[29].0);
    let otherwise = collect(engine.submit(request(&changed)).expect("taken"));
    let shorter = collect(engine.submit(request(&source[..28])).expect("taken"));
    let longer = collect(engine.submit(request(&tokens(1, 33))).expect("taken"));
    let metrics = stop(engine);
    assert_eq!(metrics.cached_prompt_tokens, 30, "{metrics:?}");
    let longer_source = tokens(1, 33);
    for (answer, source) in
        [(shorter, &source[..28]), (longer, &longer_source), (otherwise, &changed)]
    {
        let world = World::plain();
        let alone = answers(&files, Compute::Auto, &world, vec![request(source)], false);
        assert_eq!(answer, alone.0[0]);
    }
}

#[test]
fn beams_share_the_pages_of_their_source() {
    let golden = &encoder_decoders()[0];
    let (files, _folder) = open_golden(golden);
    let search = |width| {
        let (engine, hold) = start(&files, Compute::F32, &World::plain());
        drop(hold);
        let request = Ask {
            sampling: SamplingParams::greedy(),
            ..ask(golden.source.clone(), golden.greedy.len())
        };
        let params = BeamParams::of_width(width);
        let stream = engine.submit_beams(request, params).expect("taken");
        let found = crate::beams::collect_beams(stream);
        (found, stop(engine))
    };
    let (one, alone) = search(1);
    assert_eq!(one[0].tokens, golden.greedy);
    let (_, four) = search(4);
    // The encoder ran once: the other beams went on from the pages that it filled.
    assert_eq!(four.prompt_tokens, alone.prompt_tokens, "{four:?}");
}

#[test]
fn an_answer_without_an_end_fills_the_room_that_was_foretold() {
    for golden in &encoder_decoders() {
        let (files, _folder) = open_golden(golden);
        let (engine, hold) = start(&files, Compute::Auto, &World::plain());
        drop(hold);
        let most = engine.most_source_tokens().expect("an encoder");
        for n in [1, 15, 16, 17, most] {
            let answer = collect(engine.submit(ask(tokens(1, n), usize::MAX)).expect("taken")).0;
            assert_eq!(answer.len(), engine.answer_room(n), "a prompt of {n}");
        }
        engine.submit(ask(tokens(1, most + 1), 1)).expect_err("too long");
        stop(engine);
    }
}

#[test]
fn requests_that_an_encoder_cannot_read_are_refused_by_name() {
    let golden = &encoder_decoders()[0];
    let (files, _folder) = open_golden(golden);
    let choices = Choices { max_batch_tokens: 20, ..Choices::default() };
    let config = EngineConfig { choices, ..Default::default() };
    let (engine, hold) = start(&files, Compute::Auto, &World { config, ..World::plain() });
    drop(hold);
    let refused = engine.submit(ask(tokens(1, 21), 4)).expect_err("too long for a step");
    assert_eq!(refused, SubmitError::SourceTooLong { n_source: 21, limit: 20 });
    let extras = pelton_engine::Extras { prompt_logprobs: Some(1), ..Default::default() };
    let refused = engine.submit_with(ask(tokens(1, 9), 4), extras).expect_err("no logits");
    assert_eq!(refused, SubmitError::NotOfSources { param: "prompt_logprobs" });
    assert_eq!(collect(engine.submit(ask(tokens(1, 20), 4)).expect("taken")).0.len(), 4);
    stop(engine);
}
