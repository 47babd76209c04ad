//! The `quantization_config` of what is written, in the words of the layout's own library.

use std::collections::BTreeMap;

use pelton_quant::solve::{Grid, Group, aqlm, fp8, quip};
use serde_json::{Value, json};

use crate::{Method, Options};

/// Bits of the modules, where they differ.
pub(crate) type Bits = BTreeMap<String, usize>;

impl Options {
    /// The `quantization_config`; `plain` are the modules of layers that stay in floats.
    pub(crate) fn config(&self, plain: &[String], bits: Option<&Bits>) -> Value {
        if let Some(bits) = bits {
            return self.mixed(plain, bits);
        }
        let head = [&["lm_head".to_owned()][..], plain].concat();
        match self.method {
            Method::Rtn | Method::Gptq => self.gptq_config(plain),
            Method::Awq => json!({
                "quant_method": "awq", "bits": self.grid.bits, "group_size": self.group_size(),
                "zero_point": true, "version": "gemm",
                "modules_to_not_convert":
                    if plain.is_empty() { Value::Null } else { json!(plain) },
            }),
            Method::SmoothQuant | Method::Int8 => {
                let weights = weights("int", 8, self.strategy(), Value::Null);
                compressed("int-quantized", &weights, Some("int"), &head)
            }
            // compressed-tensors has no E5M2.
            Method::Fp8 if self.block().is_none() && self.fp8 == fp8::Kind::E4m3 => {
                let weights = weights("float", 8, self.strategy(), Value::Null);
                compressed("float-quantized", &weights, Some("float"), &head)
            }
            Method::Fp8 => {
                let fmt = if self.fp8 == fp8::Kind::E5m2 { "e5m2" } else { "e4m3" };
                let mut config = json!({
                    "quant_method": "fp8", "fmt": fmt, "activation_scheme": "dynamic",
                    "modules_to_not_convert": head,
                });
                if let Some(block) = self.block() {
                    config["weight_block_size"] = json!([block, block]);
                }
                config
            }
            Method::Mxfp4 => {
                let weights = weights("float", 4, "group", json!(32));
                compressed("mxfp4-pack-quantized", &weights, None, &head)
            }
            Method::Nvfp4 => {
                let weights = weights("float", 4, "tensor_group", json!(16));
                compressed("nvfp4-pack-quantized", &weights, None, &head)
            }
            Method::Quip => {
                let (name, version) = quip::codebook(self.grid.bits);
                json!({
                    "quant_method": "quip", "codebook": name, "codebook_version": version,
                    "lora_rank": 0, "rescale_WH": false, "fused": false,
                    "modules_to_not_convert": head,
                })
            }
            Method::Aqlm => {
                let plain = head.iter().map(|module| format!("{module}.weight"));
                json!({
                    "quant_method": "aqlm", "num_codebooks": self.grid.bits,
                    "nbits_per_codebook": 8, "in_group_size": aqlm::DIM, "out_group_size": 1,
                    "linear_weights_not_to_quantize": plain.collect::<Vec<_>>(),
                })
            }
            Method::BitNet => json!({
                "quant_method": "bitnet", "linear_class": "autobitlinear",
                "quantization_mode": "offline", "use_rms_norm": false,
                "modules_to_not_convert": head,
            }),
            Method::LlmInt8 | Method::Nf4 => self.bitsandbytes_config(&head),
            Method::Hqq => json!({
                "quant_method": "hqq", "skip_modules": head,
                "quant_config": {
                    "offload_meta": false, "scale_quant_params": null, "zero_quant_params": null,
                    "weight_quant_params": {
                        "nbits": self.grid.bits, "group_size": self.group_size(), "axis": 1,
                        "channel_wise": true, "optimize": true, "round_zero": false,
                        "view_as_float": false,
                    },
                },
            }),
        }
    }

    fn group_size(&self) -> Value {
        self.block().map_or(json!(-1), |group| json!(group))
    }

    /// Inputs that share a scale, unless all of a row do.
    fn block(&self) -> Option<usize> {
        match self.grid.group {
            Group::Inputs(n) => Some(n),
            Group::Row | Group::Tensor => None,
        }
    }

    /// The way that compressed-tensors shares scales.
    fn strategy(&self) -> &'static str {
        match self.grid.group {
            Group::Inputs(_) => "group",
            Group::Row => "channel",
            Group::Tensor => "tensor",
        }
    }

    fn gptq_config(&self, plain: &[String]) -> Value {
        let Grid { bits, symmetric, .. } = self.grid;
        let format = if symmetric { "gptq" } else { "gptq_v2" };
        let mut config = json!({
            "quant_method": "gptq", "bits": bits, "group_size": self.group_size(),
            "desc_act": self.gptq.act_order, "sym": symmetric,
            "damp_percent": self.gptq.damping, "static_groups": false, "true_sequential": false,
            "lm_head": false, "checkpoint_format": format,
            "meta": { "quantizer": [concat!("pelton:", env!("CARGO_PKG_VERSION"))],
                      "method": self.method.name() },
        });
        if !plain.is_empty() {
            let name = |module: &String| (format!("-:^{}$", module.replace('.', "\\.")), json!({}));
            config["dynamic"] = Value::Object(plain.iter().map(name).collect());
        }
        config
    }

    fn bitsandbytes_config(&self, head: &[String]) -> Value {
        let is_nf4 = self.method == Method::Nf4;
        let mut config = json!({
            "quant_method": "bitsandbytes", "load_in_4bit": is_nf4, "load_in_8bit": !is_nf4,
            "_load_in_4bit": is_nf4, "_load_in_8bit": !is_nf4,
            "llm_int8_skip_modules": head, "llm_int8_threshold": 6.0,
            "llm_int8_has_fp16_weight": false, "llm_int8_enable_fp32_cpu_offload": false,
        });
        if is_nf4 {
            for (field, value) in [
                ("bnb_4bit_quant_type", json!("nf4")),
                ("bnb_4bit_use_double_quant", json!(true)),
                ("bnb_4bit_compute_dtype", json!("float32")),
                ("bnb_4bit_quant_storage", json!("uint8")),
            ] {
                config[field] = value;
            }
        }
        config
    }

    /// Words of different widths: a group of modules for each.
    fn mixed(&self, plain: &[String], bits: &Bits) -> Value {
        let mut by_width: BTreeMap<usize, Vec<&String>> = BTreeMap::new();
        for (module, bits) in bits {
            by_width.entry(*bits).or_default().push(module);
        }
        let (strategy, group) = (self.strategy(), json!(self.block()));
        let groups = by_width.into_iter().enumerate().map(|(i, (bits, modules))| {
            let own = json!({
                "targets": modules, "weights": weights("int", bits, strategy, group.clone()),
                "input_activations": null, "output_activations": null, "format": "pack-quantized",
            });
            (format!("group_{i}"), own)
        });
        let head = [&["lm_head".to_owned()][..], plain].concat();
        json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "kv_cache_scheme": null,
            "config_groups": Value::Object(groups.collect()),
            "ignore": head,
        })
    }
}

/// The weights of a group of compressed-tensors.
fn weights(kind: &str, bits: usize, strategy: &str, group: Value) -> Value {
    json!({
        "num_bits": bits, "type": kind, "symmetric": true, "strategy": strategy,
        "group_size": group, "actorder": null, "block_structure": null, "dynamic": false,
        "observer": "minmax", "observer_kwargs": {},
    })
}

/// The settings of compressed-tensors with one group; `activations` is the type that other engines
/// round activations to, 8 bits per token.
fn compressed(
    format: &str,
    weights: &Value,
    activations: Option<&str>,
    ignore: &[String],
) -> Value {
    let activations = activations.map_or(Value::Null, |kind| {
        json!({
            "num_bits": 8, "type": kind, "symmetric": true, "strategy": "token", "dynamic": true,
            "group_size": null, "actorder": null, "block_structure": null, "observer": null,
            "observer_kwargs": {},
        })
    });
    json!({
        "quant_method": "compressed-tensors", "format": format,
        "quantization_status": "compressed", "kv_cache_scheme": null,
        "config_groups": { "group_0": {
            "targets": ["Linear"], "weights": weights, "input_activations": activations,
            "output_activations": null,
        } },
        "ignore": ignore,
    })
}
