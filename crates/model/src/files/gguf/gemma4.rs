//! Keys of Gemma 4: what differs between layers with a window and layers without one, as a `config.json`
//! would say it.

use pelton_base::limits;
use serde_json::{Map, Value, json};

use super::hybrid::read_flags;
use super::{Source, WINDOW_PATTERN};
use crate::arch::Part;
use crate::config::{HeadFields, Heads};
use crate::fields::{ConfigError, Field};

/// Name of the family in files.
pub(super) const NAME: &str = "gemma4";

/// Widths of heads, with a window and without; the key of each is followed by its own suffix.
const KEY_LENGTHS: [&str; 2] = ["attention.key_length_swa", "attention.key_length"];
const SAME_LENGTHS: [[&str; 2]; 2] = [
    ["attention.value_length_swa", "rope.dimension_count_swa"],
    ["attention.value_length", "rope.dimension_count"],
];

/// One value for each layer: of a list, or the same for all.
fn by_layer(
    field: &Field<'_>,
    n_layers: usize,
    default: Option<usize>,
) -> Result<Vec<usize>, ConfigError> {
    let expected = || field.error(format!("a whole number, or one for each of {n_layers} layers"));
    match (field.value(), default) {
        (None, Some(n)) => Ok(vec![n; n_layers]),
        (Some(Value::Array(items)), _) => {
            let count = |item| field.with(item).count(limits::MODEL_WIDTH);
            let list = items.iter().map(count).collect::<Result<Vec<_>, _>>()?;
            if list.len() == n_layers { Ok(list) } else { Err(expected()) }
        }
        _ => Ok(vec![field.count(limits::MODEL_WIDTH)?; n_layers]),
    }
}

/// The one value of these layers.
fn common(
    field: &Field<'_>,
    values: &[usize],
    of: impl Fn(usize) -> bool,
    words: &str,
) -> Result<Option<usize>, ConfigError> {
    let mut own = values.iter().enumerate().filter(|(layer, _)| of(*layer)).map(|(_, n)| *n);
    let first = own.next();
    match own.find(|n| Some(*n) != first) {
        Some(_) => Err(field.error(format!("one number for all layers {words}"))),
        None => Ok(first),
    }
}

/// The sizes that a file of the family says.
#[derive(Debug)]
pub(super) struct Sizes {
    has_window: Vec<bool>,
    /// Widths of heads with a window and without.
    pub(super) head_dims: [usize; 2],
    /// Key/value heads with a window and without.
    n_kv_heads: [usize; 2],
    /// Width of the perceptrons of layers that store keys and values.
    pub(super) ffn: usize,
    /// Whether the layers that store none have perceptrons twice as wide.
    is_wide: bool,
    n_shared: usize,
}

impl Sizes {
    pub(super) fn read(source: &Source<'_>, n_layers: usize) -> Result<Self, ConfigError> {
        let get = |key: &str| source.get(key);
        let pattern = get(WINDOW_PATTERN);
        let has_window = read_flags(&pattern, n_layers)?
            .ok_or_else(|| pattern.error(format!("true or false for each of {n_layers} layers")))?;
        if has_window.contains(&true) {
            get("attention.sliding_window").count(limits::MODEL_CONTEXT)?;
        }
        let mut head_dims = [0; 2];
        for ((dim, key), same) in head_dims.iter_mut().zip(KEY_LENGTHS).zip(SAME_LENGTHS) {
            *dim = get(key).count(limits::MODEL_WIDTH)?;
            for field in same.map(get) {
                if field.non_null().is_some() && field.count(limits::MODEL_WIDTH)? != *dim {
                    return Err(field.error(format!("{dim}, as `{}.{key}` says", source.name)));
                }
            }
        }
        let shared = get("attention.shared_kv_layers");
        let n_shared = match shared.non_null() {
            Some(field) => field.integer(0, n_layers - 1)?,
            None => 0,
        };
        let n_heads = get("attention.head_count").count(limits::MODEL_WIDTH)?;
        let heads_field = get("attention.head_count_kv");
        let heads = by_layer(&heads_field, n_layers, Some(n_heads))?;
        let window = common(&heads_field, &heads, |layer| has_window[layer], "with a window")?;
        let full = common(&heads_field, &heads, |layer| !has_window[layer], "without a window")?;
        let n_kv_heads = [window.or(full), full.or(window)].map(|n| n.unwrap_or(n_heads));
        let ffn_field = get("feed_forward_length");
        let widths = by_layer(&ffn_field, n_layers, None)?;
        let first = n_layers - n_shared;
        let stored = common(&ffn_field, &widths, |layer| layer < first, "that store keys")?;
        let read = common(&ffn_field, &widths, |layer| layer >= first, "that store no keys")?;
        let ffn = stored.expect("invariant: some layer stores keys");
        let is_wide = read == Some(2 * ffn);
        if read.is_some_and(|read| read != ffn && !is_wide) {
            let expected = format!("{ffn} or twice as much in the layers that store no keys");
            return Err(ffn_field.error(expected));
        }
        Ok(Self { has_window, head_dims, n_kv_heads, ffn, is_wide, n_shared })
    }

    /// The heads of layers with a window, and how many elements of each are rotated.
    pub(super) fn heads(
        &self,
        source: &Source<'_>,
        hidden_size: usize,
    ) -> Result<(Heads, usize), ConfigError> {
        let n_kv_heads = Value::from(self.n_kv_heads[0]);
        let heads = HeadFields {
            hidden_size,
            n_heads: source.get("attention.head_count"),
            n_kv_heads: source.get("attention.head_count_kv").with(&n_kv_heads),
            head_dim: source.get(KEY_LENGTHS[0]),
            default_head_dim: None,
        };
        Ok((heads.read()?, self.head_dims[0]))
    }

    /// The fields of the family.
    pub(super) fn tell(
        &self,
        source: &Source<'_>,
        fields: &mut Map<String, Value>,
    ) -> Result<(), ConfigError> {
        let divisors = "rope_freqs.weight";
        if source.tensors.get(divisors).is_none() {
            return Err(Field::new(divisors, None).error("the divisors of layers without a window"));
        }
        let own = json!({"head_dim": self.head_dims[1], "num_key_value_heads": self.n_kv_heads[1]});
        let full = || (0..self.has_window.len()).filter(|layer| !self.has_window[*layer]);
        let by_layer: Map<String, Value> =
            full().map(|layer| (layer.to_string(), own.clone())).collect();
        let first = self.has_window.len() - self.n_shared;
        let has = |part, layer| source.tensors.get(&source.naming.weight(part, layer)).is_some();
        // Whether these layers have a tensor, all of them or none.
        let have = |part: Part, layers: &mut dyn Iterator<Item = usize>| {
            let (with, without): (Vec<usize>, Vec<usize>) = layers.partition(|i| has(part, *i));
            match (with.first(), without.first()) {
                (Some(with), Some(without)) => {
                    let [there, missing] = [with, without].map(|i| source.naming.weight(part, *i));
                    let expected = format!("a tensor, because `{there}` is there");
                    Err(Field::new(&missing, None).error(expected))
                }
                (with, _) => Ok(with.is_some()),
            }
        };
        let mut storing = full().filter(|layer| *layer < first).peekable();
        let stores = storing.peek().is_some();
        let has_values = have(Part::V, &mut storing)?;
        let has_scalars = have(Part::LayerScale, &mut (0..self.has_window.len()))?;
        let table = source.tensors.get(&source.naming.weight(Part::LayerTable, 0));
        let inputs = source.get("embedding_length_per_layer_input");
        let width = match (inputs.non_null(), table) {
            (None, None) => 0,
            _ => inputs.integer(0, limits::MODEL_WIDTH)?,
        };
        let n_rows = table.and_then(|table| table.shape.first().copied());
        for (name, value) in [
            ("per_layer_config", Value::from(by_layer)),
            ("attention_k_eq_v", Value::from(stores && !has_values)),
            ("num_kv_shared_layers", Value::from(self.n_shared)),
            ("use_double_wide_mlp", Value::from(self.is_wide)),
            ("hidden_size_per_layer_input", Value::from(width)),
            ("vocab_size_per_layer_input", Value::from(n_rows)),
            ("has_layer_scalars", Value::from(has_scalars)),
            ("enable_moe_block", Value::from(source.has_experts())),
        ] {
            fields.insert(name.to_owned(), value);
        }
        fields.entry("rope_local_base_freq").or_insert(Value::from(1e4));
        Ok(())
    }
}
