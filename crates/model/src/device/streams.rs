//! Operations on residual streams side by side: see [`Streams`](crate::arch::Streams).
//!
//! The streams of a row follow each other in one buffer, `[m, n * hidden]`.

use super::Device;

/// How one layer mixes the streams of a step.
#[derive(Debug)]
pub struct StreamOp<'a, D: Device> {
    /// Streams.
    pub n: usize,
    /// The stream that layers read.
    pub active: usize,
    /// Coefficients of each row: `[m, n * n]` for predictions, `[m, n]` for corrections.
    pub coefficients: &'a D::Buf,
}

/// The operations of models with several residual streams.
///
/// Shapes: `streams` is `[m, n * hidden]`, every other buffer `[m, hidden]`.
pub trait StreamOps: Device {
    /// Copies rows to stream `nth`. The first one to be put is stream 0, which sets the number of rows.
    fn put_stream(&mut self, x: &Self::Buf, nth: usize, streams: &mut Self::Buf);

    /// Copies the rows of stream `nth`.
    fn take_stream(&mut self, streams: &Self::Buf, nth: usize, out: &mut Self::Buf);

    /// Scales each row to the root mean square of the same row of `target`, as if its own were at least
    /// `sqrt(1e-5)`.
    fn match_rms(&mut self, x: &mut Self::Buf, target: &Self::Buf);

    /// `x = tanh(x)` of a few elements.
    fn tanh(&mut self, x: &mut Self::Buf);

    /// `s[i] += Σ_j c[i, j] s[j]`, and the active one to `x`.
    fn predict_streams(
        &mut self,
        op: &StreamOp<'_, Self>,
        streams: &mut Self::Buf,
        x: &mut Self::Buf,
    );

    /// `s[i] += (c[i] + 1) (x - s[active])`, and the active one, times `scale`, to `out`.
    fn correct_streams(
        &mut self,
        op: &StreamOp<'_, Self>,
        scale: Option<&Self::Vector>,
        x: &Self::Buf,
        streams: &mut Self::Buf,
        out: &mut Self::Buf,
    );

    /// Adds `x` to all streams but the first.
    fn add_to_streams(&mut self, x: &Self::Buf, streams: &mut Self::Buf);
}
