//! Classifiers: the layers after the last row of a model `..ForSequenceClassification`, or of a GGUF
//! file with a classifier, and the meaning of the logits that they give.
//!
//! ```text
//! config.json   id2label            names of the labels
//!               problem_type        softmax, sigmoid or nothing over the logits of several labels
//!               sentence_transformers.activation_fn, sbert_ce_default_activation_function
//!                                   sigmoid (default) or nothing for the score of a pair
//! GGUF          cls, cls.output     {arch}.classifier.output_labels, {arch}.pooling_type: 4 rank
//! ```

use pelton_base::limits;
use pelton_tensor::{GgufArray, GgufValue, TensorSource};
use serde_json::Value;

use super::dense::{Dense, DenseAct, DenseNorm, last_name, values};
use super::pooling::Pooling;
use crate::arch::{self, ArchSpec, ClassHead, HeadAct, HeadRow, HeadStep};
use crate::error::ModelError;
use crate::fields::{ConfigError, Field};
use crate::files::ModelFiles;

/// Most labels of a classifier.
const MOST_LABELS: usize = 1 << 16;

/// The meaning of the logits of a classifier.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassSpec {
    /// One name per logit.
    pub labels: Vec<String>,
    /// From logits to probabilities.
    pub activation: ClassActivation,
}

/// From the logits of a text to the probabilities of its labels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClassActivation {
    /// Logits as they are.
    Identity,
    /// Each label by itself.
    Sigmoid,
    /// One of the labels.
    Softmax,
}

impl ClassActivation {
    /// Probabilities of the labels of one text.
    pub fn apply(self, logits: &[f32]) -> Vec<f64> {
        let logits = logits.iter().map(|x| f64::from(*x));
        match self {
            Self::Identity => logits.collect(),
            Self::Sigmoid => logits.map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
            Self::Softmax => {
                let most = logits.clone().fold(f64::NEG_INFINITY, f64::max);
                let exps: Vec<f64> = logits.map(|x| (x - most).exp()).collect();
                let sum: f64 = exps.iter().sum();
                exps.into_iter().map(|x| x / sum).collect()
            }
        }
    }

    /// Its name in facts about a model.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "none",
            Self::Sigmoid => "sigmoid",
            Self::Softmax => "softmax",
        }
    }
}

/// A classifier as the files have it.
pub(super) struct Classifier {
    pub(super) pooling: Pooling,
    pub(super) layers: Vec<Dense>,
    pub(super) classes: ClassSpec,
}

impl Classifier {
    /// Whether the files declare a classifier.
    pub(super) fn is_declared(files: &ModelFiles) -> bool {
        match files.gguf() {
            Some(gguf) => ClassHead::GGUF.iter().any(|step| gguf.get(&weight(step.name)).is_some()),
            None => arch::is_classifier(&files.config().architecture),
        }
    }

    /// Reads the classifier, if the files declare one.
    pub(super) fn read(files: &ModelFiles, spec: &ArchSpec) -> Result<Option<Self>, ModelError> {
        if !Self::is_declared(files) {
            return Ok(None);
        }
        let tensors = files.tensors();
        let (pooling, steps) = match files.gguf() {
            Some(_) => {
                let has = |step: &HeadStep| tensors.get(&weight(step.name)).is_some();
                let steps: Vec<HeadStep> = ClassHead::GGUF.into_iter().filter(has).collect();
                (if spec.is_causal() { Pooling::LastToken } else { Pooling::Cls }, steps)
            }
            None => {
                let head = files.arch().classifier.as_ref();
                let head = head.expect("invariant: the registry found one");
                (pooling(files, head.row)?, head.steps.to_vec())
            }
        };
        let mut layers: Vec<Dense> = Vec::with_capacity(steps.len());
        let mut width = spec.hidden_size;
        for step in &steps {
            let layer = layer(files, spec, step, width)?;
            width = layer.n_out();
            layers.push(layer);
        }
        let classes = classes(files, width)?;
        Ok(Some(Self { pooling, layers, classes }))
    }
}

fn weight(stem: &str) -> String {
    format!("{stem}.weight")
}

fn wrong(files: &ModelFiles) -> impl Fn(ConfigError) -> ModelError {
    let origin = files.tensors().origin();
    move |error| ModelError::config(origin)(error)
}

fn pooling(files: &ModelFiles, row: HeadRow) -> Result<Pooling, ModelError> {
    let name = match row {
        HeadRow::First => return Ok(Pooling::Cls),
        HeadRow::Last => return Ok(Pooling::LastToken),
        HeadRow::Field(name) => name,
    };
    let field = files.config().field(name);
    match field.text().map_err(wrong(files))? {
        None | Some("cls") => Ok(Pooling::Cls),
        Some("mean") => Ok(Pooling::Mean),
        Some(_) => Err(wrong(files)(field.error("\"cls\" or \"mean\""))),
    }
}

/// Reads one layer, whose input has `n_in` elements.
fn layer(
    files: &ModelFiles,
    spec: &ArchSpec,
    step: &HeadStep,
    n_in: usize,
) -> Result<Dense, ModelError> {
    let tensors = files.tensors();
    let stem = match step.has_prefix {
        true => format!("{}{}", files.arch().hf.prefix, step.name),
        false => step.name.to_owned(),
    };
    let name = weight(&stem);
    let found = tensors.get(&name).map(|view| view.shape.to_vec()).unwrap_or_default();
    // A missing or misshapen tensor is named below.
    let n_out = found.first().copied().filter(|n| (1..=limits::MODEL_WIDTH).contains(n));
    let n_out = n_out.unwrap_or(1);
    let matrix = values(tensors, &name, &[n_out, n_in])?;
    let bias = optional(tensors, &format!("{stem}.bias"), n_out, step.needs_bias)?;
    let norm = match step.norm {
        None => None,
        Some(norm) => Some(DenseNorm {
            weight: values(tensors, &weight(norm), &[n_out])?,
            bias: optional(tensors, &format!("{norm}.bias"), n_out, false)?,
            eps: f64::from(spec.norm_eps),
        }),
    };
    let act = act(files, step.act)?;
    Ok(Dense { weight: matrix, bias, n_in, n_out, act, norm })
}

fn optional(
    tensors: &dyn TensorSource,
    name: &str,
    n: usize,
    is_needed: bool,
) -> Result<Vec<f32>, ModelError> {
    match is_needed || tensors.get(name).is_some() {
        true => values(tensors, name, &[n]),
        false => Ok(Vec::new()),
    }
}

fn act(files: &ModelFiles, act: HeadAct) -> Result<DenseAct, ModelError> {
    let name = match act {
        HeadAct::None => return Ok(DenseAct::Identity),
        HeadAct::Tanh => return Ok(DenseAct::Tanh),
        HeadAct::Relu => return Ok(DenseAct::Relu),
        HeadAct::Field(name) => name,
    };
    let field = files.config().field(name);
    Ok(match field.text().map_err(wrong(files))? {
        None | Some("gelu" | "gelu_python") => DenseAct::Gelu,
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => DenseAct::GeluTanh,
        Some("tanh") => DenseAct::Tanh,
        Some("relu") => DenseAct::Relu,
        Some("silu" | "swish") => DenseAct::Silu,
        Some(_) => {
            let known = "one of \"gelu\", \"gelu_new\", \"tanh\", \"relu\", \"silu\"";
            return Err(wrong(files)(field.error(known)));
        }
    })
}

fn classes(files: &ModelFiles, n_labels: usize) -> Result<ClassSpec, ModelError> {
    if n_labels > MOST_LABELS {
        let field = files.config().field("id2label");
        return Err(wrong(files)(field.error(format!("at most {MOST_LABELS} labels"))));
    }
    let named = match files.gguf() {
        Some(_) => gguf_labels(files),
        None => labels(files)?,
    };
    if !named.is_empty() && named.len() != n_labels {
        let field = files.config().field("id2label");
        return Err(wrong(files)(field.error(format!("{n_labels} labels, one per logit"))));
    }
    let usual = (named.len()..n_labels).map(|i| format!("LABEL_{i}"));
    let labels: Vec<String> = named.iter().cloned().chain(usual).collect();
    let activation = activation(files, n_labels)?;
    Ok(ClassSpec { labels, activation })
}

/// The names in `id2label`, in the order of their numbers; none where there is no such field.
fn labels(files: &ModelFiles) -> Result<Vec<String>, ModelError> {
    let field = files.config().field("id2label");
    let Some(value) = field.value() else { return Ok(Vec::new()) };
    let expected = || field.error("an object of names by number, from \"0\" on");
    let map = value.as_object().filter(|map| map.len() <= MOST_LABELS);
    let map = map.ok_or_else(|| wrong(files)(expected()))?;
    let name = |i: usize| map.get(&i.to_string()).and_then(Value::as_str).map(str::to_owned);
    let names: Option<Vec<String>> = (0..map.len()).map(name).collect();
    names.ok_or_else(|| wrong(files)(expected()))
}

/// The labels that a GGUF file names.
fn gguf_labels(files: &ModelFiles) -> Vec<String> {
    let metadata = files.gguf().map(|gguf| gguf.metadata());
    let found: Option<Vec<String>> = metadata.and_then(|metadata| {
        let Some(GgufValue::String(arch)) = metadata.get("general.architecture") else {
            return None;
        };
        match metadata.get(&format!("{arch}.classifier.output_labels")) {
            Some(GgufValue::Array(GgufArray::Strings(names))) => {
                let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
                Some(names.iter().map(text).collect())
            }
            _ => None,
        }
    });
    found.unwrap_or_default()
}

fn activation(files: &ModelFiles, n_labels: usize) -> Result<ClassActivation, ModelError> {
    let config = files.config();
    let by_library = config.field("sentence_transformers").get("activation_fn");
    let older = config.field("sbert_ce_default_activation_function");
    let said = if by_library.non_null().is_some() { by_library } else { older };
    match said.text().map_err(wrong(files))?.map(last_name) {
        Some("Sigmoid") => return Ok(ClassActivation::Sigmoid),
        Some("Identity") => return Ok(ClassActivation::Identity),
        Some("Softmax") => return Ok(ClassActivation::Softmax),
        Some(_) => return Err(wrong(files)(said.error("Sigmoid, Identity or Softmax"))),
        None => {}
    }
    let problem: Field<'_> = config.field("problem_type");
    Ok(match problem.text().map_err(wrong(files))? {
        _ if n_labels == 1 => ClassActivation::Sigmoid,
        None | Some("single_label_classification") => ClassActivation::Softmax,
        Some("multi_label_classification") => ClassActivation::Sigmoid,
        Some("regression") => ClassActivation::Identity,
        Some(_) => {
            let known = "single_label_classification, multi_label_classification or regression";
            return Err(wrong(files)(problem.error(known)));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_formulas() {
        let logits = [0.0, 2.0_f32.ln(), -1e4];
        assert_eq!(ClassActivation::Identity.apply(&[1.5]), [1.5]);
        let soft = ClassActivation::Softmax.apply(&logits);
        assert!((soft[0] - 1.0 / 3.0).abs() < 1e-7 && (soft[1] - 2.0 / 3.0).abs() < 1e-7);
        let each = ClassActivation::Sigmoid.apply(&logits);
        assert!((each[0] - 0.5).abs() < 1e-12 && (each[1] - 2.0 / 3.0).abs() < 1e-7);
        assert_eq!((soft[2], each[2]), (0.0, 0.0));
    }
}
