//! The `warpverbs` command.
//!
//! Knows: exit codes and where output goes: results to stdout, logs and errors to stderr.
//! Must not know: how a command does its work.
#![deny(unsafe_code)]

mod args;
mod failure;
mod interrupt;
mod mlx5;
mod output;
mod perf;
mod probe;
mod ptx;
#[cfg(target_os = "linux")]
mod sim_env;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let done = match cli.command {
        Command::Perf(args) => perf::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Ptx(args) => ptx::run(&args.command),
        #[cfg(target_os = "linux")]
        Command::SimEnv(args) => sim_env::run(&args),
        #[cfg(not(target_os = "linux"))]
        Command::SimEnv(_) => Err(Failure::Run("sim-env needs Linux".into())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    output::complaint(&format!("warpverbs: {failure}\n"));
    failure.exit_code()
}

/// Help goes out whole; of a mistake, what is wrong and where to look it up, on one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            match output::result(&error.to_string()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => failed(&failure),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::complaint(&error.to_string());
            ExitCode::from(failure::USAGE)
        }
        _ => {
            let text = error.to_string();
            let lines: Vec<&str> = text
                .lines()
                .map(str::trim)
                .filter(|line| {
                    !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more")
                })
                .collect();
            let what = lines.join(" ");
            failed(&Failure::Usage(format!(
                "{} (see --help)",
                what.strip_prefix("error: ").unwrap_or(&what)
            )))
        }
    }
}
