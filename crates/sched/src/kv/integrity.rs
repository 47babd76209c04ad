//! Blocks, lanes and snapshots are counted: none is lost, and none is held twice.

use super::{Held, Host, Kv};
use crate::{LaneId, SnapshotId};
use std::collections::BTreeSet;

impl Kv {
    /// Panics if a block or a lock is lost, or if a sequence could write where another reads.
    pub(crate) fn check_integrity<'a>(
        &self,
        running: impl Iterator<Item = (&'a Held, usize)> + Clone,
        hosts: impl Iterator<Item = &'a Host>,
    ) {
        self.pool.check_integrity();
        self.tree.check_integrity();
        let placed = running.clone().map(|(held, _)| held).chain(self.transfers.held());
        let n_in_tables: usize = placed.clone().map(|held| held.table.blocks().len()).sum();
        let n_held = n_in_tables + self.tree.n_blocks() + self.read.len();
        let n_held = n_held + self.check_windows(placed.clone());
        assert_eq!(self.pool.n_references(), n_held, "a block is held without a holder, or twice");
        assert_eq!(self.tree.n_locks(), placed.count(), "a lock is lost");
        let n_swapped: usize = hosts.map(|host| host.blocks.len()).sum();
        let n_host = self.host.len() + n_swapped + self.transfers.n_host_blocks();
        assert_eq!(n_host, self.n_host, "a host block is lost");
        for (held, n_computed) in running {
            for block in &held.table.blocks()[n_computed / self.block_size..] {
                // The copy of a plan may still read it.
                let n_readers = self.read.iter().filter(|read| *read == block).count() as u32;
                let n_holders = self.pool.ref_count(*block) - n_readers;
                assert_eq!(n_holders, 1, "{block:?} is written to by one of {n_holders} holders");
            }
            self.check_window_table(held, n_computed);
        }
    }

    /// Panics if a window block is lost. Returns the blocks of the pool of tokens that they take.
    fn check_windows<'a>(&self, placed: impl Iterator<Item = &'a Held>) -> usize {
        let n_in_tables: usize = placed.map(Self::n_windows).sum();
        let n_in_tables = n_in_tables + self.read_windows.len();
        self.windows.as_ref().map_or(0, |windows| {
            windows.check_integrity(n_in_tables, |block| self.tree.keeps(block))
        })
    }

    /// Panics if a sequence lacks a window block that it reads, or could write where another reads.
    fn check_window_table(&self, held: &Held, n_computed: usize) {
        let (Some(all), Some(windows)) = (&self.windows, &held.windows) else { return };
        assert!(self.reaches(held, n_computed), "window blocks that are read are lost");
        for idx in (n_computed / self.block_size)..windows.table.end() {
            let id = windows.table.get(idx).expect("invariant: it was reached");
            let n_readers = self.read_windows.iter().filter(|read| **read == id).count() as u32;
            let n_holders = all.n_holders(id) - n_readers;
            assert_eq!(n_holders, 1, "{id:?} is written to by one of {n_holders} holders");
        }
    }

    /// Panics if a lane or a snapshot is lost or held twice, or if a snapshot is not at a border.
    /// `taken` are those that the plan in flight fills.
    pub(crate) fn check_states<'a>(
        &self,
        running: impl Iterator<Item = (&'a Held, usize)> + Clone,
        hosts: impl Iterator<Item = &'a Host>,
        taken: impl Iterator<Item = SnapshotId>,
    ) {
        let mut leaving = self.transfers.held();
        assert!(leaving.all(|held| held.lane.is_none()), "a lane belongs to a transfer");
        let lanes = running.clone().filter_map(|(held, _)| held.lane.as_ref());
        let Some(states) = &self.states else {
            assert_eq!(lanes.count(), 0, "a lane of a model without recurrent layers");
            return;
        };
        let mut all: Vec<LaneId> = lanes.map(|lane| lane.id).collect();
        assert_eq!(all.len(), running.clone().count(), "a sequence lacks its lane");
        all.extend(&states.free_lanes);
        let n_lanes = states.config.n_lanes as usize;
        assert_eq!(all.len(), n_lanes, "a lane is lost");
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), n_lanes, "a lane is held twice");

        let mut all: Vec<SnapshotId> = hosts.filter_map(|host| host.snapshot).collect();
        all.extend(&states.free_snapshots);
        all.extend(taken);
        all.extend(self.tree.snapshots().map(|(_, snapshot)| snapshot));
        let n_snapshots = states.config.n_snapshots as usize;
        assert_eq!(all.len(), n_snapshots, "a snapshot is lost");
        let n_different = all.iter().collect::<BTreeSet<_>>().len();
        assert_eq!(n_different, n_snapshots, "a snapshot is held twice");

        for (n_blocks, snapshot) in self.tree.snapshots() {
            let border = n_blocks * self.block_size;
            assert_eq!(border % states.config.chunk, 0, "{snapshot:?} is not at a border");
        }
        for (held, n_computed) in running {
            let border = held.lane.as_ref().map_or(0, |lane| lane.border);
            assert_eq!(border % states.config.chunk, 0, "a lane is not at a border");
            let n_open = n_computed.checked_sub(border).expect("a lane is ahead of its sequence");
            assert!(n_open <= states.config.chunk, "a lane has {n_open} rows in its open chunk");
        }
    }
}
