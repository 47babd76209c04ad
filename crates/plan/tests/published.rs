//! Sizes that are published for known models, from their configurations alone.

use pelton_model::{KvDtype, ModelOutline, StateDtype};
use pelton_plan::{Hardware, KvSizes, Request, Split, Way, WeightSizes, Weights, plan, profiles};
use pelton_quant::for_name;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
const BLOCK: usize = 16;

/// The outline of a model with this configuration.
fn outline(config: &Value) -> ModelOutline {
    let folder = tempfile::tempdir().expect("temp");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    ModelOutline::of_config(folder.path()).expect("a configuration")
}

fn llama(layers: usize, hidden: usize, heads: usize, kv_heads: usize, ffn: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": 32000, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "torch_dtype": "float16", "tie_word_embeddings": false,
        "rope_theta": 10000.0,
    })
}

fn deepseek_v3() -> Value {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
        "moe_layer_freq": 1, "norm_topk_prob": true, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "routed_scaling_factor": 2.5, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "vocab_size": 129280, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "rope_theta": 10000, "tie_word_embeddings": false,
    })
}

fn kv(config: &Value, dtype: KvDtype, tokens: usize) -> KvSizes {
    KvSizes::new(&outline(config).spec, dtype, BLOCK, tokens)
}

fn profile(name: &str) -> Hardware {
    profiles().into_iter().find(|profile| profile.name == name).expect("a profile")
}

#[test]
fn keys_and_values_take_what_is_published() {
    let llama_2_7b = llama(32, 4096, 32, 32, 11008);
    let of = |config: &Value, tokens| kv(config, KvDtype::F16, tokens).sequence_bytes;
    assert_eq!(kv(&llama_2_7b, KvDtype::F16, 1).token_bytes, 512 << 10);
    assert_eq!(of(&llama_2_7b, 4096), 2 * GIB);
    // 48 layers with 8 heads of 128.
    assert_eq!(of(&llama(48, 4096, 32, 8, 11008), 4096), GIB * 3 / 4);
    let llama_2_70b = llama(80, 8192, 64, 8, 28672);
    assert_eq!(of(&llama_2_70b, 4096), GIB * 5 / 4);
    assert_eq!(of(&llama_2_70b, 32768), 10 * GIB);
    assert_eq!(of(&llama(80, 8192, 64, 64, 28672), 32768), 80 * GIB);
}

#[test]
fn old_tokens_in_eight_bits_and_few_of_them_take_less_by_what_is_published() {
    // One in four of 7,680 old tokens in 8 bits, and 512 recent ones in 16 bits, of 8,192.
    let config = llama(32, 4096, 32, 8, 14336);
    let bytes = |dtype, tokens| kv(&config, dtype, tokens).sequence_bytes as f64;
    let kept = bytes(KvDtype::Fp8, 7680 / 4) + bytes(KvDtype::F16, 512);
    assert_eq!(format!("{:.2}", bytes(KvDtype::F16, 8192) / kept), "5.57");
}

#[test]
fn a_mix_of_four_and_six_bits_has_the_published_bits() {
    // Q4_K_M of llama.cpp for Llama 3.1 8B: the output, and the values and the last matrix of half of
    // the layers, have six bits.
    let mut config = llama(32, 4096, 32, 8, 14336);
    config["vocab_size"] = json!(128256);
    let h100 = profile("h100-sxm");
    let bits = |format: &str| {
        let format = for_name(format).expect("a format");
        WeightSizes::new(&outline(&config), &Weights::Format(format), &h100)
    };
    let (four, six) = (bits("q4_k"), bits("q6_k"));
    let n_six = 128_256 * 4096 + 16 * (4096 * 1024 + 4096 * 14336);
    let share = f64::from(n_six) / four.n_parameters as f64;
    let mixed = four.bits_per_weight + share * (six.bits_per_weight - four.bits_per_weight);
    assert_eq!(format!("{mixed:.2}"), "4.89");
}

#[test]
fn latent_attention_takes_576_elements_per_layer() {
    let sizes = kv(&deepseek_v3(), KvDtype::Bf16, 4096);
    assert_eq!(sizes.token_bytes, 61 * 576 * 2);
    assert_eq!(format!("{:.1} KiB", sizes.token_bytes as f64 / 1024.0), "68.6 KiB");
}

#[test]
fn a_sequence_holds_its_window_and_one_step_of_layers_with_a_window() {
    let mut config = llama(32, 4096, 32, 8, 14336);
    config["architectures"] = json!(["MistralForCausalLM"]);
    config["sliding_window"] = json!(4096);
    let long = kv(&config, KvDtype::Bf16, 32768);
    assert_eq!(long.unfreed_bytes, 4 * GIB);
    // The window, what is computed at once, and one block that they begin within.
    assert_eq!(long.sequence_bytes, GIB / 2 + (512 + BLOCK as u64) * long.token_bytes);
    let short = kv(&config, KvDtype::Bf16, 2048);
    assert_eq!(short.sequence_bytes, short.unfreed_bytes);
}

#[test]
fn parameters_and_bits_are_those_of_the_models() {
    let h100 = profile("h100-sxm");
    let sizes = |config: &Value, format: &str| {
        let format = for_name(format).expect("a format");
        WeightSizes::new(&outline(config), &Weights::Format(format), &h100)
    };
    let seven = sizes(&llama(32, 4096, 32, 32, 11008), "f16");
    assert_eq!(seven.n_parameters, 6_738_415_616);
    assert_eq!(seven.n_parameters, seven.n_active_parameters);
    let llama_2_70b = llama(80, 8192, 64, 8, 28672);
    assert_eq!(sizes(&llama_2_70b, "bf16").n_parameters, 68_976_648_192);
    // All experts stay in memory; those that are chosen are multiplied with.
    let v3 = sizes(&deepseek_v3(), "q8_0");
    assert_eq!(format!("{:.0}", v3.n_parameters as f64 / 1e9), "671");
    let active = v3.n_active_parameters as f64 / 1e9;
    assert!((36.5..38.5).contains(&active), "{active}");
    assert!(v3.n_bytes > v3.n_parameters && v3.step_bytes < v3.n_bytes / 10);
    // Scales included; norms and routers are f32.
    for (format, bits) in [("q8_0", 8.5), ("q4_k", 4.5), ("q4_0", 4.5), ("bf16", 16.0)] {
        let found = sizes(&llama_2_70b, format).bits_per_weight;
        assert!((found - bits).abs() < 0.01, "{format}: {found}");
    }
}

fn request<'a>(hardware: &'a Hardware, format: &str) -> Request<'a> {
    Request {
        hardware,
        memory_bytes: hardware.memory_bytes,
        weights: Weights::Format(for_name(format).expect("a format")),
        kv_dtype: KvDtype::F16,
        state_dtype: StateDtype::F32,
        block_tokens: BLOCK,
        context_tokens: 4096,
        batch: 1,
        input_tokens: 1024,
        output_tokens: 256,
        step_tokens: 8192,
        n_ranks: 1,
        split: Split::Outputs,
        price_per_hour: Some(3.6),
    }
}

#[test]
fn one_sequence_is_read_and_a_prompt_is_multiplied() {
    let (h100, model) = (profile("h100-sxm"), outline(&llama(32, 4096, 32, 32, 11008)));
    let found = plan(&model, &request(&h100, "f16"));
    let times = found.times.expect("a profile has a speed");
    // Weights without the embedding, and the keys and values of 1,152 tokens.
    let bytes = (6_738_415_616.0 - 32000.0 * 4096.0) * 2.0 + 1152.0 * 524_288.0;
    let tpot = bytes / 3350e9;
    assert!((times.tpot_s / tpot - 1.0).abs() < 0.01, "{} s, {tpot} s", times.tpot_s);
    assert_eq!(times.decode_limit, pelton_plan::Limit::Bandwidth);
    let operations = 2.0 * 6.476e9 * 1024.0 + 4.0 * 4096.0 * 32.0 * 1024.0 * 1025.0 / 2.0;
    let ttft = operations / 989.4e12;
    assert!((times.ttft_s / ttft - 1.0).abs() < 0.05, "{} s, {ttft} s", times.ttft_s);
    assert_eq!(times.prompt_limit, pelton_plan::Limit::Arithmetic);
    // Two bytes and two operations per weight: peak over bandwidth.
    assert!((times.ridge_rows / (989.4e12 / 3350e9) - 1.0).abs() < 0.01, "{}", times.ridge_rows);
    assert!(!times.is_measured);
    let cost = found.cost.expect("a price");
    let per_million = 3.6 / 3600.0 * times.tpot_s * 1e6;
    assert!((cost.per_million_output / per_million - 1.0).abs() < 1e-9);
    assert!(cost.workload_per_million_output > cost.per_million_output);
}

#[test]
fn a_plan_that_does_not_fit_says_by_how_much_and_what_would() {
    let (gpu, model) = (profile("rtx-4090"), outline(&llama(32, 4096, 32, 32, 11008)));
    let asked = Request { batch: 16, ..request(&gpu, "f16") };
    let found = plan(&model, &asked);
    let shortage = found.fit.shortage.expect("32 GiB of keys and values in 24 GiB");
    assert_eq!(found.fit.total_bytes, found.fit.memory_bytes + shortage.missing_bytes);
    // Each way, taken alone, is enough; and a bit more is not.
    let mut kinds = Vec::new();
    for way in &shortage.ways {
        let (changed, beyond) = match way {
            Way::Batch { batch } => {
                (Request { batch: *batch, ..asked }, Request { batch: batch + 1, ..asked })
            }
            Way::Context { context } => (
                Request { context_tokens: *context, ..asked },
                Request { context_tokens: context + 1, ..asked },
            ),
            Way::Ranks { ranks } => {
                (Request { n_ranks: *ranks, ..asked }, Request { n_ranks: ranks - 1, ..asked })
            }
            Way::Memory { memory_bytes } => (
                Request { memory_bytes: *memory_bytes, ..asked },
                Request { memory_bytes: memory_bytes - 1, ..asked },
            ),
            Way::KvDtype { .. } | Way::StateDtype { .. } | Way::Weights { .. } => {
                panic!("{way:?} is not enough")
            }
        };
        assert!(plan(&model, &changed).fit.shortage.is_none(), "{way:?}");
        assert!(plan(&model, &beyond).fit.shortage.is_some(), "{way:?} is not the limit");
        kinds.push(std::mem::discriminant(way));
    }
    assert_eq!(kinds.len(), 4, "{:?}", shortage.ways);
    // With a few sequences fewer, smaller keys and values or smaller weights are enough, too.
    let less = plan(&model, &Request { batch: 6, ..asked }).fit.shortage.expect("still too many");
    assert!(less.ways.iter().any(|way| matches!(way, Way::KvDtype { kv_dtype: "fp8" })));
    let format = less.ways.iter().find_map(|way| match way {
        Way::Weights { format, .. } => Some(format.clone()),
        _ => None,
    });
    let format = format.expect("a smaller format");
    let smaller = Request { batch: 6, ..request(&gpu, &format) };
    assert!(plan(&model, &smaller).fit.shortage.is_none(), "{format}");
}

#[test]
fn a_smaller_format_is_one_of_weights_and_the_most_exact_of_its_size() {
    let suggested = |model: &ModelOutline, memory_bytes| {
        let gpu = profile("rtx-4090");
        let asked = Request { memory_bytes, ..request(&gpu, "bf16") };
        let shortage = plan(model, &asked).fit.shortage.expect("too much in bf16");
        shortage.ways.iter().find_map(|way| match way {
            Way::Weights { format, .. } => Some(format.clone()),
            _ => None,
        })
    };
    // Q8_K would be larger than Q8_0, and no weights come in it.
    let wide = outline(&llama(32, 4096, 32, 8, 14336));
    assert_eq!(suggested(&wide, 12 * GIB).as_deref(), Some("q8_0"));
    // All formats in blocks of 256 fall back to Q8_0 for rows of 4000.
    let odd = outline(&llama(32, 4000, 40, 8, 14304));
    assert_eq!(suggested(&odd, 12 * GIB).as_deref(), Some("q8_0"));
}

#[test]
fn ranks_share_weights_and_heads_and_pay_for_what_they_send() {
    let (h100, model) = (profile("h100-sxm"), outline(&llama(80, 8192, 64, 8, 28672)));
    let on = |n_ranks| plan(&model, &Request { n_ranks, batch: 8, ..request(&h100, "bf16") });
    let (one, four) = (on(1), on(4));
    assert!(one.fit.shortage.is_some() && four.fit.shortage.is_none());
    assert_eq!((one.rank.kv_share, four.rank.kv_share, on(16).rank.kv_share), (1.0, 0.25, 0.125));
    let share = four.rank.weight_bytes as f64 / one.rank.weight_bytes as f64;
    assert!((0.25..0.26).contains(&share), "{share}");
    let tpot = |found: &pelton_plan::Plan| found.times.as_ref().expect("timed").tpot_s;
    assert!(tpot(&four) > tpot(&one) / 4.0 && tpot(&four) < tpot(&one) / 3.0);
    // 80 layers, 3/4 of 8192 + 2 * 8192 + 28672 elements.
    assert_eq!(four.rank.received_elements, 80.0 * 0.75 * (3.0 * 8192.0 + 28672.0));
}

#[test]
fn a_pipeline_divides_layers_and_serves_several_batches_at_once() {
    let (h100, model) = (profile("h100-sxm"), outline(&llama(80, 8192, 64, 8, 28672)));
    let on = |n_ranks, batch| {
        let split = Split::Pipeline;
        plan(&model, &Request { n_ranks, split, batch, ..request(&h100, "bf16") })
    };
    let (one, four) = (on(1, 1), on(4, 1));
    let share = four.rank.weight_bytes as f64 / one.rank.weight_bytes as f64;
    assert!((0.25..0.28).contains(&share), "{share}");
    // Stages of 80 layers on 3 machines have at most 27.
    assert_eq!((four.rank.kv_share, on(3, 1).rank.kv_share), (0.25, 27.0 / 80.0));
    assert_eq!(four.rank.received_elements, 3.0 * 8192.0);
    let times = |found: pelton_plan::Plan| found.times.expect("timed");
    let (alone, piped) = (times(one), times(four));
    // A sequence alone passes all machines in turn and gains nothing; four of them fill the
    // pipeline.
    let ratio = piped.tpot_s / alone.tpot_s;
    assert!((1.0..1.05).contains(&ratio), "{ratio}");
    let ratio = times(on(4, 4)).decode_tokens_per_s / alone.decode_tokens_per_s;
    assert!((3.8..=4.0).contains(&ratio), "{ratio}");
    // A prompt of two steps overlaps: 2 * 4 / (2 + 3) machines are busy.
    let long = |n_ranks| {
        let asked = Request { n_ranks, split: Split::Pipeline, ..request(&h100, "bf16") };
        times(plan(&model, &Request { step_tokens: 512, ..asked })).ttft_s
    };
    let ratio = long(1) / long(4);
    assert!((1.5..1.6).contains(&ratio), "{ratio}");
}

#[test]
fn experts_are_divided_and_everything_else_is_whole() {
    let (h200, model) = (profile("h200"), outline(&deepseek_v3()));
    let on = |n_ranks, batch| {
        let split = Split::Experts;
        plan(&model, &Request { n_ranks, split, batch, ..request(&h200, "q8_0") })
    };
    let (one, eight) = (on(1, 64), on(8, 64));
    let experts = {
        let spec = &model.spec;
        assert_eq!(Split::Experts.refusal(spec, 8), None);
        assert!(Split::Experts.refusal(spec, 257).is_some_and(|why| why.contains("256 experts")));
        // 58 layers of 256 experts of 3 * 7168 * 2048 weights, 8.5 bits each.
        58.0 * 256.0 * 3.0 * 7168.0 * 2048.0 * 8.5 / 8.0
    };
    let expected = one.rank.weight_bytes as f64 - experts * 7.0 / 8.0;
    let found = eight.rank.weight_bytes as f64;
    assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
    // Each of 64 sequences lies whole on one of 8 machines.
    assert_eq!((eight.rank.kv_share, eight.fit.kv_bytes), (1.0, eight.kv.pool_bytes(8)));
    // 58 layers send the rows of 8 experts there and back, but for one in eight.
    let elements = 58.0 * 8.0 * 7168.0 * 2.0 * 7.0 / 8.0;
    assert!((eight.rank.received_elements / elements - 1.0).abs() < 1e-9);
    let tpot = |found: pelton_plan::Plan| found.times.expect("timed").tpot_s;
    let (one, eight) = (tpot(one), tpot(eight));
    // Experts are most of the bytes of a step.
    assert!(eight < one / 4.0 && eight > one / 8.0, "{eight} {one}");
}

#[test]
fn a_sequence_is_on_one_machine_and_the_machine_with_most_of_them_counts() {
    let (h200, model) = (profile("h200"), outline(&deepseek_v3()));
    let on = |n_ranks, batch| {
        let (split, memory_bytes) = (Split::Experts, 128 * GIB);
        plan(&model, &Request { n_ranks, split, batch, memory_bytes, ..request(&h200, "q8_0") })
    };
    let (one, nine) = (on(8, 1), on(8, 9));
    // Alone, a sequence has all its keys and values on its machine; of nine, two share one.
    let kv = |found: &pelton_plan::Plan| found.fit.kv_bytes;
    assert_eq!((kv(&one), kv(&nine)), (one.kv.pool_bytes(1), one.kv.pool_bytes(2)));
    // Eight machines have room for eight times as many sequences as one of them.
    assert_eq!(on(8, 1).fit.n_sequences % 8, 0);
    // Logits of more sequences take a little of that room.
    let fits = |batch: &usize| on(8, *batch).fit.shortage.is_none();
    let most = (1..=one.fit.n_sequences).rev().find(fits).expect("one fits");
    assert_eq!(most % 8, 0, "{most} of {}", one.fit.n_sequences);
    assert!(most as f64 > 0.99 * one.fit.n_sequences as f64);
    // With a link that decides, nine sequences take as long as sixteen: two are on one machine.
    let slow = Hardware { link_bandwidth: Some(1.0), ..h200.clone() };
    let sent = |batch| {
        let asked = Request { n_ranks: 8, split: Split::Experts, batch, ..request(&slow, "q8_0") };
        plan(&model, &asked).times.expect("timed").tpot_s
    };
    assert!((sent(9) / sent(16) - 1.0).abs() < 1e-6 && (sent(9) / sent(8) - 2.0).abs() < 1e-6);
    assert!((sent(1) / sent(8) - 1.0).abs() < 1e-6, "one row is sent by one machine");
    // Eight prompts are computed at once, and the ninth after them.
    let first = |batch| on(8, batch).times.expect("timed").ttft_batch_s;
    assert!(first(8) < 4.0 * first(1) && first(9) > 1.9 * first(8), "{} {}", first(8), first(1));
}

#[test]
fn the_machine_with_the_most_experts_counts() {
    let (h200, model) = (profile("h200"), outline(&deepseek_v3()));
    let on = |n_ranks| {
        let split = Split::Experts;
        plan(&model, &Request { n_ranks, split, batch: 64, ..request(&h200, "q8_0") }).rank
    };
    // Of 256 experts on 6 machines, one has 43 and another 42.
    let experts = 58.0 * 256.0 * 3.0 * 7168.0 * 2048.0 * 8.5 / 8.0;
    let expected = on(1).weight_bytes as f64 - experts * (1.0 - 43.0 / 256.0);
    let found = on(6).weight_bytes as f64;
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
    let elements = 58.0 * 8.0 * 7168.0 * 2.0 * (1.0 - 42.0 / 256.0);
    assert!((on(6).received_elements / elements - 1.0).abs() < 1e-9);
}

#[test]
fn rows_and_attention_take_the_time_that_was_measured() {
    use pelton_plan::{MeasuredAttention, MeasuredLine, MeasuredRows};
    let (h100, model) = (profile("h100-sxm"), outline(&llama(10, 4096, 32, 8, 11008)));
    let attention = |kv_dtype: &str| MeasuredAttention {
        kv_dtype: kv_dtype.to_owned(),
        read_s: 1e-9,
        query_s: 1e-10,
        prompt_query_s: 1e-8,
    };
    let tpot = |hardware: &Hardware, batch| {
        plan(&model, &Request { batch, ..request(hardware, "f16") }).times.expect("timed").tpot_s
    };
    let other = Hardware { attention: vec![attention("int8")], ..h100.clone() };
    assert_eq!(tpot(&other, 1), tpot(&h100, 1), "int8 is not what is asked for");
    let attended = Hardware { attention: vec![attention("f16")], ..h100.clone() };
    // 10 layers see 1,152 tokens of 8 heads with 256 elements, 4 query heads to each.
    let seconds = 10.0 * 1152.0 * 256.0 * (8.0 * 1e-9 + 32.0 * 1e-10);
    let read = 10.0 * 1152.0 * 8.0 * 256.0 * 2.0 / h100.read_bandwidth;
    let more = tpot(&attended, 1) - tpot(&h100, 1);
    assert!((more / (seconds - read) - 1.0).abs() < 1e-6, "{more} {seconds}");
    let norm = MeasuredLine { fixed_s: 1e-6, s_per_element: 1e-9 };
    let rows = Some(MeasuredRows { norm, ..MeasuredRows::default() });
    let normed = Hardware { rows, ..h100.clone() };
    // Two norms of each layer and the last one, of 4,096 elements.
    for batch in [1, 8] {
        let more = tpot(&normed, batch) - tpot(&h100, batch);
        let seconds = 21.0 * (1e-6 + 1e-9 * 4096.0 * batch as f64);
        assert!((more / seconds - 1.0).abs() < 1e-6, "{more} {seconds}");
    }
}

#[test]
fn splits_that_a_model_does_not_have_are_refused_with_the_reason() {
    let dense = outline(&llama(4, 64, 4, 4, 128));
    let why = |split: Split, n| split.refusal(&dense.spec, n);
    assert_eq!(why(Split::Experts, 2).as_deref(), Some("the model has no experts"));
    assert_eq!(why(Split::Pipeline, 5).as_deref(), Some("the model has 4 layers"));
    assert_eq!((why(Split::Pipeline, 4), why(Split::Experts, 1)), (None, None));
    assert_eq!(why(Split::Outputs, 64), None);
}
