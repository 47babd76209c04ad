//! Attention, over grouped queries and over latents.
//!
//! ```text
//! score(t) = softcap(scale · q · k[t] + slope · (t - p))        t: position of a key, p: of the query
//! weight   = softmax over the positions that the row sees, and the sink where there is one
//! out      = Σ weight(t) v[t]
//! ```

use pelton_model::arch::{Gqa, QkNorm};
use pelton_model::device::{AttentionOp, CrossOp, CrossOps, ForwardSequence, LatentOp, StepRows};
use pelton_model::layer::Norm;
use pelton_model::rope::RopeTable;

use super::ops::{linear, rms_norm};
use super::{PlainDevice, PlainKv, Rows, dot};

/// Rotates a part of a head (Su et al., 2021): elements `i` and `i + half`, or neighbours.
fn rotate(x: &mut [f32], table: &RopeTable, position: usize, in_pairs: bool) {
    let half = table.inv_freq.len();
    let mut cos_sin = vec![0.0; 2 * half];
    table.fill(position, &mut cos_sin);
    for i in 0..half {
        let (first, second) = if in_pairs { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (a, b, cos, sin) = (x[first], x[second], cos_sin[i], cos_sin[half + i]);
        x[first] = a * cos - b * sin;
        x[second] = b * cos + a * sin;
    }
}

/// Norm of the heads of q or of k.
fn norm_heads(heads: &mut [f32], norm: &Norm<PlainDevice>, kind: QkNorm, head_dim: usize) {
    match kind {
        QkNorm::HeadRms | QkNorm::HeadRmsBare => {
            for head in heads.chunks_exact_mut(head_dim) {
                let normed = rms_norm(head, &norm.weight, norm.eps);
                head.copy_from_slice(&normed);
            }
        }
        QkNorm::WholeRms => {
            let normed = rms_norm(heads, &norm.weight, norm.eps);
            heads.copy_from_slice(&normed);
        }
        QkNorm::HeadLayer => {
            for (i, head) in heads.chunks_exact_mut(head_dim).enumerate() {
                // One weight for all heads, or one for each.
                let at = if norm.weight.len() == head_dim { 0 } else { i * head_dim };
                let zeros = vec![0.0; head_dim];
                let weight = &norm.weight[at..at + head_dim];
                let normed = super::ops::layer_norm(head, weight, &zeros, norm.eps);
                head.copy_from_slice(&normed);
            }
        }
    }
}

/// The slot of a token of a sequence by its place there.
fn slot_of(sequence: &ForwardSequence<'_>, group: usize, block_size: usize, place: usize) -> u32 {
    let block = sequence.block_tables.group(group)[place / block_size] as usize;
    (block * block_size + place % block_size) as u32
}

/// Slots of what a row of a sequence may see before windows, with their positions, ascending.
fn seen(
    sequence: &ForwardSequence<'_>,
    row: usize,
    group: usize,
    block_size: usize,
    is_causal: bool,
) -> Vec<(usize, u32)> {
    let own_start = sequence.own_start(block_size);
    let slot = |position| slot_of(sequence, group, block_size, own_start + position);
    let first = sequence.first_position - own_start;
    let mut seen: Vec<_> = (0..first).map(|place| (place, slot(place))).collect();
    match sequence.tree {
        Some(parents) => {
            // The path from the row up to the last committed token.
            let mut path = vec![row];
            while parents[path[path.len() - 1]] != ForwardSequence::ROOT {
                path.push(parents[path[path.len() - 1]] as usize);
            }
            let nodes = path.iter().rev().enumerate();
            seen.extend(nodes.map(|(depth, node)| (first + depth, slot(first + node))));
        }
        None => {
            let n = if is_causal { row + 1 } else { sequence.rows.len() };
            seen.extend((first..first + n).map(|place| (place, slot(place))));
        }
    }
    seen
}

/// The output of one head for its query.
struct Head<'a> {
    query: &'a [f32],
    position: usize,
    scale: f32,
    slope: f32,
    /// Biases by distance, from the largest one before the query to the largest one after it.
    bias: Option<&'a [f32]>,
    softcap: Option<f32>,
    sink: Option<f32>,
}

impl Head<'_> {
    /// The weighted sum of values over keys and values at their positions.
    fn attend(&self, seen: &[(usize, &[f32], &[f32])], out: &mut [f32]) {
        let score = |(position, key, _): &(usize, &[f32], &[f32])| {
            let distance = *position as f32 - self.position as f32;
            let bias = self.bias.map_or(0.0, |bias| {
                let most = (bias.len() / 2) as f32;
                bias[(distance.clamp(-most, most) + most) as usize]
            });
            let score = dot(self.query, key) * self.scale + self.slope * distance + bias;
            self.softcap.map_or(score, |cap| cap * (score / cap).tanh())
        };
        let scores: Vec<f32> = seen.iter().map(score).collect();
        let most = scores.iter().copied().chain(self.sink).fold(f32::NEG_INFINITY, f32::max);
        let exp = |score: f32| f64::from(score - most).exp();
        let total: f64 = scores.iter().copied().chain(self.sink).map(exp).sum();
        for (i, out) in out.iter_mut().enumerate() {
            let terms = scores.iter().zip(seen).map(|(s, (_, _, v))| exp(*s) * f64::from(v[i]));
            *out = (terms.sum::<f64>() / total) as f32;
        }
    }
}

/// Whether a query at position `p` sees a key at position `t`, both being of one sequence.
fn sees(gqa: &Gqa, p: usize, t: usize) -> bool {
    let within = |n: usize| if t <= p { p - t < n } else { t - p < n };
    gqa.window.is_none_or(within) && gqa.segment.is_none_or(|n| t / n == p / n)
}

impl PlainDevice {
    pub(super) fn project_grouped(
        &self,
        op: &AttentionOp<'_, Self>,
        x: &Rows,
        kv: &mut PlainKv,
        qkv: &mut Rows,
    ) {
        let gqa = op.gqa;
        linear(&op.weights.qkv, x, qkv);
        let slots = op.rows.slots(op.group);
        for (row, all) in qkv.values.chunks_exact_mut(gqa.qkv_width()).enumerate() {
            let position = op.rows.positions[row];
            if let Some(most) = gqa.clip {
                all.iter_mut().for_each(|x| *x = x.clamp(-most, most));
            }
            let (q, rest) = all[gqa.gate_width()..].split_at_mut(gqa.q_width());
            let (k, v) = rest.split_at_mut(rest.len() / 2);
            let norms = [&op.weights.q_norm, &op.weights.k_norm];
            for (heads, norm) in [&mut *q, &mut *k].into_iter().zip(norms) {
                if let (Some(norm), Some(kind)) = (norm, gqa.qk_norm) {
                    norm_heads(heads, norm, kind, gqa.head_dim);
                }
                if let Some(rope) = gqa.rope {
                    for head in heads.chunks_exact_mut(gqa.head_dim) {
                        rotate(head, &self.ropes[rope], position, false);
                    }
                }
            }
            if let Some(norm) = &op.weights.v_norm {
                norm_heads(v, norm, QkNorm::HeadRms, gqa.head_dim);
            }
            if let Some(temperature) = gqa.temperature {
                q.iter_mut().for_each(|q| *q *= temperature.at(position));
            }
            if gqa.kv_of.is_none() {
                kv.store(op.place, slots[row], k, v);
            }
        }
    }

    pub(super) fn attend_grouped(
        &self,
        op: &AttentionOp<'_, Self>,
        qkv: &Rows,
        kv: &PlainKv,
        out: &mut Rows,
    ) {
        let gqa = op.gqa;
        let heads_per_kv = gqa.n_heads / gqa.n_kv_heads;
        let outs = out.reset(qkv.n());
        for ((row, all), out) in qkv.iter().enumerate().zip(outs) {
            let (sequence, own_row) = place_of(&op.rows, row);
            let position = op.rows.positions[row];
            let size = kv.shape.block_size;
            let mut slots = seen(sequence, own_row, op.group, size, gqa.is_causal);
            slots.retain(|(t, _)| sees(gqa, position, *t));
            for (h, out) in out.chunks_exact_mut(gqa.head_dim).enumerate() {
                let load = |&(t, slot): &(usize, u32)| {
                    let (key, value) = kv.load(op.place, slot, h / heads_per_kv);
                    (t, key, value)
                };
                let seen: Vec<_> = slots.iter().map(load).collect();
                let head = Head {
                    query: &all[gqa.gate_width() + h * gqa.head_dim..][..gqa.head_dim],
                    position,
                    scale: gqa.scale,
                    slope: op.weights.slopes.as_ref().map_or(0.0, |slopes| slopes[h]),
                    bias: (op.weights.bias.as_ref())
                        .and_then(|bias| bias.chunks_exact(bias.len() / gqa.n_heads).nth(h)),
                    softcap: gqa.softcap,
                    sink: op.weights.sinks.as_ref().map(|sinks| sinks[h]),
                };
                head.attend(&seen, out);
                if gqa.is_gated {
                    let gate = &all[h * gqa.head_dim..][..gqa.head_dim];
                    let sigmoid = |x: &f32| 1.0 / (1.0 + (-f64::from(*x)).exp());
                    out.iter_mut().zip(gate).for_each(|(out, x)| *out *= sigmoid(x) as f32);
                }
            }
        }
    }

    /// The absorbed form of latent attention (DeepSeek-AI, 2024): see `Mla`.
    pub(super) fn project_latent(
        &self,
        op: &LatentOp<'_, Self>,
        x: &Rows,
        kv: &mut PlainKv,
        out: &mut Rows,
    ) {
        let (mla, weights) = (op.mla, op.weights);
        let table = mla.rope.map(|rope| &self.ropes[rope]);
        let turn = |x: &mut [f32], position| {
            if let Some(table) = table {
                rotate(x, table, position, mla.is_rope_in_pairs);
            }
        };
        let slots = op.rows.slots(op.group);
        let mut projected = Rows { width: mla.down_width(), values: Vec::new() };
        linear(&weights.down, x, &mut projected);
        let outs = out.reset(x.n());
        for ((row, projected), out) in projected.iter().enumerate().zip(outs) {
            let position = op.rows.positions[row];
            let (for_queries, latent) = projected.split_at(mla.q_down_width());
            let (latent, rotated) = latent.split_at(mla.kv_rank);
            let mut key = rms_norm(latent, &weights.kv_norm.weight, weights.kv_norm.eps);
            key.extend_from_slice(rotated);
            turn(&mut key[mla.kv_rank..], position);
            kv.store(op.place, slots[row], &key, &[]);

            let mut queries = for_queries.to_vec();
            if let (Some(up), Some(norm)) = (&weights.q_up, &weights.q_norm) {
                let normed = rms_norm(&queries, &norm.weight, norm.eps);
                let latents = Rows { width: normed.len(), values: normed };
                let mut q = Rows { width: mla.q_width(), values: Vec::new() };
                linear(up, &latents, &mut q);
                queries = q.values;
            }
            let heads = queries.chunks_exact_mut(mla.nope_dim + mla.rope_dim);
            for (h, (q, out)) in heads.zip(out.chunks_exact_mut(mla.key_dim())).enumerate() {
                let (nope, rope) = q.split_at_mut(mla.nope_dim);
                turn(rope, position);
                for (i, out) in out[..mla.kv_rank].iter_mut().enumerate() {
                    *out = dot(weights.k_up.row(h * mla.kv_rank + i), nope);
                }
                out[mla.kv_rank..].copy_from_slice(rope);
            }
        }
    }

    pub(super) fn attend_latent(
        &self,
        op: &LatentOp<'_, Self>,
        q: &Rows,
        kv: &PlainKv,
        out: &mut Rows,
    ) {
        let mla = op.mla;
        let outs = out.reset(q.n());
        for ((row, queries), out) in q.iter().enumerate().zip(outs) {
            let (sequence, own_row) = place_of(&op.rows, row);
            let slots = seen(sequence, own_row, op.group, kv.shape.block_size, true);
            let load = |&(t, slot): &(usize, u32)| {
                let (key, value) = kv.load(op.place, slot, 0);
                (t, key, value)
            };
            let seen: Vec<_> = slots.iter().map(load).collect();
            let heads = queries.chunks_exact(mla.key_dim());
            for (h, (query, out)) in heads.zip(out.chunks_exact_mut(mla.value_dim)).enumerate() {
                let position = op.rows.positions[row];
                let head = Head {
                    query,
                    position,
                    scale: mla.scale,
                    slope: 0.0,
                    bias: None,
                    softcap: None,
                    sink: None,
                };
                let mut latent = vec![0.0; mla.kv_rank];
                head.attend(&seen, &mut latent);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = dot(op.weights.v_up.row(h * mla.value_dim + i), &latent);
                }
            }
        }
    }
}

/// The sequence of a row, and which of its rows it is.
fn place_of<'a>(rows: &StepRows<'a>, row: usize) -> (&'a ForwardSequence<'a>, usize) {
    let sequence = &rows.sequences[rows.sequence_of[row] as usize];
    (sequence, row - sequence.rows.start)
}

impl CrossOps for PlainDevice {
    fn store_source(
        &mut self,
        op: &CrossOp<'_, Self>,
        x: &Rows,
        kv: &mut PlainKv,
        kv_rows: &mut Rows,
    ) {
        linear(&op.weights.kv, x, kv_rows);
        for (row, slot) in kv_rows.iter().zip(op.rows.slots(op.group)) {
            let (key, value) = row.split_at(op.cross.width());
            kv.store(op.place, *slot, key, value);
        }
    }

    fn cross_attention(&mut self, op: &CrossOp<'_, Self>, q: &Rows, kv: &PlainKv, out: &mut Rows) {
        let (dim, scale) = (op.cross.head_dim, op.cross.scale);
        let outs = out.reset(q.n());
        for ((row, q), out) in q.iter().enumerate().zip(outs) {
            let (sequence, _) = place_of(&op.rows, row);
            for (h, out) in out.chunks_exact_mut(dim).enumerate() {
                let load = |place| {
                    let slot = slot_of(sequence, op.group, kv.shape.block_size, place);
                    let (key, value) = kv.load(op.place, slot, h);
                    (place, key, value)
                };
                let seen: Vec<_> = (0..sequence.n_source).map(load).collect();
                let query = &q[h * dim..][..dim];
                let head = Head {
                    query,
                    position: 0,
                    scale,
                    slope: 0.0,
                    bias: None,
                    softcap: None,
                    sink: None,
                };
                head.attend(&seen, out);
            }
        }
    }
}
