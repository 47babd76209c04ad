//! Times of a scan, printed by an ignored test.
//!
//! ```text
//! cargo test --release -p pelton-kernels --lib state::tests::speed -- --ignored --nocapture
//! ```

use std::time::Instant;

use crate::StridedRows;
use crate::testing::Random;
use crate::{
    Cpu, Decays, HeadOrder, Kernels, ScanInput, ScanShape, StateLayer, StateSeq, StateShape,
    StateStore,
};

/// Seconds of a call that few other programs disturbed: the fifth best of 41.
fn seconds(mut call: impl FnMut(usize)) -> f64 {
    let mut times: Vec<f64> = (0..41)
        .map(|i| {
            let start = Instant::now();
            call(i);
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[4]
}

fn measure(cpu: &Cpu, shape: ScanShape, n_rows: usize, open: usize) -> f64 {
    let layer = StateLayer {
        matrix: shape.value_width() * shape.key_dim,
        channels: 0,
        taps: 0,
        key_width: shape.key_width(),
        update_width: shape.value_width(),
        n_heads: shape.n_value_heads,
        is_selective: false,
        has_removal_keys: false,
        has_channel_decays: shape.decays == Decays::PerChannel,
    };
    // States larger than the caches together, one after the other.
    let n_lanes = if n_rows == 1 { 100 } else { 2 };
    let mut store = StateStore::new(StateShape { layers: vec![layer], n_lanes, n_snapshots: 0 });
    let mut random = Random::new(230);
    let q = random.normals(n_rows * shape.key_width());
    let v = random.normals(n_rows * shape.value_width());
    let beta = vec![-0.1; n_rows * shape.n_value_heads];
    let n_decays = if shape.decays == Decays::PerHead { beta.len() } else { q.len() };
    let decay = vec![-0.1; n_decays];
    let mut out = vec![0.0; v.len()];
    store.floats_mut().fill(0.01);
    let mut call = |i: usize| {
        let sequences = [StateSeq {
            rows: 0..n_rows,
            first_position: 64 + open,
            lane: i % n_lanes,
            border: 64,
            saves: &[],
            tree: None,
        }];
        let k = StridedRows::dense(&q, shape.key_width());
        let v = StridedRows::dense(&v, shape.value_width());
        let (decay, beta) = (&decay[..], &beta[..]);
        let input = ScanInput { shape, q: k, k, v, decay, beta, sequences: &sequences };
        cpu.scan(&mut store, 0, &input, &mut out);
    };
    call(0);
    seconds(call)
}

#[test]
#[ignore = "prints times"]
fn times_of_a_scan() {
    for kernels in ["avx512", "avx2"].into_iter().filter_map(Kernels::by_name) {
        for n_threads in [1, 2] {
            let cpu = Cpu::with(kernels, n_threads);
            let _awake = cpu.team.stay_awake();
            for (name, heads) in
                [("16 heads", [16, 16]), ("16 heads by channel", [16, 16]), ("mamba", [1, 80])]
            {
                let [n_key_heads, n_value_heads] = heads;
                let value_dim = if name == "mamba" { 64 } else { 128 };
                let shape = ScanShape {
                    n_key_heads,
                    n_value_heads,
                    order: HeadOrder::Grouped,
                    key_dim: 128,
                    value_dim,
                    is_delta: name != "mamba",
                    decays: match name {
                        "16 heads by channel" => Decays::PerChannel,
                        _ => Decays::PerHead,
                    },
                };
                let bytes = (n_value_heads * 128 * value_dim * 4) as f64;
                for open in [0, 32, 63] {
                    let time = measure(&cpu, shape, 1, open);
                    println!(
                        "{} x {n_threads} {name}: a row after {open}: {:.1} us, {:.1} GB/s of state",
                        kernels.name,
                        time * 1e6,
                        bytes / time / 1e9
                    );
                }
                let time = measure(&cpu, shape, 512, 0);
                println!(
                    "{} x {n_threads} {name}: 512 rows: {:.0} rows/s",
                    kernels.name,
                    512.0 / time
                );
            }
        }
    }
}
