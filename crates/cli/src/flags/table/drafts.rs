//! Flags of speculative decoding.

use pelton_llm::Verification;

use super::super::place::{Choice, place};
use super::super::{Flag, Kind, Part};

/// In the order of their help.
pub(super) static DRAFTS: &[Flag] = &[
    Flag {
        name: "spec",
        short: None,
        part: Part::Speculation,
        kind: Kind::Method,
        value: "METHOD",
        help: "Draft tokens and verify several at once where that is faster: by a smaller model \
               (`draft:MODEL`), by the first N layers (`early-exit:N`), by the longest match in \
               the session (`suffix`), by the most promising method (`auto`), and more; answers \
               stay the same",
        default: "off",
        place: place!(drafter.spec),
    },
    Flag {
        name: "draft-model",
        short: None,
        part: Part::Speculation,
        kind: Kind::Text,
        value: "MODEL",
        help: "Model that drafts under `--spec draft` or `auto`; it needs the same vocabulary",
        default: "none",
        place: place!(drafter.model),
    },
    Flag {
        name: "spec-max",
        short: None,
        part: Part::Speculation,
        kind: Kind::COUNT,
        value: "N",
        help: "Most tokens drafted at once for one request",
        default: "",
        place: place!(llm.spec.max_drafts),
    },
    Flag {
        name: "spec-verify",
        short: None,
        part: Part::Speculation,
        kind: Kind::Names(Verification::names),
        value: "HOW",
        help: "Which drafts are accepted: those that plain decoding would sample (`match`), by \
               rejection sampling (`rejection`: the same distribution, other tokens), or all that \
               are likely enough (`typical-lossy`)",
        default: "",
        place: place!(llm.spec.verification),
    },
    Flag {
        name: "spec-recent",
        short: None,
        part: Part::Speculation,
        kind: Kind::Number(0, usize::MAX as u64),
        value: "N",
        help: "Tokens of recent answers that `suffix` and `auto` search too, including answers to \
               other requests of the same tenant and salt",
        default: "",
        place: place!(llm.spec.recent_tokens),
    },
];
