//! Whether a workload fits into memory; if not, by how much, and what would.

use pelton_model::{KvDtype, ModelOutline, StateDtype};
use pelton_quant::{FORMATS, WeightFormat};
use pelton_tensor::DType;
use serde::Serialize;

use crate::kv::KvSizes;
use crate::plan::Request;
use crate::ranks::RankSizes;
use crate::weights::{WeightSizes, Weights};
use crate::workspace::workspace_bytes;

/// Most ranks that are tried.
const MOST_RANKS: usize = 64;

/// The memory of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Bytes that there are.
    pub memory_bytes: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of keys and values of all sequences.
    pub kv_bytes: u64,
    /// Bytes of rows between operations and of logits.
    pub workspace_bytes: u64,
    /// Sum of the three.
    pub total_bytes: u64,
    /// Most sequences of this context that fit; any number where no keys and values are kept.
    #[serde(skip_serializing_if = "is_any")]
    pub n_sequences: usize,
    /// The missing bytes and the ways out, where the workload does not fit.
    pub shortage: Option<Shortage>,
}

fn is_any(n_sequences: &usize) -> bool {
    *n_sequences == usize::MAX
}

/// A workload that does not fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shortage {
    /// Bytes that are missing.
    pub missing_bytes: u64,
    /// Single changes with which it would fit; empty where none is enough.
    pub ways: Vec<Way>,
}

/// A change with which a workload fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Way {
    /// Fewer sequences.
    Batch {
        /// Most of them.
        batch: usize,
    },
    /// A shorter context.
    Context {
        /// Its most tokens, in whole blocks.
        context: usize,
    },
    /// Another type of keys and values.
    KvDtype {
        /// The most exact one that is small enough.
        kv_dtype: &'static str,
    },
    /// Store the states of recurrent layers in this type.
    StateDtype {
        /// Name of the type.
        state_dtype: &'static str,
    },
    /// Another format of weights.
    Weights {
        /// The largest one that is small enough.
        format: String,
        /// Bits per weight.
        bits_per_weight: f64,
    },
    /// More machines.
    Ranks {
        /// Fewest of them.
        ranks: usize,
    },
    /// More memory.
    Memory {
        /// Least bytes.
        memory_bytes: u64,
    },
}

/// Bytes that a workload takes on one rank.
struct Needs {
    weights: u64,
    kv: u64,
    workspace: u64,
}

impl Needs {
    fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.workspace)
    }
}

/// A workload whose parts can be changed one by one.
#[derive(Clone, Copy)]
struct Case<'a> {
    model: &'a ModelOutline,
    request: &'a Request<'a>,
    weights: Weights,
    kv_dtype: KvDtype,
    state_dtype: StateDtype,
    n_ranks: usize,
}

impl<'a> Case<'a> {
    fn new(model: &'a ModelOutline, request: &'a Request<'a>) -> Self {
        let Request { weights, kv_dtype, state_dtype, n_ranks, .. } = *request;
        Self { model, request, weights, kv_dtype, state_dtype, n_ranks }
    }

    fn kv(&self) -> KvSizes {
        let Request { block_tokens, context_tokens, .. } = *self.request;
        let spec = &self.model.spec;
        KvSizes::new(spec, self.kv_dtype, block_tokens, context_tokens)
            .with_states_in(spec, self.state_dtype)
    }

    fn ranks(&self) -> RankSizes {
        let sizes = WeightSizes::new(self.model, &self.weights, self.request.hardware);
        RankSizes::new(&self.model.spec, &sizes, (self.request.split, self.n_ranks))
    }

    fn needs(&self) -> Needs {
        let ranks = self.ranks();
        Needs {
            weights: ranks.weight_bytes,
            kv: ranks.kv_bytes(&self.kv(), self.request.batch),
            workspace: self.workspace(&ranks),
        }
    }

    fn workspace(&self, ranks: &RankSizes) -> u64 {
        let n_logits = ranks.sequences_of_rank(self.request.batch);
        workspace_bytes(&self.model.spec, self.request.step_tokens, n_logits)
    }

    fn fits(&self) -> bool {
        self.needs().total() <= self.request.memory_bytes
    }
}

impl Fit {
    pub(crate) fn new(model: &ModelOutline, request: &Request<'_>) -> Self {
        let case = Case::new(model, request);
        let needs = case.needs();
        let memory_bytes = request.memory_bytes;
        let total_bytes = needs.total();
        let room = case.room();
        Self {
            memory_bytes,
            weight_bytes: needs.weights,
            kv_bytes: needs.kv,
            workspace_bytes: needs.workspace,
            total_bytes,
            n_sequences: case.ranks().sequences_of_all(case.kv().n_sequences(room)),
            shortage: (total_bytes > memory_bytes)
                .then(|| Shortage { missing_bytes: total_bytes - memory_bytes, ways: case.ways() }),
        }
    }
}

impl Case<'_> {
    /// Bytes of keys and values, those of other ranks for the same sequences included, that the memory
    /// of one rank leaves room for.
    fn room(&self) -> u64 {
        let ranks = self.ranks();
        let left = self.request.memory_bytes.saturating_sub(ranks.weight_bytes);
        (left.saturating_sub(self.workspace(&ranks)) as f64 / ranks.kv_share) as u64
    }

    /// Every single change that is enough.
    fn ways(&self) -> Vec<Way> {
        let mut ways = if self.kv().is_kept { self.smaller_kv() } else { Vec::new() };
        ways.extend(self.largest_format());
        let can = |n_ranks: &usize| {
            self.request.split.refusal(&self.model.spec, *n_ranks).is_none()
                && Self { n_ranks: *n_ranks, ..*self }.fits()
        };
        let more = (self.n_ranks + 1..=MOST_RANKS).find(can);
        let is_linked = self.request.hardware.link_bandwidth.is_some();
        ways.extend(more.filter(|_| is_linked).map(|ranks| Way::Ranks { ranks }));
        ways.push(Way::Memory { memory_bytes: self.needs().total() });
        ways
    }

    /// Every single change of keys and values that is enough.
    fn smaller_kv(&self) -> Vec<Way> {
        let (kv, ranks, room) = (self.kv(), self.ranks(), self.room());
        let batch = ranks.sequences_of_all(kv.n_sequences(room));
        let context = kv.n_tokens(room, ranks.sequences_of_rank(self.request.batch));
        let mut ways = Vec::new();
        if batch >= 1 {
            ways.push(Way::Batch { batch });
        }
        if context >= 2 * self.request.block_tokens {
            ways.push(Way::Context { context });
        }
        // The most exact type comes first.
        let smaller = KvDtype::ALL.into_iter().find(|&kv_dtype| Self { kv_dtype, ..*self }.fits());
        ways.extend(smaller.map(|dtype| Way::KvDtype { kv_dtype: dtype.name() }));
        let mut of_states = StateDtype::ALL.into_iter();
        let smaller = of_states.find(|&state_dtype| Self { state_dtype, ..*self }.fits());
        ways.extend(smaller.map(|dtype| Way::StateDtype { state_dtype: dtype.name() }));
        ways
    }

    /// The format of most bytes with which the workload fits, and the most exact one of these.
    fn largest_format(&self) -> Option<Way> {
        let sizes = |format: &'static dyn WeightFormat| {
            WeightSizes::new(self.model, &Weights::Format(format), self.request.hardware)
        };
        let fits = |format: &&'static dyn WeightFormat| {
            Self { weights: Weights::Format(*format), ..*self }.fits()
        };
        // The last of equal ones is taken, and the list begins with the most exact one. Q8_K is for
        // activations, and no model comes in it.
        let formats = FORMATS.iter().copied().rev().filter(|format| format.dtype() != DType::Q8K);
        let fitting = formats.filter(fits).map(sizes);
        fitting.max_by_key(|sizes| sizes.n_bytes).map(|sizes| Way::Weights {
            format: sizes.format,
            bits_per_weight: sizes.bits_per_weight,
        })
    }
}
