//! The hub cache: what is in it, and taking something out.

use std::path::Path;

use super::{Store, StoredModel, gguf_format};
use crate::hub::{self, HubConfig, HubError, HubId, RepoCache};

/// Every model of the cache: a folder of safetensors, and each GGUF model.
pub(super) fn list(config: &HubConfig) -> Vec<StoredModel> {
    hub::repositories(&config.cache)
        .iter()
        .flat_map(|id| of_repository(&config.cache, id))
        .collect()
}

fn of_repository(cache: &Path, id: &HubId) -> Vec<StoredModel> {
    let repo = RepoCache::new(cache, id);
    let partial_bytes = repo.partial_bytes();
    let mut found = Vec::new();
    for (commit, revision) in repo.commits() {
        let folder = repo.snapshot(&commit);
        let files = repo.files(&commit);
        let size = |files: &[&String]| -> u64 {
            files.iter().filter_map(|file| Some(folder.join(file).metadata().ok()?.len())).sum()
        };
        let base = match revision.as_deref() {
            Some("main") => id.repo.clone(),
            Some(name) => format!("{}@{name}", id.repo),
            None => format!("{}@{commit}", id.repo),
        };
        let model = |name: String, format: String, n_bytes, is_partial, path| StoredModel {
            name,
            format,
            n_bytes,
            is_partial,
            store: Store::HuggingFace,
            path,
            commit: Some(commit.clone()),
        };
        for parts in hub::gguf_models(&files) {
            let there: Vec<&String> = parts.iter().filter(|part| files.contains(part)).collect();
            let name = format!("{base}:{}", hub::shortest_wish(&parts[0], &files));
            let is_partial = there.len() < parts.len();
            let path = folder.join(&parts[0]);
            found.push(model(name, gguf_format(&parts[0]), size(&there), is_partial, path));
        }
        if files.iter().any(|file| file.ends_with(".safetensors")) {
            let own: Vec<&String> = files.iter().filter(|file| !file.ends_with(".gguf")).collect();
            let is_partial = !hub::has_all_shards(&folder, &files);
            let format = "safetensors".to_owned();
            found.push(model(base, format, size(&own), is_partial, folder.clone()));
        }
    }
    if partial_bytes > 0 {
        let path = cache.join(id.folder_name());
        found.push(StoredModel {
            name: id.repo.clone(),
            format: "?".to_owned(),
            n_bytes: partial_bytes,
            is_partial: true,
            store: Store::HuggingFace,
            path,
            commit: None,
        });
    }
    found
}

/// Removes a model from the hub cache: the whole repository, or the GGUF model that the id names.
/// Returns the bytes that were freed, or `None` where there is no such model.
///
/// # Errors
///
/// [`HubError::Busy`] while another process downloads it; a file that cannot be removed.
pub fn remove(config: &HubConfig, id: &HubId) -> Result<Option<u64>, HubError> {
    let repo = RepoCache::new(&config.cache, id);
    if repo.is_empty() {
        return Ok(None);
    }
    if id.gguf.is_none() {
        return repo.remove(id).map(Some);
    }
    let mut files: Vec<String> =
        repo.commits().keys().flat_map(|commit| repo.files(commit)).collect();
    files.sort();
    files.dedup();
    let parts = hub::named_gguf(id, &files)?;
    repo.remove_files(id, &parts).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A cache with two GGUF models that share nothing, and a folder that is not whole.
    fn cache() -> (tempfile::TempDir, HubConfig) {
        let temp = tempfile::tempdir().expect("temp");
        let write = |path: &str, text: &str| {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("created");
            std::fs::write(path, text).expect("written");
        };
        let link = |blob: &str, path: &str| {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("created");
            std::os::unix::fs::symlink(format!("../../blobs/{blob}"), path).expect("linked");
        };
        let one = "models--org--one-GGUF";
        write(&format!("{one}/blobs/aaaaaaaa"), "four");
        write(&format!("{one}/blobs/bbbbbbbb"), "seven77");
        write(&format!("{one}/refs/main"), COMMIT);
        link("aaaaaaaa", &format!("{one}/snapshots/{COMMIT}/one-Q4_K_M.gguf"));
        link("bbbbbbbb", &format!("{one}/snapshots/{COMMIT}/one-Q8_0.gguf"));
        write("models--org--half/blobs/cccccccc.incomplete", "half");
        write("models--gpt2/refs/main", COMMIT);
        let config = HubConfig { cache: temp.path().to_owned(), ..HubConfig::from_env() };
        (temp, config)
    }

    fn named(models: &[StoredModel]) -> Vec<(String, String, u64, bool)> {
        let facts = |m: &StoredModel| (m.name.clone(), m.format.clone(), m.n_bytes, m.is_partial);
        models.iter().map(facts).collect()
    }

    #[test]
    fn every_gguf_model_has_a_name_and_a_half_one_says_so() {
        let (_temp, config) = cache();
        let text = |text: &str| text.to_owned();
        assert_eq!(
            named(&list(&config)),
            [
                (text("org/half"), text("?"), 4, true),
                (text("org/one-GGUF:Q4_K_M"), text("GGUF Q4_K_M"), 4, false),
                (text("org/one-GGUF:Q8_0"), text("GGUF Q8_0"), 7, false),
            ]
        );
    }

    #[test]
    fn a_format_is_removed_alone_and_the_last_one_with_its_repository() {
        let (temp, config) = cache();
        let id = |text: &str| HubId::parse(text).expect("an id");
        assert_eq!(remove(&config, &id("org/one-GGUF:Q8_0")).expect("removed"), Some(7));
        assert_eq!(named(&list(&config)).len(), 2);
        assert!(remove(&config, &id("org/one-GGUF:Q8_0")).is_err(), "it is gone");
        assert_eq!(remove(&config, &id("org/one-GGUF:q4_k_m")).expect("removed"), Some(4));
        assert!(!temp.path().join("models--org--one-GGUF").exists());
        assert_eq!(remove(&config, &id("org/half")).expect("removed"), Some(4));
        assert_eq!(remove(&config, &id("org/half")).expect("nothing"), None);
    }

    #[test]
    fn what_another_process_downloads_is_not_removed() {
        let (temp, config) = cache();
        let id = HubId::parse("org/half").expect("an id");
        let lock = temp.path().join(".locks/models--org--half/cccccccc.lock");
        std::fs::create_dir_all(lock.parent().expect("a parent")).expect("created");
        let held = std::fs::File::create(&lock).expect("created");
        held.lock().expect("free");
        assert!(matches!(remove(&config, &id), Err(HubError::Busy { .. })));
        drop(held);
        assert_eq!(remove(&config, &id).expect("removed"), Some(4));
    }
}
