//! `pelton serve`: gathers the settings, loads the model, answers until asked to stop.

use std::io::Write;
use std::sync::Arc;

use pelton_llm::{EmbedOptions, Embedder, Llm, ModelRef};
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
    let loaded = load(&reference, &settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let signals = Signals::from_os()
            .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
        let server = match loaded {
            Loaded::Text(llm) => Server::bind(llm, settings.serve).await?,
            Loaded::Vectors(embedder) => Server::bind_embedder(embedder, settings.serve).await?,
        };
        eprintln!("listening on http://{}", server.address());
        server.run(signals).await;
        Ok(())
    })
}

enum Loaded {
    Text(Arc<Llm>),
    Vectors(Arc<Embedder>),
}

/// Loads the model for what its files say that it is for, or for what the flags say.
fn load(reference: &ModelRef, settings: &Settings) -> Result<Loaded> {
    let (options, vectors) = (&settings.options, &settings.vectors);
    let runtime = model::runtime(settings.threads)?;
    let is_embedder = settings.embeddings || model::resolve(reference)?.is_embedding_model()?;
    if !is_embedder {
        if vectors.pooling.is_some() || vectors.normalize.is_some() {
            let message =
                "`--pooling` and `--normalize` are for vectors, and this model is for text";
            return Err(Failure::new(message).hint("`--embeddings` serves its vectors"));
        }
        return Ok(Loaded::Text(model::load(&runtime, reference, options)?));
    }
    let options = EmbedOptions {
        compute: options.compute,
        max_tokens: options.max_context,
        pooling: vectors.pooling,
        normalise: vectors.normalize,
        packed_cache: options.packed_cache.clone(),
        name: options.name.clone(),
    };
    Ok(Loaded::Vectors(model::load_embedder(&runtime, reference, &options)?))
}
