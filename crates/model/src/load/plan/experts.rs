//! The tensors of a mixture of experts.
//!
//! An expert of a stacked tensor is a stretch of its bytes, taken where it lies: nothing is copied
//! before it is packed. In the files of GPT-OSS a stack is two tensors, codes and factors of
//! blocks:
//!
//! ```text
//! _blocks [n_experts, n, k / 32, 16] u8     nibbles of byte j: code[2 j], code[2 j + 1]
//! _scales [n_experts, n, k / 32]     u8     the exponent of a block's factor
//! ```
//!
//! which become blocks of MXFP4 as GGUF files have them.

use pelton_quant::QuantError;
use pelton_tensor::{DType, TensorView};

use super::{LinearPlan, Lookup, Name, Part, Projection, Rows};
use crate::arch::{GateUp, GatedMlp};
use crate::error::ModelError;
use crate::export::Rounded;
use crate::layer::{Moe, TwoPlan};

/// One tensor with a matrix of each expert.
struct Stack<'a> {
    view: TensorView<'a>,
    /// The factors of its blocks, where these are a tensor of their own.
    factors: Option<TensorView<'a>>,
    /// The type that it is rounded to while it is packed.
    rounded: Option<Rounded>,
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
            rounded: self.rounded,
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
        let mut plan = LinearPlan {
            parts: Vec::new(),
            biases: Vec::new(),
            k: self.shape[1],
            factors: Vec::new(),
            is_exact: false,
        };
        for rows in stretches {
            let (part, bias) = self.part(expert, *rows);
            plan.parts.push(part);
            plan.biases.extend(bias);
        }
        plan
    }
}

impl<'a> LinearPlan<'a> {
    /// The same projection, computed in f32 whatever the arithmetic of the model is.
    pub(crate) fn exact(self) -> Self {
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
    /// The tensors of each expert.
    pub(crate) fn experts(&self, layer: usize, moe: &Moe) -> Result<Vec<TwoPlan<'a>>, ModelError> {
        let (n, has_gates) = (moe.router.n_experts, moe.has_gates);
        let hidden = moe.expert_width(self.spec.hidden_size);
        let GatedMlp { intermediate_size: ffn, bias, .. } = moe.expert;
        let stack = |name, rows, k| self.stack(layer, name, [n, rows, k], bias);
        if let Some(gate_up) = stack(Name::ExpertGateUp, 2 * ffn, hidden)? {
            let down = self.needed_stack(layer, Name::ExpertDown, [n, hidden, ffn], bias)?;
            let rows = |first, run, stride| Rows {
                n: ffn,
                first,
                run,
                filled: run,
                stride,
                ..Rows::all(2 * ffn)
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
        let ups = [Name::ExpertGate, Name::ExpertUp];
        let ups = if has_gates { &ups[..] } else { &ups[1..] };
        let is_in_one_tensor = !self.stem(ups[0], layer).contains('*');
        if is_in_one_tensor || stack(ups[0], ffn, hidden)?.is_some() {
            let needed = |name, rows, k| self.needed_stack(layer, name, [n, rows, k], bias);
            let ups = ups.iter().map(|name| needed(*name, ffn, hidden));
            let ups = ups.collect::<Result<Vec<_>, _>>()?;
            let down = needed(Name::ExpertDown, hidden, ffn)?;
            let up = |expert| {
                let all = ups.iter().map(|up| up.linear(expert, &[Rows::all(ffn)]));
                all.reduce(LinearPlan::then).expect("invariant: an expert has an up")
            };
            let expert = |expert| TwoPlan {
                up: up(expert),
                down: down.linear(expert, &[Rows::all(hidden)]),
            };
            return Ok((0..n).map(expert).collect());
        }
        let whole = |name, n| Projection { name, rows: Rows::all(n) };
        let up: Vec<Projection> = ups.iter().map(|name| whole(*name, ffn)).collect();
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

    /// Matrices `[rows, k]` outside of layers, each in a tensor of its own where the name has a `*`, else
    /// all in one tensor.
    pub(super) fn stacked(
        &self,
        name: Name,
        [n, rows, k]: [usize; 3],
    ) -> Result<Vec<LinearPlan<'a>>, ModelError> {
        if !self.stem(name, 0).contains('*') {
            let stack = self.needed_stack(0, name, [n, rows, k], false)?;
            return Ok((0..n).map(|nth| stack.linear(nth, &[Rows::all(rows)])).collect());
        }
        let alone = |nth| {
            let own = Lookup { expert: Some(nth), ..*self };
            own.linear(0, &[Projection { name, rows: Rows::all(rows) }], k, false)
        };
        (0..n).map(alone).collect()
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

    /// The name of the tensor that holds all experts.
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
            let (rounded, is_transposed) = (None, false);
            return Ok(Some(Stack { view, factors, rounded, bias, shape, is_transposed }));
        }
        let Some(name) = first_of([format!("{stem}.weight"), stem.clone()]) else {
            return Ok(None);
        };
        let is_transposed = self.stored.experts.is_transposed;
        let view = match is_transposed {
            false => self.find(&name, &[n_experts, n, k])?,
            true => self.float(self.find(&name, &[n_experts, k, n])?)?,
        };
        let rounded = self.rounded(Part::whole(view)).rounded;
        let (factors, shape) = (None, [n, k]);
        Ok(Some(Stack { view, factors, rounded, bias: bias()?, shape, is_transposed }))
    }
}
