//! Small files from outside, read whole: regular files up to a limit.
//!
//! A path may lead to anything: a device that never ends (`/dev/zero`), a named pipe that nobody
//! writes to, a folder. None of these is read or waited for. Shells pass `<(command)` as a pipe, so
//! that is refused as well; commands that read texts take `-` for standard input instead.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file for reading; the second value describes the file that was opened.
///
/// # Errors
///
/// The system's own; [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    // The kind is checked before opening, because opening a device can have effects.
    check_kind(std::fs::metadata(path)?.file_type())?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        // Another file may be at the path by now; opening a named pipe must not wait for a writer.
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    check_kind(metadata.file_type())?;
    Ok((file, metadata))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
///
/// As [`open_regular`]; [`io::ErrorKind::FileTooLarge`] beyond the limit, with both sizes.
pub fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open_regular(path)?;
    let too_large = |n_bytes: u64| {
        let why = format!("{n_bytes} bytes; expected at most {limit}");
        io::Error::new(io::ErrorKind::FileTooLarge, why)
    };
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    // Files of `/proc` say that they are empty, and files grow, so the reading is limited too.
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Reads a regular file of at most `limit` bytes as text.
///
/// # Errors
///
/// As [`read_limited`]; [`io::ErrorKind::InvalidData`] where it is not UTF-8.
pub fn read_limited_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_limited(path, limit)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let why = format!("not valid UTF-8: bad byte at offset {at}");
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

fn check_kind(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let why = format!("is {}; expected a regular file", name_of(kind));
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

fn name_of(kind: FileType) -> &'static str {
    if kind.is_dir() {
        return "a folder";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    "something else"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("file");
        std::fs::write(&path, "abcdef").expect("written");
        assert_eq!(read_limited(&path, 6).expect("fits"), b"abcdef");
        assert_eq!(read_limited_text(&path, u64::MAX).expect("fits"), "abcdef");
        let error = read_limited(&path, 5).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "6 bytes; expected at most 5");
        std::fs::write(&path, b"ab\xff").expect("written");
        let error = read_limited_text(&path, 6).expect_err("no text").to_string();
        assert_eq!(error, "not valid UTF-8: bad byte at offset 2");
        let missing = read_limited(&folder.path().join("none"), 6).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pipes_devices_folders_and_endless_files_are_refused_at_once() {
        let folder = tempfile::tempdir().expect("temp");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        let cases = [
            (pipe.as_path(), "is a pipe"),
            (folder.path(), "is a folder"),
            (Path::new("/dev/zero"), "is a device"),
        ];
        for (path, expected) in cases {
            let error = read_limited(path, 64).expect_err(expected);
            assert_eq!(error.to_string(), format!("{expected}; expected a regular file"));
        }
        // It claims to be empty.
        let error = read_limited(Path::new("/proc/self/status"), 64).expect_err("longer");
        assert_eq!(error.to_string(), "65 bytes; expected at most 64");
    }
}
