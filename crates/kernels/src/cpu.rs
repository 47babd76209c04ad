//! `Cpu`: an instruction set and a thread team, which every operation needs.

use std::sync::Arc;

use pelton_tensor::{ActivationGroup, PagePool};

use crate::dispatch::{Kernels, UnknownKernels};
use crate::nodes::NodePolicy;
use crate::team::{ThreadTeam, Topology, default_threads};
use crate::tuning::Tuning;

/// The device of this crate: which kernels to run and the threads to run them on.
///
/// The operations are methods, each in the file of its kernel. A clone shares the team and has a
/// tuning of its own; see [`ThreadTeam::turn`] for several users of one team.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// The instruction set in use.
    pub kernels: &'static Kernels,
    /// The threads that share each operation.
    pub team: Arc<ThreadTeam>,
    /// NUMA nodes that the threads may run on and that have memory for them.
    pub(crate) nodes: Vec<usize>,
    /// Placement on several NUMA nodes of weights that are packed from now on.
    pub node_policy: NodePolicy,
    /// How products are cut into blocks and shared by the team; changes no result.
    pub tuning: Tuning,
    /// Most activations that share a scale in products of quantized weights; changes results.
    pub activation_group: ActivationGroup,
    /// Memory of the weights that are packed from now on.
    pub(crate) pages: Pages,
}

/// The memory of weights. A clone has other memory, so that each of several models gives all of its own
/// back.
#[derive(Debug, Default)]
pub(crate) struct Pages(pub(crate) PagePool);

impl Clone for Pages {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Cpu {
    /// The best kernels (or those named by `PELTON_KERNELS`) on `n_threads` threads, by default
    /// [`default_threads`].
    ///
    /// # Errors
    ///
    /// When `PELTON_KERNELS` names something this machine cannot run.
    pub fn new(n_threads: Option<usize>) -> Result<Self, UnknownKernels> {
        Ok(Self::with(Kernels::get()?, n_threads.unwrap_or_else(default_threads)))
    }

    /// The given kernels on `n_threads` threads (0 counts as 1).
    pub fn with(kernels: &'static Kernels, n_threads: usize) -> Self {
        let nodes = Topology::of_this_process().nodes().to_vec();
        let (node_policy, tuning) = (NodePolicy::default(), Tuning::default());
        let team = Arc::new(ThreadTeam::new(n_threads));
        let activation_group = ActivationGroup::default();
        let pages = Pages::default();
        Self { kernels, team, nodes, node_policy, tuning, activation_group, pages }
    }
}
