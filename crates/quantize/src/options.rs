//! Options of a quantization.

use pelton_quant::checkpoint::{fits_awq, fits_gptq};
use pelton_quant::solve::Grid;
use pelton_quant::solve::gptq;
use serde_json::{Value, json};

use crate::{QuantizeError, Result};

/// The way codes are chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// Every weight by itself.
    Rtn,
    /// Errors are made good by later inputs.
    Gptq,
    /// Inputs are scaled by their size.
    Awq,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 3] = [Self::Rtn, Self::Gptq, Self::Awq];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtn => "rtn",
            Self::Gptq => "gptq",
            Self::Awq => "awq",
        }
    }

    /// Whether it looks at activations.
    pub fn needs_calibration(self) -> bool {
        self != Self::Rtn
    }
}

/// Options of a quantization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How codes are chosen.
    pub method: Method,
    /// Bits, group and symmetry.
    pub grid: Grid,
    /// Settings of GPTQ.
    pub gptq: gptq::Options,
}

impl Options {
    /// Checks that the parts agree.
    ///
    /// # Errors
    ///
    /// Names the flag that is out of range.
    pub fn check(&self) -> Result<()> {
        let Grid { bits, group, symmetric } = self.grid;
        let refuse = |why: String| Err(QuantizeError::Option(why));
        match self.method {
            Method::Awq if bits != 4 => {
                refuse(format!("`--bits` is {bits}: expected 4, the only width of AWQ's files"))
            }
            Method::Awq if symmetric => {
                refuse("`--symmetric` with `awq`: its files always have zero points".to_owned())
            }
            _ if ![2, 3, 4, 8].contains(&bits) => {
                refuse(format!("`--bits` is {bits}: expected 2, 3, 4 or 8"))
            }
            _ if group == Some(0) => refuse("`--group` is 0: expected 1 up, or `row`".to_owned()),
            _ if self.gptq.act_order && self.method != Method::Gptq => {
                refuse(format!("`--act-order` with `{}`: only `gptq` has it", self.method.name()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a matrix fills whole words of the files.
    pub(crate) fn fits(&self, shape: [usize; 2]) -> bool {
        match self.method {
            Method::Awq => fits_awq(shape),
            Method::Rtn | Method::Gptq => fits_gptq(shape, self.grid.bits),
        }
    }

    /// The `quantization_config`; `plain` are the modules of layers that stay in floats.
    pub(crate) fn config(&self, plain: &[String]) -> Value {
        let Grid { bits, group, symmetric } = self.grid;
        let group = group.map_or(json!(-1), |group| json!(group));
        if self.method == Method::Awq {
            let plain = if plain.is_empty() { Value::Null } else { json!(plain) };
            return json!({
                "quant_method": "awq", "bits": bits, "group_size": group, "zero_point": true,
                "version": "gemm", "modules_to_not_convert": plain,
            });
        }
        let mut config = json!({
            "quant_method": "gptq", "bits": bits, "group_size": group,
            "desc_act": self.gptq.act_order, "sym": symmetric,
            "damp_percent": self.gptq.damping, "static_groups": false, "true_sequential": false,
            "lm_head": false, "checkpoint_format": "gptq",
            "meta": { "quantizer": [concat!("pelton:", env!("CARGO_PKG_VERSION"))],
                      "method": self.method.name() },
        });
        if !plain.is_empty() {
            let name = |module: &String| (format!("-:^{}$", module.replace('.', "\\.")), json!({}));
            config["dynamic"] = Value::Object(plain.iter().map(name).collect());
        }
        config
    }
}
