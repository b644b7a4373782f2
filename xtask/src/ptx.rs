//! `ptx/`: built from `device/kernels`, and compared with it.
//!
//! A PTX file is committed for each architecture whose kernels differ in more than the `.target` line: so far
//! one, for all.

use std::{fs, io, path::PathBuf, process::ExitCode};

use warpverbs_build::{Built, Error, PtxBuilder};

/// The committed files.
const ARCHITECTURES: [&str; 1] = ["sm_70"];

/// `--check`: the toolchain differs from the recorded one, so that nothing was compared.
const NOT_COMPARED: u8 = 3;

/// Writes the PTX files and `TOOLCHAIN`.
pub(crate) fn build() -> ExitCode {
    finish(|| {
        for arch in ARCHITECTURES {
            let built = compile(arch)?;
            write(&format!("{arch}.ptx"), &built.text)?;
            write("TOOLCHAIN", &built.toolchain.version)?;
            println!("ptx/{arch}.ptx: {} lines", built.text.lines().count());
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Compares the PTX files with what the sources give.
pub(crate) fn check() -> ExitCode {
    finish(|| {
        let recorded = read("TOOLCHAIN")?;
        let mut code = ExitCode::SUCCESS;
        for arch in ARCHITECTURES {
            let built = compile(arch)?;
            if built.toolchain.version != recorded {
                println!(
                    "not compared: ptx/TOOLCHAIN says\n{recorded}but the compiler here is\n{}",
                    built.toolchain.version
                );
                return Ok(ExitCode::from(NOT_COMPARED));
            }
            if built.text == read(&format!("{arch}.ptx"))? {
                println!("ptx/{arch}.ptx is what the sources give");
            } else {
                eprintln!("ptx/{arch}.ptx is not what the sources give: run `cargo xtask ptx`");
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
        for arch in ARCHITECTURES {
            let findings = warpverbs_build::check_strictly(&read(&format!("{arch}.ptx"))?);
            for finding in &findings {
                eprintln!("ptx/{arch}.ptx: {finding}");
                code = ExitCode::FAILURE;
            }
            if findings.is_empty() {
                println!(
                    "ptx/{arch}.ptx: no call, trap, local memory, mangled name or unscoped atomic"
                );
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

fn compile(arch: &str) -> Result<Built, Error> {
    PtxBuilder::new(root().join("device/kernels"))
        .arch(arch)
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

fn committed(name: &str) -> PathBuf {
    root().join("ptx").join(name)
}

fn read(name: &str) -> Result<String, Error> {
    let path = committed(name);
    fs::read_to_string(&path).map_err(file_error(path))
}

fn write(name: &str, text: &str) -> Result<(), Error> {
    let path = committed(name);
    fs::write(&path, text).map_err(file_error(path))
}

fn file_error(path: PathBuf) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path, source }
}
