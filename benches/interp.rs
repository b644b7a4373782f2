//! Speed of the PTX interpreter, in instructions per second: in fast memory, and (`strict`) with the memory model.
//!
//! `mix` is what a kernel's inner loop is made of: address arithmetic, a byte swap, loads, stores, a compare and a
//! branch. `spin` is 64 threads that poll a word nobody writes until their bound is reached: what waiting costs.
//!
//! Beside these, whole runs: the embedded write kernel posts 100,000 work requests to one NIC and another answers, each run in a
//! process of its own, so that its peak memory is its own. They print executed instructions, seconds of processor time
//! of all that is simulated, their quotient, and `VmHWM`.
#![allow(missing_docs, reason = "criterion's macro makes a public function")]

use std::hint::black_box;
use std::sync::Arc;

use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group};
use warpverbs::driver::sim::World;
use warpverbs::{
    Bandwidth, Context, GpuContext, Module, Mr, Pd, QpConfig, QueuePair, Sharing, Stream,
};
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
/// A whole run.
struct Whole {
    check: Check,
    sharing: Sharing,
    threads: u32,
    qps: usize,
    size: u32,
}

/// Work requests of a whole run, at least.
const POSTS: u64 = 100_000;

const WHOLE: [Whole; 7] = [
    whole(Check::Fast, Sharing::Gpu, 64, 64, 8),
    whole(Check::Strict, Sharing::Gpu, 64, 64, 8),
    whole(Check::Strict, Sharing::Gpu, 64, 64, 4096),
    whole(Check::Strict, Sharing::Exclusive, 64, 64, 4096),
    whole(Check::Strict, Sharing::Gpu, 64, 1, 4096),
    whole(Check::Strict, Sharing::Exclusive, 1024, 1024, 8),
    whole(Check::Strict, Sharing::Exclusive, 1024, 1024, 4096),
];

const fn whole(check: Check, sharing: Sharing, threads: u32, qps: usize, size: u32) -> Whole {
    Whole {
        check,
        sharing,
        threads,
        qps,
        size,
    }
}

/// Names the run that a child process is to make.
const CHILD: &str = "WARPVERBS_BENCH_WHOLE";

/// Processor time of this process so far; what the clock says where there is none to be had.
fn cpu_time(since: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").ok();
    let nanos = stat.and_then(|text| text.split_whitespace().next()?.parse().ok());
    nanos.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

/// Most memory that this process has held, in KiB, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

impl Whole {
    fn name(&self) -> String {
        format!(
            "{:?}, {} threads, {} QPs {:?}, {} bytes",
            self.check, self.threads, self.qps, self.sharing, self.size
        )
    }

    /// Makes the run and prints its figures.
    fn run(&self) -> warpverbs::Result<()> {
        let iters = POSTS.div_ceil(self.threads.into());
        let world = World::builder().nics(2).check(self.check).build();
        let far_nic = world.nic_at(1).unwrap_or_else(|| world.nic());
        let (nic, far_nic) = (Context::open(world.nic())?, Context::open(far_nic)?);
        let gpu = GpuContext::open(world.gpu())?;
        let (pd, far_pd) = (Pd::alloc(&nic)?, Pd::alloc(&far_nic)?);
        let config = QpConfig::default();
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..self.qps {
            let mut a = QueuePair::create(&pd, &gpu, &config)?;
            let mut b = QueuePair::create(&far_pd, &gpu, &config)?;
            a.connect(&b.local_info())?;
            b.connect(&a.local_info())?;
            near.push(a.export()?);
            far.push(b);
        }
        let write = Bandwidth {
            threads: self.threads,
            block: 64,
            sharing: self.sharing,
            size: self.size,
            iters,
            ..Bandwidth::default()
        };
        let bytes = vec![42; write.region_len().expect("a region") as usize];
        let source = gpu.alloc_copy(&bytes, "source")?;
        let target = gpu.alloc_copy(&vec![0; bytes.len()], "target")?;
        let local = Mr::register(&pd, &source, warpverbs::Access::LOCAL_READ)?;
        let access = warpverbs::Access::LOCAL_WRITE | warpverbs::Access::REMOTE_WRITE;
        let remote = Mr::register(&far_pd, &target, access)?;
        let (module, stream) = (Module::embedded(&gpu)?, Stream::create(&gpu)?);
        let (begun, before) = (Instant::now(), cpu_time(Instant::now()));
        let mut launched = write.launch(&module, &stream, &near, &local, &remote.remote())?;
        let report = launched.wait(Duration::from_secs(600))?;
        let seconds = (cpu_time(begun).saturating_sub(before)).as_secs_f64();
        report.check()?;
        assert_eq!(target.to_vec()?, bytes, "not all bytes arrived");
        assert_eq!(world.findings(), [""; 0]);
        let counters = report.counters.as_ref();
        let instructions: u64 = counters.map_or(0, |counters| {
            counters.phases.iter().map(|phase| phase.instructions).sum()
        });
        println!(
            "whole run ({}): {instructions} instructions in {seconds:.2} s: {:.2} M instr/s; VmHWM {} MB",
            self.name(),
            instructions as f64 / seconds / 1e6,
            peak_memory().map_or_else(|| "unknown".into(), |kib| (kib / 1024).to_string()),
        );
        Ok(())
    }
}

fn main() {
    let child = std::env::var(CHILD).ok().and_then(|n| n.parse().ok());
    if let Some(whole) = child.and_then(|n: usize| WHOLE.get(n)) {
        return whole.run().expect("a whole run");
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
    // `cargo test` runs benches too, with `--test`: there the short ones are enough.
    let filtered = std::env::args().skip(1).any(|arg| arg != "--bench");
    if filtered {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    for number in 0..WHOLE.len() {
        let mut child = Command::new(&program);
        let status = child.env(CHILD, number.to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "a whole run");
    }
}
