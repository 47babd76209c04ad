//! Golden fixtures and small steps over a decoder.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{
    BlockTables, Compute, CpuDevice, Decoder, ForwardInput, ForwardSequence, HfConfig, Lane,
    LoadOptions, ModelFiles, Ops, load,
};
use pelton_tensor::{Gguf, GgufValue, GgufWriter, TensorSource};
use pelton_testkit::golden::{
    Checkpoint, Columns, GoldenDecoder, NOT_IN_GGUF, decoder_at, decoder_named, decoders,
};

/// A tiny checkpoint, and what the reference implementation computes with it.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) max_context: Option<usize>,
    pub(crate) prompt: Vec<TokenId>,
    /// Greedy continuation of the prompt.
    pub(crate) greedy: Vec<TokenId>,
    /// One row per token of prompt and continuation, without the last token, with the logits that
    /// `columns` says.
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) columns: Columns,
    checkpoint: Checkpoint,
    /// A complete model folder.
    folder: PathBuf,
    /// Holds the folder, and the GGUF file once it was asked for.
    temp: tempfile::TempDir,
}

/// Fixtures of which a GGUF file is not the folder to the bit: factors are multiplied into its weights, or
/// value heads lie in another order.
const ROUNDED_IN_GGUF: &[&str] = &["falcon-h1", "qwen3-5", "qwen3-5-moe"];

/// Every fixture.
pub(crate) fn all() -> Vec<Golden> {
    decoders().into_iter().map(Golden::new).collect()
}

/// The fixtures that are written as GGUF files.
pub(crate) fn all_exported() -> Vec<Golden> {
    let mut all = all();
    all.retain(Golden::is_exported);
    assert!(all.len() >= 26, "{} fixtures", all.len());
    all
}

/// One fixture.
pub(crate) fn golden(name: &str) -> Golden {
    Golden::new(decoder_named(name))
}

/// The folders of the quantized fixtures, by name.
pub(crate) fn quantized_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let entries = std::fs::read_dir(root).expect("fixtures");
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.join("config.json").exists())
        .collect();
    folders.sort();
    folders
}

/// The fixture of this folder.
pub(crate) fn open(path: &Path) -> Golden {
    Golden::new(decoder_at(path))
}

/// Writes a GGUF file anew with other metadata; `None` takes a key away.
pub(crate) fn rewrite(sound: &Path, path: &Path, edits: &[(&str, Option<GgufValue>)]) {
    let file = Gguf::open(sound).expect("sound");
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata() {
        if edits.iter().all(|(edited, _)| edited != key) {
            writer.metadata(key, value.clone());
        }
    }
    for (key, value) in edits {
        if let Some(value) = value {
            writer.metadata(*key, value.clone());
        }
    }
    let views: Vec<_> = file.names().into_iter().filter_map(|name| file.get(name)).collect();
    for view in &views {
        writer.tensor(view.name, view.dtype, view.shape);
    }
    let mut data = writer.create(path).expect("created");
    for view in &views {
        data.tensor_data(view.data).expect("written");
    }
    data.finish().expect("finished");
}

/// `[n, k]` of a projection of a Llama.
pub(crate) fn shape_of(config: &HfConfig, module: &str) -> [usize; 2] {
    let (hidden, ffn) = (config.hidden_size, config.intermediate_size);
    let width = |n_heads: usize| n_heads * config.head_dim;
    let (q, kv) = (width(config.num_attention_heads), width(config.num_key_value_heads));
    match module.rsplit('.').next().expect("a name") {
        "q_proj" => [q, hidden],
        "o_proj" => [hidden, q],
        "k_proj" | "v_proj" => [kv, hidden],
        "gate_proj" | "up_proj" => [ffn, hidden],
        "down_proj" => [hidden, ffn],
        _ => panic!("{module}"),
    }
}

impl Golden {
    fn new(golden: GoldenDecoder) -> Self {
        let temp = tempfile::tempdir().expect("temporary folder");
        let GoldenDecoder { checkpoint, max_context, prompt, greedy, logits, columns } = golden;
        let folder = temp.path().join("model");
        checkpoint.write_bare_folder(&folder);
        let name = checkpoint.name().to_owned();
        Self { name, max_context, prompt, greedy, logits, columns, checkpoint, folder, temp }
    }

    pub(crate) fn files(&self) -> ModelFiles {
        ModelFiles::open(&self.folder).expect(&self.name)
    }

    /// Whether it is written as a GGUF file.
    pub(crate) fn is_exported(&self) -> bool {
        let is_said = NOT_IN_GGUF.iter().all(|(name, _)| *name != self.name);
        is_said && self.files().arch().is_exported()
    }

    /// Whether a GGUF file that keeps the types of the folder computes its bits; if not, the file has other
    /// weights, or sums in another order.
    pub(crate) fn is_exact_in_gguf(&self) -> bool {
        !ROUNDED_IN_GGUF.contains(&self.name.as_str())
    }

    /// Whether nothing depends on a position, and a config says no context.
    pub(crate) fn is_without_positions(&self) -> bool {
        let spec = self.files().spec().expect("a spec");
        spec.layers.iter().all(|layer| layer.mixer.kv_heads().is_none())
    }

    /// Whether there is a GGUF file of the same model.
    pub(crate) fn has_gguf(&self) -> bool {
        self.checkpoint.has_gguf()
    }

    /// The GGUF file of the same model, where there is one.
    pub(crate) fn gguf(&self) -> Option<PathBuf> {
        self.has_gguf().then(|| {
            let path = self.temp.path().join(format!("{}.gguf", self.name));
            self.checkpoint.write_bare_gguf(&path);
            path
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Prompt and continuation without the last token: the input of all reference rows.
    pub(crate) fn tokens(&self) -> Vec<TokenId> {
        let n = self.greedy.len() - 1;
        self.prompt.iter().chain(&self.greedy[..n]).copied().collect()
    }

    pub(crate) fn load(&self, files: &ModelFiles, compute: Compute) -> Decoder<CpuDevice> {
        self.load_on(files, compute, Kernels::best(), 1)
    }

    pub(crate) fn load_on(
        &self,
        files: &ModelFiles,
        compute: Compute,
        kernels: &'static Kernels,
        n_threads: usize,
    ) -> Decoder<CpuDevice> {
        let options = LoadOptions { compute, max_context: self.max_context, ..Default::default() };
        let backend = CpuDevice::new(Cpu::with(kernels, n_threads));
        load(files, backend, &options).expect(&self.name)
    }

    /// The logits of these rows that the reference has.
    fn stored(&self, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let stored = self.columns.of_all(rows);
        let is_whole = |(a, b): (&Vec<f32>, &Vec<f32>)| a.len() == b.len();
        assert!(stored.iter().zip(&self.logits).all(is_whole), "{}: other columns", self.name);
        stored
    }

    /// Largest difference to the reference over all rows, relative to the row's largest logit.
    pub(crate) fn worst_error(&self, rows: &[Vec<f32>]) -> f32 {
        assert_eq!(rows.len(), self.logits.len());
        let error = |(got, expected): (&Vec<f32>, &Vec<f32>)| {
            let scale = expected.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            let worst = got.iter().zip(expected).fold(0.0_f32, |m, (a, b)| {
                if a.is_nan() { f32::INFINITY } else { m.max((a - b).abs()) }
            });
            worst / scale
        };
        self.stored(rows).iter().zip(&self.logits).map(error).fold(0.0, f32::max)
    }
}

impl Golden {
    /// Root of the mean square difference, relative to that of the reference.
    pub(crate) fn mean_error(&self, rows: &[Vec<f32>]) -> f32 {
        assert_eq!(rows.len(), self.logits.len());
        let rows = self.stored(rows);
        let pairs = || rows.iter().flatten().zip(self.logits.iter().flatten());
        let error: f64 = pairs().map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let total: f64 = pairs().map(|(_, b)| f64::from(*b).powi(2)).sum();
        (error / total).sqrt() as f32
    }
}

pub(crate) const BLOCK: usize = 16;

/// A lane for a sequence that goes on at `position`, in models with recurrent layers.
pub(crate) fn lane<D: Ops>(
    decoder: &Decoder<D>,
    lane: usize,
    position: usize,
) -> Option<Lane<'static>> {
    decoder.spec().is_recurrent().then(|| Lane::at(lane, position))
}

/// Logits of every row of one sequence, computed in chunks of the given sizes.
pub(crate) fn run_chunks<D: Ops>(
    decoder: &mut Decoder<D>,
    tokens: &[TokenId],
    chunks: &[usize],
    blocks: &[u32],
) -> Vec<Vec<f32>> {
    assert_eq!(chunks.iter().sum::<usize>(), tokens.len());
    let n_blocks = *blocks.iter().max().expect("blocks") as usize + 1;
    let mut kv = decoder.new_kv(n_blocks, BLOCK);
    let (mut rows, mut logits, mut first) = (Vec::new(), Vec::new(), 0);
    for &n in chunks {
        let sequence = ForwardSequence {
            rows: 0..n,
            n_source: 0,
            first_position: first,
            block_tables: BlockTables::one(blocks),
            lane: lane(decoder, 0, first),
            tree: None,
        };
        let logits_rows: Vec<usize> = (0..n).collect();
        let input = ForwardInput {
            tokens: &tokens[first..first + n],
            sequences: std::slice::from_ref(&sequence),
            logits_rows: &logits_rows,
        };
        decoder.forward(&mut kv, &input, &mut logits);
        rows.extend(logits.chunks(logits.len() / n).map(<[f32]>::to_vec));
        first += n;
    }
    rows
}

/// Blocks for `n_tokens` tokens, in no order and with gaps.
pub(crate) fn scattered(n_tokens: usize) -> Vec<u32> {
    let n = n_tokens.div_ceil(BLOCK) as u32;
    (0..n).map(|i| if i % 2 == 0 { 2 * n - i } else { i }).collect()
}

/// `n_tokens` as a sum of these sizes, over and over; the last one is what is left.
pub(crate) fn cut(n_tokens: usize, sizes: &[usize]) -> Vec<usize> {
    let (mut left, mut chunks) = (n_tokens, Vec::new());
    for size in sizes.iter().cycle() {
        if left == 0 {
            break;
        }
        chunks.push(left.min(*size));
        left -= chunks[chunks.len() - 1];
    }
    chunks
}

/// Logits of every row, whole sequence in one step.
pub(crate) fn run_whole<D: Ops>(decoder: &mut Decoder<D>, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let blocks: Vec<u32> = (0..tokens.len().div_ceil(BLOCK) as u32).collect();
    run_chunks(decoder, tokens, &[tokens.len()], &blocks)
}

/// The bits of rows, for equality that knows NaN and signs.
pub(crate) fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Index of the largest logit.
pub(crate) fn argmax(row: &[f32]) -> TokenId {
    let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("not empty");
    TokenId(best as u32)
}
