//! Every model on a device that shares nothing with the kernels of the CPU: plain f32 in host memory.

use std::path::Path;

use crate::common::{BLOCK, Golden, all, argmax, golden, open, run_chunks, run_whole, scattered};
use pelton_base::TokenId;
use pelton_model::{
    BlockTables, Compute, Decoder, ForwardInput, ForwardSequence, GreedyRows, KvDtype, Lane,
    LoadOptions, ModelFiles, Ops, StateDtype, SwapStore, load,
};
use pelton_quant::FORMATS;
use pelton_testkit::{PlainDevice, Ranks, TinyModel};

/// Bound on the worst logit, relative to the largest of its row.
const BOUND: f32 = 1e-4;

fn options(max_context: Option<usize>) -> LoadOptions<'static> {
    LoadOptions { compute: Compute::F32, max_context, ..LoadOptions::default() }
}

fn plain(files: &ModelFiles, max_context: Option<usize>) -> Decoder<PlainDevice> {
    load(files, PlainDevice::new(), &options(max_context)).expect("loads")
}

/// Largest difference of two sets of rows, relative to the largest logit of a row.
fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| crate::vectors::worst_error(a, b)).fold(0.0, f32::max)
}

#[test]
fn every_checkpoint_and_gguf_file_matches_the_reference() {
    let mut far = Vec::new();
    let mut check = |golden: &Golden, files: &ModelFiles| {
        let mut decoder = plain(files, golden.max_context);
        let error = golden.worst_error(&run_whole(&mut decoder, &golden.tokens()));
        println!("{:24} {error:.1e}", golden.name);
        if error >= BOUND {
            far.push(format!("{}: {error:e}", files.path().display()));
        }
    };
    for golden in all() {
        check(&golden, &golden.files());
        if let Some(path) = golden.gguf() {
            check(&golden, &ModelFiles::open(&path).expect(&golden.name));
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn greedy_decoding_gives_the_tokens_of_the_reference() {
    for golden in all() {
        let mut decoder = plain(&golden.files(), golden.max_context);
        let mut chunks = vec![golden.prompt.len()];
        chunks.resize(golden.greedy.len(), 1);
        let tokens = golden.tokens();
        let rows = run_chunks(&mut decoder, &tokens, &chunks, &scattered(tokens.len()));
        let chosen: Vec<_> = rows[golden.prompt.len() - 1..].iter().map(|r| argmax(r)).collect();
        assert_eq!(chosen, golden.greedy, "{}", golden.name);
    }
}

#[test]
fn every_encoder_matches_the_reference() {
    for fixture in crate::vectors::all() {
        let mut decoder = plain(&fixture.files(), None);
        for (text, expected) in fixture.texts().iter().zip(fixture.hidden()) {
            let error = difference(&crate::vectors::rows(&mut decoder, text), &expected);
            assert!(error < BOUND, "{}: {error}", fixture.name);
        }
    }
}

#[test]
fn every_weight_format_is_the_one_that_the_kernels_compute_with() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let tiny =
        TinyModel { hidden_size: 256, intermediate_size: 256, n_layers: 1, ..TinyModel::default() };
    let tokens: Vec<TokenId> = (10..18).map(TokenId).collect();
    for format in FORMATS {
        let path = folder.path().join(format!("{}.gguf", format.name()));
        tiny.write_gguf(&path, format.dtype());
        agrees(&ModelFiles::open(&path).expect("opens"), &tokens, format.name());
    }
}

#[test]
fn every_way_to_quantize_checkpoints_is_the_one_that_the_kernels_compute_with() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let mut n_seen = 0;
    for entry in std::fs::read_dir(folder).expect("fixtures") {
        let path = entry.expect("entry").path();
        if path.join("config.json").exists() {
            let golden = open(&path);
            agrees(&golden.files(), &golden.tokens()[..8], &golden.name);
            n_seen += 1;
        }
    }
    assert!(n_seen >= 20, "{n_seen} fixtures");
}

/// Compares the plain device with the kernels, both in f32.
fn agrees(files: &ModelFiles, tokens: &[TokenId], name: &str) {
    let device = pelton_model::CpuDevice::with_threads(Some(1)).expect("kernels");
    let mut kernels = load(files, device, &options(None)).expect(name);
    let expected = run_whole(&mut kernels, tokens);
    let error = difference(&run_whole(&mut plain(files, None), tokens), &expected);
    assert!(error < BOUND, "{name}: {error:e}");
}

/// Logits of one sequence's rows, the last `n_greedy` of them as tokens only.
fn step<D: Ops>(
    decoder: &mut Decoder<D>,
    kv: &mut D::Kv,
    tokens: &[TokenId],
    place: (usize, &[u32]),
    tree: Option<&[u32]>,
    n_greedy: usize,
) -> (Vec<Vec<f32>>, Vec<Option<TokenId>>) {
    let block_tables = BlockTables::one(place.1);
    let lane = decoder.spec().is_recurrent().then(|| Lane::at(0, place.0));
    let rows = 0..tokens.len();
    let sequence =
        ForwardSequence { rows, n_source: 0, first_position: place.0, block_tables, lane, tree };
    let rows: Vec<usize> = (0..tokens.len()).collect();
    let input = ForwardInput { tokens, sequences: &[sequence], logits_rows: &rows };
    let n_layers = decoder.spec().layers.len();
    let (mut logits, mut likeliest) = (Vec::new(), Vec::new());
    let vocab_size = decoder.spec().vocab_size;
    let greedy = GreedyRows { n_rows: n_greedy, n_sampled: vocab_size, tokens: &mut likeliest };
    decoder.forward_greedy(n_layers, kv, &input, &mut logits, greedy);
    (logits.chunks(vocab_size).map(<[f32]>::to_vec).collect(), likeliest)
}

#[test]
fn a_tree_of_drafts_is_every_one_of_its_paths() {
    const ROOT: u32 = ForwardSequence::ROOT;
    let tree = [ROOT, 0, 0, ROOT, 1, 2];
    let paths: [&[usize]; 6] = [&[0], &[0, 1], &[0, 2], &[3], &[0, 1, 4], &[0, 2, 5]];
    // A window, latents, slopes, and sinks.
    for name in ["mistral", "deepseek-v3", "bloom", "gpt-oss"] {
        let golden = golden(name);
        let tokens = golden.tokens();
        let (committed, drafts) = tokens.split_at(tokens.len() - 6);
        let mut decoder = plain(&golden.files(), golden.max_context);
        let mut kv = decoder.new_kv(8, BLOCK);
        let blocks = [2, 0, 3, 1, 7, 5];
        step(&mut decoder, &mut kv, committed, (0, &blocks), None, 0);
        let place = (committed.len(), &blocks[..]);
        let (got, likeliest) = step(&mut decoder, &mut kv, drafts, place, Some(&tree), 2);
        let mut expected = Vec::new();
        for path in paths {
            let path = path.iter().map(|&row| drafts[row]);
            let chain: Vec<TokenId> = committed.iter().copied().chain(path).collect();
            expected.push(run_whole(&mut decoder, &chain).pop().expect("rows"));
        }
        let error = difference(&got, &expected[..4]);
        assert!(error < BOUND, "{name}: {error}");
        let expected: Vec<_> = expected[4..].iter().map(|row| Some(argmax(row))).collect();
        assert_eq!(likeliest, expected, "{name}");
    }
}

#[test]
fn keys_and_values_survive_every_move() {
    for name in ["qwen3", "deepseek-v2"] {
        let golden = golden(name);
        let tokens = &golden.tokens()[..40];
        let mut decoder = plain(&golden.files(), golden.max_context);
        let expected = run_whole(&mut decoder, tokens);
        let mut kv = decoder.new_kv(8, BLOCK);
        let mut store = SwapStore::try_new(&decoder.kv_footprint(8, BLOCK, 2)).expect("memory");
        step(&mut decoder, &mut kv, &tokens[..38], (0, &[0, 1, 2]), None, 0);
        // Out and in at another place, over another block, and token by token.
        decoder.swap_kv_out(&kv, 1, &mut store, 1);
        decoder.swap_kv_in(&mut kv, &store, 1, 6);
        decoder.copy_kv_block(&mut kv, 0, 5);
        for position in 32..38 {
            let far = BlockTables::one(&[5, 6, 2, 4]);
            decoder.copy_kv_position(&mut kv, far, None, position, position + 16);
        }
        for place in 38..40 {
            let token = &tokens[place..place + 1];
            let (got, _) = step(&mut decoder, &mut kv, token, (place, &[5, 6, 4]), None, 0);
            let error = difference(&got, &expected[place..place + 1]);
            assert!(error < BOUND, "{name}: {error}");
        }
    }
}

#[test]
fn a_device_that_is_one_of_several_ranks_is_refused() {
    let files = golden("llama").files();
    let device = PlainDevice::on(Ranks { rank: 1, size: 2 });
    let text = load(&files, device, &options(None)).expect_err("refused").to_string();
    assert!(text.starts_with("2 ranks: a model runs on one rank"), "{text}");
}

#[test]
fn keys_and_values_in_another_type_than_f32_are_refused() {
    let options = LoadOptions { kv_dtype: Some(KvDtype::Bf16), ..options(None) };
    let decoder = load(&golden("llama").files(), PlainDevice::new(), &options).expect("loads");
    let text = decoder.try_new_kv(1, BLOCK).expect_err("refused").to_string();
    assert!(text.contains("bf16"), "{text}");
}

#[test]
fn states_in_another_type_than_f64_are_refused() {
    let options = LoadOptions { state_dtype: StateDtype::Bf16, ..options(None) };
    let options = LoadOptions { kv_dtype: Some(KvDtype::F32), ..options };
    let decoder = load(&golden("mamba2").files(), PlainDevice::new(), &options).expect("loads");
    let text = decoder.try_new_kv(1, BLOCK).expect_err("refused").to_string();
    assert!(text.contains("states in bf16"), "{text}");
}
