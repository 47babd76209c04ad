//! Flags that say which model is used, and how it reads and writes.

use pelton_llm::LogprobsMode;
use pelton_model::{ActivationGroup, Compute, KvDtype, RoundTo, StateDtype};
use pelton_parse::{
    REASONING_FORMATS, ReasoningFormat, TOOL_FORMATS, reasoning_format, tool_format,
};

use super::super::place::{Choice, place};
use super::super::{Flag, Kind, Part};

/// The thoughts stay in the answer.
const NO_FORMAT: &str = "none";

fn find_tool_format(name: &str) -> Option<&'static str> {
    tool_format(name).map(|format| format.name())
}

fn tool_formats() -> Vec<&'static str> {
    TOOL_FORMATS.iter().map(|format| format.name()).collect()
}

fn find_reasoning_format(name: &str) -> Option<&'static str> {
    match name {
        NO_FORMAT => Some(NO_FORMAT),
        name => reasoning_format(name).map(ReasoningFormat::name),
    }
}

fn reasoning_formats() -> Vec<&'static str> {
    REASONING_FORMATS.iter().map(ReasoningFormat::name).chain([NO_FORMAT]).collect()
}

/// In the order of their help.
pub(super) static MODEL: &[Flag] = &[
    Flag {
        name: "model",
        short: Some('m'),
        part: Part::Model,
        kind: Kind::Text,
        value: "MODEL",
        help: "Folder, .gguf file, hub id (owner/name, owner/name:Q4_K_M) or name of `pelton list`",
        default: "the small model inside the binary",
        place: place!(model),
    },
    Flag {
        name: "threads",
        short: None,
        part: Part::Machine,
        kind: Kind::COUNT,
        value: "N",
        help: "Threads that compute",
        default: "one per physical core that this process may use",
        place: place!(threads),
    },
    Flag {
        name: "compute",
        short: None,
        part: Part::Machine,
        kind: Kind::Names(Compute::names),
        value: "COMPUTE",
        help: "Arithmetic: `auto` uses the fast kernels of the weights' format, `f32` converts \
               all weights to 32-bit floats",
        default: "",
        place: place!(llm.compute),
    },
    Flag {
        name: "quantize",
        short: None,
        part: Part::Machine,
        kind: Kind::Names(RoundTo::names),
        value: "TYPE",
        help: "Round weights in f32, f16 or bf16 to this type while they are loaded, as `pelton \
               convert --format` does; a draft model stays as it is",
        default: "weights keep the type of their file",
        place: place!(llm.quantize),
    },
    Flag {
        name: "kv-dtype",
        short: None,
        part: Part::Machine,
        kind: Kind::Names(KvDtype::names),
        value: "TYPE",
        help: "Storage of keys and values: smaller types hold longer contexts with less precision",
        default: "bf16, or f32 with --compute f32",
        place: place!(llm.kv_dtype),
    },
    Flag {
        name: "state-dtype",
        short: None,
        part: Part::Machine,
        kind: Kind::Names(StateDtype::names),
        value: "TYPE",
        help: "Storage of the states of recurrent layers: bf16 takes half of the memory, and rounds a \
               state once in 64 tokens",
        default: "",
        place: place!(llm.state_dtype),
    },
    Flag {
        name: "activation-group",
        short: None,
        part: Part::Machine,
        kind: Kind::Names(ActivationGroup::names),
        value: "N",
        help: "Most activations that share a scale where they multiply quantized weights with scales \
               for 64 inputs or more: larger groups compute prompts faster, with less precision",
        default: "",
        place: place!(llm.activation_group),
    },
    Flag {
        name: "max-context",
        short: None,
        part: Part::Machine,
        kind: Kind::COUNT,
        value: "N",
        help: "Most tokens of one conversation; models with LongRoPE or dynamic NTK choose their frequencies \
               by it, so it changes their tokens",
        default: "the context that the model declares",
        place: place!(llm.max_context),
    },
    Flag {
        name: "packed-cache",
        short: None,
        part: Part::Machine,
        kind: Kind::Folder,
        value: "DIR",
        help: "Keep the packed weights on disk, beside the model or in DIR, so that the next start \
               maps them instead of packing again; takes as many bytes as the weights",
        default: "nothing is kept",
        place: place!(llm.packed_cache),
    },
    Flag {
        name: "chat-template",
        short: None,
        part: Part::Template,
        kind: Kind::Text,
        value: "FILE|NAME",
        help: "Chat template in place of the model's own: a Jinja file, or chatml, llama3, gemma, \
               mistral, phi3, phi4, deepseek or zephyr",
        default: "the model's own",
        place: place!(llm.chat_template),
    },
    Flag {
        name: "chat-template-kwargs",
        short: None,
        part: Part::Template,
        kind: Kind::Object,
        value: "JSON",
        help: "Arguments of the chat template, such as {\"enable_thinking\": false}",
        default: "none",
        place: place!(llm.chat_template_kwargs),
    },
    Flag {
        name: "tool-parser",
        short: None,
        part: Part::Answers,
        kind: Kind::Format(find_tool_format, tool_formats),
        value: "NAME",
        help: "Format in which the model writes tool calls, such as hermes, llama3_json or mistral; \
               `pelton parse-tools --help` lists them",
        default: "the one that the chat template shows",
        place: place!(llm.tool_parser),
    },
    Flag {
        name: "reasoning-parser",
        short: None,
        part: Part::Answers,
        kind: Kind::Format(find_reasoning_format, reasoning_formats),
        value: "NAME",
        help: "Format in which the model writes its thoughts, such as deepseek_r1 or granite; `none` \
               leaves them in the answer",
        default: "the one that the chat template shows",
        place: place!(llm.reasoning_parser),
    },
    Flag {
        name: "logprobs-mode",
        short: None,
        part: Part::Answers,
        kind: Kind::Names(LogprobsMode::names),
        value: "MODE",
        help: "Log probabilities of answers: those of the model (`raw_logprobs`), or those of the \
               distribution that tokens are drawn from, after penalties, masks, temperature and \
               truncation (`processed_logprobs`)",
        default: "",
        place: place!(llm.logprobs_mode),
    },
];
