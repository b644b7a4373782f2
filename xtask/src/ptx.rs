//! Committed PTX: built from its sources, and compared with them.
//!
//! A PTX file of the provided kernels is committed for each architecture whose kernels differ in more than the `.target` line: so
//! far one, for all. The tests' own kernels are one file.

use std::{fs, io, path::PathBuf, process::ExitCode};

use warpverbs_build::{Built, Error, PtxBuilder};

/// A committed file.
struct File {
    /// Its path in the repository.
    path: &'static str,
    /// The package that it is built from.
    package: &'static str,
    arch: &'static str,
}

/// All of them.
const FILES: [File; 2] = [
    File {
        path: "ptx/sm_70.ptx",
        package: "device/kernels",
        arch: "sm_70",
    },
    File {
        path: "tests/kernels/test.ptx",
        package: "tests/kernels",
        arch: "sm_70",
    },
];

/// What built them.
const TOOLCHAIN: &str = "ptx/TOOLCHAIN";

/// `--check`: the toolchain differs from the recorded one, so that nothing was compared.
const NOT_COMPARED: u8 = 3;

/// Writes the PTX files and `TOOLCHAIN`.
pub(crate) fn build() -> ExitCode {
    finish(|| {
        for file in &FILES {
            let built = compile(file)?;
            write(file.path, &built.text)?;
            write(TOOLCHAIN, &built.toolchain.version)?;
            println!("{}: {} lines", file.path, built.text.lines().count());
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Compares the PTX files with what the sources give.
pub(crate) fn check() -> ExitCode {
    finish(|| {
        let recorded = read(TOOLCHAIN)?;
        let mut code = ExitCode::SUCCESS;
        for file in &FILES {
            let (path, built) = (file.path, compile(file)?);
            if built.toolchain.version != recorded {
                println!(
                    "not compared: ptx/TOOLCHAIN says\n{recorded}but the compiler here is\n{}",
                    built.toolchain.version
                );
                return Ok(ExitCode::from(NOT_COMPARED));
            }
            if built.text == read(path)? {
                println!("{path} is what the sources give");
            } else {
                eprintln!("{path} is not what the sources give: run `cargo xtask ptx`");
                code = ExitCode::FAILURE;
            }
        }
        Ok(code)
    })
}

/// Looks for what the committed files must not have. Needs no device toolchain.
pub(crate) fn check_text() -> ExitCode {
    finish(|| {
        let mut code = ExitCode::SUCCESS;
        for File { path, .. } in &FILES {
            let findings = warpverbs_build::check_strictly(&read(path)?);
            for finding in &findings {
                eprintln!("{path}: {finding}");
                code = ExitCode::FAILURE;
            }
            if findings.is_empty() {
                println!("{path}: no call, trap, local memory, mangled name or unscoped atomic");
            }
        }
        Ok(code)
    })
}

/// Builds `device/c` into `target/ptx/wv_dev.ptx`.
pub(crate) fn build_c() -> ExitCode {
    finish(|| {
        let path = root().join("target/ptx/wv_dev.ptx");
        let built = PtxBuilder::new(root().join("device/c"))
            .target_dir(root().join("target/ptx"))
            .copy_to(&path)
            .build()?;
        println!("{}: {} lines", path.display(), built.text.lines().count());
        Ok(ExitCode::SUCCESS)
    })
}

fn compile(file: &File) -> Result<Built, Error> {
    PtxBuilder::new(root().join(file.package))
        .arch(file.arch)
        .target_dir(root().join("target/ptx"))
        .strict(true)
        .build()
}

fn finish(task: impl FnOnce() -> Result<ExitCode, Error>) -> ExitCode {
    task().unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn root() -> PathBuf {
    // This package lies in the root's folder `xtask`.
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

fn read(path: &str) -> Result<String, Error> {
    let path = root().join(path);
    fs::read_to_string(&path).map_err(file_error(path))
}

fn write(path: &str, text: &str) -> Result<(), Error> {
    let path = root().join(path);
    fs::write(&path, text).map_err(file_error(path))
}

fn file_error(path: PathBuf) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path, source }
}
