//! Residual streams side by side on the CPU.

use pelton_kernels::{Activations, StreamRoutes};

use super::CpuDevice;
use crate::device::{StreamOp, StreamOps};

impl<'a> StreamOp<'a, CpuDevice> {
    fn routes(&self) -> StreamRoutes<'a> {
        let Self { n, active, coefficients } = *self;
        StreamRoutes { n, active, coefficients: coefficients.floats() }
    }
}

impl StreamOps for CpuDevice {
    fn put_stream(&mut self, x: &Activations, nth: usize, streams: &mut Activations) {
        let (width, row) = (x.width(), streams.width());
        let streams = streams.floats_mut(x.n_rows()).chunks_exact_mut(row);
        for (streams, x) in streams.zip(x.floats().chunks_exact(width)) {
            streams[nth * width..][..width].copy_from_slice(x);
        }
    }

    fn take_stream(&mut self, streams: &Activations, nth: usize, out: &mut Activations) {
        let (width, row) = (out.width(), streams.width());
        let outs = out.floats_mut(streams.n_rows()).chunks_exact_mut(width);
        for (out, streams) in outs.zip(streams.floats().chunks_exact(row)) {
            out.copy_from_slice(&streams[nth * width..][..width]);
        }
    }

    fn match_rms(&mut self, x: &mut Activations, target: &Activations) {
        let width = x.width();
        self.cpu.match_rms(x.floats_mut(target.n_rows()), target.floats(), width);
    }

    fn tanh(&mut self, x: &mut Activations) {
        let n_rows = x.n_rows();
        self.cpu.tanh(x.floats_mut(n_rows));
    }

    fn predict_streams(
        &mut self,
        op: &StreamOp<'_, Self>,
        streams: &mut Activations,
        x: &mut Activations,
    ) {
        let (m, width) = (streams.n_rows(), x.width());
        let x = x.floats_mut(m);
        self.cpu.predict_streams(&op.routes(), width, streams.floats_mut(m), x);
    }

    fn correct_streams(
        &mut self,
        op: &StreamOp<'_, Self>,
        scale: Option<&Vec<f32>>,
        x: &Activations,
        streams: &mut Activations,
        out: &mut Activations,
    ) {
        let m = x.n_rows();
        let (streams, out) = (streams.floats_mut(m), out.floats_mut(m));
        let scale = scale.map(Vec::as_slice);
        self.cpu.correct_streams(&op.routes(), scale, x.floats(), streams, out);
    }

    fn add_to_streams(&mut self, x: &Activations, streams: &mut Activations) {
        let streams = streams.floats_mut(x.n_rows());
        self.cpu.add_to_streams(x.floats(), x.width(), streams);
    }
}
