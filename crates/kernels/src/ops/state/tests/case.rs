//! Tokens of a recurrent layer, steps over sequences of them, and the recurrence in f64.

use std::ops::Range;

use super::wkv::Wkv;
use crate::ops::state::CHUNK;
use crate::testing::{Random, bits};
use crate::{
    ConvInput, ConvWeights, Cpu, Decays, HeadOrder, ScanInput, ScanShape, SelectiveInput,
    StateDtype, StateLayer, StateSeq, StateShape, StateStore, StridedRows,
};

/// Elements before and after the ones of each row in the inputs.
const MARGIN: [usize; 2] = [3, 2];

/// A layer with a convolution and a scan, and the inputs of some tokens. The two do not read each
/// other, so that each is compared by itself.
pub(super) struct Case {
    pub(super) shape: ScanShape,
    /// How states are stored.
    pub(super) dtype: StateDtype,
    pub(super) taps: usize,
    pub(super) channels: usize,
    pub(super) has_silu: bool,
    /// `[channels][taps]`.
    pub(super) weights: Vec<f32>,
    pub(super) bias: Option<Vec<f32>>,
    /// By token: the row of each input.
    pub(super) q: Vec<Vec<f32>>,
    pub(super) k: Vec<Vec<f32>>,
    pub(super) v: Vec<Vec<f32>>,
    pub(super) x: Vec<Vec<f32>>,
    pub(super) decay: Vec<Vec<f32>>,
    pub(super) beta: Vec<Vec<f32>>,
    /// Further inputs of a selective scan; `None` for a scan of matrices.
    pub(super) selective: Option<Selective>,
    /// Further inputs of the recurrence of RWKV-7.
    pub(super) wkv: Option<Wkv>,
}

/// Inputs and weights of a selective scan.
pub(super) struct Selective {
    /// By token.
    pub(super) steps: Vec<Vec<f32>>,
    pub(super) gates: Vec<Vec<f32>>,
    /// `[state_dim][channels]`.
    pub(super) rates: Vec<f32>,
    pub(super) skip: Vec<f32>,
}

/// Rows of a step with a margin around each.
pub(super) struct Rows {
    data: Vec<f32>,
    stride: usize,
}

impl Rows {
    pub(super) fn new(data: Vec<f32>, width: usize) -> Self {
        Self { data, stride: width + MARGIN[0] + MARGIN[1] }
    }

    pub(super) fn view(&self) -> StridedRows<'_> {
        StridedRows { data: &self.data, stride: self.stride, offset: MARGIN[0] }
    }
}

/// `heads` are key heads, value heads, key dimension and value dimension.
pub(super) fn shape(heads: [usize; 4], is_delta: bool) -> ScanShape {
    let [n_key_heads, n_value_heads, key_dim, value_dim] = heads;
    let order = HeadOrder::Grouped;
    let decays = Decays::PerHead;
    ScanShape { n_key_heads, n_value_heads, order, key_dim, value_dim, is_delta, decays }
}

/// The same with a decay for each element of a key.
pub(super) fn fading(heads: [usize; 4], is_delta: bool) -> ScanShape {
    ScanShape { decays: Decays::PerChannel, ..shape(heads, is_delta) }
}

impl Case {
    pub(super) fn new(random: &mut Random, n_tokens: usize, shape: ScanShape) -> Self {
        let mut rows = |width: usize| -> Vec<Vec<f32>> {
            (0..n_tokens).map(|_| random.normals(width)).collect()
        };
        let (mut q, mut k) = (rows(shape.key_width()), rows(shape.key_width()));
        let (channels, n_heads) = (37, shape.n_value_heads);
        let (v, x) = (rows(shape.value_width()), rows(channels));
        let n_decays = match shape.decays {
            Decays::PerHead => n_heads,
            Decays::PerChannel => shape.key_width(),
        };
        let (mut decay, mut beta) = (rows(n_decays), rows(n_heads));
        // Queries and keys of length one, decays down to e⁻¹, factors within 0 and 1.
        for row in q.iter_mut().chain(&mut k) {
            for head in row.chunks_mut(shape.key_dim) {
                let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x /= length);
            }
        }
        decay.iter_mut().flatten().for_each(|g| *g = -(*g * *g * 0.2).min(1.0));
        beta.iter_mut().flatten().for_each(|beta| *beta = (*beta * 0.4).abs().min(1.0));
        let taps = 4;
        let (weights, bias) = (random.normals(channels * taps), Some(random.normals(channels)));
        let has_silu = true;
        let (selective, wkv) = (None, None);
        Self {
            shape,
            dtype: StateDtype::F32,
            taps,
            channels,
            has_silu,
            weights,
            bias,
            q,
            k,
            v,
            x,
            decay,
            beta,
            selective,
            wkv,
        }
    }

    /// A selective scan over `channels` with `state_dim` elements each.
    pub(super) fn selective(
        random: &mut Random,
        n_tokens: usize,
        [channels, state_dim]: [usize; 2],
    ) -> Self {
        let mut case = Self::new(random, n_tokens, shape([1, 1, state_dim, channels], false));
        let mut rows =
            || -> Vec<Vec<f32>> { (0..n_tokens).map(|_| random.normals(channels)).collect() };
        let (mut steps, gates) = (rows(), rows());
        steps.iter_mut().flatten().for_each(|step| *step -= 2.0);
        let rates = random.normals(state_dim * channels).iter().map(|x| -0.1 - x.abs()).collect();
        let skip = random.normals(channels);
        case.selective = Some(Selective { steps, gates, rates, skip });
        case
    }

    /// The same with states stored in another type.
    pub(super) fn stored_as(self, dtype: StateDtype) -> Self {
        Self { dtype, ..self }
    }

    pub(super) fn n_tokens(&self) -> usize {
        self.q.len()
    }

    /// A store of two layers like this one's, the second of which the steps use, full of NaN.
    pub(super) fn store(&self, n_lanes: usize, n_snapshots: usize) -> StateStore {
        let layer = StateLayer {
            matrix: self.shape.value_width() * self.shape.key_dim,
            channels: self.channels,
            taps: self.taps,
            key_width: self.shape.key_width(),
            update_width: self.shape.value_width(),
            n_heads: self.shape.n_value_heads,
            is_selective: self.selective.is_some(),
            has_removal_keys: self.wkv.is_some(),
            has_channel_decays: self.shape.decays == Decays::PerChannel,
        };
        let layers = vec![layer; 2];
        let dtype = self.dtype;
        let mut store = StateStore::new(StateShape { layers, dtype, n_lanes, n_snapshots });
        store.floats_mut().fill(f32::NAN);
        store
    }

    /// Runs a step and returns the bits of each row of each part: the outputs of the convolution,
    /// then those of the scan.
    pub(super) fn step(
        &self,
        cpu: &Cpu,
        store: &mut StateStore,
        parts: &mut [Part<'_>],
    ) -> Vec<Vec<Vec<u32>>> {
        let tokens: Vec<usize> = parts.iter().flat_map(|part| part.tokens.to_vec()).collect();
        let gather = |rows: &[Vec<f32>]| -> Rows {
            let padded = |token: &usize| {
                [&[f32::NAN; MARGIN[0]][..], &rows[*token], &[f32::NAN; MARGIN[1]]].concat()
            };
            let width = rows.first().map_or(1, Vec::len);
            Rows::new(tokens.iter().flat_map(padded).collect(), width)
        };
        let flat = |rows: &[Vec<f32>]| -> Vec<f32> {
            tokens.iter().flat_map(|token| rows[*token].clone()).collect()
        };
        let (q, k, v, x) = (gather(&self.q), gather(&self.k), gather(&self.v), gather(&self.x));
        let (decay, beta) = (flat(&self.decay), flat(&self.beta));
        let mut row = 0;
        let mut sequences = Vec::new();
        for part in parts.iter() {
            sequences.push(part.sequence(row));
            row += part.tokens.len();
        }
        let (shape, sequences) = (self.shape, &sequences[..]);
        let (k, q, v) = (k.view(), q.view(), v.view());
        let mut scanned = vec![f32::NAN; row * shape.value_width()];
        if let Some(wkv) = &self.wkv {
            wkv.step((cpu, store), self, &gather, sequences, &mut scanned);
        } else if let Some(Selective { steps, gates, rates, skip }) = &self.selective {
            let (steps, gates) = (gather(steps), gather(gates));
            let input = SelectiveInput {
                state_dim: shape.key_dim,
                x: v,
                steps: steps.view(),
                keys: k,
                queries: q,
                gates: gates.view(),
                rates,
                skip,
                sequences,
            };
            cpu.selective_scan(store, 1, &input, &mut scanned);
        } else {
            let input = ScanInput { shape, q, k, v, decay: &decay, beta: &beta, sequences };
            cpu.scan(store, 1, &input, &mut scanned);
        }
        let tap = |j: usize| self.weights.chunks_exact(self.taps).map(move |channel| channel[j]);
        let by_tap: Vec<f32> = (0..self.taps).flat_map(tap).collect();
        let bias = self.bias.as_deref();
        let weights = ConvWeights { weights: &by_tap, bias, taps: self.taps, n_filters: 1 };
        let (x, has_silu) = (x.view(), self.has_silu);
        let input = ConvInput { x, weights, has_silu, sequences };
        let mut convolved = vec![f32::NAN; row * self.channels];
        cpu.conv_rows(store, 1, &input, &mut convolved);
        let mut rows = convolved.chunks(self.channels).zip(scanned.chunks(shape.value_width()));
        let mut answers = Vec::new();
        for part in parts {
            let n = part.tokens.len();
            let own = rows.by_ref().take(n);
            answers.push(own.map(|(a, b)| [bits(a), bits(b)].concat()).collect());
            part.seq.advance(n, part.tree.is_some());
        }
        answers
    }

    /// Rows of tokens of one sequence alone, in steps that end at `cuts`; the last is the length.
    pub(super) fn run(
        &self,
        cpu: &Cpu,
        store: &mut StateStore,
        seq: &mut Seq,
        tokens: &[usize],
        cuts: &[usize],
    ) -> Vec<Vec<u32>> {
        let mut rows = Vec::new();
        let mut start = 0;
        for &end in cuts {
            let part = Part { seq, tokens: &tokens[start..end], saves: &[], tree: None };
            rows.extend(self.step(cpu, store, &mut [part]).remove(0));
            start = end;
        }
        rows
    }

    /// Rows of a new sequence of these tokens, computed in one step.
    pub(super) fn whole(&self, cpu: &Cpu, tokens: &[usize]) -> Vec<Vec<u32>> {
        let mut store = self.store(1, 0);
        self.run(cpu, &mut store, &mut Seq::new(0), tokens, &[tokens.len()])
    }

    /// The selective recurrence in f64, token by token: gated outputs, `[m][channels]`.
    pub(super) fn selective_recurrence(&self) -> Vec<Vec<f64>> {
        let ScanShape { key_dim, value_dim, .. } = self.shape;
        let Selective { steps, gates, rates, skip } =
            self.selective.as_ref().expect("a selective scan");
        let mut outs = vec![Vec::new(); self.n_tokens()];
        for c in 0..value_dim {
            let mut state = vec![0.0_f64; key_dim];
            for (t, out) in outs.iter_mut().enumerate() {
                let x = f64::from(self.v[t][c]);
                let step = f64::from(steps[t][c]).exp().ln_1p();
                let mut sum = f64::from(skip[c]) * x;
                for (n, h) in state.iter_mut().enumerate() {
                    let rate = f64::from(rates[n * value_dim + c]);
                    *h = *h * (step * rate).exp() + step * x * f64::from(self.k[t][n]);
                    sum += *h * f64::from(self.q[t][n]);
                }
                let gate = f64::from(gates[t][c]);
                out.push(sum * gate / (1.0 + (-gate).exp()));
            }
        }
        outs
    }

    /// The recurrence in f64, token by token: outputs of the scan, `[m][value_width]`.
    pub(super) fn recurrence(&self) -> Vec<Vec<f64>> {
        let ScanShape { n_value_heads, key_dim, value_dim, is_delta, .. } = self.shape;
        let mut outs = vec![Vec::new(); self.n_tokens()];
        for head in 0..n_value_heads {
            let key_head = match self.shape.order {
                HeadOrder::Grouped => head / (n_value_heads / self.shape.n_key_heads),
                HeadOrder::Tiled => head % self.shape.n_key_heads,
            };
            let mut state = vec![vec![0.0_f64; value_dim]; key_dim];
            for (t, out) in outs.iter_mut().enumerate() {
                let part = |row: &[f32], head: usize, dim: usize| -> Vec<f64> {
                    row[head * dim..(head + 1) * dim].iter().map(|x| f64::from(*x)).collect()
                };
                let q = part(&self.q[t], key_head, key_dim);
                let k = part(&self.k[t], key_head, key_dim);
                let v = part(&self.v[t], head, value_dim);
                for (d, state) in state.iter_mut().enumerate() {
                    let decay = match self.shape.decays {
                        Decays::PerHead => self.decay[t][head],
                        Decays::PerChannel => self.decay[t][head * key_dim + d],
                    };
                    state.iter_mut().for_each(|s| *s *= f64::from(decay).exp());
                }
                let read = |state: &[Vec<f64>], x: &[f64], e: usize| -> f64 {
                    state.iter().zip(x).map(|(s, x)| s[e] * x).sum()
                };
                let known = |e: usize| if is_delta { read(&state, &k, e) } else { 0.0 };
                let beta = f64::from(self.beta[t][head]);
                let update: Vec<f64> = (0..value_dim).map(|e| beta * (v[e] - known(e))).collect();
                for (s, k) in state.iter_mut().zip(&k) {
                    s.iter_mut().zip(&update).for_each(|(s, u)| *s += k * u);
                }
                out.extend((0..value_dim).map(|e| read(&state, &q, e)));
            }
        }
        outs
    }

    /// The convolution in f64, `[m][channels]`.
    pub(super) fn convolution(&self) -> Vec<Vec<f64>> {
        let out = |t: usize, c: usize| {
            let mut sum = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
            for j in 0..self.taps {
                if let Some(t) = (t + j + 1).checked_sub(self.taps) {
                    sum += f64::from(self.weights[c * self.taps + j]) * f64::from(self.x[t][c]);
                }
            }
            if self.has_silu { sum / (1.0 + (-sum).exp()) } else { sum }
        };
        (0..self.n_tokens()).map(|t| (0..self.channels).map(|c| out(t, c)).collect()).collect()
    }
}

/// Where a sequence stands.
#[derive(Clone, Debug)]
pub(super) struct Seq {
    pub(super) lane: usize,
    pub(super) border: usize,
    pub(super) n_computed: usize,
}

impl Seq {
    pub(super) fn new(lane: usize) -> Self {
        Self { lane, border: 0, n_computed: 0 }
    }

    /// Moves past a step of `n` rows; those of a tree stay to be accepted.
    fn advance(&mut self, n: usize, is_tree: bool) {
        if n > 0 {
            let last = if is_tree { self.n_computed } else { self.n_computed + n - 1 };
            self.border = last / CHUNK * CHUNK;
        }
        self.n_computed += if is_tree { 0 } else { n };
    }
}

/// A sequence's part of a step.
pub(super) struct Part<'a> {
    pub(super) seq: &'a mut Seq,
    pub(super) tokens: &'a [usize],
    pub(super) saves: &'a [(usize, u32)],
    pub(super) tree: Option<&'a [u32]>,
}

impl Part<'_> {
    fn sequence(&self, row: usize) -> StateSeq<'_> {
        StateSeq {
            rows: row..row + self.tokens.len(),
            first_position: self.seq.n_computed,
            lane: self.seq.lane,
            border: self.seq.border,
            saves: self.saves,
            tree: self.tree,
        }
    }
}

/// Tokens `range`, as a list.
pub(super) fn tokens(range: Range<usize>) -> Vec<usize> {
    range.collect()
}
