//! Residual streams side by side, by the formulas of their paper (Baykal et al., 2023).

use pelton_model::device::{StreamOp, StreamOps};

use super::{PlainDevice, Rows};

/// The `n` coefficients of one row.
fn coefficients(op: &StreamOp<'_, PlainDevice>, row: usize, n: usize) -> Vec<f64> {
    op.coefficients.values[row * n..][..n].iter().map(|x| f64::from(*x)).collect()
}

fn mean_square(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64
}

impl StreamOps for PlainDevice {
    fn put_stream(&mut self, x: &Rows, nth: usize, streams: &mut Rows) {
        streams.values.resize(x.n() * streams.width, 0.0);
        for (x, streams) in x.iter().zip(streams.values.chunks_exact_mut(streams.width)) {
            streams[nth * x.len()..][..x.len()].copy_from_slice(x);
        }
    }

    fn take_stream(&mut self, streams: &Rows, nth: usize, out: &mut Rows) {
        for (streams, out) in streams.iter().zip(out.reset(streams.n())) {
            out.copy_from_slice(&streams[nth * out.len()..][..out.len()]);
        }
    }

    fn match_rms(&mut self, x: &mut Rows, target: &Rows) {
        for (x, target) in x.values.chunks_exact_mut(x.width).zip(target.iter()) {
            let factor = (mean_square(target) / mean_square(x).max(1e-5)).sqrt();
            x.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
        }
    }

    fn tanh(&mut self, x: &mut Rows) {
        x.values.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32);
    }

    fn predict_streams(&mut self, op: &StreamOp<'_, Self>, streams: &mut Rows, x: &mut Rows) {
        let width = streams.width / op.n;
        let all = streams.values.chunks_exact_mut(streams.width);
        for (row, streams) in all.enumerate() {
            let (old, factors) = (streams.to_vec(), coefficients(op, row, op.n * op.n));
            for (at, out) in streams.iter_mut().enumerate() {
                let (i, column) = (at / width, at % width);
                let mixed =
                    (0..op.n).map(|j| factors[i * op.n + j] * f64::from(old[j * width + column]));
                *out = (f64::from(old[at]) + mixed.sum::<f64>()) as f32;
            }
        }
        self.take_stream(streams, op.active, x);
    }

    fn correct_streams(
        &mut self,
        op: &StreamOp<'_, Self>,
        scale: Option<&Vec<f32>>,
        x: &Rows,
        streams: &mut Rows,
        out: &mut Rows,
    ) {
        let all = streams.values.chunks_exact_mut(streams.width);
        for ((row, streams), x) in all.enumerate().zip(x.iter()) {
            let (factors, width) = (coefficients(op, row, op.n), x.len());
            let predicted = streams[op.active * width..][..width].to_vec();
            for (at, out) in streams.iter_mut().enumerate() {
                let (i, column) = (at / width, at % width);
                let difference = f64::from(x[column]) - f64::from(predicted[column]);
                *out = (f64::from(*out) + (factors[i] + 1.0) * difference) as f32;
            }
        }
        self.take_stream(streams, op.active, out);
        if let Some(scale) = scale {
            let rows = out.values.chunks_exact_mut(scale.len());
            rows.for_each(|row| row.iter_mut().zip(scale).for_each(|(x, factor)| *x *= factor));
        }
    }

    fn add_to_streams(&mut self, x: &Rows, streams: &mut Rows) {
        for (x, streams) in x.iter().zip(streams.values.chunks_exact_mut(streams.width)) {
            for stream in streams.chunks_exact_mut(x.len()).skip(1) {
                stream.iter_mut().zip(x).for_each(|(stream, x)| *stream += x);
            }
        }
    }
}
