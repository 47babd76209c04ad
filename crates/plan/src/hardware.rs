//! Machines as the roofline sees them: memory, bandwidth, and peaks of arithmetic.
//!
//! `hardware.json` has profiles of known machines, each number with its source. `pelton doctor` makes
//! one of the machine at hand, which also has the speeds of products as they were measured.

use serde::{Deserialize, Serialize};

/// Kind of a machine, which decides how weights lie in its memory.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HardwareKind {
    /// A processor: weights are packed as Pelton packs them, attention computes in f32.
    Processor,
    /// A graphics processor: weights are counted as files have them, attention computes in 16 bits.
    Accelerator,
}

/// Numbers that are multiplied.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit floats.
    Fp8,
    /// 8-bit integers.
    Int8,
}

impl Arithmetic {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
        }
    }
}

/// Operations per second of each arithmetic, a multiply-add being two; none where there is no such
/// instruction.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Peaks {
    /// Single precision, which every machine has.
    pub f32: f64,
    /// IEEE half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f16: Option<f64>,
    /// bfloat16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16: Option<f64>,
    /// 8-bit floats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8: Option<f64>,
    /// 8-bit integers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8: Option<f64>,
}

/// The speed of products with weights of one layout, as it was measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredProduct {
    /// Name of the packed layout.
    pub layout: String,
    /// Rows that were multiplied at once.
    pub rows: usize,
    /// Packed bytes of weights per second.
    pub bytes_per_s: f64,
}

/// Time of an operation on rows, by the elements of all rows.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLine {
    /// Seconds that a call takes however few elements it has.
    pub fixed_s: f64,
    /// Seconds of one element more.
    pub s_per_element: f64,
}

impl MeasuredLine {
    /// The line through two calls, `(elements, seconds)`, the second with more elements.
    ///
    /// ```text
    /// noise may make the larger call the faster one: neither part goes below zero
    /// ```
    pub fn through(few: (f64, f64), many: (f64, f64)) -> Self {
        let slope = (many.1 - few.1) / (many.0 - few.0).max(1.0);
        let s_per_element = slope.clamp(0.0, many.1 / many.0.max(1.0));
        Self { fixed_s: (few.1 - s_per_element * few.0).max(0.0), s_per_element }
    }

    /// Seconds of a call.
    pub(crate) fn seconds(self, n_elements: f64) -> f64 {
        self.fixed_s + self.s_per_element * n_elements
    }
}

/// Operations on rows between the products of a layer, as they were measured.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRows {
    /// The norm of a sum, by elements of the rows.
    pub norm: MeasuredLine,
    /// Bringing a row into the form that quantized weights are multiplied with, by elements.
    pub quantize: MeasuredLine,
    /// The middle of a perceptron, by elements that go on.
    pub activation: MeasuredLine,
    /// The rotation of queries and keys, by elements.
    pub rotation: MeasuredLine,
    /// Storing keys and values, by elements of both.
    pub store: MeasuredLine,
}

/// Attention with keys and values of one type, as it was measured.
///
/// An element is one of a key or of a value; a query head has as many as its keys and values.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredAttention {
    /// Name of the stored type.
    pub kv_dtype: String,
    /// Seconds for a decoding row to read an element of a stored token.
    pub read_s: f64,
    /// Seconds for a decoding row to compute with it, for each query head that shares it.
    pub query_s: f64,
    /// Seconds of both for each query head of a row of a prompt.
    pub prompt_query_s: f64,
}

/// A machine.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Name on the command line.
    pub name: String,
    /// The same for people.
    pub words: String,
    /// Kind of machine.
    pub kind: HardwareKind,
    /// Memory for weights, keys and values, in bytes.
    pub memory_bytes: u64,
    /// Reads from memory, bytes per second; 0 where the speed of the machine is unknown.
    pub read_bandwidth: f64,
    /// Operations per second.
    pub peaks: Peaks,
    /// Arithmetic that quantized weights are multiplied with.
    pub quantized_by: Arithmetic,
    /// Bytes per second that it receives from others of its kind; none where they are not linked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<f64>,
    /// Source of each number.
    pub sources: Vec<String>,
    /// Products as they were measured; none where the numbers are those of a datasheet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<MeasuredProduct>,
    /// Operations on rows as they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<MeasuredRows>,
    /// Attention as it was measured, by stored type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<MeasuredAttention>,
    /// Seconds from one parallel operation to the next, as they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_s: Option<f64>,
}

/// The profiles of known machines.
///
/// # Panics
///
/// Never: a test reads the file.
pub fn profiles() -> Vec<Hardware> {
    serde_json::from_str(include_str!("hardware.json")).expect("invariant: a test reads it")
}

impl Hardware {
    /// Whether its speed is known.
    pub fn has_speed(&self) -> bool {
        self.read_bandwidth > 0.0 && self.peaks.f32 > 0.0
    }

    /// The peak of an arithmetic, or of f32 where the machine has no such instruction.
    pub fn peak(&self, arithmetic: Arithmetic) -> (Arithmetic, f64) {
        let Peaks { f32, f16, bf16, fp8, int8 } = self.peaks;
        let own = match arithmetic {
            Arithmetic::F32 => Some(f32),
            Arithmetic::F16 => f16,
            Arithmetic::Bf16 => bf16,
            Arithmetic::Fp8 => fp8,
            Arithmetic::Int8 => int8,
        };
        own.map_or((Arithmetic::F32, f32), |peak| (arithmetic, peak))
    }

    /// The arithmetic of attention.
    pub(crate) fn attention_by(&self) -> Arithmetic {
        match self.kind {
            HardwareKind::Processor => Arithmetic::F32,
            HardwareKind::Accelerator => Arithmetic::F16,
        }
    }

    /// Bytes per element that machines of this kind send each other.
    pub(crate) fn sent_bytes(&self) -> u64 {
        match self.kind {
            HardwareKind::Processor => 4,
            HardwareKind::Accelerator => 2,
        }
    }

    /// Attention with this stored type, where it was measured.
    pub(crate) fn measured_attention(&self, kv_dtype: &str) -> Option<&MeasuredAttention> {
        self.attention.iter().find(|measured| measured.kv_dtype == kv_dtype)
    }

    /// Seconds per packed byte of weights of a product of `rows` rows, as it was measured: straight
    /// lines between the measured numbers of rows, and proportional to the rows beyond the last.
    pub(crate) fn measured_s_per_byte(&self, layout: &str, rows: f64) -> Option<f64> {
        let points = self.products.iter().filter(|product| product.layout == layout);
        let mut points: Vec<(f64, f64)> =
            points.map(|product| (product.rows as f64, product.bytes_per_s.recip())).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (&(_, least), &(most_rows, most)) = (points.first()?, points.last()?);
        if rows >= most_rows {
            return Some(most * rows / most_rows);
        }
        let between = points.windows(2).find(|pair| rows >= pair[0].0 && rows < pair[1].0);
        Some(between.map_or(least, |pair| {
            let ((from, s_from), (to, s_to)) = (pair[0], pair[1]);
            s_from + (s_to - s_from) * (rows - from) / (to - from)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_whole_and_says_where_its_numbers_are_from() {
        let profiles = profiles();
        let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        for wanted in
            ["a100-80gb", "h100-sxm", "h200", "mi300x", "rtx-4090", "apple-", "xeon-", "epyc-"]
        {
            assert!(names.iter().any(|name| name.starts_with(wanted)), "{wanted}: {names:?}");
        }
        for profile in &profiles {
            assert_eq!(names.iter().filter(|name| **name == profile.name).count(), 1);
            assert!(profile.memory_bytes >= 20 << 30 && profile.read_bandwidth > 1e11);
            assert!(profile.peaks.f32 > 1e12, "{}", profile.name);
            let text = profile.sources.join("; ");
            for number in ["memory", "bandwidth", "peaks"] {
                assert!(
                    text.contains(number) || (number == "peaks" && text.contains("f32")),
                    "{}: {number} has no source in {text}",
                    profile.name
                );
            }
            assert_eq!(profile.link_bandwidth.is_some(), text.contains("link"), "{}", profile.name);
            assert!(profile.products.is_empty() && profile.barrier_s.is_none());
            assert!(profile.rows.is_none() && profile.attention.is_empty());
            // The arithmetic of quantized weights is one that the machine has.
            assert_eq!(profile.peak(profile.quantized_by).0, profile.quantized_by);
        }
    }

    #[test]
    fn a_line_goes_through_two_calls_and_never_below_zero() {
        let line = MeasuredLine::through((100.0, 3.0), (1100.0, 13.0));
        assert_eq!(line, MeasuredLine { fixed_s: 2.0, s_per_element: 0.01 });
        assert_eq!((line.seconds(100.0), line.seconds(600.0)), (3.0, 8.0));
        // In a noisy moment the small call is the slower one.
        let noisy = MeasuredLine::through((100.0, 3.0), (1100.0, 2.0));
        assert_eq!(noisy, MeasuredLine { fixed_s: 3.0, s_per_element: 0.0 });
        let steep = MeasuredLine::through((100.0, 0.001), (1100.0, 13.0));
        assert_eq!((steep.fixed_s, steep.s_per_element), (0.0, 13.0 / 1100.0));
    }

    #[test]
    fn measured_products_are_joined_by_straight_lines() {
        let mut machine = profiles().pop().expect("a profile");
        let product =
            |rows, bytes_per_s| MeasuredProduct { layout: "q8".to_owned(), rows, bytes_per_s };
        machine.products = vec![product(32, 1.0), product(1, 4.0), product(8, 2.0)];
        let at = |rows| machine.measured_s_per_byte("q8", rows).expect("measured");
        assert_eq!((at(0.2), at(1.0), at(8.0), at(32.0)), (0.25, 0.25, 0.5, 1.0));
        assert_eq!(at(20.0), 0.75);
        assert_eq!(at(64.0), 2.0);
        assert_eq!(machine.measured_s_per_byte("q4", 1.0), None);
    }
}
