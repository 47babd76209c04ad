//! Everything at once: random shapes, types, windows, caps, slopes, sinks and trees.

use super::case::Case;
use super::tree::any_tree;
use crate::testing::{Random, bits, row_cpus};
use crate::{AttentionSeq, Cpu, Kernels, KvDtype};

/// A case of any kind, small enough for many of them.
fn any_case(random: &mut Random) -> Case {
    let mut one_of = |of: &[usize]| of[random.below(of.len())];
    let n_kv_heads = one_of(&[1, 2, 3]);
    let n_heads = n_kv_heads * one_of(&[1, 2, 3, 5, 20]);
    let head_dim = one_of(&[1, 7, 16, 24, 64, 80]);
    let block_size = one_of(&[1, 3, 8, 16, 24, 64, 300]);
    let n_committed = one_of(&[0, 1, 15, 40, 241, 250, 256, 270, 515]);
    let n_drafts = one_of(&[0, 0, 1, 4, 17, 40]);
    let window = one_of(&[0, 1, 3, 20, 37, 255, 300, 1000]);
    let n = (n_committed + n_drafts).max(1);
    let mut case = Case::new(random, n, (n_heads, n_kv_heads), head_dim);
    case.block_size = block_size;
    case.dtype = KvDtype::ALL[random.below(KvDtype::ALL.len())];
    case.window = (random.below(2) == 0).then_some(window);
    let segment = [1, 7, 64, 300][random.below(4)];
    case.segment = (random.below(3) == 0).then_some(segment);
    case.softcap = (random.below(3) == 0).then_some(3.0);
    // As in every model, scores fall with distance.
    case.slopes = (random.below(3) == 0)
        .then(|| random.normals(n_heads).iter().map(|slope| slope.abs()).collect());
    if random.below(3) == 0 {
        let reach = [1, 8, 128][random.below(3)];
        case.bias = Some((random.normals(n_heads * (2 * reach + 1)), reach));
    }
    case.sinks = (random.below(2) == 0).then(|| random.normals(n_heads));
    case.tree = (n_drafts > 0).then(|| any_tree(random, n_drafts));
    case
}

#[test]
fn whatever_is_asked_is_close_to_the_formula() {
    let mut random = Random::new(70);
    let cpu = Cpu::with(Kernels::best(), 2);
    for _ in 0..50 {
        let case = any_case(&mut random);
        case.assert_close(&case.run(&cpu, 100, 1));
    }
}

#[test]
fn whatever_is_asked_every_machine_team_and_cut_gives_the_same_bits() {
    let mut random = Random::new(71);
    let cpus = row_cpus();
    for _ in 0..30 {
        let mut case = any_case(&mut random);
        let expected = bits(&case.run(&cpus[0], case.n_tokens(), 1));
        for cpu in &cpus {
            case.block_size = [1, 16, 24, 100][random.below(4)];
            let step = [1, 7, 64, 257][random.below(4)];
            let got = bits(&case.run(cpu, step, 2));
            let team = cpu.team.n_threads();
            assert!(got == expected, "{} x {team}, steps of {step}: {case}", cpu.kernels.name);
        }
    }
}

#[test]
fn a_batch_of_all_kinds_is_batches_of_one() {
    let mut random = Random::new(72);
    let mut all = Case::new(&mut random, 4 * 320, (4, 2), 24);
    all.sinks = Some(random.normals(4));
    let trees = [None, Some(any_tree(&mut random, 9)), None, Some(any_tree(&mut random, 30))];
    let n_rows = [1, 9, 12, 30];
    for dtype in KvDtype::ALL {
        all.dtype = dtype;
        for cpu in row_cpus() {
            let (mut kv, table) = all.place(5);
            all.store(&cpu, &mut kv, &table, 0..4 * 320);
            let (mut sequences, mut row) = (Vec::new(), 0);
            for i in 0..4 {
                sequences.push(AttentionSeq {
                    rows: row..row + n_rows[i],
                    first_position: 240 + 10 * i,
                    block_table: &table[20 * i..20 * (i + 1)],
                    tree: trees[i].as_deref(),
                });
                row += n_rows[i];
            }
            let width = all.width();
            let q = &all.q[..row * width];
            let mut out = vec![0.0; row * width];
            cpu.paged_attention(&kv, 1, &all.input(q, &sequences), &mut out);
            for seq in &sequences {
                let range = seq.rows.start * width..seq.rows.end * width;
                let alone = [AttentionSeq { rows: 0..seq.rows.len(), ..seq.clone() }];
                let mut one = vec![0.0; range.len()];
                cpu.paged_attention(&kv, 1, &all.input(&q[range.clone()], &alone), &mut one);
                assert!(bits(&one) == bits(&out[range]), "{dtype} {}", cpu.kernels.name);
            }
        }
    }
}
