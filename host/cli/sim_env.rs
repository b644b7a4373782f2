//! `sim-env`: any command, with simulated devices.
//!
//! Knows: where the library is, and what the environment must say. Must not know: what the library does.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::{Doorbells, Link, SimEnvArgs};
use crate::failure::Failure;

const LIBRARY: &str = "libwarpverbs_sim.so";
/// Names the library.
const NAMED: &str = "WARPVERBS_SIM_LIB";

/// Becomes the command; returns only if that fails.
pub(crate) fn run(args: &SimEnvArgs) -> Result<(), Failure> {
    let library = library()?;
    let folder =
        folder().map_err(|error| Failure::Run(format!("no folder of our own: {error}")))?;
    let wire = args.wire.clone().unwrap_or_else(|| folder.join("wire"));
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::Usage("no command (see --help)".into()));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env(
            "LD_PRELOAD",
            joined(&library, env::var_os("LD_PRELOAD"), " "),
        )
        .env("WARPVERBS_SIM_WIRE", wire)
        .env("WARPVERBS_SIM_FOLDER", &folder)
        .env("WARPVERBS_SIM_NICS", args.nics.to_string())
        .env(
            "WARPVERBS_SIM_LINK",
            match args.link {
                Link::Ethernet => "ethernet",
                Link::Infiniband => "infiniband",
            },
        )
        // The devices of an outer one, or of the machine, are not those of this one.
        .env_remove("SYSFS_PATH");
    if let Some(doorbells) = args.doorbells {
        let doorbells = match doorbells {
            Doorbells::Fast => "fast",
            Doorbells::Conformance => "conformance",
        };
        command.env("WARPVERBS_SIM_DOORBELLS", doorbells);
    }
    if let Some(beside) = executable().as_deref().and_then(Path::parent) {
        command.env("PATH", joined(beside, env::var_os("PATH"), ":"));
    }
    let error = command.exec();
    let program = program.to_string_lossy();
    Err(Failure::Run(match error.kind() {
        io::ErrorKind::NotFound => format!("no command {program:?} on PATH"),
        _ => format!("cannot run {program:?}: {error}"),
    }))
}

fn executable() -> Option<PathBuf> {
    env::current_exe().ok()
}

/// `first`, and behind it what was there.
fn joined(first: impl AsRef<OsStr>, rest: Option<OsString>, between: &str) -> OsString {
    let mut all = first.as_ref().to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        all.push(between);
        all.push(rest);
    }
    all
}

/// The library: the one that is named, the one beside this executable, or the one that cargo leaves in `deps`.
fn library() -> Result<PathBuf, Failure> {
    let candidates = match env::var_os(NAMED) {
        Some(named) => vec![PathBuf::from(named)],
        None => executable()
            .as_deref()
            .and_then(Path::parent)
            .map(|beside| vec![beside.join(LIBRARY), beside.join("deps").join(LIBRARY)])
            .unwrap_or_default(),
    };
    let found = candidates
        .iter()
        .find(|path| path.is_file())
        .and_then(|path| path.canonicalize().ok());
    found.ok_or_else(|| {
        let tried: Vec<String> = candidates
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        Failure::Run(format!(
            "no {LIBRARY} (looked at {}): build it with `cargo build -p warpverbs-sim-shim`, with --release if this command was \
             built so, or name it in {NAMED}",
            tried.join(" and ")
        ))
    })
}

/// A folder of this user's alone, where simulated devices leave files and find each other.
fn folder() -> io::Result<PathBuf> {
    let user = fs::metadata("/proc/self")?.uid();
    let folder = match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(own) if own.is_dir() => own.join("warpverbs-sim"),
        _ => env::temp_dir().join(format!("warpverbs-sim-{user}")),
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(&folder)?;
    if metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    Err(io::Error::other(format!(
        "{} is not this user's alone: remove it",
        folder.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_comes_behind() {
        assert_eq!(joined("a", None, ":"), "a");
        assert_eq!(joined("a", Some(OsString::new()), ":"), "a");
        assert_eq!(joined("a", Some("b:c".into()), ":"), "a:b:c");
    }
}
