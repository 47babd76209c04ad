//! `pelton bench kernels`; see [`pelton_bench::kernels`].

use std::io::{Result as IoResult, Stdout, Write};

use indicatif::ProgressBar;
use pelton_bench::Watch;
use pelton_bench::kernels::{Config, measure};
use pelton_bench::record::{NoiseWatch, Worker};

use crate::args::BenchKernelsArgs;
use crate::failure::Result;
use crate::interrupt::StopFlag;
use crate::progress;

/// Runs the command.
pub(super) fn run(args: &BenchKernelsArgs) -> Result<()> {
    let config = Config {
        filter: args.filter.clone(),
        n_threads: args.threads(),
        activation_group: args.activation_group(),
        seconds: args.seconds(),
        attention: args.attention(),
        is_quick: args.quick,
    };
    let stop = StopFlag::listen()?;
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| super::show(&bar, at) };
    let mut table = BesideBar { bar: &bar, stdout: std::io::stdout() };
    let mut nowhere = std::io::sink();
    let out: &mut dyn Write = if args.json { &mut nowhere } else { &mut table };
    let noise = NoiseWatch::begin();
    let report = measure(&config, watch, out);
    let noise = noise.end(Worker::OwnOrElsewhere);
    bar.finish_and_clear();
    let report = report.map_err(super::failure)?;
    // The table is complete already.
    super::finish(&report, |_| String::new(), noise, args.json)
}

/// Standard output while a bar is on the screen.
struct BesideBar<'a> {
    bar: &'a ProgressBar,
    stdout: Stdout,
}

impl Write for BesideBar<'_> {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        self.bar.suspend(|| self.stdout.write(bytes))
    }

    fn flush(&mut self) -> IoResult<()> {
        self.bar.suspend(|| self.stdout.flush())
    }
}
