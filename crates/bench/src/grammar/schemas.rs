//! Schemas to measure: our own, or the files of a folder.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{BenchError, Result};

/// Bytes of one file.
const MOST_BYTES: u64 = 16 << 20;

/// A schema with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// Name for the report.
    pub name: String,
    /// The schema as JSON text.
    pub text: String,
}

/// Schemas as requests have them: arguments of tools, extraction, lists, recursion.
const BUILT_IN: &[(&str, &str)] = &[
    ("object", r#"{"type":"object"}"#),
    (
        "weather call",
        r#"{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["celsius","fahrenheit"]},"days":{"type":"integer","minimum":1,"maximum":14}},"required":["city","unit"],"additionalProperties":false}"#,
    ),
    (
        "search call",
        r#"{"type":"object","properties":{"query":{"type":"string","minLength":1,"maxLength":200},"filters":{"type":"object","properties":{"from":{"type":"string","format":"date"},"to":{"type":"string","format":"date"},"lang":{"type":"string","pattern":"^[a-z]{2}$"}}},"limit":{"type":"integer","minimum":1,"maximum":100}},"required":["query"],"additionalProperties":false}"#,
    ),
    (
        "person",
        r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":8}},"required":["name","age"]}"#,
    ),
    (
        "invoice",
        r##"{"type":"object","properties":{"id":{"type":"string","format":"uuid"},"issued":{"type":"string","format":"date-time"},"lines":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/line"}},"total":{"type":"number","minimum":0}},"required":["id","issued","lines","total"],"additionalProperties":false,"$defs":{"line":{"type":"object","properties":{"item":{"type":"string"},"count":{"type":"integer","minimum":1},"price":{"type":"number","minimum":0,"multipleOf":0.01}},"required":["item","count","price"],"additionalProperties":false}}}"##,
    ),
    (
        "reasoning steps",
        r#"{"type":"object","properties":{"steps":{"type":"array","items":{"type":"object","properties":{"explanation":{"type":"string"},"output":{"type":"string"}},"required":["explanation","output"],"additionalProperties":false}},"final_answer":{"type":"string"}},"required":["steps","final_answer"],"additionalProperties":false}"#,
    ),
    (
        "tree",
        r##"{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value","children"],"additionalProperties":false}}}"##,
    ),
    (
        "shapes",
        r#"{"oneOf":[{"type":"object","properties":{"kind":{"const":"circle"},"r":{"type":"number","exclusiveMinimum":0}},"required":["kind","r"]},{"type":"object","properties":{"kind":{"const":"box"},"w":{"type":"number"},"h":{"type":"number"}},"required":["kind","w","h"]}]}"#,
    ),
    (
        "conditional",
        r#"{"type":"object","properties":{"country":{"enum":["US","NL"]},"code":{"type":"string"}},"required":["country","code"],"if":{"properties":{"country":{"const":"US"}}},"then":{"properties":{"code":{"pattern":"^[0-9]{5}$"}}},"else":{"properties":{"code":{"pattern":"^[0-9]{4} [A-Z]{2}$"}}}}"#,
    ),
    (
        "map",
        r#"{"type":"object","patternProperties":{"^x-":{"type":"string"}},"additionalProperties":{"type":"array","items":{"type":"integer"}},"minProperties":1}"#,
    ),
    (
        "list of names",
        r#"{"type":"array","items":{"type":"string","maxLength":20},"minItems":3,"maxItems":50}"#,
    ),
    (
        "union",
        r#"{"anyOf":[{"type":"string"},{"type":"number"},{"type":"array","items":{"type":["string","null"]}},{"type":"object","additionalProperties":{"type":"boolean"}}]}"#,
    ),
];

/// The schemas of a file or a folder with its folders, or our own.
///
/// A file holds a schema, or an object with a `schema` and `tests`, as JSONSchemaBench has them.
///
/// # Errors
///
/// Names the file that cannot be read or holds no schema.
pub fn gather(path: Option<&Path>) -> Result<Vec<Schema>> {
    let Some(path) = path else {
        let own = BUILT_IN.iter();
        return Ok(own
            .map(|(name, text)| Schema { name: (*name).into(), text: (*text).into() })
            .collect());
    };
    let mut files = Vec::new();
    list(path, &mut files)?;
    files.sort();
    let schemas: Result<Vec<Schema>> = files.iter().map(|file| read(file)).collect();
    let schemas = schemas?;
    if schemas.is_empty() {
        let message = format!("--schemas {}: expected files that end in .json", path.display());
        return Err(BenchError::invalid(message));
    }
    Ok(schemas)
}

fn list(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let at = |error: std::io::Error| {
        BenchError::invalid(format!("--schemas {}: {error}", path.display()))
    };
    if !std::fs::metadata(path).map_err(at)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Schema> {
    let at = |why: String| BenchError::invalid(format!("--schemas {}: {why}", path.display()));
    let n_bytes = std::fs::metadata(path).map_err(|error| at(error.to_string()))?.len();
    if n_bytes > MOST_BYTES {
        return Err(at(format!("{n_bytes} bytes are more than {MOST_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| at(error.to_string()))?;
    let inner = value.get("schema").filter(|_| value.get("tests").is_some());
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    Ok(Schema { name: name.unwrap_or_default(), text: inner.map_or(text, Value::to_string) })
}
