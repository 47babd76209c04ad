//! Which files of a repository are needed to run it.

use super::{HubError, HubId};

/// Small files that are fetched whenever the repository has them.
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
];

/// Formats of `.gguf` files from the most to the least wanted, when nobody chose one.
const GGUF_PREFERENCE: &[&str] = &["q8_0", "q4_0", "bf16", "f16", "f32"];

/// The weights to fetch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Wanted {
    /// One `.gguf` file, which carries everything.
    Gguf(String),
    /// A Hugging Face folder.
    Folder {
        /// `config.json` and what else is there of the small files.
        side_files: Vec<String>,
        /// `model.safetensors`, or the index that names the shards.
        weights: String,
    },
}

/// Chooses from the files that a repository has.
pub(crate) fn select(id: &HubId, files: &[String]) -> Result<Wanted, HubError> {
    let no_model = |why: String| HubError::NoModel { id: id.to_string(), why };
    let has = |name: &str| files.iter().any(|file| file == name);
    let ggufs: Vec<&String> =
        files.iter().filter(|f| f.to_ascii_lowercase().ends_with(".gguf")).collect();
    let listed = || ggufs.iter().map(|f| f.as_str()).collect::<Vec<_>>().join(", ");

    if let Some(wish) = &id.gguf {
        if let Some(exact) = ggufs.iter().find(|file| *file == &wish) {
            return Ok(Wanted::Gguf((*exact).clone()));
        }
        let wish_lower = wish.to_ascii_lowercase();
        let matching: Vec<_> =
            ggufs.iter().filter(|f| f.to_ascii_lowercase().contains(&wish_lower)).collect();
        return match matching.as_slice() {
            [one] => Ok(Wanted::Gguf((**one).clone())),
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
        let side_files = std::iter::once("config.json")
            .chain(SIDE_FILES.iter().copied().filter(|name| has(name)))
            .map(str::to_owned)
            .collect();
        return Ok(Wanted::Folder { side_files, weights: weights.to_owned() });
    }
    if let [one] = ggufs.as_slice() {
        return Ok(Wanted::Gguf((*one).clone()));
    }
    for format in GGUF_PREFERENCE {
        let is_format = |file: &&&String| {
            let name = file.to_ascii_lowercase();
            name.strip_suffix(".gguf")
                .and_then(|stem| stem.strip_suffix(format))
                .is_some_and(|rest| rest.ends_with(['-', '.', '_', '/']))
        };
        if let Some(file) = ggufs.iter().find(is_format) {
            return Ok(Wanted::Gguf((*file).clone()));
        }
    }
    if ggufs.is_empty() {
        return Err(no_model(
            "neither config.json with model.safetensors nor a .gguf file is there".to_owned(),
        ));
    }
    Err(no_model(format!("choose a .gguf file with `{id}:NAME`; there are: {}", listed())))
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
    }

    #[test]
    fn a_gguf_file_is_chosen_by_wish_or_by_preference_and_never_by_luck() {
        let files = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-f16.gguf"];
        let gguf = |name: &str| Wanted::Gguf(name.to_owned());
        assert_eq!(choose("a/b", &files).expect("preferred"), gguf("m-Q8_0.gguf"));
        assert_eq!(choose("a/b:q4_k_m", &files).expect("wished"), gguf("m-Q4_K_M.gguf"));
        let error = choose("a/b:q6_k", &files).expect_err("absent").to_string();
        assert!(error.contains("m-f16.gguf"), "{error}");
        assert!(choose("a/b:m-", &files).is_err(), "ambiguous");
        assert!(choose("a/b", &["x-iq1.gguf", "y-iq2.gguf"]).is_err(), "nothing preferred");
        assert!(choose("a/b", &["pytorch_model.bin"]).is_err(), "nothing to load");
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
