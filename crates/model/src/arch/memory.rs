//! Where layers keep keys and values: places in the blocks of the pool, and memory groups.
//!
//! A block has *places*, each as large as the keys and values of its tokens in one of the widest layers.
//! Narrower layers share a place. A layer that reads the keys and values of another layer
//! (Brandon et al., 2024) has no place of its own: it reads that of the other one.
//!
//! ```text
//! layers   W W W W F W W W W F W F      W has a window, F reads all tokens and is twice as wide
//! reads                        8 9      the last two store nothing
//! groups   1 1 1 1 0 2 2 2 2 0 2 0      blocks of group 0: |F |F |     of groups 1 and 2: |WW|WW|
//! ```

use pelton_base::{KvWindows, Reach};

use super::{ArchSpec, Kept, KvHeads, Mixer};
use crate::kv::{KvPlace, NarrowKv};

/// Where a layer finds what it keeps of a sequence, or what it reads of another layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MemoryPlace {
    /// Its keys and values.
    pub(crate) pages: KvPlace,
    /// Its place among the layers that keep a state.
    pub(crate) state: usize,
}

impl MemoryPlace {
    /// The place in a cache in which every layer stores over what the one before it stored.
    pub(crate) fn passing(self) -> Self {
        Self { pages: KvPlace { layer: 0, nth: 0, ..self.pages }, state: 0 }
    }
}

impl ArchSpec {
    /// Keys and values of the widest layers, and those of narrower ones.
    pub(crate) fn kv_sizes(&self) -> (KvHeads, Option<NarrowKv>) {
        let all = || self.layers.iter().filter_map(|layer| layer.mixer.kv_heads());
        let widest = all().max_by_key(KvHeads::n_elements).unwrap_or(KvHeads::LEAST);
        let narrow = all().find(|heads| *heads != widest);
        let is_known = |heads| heads == widest || Some(heads) == narrow;
        assert!(all().all(is_known), "invariant: keys and values of at most two sizes");
        let narrow = narrow.map(|heads| {
            let n_per_place = widest.n_elements() / heads.n_elements();
            NarrowKv { heads, n_per_place }
        });
        (widest, narrow)
    }

    /// Layers with keys and values of a size that share a place, for any of the sizes.
    fn n_per_place(&self) -> impl Fn(KvHeads) -> usize {
        let (widest, narrow) = self.kv_sizes();
        move |heads| narrow.filter(|_| heads != widest).map_or(1, |narrow| narrow.n_per_place)
    }

    /// Places that these layers take.
    fn n_places<'a>(&self, mixers: impl Iterator<Item = &'a Mixer>) -> usize {
        let (widest, narrow) = self.kv_sizes();
        let (mut n_wide, mut n_narrow) = (0, 0_usize);
        for heads in mixers.filter_map(Mixer::kv_heads) {
            *(if heads == widest { &mut n_wide } else { &mut n_narrow }) += 1;
        }
        n_wide + narrow.map_or(0, |narrow| n_narrow.div_ceil(narrow.n_per_place))
    }

    /// The place of each layer's memory; within a memory group the widest layers come first.
    pub(crate) fn memory_places(&self) -> Vec<MemoryPlace> {
        let (widest, narrow) = self.kv_sizes();
        let n_per_place = narrow.map_or(1, |narrow| narrow.n_per_place);
        let mut n_wide = vec![0; self.n_kv_groups()];
        for layer in self.layers.iter().filter(|layer| layer.mixer.kv_heads() == Some(widest)) {
            n_wide[layer.kv_group] += 1;
        }
        let mut places: Vec<MemoryPlace> = Vec::with_capacity(self.layers.len());
        let (mut next_wide, mut next_narrow) = (vec![0; n_wide.len()], vec![0; n_wide.len()]);
        let mut n_states = 0;
        for layer in &self.layers {
            let Kept { pages, state } = layer.mixer.kept();
            let group = layer.kv_group;
            let own = match (layer.mixer.source(), pages) {
                (Some(source), _) => places[source].pages,
                (None, Some(heads)) if heads != widest => {
                    let nth = next_narrow[group];
                    next_narrow[group] += 1;
                    let layer = n_wide[group] + nth / n_per_place;
                    KvPlace { layer, nth: nth % n_per_place, heads }
                }
                (None, heads) => {
                    let place = KvPlace { layer: next_wide[group], nth: 0, heads: widest };
                    next_wide[group] += usize::from(heads.is_some());
                    place
                }
            };
            places.push(MemoryPlace { pages: own, state: n_states });
            n_states += usize::from(state.is_some());
        }
        places
    }

    /// Places of a block of the KV cache: as many as the largest memory group takes.
    pub fn n_block_layers(&self) -> usize {
        let of_group = |group| {
            let own = self.layers.iter().filter(move |layer| layer.kv_group == group);
            self.n_places(own.map(|layer| &layer.mixer))
        };
        (0..self.n_kv_groups()).map(of_group).max().unwrap_or(0)
    }

    /// Places that the keys and values of a token take in all layers, if all are kept.
    pub fn n_kv_places(&self) -> usize {
        self.n_places(self.layers.iter().map(|layer| &layer.mixer))
    }

    /// Part of a place that the attention of each layer reads; 0 where a layer has none.
    pub fn kv_shares(&self) -> Vec<f64> {
        let n_per_place = self.n_per_place();
        let share = |heads: KvHeads| 1.0 / n_per_place(heads) as f64;
        let layers = self.layers.iter().map(|layer| layer.mixer.read_heads());
        layers.map(|heads| heads.map_or(0.0, share)).collect()
    }

    /// The layers with an attention window, where their keys and values can be freed behind it: layers with
    /// a window have keys and values of one size, and so have the others; no layer keeps a state, the
    /// windows are of one kind and shorter than the context, and layers with a window take at least as many
    /// places as layers without one (if they took fewer, a short sequence would take more memory than
    /// without windows).
    pub fn kv_windows(&self) -> Option<KvWindows> {
        let [full, windowed] = self.kv_kinds();
        let is_uniform = |mixers: &[&Mixer]| {
            mixers.windows(2).all(|pair| pair[0].kv_heads() == pair[1].kv_heads())
        };
        let [n_full, n_windowed] =
            [&full, &windowed].map(|mixers| self.n_places(mixers.iter().copied()));
        if !is_uniform(&full)
            || !is_uniform(&windowed)
            || self.is_recurrent()
            || !self.is_causal()
            || n_windowed < n_full.max(1)
        {
            return None;
        }
        let reaches = || windowed.iter().filter_map(|mixer| mixer.reach());
        let reach = reaches().reduce(|a, b| match (a, b) {
            (Reach::Last(a), Reach::Last(b)) => Reach::Last(a.max(b)),
            (a, _) => a,
        })?;
        let fits = |own: Reach| match (reach, own) {
            (Reach::Last(_), Reach::Last(_)) => true,
            (all, own) => all == own,
        };
        let n_blocks = match n_full {
            0 => 1,
            _ => windowed.len().div_ceil(self.n_window_layers(&full, &windowed)),
        };
        let (Reach::Last(longest) | Reach::Segment(longest)) = reach;
        let is_of_use = longest < self.max_context && reaches().all(fits);
        is_of_use.then_some(KvWindows { reach, n_blocks, is_all: full.is_empty() })
    }

    /// [`kv_windows`](Self::kv_windows) of a model whose layers are in groups that allow it.
    pub fn freed_windows(&self) -> Option<KvWindows> {
        self.kv_windows().filter(|windows| windows.n_groups() == self.n_kv_groups())
    }

    /// Gives layers with a window memory groups of their own, so that their blocks can be freed behind it:
    /// see [`kv_windows`](Self::kv_windows). Nothing changes where that is `None`.
    pub fn group_windows(&mut self) {
        let Some(windows) = self.kv_windows().filter(|windows| !windows.is_all) else { return };
        let [full, windowed] = self.kv_kinds();
        let n_per_group = self.n_window_layers(&full, &windowed);
        let mut n_windowed = 0;
        for i in 0..self.layers.len() {
            let mixer = &self.layers[i].mixer;
            self.layers[i].kv_group = match mixer.source() {
                Some(source) => self.layers[source].kv_group,
                None if mixer.kv_heads().is_some() && mixer.reach().is_some() => {
                    n_windowed += 1;
                    1 + (n_windowed - 1) / n_per_group
                }
                None => self.layers[i].kv_group,
            };
        }
        assert_eq!(self.n_kv_groups(), windows.n_groups(), "invariant: a group for each table");
    }

    /// The layers that keep keys and values of all tokens, and those with a window.
    fn kv_kinds(&self) -> [Vec<&Mixer>; 2] {
        let stored = || self.layers.iter().map(|layer| &layer.mixer);
        let stored = || stored().filter(|mixer| mixer.kv_heads().is_some());
        [false, true].map(|has| stored().filter(|mixer| mixer.reach().is_some() == has).collect())
    }

    /// Layers with a window whose keys and values lie in the places of one block.
    fn n_window_layers(&self, full: &[&Mixer], windowed: &[&Mixer]) -> usize {
        let heads = windowed.first().and_then(|mixer| mixer.kv_heads());
        let n_places = self.n_places(full.iter().copied());
        n_places * heads.map_or(1, self.n_per_place())
    }

    /// Number of layers that keep keys and values.
    pub fn n_paged_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.mixer.kv_heads().is_some()).count()
    }

    /// The layers whose keys and values other layers read, ascending.
    pub(crate) fn kv_sources(&self) -> Vec<usize> {
        let mut sources: Vec<usize> =
            self.layers.iter().filter_map(|layer| layer.mixer.source()).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// Whether some layers read the keys and values of other layers.
    pub fn shares_pages(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer.source().is_some())
    }
}
