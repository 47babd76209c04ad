//! `pelton serve`: gathers the settings, loads the models, answers until asked to stop.

mod from_files;

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use pelton_server::{
    Catalog, ModelsError, OtlpConfig, Renew, Renewed, ServeConfig, Server, Signals,
};
use pelton_text::ChatTemplate;

use crate::args::ServeArgs;
use crate::banner::{self, Places};
use crate::config::Settings;
use crate::failure::{Failure, Result};
use crate::flags::table;
use crate::interrupt;
use crate::sandbox::Openings;
use from_files::Machine;

/// Runs the command.
pub(crate) fn serve(args: ServeArgs) -> Result<()> {
    let is_check = args.check_config;
    let settings = Settings::gather(&args)?;
    if is_check {
        check(&settings)?;
        let text = settings.yaml()?;
        return std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| Failure::stdout(&error));
    }
    let renew = renewal(args, &settings)?;
    let Settings { mut chosen, models, routing, .. } = settings;
    chosen.serve.otlp = otlp(chosen.otlp_endpoint.as_deref())?;
    check_listening(&chosen.serve)?;
    let machine = Machine::new(chosen.threads)?;
    let specs = from_files::specs(&machine, models)?;
    let catalog = Catalog::new(specs, chosen.serve.models_memory)
        .map_err(|error| Failure::new(format!("`models`: {error}")))?
        .routed(routing);
    catalog.preload().map_err(|error| not_loaded(error, catalog.names().len()))?;
    let runtime = crate::connections::runtime()?;
    interrupt::hand_over();
    runtime.block_on(async {
        let hangup_reloads = renew.is_some() || chosen.serve.tls.is_on();
        let signals = Signals::from_os(hangup_reloads)
            .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
        let needs_key = chosen.serve.access.has_keys();
        let (names, served) = (catalog.names(), catalog.served());
        let openings = Openings {
            connections: chosen.serve.otlp.is_some(),
            files: chosen.serve.files.is_some(),
            removal: chosen.serve.unix_socket.is_some(),
        };
        let (is_tls, socket) = (chosen.serve.tls.is_on(), chosen.serve.unix_socket.clone());
        let server = Server::bind_models(catalog, chosen.serve).await?;
        let server = match renew {
            Some(renew) => server.renewed_by(renew(machine)),
            None => server,
        };
        let places = Places { address: server.address(), is_tls, socket };
        let facts = banner::of(&served, &names, &places, needs_key);
        chosen.sandbox.enter(openings)?;
        eprintln!("{places}{facts}");
        server.run(signals).await?;
        Ok(())
    })
}

/// Finds out what would end the server at its start and can be seen without a model, an address and
/// the network: `--check-config` may run beside the server, and before its models are downloaded or
/// converted, so that a model that is not here is only mentioned.
fn check(settings: &Settings) -> Result<()> {
    otlp(settings.chosen.otlp_endpoint.as_deref())?;
    settings.chosen.serve.check_certificate()?;
    for choice in &settings.models {
        if let Some(template) = &choice.chosen.llm.chat_template {
            ChatTemplate::check(template)?;
        }
        if let Err(failure) = crate::model::reference(Some(&choice.chosen.model)) {
            eprintln!("note: {}", from_files::said(&failure));
        }
    }
    Ok(())
}

/// The collector of traces, by the flag and by OpenTelemetry's variables.
fn otlp(endpoint: Option<&str>) -> Result<Option<OtlpConfig>> {
    let config = OtlpConfig::gather(endpoint, |name| std::env::var(name).ok());
    config.map_err(|error| Failure::of(&error))
}

/// Finds out before a model is loaded, which takes long, whether the address and the Unix socket can be
/// listened on, and whether the certificate can be used.
///
/// Both are free again afterwards: until the model answers, clients are to be refused.
fn check_listening(serve: &ServeConfig) -> Result<()> {
    serve.check()?;
    let Some((host, port)) = serve.tcp() else { return Ok(()) };
    TcpListener::bind((host, port)).map(drop).map_err(|error| {
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

/// How the settings are read anew at SIGHUP: from the file, if there is one, under the flags of this
/// process. Without a file and without a certificate SIGHUP ends the server, as when its terminal is
/// closed.
fn renewal(
    args: ServeArgs,
    settings: &Settings,
) -> Result<Option<impl FnOnce(Arc<Machine>) -> Renew + use<>>> {
    let Some(path) = args.config.clone() else { return Ok(None) };
    let before = settings.common_yaml()?;
    Ok(Some(move |machine: Arc<Machine>| -> Renew {
        let renew = move || -> Result<Renewed> {
            refuse_emptied(&path)?;
            let settings = Settings::gather(&args)?;
            let mut needs_restart = differences(&before, &settings.common_yaml()?);
            // The others became part of the models.
            needs_restart.retain(|key| !is_of_models(key));
            let models = from_files::specs(&machine, settings.models)?;
            Ok(Renewed { models, routing: settings.routing, needs_restart })
        };
        Arc::new(move || renew().map_err(|failure| from_files::said(&failure)))
    }))
}

/// Refuses a file without a byte, as an interrupted write leaves it: it would replace the models of a
/// running server by the built-in one.
fn refuse_emptied(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(file) if file.is_file() && file.len() == 0 => {
            Err(Failure::new(format!("{}: the file is empty", path.display())))
        }
        _ => Ok(()),
    }
}

/// Whether a key is one that each model has for itself.
fn is_of_models(key: &str) -> bool {
    key != "threads" && table().any(|flag| flag.key() == key && flag.concerns_models())
}

/// The keys whose lines differ.
fn differences(before: &str, after: &str) -> Vec<String> {
    let key = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let mut differ: Vec<String> = Vec::new();
    let mut group = String::new();
    for (old, new) in before.lines().zip(after.lines()) {
        if !old.starts_with([' ', '-']) {
            group = key(old);
        }
        if old != new && !differ.contains(&group) {
            differ.push(group.clone());
        }
    }
    if before.lines().count() != after.lines().count() && !differ.contains(&group) {
        differ.push(group);
    }
    differ
}

/// A model that was to be there from the start; where there is only one, everyone knows which.
fn not_loaded(error: ModelsError, n_models: usize) -> Failure {
    match error {
        ModelsError::Load { why, .. } if n_models == 1 => Failure::new(why),
        other => Failure::new(other.to_string()),
    }
}
