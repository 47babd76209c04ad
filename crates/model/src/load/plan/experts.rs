//! The tensors of a mixture of experts.
//!
//! An expert of a stacked tensor is a stretch of its bytes, taken where it lies: nothing is copied
//! before it is packed. In the files of GPT-OSS a stack is two tensors, codes and factors of blocks:
//!
//! ```text
//! _blocks [n_experts, n, k / 32, 16] u8     nibbles of byte j: code[2 j], code[2 j + 1]
//! _scales [n_experts, n, k / 32]     u8     the exponent of a block's factor
//! ```
//!
//! which become blocks of MXFP4 as GGUF files have them.

use pelton_quant::QuantError;
use pelton_tensor::{DType, TensorView};

use super::{LinearPlan, Lookup, Name, NormPlan, Part, Projection, Rows};
use crate::arch::{GateUp, GatedMlp, Moe};
use crate::error::ModelError;

/// Two layers of one perceptron.
pub(crate) struct TwoPlan<'a> {
    /// Gate and up, or up alone.
    pub(crate) up: LinearPlan<'a>,
    pub(crate) down: LinearPlan<'a>,
}

/// All tensors of a mixture of experts.
pub(crate) struct MoePlan<'a> {
    pub(crate) router: LinearPlan<'a>,
    pub(crate) correction: Option<NormPlan<'a>>,
    pub(crate) experts: Vec<TwoPlan<'a>>,
    pub(crate) shared: Option<TwoPlan<'a>>,
    pub(crate) switch: Option<LinearPlan<'a>>,
}

impl<'a> TwoPlan<'a> {
    pub(super) fn linears(&self) -> [&LinearPlan<'a>; 2] {
        [&self.up, &self.down]
    }
}

impl<'a> MoePlan<'a> {
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearPlan<'a>> {
        let perceptrons = self.experts.iter().chain(&self.shared).flat_map(TwoPlan::linears);
        [&self.router].into_iter().chain(&self.switch).chain(perceptrons)
    }
}

/// One tensor with a matrix of each expert.
struct Stack<'a> {
    view: TensorView<'a>,
    /// The factors of its blocks, where these are a tensor of their own.
    factors: Option<TensorView<'a>>,
    /// `[n_experts, n]`.
    bias: Option<TensorView<'a>>,
    /// Rows of one expert's matrix as stored, and elements of a row.
    shape: [usize; 2],
    is_transposed: bool,
}

/// The stretch of one expert in a tensor of `n_experts`.
fn slice<'a>(view: &TensorView<'a>, expert: usize) -> TensorView<'a> {
    let n_bytes = view.data.len() / view.shape[0];
    let data = &view.data[expert * n_bytes..][..n_bytes];
    TensorView { shape: &view.shape[1..], data, ..*view }
}

impl<'a> Stack<'a> {
    /// Some rows of one expert, and their biases.
    fn part(&self, expert: usize, rows: Rows) -> (Part<'a>, Option<Part<'a>>) {
        let part = Part {
            view: slice(&self.view, expert),
            shape: vec![rows.n, self.shape[1]],
            rows,
            is_transposed: self.is_transposed,
            turned: None,
            quantized: None,
            slice: Some(expert),
            factors: self.factors.map(|factors| slice(&factors, expert).data),
        };
        let bias = self.bias.map(|bias| Part {
            shape: vec![rows.n],
            rows,
            slice: Some(expert),
            ..Part::whole(slice(&bias, expert))
        });
        (part, bias)
    }

    /// Some rows of one expert, stretches one after the other.
    fn linear(&self, expert: usize, stretches: &[Rows]) -> LinearPlan<'a> {
        let mut plan =
            LinearPlan { parts: Vec::new(), biases: Vec::new(), k: self.shape[1], is_exact: false };
        for rows in stretches {
            let (part, bias) = self.part(expert, *rows);
            plan.parts.push(part);
            plan.biases.extend(bias);
        }
        plan
    }
}

impl<'a> LinearPlan<'a> {
    /// This, computed in f32 whatever the others are.
    fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }

    /// This and what follows it, with the same inputs.
    fn then(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self.biases.extend(other.biases);
        self
    }
}

impl<'a> Lookup<'a, '_> {
    pub(super) fn moe(&self, layer: usize, moe: &Moe) -> Result<MoePlan<'a>, ModelError> {
        let (hidden, n_experts) = (self.spec.hidden_size, moe.router.n_experts);
        let router = Projection { name: Name::Router, rows: Rows::all(n_experts) };
        let shared = moe.shared.as_ref();
        let switch = shared.filter(|shared| shared.is_gated);
        Ok(MoePlan {
            // A near tie that rounding decides another way is another expert, not another bit.
            router: self.linear(layer, &[router], hidden, moe.router_bias)?.exact(),
            correction: (moe.has_correction)
                .then(|| self.vector(Name::RouterCorrection, layer, n_experts))
                .transpose()?,
            experts: self.experts(layer, moe)?,
            shared: shared.map(|shared| self.shared(layer, &shared.mlp)).transpose()?,
            switch: switch.map(|_| self.switch(layer)).transpose()?,
        })
    }

    /// A vector that stays in f32, whose name may lack its last word.
    pub(super) fn vector(
        &self,
        name: Name,
        layer: usize,
        n: usize,
    ) -> Result<NormPlan<'a>, ModelError> {
        let stem = self.stem(name, layer);
        let names = [stem.clone(), format!("{stem}.weight"), format!("{stem}.bias")];
        let known = names.iter().find(|name| self.files.tensors().get(name).is_some());
        let view = self.find(known.unwrap_or(&names[0]), &[n])?;
        Ok(NormPlan { weights: vec![view], bias: None, rows: Rows::all(n), offset: 0.0 })
    }

    fn shared(&self, layer: usize, mlp: &GatedMlp) -> Result<TwoPlan<'a>, ModelError> {
        let (hidden, ffn) = (self.spec.hidden_size, mlp.intermediate_size);
        let whole = |name, n| Projection { name, rows: Rows::all(n) };
        let up = match self.has(&self.stem(Name::SharedGateUp, layer)) {
            true => vec![whole(Name::SharedGateUp, 2 * ffn)],
            false => vec![whole(Name::SharedGate, ffn), whole(Name::SharedUp, ffn)],
        };
        Ok(TwoPlan {
            up: self.linear(layer, &up, hidden, mlp.bias)?,
            down: self.linear(layer, &[whole(Name::SharedDown, hidden)], ffn, mlp.bias)?,
        })
    }

    /// The row whose product goes through a sigmoid: a matrix, or a vector.
    fn switch(&self, layer: usize) -> Result<LinearPlan<'a>, ModelError> {
        let hidden = self.spec.hidden_size;
        let name = format!("{}.weight", self.stem(Name::SharedSwitch, layer));
        if self.files.tensors().get(&name).is_none_or(|view| view.shape.len() != 1) {
            let switch = Projection { name: Name::SharedSwitch, rows: Rows::all(1) };
            return self.linear(layer, &[switch], hidden, false).map(LinearPlan::exact);
        }
        let view = self.find(&name, &[hidden])?;
        let part = Part { shape: vec![1, hidden], rows: Rows::all(1), ..Part::whole(view) };
        Ok(LinearPlan { parts: vec![part], biases: Vec::new(), k: hidden, is_exact: true })
    }

    fn experts(&self, layer: usize, moe: &Moe) -> Result<Vec<TwoPlan<'a>>, ModelError> {
        let (hidden, GatedMlp { intermediate_size: ffn, bias, .. }) =
            (self.spec.hidden_size, moe.expert.clone());
        let n = moe.router.n_experts;
        let stack = |name, rows, k| self.stack(layer, name, [n, rows, k], bias);
        if let Some(gate_up) = stack(Name::ExpertGateUp, 2 * ffn, hidden)? {
            let down = self.needed_stack(layer, Name::ExpertDown, [n, hidden, ffn], bias)?;
            let rows = |first, run, stride| Rows {
                n: ffn,
                n_stored: 2 * ffn,
                first,
                run,
                stride,
                pairs: None,
            };
            let gate_and_up = match self.stored.experts.gate_up {
                GateUp::Stacked => [rows(0, ffn, ffn), rows(ffn, ffn, ffn)],
                GateUp::Interleaved => [rows(0, 1, 2), rows(1, 1, 2)],
            };
            let expert = |expert| TwoPlan {
                up: gate_up.linear(expert, &gate_and_up),
                down: down.linear(expert, &[Rows::all(hidden)]),
            };
            return Ok((0..n).map(expert).collect());
        }
        if !self.stem(Name::ExpertGate, layer).contains('*') {
            let needed = |name, rows, k| self.needed_stack(layer, name, [n, rows, k], bias);
            let gate = needed(Name::ExpertGate, ffn, hidden)?;
            let up = needed(Name::ExpertUp, ffn, hidden)?;
            let down = needed(Name::ExpertDown, hidden, ffn)?;
            let expert = |expert| TwoPlan {
                up: gate
                    .linear(expert, &[Rows::all(ffn)])
                    .then(up.linear(expert, &[Rows::all(ffn)])),
                down: down.linear(expert, &[Rows::all(hidden)]),
            };
            return Ok((0..n).map(expert).collect());
        }
        let whole = |name, n| Projection { name, rows: Rows::all(n) };
        let up = [whole(Name::ExpertGate, ffn), whole(Name::ExpertUp, ffn)];
        let down = [whole(Name::ExpertDown, hidden)];
        let expert = |expert| {
            let of_expert = Lookup { expert: Some(expert), ..*self };
            Ok(TwoPlan {
                up: of_expert.linear(layer, &up, hidden, bias)?,
                down: of_expert.linear(layer, &down, ffn, bias)?,
            })
        };
        (0..n).map(expert).collect()
    }

    fn needed_stack(
        &self,
        layer: usize,
        name: Name,
        shape: [usize; 3],
        has_bias: bool,
    ) -> Result<Stack<'a>, ModelError> {
        self.stack(layer, name, shape, has_bias)?.ok_or_else(|| ModelError::MissingTensor {
            file: self.files.tensors().origin().to_owned(),
            tensor: self.stack_stem(name, layer),
            shape: shape.to_vec(),
        })
    }

    /// What a stack is called, whatever an expert of its own would be.
    fn stack_stem(&self, name: Name, layer: usize) -> String {
        self.stem(name, layer).replace(".*", "")
    }

    /// The matrices `[n_experts, n, k]` of all experts in one tensor, where the file has one.
    fn stack(
        &self,
        layer: usize,
        name: Name,
        [n_experts, n, k]: [usize; 3],
        has_bias: bool,
    ) -> Result<Option<Stack<'a>>, ModelError> {
        let stem = self.stack_stem(name, layer);
        let tensors = self.files.tensors();
        let first_of = |names: [String; 2]| names.into_iter().find(|n| tensors.get(n).is_some());
        let bias = || {
            let names = [format!("{stem}_bias"), format!("{stem}.bias")];
            let name = first_of(names.clone()).unwrap_or_else(|| names[1].clone());
            has_bias.then(|| self.float(self.find(&name, &[n_experts, n])?)).transpose()
        };
        let blocks = format!("{stem}_blocks");
        if tensors.get(&blocks).is_some() {
            let stored = [n_experts, n, k / 32, 16];
            let view = self.find_as(&blocks, &stored, Some(DType::U8))?;
            let scales = format!("{stem}_scales");
            let factors = self.find_as(&scales, &stored[..3], Some(DType::U8))?;
            if !k.is_multiple_of(32) {
                let source = QuantError::Checkpoint {
                    tensor: blocks,
                    expected: "rows that are a multiple of 32".to_owned(),
                    got: format!("rows of {k}"),
                };
                let file = tensors.origin().to_owned();
                return Err(ModelError::Format { file, source });
            }
            let view = TensorView { dtype: DType::Mxfp4, ..view };
            let (shape, factors, bias) = ([n, k], Some(factors), bias()?);
            return Ok(Some(Stack { view, factors, bias, shape, is_transposed: false }));
        }
        let Some(name) = first_of([format!("{stem}.weight"), stem.clone()]) else {
            return Ok(None);
        };
        let is_transposed = self.stored.experts.is_transposed;
        let view = match is_transposed {
            false => self.find(&name, &[n_experts, n, k])?,
            true => self.float(self.find(&name, &[n_experts, k, n])?)?,
        };
        Ok(Some(Stack { view, factors: None, bias: bias()?, shape: [n, k], is_transposed }))
    }
}
