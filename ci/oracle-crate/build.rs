//! Compiles what gives the headers' inline functions an address, and links libibverbs and libmlx5.
//!
//! `ORACLE_FFI` names the folder that `cargo xtask ffi --verbs` has written to.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=ORACLE_FFI");
    let from = env::var("ORACLE_FFI").expect("ORACLE_FFI: run ci/oracle");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for file in ["verbs.rs", "verbs.c"] {
        let source = Path::new(&from).join(file);
        println!("cargo:rerun-if-changed={}", source.display());
        fs::copy(source, Path::new(&out).join(file))
            .expect("ORACLE_FFI holds verbs.rs and verbs.c");
    }
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(&out)
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{program} {arguments:?}"
        );
    };
    run(
        "cc",
        &["-O2", "-w", "-fPIC", "-c", "verbs.c", "-o", "verbs.o"],
    );
    run("ar", &["rcs", "libverbs_inline.a", "verbs.o"]);
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static=verbs_inline");
    println!("cargo:rustc-link-lib=dylib=mlx5");
    println!("cargo:rustc-link-lib=dylib=ibverbs");
}
