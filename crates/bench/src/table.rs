//! Tables of text.

/// Last line of a report whose measurement ended early.
pub(crate) const INTERRUPTED: &str = "(interrupted: not every round is there)\n";

/// Which side of its column a cell stands on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A line per row under a line of column names, every column as wide as its widest cell.
pub(crate) fn table<const N: usize>(head: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let names = head.map(|(name, _)| name.to_owned());
    let lines = || [&names].into_iter().chain(rows);
    let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in lines() {
        let mut line = String::new();
        for ((cell, width), (_, align)) in row.iter().zip(widths).zip(head) {
            line.push_str(&match align {
                Align::Left => format!("{cell:<width$}  "),
                Align::Right => format!("{cell:>width$}  "),
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Bytes with a binary unit, such as `11.9 MiB`.
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    for unit in ["KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let head = [("name", Align::Left), ("µs", Align::Right)];
        let rows = [["a".to_owned(), "1234".to_owned()], ["abcdef".to_owned(), "5".to_owned()]];
        assert_eq!(table(head, &rows), "name      µs\na       1234\nabcdef     5\n");
    }

    #[test]
    fn byte_counts_carry_binary_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }
}
