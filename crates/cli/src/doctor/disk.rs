//! How fast a file is read from the disk of the cache folder.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of a read.
const CHUNK: usize = 1 << 20;

/// A file that vanishes, also when the measurement fails or is stopped.
struct Vanishing(PathBuf);

impl Drop for Vanishing {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bytes per second of one read through a file of `n_bytes` in `folder` that was written for it and that
/// the system was asked to forget; `None` where the folder takes no file, or when `is_stopped`.
pub(super) fn read_bytes_per_s(
    folder: &Path,
    n_bytes: usize,
    is_stopped: &dyn Fn() -> bool,
) -> Option<f64> {
    std::fs::create_dir_all(folder).ok()?;
    let path = folder.join(format!("disk-{}.tmp", std::process::id()));
    let file = Vanishing(path);
    // No two chunks alike, so that nothing can store them once.
    let mut chunk: Vec<u8> = (0..CHUNK).map(|i| (i * 31 + i / 251) as u8).collect();
    let mut out = File::create(&file.0).ok()?;
    for i in 0..n_bytes / CHUNK {
        if is_stopped() {
            return None;
        }
        chunk[..8].copy_from_slice(&i.to_le_bytes());
        out.write_all(&chunk).ok()?;
    }
    out.sync_all().ok()?;
    drop(out);
    let mut file = File::open(&file.0).ok()?;
    forget(&file);
    let start = Instant::now();
    let mut n_read = 0;
    while let n @ 1.. = file.read(&mut chunk).ok()? {
        n_read += n;
        if is_stopped() {
            return None;
        }
    }
    Some(n_read as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

/// Asks the system to drop the pages of a file that it keeps in memory.
fn forget(file: &File) {
    #[cfg(target_os = "linux")]
    // Where the system refuses, the speed is that of memory, which the report says.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_vanishes_also_when_it_is_stopped() {
        let folder = tempfile::tempdir().expect("temp");
        let n_files = || std::fs::read_dir(folder.path()).expect("listed").count();
        let speed = read_bytes_per_s(folder.path(), 3 * CHUNK, &|| false).expect("measured");
        assert!(speed.is_finite() && speed > 0.0);
        assert_eq!((read_bytes_per_s(folder.path(), CHUNK, &|| true), n_files()), (None, 0));
        let no_folder = folder.path().join("file");
        std::fs::write(&no_folder, "").expect("written");
        assert_eq!(read_bytes_per_s(&no_folder, CHUNK, &|| false), None);
    }
}
