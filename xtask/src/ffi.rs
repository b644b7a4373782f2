//! `host/ffi/bindings.rs`: made from rdma-core's headers.
//!
//! Needs libibverbs-dev, libclang, and `bindgen` of [`BINDGEN`], which is installed under `target` if it is missing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

/// The version of bindgen whose output is committed.
const BINDGEN: &str = "0.72.1";
const OUTPUT: &str = "host/ffi/bindings.rs";
const TABLE: &str = "host/ffi/table.rs";
const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n";
/// Structures that the driver touches, and the constants that it passes. WQEs and CQEs are `wire`'s.
const TYPES: &[&str] = &[
    "ibv_async_event",
    "_compat_ibv_port_attr",
    "ibv_port_attr",
    "ibv_port_state",
    "ib_uverbs_query_port_flags",
    "ibv_gid_entry",
    "ibv_gid_type",
    "ibv_ah_attr",
    "ibv_qp_init_attr",
    "ibv_qp_attr",
    "ibv_qp_attr_mask",
    "ibv_mr",
    "ibv_event_type",
    "mlx5dv_context_attr",
    "mlx5dv_context_attr_flags",
    "mlx5dv_pd",
    "mlx5dv_ah",
    "mlx5dv_obj",
    "mlx5dv_obj_type",
    "mlx5dv_devx_umem",
    "mlx5dv_devx_umem_in",
    "mlx5dv_devx_umem_in_mask",
    "mlx5dv_devx_uar",
    "mlx5dv_devx_obj",
    "mlx5dv_devx_event_channel",
    "mlx5_ib_uapi_devx_async_event_hdr",
    "mlx5_ib_uapi_devx_create_event_channel_flags",
];
const CONSTANTS: &[&str] = &["IBV_LINK_LAYER_.*"];
/// What a program of verbs calls: all of libibverbs, and of libmlx5 what shows queues and writes segments.
const VERBS: &[&str] = &[
    "_*ibv_.*",
    "mlx5dv_(init_obj|is_supported|open_device|create_qp|qp_ex_from_ibv_qp_ex|wr_raw_wqe|devx_qp_query)",
    "mlx5dv_(set_ctrl_seg|set_data_seg|get_cqe_.*)",
];

/// Writes the bindings.
pub(crate) fn build() -> ExitCode {
    finish(|| {
        let text = generate()?;
        fs::write(OUTPUT, &text)?;
        println!("{OUTPUT}: {} lines", text.lines().count());
        Ok(ExitCode::SUCCESS)
    })
}

/// Compares the bindings with what the headers here give.
pub(crate) fn check() -> ExitCode {
    finish(|| {
        if generate()? == fs::read_to_string(OUTPUT)? {
            println!("{OUTPUT} is what the headers give");
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("{OUTPUT} is not what the headers here give: run `cargo xtask ffi`");
        Ok(ExitCode::FAILURE)
    })
}

/// Writes the declarations of the functions that `host/ffi/table.rs` names, for ci/ffi-check.
pub(crate) fn declarations(file: &str) -> ExitCode {
    finish(|| {
        let table = fs::read_to_string(TABLE)?;
        let names: Vec<&str> = table
            .lines()
            .filter_map(|line| line.split_once(" fn ")?.1.split_once('('))
            .map(|(name, _)| name)
            .collect();
        let mut arguments = Vec::new();
        for name in &names {
            arguments.extend(["--allowlist-function", name]);
        }
        arguments.extend(["--blocklist-type", ".*"]);
        fs::write(file, bindgen(&arguments)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Writes bindings of all of verbs into a folder, and C that gives inline functions an address, for ci/oracle.
pub(crate) fn verbs(folder: &str) -> ExitCode {
    finish(|| {
        let wrappers = Path::new(folder).join("verbs.c");
        let wrappers = wrappers.to_string_lossy();
        let mut arguments = vec!["--with-derive-default"];
        for name in VERBS {
            arguments.extend(["--allowlist-function", name]);
        }
        arguments.extend(["--allowlist-type", "(ibv|mlx5dv)_.*"]);
        arguments.extend(["--allowlist-var", "(IBV|MLX5DV)_.*"]);
        // Packed and aligned, which Rust does not have.
        arguments.extend(["--opaque-type", "mlx5_(wqe_.*|cqe64)"]);
        arguments.extend(["--experimental", "--wrap-static-fns"]);
        arguments.extend(["--wrap-static-fns-path", &wrappers]);
        fs::write(Path::new(folder).join("verbs.rs"), bindgen(&arguments)?)?;
        // It includes a header that is gone by now.
        let text = fs::read_to_string(wrappers.as_ref())?;
        let body: Vec<&str> = text.lines().skip(1).collect();
        fs::write(wrappers.as_ref(), format!("{HEADERS}{}\n", body.join("\n")))?;
        Ok(ExitCode::SUCCESS)
    })
}

fn finish(body: impl FnOnce() -> io::Result<ExitCode>) -> ExitCode {
    body().unwrap_or_else(|error| {
        eprintln!("xtask ffi: {error}");
        ExitCode::FAILURE
    })
}

fn generate() -> io::Result<String> {
    let mut arguments = vec![
        "--with-derive-default",
        "--blocklist-function",
        ".*",
        "--raw-line",
        "// Made by `cargo xtask ffi` from rdma-core's headers.",
    ];
    for name in TYPES {
        arguments.extend(["--allowlist-type", name]);
    }
    for name in CONSTANTS {
        arguments.extend(["--allowlist-var", name]);
    }
    bindgen(&arguments)
}

/// Runs bindgen on the headers.
fn bindgen(arguments: &[&str]) -> io::Result<String> {
    let bindgen = executable()?;
    let header = env::temp_dir().join(format!("warpverbs-ffi-{}.h", std::process::id()));
    fs::write(&header, HEADERS)?;
    let output = Command::new(bindgen)
        .arg(&header)
        .args([
            "--no-doc-comments",
            "--wrap-unsafe-ops",
            "--no-prepend-enum-name",
        ])
        .args(["--rust-edition", "2024", "--rust-target", "1.85"])
        .args(arguments)
        .stderr(Stdio::inherit())
        .output();
    fs::remove_file(&header)?;
    let output = output?;
    if !output.status.success() {
        return Err(io::Error::other(
            "bindgen failed: are libibverbs-dev and libclang-dev installed?",
        ));
    }
    format(&output.stdout)
}

/// Formats the text as the workspace is.
fn format(text: &[u8]) -> io::Result<String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = rustfmt.stdin.take() {
        stdin.write_all(text)?;
    }
    let output = rustfmt.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other("rustfmt failed on bindgen's output"));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

/// A bindgen of the right version: the one on PATH, or one that is installed under `target`.
fn executable() -> io::Result<PathBuf> {
    let root = Path::new("target").join("tools");
    let own = root.join("bin").join("bindgen");
    for candidate in [PathBuf::from("bindgen"), own.clone()] {
        let version = Command::new(&candidate).arg("--version").output();
        if version.is_ok_and(|output| {
            String::from_utf8_lossy(&output.stdout).trim() == format!("bindgen {BINDGEN}")
        }) {
            return Ok(candidate);
        }
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let installed = Command::new(cargo)
        .args(["install", "bindgen-cli", "--locked", "--version", BINDGEN])
        .arg("--root")
        .arg(&root)
        .status()?;
    if installed.success() {
        Ok(own)
    } else {
        Err(io::Error::other("bindgen-cli does not install"))
    }
}
