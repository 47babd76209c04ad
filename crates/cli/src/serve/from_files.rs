//! Models of a server, loaded from their files when the server asks for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pelton_llm::{Llm, ModelRef, Runtime};
use pelton_model::available_memory_bytes;
use pelton_server::{Loader, ModelSpec, Served};

use crate::config::ModelChoice;
use crate::failure::{Failure, Result};
use crate::flags::Chosen;
use crate::model;

/// One model, its settings, and the machine that all models share.
struct FromFiles {
    machine: Arc<Machine>,
    reference: ModelRef,
    chosen: Chosen,
    /// Models of the server, which share the memory for keys and values.
    n_models: u64,
}

/// Where models are loaded; another one once an engine hangs, and the threads that compute with it.
pub(super) struct Machine {
    runtime: Mutex<Runtime>,
    threads: Option<usize>,
}

impl Machine {
    /// The machine with so many threads, or one per core.
    pub(super) fn new(threads: Option<usize>) -> Result<Arc<Self>> {
        let runtime = Mutex::new(model::runtime(threads)?);
        Ok(Arc::new(Self { runtime, threads }))
    }

    fn runtime(&self) -> MutexGuard<'_, Runtime> {
        // A runtime is replaced whole.
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The models of a server. Their files are found now, and downloaded where needed: a server in its
/// sandbox opens no connections.
///
/// # Errors
///
/// Names the model whose files are not there, or are those of no model.
pub(super) fn specs(machine: &Arc<Machine>, models: Vec<ModelChoice>) -> Result<Vec<ModelSpec>> {
    let n_models = models.len() as u64;
    models
        .into_iter()
        .map(|choice| {
            let settings = format!("{} of {n_models}", choice.yaml()?);
            let ModelChoice { name, aliases, preload, keep_alive, chosen } = choice;
            let found = || -> Result<ModelRef> {
                let reference = model::reference(Some(&chosen.model))?;
                model::open(&reference, chosen.llm.quantize)?;
                Ok(reference)
            };
            let reference = match n_models {
                1 => found()?,
                _ => found().map_err(|failure| failure.at(&format!("model `{name}`")))?,
            };
            let machine = Arc::clone(machine);
            let loader = Arc::new(FromFiles { machine, reference, chosen, n_models });
            Ok(ModelSpec { name, aliases, preload, keep_alive, settings, loader })
        })
        .collect()
}

impl Loader for FromFiles {
    fn weight_bytes(&self) -> std::result::Result<u64, String> {
        self.count().map_err(|failure| said(&failure))
    }

    fn load(&self, most_bytes: Option<u64>) -> std::result::Result<Served, String> {
        self.load_within(most_bytes).map_err(|failure| said(&failure))
    }

    /// The hung step may keep its turn with the threads for ever.
    fn abandon_threads(&self) {
        match model::runtime(self.machine.threads) {
            Ok(runtime) => *self.machine.runtime() = runtime,
            Err(failure) => tracing::error!("no other threads: {}", said(&failure)),
        }
    }
}

impl FromFiles {
    fn count(&self) -> Result<u64> {
        let llm = &self.chosen.llm;
        let files = model::open(&self.reference, llm.quantize)?;
        Ok(match llm.quantize {
            None => pelton_model::stored_bytes(&files, llm.max_context)?,
            Some(_) => pelton_model::packed_bytes(&files, llm.max_context, llm.compute)?,
        })
    }

    /// Loads the model to generate text or to make vectors, as its files or the settings say.
    fn load_within(&self, most_bytes: Option<u64>) -> Result<Served> {
        let Self { machine, reference, chosen, .. } = self;
        let runtime = &machine.runtime().clone();
        let vectors = &chosen.vectors;
        if vectors.embeddings || model::resolve(reference)?.is_embedding_model()? {
            chosen.warn_of_text();
            let options = chosen.embed_options();
            return Ok(Served::Vectors(model::load_embedder(runtime, reference, &options)?));
        }
        if vectors.pooling.is_some() || vectors.normalize.is_some() {
            let message =
                "`--pooling` and `--normalize` are for vectors, and this model is for text";
            return Err(Failure::new(message).hint("`--embeddings` serves its vectors"));
        }
        let mut options = chosen.llm.clone();
        options.kv_bytes = self.kv_bytes(most_bytes)?;
        let llm = model::load(runtime, reference, &options)?;
        chosen.warn_of_idle(llm.info());
        prepare_forms(&llm);
        Ok(Served::Text(llm))
    }

    /// Limit on the memory for keys and values.
    fn kv_bytes(&self, most_bytes: Option<u64>) -> Result<Option<u64>> {
        let left = match most_bytes {
            Some(most_bytes) => Some(most_bytes.saturating_sub(self.count()?)),
            None => None,
        };
        let share = share(self.n_models, available_memory_bytes());
        Ok(limit(self.chosen.llm.kv_bytes, share, left))
    }
}

/// An equal part of half of what is free; `None` where there is only one model, which has a rule of
/// its own.
fn share(n_models: u64, n_free: Option<u64>) -> Option<u64> {
    match n_models {
        1 => None,
        n => n_free.map(|n_free| n_free / 2 / n),
    }
}

/// As chosen, else the share, and in any case no more than the budget leaves beside the weights.
fn limit(chosen: Option<u64>, share: Option<u64>, left: Option<u64>) -> Option<u64> {
    match (chosen.or(share), left) {
        (Some(wanted), Some(left)) => Some(wanted.min(left)),
        (wanted, left) => wanted.or(left),
    }
}

/// Prepares for requests with a form while the server begins to listen. Where there is no thread
/// for it, the first such request does.
fn prepare_forms(llm: &Arc<Llm>) {
    let llm = Arc::downgrade(llm);
    let prepare = move || {
        if let Some(llm) = llm.upgrade() {
            llm.prepare_forms();
        }
    };
    let _ = std::thread::Builder::new().name("pelton-forms".to_owned()).spawn(prepare);
}

/// The failure as one line, for the log and for operators.
pub(super) fn said(failure: &Failure) -> String {
    let line = failure.line().unwrap_or_default();
    line.trim_end().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_share_half_of_the_free_memory_in_equal_parts() {
        assert_eq!(share(1, Some(800)), None, "a model alone has a rule of its own");
        assert_eq!(share(2, None), None, "nobody knows what is free");
        for n_models in 2..20 {
            let each = share(n_models, Some(800)).expect("it is known what is free");
            let sum = each * n_models;
            assert!(sum <= 400 && sum + n_models > 400, "{n_models} models get {each} each");
        }
    }

    #[test]
    fn a_choice_wins_over_the_share_and_the_budget_over_both() {
        for (chosen, share, left, expected) in [
            (None, None, None, None),
            (None, Some(200), None, Some(200)),
            (Some(300), Some(200), None, Some(300)),
            (Some(100), Some(200), Some(150), Some(100)),
            (Some(300), Some(200), Some(150), Some(150)),
            (None, Some(200), Some(150), Some(150)),
            (None, Some(200), Some(0), Some(0)),
            (None, None, Some(150), Some(150)),
        ] {
            let got = limit(chosen, share, left);
            assert_eq!(got, expected, "{chosen:?}, {share:?}, {left:?}");
        }
    }
}
