//! Activations that share scales in groups of several sizes, on every quantized fixture.

use pelton_kernels::{Cpu, Kernels};
use pelton_model::{ActivationGroup, CpuDevice, LoadOptions, inspect, load, load_cpu};

use crate::common::{Golden, bits, cut, open, quantized_folders, run_chunks, run_whole, scattered};

/// Bounds on the root of the mean square error over all logits, relative to that of the logits.
const BOUNDS: [f32; 4] = [0.06, 0.06, 0.06, 0.08];

fn fixtures() -> Vec<Golden> {
    quantized_folders().iter().map(|folder| open(folder)).collect()
}

/// The largest groups that a product of the model takes.
fn widest(golden: &Golden) -> ActivationGroup {
    let inspection = inspect(&golden.files(), pelton_model::KvDtype::Bf16).expect("inspects");
    let layouts = inspection.activation_groups.into_keys();
    let groups = layouts.filter_map(|l| CpuDevice::activation_group(l, ActivationGroup::Row));
    groups.max().unwrap_or_default()
}

fn logits(golden: &Golden, activation_group: ActivationGroup) -> Vec<Vec<f32>> {
    let options = LoadOptions { activation_group, n_threads: Some(1), ..LoadOptions::default() };
    let mut decoder = load_cpu(&golden.files(), &options).expect(&golden.name);
    run_whole(&mut decoder, &golden.tokens())
}

#[test]
fn larger_groups_change_the_models_whose_scales_allow_them_and_only_a_little() {
    let mut n_changed = [0; 4];
    for golden in fixtures() {
        let widest = widest(&golden);
        let mut before = logits(&golden, ActivationGroup::Of32);
        for (i, group) in ActivationGroup::ALL.into_iter().enumerate() {
            let rows = logits(&golden, group);
            // A model of narrow rows has the same groups of 128 as of a row.
            let is_same = bits(&rows) == bits(&before);
            assert!(is_same || group <= widest, "{}: groups of {group}", golden.name);
            n_changed[i] += usize::from(!is_same);
            let error = golden.mean_error(&rows);
            println!("{:20} {group:>4} {error:.2e}", golden.name);
            assert!(error < BOUNDS[i], "{}: {error:e} with groups of {group}", golden.name);
            before = rows;
        }
    }
    assert_eq!(n_changed[0], 0, "the default");
    // No fixture has rows of more than 128.
    assert!(n_changed[1..3].iter().all(|&n| n >= 3), "changed models: {n_changed:?}");
}

#[test]
fn cuts_of_the_prompt_kernels_and_threads_change_no_bit_with_larger_groups() {
    for golden in fixtures() {
        let widest = widest(&golden);
        let (files, tokens) = (golden.files(), golden.tokens());
        for group in ActivationGroup::ALL.into_iter().skip(1).filter(|group| *group <= widest) {
            let expected = bits(&logits(&golden, group));
            for kernels in Kernels::available() {
                let mut cpu = Cpu::with(kernels, 2);
                cpu.activation_group = group;
                let options = LoadOptions::default();
                let mut decoder = load(&files, CpuDevice::new(cpu), &options).expect(&golden.name);
                for sizes in [&[1][..], &[7, 1, 9], &[1000]] {
                    let (chunks, blocks) = (cut(tokens.len(), sizes), scattered(tokens.len()));
                    let rows = run_chunks(&mut decoder, &tokens, &chunks, &blocks);
                    let what = format!("{} {} {group} {sizes:?}", golden.name, kernels.name);
                    assert!(bits(&rows) == expected, "{what}");
                }
            }
        }
    }
}

#[test]
fn an_inspection_names_the_groups_of_each_layout() {
    let groups = |name: &str, group: ActivationGroup| {
        let golden = fixtures().into_iter().find(|golden| golden.name == name).expect(name);
        let inspection = inspect(&golden.files(), pelton_model::KvDtype::Bf16).expect("inspects");
        inspection.with_activations_in(group).activation_groups
    };
    let row = ActivationGroup::Row;
    assert_eq!(groups("ct-w8a8", row).get("int8-row"), Some(&"row"));
    assert_eq!(groups("ct-w8a8", ActivationGroup::Of64).get("int8-row"), Some(&"64"));
    assert_eq!(groups("ct-w8a8", ActivationGroup::Of32).get("int8-row"), Some(&"32"));
    assert_eq!(groups("awq-g64", row).get("int4-g64"), Some(&"64"));
    assert_eq!(groups("awq-g32", row).get("int4-g32"), Some(&"32"));
    assert!(groups("fp8-row", row).is_empty(), "float weights multiply floats");
}
