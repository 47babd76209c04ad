//! A walk shows the rows that matrices of experts and of latent attention multiply: each place
//! is computed anew, in f64, from the place before it.

use std::collections::BTreeMap;

use pelton_base::Act;
use pelton_model::{
    CpuDevice, LayerMatrix, LayerShape, LayerWalk, Mixer, ModelFiles, Reads, layer_shape,
};
use pelton_quant::dequantize_tensor;

use crate::common::{Golden, all, golden};

type Rows = Vec<Vec<f64>>;

fn values(files: &ModelFiles, name: &str) -> Vec<f64> {
    let view = files.tensors().get(name).expect(name);
    dequantize_tensor(&view).expect(name).into_iter().map(f64::from).collect()
}

/// The matrix `[n, k]`, and its bias.
fn matrix(files: &ModelFiles, matrix: &LayerMatrix) -> (Vec<f64>, Vec<f64>) {
    let n = matrix.shape[0];
    let Some(slice) = &matrix.slice else {
        let bias = format!("{}.bias", matrix.module);
        let has_bias = files.tensors().get(&bias).is_some();
        let bias = if has_bias { values(files, &bias) } else { vec![0.0; n] };
        return (values(files, &matrix.tensor()), bias);
    };
    let of = |slice: &pelton_model::ExpertSlice| -> Vec<f64> {
        let all = values(files, &slice.tensor);
        slice.places().map(|at| all[at]).collect()
    };
    (of(slice), slice.bias.as_ref().map_or(vec![0.0; n], |bias| of(bias)))
}

/// `W x + b`.
fn product((weights, bias): &(Vec<f64>, Vec<f64>), x: &[f64]) -> Vec<f64> {
    let rows = weights.chunks(x.len()).zip(bias);
    rows.map(|(row, b)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + b).collect()
}

fn norm(weights: &[f64], x: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weights).map(|(x, w)| x / (mean + 1e-6).sqrt() * w).collect()
}

fn activated(act: Act, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match act {
        Act::Silu => x * sigmoid(x),
        Act::GeluTanh => x * sigmoid(1.595_769_121_605_731 * (x + 0.044_715 * x * x * x)),
        Act::QuickGelu => x * sigmoid(1.702 * x),
        Act::ReluSquared => x.max(0.0).powi(2),
        other => panic!("no fixture has experts with {other:?}"),
    }
}

fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 2e-4 * (1.0 + b.abs()), "{what}: {a} {b}");
    }
}

/// The rows of each place of a layer.
fn shown(
    walk: &mut LayerWalk<CpuDevice>,
    x: &mut pelton_model::TextRows,
    shape: &LayerShape,
) -> BTreeMap<Reads, Rows> {
    let places = shape.matrices.iter().filter_map(|m| Some((m.reads?, m.shape[1])));
    let mut widths: BTreeMap<Reads, usize> = places.collect();
    let ups = widths.iter().find(|(reads, _)| matches!(reads, Reads::Expert(_)));
    if let Some((_, width)) = ups {
        widths.extend(shape.divided.map(|place| (place, *width)));
    }
    let mut found: BTreeMap<Reads, Rows> = BTreeMap::new();
    let mut tap = |reads: Reads, flat: &[f32]| {
        let Some(width) = widths.get(&reads) else { return };
        let rows = flat.chunks(*width).map(|row| row.iter().copied().map(f64::from).collect());
        let before = found.insert(reads, rows.collect());
        assert!(before.is_none(), "{reads:?} is shown once");
    };
    walk.run(x, Some(&mut tap));
    found
}

/// Walks a fixture, and calls `check` with each layer, its matrices and what they read.
fn walk(
    golden: &Golden,
    mut check: impl FnMut(&ModelFiles, usize, &LayerShape, &BTreeMap<Reads, Rows>),
) {
    let files = golden.files();
    let device = CpuDevice::with_threads(Some(2)).expect("a device");
    let tokens = &golden.tokens()[..20];
    let mut walk = LayerWalk::new(&files, device, 32).expect("a walk");
    let mut x = walk.embed(tokens);
    for layer in 0..walk.spec().layers.len() {
        walk.load(&files, layer).expect("a layer");
        let shape = layer_shape(&files, layer).expect("a layer");
        let mut untapped = x.clone();
        walk.run(&mut untapped, None);
        let rows = shown(&mut walk, &mut x, &shape);
        assert_eq!(x.x, untapped.x, "looking changes nothing");
        check(&files, layer, &shape, &rows);
    }
}

/// The matrices that read at a place.
fn readers(files: &ModelFiles, shape: &LayerShape, reads: Reads) -> Vec<(Vec<f64>, Vec<f64>)> {
    let own = shape.matrices.iter().filter(|matrix| matrix.reads == Some(reads));
    own.map(|own| matrix(files, own)).collect()
}

#[test]
fn every_expert_reads_the_rows_that_its_router_sends_and_down_reads_what_it_makes_of_them() {
    let (mut n_models, mut n_stacked) = (0, 0);
    for golden in all() {
        let files = golden.files();
        let spec = files.spec().expect("a spec");
        if spec.layers.iter().all(|layer| layer.mlp.experts().is_none())
            || files.scheme().is_some()
            || golden.name.contains("mxfp4")
        {
            continue;
        }
        let name = &golden.name;
        let mut is_stacked = false;
        walk(&golden, |files, layer, shape, rows| {
            let Some(moe) = spec.layers[layer].mlp.experts() else { return };
            let divided = &rows[&shape.divided.expect("experts")];
            let mut n_rows = 0;
            for expert in 0..moe.router.n_experts {
                let places = [Reads::Expert(expert), Reads::ExpertHidden(expert)];
                let readers = places.map(|place| readers(files, shape, place));
                assert_eq!(readers[0].len(), 1 + usize::from(moe.has_gates), "{name} {layer}");
                assert_eq!(readers[1].len(), 1, "{name} {layer}");
                let Some(inputs) = rows.get(&places[0]) else { continue };
                let hidden = &rows[&places[1]];
                n_rows += inputs.len();
                let mut left = divided.iter();
                for (x, hidden) in inputs.iter().zip(hidden) {
                    // One of the rows that are left, or a multiple of it.
                    let is_own = |row: &Vec<f64>| {
                        let factor = if moe.weighs_input { x[0] / row[0] } else { 1.0 };
                        let far = |(x, row): (&f64, &f64)| (x - factor * row).abs();
                        x.iter().zip(row).map(far).all(|far| far < 1e-6)
                    };
                    assert!(left.any(is_own), "{name} {layer}: a row of expert {expert}");
                    let ups: Rows = readers[0].iter().map(|own| product(own, x)).collect();
                    let expected: Vec<f64> = match (&ups[..], moe.limit) {
                        ([up], _) => up.iter().map(|x| activated(moe.expert.act, *x)).collect(),
                        ([gate, up], limit) => {
                            let limit = limit.map_or(f64::INFINITY, f64::from);
                            let offset = if moe.limit.is_some() { 1.0 } else { 0.0 };
                            let one = |(gate, up): (&f64, &f64)| {
                                let up = up.clamp(-limit, limit) + offset;
                                activated(moe.expert.act, gate.min(limit)) * up
                            };
                            gate.iter().zip(up).map(one).collect()
                        }
                        _ => unreachable!("one or two"),
                    };
                    assert_near(hidden, &expected, &format!("{name} {layer}, expert {expert}"));
                }
            }
            assert_eq!(n_rows, moe.router.top_k * divided.len(), "{name} {layer}");
            is_stacked |= shape.matrices.iter().any(|matrix| matrix.slice.is_some());
            for (place, hidden) in [(Reads::Mlp, Reads::SharedHidden), (Reads::Mlp, Reads::Hidden)]
            {
                let Some(found) = rows.get(&hidden) else { continue };
                let ups = readers(files, shape, place);
                for (x, found) in rows[&place].iter().zip(found) {
                    let ups: Rows = ups.iter().map(|own| product(own, x)).collect();
                    // One tensor has both in some families, and the projection to a width of their
                    // own is behind them.
                    let ups = ups.concat();
                    let (gate, up) = ups.split_at(found.len());
                    let expected: Vec<f64> = match moe.has_gates {
                        true => gate
                            .iter()
                            .zip(up)
                            .map(|(g, u)| activated(moe.expert.act, *g) * u)
                            .collect(),
                        false => gate.iter().map(|x| activated(moe.expert.act, *x)).collect(),
                    };
                    assert_near(found, &expected, &format!("{name} {layer}, beside the experts"));
                }
            }
        });
        (n_models, n_stacked) = (n_models + 1, n_stacked + usize::from(is_stacked));
    }
    assert!(n_models >= 18 && n_stacked >= 5, "{n_models} models, {n_stacked} with stacks");
}

#[test]
fn rows_go_to_the_experts_with_the_largest_products() {
    for (fixture, router) in [("mixtral", "block_sparse_moe.gate"), ("olmoe", "mlp.gate")] {
        let golden = golden(fixture);
        let spec = golden.files().spec().expect("a spec");
        walk(&golden, |files, layer, shape, rows| {
            let router = values(files, &format!("model.layers.{layer}.{router}.weight"));
            let top_k = spec.layers[layer].mlp.experts().expect("experts").router.top_k;
            let n_experts = router.len() / rows[&Reads::Mlp][0].len();
            let mut sent: Vec<Rows> = vec![Vec::new(); n_experts];
            for x in &rows[&Reads::Mlp] {
                let logits = product(&(router.clone(), vec![0.0; n_experts]), x);
                let mut order: Vec<usize> = (0..n_experts).collect();
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                order[..top_k].iter().for_each(|expert| sent[*expert].push(x.clone()));
            }
            for (expert, sent) in sent.into_iter().enumerate() {
                let found = rows.get(&Reads::Expert(expert)).cloned().unwrap_or_default();
                assert_eq!(found, sent, "{fixture} {layer}, expert {expert}");
            }
            assert_eq!(shape.divided, Some(Reads::Mlp));
        });
    }
}

#[test]
fn experts_in_a_width_of_their_own_read_a_projection_and_their_sum_is_projected_back() {
    let golden = golden("nemotron-h-latent");
    let mut n_layers = 0;
    walk(&golden, |files, layer, shape, rows| {
        let Some(sums) = rows.get(&Reads::ExpertSum) else { return };
        let down = shape.matrices.iter().find(|m| m.module.ends_with("fc1_latent_proj"));
        let down = matrix(files, down.expect("a projection to the width"));
        for (x, divided) in rows[&Reads::Mlp].iter().zip(&rows[&Reads::Experts]) {
            assert_near(divided, &product(&down, x), &format!("layer {layer}"));
        }
        // The sum of a row lies within the span of its experts' outputs.
        let mut largest = vec![0.0_f64; sums.len()];
        for expert in 0.. {
            let down = readers(files, shape, Reads::ExpertHidden(expert));
            let [down] = &down[..] else { break };
            let Some(hidden) = rows.get(&Reads::ExpertHidden(expert)) else { continue };
            let mut left = rows[&Reads::Experts].iter().enumerate();
            for (x, hidden) in rows[&Reads::Expert(expert)].iter().zip(hidden) {
                let (row, _) = left.find(|(_, row)| *row == x).expect("one of the rows");
                largest[row] += product(down, hidden).iter().map(|x| x * x).sum::<f64>().sqrt();
            }
        }
        for (sum, largest) in sums.iter().zip(largest) {
            let size = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!(size > 0.0 && size < 10.0 * largest, "layer {layer}: {size} {largest}");
        }
        n_layers += 1;
    });
    assert_eq!(n_layers, 2);
}

#[test]
fn latents_are_the_normed_projections_of_what_latent_attention_reads() {
    let mut n_models = 0;
    for golden in all() {
        let spec = golden.files().spec().expect("a spec");
        let name = &golden.name;
        if !spec.layers.iter().any(|layer| matches!(layer.mixer, Mixer::Mla(_))) {
            continue;
        }
        walk(&golden, |files, layer, shape, rows| {
            let Mixer::Mla(mla) = &spec.layers[layer].mixer else { return };
            let named = |part: &str| {
                let found = shape.matrices.iter().find(|m| m.module.ends_with(part));
                matrix(files, found.expect(part))
            };
            let weights = |reads: Reads| values(files, &shape.norms[&reads].weight);
            let kv = named("kv_a_proj_with_mqa");
            for (at, x) in rows[&Reads::Mixer].iter().enumerate() {
                let what = format!("{name} {layer}, row {at}");
                let latent = &product(&kv, x)[..mla.kv_rank];
                let expected = norm(&weights(Reads::KeyLatent), latent);
                assert_near(&rows[&Reads::KeyLatent][at], &expected, &what);
                if mla.q_rank.is_some() {
                    let latent = product(&named("q_a_proj"), x);
                    let expected = norm(&weights(Reads::QueryLatent), &latent);
                    assert_near(&rows[&Reads::QueryLatent][at], &expected, &what);
                }
                assert_eq!(rows[&Reads::Attended][at].len(), mla.n_heads * mla.value_dim);
            }
            // The first row sees itself alone: its values are those of its latent.
            let both = product(&named("kv_b_proj"), &rows[&Reads::KeyLatent][0]);
            let heads = both.chunks(mla.nope_dim + mla.value_dim);
            let own: Vec<f64> = heads.flat_map(|head| head[mla.nope_dim..].to_vec()).collect();
            assert_near(&rows[&Reads::Attended][0], &own, &format!("{name} {layer}, values"));
            let listed: Vec<_> = shape.matrices.iter().filter(|m| m.reads.is_none()).collect();
            assert!(listed.is_empty(), "{name} {layer}: {listed:?}");
        });
        n_models += 1;
    }
    assert!(n_models >= 7, "{n_models} models");
}
