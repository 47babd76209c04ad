//! Classifiers as data: the layers between the last row of a model and the logits of its labels.
//!
//! ```text
//! BERT          first row ── pooler, tanh ── classifier
//! RoBERTa       first row ── classifier.dense, tanh ── classifier.out_proj
//! DistilBERT    first row ── pre_classifier, relu ── classifier
//! ModernBERT    first row or mean ── head.dense, gelu, head.norm ── classifier
//! decoders      last row  ── score
//! ```
//!
//! With one label it is a cross-encoder, which says how well a text answers a question (Nogueira
//! and Cho, "Passage Re-ranking with BERT", 2019).

/// The layers of a classifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassHead {
    /// The row that is read.
    pub(crate) row: HeadRow,
    /// Dense layers, in order; the last one gives the logits.
    pub(crate) steps: &'static [HeadStep],
}

/// The row of a text that a classifier reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HeadRow {
    First,
    Last,
    /// As the field of `config.json` says: `cls` or `mean`.
    Field(&'static str),
}

/// One dense layer of a classifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadStep {
    /// Name of the tensors without `.weight` and `.bias`.
    pub(crate) name: &'static str,
    /// Whether the prefix of the family stands before the name.
    pub(crate) has_prefix: bool,
    /// Whether there must be a bias; where not, one is read if it is there.
    pub(crate) needs_bias: bool,
    pub(crate) act: HeadAct,
    /// Layer norm after the activation.
    pub(crate) norm: Option<&'static str>,
}

/// The activation after a dense layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HeadAct {
    None,
    Tanh,
    Relu,
    /// As the field of `config.json` says, by default `gelu`.
    Field(&'static str),
}

impl HeadStep {
    const PLAIN: Self = Self {
        name: "classifier",
        has_prefix: false,
        needs_bias: true,
        act: HeadAct::None,
        norm: None,
    };
}

impl ClassHead {
    /// Decoders: one matrix after the last row.
    pub(crate) const SCORE: Self = Self {
        row: HeadRow::Last,
        steps: &[HeadStep { name: "score", needs_bias: false, ..HeadStep::PLAIN }],
    };

    pub(crate) const BERT: Self = Self {
        row: HeadRow::First,
        steps: &[
            HeadStep {
                name: "pooler.dense",
                has_prefix: true,
                act: HeadAct::Tanh,
                ..HeadStep::PLAIN
            },
            HeadStep::PLAIN,
        ],
    };

    pub(crate) const ROBERTA: Self = Self {
        row: HeadRow::First,
        steps: &[
            HeadStep { name: "classifier.dense", act: HeadAct::Tanh, ..HeadStep::PLAIN },
            HeadStep { name: "classifier.out_proj", ..HeadStep::PLAIN },
        ],
    };

    pub(crate) const DISTIL: Self = Self {
        row: HeadRow::First,
        steps: &[
            HeadStep { name: "pre_classifier", act: HeadAct::Relu, ..HeadStep::PLAIN },
            HeadStep::PLAIN,
        ],
    };

    pub(crate) const MODERN: Self = Self {
        row: HeadRow::Field("classifier_pooling"),
        steps: &[
            HeadStep {
                name: "head.dense",
                needs_bias: false,
                act: HeadAct::Field("classifier_activation"),
                norm: Some("head.norm"),
                ..HeadStep::PLAIN
            },
            HeadStep::PLAIN,
        ],
    };

    /// Files of llama.cpp: `cls`, where there is one, and `cls.output`.
    pub(crate) const GGUF: [HeadStep; 2] = [
        HeadStep { name: "cls", needs_bias: false, act: HeadAct::Tanh, ..HeadStep::PLAIN },
        HeadStep { name: "cls.output", needs_bias: false, ..HeadStep::PLAIN },
    ];
}
