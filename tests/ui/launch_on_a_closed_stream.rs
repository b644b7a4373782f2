use warpverbs::driver::LaunchShape;
use warpverbs::{Kernel, Stream, View};

fn launch(stream: Stream, kernel: &Kernel) {
    stream.close().unwrap();
    let _ = unsafe { stream.launch(kernel, LaunchShape::linear(1, 1), &[], View::new()) };
}

fn main() {}
