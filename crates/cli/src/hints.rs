//! Advice about a model that cannot be found, downloaded or loaded.

use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;

use clap::CommandFactory;
use pelton_llm::hub::HubError;
use pelton_llm::{KvShortage, LlmError, LlmOptions, MemoryUse, stores};
use pelton_model::{Compute, KvDtype, ModelError, ModelFiles, RoundTo};
use pelton_tensor::{MemoryLeft, TensorError};
use pelton_text::TextError;

use crate::args::Cli;
use crate::failure::Failure;
use crate::flags::table;
use crate::stats::bytes;
use crate::usage::nearest;

/// The error as a line that names the fix, where it is one that has a known fix.
pub(crate) fn explained(error: &(dyn Error + 'static)) -> Failure {
    let failure = Failure::of(error);
    if let Some(error) = error.downcast_ref::<LlmError>() {
        return in_flags(error).unwrap_or(failure).maybe_hint(for_llm(error));
    }
    if let Some(error) = error.downcast_ref::<ModelError>() {
        return failure.maybe_hint(for_model(error));
    }
    if let Some(error) = error.downcast_ref::<HubError>() {
        return failure.maybe_hint(for_hub(error));
    }
    failure
}

/// The flag of `run` or `embed` that sets a field of requests.
fn flag_of_field(field: &str) -> Option<String> {
    let flag = match field {
        "stop_token_ids" => "stop-token".to_owned(),
        "prompt_name" => "prompt".to_owned(),
        field => field.replace('_', "-"),
    };
    let root = Cli::command();
    let has = |command: &str| {
        let flags =
            root.find_subcommand(command).into_iter().flat_map(clap::Command::get_arguments);
        flags.filter_map(clap::Arg::get_long).any(|long| long == flag)
    };
    (has("run") || has("embed")).then(|| format!("--{flag}"))
}

/// The message with flags in place of the library's names, where it has some.
fn in_flags(error: &LlmError) -> Option<Failure> {
    let message = match error {
        LlmError::Option { option, why } => format!("`{option}`: {why}"),
        LlmError::TokenOutOfRange { .. } => error.to_string().replacen("`prompt`", "`tokens`", 1),
        LlmError::Param(error) => {
            let flag = flag_of_field(error.param).unwrap_or_else(|| error.param.to_owned());
            let message = error.to_string();
            let named = message.replacen(&format!("`{}`", error.param), &format!("`{flag}`"), 1);
            return Some(Failure::new(named));
        }
        _ => return None,
    };
    let words = message.split('`').map(|word| match word {
        "tokens" => "--tokens".to_owned(),
        "logit_bias" | "stop_token_ids" => flag_of_field(word).unwrap_or_else(|| word.to_owned()),
        word => {
            let flag = table().find(|flag| flag.key() == word);
            flag.map_or_else(|| word.to_owned(), |flag| format!("--{}", flag.name))
        }
    });
    Some(Failure::new(words.collect::<Vec<_>>().join("`")))
}

fn for_llm(error: &LlmError) -> Option<String> {
    let hint = match error {
        LlmError::UnknownModel { name, .. } => return Some(for_name(name)),
        LlmError::Hub(error) => return for_hub(error),
        LlmError::Model(error) => return for_model(error),
        LlmError::Text(TextError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            "the folder needs the files of its tokenizer; `pelton run --tokens 1,2,3` needs none"
        }
        LlmError::TokenOutOfRange { .. } => "`pelton tokenize` shows the ids of a text",
        LlmError::ContextLength { .. } => {
            "shorten the prompt, or raise `--max-context` as far as the model reaches"
        }
        LlmError::SourceLength { .. } => {
            "shorten the prompt, or raise `--max-batch-tokens` and `--max-context` as far as the model \
             reads"
        }
        LlmError::NoTemplate { .. } => "`--raw` continues a text without a template",
        LlmError::NotGenerative { .. } => {
            "`pelton embed` computes its vectors; where it is a classifier, `pelton serve` ranks and labels"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

fn for_model(error: &ModelError) -> Option<String> {
    let hint = match error {
        ModelError::Tensor(error) if is_git_pointer(error.file()) => GIT_POINTER,
        ModelError::Tensor(TensorError::Malformed { file, .. }) if file.is_dir() => {
            "copy or download the weights into the folder, too"
        }
        ModelError::Tensor(TensorError::Malformed { .. }) => DAMAGED,
        ModelError::Rounded { file, to, .. } => {
            // Neither the model inside the binary nor a folder can be rounded once more.
            let is_gguf = file.extension().is_some_and(|extension| extension == "gguf");
            let way_out = match is_gguf {
                true => format!(
                    "round the file once more: `pelton convert {} OUT.gguf --format {to}`",
                    file.display()
                ),
                false => "name the checkpoint that it was made of".to_owned(),
            };
            return Some(format!("leave `--quantize` out, or {way_out}"));
        }
        ModelError::Tensor(TensorError::MissingPart { .. } | TensorError::MissingShard { .. }) => {
            "`pelton pull` fetches what is missing of a model of the hub"
        }
        ModelError::Config { file, .. } if is_git_pointer(file) => GIT_POINTER,
        ModelError::Config { source, .. } => match source.to_string() {
            why if why.contains("not valid JSON") => DAMAGED,
            why if why.contains("unknown architecture") => {
                "docs/models.md lists the families, and which of their relatives run as one of them"
            }
            _ => return None,
        },
        _ => return None,
    };
    Some(hint.to_owned())
}

const DAMAGED: &str = "the file is damaged or not whole: copy or download it again";
const GIT_POINTER: &str = "it is a pointer of git-lfs: `git lfs pull` fetches the file itself";

/// Whether a file stands for a large one that git has not fetched.
fn is_git_pointer(file: &Path) -> bool {
    let text = pelton_tensor::read_limited(file, 1024);
    text.is_ok_and(|text| text.starts_with(b"version https://git-lfs"))
}

/// The last words of a download that Ctrl-C ends.
pub(crate) fn interrupted(name: &str) -> String {
    format!(
        "interrupted: what has arrived of {name} is kept, and the same command goes on from there"
    )
}

/// A name that is in no cache.
pub(crate) fn not_here(name: &str) -> Failure {
    let known: Vec<String> = stores::list().into_iter().map(|model| model.name).collect();
    let hint = match nearest(name, known.iter().map(String::as_str)) {
        Some(known) => format!("did you mean `{known}`?"),
        None => "`pelton list` shows the models that are here".to_owned(),
    };
    Failure::new(format!("`{name}` is not on this machine")).hint(hint)
}

/// The possible meanings of a name that leads nowhere.
fn for_name(name: &str) -> String {
    if let Some(hub) = stores::hub_name(name) {
        return format!("on the hub it is `{hub}`: `pelton pull {hub}`");
    }
    if let Ok(target) = std::fs::read_link(name) {
        return format!("it is a link to `{}`, which is not there", target.display());
    }
    if let Some(file) = near_file(Path::new(name)) {
        return format!("did you mean `{file}`?");
    }
    let known: Vec<String> = stores::list().into_iter().map(|model| model.name).collect();
    if let Some(known) = nearest(name, known.iter().map(String::as_str)) {
        return format!("did you mean `{known}`?");
    }
    if name.starts_with(['.', '/', '~']) || name.contains('/') || name.ends_with(".gguf") {
        return "`pelton list` shows the models that are here".to_owned();
    }
    "a model of the hub is named owner/name, as in `-m Qwen/Qwen3-0.6B`; `pelton list` shows the \
     models that are here"
        .to_owned()
}

/// The entry of the same folder that is nearest to a path.
fn near_file(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
    let names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let near = nearest(name, names.iter().map(String::as_str))?;
    Some(path.with_file_name(near).display().to_string())
}

/// The fix where a disk is full.
const SPACE: &str = "`pelton rm` frees space; HF_HUB_CACHE names a folder on another disk";

fn for_hub(error: &HubError) -> Option<String> {
    Some(match error {
        HubError::Offline { id, partial_bytes, .. } => {
            let verb = if *partial_bytes > 0 { "goes on with it" } else { "downloads it" };
            format!(
                "without HF_HUB_OFFLINE, `pelton pull {id}` {verb}; `pelton list` shows the models \
                 that are here"
            )
        }
        HubError::Network { n_attempts: 1, .. } => {
            "without a network, `pelton list` shows the models that are here, and `pelton run` \
             alone needs none"
                .to_owned()
        }
        HubError::Network { .. } => {
            "what has arrived is kept; the same command goes on from there".to_owned()
        }
        HubError::Corrupt { .. } => {
            "the bytes were thrown away; try again, and look for a proxy that changes files if it \
             happens twice"
                .to_owned()
        }
        HubError::Busy { .. } => "wait for it, or end it".to_owned(),
        HubError::NoSpace { .. } => SPACE.to_owned(),
        HubError::BadId { .. } => "as in `Qwen/Qwen3-0.6B` or `owner/name:Q4_K_M`".to_owned(),
        HubError::Io { source, .. } => match source.kind() {
            ErrorKind::StorageFull => SPACE.to_owned(),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "HF_HUB_CACHE names another folder for models".to_owned()
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// The error of a load; where memory lacks, with the values of flags that would fit.
pub(crate) fn short_of_memory(error: LlmError, options: &LlmOptions) -> Failure {
    let hint = match (&error, error.lacks_memory_for()) {
        (LlmError::KvMemory(short), _) => for_context(short),
        (LlmError::Model(ModelError::Memory { file, available_bytes, .. }), _) => {
            for_weights(file, *available_bytes, options)
        }
        (LlmError::StepMemory { n_tokens, source }, _) => {
            for_step(*n_tokens, source.n_bytes as u64, &source.left)
        }
        (_, Some(MemoryUse::KeysAndValues)) => for_refused_pool(options, &MemoryLeft::now()),
        (_, Some(MemoryUse::Weights)) => {
            "end other programs, or take a smaller format: `pelton convert --help` lists them"
                .to_owned()
        }
        _ => return Failure::from(error),
    };
    Failure::from(error).hint(hint)
}

/// Flags with which keys and values would fit.
fn for_context(short: &KvShortage) -> String {
    let mut ways = Vec::new();
    if short.option() == "state_snapshots" {
        ways.push("fewer `--state-snapshots`".to_owned());
    }
    if short.fitting_tokens > 0 {
        ways.push(format!("`--max-context {}`", short.fitting_tokens));
    }
    // A quarter of the free memory stays for everything else.
    if short.needed_bytes <= short.available_bytes / 4 * 3 {
        ways.push(format!("`--kv-memory {}`", round_up(short.needed_bytes)));
    }
    let exact_first = short.fitting_dtypes.first();
    ways.extend(exact_first.map(|dtype: &KvDtype| format!("`--kv-dtype {dtype}`")));
    match ways.as_slice() {
        [] => "a model with fewer or narrower layers is needed".to_owned(),
        ways => format!("this fits: {}", ways.join(", or ")),
    }
}

/// Bits per weight of the formats that models are usually converted to, largest first.
const FORMATS: [(&str, f64); 6] = [
    ("q8_0", 8.5),
    ("q6_k", 6.5625),
    ("q5_k", 5.5),
    ("q4_k", 4.5),
    ("q3_k", 3.4375),
    ("q2_k", 2.625),
];
/// Memory for keys, values and steps, as a share of the weights.
const BESIDE_WEIGHTS: f64 = 1.1;

/// A format in which the weights would fit.
fn for_weights(file: &Path, available_bytes: u64, options: &LlmOptions) -> String {
    if options.compute == Compute::F32 {
        return "without `--compute f32` the weights keep their format and take less".to_owned();
    }
    if let Some((to, n_bytes)) = fitting_rounded(file, available_bytes, options) {
        return format!("`--quantize {to}` fits: the weights then take {}", bytes(n_bytes));
    }
    let parameters = ModelFiles::open(file)
        .and_then(|files| pelton_model::inspect(&files, KvDtype::Bf16))
        .map(|model| model.n_parameters as f64);
    let Ok(n) = parameters else {
        return "a smaller weight format takes less: `pelton convert --help` lists them".to_owned();
    };
    let size = |bits: f64| n * bits / 8.0;
    match FORMATS.iter().find(|(_, bits)| size(*bits) * BESIDE_WEIGHTS <= available_bytes as f64) {
        Some((format, bits)) => format!(
            "as {format} they take {} and fit: `pelton convert {} MODEL-{format}.gguf --format {format}`, \
             or name a smaller format of the hub, as in `-m owner/name:Q4_K_M`",
            bytes(size(*bits) as u64),
            file.display()
        ),
        None => {
            let most = available_bytes as f64 * 8.0 / 4.5 / BESIDE_WEIGHTS / 1e9;
            format!(
                "no format of it fits; in 4 bits, {most:.1} billion parameters do, and this model has \
                 {:.1}",
                n / 1e9
            )
        }
    }
}

/// The largest format that the weights can be rounded to while they are loaded so that they fit, and
/// their bytes.
fn fitting_rounded(
    file: &Path,
    available_bytes: u64,
    options: &LlmOptions,
) -> Option<(RoundTo, u64)> {
    let mut files = ModelFiles::open(file).ok()?;
    FORMATS.iter().find_map(|(name, _)| {
        let to = RoundTo::find(name)?;
        files.round_to(to).ok()?;
        let packed = pelton_model::packed_bytes(&files, options.max_context, options.compute);
        let n_bytes = packed.ok()?;
        (n_bytes as f64 * BESIDE_WEIGHTS <= available_bytes as f64).then_some((to, n_bytes))
    })
}

/// A longest step that fits.
fn for_step(n_tokens: usize, needed_bytes: u64, left: &MemoryLeft) -> String {
    let left = left.least().unwrap_or(0);
    // Half of what is left, because keys and values come after it.
    let fitting = n_tokens as f64 * (left as f64 / 2.0) / needed_bytes.max(1) as f64;
    let fitting = fitting as usize / 64 * 64;
    match fitting {
        0 => "smaller `--max-batch-tokens` or `--max-running` take less".to_owned(),
        n => format!("`--max-batch-tokens {n}` fits; a smaller `--max-running` takes less, too"),
    }
}

/// Sizes that fit where the system refused the pool or the store.
fn for_refused_pool(options: &LlmOptions, left: &MemoryLeft) -> String {
    let left = left.least().unwrap_or(0);
    // The pool and its alignment, and something for the steps.
    let fitting = round_down(left / 2);
    let kv = match options.kv_bytes {
        Some(asked) if asked <= left / 2 => String::new(),
        _ => format!("`--kv-memory {fitting}`"),
    };
    let swap = match options.swap_bytes {
        0 => "",
        asked if asked > left / 2 => "no `--swap-memory`, or less of it",
        _ => "less `--swap-memory`",
    };
    let ways: Vec<&str> = [kv.as_str(), swap].into_iter().filter(|way| !way.is_empty()).collect();
    match ways.as_slice() {
        [] => "smaller `--kv-memory`, `--max-context` or `--swap-memory` take less".to_owned(),
        ways => format!("this fits: {}", ways.join(", and ")),
    }
}

/// A size to type: whole MiB or GiB, at least this many bytes.
fn round_up(n_bytes: u64) -> String {
    let mib = n_bytes.div_ceil(1 << 20);
    if mib >= 10 << 10 { format!("{}GiB", mib.div_ceil(1 << 10)) } else { format!("{mib}MiB") }
}

/// A size to type: whole MiB or GiB, at most this many bytes.
fn round_down(n_bytes: u64) -> String {
    let mib = n_bytes >> 20;
    if mib >= 10 << 10 { format!("{}GiB", mib >> 10) } else { format!("{mib}MiB") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn short() -> KvShortage {
        KvShortage {
            asked_tokens: 131_072,
            needed_bytes: 16 * GIB,
            state_bytes: 0,
            kept_bytes: 0,
            room_bytes: 10 * GIB,
            is_limited: false,
            available_bytes: 20 * GIB,
            fitting_tokens: 81_920,
            fitting_dtypes: vec![KvDtype::Fp8, KvDtype::Int8],
        }
    }

    #[test]
    fn parameters_of_requests_are_named_as_flags() {
        for (param, flag) in [
            ("thinking_budget", "`--thinking-budget` must be"),
            ("dimensions", "`--dimensions` must be"),
            ("prompt_name", "`--prompt` must be"),
            ("stop_token_ids", "`--stop-token` must be"),
            ("no_such_field", "`no_such_field` must be"),
        ] {
            let error = pelton_base::ParamError { param, expected: "less", got: "9".to_owned() };
            let line = explained(&LlmError::Param(error)).line().expect("a line");
            assert!(line.contains(flag), "{line}");
        }
    }

    #[test]
    fn a_context_that_does_not_fit_names_the_flags_that_would() {
        assert_eq!(for_context(&short()), "this fits: `--max-context 81920`, or `--kv-dtype fp8`");
        let limited = KvShortage { is_limited: true, available_bytes: 40 * GIB, ..short() };
        let line = for_context(&limited);
        assert!(line.contains("`--kv-memory 16GiB`"), "{line}");
        let nothing = KvShortage { fitting_tokens: 0, fitting_dtypes: vec![], ..short() };
        assert!(for_context(&nothing).contains("narrower"), "{}", for_context(&nothing));
    }

    #[test]
    fn sizes_are_typed_as_they_are_read() {
        for n_bytes in [1, 1 << 20, (1 << 20) + 1, 9 * GIB + 5, 10 * GIB, 11 * GIB + 7] {
            let up = crate::units::parse_bytes(&round_up(n_bytes)).expect("a size");
            let down = crate::units::parse_bytes(&round_down(n_bytes)).expect("a size");
            assert!(down <= n_bytes && n_bytes <= up && up - down <= GIB, "{n_bytes}");
        }
    }

    #[test]
    fn a_step_that_does_not_fit_names_one_that_does() {
        let left = MemoryLeft { machine: Some(GIB), container: None, address_space: None };
        let line = for_step(8192, 2 * GIB, &left);
        assert!(line.contains("`--max-batch-tokens 2048`"), "{line}");
        assert!(for_step(64, 900 * GIB, &left).contains("--max-running"));
    }
}
