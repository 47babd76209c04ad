//! The tuning of a machine: remembered in a file, else measured, else the default of the kernels.
//!
//! ```text
//! weights       in the file     not in the file
//! >= 64 MiB     used            measured for at most a second, remembered
//! smaller       used            defaults
//! ```
//!
//! Where a process may use several NUMA nodes, the placement of weights is decided first and within
//! the same second, because products are measured on weights that lie somewhere; see
//! [`WeightNodes`].

use std::time::{Duration, Instant};

use pelton_kernels::{Cpu, NodeChoice, Tuning};

use super::RuntimeOptions;
use super::nodes::WeightNodes;
use super::tuning_file::{Entry, Known, Machine};

/// Longest time that measuring takes.
const BUDGET: Duration = Duration::from_secs(1);
/// Part of it for NUMA nodes, where there are several.
const NODES_BUDGET: Duration = Duration::from_millis(300);

/// Tunes the processor as `options` say; an unknown machine is measured if `measures` is set.
///
/// Changes no bit of any result. Failures are lines of the log.
pub(super) fn tune(cpu: &mut Cpu, options: &RuntimeOptions, measures: bool) {
    let machine = Machine::this(cpu.kernels, cpu.team.n_threads());
    let mut device = Device { left: BUDGET, cpu };
    let tuning = known_or_measured(machine, options, measures, &mut device);
    device.cpu.tuning = tuning.unwrap_or_default();
}

/// A device that can be measured and that follows the result.
trait Measured {
    fn n_nodes(&self) -> usize;
    fn choose_nodes(&mut self) -> Option<NodeChoice>;
    fn use_nodes(&mut self, nodes: &WeightNodes);
    fn tune(&mut self) -> Tuning;
}

/// The processor, and the time that is left for measuring it.
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

/// The tuning that the file remembers for `machine`; else, if `measures` is set, a measured one,
/// which the file remembers from then on. The placement on nodes is decided before anything is
/// tuned.
fn known_or_measured(
    machine: Machine,
    options: &RuntimeOptions,
    measures: bool,
    device: &mut dyn Measured,
) -> Option<Tuning> {
    let path = options.tuning_file.as_deref();
    let mut known = path.map_or_else(Known::nothing, Known::read);
    let entry = known.of(&machine);
    let start = Instant::now();
    let known_nodes = entry.as_ref().and_then(|entry| entry.nodes);
    let n_nodes = device.n_nodes();
    let mut measure = || if measures { device.choose_nodes() } else { None };
    let (nodes, measured_nodes) =
        WeightNodes::decide(n_nodes, options.nodes, known_nodes, &mut measure);
    device.use_nodes(&nodes);
    let tuning = match entry {
        Some(entry) => {
            let tuning = entry.tuning.clamped();
            tracing::debug!(?tuning, "the tuning of this machine is remembered");
            if measured_nodes.is_none() {
                return Some(tuning);
            }
            entry.nodes = measured_nodes;
            tuning
        }
        None if !measures => return None,
        None => {
            let tuning = device.tune();
            log_measured(tuning, start.elapsed());
            known.machines.push(Entry { machine, tuning, nodes: measured_nodes });
            tuning
        }
    };
    if let Some(path) = path
        && let Err(error) = known.write(path)
    {
        tracing::debug!(file = %path.display(), %error, "the tuning cannot be remembered");
    }
    Some(tuning)
}

fn log_measured(tuning: Tuning, time: Duration) {
    let Tuning { strip_panels, row_block_bytes, min_parallel_bytes } = tuning;
    let ms = time.as_millis() as u64;
    tracing::info!(ms, strip_panels, row_block_bytes, min_parallel_bytes, "tuned to this machine");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pelton_kernels::NodePolicy;

    use super::super::tuning_file::MOST_BYTES;
    use super::*;

    const MEASURED: Tuning =
        Tuning { strip_panels: 2, row_block_bytes: 64 << 10, min_parallel_bytes: 32 << 10 };

    fn machine(cpu: &str) -> Machine {
        Machine { cpu: cpu.to_owned(), kernels: "avx2".to_owned(), threads: 4 }
    }

    fn options(file: Option<&Path>) -> RuntimeOptions {
        RuntimeOptions { tuning_file: file.map(Path::to_owned), ..RuntimeOptions::default() }
    }

    /// A machine with a number of nodes, and what was done to it.
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
        let answer = known_or_measured(machine, &options(Some(path)), true, &mut fake);
        assert!(!fake.are_nodes_measured);
        (answer.expect("a large model always has one"), fake.is_tuned)
    }

    #[test]
    fn nodes_are_measured_once_where_there_are_several_and_remembered_beside_the_tuning() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tuning.json");
        // Whether a start tunes and whether it measures nodes, and where its weights lie.
        let start = |n_nodes, is_large, nodes| {
            let mut fake = Fake { n_nodes, ..Fake::default() };
            let options = RuntimeOptions { nodes, ..options(Some(&path)) };
            known_or_measured(machine("a"), &options, is_large, &mut fake);
            (fake.is_tuned, fake.are_nodes_measured, fake.policy)
        };
        let (local, spread) = (NodePolicy::Local, NodePolicy::Interleave);
        assert_eq!(start(2, false, None), (false, false, spread));
        assert_eq!(start(1, true, None), (true, false, spread));
        // The machine is known, its nodes are not.
        assert_eq!(start(2, false, None), (false, false, spread));
        assert_eq!(start(2, true, Some(spread)), (false, false, spread));
        assert_eq!(start(2, true, None), (false, true, local));
        for is_large in [true, false] {
            assert_eq!(start(2, is_large, None), (false, false, local));
            assert_eq!(start(2, is_large, Some(spread)), (false, false, spread));
            assert_eq!(start(1, is_large, None), (false, false, spread));
        }
        assert_eq!(Known::read(&path).machines.len(), 1, "one machine, one entry");
        // Another number of them is measured anew, and everything at the first start.
        assert_eq!(start(4, true, None), (false, true, local));
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(start(2, true, None), (true, true, local));
        assert_eq!(start(2, true, None), (false, false, local));
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
            let known = known_or_measured(machine("a"), &options(path), false, &mut fake);
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
            b"{\"version\": 2, \"machines\": 7}".to_vec(),
            "[".repeat(100_000).into_bytes(),
            " ".repeat(MOST_BYTES as usize + 1).into_bytes(),
            good.replace("\"version\": 2", "\"version\": 1").into_bytes(),
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
        // Permissions do not bind the superuser, so a file stands in the folder's place, and a
        // folder in the file's.
        let file = folder.path().join("file");
        std::fs::write(&file, "no folder").expect("written");
        for path in [file.join("pelton/tuning.json"), folder.path().to_owned()] {
            for _ in 0..2 {
                assert_eq!(ask(&path, machine("a")), (MEASURED, true));
            }
        }
        let fake = &mut Fake::default();
        let nowhere = known_or_measured(machine("a"), &options(None), true, fake);
        assert_eq!(nowhere, Some(MEASURED));
    }
}
