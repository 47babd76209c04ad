//! Fixtures of encoders, and vectors of decoders.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_kernels::{Cpu, Kernels};
use pelton_model::embed::{EmbedSpec, Pooling, VectorModel};
use pelton_model::{
    BlockTables, Compute, CpuDevice, Decoder, ForwardInput, ForwardSequence, LoadOptions,
    ModelFiles, Ops, load,
};
use pelton_tensor::{Safetensors, TensorSource, TensorView, write_safetensors};
use pelton_testkit::golden::{Checkpoint, encoders};

/// A tiny checkpoint, and what the reference implementation computes with texts.
pub(crate) struct Fixture {
    pub(crate) name: String,
    checkpoint: Checkpoint,
    /// A complete model folder.
    folder: PathBuf,
    /// Holds the folder, and the GGUF file once it was asked for.
    temp: tempfile::TempDir,
    reference: Safetensors,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders")
}

/// Every fixture.
pub(crate) fn all() -> Vec<Fixture> {
    encoders().into_iter().map(|golden| Fixture::new(golden.checkpoint)).collect()
}

/// One fixture.
pub(crate) fn fixture(name: &str) -> Fixture {
    Fixture::new(Checkpoint::at(&root().join(name)))
}

impl Fixture {
    fn new(checkpoint: Checkpoint) -> Self {
        let temp = tempfile::tempdir().expect("temporary folder");
        let folder = temp.path().join("model");
        checkpoint.write_bare_folder(&folder);
        let name = checkpoint.name().to_owned();
        let reference = root().join(&name).join("reference.safetensors");
        let reference = Safetensors::open_file(&reference).expect("reference");
        Self { name, checkpoint, folder, temp, reference }
    }

    /// The fixture under another architecture and with other names of tensors.
    pub(crate) fn renamed(name: &str, architecture: &str, rename: impl Fn(&str) -> String) -> Self {
        let fixture = fixture(name);
        fixture.edit_config("architectures", serde_json::json!([architecture]));
        rename_tensors(self::fixture(name).folder(), fixture.folder(), rename);
        fixture
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn files(&self) -> ModelFiles {
        ModelFiles::open(self.folder()).expect(&self.name)
    }

    /// Whether there is a GGUF file of the same model.
    pub(crate) fn has_gguf(&self) -> bool {
        self.checkpoint.has_gguf()
    }

    /// The GGUF file of the same model, which must have one.
    pub(crate) fn gguf(&self) -> ModelFiles {
        let path = self.temp.path().join(format!("{}.gguf", self.name));
        self.checkpoint.write_bare_gguf(&path);
        ModelFiles::open(&path).expect(&self.name)
    }

    pub(crate) fn architecture(&self) -> String {
        self.files().config().architecture.clone()
    }

    /// Writes one field of `config.json`.
    pub(crate) fn edit_config(&self, key: &str, value: serde_json::Value) {
        let file = self.folder().join("config.json");
        let text = std::fs::read(&file).expect("config");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        config[key] = value;
        std::fs::write(file, config.to_string()).expect("config");
    }

    pub(crate) fn texts(&self) -> Vec<Vec<TokenId>> {
        let words = |name: &str| {
            let words = self.reference.get(name).expect(name).data.as_chunks::<4>().0.to_vec();
            words.into_iter().map(u32::from_le_bytes)
        };
        let mut tokens = words("tokens").map(TokenId);
        words("lengths").map(|n| tokens.by_ref().take(n as usize).collect()).collect()
    }

    fn floats(&self, name: &str) -> Vec<Vec<f32>> {
        let view = self.reference.get(name).expect(name);
        let values: Vec<f32> =
            view.data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        values.chunks(view.shape[1]).map(<[f32]>::to_vec).collect()
    }

    /// The pooled vectors of the reference.
    pub(crate) fn pooled(&self, pooling: Pooling) -> Vec<Vec<f32>> {
        self.floats(pooling.name())
    }

    /// The rows of the reference, by text.
    pub(crate) fn hidden(&self) -> Vec<Vec<Vec<f32>>> {
        let mut rows = self.floats("hidden").into_iter();
        self.texts().iter().map(|text| rows.by_ref().take(text.len()).collect()).collect()
    }

    pub(crate) fn decoder(
        &self,
        kernels: &'static Kernels,
        n_threads: usize,
    ) -> Decoder<CpuDevice> {
        decoder(&self.files(), kernels, n_threads)
    }

    /// A model with this pooling alone, whose vectors are not normalised.
    pub(crate) fn model(
        &self,
        pooling: Pooling,
        kernels: &'static Kernels,
        n_threads: usize,
    ) -> VectorModel<CpuDevice> {
        let decoder = self.decoder(kernels, n_threads);
        let spec = EmbedSpec::read(&self.files(), decoder.spec()).expect(&self.name);
        assert_eq!(spec.pooling, [Pooling::Mean], "{}", self.name);
        let spec = EmbedSpec { pooling: vec![pooling], normalise: false, ..spec };
        VectorModel::new(decoder, spec, 40).expect("memory")
    }

    /// Outputs of the last layer for a text, every row.
    pub(crate) fn rows(&self, text: &[TokenId]) -> Vec<Vec<f32>> {
        rows(&mut self.decoder(Kernels::best(), 1), text)
    }
}

/// The model of these files, in f32.
pub(crate) fn decoder(
    files: &ModelFiles,
    kernels: &'static Kernels,
    n_threads: usize,
) -> Decoder<CpuDevice> {
    let options = LoadOptions { compute: Compute::F32, ..Default::default() };
    let backend = CpuDevice::new(Cpu::with(kernels, n_threads));
    load(files, backend, &options).expect("loads")
}

/// Outputs of the last layer for a text, every row.
pub(crate) fn rows<D: Ops>(decoder: &mut Decoder<D>, text: &[TokenId]) -> Vec<Vec<f32>> {
    let blocks: Vec<u32> = (0..text.len().div_ceil(16) as u32).collect();
    let mut kv = decoder.try_new_passing_kv(blocks.len(), 16).expect("memory");
    let sequence = ForwardSequence {
        rows: 0..text.len(),
        n_source: 0,
        first_position: 0,
        block_tables: BlockTables::one(&blocks),
        lane: None,
        tree: None,
    };
    let logits_rows: Vec<usize> = (0..text.len()).collect();
    let sequences = std::slice::from_ref(&sequence);
    let mut hidden = Vec::new();
    let input = ForwardInput { tokens: text, sequences, logits_rows: &logits_rows };
    decoder.hidden(&mut kv, &input, &mut hidden);
    hidden.chunks(decoder.spec().hidden_size).map(<[f32]>::to_vec).collect()
}

/// Writes the tensors of one folder to another under other names; those named "" are left out.
pub(crate) fn rename_tensors(from: &Path, to: &Path, rename: impl Fn(&str) -> String) {
    let weights = Safetensors::open_folder(from).expect("weights");
    let names: Vec<(String, String)> =
        weights.names().iter().map(|name| (rename(name), (*name).to_owned())).collect();
    let kept = || names.iter().filter(|(new, _)| !new.is_empty());
    let views: Vec<TensorView<'_>> = kept()
        .map(|(new, old)| TensorView { name: new, ..weights.get(old).expect("listed") })
        .collect();
    write_safetensors(&to.join("model.safetensors"), &views, &BTreeMap::new()).expect("written");
}

/// Largest difference, relative to the largest element expected.
pub(crate) fn worst_error(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let difference = |(a, b): (&f32, &f32)| if a.is_nan() { f32::INFINITY } else { (a - b).abs() };
    got.iter().zip(expected).map(difference).fold(0.0, f32::max) / scale
}

pub(crate) fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|x| x.to_bits()).collect()
}
