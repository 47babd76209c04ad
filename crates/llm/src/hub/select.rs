//! The choice of a repository's files that are needed to run its model.
//!
//! The parts of a split model, `NAME-00001-of-00003.gguf` and its neighbours, are one choice: the
//! name of one part, or a piece of their common name, selects all of them.

use std::collections::BTreeSet;
use std::path::Path;

use pelton_base::limits;
use pelton_tensor::{GgufPartName, read_limited};

use super::{HubError, HubId};

/// Small files that are fetched where the repository has them.
const SIDE_FILES: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "quantize_config.json",
    "quant_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
];

/// Files of a tokenizer that are fetched where there is no `tokenizer.json`.
const OLDER_TOKENIZERS: &[&str] =
    &["tokenizer.model", "vocab.txt", "rwkv_vocab_v20230424.txt", "tiktoken.model", "tekken.json"];

/// Formats of `.gguf` files in order of preference, where the id names no file.
const GGUF_PREFERENCE: &[&str] =
    &["q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k", "bf16", "f16", "f32"];

/// The weights to fetch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Wanted {
    /// A `.gguf` model, which needs no other file: one file, or all parts of a split model in
    /// order.
    Gguf(Vec<String>),
    /// A Hugging Face folder.
    Folder {
        /// `config.json` and the other small files that exist.
        side_files: Vec<String>,
        /// `model.safetensors`, or the index that names the shards.
        weights: String,
    },
}

/// Chooses from the files that a repository has.
pub(crate) fn select(id: &HubId, files: &[String]) -> Result<Wanted, HubError> {
    let no_model = |why: String| HubError::NoModel { id: id.to_string(), why };
    let has = |name: &str| files.iter().any(|file| file == name);
    let ggufs: BTreeSet<String> =
        (files.iter()).filter(|file| is_gguf_model(file)).map(|file| first_part(file)).collect();
    let listed = || ggufs.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let gguf = |first: &str| parts(first).map(Wanted::Gguf).map_err(no_model);

    if let Some(wish) = &id.gguf {
        if let Some(exact) = ggufs.get(&first_part(wish)) {
            return gguf(exact);
        }
        let wish_lower = wish.to_ascii_lowercase();
        let matching: Vec<_> =
            ggufs.iter().filter(|f| f.to_ascii_lowercase().contains(&wish_lower)).collect();
        let exact: Vec<_> =
            matching.iter().copied().filter(|f| is_format(f, &wish_lower)).collect();
        // `q4_k` is the format of one file and the beginning of that of others.
        let chosen = if exact.is_empty() { matching } else { exact };
        return match chosen.as_slice() {
            [one] => gguf(one),
            [] => Err(no_model(format!("no .gguf file matches `{wish}`; there are: {}", listed()))),
            _ => Err(no_model(format!(
                "several .gguf files match `{wish}`; there are: {}",
                listed()
            ))),
        };
    }
    let weights =
        ["model.safetensors", "model.safetensors.index.json"].into_iter().find(|name| has(name));
    if let (true, Some(weights)) = (has("config.json"), weights) {
        let older = OLDER_TOKENIZERS.iter().filter(|_| !has("tokenizer.json"));
        let side_files = std::iter::once("config.json")
            .chain(SIDE_FILES.iter().chain(older).copied().filter(|name| has(name)))
            .chain(files.iter().map(String::as_str).filter(|name| is_of_module(name)))
            .map(str::to_owned)
            .collect();
        return Ok(Wanted::Folder { side_files, weights: weights.to_owned() });
    }
    if let (1, Some(one)) = (ggufs.len(), ggufs.first()) {
        return gguf(one);
    }
    for format in GGUF_PREFERENCE {
        if let Some(file) = ggufs.iter().find(|file| is_format(file, format)) {
            return gguf(file);
        }
    }
    if ggufs.is_empty() {
        return Err(no_model(
            "neither config.json with model.safetensors nor a .gguf file is there".to_owned(),
        ));
    }
    Err(no_model(format!("choose a .gguf file with `{id}:NAME`; there are: {}", listed())))
}

/// Whether a file belongs to a module of sentence-transformers, such as `1_Pooling/config.json`.
fn is_of_module(file: &str) -> bool {
    let parts = file.split_once('/').and_then(|(folder, name)| {
        let (number, kind) = folder.split_once('_')?;
        Some((number, kind, name))
    });
    parts.is_some_and(|(number, kind, name)| {
        number.parse::<u8>().is_ok()
            && kind.bytes().all(|b| b.is_ascii_alphabetic())
            && ["config.json", "model.safetensors"].contains(&name)
    })
}

/// Whether a file is a model; files for images lie beside models and are none.
pub(crate) fn is_gguf_model(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    name.ends_with(".gguf") && !name.starts_with("mmproj")
}

/// Whether a file's name, without the number of a part, ends with a format in small letters.
fn is_format(file: &str, format: &str) -> bool {
    stem(file).strip_suffix(format).is_some_and(|rest| rest.ends_with(['-', '.', '_', '/']))
}

/// The name of a `.gguf` file without its ending and the number of a part, in small letters.
fn stem(file: &str) -> String {
    let part = GgufPartName::parse(Path::new(file));
    let name = part.map_or_else(|| file.to_owned(), |part| format!("{}.gguf", part.stem));
    let name = name.to_ascii_lowercase();
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}

/// Format in the name of a `.gguf` file, such as `Q4_K_M`.
pub(crate) fn format_of(file: &str) -> Option<String> {
    let stem = stem(file).to_ascii_uppercase();
    let word = stem.rsplit(['-', '.', '/']).next()?;
    let is_numbered = |prefix: &str| {
        word.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_format = ["Q", "IQ", "TQ"].into_iter().any(is_numbered)
        || ["F32", "F16", "BF16", "MXFP4", "MXFP4_MOE"].contains(&word);
    is_format.then(|| word.to_owned())
}

/// The GGUF models among files, each with all of its parts in order.
pub(crate) fn gguf_models(files: &[String]) -> Vec<Vec<String>> {
    let firsts: BTreeSet<String> =
        files.iter().filter(|file| is_gguf_model(file)).map(|file| first_part(file)).collect();
    firsts.iter().filter_map(|first| parts(first).ok()).collect()
}

/// The files of the GGUF model that an id names, in order.
pub(crate) fn named_gguf(id: &HubId, files: &[String]) -> Result<Vec<String>, HubError> {
    match select(id, files)? {
        Wanted::Gguf(parts) => Ok(parts),
        Wanted::Folder { .. } => {
            Err(HubError::NoModel { id: id.to_string(), why: "it names no .gguf file".to_owned() })
        }
    }
}

/// The words after the `:` of an id that name this GGUF model: its format where that is enough.
pub(crate) fn shortest_wish(first: &str, files: &[String]) -> String {
    let leads_here = |format: &String| {
        let (repo, revision) = (String::new(), String::new());
        let id = HubId { repo, revision, gguf: Some(format.clone()) };
        named_gguf(&id, files).is_ok_and(|parts| parts[0] == first)
    };
    format_of(first).filter(leads_here).unwrap_or_else(|| first.to_owned())
}

/// Whether a snapshot with these files has all weights of its folder model.
pub(crate) fn has_all_shards(folder: &Path, files: &[String]) -> bool {
    let has = |name: &str| files.iter().any(|file| file == name);
    let index = "model.safetensors.index.json";
    if !has("config.json") || has("model.safetensors") || !has(index) {
        return has("config.json") && has("model.safetensors");
    }
    let bytes = read_limited(&folder.join(index), limits::SAFETENSORS_INDEX_BYTES);
    let shards = bytes.ok().and_then(|bytes| shards(&bytes).ok());
    shards.is_some_and(|shards| shards.iter().all(|shard| has(shard)))
}

/// The first part of the model that this file is a part of, or the file itself.
fn first_part(file: &str) -> String {
    match GgufPartName::parse(Path::new(file)) {
        Some(part) => part.sibling(1).path().to_string_lossy().into_owned(),
        None => file.to_owned(),
    }
}

/// Every file of the model that begins with `first`.
fn parts(first: &str) -> Result<Vec<String>, String> {
    let Some(part) = GgufPartName::parse(Path::new(first)) else {
        return Ok(vec![first.to_owned()]);
    };
    if part.count > limits::GGUF_PARTS {
        let most = limits::GGUF_PARTS;
        return Err(format!("{first} is one of {} parts, expected at most {most}", part.count));
    }
    let path = |number| part.sibling(number).path().to_string_lossy().into_owned();
    Ok((1..=part.count).map(path).collect())
}

/// The shards that `model.safetensors.index.json` names, each once.
pub(crate) fn shards(index: &[u8]) -> Result<Vec<String>, String> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    match names.iter().find(|name| !super::id::is_safe_path(name)) {
        Some(name) => Err(format!("`weight_map` names {name:?}, which is no file name")),
        None if names.is_empty() => Err("`weight_map` is empty".to_owned()),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(id: &str, files: &[&str]) -> Result<Wanted, HubError> {
        let files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
        select(&HubId::parse(id).expect("well formed"), &files)
    }

    #[test]
    fn a_folder_is_config_weights_and_what_else_is_there() {
        let files = ["config.json", "model.safetensors", "tokenizer.json", "README.md", "x.bin"];
        let Wanted::Folder { side_files, weights } = choose("a/b", &files).expect("complete")
        else {
            panic!("not a folder")
        };
        assert_eq!(side_files, ["config.json", "tokenizer.json"]);
        assert_eq!(weights, "model.safetensors");

        let files = [
            "config.json",
            "model.safetensors",
            "vocab.txt",
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "onnx/model.onnx",
            "x_y/config.json",
        ];
        let Wanted::Folder { side_files, .. } = choose("a/b", &files).expect("complete") else {
            panic!("not a folder")
        };
        let expected = [
            "config.json",
            "modules.json",
            "vocab.txt",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
        ];
        assert_eq!(side_files, expected, "an encoder without a tokenizer.json");
    }

    #[test]
    fn files_of_older_tokenizers_are_chosen_where_there_is_no_tokenizer_json() {
        let world = "rwkv_vocab_v20230424.txt";
        for name in ["tokenizer.model", "vocab.txt", world, "tiktoken.model", "tekken.json"] {
            for has_json in [false, true] {
                let mut files = vec!["config.json", "model.safetensors", name];
                files.extend(has_json.then_some("tokenizer.json"));
                let Wanted::Folder { side_files, .. } = choose("a/b", &files).expect("complete")
                else {
                    panic!("not a folder")
                };
                let other = if has_json { "tokenizer.json" } else { name };
                assert_eq!(side_files, ["config.json", other]);
            }
        }
    }

    #[test]
    fn a_gguf_file_is_chosen_by_wish_or_by_preference_and_never_by_luck() {
        let files = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-f16.gguf"];
        let gguf = |name: &str| Wanted::Gguf(vec![name.to_owned()]);
        assert_eq!(choose("a/b", &files).expect("preferred"), gguf("m-Q8_0.gguf"));
        assert_eq!(choose("a/b:q4_k_m", &files).expect("wished"), gguf("m-Q4_K_M.gguf"));
        let error = choose("a/b:q6_k", &files).expect_err("absent").to_string();
        assert!(error.contains("m-f16.gguf"), "{error}");
        assert!(choose("a/b:m-", &files).is_err(), "ambiguous");
        let like = ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-Q4_K.gguf"];
        assert_eq!(choose("a/b:Q4_K", &like).expect("the whole format"), gguf("m-Q4_K.gguf"));
        assert!(choose("a/b:Q4", &like).is_err(), "ambiguous");
        assert!(choose("a/b", &["x-iq1.gguf", "y-iq2.gguf"]).is_err(), "nothing preferred");
        assert!(choose("a/b", &["pytorch_model.bin"]).is_err(), "nothing to load");
    }

    #[test]
    fn the_parts_of_a_split_file_are_one_choice() {
        let all = |stem: &str, n: usize| -> Vec<String> {
            (1..=n).map(|i| format!("{stem}-{i:05}-of-{n:05}.gguf")).collect()
        };
        let mut files = all("big/m-Q8_0", 3);
        files.extend(all("m-Q4_K_M", 2));
        let listed: Vec<&str> = files.iter().map(String::as_str).collect();
        let (big, small) = (Wanted::Gguf(all("big/m-Q8_0", 3)), Wanted::Gguf(all("m-Q4_K_M", 2)));
        assert_eq!(choose("a/b", &listed).expect("preferred"), big);
        for wish in ["q4_k_m", "m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf"] {
            assert_eq!(choose(&format!("a/b:{wish}"), &listed).expect(wish), small, "{wish}");
        }
        let error = choose("a/b:q6_k", &listed).expect_err("absent").to_string();
        assert!(error.contains("00001-of-00003") && !error.contains("00002-of"), "{error}");
        // A part alone stands for the whole: what is missing is found out when it is fetched.
        assert_eq!(choose("a/b", &listed[4..]).expect("the only model"), small);
        let far = choose("a/b", &["m-00001-of-99999.gguf"]).expect_err("too many").to_string();
        assert!(far.contains("99999") && far.contains("at most"), "{far}");
    }

    #[test]
    fn a_format_is_enough_to_name_a_file_where_no_other_has_it() {
        let files = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "a-Q8_0.gguf", "plain.gguf", "a-BF16.gguf"];
        let files: Vec<String> = files.map(str::to_owned).to_vec();
        let wish = |file: &str| shortest_wish(file, &files);
        assert_eq!((wish("a-Q8_0.gguf"), wish("a-BF16.gguf")), ("Q8_0".into(), "BF16".into()));
        for file in ["a-Q4_K_M.gguf", "plain.gguf"] {
            assert_eq!(wish(file), file);
        }
        assert_eq!(format_of("d/m-IQ3_XS-00001-of-00002.gguf").as_deref(), Some("IQ3_XS"));
        assert_eq!(format_of("Qwen3.gguf"), None);
    }

    #[test]
    fn an_index_cannot_name_files_outside_its_folder() {
        let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-0.safetensors"}}"#;
        assert_eq!(shards(index).expect("good"), ["m-0.safetensors", "m-1.safetensors"]);
        for bad in [r#"{"weight_map":{"a":"../x"}}"#, r#"{"weight_map":{}}"#, "{}", "["] {
            assert!(shards(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
