//! Flags of `pelton serve`.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;

use crate::config::Secret;
use crate::flags::{
    AnswerArgs, Chosen, ModelArgs, SchedulingArgs, ServerArgs, TemplateArgs, VectorArgs,
};

/// Flags of `pelton serve`; what is absent comes from the file of `--config`, else it is built in.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Where the model is.
    #[command(flatten)]
    model: ModelArgs,
    /// YAML file with values of flags, API keys and tenants; flags and environment win over it
    #[arg(long, env = "PELTON_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the resulting settings, without API keys, and exit
    #[arg(long)]
    pub(crate) check_config: bool,
    /// How conversations are laid out.
    #[command(flatten)]
    template: TemplateArgs,
    /// How answers are taken apart.
    #[command(flatten)]
    answers: AnswerArgs,
    /// Where the model is served.
    #[command(flatten)]
    server: ServerArgs,
    /// Require this API key from clients; may be given several times. A key that is followed by a
    /// space and `metrics` also sees the load of all tenants. Other users of the machine can see
    /// command lines, so prefer the environment or --config
    #[arg(
        long,
        env = "PELTON_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = secret
    )]
    pub(crate) api_key: Vec<Secret>,
    /// How vectors are made.
    #[command(flatten)]
    vectors: VectorArgs,
    /// How requests share the machine.
    #[command(flatten)]
    scheduling: SchedulingArgs,
}

impl ServeArgs {
    /// Lays these flags over the values of a file.
    pub(crate) fn lay_over(&self, chosen: &mut Chosen) {
        self.model.lay_over(chosen);
        self.template.lay_over(chosen);
        self.answers.lay_over(chosen);
        self.server.lay_over(chosen);
        self.vectors.lay_over(chosen);
        self.scheduling.lay_over(chosen);
    }
}

/// Accepts any text: a later error about the key does not show it.
fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}
