//! Developer tasks: `cargo xtask ptx [--c | --check | --text]`, `cargo xtask ffi [--check]`.

mod ffi;
mod ptx;

use std::{env, process::ExitCode};

const USAGE: &str = "usage: cargo xtask ptx [--c | --check | --text], cargo xtask ffi [--check | --declarations FILE | --verbs FOLDER]
  ptx          builds ptx/ from device/kernels
  ptx --c      builds target/ptx/wv_dev.ptx, device functions that CUDA C++ links, from device/c
  ptx --check  compares ptx/ with what device/kernels gives; exits 3 if the compiler is not the recorded one
  ptx --text   looks for what the committed PTX must not have
  ffi          builds host/ffi/bindings.rs from rdma-core's headers
  ffi --check  compares host/ffi/bindings.rs with what the headers here give
  ffi --declarations  writes how the headers here declare the functions of host/ffi/table.rs
  ffi --verbs         writes all of verbs for ci/oracle: verbs.rs, and verbs.c for what is inline in the headers";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["ptx"] => ptx::build(),
        ["ptx", "--c"] => ptx::build_c(),
        ["ptx", "--check"] => ptx::check(),
        ["ptx", "--text"] => ptx::check_text(),
        ["ffi"] => ffi::build(),
        ["ffi", "--check"] => ffi::check(),
        ["ffi", "--declarations", file] => ffi::declarations(file),
        ["ffi", "--verbs", folder] => ffi::verbs(folder),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
