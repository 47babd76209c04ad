//! Keys of Gemma 3n, as a `config.json` would say them.

use pelton_base::limits;
use serde_json::{Map, Value};

use super::Source;
use crate::arch::{Part, Streams};
use crate::config::read_cuts;
use crate::fields::{ConfigError, Field};

/// Name of the family in files.
pub(super) const NAME: &str = "gemma3n";

/// The width of perceptrons: of a list with one for each layer, the first.
pub(super) fn read_ffn(source: &Source<'_>, n_layers: usize) -> Result<usize, ConfigError> {
    let field = source.get("feed_forward_length");
    let Some(Value::Array(items)) = field.value() else { return field.count(limits::MODEL_WIDTH) };
    let count = |item| field.with(item).count(limits::MODEL_WIDTH);
    let widths = items.iter().map(count).collect::<Result<Vec<_>, _>>()?;
    match widths.first().filter(|_| widths.len() == n_layers) {
        Some(first) => Ok(*first),
        None => Err(field.error(format!("a width, or one for each of the {n_layers} layers"))),
    }
}

/// The fields of the family; numbers are checked here, where the key can be named.
pub(super) fn tell(
    source: &Source<'_>,
    n_layers: usize,
    fields: &mut Map<String, Value>,
) -> Result<(), ConfigError> {
    let n_streams = source.get("altup.num_inputs").integer(2, Streams::MOST)?;
    let n_rows = |part| {
        let name = source.naming.weight(part, 0);
        let rows = source.tensors.get(&name).and_then(|tensor| tensor.shape.first().copied());
        rows.ok_or_else(|| Field::new(name, None).error("a tensor of this name"))
    };
    let whole = |key: &str, least, most| source.get(key).integer(least, most);
    for (name, n) in [
        ("altup_num_inputs", n_streams),
        ("altup_active_idx", whole("altup.active_idx", 0, n_streams - 1)?),
        ("num_kv_shared_layers", whole("attention.shared_kv_layers", 0, n_layers - 1)?),
        (
            "hidden_size_per_layer_input",
            whole("embedding_length_per_layer_input", 1, limits::MODEL_WIDTH)?,
        ),
        ("vocab_size_per_layer_input", n_rows(Part::LayerTable)?),
        ("laurel_rank", n_rows(Part::ResidualLeft)?),
    ] {
        fields.insert(name.to_owned(), Value::from(n));
    }
    let cuts = source.get("activation_sparsity_scale");
    read_cuts(&cuts, n_layers)?;
    read_ffn(source, n_layers)?;
    for (name, field) in [
        ("intermediate_size", source.get("feed_forward_length")),
        ("activation_sparsity_scale", cuts),
    ] {
        fields.insert(name.to_owned(), field.value().expect("invariant: checked before").clone());
    }
    Ok(())
}
