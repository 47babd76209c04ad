//! What is known about this machine's [`Tuning`]: measured once, remembered in a file.
//!
//! ```text
//! $XDG_CACHE_HOME/pelton/tuning.json, else ~/.cache/pelton/tuning.json
//!   (~/Library/Caches/pelton on macOS, %LOCALAPPDATA%\pelton on Windows)
//! { "version": 1, "machines": [
//!     { "cpu": "AMD EPYC ...", "kernels": "avx512", "threads": 2,
//!       "strip_panels": 4, "row_block_bytes": 262144, "min_parallel_bytes": 131072 }, ... ] }
//!
//! weights       in the file     not in the file
//! >= 64 MiB     used            measured for at most a second, remembered
//! smaller       used            defaults
//! ```
//!
//! One file serves all machines that share a home, and all numbers of threads. No tuning changes a
//! bit of any result, so the file is trusted with nothing: what is damaged, from another version or
//! too large counts as missing and is written anew. Two processes that write at once may lose one
//! entry, which is measured again.
//!
//! `PELTON_TUNING=off` neither reads nor measures: the defaults of the kernels.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pelton_kernels::{Cpu, Tuning, cpu_model};
use pelton_tensor::PendingFile;
use serde::{Deserialize, Serialize};

/// Raised when kernels change so much that what was measured with the old ones misleads.
const VERSION: u32 = 1;
/// Weights from which a second at the first start is little.
const LEAST_WEIGHT_BYTES: u64 = 64 << 20;
/// Most time that measuring takes.
const BUDGET: Duration = Duration::from_secs(1);
/// Most bytes of a file that is read, and machines of one that is written (the oldest go first).
const MOST_BYTES: u64 = 1 << 20;
const MOST_MACHINES: usize = 256;

/// Tunes the device for a model of so many bytes of weights: as remembered about this machine, or,
/// where nothing is and the model is large, as measured now, for at most a second.
///
/// Changes no bit of any result. Nothing that goes wrong here is more than a line in the log.
pub fn tune(cpu: &mut Cpu, weight_bytes: u64) {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if var("PELTON_TUNING").is_some_and(|value| value == "off") {
        return;
    }
    let path = cache_folder(&|name| var(name).map(PathBuf::from)).map(|f| f.join("tuning.json"));
    let threads = cpu.team.n_threads();
    let machine = Machine { cpu: cpu_model(), kernels: cpu.kernels.name.to_owned(), threads };
    let is_large = weight_bytes >= LEAST_WEIGHT_BYTES;
    let known = known_or_measured(path.as_deref(), machine, is_large, &mut || cpu.tune(BUDGET));
    cpu.tuning = known.unwrap_or_default();
}

/// The folder for what can be made again; `None` where there is no such place.
fn cache_folder(var: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // A relative folder would be another one at every start.
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

/// What a tuning was measured on.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Machine {
    cpu: String,
    kernels: String,
    threads: usize,
}

/// One machine and its tuning.
#[derive(Debug, Deserialize, Serialize)]
struct Entry {
    #[serde(flatten)]
    machine: Machine,
    #[serde(flatten, with = "TuningFields")]
    tuning: Tuning,
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
struct Known {
    version: u32,
    machines: Vec<Entry>,
}

/// What the file says about `machine`; else, for a large model, what `measure` says, and the file
/// says so from then on.
fn known_or_measured(
    path: Option<&Path>,
    machine: Machine,
    is_large: bool,
    measure: &mut dyn FnMut() -> Tuning,
) -> Option<Tuning> {
    let mut known = path.map_or_else(Known::nothing, Known::read);
    if let Some(entry) = known.machines.iter().find(|entry| entry.machine == machine) {
        let tuning = entry.tuning.clamped();
        tracing::debug!(?tuning, "the tuning of this machine is known");
        return Some(tuning);
    }
    if !is_large {
        return None;
    }
    let start = Instant::now();
    let tuning = measure();
    let Tuning { strip_panels, row_block_bytes, min_parallel_bytes } = tuning;
    let ms = start.elapsed().as_millis() as u64;
    tracing::info!(ms, strip_panels, row_block_bytes, min_parallel_bytes, "tuned to this machine");
    known.machines.push(Entry { machine, tuning });
    if let Some(path) = path
        && let Err(error) = known.write(path)
    {
        tracing::debug!(file = %path.display(), %error, "the tuning is not remembered");
    }
    Some(tuning)
}

impl Known {
    fn nothing() -> Self {
        Self { version: VERSION, machines: Vec::new() }
    }

    /// What a file holds; nothing when it is not there or not as it should be.
    fn read(path: &Path) -> Self {
        let refused = |why: &dyn std::fmt::Display| {
            tracing::debug!(file = %path.display(), %why, "remembered tunings are not used");
            Self::nothing()
        };
        // A pipe would let us wait for ever.
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() && found.len() <= MOST_BYTES => {}
            Ok(_) => return refused(&"not a file, or too large"),
            Err(error) => return refused(&error),
        }
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
        if let Err(error) = read {
            return refused(&error);
        }
        match serde_json::from_slice::<Self>(&bytes) {
            Ok(known) if known.version == VERSION => known,
            Ok(known) => refused(&format_args!("version {}, expected {VERSION}", known.version)),
            Err(error) => refused(&error),
        }
    }

    fn write(&mut self, path: &Path) -> std::io::Result<()> {
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

    const MEASURED: Tuning =
        Tuning { strip_panels: 2, row_block_bytes: 64 << 10, min_parallel_bytes: 32 << 10 };

    fn machine(cpu: &str) -> Machine {
        Machine { cpu: cpu.to_owned(), kernels: "avx2".to_owned(), threads: 4 }
    }

    /// The answer for a large model, and whether it was measured.
    fn ask(path: &Path, machine: Machine) -> (Tuning, bool) {
        let mut is_measured = false;
        let answer = known_or_measured(Some(path), machine, true, &mut || {
            is_measured = true;
            MEASURED
        });
        (answer.expect("a large model always has one"), is_measured)
    }

    #[test]
    fn a_machine_is_measured_once() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("cache/pelton/tuning.json");
        assert_eq!(ask(&path, machine("a")), (MEASURED, true));
        assert_eq!(ask(&path, machine("a")), (MEASURED, false));
        // Everything that makes another machine, and the first is still known.
        let others = [
            machine("b"),
            Machine { kernels: "avx512".to_owned(), ..machine("a") },
            Machine { threads: 5, ..machine("a") },
        ];
        for other in others {
            assert!(ask(&path, other.clone()).1, "{other:?}");
            assert!(!ask(&path, other).1);
        }
        assert!(!ask(&path, machine("a")).1);
    }

    #[test]
    fn a_small_model_uses_what_is_known_and_never_measures() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tuning.json");
        let small = || {
            let path = Some(path.as_path());
            known_or_measured(path, machine("a"), false, &mut || panic!("measured"))
        };
        assert_eq!(small(), None);
        assert!(!path.exists());
        ask(&path, machine("a"));
        assert_eq!(small(), Some(MEASURED));
    }

    #[test]
    fn a_file_that_is_damaged_is_written_anew() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tuning.json");
        ask(&path, machine("a"));
        let good = std::fs::read_to_string(&path).expect("written");
        let mut damaged = vec![
            Vec::new(),
            b"\0\xff".to_vec(),
            b"[]".to_vec(),
            b"{\"version\": 1, \"machines\": 7}".to_vec(),
            "[".repeat(100_000).into_bytes(),
            " ".repeat(MOST_BYTES as usize + 1).into_bytes(),
            good.replace("\"version\": 1", "\"version\": 2").into_bytes(),
            good.replace("\"strip_panels\": 2", "\"strip_panels\": -2").into_bytes(),
            good.replace("\"strip_panels\": 2", "\"strip_panels\": 1e99").into_bytes(),
            good.replace("\"row_block_bytes\"", "\"else\"").into_bytes(),
        ];
        damaged.push(good.as_bytes()[..good.len() / 2].to_vec());
        for bytes in damaged {
            assert_ne!(bytes, good.as_bytes());
            std::fs::write(&path, &bytes).expect("written");
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
            assert_eq!(ask(&path, machine("a")), (MEASURED, true), "{shown}");
            assert_eq!(std::fs::read_to_string(&path).expect("anew"), good, "{shown}");
        }
    }

    #[test]
    fn hostile_values_are_clamped() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tuning.json");
        ask(&path, machine("a"));
        let good = std::fs::read_to_string(&path).expect("written");
        let most = good.replace("\"strip_panels\": 2", &format!("\"strip_panels\": {}", u64::MAX));
        std::fs::write(&path, most).expect("written");
        let (tuning, is_measured) = ask(&path, machine("a"));
        assert_eq!(tuning, Tuning { strip_panels: usize::MAX, ..MEASURED }.clamped());
        assert!(!is_measured);
    }

    #[test]
    fn where_nothing_can_be_written_it_is_measured_and_goes_on() {
        let folder = tempfile::tempdir().expect("temp");
        // Not by permissions, which do not bind everybody: a file in the folder's place, and a
        // folder in the file's.
        let file = folder.path().join("file");
        std::fs::write(&file, "no folder").expect("written");
        for path in [file.join("pelton/tuning.json"), folder.path().to_owned()] {
            for _ in 0..2 {
                assert_eq!(ask(&path, machine("a")), (MEASURED, true));
            }
        }
        let nowhere = known_or_measured(None, machine("a"), true, &mut || MEASURED);
        assert_eq!(nowhere, Some(MEASURED));
    }

    #[test]
    fn the_file_does_not_grow_without_end() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tuning.json");
        let mut known = Known::nothing();
        known.machines.extend((0..MOST_MACHINES + 9).map(|threads| Entry {
            machine: Machine { threads, ..machine("a") },
            tuning: MEASURED,
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
