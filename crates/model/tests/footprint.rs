//! Loading allocates as much for weights as `inspect` says, for every layout.

use std::path::Path;

use crate::common::{all, open};
use pelton_model::device::StoredMatrix;
use pelton_model::{
    Compute, CpuDevice, Device, KvDtype, LoadOptions, MatrixRole, ModelError, ModelFiles, inspect,
    load_cpu,
};
use pelton_quant::FORMATS;
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use pelton_testkit::golden::encoder_decoders;

/// Loads with exactly the memory foretold, and with a byte less.
fn check(files: &ModelFiles, name: &str) {
    let told = inspect(files, KvDtype::Bf16).expect(name).weight_bytes;
    let load = |memory_bytes| {
        let options = LoadOptions {
            n_threads: Some(1),
            memory_bytes: Some(memory_bytes),
            ..LoadOptions::default()
        };
        load_cpu(files, &options)
    };
    assert_eq!(load(told).expect(name).memory_bytes(), told, "{name}");
    let needed = match load(told - 1).expect_err("a byte too few") {
        ModelError::Memory { needed_bytes, .. } => needed_bytes,
        other => panic!("{name}: {other}"),
    };
    assert_eq!(needed, told, "{name}");
}

#[test]
fn every_weight_format_takes_the_bytes_foretold() {
    let folder = tempfile::tempdir().expect("temp");
    // A vocabulary that does not fill its last panel.
    let tiny = TinyModel {
        hidden_size: 256,
        intermediate_size: 256,
        vocab_size: 301,
        n_layers: 1,
        ..TinyModel::default()
    };
    for format in FORMATS {
        let path = folder.path().join(format!("{}.gguf", format.name()));
        tiny.write_gguf(&path, format.dtype());
        let files = ModelFiles::open(&path).expect("opens");
        check(&files, format.name());
        // What is named in groups is unnamed: the file says less than the memory.
        let facts = inspect(&files, KvDtype::Bf16).expect("a model");
        let grows = format.name().starts_with("IQ2") || format.name() == "Q8_K";
        assert!(!grows || facts.weight_bytes > facts.n_bytes * 5 / 4, "{}", format.name());
    }
}

#[test]
fn every_family_takes_the_bytes_foretold() {
    for golden in all() {
        check(&golden.files(), &golden.name);
        if let Some(path) = golden.gguf() {
            check(&ModelFiles::open(&path).expect("opens"), &golden.name);
        }
        let told = golden.files();
        let as_f32 = golden.load(&told, Compute::F32).memory_bytes();
        assert!(as_f32 >= inspect(&told, KvDtype::Bf16).expect("a model").weight_bytes);
    }
}

#[test]
fn every_encoder_decoder_takes_the_bytes_foretold() {
    for golden in encoder_decoders() {
        let temp = tempfile::tempdir().expect("temp");
        golden.checkpoint.write_bare_folder(temp.path());
        check(&ModelFiles::open(temp.path()).expect("opens"), golden.checkpoint.name());
    }
}

#[test]
fn the_specification_alone_foretells_what_loading_in_f32_takes() {
    for golden in all() {
        let files = golden.files();
        let mut spec = files.spec().expect("a spec");
        spec.max_context = golden.max_context.unwrap_or(spec.max_context);
        let parameters = spec.parameters(CpuDevice::HEAD_ROWS);
        let matrix = |shape: &pelton_model::MatrixShape| {
            let stored = StoredMatrix::Tensor { dtype: DType::F32, shape: [shape.n, shape.k] };
            let size = CpuDevice::packed_size(&stored, Compute::F32).expect("plain floats");
            size.expect("f32 has a format").n_bytes * shape.n_copies as u64
        };
        let told = parameters.matrices.iter().map(matrix).sum::<u64>()
            + 4 * parameters.n_vector_elements as u64;
        assert_eq!(golden.load(&files, Compute::F32).memory_bytes(), told, "{}", golden.name);
        // Without the padding of panels and heads these are the matrices that operations count.
        let unpadded = spec.parameters(1);
        let roles =
            [MatrixRole::Product, MatrixRole::Exact, MatrixRole::LowRank, MatrixRole::Turned];
        let of_layers = unpadded.matrices.iter().filter(|matrix| roles.contains(&matrix.role));
        let (all, active) = of_layers.fold((0, 0), |(all, active), matrix| {
            (all + matrix.n_elements(), active + matrix.n_active_elements())
        });
        let layers = spec.layers.iter();
        let (n_all, n_active) = layers.fold((0, 0), |(all, active), layer| {
            let mixer = layer.mixer.n_weights(spec.hidden_size);
            let mlp = &layer.mlp;
            (
                all + mixer + mlp.n_weights(spec.hidden_size),
                active + mixer + mlp.n_active_weights(spec.hidden_size),
            )
        });
        let beside = spec.n_side_weights();
        let (n_all, n_active) = (n_all + beside, n_active + beside);
        assert_eq!((all, active), (n_all as u64, n_active as u64), "{}", golden.name);
    }
}

#[test]
fn every_way_to_quantize_checkpoints_takes_the_bytes_foretold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let mut n_seen = 0;
    for entry in std::fs::read_dir(folder).expect("fixtures") {
        let path = entry.expect("entry").path();
        if path.join("config.json").exists() {
            let golden = open(&path);
            check(&golden.files(), &golden.name);
            n_seen += 1;
        }
    }
    assert!(n_seen >= 20, "{n_seen} fixtures");
}
