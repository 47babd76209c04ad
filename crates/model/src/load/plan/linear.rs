//! Projections: rows of one tensor or of several, with their biases.

use pelton_quant::QuantError;
use pelton_quant::checkpoint::{QuantizedTensor, Scheme};

use super::{Factors, LinearPlan, Lookup, Part, Rows};
use crate::arch::Part as Name;
use crate::error::ModelError;

/// One projection: its name and rows, and how they are stored.
pub(crate) struct Projection {
    pub(crate) name: Name,
    pub(crate) rows: Rows,
}

impl<'a> Lookup<'a, '_> {
    pub(crate) fn linear(
        &self,
        layer: usize,
        projections: &[Projection],
        k: usize,
        has_bias: bool,
    ) -> Result<LinearPlan<'a>, ModelError> {
        let mut plan = LinearPlan {
            parts: Vec::new(),
            biases: Vec::new(),
            k,
            factors: self.factors(projections),
            is_exact: false,
        };
        let mut split = Vec::new();
        for (i, projection) in projections.iter().enumerate() {
            let &Projection { name, rows } = projection;
            let mut part = match self.stored.is_transposed {
                false => self.matrix(projection, layer, k)?,
                true => self.transposed(projection, layer, k)?,
            };
            if projections.get(i + 1).is_some_and(|next| next.name == name) {
                // The last of one module's parts has its tensors.
                part.quantized = part.quantized.map(QuantizedTensor::without_views);
            }
            split.push(part.split());
            if has_bias {
                let view = self.float(self.find(&self.bias(name, layer), &[rows.n_stored])?)?;
                plan.biases.push(Part { shape: vec![rows.n], rows, ..Part::whole(view) });
            }
        }
        plan.parts = stacked(split);
        Ok(plan)
    }

    /// The spec's factors of these projections; none where all are 1.
    fn factors(&self, projections: &[Projection]) -> Vec<Factors> {
        let factors = projections.iter().enumerate().map(|(i, &Projection { name, rows })| {
            let [product, bias] = self.spec.multipliers.of(name, i);
            Factors { n: rows.n, product, bias }
        });
        let is_one = |own: &Factors| own.product == 1.0 && own.bias == 1.0;
        let factors: Vec<Factors> = factors.collect();
        if factors.iter().all(is_one) { Vec::new() } else { factors }
    }

    /// Some rows of a matrix of one tensor, or of several where the checkpoint is quantized.
    pub(crate) fn matrix(
        &self,
        &Projection { name, rows }: &Projection,
        layer: usize,
        k: usize,
    ) -> Result<Part<'a>, ModelError> {
        let shape = vec![rows.n, k];
        if let Some(matrix) = self.quantized(name, layer, [rows.n_stored, k])? {
            let view = matrix.views()[0];
            let quantized = match rows == Rows::all(rows.n) {
                true => matrix,
                false => matrix.pick_rows(rows.sources().map(|row| row as u32)),
            };
            return Ok(Part {
                view,
                shape,
                rows,
                is_transposed: false,
                turned: None,
                quantized: Some(quantized),
                slice: None,
                factors: None,
                rounded: None,
            });
        }
        let view = self.weight(name, layer, &[rows.n_stored, k])?;
        Ok(self.rounded(Part { shape, rows, ..Part::whole(view) }))
    }

    /// Some columns of a matrix `[in, out]` of plain floats, or rows of one that its method turned
    /// before it quantized it.
    fn transposed(
        &self,
        projection: &Projection,
        layer: usize,
        k: usize,
    ) -> Result<Part<'a>, ModelError> {
        let &Projection { name, rows } = projection;
        if let Some(scheme) = self.files.scheme() {
            let found = self.quantized(name, layer, [rows.n_stored, k]);
            if scheme.turns_transposed() {
                if found?.is_some() {
                    return self.matrix(projection, layer, k);
                }
            } else if !matches!(found, Ok(None)) {
                return Err(self.is_not_turned(name, layer, scheme));
            }
        }
        let view = self.float(self.weight(name, layer, &[k, rows.n_stored])?)?;
        let shape = vec![rows.n, k];
        Ok(self.rounded(Part { shape, rows, is_transposed: true, ..Part::whole(view) }))
    }

    /// The error of a quantized matrix that may be stored in either way.
    fn is_not_turned(&self, name: Name, layer: usize, scheme: &Scheme) -> ModelError {
        let source = QuantError::Checkpoint {
            tensor: self.stem(name, layer),
            expected: "plain floats: the family stores its matrices transposed, and of quantized \
                       ones only those of GPTQ and bitsandbytes are known to be turned"
                .to_owned(),
            got: scheme.words(),
        };
        ModelError::Format { file: self.files.tensors().origin().to_owned(), source }
    }

    /// The matrix of a module that is quantized.
    fn quantized(
        &self,
        name: Name,
        layer: usize,
        shape: [usize; 2],
    ) -> Result<Option<QuantizedTensor<'a>>, ModelError> {
        let Some(scheme) = self.files.scheme() else { return Ok(None) };
        let tensors = self.files.tensors();
        scheme
            .find(tensors, &self.stem(name, layer), shape)
            .map_err(|source| ModelError::Format { file: tensors.origin().to_owned(), source })
    }
}

/// Projections in blocks of inputs: of neighbours with the same blocks first all the first blocks,
/// then all the second ones, so that those of the same inputs become one matrix.
fn stacked<'a>(projections: Vec<Vec<Part<'a>>>) -> Vec<Part<'a>> {
    let same = |a: &[Part<'a>], b: &[Part<'a>]| {
        a.len() > 1 && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| b.stacks_on(a))
    };
    let mut parts = Vec::new();
    let mut rest = projections.into_iter().peekable();
    while let Some(first) = rest.next() {
        let mut chunk = vec![first];
        while let Some(next) = rest.next_if(|next| same(&chunk[0], next)) {
            chunk.push(next);
        }
        let n_blocks = chunk[0].len();
        let mut blocks: Vec<_> = chunk.into_iter().map(Vec::into_iter).collect();
        for _ in 0..n_blocks {
            parts.extend(blocks.iter_mut().filter_map(Iterator::next));
        }
    }
    parts
}
