//! The command line: commands, their own flags, and the help. Flags that several commands share
//! stand in [the table](crate::flags).
//!
//! A flag wins over its environment variable, which wins over the file of `serve --config` or the
//! model's own `generation_config.json`, which win over the built-in value. Contradictions are
//! errors.

mod advise;
mod batch;
mod beams;
mod bench;
mod bench_ablate;
mod bench_grammar;
mod bench_load;
mod bench_offline;
mod bench_reports;
mod bench_serve;
mod bench_sim;
mod bench_spec;
mod bench_sweep;
mod convert;
mod doctor;
mod embed;
mod ends;
mod eval;
mod form;
mod help;
mod key;
mod models;
mod parse_tools;
mod plan;
mod quantize;
mod rare_sampling;
mod reference;
mod sampling;
mod serve;
mod top;
mod usage;
mod workload;

use std::num::NonZeroUsize;

use clap::{Args, Parser, Subcommand};
use pelton_base::TokenId;
use pelton_model::{ActivationGroup, KvDtype, RoundTo, StateDtype};

pub(crate) use advise::AdviseArgs;
pub(crate) use batch::BatchArgs;
pub(crate) use beams::BeamArgs;
pub(crate) use bench::{BenchCommand, BenchKernelsArgs, BenchModelArgs};
pub(crate) use bench_ablate::{BenchAblateArgs, plain_with};
pub(crate) use bench_grammar::BenchGrammarArgs;
pub(crate) use bench_load::BenchLoadArgs;
pub(crate) use bench_offline::BenchOfflineArgs;
pub(crate) use bench_reports::{BenchCompareArgs, BenchReportArgs};
pub(crate) use bench_serve::BenchServeArgs;
pub(crate) use bench_sim::{BenchSimArgs, SimVariant};
pub(crate) use bench_spec::BenchSpecArgs;
pub(crate) use bench_sweep::BenchSweepArgs;
pub(crate) use convert::ConvertArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use embed::EmbedArgs;
pub(crate) use ends::EndArgs;
pub(crate) use eval::{
    EvalAbArgs, EvalArgs, EvalCommand, EvalNeedleArgs, EvalTasksArgs, ScoredArgs,
};
pub(crate) use form::{FormArgs, ToolArgs, read_tools, schema_shape};
pub(crate) use key::{KeyCommand, ListKeysArgs, NewKeyArgs, RevokeKeysArgs};
pub(crate) use models::{ListArgs, PullArgs, RmArgs, ShowArgs};
pub(crate) use parse_tools::ParseToolsArgs;
pub(crate) use plan::{PlanArgs, PlanCommand};
pub(crate) use quantize::{QuantizeArgs, quoted};
pub(crate) use rare_sampling::RareSamplingArgs;
pub(crate) use reference::{CompletionsArgs, ManArgs};
pub(crate) use sampling::SamplingArgs;
pub(crate) use serve::ServeArgs;
pub(crate) use top::TopArgs;
pub(crate) use usage::UsageArgs;

use crate::failure;
use crate::flags::{
    ActivationArgs, AnswerArgs, CacheArgs, Chosen, KvArgs, ModelArgs, RoundingArgs, SpecArgs,
    TemplateArgs,
};
use crate::mode::Mode;
use crate::run::Color;

/// Run and serve language models on the processor you have.
#[derive(Debug, Parser)]
#[command(name = "pelton", version, subcommand_required = true)]
#[command(after_help = HELP_END, max_term_width = 100, styles = clap::builder::Styles::plain())]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Write more logs to stderr; repeat for still more (RUST_LOG overrides)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Form of the logs: lines of text, or one JSON object per line
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PELTON_LOG_FORMAT",
        value_name = "FORMAT",
        default_value_t
    )]
    pub(crate) log_format: LogFormat,
}

/// Form of the logs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// Objects for programs
    Json,
}

const HELP_END: &str = "\
First steps:
  pelton run \"Once upon a time\"           continue a story with the small model inside the binary
  pelton run                              talk to it; Ctrl-D leaves
  pelton run -m ./my-model \"Why?\"         a folder with config.json and safetensors
  pelton run -m model.gguf \"Why?\"         a GGUF file
  pelton run -m Qwen/Qwen3-0.6B \"Why?\"    a model from the Hugging Face hub, downloaded once
  pelton pull owner/name:Q4_K_M           download one format; `pelton list` shows all models
  pelton serve -m model.gguf              an OpenAI-compatible server on http://127.0.0.1:8000
  pelton embed ./my-encoder \"a cat\" \"a dog\" --similarity     vectors of texts

Each command has its own help: pelton run --help";

const RUN_HELP_END: &str = "\
Examples:
  pelton run \"It was a dark and stormy night\"
  pelton run -m Qwen/Qwen3-0.6B \"Name three rivers.\" --temperature 0
  git diff | pelton run -m model.gguf --chat --system \"Summarise this change.\"
  pelton run --tokens 1,20,300 --max-tokens 16 --json
  pelton run -m model.gguf \"Hello\" --seed 7 --bandwidth
  pelton run -m model.gguf --packed-cache \"Hello\"     again: the weights are mapped, not packed

Where MODEL may point:
  a folder     config.json, *.safetensors, tokenizer.json (the layout of the Hugging Face hub)
  a file       anything.gguf, or any part of a split one
  an id        owner/name or owner/name:Q4_K_M, downloaded into the hub cache (HF_HOME, HF_ENDPOINT,
               HF_TOKEN, HF_HUB_OFFLINE are respected) and verified
  a name       from `pelton list`: models of Ollama (llama3.2:1b) and llama.cpp run where they lie
  nothing      the story-teller inside the binary

The first start with a large model measures this machine for up to a second and saves the best tile
sizes in ~/.cache/pelton/tuning.json; PELTON_TUNING=off turns that off. With several NUMA nodes it also
measures where weights are read fastest; PELTON_NUMA=local|interleave overrides the result. Neither
changes a bit of an answer.

One newline at the end of a prompt from standard input is removed, because the shell adds it.
Text goes to stdout, statistics to stderr. Exit codes: 0 done, 2 bad input, 1 other failure,
130 after Ctrl-C.";

const SERVE_HELP_END: &str = "\
Examples:
  pelton serve
  pelton serve -m ./my-model --host 0.0.0.0 --port 8080
  pelton serve -m BAAI/bge-small-en-v1.5                 POST /v1/embeddings
  pelton serve --config serve.yaml                       tenants and API keys
  pelton serve --config serve.yaml --check-config        print the resulting settings
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
       -d '{\"model\": \"story\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

The first start with a large model measures this machine for up to a second and saves the best tile
sizes in ~/.cache/pelton/tuning.json; PELTON_TUNING=off turns that off. With several NUMA nodes it also
measures where weights are read fastest; PELTON_NUMA=local|interleave overrides the result. Neither
changes a bit of an answer.

SIGTERM or Ctrl-C finishes the running requests and exits; a second one exits at once.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate text from a prompt, or chat in the terminal
    #[command(after_help = RUN_HELP_END)]
    Run(Box<RunArgs>),
    /// Serve a model over an OpenAI-compatible HTTP interface
    #[command(after_help = SERVE_HELP_END)]
    Serve(Box<ServeArgs>),
    /// Make, list and revoke the API keys of a key file
    #[command(subcommand, after_help = key::HELP_END)]
    Key(KeyCommand),
    /// Show a running server in the terminal: requests, tokens per second, times, memory
    #[command(after_help = top::HELP_END)]
    Top(TopArgs),
    /// Report requests and tokens per day, key, tenant and model
    #[command(after_help = usage::HELP_END)]
    Usage(UsageArgs),
    /// Download a model from the Hugging Face hub
    #[command(after_help = models::PULL_HELP_END)]
    Pull(PullArgs),
    /// List the models on this machine, also those of Ollama and llama.cpp
    List(ListArgs),
    /// Show where a model is from, where it lies, and what it is
    Show(ShowArgs),
    /// Remove downloaded models
    Rm(RmArgs),
    /// Compute vectors of texts, or how similar the texts are
    #[command(after_help = embed::HELP_END)]
    Embed(Box<EmbedArgs>),
    /// Answer a file of requests, and go on where an earlier run ended
    #[command(after_help = batch::HELP_END)]
    Batch(Box<BatchArgs>),
    /// Describe a model: architecture, size, memory, tokenizer
    Inspect(InspectArgs),
    /// Plan a model before its weights are there: memory, speed and cost, here or on other machines
    #[command(after_help = plan::HELP_END)]
    Plan(PlanArgs),
    /// Record and measure this machine, and say what limits inference on it
    #[command(after_help = doctor::HELP_END)]
    Doctor(DoctorArgs),
    /// Write a model as a GGUF file: from a folder, in another format, or in several parts
    #[command(after_help = convert::HELP_END)]
    Convert(ConvertArgs),
    /// Write a smaller model: a folder in the layout of GPTQ or AWQ
    #[command(after_help = quantize::HELP_END)]
    Quantize(QuantizeArgs),
    /// Score a text: perplexity, and the distance from a reference model
    #[command(after_help = eval::HELP_END)]
    Eval(EvalArgs),
    /// Print raw logits as JSON lines, to compare with another implementation
    Logits(LogitsArgs),
    /// Turn lines of JSON strings into token ids and back
    Tokenize(TokenizeArgs),
    /// Take answers apart into text, thoughts and tool calls
    #[command(after_help = parse_tools::HELP_END)]
    ParseTools(ParseToolsArgs),
    /// Measure speed on this machine, and compare it with what the machine can do
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print the completions of a shell
    #[command(after_help = reference::COMPLETIONS_HELP_END)]
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder, or print all help as Markdown
    Man(ManArgs),
    /// Print the OpenAPI document of the server, as `/openapi.json` has it
    Openapi,
}

/// Flags of `pelton run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The text to continue or to answer; `-` reads standard input; none in a terminal starts a chat
    pub(crate) prompt: Option<String>,
    /// Where the model is.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Answer the prompt as a chat message (default where a model has a chat template, except
    /// for a single prompt to the model inside the binary)
    #[arg(long, conflicts_with = "raw", help_heading = "Prompt")]
    chat: bool,
    /// Continue the prompt as it stands, without a chat template
    #[arg(long, help_heading = "Prompt")]
    raw: bool,
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "tokens"], help_heading = "Prompt")]
    pub(crate) system: Option<String>,
    /// How the conversation is laid out.
    #[command(flatten)]
    template: TemplateArgs,
    /// Token ids instead of text, such as 1,2,3; no special tokens are added
    #[arg(
        long,
        value_name = "IDS",
        conflicts_with_all = ["prompt", "chat"],
        value_parser = TokenListParser,
        help_heading = "Prompt"
    )]
    tokens: Option<TokenList>,
    /// When an answer ends.
    #[command(flatten)]
    pub(crate) ends: EndArgs,
    /// The form of the answer.
    #[command(flatten)]
    pub(crate) form: FormArgs,
    /// Tools and thoughts.
    #[command(flatten)]
    pub(crate) tools: ToolArgs,
    /// How answers are taken apart.
    #[command(flatten)]
    answers: AnswerArgs,
    /// How tokens are chosen.
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// How the best answer is searched.
    #[command(flatten)]
    pub(crate) beams: BeamArgs,
    /// How tokens are drafted.
    #[command(flatten)]
    spec: SpecArgs,
    /// One JSON object on stdout: tokens, text, finish_reason, usage, timings
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Measure the memory bandwidth afterwards (about half a second) and report the share in use
    #[arg(long, help_heading = "Output")]
    pub(crate) bandwidth: bool,
    /// Print no statistics
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Colours, weights and Markdown in answers
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = "Output")]
    pub(crate) color: Color,
    /// Whether the prompts of a chat are computed only once.
    #[command(flatten)]
    cache: CacheArgs,
}

impl RunArgs {
    /// The model and how it is loaded and run.
    ///
    /// # Errors
    ///
    /// Names the flags that contradict each other.
    pub(crate) fn chosen(&self) -> failure::Result<Chosen> {
        let mut chosen = self.model.chosen();
        self.template.lay_over(&mut chosen);
        self.answers.lay_over(&mut chosen);
        self.spec.lay_over(&mut chosen);
        self.cache.lay_over(&mut chosen);
        // Token ids are continued by models without a tokenizer, too.
        chosen.llm.needs_text = self.tokens.is_none();
        // One conversation at a time needs the keys and values of one, a search those of its beams.
        chosen.llm.choices.max_running = self.beams.width().unwrap_or(1);
        chosen.resolve()
    }

    /// The mode that the flags ask for; token ids are already laid out.
    pub(crate) fn asked_mode(&self) -> Option<Mode> {
        match (self.chat || self.tools.is_set(), self.raw || self.tokens.is_some()) {
            (true, _) => Some(Mode::Chat),
            (_, true) => Some(Mode::Raw),
            // Instructions and templates make sense only in a conversation.
            _ => (self.system.is_some() || self.template.is_given()).then_some(Mode::Chat),
        }
    }

    /// Whether a chat template is chosen for a text that is continued without one.
    pub(crate) fn has_idle_template(&self) -> bool {
        self.asked_mode() == Some(Mode::Raw) && self.template.is_given()
    }

    /// The ids of `--tokens`.
    pub(crate) fn tokens(&self) -> Option<&[TokenId]> {
        self.tokens.as_ref().map(|list| list.0.as_slice())
    }
}

/// Flags of `pelton inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// Folder, .gguf file or hub id (owner/name) [default: PELTON_MODEL, else the small model inside
    /// the binary]
    #[arg(conflicts_with = "model_flag")]
    model: Option<String>,
    /// The model, spelled as in other commands
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    model_flag: Option<String>,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Load the weights too, and report time, peak memory and bytes read
    #[arg(long)]
    pub(crate) load: bool,
    /// Storage of keys, values and states, for the memory that they take.
    #[command(flatten)]
    kv: KvArgs,
    /// Activations that share a scale.
    #[command(flatten)]
    activations: ActivationArgs,
    /// The type that weights are rounded to.
    #[command(flatten)]
    rounding: RoundingArgs,
    /// Tokens of context to compute the memory for [default: the model's whole context]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<NonZeroUsize>,
    /// Requests of that context at the same time
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) requests: NonZeroUsize,
    /// Host memory for swapped keys and values
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub(crate) swap_mib: u32,
}

impl InspectArgs {
    /// The value of `--activation-group`.
    pub(crate) fn activation_group(&self) -> ActivationGroup {
        self.activations.chosen().llm.activation_group
    }

    /// The value of `--quantize`.
    pub(crate) fn quantize(&self) -> Option<RoundTo> {
        self.rounding.chosen().llm.quantize
    }

    /// The value of `--kv-dtype`.
    pub(crate) fn kv_dtype(&self) -> KvDtype {
        self.kv.chosen().llm.kv_dtype.unwrap_or(KvDtype::Bf16)
    }

    /// The value of `--state-dtype`.
    pub(crate) fn state_dtype(&self) -> StateDtype {
        self.kv.chosen().llm.state_dtype
    }

    /// The model named, whichever way.
    pub(crate) fn model(&self) -> Option<String> {
        let named = self.model_flag.as_ref().or(self.model.as_ref()).cloned();
        // Read here: as a flag's own default it would contradict the other way of naming.
        named.or_else(|| std::env::var("PELTON_MODEL").ok())
    }
}

/// Flags of `pelton logits`.
#[derive(Args, Debug)]
pub(crate) struct LogitsArgs {
    /// Where the model is.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Token ids of the prompt, such as 1,2,3
    #[arg(long, value_name = "IDS", value_parser = TokenListParser)]
    tokens: TokenList,
    /// Largest logits printed per position
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// Print every position instead of the last one
    #[arg(long)]
    pub(crate) all: bool,
}

impl LogitsArgs {
    /// The ids of `--tokens`.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens.0
    }
}

/// Flags of `pelton tokenize`.
#[derive(Args, Debug)]
pub(crate) struct TokenizeArgs {
    /// Folder (with at least the tokenizer's files), .gguf file or hub id [default: embedded]
    #[arg(short, long, env = "PELTON_MODEL")]
    pub(crate) model: Option<String>,
    /// Add no special tokens
    #[arg(long, conflicts_with_all = ["decode", "chat"])]
    pub(crate) no_special: bool,
    /// Read arrays of ids from lines; print JSON strings
    #[arg(long, conflicts_with = "chat")]
    pub(crate) decode: bool,
    /// Read objects with `messages` and other template arguments from lines; print `text` and `ids`
    #[arg(long)]
    pub(crate) chat: bool,
    /// How the messages are laid out.
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
}

/// A comma-separated list of ids; a type of its own because clap reads `Vec` as a repeated flag.
#[derive(Clone, Debug)]
struct TokenList(Vec<TokenId>);

#[derive(Clone)]
struct TokenListParser;

impl clap::builder::TypedValueParser for TokenListParser {
    type Value = TokenList;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let parse = |text: &str| crate::prompt::parse_tokens(text).map(TokenList);
        parse.parse_ref(command, arg, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let words = ["pelton", "run"].into_iter().chain(words.iter().copied());
        match Cli::try_parse_from(words)?.command {
            Command::Run(args) => Ok(*args),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_dash_and_a_leading_blank_are_prompts() {
        assert_eq!(run(&["-"]).expect("parses").prompt.as_deref(), Some("-"));
        assert_eq!(run(&[" x"]).expect("parses").prompt.as_deref(), Some(" x"));
    }

    #[test]
    fn contradictions_are_errors() {
        let contradictions: [&[&str]; 5] = [
            &["--chat", "--raw", "x"],
            &["--tokens", "1", "x"],
            &["--tokens", "1", "--chat"],
            &["--raw", "--system", "s", "x"],
            &["--max-tokens", "0", "x"],
        ];
        for words in contradictions {
            run(words).expect_err("a contradiction");
        }
    }

    #[test]
    fn flags_decide_the_mode() {
        let table: [(&[&str], Option<Mode>); 5] = [
            (&["x"], None),
            (&["--chat", "x"], Some(Mode::Chat)),
            (&["--raw", "x"], Some(Mode::Raw)),
            (&["--system", "s", "x"], Some(Mode::Chat)),
            (&["--tokens", "1,2"], Some(Mode::Raw)),
        ];
        for (words, expected) in table {
            assert_eq!(run(words).expect("parses").asked_mode(), expected, "{words:?}");
        }
    }

    #[test]
    fn a_packed_cache_is_beside_the_model_or_in_a_folder() {
        use pelton_model::PackedCache;
        let table: [(&[&str], Option<PackedCache>); 4] = [
            (&["x"], None),
            (&["--packed-cache", "x"], Some(PackedCache::Beside)),
            (&["--packed-cache=dir", "x"], Some(PackedCache::Folder("dir".into()))),
            (&["--packed-cache=./beside", "x"], Some(PackedCache::Folder("./beside".into()))),
        ];
        for (words, expected) in table {
            let args = run(words).expect("parses");
            assert_eq!(args.model.chosen().llm.packed_cache, expected, "{words:?}");
            assert_eq!(args.prompt.as_deref(), Some("x"), "{words:?}");
        }
    }

    #[test]
    fn every_flag_and_command_is_explained() {
        let root = Cli::command();
        let mut commands: Vec<&clap::Command> = root.get_subcommands().collect();
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
