//! Whatever lies in the place of a cache of packed weights, the model loads and computes what it
//! computes without one; never a panic.
//!
//! An input that begins with 0 is the rest of it as the cache. Any other is a list of patches
//! `offset:u24 byte` of a sound cache, whose checksums of head and table are made right afterwards.

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_model::{
    BlockTables, CpuDevice, Decoder, ForwardInput, ForwardSequence, LoadOptions, ModelFiles,
    PackedCache, load_cpu,
};
use pelton_tensor::DType;
use pelton_testkit::{MemoryFolder, TinyModel};
use xxhash_rust::xxh3::xxh3_64;

/// A model, its cache, and its logits without one.
struct Model {
    _folder: MemoryFolder,
    path: PathBuf,
    cache: PathBuf,
    sound: Vec<u8>,
    logits: Vec<u32>,
}

impl Model {
    fn new() -> Self {
        let folder = MemoryFolder::new();
        let path = folder.path().join("cached.gguf");
        let cache = folder.path().join("cached.gguf.pelton-packed");
        TinyModel::default().write_gguf(&path, DType::Q8_0);
        let logits = logits(load(&path, None));
        load(&path, Some(&PackedCache::Beside));
        let sound = std::fs::read(&cache).expect("a cache");
        Self { _folder: folder, path, cache, sound, logits }
    }
}

thread_local! {
    // Unlike a static, a variable of a thread is dropped, and its folder with it.
    static MODEL: Model = Model::new();
}

pub(crate) fn run(bytes: &[u8]) {
    MODEL.with(|model| run_with(model, bytes));
}

fn run_with(model: &Model, bytes: &[u8]) {
    let Model { path, cache, sound, logits: expected, .. } = model;
    let Some((kind, rest)) = bytes.split_first() else { return };
    let file = if *kind == 0 { rest.to_vec() } else { patched(sound, rest) };
    std::fs::write(cache, file).expect("written");
    let found = logits(load(path, Some(&PackedCache::Beside)));
    assert!(found == *expected, "other logits than without a cache");
}

fn load(path: &Path, packed_cache: Option<&PackedCache>) -> Decoder<CpuDevice> {
    let files = ModelFiles::open(path).expect("a model");
    let options = LoadOptions { n_threads: Some(1), packed_cache, ..LoadOptions::default() };
    load_cpu(&files, &options).expect("a cache is never an error")
}

/// The bits of the logits of one token.
fn logits(mut decoder: Decoder<CpuDevice>) -> Vec<u32> {
    let mut kv = decoder.try_new_kv(1, 16).expect("memory");
    let sequence = ForwardSequence {
        rows: 0..1,
        n_source: 0,
        first_position: 0,
        block_tables: BlockTables::one(&[0]),
        tree: None,
        lane: None,
    };
    let sequences = std::slice::from_ref(&sequence);
    let input = ForwardInput { tokens: &[TokenId(7)], sequences, logits_rows: &[0] };
    let mut logits = Vec::new();
    decoder.forward(&mut kv, &input, &mut logits);
    logits.into_iter().map(f32::to_bits).collect()
}

/// The cache with these patches, its outer checksums right.
fn patched(sound: &[u8], patches: &[u8]) -> Vec<u8> {
    let mut file = sound.to_vec();
    for patch in patches.chunks_exact(4) {
        let offset = u32::from_le_bytes([patch[0], patch[1], patch[2], 0]) as usize;
        if let Some(byte) = file.get_mut(offset) {
            *byte = patch[3];
        }
    }
    let field = |file: &[u8], at: usize| {
        u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes")) as usize
    };
    let (start, n_bytes) = (field(&file, 56), field(&file, 64));
    if let Some(table) = start.checked_add(n_bytes).and_then(|end| file.get(start..end)) {
        let sum = xxh3_64(table);
        file[72..80].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = xxh3_64(&file[..80]);
    file[80..88].copy_from_slice(&sum.to_le_bytes());
    file
}
