//! Names of models on the hub.

use super::HubError;

/// `org/name[@revision][:file.gguf]`: a repository, its revision, and one of its files.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HubId {
    /// `org/name`.
    pub repo: String,
    /// Branch, tag or commit; `main` when absent.
    pub revision: String,
    /// A `.gguf` file of the repository, or a part of its name such as `Q8_0`.
    pub gguf: Option<String>,
}

impl HubId {
    /// Reads `org/name[@revision][:file.gguf]`, also behind the address of the hub, as a browser
    /// shows it: `https://huggingface.co/org/name`.
    ///
    /// # Errors
    ///
    /// [`HubError::BadId`] when the parts are not of that form; names that could leave the cache
    /// folder (`..`, absolute paths, back slashes) are among them.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        const ADDRESSES: &[&str] = &["https://huggingface.co/", "huggingface.co/", "hf.co/"];
        let bad = |why: &'static str| HubError::BadId { id: text.to_owned(), why };
        let text = ADDRESSES.iter().find_map(|at| text.strip_prefix(at)).unwrap_or(text);
        let (rest, gguf) = match text.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (text, None),
        };
        let (repo, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let (org, name) = repo.split_once('/').ok_or(bad("expected owner/name"))?;
        if !is_repo_part(org) || !is_repo_part(name) {
            return Err(bad("org and name are letters, digits, `-`, `_` and `.`"));
        }
        if !is_safe_path(revision) || revision.contains(char::is_whitespace) {
            return Err(bad("the revision is a branch, a tag or a commit"));
        }
        if gguf.is_some_and(|file| !is_safe_path(file)) {
            return Err(bad("after `:` comes the name of a .gguf file or a part of it"));
        }
        Ok(Self {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            gguf: gguf.map(str::to_owned),
        })
    }

    /// The folder of this repository inside the hub cache.
    pub fn folder_name(&self) -> String {
        format!("models--{}", self.repo.replace('/', "--"))
    }
}

impl std::fmt::Display for HubId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        self.gguf.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

fn is_repo_part(part: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty()
        && part.len() <= 96
        && part.chars().all(is_allowed)
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
        && !part.contains("--")
}

/// Whether a name sent by the hub may become a path below the cache folder.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let is_safe_part = |part: &str| {
        !part.is_empty() && part != "." && part != ".." && !part.chars().any(|c| c.is_control())
    };
    path.len() <= 1024 && !path.contains(['\\', ':']) && path.split('/').all(is_safe_part)
}

/// Whether an entity tag may become the name of a blob.
pub(crate) fn is_safe_etag(etag: &str) -> bool {
    (8..=128).contains(&etag.len())
        && etag.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_an_id_are_read_and_shown_again() {
        let id = HubId::parse("org/na.me-7B@v1.0:dir/x-Q8_0.gguf").expect("well formed");
        assert_eq!((id.repo.as_str(), id.revision.as_str()), ("org/na.me-7B", "v1.0"));
        assert_eq!(id.gguf.as_deref(), Some("dir/x-Q8_0.gguf"));
        assert_eq!(id.folder_name(), "models--org--na.me-7B");
        assert_eq!(id.to_string(), "org/na.me-7B@v1.0:dir/x-Q8_0.gguf");
        assert_eq!(HubId::parse("a/b").expect("plain").to_string(), "a/b");
        for address in ["https://huggingface.co/a/b", "hf.co/a/b"] {
            assert_eq!(HubId::parse(address).expect("an address").to_string(), "a/b");
        }
    }

    #[test]
    fn names_that_could_leave_the_cache_are_refused() {
        for id in
            ["a", "../b", "a/..", "a/b/c", "a/b@../../x", "a/b:/etc/x", "a\\b/c", "/a/b", "a/b@"]
        {
            assert!(HubId::parse(id).is_err(), "{id}");
        }
        for path in ["", "/x", "a//b", "a/../b", "..", "a\\b", "C:x", "a/\0"] {
            assert!(!is_safe_path(path), "{path:?}");
        }
        for etag in ["", "../../etc", "a/b-c-d-e", "..........", "short"] {
            assert!(!is_safe_etag(etag), "{etag}");
        }
        assert!(is_safe_path("1_Pooling/config.json") && is_safe_etag(&"a1".repeat(20)));
    }
}
