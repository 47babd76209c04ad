//! The file that keeps what `pelton doctor` measured.
//!
//! ```text
//! machine.json beside the file of tunings, in the user's cache folder
//! { "version": 1, "machines": [
//!     { "fingerprint": { "cpu": "AMD EPYC ...", "kernels": "avx512", "threads": 2 },
//!       "measured_at": 1764000000, "is_noisy": false, "spread_percent": 3.1,
//!       "hardware": { ... } }, ... ] }
//! ```
//!
//! A file that is damaged or of another version counts as missing: the next measurement writes it anew.

use std::io::Write;
use std::path::{Path, PathBuf};

use pelton_kernels::{cpu_model, default_threads};
use pelton_llm::RuntimeOptions;
use pelton_plan::Hardware;
use pelton_tensor::PendingFile;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Largest file that is read, in bytes.
const MOST_BYTES: u64 = 4 << 20;
/// Most machines of one file; the oldest go first.
const MOST_MACHINES: usize = 64;

/// Properties that have to be the same for a record to hold.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Fingerprint {
    pub(super) cpu: String,
    pub(super) kernels: String,
    pub(super) threads: usize,
}

/// The record of one machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    /// Seconds since 1970.
    pub(super) measured_at: u64,
    pub(super) is_noisy: bool,
    pub(super) spread_percent: f64,
    pub(super) hardware: Hardware,
}

/// Everything in the file.
#[derive(Debug, Deserialize, Serialize)]
struct Records {
    version: u32,
    machines: Vec<Entry>,
}

/// The file; `None` where there is no cache folder, and with `PELTON_TUNING=off`.
pub(super) fn path() -> Option<PathBuf> {
    let tunings = RuntimeOptions::from_env(None).tuning_file?;
    Some(tunings.with_file_name("machine.json"))
}

/// The record of this machine, with as many threads as are usual if there are several.
pub(super) fn of_this_machine(file: &Path) -> Option<Entry> {
    let kernels = super::kernels_in_use();
    let (cpu, threads) = (cpu_model(), default_threads());
    let same =
        |entry: &Entry| entry.fingerprint.cpu == cpu && entry.fingerprint.kernels == kernels.name;
    let mut known: Vec<Entry> = read(file).machines.into_iter().filter(same).collect();
    let usual = known.iter().position(|entry| entry.fingerprint.threads == threads);
    match usual {
        Some(at) => Some(known.swap_remove(at)),
        None => known.pop(),
    }
}

fn read(file: &Path) -> Records {
    let bytes = pelton_tensor::read_limited(file, MOST_BYTES).unwrap_or_default();
    let records = serde_json::from_slice::<Records>(&bytes);
    let known = records.ok().filter(|records| records.version == VERSION);
    known.unwrap_or(Records { version: VERSION, machines: Vec::new() })
}

/// Keeps a record in place of an older one of the same machine.
///
/// # Errors
///
/// When the system refuses.
pub(super) fn keep(file: &Path, entry: Entry) -> std::io::Result<()> {
    let mut records = read(file);
    records.machines.retain(|known| known.fingerprint != entry.fingerprint);
    records.machines.push(entry);
    let surplus = records.machines.len().saturating_sub(MOST_MACHINES);
    records.machines.drain(..surplus);
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut pending = PendingFile::create(file)?;
    pending.write_all((serde_json::to_string_pretty(&records)? + "\n").as_bytes())?;
    pending.publish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(cpu: &str, threads: usize, measured_at: u64) -> Entry {
        Entry {
            fingerprint: Fingerprint {
                cpu: cpu.to_owned(),
                kernels: crate::doctor::kernels_in_use().name.to_owned(),
                threads,
            },
            measured_at,
            is_noisy: false,
            spread_percent: 1.0,
            hardware: pelton_plan::profiles().pop().expect("a profile"),
        }
    }

    #[test]
    fn a_record_replaces_its_own_and_no_other() {
        let folder = tempfile::tempdir().expect("temp");
        let file = folder.path().join("cache/machine.json");
        assert!(of_this_machine(&file).is_none());
        let (cpu, threads) = (cpu_model(), default_threads());
        for entry in [
            entry(&cpu, threads, 1),
            entry(&cpu, threads, 2),
            entry("another", threads, 3),
            entry(&cpu, threads + 1, 4),
        ] {
            keep(&file, entry).expect("kept");
        }
        assert_eq!(read(&file).machines.len(), 3);
        assert_eq!(of_this_machine(&file).expect("known").measured_at, 2);
    }

    #[test]
    fn a_file_of_another_version_or_a_damaged_one_is_no_record() {
        let folder = tempfile::tempdir().expect("temp");
        let file = folder.path().join("machine.json");
        keep(&file, entry(&cpu_model(), default_threads(), 1)).expect("kept");
        let text = std::fs::read_to_string(&file).expect("written");
        std::fs::write(&file, text.replace("\"version\": 1", "\"version\": 2")).expect("written");
        assert!(of_this_machine(&file).is_none());
        std::fs::write(&file, "{").expect("written");
        assert!(of_this_machine(&file).is_none());
    }
}
