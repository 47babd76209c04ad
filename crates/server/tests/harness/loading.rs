//! Models that a server loads itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pelton_llm::{EmbedModel, EmbedOptions, Embedder, ModelRef, TypedTokens};
use pelton_server::{Loader, ModelSpec, Served};
use pelton_testkit::TinyEncoder;
use pelton_testkit::golden::ranker_named;

use super::parrot::{Gate, heavy_parrot, one_thread};

/// Bytes of the weights of a parrot.
pub const WEIGHT_BYTES: u64 = 100 << 20;

/// Loads parrots.
#[derive(Default)]
pub struct Parrots {
    /// Lets the parrots speak that are loaded from now on.
    pub gate: Mutex<Gate>,
    pub n_loads: AtomicU64,
    pub n_abandoned: AtomicU64,
    pub is_broken: AtomicBool,
    /// Whether they are said to be three times as large.
    pub is_large: AtomicBool,
    /// Whether loads wait.
    pub is_slow: AtomicBool,
}

impl Loader for Parrots {
    fn weight_bytes(&self) -> Result<u64, String> {
        let factor = if self.is_large.load(Ordering::SeqCst) { 3 } else { 1 };
        Ok(factor * WEIGHT_BYTES)
    }

    fn load(&self, _: Option<u64>) -> Result<Served, String> {
        while self.is_slow.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.is_broken.load(Ordering::SeqCst) {
            return Err("model.gguf: the file ends early".to_owned());
        }
        self.n_loads.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate.lock().expect("no panic").clone();
        Ok(Served::Text(heavy_parrot(&gate, WEIGHT_BYTES)))
    }

    fn abandon_threads(&self) {
        self.n_abandoned.fetch_add(1, Ordering::SeqCst);
    }
}

/// A model that is loaded when it is asked for, with the alias `NAME-alias`.
pub fn spec(name: &str, loader: &Arc<Parrots>) -> ModelSpec {
    let (loader, aliases) = (Arc::clone(loader) as Arc<dyn Loader>, vec![format!("{name}-alias")]);
    let settings = String::new();
    ModelSpec { name: name.to_owned(), aliases, preload: false, keep_alive: None, settings, loader }
}

/// Loads a tiny encoder, whose steps wait at a gate.
#[derive(Default)]
pub struct Encoders {
    /// Whether they are classifiers, and make no vectors.
    pub are_classifiers: AtomicBool,
    /// Lets the encoders work that are loaded from now on.
    pub gate: Mutex<Gate>,
    pub n_loads: AtomicU64,
    pub n_abandoned: AtomicU64,
    pub is_broken: AtomicBool,
}

/// A model behind a gate.
struct Gated(Gate, Box<dyn EmbedModel>);

impl EmbedModel for Gated {
    fn n_places(&self) -> usize {
        self.1.n_places()
    }

    fn embed(&mut self, texts: &[TypedTokens]) -> Vec<Vec<f32>> {
        self.0.pass();
        self.1.embed(texts)
    }
}

impl Loader for Encoders {
    fn weight_bytes(&self) -> Result<u64, String> {
        Ok(WEIGHT_BYTES)
    }

    fn load(&self, _: Option<u64>) -> Result<Served, String> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Err("model.gguf: the file ends early".to_owned());
        }
        self.n_loads.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate.lock().expect("no panic").clone();
        let folder = tempfile::tempdir().expect("a folder");
        match self.are_classifiers.load(Ordering::SeqCst) {
            true => ranker_named("bert-labels").write_folder(folder.path()),
            false => TinyEncoder::default().write_folder(folder.path()),
        }
        let model = ModelRef::parse(folder.path().to_str().expect("UTF-8")).expect("a folder");
        let wrap = |model| Box::new(Gated(gate, model)) as Box<dyn EmbedModel>;
        let options = EmbedOptions::default();
        let embedder = Embedder::load_behind(&one_thread(), &model, &options, &mut |_| {}, wrap)
            .expect("loads");
        Ok(Served::Vectors(embedder))
    }

    fn abandon_threads(&self) {
        self.n_abandoned.fetch_add(1, Ordering::SeqCst);
    }
}

/// An encoder that is loaded when it is asked for.
pub fn encoder(name: &str, loader: &Arc<Encoders>) -> ModelSpec {
    let (loader, name) = (Arc::clone(loader) as Arc<dyn Loader>, name.to_owned());
    let (aliases, settings) = (Vec::new(), String::new());
    ModelSpec { name, aliases, preload: false, keep_alive: None, settings, loader }
}
