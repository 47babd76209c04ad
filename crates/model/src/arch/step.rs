//! The memory of one step, estimated before the first.

use super::ArchSpec;

impl ArchSpec {
    /// Bytes of a step of `n_rows` tokens with the logits of `n_logits` of them, a little more than
    /// are used.
    ///
    /// Buffers grow with the largest step so far, where a refusal could not be answered any more;
    /// so a load asks for these bytes once, and gives them back.
    pub fn step_bytes(&self, n_rows: usize, n_logits: usize) -> usize {
        /// The residual stream, its norms, and the outputs of mixers.
        const HIDDEN_BUFFERS: usize = 8;
        /// Rows are kept as floats, and in the form that a product reads.
        const FORMS: usize = 2;
        let widest = |width: &dyn Fn(&super::LayerSpec) -> usize| {
            self.layers.iter().map(width).max().unwrap_or(0)
        };
        let attention = widest(&|layer| layer.mixer.query_width().max(2 * layer.mixer.out_width()));
        // Gates, ups and their product.
        let channels = widest(&|layer| layer.mlp.hidden_width().saturating_mul(3));
        let inputs = self.layer_inputs.map_or(0, |own| own.width * (3 * self.layers.len() + 2));
        let per_row = HIDDEN_BUFFERS * self.hidden_size + 2 * attention + channels + inputs;
        let per_row = (per_row + self.stream_row_elements()) * FORMS;
        let rows = per_row.saturating_mul(n_rows);
        let logits = self.vocab_size.saturating_mul(n_logits);
        rows.saturating_add(logits).saturating_mul(size_of::<f32>())
    }
}
