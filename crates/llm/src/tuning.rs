//! What is known about this machine's [`Tuning`]: measured once, remembered in a file.
//!
//! ```text
//! $XDG_CACHE_HOME/pelton/tuning.json, else ~/.cache/pelton/tuning.json
//!   (~/Library/Caches/pelton on macOS, %LOCALAPPDATA%\pelton on Windows)
//! { "version": 1, "machines": [
//!     { "cpu": "AMD EPYC ...", "kernels": "avx512", "threads": 2,
//!       "strip_panels": 4, "row_block_bytes": 262144, "min_parallel_bytes": 131072,
//!       "nodes": { "n_nodes": 2, "policy": "interleave", "speeds": [4.02e10, 7.1e10] } }, ... ] }
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
//! Where a process may use several NUMA nodes, how weights lie on them is remembered with the rest, see
//! [`WeightNodes`]; it is measured first and within the same second.
//!
//! `PELTON_TUNING=off` neither reads nor measures: the defaults of the kernels, and of `PELTON_NUMA`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pelton_kernels::{Cpu, Kernels, NodeChoice, Topology, Tuning, cpu_model, default_threads};
use pelton_tensor::PendingFile;
use serde::{Deserialize, Serialize};

use crate::nodes::{Asked, KnownNodes, WeightNodes};

/// Raised when kernels change so much that what was measured with the old ones misleads.
const VERSION: u32 = 1;
/// Weights from which a second at the first start is little.
const LEAST_WEIGHT_BYTES: u64 = 64 << 20;
/// Most time that measuring takes.
const BUDGET: Duration = Duration::from_secs(1);
/// How much of it goes into NUMA nodes, where there are several.
const NODES_BUDGET: Duration = Duration::from_millis(300);
/// Most bytes of a file that is read, and machines of one that is written (the oldest go first).
const MOST_BYTES: u64 = 1 << 20;
const MOST_MACHINES: usize = 256;

/// Tunes the device for a model of so many bytes of weights: as remembered about this machine, or,
/// where nothing is and the model is large, as measured now, for at most a second.
///
/// Changes no bit of any result. Nothing that goes wrong here is more than a line in the log.
pub fn tune(cpu: &mut Cpu, weight_bytes: u64) {
    let asked = asked_nodes();
    let mut device = Device { left: BUDGET, cpu };
    if !is_tuning_on() {
        let (nodes, _) = WeightNodes::decide(device.n_nodes(), asked, None, &mut || None);
        return device.use_nodes(&nodes);
    }
    let machine = Machine::this(device.cpu.kernels, device.cpu.team.n_threads());
    let is_large = weight_bytes >= LEAST_WEIGHT_BYTES;
    let known = known_or_measured(file().as_deref(), machine, is_large, asked, &mut device);
    device.cpu.tuning = known.unwrap_or_default();
}

/// On which NUMA nodes weights would lie if a model were loaded with the default threads now, as far as
/// that is known without measuring.
pub fn weight_nodes() -> WeightNodes {
    let n_nodes = Topology::of_this_process().nodes().len();
    // Who computes refuses what kernels are not there.
    let kernels = Kernels::get().unwrap_or_else(|_| Kernels::best());
    let machine = Machine::this(kernels, default_threads());
    let known = file().filter(|_| n_nodes > 1 && is_tuning_on()).map(|path| Known::read(&path));
    let known = known.and_then(|mut known| known.of(&machine).and_then(|entry| entry.nodes));
    WeightNodes::decide(n_nodes, asked_nodes(), known, &mut || None).0
}

/// The variable, where it is there and not empty.
fn var(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn is_tuning_on() -> bool {
    var("PELTON_TUNING").is_none_or(|value| value != "off")
}

fn asked_nodes() -> Asked {
    let value = var("PELTON_NUMA");
    Asked::parse(value.as_deref()).unwrap_or_else(|| {
        tracing::warn!(?value, "PELTON_NUMA is auto: expected local, interleave or auto");
        Asked::Auto
    })
}

/// Where tunings are remembered.
fn file() -> Option<PathBuf> {
    let folder = cache_folder(&|name| var(name).map(PathBuf::from));
    folder.map(|folder| folder.join("tuning.json"))
}

/// What can be measured, and takes on what comes of it.
trait Measured {
    fn n_nodes(&self) -> usize;
    fn choose_nodes(&mut self) -> Option<NodeChoice>;
    fn use_nodes(&mut self, nodes: &WeightNodes);
    fn tune(&mut self) -> Tuning;
}

/// The device, and the time that is left for it.
struct Device<'a> {
    cpu: &'a mut Cpu,
    left: Duration,
}

impl Measured for Device<'_> {
    fn n_nodes(&self) -> usize {
        self.cpu.n_nodes()
    }

    fn choose_nodes(&mut self) -> Option<NodeChoice> {
        let start = Instant::now();
        let choice = self.cpu.choose_nodes(NODES_BUDGET);
        self.left = self.left.saturating_sub(start.elapsed());
        choice
    }

    fn use_nodes(&mut self, nodes: &WeightNodes) {
        self.cpu.node_policy = nodes.policy;
        if nodes.are_several() {
            tracing::info!(weights = %nodes, "NUMA nodes");
        }
    }

    fn tune(&mut self) -> Tuning {
        self.cpu.tune(self.left)
    }
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

impl Machine {
    fn this(kernels: &Kernels, threads: usize) -> Self {
        Self { cpu: cpu_model(), kernels: kernels.name.to_owned(), threads }
    }
}

/// One machine and its tuning.
#[derive(Debug, Deserialize, Serialize)]
struct Entry {
    #[serde(flatten)]
    machine: Machine,
    #[serde(flatten, with = "TuningFields")]
    tuning: Tuning,
    /// Where there are several, and an entry of a version that measured them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<KnownNodes>,
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

/// What the file says about `machine`; else, for a large model, what measuring says, and the file
/// says so from then on. The nodes are taken on before anything is tuned on them.
fn known_or_measured(
    path: Option<&Path>,
    machine: Machine,
    is_large: bool,
    asked: Asked,
    device: &mut dyn Measured,
) -> Option<Tuning> {
    let mut known = path.map_or_else(Known::nothing, Known::read);
    let entry = known.of(&machine);
    let start = Instant::now();
    let known_nodes = entry.as_ref().and_then(|entry| entry.nodes);
    let n_nodes = device.n_nodes();
    let mut measure = || if is_large { device.choose_nodes() } else { None };
    let (nodes, measured_nodes) = WeightNodes::decide(n_nodes, asked, known_nodes, &mut measure);
    device.use_nodes(&nodes);
    let tuning = match entry {
        Some(entry) => {
            let tuning = entry.tuning.clamped();
            tracing::debug!(?tuning, "the tuning of this machine is known");
            if measured_nodes.is_none() {
                return Some(tuning);
            }
            entry.nodes = measured_nodes;
            tuning
        }
        None if !is_large => return None,
        None => {
            let tuning = device.tune();
            let Tuning { strip_panels, row_block_bytes, min_parallel_bytes } = tuning;
            let ms = start.elapsed().as_millis() as u64;
            tracing::info!(
                ms,
                strip_panels,
                row_block_bytes,
                min_parallel_bytes,
                "tuned to this machine"
            );
            known.machines.push(Entry { machine, tuning, nodes: measured_nodes });
            tuning
        }
    };
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

    fn of(&mut self, machine: &Machine) -> Option<&mut Entry> {
        self.machines.iter_mut().find(|entry| entry.machine == *machine)
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
    use pelton_kernels::NodePolicy;

    const MEASURED: Tuning =
        Tuning { strip_panels: 2, row_block_bytes: 64 << 10, min_parallel_bytes: 32 << 10 };

    fn machine(cpu: &str) -> Machine {
        Machine { cpu: cpu.to_owned(), kernels: "avx2".to_owned(), threads: 4 }
    }

    /// A machine of so many nodes, and what was done to it.
    #[derive(Default)]
    struct Fake {
        n_nodes: usize,
        is_tuned: bool,
        are_nodes_measured: bool,
        policy: NodePolicy,
    }

    impl Measured for Fake {
        fn n_nodes(&self) -> usize {
            self.n_nodes
        }

        fn choose_nodes(&mut self) -> Option<NodeChoice> {
            assert!(!self.is_tuned, "weights must lie somewhere before they are read");
            self.are_nodes_measured = true;
            Some(NodeChoice { policy: NodePolicy::Local, speeds: Some([2e10, 1e10]) })
        }

        fn use_nodes(&mut self, nodes: &WeightNodes) {
            assert!(!self.is_tuned);
            self.policy = nodes.policy;
        }

        fn tune(&mut self) -> Tuning {
            self.is_tuned = true;
            MEASURED
        }
    }

    /// The answer for a large model, and whether it was measured.
    fn ask(path: &Path, machine: Machine) -> (Tuning, bool) {
        let mut fake = Fake { n_nodes: 1, ..Fake::default() };
        let answer = known_or_measured(Some(path), machine, true, Asked::Auto, &mut fake);
        assert!(!fake.are_nodes_measured);
        (answer.expect("a large model always has one"), fake.is_tuned)
    }

    #[test]
    fn nodes_are_measured_once_where_there_are_several_and_remembered_beside_the_tuning() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tuning.json");
        // Tuned, and nodes measured, in a start with so many nodes; and how weights lay in it.
        let start = |n_nodes, is_large, asked| {
            let mut fake = Fake { n_nodes, ..Fake::default() };
            known_or_measured(Some(&path), machine("a"), is_large, asked, &mut fake);
            (fake.is_tuned, fake.are_nodes_measured, fake.policy)
        };
        let (local, spread) = (NodePolicy::Local, NodePolicy::Interleave);
        assert_eq!(start(2, false, Asked::Auto), (false, false, spread));
        assert_eq!(start(1, true, Asked::Auto), (true, false, spread));
        // The machine is known, its nodes are not.
        assert_eq!(start(2, false, Asked::Auto), (false, false, spread));
        assert_eq!(start(2, true, Asked::Policy(spread)), (false, false, spread));
        assert_eq!(start(2, true, Asked::Auto), (false, true, local));
        for is_large in [true, false] {
            assert_eq!(start(2, is_large, Asked::Auto), (false, false, local));
            assert_eq!(start(2, is_large, Asked::Policy(spread)), (false, false, spread));
            assert_eq!(start(1, is_large, Asked::Auto), (false, false, spread));
        }
        assert_eq!(Known::read(&path).machines.len(), 1, "one machine, one entry");
        // Another number of them is measured anew, and everything at the first start.
        assert_eq!(start(4, true, Asked::Auto), (false, true, local));
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(start(2, true, Asked::Auto), (true, true, local));
        assert_eq!(start(2, true, Asked::Auto), (false, false, local));
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
            let mut fake = Fake { n_nodes: 1, ..Fake::default() };
            let known = known_or_measured(path, machine("a"), false, Asked::Auto, &mut fake);
            assert!(!fake.is_tuned);
            known
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
        let fake = &mut Fake::default();
        let nowhere = known_or_measured(None, machine("a"), true, Asked::Auto, fake);
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
