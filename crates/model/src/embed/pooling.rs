//! Pooling: one vector from the rows of a text.

use std::str::FromStr;

/// How rows become one vector (Reimers and Gurevych, 2019, and the variants of their library).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Pooling {
    /// The first row.
    Cls,
    /// The largest of each element.
    Max,
    /// The mean.
    Mean,
    /// The sum over the root of the number of rows.
    MeanSqrtLen,
    /// The mean with weights 1, 2, 3, ...
    WeightedMean,
    /// The last row.
    LastToken,
}

/// A name that is no kind of pooling.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected one of {known}, got `{found}`", known = Pooling::names())]
pub struct UnknownPooling {
    /// The name given.
    pub found: String,
}

impl Pooling {
    /// Every kind, in the order in which those of one model are joined.
    pub const ALL: [Self; 6] =
        [Self::Cls, Self::Max, Self::Mean, Self::MeanSqrtLen, Self::WeightedMean, Self::LastToken];

    /// The name, as sentence-transformers has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cls => "cls",
            Self::Max => "max",
            Self::Mean => "mean",
            Self::MeanSqrtLen => "mean_sqrt_len_tokens",
            Self::WeightedMean => "weightedmean",
            Self::LastToken => "lasttoken",
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Whether rows other than the first and the last matter.
    pub(super) fn needs_all_rows(self) -> bool {
        !matches!(self, Self::Cls | Self::LastToken)
    }

    /// Appends the pooled row of `rows`, `[n, width]`, to `out`.
    pub(super) fn pool(self, rows: &[f32], width: usize, out: &mut Vec<f32>) {
        let n = (rows.len() / width) as f64;
        match self {
            Self::Cls => out.extend_from_slice(&rows[..width]),
            Self::LastToken => out.extend_from_slice(&rows[rows.len() - width..]),
            Self::Max => out.extend((0..width).map(|i| {
                // A NaN stays in the result.
                let larger = |a: f32, b: &f32| if b.is_nan() || *b > a { *b } else { a };
                rows[i..].iter().step_by(width).fold(f32::NEG_INFINITY, larger)
            })),
            Self::Mean => add(rows, width, |_| 1.0, n, out),
            Self::MeanSqrtLen => add(rows, width, |_| 1.0, n.sqrt(), out),
            Self::WeightedMean => {
                add(rows, width, |row| (row + 1) as f64, n * (n + 1.0) / 2.0, out)
            }
        }
    }
}

/// Appends the weighted sum of rows over `divisor`.
fn add(rows: &[f32], width: usize, weight: fn(usize) -> f64, divisor: f64, out: &mut Vec<f32>) {
    let mut sums = vec![0.0_f64; width];
    for (row, values) in rows.chunks_exact(width).enumerate() {
        let weight = weight(row);
        sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += weight * f64::from(*x));
    }
    out.extend(sums.iter().map(|sum| (sum / divisor) as f32));
}

impl FromStr for Pooling {
    type Err = UnknownPooling;

    fn from_str(name: &str) -> Result<Self, UnknownPooling> {
        // Some tools call `lasttoken` `last`.
        let known = Self::ALL.into_iter().find(|pooling| pooling.name() == name);
        known
            .or((name == "last").then_some(Self::LastToken))
            .ok_or_else(|| UnknownPooling { found: name.chars().take(80).collect() })
    }
}

impl std::fmt::Display for Pooling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds_are_the_same_list() {
        for pooling in Pooling::ALL {
            assert_eq!(pooling.name().parse(), Ok(pooling));
        }
        assert_eq!("last".parse(), Ok(Pooling::LastToken));
        let error = "median".parse::<Pooling>().expect_err("unknown").to_string();
        assert!(error.contains("weightedmean") && error.contains("`median`"), "{error}");
    }

    #[test]
    fn a_nan_is_seen_by_every_kind_that_looks_at_its_row() {
        let rows = [1.0, 2.0, f32::NAN, 5.0, 3.0, -1.0];
        for pooling in Pooling::ALL {
            let mut out = Vec::new();
            pooling.pool(&rows, 2, &mut out);
            assert_eq!(out[0].is_nan(), pooling.needs_all_rows(), "{pooling}");
            assert!(out[1].is_finite(), "{pooling}");
        }
    }
}
