//! The layers of a loaded model: packed weights, whatever device holds them.

mod linear;
mod mixer;
mod mlp;

pub use linear::{Linear, Norm, Piece, Shard};
pub use mixer::{AttentionWeights, LatentWeights, MixerWeights};
pub use mlp::{MlpWeights, MoeWeights, SharedWeights, TwoLayers};
