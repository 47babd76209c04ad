//! `bench-model`: random weights in the shape of a published model, for measuring speed.
//!
//! Speed depends on the shape and not on the values of weights, so nothing needs to be downloaded.
//! The weights are small enough for activations to stay finite, and every run writes the same ones.
//! The [`vocabulary`] is synthetic.

mod folder;
mod grown;
mod vocabulary;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use pelton_tensor::{DType, GgufValue, GgufWriter, gguf_file_type};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use folder::Weights;
use grown::Grown;

/// Writes a GGUF file, or a model folder, with random weights in the shape of a published model.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The published model whose shape to take.
    #[arg(long, value_enum)]
    shape: ShapeName,
    /// How matrices are stored: any weight format, such as q4_k. Rows that are no whole blocks of
    /// it are stored as q8_0.
    #[arg(long, default_value = "q8_0")]
    format: String,
    /// Write a model folder with safetensors instead; only f32, f16 and bf16.
    #[arg(long)]
    safetensors: bool,
    /// Folder of a small Llama. Its weights are padded with zeros to the shape, so that the result
    /// writes the text of the small model at the cost of the shape. Writes a model folder.
    #[arg(long, value_name = "FOLDER", requires = "safetensors")]
    of: Option<PathBuf>,
    /// Number of layers, in place of the model's: a part of a model that does not fit into memory.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,
    /// Files that the weights of a model folder are spread over.
    #[arg(long, default_value_t = 1, requires = "safetensors",
          value_parser = clap::value_parser!(u16).range(1..=999))]
    shards: u16,
    /// File or folder to write.
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ShapeName {
    /// Llama 3.2 1B.
    #[value(name = "llama-1b")]
    Llama1b,
    /// A tenth of Llama 3.2 1B, but for the vocabulary.
    #[value(name = "llama-100m")]
    Llama100m,
    /// Qwen 2.5 0.5B.
    #[value(name = "qwen-0.5b")]
    Qwen05b,
    /// Qwen 2.5 1.5B.
    #[value(name = "qwen-1.5b")]
    Qwen15b,
    /// SmolLM2 1.7B, which has keys and values of its own for each head.
    #[value(name = "smollm-1.7b")]
    Smollm17b,
    /// Llama 3.2 3B.
    #[value(name = "llama-3b")]
    Llama3b,
    /// A hybrid in the shape of Qwen3.5 0.8B: three layers of Gated DeltaNet for each with attention.
    /// Only as a model folder.
    #[value(name = "hybrid-0.8b")]
    Hybrid08b,
    /// A hybrid in the shape of Qwen3.5 4B, but with as many heads of keys as of values in the layers of
    /// Gated DeltaNet. Only as a model folder.
    #[value(name = "hybrid-4b")]
    Hybrid4b,
    /// The 0.8B hybrid with attention in every layer, for comparison: the matrices of a layer with attention
    /// have the sizes of those of Gated DeltaNet. Only as a model folder.
    #[value(name = "attention-0.8b")]
    Attention08b,
    /// Gemma 3 1B, in which 22 of 26 layers read the last 512 tokens alone. Only as a model folder.
    #[value(name = "gemma3-1b")]
    Gemma31b,
    /// Qwen3 30B A3B: each token takes 8 of 128 experts. Only as a GGUF file; `--layers 12` is a
    /// quarter of it.
    #[value(name = "qwen3-30b-a3b")]
    Qwen330bA3b,
}

/// Sizes in elements.
#[derive(Clone, Copy)]
struct Shape {
    arch: &'static str,
    n_layers: usize,
    hidden: usize,
    ffn: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    context: usize,
    rope_base: f32,
    eps: f32,
    qkv_bias: bool,
    /// The recurrence of three of four layers, in hybrids.
    delta: Option<Delta>,
    /// The window of five of six layers, in Gemma 3.
    window: Option<usize>,
    /// The experts of every layer, in place of a perceptron.
    experts: Option<Mixture>,
}

/// Experts with gates.
#[derive(Clone, Copy)]
struct Mixture {
    n_experts: usize,
    /// Experts of a token.
    top_k: usize,
    /// Width of one expert.
    ffn: usize,
}

/// A recurrence of as many heads of keys as of values, of one width.
#[derive(Clone, Copy)]
struct Delta {
    n_heads: usize,
    head_dim: usize,
    taps: usize,
    /// Layers from one with attention to the next.
    period: usize,
}

impl Shape {
    /// Whether only a model folder can say all of the shape.
    fn is_folder(&self) -> bool {
        self.delta.is_some() || self.window.is_some()
    }

    /// Whether a layer is recurrent.
    fn is_recurrent(&self, layer: usize) -> bool {
        self.delta.is_some_and(|delta| !(layer + 1).is_multiple_of(delta.period))
    }
}

const LLAMA_1B: Shape = Shape {
    arch: "llama",
    n_layers: 16,
    hidden: 2048,
    ffn: 8192,
    n_heads: 32,
    n_kv_heads: 8,
    head_dim: 64,
    vocab: 128_256,
    context: 131_072,
    rope_base: 500_000.0,
    eps: 1e-5,
    qkv_bias: false,
    delta: None,
    window: None,
    experts: None,
};

const LLAMA_100M: Shape =
    Shape { n_layers: 10, hidden: 768, ffn: 3072, n_heads: 12, n_kv_heads: 4, ..LLAMA_1B };

const QWEN_05B: Shape = Shape {
    arch: "qwen2",
    n_layers: 24,
    hidden: 896,
    ffn: 4864,
    n_heads: 14,
    n_kv_heads: 2,
    head_dim: 64,
    vocab: 151_936,
    context: 32_768,
    rope_base: 1_000_000.0,
    eps: 1e-6,
    qkv_bias: true,
    delta: None,
    window: None,
    experts: None,
};

const QWEN_15B: Shape =
    Shape { n_layers: 28, hidden: 1536, ffn: 8960, n_heads: 12, head_dim: 128, ..QWEN_05B };

const SMOLLM_17B: Shape = Shape {
    n_layers: 24,
    n_kv_heads: 32,
    vocab: 49_152,
    context: 8192,
    rope_base: 130_000.0,
    ..LLAMA_1B
};

const LLAMA_3B: Shape =
    Shape { n_layers: 28, hidden: 3072, n_heads: 24, head_dim: 128, ..LLAMA_1B };

const HYBRID_08B: Shape = Shape {
    arch: "qwen3_5_text",
    n_layers: 24,
    hidden: 1024,
    ffn: 3584,
    n_heads: 8,
    n_kv_heads: 2,
    head_dim: 256,
    vocab: 151_936,
    context: 262_144,
    rope_base: 10_000_000.0,
    eps: 1e-6,
    qkv_bias: false,
    delta: Some(Delta { n_heads: 16, head_dim: 128, taps: 4, period: 4 }),
    window: None,
    experts: None,
};

const HYBRID_4B: Shape = Shape {
    n_layers: 32,
    hidden: 2560,
    ffn: 9216,
    n_heads: 16,
    n_kv_heads: 4,
    delta: Some(Delta { n_heads: 32, head_dim: 128, taps: 4, period: 4 }),
    ..HYBRID_08B
};

const ATTENTION_08B: Shape = Shape {
    n_kv_heads: 8,
    delta: Some(Delta { n_heads: 16, head_dim: 128, taps: 4, period: 1 }),
    ..HYBRID_08B
};

const GEMMA3_1B: Shape = Shape {
    arch: "gemma3",
    n_layers: 26,
    hidden: 1152,
    ffn: 6912,
    n_heads: 4,
    n_kv_heads: 1,
    head_dim: 256,
    vocab: 262_144,
    context: 32_768,
    rope_base: 1_000_000.0,
    eps: 1e-6,
    qkv_bias: false,
    delta: None,
    window: Some(512),
    experts: None,
};

const QWEN3_30B_A3B: Shape = Shape {
    arch: "qwen3moe",
    n_layers: 48,
    hidden: 2048,
    ffn: 6144,
    n_heads: 32,
    n_kv_heads: 4,
    head_dim: 128,
    qkv_bias: false,
    experts: Some(Mixture { n_experts: 128, top_k: 8, ffn: 768 }),
    ..QWEN_05B
};

impl ShapeName {
    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value().expect("invariant: every shape can be chosen");
        value.get_name().to_owned()
    }

    fn shape(self) -> &'static Shape {
        match self {
            Self::Llama1b => &LLAMA_1B,
            Self::Llama100m => &LLAMA_100M,
            Self::Qwen05b => &QWEN_05B,
            Self::Qwen15b => &QWEN_15B,
            Self::Smollm17b => &SMOLLM_17B,
            Self::Llama3b => &LLAMA_3B,
            Self::Hybrid08b => &HYBRID_08B,
            Self::Hybrid4b => &HYBRID_4B,
            Self::Attention08b => &ATTENTION_08B,
            Self::Gemma31b => &GEMMA3_1B,
            Self::Qwen330bA3b => &QWEN3_30B_A3B,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let shape = args.shape.shape();
    let n_layers = args.layers.map_or(shape.n_layers, usize::from);
    let shape = &Shape { n_layers, ..*shape };
    anyhow::ensure!(args.of.is_none() || !shape.is_folder(), "this shape cannot take `--of`");
    if args.safetensors {
        anyhow::ensure!(shape.experts.is_none(), "this shape is written as a GGUF file only");
        let wished = format_of_name(&args.format)?;
        let grown = args.of.as_ref().map(|folder| Grown::open(folder, shape)).transpose()?;
        let weights = grown.as_ref().map_or(Weights::Random(shape), Weights::Grown);
        folder::write(&args.out, &weights, wished, usize::from(args.shards))?;
    } else {
        write_shape(shape, &args.format, &args.out)?;
    }
    println!("{} is written", args.out.display());
    Ok(())
}

/// Writes a GGUF file in the shape of a published model.
pub(crate) fn write(shape: ShapeName, format: &str, out: &Path) -> anyhow::Result<()> {
    write_shape(shape.shape(), format, out)
}

fn write_shape(shape: &Shape, format: &str, out: &Path) -> anyhow::Result<()> {
    let wished = format_of_name(format)?;
    anyhow::ensure!(!shape.is_folder(), "this shape needs `--safetensors`: only a folder has it");
    write_gguf(out, shape, wished)?;
    print_fallbacks(shape, wished);
    Ok(())
}

/// The type that users call `name`, in any case.
fn format_of_name(name: &str) -> anyhow::Result<DType> {
    let mut known = formats();
    known.find(|dtype| dtype.name().eq_ignore_ascii_case(name)).with_context(|| {
        let names: Vec<&str> = formats().map(DType::name).collect();
        format!("unknown format `{name}`; known are {}", names.join(", "))
    })
}

/// Every type that [`fill`] can write.
fn formats() -> impl Iterator<Item = DType> {
    let plain = [DType::F32, DType::F16, DType::Bf16];
    plain.into_iter().chain(PARAMETERS.iter().map(|(dtype, _)| *dtype))
}

/// The type that a tensor is stored as: `wished`, or `Q8_0`, or `F32`, as its rows are whole
/// blocks.
fn stored_as(wished: DType, name: &str, dims: &[usize]) -> DType {
    if !is_rounded(name, dims) {
        return DType::F32;
    }
    let fits = |dtype: &DType| dims[dims.len() - 1].is_multiple_of(dtype.block_len());
    [wished, DType::Q8_0].into_iter().find(fits).unwrap_or(DType::F32)
}

/// Whether a tensor is stored as the user wishes. The few rows that choose experts stay floats, as
/// in published files.
fn is_rounded(name: &str, dims: &[usize]) -> bool {
    is_matrix(dims) && !name.ends_with("ffn_gate_inp.weight")
}

/// Whether these are the sizes of a matrix, or of one per expert. The taps of a convolution are
/// three sizes, too, of which the middle one is 1.
fn is_matrix(dims: &[usize]) -> bool {
    matches!(dims, [_, _]) || matches!(dims, [_, middle, _] if *middle > 1)
}

/// Says how many matrices are not stored as `wished`, if any.
fn print_fallbacks(shape: &Shape, wished: DType) {
    let tensors = tensors(shape);
    let matrices = || tensors.iter().filter(|(name, dims)| is_rounded(name, dims));
    for dtype in [DType::Q8_0, DType::F32] {
        let n_stored =
            matrices().filter(|(name, dims)| stored_as(wished, name, dims) == dtype).count();
        if n_stored > 0 && dtype != wished {
            println!(
                "{n_stored} of {} matrices fell back to {dtype}: their rows are no whole blocks of {}",
                matrices().count(),
                wished.block_len()
            );
        }
    }
}

/// A bar that counts `n` tensors.
fn bar(n: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("writing [{bar:40}] {pos}/{len} ({eta})");
    let style = style.expect("invariant: the template is valid").progress_chars("=> ");
    ProgressBar::new(n as u64).with_style(style)
}

fn write_gguf(out: &Path, shape: &Shape, wished: DType) -> anyhow::Result<()> {
    let mut writer = GgufWriter::new();
    write_metadata(shape, wished, &mut writer);
    vocabulary::write_gguf(shape.vocab, &mut writer);
    let tensors = tensors(shape);
    for (name, dims) in &tensors {
        writer.tensor(name, stored_as(wished, name, dims), dims);
    }
    let mut data = writer.create(out)?;
    let mut rng = SmallRng::seed_from_u64(1);
    let bar = bar(tensors.len());
    let mut bytes = Vec::new();
    for (name, dims) in &tensors {
        values(name, dims, stored_as(wished, name, dims), &mut rng, &mut bytes);
        data.tensor_data(&bytes)?;
        bar.inc(1);
    }
    data.finish()?;
    bar.finish_and_clear();
    Ok(())
}

/// The bytes of a tensor: random ones for a matrix, ones for a norm, small numbers for a bias.
fn values(name: &str, dims: &[usize], dtype: DType, rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    let n = dims.iter().product();
    if is_matrix(dims) {
        return fill(dtype, n, rng, bytes);
    }
    let value: f32 = if name.ends_with("bias") { 0.01 } else { 1.0 };
    bytes.clear();
    bytes.extend((0..n).flat_map(|_| value.to_le_bytes()));
}

/// Random weights of a magnitude of about 0.02.
fn fill(dtype: DType, n: usize, rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    let n_bytes = dtype.bytes_for(n).expect("invariant: whole blocks");
    bytes.resize(n_bytes, 0);
    rng.fill_bytes(bytes);
    let keep_sign = |bytes: &mut [u8], width: usize, exponent: u16, mantissa: u16| {
        for word in bytes.chunks_exact_mut(width) {
            let top = &mut word[width - 2..];
            let random = u16::from_le_bytes([top[0], top[1]]);
            let bits = (random & (0x8000 | mantissa)) | exponent;
            top.copy_from_slice(&bits.to_le_bytes());
        }
    };
    match dtype {
        // Exponents of 2^-7 and 2^-6.
        DType::F32 => return keep_sign(bytes, 4, 0x3C00, 0x00FF),
        DType::Bf16 => return keep_sign(bytes, 2, 0x3C00, 0x00FF),
        DType::F16 => return keep_sign(bytes, 2, 0x2000, 0x07FF),
        // No ternary weight is stored as 3; it becomes 1, which means 0.
        DType::Tq2_0 => bytes.iter_mut().for_each(|byte| *byte &= !((*byte << 1) & 0xAA)),
        _ => {}
    }
    let (_, parameters) =
        PARAMETERS.iter().find(|(of, _)| *of == dtype).expect("invariant: a block format");
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for (offset, parameter) in *parameters {
            block[*offset..offset + parameter.len()].copy_from_slice(parameter);
        }
    }
}

/// The parts of a block that are not random: offset and bytes of each parameter.
type Parameters = &'static [(usize, &'static [u8])];

/// Scales in half precision, and minima that bring the mean to about zero.
static PARAMETERS: &[(DType, Parameters)] = &[
    (DType::Q8_0, &[(0, &half(0x0C00))]),
    (DType::Q4_0, &[(0, &half(0x1C00))]),
    (DType::Q4_1, &[(0, &half(0x1C00)), (2, &half(0xA800))]),
    (DType::Q5_0, &[(0, &half(0x1800))]),
    (DType::Q5_1, &[(0, &half(0x1800)), (2, &half(0xA800))]),
    (DType::Q2K, &[(80, &half(0x1800)), (82, &half(0x1A00))]),
    (DType::Q3K, &[(108, &half(0x1000))]),
    (DType::Q4K, &[(0, &half(0x0400)), (2, &half(0x1000))]),
    (DType::Q5K, &[(0, &half(0x0200)), (2, &half(0x1000))]),
    (DType::Q6K, &[(208, &half(0x0100))]),
    (DType::Iq4Nl, &[(0, &half(0x0C00))]),
    (DType::Iq4Xs, &[(0, &half(0x0100))]),
    (DType::Mxfp4, &[(0, &[120])]),
    (DType::Tq2_0, &[(64, &half(0x2400))]),
    (DType::Tq1_0, &[(52, &half(0x2400))]),
    (DType::Iq3S, &[(0, &half(0x0800))]),
    (DType::Iq3Xxs, &[(0, &half(0x0800))]),
    (DType::Iq2S, &[(0, &half(0x0C00))]),
    (DType::Iq2Xs, &[(0, &half(0x0C00))]),
    (DType::Iq2Xxs, &[(0, &half(0x0C00))]),
    (DType::Iq1S, &[(0, &half(0x1800))]),
    // 0x1800 in the upper nibbles of four words.
    (DType::Iq1M, &[(49, &[0x05]), (51, &[0x05]), (53, &[0x85]), (55, &[0x15])]),
    (DType::Q8K, &[(0, &[0, 0, 0x80, 0x39])]),
];

/// The bytes of a half-precision number.
const fn half(bits: u16) -> [u8; 2] {
    bits.to_le_bytes()
}

fn tensors(shape: &Shape) -> Vec<(String, Vec<usize>)> {
    let (hidden, ffn) = (shape.hidden, shape.ffn);
    let (q, kv) = (shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim);
    let mut all = vec![("token_embd.weight".to_owned(), vec![shape.vocab, hidden])];
    for layer in 0..shape.n_layers {
        let mut add = |name: &str, dims: &[usize]| {
            all.push((format!("blk.{layer}.{name}"), dims.to_vec()));
        };
        add("attn_norm.weight", &[hidden]);
        if let Some(Delta { n_heads, head_dim, taps, .. }) =
            shape.delta.filter(|_| shape.is_recurrent(layer))
        {
            let width = n_heads * head_dim;
            add("attn_qkv.weight", &[3 * width, hidden]);
            add("attn_gate.weight", &[width, hidden]);
            add("ssm_beta.weight", &[n_heads, hidden]);
            add("ssm_alpha.weight", &[n_heads, hidden]);
            add("ssm_conv1d.weight", &[3 * width, 1, taps]);
            add("ssm_a", &[n_heads]);
            add("ssm_dt", &[n_heads]);
            add("ssm_norm.weight", &[head_dim]);
            add("ssm_out.weight", &[hidden, width]);
            add("ffn_norm.weight", &[hidden]);
            add("ffn_gate.weight", &[ffn, hidden]);
            add("ffn_up.weight", &[ffn, hidden]);
            add("ffn_down.weight", &[hidden, ffn]);
            continue;
        }
        // Hybrids gate the output of attention, and norm queries and keys.
        let q_rows = if shape.delta.is_some() { 2 * q } else { q };
        if shape.delta.is_some() || shape.window.is_some() || shape.experts.is_some() {
            add("attn_q_norm.weight", &[shape.head_dim]);
            add("attn_k_norm.weight", &[shape.head_dim]);
        }
        add("attn_q.weight", &[q_rows, hidden]);
        add("attn_k.weight", &[kv, hidden]);
        add("attn_v.weight", &[kv, hidden]);
        if shape.qkv_bias {
            add("attn_q.bias", &[q]);
            add("attn_k.bias", &[kv]);
            add("attn_v.bias", &[kv]);
        }
        add("attn_output.weight", &[hidden, q]);
        if shape.window.is_some() {
            add("post_attention_norm.weight", &[hidden]);
            add("pre_ffw_norm.weight", &[hidden]);
            add("post_ffw_norm.weight", &[hidden]);
        } else {
            add("ffn_norm.weight", &[hidden]);
        }
        if let Some(Mixture { n_experts, ffn, .. }) = shape.experts {
            add("ffn_gate_inp.weight", &[n_experts, hidden]);
            add("ffn_gate_exps.weight", &[n_experts, ffn, hidden]);
            add("ffn_up_exps.weight", &[n_experts, ffn, hidden]);
            add("ffn_down_exps.weight", &[n_experts, hidden, ffn]);
            continue;
        }
        add("ffn_gate.weight", &[ffn, hidden]);
        add("ffn_up.weight", &[ffn, hidden]);
        add("ffn_down.weight", &[hidden, ffn]);
    }
    all.push(("output_norm.weight".to_owned(), vec![hidden]));
    all
}

fn write_metadata(shape: &Shape, dtype: DType, writer: &mut GgufWriter) {
    writer.metadata("general.architecture", GgufValue::String(shape.arch.to_owned()));
    if let Some(file_type) = gguf_file_type(dtype) {
        writer.metadata("general.file_type", GgufValue::U32(file_type));
    }
    let mut sizes = vec![
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("block_count", shape.n_layers),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.n_heads),
        ("attention.head_count_kv", shape.n_kv_heads),
        ("vocab_size", shape.vocab),
    ];
    if shape.n_heads * shape.head_dim != shape.hidden {
        sizes.push(("attention.key_length", shape.head_dim));
        sizes.push(("attention.value_length", shape.head_dim));
    }
    if let Some(Mixture { n_experts, top_k, ffn }) = shape.experts {
        sizes.push(("expert_count", n_experts));
        sizes.push(("expert_used_count", top_k));
        sizes.push(("expert_feed_forward_length", ffn));
    }
    for (key, n) in sizes {
        writer.metadata(format!("{}.{key}", shape.arch), GgufValue::U32(n as u32));
    }
    let key = format!("{}.attention.layer_norm_rms_epsilon", shape.arch);
    writer.metadata(key, GgufValue::F32(shape.eps));
    writer.metadata(format!("{}.rope.freq_base", shape.arch), GgufValue::F32(shape.rope_base));
}

#[cfg(test)]
mod tests {
    use pelton_model::ModelFiles;
    use pelton_quant::{FORMATS, fitting};
    use pelton_tensor::Gguf;

    use super::*;

    /// A shape that is written in a moment, and whose rows are whole blocks of every format.
    const TINY: Shape = Shape {
        n_layers: 2,
        hidden: 256,
        ffn: 512,
        n_heads: 4,
        n_kv_heads: 2,
        vocab: 300,
        context: 64,
        ..QWEN_05B
    };

    #[test]
    fn random_weights_of_every_format_are_finite_and_about_as_large() {
        let mut rng = SmallRng::seed_from_u64(7);
        for format in FORMATS {
            let (mut bytes, mut weights) = (Vec::new(), vec![0.0; 1 << 14]);
            fill(format.dtype(), weights.len(), &mut rng, &mut bytes);
            format.dequantize(&bytes, &mut weights);
            let n = weights.len() as f32;
            let mean = weights.iter().sum::<f32>() / n;
            let rms = (weights.iter().map(|w| w * w).sum::<f32>() / n).sqrt();
            assert!((0.01..0.04).contains(&rms), "{}: {rms}", format.name());
            assert!(mean.abs() < 0.2 * rms, "{}: mean {mean}, rms {rms}", format.name());
        }
    }

    #[test]
    fn the_real_loader_accepts_a_file_of_every_format() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for format in FORMATS {
            let wished = format_of_name(format.name()).expect("known");
            assert_eq!(wished, format.dtype());
            assert_eq!(stored_as(wished, "attn_q.weight", &[1, 48]), fitting(*format, 48).dtype());
            let path = folder.path().join(format!("{}.gguf", format.name()));
            write_gguf(&path, &TINY, wished).expect("writes");
            let files = ModelFiles::open(&path).expect("a file that opens");
            pelton_model::check(&files).expect("a sound model");
            // OpenVINO refuses a file that does not say what it is stored as.
            let file_type = Gguf::open(&path).expect("opens").u32("general.file_type");
            assert_eq!(file_type.expect("a number"), gguf_file_type(wished));
        }
        assert_eq!(gguf_file_type(DType::Q8_0), Some(7));
        let error = format_of_name("q9").expect_err("unknown").to_string();
        assert!(error.contains("q9") && error.contains("Q8_0"), "{error}");
    }

    #[test]
    fn the_real_loader_accepts_a_file_of_experts() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let shape = Shape {
            arch: "qwen3moe",
            head_dim: 32,
            qkv_bias: false,
            experts: Some(Mixture { n_experts: 4, top_k: 2, ffn: 96 }),
            ..TINY
        };
        let path = folder.path().join("experts.gguf");
        write_gguf(&path, &shape, DType::Q4K).expect("writes");
        let files = ModelFiles::open(&path).expect("a file that opens");
        pelton_model::check(&files).expect("a sound model");
        let dtype = |name: &str| files.tensors().get(name).expect("a tensor").dtype;
        assert_eq!(dtype("blk.0.ffn_gate_inp.weight"), DType::F32);
        assert_eq!(dtype("blk.0.ffn_up_exps.weight"), DType::Q4K);
        assert_eq!(dtype("blk.1.ffn_down_exps.weight"), DType::Q8_0, "rows of 96 weights");
    }

    #[test]
    fn the_real_loader_accepts_a_sharded_folder() {
        for (dtype, n_shards) in [(DType::F16, 1), (DType::Bf16, 3)] {
            let out = tempfile::tempdir().expect("temporary folder");
            let weights = Weights::Random(&TINY);
            folder::write(out.path(), &weights, dtype, n_shards).expect("writes");
            let files = ModelFiles::open(out.path()).expect("opens");
            pelton_model::check(&files).expect("complete");
            assert_eq!(files.tensors().files().len(), n_shards);
        }
    }
}
