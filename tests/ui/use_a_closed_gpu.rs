use warpverbs::GpuContext;

fn alloc(gpu: GpuContext) {
    gpu.close().unwrap();
    let _ = gpu.alloc(64, "memory");
}

fn main() {}
