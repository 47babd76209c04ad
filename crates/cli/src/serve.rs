//! `pelton serve`: takes the address, loads the model, answers until asked to stop.

use std::time::Duration;

use pelton_llm::LlmOptions;
use pelton_server::{ServeConfig, Server, Signals};

use crate::args::ServeArgs;
use crate::failure::{Failure, Result};
use crate::model;

/// Runs the command.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let reference = model::reference(args.model.model.as_deref())?;
    let defaults = model::options(&args.model);
    let options = LlmOptions {
        max_running: args.max_running().unwrap_or(defaults.max_running),
        name: args.served_name.clone(),
        ..defaults
    };
    let llm = model::load(&reference, &options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let config = ServeConfig {
            host: args.host.clone(),
            port: args.port,
            drain_timeout: Duration::from_secs(args.drain_timeout),
            ..ServeConfig::default()
        };
        let signals = Signals::from_os()
            .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
        let server = Server::bind(llm, config).await?;
        eprintln!("listening on http://{}", server.address());
        server.run(signals).await;
        Ok(())
    })
}
