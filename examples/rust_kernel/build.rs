//! Compiles `kernels/` to PTX.

use std::{env, path::PathBuf};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = warpverbs_build::PtxBuilder::new("kernels")
        .arch("sm_80")
        .copy_to(out.join("kernels.ptx"))
        .build();
    if let Err(error) = built {
        // cargo prints each of these as an error, and fails.
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
    }
}
