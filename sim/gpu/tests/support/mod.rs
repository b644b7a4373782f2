//! What the tests share: a GPU on a bus, and kernels given as the text of their bodies.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

use std::sync::Arc;

use warpverbs_sim_bus::{Access, Bus, Space};
use warpverbs_sim_gpu::{
    EventId, FastMemory, GpuConfig, GpuError, GpuModel, LaunchCounters, LaunchShape, LoadError,
    ModuleId, RunReport, Scheduler, StreamId,
};

/// The head of every module.
pub const HEAD: &str = ".version 8.6\n.target sm_90\n.address_size 64\n";

/// A kernel `k` with two pointer parameters, loaded into `%in` and `%out`, and a stock of registers.
pub fn kernel(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 p_in, .param .u64 p_out)\n{{\n\
         .reg .pred %p<16>;\n.reg .b16 %rs<16>;\n.reg .b32 %r<32>;\n.reg .b64 %rd<32>;\n.reg .f32 %f<8>;\n.reg .f64 %fd<8>;\n\
         .reg .b64 %in;\n.reg .b64 %out;\n.reg .b32 %t;\n\
         ld.param.u64 %in, [p_in];\nld.param.u64 %out, [p_out];\nmov.u32 %t, %tid.x;\n{body}\nret;\n}}\n"
    )
}

/// A GPU, its bus and one stream.
pub struct Rig {
    pub bus: Arc<Bus>,
    pub gpu: GpuModel,
    pub stream: StreamId,
    /// Behind the last launch.
    pub event: EventId,
}

pub fn config(seed: u64, scheduler: Scheduler) -> GpuConfig {
    GpuConfig {
        seed,
        scheduler,
        step_budget: 2_000_000,
        ..GpuConfig::default()
    }
}

/// One block of so many threads.
pub fn threads(n: u32) -> LaunchShape {
    grid(1, n)
}

pub fn grid(blocks: u32, threads: u32) -> LaunchShape {
    LaunchShape {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 0,
        cooperative: false,
    }
}

impl Rig {
    pub fn new(config: GpuConfig) -> Self {
        let bus = Bus::new(Box::new(FastMemory::new()));
        let mut gpu = GpuModel::new(config, bus.clone());
        let stream = gpu.create_stream().unwrap();
        let event = gpu.create_event().unwrap();
        Self {
            bus,
            gpu,
            stream,
            event,
        }
    }

    pub fn load(&mut self, ptx: &str) -> Result<ModuleId, LoadError> {
        self.gpu.load_module(ptx)
    }

    pub fn alloc(&self, bytes: u64, label: &str) -> u64 {
        let mut bus = self.bus.lock();
        let addr = bus.memory.alloc(Space::Device, bytes, 256, label).unwrap();
        bus.memory
            .write(Access::HOST_COPY, addr, &vec![0; bytes as usize])
            .unwrap();
        addr
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) {
        self.bus
            .lock()
            .memory
            .write(Access::HOST_COPY, addr, bytes)
            .unwrap();
    }

    pub fn read_u64(&self, addr: u64) -> u64 {
        let mut bytes = [0; 8];
        self.bus
            .lock()
            .memory
            .read(Access::HOST_COPY, addr, &mut bytes)
            .unwrap();
        u64::from_le_bytes(bytes)
    }

    pub fn launch(&mut self, ptx: &str, shape: LaunchShape, params: &[u8]) -> Result<(), GpuError> {
        let module = self.load(ptx).unwrap_or_else(|e| panic!("{e}"));
        let k = self.gpu.kernel(module, "k").expect("kernel `k`");
        self.gpu.launch(k, shape, self.stream, params)?;
        self.gpu.record_event(self.event, self.stream)
    }

    /// Runs until nothing is left to do.
    pub fn finish(&mut self) -> Result<LaunchCounters, GpuError> {
        while !self.gpu.advance(10_000)?.idle {}
        Ok(self.gpu.counters(self.event).unwrap_or_default())
    }

    /// Launches and runs to the end.
    pub fn run(
        &mut self,
        ptx: &str,
        shape: LaunchShape,
        params: &[u64],
    ) -> Result<LaunchCounters, GpuError> {
        let bytes: Vec<u8> = params.iter().flat_map(|p| p.to_le_bytes()).collect();
        self.launch(ptx, shape, &bytes)?;
        self.finish()
    }
}

/// Runs a body in one block; `input` is at `%in`, and as many words as threads (or `words`) come back from `%out`.
pub fn run_with(
    config: GpuConfig,
    body: &str,
    n: u32,
    input: &[u64],
    words: usize,
) -> Result<Vec<u64>, GpuError> {
    let mut rig = Rig::new(config);
    let data: Vec<u8> = input.iter().flat_map(|w| w.to_le_bytes()).collect();
    let a = rig.alloc(data.len().max(8) as u64, "input");
    rig.write(a, &data);
    let b = rig.alloc(words as u64 * 8, "output");
    rig.run(&kernel(body), threads(n), &[a, b])?;
    Ok((0..words).map(|i| rig.read_u64(b + 8 * i as u64)).collect())
}

/// The same under both schedulers and several seeds, which must agree.
pub fn run(body: &str, n: u32, input: &[u64], words: usize) -> Vec<u64> {
    let mut first = None;
    for scheduler in [Scheduler::Independent, Scheduler::Converge] {
        for seed in [1, 2, 3] {
            let out = run_with(config(seed, scheduler), body, n, input, words)
                .unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(
                first.get_or_insert_with(|| out.clone()),
                &out,
                "{scheduler:?} seed {seed}"
            );
        }
    }
    first.unwrap_or_default()
}

/// The report of a run that must fail.
pub fn failure(config: GpuConfig, body: &str, n: u32) -> Arc<RunReport> {
    report(run_with(config, body, n, &[0; 64], 64))
}

pub fn report<T: std::fmt::Debug>(result: Result<T, GpuError>) -> Arc<RunReport> {
    match result {
        Err(GpuError::Dead(report)) => report,
        other => panic!("a dead context was expected, got {other:?}"),
    }
}
