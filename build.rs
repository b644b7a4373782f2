//! Embeds `ptx/*.ptx`: writes a table of them for `host/ptx.rs`. No device toolchain is needed for that.
//!
//! In the repository the environment variable `WARPVERBS_PTX` asks for more: `build` embeds what
//! `device/kernels` gives now, `check` compares that with what is committed. Either needs a device toolchain
//! (see `warpverbs-build`).

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use warpverbs_build::PtxBuilder;

const VARIABLE: &str = "WARPVERBS_PTX";

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=ptx");
    if let Err(message) = embed() {
        // cargo prints each of these as an error and fails the build; an exit code of ours would only add noise.
        for line in message.lines() {
            println!("cargo::error={line}");
        }
    }
}

fn embed() -> Result<(), String> {
    let root = PathBuf::from(
        env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo did not set CARGO_MANIFEST_DIR")?,
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let mode = env::var(VARIABLE).unwrap_or_default();
    let mut files = committed(&root.join("ptx"))?;
    match mode.as_str() {
        "" => {}
        "build" => {
            for file in &mut files {
                file.path = rebuild(&root, &out, file)?.path;
            }
        }
        "check" => {
            for file in &files {
                check(&root, &out, file)?;
            }
        }
        other => {
            return Err(format!(
                "{VARIABLE} is `{other}`; it can be `build` or `check`, or unset"
            ));
        }
    }
    let mut table = String::from("&[\n");
    for File { name, arch, path } in &files {
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "    Embedded {{ name: {name:?}, compute_capability: {arch}, text: include_str!({path:?}) }},"
        );
    }
    table.push_str("]\n");
    let path = out.join("ptx.rs");
    fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))
}

/// A committed PTX file.
struct File {
    name: String,
    /// Its architecture's number, as in `sm_70`.
    arch: u32,
    path: PathBuf,
}

fn committed(folder: &Path) -> Result<Vec<File>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| format!("{}: {error}", folder.display()))?
            .path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some(arch) = name.strip_suffix(".ptx") else {
            continue;
        };
        let arch = arch
            .strip_prefix("sm_")
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("{}: not named sm_NN.ptx", path.display()))?;
        files.push(File { name, arch, path });
    }
    if files.is_empty() {
        return Err(format!("{}: no PTX files", folder.display()));
    }
    files.sort_by_key(|file| file.arch);
    Ok(files)
}

fn rebuild(root: &Path, out: &Path, file: &File) -> Result<warpverbs_build::Built, String> {
    let kernels = root.join("device/kernels");
    if !kernels.is_dir() {
        return Err(format!(
            "{VARIABLE} is for warpverbs' own repository: the package has no device sources to build PTX from; unset it"
        ));
    }
    PtxBuilder::new(kernels)
        .arch(format!("sm_{}", file.arch))
        .target_dir(out.join("ptx-build"))
        .strict(true)
        .build()
        .map_err(|error| error.to_string())
}

fn check(root: &Path, out: &Path, file: &File) -> Result<(), String> {
    let built = rebuild(root, out, file)?;
    let committed = fs::read_to_string(&file.path)
        .map_err(|error| format!("{}: {error}", file.path.display()))?;
    if built.text == committed {
        return Ok(());
    }
    let recorded = fs::read_to_string(root.join("ptx/TOOLCHAIN")).unwrap_or_default();
    let why = if recorded == built.toolchain.version {
        "run `cargo xtask ptx`"
    } else {
        "the compiler here is not the one in ptx/TOOLCHAIN"
    };
    Err(format!(
        "ptx/{} is not what the sources give: {why}",
        file.name
    ))
}
