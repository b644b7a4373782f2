//! The published table of supported PTX is the decoder's.

use std::path::Path;

#[test]
fn the_page_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ptx-coverage.md");
    let current = warpverbs_sim_gpu::coverage();
    if std::env::var_os("BLESS").is_some_and(|v| v == "1") {
        std::fs::create_dir_all(page.parent().expect("a folder")).expect("folder");
        std::fs::write(&page, &current).expect("page");
    }
    let written = match std::fs::read_to_string(&page) {
        Ok(text) => text,
        // The packaged crate has no repository around it.
        Err(_) if !page.parent().is_some_and(Path::exists) => return,
        Err(error) => panic!("{}: {error}", page.display()),
    };
    assert!(
        written == current,
        "docs/ptx-coverage.md is not what the decoder accepts: run with BLESS=1"
    );
}
