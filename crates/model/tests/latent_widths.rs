//! Latent attention whose widths are no whole panels: loading pads them, and no result changes.
//!
//! ```text
//! golden model     cut to smaller widths                                       the model under test
//!                  cut to whole panels, zeros beyond the smaller widths        the same, unpadded
//! ```
//!
//! An element that is zero in the weights adds nothing to any sum, so both models compute the same.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{Golden, bits, golden, run_whole};
use pelton_kernels::Kernels;
use pelton_model::{
    Compute, CpuDevice, KvDtype, LoadOptions, ModelFiles, PackedCache, export_gguf, inspect, load,
};
use pelton_quant::dequantize_tensor;
use pelton_tensor::{DType, TensorView, write_safetensors};

/// Elements of a head's value, and of a latent.
#[derive(Clone, Copy)]
struct Widths {
    value_dim: usize,
    kv_rank: usize,
}

/// The golden models have these, with heads whose keys have this width before rotation.
const GOLDEN: Widths = Widths { value_dim: 16, kv_rank: 64 };
const NOPE_DIM: usize = 32;

/// A matrix or vector in f32.
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Tensor {
    /// Keeps the rows and columns of which `keep` tells where their values come from; `None` makes
    /// a zero.
    fn pick(&self, rows: &[Option<usize>], columns: &[Option<usize>]) -> Self {
        let k = self.shape[1];
        let value = |row: &Option<usize>, column: &Option<usize>| match (row, column) {
            (Some(row), Some(column)) => self.values[row * k + column],
            _ => 0.0,
        };
        let values = rows.iter().flat_map(|row| columns.iter().map(move |c| value(row, c)));
        Self { shape: vec![rows.len(), columns.len()], values: values.collect() }
    }
}

/// The first `filled` of `n` elements, and `None` for the others.
fn first(filled: usize, n: usize) -> impl Iterator<Item = Option<usize>> {
    (0..n).map(move |i| (i < filled).then_some(i))
}

/// Cuts the tensors of a golden model to `widths`, with zeros from `filled` on.
fn cut(name: &str, tensor: Tensor, widths: Widths, filled: Widths) -> Tensor {
    let all = |n: usize| first(n, n).collect::<Vec<_>>();
    let heads = |n: usize, stride: usize, before: usize| {
        let head = move |h: usize| {
            let values = first(filled.value_dim, widths.value_dim);
            let own = all(before).into_iter().chain(values.map(move |i| Some(before + i?)));
            own.map(move |i| Some(h * stride + i?)).collect::<Vec<_>>()
        };
        (0..n / stride).flat_map(head).collect::<Vec<_>>()
    };
    let latents = || first(filled.kv_rank, widths.kv_rank);
    if name.ends_with("kv_a_proj_with_mqa.weight") {
        let rotated = (GOLDEN.kv_rank..tensor.shape[0]).map(Some);
        let rows: Vec<_> = latents().chain(rotated).collect();
        tensor.pick(&rows, &all(tensor.shape[1]))
    } else if name.ends_with("kv_a_layernorm.weight") {
        // The mean is over all latents, zeros included.
        let factor = (filled.kv_rank as f32 / widths.kv_rank as f32).sqrt();
        let value = |i: Option<usize>| i.map_or(0.0, |i| tensor.values[i] * factor);
        Tensor { shape: vec![widths.kv_rank], values: latents().map(value).collect() }
    } else if name.ends_with("kv_b_proj.weight") {
        let rows = heads(tensor.shape[0], NOPE_DIM + GOLDEN.value_dim, NOPE_DIM);
        tensor.pick(&rows, &latents().collect::<Vec<_>>())
    } else if name.ends_with("o_proj.weight") {
        let columns = heads(tensor.shape[1], GOLDEN.value_dim, 0);
        tensor.pick(&all(tensor.shape[0]), &columns)
    } else {
        tensor
    }
}

/// Writes the golden model with other widths and opens it.
fn write(golden: &Golden, folder: &Path, widths: Widths, filled: Widths) -> ModelFiles {
    std::fs::create_dir_all(folder).expect("a folder");
    let config = std::fs::read(golden.folder().join("config.json")).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!(config["v_head_dim"], GOLDEN.value_dim);
    assert_eq!(config["kv_lora_rank"], GOLDEN.kv_rank);
    assert_eq!(config["qk_nope_head_dim"], NOPE_DIM);
    config["v_head_dim"] = widths.value_dim.into();
    config["kv_lora_rank"] = widths.kv_rank.into();
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let files = golden.files();
    let source = files.tensors();
    let tensors: Vec<(&str, Vec<usize>, Vec<u8>)> = (source.names().into_iter())
        .map(|name| {
            let view = source.get(name).expect(name);
            let values = dequantize_tensor(&view).expect(name);
            let tensor = Tensor { shape: view.shape.to_vec(), values };
            let Tensor { shape, values } = cut(name, tensor, widths, filled);
            (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        })
        .collect();
    let views: Vec<TensorView<'_>> = (tensors.iter())
        .map(|(name, shape, data)| TensorView { name, dtype: DType::F32, shape, data })
        .collect();
    let path = folder.join("model.safetensors");
    write_safetensors(&path, &views, &BTreeMap::new()).expect("written");
    ModelFiles::open(folder).expect("opens")
}

/// A family whose queries come from a latent and whose GGUF files hold keys and values together, and
/// one whose queries are projected at once and whose files hold them apart.
const FAMILIES: [&str; 2] = ["minicpm3", "deepseek-v2-lite"];

#[test]
fn values_that_fill_no_panel_have_the_bits_of_values_with_zeros_behind_them() {
    for name in FAMILIES {
        let golden = golden(name);
        let folder = tempfile::tempdir().expect("temp");
        let filled = Widths { value_dim: 10, ..GOLDEN };
        let narrow = write(&golden, &folder.path().join("narrow"), filled, filled);
        let wide = write(&golden, &folder.path().join("wide"), GOLDEN, filled);
        let tokens = golden.tokens();
        for compute in [Compute::F32, Compute::Auto] {
            let run = |files| bits(&run_whole(&mut golden.load(files, compute), &tokens));
            assert!(run(&narrow) == run(&wide), "{name} {compute:?}");
        }
        for kernels in Kernels::available() {
            let run = |files| {
                let mut decoder = golden.load_on(files, Compute::F32, kernels, 2);
                bits(&run_whole(&mut decoder, &tokens))
            };
            assert!(run(&narrow) == run(&wide), "{name} {}", kernels.name);
        }
    }
}

#[test]
fn latents_that_fill_no_panel_give_the_logits_of_latents_with_zeros_behind_them() {
    for name in FAMILIES {
        let golden = golden(name);
        let folder = tempfile::tempdir().expect("temp");
        let filled = Widths { value_dim: 10, kv_rank: 8 };
        let panels = Widths { value_dim: 16, kv_rank: 32 };
        let narrow = write(&golden, &folder.path().join("narrow"), filled, filled);
        let wide = write(&golden, &folder.path().join("wide"), panels, filled);
        let rows = |files| run_whole(&mut golden.load(files, Compute::F32), &golden.tokens());
        for (got, expected) in rows(&narrow).iter().zip(&rows(&wide)) {
            let most = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let error = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
            let error = error.fold(0.0, f32::max) / most;
            assert!(error < 1e-4, "{name}: {error:e}");
        }
    }
}

#[test]
fn padded_weights_go_to_files_and_caches_and_are_counted() {
    for name in FAMILIES {
        let golden = golden(name);
        let folder = tempfile::tempdir().expect("temp");
        let filled = Widths { value_dim: 10, kv_rank: 24 };
        let files = write(&golden, &folder.path().join("narrow"), filled, filled);
        let tokens = golden.tokens();
        let run =
            |files: &ModelFiles| bits(&run_whole(&mut golden.load(files, Compute::F32), &tokens));
        let expected = run(&files);
        let path = folder.path().join("narrow.gguf");
        export_gguf(&files, "F32", &path, None).expect("written");
        assert!(run(&ModelFiles::open(&path).expect("opens")) == expected, "{name}: GGUF");

        let cache = PackedCache::Folder(folder.path().to_owned());
        for _ in 0..2 {
            let options = LoadOptions {
                compute: Compute::F32,
                packed_cache: Some(&cache),
                ..LoadOptions::default()
            };
            let device = CpuDevice::with_threads(Some(1)).expect("kernels");
            let mut decoder = load(&files, device, &options).expect("loads");
            assert!(bits(&run_whole(&mut decoder, &tokens)) == expected, "{name}: cache");
        }
        let told = inspect(&files, KvDtype::Bf16).expect("a model").weight_bytes;
        let decoder = golden.load(&files, Compute::Auto);
        assert_eq!(decoder.memory_bytes(), told, "{name}");
    }
}
