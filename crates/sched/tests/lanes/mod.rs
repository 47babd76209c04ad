//! A fake device for states of recurrent layers, which holds values instead of ids.
//!
//! A state is the hash of all tokens before its border. An open row is its token and the hash up to it,
//! so a chunk that is folded is computed again from its tokens: a row that was overwritten, skipped or
//! left over from a rejected draft shows there.

use pelton_base::TokenId;
use pelton_sched::{LaneId, SchedulerOutput, SnapshotId, StateConfig, StateCopy};

/// Hash of a lane or a snapshot whose content nothing may depend on.
const SPOILT: u64 = 0xDEAD;

/// The state of the tokens before a border.
#[derive(Clone, Copy, Debug)]
struct State {
    border: usize,
    hash: u64,
}

/// A state, and the rows of the open chunk behind it.
#[derive(Clone, Debug)]
struct Lane {
    state: State,
    rows: Vec<Option<(TokenId, u64)>>,
}

/// Adds a token to a hash.
type Absorb = fn(u64, TokenId) -> u64;

pub(crate) struct Lanes {
    config: StateConfig,
    absorb: Absorb,
    lanes: Vec<Lane>,
    snapshots: Vec<State>,
    /// Copies of each kind that were carried out, and states that were kept in passing.
    pub(crate) n_loads: u64,
    pub(crate) n_forks: u64,
    pub(crate) n_saves: u64,
    pub(crate) n_passed: u64,
}

impl Lanes {
    pub(crate) fn new(config: StateConfig, absorb: Absorb) -> Self {
        let state = State { border: 0, hash: SPOILT };
        let lane = Lane { state, rows: vec![None; config.chunk] };
        Self {
            lanes: vec![lane; config.n_lanes as usize],
            snapshots: vec![state; config.n_snapshots as usize],
            config,
            absorb,
            n_loads: 0,
            n_forks: 0,
            n_saves: 0,
            n_passed: 0,
        }
    }

    /// Carries out the copies of a plan, in their order.
    pub(crate) fn copy(&mut self, plan: &SchedulerOutput) {
        for &copy in &plan.state_copies {
            match copy {
                StateCopy::Save { lane, snapshot } => {
                    let state = self.lane(lane).state;
                    assert!(state.border > 0, "a state of zeros is kept");
                    self.snapshots[snapshot.0 as usize] = state;
                    self.n_saves += 1;
                }
                StateCopy::Load { snapshot, lane } => {
                    let state = self.snapshots[snapshot.0 as usize];
                    *self.lane(lane) = Lane { state, rows: vec![None; self.config.chunk] };
                    self.n_loads += 1;
                }
                StateCopy::Fork { from, to } => {
                    assert_ne!(from, to);
                    *self.lane(to) = self.lane(from).clone();
                    self.n_forks += 1;
                }
            }
        }
    }

    fn lane(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[lane.0 as usize]
    }

    /// The hash of the sequence before a share that begins at `first`. `zeros` is that of no tokens.
    pub(crate) fn before(&mut self, id: LaneId, border: usize, first: usize, zeros: u64) -> u64 {
        let lane = self.lane(id);
        if first == 0 {
            lane.state = State { border: 0, hash: zeros };
            lane.rows.fill(None);
        }
        assert_eq!(lane.state.border, border, "{id:?} is at another border");
        match first - border {
            0 => lane.state.hash,
            n_open => lane.rows[n_open - 1].expect("an open row before this share").1,
        }
    }

    /// Adds a row, after the chunk before it was folded and the state was kept where the plan says.
    pub(crate) fn compute(
        &mut self,
        id: LaneId,
        position: usize,
        row: (TokenId, u64),
        saves: &[(usize, SnapshotId)],
    ) {
        let (chunk, absorb) = (self.config.chunk, self.absorb);
        let lane = self.lane(id);
        if position >= lane.state.border + chunk {
            let mut hash = lane.state.hash;
            for row in &mut lane.rows {
                let (token, expected) = row.take().expect("a chunk without a gap");
                hash = absorb(hash, token);
                assert_eq!(hash, expected, "{id:?} folds a row of another sequence");
            }
            lane.state = State { border: lane.state.border + chunk, hash };
            let state = lane.state;
            if let Some((_, snapshot)) = saves.iter().find(|save| save.0 == state.border) {
                self.snapshots[snapshot.0 as usize] = state;
                self.n_passed += 1;
            }
        }
        let lane = self.lane(id);
        lane.rows[position - lane.state.border] = Some(row);
    }

    /// Moves the row of an accepted draft to where the row of a plain token would be.
    pub(crate) fn straighten(&mut self, id: LaneId, from: usize, to: usize) {
        let lane = self.lane(id);
        lane.rows[to - lane.state.border] = lane.rows[from - lane.state.border];
    }

    /// Spoils what a share that failed may have been writing.
    pub(crate) fn fail(&mut self, id: LaneId, saves: &[(usize, SnapshotId)]) {
        self.lane(id).state.hash = SPOILT;
        self.lane(id).rows.fill(None);
        for save in saves {
            self.snapshots[save.1.0 as usize].hash = SPOILT;
        }
    }
}

/// Checks the promises of a plan about its lanes and saves.
pub(crate) fn check(plan: &SchedulerOutput, config: &StateConfig, caches: bool) {
    assert!(!plan.is_empty() || plan.state_copies.is_empty(), "an engine may pass this plan over");
    let mut lanes = std::collections::BTreeSet::new();
    let mut filled = std::collections::BTreeSet::new();
    for share in &plan.sequences {
        let lane = share.lane.as_ref().expect("a lane for every sequence");
        let (first, n_rows) = (share.first_position, share.tokens.len());
        let n_known = n_rows - share.n_drafts;
        assert!(lanes.insert(lane.lane), "{:?} is used twice", lane.lane);
        assert!(lane.lane.0 < config.n_lanes);
        assert!(lane.border <= first && first - lane.border <= config.chunk);
        let room = config.chunk - (first + n_known) % config.chunk;
        assert!(share.n_drafts <= room, "drafts cross a border");
        let saves = plan.saves_of(share);
        assert!(saves.is_sorted_by(|a, b| a.0 < b.0), "saves are out of order");
        for &(border, snapshot) in saves {
            assert!(caches, "a state that no request will find");
            assert_eq!(border % config.chunk, 0);
            assert!((first..first + n_known).contains(&border) && border > lane.border);
            assert!(filled.insert(snapshot), "{snapshot:?} is filled twice");
        }
    }
    let n_saves: usize = plan.sequences.iter().map(|share| plan.saves_of(share).len()).sum();
    assert_eq!(n_saves, plan.saves.len(), "a save belongs to no share");
}
