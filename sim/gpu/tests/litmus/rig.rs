//! How a litmus test is run.

use std::collections::BTreeSet;

use warpverbs_sim_bus::{Access, Bus, Space};
use warpverbs_sim_gpu::{
    Check, GpuConfig, GpuModel, LaunchShape, LoadError, ModuleId, OrderFault, OrderReport,
    memory_of,
};

/// Seeds unless the environment says otherwise.
const SEEDS: u64 = 300;
/// Bytes between two locations: cells of their own.
const APART: u64 = 64;

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outcome {
    /// `%a` and `%b` of each thread.
    pub(crate) regs: Vec<[u32; 2]>,
    /// Final values of x, y, z.
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl Outcome {
    pub(crate) fn a(&self, thread: usize) -> u32 {
        self.regs[thread][0]
    }
    pub(crate) fn b(&self, thread: usize) -> u32 {
        self.regs[thread][1]
    }
}

type Holds = fn(&Outcome) -> bool;

/// A test.
pub(crate) struct Litmus {
    pub(crate) name: String,
    /// Each thread's instructions. `X`, `Y`, `Z` are locations, `%a` and `%b` results.
    pub(crate) threads: Vec<String>,
    /// True if each thread is a block; else all are one warp.
    pub(crate) blocks: bool,
    pub(crate) forbidden: Vec<Holds>,
    pub(crate) seen: Vec<Holds>,
    /// Faults that are reported under some seed; no others ever are.
    pub(crate) faults: Vec<OrderFault>,
}

impl Litmus {
    pub(crate) fn new(name: impl Into<String>, blocks: bool, threads: &[&str]) -> Self {
        Self {
            name: name.into(),
            threads: threads.iter().map(|t| (*t).to_owned()).collect(),
            blocks,
            forbidden: Vec::new(),
            seen: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub(crate) fn never(mut self, holds: Holds) -> Self {
        self.forbidden.push(holds);
        self
    }

    pub(crate) fn sometimes(mut self, holds: Holds) -> Self {
        self.seen.push(holds);
        self
    }

    pub(crate) fn reports(mut self, fault: OrderFault) -> Self {
        self.faults.push(fault);
        self
    }

    /// The kernel.
    fn ptx(&self) -> String {
        let mut text = String::from(
            ".version 8.6\n.target sm_90\n.address_size 64\n\
             .visible .entry k(.param .u64 p_data, .param .u64 p_out)\n{\n\
             .reg .pred %p<8>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n\
             .reg .b32 %a;\n.reg .b32 %b;\n.reg .b64 %x;\n.reg .b64 %y;\n.reg .b64 %z;\n.reg .b64 %out;\n\
             ld.param.u64 %x, [p_data];\nld.param.u64 %out, [p_out];\n",
        );
        text += &format!("add.u64 %y, %x, {APART};\nadd.u64 %z, %y, {APART};\n");
        text += "mov.u32 %a, 0;\nmov.u32 %b, 0;\nmov.u32 %r0, %ctaid.x;\nmov.u32 %r1, %ntid.x;\n\
                 mov.u32 %r2, %tid.x;\nmad.lo.u32 %r0, %r0, %r1, %r2;\n";
        for thread in 0..self.threads.len() {
            text += &format!("setp.eq.u32 %p0, %r0, {thread};\n@%p0 bra T{thread};\n");
        }
        text += "ret;\n";
        for (number, body) in self.threads.iter().enumerate() {
            let body = body
                .replace('X', "[%x]")
                .replace('Y', "[%y]")
                .replace('Z', "[%z]");
            let body = body
                .replace("; ", ";\n")
                .replace(": ", ":\n")
                .replace("%t", &number.to_string());
            text += &format!("T{number}:\n{body}\nbra.uni END;\n");
        }
        text += "END:\nmul.wide.u32 %rd0, %r0, 8;\nadd.u64 %rd0, %rd0, %out;\n\
                 st.global.u32 [%rd0], %a;\nst.global.u32 [%rd0+4], %b;\nret;\n}\n";
        text
    }

    fn run(&self, ptx: &str, seed: u64) -> (Outcome, Vec<OrderReport>) {
        let config = GpuConfig {
            seed,
            check: Check::Strict,
            max_burst: 12,
            ..GpuConfig::default()
        };
        let bus = Bus::new(memory_of(&config));
        let mut gpu = GpuModel::new(config, bus.clone());
        let threads = self.threads.len() as u32;
        let alloc = |len: u64, label: &str| {
            let mut bus = bus.lock();
            let addr = bus.memory.alloc(Space::Device, len, 256, label).unwrap();
            let zeroes = vec![0; len as usize];
            bus.memory.write(Access::HOST_COPY, addr, &zeroes).unwrap();
            addr
        };
        let (data, out) = (
            alloc(3 * APART, "data"),
            alloc(8 * u64::from(threads), "out"),
        );
        let module = gpu
            .load_module(ptx)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let kernel = gpu.kernel(module, "k").unwrap();
        let stream = gpu.create_stream().unwrap();
        let shape = LaunchShape {
            grid: [if self.blocks { threads } else { 1 }, 1, 1],
            block: [if self.blocks { 1 } else { threads }, 1, 1],
            shared_bytes: 0,
            cooperative: false,
        };
        let params = [data.to_le_bytes(), out.to_le_bytes()].concat();
        gpu.launch(kernel, shape, stream, &params).unwrap();
        loop {
            match gpu.advance(10_000) {
                Ok(advance) if advance.idle => break,
                Ok(_) => {}
                Err(error) => panic!("{} seed {seed}: {error}", self.name),
            }
        }
        assert!(gpu.stream_done(stream).unwrap());
        let word = |addr: u64| {
            let mut bytes = [0; 4];
            bus.lock()
                .memory
                .read(Access::HOST_COPY, addr, &mut bytes)
                .unwrap();
            u32::from_le_bytes(bytes)
        };
        let at = |thread: u32| out + 8 * u64::from(thread);
        let outcome = Outcome {
            regs: (0..threads)
                .map(|t| [word(at(t)), word(at(t) + 4)])
                .collect(),
            x: word(data),
            y: word(data + APART),
            z: word(data + 2 * APART),
        };
        (outcome, gpu.take_order_reports())
    }
}

pub(crate) fn seeds() -> u64 {
    let wanted = std::env::var("WARPVERBS_LITMUS_SEEDS");
    wanted.ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS)
}

/// Runs a test under all seeds.
pub(crate) fn check(test: &Litmus) -> Result<(), String> {
    let ptx = test.ptx();
    let mut outcomes = BTreeSet::new();
    let mut faults = BTreeSet::new();
    for seed in 1..=seeds() {
        let (outcome, reports) = test.run(&ptx, seed);
        for report in &reports {
            if !test.faults.contains(&report.kind) {
                return Err(format!("{} seed {seed}: reported {report}", test.name));
            }
        }
        faults.extend(reports.iter().map(|r| r.kind));
        if test.forbidden.iter().any(|holds| holds(&outcome)) {
            return Err(format!("{} seed {seed}: forbidden {outcome:?}", test.name));
        }
        outcomes.insert(outcome);
    }
    for (number, holds) in test.seen.iter().enumerate() {
        if !outcomes.iter().any(holds) {
            return Err(format!(
                "{}: outcome {number} was not seen; seen: {outcomes:?}",
                test.name
            ));
        }
    }
    match test.faults.iter().find(|fault| !faults.contains(fault)) {
        Some(fault) => Err(format!("{}: {fault} was not reported", test.name)),
        None => Ok(()),
    }
}

/// Loads a kernel of one instruction, which is at line 9.
pub(crate) fn load(instruction: &str) -> Result<ModuleId, LoadError> {
    let config = GpuConfig {
        check: Check::Strict,
        ..GpuConfig::default()
    };
    let bus = Bus::new(memory_of(&config));
    let ptx = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k()\n{{\n.reg .b32 %r<4>;\n\
         .reg .b64 %rd<4>;\n.reg .pred %p<2>;\n{instruction}\nret;\n}}\n"
    );
    GpuModel::new(config, bus).load_module(&ptx)
}
