//! A layer after pooling: `act(W x + b)`, in classifiers with a norm behind it.

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
    pub(super) weight: Vec<f32>,
    /// `[n_out]`, or empty.
    pub(super) bias: Vec<f32>,
    pub(super) n_in: usize,
    pub(super) n_out: usize,
    pub(super) act: DenseAct,
    pub(super) norm: Option<DenseNorm>,
}

/// The activation of a dense layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DenseAct {
    Identity,
    Tanh,
    Relu,
    /// By the error function.
    Gelu,
    /// By the hyperbolic tangent.
    GeluTanh,
    Silu,
}

/// A layer norm after the activation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DenseNorm {
    /// `[n_out]`.
    pub(super) weight: Vec<f32>,
    /// `[n_out]`, or empty.
    pub(super) bias: Vec<f32>,
    pub(super) eps: f64,
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
        let act = match act.text().map_err(wrong)?.map(last_name) {
            None | Some("Tanh") => DenseAct::Tanh,
            Some("Identity") => DenseAct::Identity,
            Some(_) => return Err(wrong(act.error("Tanh or Identity"))),
        };
        let weights = Safetensors::open_folder(folder)?;
        let weight = values(&weights, "linear.weight", &[n_out, n_in])?;
        let bias = match root.get("bias").flag(true).map_err(wrong)? {
            true => values(&weights, "linear.bias", &[n_out])?,
            false => Vec::new(),
        };
        Ok(Self { weight, bias, n_in, n_out, act, norm: None })
    }

    /// Elements of the output.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    pub(super) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let row = |(i, weights): (usize, &[f32])| {
            let bias = f64::from(self.bias.get(i).copied().unwrap_or(0.0));
            let products = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            self.act.of(products.sum::<f64>() + bias) as f32
        };
        let mut out: Vec<f32> = self.weight.chunks_exact(self.n_in).enumerate().map(row).collect();
        if let Some(norm) = &self.norm {
            norm.apply(&mut out);
        }
        out
    }
}

impl DenseAct {
    fn of(self, x: f64) -> f64 {
        match self {
            Self::Identity => x,
            Self::Tanh => x.tanh(),
            Self::Relu => x.max(0.0),
            Self::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Self::Silu => x / (1.0 + (-x).exp()),
        }
    }
}

impl DenseNorm {
    fn apply(&self, x: &mut [f32]) {
        let n = x.len() as f64;
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let factor = (variance + self.eps).sqrt().recip();
        for (i, x) in x.iter_mut().enumerate() {
            let bias = f64::from(self.bias.get(i).copied().unwrap_or(0.0));
            *x = ((f64::from(*x) - mean) * factor * f64::from(self.weight[i]) + bias) as f32;
        }
    }
}

/// The error function, by a series whose terms are all of one sign (Abramowitz and Stegun, 7.1.6).
fn erf(x: f64) -> f64 {
    // Beyond it the result is 1 to the last bit.
    const END: f64 = 6.0;
    if x.is_nan() {
        return x;
    }
    let t = x.abs().min(END);
    let (mut term, mut sum, mut n) = (t, t, 0.0);
    while term > sum * f64::EPSILON / 4.0 {
        n += 1.0;
        term *= 2.0 * t * t / (2.0 * n + 1.0);
        sum += term;
    }
    (std::f64::consts::FRAC_2_SQRT_PI * (-t * t).exp() * sum).min(1.0).copysign(x)
}

/// `torch.nn.modules.activation.Tanh` without its path.
pub(super) fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// A tensor in f32, which must have this shape.
pub(super) fn values(
    weights: &dyn TensorSource,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, ModelError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_that_of_the_tables() {
        for (x, expected) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
            (40.0, 1.0),
        ] {
            assert!((erf(x) - expected).abs() < 1e-13, "{x}: {}", erf(x));
            assert!((erf(-x) + expected).abs() < 1e-13, "-{x}: {}", erf(-x));
        }
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn a_norm_takes_off_the_mean_and_scales() {
        let norm = DenseNorm { weight: vec![2.0, 1.0], bias: vec![0.0, 5.0], eps: 0.0 };
        let mut x = [1.0, 3.0];
        norm.apply(&mut x);
        assert_eq!(x, [-2.0, 6.0]);
    }
}
