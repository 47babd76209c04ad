//! Servers of models that make vectors, scores and labels.

use std::sync::Arc;

use pelton_llm::{EmbedOptions, Embedder, ModelRef};
use pelton_server::{ServeConfig, Server};
use pelton_testkit::golden::ranker_named;

use super::parrot::one_thread;
use super::{Running, run};

/// Serves the model of a folder, which is returned so that it lives as long as the server.
pub async fn serve_vectors(
    folder: tempfile::TempDir,
    config: ServeConfig,
) -> (tempfile::TempDir, Running) {
    let model = ModelRef::parse(folder.path().to_str().expect("UTF-8")).expect("a folder");
    let options = EmbedOptions { name: Some("ranker".to_owned()), ..EmbedOptions::default() };
    let embedder: Arc<Embedder> =
        Embedder::load(&one_thread(), &model, &options, &mut |_| {}).expect("loads");
    let config = ServeConfig { port: Some(0), ..config };
    let server = Server::bind_embedder(embedder, config).await.expect("a free port");
    (folder, run(server))
}

/// Serves a golden classifier.
pub async fn start_ranker(name: &str) -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().expect("a folder");
    ranker_named(name).write_folder(folder.path());
    serve_vectors(folder, ServeConfig::default()).await
}
