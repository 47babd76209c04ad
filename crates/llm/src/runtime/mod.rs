//! The machine as this process uses it: one thread team, one tuning, one placement of weights.
//!
//! ```text
//! RuntimeOptions --new--> Runtime (kernels, thread team)
//!                            ├─ load ─► served model ┐
//!                            ├─ load ─► draft model  ├ share the team; a forward pass is a turn
//!                            └─ load ─► embedder     ┘
//! ```
//!
//! Every model of a process is loaded on the same [`Runtime`], so a process has as many threads
//! that compute as it was asked for, however many models it holds. Forward passes of models on
//! different threads alternate ([`pelton_kernels::ThreadTeam::turn`]). The [`tuning`] is settled by
//! the first model that is large enough to be worth measuring for, and used by all models that are
//! loaded later.
//!
//! **Architecture invariant:** this module alone names the device of this crate; everything above
//! it says [`Device`].

mod nodes;
mod tuning;
mod tuning_file;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pelton_kernels::{Cpu, Kernels, NodePolicy, Topology, default_threads};
use pelton_model::{CpuDevice, Decoder, LoadOptions, ModelFiles};

use crate::error::LlmError;
pub use nodes::WeightNodes;
use tuning_file::{Known, Machine};

/// The device that models of this process compute on.
pub(crate) type Device = CpuDevice;

/// Stored weights, in bytes, from which a second of measuring at the first start is little.
const LEAST_MEASURED_BYTES: u64 = 64 << 20;

/// How a process computes.
///
/// The default computes with all usable cores, measures nothing and touches no file; see
/// [`from_env`](Self::from_env) for what the program does.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RuntimeOptions {
    /// Threads that compute; by default one per usable core.
    pub n_threads: Option<usize>,
    /// File that remembers the tunings of machines; by default none.
    pub tuning_file: Option<PathBuf>,
    /// Whether an unknown machine is measured when it loads a large model, for at most a second.
    pub measures: bool,
    /// How weights lie on several NUMA nodes; by default as measured, else interleaved.
    pub nodes: Option<NodePolicy>,
}

impl RuntimeOptions {
    /// The choices of the environment: the tuning file in the user's cache folder and measuring,
    /// unless `PELTON_TUNING` is `off`, and the placement in `PELTON_NUMA`.
    ///
    /// A value of either that is not known is a warning.
    pub fn from_env(n_threads: Option<usize>) -> Self {
        let tuning = var("PELTON_TUNING");
        let measures = tuning.as_ref().is_none_or(|value| !value.eq_ignore_ascii_case("off"));
        if let Some(value) = tuning.filter(|value| measures && !value.eq_ignore_ascii_case("on")) {
            tracing::warn!(?value, "PELTON_TUNING is ignored: expected on or off");
        }
        let tuning_file = tuning_file::in_cache_folder(&|name| var(name).map(PathBuf::from));
        let numa = var("PELTON_NUMA");
        let nodes = nodes::parse_policy(numa.as_deref()).unwrap_or_else(|| {
            tracing::warn!(value = ?numa, "PELTON_NUMA is ignored: expected local, interleave or auto");
            None
        });
        Self { n_threads, tuning_file: tuning_file.filter(|_| measures), measures, nodes }
    }

    /// The NUMA nodes on which weights would lie, as far as that is known without measuring.
    pub fn weight_nodes(&self) -> WeightNodes {
        let n_nodes = Topology::of_this_process().nodes().len();
        // An unknown name in `PELTON_KERNELS` is refused where something is computed.
        let kernels = Kernels::get().unwrap_or_else(|_| Kernels::best());
        let machine = Machine::this(kernels, self.n_threads.unwrap_or_else(default_threads));
        let file = self.tuning_file.as_deref().filter(|_| n_nodes > 1);
        let known =
            file.and_then(|file| Known::read(file).of(&machine).and_then(|entry| entry.nodes));
        WeightNodes::decide(n_nodes, self.nodes, known, &mut || None).0
    }
}

/// The value of an environment variable, where it is set and not empty.
fn var(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Kernels, thread team and tuning of a process; clones share them.
#[derive(Clone, Debug)]
pub struct Runtime {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: RuntimeOptions,
    n_threads: usize,
    cpu: Mutex<SharedCpu>,
}

/// The processor as the next model gets it.
#[derive(Debug)]
struct SharedCpu {
    cpu: Cpu,
    /// Whether the tuning was settled by a large model and stays as it is.
    is_settled: bool,
}

impl Runtime {
    /// Starts the thread team.
    ///
    /// # Errors
    ///
    /// When `n_threads` is zero, or `PELTON_KERNELS` names kernels that this machine cannot run.
    pub fn new(options: RuntimeOptions) -> Result<Self, LlmError> {
        if options.n_threads == Some(0) {
            let why = "expected at least 1, got 0".to_owned();
            return Err(LlmError::Option { option: "n_threads", why });
        }
        let cpu = Cpu::new(options.n_threads)?;
        let n_threads = cpu.team.n_threads();
        let cpu = Mutex::new(SharedCpu { cpu, is_settled: false });
        Ok(Self { shared: Arc::new(Shared { options, n_threads, cpu }) })
    }

    /// Threads that compute, the thread that runs a forward pass included.
    pub fn n_threads(&self) -> usize {
        self.shared.n_threads
    }

    /// The processor, tuned for a model of `weight_bytes` stored bytes: as remembered about this
    /// machine, or as measured now where nothing is remembered and the model is large.
    ///
    /// The tuning changes no bit of any result, and its failures are lines of the log.
    pub fn cpu(&self, weight_bytes: u64) -> Cpu {
        let mut shared = self.lock();
        if !shared.is_settled {
            let options = &self.shared.options;
            let measures = options.measures && weight_bytes >= LEAST_MEASURED_BYTES;
            // Other models of this process would disturb the measurement.
            let team = Arc::clone(&shared.cpu.team);
            let _turn = measures.then(|| team.turn());
            tuning::tune(&mut shared.cpu, options, measures);
            shared.is_settled = measures;
        }
        shared.cpu.clone()
    }

    /// Loads the weights of a model.
    ///
    /// # Errors
    ///
    /// As [`pelton_model::load`].
    pub fn load(
        &self,
        files: &ModelFiles,
        options: &LoadOptions<'_>,
    ) -> Result<Decoder<CpuDevice>, LlmError> {
        // Refuses an incomplete checkpoint before anything is measured for it.
        let weight_bytes = pelton_model::stored_bytes(files, options.max_context)?;
        let mut cpu = self.cpu(weight_bytes);
        cpu.activation_group = options.activation_group;
        let device = Device::new(cpu);
        let decoder = pelton_model::load(files, device, options)?;
        let spec = decoder.spec();
        for choice in spec.rope_choices(spec.max_context) {
            tracing::info!(choice, "rotary frequencies");
        }
        Ok(decoder)
    }

    /// The lock is held while a machine is measured; a panic there leaves a usable processor.
    fn lock(&self) -> MutexGuard<'_, SharedCpu> {
        self.shared.cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measuring(tuning_file: Option<PathBuf>) -> Runtime {
        let n_threads = Some(1);
        let options = RuntimeOptions { n_threads, tuning_file, measures: true, nodes: None };
        Runtime::new(options).expect("one thread")
    }

    #[test]
    fn the_first_large_model_settles_the_tuning_of_all_later_ones() {
        let folder = tempfile::tempdir().expect("temp");
        let file = folder.path().join("tuning.json");
        let runtime = measuring(Some(file.clone()));
        runtime.cpu(LEAST_MEASURED_BYTES - 1);
        assert!(!file.exists(), "a small model measures nothing");
        let tuned = runtime.cpu(LEAST_MEASURED_BYTES);
        assert!(file.exists(), "a large model is measured for, and that is remembered");
        std::fs::remove_file(&file).expect("ours");
        for weight_bytes in [0, LEAST_MEASURED_BYTES] {
            assert_eq!(runtime.cpu(weight_bytes).tuning, tuned.tuning);
        }
        assert!(!file.exists(), "nothing is measured a second time");
    }

    #[test]
    fn clones_share_one_team() {
        let runtime = measuring(None);
        let (a, b) = (runtime.cpu(0), runtime.clone().cpu(0));
        assert!(Arc::ptr_eq(&a.team, &b.team));
        assert_eq!(runtime.n_threads(), 1);
    }

    #[test]
    fn zero_threads_are_refused() {
        let options = RuntimeOptions { n_threads: Some(0), ..RuntimeOptions::default() };
        let error = Runtime::new(options).expect_err("nobody would compute").to_string();
        assert_eq!(error, "`n_threads`: expected at least 1, got 0");
    }
}
