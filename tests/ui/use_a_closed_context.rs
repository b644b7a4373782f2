use warpverbs::{Context, Pd};

fn use_it(nic: Context) {
    nic.close().unwrap();
    let _ = Pd::alloc(&nic);
}

fn main() {}
