//! A small model in a larger shape: the cost of the shape with the text of the model.
//!
//! ```text
//! matrix                           norm                                 layer beyond the model's own
//! ┌───────┬─────┐
//! │ model │  0  │   weight · √(hidden of the model / hidden), as zeros    all zeros: adds nothing to
//! ├───────┼─────┤   lower the mean square, and eps by the ratio itself    the residual stream
//! │   0   │  0  │
//! └───────┴─────┘
//! ```
//!
//! Random weights show the speed of a shape, but not how often a draft model is right. A grown
//! model generates the tokens of the small one, up to rounding, at the cost of the shape. So two
//! trained models that agree can be measured at any ratio of costs.
//!
//! Heads keep their KV head. A head that is `f` times as wide rotates pair `i` of the model as pair
//! `f i`, which turns as fast, and multiplies queries by `√f` for the smaller scale of its scores.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView};
use serde_json::Value;

use super::Shape;

/// Files of a model folder that define its tokenizer, template and defaults.
const TEXT_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];

/// A model, and the shape that it grows into.
pub(super) struct Grown {
    folder: PathBuf,
    tensors: Safetensors,
    config: Value,
    own: Sizes,
    pub(super) shape: Shape,
}

/// Sizes of the model itself.
struct Sizes {
    n_layers: usize,
    hidden: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

impl Grown {
    /// Opens the `folder` of a Llama with tied embeddings that fits into `shape`.
    pub(super) fn open(folder: &Path, shape: &Shape) -> anyhow::Result<Self> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let config: Value = serde_json::from_str(&text)?;
        let field = |name: &str| {
            let value = config[name].as_f64();
            value.with_context(|| format!("{}: `{name}` is missing", path.display()))
        };
        let size = |name: &str| field(name).map(|value| value as usize);
        let is_llama = config["architectures"][0] == "LlamaForCausalLM";
        ensure!(
            is_llama && config["tie_word_embeddings"] == true && shape.arch == "llama",
            "{}: only a Llama with tied embeddings grows, into a shape of Llama",
            folder.display()
        );
        let own = Sizes {
            n_layers: size("num_hidden_layers")?,
            hidden: size("hidden_size")?,
            n_heads: size("num_attention_heads")?,
            n_kv_heads: size("num_key_value_heads")?,
            head_dim: size("head_dim")?,
        };
        let ffn = size("intermediate_size")?;
        let fits = own.n_layers <= shape.n_layers
            && own.hidden <= shape.hidden
            && ffn <= shape.ffn
            && own.n_kv_heads <= shape.n_kv_heads
            && own.n_heads / own.n_kv_heads <= shape.n_heads / shape.n_kv_heads
            && shape.head_dim.is_multiple_of(own.head_dim);
        ensure!(fits, "{}: the model does not fit into the shape", folder.display());
        let shape = Shape {
            vocab: size("vocab_size")?,
            context: size("max_position_embeddings")?,
            rope_base: field("rope_theta")? as f32,
            eps: field("rms_norm_eps")? as f32 * own.hidden as f32 / shape.hidden as f32,
            ..*shape
        };
        let tensors = Safetensors::open_folder(folder)?;
        Ok(Self { folder: folder.to_owned(), tensors, config, own, shape })
    }

    /// The tokens that begin and end its texts, from its configuration.
    pub(super) fn special_tokens(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        let of = |name| self.config.get(name).map(|token| (name, token));
        ["bos_token_id", "eos_token_id"].into_iter().filter_map(of)
    }

    /// Copies the files in [`TEXT_FILES`].
    pub(super) fn copy_text_files(&self, out: &Path) -> anyhow::Result<()> {
        for name in TEXT_FILES {
            let path = self.folder.join(name);
            if path.exists() {
                std::fs::copy(&path, out.join(name)).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }

    /// The bytes of the tensor that is `gguf` in GGUF files and `hf` in folders.
    pub(super) fn values(
        &self,
        gguf: &str,
        hf: &str,
        dims: &[usize],
        dtype: DType,
    ) -> anyhow::Result<Vec<u8>> {
        let mut grown = vec![0.0_f32; dims.iter().product()];
        let layer = gguf.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let (layer, name) = match layer {
            Some((layer, name)) => (layer.parse()?, name),
            None => (0_usize, gguf),
        };
        if layer < self.own.n_layers {
            let view = self.tensors.get(hf).with_context(|| format!("no tensor `{hf}`"))?;
            let own = floats(&view)?;
            let width = *view.shape.last().context("a tensor without dimensions")?;
            let scale = self.scale(name, dims);
            for (row, values) in own.chunks_exact(width).enumerate() {
                for (column, value) in values.iter().enumerate() {
                    let at = match dims {
                        [_, n] => self.row(name, row) * n + self.column(name, column),
                        _ => column,
                    };
                    grown[at] = value * scale;
                }
            }
        }
        stored(&grown, dtype)
    }

    fn scale(&self, name: &str, dims: &[usize]) -> f32 {
        let ratio = match name {
            "attn_q.weight" => self.shape.head_dim as f32 / self.own.head_dim as f32,
            _ if dims.len() == 1 => self.own.hidden as f32 / self.shape.hidden as f32,
            _ => 1.0,
        };
        ratio.sqrt()
    }

    /// The row in the grown matrix for a row of the model's matrix.
    fn row(&self, name: &str, row: usize) -> usize {
        let (head, dim) = (row / self.own.head_dim, row % self.own.head_dim);
        match name {
            "attn_q.weight" => self.head(head) * self.shape.head_dim + self.rotated(dim),
            "attn_k.weight" => head * self.shape.head_dim + self.rotated(dim),
            "attn_v.weight" => head * self.shape.head_dim + dim,
            _ => row,
        }
    }

    /// The column in the grown matrix for a column of the model's matrix.
    fn column(&self, name: &str, column: usize) -> usize {
        let (head, dim) = (column / self.own.head_dim, column % self.own.head_dim);
        match name {
            "attn_output.weight" => self.head(head) * self.shape.head_dim + dim,
            _ => column,
        }
    }

    /// The head in the shape that reads the same KV head.
    fn head(&self, head: usize) -> usize {
        let per_kv = self.own.n_heads / self.own.n_kv_heads;
        head / per_kv * (self.shape.n_heads / self.shape.n_kv_heads) + head % per_kv
    }

    /// The dimension that turns as fast, in the same half of the head.
    fn rotated(&self, dim: usize) -> usize {
        let (half, wider) = (self.own.head_dim / 2, self.shape.head_dim / self.own.head_dim);
        dim / half * (self.shape.head_dim / 2) + dim % half * wider
    }
}

/// The elements of a tensor that is stored as f32 or bf16.
fn floats(view: &TensorView<'_>) -> anyhow::Result<Vec<f32>> {
    let bits: Vec<u32> = match view.dtype {
        DType::F32 => {
            let words = view.data.as_chunks::<4>().0;
            words.iter().map(|&word| u32::from_le_bytes(word)).collect()
        }
        DType::Bf16 => {
            let words = view.data.as_chunks::<2>().0;
            words.iter().map(|&word| u32::from(u16::from_le_bytes(word)) << 16).collect()
        }
        other => bail!("`{}` is stored as {other}; expected F32 or BF16", view.name),
    };
    Ok(bits.into_iter().map(f32::from_bits).collect())
}

/// Finite floats as the bytes of f32, or of bf16 rounded to nearest, ties to even.
fn stored(floats: &[f32], dtype: DType) -> anyhow::Result<Vec<u8>> {
    let bf16 = |x: f32| {
        let bits = x.to_bits();
        ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
    };
    Ok(match dtype {
        DType::F32 => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::Bf16 => floats.iter().flat_map(|x| bf16(*x).to_le_bytes()).collect(),
        other => bail!("grown weights are stored as F32 or BF16, not {other}"),
    })
}

#[cfg(test)]
mod tests {
    use pelton_base::{SamplingParams, TokenId};
    use pelton_llm::{
        CompletionRequest, Generation, Llm, LlmOptions, ModelRef, Prompt, Runtime, RuntimeOptions,
    };
    use pelton_model::Compute;
    use pelton_testkit::TinyModel;
    use tempfile::TempDir;

    use super::super::LLAMA_1B;
    use super::super::folder::{self, Weights};
    use super::*;

    /// A model of 2 layers with 4 heads of 16, 2 of them for keys and values.
    fn small() -> TempDir {
        let folder = tempfile::tempdir().expect("temporary folder");
        TinyModel::default().write_folder(folder.path());
        let path = folder.path().join("config.json");
        let text = std::fs::read_to_string(&path).expect("config");
        let mut config: Value = serde_json::from_str(&text).expect("JSON");
        config["head_dim"] = 16.into();
        std::fs::write(path, config.to_string()).expect("config");
        folder
    }

    /// Tokens of a greedy answer with their log probabilities.
    fn answer(model: &Path) -> Vec<(TokenId, f32)> {
        let mut options = LlmOptions { compute: Compute::F32, ..LlmOptions::default() };
        options.choices.max_running = 1;
        let runtime = RuntimeOptions { n_threads: Some(1), ..RuntimeOptions::default() };
        let runtime = Runtime::new(runtime).expect("one thread");
        let llm = Llm::load(&runtime, &ModelRef::Path(model.to_owned()), &options, &mut |_| {});
        let sampling = SamplingParams { logprobs: Some(0), ..SamplingParams::greedy() };
        let generation = Generation {
            sampling,
            max_tokens: Some(24),
            ignore_eos: true,
            ..Generation::default()
        };
        let prompts = vec![Prompt::Text("The captain looked at the sea, and".to_owned())];
        let mut generating =
            llm.expect("loads").complete(CompletionRequest { prompts, generation }).expect("taken");
        let mut tokens = Vec::new();
        while let Some(event) = generating.blocking_next() {
            tokens.extend(
                event
                    .tokens
                    .iter()
                    .map(|token| (token.id, token.logprob.as_ref().expect("asked for").logprob)),
            );
        }
        tokens
    }

    #[test]
    fn a_grown_model_says_what_the_small_one_says() {
        let small = small();
        // More and wider heads, more heads to a KV head, more layers.
        let shape =
            Shape { n_layers: 4, hidden: 320, ffn: 448, n_heads: 9, n_kv_heads: 3, ..LLAMA_1B };
        let grown = Grown::open(small.path(), &shape).expect("fits");
        let out = tempfile::tempdir().expect("temporary folder");
        folder::write(out.path(), &Weights::Grown(&grown), DType::F32, 1).expect("writes");
        let (expected, got) = (answer(small.path()), answer(out.path()));
        assert_eq!(expected.len(), 24);
        for ((token, expected), (grown, got)) in expected.into_iter().zip(got) {
            assert_eq!(token, grown);
            assert!((expected - got).abs() < 1e-3, "{expected}, {got}");
        }
    }

    #[test]
    fn stored_floats_are_those_of_the_weight_formats() {
        let floats: Vec<f32> = (0..512).map(|i| (i as f32 - 255.5) * 1.7e-3).collect();
        for dtype in [DType::F32, DType::Bf16] {
            let format = pelton_quant::for_dtype(dtype).expect("known");
            let mut expected = vec![0; dtype.bytes_for(floats.len()).expect("whole")];
            format.quantize(&floats, &mut expected);
            assert_eq!(stored(&floats, dtype).expect("stored"), expected);
            let mut read = vec![0.0; floats.len()];
            format.dequantize(&expected, &mut read);
            let view = TensorView { name: "x", dtype, shape: &[512], data: &expected };
            assert_eq!(super::floats(&view).expect("floats"), read);
        }
        assert!(stored(&floats, DType::Q8_0).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let small = small();
        for shape in [
            Shape { n_layers: 1, ..LLAMA_1B },
            Shape { head_dim: 40, ..LLAMA_1B },
            Shape { n_heads: 8, ..LLAMA_1B },
        ] {
            assert!(Grown::open(small.path(), &shape).is_err());
        }
        assert!(Grown::open(small.path(), &super::super::QWEN_05B).is_err());
    }
}
