//! `docs/models.md` says what the registries and the fixtures say.
//!
//! With `UPDATE_MODELS=1` in the environment the page is written anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::common::all;
use crate::vectors::Fixture;
use pelton_model::{ARCHS, Arch, ENCODER_DECODERS, ENCODERS};
use pelton_quant::checkpoint::METHODS;
use pelton_quant::{FORMATS, WeightFormat};
use pelton_testkit::golden::{GoldenSeq2Seq, encoder_decoders};

const HEAD: &str = "\
# Models

The model families and weight formats that Pelton reads, and how each was verified. The tables are generated
from the registries and the test fixtures: `UPDATE_MODELS=1 cargo test -p pelton-model --test all models_page`
writes this page, and without the variable the same test fails if the page is out of date.
";

const FAMILIES: &str = "
## Families

A golden fixture is a tiny model with random weights in the shape and with the quirks of its family.
*Folder*: its logits in f32, of each row every fourth and in each row other ones, are within 1e-4 of those of
Hugging Face transformers (relative to the largest of them), and its greedy tokens are the same. *GGUF file*: the same holds for a file with the names and
the tensor order of the `gguf` package, or for one written by `pelton convert`. *Quantized*: with all
projections quantized (eight bits by row, fp8 by block), the model computes the same as with the dequantized
weights. *Converted*: `pelton convert` writes the folder as a GGUF file with the same logits, bit for bit if
weights are kept as stored or written in f32 (but for [Qwen3.5 and Falcon-H1](hybrid.md)); where a file of the `gguf` package exists, names, keys and bytes
are equal to it. Config values that GGUF files of the family cannot express are refused by name.

| family | folder | GGUF name | GGUF file | quantized | converted |
|---|---|---|---|---|---|
";

const ENCODERS_HEAD: &str = "
## Encoders

Models that compute embeddings ([embeddings.md](embeddings.md)). *Folder*: every row of the last layer is
within 1e-4 of that of Hugging Face transformers (relative to the largest element of the row), and so are the
vectors of every kind of pooling. *GGUF file*: the same rows from a file with the names of the `gguf`
package. Every family above also computes embeddings, from its last layer.

| family | folder | GGUF name | GGUF file |
|---|---|---|---|
";

const ENCODER_DECODERS_HEAD: &str = "
## Models of an encoder and a decoder

The encoder reads the prompt, the decoder answers ([encoder-decoder.md](encoder-decoder.md)). *Folder*: the
logits of every row of the decoder are within 1e-4 of those of Hugging Face transformers (relative to the
largest logit of a row), and the greedy tokens are the same. *GGUF file*: the same from a file with the names
of the `gguf` package.

| family | folder | GGUF name | GGUF file |
|---|---|---|---|
";

const FORMATS_HEAD: &str = "
## Weight formats

For every block format, the tests dequantize 256 blocks to the bits of the reference implementation, and 64
blocks with infinite or NaN scales (*hostile*) if the format can store them. Packed weights have exactly the
stored values; the fourth column is the layout that the kernels read.

| format | bits per weight | weights per block | packed as | bits per weight | verified |
|---|---|---|---|---|---|
";

const METHODS_HEAD: &str = "
## Quantized checkpoints

Each fixture is a small Llama whose matrices were quantized by independent code; every weight has the bits
that the definition of the method gives. [checkpoints.md](checkpoints.md) has the details.

| `quant_method` | supported | golden fixtures |
|---|---|---|
";

/// Families that transformers does not have, with the one whose code is the reference: the same
/// arithmetic under other names.
const RELATIVES: &[(&str, &str)] =
    &[("internlm2", "llama"), ("internlm3", "llama"), ("minicpm", "granite")];

/// Families that transformers does not have, with the package whose code is the reference.
const PACKAGES: &[(&str, &str)] = &[("rwkv7", "rwkv")];

/// Families whose GGUF files say nothing that those of another do not.
const SAME_FILES: &[(&str, &str)] = &[("SmolLM3ForCausalLM", "llama")];

/// Families whose GGUF files bear the name of another, and are told apart by what they hold.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("DeepseekV3ForCausalLM", "deepseek2"),
    ("FalconMambaForCausalLM", "mamba"),
    ("InternLM3ForCausalLM", "llama"),
    ("Olmo3ForCausalLM", "olmo2"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn code(words: &[impl AsRef<str>]) -> String {
    words.iter().map(|word| format!("`{}`", word.as_ref())).collect::<Vec<_>>().join(", ")
}

/// Golden fixtures by architecture: the name, and whether there is a GGUF file.
fn fixtures() -> BTreeMap<String, Vec<(String, bool)>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for golden in all() {
        let architecture = golden.files().config().architecture.clone();
        found.entry(architecture).or_default().push((golden.name.clone(), golden.has_gguf()));
    }
    found
}

fn family(arch: &Arch, fixtures: &BTreeMap<String, Vec<(String, bool)>>) -> String {
    let own: Vec<&(String, bool)> =
        arch.names.iter().filter_map(|name| fixtures.get(*name)).flatten().collect();
    let names: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let mut folder =
        if names.is_empty() { "no".to_owned() } else { format!("golden: {}", code(&names)) };
    for (_, relative) in RELATIVES.iter().filter(|(name, _)| names.contains(name)) {
        let _ = write!(folder, " (by the code of `{relative}`)");
    }
    for (_, package) in PACKAGES.iter().filter(|(name, _)| names.contains(name)) {
        let _ = write!(folder, " (by the package `{package}` of its author)");
    }
    let files: Vec<&str> =
        own.iter().filter(|(_, has_file)| *has_file).map(|(name, _)| name.as_str()).collect();
    let same = SAME_FILES.iter().find(|(name, _)| arch.names.contains(name));
    let shared = SHARED_NAMES.iter().find(|(name, _)| arch.names.contains(name));
    let file = match (arch.gguf_names, files.as_slice(), same) {
        ([], ..) if shared.is_none() => "not read".to_owned(),
        (_, [_, ..], _) => format!("golden: {}", code(&files)),
        (_, _, Some((_, other))) => format!("as `{other}`"),
        _ if arch.is_exported() => "converted: the logits of the folder".to_owned(),
        _ => "no".to_owned(),
    };
    let word = |is_so| if is_so { "yes" } else { "no" };
    let gguf_names = match (arch.gguf_names, shared) {
        ([], Some((_, other))) => code(&[*other]),
        ([], None) => "-".to_owned(),
        (names, _) => code(names),
    };
    let quantized = if arch.reads_quantized() { "yes" } else { "GPTQ, bitsandbytes" };
    let converted = word(arch.is_exported());
    format!(
        "| {} | {folder} | {gguf_names} | {file} | {quantized} | {converted} |\n",
        code(arch.names)
    )
}

/// The fixtures that verify something, or what stands there where there are none.
fn golden_cell(names: &[&str], none: &str) -> String {
    match names {
        [] => none.to_owned(),
        names => format!("golden: {}", code(names)),
    }
}

fn encoder(arch: &Arch) -> String {
    let own: Vec<Fixture> = crate::vectors::all()
        .into_iter()
        .filter(|fixture| arch.names.contains(&fixture.architecture().as_str()))
        .collect();
    let folders: Vec<&str> = own.iter().map(|fixture| fixture.name.as_str()).collect();
    let files = own.iter().filter(|fixture| fixture.has_gguf());
    let files: Vec<&str> = files.map(|fixture| fixture.name.as_str()).collect();
    let gguf_names = match (arch.gguf_names, files.as_slice()) {
        ([], []) => "-".to_owned(),
        ([], [_, ..]) => "that of BERT".to_owned(),
        (names, _) => code(names),
    };
    let (folders, files) = (golden_cell(&folders, "no"), golden_cell(&files, "not read"));
    format!("| {} | {folders} | {gguf_names} | {files} |\n", code(arch.names))
}

fn encoder_decoder(arch: &Arch) -> String {
    let all = encoder_decoders();
    let own: Vec<&GoldenSeq2Seq> = (all.iter())
        .filter(|golden| arch.names.contains(&golden.architecture().as_str()))
        .collect();
    let names = |has: fn(&GoldenSeq2Seq) -> bool| -> Vec<&str> {
        own.iter().filter(|golden| has(golden)).map(|golden| golden.checkpoint.name()).collect()
    };
    let (folders, files) = (names(|_| true), names(|golden| golden.checkpoint.has_gguf()));
    let (folders, files) = (golden_cell(&folders, "no"), golden_cell(&files, "not read"));
    let families = code(arch.names);
    let gguf_names =
        if arch.gguf_names.is_empty() { "-".to_owned() } else { code(arch.gguf_names) };
    format!("| {families} | {folders} | {gguf_names} | {files} |\n")
}

fn format_line(format: &dyn WeightFormat) -> String {
    /// Weights of a row that is whole in every layout.
    const ROW: usize = 4096;
    let bits = |n_bytes: usize, n: usize| (n_bytes * 8) as f64 / n as f64;
    let stored = bits(format.block_bytes(), format.block_len());
    let layout = format.layout();
    let packed = bits(layout.row_bytes(ROW), ROW);
    let has = |suffix: &str| {
        root().join("crates/quant/tests/golden").join(format!("{}{suffix}", format.name())).exists()
    };
    let verified = match (format.block_len(), has(".bin"), has(".hostile.bin")) {
        (1, ..) => "by definition",
        (_, true, true) => "golden, hostile",
        (_, true, false) => "golden",
        _ => "no",
    };
    format!(
        "| {} | {stored} | {} | `{}` | {packed} | {verified} |\n",
        format.name(),
        format.block_len(),
        layout.name()
    )
}

/// The fixtures of quantized checkpoints by method.
fn checkpoints() -> BTreeMap<String, Vec<String>> {
    let folder = root().join("crates/model/tests/checkpoints");
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("fixtures") {
        let path = entry.expect("entry").path();
        let Ok(text) = std::fs::read(path.join("config.json")) else { continue };
        let config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        // QuIP# has its settings in a place of its own, and does not name itself.
        let method = config["quantization_config"]["quant_method"].as_str();
        let method = method.or(config.get("quip_params").map(|_| "quip")).expect("a name");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        found.entry(method.to_owned()).or_default().push(name);
    }
    found.values_mut().for_each(|names| names.sort());
    found
}

fn page() -> String {
    let mut page = format!("{HEAD}{FAMILIES}");
    let fixtures = fixtures();
    ARCHS.iter().for_each(|arch| page += &family(arch, &fixtures));
    page += ENCODERS_HEAD;
    ENCODERS.iter().for_each(|arch| page += &encoder(arch));
    page += ENCODER_DECODERS_HEAD;
    ENCODER_DECODERS.iter().for_each(|arch| page += &encoder_decoder(arch));
    page += FORMATS_HEAD;
    FORMATS.iter().for_each(|format| page += &format_line(*format));
    page += METHODS_HEAD;
    let checkpoints = checkpoints();
    for method in METHODS {
        let names: Vec<&String> =
            method.names().iter().filter_map(|name| checkpoints.get(*name)).flatten().collect();
        let (methods, what) = (code(method.names()), method.supported());
        let _ = writeln!(page, "| {methods} | {what} | {} |", code(&names));
    }
    page
}

#[test]
fn the_page_says_what_the_registries_and_the_fixtures_say() {
    let path = root().join("docs/models.md");
    let page = page();
    if std::env::var_os("UPDATE_MODELS").is_some() {
        std::fs::write(&path, &page).expect("writable");
    }
    let written = std::fs::read_to_string(&path).expect("the page");
    assert!(written == page, "docs/models.md is not up to date: UPDATE_MODELS=1 writes it anew");
}

#[test]
fn nothing_that_is_read_is_unverified() {
    let page = page();
    let mut n_rows = 0;
    for table in page.split("\n## ").skip(1) {
        // Whether a family is converted is no question of trust.
        let columns = if table.starts_with("Families") { 1..5 } else { 1..6 };
        for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            for cell in &cells[columns.start..columns.end.min(cells.len())] {
                assert!(!cell.is_empty() && *cell != "no", "{row}");
            }
            n_rows += 1;
        }
    }
    assert_eq!(
        n_rows,
        ARCHS.len() + ENCODERS.len() + ENCODER_DECODERS.len() + FORMATS.len() + METHODS.len()
    );
    for (name, _) in RELATIVES {
        assert!(page.contains(&format!("`{name}`")), "{name} is no fixture");
    }
    for (name, _) in SAME_FILES {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is no family");
    }
}
