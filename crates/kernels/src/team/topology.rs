//! The machine as a team sees it: which logical CPUs share a core, which cores are fast, and which
//! NUMA nodes have memory.
//!
//! ```text
//! sys/devices/system/cpu/cpu<i>/topology/thread_siblings_list   logical CPUs of one core, "0,64"
//!                              /topology/physical_package_id,
//!                              /topology/core_id                the same, if there is no such list
//!                              /cpu_capacity                    speed, the largest being 1024 (Arm)
//! sys/devices/cpu_core/cpus                                     performance cores (hybrid Intel)
//! sys/devices/system/node/node<i>/cpulist                       logical CPUs near this memory
//! proc/self/status: Mems_allowed_list                           nodes whose memory we may use
//! sys/fs/cgroup/...                                             CPU time paid for, see `quota`
//! ```
//!
//! The order in which a team takes logical CPUs, for two performance cores of two threads each and
//! two efficiency cores:
//!
//! ```text
//! first of each performance core   first of each efficiency core   the siblings
//!            0  2                             4  5                     1  3
//! ```
//!
//! Inside each group the system's numbers ascend. Two threads on one core share its vector units,
//! and one thread saturates them in prefill and the core's share of memory bandwidth in decode; so
//! a team has one thread per core by default. An efficiency core takes longer for its last tile
//! than a performance core, and all other threads wait for it; so only performance cores count
//! where there are any.
//!
//! **Nothing here is trusted.** In a container any of these files may be missing, empty or about
//! other CPUs. A CPU without sensible information counts as a fast core of its own; the affinity
//! mask decides which CPUs exist at all.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::affinity::allowed_cpus;
use super::cpu_list::CpuList;
use super::{MAX_THREADS, quota};

/// The logical CPUs that this process may use, their cores and their NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// In the order in which a team takes them.
    cpus: Vec<LogicalCpu>,
    /// Nodes that have allowed CPUs and allowed memory, ascending.
    nodes: Vec<usize>,
    /// Whole cores that the container's CPU quota pays for.
    quota: Option<usize>,
}

/// One hardware thread. The derived order is the order in which a team takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogicalCpu {
    /// How many allowed CPUs of the same core come before it.
    sibling: usize,
    is_efficient: bool,
    /// The system's number.
    id: usize,
}

/// Identity of a core: logical CPUs with the same value share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Core {
    /// Smallest number among the siblings.
    Siblings(usize),
    /// Number of the package, and of the core in the package.
    Numbered(usize, usize),
    /// A CPU about which nothing is known, alone on its core.
    Alone(usize),
}

impl Topology {
    /// Topology of the CPUs in the affinity mask of the calling thread.
    pub fn of_this_process() -> Self {
        Self::read(Path::new("/"), &allowed_cpus())
    }

    /// Topology of the CPUs `allowed`, from the files under `root`.
    pub(super) fn read(root: &Path, allowed: &[usize]) -> Self {
        let system = root.join("sys/devices/system");
        let mut cores: Vec<(Core, usize)> =
            allowed.iter().map(|&id| (core_of(&system, id), id)).collect();
        cores.sort_unstable();
        let is_efficient = efficient(root, allowed);
        let mut cpus = Vec::with_capacity(cores.len());
        for core in cores.chunk_by(|a, b| a.0 == b.0) {
            for (sibling, &(_, id)) in core.iter().enumerate() {
                cpus.push(LogicalCpu { sibling, is_efficient: is_efficient(id), id });
            }
        }
        cpus.sort_unstable();
        Self { cpus, nodes: nodes(root, &system, allowed), quota: quota::whole_cores(root) }
    }

    /// Numbers of the allowed logical CPUs, in the order in which a team takes them; empty where
    /// the system does not say which are allowed.
    pub fn cpus(&self) -> impl ExactSizeIterator<Item = usize> {
        self.cpus.iter().map(|cpu| cpu.id)
    }

    /// Number of physical cores with an allowed CPU; the first `n_cores` of [`cpus`](Self::cpus)
    /// are on different cores.
    pub fn n_cores(&self) -> usize {
        self.cpus.iter().filter(|cpu| cpu.sibling == 0).count()
    }

    /// Number of physical cores that are not efficiency cores, or of all cores where there are only
    /// efficiency cores.
    pub fn n_performance_cores(&self) -> usize {
        let fast = self.cpus.iter().filter(|cpu| cpu.sibling == 0 && !cpu.is_efficient);
        match fast.count() {
            0 => self.n_cores(),
            n => n,
        }
    }

    /// NUMA nodes on which this process has both CPUs and memory, ascending, as
    /// [`AlignedBuf::interleave`](pelton_tensor::AlignedBuf::interleave) takes them. Empty where
    /// the system does not say.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// Default number of threads: one per performance core, or fewer when the container's CPU quota
    /// pays for fewer; at least 1.
    pub fn default_threads(&self) -> usize {
        let n_cores = match self.n_performance_cores() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        n_cores.min(self.quota.unwrap_or(usize::MAX)).clamp(1, MAX_THREADS)
    }

    /// The CPU of each thread of a team of `n_threads`, or `None` if the team floats.
    pub(super) fn pins(&self, n_threads: usize) -> Option<Vec<usize>> {
        let covers = n_threads == self.cpus.len() || n_threads == self.n_cores();
        (n_threads > 1 && covers).then(|| self.cpus().take(n_threads).collect())
    }
}

/// The core of the logical CPU `id`.
fn core_of(system: &Path, id: usize) -> Core {
    let topology = system.join(format!("cpu/cpu{id}/topology"));
    let number = |name: &str| number(&topology.join(name));
    let siblings = CpuList::read(&topology.join("thread_siblings_list"));
    if let Some(first) = siblings.filter(|list| list.contains(id)).and_then(|list| list.first()) {
        return Core::Siblings(first);
    }
    match (number("physical_package_id"), number("core_id")) {
        (Some(package), Some(core)) => Core::Numbered(package, core),
        _ => Core::Alone(id),
    }
}

/// Function that says whether a CPU is an efficiency core: on hybrid Intel a CPU outside the list
/// of performance cores, elsewhere a CPU of at most half the largest capacity (so that the middle
/// cores of a telephone count as fast).
fn efficient(root: &Path, allowed: &[usize]) -> impl Fn(usize) -> bool {
    let performance = CpuList::read(&root.join("sys/devices/cpu_core/cpus"));
    let capacity = |id: usize| {
        number(&root.join(format!("sys/devices/system/cpu/cpu{id}/cpu_capacity"))).unwrap_or(0)
    };
    let capacities: Vec<(usize, usize)> = match performance {
        Some(_) => Vec::new(),
        None => allowed.iter().map(|&id| (id, capacity(id))).collect(),
    };
    let largest = capacities.iter().map(|&(_, capacity)| capacity).max().unwrap_or(0);
    move |id| match &performance {
        Some(performance) => !performance.contains(id),
        // A CPU without a capacity (0) is unknown, hence fast.
        None => capacities.iter().any(|&(i, n)| i == id && n > 0 && n <= largest / 2),
    }
}

/// Nodes with allowed CPUs whose memory may be used.
fn nodes(root: &Path, system: &Path, allowed: &[usize]) -> Vec<usize> {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let memory = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    let memory = memory.and_then(CpuList::parse);
    let entries = fs::read_dir(system.join("node")).into_iter().flatten().flatten();
    let nodes: BTreeSet<usize> = entries
        .filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = CpuList::read(&entry.path().join("cpulist"))?;
            let is_near = allowed.iter().any(|&id| cpus.contains(id));
            let is_allowed = memory.as_ref().is_none_or(|memory| memory.contains(node));
            (is_near && is_allowed).then_some(node)
        })
        .collect();
    nodes.into_iter().collect()
}

/// The number in a file.
fn number(path: &Path) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
