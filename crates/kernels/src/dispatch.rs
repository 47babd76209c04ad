//! Run-time choice of the instruction set.
//!
//! ```text
//!            KERNELS (private, best first)         each entry points to one table per module
//!  amx        -> matmul::AMX  attention::AMX, the rest of avx512
//!  avx512vnni -> matmul::AVX512VNNI  attention::AVX512VNNI, the rest of avx512
//!  avx512     -> matmul::AVX512  quantize::..  rows::AVX512  attention::AVX512  state::AVX512
//!  avxvnni    -> matmul::AVXVNNI, the rest of avx2
//!  avx2       -> matmul::AVX2    ...
//!  scalar     -> matmul::SCALAR  ...                     the specification
//! ```
//!
//! A module that adds an operation adds a field to its own `Table`, not here.
//!
//! `avx2` promises the target features `avx2,fma,f16c`; `avxvnni` adds `avxvnni` to them, and
//! `avx512` adds `avx512f,avx512bw,avx512vl,avx512dq`, to which `avx512vnni` adds itself, and `amx`
//! the tile registers with their products of bf16 and bytes. No kernel may use more than its entry promises.

use std::fmt;
use std::sync::OnceLock;

use crate::ceilings;
use crate::ops::{attention, matmul, quantize, rows, state};

/// One implementation of every kernel, chosen once at start-up.
#[derive(Debug)]
pub struct Kernels {
    /// Name shown in logs and benches and accepted by `PELTON_KERNELS`, for example `"avx2"`.
    pub name: &'static str,
    is_supported: fn() -> bool,
    pub(crate) matmul: &'static matmul::Table,
    pub(crate) quantize: &'static quantize::Table,
    pub(crate) ceilings: &'static ceilings::Table,
    #[allow(dead_code)]
    pub(crate) rows: &'static rows::Table,
    #[allow(dead_code)]
    pub(crate) attention: &'static attention::Table,
    pub(crate) state: &'static state::Table,
}

/// All implementations compiled into this binary, best first.
static KERNELS: &[Kernels] = &[
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "amx",
        is_supported: || has_avx512vnni() && crate::simd::tiles::are_supported(),
        matmul: &matmul::AMX,
        quantize: &quantize::AVX512,
        ceilings: &ceilings::AMX,
        rows: &rows::AVX512,
        attention: &attention::AMX,
        state: &state::AVX512,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512vnni",
        is_supported: has_avx512vnni,
        matmul: &matmul::AVX512VNNI,
        quantize: &quantize::AVX512,
        ceilings: &ceilings::AVX512VNNI,
        rows: &rows::AVX512,
        attention: &attention::AVX512VNNI,
        state: &state::AVX512,
    },
    #[cfg(all(test, target_arch = "x86_64"))]
    Kernels {
        name: "avx512-bf16",
        is_supported: || {
            has_avx512vnni()
                && is_x86_feature_detected!("avx512bf16")
                && is_x86_feature_detected!("avx512vbmi")
        },
        matmul: &matmul::AVX512_BF16,
        quantize: &quantize::AVX512,
        ceilings: &ceilings::AVX512,
        rows: &rows::AVX512,
        attention: &attention::AVX512_BF16,
        state: &state::AVX512,
    },
    #[cfg(all(test, target_arch = "x86_64"))]
    Kernels {
        name: "avx512-without-bf16",
        is_supported: has_avx512vnni,
        matmul: &matmul::AVX512_NO_BF16,
        quantize: &quantize::AVX512,
        ceilings: &ceilings::AVX512,
        rows: &rows::AVX512,
        attention: &attention::AVX512,
        state: &state::AVX512,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512",
        is_supported: has_avx512,
        matmul: &matmul::AVX512,
        quantize: &quantize::AVX512,
        ceilings: &ceilings::AVX512,
        rows: &rows::AVX512,
        attention: &attention::AVX512,
        state: &state::AVX512,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avxvnni",
        is_supported: || has_avx2() && is_x86_feature_detected!("avxvnni"),
        matmul: &matmul::AVXVNNI,
        quantize: &quantize::AVX2,
        ceilings: &ceilings::AVXVNNI,
        rows: &rows::AVX2,
        attention: &attention::AVX2,
        state: &state::AVX2,
    },
    // The code of `avxvnni` with the encoding of AVX-512, so that tests reach it on more machines.
    #[cfg(all(test, target_arch = "x86_64"))]
    Kernels {
        name: "avxvnni-by-avx512",
        is_supported: has_avx512vnni,
        matmul: &matmul::AVXVNNI_BY_AVX512,
        quantize: &quantize::AVX2,
        ceilings: &ceilings::AVX2,
        rows: &rows::AVX2,
        attention: &attention::AVX2,
        state: &state::AVX2,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx2",
        is_supported: has_avx2,
        matmul: &matmul::AVX2,
        quantize: &quantize::AVX2,
        ceilings: &ceilings::AVX2,
        rows: &rows::AVX2,
        attention: &attention::AVX2,
        state: &state::AVX2,
    },
    Kernels {
        name: "scalar",
        is_supported: || true,
        matmul: &matmul::SCALAR,
        quantize: &quantize::SCALAR,
        ceilings: &ceilings::SCALAR,
        rows: &rows::SCALAR,
        attention: &attention::SCALAR,
        state: &state::SCALAR,
    },
];

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512vnni() -> bool {
    has_avx512() && is_x86_feature_detected!("avx512vnni")
}

impl Kernels {
    /// The kernels named by `PELTON_KERNELS`, or else the best this CPU supports.
    ///
    /// The environment is read once; later calls return the same answer.
    ///
    /// # Errors
    ///
    /// When the variable names kernels that do not exist or that this CPU cannot run.
    pub fn get() -> Result<&'static Self, UnknownKernels> {
        static CHOICE: OnceLock<Result<&'static Kernels, UnknownKernels>> = OnceLock::new();
        CHOICE
            .get_or_init(|| match std::env::var_os("PELTON_KERNELS") {
                Some(name) if !name.is_empty() => {
                    let name = name.to_string_lossy();
                    Self::by_name(&name).ok_or_else(|| UnknownKernels { name: name.into() })
                }
                _ => Ok(Self::best()),
            })
            .clone()
    }

    /// Whether bf16 products are computed from pairs of bf16 and not from floats; the results are
    /// the same.
    pub fn uses_bf16_dot(&self) -> bool {
        self.matmul.bf16.as_ref().is_some_and(|kernel| (kernel.is_used)())
    }

    /// The best kernels this CPU supports, whatever the environment says.
    pub fn best() -> &'static Self {
        Self::available().next().expect("invariant: scalar is always available")
    }

    /// Iterates over the kernels this CPU supports, best first; `scalar` is always the last.
    pub fn available() -> impl Iterator<Item = &'static Self> {
        KERNELS.iter().filter(|kernels| (kernels.is_supported)())
    }

    /// The kernels called `name`, or `None` when there are none or this CPU cannot run them.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        Self::available().find(|kernels| kernels.name == name)
    }
}

/// `PELTON_KERNELS` names kernels that this machine cannot run.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownKernels {
    /// The value of the variable.
    pub name: String,
}

impl fmt::Display for UnknownKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Kernels::available().map(|kernels| kernels.name).collect();
        write!(f, "PELTON_KERNELS={:?}: this CPU can run {}", self.name, names.join(", "))
    }
}

impl std::error::Error for UnknownKernels {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_there_and_last() {
        assert_eq!(Kernels::available().last().expect("scalar").name, "scalar");
    }

    #[test]
    fn an_unknown_name_is_refused_and_the_message_lists_what_there_is() {
        assert!(Kernels::by_name("avx1024").is_none());
        let message = UnknownKernels { name: "avx1024".into() }.to_string();
        assert!(message.contains("avx1024") && message.contains("scalar"), "{message}");
    }

    #[test]
    fn every_available_kernel_is_found_by_its_name() {
        for kernels in Kernels::available() {
            assert!(std::ptr::eq(Kernels::by_name(kernels.name).expect("named"), kernels));
        }
    }
}
