//! Files that a command writes, checked before its work: none of them is one that it reads.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::reports;
use crate::failure::{Failure, Result};

/// A flag or argument, and the file or folder that it names, if it was given.
pub(crate) type Named<'a> = (&'static str, Option<&'a Path>);

/// The beginning of every page.
const PAGE: &[u8] = b"<!doctype html>";

/// Refuses outputs that would replace an input, and outputs that cannot be written, before the work
/// that they are to show.
///
/// # Errors
///
/// Names the flags of both files where an output is an input, or a file that is there in a folder
/// that is one; a folder that is not there or takes no files.
pub(crate) fn check_outputs(outputs: &[Named<'_>], inputs: &[Named<'_>]) -> Result<()> {
    for (flag, path) in outputs {
        let Some(path) = path else { continue };
        refuse_inputs((flag, path), inputs)?;
        reports::check(path)?;
    }
    Ok(())
}

/// Refuses a page likewise, and one that would replace a file that is no page.
///
/// # Errors
///
/// As of [`check_outputs`].
pub(crate) fn check_page(page: Named<'_>, inputs: &[Named<'_>]) -> Result<()> {
    check_outputs(&[page], inputs)?;
    let (flag, Some(path)) = page else { return Ok(()) };
    // To read a pipe would wait for its writer.
    if !path.is_file() {
        return Ok(());
    }
    // A file that cannot be read is not known.
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut beginning = Vec::new();
    let read = file.take(PAGE.len() as u64).read_to_end(&mut beginning);
    if read.is_ok() && !beginning.is_empty() && !beginning.eq_ignore_ascii_case(PAGE) {
        let message = format!("`{flag}` would replace {}, which is no page", path.display());
        return Err(Failure::new(message).hint(format!("choose another name for `{flag}`")));
    }
    Ok(())
}

/// Refuses an output that is an input, or a file that is there in a folder that is one.
fn refuse_inputs((flag, output): (&str, &Path), inputs: &[Named<'_>]) -> Result<()> {
    let places = places(output);
    for (input_flag, input) in inputs {
        let Some(input) = input.and_then(|input| std::fs::canonicalize(input).ok()) else {
            continue;
        };
        let is_lost = |place: &PathBuf| {
            *place == input || (input.is_dir() && place.starts_with(&input) && place.exists())
        };
        if places.iter().any(is_lost) {
            let within = if input.is_dir() { "a file of the folder" } else { "the file" };
            let output = output.display();
            let message =
                format!("`{flag}` would replace {output}, {within} that `{input_flag}` names");
            return Err(Failure::new(message).hint(format!("choose another name for `{flag}`")));
        }
    }
    Ok(())
}

/// Where an output is, without links: itself, and the name under which its folder has it.
fn places(output: &Path) -> Vec<PathBuf> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::canonicalize(folder.unwrap_or(Path::new("."))).ok();
    let in_folder = folder.zip(output.file_name()).map(|(folder, name)| folder.join(name));
    std::fs::canonicalize(output).ok().into_iter().chain(in_folder).collect()
}
