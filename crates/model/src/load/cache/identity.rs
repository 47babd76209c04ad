//! From what and for what weights were packed.
//!
//! The fingerprint of the source is XXH3-128 over, for each of its files in order,
//!
//! ```text
//! name  size  time of last writing  64 pages of 4 KiB: the first, the last, the rest evenly between
//! ```
//!
//! Not the hash of everything: that would read the whole source at every start, as many bytes again
//! as the weights themselves, to find a change that the time of writing already tells. The pages
//! find what the time does not, a file put in place with the size and time of another (`cp -p`,
//! `rsync -t`, a restored backup): other training changes nearly every page. They do not
//! find a file edited in place in a few bytes whose time of writing is then set back.
//!
//! The name is the last part of the path alone, so that a folder may be moved with its cache.

use std::time::{SystemTime, UNIX_EPOCH};

use pelton_quant::{Compute, RoundTo};
use pelton_tensor::{MappedFile, TensorSource};
use xxhash_rust::xxh3::Xxh3;

use super::checksum;

/// Pages that are looked at in each file.
const N_SAMPLES: usize = 64;
/// Bytes of one of them.
const SAMPLE_BYTES: usize = 4096;

/// The options of a load that packed weights depend on.
#[derive(Clone, Copy, Debug)]
pub(in crate::load) struct LoadKind {
    /// Arithmetic of the weights.
    pub(in crate::load) compute: Compute,
    /// The format that weights are rounded to.
    pub(in crate::load) rounded_to: Option<RoundTo>,
    /// The rank that loads.
    pub(in crate::load) rank: usize,
    /// Number of ranks.
    pub(in crate::load) n_ranks: usize,
}

/// Packed weights can be used again only where all of this is equal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Identity {
    /// Version of the packed layouts.
    pub(super) layouts: u32,
    /// Hash of the load options that matter.
    pub(super) options: u64,
    /// Fingerprint of the source.
    pub(super) source: u128,
}

impl Identity {
    pub(super) fn new(source: &dyn TensorSource, layouts: u32, load: &LoadKind) -> Self {
        let LoadKind { compute, rounded_to, rank, n_ranks } = load;
        // Spelt out, so that a new kind of arithmetic is another one without a line here.
        let mut options = format!("{compute:?} {rank} of {n_ranks}");
        if let Some(to) = rounded_to {
            // Another version may round to other codes.
            options.push_str(&format!(" rounded to {to} by {}", env!("CARGO_PKG_VERSION")));
        }
        let options = checksum::of_text(&options);
        let mut hash = Xxh3::new();
        source.files().iter().for_each(|file| add_file(&mut hash, file));
        Self { layouts, options, source: hash.digest128() }
    }
}

fn add_file(hash: &mut Xxh3, file: &MappedFile) {
    let name = file.path().file_name().unwrap_or_default().to_string_lossy();
    let bytes = file.bytes();
    for number in [name.len() as u64, bytes.len() as u64] {
        hash.update(&number.to_le_bytes());
    }
    hash.update(name.as_bytes());
    hash.update(&nanoseconds(file.modified()).to_le_bytes());
    for start in sample_starts(bytes.len()) {
        hash.update(&bytes[start..bytes.len().min(start + SAMPLE_BYTES)]);
    }
    // Each page brought its neighbours along.
    file.give_back(bytes);
}

/// Where the pages to look at begin, in ascending order; all of a file that is small.
fn sample_starts(n_bytes: usize) -> impl Iterator<Item = usize> {
    let n_pages = n_bytes.div_ceil(SAMPLE_BYTES);
    let n = n_pages.min(N_SAMPLES);
    (0..n).map(move |i| i * (n_pages - 1) / (n - 1).max(1) * SAMPLE_BYTES)
}

/// Since 1970, negative before; files that tell no time all have the same one.
fn nanoseconds(time: Option<SystemTime>) -> i128 {
    time.map_or(0, |time| match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_the_first_page_the_last_and_pages_between() {
        let starts = |n: usize| sample_starts(n).collect::<Vec<_>>();
        assert_eq!(starts(0), [0_usize; 0]);
        assert_eq!(starts(1), [0]);
        assert_eq!(starts(4097), [0, 4096]);
        let all: Vec<usize> = (0..64).map(|i| i * 4096).collect();
        assert_eq!(starts(64 * 4096), all);
        let some = starts((1 << 30) + 1);
        assert_eq!((some.len(), some[0], some[63]), (64, 0, 1 << 30));
        assert!(some.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn every_option_that_matters_changes_the_identity() {
        let none = pelton_tensor::Safetensors::from_mapped(MappedFile::from_vec(
            "x",
            b"\x02\0\0\0\0\0\0\0{}".to_vec(),
        ))
        .expect("an empty checkpoint");
        let (compute, rounded_to) = (Compute::Auto, None);
        let base = LoadKind { compute, rounded_to, rank: 0, n_ranks: 2 };
        let identity = Identity::new(&none, 1, &base);
        assert_eq!(Identity::new(&none, 1, &base), identity);
        assert_ne!(Identity::new(&none, 2, &base), identity);
        for other in [
            LoadKind { compute: Compute::F32, ..base },
            LoadKind { rounded_to: RoundTo::find("q4_k"), ..base },
            LoadKind { rounded_to: RoundTo::find("q4_0"), ..base },
            LoadKind { rank: 1, ..base },
            LoadKind { n_ranks: 3, ..base },
        ] {
            assert_ne!(Identity::new(&none, 1, &other), identity, "{other:?}");
        }
    }
}
