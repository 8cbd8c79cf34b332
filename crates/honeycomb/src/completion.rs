//! `completion`: scripts with which shells complete commands and options.

use crate::failure::CommandResult;
use crate::output::print_bytes;
use clap::{Args, Command};
use clap_complete::Shell;

/// Prints a completion script for a shell.
///
/// The script is generated from the definition of the command line: print it again after an update. bash:
/// save it in a folder of bash-completion, or source it; zsh: save it as `_honeycomb` in a folder of
/// $fpath; fish: save it in ~/.config/fish/completions.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb completion bash > honeycomb.bash
  honeycomb completion zsh > _honeycomb
  honeycomb completion fish > honeycomb.fish")]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// `honeycomb completion`.
pub fn completion(args: &CompletionArgs, mut command: Command) -> CommandResult {
    let shell = match args.shell.as_str() {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        _ => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "honeycomb", &mut script);
    print_bytes(&script);
    Ok(())
}
