//! The kernel's lists of numbers, such as `0-3,8,10-11`.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

/// A list that is kept as ranges, so that `0-4294967295` costs as much as `0`.
#[derive(Debug)]
pub(super) struct CpuList {
    /// Not empty.
    ranges: Vec<RangeInclusive<usize>>,
}

impl CpuList {
    /// The list in a file; `None` if there is no such file or no list in it.
    pub(super) fn read(path: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    /// Parses a list; `None` if it is empty or anything else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.trim().split(',').map(range).collect();
        Some(Self { ranges: ranges? })
    }

    /// Whether `id` is in the list.
    pub(super) fn contains(&self, id: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&id))
    }

    /// The smallest number of the list.
    pub(super) fn first(&self) -> Option<usize> {
        self.ranges.iter().map(|range| *range.start()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ranges_and_numbers_and_nothing_else() {
        let list = CpuList::parse("8,0-3,10-11\n").expect("a list");
        let ids: Vec<usize> = (0..20).filter(|&id| list.contains(id)).collect();
        assert_eq!((ids, list.first()), (vec![0, 1, 2, 3, 8, 10, 11], Some(0)));
        let all = CpuList::parse("0-18446744073709551615").expect("a long list");
        assert!(all.contains(usize::MAX));
        for nonsense in ["", "\n", "a", "3-1", "1,", "-1", "0-", "1-2-3", "99999999999999999999"] {
            assert!(CpuList::parse(nonsense).is_none(), "{nonsense:?}");
        }
    }
}
