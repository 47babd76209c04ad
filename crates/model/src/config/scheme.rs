//! How the matrices of a checkpoint are quantized, as its configuration says it.

use pelton_quant::checkpoint::Scheme;
use serde_json::Value;

use crate::fields::{ConfigError, Field, parse_json};
use crate::wrapper;

/// How the matrices of a checkpoint with this `config.json` are quantized; `None` where it does
/// not say.
pub(crate) fn parse_scheme(bytes: &[u8]) -> Result<Option<Scheme>, ConfigError> {
    let value = parse_json(bytes)?;
    let value = wrapper::text_part(&value)?.map_or(value, |(text, _)| text);
    read_scheme(&Field::new("", Some(&value)))
}

/// The same in words, for a reader that has no tensors to know stacked experts by.
pub(crate) fn parse_scheme_words(bytes: &[u8]) -> Result<Option<String>, ConfigError> {
    let value = parse_json(bytes)?;
    let text = wrapper::text_part(&value)?.map(|(text, _)| text);
    let config = text.as_ref().unwrap_or(&value).get(SCHEME);
    match config.is_some_and(is_mxfp4) {
        true => Ok(Some("mxfp4, experts of 4 bits in groups of 32".to_owned())),
        false => Ok(parse_scheme(bytes)?.map(|scheme| scheme.words())),
    }
}

/// The scheme of a file beside `config.json`, where older libraries wrote it; `method` is the
/// method of a file that does not name one.
pub(crate) fn parse_scheme_file(bytes: &[u8], method: &str) -> Result<Scheme, ConfigError> {
    named_scheme(parse_json(bytes)?, method, "")
}

/// The object that holds the settings of a quantized checkpoint.
const SCHEME: &str = "quantization_config";
/// The same object in checkpoints of QuIP#, which names no method.
const QUIP: &str = "quip_params";

/// The scheme of a `config.json`; `None` where it has none.
pub(super) fn read_scheme(root: &Field<'_>) -> Result<Option<Scheme>, ConfigError> {
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
