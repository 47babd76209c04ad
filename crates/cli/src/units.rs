//! Numbers with a unit, as flags and files spell them.

use std::time::Duration;

use pelton_base::limits;

/// Units of memory and the bytes in one; those with an `i` are powers of two.
const BYTE_UNITS: [(&str, u64); 9] = [
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// Reads bytes: `4GiB`, `1.5 GB`, `1048576`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let fail = || format!("expected a size such as 4GiB, 512MiB or 1000000, got `{text}`");
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim().to_ascii_lowercase());
    let unit = if unit.is_empty() { "b" } else { &unit };
    let (_, factor) = BYTE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(fail)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*factor).ok_or_else(fail);
    }
    let bytes = number.parse::<f64>().map_err(|_| fail())? * *factor as f64;
    // Beyond 2^53 a fraction of a unit means nothing any more.
    if bytes < (1_u64 << 53) as f64 { Ok(bytes as u64) } else { Err(fail()) }
}

/// A time of so many milliseconds, above zero and at most a day.
pub(crate) fn milliseconds(ms: f64) -> Result<Duration, String> {
    let time = (ms > 0.0 && ms <= limits::SLO_MS).then(|| Duration::from_secs_f64(ms / 1000.0));
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| format!("expected milliseconds above 0 and at most 86400000, got {ms}"))
}

/// A time of so many seconds, above zero and at most a day.
pub(crate) fn seconds(seconds: f64) -> Result<Duration, String> {
    milliseconds(seconds * 1000.0)
        .map_err(|_| format!("expected seconds above 0 and at most 86400, got {seconds}"))
}

/// Reads milliseconds.
pub(crate) fn parse_milliseconds(text: &str) -> Result<Duration, String> {
    milliseconds(text.parse().map_err(|_| format!("expected milliseconds, got `{text}`"))?)
}

/// Reads seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    seconds(text.parse().map_err(|_| format!("expected seconds, got `{text}`"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_carry_binary_and_decimal_units() {
        for (text, expected) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("4GiB", 4 << 30),
            ("1.5 GiB", 3 << 29),
            ("2kb", 2000),
            (" 7 MB ", 7_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for bad in ["", "GiB", "-1", "1e9", "4 GiBs", "1..5GB", "99999999999TiB", "0x10", "9e9"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_above_zero_and_end() {
        assert_eq!(parse_milliseconds("0.5"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_seconds("90"), Ok(Duration::from_secs(90)));
        for bad in ["0", "-1", "nan", "inf", "1e300", "1e-300", "soon", ""] {
            assert!(parse_milliseconds(bad).is_err() && parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
