//! Whether a file to be would be read as the model that it is made from.
//!
//! A config can have fields for which GGUF files of its family have no key. A reader would assume
//! the usual value: the file would load, and compute something else. Therefore the keys and the
//! names and shapes of the tensors are read back before anything is written, and must give the spec
//! of the model. Tokens that end an answer are not compared, because files have room for only
//! three.

use std::collections::BTreeMap;
use std::path::Path;

use pelton_tensor::{MappedFile, TensorSource, TensorView};

use super::Item;
use super::item::Source;
use super::metadata::Keys;
use crate::arch::{self, ArchSpec, Ends, Mixer};
use crate::error::ModelError;
use crate::files::gguf;
use crate::rope::RopeSpec;

/// Largest difference of a frequency: divisors in f32 may be a last bit off.
const ROPE_TOLERANCE: f32 = 1e-6;

/// The tensors of the file to be; only those that are computed have data.
struct Planned<'i, 'a>(BTreeMap<&'i str, &'i Item<'a>>);

impl TensorSource for Planned<'_, '_> {
    fn names(&self) -> Vec<&str> {
        self.0.keys().copied().collect()
    }

    fn get(&self, name: &str) -> Option<TensorView<'_>> {
        self.0.get(name).map(|item| {
            let data = if let Source::Made(data) = &item.source { data.as_slice() } else { &[] };
            let Item { gguf_name, dtype, shape, .. } = item;
            TensorView { name: gguf_name, dtype: *dtype, shape, data }
        })
    }

    fn origin(&self) -> &Path {
        Path::new("the file to be")
    }

    fn files(&self) -> &[MappedFile] {
        &[]
    }
}

/// Refuses a file that would be read as another model than `spec`.
pub(super) fn check(spec: &ArchSpec, keys: &Keys, items: &[Item<'_>]) -> Result<(), ModelError> {
    let metadata: BTreeMap<_, _> = keys.list.iter().cloned().collect();
    let tensors = Planned(items.iter().map(|item| (item.gguf_name.as_str(), item)).collect());
    let read = gguf::read_config(&metadata, &tensors).and_then(|config| {
        let arch = arch::find(&config.architecture).expect("invariant: registered");
        (arch.spec)(&config)
    });
    let read = read.map_err(|error| {
        ModelError::Export(format!("something that GGUF files of its family cannot say: {error}"))
    })?;
    match difference(spec, &read) {
        None => Ok(()),
        Some(what) => {
            let why = format!("{what} that GGUF files of its family cannot say");
            Err(ModelError::Export(why))
        }
    }
}

/// The first part in which two models differ.
fn difference(spec: &ArchSpec, read: &ArchSpec) -> Option<String> {
    // Models saved without their head are read with the one that is their table.
    let ends = |spec: &ArchSpec| Ends { head: true, ..spec.ends };
    let whole = [
        ("a hidden size", spec.hidden_size == read.hidden_size),
        ("a vocabulary", spec.vocab_size == read.vocab_size),
        ("a context", spec.max_context == read.max_context),
        ("norms", (spec.norm, spec.norm_eps) == (read.norm, read.norm_eps)),
        ("rotary embeddings", are_ropes_alike(&spec.ropes, &read.ropes)),
        ("positions", spec.positions == read.positions),
        ("factors of projections", spec.multipliers == read.multipliers),
        ("a scale of embeddings", spec.embedding_scale == read.embedding_scale),
        ("a norm of embeddings", spec.embedding_norm == read.embedding_norm),
        ("a scale of logits", spec.logit_scale == read.logit_scale),
        ("a cap of logits", spec.logit_softcap == read.logit_softcap),
        ("a bias of the head", spec.head_bias == read.head_bias),
        ("a head", spec.tied_embeddings == read.tied_embeddings),
        ("ends", ends(spec) == ends(read)),
        ("layers", spec.layers.len() == read.layers.len()),
    ];
    if let Some((what, _)) = whole.into_iter().find(|(_, is_same)| !is_same) {
        return Some(what.to_owned());
    }
    let mut layers = spec.layers.iter().zip(&read.layers).enumerate();
    layers.find_map(|(i, (layer, read))| {
        let parts = [
            (mixer_words(&layer.mixer), layer.mixer == read.mixer),
            ("a perceptron", layer.mlp == read.mlp),
            ("wiring", layer.wiring == read.wiring),
        ];
        let differing = parts.into_iter().find(|(_, is_same)| !is_same);
        differing.map(|(what, _)| format!("{what} in layer {i}"))
    })
}

fn mixer_words(mixer: &Mixer) -> &'static str {
    match mixer {
        Mixer::Gqa(_) | Mixer::Mla(_) | Mixer::CrossAttention(_) | Mixer::Absent(_) => "attention",
        Mixer::Recurrent(_) | Mixer::SelectiveScan(_) | Mixer::TimeMix(_) => "a recurrence",
        Mixer::Parallel(_) => "a recurrence beside attention",
        Mixer::ShortConv(_) => "a convolution",
        Mixer::ChannelMix(_) => "a channel mix",
    }
}

fn are_ropes_alike(a: &[RopeSpec], b: &[RopeSpec]) -> bool {
    let is_near = |a: &f32, b: &f32| (a - b).abs() <= ROPE_TOLERANCE * a.abs();
    let pair = |(a, b): (&RopeSpec, &RopeSpec)| {
        [a.n_trained, a.longest_context()].into_iter().all(|n| {
            let (a, b) = (a.table(n), b.table(n));
            is_near(&a.attention_factor, &b.attention_factor)
                && a.inv_freq.len() == b.inv_freq.len()
                && a.inv_freq.iter().zip(&b.inv_freq).all(|(a, b)| is_near(a, b))
        })
    };
    a.len() == b.len() && a.iter().zip(b).all(pair)
}
