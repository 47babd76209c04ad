//! The logits that some files compute of a golden model's tokens.

use pelton_base::limits::BLOCK_TOKENS;
use pelton_model::{
    BlockTables, Compute, ForwardInput, ForwardSequence, Lane, LoadOptions, ModelError, ModelFiles,
    load_cpu,
};

use super::GoldenDecoder;

impl GoldenDecoder {
    /// The rows of [`logits`](Self::logits) that a model of the same shape computes in f32 on one
    /// thread.
    ///
    /// # Errors
    ///
    /// As [`load_cpu`].
    pub fn rows_of(&self, files: &ModelFiles) -> Result<Vec<Vec<f32>>, ModelError> {
        let options = LoadOptions {
            compute: Compute::F32,
            n_threads: Some(1),
            max_context: self.max_context,
            ..LoadOptions::default()
        };
        let mut decoder = load_cpu(files, &options)?;
        let tokens = self.tokens();
        let n_blocks = tokens.len().div_ceil(BLOCK_TOKENS);
        let mut kv = decoder.new_kv(n_blocks, BLOCK_TOKENS);
        let n_groups = decoder.spec().n_kv_groups();
        let tables: Vec<u32> = (0..n_groups).flat_map(|_| 0..n_blocks as u32).collect();
        let sequence = ForwardSequence {
            rows: 0..tokens.len(),
            n_source: 0,
            first_position: 0,
            block_tables: BlockTables::new(&tables, n_groups),
            lane: decoder.spec().is_recurrent().then(|| Lane::at(0, 0)),
            tree: None,
        };
        let all: Vec<usize> = (0..tokens.len()).collect();
        let input = ForwardInput { tokens: &tokens, sequences: &[sequence], logits_rows: &all };
        let mut logits = Vec::new();
        decoder.forward(&mut kv, &input, &mut logits);
        let rows: Vec<_> =
            logits.chunks(logits.len() / tokens.len()).map(<[f32]>::to_vec).collect();
        Ok(self.columns.of_all(&rows))
    }
}
