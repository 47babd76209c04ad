//! A layer that some models put after pooling: `act(W x + b)`.

use std::path::Path;

use pelton_base::limits;
use pelton_quant::dequantize_tensor;
use pelton_tensor::{Safetensors, TensorSource, TensorView};

use crate::error::ModelError;
use crate::fields::Field;
use crate::files::read_json;

/// A dense layer of a vector; small, and read once per text, so it stays in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// `[n_out, n_in]`.
    weight: Vec<f32>,
    /// `[n_out]`, or empty.
    bias: Vec<f32>,
    n_in: usize,
    n_out: usize,
    is_tanh: bool,
}

impl Dense {
    /// Reads the folder of a `Dense` module.
    pub(super) fn read(folder: &Path, n_in: usize) -> Result<Self, ModelError> {
        let file = folder.join("config.json");
        let value = read_json(&file)?;
        let wrong = |error| ModelError::config(&file)(error);
        let root = Field::new("", Some(&value));
        let given = root.get("in_features").count(limits::MODEL_WIDTH).map_err(wrong)?;
        if given != n_in {
            return Err(wrong(root.get("in_features").error(format!("{n_in}, what it is given"))));
        }
        let n_out = root.get("out_features").count(limits::MODEL_WIDTH).map_err(wrong)?;
        let act = root.get("activation_function");
        let is_tanh = match act.text().map_err(wrong)?.map(last_name) {
            None | Some("Tanh") => true,
            Some("Identity") => false,
            Some(_) => return Err(wrong(act.error("Tanh or Identity"))),
        };
        let weights = Safetensors::open_folder(folder)?;
        let weight = values(&weights, "linear.weight", &[n_out, n_in])?;
        let bias = match root.get("bias").flag(true).map_err(wrong)? {
            true => values(&weights, "linear.bias", &[n_out])?,
            false => Vec::new(),
        };
        Ok(Self { weight, bias, n_in, n_out, is_tanh })
    }

    /// Elements of the output.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    pub(super) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let row = |(i, weights): (usize, &[f32])| {
            let bias = f64::from(self.bias.get(i).copied().unwrap_or(0.0));
            let products = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let sum = products.sum::<f64>() + bias;
            (if self.is_tanh { sum.tanh() } else { sum }) as f32
        };
        self.weight.chunks_exact(self.n_in).enumerate().map(row).collect()
    }
}

/// `torch.nn.modules.activation.Tanh` without its path.
pub(super) fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn values(weights: &Safetensors, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
    let file = || weights.origin().to_owned();
    let view: TensorView<'_> = weights.get(name).ok_or_else(|| ModelError::MissingTensor {
        file: file(),
        tensor: name.to_owned(),
        shape: shape.to_vec(),
    })?;
    if view.shape != shape {
        return Err(ModelError::Shape {
            file: file(),
            tensor: name.to_owned(),
            expected: shape.to_vec(),
            found: view.shape.to_vec(),
        });
    }
    dequantize_tensor(&view).map_err(|source| ModelError::Format { file: file(), source })
}
