use warpverbs::driver::LaunchShape;
use warpverbs::{ExportedQp, Kernel, Stream, View};

fn launch(stream: &Stream, kernel: &Kernel, qp: ExportedQp) {
    let view = View::new().qp(&qp);
    qp.unexport().unwrap();
    let _ = unsafe { stream.launch(kernel, LaunchShape::linear(1, 1), &[], view) };
}

fn main() {}
