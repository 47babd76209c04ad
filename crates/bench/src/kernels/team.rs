//! The cost of waking all threads and waiting for them, with no work in between.
//!
//! Each operation pays this once or twice; it has neither bytes nor operations, only a time.

use std::hint::black_box;

use super::block::{Block, Call, Cost, Multiplier, Sizes};

/// One run of all threads.
pub(super) fn blocks(_: &Sizes) -> Vec<Block> {
    vec![Block {
        variant: "barrier".to_owned(),
        shape: "empty run".to_owned(),
        multiplier: Multiplier::F32,
        calls: Box::new(|cpu, visit| {
            let mut run = || {
                cpu.team.run(|thread| {
                    black_box(thread);
                });
            };
            let cost = Cost { n_rows: 1, n_bytes: 0, n_ops: 0 };
            visit(Call { cost, run: &mut run })
        }),
    }]
}
