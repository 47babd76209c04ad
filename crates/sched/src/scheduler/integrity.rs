//! The whole state at a glance: checked, and as one line of text.

use super::Scheduler;
use crate::sequence::{Parked, Running, Sequence};
use std::collections::HashSet;
use std::fmt;

impl Scheduler {
    /// Panics if any two parts of the state contradict each other. Time is linear in its size.
    pub fn check_integrity(&self) {
        self.queue.check_integrity();
        let held = self.placed().map(|running| (&running.held, running.n_computed));
        let resting = self.resting.iter().filter_map(|resting| resting.host.as_ref());
        let hosts = self.queue.iter().filter_map(Parked::host).chain(resting);
        self.kv.check_integrity(held.clone(), hosts.clone());
        let taken = self.running.iter().flat_map(|running| &running.marks.taken);
        self.kv.check_states(held, hosts, taken.map(|taken| taken.1));
        assert_eq!(self.tenants.n_live(), (self.queue.len(), self.n_running()));
        let mut standings = self.running.iter().map(|running| running.sequence.standing);
        assert!(standings.by_ref().is_sorted(), "running requests are out of order");
        let mut names = HashSet::new();
        let placed = self.placed().map(|running| &running.sequence);
        let resting = self.resting.iter().map(|resting| &resting.sequence);
        assert!(resting.clone().all(|sequence| sequence.is_led), "it samples its own tokens");
        for sequence in placed.chain(self.queue.iter().map(Parked::sequence)).chain(resting) {
            let id = sequence.id;
            assert!(names.insert(id), "{id} is in two states");
            assert!(sequence.tokens.len() <= self.config.context_tokens(), "{id}: the context");
            assert!(sequence.tokens.len() >= sequence.n_prompt, "{id} lost a part of its prompt");
        }
        for Running { sequence, held, n_computed, .. } in self.placed() {
            let Sequence { id, tokens, .. } = sequence;
            assert!(*n_computed <= tokens.len(), "{id} computed tokens it does not have");
            let n_blocks = held.table.blocks().len();
            let n_needed = self.config.blocks_for(*n_computed);
            assert!(n_blocks >= n_needed, "{id} has {n_blocks} blocks, needs {n_needed}");
            assert!(*n_computed < tokens.len() || sequence.is_led, "{id} has nothing to compute");
        }
        for loading in &self.loading {
            let id = loading.running.sequence.id;
            assert!(self.kv.is_under_way(loading.transfer), "{id} waits for a transfer in vain");
            assert!(!loading.running.is_in_flight(), "{id} is computed without its KV");
        }
    }
}

/// One line for logs and text tables: the requests of each state, with `computed/known` tokens, and
/// free blocks. Of waiting requests, `p` marks those to be computed anew, `s` those with KV on the
/// host, and `o` those whose KV is on its way there. With recurrent layers, the free lanes, the free
/// snapshots and those that the cache keeps.
impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "running")?;
        for running in &self.running {
            write_placed(f, running)?;
        }
        if !self.loading.is_empty() {
            write!(f, " | loading")?;
        }
        for loading in &self.loading {
            write_placed(f, &loading.running)?;
        }
        write!(f, " | waiting")?;
        for parked in self.queue.iter() {
            let sign = match (parked, parked.host()) {
                (Parked::Waiting(_), _) => "",
                (Parked::Preempted(_), None) => "p",
                (Parked::Preempted(_), Some(host)) if self.kv.is_arriving(host) => "o",
                (Parked::Preempted(_), Some(_)) => "s",
            };
            write!(f, " {}{sign}", parked.sequence().id.0)?;
        }
        if !self.resting.is_empty() {
            write!(f, " | resting")?;
        }
        for resting in &self.resting {
            write!(
                f,
                " {}{}",
                resting.sequence.id.0,
                if resting.host.is_some() { "s" } else { "p" }
            )?;
        }
        write!(f, " | free {}", self.kv.n_free())?;
        if self.kv.n_leaving() > 0 {
            write!(f, " + {} leaving", self.kv.n_leaving())?;
        }
        if self.kv.n_cached() > 0 {
            write!(f, " + {} cached", self.kv.n_cached())?;
        }
        if self.config.n_host_blocks > 0 {
            write!(f, " | host {}", self.kv.n_free_host())?;
        }
        if let Some((n_lanes, n_snapshots)) = self.kv.n_free_states() {
            let n_kept = self.kv.n_snapshots();
            write!(f, " | lanes {n_lanes} | snapshots {n_snapshots} + {n_kept} kept")?;
        }
        Ok(())
    }
}

fn write_placed(f: &mut fmt::Formatter<'_>, running: &Running) -> fmt::Result {
    let Running { sequence, n_computed, .. } = running;
    write!(f, " {}({n_computed}/{})", sequence.id.0, sequence.tokens.len())
}
