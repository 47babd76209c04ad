//! `pelton quantize --method gguf`: a GGUF file whose errors are weighed by an importance matrix.

use std::time::Instant;

use pelton_model::ExportOptions;
use pelton_quant::{for_name, supported_names};
use pelton_quantize::{Imatrix, QuantizeError};

use crate::args::QuantizeArgs;
use crate::calibration::Calibration;
use crate::convert;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::quantize::failure;
use crate::{model, progress};

/// Runs the command.
///
/// # Errors
///
/// A type that is unknown, a file in the way, an importance matrix that cannot be read or is another
/// model's, everything that an export refuses, Ctrl-C.
pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    let started = Instant::now();
    if let Some(flag) = args.misplaced() {
        let why = "only methods that write folders have it";
        return Err(Failure::new(format!("`{flag}` with `gguf`: {why}"))
            .hint("bits and groups are those of `--type`"));
    }
    if args.output.extension().is_none_or(|extension| extension != "gguf") {
        let name = args.output.display();
        return Err(Failure::new(format!("`{name}`: expected a name that ends in .gguf")));
    }
    if args.save_imatrix.as_ref() == Some(&args.output) {
        return Err(Failure::new("`--save-imatrix` is the output: expected another name"));
    }
    let mut written = std::iter::once(&args.output).chain(&args.save_imatrix);
    if let Some(file) = written.find(|file| file.symlink_metadata().is_ok()) {
        return Err(failure(QuantizeError::Exists(file.clone())));
    }
    let Some(name) = &args.gguf_type else {
        return Err(Failure::new("`--type` is missing: `gguf` needs one").hint("`--type q4_k`"));
    };
    let Some(format) = for_name(name) else {
        let known = supported_names();
        return Err(Failure::new(format!("`--type` is {name}: expected one of {known}")));
    };
    let has_importance = args.imatrix.is_some() || args.calibration.is_some();
    if has_importance && args.save_imatrix.is_none() && format.weighted().is_none() {
        return Err(Failure::new(format!(
            "`--imatrix` or `--calibration` with `--type {name}`, which has no use for it"
        ))
        .hint("k-quants, IQ4_NL and IQ4_XS have"));
    }
    let place = model::resolve(&model::reference(Some(&args.input))?)?;
    let files = place.open()?;
    let stop = StopFlag::listen()?;
    let imatrix = match (&args.imatrix, &args.calibration) {
        (Some(file), _) => Some(Imatrix::read(file).map_err(failure)?),
        (None, None) => None,
        (None, Some(file)) => {
            let calibration = Calibration::read(&place, &files, file, args)?;
            let cpu = args.threads.chosen().runtime()?.cpu(0);
            let bar = progress::steps(0);
            let measured = Imatrix::measure(
                &files,
                &calibration.samples,
                &calibration.name,
                cpu,
                &|| stop.is_set(),
                &|layer, n_layers| {
                    bar.set_length(n_layers as u64);
                    bar.set_position(layer as u64);
                },
            );
            bar.finish_and_clear();
            Some(measured.map_err(failure)?.ok_or_else(convert::interrupted)?)
        }
    };
    if let (Some(imatrix), Some(file)) = (&imatrix, &args.save_imatrix) {
        imatrix.write(file).map_err(failure)?;
    }
    let importance = imatrix.as_ref().map(Imatrix::importance);
    let options = ExportOptions {
        format: Some(name),
        importance: importance.as_ref(),
        ..ExportOptions::default()
    };
    let outputs = convert::write(&files, &options, &args.output, &stop)?;
    convert::print(&files, outputs, started, args.json)
}
