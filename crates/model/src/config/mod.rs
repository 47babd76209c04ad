//! `config.json`, read with suspicion.
//!
//! [`parse_config`] turns the bytes of a file into an [`HfConfig`] in which every number is in
//! range and every pair of numbers agrees: later code divides, allocates and indexes without
//! looking twice. Keys that a family reads differently are left to its file in
//! [`arch`](crate::arch).

mod heads;
mod rope;
mod scheme;
#[cfg(test)]
mod tests;
mod values;

use pelton_base::{TokenId, limits};
use serde_json::{Map, Value};

use crate::arch::{self, Act, Arch, Preset};
use crate::fields::{ConfigError, Field, parse_json};
use crate::rope::RopeSpec;
use crate::wrapper;
pub(crate) use heads::{HeadFields, Heads};
use rope::RopeFields;
pub(crate) use rope::{read_factor, read_theta};
use scheme::read_scheme;
pub(crate) use scheme::{parse_scheme, parse_scheme_file, parse_scheme_words};
pub(crate) use values::{
    generation_eos_tokens, generation_suppressed, read_act, read_cap, read_cuts, read_eps,
    read_tokens,
};
use values::{read_ffn, read_layer_types, read_window};

/// The part of a checkpoint's configuration that architectures read, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    /// `architectures[0]`, or `model_type` where that is missing.
    pub architecture: String,
    /// `architectures[0]` of a model whose text's part this is.
    pub wrapper: Option<String>,
    /// `hidden_size`, in elements.
    pub hidden_size: usize,
    /// `intermediate_size`, in elements; the first layer's where it is a list.
    pub intermediate_size: usize,
    /// `num_hidden_layers`.
    pub num_hidden_layers: usize,
    /// `num_attention_heads`; a multiple of `num_key_value_heads`.
    pub num_attention_heads: usize,
    /// `num_key_value_heads`; as many as query heads where the field is missing.
    pub num_key_value_heads: usize,
    /// `head_dim`, in elements, even; `hidden_size / num_attention_heads` where missing.
    pub head_dim: usize,
    /// `vocab_size`, in tokens.
    pub vocab_size: usize,
    /// `max_position_embeddings`, in tokens.
    pub max_position_embeddings: usize,
    /// `rms_norm_eps`.
    pub rms_norm_eps: f32,
    /// `hidden_act`.
    pub hidden_act: Act,
    /// `sliding_window`, in tokens.
    pub sliding_window: Window,
    /// `use_sliding_window`.
    pub use_sliding_window: bool,
    /// `max_window_layers`.
    pub max_window_layers: usize,
    /// Layers that are `sliding_attention` or `chunked_attention` in `layer_types`; one entry per
    /// layer.
    pub sliding_layers: Option<Vec<bool>>,
    /// `attention_bias`.
    pub attention_bias: Option<bool>,
    /// `mlp_bias`.
    pub mlp_bias: bool,
    /// `tie_word_embeddings`.
    pub tie_word_embeddings: bool,
    /// `final_logit_softcapping`.
    pub final_logit_softcapping: Option<f32>,
    /// `rope_theta` with `rope_scaling` or `rope_parameters`.
    pub rope: RopeSpec,
    /// Rotation of layers with a window, where it differs from that of layers without one.
    pub local_rope: Option<RopeSpec>,
    /// `bos_token_id`.
    pub bos_token: Option<TokenId>,
    /// `eos_token_id`, one or several.
    pub eos_tokens: Vec<TokenId>,
    /// Everything, as it stands in the file but for names: what only one family reads.
    pub(crate) fields: Value,
}

impl HfConfig {
    /// A field that only some families have.
    pub(crate) fn field(&self, name: &str) -> Field<'_> {
        Field::new(name, self.fields.get(name))
    }

    /// A number in `min..=max`, or `default` where the config does not say.
    pub(crate) fn number(
        &self,
        name: &str,
        default: f64,
        [min, max]: [f64; 2],
    ) -> Result<f32, ConfigError> {
        match self.field(name).non_null() {
            Some(field) => Ok(field.number(min, max)? as f32),
            None => Ok(default as f32),
        }
    }

    /// A cap in `1e-3..=1e6`, or `None` where the config does not say.
    pub(crate) fn cap(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        read_cap(&self.field(name))
    }

    /// `layer_types`: the kind of each layer, where the config lists them.
    pub(crate) fn layer_kinds(&self) -> Result<Option<Vec<&str>>, ConfigError> {
        let field = self.field("layer_types");
        let Some(items) = field.value().and_then(Value::as_array) else { return Ok(None) };
        let kinds = items.iter().map(|item| item.as_str().unwrap_or_default()).collect();
        Ok(Some(kinds))
    }

    /// Of each layer whether it attends: all but those that `layer_types` calls `linear_attention`, or
    /// where there is no such list those of which `is_usual` says so, by number and number of layers.
    ///
    /// For families without windows.
    pub(crate) fn attending_layers(
        &self,
        is_usual: impl Fn(usize, usize) -> bool,
    ) -> Result<Vec<bool>, ConfigError> {
        let n = self.num_hidden_layers;
        if self.sliding_layers.as_ref().is_some_and(|sliding| sliding.contains(&true)) {
            let expected = "\"full_attention\" or \"linear_attention\" for each layer";
            return Err(self.field("layer_types").error(expected));
        }
        Ok(match self.layer_kinds()? {
            Some(kinds) => kinds.iter().map(|kind| *kind != "linear_attention").collect(),
            None => (0..n).map(|layer| is_usual(layer, n)).collect(),
        })
    }

    /// Refuses an activation but SiLU, in families whose convolutions have it as well.
    pub(crate) fn expect_silu(&self) -> Result<(), ConfigError> {
        match self.hidden_act {
            Act::Silu => Ok(()),
            _ => Err(self.field("hidden_act").error("\"silu\", all that is supported")),
        }
    }

    /// `true` or `false`, or `default` where the config does not say.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        self.field(name).flag(default)
    }

    /// Refuses a config in which the flag is not what is supported; left out, it is.
    pub(crate) fn expect_flag(&self, name: &str, supported: bool) -> Result<(), ConfigError> {
        match self.flag(name, supported)? == supported {
            true => Ok(()),
            false => Err(self.field(name).error(format!("{supported}, all that is supported"))),
        }
    }
}

/// The attention window that a config declares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// Nothing: the family's default holds.
    Absent,
    /// `null`: full attention.
    Off,
    /// A window of this many tokens.
    Tokens(usize),
}

const DEFAULT_NORM_EPS: f64 = 1e-6;
/// `head_dim` of Qwen3 configs that leave it out.
const QWEN3_HEAD_DIM: usize = 128;

/// Reads a `config.json`.
///
/// # Errors
///
/// Names the field, what it should be and what was found; an unknown architecture is answered with
/// the list of known ones.
pub fn parse_config(bytes: &[u8]) -> Result<HfConfig, ConfigError> {
    if bytes.len() as u64 > limits::CONFIG_BYTES {
        return Err(ConfigError::TooLarge {
            n_bytes: bytes.len() as u64,
            limit: limits::CONFIG_BYTES,
        });
    }
    let value = parse_json(bytes)?;
    if !value.is_object() {
        return Err(ConfigError::NotJson("expected an object at the top".to_owned()));
    }
    match wrapper::text_part(&value)? {
        None => parse_text(&value, None),
        Some((text, name)) => parse_text(&text, Some(name)).map_err(wrapper::in_text),
    }
}

/// Reads the config of a text model.
fn parse_text(value: &Value, wrapper: Option<String>) -> Result<HfConfig, ConfigError> {
    let architecture = read_architecture(&Field::new("", Some(value)))?;
    let Some(arch) = arch::find(&architecture) else { return Err(arch::unknown(&architecture)) };
    let fields = usual_fields(arch, value.clone());
    let config = read_config(architecture, arch, &fields);
    config.map(|config| HfConfig { wrapper, ..config }).map_err(|error| match error {
        ConfigError::Field { field, expected, found } => {
            let own = arch.spellings.iter().find(|(usual, _)| *usual == field);
            let own = own.filter(|(usual, own)| {
                value.get(usual).is_none_or(Value::is_null) && value.get(own).is_some()
            });
            let field = own.map_or(field, |(_, own)| (*own).to_owned());
            ConfigError::Field { field, expected, found }
        }
        other => other,
    })
}

/// The config with the usual names for what the family spells in its own way, and with what it
/// leaves out.
pub(crate) fn usual_fields(arch: &Arch, mut config: Value) -> Value {
    let Some(fields) = config.as_object_mut() else { return config };
    let is_said = |fields: &Map<String, Value>, name: &str| {
        fields.get(name).is_some_and(|value| !value.is_null())
    };
    for (usual, own) in arch.spellings {
        if let (false, Some(value)) = (is_said(fields, usual), fields.get(*own).cloned()) {
            fields.insert((*usual).to_owned(), value);
        }
    }
    if let Some(pattern) = arch.layer_pattern
        && !is_said(fields, "layer_types")
        && let Some(word) = fields.get(pattern.field).and_then(Value::as_str)
    {
        fields.insert("layer_types".to_owned(), pattern.read(word).into());
    }
    if !arch.layer_kinds.is_empty()
        && !is_said(fields, "num_hidden_layers")
        && let Some(kinds) = fields.get("layer_types").and_then(Value::as_array)
    {
        fields.insert("num_hidden_layers".to_owned(), kinds.len().into());
    }
    for (name, preset) in arch.defaults {
        if is_said(fields, name) {
            continue;
        }
        let value = match preset {
            Preset::Text(text) => Value::from(*text),
            Preset::Number(x) => Value::from(*x),
            Preset::Flag(flag) => Value::from(*flag),
            Preset::TimesHidden(n) => match fields.get("hidden_size").and_then(Value::as_u64) {
                Some(hidden) => Value::from(hidden.saturating_mul(*n)),
                None => continue,
            },
        };
        fields.insert((*name).to_owned(), value);
    }
    config
}

fn read_config(architecture: String, arch: &Arch, fields: &Value) -> Result<HfConfig, ConfigError> {
    let root = &Field::new("", Some(fields));
    read_scheme(root)?;

    let hidden_size = root.get("hidden_size").count(limits::MODEL_WIDTH)?;
    let num_hidden_layers = root.get("num_hidden_layers").count(limits::MODEL_LAYERS)?;
    let heads = HeadFields {
        hidden_size,
        n_heads: root.get("num_attention_heads"),
        n_kv_heads: root.get("num_key_value_heads"),
        head_dim: root.get("head_dim"),
        default_head_dim: architecture.starts_with("Qwen3").then_some(QWEN3_HEAD_DIM),
    }
    .read()?;
    let max_position_embeddings =
        root.get("max_position_embeddings").count(limits::MODEL_CONTEXT)?;
    let vocab_size = root.get("vocab_size").count(limits::MODEL_VOCAB)?;
    let eps = root.get("rms_norm_eps");
    let rope = RopeFields { head_dim: heads.head_dim, n_trained: max_position_embeddings };

    Ok(HfConfig {
        hidden_size,
        intermediate_size: read_ffn(&root.get("intermediate_size"), arch.lists_widths)?,
        num_hidden_layers,
        num_attention_heads: heads.n_heads,
        num_key_value_heads: heads.n_kv_heads,
        head_dim: heads.head_dim,
        vocab_size,
        max_position_embeddings,
        rms_norm_eps: match eps.non_null() {
            Some(eps) => read_eps(eps)?,
            None => DEFAULT_NORM_EPS as f32,
        },
        hidden_act: read_act(&root.get("hidden_act"))?,
        sliding_window: read_window(root)?,
        use_sliding_window: root.get("use_sliding_window").flag(false)?,
        max_window_layers: match root.get("max_window_layers").non_null() {
            Some(field) => field.integer(0, limits::MODEL_LAYERS)?,
            None => 0,
        },
        sliding_layers: read_layer_types(
            &root.get("layer_types"),
            num_hidden_layers,
            arch.layer_kinds,
        )?,
        attention_bias: match root.get("attention_bias").non_null() {
            Some(field) => Some(field.flag(false)?),
            None => None,
        },
        mlp_bias: root.get("mlp_bias").flag(false)?,
        tie_word_embeddings: root.get("tie_word_embeddings").flag(false)?,
        final_logit_softcapping: read_cap(&root.get("final_logit_softcapping"))?,
        rope: rope.read(root, arch.partial_rotary)?,
        local_rope: rope.read_local(root, arch.partial_rotary)?,
        bos_token: read_tokens(&root.get("bos_token_id"), vocab_size)?.first().copied(),
        eos_tokens: read_tokens(&root.get("eos_token_id"), vocab_size)?,
        fields: fields.clone(),
        architecture,
        wrapper: None,
    })
}

fn read_architecture(root: &Field<'_>) -> Result<String, ConfigError> {
    let field = root.get("architectures");
    match field.value() {
        Some(Value::Array(names)) => match names.first() {
            Some(Value::String(name)) => return Ok(name.clone()),
            _ => return Err(field.error("a list with the name of the architecture")),
        },
        Some(_) => return Err(field.error("a list with the name of the architecture")),
        None => {}
    }
    match root.get("model_type").text()? {
        Some(name) => Ok(name.to_owned()),
        None => Err(field.error("a list with the name of the architecture")),
    }
}
