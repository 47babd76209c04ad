//! `config.json`, read with suspicion.
//!
//! [`parse_config`] turns the bytes of a file into an [`HfConfig`] in which every number is in
//! range and every pair of numbers agrees: later code divides, allocates and indexes without
//! looking twice. What a family reads differently is left to its file in [`arch`](crate::arch).

use pelton_base::{TokenId, limits};
use pelton_quant::checkpoint::Scheme;
use serde_json::{Map, Value};

use crate::arch::{self, Act, Arch, Preset};
use crate::fields::{ConfigError, Field, parse_json};
use crate::rope::{RopeScaling, RopeSpec, Yarn};
use crate::wrapper;

/// The part of a checkpoint's configuration that architectures read, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    /// `architectures[0]`, or `model_type` where that is missing.
    pub architecture: String,
    /// `architectures[0]` of a model whose text's part this is.
    pub wrapper: Option<String>,
    /// `hidden_size`, in elements.
    pub hidden_size: usize,
    /// `intermediate_size`, in elements.
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
    /// Which layers are `sliding_attention` or `chunked_attention` in `layer_types`; one entry per
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
    /// Rotation of layers with a window, where the config tells it apart from that of the others.
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

/// What a config says about its attention window.
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
const DEFAULT_THETA: f64 = 10_000.0;
/// `head_dim` of Qwen3 configs that leave it out.
const QWEN3_HEAD_DIM: usize = 128;
const MOST_HEAD_DIM: usize = 1024;

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

/// How the matrices of a checkpoint with this `config.json` are quantized; `None` where it does not say.
pub(crate) fn parse_scheme(bytes: &[u8]) -> Result<Option<Scheme>, ConfigError> {
    let value = parse_json(bytes)?;
    let value = wrapper::text_part(&value)?.map_or(value, |(text, _)| text);
    read_scheme(&Field::new("", Some(&value)))
}

/// The scheme of a file of its own beside `config.json`, as libraries wrote it before it had a place
/// there; `method` where the file does not name one.
pub(crate) fn parse_scheme_file(bytes: &[u8], method: &str) -> Result<Scheme, ConfigError> {
    named_scheme(parse_json(bytes)?, method, "")
}

/// The object that holds the settings of a quantized checkpoint.
const SCHEME: &str = "quantization_config";
/// That of QuIP#, which names no method.
const QUIP: &str = "quip_params";

fn read_scheme(root: &Field<'_>) -> Result<Option<Scheme>, ConfigError> {
    match (root.get(SCHEME).value(), root.get(QUIP).value()) {
        // Only stacked experts are so stored, and they are known by their tensors.
        (Some(config), _) if is_mxfp4(config) => Ok(None),
        (Some(config), _) => Scheme::parse(config).map(Some).map_err(ConfigError::from),
        (None, Some(config)) => named_scheme(config.clone(), "quip", QUIP).map(Some),
        (None, None) => Ok(None),
    }
}

fn is_mxfp4(config: &Value) -> bool {
    config.get("quant_method").and_then(Value::as_str) == Some("mxfp4")
}

/// The scheme of settings that may not name their method, and that the file has under `place`.
fn named_scheme(mut config: Value, method: &str, place: &str) -> Result<Scheme, ConfigError> {
    if let Some(fields) = config.as_object_mut() {
        let name = fields.entry("quant_method").or_insert(Value::Null);
        if name.is_null() {
            *name = Value::from(method);
        }
    }
    Scheme::parse(&config).map_err(|error| match ConfigError::from(error) {
        ConfigError::Field { field, expected, found } => {
            let within = field.strip_prefix(SCHEME).unwrap_or(&field);
            let field = format!("{place}{within}").trim_start_matches('.').to_owned();
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
        intermediate_size: root.get("intermediate_size").count(limits::MODEL_WIDTH)?,
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
        sliding_layers: read_layer_types(&root.get("layer_types"), num_hidden_layers)?,
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

pub(crate) fn read_cap(field: &Field<'_>) -> Result<Option<f32>, ConfigError> {
    field.non_null().map(|field| Ok(field.number(1e-3, 1e6)? as f32)).transpose()
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

/// The fields that together say how attention is divided into heads.
pub(crate) struct HeadFields<'a> {
    pub(crate) hidden_size: usize,
    pub(crate) n_heads: Field<'a>,
    pub(crate) n_kv_heads: Field<'a>,
    pub(crate) head_dim: Field<'a>,
    pub(crate) default_head_dim: Option<usize>,
}

/// Heads that divide as they should.
pub(crate) struct Heads {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl HeadFields<'_> {
    pub(crate) fn read(&self) -> Result<Heads, ConfigError> {
        let hidden_size = self.hidden_size;
        let n_heads = self.n_heads.count(limits::MODEL_WIDTH)?;
        let n_kv_heads = match self.n_kv_heads.non_null() {
            Some(field) => field.count(limits::MODEL_WIDTH)?,
            None => n_heads,
        };
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(self.n_kv_heads.error(format!("a divisor of the {n_heads} query heads")));
        }
        let head_dim = match (self.head_dim.non_null(), self.default_head_dim) {
            (Some(field), _) => field.count(MOST_HEAD_DIM)?,
            (None, Some(default)) => default,
            (None, None) if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
            (None, None) => {
                return Err(self
                    .n_heads
                    .error(format!("a divisor of the hidden size, {hidden_size}")));
            }
        };
        if !head_dim.is_multiple_of(2) || head_dim > MOST_HEAD_DIM {
            let found =
                if self.head_dim.non_null().is_some() { &self.head_dim } else { &self.n_heads };
            return Err(found.error(format!(
                "heads of an even width up to {MOST_HEAD_DIM}, this makes {head_dim}"
            )));
        }
        if n_heads.checked_mul(head_dim).is_none_or(|width| width > limits::MODEL_WIDTH) {
            return Err(self.n_heads.error(format!(
                "at most {} elements in all heads, each has {head_dim}",
                limits::MODEL_WIDTH
            )));
        }
        Ok(Heads { n_heads, n_kv_heads, head_dim })
    }
}

pub(crate) fn read_eps(field: &Field<'_>) -> Result<f32, ConfigError> {
    // The f32 next to 1e-12, as GGUF files have it, is a little less.
    Ok(field.number(9e-13, 1.0)? as f32)
}

pub(crate) fn read_act(field: &Field<'_>) -> Result<Act, ConfigError> {
    match field.text()? {
        None | Some("silu" | "swish") => Ok(Act::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Act::GeluTanh),
        Some("gelu" | "gelu_python") => Ok(Act::Gelu),
        Some("quick_gelu") => Ok(Act::QuickGelu),
        Some("relu") => Ok(Act::Relu),
        Some("relu2") => Ok(Act::ReluSquared),
        Some(_) => Err(field.error(
            "one of \"silu\", \"gelu\", \"gelu_pytorch_tanh\", \"quick_gelu\", \"relu\", \"relu2\"",
        )),
    }
}

fn read_window(root: &Field<'_>) -> Result<Window, ConfigError> {
    let (field, is_used) = (&root.get("sliding_window"), root.get("use_sliding_window"));
    match field.non_null() {
        // Configs of Qwen2-MoE write 0 where they use none.
        Some(field) if is_used.value() == Some(&Value::Bool(false)) => {
            match field.integer(0, limits::MODEL_CONTEXT)? {
                0 => Ok(Window::Off),
                n => Ok(Window::Tokens(n)),
            }
        }
        Some(field) => Ok(Window::Tokens(field.count(limits::MODEL_CONTEXT)?)),
        None if field.is_present() => Ok(Window::Off),
        None => Ok(Window::Absent),
    }
}

fn read_layer_types(field: &Field<'_>, n_layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    let expected = || {
        field.error(format!(
            "one of \"full_attention\" and \"sliding_attention\" for each of the {n_layers} layers"
        ))
    };
    let items = match field.value() {
        None => return Ok(None),
        Some(Value::Array(items)) if items.len() == n_layers => items,
        Some(_) => return Err(expected()),
    };
    items
        .iter()
        .map(|item| match item.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention" | "chunked_attention") => Ok(true),
            _ => Err(expected()),
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

/// A token id, a list of them, or nothing. Ids outside of the vocabulary are dropped: published
/// configs of models with a cut vocabulary carry them, and they can never be generated.
pub(crate) fn read_tokens(
    field: &Field<'_>,
    vocab_size: usize,
) -> Result<Vec<TokenId>, ConfigError> {
    const MOST_TOKENS: usize = 256;
    let expected = "a token id or a list of up to 256 token ids";
    let items = match field.value() {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MOST_TOKENS => items.as_slice(),
        Some(value @ Value::Number(_)) => std::slice::from_ref(value),
        Some(_) => return Err(field.error(expected)),
    };
    let mut tokens = Vec::with_capacity(items.len());
    for item in items {
        // Some configs write -1 for "none".
        let id = item.as_i64().ok_or_else(|| field.error(expected))?;
        if (0..vocab_size as i64).contains(&id) {
            tokens.push(TokenId(id as u32));
        }
    }
    Ok(tokens)
}

/// The end-of-text tokens of a `generation_config.json`; an unreadable one has none.
pub(crate) fn generation_eos_tokens(bytes: &[u8], vocab_size: usize) -> Vec<TokenId> {
    let Ok(value) = parse_json(bytes) else { return Vec::new() };
    let root = Field::new("", Some(&value));
    read_tokens(&root.get("eos_token_id"), vocab_size).unwrap_or_default()
}

/// What the fields of a rotary embedding are read with.
struct RopeFields {
    head_dim: usize,
    n_trained: usize,
}

/// How `rope_parameters` tells the layers with a window from the others.
const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

impl RopeFields {
    /// The rotation of layers without a window, or of all.
    fn read(&self, root: &Field<'_>, may_be_partial: bool) -> Result<RopeSpec, ConfigError> {
        // `rope_parameters` is how transformers 5 spells `rope_scaling` and `rope_theta` together.
        let table =
            ["rope_scaling", "rope_parameters"].map(|name| root.get(name)).into_iter().find(
                |field| field.value().is_some_and(|v| v.as_object().is_none_or(|o| !o.is_empty())),
            );
        let by_kind = table.as_ref().map(|table| table.get(GLOBAL));
        let table = by_kind.filter(|table| table.value().is_some()).or(table);
        self.read_table(table.as_ref(), root, "rope_theta", may_be_partial)
    }

    /// The rotation of layers with a window, where the config has one.
    fn read_local(
        &self,
        root: &Field<'_>,
        may_be_partial: bool,
    ) -> Result<Option<RopeSpec>, ConfigError> {
        let table = root.get("rope_parameters").get(LOCAL);
        let theta = "rope_local_base_freq";
        if table.value().is_none() && root.get(theta).value().is_none() {
            return Ok(None);
        }
        let table = Some(&table).filter(|table| table.value().is_some());
        self.read_table(table, root, theta, may_be_partial).map(Some)
    }

    fn read_table(
        &self,
        table: Option<&Field<'_>>,
        root: &Field<'_>,
        theta: &str,
        may_be_partial: bool,
    ) -> Result<RopeSpec, ConfigError> {
        let theta = table
            .map(|table| table.get("rope_theta"))
            .filter(|field| field.non_null().is_some())
            .unwrap_or_else(|| root.get(theta));
        let theta = match theta.non_null() {
            Some(field) => read_theta(field)?,
            None => DEFAULT_THETA,
        };
        let mut rotary_dim = self.head_dim;
        for parent in table.into_iter().chain([root]).rev() {
            let partial = parent.get("partial_rotary_factor");
            if partial.non_null().is_none() {
                continue;
            }
            let factor = partial.number(0.0, 1.0)?;
            if factor != 1.0 && !may_be_partial {
                return Err(partial.error("1: this family rotates all of a head"));
            }
            rotary_dim = (self.head_dim as f64 * factor) as usize;
            if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
                let head_dim = self.head_dim;
                return Err(partial.error(format!("an even part of a head of {head_dim}")));
            }
        }
        let n_trained = self.n_trained;
        let scaling = match table {
            Some(table) => read_scaling(table, root, rotary_dim, n_trained)?,
            None => RopeScaling::Default,
        };
        Ok(RopeSpec { rotary_dim, theta, n_trained, scaling })
    }
}

pub(crate) fn read_theta(field: &Field<'_>) -> Result<f64, ConfigError> {
    field.number(1.0 + 1e-6, 1e15)
}

/// A factor by which a context is stretched.
pub(crate) fn read_factor(field: &Field<'_>) -> Result<f64, ConfigError> {
    field.number(1.0, 1e6)
}

fn read_scaling(
    table: &Field<'_>,
    root: &Field<'_>,
    rotary_dim: usize,
    max_position_embeddings: usize,
) -> Result<RopeScaling, ConfigError> {
    if table.value().is_some_and(|value| !value.is_object()) {
        return Err(table.error("an object or null"));
    }
    let kind = ["rope_type", "type"]
        .map(|name| table.get(name))
        .into_iter()
        .find(|field| field.non_null().is_some());
    let Some(kind) = kind else {
        // `rope_parameters` may hold `rope_theta` alone; an old `rope_scaling` must name its kind.
        let kind = table.get("rope_type");
        return if table.get("factor").is_present() {
            Err(kind.error("the kind of scaling"))
        } else {
            Ok(RopeScaling::Default)
        };
    };
    let optional = |name: &str, min: f64, max: f64| match table.get(name).non_null() {
        Some(field) => field.number(min, max).map(Some),
        None => Ok(None),
    };
    let n_original = || -> Result<usize, ConfigError> {
        let name = "original_max_position_embeddings";
        let field =
            [root.get(name), table.get(name)].into_iter().find(|field| field.non_null().is_some());
        match field {
            Some(field) => field.count(limits::MODEL_CONTEXT),
            None => Ok(max_position_embeddings),
        }
    };
    let stretch = |n_original: usize| match table.get("factor").non_null() {
        Some(field) => read_factor(field),
        None => Ok((max_position_embeddings as f64 / n_original as f64).max(1.0)),
    };
    match kind.text()?.unwrap_or_default() {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: read_factor(&table.get("factor"))? }),
        "dynamic" => Ok(RopeScaling::Dynamic { factor: read_factor(&table.get("factor"))? }),
        "yarn" => {
            let n_original = n_original()?;
            Ok(RopeScaling::Yarn(Yarn {
                factor: stretch(n_original)?,
                n_original,
                attention_factor: optional("attention_factor", 0.0, 1e3)?,
                mscale: optional("mscale", 0.0, 1e3)?,
                mscale_all_dim: optional("mscale_all_dim", 0.0, 1e3)?,
                beta_fast: optional("beta_fast", 0.0, 1e6)?.filter(|x| *x > 0.0).unwrap_or(32.0),
                beta_slow: optional("beta_slow", 0.0, 1e6)?.filter(|x| *x > 0.0).unwrap_or(1.0),
                truncate: table.get("truncate").flag(true)?,
            }))
        }
        "llama3" => {
            let low = table.get("low_freq_factor").number(1e-6, 1e6)?;
            let high_field = table.get("high_freq_factor");
            let high = high_field.number(1e-6, 1e6)?;
            if high <= low {
                return Err(high_field.error(format!("more than `low_freq_factor`, {low}")));
            }
            Ok(RopeScaling::Llama3 {
                factor: read_factor(&table.get("factor"))?,
                low_freq_factor: low,
                high_freq_factor: high,
                n_original: n_original()?,
            })
        }
        "longrope" | "su" => {
            let n_original = n_original()?;
            Ok(RopeScaling::LongRope {
                factor: stretch(n_original)?,
                n_original,
                attention_factor: optional("attention_factor", 0.0, 1e3)?,
                short_factors: table.get("short_factor").numbers(rotary_dim / 2, 1e-6, 1e6)?,
                long_factors: table.get("long_factor").numbers(rotary_dim / 2, 1e-6, 1e6)?,
            })
        }
        _ => Err(kind.error("one of default, linear, dynamic, yarn, llama3, longrope")),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
