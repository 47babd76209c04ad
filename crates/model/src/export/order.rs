//! Orders of rows in files, where the decoder has another.

use crate::load::in_pairs;

/// The order of a file's rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// Rows of a head, and how many of the first of them become pairs: neighbours that are rotated
    /// together.
    Pairs([usize; 2]),
    /// Blocks by two numbers, which change places: `outer` times `inner` blocks become `inner` times
    /// `outer`.
    ///
    /// ```text
    /// 2 by 3 blocks    | first | a0 a1 a2 | b0 b1 b2 |    becomes    | first | a0 b0 | a1 b1 | a2 b2 |
    /// ```
    Swapped {
        /// Rows before the blocks, which stay.
        first: usize,
        /// Rows of a block.
        run: usize,
        outer: usize,
        inner: usize,
    },
}

impl Order {
    /// Puts `n_rows` rows of equal length, which are in the order of the decoder, in this one.
    pub(super) fn apply(self, data: &[u8], n_rows: usize) -> Vec<u8> {
        let (first, run, outer, inner) = match self {
            Self::Pairs(pairs) => return in_pairs(data, n_rows, pairs),
            Self::Swapped { first, run, outer, inner } => (first, run, outer, inner),
        };
        let row_bytes = data.len() / n_rows;
        let (before, blocks) = data.split_at(first * row_bytes);
        let n_bytes = run * row_bytes;
        let mut out = before.to_vec();
        for i in 0..inner {
            for block in blocks.chunks_exact(n_bytes).skip(i).step_by(inner).take(outer) {
                out.extend_from_slice(block);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_behind_the_first_rows_change_places() {
        let order = Order::Swapped { first: 1, run: 2, outer: 2, inner: 3 };
        let rows: Vec<u8> = (0..26).collect();
        let blocks = [0, 1, 2, 3, 4, 5, 14, 15, 16, 17, 6, 7, 8, 9, 18, 19, 20, 21];
        let last = [10, 11, 12, 13, 22, 23, 24, 25];
        assert_eq!(order.apply(&rows, 13), [&blocks[..], &last].concat());
    }
}
