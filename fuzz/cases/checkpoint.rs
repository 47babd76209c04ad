//! Any quantization config over any tensors is refused in one line, or its matrices pack to the weights
//! that the definition of the method gives; never a panic.
//!
//! An input is `n:u16 k:u16 config_len:u16 config:JSON safetensors`. Every name that ends in a dot and
//! something is taken for a tensor of a module.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use pelton_kernels::Cpu;
use pelton_quant::Compute;
use pelton_quant::checkpoint::{Scheme, pack_quantized};
use pelton_tensor::{MappedFile, Safetensors, TensorSource};

/// Most rows and columns: what is looked for is in the parsers, not in large numbers of weights.
const MOST: u16 = 512;

static CPU: LazyLock<Cpu> = LazyLock::new(|| Cpu::new(Some(1)).expect("kernels"));

pub(crate) fn run(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<6>() else { return };
    let word = |i: usize| u16::from_le_bytes([head[i], head[i + 1]]);
    let shape = [word(0) % MOST + 1, word(2) % MOST + 1].map(usize::from);
    let Some((config, weights)) = rest.split_at_checked(usize::from(word(4))) else { return };
    let Ok(config) = serde_json::from_slice(config) else { return };
    let scheme = match Scheme::parse(&config) {
        Ok(scheme) => scheme,
        Err(error) => return one_line(&error.to_string()),
    };
    one_line(&scheme.words());
    let weights = MappedFile::from_vec("fuzzed", weights.to_vec());
    let Ok(weights) = Safetensors::from_mapped(weights) else { return };
    let names = weights.names();
    let modules: BTreeSet<&str> =
        names.iter().filter_map(|name| Some(name.rsplit_once('.')?.0)).collect();
    for module in modules {
        let matrix = match scheme.find(&weights, module, shape) {
            Ok(Some(matrix)) => matrix,
            Ok(None) => continue,
            Err(error) => {
                one_line(&error.to_string());
                continue;
            }
        };
        let [n, k] = matrix.shape();
        let expected = match matrix.dequantize() {
            Ok(weights) => weights,
            Err(error) => {
                one_line(&error.to_string());
                continue;
            }
        };
        for block in matrix.split() {
            let order = block.order().map(<[u32]>::to_vec);
            let Ok(packed) = pack_quantized(&CPU, &[&block], Compute::Auto) else { continue };
            let mut got = vec![0.0; packed.k()];
            for row in 0..n {
                packed.unpack_row_f32(row, &mut got);
                for (j, got) in got.iter().enumerate() {
                    let input = order.as_ref().map_or(j, |order| order[j] as usize);
                    let weight = expected[row * k + input];
                    assert!(*got == weight || (got.is_nan() && weight.is_nan()), "{got} {weight}");
                }
            }
        }
    }
}

fn one_line(text: &str) {
    assert!(!text.contains('\n'), "{text:?}");
}
