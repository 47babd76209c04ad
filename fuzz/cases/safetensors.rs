//! Any bytes are a sound safetensors file or an error of one line; never a panic, never a view outside the
//! file.

use pelton_tensor::{MappedFile, Safetensors, TensorSource};

pub(crate) fn run(bytes: &[u8]) {
    match Safetensors::from_mapped(MappedFile::from_vec("fuzzed", bytes.to_vec())) {
        Ok(file) => {
            for name in file.names() {
                let view = file.get(name).expect("a name that the file gave");
                assert_eq!(view.dtype.bytes_for(view.n_elements()), Some(view.data.len()));
            }
        }
        Err(err) => {
            let message = err.to_string();
            assert!(message.starts_with("fuzzed: ") && !message.contains('\n'), "{message:?}");
        }
    }
}
