//! Modules that keep their bytes, and models of two parts.

use super::World;
use crate::common::pelton;
use pelton_tensor::{Safetensors, TensorSource};
use pelton_testkit::golden::encoder_decoders;

#[test]
fn modules_that_are_kept_keep_their_bytes() {
    let world = World::new();
    let kept =
        ["--keep", "down_proj", "--keep", "layers.1", "--keep", "model.layers.0.mlp.up_proj"];
    let report = world.quantize("out", &[&["--method", "rtn"][..], &kept].concat()).json();
    let modules: Vec<&str> = report["matrices"]
        .as_array()
        .expect("matrices")
        .iter()
        .map(|matrix| matrix["module"].as_str().expect("a name"))
        .collect();
    let expected = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let expected = expected.into_iter().chain(["mlp.gate_proj"]);
    let expected: Vec<String> = expected.map(|name| format!("model.layers.0.{name}")).collect();
    assert_eq!(modules, expected);
    let open =
        |file: &str| Safetensors::open_file(&world.folder.path().join(file)).expect("weights");
    let source = open("tiny/model.safetensors");
    for (file, names) in [
        (
            "out/model-00002-of-00003.safetensors",
            &["layers.0.mlp.down_proj", "layers.0.mlp.up_proj"][..],
        ),
        (
            "out/model-00003-of-00003.safetensors",
            &["layers.1.mlp.down_proj", "layers.1.self_attn.q_proj", "layers.1.input_layernorm"],
        ),
    ] {
        let written = open(file);
        for name in names {
            let name = format!("model.{name}.weight");
            let (own, theirs) = (source.get(&name).expect(&name), written.get(&name).expect(&name));
            assert!(own.data == theirs.data && own.dtype == theirs.dtype, "{name}");
        }
    }
    let args = ["run", "-m", &world.path("out"), "--raw", "--json", "-n", "4", "the moth"];
    pelton(&args).json();
}

/// A layer of a decoder with cross-attention is two layers of one name: its tensors are written
/// once.
#[test]
fn models_of_an_encoder_and_a_decoder_are_quantized_whole() {
    for golden in encoder_decoders() {
        let name = golden.checkpoint.name();
        let folder = tempfile::tempdir().expect("temp");
        let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        golden.checkpoint.write_bare_folder(at("source").as_ref());
        for method in ["rtn", "fp8"] {
            let flags = ["--method", method, "--group", "row"];
            let flags = if method == "rtn" { &flags[..] } else { &flags[..2] };
            let outcome = pelton(&[&["quantize", &at("source"), &at(method)][..], flags].concat());
            assert_eq!(outcome.code, Some(0), "{name} by {method}: {}", outcome.stderr);
            let args = ["run", "-m", &at(method), "--tokens", "5,6,7", "-n", "6", "-q"];
            let outcome = pelton(&[&args[..], &["--temperature", "0"]].concat());
            assert_eq!(outcome.code, Some(0), "{name} by {method}: {}", outcome.stderr);
        }
    }
}
