//! The NUMA nodes of a buffer's pages.
//!
//! ```text
//! first touch    page p on the node of the thread that first wrote it
//! interleaved    page p on nodes[p mod n_nodes]      (p counts huge pages where there are such)
//! ```
//!
//! A machine with two sockets has two sets of memory channels. Weights packed by one socket's
//! threads lie on its channels, and decoding waits for these while the other channels idle.
//! Interleaving makes every thread read from all of them: half the reads cross the link between the
//! sockets, and all the channels work. The packer of weights measures whether
//! that pays.
//!
//! Not done: binding each panel to the node of the thread that will read it, and a copy per node,
//! read by the threads beside it. Tiles go to whichever thread is free, so no panel has a thread,
//! nor a node; and copies take the memory of the weights once more per node.

use std::fmt;
use std::io;

/// Placement of a buffer's pages on nodes; displayed as `interleaved over 2 nodes`, for example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// There is one node to choose from (or nothing to place).
    #[default]
    OneNode,
    /// The pages are spread over several nodes.
    Interleaved {
        /// Number of nodes, two or more.
        n_nodes: usize,
    },
    /// The system refused to spread the pages; each page lies where it was first written.
    Refused {
        /// Number of nodes in the request.
        n_nodes: usize,
        /// The system's reason.
        reason: io::ErrorKind,
    },
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneNode => f.write_str("1 node"),
            Self::Interleaved { n_nodes } => write!(f, "interleaved over {n_nodes} nodes"),
            Self::Refused { n_nodes, reason } => {
                write!(f, "as first touched on {n_nodes} nodes (interleaving refused: {reason})")
            }
        }
    }
}

/// Spreads the pages of `bytes`, which start on a page, over `nodes`.
pub(super) fn interleave(bytes: &mut [u8], nodes: &[usize]) -> Placement {
    let n_nodes = nodes.len();
    if n_nodes < 2 || bytes.is_empty() {
        return Placement::OneNode;
    }
    match bind(bytes, nodes) {
        Ok(()) => Placement::Interleaved { n_nodes },
        Err(err) => Placement::Refused { n_nodes, reason: err.kind() },
    }
}

/// Sets the policy of `bytes` to interleaving over `nodes`.
#[cfg(target_os = "linux")]
pub(super) fn bind(bytes: &mut [u8], nodes: &[usize]) -> io::Result<()> {
    /// The kernel's largest number of nodes, in any build of it.
    const MAX_NODES: usize = 1024;
    let mut mask = [0_u64; MAX_NODES / 64];
    for &node in nodes {
        let word = mask.get_mut(node / 64).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node % 64);
    }
    // SAFETY: the range is borrowed for writing and policies do not change contents; the mask has
    // `MAX_NODES` bits that the call names (the kernel reads one bit less than the number says).
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            bytes.as_mut_ptr(),
            bytes.len(),
            libc::MPOL_INTERLEAVE as usize,
            mask.as_ptr(),
            MAX_NODES + 1,
            0_usize,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn bind(_bytes: &mut [u8], _nodes: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
