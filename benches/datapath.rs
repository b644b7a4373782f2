//! Prints what calls of the data path execute, counted by the simulated GPU: no times.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/datapath/figures.rs"]
mod figures;

fn main() {
    print!("{}", figures::text(&figures::all()));
}
