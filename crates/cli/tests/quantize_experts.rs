//! `pelton quantize` of experts and of latent attention, through the real binary.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::pelton;
use crate::quantize::replace_weights;
use pelton_model::{Mixer, ModelFiles};
use pelton_quantize::LEAST_EXPERT_ROWS;
use pelton_testkit::golden::{GoldenDecoder, decoder_named, decoders};
use serde_json::Value;

/// Root of the mean square error of the largest logits, relative to that of these logits.
const BOUND: f64 = 0.12;

/// Printable characters in an order of no meaning, `n` of them.
fn text(n: usize, seed: u64) -> String {
    let mut state = seed;
    let mut next = |most: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    (0..n).map(|_| char::from(b' ' + next(95) as u8)).collect()
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// How far `model` is from the logits that the reference computed, relative to these.
fn error_of(golden: &GoldenDecoder, model: &Path) -> f64 {
    let tokens: Vec<String> = golden.tokens().iter().map(ToString::to_string).collect();
    let args =
        ["logits", "-m", utf8(model), "--tokens", &tokens.join(","), "--all", "--top", "256"];
    let outcome = pelton(&[&args[..], &["--compute", "f32", "--threads", "1"]].concat());
    outcome.assert_answered();
    let (mut delta, mut whole) = (0.0, 0.0);
    for (i, (line, row)) in outcome.stdout.lines().zip(&golden.logits).enumerate() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let mut top: Vec<(usize, f64)> =
            serde_json::from_value(line["top"].clone()).expect("logits");
        top.sort_by_key(|(id, _)| *id);
        for ((_, logit), expected) in golden.columns.of(i, &top).into_iter().zip(row) {
            delta += (logit - f64::from(*expected)).powi(2);
            whole += f64::from(*expected).powi(2);
        }
    }
    f64::sqrt(delta / whole)
}

#[test]
fn every_family_with_experts_or_latent_attention_is_solved_by_gptq_and_runs() {
    let temp = tempfile::tempdir().expect("temp");
    let calibration = temp.path().join("text");
    std::fs::write(&calibration, text(6000, 1)).expect("written");
    let (mut bad, mut n_models, mut n_latent, mut n_stacked) = (Vec::new(), 0, 0, 0);
    for golden in decoders() {
        let name = golden.checkpoint.name().to_owned();
        let (source, out) = (temp.path().join(&name), temp.path().join(format!("{name}-gptq")));
        golden.checkpoint.write_folder(&source);
        let files = ModelFiles::open(&source).expect(&name);
        let spec = files.spec().expect(&name);
        let has_experts = spec.layers.iter().any(|layer| layer.mlp.experts().is_some());
        let has_latents = spec.layers.iter().any(|layer| matches!(layer.mixer, Mixer::Mla(_)));
        // Codes of MXFP4 are not rounded once more.
        if !(has_experts || has_latents) || name == "gpt-oss-mxfp4" {
            continue;
        }
        let args = ["quantize", utf8(&source), utf8(&out), "--method", "gptq", "--bits", "8"];
        let flags =
            ["--group", "row", "--calibration", utf8(&calibration), "--sample-length", "64"];
        // Two outputs, which fill no words of codes.
        let keep = if name == "kimi-linear" { &["--keep", "b_proj"][..] } else { &[] };
        let outcome = pelton(&[&args[..], &flags, keep, &["--json"]].concat());
        if outcome.code != Some(0) {
            bad.push(format!("{name}: {}", outcome.stderr));
            continue;
        }
        let report = outcome.json();
        for matrix in report["matrices"].as_array().expect("matrices") {
            let module = matrix["module"].as_str().expect("a name");
            let is_expert = module.contains(".experts.");
            let (n_rows, is_few) = (matrix["n_rows"].as_u64(), matrix["is_few"] == true);
            if is_expert && (n_rows.is_none() || is_few != (n_rows < Some(LEAST_EXPERT_ROWS))) {
                bad.push(format!("{name}: {matrix}"));
            }
            if matrix["is_unsolved"] == true
                && (is_expert || has_latents)
                && !is_few
                && !module.contains("linear_attn")
                && !module.contains("self_attn.f_b_proj")
                && !module.contains("self_attn.g_b_proj")
            {
                bad.push(format!("{name}: {module} is unsolved"));
            }
        }
        let listed = |part: &str| {
            report["matrices"].as_array().is_some_and(|all| {
                all.iter().any(|m| m["module"].as_str().is_some_and(|module| module.contains(part)))
            })
        };
        if has_experts && !listed(".experts.0.") || has_latents && !listed("kv_b_proj") {
            bad.push(format!("{name}: matrices are missing"));
        }
        let names = std::fs::read_to_string(source.join("model.safetensors.index.json"));
        assert!(names.is_err(), "one file");
        n_stacked += usize::from(
            has_experts && !files.tensors().names().iter().any(|name| name.contains(".experts.0.")),
        );
        let error = error_of(&golden, &out);
        // Its router goes other ways once attention alone is rounded.
        let bound = if name == "gemma4-experts" { 5.0 * BOUND } else { BOUND };
        if error.is_nan() || error > bound {
            bad.push(format!("{name}: error {error:.3}"));
        }
        let run = ["run", "-m", utf8(&out), "--raw", "--json", "-n", "2", "abc"];
        pelton(&run).json();
        (n_models, n_latent) = (n_models + 1, n_latent + usize::from(has_latents));
        for path in [source, out] {
            std::fs::remove_dir_all(path).expect("removed");
        }
    }
    println!(
        "{n_models} models, {n_latent} with latent attention, {n_stacked} with stacked experts"
    );
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(n_models >= 24 && n_latent >= 7 && n_stacked >= 7, "{n_models} {n_latent} {n_stacked}");
}

/// Random numbers around zero.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        let one = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
        };
        // Nearly a normal distribution of deviation 1.
        (0..12).map(|_| one(&mut self.0)).sum()
    }

    fn matrix(&mut self, n: usize, k: usize) -> Vec<f32> {
        let scale = (k as f32).sqrt().recip();
        (0..n * k).map(|_| scale * self.next()).collect()
    }
}

const HIDDEN: usize = 96;
const FFN: usize = 96;
const EXPERTS: usize = 4;
const LAYERS: usize = 2;

/// A small Mixtral whose norms let a few inputs through much larger than others; embeddings have a
/// few directions in common, as those of trained models have.
fn write_mixtral(folder: &Path) {
    decoder_named("mixtral").checkpoint.write_folder(folder);
    let config = std::fs::read_to_string(folder.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    for (field, value) in [
        ("hidden_size", HIDDEN),
        ("intermediate_size", FFN),
        ("num_hidden_layers", LAYERS),
        ("num_local_experts", EXPERTS),
        ("num_experts_per_tok", 2),
        ("num_key_value_heads", 4),
    ] {
        config[field] = value.into();
    }
    config["sliding_window"] = Value::Null;
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let mut random = Numbers(7);
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let common = random.matrix(24, HIDDEN);
    let mut embeddings = Vec::new();
    for _ in 0..256 {
        let shares: Vec<f32> = (0..24).map(|_| random.next()).collect();
        let along = |j: usize| -> f32 {
            shares.iter().enumerate().map(|(i, share)| share * common[i * HIDDEN + j]).sum()
        };
        embeddings.extend((0..HIDDEN).map(|j| along(j) + 0.05 * random.next()).collect::<Vec<_>>());
    }
    tensors.push(("model.embed_tokens.weight".to_owned(), vec![256, HIDDEN], embeddings));
    let norm = |outliers: f32| -> Vec<f32> {
        (0..HIDDEN).map(|j| if j % 29 == 3 { outliers } else { 1.0 }).collect()
    };
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for part in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push((name(part), vec![HIDDEN], norm(12.0)));
        }
        for (part, n) in [("q", HIDDEN), ("k", HIDDEN), ("v", HIDDEN), ("o", HIDDEN)] {
            let own = random.matrix(n, HIDDEN);
            tensors.push((name(&format!("self_attn.{part}_proj")), vec![n, HIDDEN], own));
        }
        let router = random.matrix(EXPERTS, HIDDEN);
        tensors.push((name("block_sparse_moe.gate"), vec![EXPERTS, HIDDEN], router));
        for expert in 0..EXPERTS {
            for (part, [n, k]) in
                [("w1", [FFN, HIDDEN]), ("w3", [FFN, HIDDEN]), ("w2", [HIDDEN, FFN])]
            {
                let own = random.matrix(n, k);
                let name = name(&format!("block_sparse_moe.experts.{expert}.{part}"));
                tensors.push((name, vec![n, k], own));
            }
        }
    }
    tensors.push(("model.norm.weight".to_owned(), vec![HIDDEN], norm(1.0)));
    tensors.push(("lm_head.weight".to_owned(), vec![256, HIDDEN], random.matrix(256, HIDDEN)));
    replace_weights(folder, &tensors);
}

#[test]
fn experts_lose_less_by_gptq_and_awq_than_by_rounding() {
    let temp = tempfile::tempdir().expect("temp");
    let at = |name: &str| utf8(&temp.path().join(name)).to_owned();
    write_mixtral(&temp.path().join("moe"));
    std::fs::write(at("seen"), text(16_000, 1)).expect("written");
    std::fs::write(at("held-out"), text(3000, 2)).expect("written");
    let quantize = |out: &str, method: &str, flags: &[&str]| {
        let args = ["quantize", &at("moe"), &at(out), "--calibration", &at("seen"), "--json"];
        // Experts alone.
        let own = ["--method", method, "--keep", "self_attn"];
        let own = [&own[..], &["--group", "32", "--sample-length", "128"]].concat();
        pelton(&[&args[..], &own, flags].concat()).json()
    };
    let kl = |model: &str| {
        let args = ["eval", &at(model), "--reference", &at("moe"), "--text", &at("held-out")];
        let report = pelton(&[&args[..], &["--compute", "f32", "--json"]].concat()).json();
        report["against"]["kl_divergence"]["value"].as_f64().expect("a number")
    };
    let mut found = BTreeMap::new();
    for (name, method, flags) in [
        ("gptq-4", "gptq", &["--bits", "4"][..]),
        ("gptq-3", "gptq", &["--bits", "3"]),
        ("awq-4", "awq", &[]),
    ] {
        let report = quantize(name, method, flags);
        let matrices = report["matrices"].as_array().expect("matrices");
        let experts: Vec<&Value> = (matrices.iter())
            .filter(|m| m["module"].as_str().is_some_and(|module| module.contains(".experts.")))
            .collect();
        assert_eq!(experts.len(), LAYERS * EXPERTS * 3, "{name}");
        let sum = |field: &str| -> f64 {
            experts.iter().map(|matrix| matrix[field].as_f64().expect("an error")).sum()
        };
        assert!(experts.iter().all(|matrix| matrix["is_few"] == false), "{name}");
        found.insert(name, (sum("error") / sum("error_rounded"), kl(name)));
    }
    for (name, flags) in [
        ("rtn-4", &["--bits", "4"][..]),
        ("rtn-3", &["--bits", "3"]),
        ("rtn-4-zeros", &["--asymmetric"]),
    ] {
        quantize(name, "rtn", flags);
        found.insert(name, (1.0, kl(name)));
    }
    println!("{found:?}");
    // Errors on the calibration, and what is lost on another text.
    for (solved, rounded, most) in
        [("gptq-4", "rtn-4", 0.35), ("gptq-3", "rtn-3", 0.35), ("awq-4", "rtn-4-zeros", 0.5)]
    {
        assert!(found[solved].0 < most, "{solved}: {found:?}");
        assert!(found[solved].1 < most * found[rounded].1, "{solved}: {found:?}");
    }
}
