//! A walk from layer to layer computes what the decoder computes, and shows what matrices read.

use std::collections::BTreeMap;

use pelton_base::TokenId;
use pelton_model::{
    BlockTables, Compute, CpuDevice, ForwardInput, ForwardSequence, LayerWalk, LoadOptions,
    ModelFiles, Reads, layer_shape, load_cpu,
};
use pelton_quant::{dequantize_tensor, for_dtype, quantize_tensor};
use pelton_tensor::{DType, KvDtype, TensorView, write_safetensors};
use pelton_testkit::TinyModel;

use crate::common::golden;

const TOKENS: [u32; 37] = [
    5, 80, 3, 120, 44, 200, 17, 9, 9, 250, 31, 77, 12, 101, 64, 3, 8, 180, 22, 35, 91, 140, 66, 7,
    19, 230, 48, 53, 110, 4, 88, 29, 160, 72, 6, 99, 13,
];

/// A stored tensor in f64.
fn values(files: &ModelFiles, name: &str) -> Vec<f64> {
    let view = files.tensors().get(name).expect(name);
    dequantize_tensor(&view).expect(name).into_iter().map(f64::from).collect()
}

/// `x Wᵀ` of one row.
fn product(weights: &[f64], x: &[f64]) -> Vec<f64> {
    weights.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn norm(weights: &[f64], x: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weights).map(|(x, w)| x / (mean + 1e-5).sqrt() * w).collect()
}

fn rows(flat: &[f32], width: usize) -> Vec<Vec<f64>> {
    flat.chunks(width).map(|row| row.iter().copied().map(f64::from).collect()).collect()
}

fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-4 * (1.0 + b.abs()), "{what}: {a} {b}");
    }
}

#[test]
fn a_walk_gives_the_logits_of_the_decoder_and_taps_what_is_read() {
    let folder = tempfile::tempdir().expect("temp");
    let tiny = TinyModel::default();
    tiny.write_folder(folder.path());
    let files = ModelFiles::open(folder.path()).expect("a model");
    let tokens = TOKENS.map(TokenId);
    let device = CpuDevice::with_threads(Some(2)).expect("a device");
    let mut walk = LayerWalk::new(&files, device, 64).expect("a walk");
    let mut x = walk.embed(&tokens);
    walk.drop_embeddings();
    let table = values(&files, "model.embed_tokens.weight");
    let hidden = tiny.hidden_size;
    for (row, token) in rows(&x.x, hidden).iter().zip(TOKENS) {
        assert_eq!(*row, table[token as usize * hidden..][..hidden]);
    }
    for layer in 0..tiny.n_layers {
        let name = |part: &str| values(&files, &format!("model.layers.{layer}.{part}.weight"));
        walk.load(&files, layer).expect("a layer");
        let before = rows(&x.x, hidden);
        let mut taps = Vec::new();
        let (mut untapped, mut shown, mut early) = (x.clone(), x.clone(), Vec::new());
        walk.show(&mut shown, &mut |reads, rows: &[f32]| early.push((reads, rows.to_vec())));
        walk.run(&mut x, Some(&mut |reads, rows: &[f32]| taps.push((reads, rows.to_vec()))));
        walk.run(&mut untapped, None);
        assert_eq!(x.x, untapped.x, "looking changes nothing");
        assert_eq!(early, taps, "what is shown does not depend on what follows");
        let order = [Reads::Mixer, Reads::Attended, Reads::Mlp, Reads::Hidden];
        assert_eq!(taps.iter().map(|(reads, _)| *reads).collect::<Vec<_>>(), order);
        let tapped = |at: usize| rows(&taps[at].1, taps[at].1.len() / TOKENS.len());
        let (mixer, attended, mlp, inner) = (tapped(0), tapped(1), tapped(2), tapped(3));
        for (i, after) in rows(&x.x, hidden).iter().enumerate() {
            assert_near(&mixer[i], &norm(&name("input_layernorm"), &before[i]), "q, k, v");
            let delta = product(&name("self_attn.o_proj"), &attended[i]);
            let middle: Vec<f64> = before[i].iter().zip(delta).map(|(x, d)| x + d).collect();
            let normed = norm(&name("post_attention_layernorm"), &middle);
            assert_near(&mlp[i], &normed, "gate, up");
            let gate = product(&name("mlp.gate_proj"), &normed);
            let up = product(&name("mlp.up_proj"), &normed);
            let gated = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up);
            assert_near(&inner[i], &gated.collect::<Vec<_>>(), "down");
            let delta = product(&name("mlp.down_proj"), &inner[i]);
            let sum: Vec<f64> = middle.iter().zip(delta).map(|(x, d)| x + d).collect();
            assert_near(after, &sum, "the layer");
        }
    }

    let options = LoadOptions { compute: Compute::F32, ..LoadOptions::default() };
    let mut decoder = load_cpu(&files, &options).expect("loads");
    let mut kv = decoder.new_kv(4, 16);
    let tables = [0, 1, 2, 3];
    let sequence = ForwardSequence {
        rows: 0..TOKENS.len(),
        n_source: 0,
        first_position: 0,
        block_tables: BlockTables::one(&tables),
        lane: None,
        tree: None,
    };
    let all: Vec<usize> = (0..TOKENS.len()).collect();
    let input = ForwardInput { tokens: &tokens, sequences: &[sequence], logits_rows: &all };
    let mut logits = Vec::new();
    decoder.forward(&mut kv, &input, &mut logits);
    let weights = values(&files, "model.norm.weight");
    for (row, logits) in rows(&x.x, hidden).iter().zip(rows(&logits, tiny.vocab_size)) {
        assert_near(&product(&table, &norm(&weights, row)), &logits, "logits");
    }
}

/// Layers that read the keys and values of earlier ones, and vectors of tokens for each layer, go along.
#[test]
fn a_walk_over_layers_that_share_pages_gives_the_logits_of_the_reference() {
    for (fixture, prefix, softcap) in
        [("gemma4", "model.language_model.", Some(3.0)), ("gemma4-unified", "model.", None)]
    {
        let golden = golden(fixture);
        let files = golden.files();
        let device = CpuDevice::with_threads(Some(1)).expect("a device");
        let tokens = &golden.tokens()[..40];
        let mut walk = LayerWalk::new(&files, device, 64).expect("a walk");
        let mut texts = [walk.embed(&tokens[..20]), walk.embed(tokens)];
        walk.drop_embeddings();
        for layer in 0..walk.spec().layers.len() {
            walk.load(&files, layer).expect("a layer");
            // Another text between the layers of this one.
            texts.iter_mut().for_each(|text| walk.run(text, None));
        }
        let hidden = walk.spec().hidden_size;
        let table = values(&files, &format!("{prefix}embed_tokens.weight"));
        let weights = values(&files, &format!("{prefix}norm.weight"));
        let expected = golden.logits.iter().map(|row| row.iter().map(|x| f64::from(*x)));
        for (i, (row, expected)) in rows(&texts[1].x, hidden).iter().zip(expected).enumerate() {
            let mut logits = product(&table, &norm(&weights, row));
            if let Some(cap) = softcap {
                logits.iter_mut().for_each(|x: &mut f64| *x = cap * (*x / cap).tanh());
            }
            assert_near(&golden.columns.of(i, &logits), &expected.collect::<Vec<_>>(), fixture);
        }
    }
}

#[test]
fn matrices_are_listed_with_what_they_read_and_patches_are_read_in_place_of_files() {
    let folder = tempfile::tempdir().expect("temp");
    TinyModel { n_kv_heads: 4, ..TinyModel::default() }.write_folder(folder.path());
    let mut files = ModelFiles::open(folder.path()).expect("a model");
    let shape = layer_shape(&files, 1).expect("a layer");
    assert_eq!(shape.prefix, "model.layers.1.");
    let listed: Vec<_> = (shape.matrices.iter())
        .map(|m| (m.module.strip_prefix(&shape.prefix).expect("a prefix"), m.shape, m.reads))
        .collect();
    let (mixer, mlp) = (Some(Reads::Mixer), Some(Reads::Mlp));
    let expected = [
        ("self_attn.q_proj", [64, 64], mixer),
        ("self_attn.k_proj", [64, 64], mixer),
        ("self_attn.v_proj", [64, 64], mixer),
        ("self_attn.o_proj", [64, 64], Some(Reads::Attended)),
        ("mlp.gate_proj", [96, 64], mlp),
        ("mlp.up_proj", [96, 64], mlp),
        ("mlp.down_proj", [64, 96], Some(Reads::Hidden)),
    ];
    assert_eq!(listed, expected);
    let norms = [Reads::Mixer, Reads::Mlp].map(|place| &shape.norms[&place]);
    assert_eq!(norms[0].weight, "model.layers.1.input_layernorm.weight");
    assert_eq!(norms[1].weight, "model.layers.1.post_attention_layernorm.weight");
    let rows = [Reads::Attended, Reads::Hidden].map(|place| &shape.rows[&place]);
    assert_eq!(rows[0].module, "model.layers.1.self_attn.v_proj");
    assert_eq!((rows[1].module.as_str(), rows[1].rows.len()), ("model.layers.1.mlp.up_proj", 96));

    let name = shape.matrices[3].tensor();
    let stored = values(&files, &name);
    files.patch(&name, &vec![0.5; 64 * 64]);
    assert!(values(&files, &name).iter().all(|w| *w == 0.5));
    files.clear_patches();
    assert_eq!(values(&files, &name), stored);
    // Values that several query heads share are not divided.
    TinyModel::default().write_folder(folder.path());
    let files = ModelFiles::open(folder.path()).expect("a model");
    let shape = layer_shape(&files, 0).expect("a layer");
    assert_eq!(shape.rows.get(&Reads::Attended), None);
}

/// The same model with matrices in bf16.
fn in_bf16(from: &ModelFiles, folder: &std::path::Path) -> ModelFiles {
    let (tensors, bf16) = (from.tensors(), for_dtype(DType::Bf16).expect("a format"));
    let stored: Vec<_> = (tensors.names().into_iter())
        .map(|name| {
            let view = tensors.get(name).expect(name);
            let data = match view.shape.len() {
                2 => quantize_tensor(&view, bf16).expect(name),
                _ => view.data.to_vec(),
            };
            (view, data)
        })
        .collect();
    let views: Vec<_> = (stored.iter())
        .map(|(view, data)| {
            let dtype = if view.shape.len() == 2 { DType::Bf16 } else { view.dtype };
            TensorView { dtype, data, ..*view }
        })
        .collect();
    write_safetensors(&folder.join("model.safetensors"), &views, &BTreeMap::new())
        .expect("written");
    std::fs::copy(from.path().join("config.json"), folder.join("config.json")).expect("copied");
    ModelFiles::open(folder).expect("a model")
}

#[test]
fn matrices_in_bf16_and_what_is_patched_over_them_are_computed_in_bf16() {
    let (first, second) = (tempfile::tempdir().expect("temp"), tempfile::tempdir().expect("temp"));
    TinyModel::default().write_folder(first.path());
    let mut floats = ModelFiles::open(first.path()).expect("a model");
    let mut halves = in_bf16(&floats, second.path());
    let walked = |files: &ModelFiles, tokens: &[TokenId]| {
        let device = CpuDevice::with_threads(Some(1)).expect("a device");
        let mut walk = LayerWalk::new(files, device, 64).expect("a walk").keeping_bf16();
        let mut x = walk.embed(tokens);
        for layer in 0..walk.spec().layers.len() {
            walk.load(files, layer).expect("a layer");
            walk.run(&mut x, None);
        }
        x.x
    };
    let tokens = TOKENS.map(TokenId);
    // The last row of a walk gives the logits of the decoder in the same arithmetic.
    for (files, compute) in [(&floats, Compute::F32), (&halves, Compute::Auto)] {
        let options = LoadOptions { compute, kv_dtype: Some(KvDtype::F32), ..Default::default() };
        let mut decoder = load_cpu(files, &options).expect("loads");
        let mut kv = decoder.new_kv(4, 16);
        let sequence = ForwardSequence {
            rows: 0..TOKENS.len(),
            n_source: 0,
            first_position: 0,
            block_tables: BlockTables::one(&[0, 1, 2, 3]),
            lane: None,
            tree: None,
        };
        let input = ForwardInput {
            tokens: &tokens,
            sequences: &[sequence],
            logits_rows: &[TOKENS.len() - 1],
        };
        let mut logits = Vec::new();
        decoder.forward(&mut kv, &input, &mut logits);
        let x = walked(files, &tokens);
        let last: Vec<f64> = x[x.len() - 64..].iter().copied().map(f64::from).collect();
        let normed = norm(&values(files, "model.norm.weight"), &last);
        // The head rounds what it reads to bf16, too.
        let found = product(&values(files, "model.embed_tokens.weight"), &normed);
        let most = if compute == Compute::F32 { 1e-4 } else { 1e-2 };
        for (a, b) in found.iter().zip(&logits) {
            assert!((a - f64::from(*b)).abs() < most * (1.0 + a.abs()), "{compute:?}: {a} {b}");
        }
    }
    // A little more than each weight, which bf16 rounds away.
    for (files, is_rounded) in [(&mut floats, false), (&mut halves, true)] {
        let before = walked(files, &tokens);
        let name = "model.layers.1.mlp.gate_proj.weight";
        let patch: Vec<f32> = values(files, name).iter().map(|w| (w * 1.0005) as f32).collect();
        files.patch(name, &patch);
        assert_eq!(walked(files, &tokens) == before, is_rounded);
        files.clear_patches();
    }
}
