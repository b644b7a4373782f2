use warpverbs::driver::LaunchShape;
use warpverbs::{GpuMemory, Kernel, Stream, View};

fn launch(stream: &Stream, kernel: &Kernel, memory: GpuMemory) {
    let view = View::new().memory(&memory);
    memory.close().unwrap();
    let _ = unsafe { stream.launch(kernel, LaunchShape::linear(1, 1), &[], view) };
}

fn main() {}
