//! `warpverbs ptx`: what is embedded, and whether a file parses.

use std::fs;
use std::path::Path;

use warpverbs::driver::sim;
use warpverbs::ptx::EMBEDDED;

use crate::args::PtxCommand;
use crate::failure::Failure;
use crate::output;

pub(crate) fn run(command: &PtxCommand) -> Result<(), Failure> {
    match command {
        PtxCommand::List => list(),
        PtxCommand::Check { file } => check(file),
    }
}

fn list() -> Result<(), Failure> {
    for ptx in EMBEDDED {
        let kernels = kernels(ptx.name, ptx.text)?;
        output::result(&format!(
            "{} (compute capability {}.{} and newer): {}\n",
            ptx.name,
            ptx.compute_capability / 10,
            ptx.compute_capability % 10,
            kernels.join(", ")
        ))?;
    }
    Ok(())
}

fn check(file: &Path) -> Result<(), Failure> {
    let name = file.display().to_string();
    let kernels = kernels(&name, &read(file)?)?;
    if kernels.is_empty() {
        return Err(Failure::Run(format!("{name}: parses, but has no kernel")));
    }
    output::result(&format!(
        "{name}: parses; kernels: {}\n",
        kernels.join(", ")
    ))
}

/// Reads a PTX file.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::Run(format!("cannot read {}: {error}", file.display())))
}

fn kernels(name: &str, text: &str) -> Result<Vec<String>, Failure> {
    sim::kernels_of(text).map_err(|error| Failure::Run(format!("{name}: {error}")))
}
