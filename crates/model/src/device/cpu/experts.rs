//! A mixture of experts on the CPU: all rows of a step at once, grouped by expert.
//!
//! ```text
//! x [m]  ── router ──> top_k experts of each row
//! (row, slot) sorted by expert, of one expert by row:
//!         | 0 0 0 | 3 | 5 5 5 5 5 5 | 6 6 | ..        [m top_k] rows, gathered from x
//!           W0      W3   W5           W6              one run: gate·up, one run: down
//! out[r] = Σ slots, ascending: weight · row of (r, slot)        the shared expert in the last slot
//! ```
//!
//! Where experts work in a smaller width, `x` above is its projection to that width, the sum is of the
//! experts alone, and its projection back is the first of two slots beside the shared expert.
//!
//! A single row is not gathered: every group reads it where it is, in the form that the norm wrote for
//! the experts.
//!
//! **Canonical order.** A row's slots are summed in the order in which its router chose them (the
//! greatest first, of equals the lower index), the shared expert last. The sorting decides only where a
//! product is computed; see [`matmul_groups`](pelton_kernels::Cpu::matmul_groups).
//!
//! Bytes and operations are those of the grouped products: `top_k` experts at one row, all experts once
//! a step has some `E / top_k` rows; everything else is a thousandth of them.
//!
//! Matrices that read their inputs in another order (act-order) are multiplied expert by expert.

use std::ops::Range;

use pelton_kernels::{Activations, Chosen, Cpu, Forms, MatmulGroup, MatmulGroups};
use pelton_tensor::AlignedVec;

use super::CpuDevice;
use super::linear::{Input, handed_to, multiply, read_by};
use crate::device::ExpertRows;
use crate::layer::{
    Linear, Module, Moe, MoeWeights, Norm, SharedExpert, SharedWeights, WithExperts,
    WithExpertsWeights,
};

/// Scratch of mixtures, kept from step to step.
#[derive(Debug)]
pub(super) struct Experts {
    /// `[m, n_experts]`.
    logits: Vec<f32>,
    ranks: Vec<u32>,
    /// `[m, top_k]`.
    chosen: Vec<u32>,
    weights: Vec<f32>,
    sorted: Sorted,
    gathered: Activations,
    /// Gate and up of the sorted rows, or up alone.
    hidden: AlignedVec<f32>,
    activated: Activations,
    /// Outputs of the experts, then those of the shared expert.
    given: AlignedVec<f32>,
    /// Inputs of the experts in their own width, then the weighted sums of their outputs.
    latent: Vec<f32>,
    sums: Activations,
    products: Products,
}

/// Scratch of a perceptron and experts side by side, each `[m, hidden]`.
#[derive(Debug)]
pub(super) struct Beside {
    normed: Activations,
    /// The norm that the router reads.
    routed: Activations,
    /// The output of one of the two before its norm.
    given: Activations,
    /// The normed output of the perceptron.
    perceptron: Activations,
}

impl Beside {
    pub(super) fn new() -> Self {
        let rows = || Activations::new(1, Forms::F32);
        Self { normed: rows(), routed: rows(), given: rows(), perceptron: rows() }
    }
}

/// Rows in the order of their experts.
#[derive(Debug, Default)]
struct Sorted {
    /// First sorted row of each expert, and their number.
    starts: Vec<u32>,
    /// Row of the input of each sorted row.
    sources: Vec<u32>,
    /// The weight of each sorted row.
    factors: Vec<f32>,
    /// Sorted row of each slot of each row; one slot more for the shared expert.
    places: Vec<u32>,
    /// The weight of each slot.
    weights: Vec<f32>,
}

/// Products of sorted rows.
#[derive(Debug)]
struct Products {
    groups: MatmulGroups,
    /// Expert and piece of each group.
    matrices: Vec<(usize, usize)>,
    /// The rows of one expert, where experts are multiplied one by one.
    rows: Activations,
}

impl Experts {
    pub(super) fn new() -> Self {
        let rows = || Activations::new(1, Forms::F32);
        Self {
            logits: Vec::new(),
            ranks: Vec::new(),
            chosen: Vec::new(),
            weights: Vec::new(),
            sorted: Sorted::default(),
            gathered: rows(),
            hidden: AlignedVec::new(),
            activated: rows(),
            given: AlignedVec::new(),
            latent: Vec::new(),
            sums: rows(),
            products: Products {
                groups: MatmulGroups::default(),
                matrices: Vec::new(),
                rows: rows(),
            },
        }
    }
}

impl Experts {
    /// The experts that had rows in the last mixture.
    pub(super) fn each_expert(&self, each: &mut dyn FnMut(ExpertRows<'_>)) {
        let Self { sorted, activated, .. } = self;
        let width = activated.width();
        for (expert, own) in sorted.experts() {
            each(ExpertRows {
                expert,
                rows: &sorted.sources[own.clone()],
                weights: &sorted.factors[own.clone()],
                hidden: &activated.floats()[own.start * width..own.end * width],
            });
        }
    }

    /// The weighted sums of the last mixture of experts in a width of their own.
    pub(super) fn sums(&self) -> &[f32] {
        self.sums.floats()
    }
}

impl Sorted {
    /// Sorts the slots of all rows by expert, those of one expert by row.
    fn sort(&mut self, chosen: &[u32], weights: &[f32], n_experts: usize, top_k: usize) {
        self.starts.clear();
        self.starts.resize(n_experts + 1, 0);
        chosen.iter().for_each(|expert| self.starts[*expert as usize + 1] += 1);
        for expert in 0..n_experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        self.sources.resize(chosen.len(), 0);
        self.factors.resize(chosen.len(), 0.0);
        self.places.clear();
        self.weights.clear();
        for (slot, expert) in chosen.iter().enumerate() {
            // Afterwards each start is the end: the start of the next one.
            let next = &mut self.starts[*expert as usize];
            let place = *next as usize;
            *next += 1;
            self.sources[place] = (slot / top_k) as u32;
            self.factors[place] = weights[slot];
            self.places.push(place as u32);
            self.weights.push(weights[slot]);
        }
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// Inserts one more slot into each row: the shared expert, whose rows follow the sorted ones.
    fn add_shared(&mut self, top_k: usize, weights: &[f32]) {
        let (m, n_sorted) = (weights.len(), self.sources.len());
        self.places.resize(m * (top_k + 1), 0);
        self.weights.resize(m * (top_k + 1), 0.0);
        for row in (0..m).rev() {
            let (from, to) = (row * top_k, row * (top_k + 1));
            self.places.copy_within(from..from + top_k, to);
            self.weights.copy_within(from..from + top_k, to);
            self.places[to + top_k] = (n_sorted + row) as u32;
            self.weights[to + top_k] = weights[row];
        }
    }

    /// Two slots for each row: the projected sum of its experts, and the shared expert, whose rows
    /// follow.
    fn set_projected(&mut self, weights: &[f32]) {
        let m = weights.len();
        self.places.clear();
        self.weights.clear();
        for (row, &weight) in weights.iter().enumerate() {
            self.places.extend([row as u32, (m + row) as u32]);
            self.weights.extend([1.0, weight]);
        }
    }

    /// The experts that have rows, with their sorted rows.
    fn experts(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let ranges = self.starts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        ranges.enumerate().filter(|(_, rows)| !rows.is_empty())
    }
}

/// The forms of input that the projections of the experts with rows read.
fn read_by_chosen<'a>(
    cpu: &Cpu,
    sorted: &Sorted,
    linear: &dyn Fn(usize) -> &'a Linear<CpuDevice>,
) -> Forms {
    let mut linears = sorted.experts().map(|(expert, _)| linear(expert));
    if linears.any(Linear::is_reordered) {
        return Forms::F32;
    }
    let linears = sorted.experts().map(|(expert, _)| linear(expert));
    read_by(cpu, linears.flat_map(Linear::weights))
}

/// Rows that the experts read.
struct Source<'a> {
    /// `[m, width]`.
    floats: &'a [f32],
    width: usize,
    /// The same rows in the forms that a norm wrote.
    formed: Option<&'a Activations>,
}

/// Input of a product.
struct Factor<'a> {
    sorted: &'a Sorted,
    /// The sorted rows, or one row that all experts read.
    x: &'a Activations,
    is_one_row: bool,
}

impl Products {
    /// `y = x Wᵀ + b`, each sorted row by the matrix of its expert.
    fn multiply<'a>(
        &mut self,
        cpu: &Cpu,
        input: &mut Input,
        linear: &(dyn Fn(usize) -> &'a Linear<CpuDevice> + Sync),
        rows: &Factor<'_>,
        y: &mut [f32],
    ) {
        let &Factor { sorted, x, is_one_row } = rows;
        let n = linear(0).n;
        if sorted.experts().any(|(expert, _)| linear(expert).is_reordered()) {
            for (expert, rows) in sorted.experts() {
                let k = x.width();
                let own = if is_one_row { 0..1 } else { rows.clone() };
                self.rows.reset(k, Forms::F32);
                let floats = &x.floats()[own.start * k..own.end * k];
                self.rows.floats_mut(rows.len()).copy_from_slice(floats);
                let y = &mut y[rows.start * n..rows.end * n];
                multiply(cpu, input, linear(expert), &self.rows, y);
            }
            return;
        }
        let n_experts = sorted.starts.len() - 1;
        let most = (0..n_experts).map(|expert| linear(expert).pieces.len()).sum();
        self.groups.clear(most);
        self.matrices.clear();
        self.matrices.reserve(most);
        for (expert, rows) in sorted.experts() {
            for (idx, piece) in linear(expert).pieces.iter().enumerate() {
                let x_row = if is_one_row { 0 } else { rows.start };
                let (y_row, n_rows, offset) = (rows.start, rows.len(), piece.first_row);
                self.groups.push(MatmulGroup { x_row, y_row, n_rows, offset });
                self.matrices.push((expert, idx));
            }
        }
        let matrices = &self.matrices;
        let matrix = |group: usize| {
            let (expert, piece) = matrices[group];
            &linear(expert).pieces[piece].weight
        };
        cpu.matmul_groups(&mut self.groups, &matrix, x, y, n);
        for (expert, rows) in sorted.experts() {
            if let Some(bias) = &linear(expert).bias {
                cpu.add_bias(&mut y[rows.start * n..rows.end * n], bias);
            }
        }
    }
}

impl CpuDevice {
    /// The weighted experts of each row plus the shared expert; the router reads the first rows, and the
    /// experts the second ones. `out`: `[m, hidden]`.
    pub(super) fn mixture(
        &mut self,
        (spec, moe): (&Moe, &MoeWeights<Self>),
        [routed, x]: [&Activations; 2],
        out: &mut [f32],
    ) {
        let mut scratch = std::mem::replace(&mut self.experts, Experts::new());
        self.choose((spec, moe), routed, &mut scratch);
        match &moe.latent {
            None => self.sum_experts((spec, moe), x, &mut scratch, out),
            Some(latent) => self.sum_projected((spec, moe), latent, x, &mut scratch, out),
        }
        self.experts = scratch;
    }

    /// [`mixture`](Self::mixture) of experts as wide as the model.
    fn sum_experts(
        &mut self,
        (spec, moe): (&Moe, &MoeWeights<Self>),
        x: &Activations,
        scratch: &mut Experts,
        out: &mut [f32],
    ) {
        let (m, hidden, top_k) = (x.n_rows(), x.width(), spec.router.top_k);
        let n_sorted = m * top_k;
        let n_shared = if moe.shared.is_some() { m } else { 0 };
        scratch.given.resize((n_sorted + n_shared) * hidden);
        self.run_experts(
            (spec, moe),
            Source { floats: x.floats(), width: hidden, formed: Some(x) },
            scratch,
        );
        let Experts { given, logits, sorted, .. } = scratch;
        if let Some(shared) = &moe.shared {
            self.run_shared(spec.has_gates, shared, x, logits, &mut given[n_sorted * hidden..]);
            sorted.add_shared(top_k, logits);
        }
        self.cpu.weighted_sum(given, &sorted.places, &sorted.weights, hidden, out);
    }

    /// [`mixture`](Self::mixture) of experts behind `latent`, the projections to and from their width.
    fn sum_projected(
        &mut self,
        (spec, moe): (&Moe, &MoeWeights<Self>),
        latent: &[Linear<Self>; 2],
        x: &Activations,
        scratch: &mut Experts,
        out: &mut [f32],
    ) {
        let [down, up] = latent;
        let (m, hidden, width) = (x.n_rows(), x.width(), down.n);
        let mut rows = std::mem::take(&mut scratch.latent);
        rows.resize(m * width, 0.0);
        multiply(&self.cpu, &mut self.input, down, x, &mut rows);
        scratch.given.resize(m * spec.router.top_k * width);
        self.run_experts((spec, moe), Source { floats: &rows, width, formed: None }, scratch);
        let Experts { given, logits, sorted, sums, .. } = scratch;
        self.cpu.weighted_sum(given, &sorted.places, &sorted.weights, width, &mut rows);
        sums.reset(width, handed_to(&self.cpu, up));
        self.cpu.write_rows(&rows, sums);
        scratch.latent = rows;
        let Some(shared) = &moe.shared else {
            return multiply(&self.cpu, &mut self.input, up, sums, out);
        };
        given.resize(2 * m * hidden);
        let (by_experts, by_all) = given.split_at_mut(m * hidden);
        multiply(&self.cpu, &mut self.input, up, sums, by_experts);
        self.run_shared(spec.has_gates, shared, x, logits, by_all);
        sorted.set_projected(logits);
        self.cpu.weighted_sum(given, &sorted.places, &sorted.weights, hidden, out);
    }

    /// Runs the chosen experts on `x`; their outputs, by sorted row, go to the beginning of
    /// `scratch.given`.
    fn run_experts(
        &mut self,
        (spec, moe): (&Moe, &MoeWeights<Self>),
        x: Source<'_>,
        scratch: &mut Experts,
    ) {
        let Experts { sorted, gathered, hidden: gate_up, activated, given, products, .. } = scratch;
        let n_sorted = sorted.sources.len();
        let up = |expert: usize| &moe.experts[expert].up;
        let forms = read_by_chosen(&self.cpu, sorted, &up);
        // A single row, where it lies, in the forms that the norm wrote for the experts.
        let one_row =
            x.formed.filter(|x| x.n_rows() == 1 && !spec.weighs_input && x.forms().include(forms));
        if one_row.is_none() {
            gathered.reset(x.width, forms);
            let factors = spec.weighs_input.then_some(&*sorted.factors);
            self.cpu.gather_rows(x.floats, &sorted.sources, factors, gathered);
        }
        let (x, is_one_row) = (one_row.unwrap_or(gathered), one_row.is_some());
        gate_up.resize(n_sorted * up(0).n);
        products.multiply(
            &self.cpu,
            &mut self.input,
            &up,
            &Factor { sorted, x, is_one_row },
            gate_up,
        );
        let down = |expert: usize| &moe.experts[expert].down;
        let ffn = down(0).k;
        if let Some(limit) = spec.limit {
            self.cpu.limit_gate_up(gate_up, ffn, limit);
        }
        activated.reset(ffn, read_by_chosen(&self.cpu, sorted, &down));
        match spec.has_gates {
            true => self.cpu.gated_mul(spec.expert.act, gate_up, activated),
            false => self.cpu.activate(spec.expert.act, gate_up, activated),
        }
        let rows = Factor { sorted, x: activated, is_one_row: false };
        let given = &mut given[..n_sorted * down(0).n];
        products.multiply(&self.cpu, &mut self.input, &down, &rows, given);
    }

    /// The shared expert of each row, `[m, hidden]`, and its factors.
    fn run_shared(
        &mut self,
        has_gates: bool,
        shared: &Module<SharedExpert, SharedWeights<Self>>,
        x: &Activations,
        factors: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let Module { spec, weights } = shared;
        self.perceptron(&weights.mlp, (spec.mlp.act, has_gates, None), x, out);
        factors.clear();
        factors.resize(x.n_rows(), 1.0);
        if let Some(switch) = &weights.switch {
            multiply(&self.cpu, &mut self.input, switch, x, factors);
            factors.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
        }
    }

    /// A perceptron and experts, each between its norms. `x`, `out`: `[m, hidden]`.
    pub(super) fn side_by_side(
        &mut self,
        both: &Module<WithExperts, WithExpertsWeights<Self>>,
        x: &Activations,
        out: &mut [f32],
    ) {
        let Module { spec, weights } = both;
        let mut scratch = std::mem::replace(&mut self.beside, Beside::new());
        let Beside { normed, routed, given, perceptron } = &mut scratch;
        let (m, hidden) = (x.n_rows(), x.width());
        for rows in [&mut *normed, routed, given, perceptron] {
            rows.reset(hidden, Forms::F32);
        }
        let [mlp_in, mlp_out] = &weights.mlp_norms;
        let [experts_in, experts_out] = &weights.expert_norms;
        let norm = |cpu: &Cpu, x: &Activations, norm: &Norm<Self>, out: &mut Activations| {
            cpu.rms_norm(x.floats(), &norm.weight, norm.eps, out);
        };
        norm(&self.cpu, x, mlp_in, normed);
        self.perceptron(&weights.mlp, spec.mlp.shape(), normed, given.floats_mut(m));
        norm(&self.cpu, given, mlp_out, perceptron);
        norm(&self.cpu, x, &weights.router_norm, routed);
        norm(&self.cpu, x, experts_in, normed);
        let moe = (&spec.experts, &weights.experts);
        self.mixture(moe, [routed, normed], given.floats_mut(m));
        norm(&self.cpu, given, experts_out, normed);
        out.copy_from_slice(perceptron.floats());
        self.cpu.add(out, normed.floats());
        self.beside = scratch;
    }

    /// Chooses the experts of each row, and sorts the rows by expert.
    fn choose(
        &mut self,
        (spec, moe): (&Moe, &MoeWeights<Self>),
        x: &Activations,
        scratch: &mut Experts,
    ) {
        let (m, n_experts, top_k) = (x.n_rows(), spec.router.n_experts, spec.router.top_k);
        let Experts { logits, ranks, chosen, weights, sorted, .. } = scratch;
        logits.resize(m * n_experts, 0.0);
        ranks.resize(m * n_experts, 0);
        chosen.resize(m * top_k, 0);
        weights.resize(m * top_k, 0.0);
        multiply(&self.cpu, &mut self.input, &moe.router, x, logits);
        let correction = moe.correction.as_deref();
        let choice = Chosen { experts: chosen, weights };
        self.cpu.route(&spec.router, logits, correction, ranks, choice);
        if let Some(scales) = &moe.scales {
            let chosen = chosen.iter().map(|expert| scales[*expert as usize]);
            weights.iter_mut().zip(chosen).for_each(|(weight, scale)| *weight *= scale);
        }
        sorted.sort(chosen, weights, n_experts, top_k);
        if spec.weighs_input {
            sorted.weights.fill(1.0);
        }
    }
}
