//! How much memory keys and values may take.

use std::fmt;

use pelton_model::{ArchSpec, Device as _, KvDtype, KvFootprint, StateShape};
use pelton_tensor::ByteSize;

use crate::runtime::Device;

/// Share of the available memory for keys and values where no limit is given: one half.
const KV_SHARE: u64 = 2;

/// Memory that is assumed where the machine does not tell it.
pub(crate) const UNKNOWN_MEMORY_BYTES: u64 = 4 << 30;

/// Everything that decides the size of the KV pool.
pub(crate) struct KvSizing {
    /// One block, and the layers whose blocks are freed behind an attention window.
    pub(crate) block: KvFootprint,
    /// Most tokens of one sequence.
    pub(crate) context_tokens: usize,
    /// Whether the user asks for them; then further states make room for them.
    pub(crate) is_asked: bool,
    /// Most tokens of a sequence that are computed at once.
    pub(crate) chunk_tokens: usize,
    /// Whether blocks are reserved for the whole context of each sequence, and none is freed behind
    /// a window.
    pub(crate) is_contiguous: bool,
    /// Most sequences running at once.
    pub(crate) n_running: usize,
    /// Most bytes, where the user gives a limit.
    pub(crate) limit_bytes: Option<u64>,
    /// Bytes that the machine can still give.
    pub(crate) available_bytes: u64,
    /// The states of recurrent layers.
    pub(crate) states: StateSizing,
}

/// Everything that decides how many states of recurrent layers there is room for; all zero in models
/// without such layers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateSizing {
    /// Bytes of the state of a running sequence, with the rows of its open chunk.
    pub(crate) lane_bytes: u64,
    /// Bytes of a state that is kept.
    pub(crate) snapshot_bytes: u64,
    /// States to keep, where the user says how many.
    pub(crate) n_snapshots: Option<u32>,
}

/// Share of the memory for keys, values and states that running sequences may take for states, and the
/// same for states that are kept: a quarter each.
const STATE_SHARE: u64 = 4;

/// States kept per running sequence where nobody says how many.
const SNAPSHOTS_PER_LANE: u64 = 8;

impl StateSizing {
    /// The states of a model.
    pub(crate) fn new(states: &StateShape, n_snapshots: Option<u32>) -> Self {
        let one = Device::state_bytes(states);
        Self { lane_bytes: one.lane as u64, snapshot_bytes: one.snapshot as u64, n_snapshots }
    }

    /// Lanes and snapshots: a share of the room each, and no more than is to spare.
    fn plan(&self, room_bytes: u64, spare_bytes: u64, n_running: usize) -> [u32; 2] {
        if self.lane_bytes == 0 {
            return [0, 0];
        }
        let share = room_bytes / STATE_SHARE;
        let n_lanes = share.min(spare_bytes) / self.lane_bytes;
        let n_lanes = n_lanes.clamp(1, n_running.max(1) as u64);
        let spare_bytes = spare_bytes.saturating_sub(n_lanes.saturating_mul(self.lane_bytes));
        let n_affordable = share.min(spare_bytes) / self.snapshot_bytes.max(1);
        let n_usual = (SNAPSHOTS_PER_LANE * n_lanes).min(n_affordable);
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        [narrow(n_lanes), self.n_snapshots.unwrap_or(narrow(n_usual))]
    }
}

/// The size of the KV pool, and the context that fits into it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct KvPlan {
    pub(crate) n_blocks: u32,
    /// One block, and the layers whose blocks are freed behind an attention window.
    pub(crate) block: KvFootprint,
    /// The context, cut to the tokens that the pool holds.
    pub(crate) context_tokens: usize,
    /// Sequences for whose states there is room, and states that may be kept.
    pub(crate) n_lanes: u32,
    pub(crate) n_snapshots: u32,
    /// Bytes of all of these states.
    pub(crate) state_bytes: u64,
}

impl KvPlan {
    /// Bytes of the pool, and of states.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.block.block_bytes() as u64 * u64::from(self.n_blocks) + self.state_bytes
    }
}

impl KvSizing {
    /// As many blocks as all sequences could ever use, as long as memory allows.
    ///
    /// `None` when not even two tokens fit.
    pub(crate) fn plan(&self) -> Option<KvPlan> {
        let room_bytes = self.room_bytes();
        let StateSizing { lane_bytes, snapshot_bytes, .. } = self.states;
        let spare_bytes = room_bytes.saturating_sub(self.sequence_bytes(self.least_tokens()));
        let [n_lanes, n_snapshots] = self.states.plan(room_bytes, spare_bytes, self.n_running);
        let state_bytes = lane_bytes
            .saturating_mul(n_lanes.into())
            .saturating_add(snapshot_bytes.saturating_mul(n_snapshots.into()));
        let block_bytes = self.block.block_bytes() as u64;
        let n_affordable = room_bytes.checked_sub(state_bytes)? / block_bytes.max(1);
        // A chunk of all tokens holds the blocks of all of them.
        let chunk_tokens = if self.is_contiguous { self.context_tokens } else { self.chunk_tokens };
        let n_useful = self.block.blocks_for(self.context_tokens, chunk_tokens, self.n_running);
        let n_blocks = u32::try_from(n_affordable.min(n_useful as u64)).unwrap_or(u32::MAX);
        let n_tokens = match self.block.windows.filter(|_| self.is_contiguous) {
            Some(windows) => n_blocks as usize / windows.n_groups() * self.block.shape.block_size,
            None => self.block.with_blocks(n_blocks as usize).most_tokens(),
        };
        let context_tokens = self.context_tokens.min(n_tokens);
        let block = self.block;
        let plan = KvPlan { n_blocks, block, context_tokens, n_lanes, n_snapshots, state_bytes };
        (context_tokens >= 2).then_some(plan)
    }

    /// Tokens of a sequence for which there has to be room: those asked for, else of one block.
    fn least_tokens(&self) -> usize {
        if self.is_asked { self.context_tokens } else { self.block_tokens() }
    }

    /// Tokens of one block, as far as a sequence reaches: at least one that is read and one that is
    /// written.
    fn block_tokens(&self) -> usize {
        self.block.shape.block_size.max(2).min(self.context_tokens)
    }

    /// Bytes of the keys and values of a sequence that is alone, and computes as little at once as it
    /// must.
    fn sequence_bytes(&self, n_tokens: usize) -> u64 {
        let chunk_tokens = if self.is_contiguous { n_tokens } else { 0 };
        let n_blocks = self.block.blocks_of(n_tokens, chunk_tokens) as u64;
        (self.block.block_bytes() as u64).saturating_mul(n_blocks)
    }

    /// Bytes that keys and values may take.
    fn room_bytes(&self) -> u64 {
        self.limit_bytes.unwrap_or(self.available_bytes / KV_SHARE)
    }

    /// Says what is lacking for the context of a model, and what would fit.
    pub(crate) fn shortage(&self, spec: &ArchSpec) -> KvShortage {
        let fitting_tokens = self.plan().map_or(0, |plan| plan.context_tokens);
        let asked_tokens = match fitting_tokens {
            0 => self.block_tokens(),
            _ => self.context_tokens,
        };
        let room_bytes = self.room_bytes();
        let StateSizing { lane_bytes, snapshot_bytes, n_snapshots } = self.states;
        let kept_bytes = snapshot_bytes.saturating_mul(n_snapshots.unwrap_or(0).into());
        let state_bytes = lane_bytes.saturating_add(kept_bytes);
        let needed =
            |sizing: &Self| sizing.sequence_bytes(asked_tokens).saturating_add(state_bytes);
        let fits = |dtype: &KvDtype| {
            let block_size = self.block.shape.block_size;
            let mut block = KvFootprint::new::<Device>(spec, *dtype, block_size);
            block.windows = self.block.windows;
            block.block_bytes() < self.block.block_bytes()
                && needed(&Self { block, ..*self }) <= room_bytes
        };
        KvShortage {
            asked_tokens,
            needed_bytes: needed(self),
            state_bytes,
            kept_bytes,
            room_bytes,
            is_limited: self.limit_bytes.is_some(),
            available_bytes: self.available_bytes,
            fitting_tokens,
            fitting_dtypes: KvDtype::ALL.into_iter().filter(fits).collect(),
        }
    }
}

/// A context whose keys and values do not fit, and the choices with which they would.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KvShortage {
    /// Tokens of context that were asked for; of one block, where not even that fits.
    pub asked_tokens: usize,
    /// Bytes of their keys and values, and of states.
    pub needed_bytes: u64,
    /// Bytes of the states of recurrent layers in it: of one request, and of those that are kept.
    pub state_bytes: u64,
    /// Bytes of the states that are to be kept, where the options say how many.
    pub kept_bytes: u64,
    /// Bytes that keys and values may take.
    pub room_bytes: u64,
    /// Whether that is a limit from the options, and not the share of the free memory.
    pub is_limited: bool,
    /// Bytes that the machine can still give.
    pub available_bytes: u64,
    /// Most tokens of context that fit, in whole blocks; zero where not even two do.
    pub fitting_tokens: usize,
    /// Smaller types of keys and values with which what was asked for would fit.
    pub fitting_dtypes: Vec<KvDtype>,
}

impl KvShortage {
    /// The option that asks for too much.
    pub fn option(&self) -> &'static str {
        match self.fitting_tokens {
            0 if self.kept_bytes > self.room_bytes / 2 => "state_snapshots",
            0 => "kv_bytes",
            _ => "max_context",
        }
    }
}

impl fmt::Display for KvShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, room) = (Size(self.needed_bytes), Size(self.room_bytes));
        let Self { asked_tokens, available_bytes, .. } = self;
        write!(f, "{asked_tokens} tokens of context need {needed} for keys and values")?;
        match (self.state_bytes, self.kept_bytes) {
            (0, _) => {}
            (states, 0) => write!(f, " and the states of one request, {}", Size(states))?,
            (states, kept) => {
                let (one, kept) = (Size(states - kept), Size(kept));
                write!(f, ", the states of one request, {one}, and those that are kept, {kept}")?;
            }
        }
        write!(f, ", ")?;
        match self.is_limited {
            true => write!(f, "and the limit is {room}"),
            false => {
                let available = Size(*available_bytes);
                write!(f, "and there are {room}, half of the {available} that are free")
            }
        }
    }
}

/// Bytes in words; small numbers to the byte.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1 << 20 { write!(f, "{} bytes", self.0) } else { ByteSize(self.0).fmt(f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton_base::{KvWindows, Reach};

    /// A block of one layer: 16 tokens, and some bytes.
    fn block() -> KvFootprint {
        use pelton_model::{KvHeads, KvShape};
        let heads = KvHeads { n: 1, key_dim: 16, value_dim: 16, values_in_keys: false };
        let shape = KvShape {
            n_layers: 1,
            n_blocks: 1,
            block_size: 16,
            heads,
            narrow: None,
            dtype: KvDtype::F32,
        };
        KvFootprint::of::<Device>(shape, None)
    }

    fn sizing() -> KvSizing {
        KvSizing {
            block: block(),
            context_tokens: 1024,
            is_asked: false,
            chunk_tokens: 512,
            is_contiguous: false,
            n_running: 4,
            limit_bytes: None,
            available_bytes: 1 << 30,
            states: StateSizing::default(),
        }
    }

    fn plan(n_blocks: u32, context_tokens: usize) -> KvPlan {
        let (n_lanes, n_snapshots, state_bytes) = (0, 0, 0);
        KvPlan { n_blocks, block: block(), context_tokens, n_lanes, n_snapshots, state_bytes }
    }

    #[test]
    fn the_pool_is_never_larger_than_all_sequences_can_use() {
        let found = sizing().plan().expect("fits");
        assert_eq!(found, plan(4 * 64 + 1, 1024));
    }

    #[test]
    fn little_memory_cuts_the_pool_and_then_the_context() {
        let bytes = block().block_bytes() as u64;
        let found = KvSizing { available_bytes: 200 * bytes, ..sizing() }.plan().expect("fits");
        assert_eq!(found, plan(100, 1024));
        let found = KvSizing { limit_bytes: Some(10 * bytes), ..sizing() }.plan().expect("fits");
        assert_eq!(found, plan(10, 160));
        assert_eq!(KvSizing { limit_bytes: Some(bytes - 1), ..sizing() }.plan(), None);
    }

    #[test]
    fn states_take_at_most_half_of_the_room_and_one_sequence_always_has_its_own() {
        let block = block().block_bytes() as u64;
        let states = |n_snapshots| StateSizing {
            lane_bytes: 5 * block,
            snapshot_bytes: block / 2,
            n_snapshots,
        };
        let sizing = |bytes, n_snapshots| KvSizing {
            limit_bytes: Some(bytes),
            states: states(n_snapshots),
            ..sizing()
        };
        // A quarter for lanes, another one for snapshots, the rest for blocks.
        let found = sizing(100 * block, None).plan().expect("fits");
        assert_eq!((found.n_lanes, found.n_snapshots, found.state_bytes), (4, 32, 36 * block));
        assert_eq!((found.n_blocks, found.n_bytes()), (64, 100 * block));
        let found = sizing(10 * block, Some(2)).plan().expect("fits");
        assert_eq!((found.n_lanes, found.n_snapshots, found.n_blocks), (1, 2, 4));
        assert_eq!(sizing(6 * block - 1, Some(0)).plan(), None);
        assert_eq!(sizing(20 * block, Some(40)).plan(), None);
    }

    #[test]
    fn states_make_room_for_a_context_that_is_asked_for() {
        let block = block().block_bytes() as u64;
        let states =
            StateSizing { lane_bytes: 5 * block, snapshot_bytes: block / 2, n_snapshots: None };
        let planned = |n_blocks: u64, is_asked| {
            let limit_bytes = Some(n_blocks * block);
            let plan = KvSizing { limit_bytes, states, is_asked, ..sizing() }.plan().expect("fits");
            (plan.n_lanes, plan.n_snapshots, plan.context_tokens)
        };
        // A context takes 64 blocks.
        assert_eq!(planned(100, true), (4, 32, 1024));
        assert_eq!(planned(70, true), (1, 2, 1024));
        assert_eq!(planned(70, false), (3, 24, 43 * 16));
        assert_eq!(planned(69, true), (1, 0, 1024));
        assert_eq!(planned(68, true), (1, 0, 63 * 16));
        // Small blocks: not even one would fit beside the usual share of states.
        assert_eq!(planned(6, false), (1, 0, 16));
    }

    #[test]
    fn layers_with_a_window_take_what_one_window_and_one_chunk_need() {
        let windows = KvWindows { reach: Reach::Last(256), n_blocks: 5, is_all: false };
        let block = KvFootprint::of::<Device>(block().shape, Some(windows));
        let sizing = KvSizing { block, n_running: 2, ..sizing() };
        // 64 blocks of tokens for all of them, 17 for a window, 32 for a chunk; and a copy.
        let found = sizing.plan().expect("fits");
        assert_eq!((found.n_blocks, found.context_tokens), (2 * (64 + 5 * 49) + 6, 1024));
        // Blocks that are reserved for a whole context are not freed behind a window.
        let contiguous = KvSizing { is_contiguous: true, ..sizing };
        let found = contiguous.plan().expect("fits");
        assert_eq!((found.n_blocks, found.context_tokens), (2 * (64 + 5 * 64) + 6, 1024));
        let limit_bytes = Some(6 * 30 * block.block_bytes() as u64);
        let found = KvSizing { limit_bytes, ..contiguous }.plan().expect("fits");
        assert_eq!(found.context_tokens, 30 * 16);
        let sizing = KvSizing { is_contiguous: false, ..contiguous };
        // A request that is alone needs no room for a chunk.
        let limit_bytes = Some((40 + 5 * 17) * block.block_bytes() as u64);
        let found = KvSizing { limit_bytes, ..sizing }.plan().expect("fits");
        assert_eq!(found.context_tokens, 40 * 16);
    }
}
