//! Recurrent layers: convolutions over time, and recurrences token by token in f64, as their papers
//! write them.
//!
//! Nothing is computed in chunks. Of the open chunk a lane keeps what was projected for each row, and a
//! row computes the recurrence from the border of its chunk anew, along its own path in a tree of drafts.

use pelton_model::device::{ConvOp, ForwardSequence, RecurrentOp};
use pelton_model::layer::{Gate, Recurrent, RecurrentWeights, Rule};
use pelton_model::{CHUNK_TOKENS, StateCopy, StateLayer, StateShape};

use super::ops::{activate, linear_row, rms_norm};
use super::{PlainDevice, Rows};
use pelton_model::arch::Act;

/// The states of all recurrent layers, of sequences and of snapshots.
#[derive(Debug, Default)]
pub(super) struct States {
    lanes: Vec<Vec<Lane>>,
    snapshots: Vec<Vec<State>>,
}

/// The state of one layer at a border.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// `[value head][key][value]`.
    pub(super) matrix: Vec<f64>,
    /// Inputs of the convolution before the border: `[taps - 1][channels]`.
    pub(super) tail: Vec<Vec<f32>>,
}

/// One layer of one sequence.
#[derive(Clone, Debug)]
struct Lane {
    state: State,
    /// The projections of the rows of the open chunk, by their places.
    open: Vec<Vec<f32>>,
}

impl State {
    fn zero(layer: &StateLayer) -> Self {
        let tail = vec![vec![0.0; layer.channels]; layer.taps - 1];
        Self { matrix: vec![0.0; layer.matrix()], tail }
    }
}

impl States {
    pub(super) fn new(shape: &StateShape) -> Self {
        let states = || shape.layers.iter().map(State::zero);
        let lane = || states().map(|state| Lane { state, open: vec![Vec::new(); CHUNK_TOKENS] });
        Self {
            lanes: (0..shape.n_lanes).map(|_| lane().collect()).collect(),
            snapshots: (0..shape.n_snapshots).map(|_| states().collect()).collect(),
        }
    }

    pub(super) fn copy(&mut self, copy: StateCopy) {
        match copy {
            StateCopy::Save { lane, snapshot } => {
                let states = self.lanes[lane as usize].iter().map(|lane| lane.state.clone());
                self.snapshots[snapshot as usize] = states.collect();
            }
            StateCopy::Load { snapshot, lane } => {
                let states = &self.snapshots[snapshot as usize];
                for (lane, state) in self.lanes[lane as usize].iter_mut().zip(states) {
                    lane.state = state.clone();
                }
            }
            StateCopy::Fork { from, to } => {
                self.lanes[to as usize] = self.lanes[from as usize].clone();
            }
        }
    }

    pub(super) fn copy_row(&mut self, lane: usize, from: usize, to: usize) {
        for layer in &mut self.lanes[lane] {
            layer.open[to] = layer.open[from].clone();
        }
    }

    /// Calls `row` for each row of a sequence with the state at the border of its chunk, and the rows of
    /// its chunk that it sees, itself last; `fold` moves a state over all rows of a chunk.
    pub(super) fn walk(
        &mut self,
        layer: usize,
        sequence: &ForwardSequence<'_>,
        projected: &Rows,
        fold: impl Fn(&mut State, &[&[f32]]),
        mut row: impl FnMut(usize, &State, &[&[f32]]),
    ) {
        let Self { lanes, snapshots } = self;
        let lane = sequence.lane.expect("a lane for each sequence of a recurrent model");
        let Lane { state, open } = &mut lanes[lane.idx][layer];
        let mut border = lane.border;
        if border == 0 {
            state.matrix.fill(0.0);
            state.tail.iter_mut().for_each(|row| row.fill(0.0));
        }
        let first = sequence.first_position;
        for (i, r) in sequence.rows.clone().enumerate() {
            let place = first + i;
            if place == border + CHUNK_TOKENS {
                let rows: Vec<&[f32]> = open.iter().map(Vec::as_slice).collect();
                fold(state, &rows);
                border = place;
                for (_, snapshot) in lane.saves.iter().filter(|save| save.0 == border) {
                    snapshots[*snapshot as usize][layer] = state.clone();
                }
            }
            assert!((border..border + CHUNK_TOKENS).contains(&place), "{place} after {border}");
            open[place - border] =
                projected.values[r * projected.width..][..projected.width].into();
            let path = match sequence.tree {
                None => (border..=place).collect(),
                Some(parents) => {
                    let mut path = vec![i];
                    while parents[path[path.len() - 1]] != ForwardSequence::ROOT {
                        path.push(parents[path[path.len() - 1]] as usize);
                    }
                    let own = path.iter().rev().map(|node| first + node);
                    (border..first).chain(own).collect::<Vec<_>>()
                }
            };
            let rows: Vec<&[f32]> =
                path.iter().map(|place| open[place - border].as_slice()).collect();
            row(r, state, &rows);
        }
    }
}

/// The convolution of the last of these rows: `bias + Σ w[j] x[t - taps + 1 + j]`.
pub(super) fn convolve(
    state: &State,
    inputs: &[Vec<f32>],
    weight: &[f32],
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let all: Vec<&[f32]> = state.tail.iter().chain(inputs).map(Vec::as_slice).collect();
    let taps = &all[all.len() - state.tail.len() - 1..];
    let n = inputs[0].len();
    (0..n)
        .map(|c| {
            let terms = taps.iter().enumerate();
            let sum: f64 = terms.map(|(j, x)| f64::from(x[c]) * f64::from(weight[j * n + c])).sum();
            (sum + bias.map_or(0.0, |bias| f64::from(bias[c]))) as f32
        })
        .collect()
}

/// The tail behind these inputs.
pub(super) fn tail_behind(state: &State, inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let all: Vec<&Vec<f32>> = state.tail.iter().chain(inputs).collect();
    all[all.len() - state.tail.len()..].iter().map(|row| (*row).clone()).collect()
}

pub(super) fn softplus(x: f32) -> f64 {
    if x > 20.0 { f64::from(x) } else { f64::from(x).exp().ln_1p() }
}

fn sigmoid(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

/// One layer's recurrence with its weights.
struct Recurrence<'a> {
    spec: &'a Recurrent,
    weights: &'a RecurrentWeights<PlainDevice>,
}

impl Recurrence<'_> {
    /// Inputs of the convolution.
    fn inputs(&self, rows: &[&[f32]]) -> Vec<Vec<f32>> {
        rows.iter().map(|row| row[..self.spec.channels()].to_vec()).collect()
    }

    /// Takes the last of these rows into the state, and returns the queries and values of the row.
    fn step(&self, border: &State, matrix: &mut [f64], rows: &[&[f32]]) -> (Vec<f64>, Vec<f32>) {
        let Recurrent { n_value_heads, key_dim, value_dim, .. } = *self.spec;
        let inputs = self.inputs(rows);
        let bias = self.weights.conv_bias.as_deref();
        let mixed = match &self.weights.conv {
            Some(taps) => convolve(border, &inputs, taps, bias),
            None => inputs[inputs.len() - 1].clone(),
        };
        let mixed: Vec<f32> = mixed.iter().map(|x| activate(Act::Silu, *x)).collect();
        let width = self.spec.key_width();
        let unit = |heads: &[f32], factor: f64| -> Vec<f64> {
            let norm = |head: &[f32]| {
                let square: f64 = head.iter().map(|x| f64::from(*x).powi(2)).sum();
                let length = match self.spec.rule {
                    Rule::Delta { .. } | Rule::ChannelDelta { .. } => {
                        (square + 1e-6).sqrt() / factor
                    }
                    Rule::Sum { .. } | Rule::Steady { .. } => 1.0,
                };
                head.iter().map(|x| f64::from(*x) / length).collect::<Vec<_>>()
            };
            heads.chunks_exact(key_dim).flat_map(norm).collect()
        };
        let queries = unit(&mixed[..width], (key_dim as f64).sqrt().recip());
        let keys = unit(&mixed[width..2 * width], 1.0);
        let values = mixed[2 * width..].to_vec();
        let row = rows[rows.len() - 1];
        for head in 0..n_value_heads {
            let key = &keys[self.spec.key_head(head) * key_dim..][..key_dim];
            let value = &values[head * value_dim..][..value_dim];
            let state = &mut matrix[head * key_dim * value_dim..][..key_dim * value_dim];
            let beta = self.beta(row, head);
            for (k, state) in state.chunks_exact_mut(value_dim).enumerate() {
                let decay = self.log_decay(row, head, k).exp();
                state.iter_mut().for_each(|x| *x *= decay);
            }
            for (v, value) in value.iter().enumerate() {
                let known: f64 = match self.spec.rule {
                    Rule::Delta { .. } | Rule::ChannelDelta { .. } => {
                        (0..key_dim).map(|k| state[k * value_dim + v] * key[k]).sum()
                    }
                    Rule::Sum { .. } | Rule::Steady { .. } => 0.0,
                };
                for k in 0..key_dim {
                    state[k * value_dim + v] += key[k] * beta * (f64::from(*value) - known);
                }
            }
        }
        (queries, values)
    }

    /// A row with gate and decays in place of their latents: `[q | k | v | z | beta | decay]`.
    fn expand(&self, row: &[f32]) -> Vec<f32> {
        let (Some(gate_up), Some(decay_up)) = (&self.weights.gate_up, &self.weights.decay_up)
        else {
            return row.to_vec();
        };
        let [gate, beta, _] = self.spec.gate_widths();
        let (mixed, rest) = row.split_at(self.spec.channels());
        let (z, rest) = rest.split_at(gate);
        let (beta, decay) = rest.split_at(beta);
        [mixed, &linear_row(gate_up, z), beta, &linear_row(decay_up, decay)].concat()
    }

    /// How much of a row a head takes in.
    fn beta(&self, row: &[f32], head: usize) -> f64 {
        let at = self.spec.channels() + self.spec.value_width();
        match self.spec.rule {
            Rule::Delta { beta_scale } => f64::from(beta_scale) * sigmoid(row[at + head]),
            Rule::ChannelDelta { .. } => sigmoid(row[at + head]),
            Rule::Sum { dt_limits: [least, most] } => {
                let step = row[at + head] + self.decay_bias(head);
                softplus(step).clamp(f64::from(least), f64::from(most))
            }
            Rule::Steady { .. } => 1.0,
        }
    }

    fn decay_bias(&self, i: usize) -> f32 {
        self.weights.decay_bias.as_ref().map_or(0.0, |bias| bias[i])
    }

    /// The logarithm of the decay of an element of a head's key.
    fn log_decay(&self, row: &[f32], head: usize, k: usize) -> f64 {
        let Recurrent { n_value_heads, key_dim, .. } = *self.spec;
        let at = self.spec.channels() + self.spec.value_width() + n_value_heads;
        let factor = f64::from(self.weights.decay[head]);
        match self.spec.rule {
            Rule::Delta { .. } => factor * softplus(row[at + head] + self.decay_bias(head)),
            Rule::ChannelDelta { .. } => {
                let channel = head * key_dim + k;
                factor * softplus(row[at + channel] + self.decay_bias(channel))
            }
            Rule::Sum { .. } => factor * self.beta(row, head),
            Rule::Steady { .. } => factor,
        }
    }

    /// The state moved over all rows of a chunk.
    fn fold(&self, state: &mut State, rows: &[&[f32]]) {
        let mut matrix = state.matrix.clone();
        for n in 1..=rows.len() {
            self.step(state, &mut matrix, &rows[..n]);
        }
        state.tail = tail_behind(state, &self.inputs(rows));
        state.matrix = matrix;
    }

    /// The output of the last of these rows, normed and gated.
    fn output(&self, state: &State, rows: &[&[f32]]) -> Vec<f32> {
        let Recurrent { n_value_heads, key_dim, value_dim, .. } = *self.spec;
        let mut matrix = state.matrix.clone();
        let mut last = (Vec::new(), Vec::new());
        for n in 1..=rows.len() {
            last = self.step(state, &mut matrix, &rows[..n]);
        }
        let (queries, values) = last;
        let mut out = Vec::new();
        for head in 0..n_value_heads {
            let query = &queries[self.spec.key_head(head) * key_dim..][..key_dim];
            let state = &matrix[head * key_dim * value_dim..][..key_dim * value_dim];
            let skip = self.weights.skip.as_ref().map_or(0.0, |skip| f64::from(skip[head]));
            for v in 0..value_dim {
                let sum: f64 = (0..key_dim).map(|k| state[k * value_dim + v] * query[k]).sum();
                out.push((sum + skip * f64::from(values[head * value_dim + v])) as f32);
            }
        }
        let gate = &rows[rows.len() - 1][self.spec.channels()..][..out.len()];
        let gated = |x: &[f32]| -> Vec<f32> {
            x.iter().zip(gate).map(|(x, z)| x * activate(Act::Silu, *z)).collect()
        };
        let switched = |x: &[f32]| -> Vec<f32> {
            x.iter().zip(gate).map(|(x, z)| x * sigmoid(*z) as f32).collect()
        };
        let norm = |x: &[f32], n_groups: usize| -> Vec<f32> {
            let norm = self.weights.norm.as_ref().expect("a norm");
            let width = x.len() / n_groups;
            let weight = |group: usize| match norm.weight.len() == width {
                true => &norm.weight[..],
                false => &norm.weight[group * width..][..width],
            };
            let groups = x.chunks_exact(width).enumerate();
            groups.flat_map(|(i, x)| rms_norm(x, weight(i), norm.eps)).collect()
        };
        match self.spec.gate {
            Gate::AfterNorm => gated(&norm(&out, n_value_heads)),
            Gate::AfterGroupNorm { n_groups } => gated(&norm(&out, n_groups)),
            Gate::SigmoidAfterNorm { is_whole: false } => switched(&norm(&out, n_value_heads)),
            Gate::SigmoidAfterNorm { is_whole: true } => switched(&norm(&out, 1)),
            Gate::BeforeNorm { n_groups } => norm(&gated(&out), n_groups),
            Gate::Alone => gated(&out),
        }
    }
}

/// The recurrence of all rows of a step.
pub(super) fn recurrence(
    op: &RecurrentOp<'_, PlainDevice>,
    projected: &Rows,
    states: &mut States,
    out: &mut Rows,
) {
    let recurrence = Recurrence { spec: op.recurrent, weights: op.weights };
    let mut expanded = Rows { width: 0, values: Vec::new() };
    for row in projected.iter() {
        let row = recurrence.expand(row);
        expanded.width = row.len();
        expanded.values.extend(row);
    }
    out.reset(projected.n()).for_each(drop);
    let width = out.width;
    for sequence in op.rows.sequences {
        let fold = |state: &mut State, rows: &[&[f32]]| recurrence.fold(state, rows);
        states.walk(op.layer, sequence, &expanded, fold, |row, state, rows| {
            out.values[row * width..][..width].copy_from_slice(&recurrence.output(state, rows));
        });
    }
}

/// The gated convolution of all rows of a step.
pub(super) fn short_conv(
    op: &ConvOp<'_, PlainDevice>,
    projected: &Rows,
    states: &mut States,
    out: &mut Rows,
) {
    out.reset(projected.n()).for_each(drop);
    let n = op.conv.channels;
    let inputs = |rows: &[&[f32]]| -> Vec<Vec<f32>> {
        rows.iter().map(|row| (0..n).map(|c| row[c] * row[2 * n + c]).collect()).collect()
    };
    for sequence in op.rows.sequences {
        let fold = |state: &mut State, rows: &[&[f32]]| {
            state.tail = tail_behind(state, &inputs(rows));
        };
        states.walk(op.layer, sequence, projected, fold, |row, state, rows| {
            let bias = op.weights.conv_bias.as_deref();
            let mixed = convolve(state, &inputs(rows), &op.weights.conv, bias);
            let gate = &rows[rows.len() - 1][n..];
            let gated = mixed.iter().zip(gate).map(|(x, gate)| x * gate);
            out.values[row * n..][..n].iter_mut().zip(gated).for_each(|(out, x)| *out = x);
        });
    }
}
