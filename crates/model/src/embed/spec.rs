//! How a model makes vectors, as its files say.
//!
//! ```text
//! modules.json                       which steps follow the model, and their folders
//! 1_Pooling/config.json              pooling_mode_mean_tokens: true, ...
//! 2_Dense/config.json, safetensors   a layer after pooling
//! sentence_bert_config.json          max_seq_length
//! config_sentence_transformers.json  prompts: {"query": "query: "}, default_prompt_name
//! GGUF                               {arch}.pooling_type: 1 mean, 2 cls, 3 last, 4 rank
//! ```
//!
//! Where the files say nothing, an encoder takes the mean and a decoder the last token, and vectors
//! are normalised. Where a `modules.json` has no `Normalize` step, vectors are not normalised.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use pelton_base::limits;
use pelton_tensor::GgufValue;
use serde_json::Value;

use super::classes::{ClassSpec, Classifier};
use super::dense::{Dense, last_name};
use super::normalise;
use super::pooling::Pooling;
use crate::arch::ArchSpec;
use crate::error::ModelError;
use crate::fields::{ConfigError, Field};
use crate::files::{ModelFiles, read_json};

/// Most modules, and most prompts, that a model may list.
const MOST_ENTRIES: usize = 64;

/// The steps after the last layer.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedSpec {
    /// How rows become one vector; several are joined.
    pub pooling: Vec<Pooling>,
    /// Layers after pooling.
    pub dense: Vec<Dense>,
    /// Whether vectors have the length 1.
    pub normalise: bool,
    /// Longest text, in tokens.
    pub max_tokens: usize,
    /// Prompts that are put before a text, by name.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt that is used where a request names none.
    pub default_prompt: Option<String>,
    /// Whether texts are made lower case before the tokenizer sees them.
    pub lower_case: bool,
    /// The meaning of a vector whose elements are the logits of a classifier.
    pub classes: Option<ClassSpec>,
}

const MODULES: &str = "modules.json";

impl EmbedSpec {
    /// Whether the files say that the model is for vectors.
    ///
    /// # Errors
    ///
    /// As [`ModelFiles::spec`].
    pub fn is_declared(files: &ModelFiles) -> Result<bool, ModelError> {
        Ok(Self::has_modules(files)
            || Classifier::is_declared(files)
            || gguf_pooling(files)?.is_some()
            || !files.spec()?.generates())
    }

    /// Whether a folder lists the steps after the model.
    pub(crate) fn has_modules(files: &ModelFiles) -> bool {
        files.folder().is_some_and(|folder| folder.join(MODULES).exists())
    }

    /// Reads what the files say; `spec` is the model's.
    ///
    /// # Errors
    ///
    /// Names the file and the field that is wrong.
    pub fn read(files: &ModelFiles, spec: &ArchSpec) -> Result<Self, ModelError> {
        let pooling = match gguf_pooling(files)? {
            Some(pooling) => pooling,
            None if !spec.is_causal() => Pooling::Mean,
            None => Pooling::LastToken,
        };
        let mut read = Self {
            pooling: vec![pooling],
            dense: Vec::new(),
            normalise: true,
            max_tokens: spec.max_context,
            prompts: BTreeMap::new(),
            default_prompt: None,
            lower_case: false,
            classes: None,
        };
        let classifier = Classifier::read(files, spec)?;
        if let Some(folder) = files.folder() {
            // A classifier has its own layers after the last one.
            if classifier.is_none() {
                read.read_modules(folder, spec.hidden_size)?;
            }
            read.read_limits(folder, spec.max_context)?;
            read.read_prompts(folder)?;
        }
        if let Some(Classifier { pooling, layers, classes }) = classifier {
            (read.pooling, read.dense, read.normalise) = (vec![pooling], layers, false);
            read.classes = Some(classes);
        }
        Ok(read)
    }

    /// Elements of a vector of a model of this width.
    pub fn n_dimensions(&self, hidden_size: usize) -> usize {
        self.dense.last().map_or(self.pooling.len() * hidden_size, Dense::n_out)
    }

    /// The vector of a text with these rows, `[n, width]`.
    pub(super) fn finish(&self, rows: &[f32], width: usize) -> Vec<f32> {
        let mut vector = Vec::with_capacity(self.pooling.len() * width);
        for pooling in &self.pooling {
            pooling.pool(rows, width, &mut vector);
        }
        for dense in &self.dense {
            vector = dense.apply(&vector);
        }
        if self.normalise {
            normalise(&mut vector);
        }
        vector
    }

    fn read_modules(&mut self, folder: &Path, hidden_size: usize) -> Result<(), ModelError> {
        let file = folder.join(MODULES);
        if !file.exists() {
            return Ok(());
        }
        let wrong = |error| ModelError::config(&file)(error);
        let value = read_json(&file)?;
        let root = Field::new("modules", Some(&value));
        let Some(modules) = value.as_array().filter(|list| list.len() <= MOST_ENTRIES) else {
            return Err(wrong(root.error(format!("a list of up to {MOST_ENTRIES} modules"))));
        };
        self.normalise = false;
        for (i, module) in modules.iter().enumerate() {
            let module = Field::new(format!("[{i}]"), Some(module));
            let kind = module.get("type");
            let place = || module_folder(folder, &module.get("path")).map_err(wrong);
            match kind.text().map_err(wrong)?.map(last_name) {
                Some("Transformer" | "Dropout") => {}
                Some("Pooling") => self.pooling = read_pooling(&place()?)?,
                Some("Dense") => {
                    self.dense.push(Dense::read(&place()?, self.n_dimensions(hidden_size))?);
                }
                Some("Normalize") => self.normalise = true,
                _ => {
                    let known = "one of Transformer, Pooling, Dense, Normalize, Dropout";
                    return Err(wrong(kind.error(known)));
                }
            }
        }
        Ok(())
    }

    fn read_limits(&mut self, folder: &Path, max_context: usize) -> Result<(), ModelError> {
        let file = folder.join("sentence_bert_config.json");
        if !file.exists() {
            return Ok(());
        }
        let value = read_json(&file)?;
        let root = Field::new("", Some(&value));
        let wrong = |error| ModelError::config(&file)(error);
        if let Some(field) = root.get("max_seq_length").non_null() {
            self.max_tokens = field.count(limits::MODEL_CONTEXT).map_err(wrong)?.min(max_context);
        }
        self.lower_case = root.get("do_lower_case").flag(false).map_err(wrong)?;
        Ok(())
    }

    fn read_prompts(&mut self, folder: &Path) -> Result<(), ModelError> {
        let file = folder.join("config_sentence_transformers.json");
        if !file.exists() {
            return Ok(());
        }
        let value = read_json(&file)?;
        let root = Field::new("", Some(&value));
        let wrong = |error| ModelError::config(&file)(error);
        let prompts = root.get("prompts");
        match prompts.value() {
            None => {}
            Some(Value::Object(map)) if map.len() <= MOST_ENTRIES => {
                for name in map.keys() {
                    let text = prompts.get(name).text().map_err(wrong)?.unwrap_or_default();
                    self.prompts.insert(name.clone(), text.to_owned());
                }
            }
            Some(_) => return Err(wrong(prompts.error("an object of up to 64 texts"))),
        }
        let name = root.get("default_prompt_name");
        if let Some(default) = name.text().map_err(wrong)? {
            if !self.prompts.contains_key(default) {
                return Err(wrong(name.error("the name of one of `prompts`")));
            }
            self.default_prompt = Some(default.to_owned());
        }
        Ok(())
    }
}

/// A folder below the model's; a path that leads elsewhere is refused.
fn module_folder(folder: &Path, path: &Field<'_>) -> Result<PathBuf, ConfigError> {
    let text = path.text()?.unwrap_or_default();
    match Path::new(text).components().all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(folder.join(text)),
        false => Err(path.error("a folder beside this file")),
    }
}

fn read_pooling(folder: &Path) -> Result<Vec<Pooling>, ModelError> {
    let file = folder.join("config.json");
    let value = read_json(&file)?;
    let root = Field::new("", Some(&value));
    let wrong = |error| ModelError::config(&file)(error);
    let include_prompt = root.get("include_prompt");
    if !include_prompt.flag(true).map_err(wrong)? {
        return Err(wrong(include_prompt.error("true, all that is supported")));
    }
    let mode = root.get("pooling_mode");
    if let Some(name) = mode.text().map_err(wrong)? {
        let pooling = name.parse().map_err(|_| wrong(mode.error("a known kind of pooling")))?;
        return Ok(vec![pooling]);
    }
    let mut found = Vec::new();
    for (pooling, name) in [
        (Pooling::Cls, "cls_token"),
        (Pooling::Max, "max_tokens"),
        (Pooling::Mean, "mean_tokens"),
        (Pooling::MeanSqrtLen, "mean_sqrt_len_tokens"),
        (Pooling::WeightedMean, "weightedmean_tokens"),
        (Pooling::LastToken, "lasttoken"),
    ] {
        if root.get(&format!("pooling_mode_{name}")).flag(false).map_err(wrong)? {
            found.push(pooling);
        }
    }
    match found.is_empty() {
        true => Err(wrong(root.get("pooling_mode_mean_tokens").error("one mode that is true"))),
        false => Ok(found),
    }
}

/// The pooling that a GGUF file names.
fn gguf_pooling(files: &ModelFiles) -> Result<Option<Pooling>, ModelError> {
    let Some(gguf) = files.gguf() else { return Ok(None) };
    let Some(GgufValue::String(arch)) = gguf.metadata().get("general.architecture") else {
        return Ok(None);
    };
    let key = format!("{arch}.pooling_type");
    let Some(value) = gguf.metadata().get(&key) else { return Ok(None) };
    let number = value.as_i128();
    match number {
        // 4 is the rank of a classifier, which has its own layers.
        Some(0 | 4) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::Cls)),
        Some(3) => Ok(Some(Pooling::LastToken)),
        _ => Err(ModelError::config(files.path())(ConfigError::Field {
            field: key,
            expected: "0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)".to_owned(),
            found: number.map_or_else(|| "no number".to_owned(), |n| n.to_string()),
        })),
    }
}
