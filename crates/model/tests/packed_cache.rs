//! The cache of packed weights, from the outside: what it saves and what it must never change.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::common::{bits, run_whole};
use pelton_base::TokenId;
use pelton_model::{Compute, LoadOptions, ModelFiles, PackedCache, load_cpu};
use pelton_sim::Random;
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

/// Logits of a few tokens, and how the weights came.
#[derive(Debug, Eq, PartialEq)]
struct Outcome {
    bits: Vec<Vec<u32>>,
    is_cached: bool,
}

/// Loads with a cache and computes; `then` is called in between.
fn load_and(
    model: &Path,
    cache: Option<&PackedCache>,
    compute: Compute,
    then: impl FnOnce(),
) -> Outcome {
    let (n_packed, n_cached) = (Cell::new(0), Cell::new(0));
    let last = Cell::new(None);
    let progress = |at: pelton_model::LoadProgress| {
        let count = if at.is_cached { &n_cached } else { &n_packed };
        count.set(count.get() + 1);
        last.set(Some(at));
    };
    let options = LoadOptions {
        compute,
        n_threads: Some(2),
        packed_cache: cache,
        progress: Some(&progress),
        ..Default::default()
    };
    let files = ModelFiles::open(model).expect("opens");
    let mut decoder = load_cpu(&files, &options).expect("loads");
    let last = last.get().expect("progress was told");
    assert_eq!(last.n_bytes, last.n_total_bytes);
    then();
    let tokens: Vec<TokenId> = (5..29).map(TokenId).collect();
    let bits = bits(&run_whole(&mut decoder, &tokens));
    Outcome { bits, is_cached: n_cached.get() > 0 && n_packed.get() == 0 }
}

fn load(model: &Path, cache: Option<&PackedCache>) -> Outcome {
    load_and(model, cache, Compute::Auto, || {})
}

const BESIDE: Option<&PackedCache> = Some(&PackedCache::Beside);

fn gguf(folder: &Path, dtype: DType) -> PathBuf {
    let path = folder.join("tiny.gguf");
    TinyModel::default().write_gguf(&path, dtype);
    path
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary folder")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn set_modified(path: &Path, time: SystemTime) {
    let file = std::fs::File::options().write(true).open(path).expect("opens");
    file.set_modified(time).expect("the time is set");
}

#[test]
fn a_second_load_packs_nothing_and_computes_the_same_bits() {
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::Q8_0, DType::Q4_0] {
        let folder = temp();
        let model = gguf(folder.path(), dtype);
        let plain = load(&model, None);
        assert!(!plain.is_cached);
        assert_eq!(names(folder.path()), ["tiny.gguf"], "nobody asked for a cache");
        let first = load(&model, BESIDE);
        assert_eq!(first, plain, "{dtype}");
        assert_eq!(names(folder.path()), ["tiny.gguf", "tiny.gguf.pelton-packed"]);
        let second = load(&model, BESIDE);
        assert!(second.is_cached, "{dtype}");
        assert_eq!(second.bits, plain.bits, "{dtype}");
        assert_eq!(names(folder.path()), ["tiny.gguf", "tiny.gguf.pelton-packed"]);
    }
}

#[test]
fn a_folder_keeps_its_cache_inside_and_another_arithmetic_is_another_cache() {
    let folder = temp();
    TinyModel::default().write_folder(folder.path());
    let auto = load(folder.path(), BESIDE);
    assert!(folder.path().join("pelton.packed").is_file());
    assert!(load(folder.path(), BESIDE).is_cached);
    let f32 = || load_and(folder.path(), BESIDE, Compute::F32, || {});
    assert!(!f32().is_cached);
    assert!(f32().is_cached);
    assert!(!load(folder.path(), BESIDE).is_cached);
    assert_eq!(load(folder.path(), BESIDE).bits, auto.bits);
}

#[test]
fn one_folder_keeps_models_of_one_name_apart() {
    let (a, b, home) = (temp(), temp(), temp());
    // The folder is made where it is missing.
    let cache = PackedCache::Folder(home.path().join("new/cache"));
    let models = [gguf(a.path(), DType::Q8_0), gguf(b.path(), DType::Q4_0)];
    for model in &models {
        assert!(!load(model, Some(&cache)).is_cached);
    }
    for model in &models {
        assert!(load(model, Some(&cache)).is_cached);
        assert_eq!(load(model, Some(&cache)).bits, load(model, None).bits);
    }
    assert_eq!(names(&home.path().join("new/cache")).len(), 2);
    assert_eq!(names(a.path()), ["tiny.gguf"]);
}

#[test]
fn mapped_weights_outlive_their_file() {
    let folder = temp();
    let model = gguf(folder.path(), DType::Q8_0);
    let first = load(&model, BESIDE);
    let kept = folder.path().join("tiny.gguf.pelton-packed");
    let deleted = load_and(&model, BESIDE, Compute::Auto, || {
        std::fs::remove_file(&kept).expect("removed");
    });
    assert!(deleted.is_cached);
    assert_eq!(deleted.bits, first.bits);
    // Replaced by another load's: whoever has the old one mapped keeps it.
    assert!(!load(&model, BESIDE).is_cached);
    let replaced = load_and(&model, BESIDE, Compute::Auto, || {
        load_and(&model, BESIDE, Compute::F32, || {});
    });
    assert!(replaced.is_cached);
    assert_eq!(replaced.bits, first.bits);
}

#[test]
fn a_source_that_has_changed_is_packed_again() {
    let folder = temp();
    let model = gguf(folder.path(), DType::Q8_0);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    set_modified(&model, time);
    let first = load(&model, BESIDE);
    assert!(load(&model, BESIDE).is_cached);
    set_modified(&model, time + Duration::from_nanos(1_000));
    assert!(!load(&model, BESIDE).is_cached, "another time");
    assert!(load(&model, BESIDE).is_cached);
    // Other weights under the same name, size and time.
    TinyModel { seed: 7, ..TinyModel::default() }.write_gguf(&model, DType::Q8_0);
    set_modified(&model, time + Duration::from_nanos(1_000));
    let other = load(&model, BESIDE);
    assert!(!other.is_cached, "other bytes");
    assert_ne!(other.bits, first.bits);
    assert_eq!(other.bits, load(&model, None).bits);
}

#[test]
fn a_damaged_cache_is_packed_again_and_replaced() {
    let folder = temp();
    let model = gguf(folder.path(), DType::Q4_0);
    let first = load(&model, BESIDE);
    let kept = folder.path().join("tiny.gguf.pelton-packed");
    let good = std::fs::read(&kept).expect("written");
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 16;
        bytes
    };
    for bad in [flipped(5000), flipped(50), good[..good.len() / 2].to_vec(), Vec::new()] {
        std::fs::write(&kept, bad).expect("written");
        let again = load(&model, BESIDE);
        assert!(!again.is_cached);
        assert_eq!(again.bits, first.bits);
        assert_eq!(std::fs::read(&kept).expect("replaced"), good);
    }
    assert!(load(&model, BESIDE).is_cached);
}

/// A file as a machine may leave it that loses power while the file is written: blocks of the disk
/// hold what was there before, nothing, or are missing behind the end.
fn torn(good: &[u8], before: &[u8], random: &mut Random) -> Vec<u8> {
    const BLOCK: usize = 4096;
    const SECTOR: u64 = 512;
    let mut bytes = good.to_vec();
    let is_new_file = random.below(3) == 0;
    let one_in = 1 + random.below(good.len().div_ceil(BLOCK) as u64);
    for (i, block) in bytes.chunks_mut(BLOCK).enumerate() {
        if random.below(one_in) != 0 {
            continue;
        }
        let written = (SECTOR * random.below(BLOCK as u64 / SECTOR)) as usize;
        let lost = written.min(block.len())..block.len();
        match before.get(i * BLOCK + lost.start..i * BLOCK + lost.end) {
            Some(old) if !is_new_file => block[lost].copy_from_slice(old),
            _ => block[lost].fill(0),
        }
    }
    if random.below(3) == 0 {
        bytes.truncate(random.below(good.len() as u64 + 1) as usize);
    }
    bytes
}

#[test]
fn a_torn_write_is_found_wherever_it_tears() {
    let folder = temp();
    let kept = folder.path().join("tiny.gguf.pelton-packed");
    // The cache of other weights of the same shape, which lay on the same blocks of the disk.
    TinyModel { seed: 7, ..TinyModel::default() }
        .write_gguf(&folder.path().join("tiny.gguf"), DType::Q4_0);
    load(&folder.path().join("tiny.gguf"), BESIDE);
    let before = std::fs::read(&kept).expect("written");
    std::fs::remove_file(&kept).expect("removed");
    let model = gguf(folder.path(), DType::Q4_0);
    let first = load(&model, BESIDE);
    let good = std::fs::read(&kept).expect("written");
    assert_ne!(good, before);
    let mut n_torn = 0;
    for seed in 0..200 {
        let bytes = torn(&good, &before, &mut Random::new(seed, 0));
        let is_whole = bytes == good;
        std::fs::write(&kept, bytes).expect("written");
        let again = load(&model, BESIDE);
        assert_eq!(again.is_cached, is_whole, "seed {seed}");
        assert_eq!(again.bits, first.bits, "seed {seed}");
        assert!(std::fs::read(&kept).expect("replaced") == good, "seed {seed}");
        n_torn += usize::from(!is_whole);
    }
    assert!(n_torn > 150, "{n_torn}");
}

#[test]
fn a_cache_that_cannot_be_written_changes_nothing() {
    let folder = temp();
    let model = gguf(folder.path(), DType::Q8_0);
    let plain = load(&model, None);
    // No folder can be made inside a file, and no file in the place of a folder.
    let inside_a_file = PackedCache::Folder(model.join("cache"));
    assert_eq!(load(&model, Some(&inside_a_file)), plain);
    std::fs::create_dir(folder.path().join("tiny.gguf.pelton-packed")).expect("a folder");
    assert_eq!(load(&model, BESIDE), plain);
    assert_eq!(names(folder.path()), ["tiny.gguf", "tiny.gguf.pelton-packed"]);
}

/// KiB of the file at `path` that are in this process's memory.
#[cfg(target_os = "linux")]
fn resident_kib(path: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let at = smaps.find(&format!("{}\n", path.display())).expect("the file is mapped");
    let rss = smaps[at..].lines().find_map(|line| line.strip_prefix("Rss:")).expect("Rss");
    rss.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
#[cfg(target_os = "linux")]
fn stored_weights_leave_memory_when_they_are_packed_or_cached() {
    let folder = temp();
    let path = folder.path().join("wide.gguf");
    // Many layers, for a system may map two megabytes where one byte is read.
    let wide = TinyModel {
        n_layers: 8,
        hidden_size: 256,
        intermediate_size: 1024,
        ..TinyModel::default()
    };
    wide.write_gguf(&path, DType::F32);
    let stored_kib = std::fs::metadata(&path).expect("written").len() >> 10;
    assert!(stored_kib > 16 << 10, "{stored_kib} KiB");
    let files = ModelFiles::open(&path).expect("opens");
    for cache in [None, BESIDE, BESIDE] {
        let options = LoadOptions { packed_cache: cache, ..Default::default() };
        let most_kib = Cell::new(0);
        let progress = |_| most_kib.set(most_kib.get().max(resident_kib(&path)));
        let options = LoadOptions { progress: Some(&progress), ..options };
        load_cpu(&files, &options).expect("loads");
        let most_kib = most_kib.get();
        assert!(most_kib < stored_kib / 4, "{most_kib} of {stored_kib} KiB after a matrix");
    }
}
