//! Models of an encoder and a decoder: against the reference, on every device, and with the same bits
//! however their rows are cut into steps.
//!
//! `seq2seq/make.py` describes how the fixtures are made.

use pelton_base::TokenId;
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{
    BlockTables, Compute, CpuDevice, Decoder, ENCODER_DECODERS, ForwardInput, ForwardSequence,
    KvDtype, LoadOptions, ModelFiles, Ops, SwapStore, load,
};
use pelton_testkit::PlainDevice;
use pelton_testkit::golden::{GoldenSeq2Seq, encoder_decoders};

use crate::common::{argmax, cut};
use crate::vectors::bits;

const BLOCK: usize = 16;

/// Bound on the worst logit, relative to the largest of its row.
const BOUND: f32 = 1e-4;

fn files(golden: &GoldenSeq2Seq) -> (tempfile::TempDir, ModelFiles) {
    let temp = tempfile::tempdir().expect("temporary folder");
    let folder = temp.path().join("model");
    golden.checkpoint.write_bare_folder(&folder);
    let files = ModelFiles::open(&folder).expect("opens");
    (temp, files)
}

fn named(name: &str) -> GoldenSeq2Seq {
    let mut all = encoder_decoders();
    all.retain(|golden| golden.checkpoint.name() == name);
    all.remove(0)
}

fn options(kv_dtype: Option<KvDtype>) -> LoadOptions<'static> {
    LoadOptions { compute: Compute::F32, kv_dtype, ..LoadOptions::default() }
}

fn on_cpu(golden: &GoldenSeq2Seq, kernels: &'static Kernels, n: usize) -> Decoder<CpuDevice> {
    let (_temp, files) = files(golden);
    let device = CpuDevice::new(Cpu::with(kernels, n));
    load(&files, device, &options(None)).expect("loads")
}

/// A sequence of a step: its tokens, those computed before, how many are computed now, and its blocks.
struct Share<'a> {
    golden: &'a GoldenSeq2Seq,
    n_before: usize,
    n_now: usize,
    table: &'a [u32],
}

/// One step; logits of all rows of decoders in it.
fn step<D: Ops>(decoder: &mut Decoder<D>, kv: &mut D::Kv, shares: &[Share<'_>]) -> Vec<Vec<f32>> {
    let (mut tokens, mut sequences, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for share in shares {
        let all = share.golden.tokens(BLOCK);
        let (first, n_source) = (tokens.len(), share.golden.source.len());
        let own_start = n_source.next_multiple_of(BLOCK);
        tokens.extend_from_slice(&all[share.n_before..share.n_before + share.n_now]);
        let own = own_start.saturating_sub(share.n_before).min(share.n_now);
        rows.extend(first + own..tokens.len());
        sequences.push(ForwardSequence {
            rows: first..tokens.len(),
            n_source,
            first_position: share.n_before,
            block_tables: BlockTables::one(share.table),
            lane: None,
            tree: None,
        });
    }
    let input = ForwardInput { tokens: &tokens, sequences: &sequences, logits_rows: &rows };
    let mut logits = Vec::new();
    decoder.forward(kv, &input, &mut logits);
    if rows.is_empty() {
        return Vec::new();
    }
    logits.chunks(logits.len() / rows.len()).map(<[f32]>::to_vec).collect()
}

/// Rows of the decoder, the first step with the source and `cuts[0]` rows of its own.
fn run<D: Ops>(decoder: &mut Decoder<D>, golden: &GoldenSeq2Seq, cuts: &[usize]) -> Vec<Vec<f32>> {
    let n_tokens = golden.tokens(BLOCK).len();
    let own_start = golden.source.len().next_multiple_of(BLOCK);
    let n_blocks = n_tokens.div_ceil(BLOCK);
    let mut kv = decoder.new_kv(2 * n_blocks, BLOCK);
    let table: Vec<u32> = (0..n_blocks as u32).map(|i| 2 * i + 1).rev().collect();
    let (mut n_before, mut rows) = (0, Vec::new());
    for (i, n) in cut(n_tokens - own_start, cuts).into_iter().enumerate() {
        let n_now = if i == 0 { own_start + n } else { n };
        let share = Share { golden, n_before, n_now, table: &table };
        rows.extend(step(decoder, &mut kv, &[share]));
        n_before += n_now;
    }
    rows
}

fn worst(golden: &GoldenSeq2Seq, rows: &[Vec<f32>]) -> f32 {
    assert_eq!(rows.len(), golden.logits.len(), "{}", golden.checkpoint.name());
    let pairs = rows.iter().zip(&golden.logits);
    pairs.map(|(a, b)| crate::vectors::worst_error(a, b)).fold(0.0, f32::max)
}

#[test]
fn every_fixture_matches_the_reference_on_both_devices() {
    for golden in encoder_decoders() {
        let name = golden.checkpoint.name().to_owned();
        let (temp, files) = files(&golden);
        let n = golden.logits.len();
        let mut plain = load(&files, PlainDevice::new(), &options(None)).expect("loads");
        let mut cpu = on_cpu(&golden, Kernels::best(), 1);
        let errors = [run(&mut plain, &golden, &[n]), run(&mut cpu, &golden, &[n])]
            .map(|rows| worst(&golden, &rows));
        println!("{name:12} {:.1e} {:.1e}", errors[0], errors[1]);
        if golden.checkpoint.has_gguf() {
            let file = temp.path().join("model.gguf");
            golden.checkpoint.write_bare_gguf(&file);
            let files = ModelFiles::open(&file).expect(&name);
            let device = CpuDevice::new(Cpu::with(Kernels::best(), 1));
            let mut cpu = load(&files, device, &options(None)).expect("loads");
            let error = worst(&golden, &run(&mut cpu, &golden, &[n]));
            assert!(error < BOUND, "{name}.gguf: {error}");
        }
        assert!(errors.iter().all(|error| *error < BOUND), "{name}: {errors:?}");
    }
}

#[test]
fn greedy_decoding_gives_the_tokens_of_the_reference() {
    for golden in encoder_decoders() {
        let mut decoder = on_cpu(&golden, Kernels::best(), 1);
        let rows = run(&mut decoder, &golden, &[1]);
        let chosen: Vec<TokenId> = rows.iter().map(|row| argmax(row)).collect();
        assert_eq!(chosen[golden.first.len() - 1..], golden.greedy, "{}", golden.checkpoint.name());
    }
}

#[test]
fn rows_have_the_same_bits_however_they_are_cut_and_on_every_table_of_kernels() {
    for golden in encoder_decoders() {
        let mut alone = on_cpu(&golden, Kernels::best(), 1);
        let expected: Vec<_> = run(&mut alone, &golden, &[1]).iter().map(|row| bits(row)).collect();
        for kernels in Kernels::available() {
            for (n_threads, cuts) in [(1, &[7, 1, 3][..]), (3, &[100]), (3, &[1])] {
                let mut decoder = on_cpu(&golden, kernels, n_threads);
                let rows = run(&mut decoder, &golden, cuts);
                let name = golden.checkpoint.name();
                for (i, (row, expected)) in rows.iter().zip(&expected).enumerate() {
                    let what = format!("{name} {} x {n_threads} {cuts:?}", kernels.name);
                    assert!(bits(row) == *expected, "{what}: row {i}");
                }
            }
        }
    }
}

#[test]
fn a_sequence_has_its_bits_beside_others_that_read_their_sources_in_the_same_step() {
    for golden in encoder_decoders() {
        let mut decoder = on_cpu(&golden, Kernels::best(), 2);
        let expected = run(&mut decoder, &golden, &[1]);
        let n_tokens = golden.tokens(BLOCK).len();
        let own_start = golden.source.len().next_multiple_of(BLOCK);
        // The other one has a shorter source, and the same tokens otherwise.
        let other = GoldenSeq2Seq { source: golden.source[..9].to_vec(), ..golden.clone() };
        let n_blocks = n_tokens.div_ceil(BLOCK);
        let mut kv = decoder.new_kv(2 * n_blocks, BLOCK);
        let tables: Vec<u32> = (0..2 * n_blocks as u32).collect();
        let (own, beside) = tables.split_at(n_blocks);
        let mut rows = Vec::new();
        // The other one decodes while this one reads its source; then this one goes on beside its end.
        let mut n_before = [0, 0];
        for (i, [now, other_now]) in
            [[0, BLOCK + 2], [own_start + 1, 3], [4, 1], [1, 0]].into_iter().enumerate()
        {
            let share = Share { golden: &golden, n_before: n_before[0], n_now: now, table: own };
            let other =
                Share { golden: &other, n_before: n_before[1], n_now: other_now, table: beside };
            let shares = if i % 2 == 0 { vec![other, share] } else { vec![share, other] };
            let shares: Vec<_> = shares.into_iter().filter(|share| share.n_now > 0).collect();
            let got = step(&mut decoder, &mut kv, &shares);
            let n_own = now - if i == 1 { own_start } else { 0 };
            let first = if i % 2 == 0 { got.len() - n_own } else { 0 };
            rows.extend(got[first..first + n_own].to_vec());
            n_before = [n_before[0] + now, n_before[1] + other_now];
        }
        for (i, (row, expected)) in rows.iter().zip(&expected).enumerate() {
            assert!(bits(row) == bits(expected), "{}: row {i}", golden.checkpoint.name());
        }
        assert_eq!(rows.len(), 6);
    }
}

#[test]
fn a_source_that_changes_in_one_token_changes_the_first_row() {
    for golden in encoder_decoders() {
        let mut decoder = on_cpu(&golden, Kernels::best(), 1);
        let before = run(&mut decoder, &golden, &[1]);
        let mut other = golden.clone();
        let last = other.source.len() - 1;
        other.source[last] = TokenId(if other.source[last].0 == 9 { 10 } else { 9 });
        let after = run(&mut decoder, &other, &[1]);
        assert_ne!(bits(&before[0]), bits(&after[0]), "{}", golden.checkpoint.name());
    }
}

#[test]
fn pages_of_a_source_are_swapped_and_come_back() {
    let golden = &encoder_decoders()[0];
    let mut decoder = on_cpu(golden, Kernels::best(), 1);
    let expected = run(&mut decoder, golden, &[1]);
    let own_start = golden.source.len().next_multiple_of(BLOCK);
    let n_blocks = golden.tokens(BLOCK).len().div_ceil(BLOCK);
    let mut kv = decoder.new_kv(2 * n_blocks, BLOCK);
    let tables: Vec<u32> = (0..2 * n_blocks as u32).collect();
    let (first, second) = tables.split_at(n_blocks);
    let mut store =
        SwapStore::try_new(&decoder.kv_footprint(2 * n_blocks, BLOCK, n_blocks)).expect("memory");
    let share = Share { golden, n_before: 0, n_now: own_start + 1, table: first };
    let mut rows = step(&mut decoder, &mut kv, &[share]);
    for (i, (from, to)) in first.iter().zip(second).enumerate() {
        decoder.swap_kv_out(&kv, *from, &mut store, i as u32);
        decoder.swap_kv_in(&mut kv, &store, i as u32, *to);
    }
    let share = Share { golden, n_before: own_start + 1, n_now: 3, table: second };
    rows.extend(step(&mut decoder, &mut kv, &[share]));
    for (row, expected) in rows.iter().zip(&expected) {
        assert!(bits(row) == bits(expected));
    }
}

#[test]
fn every_encoder_decoder_has_a_fixture() {
    let all = encoder_decoders();
    let architectures: Vec<String> = all.iter().map(GoldenSeq2Seq::architecture).collect();
    for arch in ENCODER_DECODERS {
        let has = |name: &&str| architectures.iter().any(|own| own == name);
        assert!(arch.names.iter().any(has), "{:?}", arch.names);
    }
}

#[test]
fn configs_that_say_nonsense_are_refused_by_field() {
    let golden = &named("t5");
    let (temp, _files) = files(golden);
    let path = temp.path().join("model/config.json");
    let sound: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).expect("config")).expect("JSON");
    for (field, value) in [
        ("relative_attention_num_buckets", serde_json::json!(0)),
        ("relative_attention_num_buckets", serde_json::json!(6)),
        ("relative_attention_num_buckets", serde_json::json!(1e18)),
        ("relative_attention_max_distance", serde_json::json!(4)),
        ("relative_attention_max_distance", serde_json::json!(-1)),
        ("feed_forward_proj", serde_json::json!("gated-tanh")),
        ("feed_forward_proj", serde_json::json!("gelu")),
        ("num_decoder_layers", serde_json::json!(0)),
        ("num_decoder_layers", serde_json::json!(1e9)),
        ("decoder_start_token_id", serde_json::json!(256)),
        ("decoder_start_token_id", serde_json::json!(-1)),
        ("num_key_value_heads", serde_json::json!(2)),
    ] {
        let mut config = sound.clone();
        config[field] = value.clone();
        std::fs::write(&path, config.to_string()).expect("config");
        let opened = ModelFiles::open(&temp.path().join("model"));
        let error = match opened.and_then(|files| files.spec().map(drop)) {
            Err(error) => error.to_string(),
            Ok(()) => panic!("`{field}`: {value} is taken"),
        };
        assert!(error.contains(&format!("`{field}`")), "{value}: {error}");
    }
}

#[test]
fn a_tensor_that_is_missing_is_named() {
    let golden = &named("t5");
    let (temp, _files) = files(golden);
    let path = temp.path().join("model/config.json");
    let config = std::fs::read_to_string(&path).expect("config");
    let deeper = config.replace("\"num_layers\": 2", "\"num_layers\": 3");
    std::fs::write(&path, deeper).expect("config");
    let files = ModelFiles::open(&temp.path().join("model")).expect("opens");
    let error = pelton_model::check(&files).expect_err("too few layers").to_string();
    assert!(error.contains("encoder.block.2.layer.0"), "{error}");
}

#[test]
fn distances_are_in_the_buckets_of_the_reference() {
    let bias = pelton_model::layer::RelativeBias { n_buckets: 32, max_distance: 128 };
    // `T5Attention._relative_position_bucket` of transformers, for these keys minus queries.
    for (ahead, both, before) in [
        (0, 0, 0),
        (-1, 1, 1),
        (1, 17, 0),
        (-7, 7, 7),
        (-8, 8, 8),
        (-15, 9, 15),
        (-16, 10, 16),
        (16, 26, 0),
        (-31, 11, 21),
        (-32, 12, 21),
        (-64, 14, 26),
        (-127, 15, 31),
        (127, 31, 0),
        (-128, 15, 31),
        (-5000, 15, 31),
    ] {
        assert_eq!(
            (bias.bucket(ahead, false), bias.bucket(ahead, true)),
            (both, before),
            "{ahead}"
        );
    }
}

#[test]
fn a_forced_first_token_follows_the_one_that_the_decoder_begins_with() {
    let (temp, _files) = files(&named("bart"));
    let path = temp.path().join("model/config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).expect("config")).expect("JSON");
    config["forced_bos_token_id"] = serde_json::json!(0);
    let mut spec = |n_positions: usize| {
        config["max_position_embeddings"] = serde_json::json!(n_positions);
        std::fs::write(&path, config.to_string()).expect("config");
        ModelFiles::open(&temp.path().join("model")).and_then(|files| files.spec())
    };
    let encoder = spec(3).expect("room for an answer").encoder.expect("an encoder");
    assert_eq!(encoder.first_tokens, [TokenId(2), TokenId(0)]);
    let error = spec(2).expect_err("no room for an answer").to_string();
    assert!(error.contains("`max_position_embeddings`"), "{error}");
}
