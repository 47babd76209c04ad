//! Sizes and times in words.

/// Bytes in the largest unit of which there is one.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.2} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// Seconds in milliseconds, or in microseconds below one.
pub(super) fn time(seconds: f64) -> String {
    match seconds < 1e-3 {
        true => format!("{:.1} \u{b5}s", 1e6 * seconds),
        false => format!("{:.1} ms", 1e3 * seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_models_have_figures_too() {
        let sizes = [0, 1023, 1024, 3 << 19, 5 << 30].map(size);
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.00 KiB", "1.50 MiB", "5.00 GiB"]);
        assert_eq!([2.5e-5, 1e-3, 1.5].map(time), ["25.0 \u{b5}s", "1.0 ms", "1500.0 ms"]);
    }
}
