//! Upper ends of the buckets of histograms. The series with vLLM's names have vLLM's buckets, so
//! that quantiles of several engines can be summed.

/// Times to a first token, in seconds.
pub(super) const TTFT_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Times from a token to the next, in seconds.
pub(super) const TPOT_SECONDS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// The same with buckets for times below 10 ms.
pub(super) const FINE_TPOT_SECONDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0,
    10.0,
];
/// Times of whole requests and of their parts, in seconds.
pub(super) const REQUEST_SECONDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// The same with buckets for times below 0.3 s.
pub(super) const FINE_REQUEST_SECONDS: [f64; 24] = [
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];
/// Times of answers of any route, in seconds.
pub(super) const HTTP_SECONDS: [f64; 13] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Numbers of answers to a request.
pub(super) const ANSWERS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// 1, 2, 5, 10, 20, ... up to `most`.
pub(super) fn one_two_five(most: usize) -> impl Iterator<Item = f64> {
    let decades = (0..).map(|exponent| 10_u64.saturating_pow(exponent));
    let bounds =
        decades.flat_map(|decade| [1, 2, 5].map(|digit: u64| digit.saturating_mul(decade)));
    bounds.take_while(move |&bound| bound <= most as u64).map(|bound| bound as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_and_those_of_tokens_end_before_the_context() {
        for bounds in [&TTFT_SECONDS[..], &TPOT_SECONDS, &FINE_TPOT_SECONDS, &REQUEST_SECONDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
        let bounds: Vec<f64> = one_two_five(2048).collect();
        assert_eq!(bounds[..5], [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(bounds.last(), Some(&2000.0));
        assert_eq!(one_two_five(32_768).count(), 14);
        assert_eq!(one_two_five(0).count(), 0);
    }
}
