//! A sequence, the ways to ask for its attention, and the formula.

use std::fmt;

use crate::ops::kv::tests::rounded;
use crate::testing::Random;
use crate::{
    AttentionInput, AttentionSeq, Cpu, DistanceBias, KvCache, KvDtype, KvShape, StoreKv,
    StridedRows,
};

/// A sequence's keys and values, and how attention is to read them.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    /// Elements of a key.
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    /// Whether values are the beginnings of the keys, and not stored.
    pub(super) values_in_keys: bool,
    pub(super) block_size: usize,
    pub(super) dtype: KvDtype,
    pub(super) window: Option<usize>,
    pub(super) ahead: usize,
    pub(super) segment: Option<usize>,
    pub(super) softcap: Option<f32>,
    pub(super) slopes: Option<Vec<f32>>,
    /// Biases by distance, up to this one.
    pub(super) bias: Option<(Vec<f32>, usize)>,
    pub(super) sinks: Option<Vec<f32>>,
    /// Parents of the last tokens, which are a tree of drafts.
    pub(super) tree: Option<Vec<u32>>,
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
}

impl Case {
    /// A sequence of `n` tokens.
    pub(super) fn new(
        random: &mut Random,
        n: usize,
        heads: (usize, usize),
        head_dim: usize,
    ) -> Self {
        let (n_heads, n_kv_heads) = heads;
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            value_dim: head_dim,
            values_in_keys: false,
            block_size: 16,
            dtype: KvDtype::F32,
            window: None,
            ahead: 0,
            segment: None,
            softcap: None,
            slopes: None,
            bias: None,
            sinks: None,
            tree: None,
            q: random.normals(n * n_heads * head_dim),
            k: random.normals(n * n_kv_heads * head_dim),
            v: random.normals(n * n_kv_heads * head_dim),
        }
    }

    /// The same with values of `value_dim` elements, the beginnings of the keys; stored beside
    /// these, or not.
    pub(super) fn with_latent_values(mut self, value_dim: usize, values_in_keys: bool) -> Self {
        let keys = self.k.chunks(self.head_dim);
        self.v = keys.flat_map(|key| &key[..value_dim]).copied().collect();
        Self { value_dim, values_in_keys, ..self }
    }

    pub(super) fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    pub(super) fn out_width(&self) -> usize {
        self.n_heads * self.value_dim
    }

    pub(super) fn n_tokens(&self) -> usize {
        self.q.len() / self.width()
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// A cache of two layers with room for the sequence and some more, and a block table that
    /// `seed` scatters over it.
    pub(super) fn place(&self, seed: u64) -> (KvCache, Vec<u32>) {
        let n = self.n_tokens().div_ceil(self.block_size);
        let n_blocks = n + 3;
        let kv = KvCache::new(KvShape {
            n_layers: 2,
            n_blocks,
            block_size: self.block_size,
            n_kv_heads: self.n_kv_heads,
            key_dim: self.head_dim,
            value_dim: self.value_dim,
            values_in_keys: self.values_in_keys,
            dtype: self.dtype,
            gap: 0,
        });
        let mut random = Random::new(seed);
        let mut table: Vec<u32> = (0..n_blocks as u32).collect();
        for i in (1..table.len()).rev() {
            table.swap(i, random.below(i + 1));
        }
        table.truncate(n);
        (kv, table)
    }

    pub(super) fn store(
        &self,
        cpu: &Cpu,
        kv: &mut KvCache,
        table: &[u32],
        tokens: std::ops::Range<usize>,
    ) {
        let (width, value_width) =
            (self.n_kv_heads * self.head_dim, self.n_kv_heads * self.value_dim);
        let slots: Vec<u32> = tokens
            .clone()
            .map(|t| {
                table[t / self.block_size] * self.block_size as u32 + (t % self.block_size) as u32
            })
            .collect();
        let k = StridedRows::dense(&self.k[tokens.start * width..tokens.end * width], width);
        let values = &self.v[tokens.start * value_width..tokens.end * value_width];
        let v = (!self.values_in_keys).then(|| StridedRows::dense(values, value_width));
        cpu.store_kv(kv, 1, &StoreKv { k, v, slots: &slots });
    }

    pub(super) fn input<'a>(
        &'a self,
        q: &'a [f32],
        sequences: &'a [AttentionSeq<'a>],
    ) -> AttentionInput<'a> {
        AttentionInput {
            q: StridedRows::dense(q, self.width()),
            n_heads: self.n_heads,
            sequences,
            scale: self.scale(),
            window: self.window,
            ahead: self.ahead,
            segment: self.segment,
            softcap: self.softcap,
            slopes: self.slopes.as_deref(),
            bias: self.bias.as_ref().map(|(values, reach)| DistanceBias { values, reach: *reach }),
            sinks: self.sinks.as_deref(),
        }
    }

    /// Tokens before the tree.
    pub(super) fn n_committed(&self) -> usize {
        self.n_tokens() - self.tree.as_ref().map_or(0, Vec::len)
    }

    /// The whole sequence in steps of `step` tokens, the tree in a step of its own; pages placed by
    /// `seed`.
    pub(super) fn run(&self, cpu: &Cpu, step: usize, seed: u64) -> Vec<f32> {
        let (mut kv, table) = self.place(seed);
        let mut out = Vec::new();
        let (n, n_committed, width) = (self.n_tokens(), self.n_committed(), self.width());
        let mut steps: Vec<_> = (0..n_committed)
            .step_by(step)
            .map(|first| (first..n_committed.min(first + step), None))
            .collect();
        if self.tree.is_some() {
            steps.push((n_committed..n, self.tree.as_deref()));
        }
        for (tokens, tree) in steps {
            self.store(cpu, &mut kv, &table, tokens.clone());
            let sequences = [AttentionSeq {
                rows: 0..tokens.len(),
                first_position: tokens.start,
                block_table: &table,
                tree,
            }];
            let mut rows = vec![f32::NAN; tokens.len() * self.out_width()];
            let q = &self.q[tokens.start * width..tokens.end * width];
            cpu.paged_attention(&kv, 1, &self.input(q, &sequences), &mut rows);
            out.extend(rows);
        }
        out
    }

    /// Only the last `n_rows` rows, everything before being in the cache.
    pub(super) fn run_last(&self, cpu: &Cpu, n_rows: usize, seed: u64) -> Vec<f32> {
        let (mut kv, table) = self.place(seed);
        let n = self.n_tokens();
        self.store(cpu, &mut kv, &table, 0..n);
        let sequences = [AttentionSeq {
            rows: 0..n_rows,
            first_position: n - n_rows,
            block_table: &table,
            tree: None,
        }];
        let mut out = vec![f32::NAN; n_rows * self.out_width()];
        let q = &self.q[(n - n_rows) * self.width()..];
        cpu.paged_attention(&kv, 1, &self.input(q, &sequences), &mut out);
        out
    }

    /// Tokens that `row` sees, in the order in which they count.
    pub(super) fn seen(&self, row: usize) -> Vec<usize> {
        let n = self.n_committed();
        let mut seen: Vec<usize> = (0..n.min(row + 1)).collect();
        if let Some(tree) = self.tree.as_ref().filter(|_| row >= n) {
            let mut node = (row - n) as u32;
            while node != AttentionSeq::ROOT {
                seen.insert(n, n + node as usize);
                node = tree[node as usize];
            }
        }
        let hidden = self.window.map_or(0, |window| seen.len().saturating_sub(window));
        let before = self.segment.map_or(0, |n| (seen.len() - 1) / n * n);
        let hidden = hidden.max(before);
        let mut seen = seen.split_off(hidden);
        seen.extend((row + 1..self.n_tokens()).take(self.ahead));
        seen
    }

    /// The formula, in f64.
    pub(super) fn naive(&self) -> Vec<f64> {
        let (n, dim, group) = (self.n_tokens(), self.head_dim, self.n_heads / self.n_kv_heads);
        let stored = |x: &[f32], dim| -> Vec<f64> {
            let heads = x.chunks(dim).flat_map(|head| rounded(self.dtype, head));
            heads.map(f64::from).collect()
        };
        let k = stored(&self.k, dim);
        let v: Vec<f64> = match self.values_in_keys {
            // As they are stored, which is with the rest of the key.
            true => k.chunks(dim).flat_map(|key| &key[..self.value_dim]).copied().collect(),
            false => stored(&self.v, self.value_dim),
        };
        let mut out = vec![0.0; n * self.out_width()];
        for row in 0..n {
            let seen = self.seen(row);
            for head in 0..self.n_heads {
                let kv_head = |t: usize| t * self.n_kv_heads + head / group;
                let at = |t: usize| kv_head(t) * dim;
                let mine = (row * self.n_heads + head) * dim;
                let to = (row * self.n_heads + head) * self.value_dim;
                let q = &self.q[mine..mine + dim];
                // Queries that are multiplied as bf16 are rounded with their scale.
                let q: Vec<f64> = if self.has_bf16_products() {
                    let scaled: Vec<f32> = q.iter().map(|q| q * self.scale()).collect();
                    rounded(KvDtype::Bf16, &scaled).into_iter().map(f64::from).collect()
                } else {
                    q.iter().map(|&q| f64::from(q) * f64::from(self.scale())).collect()
                };
                let slope = self.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
                let score = |(i, &t): (usize, &usize)| {
                    let dot: f64 = q.iter().zip(&k[at(t)..]).map(|(q, k)| q * k).sum();
                    let back = (seen.len() - 1 - i) as f64;
                    let distance = if self.ahead > 0 { t as f64 - row as f64 } else { -back };
                    let score = dot - slope * back;
                    let score = score + self.bias_at(head, distance as isize);
                    self.softcap
                        .map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let scores: Vec<f64> = seen.iter().enumerate().map(score).collect();
                let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
                for (&t, score) in seen.iter().zip(&scores) {
                    let weight = (score - max).exp() / sum;
                    for i in 0..self.value_dim {
                        out[to + i] += weight * v[kv_head(t) * self.value_dim + i];
                    }
                }
            }
        }
        out
    }

    /// The bias of a head at a distance; 0 where there are none.
    fn bias_at(&self, head: usize, distance: isize) -> f64 {
        let Some((values, reach)) = &self.bias else { return 0.0 };
        let most = *reach as isize;
        let entry = (distance.clamp(-most, most) + most) as usize;
        f64::from(values[head * (2 * reach + 1) + entry])
    }

    /// Whether queries and weights are rounded to bf16.
    fn has_bf16_products(&self) -> bool {
        matches!(self.dtype, KvDtype::Bf16 | KvDtype::Fp8 | KvDtype::Int8)
    }

    /// The factor that a stored element, a query and a weight are within, where it is not 1.
    fn tolerance(&self) -> f64 {
        match self.dtype {
            // Weights are rounded to 8 bits, which errs on both sides of a quotient.
            KvDtype::Bf16 | KvDtype::Fp8 => 2_f64.powi(-8),
            // They are rounded with the scales of values, and only above the line.
            KvDtype::Int8 => 2_f64.powi(-7),
            KvDtype::F32 | KvDtype::F16 => 3e-6,
        }
    }

    /// Fails where `got` is not close to the formula.
    pub(super) fn assert_close(&self, got: &[f32]) {
        for (i, (&got, expected)) in got.iter().zip(self.naive()).enumerate() {
            let error = (f64::from(got) - expected).abs();
            assert!(
                error < self.tolerance() * (1.0 + expected.abs()),
                "{self}: element {i}: {error}"
            );
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tokens, {}/{} heads of {} and {}{}, blocks of {}, {}, window {:?}, {} ahead, \
             segment {:?}, softcap {:?}, slopes {:?}, bias {:?}, sinks {:?}, tree {:?}",
            self.n_tokens(),
            self.n_heads,
            self.n_kv_heads,
            self.head_dim,
            self.value_dim,
            if self.values_in_keys { " within" } else { "" },
            self.block_size,
            self.dtype,
            self.window,
            self.ahead,
            self.segment,
            self.softcap,
            self.slopes,
            self.bias,
            self.sinks,
            self.tree,
        )
    }
}
