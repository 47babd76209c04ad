//! Flags of the commands that read the reports of benchmarks.

use std::path::PathBuf;

use clap::Args;
use pelton_bench::compare::Limits;

pub(super) const COMPARE_HELP_END: &str = "\
Examples:
  pelton bench compare before.json after.json
  pelton bench compare a1.json b1.json a2.json b2.json     pairs of runs, in turn
  pelton bench compare before.json after.json --least 3 --json

Reports are those that `pelton bench ... --json` prints. Each figure is compared by a permutation test of
its rounds; the chance of any false alarm among all figures is --level. Four rounds each are the fewest
that can differ, ten find a difference of 3 %. Exit code 3 when a figure is worse, 0 otherwise; with
--strict also 3 when a figure has too few rounds or only one of the runs has it.";

pub(super) const REPORT_HELP_END: &str = "\
Examples:
  pelton bench report sweep.json -o sweep.html
  pelton bench report before.json after.json -o both.html --svg charts --png charts

One page that needs no network: machine, figures with intervals, and the charts of each kind of report.";

/// Flags of `pelton bench compare`.
#[derive(Args, Debug)]
pub(crate) struct BenchCompareArgs {
    /// Reports: A, B, and further pairs of them
    #[arg(value_name = "FILE", num_args = 2.., required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Chance of calling any difference where there is none, from 0.001 to 0.5
    #[arg(long, value_name = "P", default_value_t = Limits::default().level, value_parser = level)]
    level: f64,
    /// Smallest difference that counts, in per cent
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = Limits::default().least_percent,
        value_parser = percent
    )]
    least: f64,
    /// Fail also where a figure has too few rounds, or where only one of the runs has it
    #[arg(long)]
    pub(crate) strict: bool,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchCompareArgs {
    /// The values of `--level` and `--least`.
    pub(crate) fn limits(&self) -> Limits {
        Limits { level: self.level, least_percent: self.least }
    }
}

/// Flags of `pelton bench report`.
#[derive(Args, Debug)]
pub(crate) struct BenchReportArgs {
    /// Reports that `pelton bench ... --json` printed
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The page
    #[arg(short = 'o', long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// Folder for the charts, each as an SVG file beside the page
    #[arg(long, value_name = "FOLDER")]
    pub(crate) svg: Option<PathBuf>,
    /// Folder for the charts, each as a PNG file
    #[arg(long, value_name = "FOLDER")]
    pub(crate) png: Option<PathBuf>,
}

fn level(text: &str) -> Result<f64, String> {
    let level = text.parse::<f64>().ok().filter(|level| (0.001..=0.5).contains(level));
    level.ok_or_else(|| "expected a chance from 0.001 to 0.5".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "expected per cent from 0 to 100".to_owned())
}
