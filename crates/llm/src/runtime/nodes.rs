//! On which NUMA nodes packed weights come to lie, and why: asked for, measured, or neither.
//!
//! ```text
//! PELTON_NUMA      one node      several, remembered     several, not yet
//! local            -             local                   local
//! interleave       -             interleaved             interleaved
//! auto, unset      -             as remembered           measured for a large model, else interleaved
//! ```
//!
//! A remembered measurement holds for the number of nodes that it was made on; a process that may
//! use another number of nodes measures again. An explicit request is followed and not remembered.

use std::ffi::OsStr;
use std::fmt;

use pelton_kernels::{NodeChoice, NodePolicy};
use serde::{Deserialize, Serialize};

/// Reads the value of `PELTON_NUMA`: a policy, or none for `auto`; `None` for an unknown word.
pub(super) fn parse_policy(value: Option<&OsStr>) -> Option<Option<NodePolicy>> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("" | "auto") => Some(None),
        Some("local") => Some(Some(NodePolicy::Local)),
        Some("interleave") => Some(Some(NodePolicy::Interleave)),
        Some(_) => None,
    }
}

/// The measurement of a machine's nodes, as the tuning file keeps it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct KnownNodes {
    n_nodes: usize,
    policy: Policy,
    /// Bytes per second of weights as first written, and interleaved; absent where time ran out.
    speeds: Option<[f64; 2]>,
}

/// The names of [`NodePolicy`] in JSON.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Policy {
    Local,
    Interleave,
}

impl KnownNodes {
    /// A measurement on `n_nodes` nodes.
    pub(super) fn new(n_nodes: usize, choice: NodeChoice) -> Self {
        let policy = match choice.policy {
            NodePolicy::Local => Policy::Local,
            NodePolicy::Interleave => Policy::Interleave,
        };
        Self { n_nodes, policy, speeds: choice.speeds }
    }
}

/// On which NUMA nodes packed weights come to lie, and why; printed,
/// `"interleaved over 2 nodes: 71.0 GB/s, as first written 40.2"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightNodes {
    /// Nodes on which this process has both CPUs and memory.
    pub n_nodes: usize,
    /// The placement where there are several nodes.
    pub policy: NodePolicy,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    OneNode,
    Asked,
    Measured([f64; 2]),
    NotMeasured,
}

impl WeightNodes {
    /// The placement on `n_nodes` nodes: the one that is `asked` for, else the `known` one, else
    /// the one that is measured now.
    ///
    /// `measure` is called at most once, and not where there is nothing to choose; the second value
    /// is the measurement to remember.
    pub(super) fn decide(
        n_nodes: usize,
        asked: Option<NodePolicy>,
        known: Option<KnownNodes>,
        measure: &mut dyn FnMut() -> Option<NodeChoice>,
    ) -> (Self, Option<KnownNodes>) {
        let decided = |policy, why| Self { n_nodes, policy, why };
        if n_nodes < 2 {
            return (decided(NodePolicy::default(), Why::OneNode), None);
        }
        if let Some(policy) = asked {
            return (decided(policy, Why::Asked), None);
        }
        let known = known.filter(|known| known.n_nodes == n_nodes);
        let measured = match known {
            Some(_) => None,
            None => measure().map(|choice| KnownNodes::new(n_nodes, choice)),
        };
        let Some(KnownNodes { policy, speeds, .. }) = known.or(measured) else {
            return (decided(NodePolicy::default(), Why::NotMeasured), None);
        };
        let policy = match policy {
            Policy::Local => NodePolicy::Local,
            Policy::Interleave => NodePolicy::Interleave,
        };
        (decided(policy, speeds.map_or(Why::NotMeasured, Why::Measured)), measured)
    }

    /// Whether there is more than one node to lie on.
    pub fn are_several(&self) -> bool {
        self.n_nodes > 1
    }
}

impl fmt::Display for WeightNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_nodes, policy, why } = self;
        match (policy, why) {
            (_, Why::OneNode) => return f.write_str("1 node"),
            (NodePolicy::Local, _) => write!(f, "as first written on {n_nodes} nodes")?,
            (NodePolicy::Interleave, _) => write!(f, "interleaved over {n_nodes} nodes")?,
        }
        let gb = |speed: f64| speed / 1e9;
        match (policy, *why) {
            (_, Why::OneNode) => Ok(()),
            (_, Why::Asked) => f.write_str(": PELTON_NUMA asks for it"),
            (_, Why::NotMeasured) => f.write_str(": not measured"),
            (NodePolicy::Local, Why::Measured([local, interleaved])) => {
                write!(f, ": {:.1} GB/s, interleaved {:.1}", gb(local), gb(interleaved))
            }
            (NodePolicy::Interleave, Why::Measured([local, interleaved])) => {
                write!(f, ": {:.1} GB/s, as first written {:.1}", gb(interleaved), gb(local))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: NodeChoice =
        NodeChoice { policy: NodePolicy::Local, speeds: Some([40.25e9, 31e9]) };
    const SPREAD: NodeChoice =
        NodeChoice { policy: NodePolicy::Interleave, speeds: Some([40.2e9, 71e9]) };
    const NO_TIME: NodeChoice = NodeChoice { policy: NodePolicy::Interleave, speeds: None };

    /// The decision, in words, whether it was measured, and what is remembered of it.
    fn decide(
        n_nodes: usize,
        asked: Option<NodePolicy>,
        known: Option<KnownNodes>,
        measured: Option<NodeChoice>,
    ) -> (String, bool, Option<KnownNodes>) {
        let mut is_measured = false;
        let (nodes, remembered) = WeightNodes::decide(n_nodes, asked, known, &mut || {
            is_measured = true;
            measured
        });
        assert_eq!(nodes.are_several(), n_nodes > 1);
        (nodes.to_string(), is_measured, remembered)
    }

    #[test]
    fn one_node_leaves_nothing_to_choose_or_to_measure() {
        let known = Some(KnownNodes::new(2, LOCAL));
        for asked in [None, Some(NodePolicy::Local)] {
            for n_nodes in [0, 1] {
                let decided = decide(n_nodes, asked, known, Some(LOCAL));
                assert_eq!(decided, ("1 node".to_owned(), false, None));
            }
        }
    }

    #[test]
    fn several_nodes_are_measured_once_and_what_was_better_is_done() {
        for (measured, words) in [
            (SPREAD, "interleaved over 2 nodes: 71.0 GB/s, as first written 40.2"),
            (LOCAL, "as first written on 2 nodes: 40.2 GB/s, interleaved 31.0"),
            (NO_TIME, "interleaved over 2 nodes: not measured"),
        ] {
            let first = decide(2, None, None, Some(measured));
            let remembered = KnownNodes::new(2, measured);
            assert_eq!(first, (words.to_owned(), true, Some(remembered)));
            let again = decide(2, None, Some(remembered), Some(NO_TIME));
            assert_eq!(again, (words.to_owned(), false, None));
            // As JSON, and back.
            let json = serde_json::to_string(&remembered).expect("it can be written");
            assert_eq!(serde_json::from_str::<KnownNodes>(&json).expect(&json), remembered);
            // With more nodes than there were it is another machine.
            assert!(decide(4, None, Some(remembered), Some(measured)).1);
        }
        // A small model measures nothing.
        let words = "interleaved over 2 nodes: not measured".to_owned();
        assert_eq!(decide(2, None, None, None), (words, true, None));
    }

    #[test]
    fn what_is_asked_for_is_done_and_not_remembered() {
        for (policy, words) in [
            (NodePolicy::Local, "as first written on 8 nodes: PELTON_NUMA asks for it"),
            (NodePolicy::Interleave, "interleaved over 8 nodes: PELTON_NUMA asks for it"),
        ] {
            for known in [None, Some(KnownNodes::new(8, LOCAL)), Some(KnownNodes::new(8, SPREAD))] {
                let decided = decide(8, Some(policy), known, Some(SPREAD));
                assert_eq!(decided, (words.to_owned(), false, None));
            }
        }
    }

    #[test]
    fn the_variable_knows_three_words() {
        let parse = |value: &str| parse_policy(Some(OsStr::new(value)));
        for auto in ["auto", ""] {
            assert_eq!(parse(auto), Some(None));
        }
        assert_eq!(parse_policy(None), Some(None));
        assert_eq!(parse("local"), Some(Some(NodePolicy::Local)));
        assert_eq!(parse("interleave"), Some(Some(NodePolicy::Interleave)));
        for unknown in ["Local", "interleaved", "1"] {
            assert_eq!(parse(unknown), None);
        }
    }
}
