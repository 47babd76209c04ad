//! The device of the simulation: the slot of a token holds a hash of everything up to that token.
//!
//! Layers with an attention window have slots of their own, one for each memory group. Before a share is
//! computed, all slots that its first row reads are compared with the true hashes, so a block that was
//! freed too early, or that belongs to another sequence, shows.

use super::VOCAB;
use super::lanes::Lanes;
use pelton_base::{KvWindows, TokenId};
use pelton_sched::{
    BlockId, Direction, HostBlockId, Rows, ScheduledSequence, SchedulerConfig, SchedulerOutput,
    TransferId,
};

/// SplitMix64: one number in, one well-mixed number out.
pub(super) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

pub(super) fn absorb(state: u64, token: TokenId) -> u64 {
    mix(state ^ u64::from(token.0).wrapping_mul(0x0000_0100_0000_01B3))
}

pub(super) fn next_token(state: u64) -> TokenId {
    TokenId((mix(state ^ 1) % VOCAB) as u32)
}

/// Content of a slot while a transfer writes to it.
const SPOILT: u64 = u64::MAX;

/// A transfer under way.
#[derive(Debug)]
pub(super) struct Moving {
    pub(super) id: TransferId,
    pub(super) direction: Direction,
    pub(super) moved: Vec<(BlockId, HostBlockId)>,
    /// Step at whose end it is over.
    pub(super) until: u64,
}

pub(super) struct Fake {
    kv: Vec<u64>,
    host: Vec<u64>,
    block_size: usize,
    pub(super) lanes: Option<Lanes>,
    windows: Option<KvWindows>,
}

impl Fake {
    pub(super) fn new(config: &SchedulerConfig) -> Self {
        Self {
            kv: vec![0; config.n_blocks as usize * config.block_size],
            host: vec![0; config.n_host_blocks as usize * config.block_size],
            block_size: config.block_size,
            lanes: config.states.map(|states| Lanes::new(states, absorb)),
            windows: config.windows,
        }
    }

    /// Memory groups of layers, and the first that has a window.
    fn groups(&self) -> (usize, usize) {
        self.windows.as_ref().map_or((1, 1), |windows| {
            let first = usize::from(!windows.is_all);
            (first + windows.n_blocks, first)
        })
    }

    /// The content of the slot of a token in one memory group.
    fn content(group: usize, state: u64) -> u64 {
        if group == 0 { state } else { mix(state ^ (group as u64) << 32) }
    }

    fn slots(&self, block: u32) -> std::ops::Range<usize> {
        let first = block as usize * self.block_size;
        first..first + self.block_size
    }

    /// Copies blocks, as the plan asks before it is computed.
    pub(super) fn copy_blocks(&mut self, plan: &SchedulerOutput) {
        for &(from, to) in &plan.copies {
            let (from, to) = (self.slots(from.0), self.slots(to.0));
            self.kv.copy_within(from, to.start);
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.copy(plan);
        }
    }

    /// Starts a transfer. One that comes in spoils its blocks until it is over, as one does that is
    /// half written.
    pub(super) fn start(&mut self, moving: &Moving) {
        if moving.direction == Direction::In {
            for &(block, _) in &moving.moved {
                let slots = self.slots(block.0);
                self.kv[slots].fill(SPOILT);
            }
        }
    }

    /// Ends a transfer. It copies now, so a block that was handed out too early shows.
    pub(super) fn end(&mut self, moving: &Moving) {
        for &(block, host) in &moving.moved {
            let (kv, store) = (self.slots(block.0), self.slots(host.0));
            match moving.direction {
                Direction::Out => self.host[store].copy_from_slice(&self.kv[kv]),
                Direction::In => self.kv[kv].copy_from_slice(&self.host[store]),
            }
        }
    }

    fn slot(
        &self,
        plan: &SchedulerOutput,
        share: &ScheduledSequence,
        group: usize,
        position: usize,
    ) -> usize {
        let tables = plan.block_table_of(share);
        let table = &tables[tables.len() / self.groups().0 * group..];
        let BlockId(block) = table[position / self.block_size];
        block as usize * self.block_size + position % self.block_size
    }

    /// Computes a share; the hash of the sequence up to each of its tokens.
    pub(super) fn compute(
        &mut self,
        plan: &SchedulerOutput,
        share: &ScheduledSequence,
        start: u64,
        history: &[u64],
    ) -> Vec<u64> {
        let (n_groups, first_window) = self.groups();
        let before = match share.first_position {
            0 => start,
            position if first_window > 0 => self.kv[self.slot(plan, share, 0, position - 1)],
            // No layer reads all tokens.
            position => history.get(position - 1).copied().unwrap_or_default(),
        };
        let end = share.first_position.min(history.len());
        for group in 0..n_groups {
            let first = match &self.windows {
                Some(windows) if group >= first_window => {
                    windows.reach.first_seen(share.first_position)
                }
                _ => 0,
            };
            for (position, &state) in history.iter().enumerate().take(end).skip(first) {
                let content = self.kv[self.slot(plan, share, group, position)];
                let expected = Self::content(group, state);
                assert_eq!(content, expected, "{} reads {position} in {group}", share.id);
            }
        }
        if let (Some(lanes), Some(lane)) = (&mut self.lanes, &share.lane) {
            let by_lane = lanes.before(lane.lane, lane.border, share.first_position, start);
            assert_eq!(by_lane, before, "{} goes on from another state than its KV", share.id);
        }
        let parents = plan.rows_of(share).parents;
        let mut states: Vec<u64> = Vec::new();
        for (i, &token) in plan.tokens_of(share).iter().enumerate() {
            let parent = match parents.map(|parents| parents[i]) {
                None => i.checked_sub(1),
                Some(Rows::ROOT) => None,
                Some(row) => Some(row as usize),
            };
            let state = absorb(parent.map_or(before, |row| states[row]), token);
            for group in 0..n_groups {
                let slot = self.slot(plan, share, group, share.first_position + i);
                self.kv[slot] = Self::content(group, state);
            }
            if let (Some(lanes), Some(lane)) = (&mut self.lanes, &share.lane) {
                let (position, saves) = (share.first_position + i, plan.saves_of(share));
                lanes.compute(lane.lane, position, (token, state), saves);
            }
            states.push(state);
        }
        states
    }

    /// Verifies the drafts of a share: what follows the last known token. The KV of drafts that were
    /// right moves to where it belongs.
    pub(super) fn verify(
        &mut self,
        plan: &SchedulerOutput,
        share: &ScheduledSequence,
        states: &[u64],
    ) -> Vec<TokenId> {
        let (rows, first) = (plan.rows_of(share), share.first_position);
        let mut row = states.len() - share.n_drafts - 1;
        let mut place = row + 1;
        let mut sampled = vec![next_token(states[row])];
        while let Some(next) = rows.draft_after(row, sampled[sampled.len() - 1]) {
            for group in 0..self.groups().0 {
                let from = self.slot(plan, share, group, first + next);
                let to = self.slot(plan, share, group, first + place);
                self.kv[to] = self.kv[from];
            }
            if let (Some(lanes), Some(lane)) = (&mut self.lanes, &share.lane) {
                lanes.straighten(lane.lane, first + next, first + place);
            }
            (row, place) = (next, place + 1);
            sampled.push(next_token(states[row]));
        }
        sampled
    }
}
