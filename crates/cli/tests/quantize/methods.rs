//! The methods of `pelton quantize`, every width of them, and what each loses.

use super::{World, change, config};
use crate::common::pelton;
use serde_json::Value;

#[test]
fn every_method_writes_a_folder_that_runs_and_solvers_beat_rounding() {
    let world = World::new();
    let methods = [
        ("rtn", &["--method", "rtn"][..]),
        ("rtn-zeros", &["--method", "rtn", "--asymmetric"]),
        ("gptq", &["--method", "gptq"]),
        ("gptq-act", &["--method", "gptq", "--act-order"]),
        ("awq", &["--method", "awq"]),
    ];
    let mut kl = std::collections::BTreeMap::new();
    for (out, flags) in methods {
        let report = world.quantize(out, flags).json();
        assert_eq!(report["matrices"].as_array().expect("matrices").len(), 14, "{out}");
        assert!(report["n_bytes"].as_u64() < report["n_source_bytes"].as_u64(), "{report}");
        let bits = report["bits_per_weight"].as_f64().expect("a number");
        assert!((4.5..5.2).contains(&bits), "{out}: {bits}");
        let args = ["run", "-m", &world.path(out), "--raw", "--json", "-n", "4", "the moth"];
        pelton(&args).json();
        kl.insert(out, world.kl(out));
    }
    println!("{kl:?}");
    assert!(kl["rtn"] > 1e-5, "{kl:?}");
    for (solved, rounded) in [("gptq", "rtn"), ("gptq-act", "rtn"), ("awq", "rtn-zeros")] {
        assert!(kl[solved] < 0.7 * kl[rounded], "{solved}: {kl:?}");
    }
    let gptq = config(&world.path("gptq-act"))["quantization_config"].clone();
    for (field, value) in [("quant_method", "gptq"), ("checkpoint_format", "gptq")] {
        assert_eq!(gptq[field], value);
    }
    // gptqmodel refuses zero points in the format of version 1.
    let zeros = config(&world.path("rtn-zeros"))["quantization_config"].clone();
    assert_eq!(zeros["checkpoint_format"], "gptq_v2");
    assert_eq!([&gptq["bits"], &gptq["group_size"]], [4, 32]);
    assert_eq!([&gptq["desc_act"], &gptq["sym"]], [true, true]);
    let beside = std::fs::read_to_string(world.folder.path().join("gptq/quantize_config.json"));
    assert_eq!(serde_json::from_str::<Value>(&beside.expect("a file")).expect("JSON")["bits"], 4);
    let awq = config(&world.path("awq"))["quantization_config"].clone();
    assert_eq!([&awq["quant_method"], &awq["version"]], ["awq", "gemm"]);
    assert!(world.folder.path().join("awq/tokenizer_config.json").exists());
    assert!(world.names().iter().all(|name| !name.starts_with('.')), "{:?}", world.names());
}

#[test]
fn every_width_loads_and_more_bits_lose_less() {
    let world = World::new();
    let mut last = f64::INFINITY;
    for bits in ["2", "3", "4", "8"] {
        let out = format!("rtn-{bits}");
        world.quantize(&out, &["--method", "rtn", "--bits", bits]).assert_answered();
        let kl = world.kl(&out);
        assert!(kl < last, "{bits} bits: {kl} after {last}");
        last = kl;
        let inspected = pelton(&["inspect", &world.path(&out)]);
        inspected.assert_answered();
        assert!(inspected.stdout.contains(&format!("GPTQ, {bits} bits")), "{}", inspected.stdout);
    }
    assert!(last < 1e-3, "8 bits: {last}");
}

#[test]
fn a_rotated_model_loses_less_where_some_inputs_are_much_larger() {
    let world = World::new();
    // The same model with its large numbers in the matrices in place of the norms before them.
    change(&world.folder.path().join("tiny"), |name, values| {
        if name.contains("layernorm") {
            values.iter_mut().step_by(29).for_each(|w| *w /= 12.0);
        }
        if ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"].iter().any(|it| name.contains(it))
        {
            let rows = values.chunks_exact_mut(64);
            rows.for_each(|row| row.iter_mut().step_by(29).for_each(|w| *w *= 12.0));
        }
    });
    for (out, rotate) in [("plain", &[][..]), ("turned", &["--rotate"])] {
        let flags = ["--method", "rtn", "--group", "row"];
        let (input, output) = (world.path("tiny"), world.path(out));
        pelton(&[&["quantize", &input, &output][..], &flags, rotate].concat()).assert_answered();
    }
    let (plain, turned) = (world.kl("plain"), world.kl("turned"));
    println!("{plain} {turned}");
    assert!(turned < 0.7 * plain, "{turned} {plain}");
    let card = std::fs::read_to_string(world.folder.path().join("turned/README.md"));
    let card = card.expect("a card");
    assert!(card.contains("rotated") && card.contains("--rotate"), "{card}");
    assert_eq!(config(&world.path("turned"))["tie_word_embeddings"], false);

    let (tiny, out) = (world.path("tiny"), world.path("none"));
    let args = ["quantize", &tiny, &out, "--method", "rtn", "--target-bpw", "4.5", "--rotate"];
    let refused = pelton(&args);
    assert!(refused.stderr.contains("`--target-bpw` or `--target-size` with `--rotate`"));
    let args = ["quantize", &tiny, "none.gguf", "--method", "gguf", "--type", "q4_0", "--rotate"];
    assert!(pelton(&args).stderr.contains("`--rotate` with `gguf`"));
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_other_ones() {
    let world = World::new();
    let bytes = |out: &str, flags: &[&str]| {
        let flags = [&["--method", "gptq", "--samples", "2"], flags].concat();
        world.quantize(out, &flags).assert_answered();
        let file = format!("{out}/model-00002-of-00003.safetensors");
        std::fs::read(world.folder.path().join(file)).expect("the first layer")
    };
    let first = bytes("a", &["--threads", "1"]);
    assert!(first == bytes("b", &["--threads", "3"]), "threads change no byte");
    assert!(first != bytes("c", &["--seed", "5"]), "the seed chooses the windows");
}
