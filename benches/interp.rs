//! Speed of the PTX interpreter, in instructions per second: in fast memory, and (`strict`) with the memory model.
//!
//! `mix` is what a kernel's inner loop is made of: address arithmetic, a byte swap, loads, stores, a compare and a
//! branch. `spin` is 64 threads that poll a word nobody writes until their bound is reached: what waiting costs.
#![allow(missing_docs, reason = "criterion's macro makes a public function")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warpverbs_sim_bus::{Access, Bus, Space};
use warpverbs_sim_gpu::{Check, GpuConfig, GpuModel, LaunchShape, memory_of};

const MIX: &str = "\
.version 8.2
.target sm_70
.address_size 64
.visible .entry k(.param .u64 data, .param .u32 rounds)
{
	.reg .pred %p<2>;
	.reg .b32 %r<12>;
	.reg .b64 %rd<8>;
	ld.param.u64 %rd1, [data];
	ld.param.u32 %r1, [rounds];
	cvta.to.global.u64 %rd1, %rd1;
	mov.u32 %r2, %tid.x;
	mul.wide.u32 %rd2, %r2, 64;
	add.s64 %rd3, %rd1, %rd2;
	mov.u32 %r3, 0;
$loop:
	and.b32 %r4, %r3, 7;
	mul.wide.u32 %rd4, %r4, 8;
	add.s64 %rd5, %rd3, %rd4;
	ld.global.b32 %r5, [%rd5];
	prmt.b32 %r6, %r5, 0, 0x123U;
	add.s32 %r7, %r6, %r3;
	shl.b32 %r8, %r7, 3;
	or.b32 %r9, %r8, 5;
	cvt.u64.u32 %rd6, %r9;
	st.global.b32 [%rd5+4], %r9;
	add.s32 %r3, %r3, 1;
	setp.ne.s32 %p1, %r3, %r1;
	@%p1 bra $loop;
	ret;
}
";

const SPIN: &str = "\
.version 8.2
.target sm_70
.address_size 64
.visible .entry k(.param .u64 data, .param .u32 rounds)
{
	.reg .pred %p<4>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [data];
	ld.param.u32 %r1, [rounds];
	mov.u32 %r2, 0;
$loop:
	ld.relaxed.sys.global.u64 %rd2, [%rd1];
	add.s32 %r2, %r2, 1;
	setp.eq.u64 %p1, %rd2, 1;
	setp.ge.u32 %p2, %r2, %r1;
	or.pred %p3, %p1, %p2;
	@!%p3 bra $loop;
	ret;
}
";

/// Runs a kernel to its end and returns the instructions it executed.
fn run(check: Check, ptx: &str, threads: u32, rounds: u32) -> u64 {
    let config = GpuConfig {
        check,
        ..GpuConfig::default()
    };
    let bus = Bus::new(memory_of(&config));
    let data = {
        let mut bus = bus.lock();
        let data = bus
            .memory
            .alloc(Space::Device, 1 << 16, 256, "data")
            .expect("memory");
        bus.memory
            .write(Access::HOST_COPY, data, &vec![0; 1 << 16])
            .expect("memory");
        data
    };
    let mut gpu = GpuModel::new(config, Arc::clone(&bus));
    let module = gpu.load_module(ptx).expect("PTX");
    let kernel = gpu.kernel(module, "k").expect("kernel");
    let stream = gpu.create_stream().expect("stream");
    let shape = LaunchShape {
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 0,
        cooperative: false,
    };
    let params = [data.to_le_bytes().as_slice(), &rounds.to_le_bytes()].concat();
    gpu.launch(kernel, shape, stream, &params).expect("launch");
    let event = gpu.create_event().expect("event");
    gpu.record_event(event, stream).expect("record");
    while !gpu.advance(1 << 20).expect("run").idle {}
    let counters = gpu.counters(event).expect("counters");
    counters.phases.iter().map(|phase| phase.instructions).sum()
}

fn interp(c: &mut Criterion) {
    let mut group = c.benchmark_group("interp");
    group.sample_size(20);
    for (name, check, ptx, threads, rounds) in [
        ("mix", Check::Fast, MIX, 32, 2_000),
        ("spin", Check::Fast, SPIN, 64, 2_000),
        ("strict mix 64", Check::Strict, MIX, 64, 200),
        ("strict mix 1024", Check::Strict, MIX, 1024, 20),
        ("strict spin 64", Check::Strict, SPIN, 64, 200),
        ("strict spin 1024", Check::Strict, SPIN, 1024, 20),
    ] {
        group.throughput(Throughput::Elements(run(check, ptx, threads, rounds)));
        group.bench_function(name, |b| {
            b.iter(|| black_box(run(check, ptx, threads, rounds)));
        });
    }
    group.finish();
}

criterion_group!(benches, interp);
criterion_main!(benches);
