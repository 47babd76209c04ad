//! Lanes and snapshots of sequences, and the copies between them that the next plan asks for.
//!
//! ```text
//! begin    a lane starts empty, from a snapshot, or from the lane of another sequence
//! running  a plan fills snapshots at marked borders; they are attached to the cache with the outcome
//! end      the state at the border of the lane is kept beside the blocks that stay cached
//! ```
//!
//! Copies are collected here from one plan to the next, in the order of the decisions, so a lane or a
//! snapshot is free for others as soon as the copy that reads it is in the list.

use super::{Held, Host, Kv};
use crate::sequence::Sequence;
use crate::states::{Lane, Marks};
use crate::{LaneId, RadixMatch, SnapshotId, StateConfig, StateCopy};

/// The memory for states, as ids.
#[derive(Debug)]
pub(super) struct States {
    pub(super) config: StateConfig,
    /// The last is handed out first.
    pub(super) free_lanes: Vec<LaneId>,
    /// The last is handed out first.
    pub(super) free_snapshots: Vec<SnapshotId>,
    /// Copies for the next plan.
    copies: Vec<StateCopy>,
    /// Tokens of the last match whose KV is cached, however far a state reaches.
    n_paged: usize,
}

impl States {
    pub(super) fn new(config: &StateConfig) -> Self {
        Self {
            config: *config,
            free_lanes: (0..config.n_lanes).rev().map(LaneId).collect(),
            free_snapshots: (0..config.n_snapshots).rev().map(SnapshotId).collect(),
            copies: Vec::new(),
            n_paged: 0,
        }
    }
}

impl Kv {
    /// Cuts a match back to where a sequence can go on: to the deepest snapshot on its path, or to the
    /// end of the KV on the host where that reaches further.
    pub(super) fn cut_to_state(&mut self, found: &mut RadixMatch, host: Option<&Host>) {
        let Some(states) = &mut self.states else { return };
        let n_partial = found.partial.map_or(0, |(_, n_tokens)| n_tokens);
        states.n_paged = found.n_full * self.block_size + n_partial;
        let deepest = self.tree.deepest_snapshot(found);
        let n_blocks = deepest.map_or(0, |(n_blocks, _)| n_blocks);
        match host.map(|host| host.n_tokens / self.block_size) {
            Some(n_host_blocks) if n_host_blocks > n_blocks => {
                found.cut(n_host_blocks, &mut self.found);
            }
            _ => {
                found.cut(n_blocks, &mut self.found);
                found.snapshot = deepest.map(|(_, snapshot)| snapshot);
            }
        }
    }

    /// A lane for a sequence whose first `n_computed` tokens have KV: with the state of a snapshot, or
    /// empty. `None` for a model without recurrent layers.
    pub(super) fn begin_lane(
        &mut self,
        n_computed: usize,
        snapshot: Option<SnapshotId>,
    ) -> Option<Lane> {
        let lane = self.take_lane(n_computed)?;
        assert_eq!(snapshot.is_some(), n_computed > 0, "KV without a state");
        if let (Some(states), Some(snapshot)) = (&mut self.states, snapshot) {
            states.copies.push(StateCopy::Load { snapshot, lane: lane.id });
        }
        Some(lane)
    }

    /// A lane like that of another sequence.
    pub(super) fn fork_lane(&mut self, parent: &Held) -> Option<Lane> {
        let from = parent.lane.as_ref()?;
        let lane = self.take_lane(from.border)?;
        if let Some(states) = &mut self.states {
            states.copies.push(StateCopy::Fork { from: from.id, to: lane.id });
        }
        Some(lane)
    }

    fn take_lane(&mut self, border: usize) -> Option<Lane> {
        let states = self.states.as_mut()?;
        let id = states.free_lanes.pop().expect("invariant: a place comes with a lane");
        Some(Lane::new(id, border, states.config.chunk))
    }

    /// Gives the lane of a sequence back; it may be another sequence's at once.
    pub(super) fn release_lane(&mut self, held: &mut Held) {
        if let (Some(states), Some(lane)) = (&mut self.states, held.lane.take()) {
            states.free_lanes.push(lane.id);
        }
    }

    /// Keeps the state of a lane, and returns the snapshot that holds it when the next plan begins.
    pub(super) fn save(&mut self, lane: &Lane) -> Option<SnapshotId> {
        let snapshot = self.take_snapshot()?;
        if let Some(states) = &mut self.states {
            states.copies.push(StateCopy::Save { lane: lane.id, snapshot });
        }
        Some(snapshot)
    }

    /// Keeps the state of a sequence that ends in the cache, beside the blocks that are offered to it.
    /// Nothing happens where there is nothing new to keep or no snapshot for it.
    pub(super) fn leave_state(&mut self, held: &Held) {
        let (Some(lane), Some(lock)) = (&held.lane, &held.lock) else { return };
        let n_blocks = lane.border / self.block_size;
        if n_blocks == 0 || n_blocks > held.n_offered || self.tree.has_attached(lock, n_blocks) {
            return;
        }
        if let Some(snapshot) = self.save(lane) {
            self.tree.attach(lock, n_blocks, snapshot);
        }
    }

    /// A free snapshot, or the least valuable one of the cache.
    fn take_snapshot(&mut self) -> Option<SnapshotId> {
        let free = self.states.as_mut()?.free_snapshots.pop();
        free.or_else(|| self.tree.forget_snapshot())
    }

    /// Takes a snapshot for the state of a sequence at a border that it passes; `None` when it is kept
    /// already, or when none can be had.
    pub(crate) fn take_snapshot_at(
        &mut self,
        sequence: &Sequence,
        border: usize,
    ) -> Option<SnapshotId> {
        let prefix = &sequence.tokens[..border];
        if self.tree.has_snapshot(sequence.namespace, prefix) {
            return None;
        }
        self.take_snapshot()
    }

    /// Keeps a snapshot that was filled at a border, beside the blocks before it.
    pub(crate) fn keep_state(
        &mut self,
        held: &mut Held,
        sequence: &Sequence,
        border: usize,
        snapshot: SnapshotId,
    ) {
        let n_blocks = border / self.block_size;
        self.offer(held, sequence, n_blocks, false);
        let lock = held.lock.as_ref().expect(super::LOCKED);
        // Another sequence may have kept the same state meanwhile.
        if self.tree.has_attached(lock, n_blocks) {
            self.give_back(Some(snapshot));
        } else {
            self.tree.attach(lock, n_blocks, snapshot);
        }
    }

    /// Gives a snapshot back; the next command that fills it may come at once.
    pub(crate) fn give_back(&mut self, snapshot: Option<SnapshotId>) {
        if let Some(states) = &mut self.states {
            states.free_snapshots.extend(snapshot);
        }
    }

    /// Takes back the snapshots that went with evicted blocks.
    pub(super) fn collect_dropped(&mut self) {
        if let Some(states) = &mut self.states {
            states.free_snapshots.extend(self.tree.take_dropped_snapshots());
        }
    }

    /// Adds the copies since the last plan to this one.
    pub(crate) fn drain_copies(&mut self, copies: &mut Vec<StateCopy>) {
        if let Some(states) = &mut self.states {
            copies.append(&mut states.copies);
        }
    }

    /// The marks of a sequence that was just admitted. `held` is its hold, and its match the last one.
    pub(crate) fn marks(&self, held: &Held, sequence: &Sequence) -> Marks {
        let (Some(states), Some(lane)) = (&self.states, &held.lane) else {
            return Marks::default();
        };
        if !self.caches || sequence.is_scored {
            return Marks::default();
        }
        Marks::new(&states.config, lane.border, states.n_paged, sequence.tokens.len())
    }

    /// Free lanes, and free snapshots, of a model with recurrent layers.
    pub(crate) fn n_free_states(&self) -> Option<(usize, usize)> {
        let states = self.states.as_ref()?;
        Some((states.free_lanes.len(), states.free_snapshots.len()))
    }

    /// Snapshots that the cache keeps.
    pub(crate) fn n_snapshots(&self) -> usize {
        self.tree.n_snapshots()
    }
}
