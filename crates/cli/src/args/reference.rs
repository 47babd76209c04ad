//! Flags of the commands that describe the others: `pelton completions` and `pelton man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

pub(crate) const COMPLETIONS_HELP_END: &str = "\
Examples:
  pelton completions bash > ~/.local/share/bash-completion/completions/pelton
  pelton completions zsh > ~/.zfunc/_pelton              with `fpath+=~/.zfunc` before `compinit`
  pelton completions fish > ~/.config/fish/completions/pelton.fish";

/// Flags of `pelton completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// Flags of `pelton man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Folder for the pages, which exists, such as ~/.local/share/man/man1
    #[arg(required_unless_present = "markdown", conflicts_with = "markdown")]
    pub(crate) folder: Option<PathBuf>,
    /// Print one page of Markdown instead: the reference of the manual
    #[arg(long)]
    pub(crate) markdown: bool,
}
