//! Models that a server loads itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pelton_server::{Loader, ModelSpec, Served};

use super::parrot::{Gate, heavy_parrot};

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
    /// Whether loads wait.
    pub is_slow: AtomicBool,
}

impl Loader for Parrots {
    fn weight_bytes(&self) -> Result<u64, String> {
        Ok(WEIGHT_BYTES)
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
