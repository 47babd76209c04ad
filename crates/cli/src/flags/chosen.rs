//! Everything that the flags of the table choose, in the types of the crates below.

use pelton_llm::{EmbedOptions, LlmInfo, LlmOptions, Pooling, Runtime, SpecMethod, Verification};
use pelton_model::Compute;
use pelton_sched::{PolicyKind, PriorityOrder};
use pelton_server::{GatewayConfig, ServeConfig, SocketAccess, UsageFailures};

use super::spec::Drafter;
use super::{Flag, table};
use crate::failure::{Failure, Result};
use crate::model;
use crate::sandbox::Sandbox;

/// Settings of a model that makes vectors.
const OF_VECTORS: [&str; 10] = [
    "model",
    "threads",
    "compute",
    "quantize",
    "max-context",
    "packed-cache",
    "served-name",
    "embeddings",
    "pooling",
    "normalize",
];

/// The choices of a command. The default is what a command does without flags.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The model's name.
    pub(crate) model: String,
    /// Threads that compute; `None` for one per core.
    pub(crate) threads: Option<usize>,
    /// How it is loaded and run.
    pub(crate) llm: LlmOptions,
    /// Method and draft model, before they become part of `llm`.
    pub(crate) drafter: Drafter,
    /// Where and to whom it is served.
    pub(crate) serve: ServeConfig,
    /// Collector of traces; `None` for what OpenTelemetry's variables say.
    pub(crate) otlp_endpoint: Option<String>,
    /// How far the server restricts itself.
    pub(crate) sandbox: Sandbox,
    /// How vectors are made.
    pub(crate) vectors: Vectors,
}

impl Default for Chosen {
    fn default() -> Self {
        Self {
            model: model::EMBEDDED.to_owned(),
            threads: None,
            llm: LlmOptions::default(),
            drafter: Drafter::default(),
            serve: ServeConfig::default(),
            otlp_endpoint: None,
            sandbox: Sandbox::default(),
            vectors: Vectors::default(),
        }
    }
}

/// How vectors are made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vectors {
    /// Whether vectors are served even if the model can generate text.
    pub(crate) embeddings: bool,
    /// How the rows of a text become its vector; `None` for what the model's files say.
    pub(crate) pooling: Option<Pooling>,
    /// Whether vectors get the length 1; `None` for what the model's files say.
    pub(crate) normalize: Option<bool>,
}

impl Chosen {
    /// Puts the parts together that say one thing, and refuses contradictions.
    ///
    /// # Errors
    ///
    /// Names the options that contradict each other.
    pub(crate) fn resolve(mut self) -> Result<Self> {
        self.drafter.apply(&mut self.llm)?;
        self.drafter = self.drafter.resolved(&self.llm);
        self.llm.check_scheduling()?;
        self.check_kept_results()?;
        self.check_lone()?;
        // The lowest: requests of people go first.
        self.serve.batch_priority = match self.llm.choices.priority_order {
            PriorityOrder::LowFirst => i32::MAX,
            PriorityOrder::HighFirst => i32::MIN,
        };
        Ok(self)
    }

    /// Refuses to keep results that drafts change: the next answer to the same request would differ
    /// from the one that is kept.
    fn check_kept_results(&self) -> Result<()> {
        let spec = &self.llm.spec;
        let is_lossy = spec.verification == Verification::Typical && spec.method != SpecMethod::Off;
        match is_lossy && self.serve.gateway.result_cache_bytes.is_some() {
            true => Err(Failure::new(
                "`--result-cache` and `--spec-verify typical-lossy` contradict each other: with them \
                 an answer depends on its drafts, and a kept one is not exact",
            )
            .hint("`--spec-verify match` drafts without changing an answer")),
            false => Ok(()),
        }
    }

    /// Refuses settings of something that is not there, which would change nothing.
    fn check_lone(&self) -> Result<()> {
        let (serve, gateway) = (&self.serve, &self.serve.gateway);
        let ttl = GatewayConfig::default().result_cache_ttl;
        let lone = [
            (
                serve.unix_socket.is_none() && serve.unix_socket_access != SocketAccess::default(),
                ("--unix-socket-access", "--unix-socket PATH"),
            ),
            (
                gateway.usage_file.is_none() && gateway.usage_failures != UsageFailures::default(),
                ("--usage-failures", "--usage-file FILE"),
            ),
            (
                gateway.result_cache_bytes.is_none() && gateway.result_cache_ttl != ttl,
                ("--result-cache-ttl", "--result-cache SIZE"),
            ),
        ];
        match lone.into_iter().find(|(is_lone, _)| *is_lone) {
            Some((_, (flag, other))) => {
                Err(Failure::new(format!("`{flag}` changes nothing without `{other}`"))
                    .hint(format!("add `{other}`, or leave `{flag}` out")))
            }
            None => Ok(()),
        }
    }

    /// The machine of the process.
    ///
    /// # Errors
    ///
    /// When `PELTON_KERNELS` names kernels that this machine cannot run.
    pub(crate) fn runtime(&self) -> Result<Runtime> {
        model::runtime(self.threads)
    }

    /// Says in the log which settings of text generation change nothing for a model that makes vectors.
    /// They may be those of a file with several models, so they are no mistake.
    pub(crate) fn warn_of_text(&self) {
        let keys = self.keys_of_text();
        if !keys.is_empty() {
            tracing::warn!(
                "{}: a model that makes vectors has no use for these settings",
                keys.join(", ")
            );
        }
    }

    /// Says in the log which settings change nothing beside the others, or for this model.
    pub(crate) fn warn_of_idle(&self, model: &LlmInfo) {
        for (keys, why) in self.idle(model) {
            tracing::warn!("{}: changes nothing {why}", keys.join(", "));
        }
    }

    /// Keys of settings that change nothing, and why.
    fn idle(&self, model: &LlmInfo) -> Vec<(Vec<String>, &'static str)> {
        let (llm, choices) = (&self.llm, &self.llm.choices);
        let has_states = model.states.bytes_per_request > 0;
        let cases: [(bool, &[&str], &str); 6] = [
            (
                llm.spec.method == SpecMethod::Off,
                &["spec-max", "spec-verify", "spec-recent"],
                "without drafts (`--spec`)",
            ),
            (!choices.prefix_cache, &["cache-eviction"], "without the prefix cache"),
            (
                choices.policy != PolicyKind::Priority,
                &["priority-order"],
                "without `--policy priority`",
            ),
            (llm.compute == Compute::F32, &["activation-group"], "with `--compute f32`"),
            (
                !has_states,
                &["state-dtype", "state-snapshots", "state-interval"],
                "for a model without recurrent layers",
            ),
            (
                model.kv_bytes_per_token == 0,
                // The memory for keys and values bounds states as well.
                &["kv-dtype"],
                "for a model without keys and values",
            ),
        ];
        let plain = Self::default().resolve().expect("invariant: the built-in settings agree");
        let chosen = |names: &[&str]| -> Vec<String> {
            let flags = table().filter(|flag| names.contains(&flag.name));
            flags.filter(|flag| flag.get(self) != flag.get(&plain)).map(Flag::key).collect()
        };
        let idle = cases.into_iter().filter(|(is_idle, ..)| *is_idle);
        let idle = idle.map(|(_, names, why)| (chosen(names), why));
        idle.filter(|(keys, _)| !keys.is_empty()).collect()
    }

    /// Keys of the settings of text generation that are not as they are built in.
    fn keys_of_text(&self) -> Vec<String> {
        let plain = Self::default().resolve().expect("invariant: the built-in settings agree");
        let is_of_text = |flag: &&Flag| flag.concerns_models() && !OF_VECTORS.contains(&flag.name);
        let is_chosen = |flag: &&Flag| flag.get(self) != flag.get(&plain);
        table().filter(is_of_text).filter(is_chosen).map(Flag::key).collect()
    }

    /// The same for a model whose vectors are wanted.
    pub(crate) fn embed_options(&self) -> EmbedOptions {
        EmbedOptions {
            compute: self.llm.compute,
            quantize: self.llm.quantize,
            max_tokens: self.llm.max_context,
            pooling: self.vectors.pooling,
            normalise: self.vectors.normalize,
            packed_cache: self.llm.packed_cache.clone(),
            name: self.llm.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::set_key;

    #[test]
    fn only_settings_that_vectors_have_no_use_for_are_named() {
        let mut chosen = Chosen::default().resolve().expect("they agree");
        assert_eq!(chosen.keys_of_text(), Vec::<String>::new());
        let of_vectors = [
            ("max_context", "64"),
            ("threads", "2"),
            ("compute", "f32"),
            ("pooling", "mean"),
            ("normalize", "false"),
            ("embeddings", "true"),
        ];
        for (key, value) in of_vectors {
            set_key(&mut chosen, key, value).expect("a setting");
        }
        let chosen_again = chosen.clone().resolve().expect("they agree");
        assert_eq!(chosen_again.keys_of_text(), Vec::<String>::new());
        assert_eq!(chosen.keys_of_text(), Vec::<String>::new());
        for (key, value) in [("tool_parser", "hermes"), ("policy", "fair"), ("kv_memory", "1MiB")] {
            set_key(&mut chosen, key, value).expect("a setting");
        }
        let mut keys = chosen.keys_of_text();
        keys.sort();
        assert_eq!(keys, ["kv_memory", "policy", "tool_parser"]);
    }
}
