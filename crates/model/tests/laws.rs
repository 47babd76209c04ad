//! Same request, same tokens: what must not change a single bit of the logits.

use crate::common::{
    BLOCK, Golden, all, bits, cut, golden, lane, run_chunks, run_whole, scattered,
};
use pelton_base::TokenId;
use pelton_kernels::Kernels;
use pelton_model::{
    BlockTables, CHUNK_TOKENS, Compute, CpuDevice, Decoder, Device, ForwardInput, ForwardSequence,
    GreedyRows, KvDtype, KvFootprint, LoadOptions, ModelFiles, ScoredRows, SwapStore, export_gguf,
    inspect, load_cpu,
};

const FORMATS: [(&str, Compute); 4] = [
    ("F32", Compute::F32),
    ("BF16", Compute::Auto),
    ("Q8_0", Compute::Auto),
    ("Q4_0", Compute::Auto),
];

/// The fixture stored as `format`; those that are not written as GGUF files, the folder, which is bf16.
fn exported(golden: &Golden, format: &str) -> ModelFiles {
    if !golden.is_exported() {
        return golden.files();
    }
    let path = golden.folder().join(format!("{format}.gguf"));
    export_gguf(&golden.files(), format, &path, None).expect(&golden.name);
    ModelFiles::open(&path).expect(&golden.name)
}

#[test]
fn chunked_prefill_is_the_whole_prefill() {
    for golden in all() {
        let tokens = golden.tokens();
        let files = exported(&golden, "Q8_0");
        let mut decoder = golden.load(&files, Compute::Auto);
        let whole = bits(&run_whole(&mut decoder, &tokens));
        for sizes in [&[1][..], &[7], &[31, 1], &[16], &[63, 1, 2], &[65]] {
            let chunks = cut(tokens.len(), sizes);
            let rows = run_chunks(&mut decoder, &tokens, &chunks, &scattered(tokens.len()));
            assert!(bits(&rows) == whole, "{} {chunks:?}", golden.name);
        }
    }
}

#[test]
fn pages_may_lie_anywhere() {
    for name in ["mistral", "deepseek-v3", "gemma4", "gemma3n"] {
        let golden = golden(name);
        let tokens = golden.tokens();
        let mut decoder = golden.load(&golden.files(), Compute::Auto);
        let expected = bits(&run_whole(&mut decoder, &tokens));
        for blocks in [[3, 2, 1, 0], [9, 4, 17, 6]] {
            let rows = run_chunks(&mut decoder, &tokens, &[40, 23], &blocks);
            assert!(bits(&rows) == expected, "{blocks:?}");
        }
    }
}

fn load_with_kv(golden: &Golden, kv_dtype: KvDtype) -> Decoder<CpuDevice> {
    let options =
        LoadOptions { kv_dtype: Some(kv_dtype), n_threads: Some(1), ..LoadOptions::default() };
    load_cpu(&golden.files(), &options).expect(&golden.name)
}

#[test]
fn keys_and_values_of_every_type_obey_the_laws_and_cost_what_is_told() {
    for name in ["mistral", "deepseek-v3-dense", "gemma4", "gemma4-k-eq-v", "gemma3n"] {
        let golden = golden(name);
        let tokens = golden.tokens();
        let mut errors = Vec::new();
        for kv_dtype in KvDtype::ALL {
            let mut decoder = load_with_kv(&golden, kv_dtype);
            let whole = run_whole(&mut decoder, &tokens);
            for (chunks, blocks) in [(vec![1; 63], [0, 1, 2, 3]), (vec![31, 1, 31], [9, 4, 17, 6])]
            {
                let rows = run_chunks(&mut decoder, &tokens, &chunks, &blocks);
                assert!(bits(&rows) == bits(&whole), "{kv_dtype} {chunks:?}");
            }
            errors.push(golden.mean_error(&whole));
            let told = inspect(&golden.files(), kv_dtype).expect("inspects");
            assert_eq!(told.kv_bytes_per_token * BLOCK, decoder.kv_bytes_per_block(BLOCK));
            assert_eq!(decoder.new_kv(3, BLOCK).n_bytes(), 3 * decoder.kv_bytes_per_block(BLOCK));
        }
        let limits = [0.02, 0.02, 0.02, 0.12, 0.03];
        for ((error, limit), kv_dtype) in errors.iter().zip(limits).zip(KvDtype::ALL) {
            assert!(*error < limit, "{name}, {kv_dtype}: {errors:?}");
        }
    }
}

#[test]
fn a_tree_of_drafts_is_every_one_of_its_paths() {
    for name in ["mistral", "deepseek-v3", "gemma4", "gemma4-k-eq-v", "gemma3n-streams"] {
        let golden = golden(name);
        let tokens = golden.tokens();
        let (committed, drafts) = tokens.split_at(tokens.len() - 6);
        const ROOT: u32 = ForwardSequence::ROOT;
        // 0 -> 1 -> 4, 0 -> 2 -> 5, and 3 alone.
        let tree = [ROOT, 0, 0, ROOT, 1, 2];
        let paths: [&[usize]; 6] = [&[0], &[0, 1], &[0, 2], &[3], &[0, 1, 4], &[0, 2, 5]];
        for kv_dtype in [KvDtype::Bf16, KvDtype::Int8] {
            let mut decoder = load_with_kv(&golden, kv_dtype);
            let mut kv = decoder.new_kv(4, BLOCK);
            let mut logits = Vec::new();
            let mut first_position = 0;
            for (tokens, tree) in [(committed, None), (drafts, Some(&tree[..]))] {
                let block_table = &[2, 0, 3, 1];
                let rows = 0..tokens.len();
                let sequence = ForwardSequence {
                    rows,
                    n_source: 0,
                    first_position,
                    block_tables: BlockTables::one(block_table),
                    lane: None,
                    tree,
                };
                let rows: Vec<usize> = (0..tokens.len()).collect();
                let input = ForwardInput { tokens, sequences: &[sequence], logits_rows: &rows };
                decoder.forward(&mut kv, &input, &mut logits);
                first_position += tokens.len();
            }
            let got: Vec<Vec<f32>> = logits.chunks(logits.len() / 6).map(<[f32]>::to_vec).collect();
            for (path, got) in paths.iter().zip(&got) {
                let path = path.iter().map(|&row| drafts[row]);
                let chain: Vec<TokenId> = committed.iter().copied().chain(path.clone()).collect();
                let expected = run_whole(&mut decoder, &chain).pop().expect("rows");
                assert!(
                    bits(std::slice::from_ref(got)) == bits(&[expected]),
                    "{kv_dtype}: the path of {} drafts",
                    path.len()
                );
            }
        }
    }
}

/// Tokens of sequence `s` that are computed before the step with all of them. In models with recurrent
/// layers some sequences then pass the end of a chunk.
fn n_before(decoder: &Decoder<CpuDevice>, s: usize) -> usize {
    let chunk = if decoder.spec().is_recurrent() { CHUNK_TOKENS } else { 0 };
    if s == 0 { 0 } else { 5 * s + chunk / 4 * 3 }
}

/// Eight sequences in one step, at different places: one begins, some go on, one only decodes.
fn run_batch(decoder: &mut Decoder<CpuDevice>, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let (n_sequences, n_blocks) = (8, 6);
    let table = |s| (0..n_blocks).map(|b| (b * n_sequences + s) as u32).collect();
    let tables: Vec<Vec<u32>> = (0..n_sequences).map(table).collect();
    let kv = decoder.try_new_kv_for(n_blocks * n_sequences, BLOCK, n_sequences, 0);
    let mut kv = kv.expect("memory");
    // Sequence `s` is the tokens from `s` on; its first part is computed alone, without logits.
    let firsts: Vec<usize> = (0..n_sequences).map(|s| n_before(decoder, s)).collect();
    let first = |s: usize| firsts[s];
    let mut logits = Vec::new();
    for s in 1..n_sequences {
        let sequence = ForwardSequence {
            rows: 0..first(s),
            n_source: 0,
            first_position: 0,
            block_tables: BlockTables::one(&tables[s]),
            lane: lane(decoder, s, 0),
            tree: None,
        };
        let input = ForwardInput {
            tokens: &tokens[s..s + first(s)],
            sequences: &[sequence],
            logits_rows: &[],
        };
        decoder.forward(&mut kv, &input, &mut logits);
        assert!(logits.is_empty());
    }
    let (mut batch, mut sequences) = (Vec::new(), Vec::new());
    for s in 0..n_sequences {
        let n_rows = if s == 7 { 1 } else { 3 + s };
        let start = batch.len();
        batch.extend_from_slice(&tokens[s + first(s)..][..n_rows]);
        let rows = start..batch.len();
        let (first_position, block_table) = (first(s), tables[s].as_slice());
        sequences.push(ForwardSequence {
            rows,
            n_source: 0,
            first_position,
            block_tables: BlockTables::one(block_table),
            lane: lane(decoder, s, first_position),
            tree: None,
        });
    }
    let last_rows: Vec<usize> = sequences.iter().map(|s| s.rows.end - 1).collect();
    let input = ForwardInput { tokens: &batch, sequences: &sequences, logits_rows: &last_rows };
    decoder.forward(&mut kv, &input, &mut logits);
    logits.chunks(logits.len() / n_sequences).map(<[f32]>::to_vec).collect()
}

/// The first of the largest, in a row without infinities.
fn first_largest(row: &[f32]) -> Option<TokenId> {
    let mut best: Option<usize> = None;
    for (i, logit) in row.iter().enumerate() {
        if logit.is_finite() && best.is_none_or(|best| *logit > row[best]) {
            best = Some(i);
        }
    }
    best.map(|best| TokenId(best as u32))
}

/// Caps, factors and biases of the head among them.
#[test]
fn greedy_rows_are_told_the_likeliest_of_the_logits_that_they_do_not_get() {
    for golden in all() {
        for (format, compute) in [("F32", Compute::F32), ("Q8_0", Compute::Auto)] {
            let (tokens, files) = (golden.tokens(), exported(&golden, format));
            let mut decoder = golden.load_on(&files, compute, Kernels::best(), 2);
            let expected = run_whole(&mut decoder, &tokens);
            let (n, vocab) = (tokens.len(), decoder.spec().vocab_size);
            let n_layers = decoder.spec().layers.len();
            let blocks = scattered(n);
            let sequence = ForwardSequence {
                rows: 0..n,
                n_source: 0,
                first_position: 0,
                block_tables: BlockTables::one(&blocks),
                lane: lane(&decoder, 0, 0),
                tree: None,
            };
            // Backwards: rows are told in the order in which they are asked for.
            let rows: Vec<usize> = (0..n).rev().collect();
            let input =
                ForwardInput { tokens: &tokens, sequences: &[sequence], logits_rows: &rows };
            let (mut logits, mut likeliest) = (Vec::new(), Vec::new());
            for (n_rows, n_sampled) in
                [(0, vocab), (1, vocab), (n / 2, vocab / 3), (n, usize::MAX), (n, 0)]
            {
                let mut kv = decoder.new_kv(2 * blocks.len() + 1, BLOCK);
                let greedy = GreedyRows { n_rows, n_sampled, tokens: &mut likeliest };
                decoder.forward_greedy(n_layers, &mut kv, &input, &mut logits, greedy);
                let what = format!("{} {format}, {n_rows} of {n} rows", golden.name);
                let (whole, rest) = rows.split_at(n - n_rows);
                let got: Vec<Vec<f32>> = logits.chunks(vocab).map(<[f32]>::to_vec).collect();
                let expected_rows: Vec<Vec<f32>> =
                    whole.iter().map(|row| expected[*row].clone()).collect();
                assert!(bits(&got) == bits(&expected_rows), "{what}");
                let largest = |row: &usize| first_largest(&expected[*row][..n_sampled.min(vocab)]);
                let expected_tokens: Vec<Option<TokenId>> = rest.iter().map(largest).collect();
                assert_eq!(likeliest, expected_tokens, "{what}");
            }
        }
    }
}

#[test]
fn scored_rows_have_the_same_logits_in_pieces_of_any_size() {
    for golden in all() {
        let (tokens, files) = (golden.tokens(), exported(&golden, "Q8_0"));
        let mut decoder = golden.load_on(&files, Compute::Auto, Kernels::best(), 2);
        let expected = bits(&run_whole(&mut decoder, &tokens));
        let (n, vocab) = (tokens.len(), decoder.spec().vocab_size);
        let blocks = scattered(n);
        let sequence = ForwardSequence {
            rows: 0..n,
            n_source: 0,
            first_position: 0,
            block_tables: BlockTables::one(&blocks),
            lane: lane(&decoder, 0, 0),
            tree: None,
        };
        let rows: Vec<usize> = (0..n).rev().collect();
        let input = ForwardInput { tokens: &tokens, sequences: &[sequence], logits_rows: &rows };
        for (n_greedy, n_scored, piece_rows) in [(0, n, 7), (2, n - 3, 1), (3, 5, 5), (n - 4, 4, 9)]
        {
            let (mut kv, mut logits) = (decoder.new_kv(2 * blocks.len() + 1, BLOCK), Vec::new());
            let (mut likeliest, mut scored) = (Vec::new(), Vec::new());
            let greedy = GreedyRows { n_rows: n_greedy, n_sampled: vocab, tokens: &mut likeliest };
            let each = &mut |nth: usize, row: &[f32]| {
                assert_eq!(nth, scored.len(), "in order");
                scored.push(row.to_vec());
            };
            let asked = ScoredRows { n_rows: n_scored, piece_rows, each };
            decoder.forward_scored(&mut kv, &input, &mut logits, greedy, asked);
            let what = format!("{}: {n_greedy} greedy and {n_scored} scored", golden.name);
            assert_eq!(likeliest.len(), n_greedy, "{what}");
            let plain: Vec<Vec<f32>> = logits.chunks(vocab).map(<[f32]>::to_vec).collect();
            let at = |range: &[usize]| -> Vec<Vec<u32>> {
                range.iter().map(|&row| expected[row].clone()).collect()
            };
            let n_plain = n - n_greedy - n_scored;
            assert!(bits(&plain) == at(&rows[..n_plain]), "{what}");
            assert!(bits(&scored) == at(&rows[n - n_scored..]), "{what}");
        }
    }
}

#[test]
fn a_batch_of_eight_is_eight_batches_of_one() {
    for golden in all() {
        for (format, compute) in FORMATS {
            let tokens = golden.tokens();
            let mut decoder = golden.load(&exported(&golden, format), compute);
            let together = run_batch(&mut decoder, &tokens);
            for (s, row) in together.iter().enumerate() {
                let n = n_before(&decoder, s) + if s == 7 { 1 } else { 3 + s };
                let alone = run_whole(&mut decoder, &tokens[s..s + n]);
                let alone = alone.last().expect("rows");
                assert!(
                    bits(std::slice::from_ref(alone)) == bits(std::slice::from_ref(row)),
                    "{} {format}, sequence {s}",
                    golden.name
                );
            }
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_computes_the_same_bits() {
    let scalar = Kernels::by_name("scalar").expect("scalar");
    for name in [
        "llama3",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3n-streams",
        "stablelm-parallel",
        "bloom",
        "gpt-neox",
        "deepseek-v3",
        "qwen2-moe",
        "gpt-oss-mxfp4",
        "llama4",
    ] {
        let golden = golden(name);
        let tokens = golden.tokens();
        for (format, compute) in FORMATS {
            let files = exported(&golden, format);
            let expected =
                bits(&run_whole(&mut golden.load_on(&files, compute, scalar, 1), &tokens));
            for kernels in Kernels::available() {
                for n_threads in [1, 2] {
                    let mut decoder = golden.load_on(&files, compute, kernels, n_threads);
                    let rows = bits(&run_whole(&mut decoder, &tokens));
                    assert!(rows == expected, "{name} {format} {} {n_threads}", kernels.name);
                }
            }
        }
    }
}

#[test]
fn a_copied_block_reads_like_the_original() {
    for name in ["qwen3", "deepseek-v2"] {
        let golden = golden(name);
        let tokens = golden.tokens();
        let mut decoder = golden.load(&golden.files(), Compute::Auto);
        let expected = bits(&run_whole(&mut decoder, &tokens));
        let mut kv = decoder.new_kv(8, BLOCK);
        let mut logits = Vec::new();
        let mut step = |decoder: &mut Decoder<CpuDevice>,
                        kv: &mut _,
                        range: std::ops::Range<usize>,
                        blocks: &[u32]| {
            let n = range.len();
            let sequence = ForwardSequence {
                rows: 0..n,
                n_source: 0,
                first_position: range.start,
                block_tables: BlockTables::one(blocks),
                lane: None,
                tree: None,
            };
            let input = ForwardInput {
                tokens: &tokens[range],
                sequences: &[sequence],
                logits_rows: &[n - 1],
            };
            decoder.forward(kv, &input, &mut logits);
            logits.clone()
        };
        step(&mut decoder, &mut kv, 0..40, &[0, 1, 2]);
        decoder.copy_kv_block(&mut kv, 2, 5);
        let row = step(&mut decoder, &mut kv, 40..63, &[0, 1, 5, 6]);
        assert!(bits(&[row])[0] == expected[62]);
    }
}

#[test]
fn a_block_swapped_out_and_in_elsewhere_reads_like_the_original() {
    for name in ["qwen3", "deepseek-v2"] {
        let golden = golden(name);
        let tokens = golden.tokens();
        for kv_dtype in KvDtype::ALL {
            let mut decoder = load_with_kv(&golden, kv_dtype);
            let expected = bits(&run_whole(&mut decoder, &tokens));
            let footprint = decoder.kv_footprint(8, BLOCK, 3);
            let mut kv = decoder.new_kv(8, BLOCK);
            let mut store = SwapStore::try_new(&footprint).expect("memory");
            let mut logits = Vec::new();
            let mut step = |decoder: &mut Decoder<CpuDevice>,
                            kv: &mut _,
                            range: std::ops::Range<usize>,
                            block_table: &[u32]| {
                let n = range.len();
                let (rows, first_position) = (0..n, range.start);
                let sequence = ForwardSequence {
                    rows,
                    n_source: 0,
                    first_position,
                    block_tables: BlockTables::one(block_table),
                    lane: None,
                    tree: None,
                };
                let (tokens, sequences) = (&tokens[range], &[sequence]);
                let input = ForwardInput { tokens, sequences, logits_rows: &[n - 1] };
                decoder.forward(kv, &input, &mut logits);
                logits.clone()
            };
            step(&mut decoder, &mut kv, 0..40, &[0, 1, 2]);
            for (block, host_block) in [(2, 0), (0, 2)] {
                decoder.swap_kv_out(&kv, block, &mut store, host_block);
            }
            // Whoever came meanwhile wrote over both.
            step(&mut decoder, &mut kv, 7..40, &[2, 0, 3]);
            for (host_block, block) in [(0, 5), (2, 4)] {
                decoder.swap_kv_in(&mut kv, &store, host_block, block);
            }
            let row = step(&mut decoder, &mut kv, 40..63, &[4, 1, 5, 6]);
            assert!(bits(&[row])[0] == expected[62], "{kv_dtype}");
        }
    }
}

#[test]
fn keys_and_values_take_the_memory_that_was_predicted_to_the_byte() {
    for name in ["qwen3", "deepseek-v2"] {
        let golden = golden(name);
        for kv_dtype in KvDtype::ALL {
            let decoder = load_with_kv(&golden, kv_dtype);
            for (n_blocks, block_size, n_host_blocks) in
                [(1, 1, 0), (3, 16, 1), (1000, 16, 77), (517, 5, 1000), (4096, 24, 3)]
            {
                let what = format!("{kv_dtype}, {n_blocks} of {block_size}, {n_host_blocks}");
                let told = KvFootprint::new::<CpuDevice>(decoder.spec(), kv_dtype, block_size)
                    .with_blocks(n_blocks)
                    .with_swap_bytes(
                        (n_host_blocks * decoder.kv_bytes_per_block(block_size)) as u64 + 7,
                    );
                assert_eq!(
                    told,
                    decoder.kv_footprint(n_blocks, block_size, n_host_blocks),
                    "{what}"
                );
                let kv = decoder.new_kv(n_blocks, block_size);
                let store = SwapStore::try_new(&told).expect("memory");
                assert_eq!(told.pool_bytes(), Some(kv.n_bytes()), "{what}");
                assert_eq!(told.swap_bytes(), Some(store.n_bytes()), "{what}");
                let n_mapped = kv.n_mapped_bytes() + store.n_mapped_bytes();
                assert_eq!(told.mapped_bytes(), Some(n_mapped), "{what}");
            }
        }
    }
}

#[test]
fn swapped_blocks_keep_every_bit_whatever_is_in_them() {
    for name in ["qwen3", "deepseek-v2"] {
        let golden = golden(name);
        for kv_dtype in KvDtype::ALL {
            let decoder = load_with_kv(&golden, kv_dtype);
            for block_size in [1, 5, 16, 24] {
                let mut kv = decoder.new_kv(5, block_size);
                let mut store =
                    SwapStore::try_new(&decoder.kv_footprint(5, block_size, 2)).expect("memory");
                let n_bytes = decoder.kv_bytes_per_block(block_size);
                // NaNs, infinities and subnormals among them.
                let block = |seed: usize| -> Vec<u8> {
                    (0..n_bytes)
                        .map(|i| (((i * 31 + seed) * (i + 7 * seed + 1)) >> 3) as u8)
                        .collect()
                };
                (0..5)
                    .for_each(|i| decoder.device().write_kv_block(&mut kv, i, &block(i as usize)));
                decoder.swap_kv_out(&kv, 3, &mut store, 1);
                decoder.swap_kv_out(&kv, 1, &mut store, 0);
                decoder.swap_kv_in(&mut kv, &store, 1, 0);
                decoder.swap_kv_in(&mut kv, &store, 0, 3);
                for (i, source) in [3, 1, 2, 1, 4].into_iter().enumerate() {
                    let mut bytes = vec![0; n_bytes];
                    decoder.device().read_kv_block(&kv, i as u32, &mut bytes);
                    assert!(bytes == block(source), "{kv_dtype}: block {i} of {block_size} tokens");
                }
            }
        }
    }
}

#[test]
fn a_token_of_latent_attention_costs_its_latent_and_its_rotated_key() {
    let golden = golden("deepseek-v3");
    for (kv_dtype, bytes) in [
        (KvDtype::F32, 4 * (64 + 8)),
        (KvDtype::Bf16, 2 * (64 + 8)),
        (KvDtype::F16, 2 * (64 + 8)),
        (KvDtype::Fp8, 64 + 8),
        (KvDtype::Int8, 64 + 8 + 4),
    ] {
        let told = inspect(&golden.files(), kv_dtype).expect("inspects");
        assert_eq!(told.kv_bytes_per_token, 3 * bytes, "{kv_dtype}");
        assert_eq!([told.n_heads, told.n_kv_heads, told.head_dim], [4, 1, 72]);
    }
}
