//! Compiles a device crate to PTX, from a build script or a task runner.
//!
//! ```no_run
//! warpverbs_build::PtxBuilder::new("kernels")
//!     .arch("sm_80")
//!     .copy_to("kernels.ptx")
//!     .build()
//!     .unwrap_or_else(|error| panic!("{error}"));
//! ```
//!
//! The device crate is an ordinary `no_std` library with `extern "ptx-kernel"` functions. It may be a member
//! of the caller's workspace or not, and needs no build profile, no cargo configuration and no toolchain
//! file: all that the PTX target wants is passed on the command line. A Rust compiler that can emit PTX is
//! looked for in this order (see [`Toolchain::find`]):
//!
//! 1. the compiler that the environment variable `WARPVERBS_PTX_RUSTC` names,
//! 2. `rustc` on the search path, with `core` for the target, as sources or compiled,
//! 3. Debian's `rustc-web` with `rust-web-src`,
//! 4. rustup's nightly, with the component `rust-src`: last, since it is another compiler every day.
//!
//! This crate has no dependencies.

mod cargo;
mod error;
mod text;
mod toolchain;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

pub use error::{Error, Rejected};
pub use text::Finding;
pub use toolchain::{Core, RUSTC_VARIABLE, TARGET, Toolchain};

/// A build of one device crate for one architecture.
#[derive(Clone, Debug)]
pub struct PtxBuilder {
    krate: PathBuf,
    arch: String,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    strict: bool,
}

/// A finished build.
#[derive(Clone, Debug)]
pub struct Built {
    /// The PTX.
    pub text: String,
    /// Where it lies: the path given to [`PtxBuilder::copy_to`], else one in the target folder.
    pub path: PathBuf,
    /// What built it.
    pub toolchain: Toolchain,
}

impl PtxBuilder {
    /// Builds the device crate in `folder`, which is relative to the current folder: in a build script, that
    /// of its package.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            krate: folder.into(),
            arch: "sm_70".to_owned(),
            copy_to: None,
            target_dir: None,
            strict: false,
        }
    }

    /// The oldest architecture that the PTX is for, such as `sm_80`; newer ones run it too. `sm_70` unless set.
    pub fn arch(mut self, arch: impl Into<String>) -> Self {
        self.arch = arch.into();
        self
    }

    /// Also writes the PTX here.
    pub fn copy_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.copy_to = Some(path.into());
        self
    }

    /// Where the compiler's files go: `OUT_DIR` in a build script, else `target` in the current folder, unless set.
    pub fn target_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(path.into());
        self
    }

    /// Also refuses what a kernel may have but warpverbs' own must not: calls, traps, local memory, mangled
    /// names, atomics without a scope.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Finds a toolchain, compiles, checks the result.
    ///
    /// In a build script it also tells cargo when to run the script again: when a source file of the device crate or of
    /// a crate that it has by path changes.
    ///
    /// # Errors
    ///
    /// [`Error`] says what failed, and what to install or to change.
    pub fn build(&self) -> Result<Built, Error> {
        let ptx_version = ptx_version(&self.arch)?;
        let manifest = self.krate.join("Cargo.toml");
        let manifest =
            fs::canonicalize(&manifest).map_err(|source| Error::NoCrate { manifest, source })?;
        let target_dir = match (&self.target_dir, env::var_os("OUT_DIR")) {
            (Some(folder), _) => folder.clone(),
            (None, Some(folder)) => PathBuf::from(folder).join("warpverbs-ptx"),
            (None, None) => PathBuf::from("target/warpverbs-ptx"),
        };
        // One folder an architecture: all crates of a build have the same.
        let target_dir = absolute(&target_dir)?.join(&self.arch);

        cargo::rerun_if_env_changed(RUSTC_VARIABLE);
        // Before anything can fail: a script that failed must run again too.
        if let Some(folder) = manifest.parent() {
            cargo::rerun_if_changed(&folder.join("src"));
        }
        cargo::rerun_if_changed(&manifest);

        let toolchain = Toolchain::find()?;
        let job = cargo::Job {
            toolchain: &toolchain,
            manifest: &manifest,
            target_dir: &target_dir,
            arch: &self.arch,
            ptx_version,
        };
        let path = job.run()?;
        for source in job.sources() {
            cargo::rerun_if_changed(&source);
        }
        let text = text::without_marks(&read(&path)?);
        let findings = text::check(&text, self.strict);
        if !findings.is_empty() {
            return Err(Error::Refused { path, findings });
        }
        let path = match &self.copy_to {
            None => path,
            Some(copy) => {
                let copy = absolute(copy)?;
                write_if_changed(&copy, &text)?;
                copy
            }
        };
        Ok(Built {
            text,
            path,
            toolchain,
        })
    }
}

/// Findings of the strict check on a PTX text; empty if it is as warpverbs' own must be.
pub fn check_strictly(text: &str) -> Vec<Finding> {
    text::check(text, true)
}

/// The PTX ISA version, as a target feature, for an architecture: 8.2, which has `st.mmio`, unless it needs a
/// newer one.
fn ptx_version(arch: &str) -> Result<&'static str, Error> {
    let number = arch
        .strip_prefix("sm_")
        .map(|number| number.trim_end_matches(['a', 'f']));
    match number.and_then(|number| number.parse::<u32>().ok()) {
        Some(70..=90) => Ok("ptx82"),
        Some(100 | 101) => Ok("ptx86"),
        Some(102..=120) => Ok("ptx87"),
        Some(121..) => Ok("ptx88"),
        _ => Err(Error::BadArch {
            arch: arch.to_owned(),
        }),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

/// Leaves a file alone that holds the text already: whoever depends on its time is not rebuilt.
fn write_if_changed(path: &Path, text: &str) -> Result<(), Error> {
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let written = match path.parent() {
        Some(folder) => fs::create_dir_all(folder).and_then(|()| fs::write(path, text)),
        None => fs::write(path, text),
    };
    written.map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_architecture_has_its_ptx_version_and_others_are_refused() {
        assert_eq!(ptx_version("sm_70").unwrap(), "ptx82");
        assert_eq!(ptx_version("sm_90a").unwrap(), "ptx82");
        assert_eq!(ptx_version("sm_100").unwrap(), "ptx86");
        assert_eq!(ptx_version("sm_120").unwrap(), "ptx87");
        for bad in ["", "sm_", "sm_60", "80", "compute_80", "sm_7x"] {
            let error = ptx_version(bad).unwrap_err();
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
    }

    #[test]
    fn a_folder_without_a_crate_is_named() {
        let error = PtxBuilder::new("no/such/folder").build().unwrap_err();
        assert!(matches!(error, Error::NoCrate { .. }));
        assert!(error.to_string().contains("no/such/folder"), "{error}");
    }
}
