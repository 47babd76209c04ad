//! Pages of each kind of report.

use serde_json::{Value, json};

use super::*;
use crate::record::{BesideBaseline, Noise};

fn recorded(kind: &str, measures: &Value, more: &Value) -> Recorded {
    let mut whole = json!({
        "report": {
            "format": "pelton-bench", "version": 1, "kind": kind, "pelton": "0.1.0",
            "command": ["pelton", "bench", kind, "<script>"], "at": 0, "interrupted": kind == "sweep",
            "machine": {"cpu": "A & B", "n_processors": 2, "kernels": "avx2", "threads": 2},
        },
        "measures": measures,
    });
    let fields = whole.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    Recorded::parse("a.json", &whole.to_string()).expect("a report")
}

fn drawn(kind: &str, measures: &Value, more: &Value) -> (String, Vec<String>) {
    let page = page(&[("a.json".to_owned(), recorded(kind, measures, more))]).expect("a page");
    for Chart { name, svg, png } in &page.charts {
        check_png(name, png);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{name}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: {svg}");
        assert!(page.html.contains(svg.as_str()), "{name}");
    }
    (page.html, page.charts.into_iter().map(|chart| chart.name).collect())
}

/// A PNG holds axes and words in black or grey, and something in colour.
fn check_png(name: &str, file: &[u8]) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a header");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a small image")];
    let frame = reader.next_frame(&mut pixels).expect("an image");
    assert_eq!((frame.width, frame.height), (760, 400), "{name}");
    let count = |is: fn(&[u8]) -> bool| pixels.chunks_exact(3).filter(|pixel| is(pixel)).count();
    let n_dark = count(|pixel| pixel.iter().all(|&value| value < 128));
    let n_coloured = count(|pixel| {
        pixel.iter().max().expect("three").abs_diff(*pixel.iter().min().expect("three")) > 64
    });
    assert!(n_dark > 1000, "{name}: {n_dark} dark pixels are no axes and words");
    assert!(n_coloured > 10, "{name}: {n_coloured} coloured pixels");
    assert!(n_dark + n_coloured < pixels.len() / 6, "{name} is not mostly white");
}

#[test]
fn a_quantization_shows_each_matrix_and_leaves_out_what_was_not_measured() {
    let matrix = |error: Value| {
        json!({"module": "q_proj", "bits": 4.5, "weight_error": 0.01, "error": error,
               "error_rounded": 0.2, "error_scaled": null, "n_outliers": 3,
               "n_large_inputs": null, "seconds": 0.5})
    };
    let more = json!({"matrices": [matrix(json!(0.1)), matrix(Value::Null)]});
    let (html, charts) = drawn("quantize", &json!([]), &more);
    assert_eq!(charts, ["1-errors", "1-weight-errors", "1-bits", "1-outliers", "1-times"]);
    assert!(html.contains("rounded to nearest") && html.contains("written"), "{html}");
    assert!(!html.contains("once inputs are scaled"), "{html}");
    // Small shares have numbers of their own on the axis.
    let small = json!({"matrices": [{"error": 0.006}, {"error": 0.002}]});
    let (html, _) = drawn("quantize", &json!([]), &small);
    assert!(html.contains("\n0.002\n") && html.contains("\n0.006\n"), "{html}");
    let tiny = json!({"matrices": [{"error": 6e-6}]});
    assert!(drawn("quantize", &json!([]), &tiny).0.contains("\n6.0e-6\n"));
    // Nothing of a calibration.
    let (_, charts) = drawn("quantize", &json!([]), &json!({"matrices": [{"bits": 4.5}]}));
    assert_eq!(charts, ["1-bits"]);
}

#[test]
fn a_page_needs_nothing_else_and_shows_words_as_they_are() {
    let measures = json!([
        {"name": "x <b>", "unit": "s", "better": "lower", "samples": [1.0, 2.0, 3.0]},
        {"name": "empty", "unit": "s", "better": "lower", "samples": []},
    ]);
    let (html, charts) = drawn("grammar", &measures, &json!({}));
    assert_eq!(charts, Vec::<String>::new());
    assert!(html.contains("x &lt;b&gt;") && html.contains("&lt;script&gt;"), "{html}");
    assert!(html.contains("A &amp; B") && !html.contains("<script"), "{html}");
    assert!(!html.contains("src=") && !html.contains("href=") && !html.contains("url("), "{html}");
    assert!(html.contains("<td>2.000</td>"), "{html}");
}

#[test]
fn a_page_says_how_noisy_a_run_was() {
    let of = |is_noisy: bool| {
        let mut recorded = recorded("offline", &json!([]), &json!({}));
        let noise = Noise { seconds: 9.0, others_share: Some(0.3), stolen_share: 0.0, is_noisy };
        recorded.report.noise = Some(noise);
        page(&[("a.json".to_owned(), recorded)]).expect("a page").html
    };
    let noisy = of(true);
    let words = "The run was in a noisy minute: other programs took 30 % of the processors";
    assert!(noisy.contains(&format!("<p class=\"note\">{words}")), "{noisy}");
    assert!(of(false).contains("<p>The run was in a quiet minute"), "{}", of(false));
    assert!(!drawn("offline", &json!([]), &json!({})).0.contains("The run was in"));
}

#[test]
fn a_page_says_where_memory_had_another_speed_than_the_baseline() {
    let of = |bytes_per_s: f64| {
        let mut recorded = recorded("model", &json!([]), &json!({}));
        recorded.report.reads = Some(BesideBaseline { bytes_per_s, baseline_bytes_per_s: 80e9 });
        page(&[("a.json".to_owned(), recorded)]).expect("a page").html
    };
    let words = "<p class=\"note\">In the run, memory gave 52.0 GB/s meanwhile, and 80.0 when";
    assert!(of(52e9).contains(words), "{}", of(52e9));
    assert!(!of(80e9).contains("memory gave"));
}

#[test]
fn a_sweep_shows_its_curve_and_its_knee() {
    let point = |x: f64| json!({"answers_per_s": x, "end_to_end_ms": {"p50": 10.0 * x, "p99": 20.0 * x}, "ttft_ms": {"p50": x}});
    let more = json!({"points": [point(1.0), point(2.0), point(2.2)], "knee": 1});
    let (html, charts) = drawn("sweep", &json!([]), &more);
    assert_eq!(charts, ["1-curve"]);
    assert!(html.contains("knee") && html.contains("interrupted"), "{html}");
    assert_eq!(drawn("sweep", &json!([]), &json!({"points": []})).1.len(), 0);
}

#[test]
fn a_served_workload_shows_histograms_and_a_timeline() {
    let requests = json!({"requests": {
        "arrived_s": [0.0, 1.0, 2.0], "ttft_ms": [10.0, 12.0, 90.0], "end_to_end_ms": [100.0, 120.0, 400.0],
    }, "histograms": {"ttft": {"buckets_ms": [[10.0, 10.1, 2], [90.0, 91.0, 1]]}, "itl": null}});
    let samples: Vec<f64> = (0..20).map(f64::from).collect();
    let measures = json!([{"name": "TTFT", "unit": "ms", "better": "lower", "samples": samples}]);
    let (_, charts) = drawn("serve", &measures, &requests);
    assert_eq!(charts, ["1-ttft", "1-end-to-end", "1-percentiles", "1-timeline", "1-control-1"]);
    assert_eq!(drawn("serve", &json!([]), &json!({"requests": {}})).1.len(), 0);
}

#[test]
fn batches_lie_under_the_roofline() {
    let figure = |batch: f64| {
        json!({
            "batch": batch, "input_tokens": 128, "output_tokens": 32,
            "generated_tokens_per_s": {"median": 20.0 * batch},
            "operations_per_byte": batch, "generation_mfu_percent": 2.0 * batch,
        })
    };
    let more = json!({
        "figures": [figure(1.0), figure(8.0)], "multiplier": ["int8", 9e11],
        "read_bandwidth": {"median": 3e10},
    });
    assert_eq!(drawn("offline", &json!([]), &more).1, ["1-by-batch", "1-roofline"]);
}

#[test]
fn techniques_make_a_waterfall() {
    let step = |name: &str, rate: f64| json!({"name": name, "tokens_per_s": {"median": rate}});
    let more = json!({"stacked": [step("plain", 10.0), step("q8_0", 30.0), step("ngram", 25.0)]});
    let (html, charts) = drawn("ablate", &json!([]), &more);
    assert_eq!(charts, ["1-waterfall"]);
    assert!(html.contains("ngram"), "{html}");
}

#[test]
fn a_page_says_how_many_requests_are_in_no_time() {
    let report = |failed: u64, refused: &Value| json!({"variants": [{"report": {"offered": 9, "failed": failed, "refused": refused}}]});
    let note = |kind: &str, more: &Value| {
        let (html, _) = drawn(kind, &json!([]), more);
        html.lines().find(|line| line.contains("whole answer")).map(str::to_owned)
    };
    let found = note("serve", &report(2, &json!({"status 429": 1}))).expect("a note");
    assert!(found.contains("3 of 9 requests") && found.contains("class=\"note\""), "{found}");
    assert_eq!(note("serve", &report(0, &json!({}))), None);
    let points = json!({"points": [
        {"offered": 4, "answered": 4, "answers_per_s": 1.0, "end_to_end_ms": {"p50": 1.0}},
        {"offered": 6, "answered": 1, "answers_per_s": 2.0, "end_to_end_ms": {"p50": 2.0}},
    ]});
    assert!(note("sweep", &points).expect("a note").contains("5 of 10 requests"));
}
