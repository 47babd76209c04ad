//! Operations on rows of activations.
//!
//! ```text
//!                 bytes   operations    per element, as the heads of the kernels' files say
//! quantize         5.25        4        read 4, write 1, and a scale and a sum per 32
//! rms_norm        12           4        two passes over x, one write
//! rms_norm add    17.25        9        the residual is read and written as well, int8 comes out
//! gated            9.25       24        gate and up, int8 comes out
//! rope             8           4        in place
//! argmax           6           1.5      the largest is in the middle: half a second pass
//! ```

use std::hint::black_box;
use std::ops::ControlFlow;

use pelton_base::Act;
use pelton_kernels::{Activations, Cpu, Forms, HeadLayout, RopeLayout};
use pelton_tensor::ActivationGroup;

use super::block::{Block, Call, Cost, Multiplier, Sizes, activations};

/// A call with what it owns.
struct Work<'a> {
    n_bytes: usize,
    n_ops: usize,
    run: Box<dyn FnMut() + 'a>,
}

/// A block of which `work` makes the call of each number of rows.
fn block(
    variant: &str,
    shape: String,
    rows: &'static [usize],
    work: impl for<'a> Fn(&'a Cpu, usize) -> Work<'a> + 'static,
) -> Block {
    Block {
        variant: variant.to_owned(),
        shape,
        multiplier: Multiplier::F32,
        calls: Box::new(move |cpu, visit| {
            for &n_rows in rows {
                let Work { n_bytes, n_ops, mut run } = work(cpu, n_rows);
                visit(Call { cost: Cost { n_rows, n_bytes, n_ops }, run: &mut *run })?;
            }
            ControlFlow::Continue(())
        }),
    }
}

/// Activations to int8.
pub(super) fn quantize(sizes: &Sizes) -> Vec<Block> {
    let of_width = |k: usize| {
        block("", format!("[M, {k}]"), sizes.rows, move |cpu, m| {
            let x = activations(m * k);
            let mut out = Activations::new(k, Forms::int8(ActivationGroup::Of32));
            let run = Box::new(move || cpu.write_rows(&x, &mut out));
            Work { n_bytes: m * k * 21 / 4, n_ops: m * k * 4, run }
        })
    };
    [sizes.width, sizes.ffn].map(of_width).into()
}

/// The norm alone, and with the sum before it.
pub(super) fn rms_norm(sizes: &Sizes) -> Vec<Block> {
    let (rows, width) = (sizes.rows, sizes.width);
    let shape = format!("[M, {width}]");
    let plain = block("plain", shape.clone(), rows, move |cpu, m| {
        let (x, weight) = (activations(m * width), activations(width));
        let mut out = Activations::new(width, Forms::F32);
        let run = Box::new(move || cpu.rms_norm(&x, &weight, 1e-5, &mut out));
        Work { n_bytes: m * width * 12, n_ops: m * width * 4, run }
    });
    let add = block("add, to int8", shape, rows, move |cpu, m| {
        let (delta, weight) = (activations(m * width), activations(width));
        // Grows by `delta` in each call, far from any limit.
        let mut residual = activations(m * width);
        let mut out = Activations::new(width, Forms::int8(ActivationGroup::Of32));
        let run =
            Box::new(move || cpu.add_rms_norm(&mut residual, &delta, &weight, 1e-5, &mut out));
        Work { n_bytes: m * width * 17, n_ops: m * width * 9, run }
    });
    vec![plain, add]
}

/// The middle of a feed-forward block, with each activation.
pub(super) fn gated(sizes: &Sizes) -> Vec<Block> {
    let (rows, ffn) = (sizes.rows, sizes.ffn);
    let of_act = |(name, act): (&str, Act)| {
        block(name, format!("[M, {ffn}]"), rows, move |cpu, m| {
            let gate_up = activations(m * 2 * ffn);
            let mut out = Activations::new(ffn, Forms::int8(ActivationGroup::Of32));
            let run = Box::new(move || cpu.gated_mul(act, &gate_up, &mut out));
            Work { n_bytes: m * ffn * 37 / 4, n_ops: m * ffn * 24, run }
        })
    };
    [("silu", Act::Silu), ("gelu_tanh", Act::GeluTanh)].map(of_act).into()
}

/// Rotation of all query heads, with each pairing.
pub(super) fn rope(sizes: &Sizes) -> Vec<Block> {
    let (rows, [n_heads, _, head_dim]) = (sizes.rows, sizes.heads);
    let of_pairing = |(name, interleaved): (&str, bool)| {
        let width = n_heads * head_dim;
        let shape = format!("[M, {n_heads} x {head_dim}]");
        block(name, shape, rows, move |cpu, m| {
            let heads = HeadLayout { row_stride: width, offset: 0, n_heads, head_dim };
            let layout = RopeLayout { heads, first: 0, rotary_dim: head_dim, interleaved };
            let mut x = activations(m * width);
            // One rotation for all: cosine 0.6, sine 0.8, so that lengths stay what they are.
            let half = head_dim / 2;
            let row = [vec![0.6; half], vec![0.8; half]].concat();
            let cos_sin = row.repeat(m);
            let run = Box::new(move || cpu.rope(&mut x, &layout, &cos_sin));
            Work { n_bytes: m * width * 8, n_ops: m * width * 4, run }
        })
    };
    [("halves", false), ("pairs", true)].map(of_pairing).into()
}

/// The largest of a row of logits.
pub(super) fn argmax(sizes: &Sizes) -> Vec<Block> {
    let vocab = sizes.vocab;
    vec![block("", format!("[{vocab}]"), &[1], move |cpu, _| {
        let mut logits = activations(vocab);
        logits[vocab / 2] = 2.0;
        let run = Box::new(move || {
            black_box(cpu.argmax(&logits));
        });
        Work { n_bytes: vocab * 6, n_ops: vocab + vocab / 2, run }
    })]
}
