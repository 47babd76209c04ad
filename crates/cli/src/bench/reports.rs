//! `pelton bench compare` and `pelton bench report`: reports that were kept.

use std::io::Write;
use std::path::{Path, PathBuf};

use pelton_bench::compare::{Comparison, Verdict, compare as compared};
use pelton_bench::page::{Chart, page};
use pelton_bench::record::{ReadError, Recorded};
use pelton_tensor::PendingFile;

use super::Named;
use crate::args::{BenchCompareArgs, BenchReportArgs};
use crate::failure::{Failure, Result};

/// Runs `pelton bench compare`.
///
/// # Errors
///
/// Files that are no reports, reports that cannot be compared; a figure that is worse, and with
/// `--strict` one without a verdict.
pub(super) fn compare(args: &BenchCompareArgs) -> Result<()> {
    if !args.files.len().is_multiple_of(2) {
        let n = args.files.len();
        let hint = "give A and B, and then further pairs of them";
        return Err(
            Failure::new(format!("a comparison needs pairs of reports, got {n}")).hint(hint)
        );
    }
    let pairs = args.files.chunks_exact(2).map(|pair| Ok((open(&pair[0])?, open(&pair[1])?)));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    let found = compared(&pairs, args.limits()).map_err(super::failure)?;
    super::print(&found, Comparison::render, args.json, false)?;
    match found.count(Verdict::Worse) {
        0 if args.strict => decided(&found),
        0 => Ok(()),
        1 => Err(Failure::gate("B is worse than A in one figure")),
        n => Err(Failure::gate(format!("B is worse than A in {n} figures"))),
    }
}

/// Refuses a comparison in which a figure has no verdict.
fn decided(found: &Comparison) -> Result<()> {
    let undecided = found.rows.iter().filter(|row| row.verdict == Verdict::TooFew);
    let undecided: Vec<&str> = undecided.map(|row| row.name.as_str()).collect();
    let mut reasons = Vec::new();
    if !undecided.is_empty() {
        reasons.push(format!("too few rounds to decide: {}", undecided.join(", ")));
    }
    if !found.missing.is_empty() {
        reasons.push(format!("only in one of the runs: {}", found.missing.join(", ")));
    }
    match reasons.is_empty() {
        true => Ok(()),
        false => {
            let message = format!("`--strict`: figures without a verdict: {}", reasons.join("; "));
            Err(Failure::gate(message).hint("measure more rounds, or give more pairs of reports"))
        }
    }
}

/// Runs `pelton bench report`.
///
/// # Errors
///
/// Files that are no reports, a page that cannot be written.
pub(super) fn report(args: &BenchReportArgs) -> Result<()> {
    let named = |path: &PathBuf| {
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Ok((name, open(path)?))
    };
    let reports = args.files.iter().map(named).collect::<Result<Vec<_>>>()?;
    let inputs: Vec<_> = args.files.iter().map(|file| ("FILE", Some(file.as_path()))).collect();
    super::check_page(("-o", Some(&args.output)), &inputs)?;
    let page = page(&reports).map_err(super::failure)?;
    let svg = charts(("--svg", args.svg.as_deref()), &page.charts, &inputs)?;
    let png = charts(("--png", args.png.as_deref()), &page.charts, &inputs)?;
    write(&args.output, &page.html)?;
    svg.iter().zip(&page.charts).try_for_each(|(file, chart)| write(file, &chart.svg))?;
    png.iter().zip(&page.charts).try_for_each(|(file, chart)| write(file, &chart.png))?;
    let n = page.charts.len();
    eprintln!("{}: {} reports, {n} charts", args.output.display(), reports.len());
    Ok(())
}

/// The files of charts in the folder of `--svg` or `--png`, which is made; none where no folder is
/// named.
fn charts(
    (flag, folder): Named<'_>,
    charts: &[Chart],
    inputs: &[Named<'_>],
) -> Result<Vec<PathBuf>> {
    let Some(folder) = folder else { return Ok(Vec::new()) };
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let ending = flag.trim_start_matches('-');
    let file = |chart: &Chart| folder.join(format!("{}.{ending}", chart.name));
    let files: Vec<PathBuf> = charts.iter().map(file).collect();
    let outputs: Vec<_> = files.iter().map(|file| (flag, Some(file.as_path()))).collect();
    super::check_outputs(&outputs, inputs)?;
    Ok(files)
}

/// Reads a report, with advice where it is of another version.
fn open(path: &Path) -> Result<Recorded> {
    Recorded::open(path).map_err(|error| {
        let hint = match &error {
            ReadError::Version { pelton: Some(version), .. } => {
                Some(format!("it was written by pelton {version}; that program compares it, too"))
            }
            ReadError::Foreign { .. } => {
                Some("`pelton bench ... --json > FILE` writes reports".to_owned())
            }
            _ => None,
        };
        Failure::from(error).maybe_hint(hint)
    })
}

/// Writes a file whole or not at all.
pub(super) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let written = PendingFile::create(path).and_then(|mut file| {
        file.write_all(bytes.as_ref())?;
        file.publish()
    });
    written.map_err(|error| Failure::write(path, &error))
}

/// Refuses a file that cannot be written, before long work whose result it is to hold.
pub(super) fn check(path: &Path) -> Result<()> {
    PendingFile::create(path).map(drop).map_err(|error| Failure::write(path, &error))
}
