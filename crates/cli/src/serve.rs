//! `pelton serve`: gathers the settings, loads the model, answers until asked to stop.

use std::io::Write;

use pelton_server::{Server, Signals};

use crate::args::ServeArgs;
use crate::config::Settings;
use crate::failure::{Failure, Result};
use crate::model;

/// Runs the command.
pub(crate) fn serve(args: ServeArgs) -> Result<()> {
    let is_check = args.check_config;
    let settings = Settings::gather(args)?;
    if is_check {
        let text = settings.yaml()?;
        return std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| Failure::stdout(&error));
    }
    let reference = model::reference(settings.model.as_deref())?;
    let llm = model::load(&reference, &settings.options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let signals = Signals::from_os()
            .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
        let server = Server::bind(llm, settings.serve).await?;
        eprintln!("listening on http://{}", server.address());
        server.run(signals).await;
        Ok(())
    })
}
