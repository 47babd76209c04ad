//! A plan's bytes are those that loading allocates: every family, every type of keys and values.

use pelton_model::{
    KvDtype, LoadOptions, ModelFiles, ModelOutline, StateDtype, export_gguf, inspect, load_cpu,
};
use pelton_plan::{
    Arithmetic, Hardware, HardwareKind, Peaks, Plan, Request, Split, Stored, WeightSizes, Weights,
    plan,
};
use pelton_quant::for_name;
use pelton_testkit::golden::{Checkpoint, decoders, encoder_decoders};

/// A processor with a gigabyte.
fn processor() -> Hardware {
    Hardware {
        name: "here".to_owned(),
        words: "a processor".to_owned(),
        kind: HardwareKind::Processor,
        memory_bytes: 1 << 30,
        read_bandwidth: 1e10,
        peaks: Peaks { f32: 1e11, ..Peaks::default() },
        quantized_by: Arithmetic::F32,
        link_bandwidth: None,
        sources: Vec::new(),
        products: Vec::new(),
        rows: None,
        attention: Vec::new(),
        barrier_s: None,
    }
}

fn planned(
    files: &ModelFiles,
    weights: Weights,
    (kv_dtype, state_dtype): (KvDtype, StateDtype),
    [block, context, batch]: [usize; 3],
) -> Plan {
    let hardware = processor();
    let request = Request {
        hardware: &hardware,
        memory_bytes: hardware.memory_bytes,
        weights,
        kv_dtype,
        state_dtype,
        block_tokens: block,
        context_tokens: context,
        batch,
        input_tokens: 1,
        output_tokens: 1,
        step_tokens: 16,
        n_ranks: 1,
        split: Split::Outputs,
        price_per_hour: None,
    };
    plan(&ModelOutline::of_files(files).expect("an outline"), &request)
}

/// Each family as a folder in `folder`.
fn each(check: impl Fn(&Checkpoint, &std::path::Path, &ModelFiles)) {
    let decoders = decoders().into_iter().map(|golden| golden.checkpoint);
    let with_encoders = encoder_decoders().into_iter().map(|golden| golden.checkpoint);
    let all: Vec<Checkpoint> = decoders.chain(with_encoders).collect();
    assert!(all.len() >= 40, "{} families", all.len());
    for checkpoint in &all {
        let folder = tempfile::tempdir().expect("temp");
        checkpoint.write_folder(folder.path());
        check(checkpoint, folder.path(), &ModelFiles::open(folder.path()).expect("a model"));
    }
}

fn options(kv_dtype: KvDtype, state_dtype: StateDtype) -> LoadOptions<'static> {
    let kv_dtype = Some(kv_dtype);
    LoadOptions { n_threads: Some(1), kv_dtype, state_dtype, ..LoadOptions::default() }
}

#[test]
fn keys_and_values_and_stored_weights_take_the_bytes_of_the_plan() {
    each(|checkpoint, _, files| {
        let facts = inspect(files, KvDtype::Bf16).expect("a model");
        let stored = Stored {
            prevailing: for_name("f32").expect("a format"),
            packed_bytes: facts.weight_bytes,
            file_bytes: facts.n_bytes,
        };
        for (i, kv_dtype) in KvDtype::ALL.into_iter().enumerate() {
            let state_dtype = StateDtype::ALL[i % 2];
            let name = format!("{} {kv_dtype}, {state_dtype}", checkpoint.name());
            let mut decoder = load_cpu(files, &options(kv_dtype, state_dtype)).expect("loads");
            decoder.group_windows();
            // Contexts shorter than a step: layers with a window hold all tokens, too.
            let n_groups = decoder.spec().n_kv_groups();
            for [block, context, batch] in [[16, 33, 3], [5, 24, 1]] {
                let lengths = [block, context, batch];
                let types = (kv_dtype, state_dtype);
                let told = planned(files, Weights::Stored(stored), types, lengths);
                let n_blocks = (context.div_ceil(block) * batch + 1) * n_groups;
                let kv = decoder.try_new_kv_for(n_blocks, block, batch, 0).expect("memory");
                let n_bytes = (kv.n_bytes() + kv.n_state_bytes()) as u64;
                assert_eq!(told.fit.kv_bytes, n_bytes, "{name}");
                let by_part =
                    [told.kv.block_bytes * n_blocks as u64, told.kv.state_bytes * batch as u64];
                assert_eq!(by_part, [kv.n_bytes() as u64, kv.n_state_bytes() as u64], "{name}");
                assert_eq!(told.fit.weight_bytes, decoder.memory_bytes(), "{name}");
            }
        }
    });
}

#[test]
fn weights_in_a_format_take_the_bytes_that_their_converted_file_takes() {
    let n_compared = std::cell::Cell::new(0);
    each(|checkpoint, folder, files| {
        // The configuration alone knows as much.
        let outline = ModelOutline::of_config(folder).expect("a configuration");
        assert_eq!(outline.spec.layers, files.spec().expect("a spec").layers);
        for format in ["f32", "bf16", "q8_0", "q4_0", "q6_k"] {
            let name = format!("{} {format}", checkpoint.name());
            let path = folder.join(format!("{format}.gguf"));
            // Families that `convert` does not write are compared as they are stored, above.
            if export_gguf(files, format, &path, None).is_err() {
                continue;
            }
            let converted = ModelFiles::open(&path).expect("opens");
            let decoder =
                load_cpu(&converted, &options(KvDtype::Bf16, StateDtype::F32)).expect("loads");
            let weights = Weights::Format(for_name(format).expect("a format"));
            let told = WeightSizes::new(&outline, &weights, &processor());
            assert_eq!(told.n_bytes, decoder.memory_bytes(), "{name}");
            n_compared.set(n_compared.get() + 1);
            assert_eq!(told.step_bytes, decoder.weight_bytes() as u64, "{name}");
        }
    });
    assert!(n_compared.get() >= 26 * 5, "{} comparisons", n_compared.get());
}
