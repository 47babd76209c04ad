//! The names of tensors in each kind of checkpoint.

use crate::arch::{Part, Stored};

/// How a checkpoint spells its tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Naming {
    /// Before every name, the head's included: where the text is a part of something larger.
    pub(crate) outer: &'static str,
    /// Empty in base models that were saved without their head, the family's own elsewhere.
    pub(crate) prefix: &'static str,
    pub(crate) stored: &'static Stored,
}

impl Naming {
    /// The names that a family's files have by rule.
    pub(crate) fn of(stored: &'static Stored) -> Self {
        Self { outer: "", prefix: stored.prefix, stored }
    }

    /// The names of a part without `.weight` or `.bias`, at least one; `layer` is ignored for parts
    /// outside of layers.
    pub(crate) fn stems(self, part: Part, layer: usize) -> impl Iterator<Item = String> {
        let Self { outer, prefix, stored } = self;
        stored.names(part, layer).map(move |name| match part {
            Part::Head => format!("{outer}{name}"),
            part if part.is_in_layer() => format!("{}{name}", self.layer(layer)),
            _ => format!("{outer}{prefix}{name}"),
        })
    }

    /// Begins the names of all tensors of a layer of the file.
    fn layer(self, layer: usize) -> String {
        let Self { outer, prefix, stored } = self;
        let number = if stored.halves.is_some() { layer / 2 } else { layer };
        format!("{outer}{prefix}{}.{number}.", stored.layers)
    }

    /// Begins the names of all tensors of a layer and of no other layer.
    pub(crate) fn own(self, layer: usize) -> String {
        let begin = self.stored.halves.map_or("", |halves| halves.begin[layer % 2]);
        format!("{}{begin}", self.layer(layer))
    }

    /// Whether a tensor of this name belongs to the text model.
    pub(crate) fn owns(self, name: &str) -> bool {
        let inner = name.strip_prefix(self.outer);
        let is_head =
            |name: &str| self.stored.names(Part::Head, 0).any(|head| name.starts_with(head));
        inner.is_some_and(|name| name.starts_with(self.prefix) || is_head(name))
    }

    /// The weight of a part, by the first of its names.
    pub(crate) fn weight(self, part: Part, layer: usize) -> String {
        format!("{}.weight", self.stem(part, layer))
    }

    /// The bias of a part, by the first of its names.
    pub(crate) fn bias(self, part: Part, layer: usize) -> String {
        format!("{}.bias", self.stem(part, layer))
    }

    /// The first name of a part, without `.weight` or `.bias`.
    pub(crate) fn stem(self, part: Part, layer: usize) -> String {
        self.stems(part, layer).next().expect("invariant: every part has a name")
    }
}
