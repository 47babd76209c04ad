//! GGUF files from recipes: the weights of a checkpoint in another container.
//!
//! `gguf/NAME.json` holds metadata, and for each tensor the elements of `model.safetensors` that it
//! consists of; `crates/model/tests/gguf_recipes.py` defines the format and writes it beside a file
//! of the `gguf` package. Length and CRC-32 of that file prove that the bytes written here are the
//! same ones.

use std::path::Path;

use pelton_tensor::{DType, GgufArray, GgufValue, GgufWriter, Safetensors, TensorSource};
use serde::Deserialize;
use serde_json::Value;

/// How a GGUF file follows from a checkpoint.
#[derive(Debug, Deserialize)]
pub(super) struct Recipe {
    bytes: usize,
    crc32: u32,
    /// Key, type and value.
    metadata: Vec<(String, String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Debug, Deserialize)]
struct Tensor {
    name: String,
    #[serde(rename = "type")]
    dtype: String,
    shape: Vec<usize>,
    #[serde(flatten)]
    origin: Origin,
}

/// Where the elements of a tensor come from.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Origin {
    /// Blocks of MXFP4 from codes and exponents.
    Mxfp4 {
        from: Elements,
        exponents: Elements,
    },
    Elements {
        from: Elements,
        #[serde(default)]
        then: Vec<(Operation, f64)>,
    },
    Values {
        values: Vec<f64>,
    },
}

/// Elements of the checkpoint in some order.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Elements {
    /// All of a tensor, in its own order.
    Whole(String),
    /// Parts one after the other: tensor, first element, and loops, outermost first.
    Parts(Vec<(String, usize, Vec<Loop>)>),
}

/// Number of rounds, and elements from one to the next.
type Loop = (usize, i64);

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Add,
    Multiply,
    /// The exponential in f64, times the operand.
    Exp,
}

impl Recipe {
    /// Reads a recipe.
    pub(super) fn read(path: &Path) -> Self {
        let text = std::fs::read(path).expect("a recipe");
        serde_json::from_slice(&text).expect("a recipe is JSON")
    }

    /// Writes the file from the tensors of a checkpoint.
    pub(super) fn write(&self, weights: &Safetensors, path: &Path) {
        self.write_with(weights, path, |_| {});
        let written = std::fs::read(path).expect("written");
        assert_eq!(
            (written.len(), crc32(&written)),
            (self.bytes, self.crc32),
            "{}: not the bytes of the `gguf` package",
            path.display()
        );
    }

    /// Writes the file with further metadata.
    pub(super) fn write_with(
        &self,
        weights: &Safetensors,
        path: &Path,
        add: impl Fn(&mut GgufWriter),
    ) {
        let mut writer = GgufWriter::new();
        for (key, kind, value) in &self.metadata {
            writer.metadata(key, metadata(kind, value));
        }
        add(&mut writer);
        for tensor in &self.tensors {
            writer.tensor(&tensor.name, tensor.dtype(), &tensor.shape);
        }
        let mut data = writer.create(path).expect("a file for the model");
        for tensor in &self.tensors {
            data.tensor_data(&tensor.bytes(weights)).expect("tensor data");
        }
        data.finish().expect("the model");
    }
}

impl Tensor {
    fn dtype(&self) -> DType {
        match self.dtype.as_str() {
            "F32" => DType::F32,
            "BF16" => DType::Bf16,
            "MXFP4" => DType::Mxfp4,
            other => panic!("{}: no type `{other}` in recipes", self.name),
        }
    }

    fn bytes(&self, weights: &Safetensors) -> Vec<u8> {
        match &self.origin {
            Origin::Values { values } => {
                values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()
            }
            Origin::Mxfp4 { from, exponents } => {
                mxfp4_blocks(&from.gather(weights).1, &exponents.gather(weights).1)
            }
            Origin::Elements { from, then } => match (from.gather(weights), self.dtype()) {
                ((DType::Bf16, elements), DType::F32) => {
                    let halves = elements.as_chunks::<2>().0.iter();
                    let widened = halves.map(|&[low, high]| f32::from_le_bytes([0, 0, low, high]));
                    widened.flat_map(|x| computed(x, then).to_le_bytes()).collect()
                }
                ((from, elements), dtype) => {
                    assert!(from == dtype && then.is_empty(), "{}: {from} as {dtype}", self.name);
                    elements
                }
            },
        }
    }
}

fn computed(x: f32, then: &[(Operation, f64)]) -> f32 {
    then.iter().fold(x, |x, (operation, operand)| match operation {
        Operation::Add => x + *operand as f32,
        Operation::Multiply => x * *operand as f32,
        Operation::Exp => (operand * f64::from(x).exp()) as f32,
    })
}

impl Elements {
    /// The bytes of the elements, and their type.
    fn gather(&self, weights: &Safetensors) -> (DType, Vec<u8>) {
        let tensor = |name: &str| weights.get(name).expect("a tensor of the checkpoint");
        match self {
            Self::Whole(name) => (tensor(name).dtype, tensor(name).data.to_vec()),
            Self::Parts(parts) => {
                let mut out = Vec::new();
                for (name, first, loops) in parts {
                    let view = tensor(name);
                    let width = view.dtype.bytes_for(1).expect("whole bytes");
                    gather(view.data, width, *first, loops, &mut out);
                }
                (tensor(&parts[0].0).dtype, out)
            }
        }
    }
}

/// Copies elements of `width` bytes in the order of nested loops.
fn gather(data: &[u8], width: usize, first: usize, loops: &[Loop], out: &mut Vec<u8>) {
    match loops {
        [] => out.extend(&data[first * width..][..width]),
        [(n, 1)] => out.extend(&data[first * width..][..n * width]),
        [(n, stride), inner @ ..] => {
            for i in 0..*n as i64 {
                let first = first as i64 + i * stride;
                gather(data, width, first as usize, inner, out);
            }
        }
    }
}

/// Blocks of 32 codes, half a block apart in a byte, from bytes of two neighbouring codes.
fn mxfp4_blocks(codes: &[u8], exponents: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (codes, exponent) in codes.as_chunks::<16>().0.iter().zip(exponents) {
        let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
        out.push(*exponent);
        out.extend((0..16).map(|i| code(i) | code(i + 16) << 4));
    }
    out
}

fn metadata(kind: &str, value: &Value) -> GgufValue {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = || value.as_array().expect("a list").iter();
    let signed = |value: &Value| value.as_i64().expect("an integer") as i32;
    match kind {
        "string" => GgufValue::String(text(value)),
        "u32" => GgufValue::U32(value.as_u64().expect("an integer") as u32),
        "f32" => GgufValue::F32(value.as_f64().expect("a number") as f32),
        "bool" => GgufValue::Bool(value.as_bool().expect("a truth value")),
        "[i32]" => GgufValue::Array(GgufArray::I32(list().map(signed).collect())),
        "[f32]" => {
            let number = |item: &Value| match item {
                Value::String(text) => text.parse().expect("a number"),
                item => item.as_f64().expect("a number") as f32,
            };
            GgufValue::Array(GgufArray::F32(list().map(number).collect()))
        }
        "[bool]" => {
            let items = list().map(|item| item.as_bool().expect("a truth value")).collect();
            GgufValue::Array(GgufArray::Bool(items))
        }
        other => panic!("no metadata of type `{other}` in recipes"),
    }
}

/// CRC-32 of every byte.
const CRC32: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC-32 as zlib computes it.
pub fn crc32(bytes: &[u8]) -> u32 {
    let next = |crc: u32, byte: &u8| crc >> 8 ^ CRC32[usize::from(crc as u8 ^ byte)];
    !bytes.iter().fold(u32::MAX, next)
}
