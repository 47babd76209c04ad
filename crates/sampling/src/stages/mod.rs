//! Truncations in stages: each looks at the tokens that the one before it left.
//!
//! ```text
//! processed logits ──▶ candidates ──▶ stage ──▶ stage ──▶ ... ──▶ weights ──▶ one draw
//!                      every possible token, then fewer           exp((l - max) / temperature)
//! ```
//!
//! Only requests that ask for more than temperature, top-k, top-p and min-p in this order come here;
//! the sampler has a faster way for the others. A stage that leaves few tokens makes the rest cheap:
//! the stages after it look at these alone.
//!
//! Each stage measures probabilities among the candidates, with the temperature so far: a stage that
//! comes before the temperature sees the model's own. Every truncation leaves the likeliest token,
//! and as many as `min_keep` asks for where there are that many. Sums are f64 in the order of the
//! candidates, which is that of the ids until a stage sorts them; so a row and its parameters give
//! the same bits everywhere.
//!
//! | stage | file | definition |
//! |---|---|---|
//! | temperature, dynamic | `dynatemp.rs` | kalomaze, 2023 |
//! | top-n-sigma | `top_n_sigma.rs` | Tang et al., 2024 |
//! | top-k, top-p, min-p | `candidates.rs` | Holtzman et al., ICLR 2020; Nguyen et al., 2024 |
//! | typical-p | `typical.rs` | Meister et al., TACL 2023 |
//! | XTC | `xtc.rs` | p-e-w, 2024 |
//! | Mirostat 1 and 2 | `mirostat.rs` | Basu et al., ICLR 2021 |

mod candidates;
mod dynatemp;
mod mirostat;
mod plan;
mod top_n_sigma;
mod typical;
mod xtc;

pub(crate) use candidates::Candidates;
pub(crate) use mirostat::MirostatState;
pub(crate) use plan::{Plan, Staged};
