//! What is exported computes what the original does, and an export that ends early leaves nothing.

mod common;

use std::cell::Cell;
use std::path::Path;

use common::{Golden, all, bits, golden, run_whole};
use pelton_model::arch::Mlp;
use pelton_model::{Compute, ExportOptions, ModelError, ModelFiles, export};
use pelton_tensor::{DType, TensorSource};

fn exported(files: &ModelFiles, options: &ExportOptions<'_>, out: &Path) -> ModelFiles {
    let options = ExportOptions { overwrite: true, ..*options };
    let written = export(files, &options, out).expect("exported").expect("not stopped");
    ModelFiles::open(&written[0]).expect("sound")
}

fn logits(golden: &Golden, files: &ModelFiles) -> Vec<Vec<u32>> {
    bits(&run_whole(&mut golden.load(files, Compute::Auto), &golden.tokens()))
}

#[test]
fn a_model_exported_as_stored_has_the_logits_of_its_folder() {
    for golden in all().into_iter().filter(|golden| golden.files().arch().is_exported) {
        let expected = logits(&golden, &golden.files());
        let temp = tempfile::tempdir().expect("temp");
        let as_stored = ExportOptions::default();
        let whole = exported(&golden.files(), &as_stored, &temp.path().join("whole.gguf"));
        assert!(logits(&golden, &whole) == expected, "{}: whole", golden.name);
        let small = ExportOptions { max_part_bytes: Some(20_000), ..as_stored };
        let parts = exported(&whole, &small, &temp.path().join("part.gguf"));
        assert!(parts.tensors().files().len() > 2, "{}", golden.name);
        assert!(logits(&golden, &parts) == expected, "{}: parts", golden.name);
        let joined = exported(&parts, &as_stored, &temp.path().join("joined.gguf"));
        let (joined, whole) = (joined.gguf().expect("GGUF"), whole.gguf().expect("GGUF"));
        assert_eq!(joined.metadata(), whole.metadata(), "{}", golden.name);
    }
}

#[test]
fn a_file_of_any_family_is_split_and_requantized() {
    let mut n_files = 0;
    for golden in all() {
        let Some(path) = golden.gguf() else { continue };
        let files = ModelFiles::open(&path).expect(&golden.name);
        let temp = tempfile::tempdir().expect("temp");
        let small = ExportOptions { max_part_bytes: Some(20_000), ..Default::default() };
        let parts = exported(&files, &small, &temp.path().join("part.gguf"));
        assert!(logits(&golden, &parts) == logits(&golden, &files), "{}: parts", golden.name);
        let to = ExportOptions { format: Some("q8_0"), ..Default::default() };
        let eight_bits = exported(&files, &to, &temp.path().join("q8_0.gguf"));
        for name in eight_bits.tensors().names() {
            let view = eight_bits.tensors().get(name).expect("listed");
            // Norms of each head are a matrix, too, as are learned positions.
            let is_kept = name.contains("norm") || name.starts_with("position_embd");
            let is_kept = is_kept || name.ends_with(".bias") || name.contains("ffn_gate_inp.");
            if is_kept || view.shape.len() == 1 {
                assert_eq!(view.dtype, DType::F32, "{}: {name}", golden.name);
            }
        }
        let mut decoder = golden.load(&eight_bits, Compute::F32);
        let error = golden.mean_error(&run_whole(&mut decoder, &golden.tokens()));
        println!("{:24} {error:.1e}", golden.name);
        // A near tie of a router that rounding decides another way is another expert.
        let spec = files.spec().expect("a spec");
        let has_experts = spec.layers.iter().any(|layer| matches!(layer.mlp, Mlp::Moe(_)));
        let bound = if has_experts { 0.15 } else { 0.06 };
        assert!(error < bound, "{}: {error:e}", golden.name);
        n_files += 1;
    }
    assert!(n_files >= 20, "{n_files} files");
}

#[test]
fn a_requantized_file_has_the_bytes_of_one_quantized_from_the_folder() {
    let golden = golden("llama3");
    let temp = tempfile::tempdir().expect("temp");
    let as_stored = ExportOptions::default();
    let whole = exported(&golden.files(), &as_stored, &temp.path().join("whole.gguf"));
    let to = ExportOptions { format: Some("q5_0"), ..as_stored };
    let direct = exported(&golden.files(), &to, &temp.path().join("direct.gguf"));
    let detour = exported(&whole, &to, &temp.path().join("detour.gguf"));
    let (direct, detour) = (direct.gguf().expect("GGUF"), detour.gguf().expect("GGUF"));
    assert_eq!(direct.names(), detour.names());
    for name in direct.names() {
        let (a, b) = (direct.get(name).expect("listed"), detour.get(name).expect("listed"));
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{name}");
        assert!(a.data == b.data, "{name}");
        let expected = if a.shape.len() == 1 { DType::F32 } else { DType::Q5_0 };
        assert_eq!(a.dtype, expected, "{name}");
    }
    assert_eq!(detour.u32("general.file_type").expect("a number"), Some(8));
}

#[test]
fn an_export_that_is_stopped_or_fails_changes_no_file() {
    let golden = golden("llama3");
    let temp = tempfile::tempdir().expect("temp");
    let out = temp.path().join("out.gguf");
    std::fs::write(&out, "old").expect("written");
    let n_asked = Cell::new(0);
    let options = ExportOptions {
        overwrite: true,
        stop: Some(&|| {
            n_asked.set(n_asked.get() + 1);
            n_asked.get() > 5
        }),
        ..Default::default()
    };
    let written = export(&golden.files(), &options, &out).expect("no error");
    assert_eq!((written, n_asked.get()), (None, 6));
    let without = ExportOptions::default();
    let error = export(&golden.files(), &without, &out).expect_err("in the way");
    assert!(matches!(&error, ModelError::Exists { file } if *file == out), "{error}");
    let unknown = ExportOptions { format: Some("q9_9"), overwrite: true, ..Default::default() };
    assert!(export(&golden.files(), &unknown, &out).is_err());
    assert_eq!(std::fs::read_to_string(&out).expect("there"), "old");
    assert_eq!(std::fs::read_dir(temp.path()).expect("a folder").count(), 1);
}

#[test]
fn progress_ends_with_everything_written() {
    let golden = golden("llama3");
    let temp = tempfile::tempdir().expect("temp");
    let last = Cell::new(None);
    let options = ExportOptions { progress: Some(&|at| last.set(Some(at))), ..Default::default() };
    let written = exported(&golden.files(), &options, &temp.path().join("out.gguf"));
    let last = last.get().expect("told");
    assert_eq!(last.n_tensors, last.n_total_tensors);
    assert_eq!(last.n_bytes, last.n_total_bytes);
    assert_eq!(last.n_tensors, written.tensors().names().len());
}
