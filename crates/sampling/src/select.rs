//! The largest few of many logits, without sorting the many.
//!
//! A logit and its id become one integer key whose order is the order we want (larger logit first,
//! lower id among equals), so that no two keys are equal and every algorithm gives one answer.
//! A pass over the logits keeps the keys above a threshold; when the buffer is full, a linear-time
//! selection halves it and raises the threshold. At vocabulary 150,000 and k = 40 all but a few
//! hundred logits cost a share of a vector comparison each.

use crate::math::tame;

/// Smallest capacity of the buffer: selections are then rare even for tiny `k`.
const MIN_CAPACITY: usize = 512;
/// Numbers looked at together.
const STRIP: usize = 64;

/// Bits that order like the number: flip all of a negative, the sign of a positive.
fn ordered_bits(logit: f32) -> u32 {
    let bits = (tame(logit) + 0.0).to_bits(); // + 0.0 makes one zero of two.
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Orders a token by its logit, and by its id among equals.
#[inline]
pub(crate) fn key(id: usize, logit: f32) -> u64 {
    u64::from(ordered_bits(logit)) << 32 | u64::from(!(id as u32))
}

/// The logit of a key, tame.
pub(crate) fn logit_of(key: u64) -> f32 {
    let bits = (key >> 32) as u32;
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}

/// The id of a key.
pub(crate) fn id_of(key: u64) -> usize {
    !(key as u32) as usize
}

/// Puts the keys of the `k` largest logits into `keys`, largest first; fewer when there are fewer
/// logits above minus infinity.
pub(crate) fn largest(logits: &[f32], k: usize, keys: &mut Vec<u64>) {
    keys.clear();
    if k == 0 {
        return;
    }
    let capacity = k.saturating_mul(2).max(MIN_CAPACITY);
    keys.reserve(capacity.min(logits.len()));
    // Minus infinity never enters; the comparison in the loop is between plain floats.
    let mut threshold = f32::NEG_INFINITY;
    for (start, strip) in (0..).step_by(STRIP).zip(logits.chunks(STRIP)) {
        // Without an early exit, so that the comparison is a vector one; most strips have none.
        if !strip.iter().fold(false, |any, &logit| any | (logit > threshold)) {
            continue;
        }
        for (id, &logit) in (start..).zip(strip) {
            // A logit equal to the threshold is left out: its id is higher than those that set the
            // threshold.
            if logit > threshold {
                keys.push(key(id, logit));
                if keys.len() == capacity {
                    keep_largest(keys, k);
                    threshold = logits[id_of(keys[k - 1])];
                }
            }
        }
    }
    if keys.len() > k {
        keep_largest(keys, k);
    }
    keys.sort_unstable_by(|a, b| b.cmp(a));
}

/// Puts the keys of the logits whose weight is at least `least` into `keys`, by id.
pub(crate) fn at_least(logits: &[f32], weights: &[f32], least: f32, keys: &mut Vec<u64>) {
    keys.clear();
    keys.reserve(logits.len());
    for (start, strip) in (0..).step_by(STRIP).zip(weights.chunks(STRIP)) {
        // Without an early exit, so that the comparison is a vector one; most strips have none.
        if strip.iter().fold(false, |any, &weight| any | (weight >= least)) {
            let ids = (start..).zip(strip).filter(|(_, weight)| **weight >= least);
            keys.extend(ids.map(|(id, _)| key(id, logits[id])));
        }
    }
}

/// Brings the `n` largest keys to the front, largest first.
pub(crate) fn sort_largest(keys: &mut [u64], n: usize) {
    if 0 < n && n < keys.len() {
        keys.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
    }
    keys[..n].sort_unstable_by(|a, b| b.cmp(a));
}

/// Keeps the `k` largest keys, the smallest of them last.
fn keep_largest(keys: &mut Vec<u64>, k: usize) {
    keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    keys.truncate(k);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn oracle(logits: &[f32], k: usize) -> Vec<usize> {
        let mut ids: Vec<usize> =
            (0..logits.len()).filter(|&id| tame(logits[id]) > f32::NEG_INFINITY).collect();
        ids.sort_by(|&a, &b| tame(logits[b]).total_cmp(&tame(logits[a])).then(a.cmp(&b)));
        ids.truncate(k);
        ids
    }

    proptest! {
        #[test]
        fn selecting_equals_sorting(
            logits in prop::collection::vec(
                // A small alphabet makes ties the rule.
                prop_oneof![
                    8 => (-3..3_i8).prop_map(f32::from),
                    1 => Just(f32::NAN),
                    1 => Just(f32::NEG_INFINITY),
                    1 => Just(f32::INFINITY),
                    4 => -10.0..10.0_f32,
                ],
                0..1500,
            ),
            k in prop_oneof![0..5_usize, 250..260_usize, 0..4000_usize],
        ) {
            let logits: Vec<f32> = logits.iter().map(|&l| if l == 0.0 { 0.0 } else { l }).collect();
            let mut keys = Vec::new();
            largest(&logits, k, &mut keys);
            let ids: Vec<usize> = keys.iter().map(|&key| id_of(key)).collect();
            prop_assert_eq!(ids, oracle(&logits, k));
            for &key in &keys {
                prop_assert_eq!(logit_of(key), tame(logits[id_of(key)]));
            }
        }
    }
}
