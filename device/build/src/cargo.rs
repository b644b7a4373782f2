//! The nested cargo that compiles a device crate, and words to the outer one.
//!
//! Knows: flags and environment of the build. Must not know: which toolchain is best, or what the PTX should look like.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    error::Error,
    toolchain::{self, Core, TARGET, Toolchain},
};

/// Name of the build profile. It is defined on the command line, so that no workspace needs to.
const PROFILE: &str = "warpverbs-ptx";

/// The profile: fat LTO into one module, no debug info (ptxas refuses what LLVM emits), nothing that leaves
/// panic machinery.
const PROFILE_SETTINGS: [&str; 9] = [
    "inherits=\"release\"",
    "opt-level=3",
    "lto=\"fat\"",
    "codegen-units=1",
    "panic=\"abort\"",
    "debug=false",
    "overflow-checks=false",
    "debug-assertions=false",
    "incremental=false",
];

/// Variables of an outer cargo, or of its user, that mean its own build and would change this one.
const FOREIGN: [&str; 10] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_MAKEFLAGS",
    "CARGO_INCREMENTAL",
    "CARGO_TARGET_DIR",
    "RUSTUP_TOOLCHAIN",
    "MAKEFLAGS",
];
/// The same, by the beginning of their names.
const FOREIGN_PREFIXES: [&str; 4] = [
    "CARGO_PROFILE_",
    "CARGO_BUILD_",
    "CARGO_TARGET_",
    "CARGO_UNSTABLE_",
];

/// One run.
pub(crate) struct Job<'a> {
    pub(crate) toolchain: &'a Toolchain,
    pub(crate) manifest: &'a Path,
    pub(crate) target_dir: &'a Path,
    pub(crate) arch: &'a str,
    pub(crate) ptx_version: &'a str,
}

impl Job<'_> {
    /// Compiles; returns the path of the PTX.
    ///
    /// `staticlib` with fat LTO and `--emit=asm` never runs a linker. CPU and features are in the flags
    /// variable and not behind `--`, which would reach the last crate only.
    pub(crate) fn run(&self) -> Result<PathBuf, Error> {
        let ptx = self.target_dir.join(self.file_name());
        let mut command = Command::new(toolchain::cargo());
        for (name, _) in env::vars_os() {
            let foreign = name.to_str().is_some_and(|name| {
                FOREIGN.contains(&name)
                    || FOREIGN_PREFIXES
                        .iter()
                        .any(|prefix| name.starts_with(prefix))
            });
            if foreign {
                command.env_remove(name);
            }
        }
        command
            .env("RUSTC", &self.toolchain.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_NVPTX64_NVIDIA_CUDA_RUSTFLAGS", self.flags())
            .args([
                "rustc",
                "--lib",
                "--quiet",
                "--target",
                TARGET,
                "--profile",
                PROFILE,
            ])
            .args(["--crate-type", "staticlib", "--color", "never"])
            .arg("--manifest-path")
            .arg(self.manifest)
            .arg("--target-dir")
            .arg(self.target_dir);
        for setting in PROFILE_SETTINGS {
            command
                .arg("--config")
                .arg(format!("profile.{PROFILE}.{setting}"));
        }
        if self.toolchain.core == Core::Source {
            command.arg("-Zbuild-std=core");
        }
        let mut emit = std::ffi::OsString::from("--emit=asm=");
        emit.push(&ptx);
        command.arg("--").arg(emit).stdin(Stdio::null());
        // cargo does not know of the file, and takes the crate for fresh when the file alone is gone.
        if !ptx.is_file() {
            self.forget()?;
        }
        let output = command.output().map_err(|source| Error::Cargo { source })?;
        if output.status.success() && ptx.is_file() {
            Ok(ptx)
        } else {
            Err(Error::Compile {
                output: String::from_utf8_lossy(&output.stderr).into_owned(),
            })
        }
    }

    /// One file a crate: cargo does not write it again for a crate that is fresh, so no other crate may write it.
    fn file_name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.manifest.hash(&mut hasher);
        let folder = self
            .manifest
            .parent()
            .and_then(Path::file_name)
            .unwrap_or_default();
        format!("{}-{:016x}.ptx", folder.to_string_lossy(), hasher.finish())
    }

    fn flags(&self) -> String {
        let mut flags = format!(
            "-Ctarget-cpu={} -Ctarget-feature=+{}",
            self.arch, self.ptx_version
        );
        if self.toolchain.core == Core::Source {
            // Not with a `core` that was compiled otherwise.
            flags += " -Zunstable-options -Cpanic=immediate-abort";
        }
        flags
    }

    /// Makes cargo compile the last crate anew.
    fn forget(&self) -> Result<(), Error> {
        let folder = self
            .target_dir
            .join(TARGET)
            .join(PROFILE)
            .join(".fingerprint");
        match fs::remove_dir_all(&folder) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::File {
                path: folder,
                source,
            }),
            _ => Ok(()),
        }
    }

    /// Source files of the device crate, and of the crates that it has by path: what cargo noted.
    pub(crate) fn sources(&self) -> Vec<PathBuf> {
        let Ok(folder) = fs::read_dir(self.target_dir.join(TARGET).join(PROFILE)) else {
            return Vec::new();
        };
        folder
            .flatten()
            .filter(|entry| {
                entry
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "d")
            })
            .filter_map(|entry| fs::read_to_string(entry.path()).ok())
            .flat_map(|text| dependencies(&text))
            .collect()
    }
}

/// The files behind the colon of a makefile rule; blanks in names are escaped.
fn dependencies(rule: &str) -> Vec<PathBuf> {
    let Some((_, files)) = rule.split_once(": ") else {
        return Vec::new();
    };
    let marked = files.replace("\\ ", "\0");
    marked
        .split_whitespace()
        .map(|file| PathBuf::from(file.replace('\0', " ")))
        .collect()
}

/// In a build script, tells cargo what to watch.
pub(crate) fn rerun_if_changed(path: &Path) {
    if env::var_os("OUT_DIR").is_some() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// In a build script, tells cargo what to watch.
pub(crate) fn rerun_if_env_changed(name: &str) {
    if env::var_os("OUT_DIR").is_some() {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_those_behind_the_colon() {
        let rule = "/t/libkernels.a: /k/src/lib.rs /with\\ blank/src/lib.rs\n";
        assert_eq!(
            dependencies(rule),
            [
                PathBuf::from("/k/src/lib.rs"),
                PathBuf::from("/with blank/src/lib.rs")
            ]
        );
        assert_eq!(dependencies(""), Vec::<PathBuf>::new());
    }
}
