//! Flags of `pelton bench serve`.

use std::convert::Infallible;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use pelton_base::{Slo, limits};
use pelton_bench::Pace;
use pelton_bench::serve::{Address, Config, Endpoint, Texts};
use pelton_sim::trace::Trace;
use serde_json::{Map, Value, json};

use super::workload::WorkloadArgs;
use crate::bench::{self, Named};
use crate::config::Secret;
use crate::failure::{Failure, Result};

pub(super) const SERVE_HELP_END: &str = "\
Examples:
  pelton bench serve                                       the server on this machine
  pelton bench serve --url http://10.0.0.7:8000 --rate 4 -n 500
  pelton bench serve --workload shared-prefix --chat --ttft-target 2000 --tpot-target 200
  pelton bench serve --concurrency 32 --json > run.json
  pelton bench serve --workload sharegpt --arrivals ramp --rate 4 -n 1000
  pelton bench serve --trace mooncake_trace.jsonl -n 200 --chat
  pelton bench serve --chat --schema answer.json --vllm-json results.json
  pelton bench serve --chat --prompts questions.jsonl --lengths 1:128

Requests arrive by the clock at the given rate, whether or not the server keeps up; with
--concurrency each arrives when another has ended. Times are those of the clients, network included,
and count from the arrival, so a stalled server hides nothing. Prompts are common words, one per token
of the workload; the report counts tokens as the server does. Of a Pelton, the report has the
processor time of the server, too. Ctrl-C ends early and reports the requests so far.";

/// Flags that say where a server is and how it is asked.
#[derive(Args, Debug)]
pub(crate) struct RemoteArgs {
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Model to ask for [default: the first one that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key of the server; other users of the machine can see command lines, so prefer the
    /// environment
    #[arg(
        long,
        env = "PELTON_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = secret
    )]
    key: Option<Secret>,
    /// Certificates that certify an https server, in PEM [default: those that browsers trust]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Send chat completions instead of completions
    #[arg(long)]
    chat: bool,
    /// Longest time for one request, in seconds
    #[arg(long, value_name = "S", default_value = "600")]
    timeout: NonZeroU32,
    /// Texts to ask about, one request each and then from the first again: lines of text, objects
    /// with prompt, messages (with --chat) or conversations, and perhaps max_tokens, or the list of
    /// ShareGPT; arrivals and lengths of answers are those of the workload
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    prompts: Option<PathBuf>,
    /// JSON schema that each answer must follow; answers may end before their length
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    schema: Option<PathBuf>,
    /// Latest first token of a request that counts as good, in milliseconds
    #[arg(long, value_name = "MS", help_heading = "Workload")]
    ttft_target: Option<NonZeroU32>,
    /// Longest time per token of a request that counts as good, in milliseconds
    #[arg(long, value_name = "MS", help_heading = "Workload")]
    tpot_target: Option<NonZeroU32>,
}

impl RemoteArgs {
    /// How the server is measured with this many requests of a workload.
    ///
    /// # Errors
    ///
    /// A value of `--url` that cannot be asked, a file of `--schema` that holds no JSON object.
    pub(crate) fn config(
        &self,
        (workload, texts): (String, Option<&Arc<Texts>>),
        n_requests: u64,
        pace: Pace,
    ) -> Result<Config> {
        let target = |ms: NonZeroU32| Duration::from_millis(u64::from(ms.get()));
        Ok(Config {
            address: Address::parse(&self.url).map_err(bench::failure)?,
            key: self.key.as_ref().map(|key| key.expose().to_owned()),
            ca: self.ca.clone(),
            model: self.model.clone(),
            endpoint: self.endpoint(),
            n_requests,
            pace,
            default_slo: Slo {
                ttft: self.ttft_target.map(target),
                tpot: self.tpot_target.map(target),
            },
            timeout: Duration::from_secs(u64::from(self.timeout.get())),
            workload: match (&self.prompts, texts) {
                (Some(path), Some(texts)) => {
                    format!("{workload}, {} texts of {}", texts.n_texts(), path.display())
                }
                _ => workload,
            },
            first_number: 0,
            texts: texts.cloned(),
            extra: self.schema.as_deref().map(form).transpose()?.unwrap_or_default(),
            looks: false,
        })
    }

    /// The files that are read.
    pub(crate) fn inputs(&self) -> [Named<'_>; 3] {
        [
            ("--prompts", self.prompts.as_deref()),
            ("--schema", self.schema.as_deref()),
            ("--ca", self.ca.as_deref()),
        ]
    }

    fn endpoint(&self) -> Endpoint {
        if self.chat { Endpoint::Chat } else { Endpoint::Completions }
    }

    /// The texts of `--prompts`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or the first line that is wrong; a workload whose prompts repeat
    /// the questions before them.
    pub(crate) fn texts(&self, workload: &WorkloadArgs) -> Result<Option<Arc<Texts>>> {
        let Some(path) = &self.prompts else { return Ok(None) };
        workload.expect_no_sessions("--prompts")?;
        let texts = Texts::open(path, self.endpoint()).map_err(bench::failure)?;
        Ok(Some(Arc::new(texts)))
    }

    /// Whether requests have latency targets.
    pub(crate) fn has_targets(&self) -> bool {
        self.ttft_target.is_some() || self.tpot_target.is_some()
    }
}

/// The fields of a body that ask for JSON by the schema of a file.
fn form(path: &Path) -> Result<Map<String, Value>> {
    let wrong = |why: String| Failure::new(format!("--schema: {}: {why}", path.display()));
    let text = pelton_tensor::read_limited_text(path, limits::CONFIG_BYTES);
    let text = text.map_err(|error| wrong(error.to_string()))?;
    let schema: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if !schema.is_object() {
        return Err(wrong("expected a JSON schema, which is an object".to_owned()));
    }
    let schema = json!({"name": "answer", "strict": true, "schema": schema});
    let format = json!({"type": "json_schema", "json_schema": schema});
    // Answers end where their JSON does.
    let fields = [("response_format", format), ("ignore_eos", json!(false))];
    Ok(fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
}

/// Flags of `pelton bench serve`.
#[derive(Args, Debug)]
pub(crate) struct BenchServeArgs {
    /// The server.
    #[command(flatten)]
    pub(crate) server: RemoteArgs,
    /// The workload.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Keep N requests running instead of following the clock
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["rate", "arrivals"],
        help_heading = "Workload"
    )]
    concurrency: Option<NonZeroUsize>,
    /// Also write the results in the form of vLLM's `bench serve`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) vllm_json: Option<PathBuf>,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BenchServeArgs {
    /// How the server is measured with this trace.
    ///
    /// # Errors
    ///
    /// As of [`RemoteArgs::config`].
    pub(crate) fn config(&self, trace: &Trace, texts: Option<&Arc<Texts>>) -> Result<Config> {
        let n_requests = self.workload.n_requests(trace);
        let pace = self.pace();
        self.server.config((self.workload.describe(trace, pace), texts), n_requests, pace)
    }

    /// The arrival of requests.
    pub(crate) fn pace(&self) -> Pace {
        self.concurrency.map_or(Pace::Clock, |n| Pace::Concurrency(n.get()))
    }
}

/// Accepts any text: the server judges it.
fn secret(text: &str) -> std::result::Result<Secret, Infallible> {
    Ok(Secret::new(text))
}
