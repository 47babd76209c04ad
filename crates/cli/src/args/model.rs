//! Flags that choose a model and how it computes; the same for every command that loads one.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use pelton_model::{KvDtype, PackedCache};

use super::Choice;

/// The value of `--packed-cache` without one.
const BESIDE: &str = "beside";

/// Which model, on how many threads, in what arithmetic.
#[derive(Args, Debug)]
pub(crate) struct ModelArgs {
    /// Folder, .gguf file or hub id (owner/name) [default: the small model inside the binary]
    #[arg(short, long, env = "PELTON_MODEL")]
    pub(crate) model: Option<String>,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, env = "PELTON_THREADS", value_name = "N", help_heading = "Machine")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Arithmetic: `auto` uses the fast kernels of the weights' format, `f32` widens everything
    /// [default: auto]
    #[arg(long, env = "PELTON_COMPUTE", value_enum, help_heading = "Machine")]
    pub(crate) compute: Option<ComputeArg>,
    /// How keys and values are kept: fewer bytes hold longer contexts, less exactly [default: bf16,
    /// or f32 with --compute f32]
    #[arg(
        long,
        env = "PELTON_KV_DTYPE",
        value_name = "TYPE",
        value_parser = kv_dtype_parser(),
        help_heading = "Machine"
    )]
    pub(crate) kv_dtype: Option<KvDtype>,
    /// Most tokens of one conversation [default: what the model was trained for]
    #[arg(long, env = "PELTON_MAX_CONTEXT", value_name = "N", help_heading = "Machine")]
    pub(crate) max_context: Option<NonZeroUsize>,
    /// Keep the weights as packed for the kernels, beside the model or in DIR: the next start maps
    /// them, which takes a fraction of the time; as many bytes on the disk as the weights take
    #[arg(
        long,
        env = "PELTON_PACKED_CACHE",
        value_name = "DIR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = BESIDE,
        help_heading = "Machine"
    )]
    pub(crate) packed_cache: Option<OsString>,
}

impl ModelArgs {
    /// The value of `--threads`.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.threads.map(NonZeroUsize::get)
    }

    /// The value of `--max-context`, in tokens.
    pub(crate) fn max_context(&self) -> Option<usize> {
        self.max_context.map(NonZeroUsize::get)
    }

    /// The value of `--packed-cache`; an empty one, as of an empty variable, is none.
    pub(crate) fn packed_cache(&self) -> Option<PackedCache> {
        let folder = self.packed_cache.as_deref().filter(|value| !value.is_empty())?;
        Some(match folder == OsStr::new(BESIDE) {
            true => PackedCache::Beside,
            false => PackedCache::Folder(folder.into()),
        })
    }
}

/// Reads the name of a type of keys and values; knows all of them, for the help.
pub(crate) fn kv_dtype_parser() -> impl TypedValueParser<Value = KvDtype> {
    PossibleValuesParser::new(KvDtype::ALL.map(KvDtype::name))
        .try_map(|name| name.parse::<KvDtype>())
}

impl Choice for KvDtype {
    fn all() -> &'static [Self] {
        &Self::ALL
    }

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Choice for ComputeArg {
    fn all() -> &'static [Self] {
        &[Self::Auto, Self::F32]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
        }
    }
}

/// Values of `--compute`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ComputeArg {
    // Plain comments: doc comments would spread the help over three lines.
    // The fast kernels of the weights' format.
    Auto,
    // Everything in 32-bit floating point: slow, for comparisons.
    F32,
}
