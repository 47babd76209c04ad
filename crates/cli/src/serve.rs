//! `pelton serve`: gathers the settings, loads the model, answers until asked to stop.

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::sync::Arc;

use pelton_llm::{Embedder, Llm, ModelRef};
use pelton_server::{ServeConfig, Server, Signals};

use crate::args::ServeArgs;
use crate::banner;
use crate::config::Settings;
use crate::failure::{Failure, Result};
use crate::flags::Chosen;
use crate::{interrupt, model};

/// Runs the command.
pub(crate) fn serve(args: ServeArgs) -> Result<()> {
    let is_check = args.check_config;
    let settings = Settings::gather(&args)?;
    if is_check {
        let text = settings.yaml()?;
        return std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| Failure::stdout(&error));
    }
    let Settings(chosen) = settings;
    check_port(&chosen.serve)?;
    let reference = model::reference(Some(&chosen.model))?;
    let loaded = load(&reference, &chosen)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    interrupt::hand_over();
    runtime.block_on(async {
        let signals = Signals::from_os()
            .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
        let needs_key = chosen.serve.access.has_keys();
        let (server, facts) = match loaded {
            Loaded::Text(llm) => {
                let server = Server::bind(Arc::clone(&llm), chosen.serve).await?;
                let facts = banner::text(&llm, server.address(), needs_key);
                (server, facts)
            }
            Loaded::Vectors(embedder) => {
                let server = Server::bind_embedder(Arc::clone(&embedder), chosen.serve).await?;
                let facts = banner::vectors(&embedder, server.address(), needs_key);
                (server, facts)
            }
        };
        chosen.sandbox.enter()?;
        eprintln!("listening on http://{}\n{facts}", server.address());
        server.run(signals).await?;
        Ok(())
    })
}

/// Finds out before a model is loaded, which takes long, whether the address can be listened on.
///
/// The address is free again afterwards: until the model answers, clients are to be refused.
fn check_port(serve: &ServeConfig) -> Result<()> {
    let ServeConfig { host, port, .. } = serve;
    TcpListener::bind((host.as_str(), *port)).map(drop).map_err(|error| {
        let failure = Failure::new(format!("cannot listen on {host}:{port}: {error}"));
        match error.kind() {
            ErrorKind::AddrInUse => failure.hint(
                "another program listens there, perhaps another `pelton serve`: `--port 0` takes a free port",
            ),
            ErrorKind::PermissionDenied => {
                failure.hint("ports below 1024 need rights: `--port 8000`")
            }
            ErrorKind::AddrNotAvailable => failure.hint(
                "this machine has no such address: `--host 127.0.0.1` or `--host 0.0.0.0`",
            ),
            _ => failure.hint("`--host` is a name or an address of this machine"),
        }
    })
}

enum Loaded {
    Text(Arc<Llm>),
    Vectors(Arc<Embedder>),
}

/// Loads the model to generate text or to make vectors, as its files or the flags say.
fn load(reference: &ModelRef, chosen: &Chosen) -> Result<Loaded> {
    let vectors = &chosen.vectors;
    let runtime = chosen.runtime()?;
    let is_embedder = vectors.embeddings || model::resolve(reference)?.is_embedding_model()?;
    if is_embedder {
        let options = chosen.embed_options();
        return Ok(Loaded::Vectors(model::load_embedder(&runtime, reference, &options)?));
    }
    if vectors.pooling.is_some() || vectors.normalize.is_some() {
        let message = "`--pooling` and `--normalize` are for vectors, and this model is for text";
        return Err(Failure::new(message).hint("`--embeddings` serves its vectors"));
    }
    Ok(Loaded::Text(model::load(&runtime, reference, &chosen.llm)?))
}
