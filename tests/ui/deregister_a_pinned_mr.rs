use warpverbs::driver::LaunchShape;
use warpverbs::{Kernel, Mr, Stream, View};

fn launch(stream: &Stream, kernel: &Kernel, mr: Mr) {
    let view = View::new().mr(&mr);
    mr.close().unwrap();
    let _ = unsafe { stream.launch(kernel, LaunchShape::linear(1, 1), &[], view) };
}

fn main() {}
