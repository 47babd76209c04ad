//! Recurrent layers: a decoding row at the beginning, in the middle and at the end of a chunk, and
//! a prompt.
//!
//! ```text
//!                 state of a sequence                  operations of a row
//! delta           heads x key x value                  4 per element: reading, and taking in
//! channel delta   the same, a decay per element of a key
//! sum             the same, without the delta rule (Mamba 2)
//! selective       channels x state (Mamba)             4 per element
//! wkv             heads x key x value (RWKV-7)         6 per element: it is taken out of, too
//! ```
//!
//! A decoded row reads the state once. At the end of a chunk the keys and updates of its 63 rows
//! before are read as well, and their decays where each element of a key has its own; the row in
//! the middle is the mean of a chunk. Where rows are computed one after the other (selective, wkv),
//! a decoded row writes the state, too, wherever it is in its chunk, and each call takes the row
//! after that of the call before. A prompt reads and writes the state once per chunk of 64 rows.
//!
//! Every rule is measured with states in f32 and in bf16. The running state of selective and wkv is
//! always f32.
//!
//! Each call takes another lane, and the lanes together are larger than the caches.

use pelton_kernels::{
    Cpu, Decays, HeadOrder, STATE_CHUNK, ScanInput, ScanShape, SelectiveInput, StateDtype,
    StateLayer, StateSeq, StateShape, StateStore, StridedRows, WkvInput, WkvWeights,
};

use super::block::{Block, Call, Cost, Multiplier, Sizes, activations};

/// How a state changes with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Delta,
    ChannelDelta,
    Sum,
    Selective,
    Wkv,
}

/// A rule with its sizes: heads of keys and of values, elements of a key and of a value.
#[derive(Clone, Copy)]
struct Kind {
    rule: Rule,
    dtype: StateDtype,
    n_key_heads: usize,
    n_value_heads: usize,
    key_dim: usize,
    value_dim: usize,
}

/// Every rule at the sizes of a small model that has it.
pub(super) fn blocks(sizes: &Sizes) -> Vec<Block> {
    let is_quick = sizes.beyond_caches_bytes == 0;
    let scale = if is_quick { 8 } else { 1 };
    let kind = |rule, [n_key_heads, n_value_heads, key_dim, value_dim]: [usize; 4]| Kind {
        rule,
        dtype: StateDtype::F32,
        n_key_heads: n_key_heads.div_ceil(scale),
        n_value_heads: n_value_heads.div_ceil(scale),
        key_dim,
        value_dim: if is_quick { value_dim.min(64) } else { value_dim },
    };
    let kinds = [
        kind(Rule::Delta, [16, 16, 128, 128]),
        kind(Rule::ChannelDelta, [16, 16, 128, 128]),
        kind(Rule::Sum, [1, 80, 128, 64]),
        kind(Rule::Selective, [1, 4096, 16, 1]),
        kind(Rule::Wkv, [32, 32, 64, 64]),
    ];
    let of_kind = |kind: Kind| {
        let places =
            if kind.runs() { &[0][..] } else { &[0, STATE_CHUNK / 2 - 1, STATE_CHUNK - 1][..] };
        let decode = places.iter().map(move |n_before| kind.block(sizes, 1, *n_before));
        decode.chain([kind.block(sizes, sizes.prompt, 0)])
    };
    let stored = |kind: Kind| StateDtype::ALL.map(|dtype| Kind { dtype, ..kind });
    kinds.into_iter().flat_map(stored).flat_map(of_kind).collect()
}

impl Kind {
    fn key_width(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    fn value_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Elements of the state of a sequence.
    fn n_elements(&self) -> usize {
        self.value_width() * self.key_dim
    }

    fn name(&self) -> &'static str {
        match self.rule {
            Rule::Delta => "delta",
            Rule::ChannelDelta => "channel delta",
            Rule::Sum => "sum",
            Rule::Selective => "selective",
            Rule::Wkv => "wkv",
        }
    }

    /// Whether rows are computed one after the other, with a state behind the last one.
    fn runs(&self) -> bool {
        matches!(self.rule, Rule::Selective | Rule::Wkv)
    }

    fn layer(&self) -> StateLayer {
        let is_selective = self.rule == Rule::Selective;
        StateLayer {
            matrix: self.n_elements(),
            channels: 0,
            taps: 0,
            key_width: self.key_width(),
            update_width: self.value_width(),
            n_heads: if is_selective { 1 } else { self.n_value_heads },
            is_selective,
            has_removal_keys: self.rule == Rule::Wkv,
            has_channel_decays: self.rule == Rule::ChannelDelta,
        }
    }

    /// The work of `n_rows` rows behind `n_before` rows of their chunk.
    fn cost(&self, n_rows: usize, n_before: usize) -> Cost {
        let state = self.n_elements() * self.dtype.n_bytes();
        let running = self.n_elements() * size_of::<f32>();
        let per_element = if self.rule == Rule::Wkv { 6 } else { 4 };
        // Decays by channel are an element for each of a key.
        let n_keys = if self.rule == Rule::ChannelDelta { 2 } else { 1 };
        let open = (n_keys * self.key_width() + self.value_width()) * size_of::<f32>();
        let n_bytes = match (n_rows, self.runs()) {
            (1, true) => 2 * running,
            (1, false) => state + n_before * open,
            _ => 2 * state * n_rows.div_ceil(STATE_CHUNK),
        };
        Cost { n_rows, n_bytes, n_ops: per_element * n_rows * self.n_elements() }
    }

    /// `n_rows` rows behind the first `n_before` rows of a chunk.
    fn block(self, sizes: &Sizes, n_rows: usize, n_before: usize) -> Block {
        let Self { n_key_heads, n_value_heads, key_dim, value_dim, .. } = self;
        let lane_bytes = StateStore::lane_bytes(&StateShape {
            layers: vec![self.layer()],
            dtype: self.dtype,
            n_lanes: 1,
            n_snapshots: 0,
        });
        let n_lanes = match n_rows {
            1 => sizes.beyond_caches_bytes.div_ceil(lane_bytes).clamp(1, 256),
            _ => 2,
        };
        let what = match n_rows {
            1 if self.runs() => "a row".to_owned(),
            1 => format!("row {} of a chunk", n_before + 1),
            n => format!("{n} tokens"),
        };
        Block {
            variant: match self.dtype {
                StateDtype::F32 => self.name().to_owned(),
                dtype => format!("{} {dtype}", self.name()),
            },
            shape: match self.rule {
                Rule::Selective => {
                    format!("{value} x {key_dim}, {what}", value = self.value_width())
                }
                _ => format!("{n_key_heads}/{n_value_heads} x {key_dim} x {value_dim}, {what}"),
            },
            multiplier: Multiplier::F32,
            calls: Box::new(move |cpu, visit| {
                let (layers, dtype) = (vec![self.layer()], self.dtype);
                let shape = StateShape { layers, dtype, n_lanes, n_snapshots: 0 };
                let mut store = StateStore::new(shape);
                let rows = Rows::new(&self, n_rows.max(STATE_CHUNK + 1));
                let mut out = vec![0.0; rows.v.len()];
                // A chunk is folded in each lane: memory that was never written would all be one
                // page of zeros, and in the cache.
                for lane in 0..n_lanes {
                    let first = StateSeq {
                        rows: 0..STATE_CHUNK + 1,
                        first_position: 0,
                        lane,
                        border: 0,
                        saves: &[],
                        tree: None,
                    };
                    self.call(cpu, &mut store, &rows, &first, &mut out);
                }
                let mut at = 0;
                let mut run = || {
                    let n_passed = match n_rows {
                        1 if self.runs() => at / n_lanes % STATE_CHUNK,
                        _ => n_before,
                    };
                    let next = StateSeq {
                        rows: 0..n_rows,
                        first_position: STATE_CHUNK + n_passed,
                        lane: at % n_lanes,
                        border: STATE_CHUNK,
                        saves: &[],
                        tree: None,
                    };
                    self.call(cpu, &mut store, &rows, &next, &mut out);
                    at += 1;
                };
                visit(Call { cost: self.cost(n_rows, n_before), run: &mut run })
            }),
        }
    }

    fn call(
        &self,
        cpu: &Cpu,
        store: &mut StateStore,
        rows: &Rows,
        sequence: &StateSeq<'_>,
        out: &mut [f32],
    ) {
        let n = sequence.rows.len();
        let out = &mut out[..n * self.value_width()];
        let sequences = std::slice::from_ref(sequence);
        let keys = StridedRows::dense(&rows.k, self.key_width());
        let values = StridedRows::dense(&rows.v, self.value_width());
        match self.rule {
            Rule::Selective => {
                let narrow = StridedRows::dense(&rows.k, self.key_dim);
                let input = SelectiveInput {
                    state_dim: self.key_dim,
                    x: values,
                    steps: values,
                    keys: narrow,
                    queries: narrow,
                    gates: values,
                    rates: &rows.rates,
                    skip: &rows.v[..self.value_width()],
                    sequences,
                };
                cpu.selective_scan(store, 0, &input, out);
            }
            Rule::Wkv => {
                let vector = &rows.v[..self.value_width()];
                let input = WkvInput {
                    dim: self.key_dim,
                    receptance: values,
                    decay: values,
                    key: values,
                    value: values,
                    rate: values,
                    gate: values,
                    residual: None,
                    weights: WkvWeights {
                        removal_scale: vector,
                        rate_scale: vector,
                        bonus: vector,
                        norm: [vector, vector],
                        norm_eps: 1e-5,
                    },
                    sequences,
                };
                cpu.wkv(store, 0, &input, out);
            }
            rule => {
                let shape = ScanShape {
                    n_key_heads: self.n_key_heads,
                    n_value_heads: self.n_value_heads,
                    order: HeadOrder::Grouped,
                    key_dim: self.key_dim,
                    value_dim: self.value_dim,
                    is_delta: rule != Rule::Sum,
                    decays: match rule {
                        Rule::ChannelDelta => Decays::PerChannel,
                        _ => Decays::PerHead,
                    },
                };
                let (decay, beta) = (&rows.decays[..], &rows.betas[..]);
                let input =
                    ScanInput { shape, q: keys, k: keys, v: values, decay, beta, sequences };
                cpu.scan(store, 0, &input, out);
            }
        }
    }
}

/// Inputs of rows; keys are short, so that states stay of the size of values.
struct Rows {
    k: Vec<f32>,
    v: Vec<f32>,
    decays: Vec<f32>,
    betas: Vec<f32>,
    /// Rates of the decays of a selective scan.
    rates: Vec<f32>,
}

impl Rows {
    fn new(kind: &Kind, n_rows: usize) -> Self {
        let short = (kind.key_dim as f32).sqrt().recip();
        let mut k = activations(n_rows * kind.key_width());
        k.iter_mut().for_each(|x| *x *= short);
        let n_decays = n_rows * kind.key_width().max(kind.n_value_heads);
        Self {
            k,
            v: activations(n_rows * kind.value_width()),
            decays: vec![-0.1; n_decays],
            betas: vec![0.5; n_rows * kind.n_value_heads],
            rates: vec![-0.1; kind.n_elements()],
        }
    }
}
