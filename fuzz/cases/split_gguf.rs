//! Any bytes are the parts of a sound model or an error of one line that names a part; never a panic,
//! never a view outside a part.
//!
//! An input is `len:u16 len:u16`, then two parts of these lengths and a third of what is left.

use pelton_tensor::{Gguf, GgufPartName, TensorSource};
use pelton_testkit::MemoryFolder;

pub(crate) fn run(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return };
    let len = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
    let (first, rest) = rest.split_at(len(0).min(rest.len()));
    let (second, third) = rest.split_at(len(2).min(rest.len()));
    let parts = [first, second, third];
    let count = parts.iter().rposition(|part| !part.is_empty()).map_or(1, |last| last + 1);
    let folder = MemoryFolder::new();
    let stem = folder.path().join("m").to_string_lossy().into_owned();
    let name = |number| GgufPartName { stem: stem.clone(), number, count }.path();
    for (i, part) in parts[..count].iter().enumerate() {
        std::fs::write(name(i + 1), part).expect("written");
    }
    for number in 1..=count {
        match Gguf::open(&name(number)) {
            Ok(file) => {
                for tensor in file.names() {
                    let view = file.get(tensor).expect("a name that the file gave");
                    assert_eq!(view.dtype.bytes_for(view.n_elements()), Some(view.data.len()));
                }
            }
            Err(err) => {
                let message = err.to_string();
                assert!(message.contains("/m-0000") && !message.contains('\n'), "{message:?}");
            }
        }
    }
}
