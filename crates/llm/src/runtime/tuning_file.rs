//! The file that remembers the tunings of machines.
//!
//! ```text
//! $XDG_CACHE_HOME/pelton/tuning.json, else ~/.cache/pelton/tuning.json
//!   (~/Library/Caches/pelton on macOS, %LOCALAPPDATA%\pelton on Windows)
//! { "version": 2, "machines": [
//!     { "cpu": "AMD EPYC ...", "kernels": "avx512", "threads": 2,
//!       "strip_panels": 4, "row_block_bytes": 262144, "min_parallel_bytes": 131072,
//!       "nodes": { "n_nodes": 2, "policy": "interleave", "speeds": [4.02e10, 7.1e10] } }, ... ] }
//! ```
//!
//! One file serves all machines that share a home, and all numbers of threads. No tuning changes a
//! bit of any result, so nothing depends on the file being right: a file that is damaged, too large
//! or of another version counts as missing and is written anew. Two processes that write at once
//! may lose one entry, which is measured again.

use std::io::Write;
use std::path::{Path, PathBuf};

use pelton_kernels::{Kernels, Tuning, cpu_model};
use pelton_tensor::PendingFile;
use serde::{Deserialize, Serialize};

use super::nodes::KnownNodes;

/// Version of the file; raised when kernels change so much that older measurements mislead.
const VERSION: u32 = 2;
/// Largest file that is read, in bytes.
pub(super) const MOST_BYTES: u64 = 1 << 20;
/// Most machines of one file; the oldest entries go first.
pub(super) const MOST_MACHINES: usize = 256;

/// The file in the user's cache folder; `None` where there is no such folder.
pub(super) fn in_cache_folder(var: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    cache_folder(var).map(|folder| folder.join("tuning.json"))
}

/// The user's folder for files that can be made again; `None` where there is none.
fn cache_folder(var: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // A relative folder would be another folder at every start.
    let absolute = |name| var(name).filter(|path| path.is_absolute());
    let usual = || {
        if cfg!(target_os = "windows") {
            return absolute("LOCALAPPDATA");
        }
        let place = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        absolute("HOME").map(|home| home.join(place))
    };
    absolute("XDG_CACHE_HOME").or_else(usual).map(|folder| folder.join("pelton"))
}

/// The machine that a tuning was measured on.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) kernels: String,
    pub(super) threads: usize,
}

impl Machine {
    pub(super) fn this(kernels: &Kernels, threads: usize) -> Self {
        Self { cpu: cpu_model(), kernels: kernels.name.to_owned(), threads }
    }
}

/// One machine and its tuning.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Entry {
    #[serde(flatten)]
    pub(super) machine: Machine,
    #[serde(flatten, with = "TuningFields")]
    pub(super) tuning: Tuning,
    /// Absent on one node, and in entries that were written before nodes were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<KnownNodes>,
}

/// The names of [`Tuning`] in JSON.
#[derive(Deserialize, Serialize)]
#[serde(remote = "Tuning")]
struct TuningFields {
    strip_panels: usize,
    row_block_bytes: usize,
    min_parallel_bytes: usize,
}

/// Everything in the file.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Known {
    version: u32,
    pub(super) machines: Vec<Entry>,
}

impl Known {
    /// A file without machines.
    pub(super) fn nothing() -> Self {
        Self { version: VERSION, machines: Vec::new() }
    }

    /// The entry of a machine.
    pub(super) fn of(&mut self, machine: &Machine) -> Option<&mut Entry> {
        self.machines.iter_mut().find(|entry| entry.machine == *machine)
    }

    /// The content of a file; nothing where it is missing or damaged.
    pub(super) fn read(path: &Path) -> Self {
        let refused = |why: &dyn std::fmt::Display| {
            tracing::debug!(file = %path.display(), %why, "remembered tunings are not used");
            Self::nothing()
        };
        let bytes = match pelton_tensor::read_limited(path, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => return refused(&error),
        };
        match serde_json::from_slice::<Self>(&bytes) {
            Ok(known) if known.version == VERSION => known,
            Ok(known) => refused(&format_args!("version {}, expected {VERSION}", known.version)),
            Err(error) => refused(&error),
        }
    }

    /// Writes the file, and its folder where that is missing.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn write(&mut self, path: &Path) -> std::io::Result<()> {
        let surplus = self.machines.len().saturating_sub(MOST_MACHINES);
        self.machines.drain(..surplus);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = PendingFile::create(path)?;
        file.write_all((serde_json::to_string_pretty(self)? + "\n").as_bytes())?;
        file.publish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_does_not_grow_without_end() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tuning.json");
        let mut known = Known::nothing();
        known.machines.extend((0..MOST_MACHINES + 9).map(|threads| Entry {
            machine: Machine { cpu: "a".to_owned(), kernels: "avx2".to_owned(), threads },
            tuning: Tuning::default(),
            nodes: None,
        }));
        known.write(&path).expect("written");
        let machines = Known::read(&path).machines;
        assert_eq!((machines.len(), machines[0].machine.threads), (MOST_MACHINES, 9));
    }

    #[test]
    fn the_folder_is_the_users_cache() {
        let folder = |vars: &[(&str, &str)]| {
            cache_folder(&|name| {
                vars.iter().find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value))
            })
        };
        let cache = folder(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/u")]);
        assert_eq!(cache, Some("/c/pelton".into()));
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[("XDG_CACHE_HOME", "relative")]), None);
        if cfg!(target_os = "linux") {
            let home = folder(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/u")]);
            assert_eq!(home, Some("/u/.cache/pelton".into()));
        }
    }
}
