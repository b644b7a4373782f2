//! Developer tasks: `cargo xtask ptx [--check | --text]`.

mod ptx;

use std::{env, process::ExitCode};

const USAGE: &str = "usage: cargo xtask ptx [--check | --text]
  ptx          builds ptx/ from device/kernels
  ptx --check  compares ptx/ with what device/kernels gives; exits 3 if the compiler is not the recorded one
  ptx --text   looks for what the committed PTX must not have";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["ptx"] => ptx::build(),
        ["ptx", "--check"] => ptx::check(),
        ["ptx", "--text"] => ptx::check_text(),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
