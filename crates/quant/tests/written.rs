//! Every layout that solvers write is read back: by its method, to the bits that the solver promised.

use std::path::Path;

use pelton_quant::checkpoint::{
    Scheme, WrittenTensor, aqlm_tensors, awq_tensors, bitnet_tensors, fp4_tensors, fp8_tensors,
    gptq_tensors, gptq_v2_tensors, hqq_tensors, int8_tensors, llm_int8_tensors, nf4_tensors,
    packed_tensors, quip_tensors,
};
use pelton_quant::solve::{
    Grid, Group, SolveError, Weights, aqlm, fp4, fp8, gptq, hqq, int8, nf4, quip, rtn, ternary,
};
use pelton_tensor::{MappedFile, TensorSource, TensorView};
use serde_json::{Value, json};

/// Tensors in memory.
struct Tensors(Vec<(String, WrittenTensor)>);

impl TensorSource for Tensors {
    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn get(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, tensor) = self.0.iter().find(|(known, _)| known == name)?;
        let WrittenTensor { dtype, shape, data, .. } = tensor;
        Some(TensorView { name, dtype: *dtype, shape, data })
    }

    fn origin(&self) -> &Path {
        Path::new("memory")
    }

    fn files(&self) -> &[MappedFile] {
        &[]
    }
}

/// Weights of many sizes, with an output of zeros and a stray one.
fn values(n: usize, k: usize) -> Vec<f32> {
    let wave = |i: usize| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * 0.05 * (1 + i / k % 7) as f32;
    let mut values: Vec<f32> = (0..n * k).map(wave).collect();
    values[k..2 * k].fill(0.0);
    values[5 * k + 3] = 2.5;
    values
}

/// A layout: a configuration, tensors, the weights that they are, and the most that one may be off,
/// as a share of the largest.
struct Case {
    name: String,
    config: Value,
    tensors: Vec<WrittenTensor>,
    weights: Vec<f32>,
    bound: f32,
}

fn compressed(format: &str, weights: Value) -> Value {
    json!({ "quant_method": "compressed-tensors", "format": format,
            "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } } })
}

/// 8 bits with a scale per matrix.
fn per_tensor(kind: &str) -> Value {
    let weights = json!({ "num_bits": 8, "type": kind, "symmetric": true, "strategy": "tensor" });
    compressed(&format!("{kind}-quantized"), weights)
}

fn integers(weights: Weights<'_>, cases: &mut Vec<Case>) {
    for bits in [2, 3, 4, 8] {
        for symmetric in [true, false] {
            let grid = Grid { bits, group: Group::Inputs(32), symmetric };
            let solved = rtn::solve(weights, &grid, 1).expect("rounds");
            let bound = 1.0 / f32::from((1_u16 << bits) - 2);
            let mut add = |name: &str, config, tensors| {
                let (name, weights) = (format!("{name}-{bits} {symmetric}"), solved.weights());
                cases.push(Case { name, config, tensors, weights, bound });
            };
            let gptq = json!({ "quant_method": "gptq", "bits": bits, "group_size": 32 });
            add("gptq", gptq.clone(), gptq_tensors(&solved));
            let mut v2 = gptq;
            v2["checkpoint_format"] = json!("gptq_v2");
            add("gptq-v2", v2, gptq_v2_tensors(&solved));
            if bits == 4 && !symmetric {
                let awq = json!({ "quant_method": "awq", "bits": 4, "group_size": 32,
                                  "zero_point": true, "version": "gemm" });
                add("awq", awq, awq_tensors(&solved));
            }
            if symmetric {
                let kind = json!({ "num_bits": bits, "type": "int", "symmetric": true,
                                   "strategy": "group", "group_size": 32 });
                add("packed", compressed("pack-quantized", kind), packed_tensors(&solved));
            }
        }
        let grid = Grid { bits, group: Group::Inputs(32), symmetric: false };
        let solved = hqq::solve(weights, &grid, 1).expect("solves");
        let config = json!({ "quant_method": "hqq", "quant_config": {} });
        let bound = 3.0 / f32::from((1_u16 << bits) - 1);
        let (tensors, weights) = (hqq_tensors(&solved), solved.weights());
        // The library does not load without these.
        let packing = if bits == 3 { "3bit_32".to_owned() } else { format!("{bits}bit_u8") };
        for (suffix, data) in [
            ("packing", packing.as_bytes()),
            ("encoded_state_dict", &[1]),
            ("quant_scale", &[0]),
            ("quant_zero", &[0]),
        ] {
            let found = tensors.iter().find(|tensor| tensor.suffix == suffix);
            assert_eq!(found.map(|tensor| &tensor.data[..]), Some(data), "{suffix}");
        }
        cases.push(Case { name: format!("hqq-{bits}"), config, tensors, weights, bound });
    }
}

fn floats_and_bytes(weights: Weights<'_>, cases: &mut Vec<Case>) {
    let mut add = |name: &str, config, tensors, weights, bound| {
        cases.push(Case { name: name.to_owned(), config, tensors, weights, bound });
    };
    let fp8 =
        |kind, group| fp8::solve(weights, fp8::Layout { kind, group }, None, 1).expect("rounds");
    let row = fp8(fp8::Kind::E4m3, Group::Row);
    let kind = json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel" });
    let config = compressed("float-quantized", kind);
    add("fp8-row", config, fp8_tensors(&row), row.weights(), 0.0625);
    let row = fp8(fp8::Kind::E5m2, Group::Row);
    let config = json!({ "quant_method": "fp8", "fmt": "e5m2" });
    add("fp8-row-e5m2", config, fp8_tensors(&row), row.weights(), 0.125);
    for (kind, config, bound) in [
        (fp8::Kind::E4m3, per_tensor("float"), 0.0625),
        (fp8::Kind::E5m2, json!({ "quant_method": "fp8", "fmt": "e5m2" }), 0.125),
    ] {
        let tensor = fp8(kind, Group::Tensor);
        assert_eq!(tensor.scales.len(), 1);
        add("fp8-tensor", config, fp8_tensors(&tensor), tensor.weights(), bound);
    }
    let block = fp8(fp8::Kind::E4m3, Group::Inputs(24));
    let config = json!({ "quant_method": "fp8", "weight_block_size": [24, 24] });
    add("fp8-block", config, fp8_tensors(&block), block.weights(), 0.0625);
    let int8 = int8::solve(weights, Group::Row, 1).expect("rounds");
    let kind = json!({ "num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel" });
    let config = compressed("int-quantized", kind);
    add("int8", config, int8_tensors(&int8), int8.weights(), 0.004);
    let tensor = int8::solve(weights, Group::Tensor, 1).expect("rounds");
    assert_eq!(tensor.scales().len(), 1);
    // The largest weight is 50 times as large as those of most outputs.
    add("int8-tensor", per_tensor("int"), int8_tensors(&tensor), tensor.weights(), 50.0 * 0.004);
    let config = json!({ "quant_method": "bitsandbytes", "load_in_8bit": true });
    add("llm-int8", config, llm_int8_tensors(&int8), int8.weights(), 0.004);
    for block in [64, 128] {
        let nf4 = nf4::solve(weights, block, 1).expect("rounds");
        let config = json!({ "quant_method": "bitsandbytes", "load_in_4bit": true });
        add("nf4", config, nf4_tensors(&nf4, "float32"), nf4.weights(), 0.16);
    }
    for (kind, format, group) in
        [(fp4::Kind::Mx, "mxfp4-pack-quantized", 32), (fp4::Kind::Nv, "nvfp4-pack-quantized", 16)]
    {
        let solved = fp4::solve(weights, kind, 1).expect("rounds");
        let kind = json!({ "num_bits": 4, "type": "float", "symmetric": true,
                           "strategy": "group", "group_size": group });
        add(format, compressed(format, kind), fp4_tensors(&solved), solved.weights(), 0.26);
    }
}

/// The weights that a reader computes.
fn read_back(
    name: &str,
    config: &Value,
    tensors: Vec<WrittenTensor>,
    shape: [usize; 2],
) -> Vec<f32> {
    let named = |tensor: WrittenTensor| (format!("m.{}", tensor.suffix), tensor);
    let source = Tensors(tensors.into_iter().map(named).collect());
    let scheme = Scheme::parse(config).expect(name);
    let found = scheme.find(&source, "m", shape).expect(name).expect(name);
    found.dequantize().expect(name)
}

#[test]
fn vectors_of_lattices_read_back_to_the_bits_that_their_solver_promised() {
    // Widths whose transforms have factors, and those that have none.
    for (shape, bits) in [([64, 128], 2), ([96, 192], 2), ([48, 64], 3), ([32, 320], 4)] {
        let [n, k] = shape;
        let values = values(n, k);
        let solved =
            quip::solve(Weights { shape, values: &values }, bits, None, 1).expect("solves");
        let codebook = ["E8P12", "E8P12RVQ3B", "E8P12RVQ4B"][bits - 2];
        let config = json!({ "quant_method": "quip", "codebook": codebook });
        let tensors = quip_tensors(&solved);
        let n_bits: usize = tensors.iter().map(|tensor| 8 * tensor.data.len()).sum();
        let n_signs = 16 * (n + k) + 32 + 64;
        assert_eq!(n_bits, bits * n * k + n_signs);
        let read = read_back(codebook, &config, tensors, shape);
        assert!(read == solved.weights(), "{codebook}: the reader computes other weights");
        let squares = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>();
        let apart: Vec<f32> = values.iter().zip(&read).map(|(a, b)| a - b).collect();
        let error = squares(&apart) / squares(&values);
        assert!(error < [0.12, 0.05, 0.02][bits - 2], "{codebook}: {error}");
        assert!(read[k..2 * k].iter().all(|w| *w == 0.0), "an output of zeros stays one");
    }
    let values = vec![0.0; 16 * 64];
    let weights = Weights { shape: [16, 64], values: &values };
    let solved = quip::solve(weights, 2, None, 1).expect("solves");
    let config = json!({ "quant_method": "quip", "codebook": "E8P12" });
    assert_eq!(read_back("zeros", &config, quip_tensors(&solved), [16, 64]), values);
}

#[test]
fn sums_of_codebooks_read_back_to_the_bits_that_their_solver_promised() {
    let shape = [96, 128];
    let values = values(shape[0], shape[1]);
    let weights = Weights { shape, values: &values };
    for bits in [2, 3, 4] {
        let solved = aqlm::solve(weights, bits, None, gptq::Options::default(), 2).expect("solves");
        let config = json!({ "quant_method": "aqlm", "num_codebooks": bits,
                             "nbits_per_codebook": 8, "in_group_size": 8, "out_group_size": 1 });
        let read = read_back("aqlm", &config, aqlm_tensors(&solved), shape);
        assert!(read == solved.weights(), "{bits}: the reader computes other weights");
        assert!(solved.codes.iter().any(|code| *code > 127), "codes of both signs");
        let squares = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>();
        let apart: Vec<f32> = values.iter().zip(&read).map(|(a, b)| a - b).collect();
        let error = squares(&apart) / squares(&values);
        println!("{bits}: {error}");
        assert!(error < [0.12, 0.05, 0.01][bits - 2], "{bits}: {error}");
        assert!(read[128..256].iter().all(|w| *w == 0.0), "an output of zeros stays one");
    }
    for (size, expected) in [(1e-42, Ok(())), (1e9, Err(SolveError::Scale { row: 0 }))] {
        let values = vec![size; 2 * 64];
        let weights = Weights { shape: [2, 64], values: &values };
        let solved = aqlm::solve(weights, 2, None, gptq::Options::default(), 1);
        assert_eq!(solved.map(|solved| assert_eq!(solved.weights(), [0.0; 128])), expected);
    }
}

#[test]
fn ternary_weights_read_back_to_the_bits_that_their_solver_promised() {
    let shape = [12, 128];
    let trained: Vec<f32> =
        (0..shape[0] * shape[1]).map(|i| ((i * 7919 % 1009 % 3) as f32 - 1.0) * 0.375).collect();
    let config = json!({ "quant_method": "bitnet", "linear_class": "autobitlinear",
                         "quantization_mode": "offline" });
    let read = |values: &[f32]| {
        let solved = ternary::solve(Weights { shape, values }, 2).expect("rounds");
        let read = read_back("bitnet", &config, bitnet_tensors(&solved), shape);
        assert!(read == solved.weights(), "the reader computes other weights");
        (read, solved.scale)
    };
    // The scale is the mean magnitude, so zeros among the weights make it less than theirs.
    let (found, scale) = read(&trained);
    let n_zeros = trained.iter().filter(|w| **w == 0.0).count();
    let mean = 0.375 * (1.0 - n_zeros as f32 / trained.len() as f32);
    assert!((scale / mean - 1.0).abs() < 1e-3, "{scale} {mean}");
    assert!(found.iter().zip(&trained).all(|(found, w)| found / scale == w / 0.375));
    // Halves of the scale go to zero, weights beyond one and a half to one.
    let values = values(shape[0], shape[1]);
    let (found, scale) = read(&values);
    for (w, found) in values.iter().zip(found) {
        let nearest = [-scale, 0.0, scale].into_iter().map(|x| (w - x).abs()).fold(9.0, f32::min);
        assert!((w - found).abs() <= nearest, "{w} became {found}, of {scale}");
    }
    // Scales that f16 lacks, and none.
    for size in [1e-30, 1e9] {
        assert_eq!(read(&vec![size; 12 * 128]), (vec![size; 12 * 128], size));
    }
    assert_eq!(read(&[0.0; 12 * 128]), (vec![0.0; 12 * 128], 1.0));
}

#[test]
fn every_layout_reads_back_to_the_bits_that_its_solver_promised() {
    let shape = [64, 128];
    let values = values(shape[0], shape[1]);
    let weights = Weights { shape, values: &values };
    let mut cases = Vec::new();
    integers(weights, &mut cases);
    floats_and_bytes(weights, &mut cases);
    assert!(cases.len() >= 25, "{} layouts", cases.len());
    for Case { name, config, tensors, weights, bound } in cases {
        let read = read_back(&name, &config, tensors, shape);
        assert!(read == weights, "{name}: the reader computes other weights");
        for (row, (own, found)) in values.chunks(128).zip(read.chunks(128)).enumerate() {
            let largest = own.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
            let far = own.iter().zip(found).fold(0.0_f32, |far, (a, b)| far.max((a - b).abs()));
            assert!(far <= (bound + 1e-3) * largest, "{name}: output {row} is {far} off");
        }
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_every_solver() {
    let mut values = values(16, 64);
    values[64 * 3 + 9] = f32::INFINITY;
    let weights = Weights { shape: [16, 64], values: &values };
    let grid = Grid { bits: 4, group: Group::Inputs(32), symmetric: true };
    let errors = [
        rtn::solve(weights, &grid, 1).err(),
        hqq::solve(weights, &grid, 1).err(),
        fp8::solve(weights, fp8::Layout { kind: fp8::Kind::E4m3, group: Group::Row }, None, 1)
            .err(),
        int8::solve(weights, Group::Row, 1).err(),
        nf4::solve(weights, 64, 1).err(),
        fp4::solve(weights, fp4::Kind::Nv, 1).err(),
        quip::solve(weights, 2, None, 1).err(),
        aqlm::solve(weights, 2, None, gptq::Options::default(), 1).err(),
        ternary::solve(weights, 1).err(),
    ];
    for error in errors {
        let error = error.expect("refused").to_string();
        assert!(error.contains("output 3 and input 9"), "{error}");
    }
    let odd = [0.5; 40];
    let weights = Weights { shape: [1, 40], values: &odd };
    let error = fp4::solve(weights, fp4::Kind::Mx, 1).expect_err("half a group").to_string();
    assert!(error.contains("40 inputs"), "{error}");
}
