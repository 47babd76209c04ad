//! Placement of packed weights on NUMA nodes, decided by measuring reads.
//!
//! ```text
//! local        pages where the team first writes them, as the packer does
//! interleaved  pages dealt out over the nodes in turn
//!
//! buffer of each, both together beyond the caches
//! rounds: one pass of the whole team through each, taking turns          (as in `tuning`)
//! local is chosen where it is clearly the faster one: 3 % in the middle round, three rounds of four
//! ```
//!
//! Interleaving suits a team that covers a machine of two sockets: all memory channels serve all
//! threads. It is wrong for a small team that the system keeps on one node: then half of all reads
//! cross the link for nothing. The better policy depends on the machine, on the number of threads
//! and on other programs, so it is measured. With one node there is nothing to measure.
//!
//! The team writes the local buffer, not one thread, because the packer writes weights in the same
//! way: the measured placement is the one that loading produces.
//!
//! Not done: a copy per node that the threads of that node read. Tiles go to any free thread, so no
//! part of a matrix belongs to a node; a thread would have to find its node at every tile, and a
//! floating thread moves within a pass. Each copy costs the memory of all weights, too. Mapped
//! weights (a packed cache) are not placed: their pages belong to the system's cache of the file.

use std::time::{Duration, Instant};

use pelton_tensor::AlignedBuf;

use crate::cpu::Cpu;
use crate::machine::beyond_caches_bytes;
use crate::tuning::{Clock, LEAST_ROUNDS, best_of, median, rounds};

/// Most bytes of each buffer.
const MOST_BYTES: usize = 512 << 20;

/// How the pages of packed weights are distributed over several NUMA nodes; changes no result.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum NodePolicy {
    /// Each page lies on the node of the thread that first writes it.
    Local,
    /// Pages are dealt out over the nodes in turn.
    #[default]
    Interleave,
}

/// A policy, and how fast the team reads under each policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeChoice {
    /// The faster policy; interleaving where neither was clearly faster, or there was no time.
    pub policy: NodePolicy,
    /// Bytes per second with local and with interleaved pages; `None` where there was no time.
    pub speeds: Option<[f64; 2]>,
}

impl NodeChoice {
    /// The choice that follows from `rounds`: seconds of a pass through `n_bytes` of local, then of
    /// interleaved pages.
    fn of(rounds: &[[f64; 2]], n_bytes: usize) -> Self {
        const POLICIES: [NodePolicy; 2] = [NodePolicy::Local, NodePolicy::Interleave];
        if rounds.len() < LEAST_ROUNDS {
            return Self { policy: NodePolicy::default(), speeds: None };
        }
        let speed = |i: usize| {
            let mut seconds: Vec<f64> = rounds.iter().map(|round| round[i]).collect();
            // A clock that stood still counts as a nanosecond.
            n_bytes as f64 / median(&mut seconds).max(1e-9)
        };
        Self { policy: POLICIES[best_of(rounds, 1)], speeds: Some([speed(0), speed(1)]) }
    }
}

impl Cpu {
    /// Number of NUMA nodes on which this process has both CPUs and memory; zero where the system
    /// does not say.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Measures for at most `budget` which policy is faster on this machine, and uses it from now
    /// on; `None`, without a measurement, where there are fewer than two nodes.
    ///
    /// While it measures, it takes half of [`beyond_caches_bytes`] of memory for each policy, at
    /// most 512 MiB.
    pub fn choose_nodes(&mut self, budget: Duration) -> Option<NodeChoice> {
        if self.nodes.len() < 2 {
            return None;
        }
        let start = Instant::now();
        let clock = Clock { elapsed: &|| start.elapsed().as_secs_f64(), end: budget };
        let choice = self.measure_nodes(&clock, (beyond_caches_bytes() / 2).min(MOST_BYTES));
        self.node_policy = choice.policy;
        Some(choice)
    }

    fn measure_nodes(&self, clock: &Clock<'_>, n_bytes: usize) -> NodeChoice {
        let none = NodeChoice::of(&[], n_bytes);
        if !clock.has(0.0) {
            return none;
        }
        let bufs = [(); 2].map(|()| AlignedBuf::try_zeroed(n_bytes));
        let [Ok(first), Ok(second)] = bufs else { return none };
        let mut bufs = [first, second];
        let mut write = |i: usize| {
            if i == 1 {
                // Where the system refuses, both buffers are alike, and so are their times.
                let _ = bufs[i].interleave(&self.nodes);
            }
            self.write_everywhere(&mut bufs[i]);
        };
        let expected = clock.time(&mut || write(0));
        // Reading is no slower than writing pages that do not exist yet.
        if !clock.has(expected) {
            return none;
        }
        write(1);
        let expected = clock.time(&mut || self.read_through(bufs[0].as_slice_of()));
        let rounds = rounds::<2>(clock, expected, &mut |i| {
            self.read_through(bufs[i].as_slice_of());
        });
        NodeChoice::of(&rounds, n_bytes)
    }

    /// Distributes the pages of `buf`, which has not been written to yet, as the policy says.
    pub(crate) fn place(&self, buf: &mut AlignedBuf) {
        if self.node_policy == NodePolicy::Interleave {
            // A refusal leaves the pages where they fall: slower on such a machine, never wrong.
            let _ = buf.interleave(&self.nodes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernels;

    #[test]
    fn local_pages_are_chosen_only_where_they_are_clearly_faster() {
        const GIB: usize = 1 << 30;
        let of = |local: f64, interleaved: f64| NodeChoice::of(&[[local, interleaved]; 9], GIB);
        // Two sockets, a team on both: the channels of one socket serve all threads, or of both.
        let choice = of(0.05, 0.03);
        assert_eq!(choice.policy, NodePolicy::Interleave);
        assert_eq!(choice.speeds, Some([GIB as f64 / 0.05, GIB as f64 / 0.03]));
        // A team on one of them.
        assert_eq!(of(0.03, 0.05).policy, NodePolicy::Local);
        // Two halves of one socket, as good as one.
        assert_eq!(of(0.0295, 0.03).policy, NodePolicy::Interleave);
        assert_eq!(of(0.03, 0.03).policy, NodePolicy::Interleave);
        assert_eq!(of(0.0, 0.0).policy, NodePolicy::Interleave);
    }

    #[test]
    fn noise_and_too_few_rounds_leave_the_default() {
        let default = NodeChoice { policy: NodePolicy::Interleave, speeds: None };
        for n_rounds in 0..LEAST_ROUNDS {
            assert_eq!(NodeChoice::of(&vec![[0.1, 1.0]; n_rounds], 1), default);
        }
        // Another program disturbed two rounds of five.
        let rounds = [[1.0, 3.0], [1.0, 3.0], [1.0, 1.0], [1.01, 1.0], [1.0, 1.0]];
        let choice = NodeChoice::of(&rounds, 8);
        assert_eq!((choice.policy, choice.speeds), (NodePolicy::Interleave, Some([8.0, 8.0])));
    }

    #[test]
    fn one_node_is_not_measured_and_several_are_within_their_time() {
        const LONG: Duration = Duration::from_secs(3600);
        let mut cpu = Cpu::with(Kernels::best(), 2);
        for nodes in [vec![], vec![0], vec![3]] {
            cpu.nodes = nodes;
            cpu.node_policy = NodePolicy::Local;
            assert_eq!(cpu.choose_nodes(LONG), None);
            assert_eq!(cpu.node_policy, NodePolicy::Local, "nothing was decided");
        }
        // Whatever nodes this machine has, pages can be asked to lie on more.
        cpu.nodes = vec![0, 1];
        let none = NodeChoice { policy: NodePolicy::Interleave, speeds: None };
        assert_eq!(cpu.choose_nodes(Duration::ZERO), Some(none));
        assert_eq!(cpu.node_policy, NodePolicy::Interleave);
        let clock = Clock { elapsed: &|| 0.0, end: LONG };
        let choice = cpu.measure_nodes(&clock, 3 << 20);
        assert_eq!(
            choice.policy,
            NodePolicy::Interleave,
            "a clock that stands still tells nothing"
        );
        assert!(choice.speeds.is_some_and(|speeds| speeds.iter().all(|speed| speed.is_finite())));
    }
}
