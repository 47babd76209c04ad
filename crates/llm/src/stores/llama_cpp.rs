//! The cache of llama.cpp: GGUF files in one folder.

use std::path::{Path, PathBuf};

use pelton_tensor::GgufPartName;

use super::{Store, StoredModel, env_path, gguf_format};
use crate::hub::{is_gguf_model, is_safe_path};

/// The folder, where the environment leads to one.
pub(super) fn folder() -> Option<PathBuf> {
    env_path("LLAMA_CACHE").or_else(|| {
        let caches = env_path("XDG_CACHE_HOME")
            .or_else(|| env_path("HOME").map(|home| home.join(".cache")))?;
        Some(caches.join("llama.cpp"))
    })
}

/// Every model of the folder; the parts of a split one are one model.
pub(super) fn list(folder: &Path) -> Vec<StoredModel> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_gguf_model(name))
        .collect();
    names.sort();
    let model = |name: String| {
        let path = folder.join(&name);
        let part = GgufPartName::parse(&path);
        if part.as_ref().is_some_and(|part| part.number > 1) {
            return None;
        }
        let paths = match part {
            Some(part) => (1..=part.count).map(|number| part.sibling(number).path()).collect(),
            None => vec![path.clone()],
        };
        let sizes: Vec<u64> =
            paths.iter().filter_map(|path| Some(path.metadata().ok()?.len())).collect();
        Some(StoredModel {
            format: gguf_format(&name),
            name,
            n_bytes: sizes.iter().sum(),
            is_partial: sizes.len() < paths.len(),
            store: Store::LlamaCpp,
            path,
            commit: None,
        })
    };
    names.into_iter().filter_map(model).collect()
}

/// A file of the folder.
pub(super) fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let is_name = is_gguf_model(name) && is_safe_path(name) && !name.contains('/');
    is_name.then(|| folder.join(name)).filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_model_is_one_and_other_files_are_none() {
        let temp = tempfile::tempdir().expect("temp");
        for name in [
            "a_b_c-Q4_K_M.gguf",
            "m-00001-of-00002.gguf",
            "m-00002-of-00002.gguf",
            "cut-00001-of-00002.gguf",
            "mmproj-x.gguf",
            "a_b_c-Q4_K_M.gguf.json",
            "x.gguf.downloadInProgress",
        ] {
            std::fs::write(temp.path().join(name), "12345").expect("written");
        }
        let found: Vec<_> = list(temp.path())
            .into_iter()
            .map(|model| (model.name, model.format, model.n_bytes, model.is_partial))
            .collect();
        let text = |text: &str| text.to_owned();
        assert_eq!(
            found,
            [
                (text("a_b_c-Q4_K_M.gguf"), text("GGUF Q4_K_M"), 5, false),
                (text("cut-00001-of-00002.gguf"), text("GGUF"), 5, true),
                (text("m-00001-of-00002.gguf"), text("GGUF"), 10, false),
            ]
        );
        assert!(find(temp.path(), "a_b_c-Q4_K_M.gguf").is_some());
        for name in ["no.gguf", "../x.gguf", "a_b_c-Q4_K_M.gguf.json"] {
            assert_eq!(find(temp.path(), name), None, "{name}");
        }
    }
}
