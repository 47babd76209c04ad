//! Reading a report that was kept.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{FORMAT, Header, Measure, VERSION};

/// Largest report that is read, in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// Why a file is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("{path}: is no report of `pelton bench`: {why}")]
    Foreign {
        /// Which file.
        path: String,
        /// The missing or wrong part.
        why: String,
    },
    /// The report has another version of the format.
    #[error("{path}: is a report of version {found}; this program reads version {VERSION}")]
    Version {
        /// Which file.
        path: String,
        /// The version found.
        found: u64,
        /// The program that wrote it, where the report says so.
        pelton: Option<String>,
    },
}

/// A report that was kept, of any kind.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The facts about the run.
    pub report: Header,
    /// Its figures.
    pub measures: Vec<Measure>,
    /// The whole object, with the fields of its kind.
    pub whole: Value,
}

#[derive(Deserialize)]
struct Common {
    report: Header,
    measures: Vec<Measure>,
}

impl Recorded {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, that is no report, or a report of another version.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let text = pelton_tensor::read_limited_text(path, MOST_BYTES)
            .map_err(|source| ReadError::Io { path: name.clone(), source })?;
        Self::parse(&name, &text)
    }

    /// Reads text; `path` names it in errors.
    ///
    /// # Errors
    ///
    /// Text that is no report, or a report of another version.
    pub fn parse(path: &str, text: &str) -> Result<Self, ReadError> {
        let foreign = |why: String| ReadError::Foreign { path: path.to_owned(), why };
        let whole: Value =
            serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
        let head = &whole["report"];
        if head["format"] != FORMAT {
            return Err(foreign(format!("`report.format` is not `{FORMAT}`")));
        }
        let version = head["version"].as_u64();
        let version = version.ok_or_else(|| foreign("`report.version` is no number".to_owned()))?;
        if version != u64::from(VERSION) {
            let pelton = head["pelton"].as_str().map(str::to_owned);
            return Err(ReadError::Version { path: path.to_owned(), found: version, pelton });
        }
        let common = Common::deserialize(&whole).map_err(|error| foreign(error.to_string()))?;
        let Common { report, measures } = common;
        let is_finite = |measure: &Measure| measure.samples.iter().all(|sample| sample.is_finite());
        if let Some(measure) = measures.iter().find(|measure| !is_finite(measure)) {
            return Err(foreign(format!("`{}` has a sample that is no number", measure.name)));
        }
        Ok(Self { report, measures, whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        json!({
            "report": {
                "format": "pelton-bench", "version": 1, "kind": "offline", "pelton": "0.1.0",
                "command": ["pelton"], "at": 1, "interrupted": false,
                "machine": {"cpu": "x", "n_processors": 2, "kernels": "avx2", "threads": 2},
            },
            "measures": [{"name": "a", "unit": "s", "better": "lower", "samples": [1.0, 2.0]}],
            "further": 7,
        })
    }

    #[test]
    fn a_report_is_read_with_all_that_its_kind_adds() {
        let read = Recorded::parse("a.json", &report().to_string()).expect("a report");
        assert_eq!((read.report.kind.as_str(), read.measures[0].samples.len()), ("offline", 2));
        assert_eq!(read.whole["further"], 7);
    }

    #[test]
    fn a_machine_that_was_measured_before_there_was_a_peak_of_half_precision_is_read() {
        let mut older = report();
        older["report"]["machine"]["baseline"] = json!({
            "measured_at": 1, "is_noisy": false, "read_bytes_per_s": 1e10, "f32_ops_per_s": 1e11,
            "bf16_ops_per_s": null, "int8_ops_per_s": 4e11,
        });
        let read = Recorded::parse("a.json", &older.to_string()).expect("a report");
        let baseline = read.report.machine.baseline.expect("a baseline");
        assert_eq!((baseline.f16_ops_per_s, baseline.f32_ops_per_s), (None, 1e11));
    }

    #[test]
    fn other_versions_and_other_files_are_refused_by_name() {
        for version in [0, 2] {
            let mut other = report();
            other["report"]["version"] = json!(version);
            let error = Recorded::parse("other.json", &other.to_string()).expect_err("another");
            let text = error.to_string();
            let named = format!("is a report of version {version};");
            assert!(text.contains("other.json") && text.contains(&named), "{text}");
            assert!(matches!(error, ReadError::Version { found, .. } if found == version));
        }
        let mut cut = report();
        cut["measures"][0]["samples"] = json!(["fast"]);
        for (text, part) in [
            ("{", "EOF"),
            ("[1]", "report.format"),
            (r#"{"figures": []}"#, "report.format"),
            (r#"{"report": {"format": "pelton-bench"}}"#, "report.version"),
            (&cut.to_string(), "invalid type"),
        ] {
            let told = Recorded::parse("x.json", text).expect_err(text).to_string();
            assert!(told.contains("x.json: is no report") && told.contains(part), "{told}");
        }
    }
}
