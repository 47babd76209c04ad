//! Contexts of several spans, which threads cut into stretches.

use super::super::cut::{Cut, HeadParts};
use super::super::{CHUNK, SPAN};
use super::case::Case;
use crate::testing::{Random, bits, row_cpus};
use crate::{AttentionSeq, Cpu, KvDtype};

/// Tokens of two spans and a half.
const N_TOKENS: usize = 5000;

#[test]
fn rows_behind_several_spans_have_the_bits_of_a_prompt() {
    let mut random = Random::new(98);
    let best = Cpu::with(crate::Kernels::best(), 1);
    let mut cpus = row_cpus();
    cpus.push(Cpu::with(crate::Kernels::best(), 3));
    for (heads, window) in
        [((4, 1), None), ((18, 9), None), ((4, 1), Some(4100)), ((9, 3), Some(4996))]
    {
        let case = Case { window, ..Case::new(&mut random, N_TOKENS, heads, 32) };
        for dtype in KvDtype::ALL {
            let case = Case { dtype, ..case.clone() };
            let prompt = bits(&case.run_last(&best, 70, 1));
            for (n_rows, cpu) in [1, 3].into_iter().flat_map(|n| cpus.iter().map(move |c| (n, c))) {
                let got = bits(&case.run_last(cpu, n_rows, 9));
                let name = cpu.kernels.name;
                assert!(prompt.ends_with(&got), "{name} x {}: {case}", cpu.team.n_threads());
            }
        }
    }
}

#[test]
fn stretches_have_every_chunk_once_and_end_with_their_span() {
    let mut random = Random::new(99);
    for (n_tokens, window) in
        [(1, None), (300, None), (N_TOKENS, None), (N_TOKENS, Some(2600)), (4096, Some(1))]
    {
        let case = Case { window, ..Case::new(&mut random, n_tokens, (1, 1), 1) };
        let sequences = [AttentionSeq {
            rows: 0..1,
            first_position: n_tokens - 1,
            block_table: &[],
            tree: None,
        }];
        for n_threads in 1..5 {
            let mut cut = Cut::default();
            let heads = HeadParts::new(1, 1);
            cut.rows(&case.input(&case.q, &sequences), &heads, (64, n_threads));
            let block = &cut.blocks[0];
            let stretches: Vec<_> = (0..block.n_stretches()).map(|i| block.stretch(i)).collect();
            let chunks: Vec<_> = stretches.iter().cloned().flatten().collect();
            assert_eq!(chunks, (0..block.n_chunks).collect::<Vec<_>>());
            assert_eq!((cut.n_chunks, cut.n_partials), (block.n_chunks, stretches.len()));
            let first = n_tokens - window.unwrap_or(n_tokens);
            assert_eq!(block.first_chunk, first / CHUNK);
            for stretch in &stretches {
                let ends = stretch.clone().skip(1).any(|chunk| block.begins_span(chunk));
                assert!(!ends, "{stretch:?} is of one span");
            }
            // The last spans are left for threads that end early.
            let n_spans = stretches.iter().filter(|stretch| stretch.len() > 1).count();
            let all =
                (block.first_chunk + block.n_chunks).div_ceil(SPAN) - block.first_chunk / SPAN;
            assert!(n_spans <= all.saturating_sub(n_threads), "{n_spans} of {all}");
        }
    }
}
