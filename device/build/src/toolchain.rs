//! Finding a Rust compiler that can emit PTX.
//!
//! Knows: where such compilers come from and how to ask them. Must not know: what is compiled.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use crate::error::{Error, Rejected};

/// The target.
pub const TARGET: &str = "nvptx64-nvidia-cuda";
/// The environment variable that names the compiler to use.
pub const RUSTC_VARIABLE: &str = "WARPVERBS_PTX_RUSTC";

/// The oldest release whose flags and lowering are those relied on here: `-Cpanic=immediate-abort`, `cold_path`.
const OLDEST: (u32, u32) = (1, 95);

/// A compiler that can emit PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler.
    pub rustc: PathBuf,
    /// What it says of itself: the lines of `rustc -vV` that name release, commit and LLVM.
    pub version: String,
    /// Where `core` for the target comes from.
    pub core: Core,
}

/// Where `core` for the target comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// It is compiled from the library sources, with the same flags as the device crate.
    Source,
    /// It came compiled.
    Compiled,
}

/// How a candidate is named, and how to find it: a path, or why there is none.
type Candidate = (&'static str, fn() -> Option<Result<PathBuf, String>>);

impl Toolchain {
    /// The first that can be used, in the order that the crate's documentation gives. One that is named by
    /// [`RUSTC_VARIABLE`] is used or refused: no other is tried.
    ///
    /// # Errors
    ///
    /// [`Error::NoToolchain`] says what was looked at and what to install.
    pub fn find() -> Result<Self, Error> {
        let candidates: [Candidate; 4] = [
            (RUSTC_VARIABLE, || {
                env::var_os(RUSTC_VARIABLE)
                    .filter(|path| !path.is_empty())
                    .map(|path| Ok(path.into()))
            }),
            ("rustc", || Some(Ok(PathBuf::from("rustc")))),
            ("Debian's /usr/bin/rustc", || {
                Some(Ok(PathBuf::from("/usr/bin/rustc")))
            }),
            // Last: it is another compiler every day.
            ("rustup's nightly", || Some(rustup_nightly())),
        ];
        let mut rejected = Vec::new();
        for (candidate, locate) in candidates {
            let Some(located) = locate() else { continue };
            match located.and_then(|rustc| Self::probe(&rustc)) {
                Ok(toolchain) => return Ok(toolchain),
                Err(reason) => rejected.push(Rejected {
                    candidate: candidate.to_owned(),
                    reason,
                }),
            }
            if candidate == RUSTC_VARIABLE {
                break;
            }
        }
        Err(Error::NoToolchain { rejected })
    }

    /// Asks a compiler whether it will do; the error says why not.
    fn probe(rustc: &Path) -> Result<Self, String> {
        let told = ask(rustc, &["-vV"])?;
        let release = told
            .lines()
            .find_map(|line| line.strip_prefix("release: "))
            .unwrap_or_default();
        match release_number(release) {
            Some(number) if number >= OLDEST => {}
            Some(_) => {
                return Err(format!(
                    "it is {release}, older than {}.{}",
                    OLDEST.0, OLDEST.1
                ));
            }
            None => return Err(format!("it does not say its release: `{release}`")),
        }
        let sysroot = PathBuf::from(ask(rustc, &["--print", "sysroot"])?.trim());
        let library = sysroot.join("lib/rustlib");
        let core = if library.join("src/rust/library/core/Cargo.toml").is_file() {
            Core::Source
        } else if library.join(TARGET).join("lib").is_dir() {
            Core::Compiled
        } else {
            return Err("it has neither the library sources nor the target".to_owned());
        };
        // `host` and `binary` say nothing about the PTX.
        let said = |line: &&str| {
            ["rustc ", "commit-hash: ", "LLVM version: "]
                .iter()
                .any(|name| line.starts_with(name))
        };
        Ok(Self {
            rustc: rustc.to_owned(),
            version: told
                .lines()
                .filter(said)
                .map(|line| format!("{line}\n"))
                .collect(),
            core,
        })
    }
}

/// `1.96.0-nightly` -> (1, 96)
fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn rustup_nightly() -> Result<PathBuf, String> {
    let path = ask(
        Path::new("rustup"),
        &["which", "--toolchain", "nightly", "rustc"],
    )?;
    Ok(PathBuf::from(path.trim()))
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments);
    // Looking must not install anything.
    command.env("RUSTUP_AUTO_INSTALL", "0");
    // A proxy of rustup answers for the folder's toolchain, not for the one that runs this build script.
    command.env_remove("RUSTUP_TOOLCHAIN");
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "not there".to_owned(),
        _ => error.to_string(),
    })?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("it failed without a word");
        Err(first.strip_prefix("error: ").unwrap_or(first).to_owned())
    }
}

/// The cargo to use: the one that runs this build script, if any does.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(release_number("1.96.0"), Some((1, 96)));
        assert_eq!(release_number("1.100.0-nightly"), Some((1, 100)));
        assert!(release_number("1.100.0-nightly") > Some(OLDEST));
        assert_eq!(release_number(""), None);
        assert_eq!(release_number("dev"), None);
    }

    #[test]
    fn a_compiler_that_is_not_there_is_rejected_with_the_reason() {
        let reason = Toolchain::probe(Path::new("/no/such/rustc")).unwrap_err();
        assert_eq!(reason, "not there");
    }
}
