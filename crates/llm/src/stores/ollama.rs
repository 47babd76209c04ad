//! The store of Ollama: manifests that name blobs, of which one is a GGUF file.
//!
//! ```text
//!   manifests/registry.ollama.ai/library/llama3.2/1b    {"layers": [{"mediaType": .., "digest": ..}]}
//!   blobs/sha256-74701a8c...                            the GGUF file
//! ```

use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_tensor::read_limited;

use super::{Store, StoredModel, env_path};
use crate::hub::is_safe_path;

/// The registry of names without one, and the namespace of names without one.
const REGISTRY: &str = "registry.ollama.ai";
const LIBRARY: &str = "library";
/// The tag of names without one.
const LATEST: &str = "latest";
/// Kind of the layer that is the GGUF file.
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";

/// One folder of models.
pub(super) struct Ollama {
    root: PathBuf,
}

/// A manifest, or the part of it that matters.
#[derive(serde::Deserialize)]
struct Manifest {
    config: Layer,
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(serde::Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    kind: String,
    digest: String,
    #[serde(default)]
    size: u64,
}

/// The blob that describes the model.
#[derive(serde::Deserialize)]
struct Description {
    #[serde(default)]
    file_type: String,
}

impl Ollama {
    /// The folders where Ollama keeps models: of this user, and of the service.
    pub(super) fn from_env() -> Vec<Self> {
        let own = env_path("OLLAMA_MODELS")
            .or_else(|| env_path("HOME").map(|home| home.join(".ollama/models")));
        let service = match env_path("OLLAMA_MODELS") {
            Some(_) => None,
            None => Some(PathBuf::from("/usr/share/ollama/.ollama/models")),
        };
        own.into_iter().chain(service).map(|root| Self { root }).collect()
    }

    /// Every model that is one GGUF file.
    pub(super) fn list(&self) -> Vec<StoredModel> {
        let manifests = self.root.join("manifests");
        let mut found = Vec::new();
        for host in names(&manifests) {
            for space in names(&manifests.join(&host)) {
                for name in names(&manifests.join(&host).join(&space)) {
                    for tag in names(&manifests.join(&host).join(&space).join(&name)) {
                        found.extend(self.model([&host, &space, &name, &tag]));
                    }
                }
            }
        }
        found
    }

    /// The GGUF file of a model.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        let (rest, tag) = match name.rsplit_once(':') {
            Some((rest, tag)) if !tag.contains('/') => (rest, tag),
            _ => (name, LATEST),
        };
        let parts: Vec<&str> = rest.split('/').collect();
        let (host, space, name) = match *parts.as_slice() {
            [name] => (REGISTRY, LIBRARY, name),
            [space, name] => (REGISTRY, space, name),
            [host, space, name] => (host, space, name),
            _ => return None,
        };
        let model = self.model([host, space, name, tag])?;
        (!model.is_partial).then_some(model.path)
    }

    fn model(&self, [host, space, name, tag]: [&str; 4]) -> Option<StoredModel> {
        let place = format!("{host}/{space}/{name}/{tag}");
        if !is_safe_path(&place) {
            return None;
        }
        let manifest: Manifest = read(&self.root.join("manifests").join(&place))?;
        let mut files = manifest.layers.iter().filter(|layer| layer.kind == MODEL_LAYER);
        let (layer, None) = (files.next()?, files.next()) else { return None };
        let path = self.blob(&layer.digest)?;
        let description: Option<Description> =
            self.blob(&manifest.config.digest).and_then(|path| read(&path));
        let format = match description {
            Some(Description { file_type }) if !file_type.is_empty() => format!("GGUF {file_type}"),
            _ => "GGUF".to_owned(),
        };
        let shown = match (host, space) {
            (REGISTRY, LIBRARY) => format!("{name}:{tag}"),
            // With its host, because `space/name:tag` is a name on the hub.
            (host, space) => format!("{host}/{space}/{name}:{tag}"),
        };
        let is_there =
            path.metadata().is_ok_and(|file| file.len() == layer.size || layer.size == 0);
        Some(StoredModel {
            name: shown,
            format,
            n_bytes: layer.size,
            is_partial: !is_there,
            store: Store::Ollama,
            path,
            commit: None,
        })
    }

    /// The file of a digest such as `sha256:74701a8c...`.
    fn blob(&self, digest: &str) -> Option<PathBuf> {
        let hash = digest.strip_prefix("sha256:")?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash.then(|| self.root.join("blobs").join(format!("sha256-{hash}")))
    }
}

/// A small JSON file; `None` where it is not there or not as expected.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&read_limited(path, limits::CONFIG_BYTES).ok()?).ok()
}

/// Sorted names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store with a model of the library, one of another host, and a broken manifest.
    fn store() -> (tempfile::TempDir, Ollama) {
        let temp = tempfile::tempdir().expect("temp");
        let write = |path: &str, text: &str| {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("created");
            std::fs::write(path, text).expect("written");
        };
        let (config, model) = ("c".repeat(64), "a".repeat(64));
        let manifest = |digest: &str| {
            format!(
                r#"{{"schemaVersion": 2, "config": {{"mediaType": "x", "digest": "sha256:{config}"}},
                "layers": [{{"mediaType": "{MODEL_LAYER}", "digest": "{digest}", "size": 4}},
                {{"mediaType": "application/vnd.ollama.image.license", "digest": "y"}}]}}"#
            )
        };
        let there = manifest(&format!("sha256:{model}"));
        write("manifests/registry.ollama.ai/library/llama3.2/1b", &there);
        write("manifests/hf.co/org/name-GGUF/Q4_K_M", &manifest(&format!("sha256:{config}")));
        write("manifests/registry.ollama.ai/library/evil/latest", &manifest("sha256:../../x"));
        write("manifests/registry.ollama.ai/library/broken/latest", "{");
        write(&format!("blobs/sha256-{model}"), "GGUF");
        write(&format!("blobs/sha256-{config}"), r#"{"file_type": "Q8_0"}"#);
        let root = temp.path().to_owned();
        (temp, Ollama { root })
    }

    #[test]
    fn a_manifest_leads_to_its_gguf_file_and_never_out_of_the_store() {
        let (temp, ollama) = store();
        let found: Vec<_> = ollama.list().into_iter().map(|m| (m.name, m.is_partial)).collect();
        let expected =
            [("hf.co/org/name-GGUF:Q4_K_M".to_owned(), true), ("llama3.2:1b".to_owned(), false)];
        assert_eq!(found, expected);
        let model = &ollama.list()[1];
        assert_eq!((model.format.as_str(), model.n_bytes), ("GGUF Q8_0", 4));
        let blob = temp.path().join("blobs").join(format!("sha256-{}", "a".repeat(64)));
        assert_eq!(ollama.find("llama3.2:1b"), Some(blob));
        for name in ["llama3.2", "evil", "broken", "../x", "a/b/c/d", "", ":", "llama3.2:../1b"] {
            assert_eq!(ollama.find(name), None, "{name}");
        }
    }
}
