//! How a litmus test is run.

use std::collections::BTreeSet;

use warpverbs_sim_bus::{Access, Bus, Space};
use warpverbs_sim_gpu::{
    Check, GpuConfig, GpuError, GpuModel, LaunchShape, LoadError, ModuleId, OrderFault,
    OrderReport, memory_of,
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

/// A condition of an outcome, and its text.
pub(crate) type Says = (Holds, &'static str);

macro_rules! says {
    (|$o:ident| $holds:expr) => {
        (
            (|$o: &crate::rig::Outcome| $holds) as fn(&crate::rig::Outcome) -> bool,
            stringify!($holds),
        )
    };
}
pub(crate) use says;

/// Which threads are in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// So many each.
    Blocks(u32),
    /// All, in one warp.
    Warp,
    /// All, each in a warp of its own.
    Warps,
}

/// A test.
pub(crate) struct Litmus {
    pub(crate) name: String,
    /// Each thread's instructions. `X`, `Y`, `Z` are locations, `%a` and `%b` results.
    pub(crate) threads: Vec<String>,
    pub(crate) layout: Layout,
    pub(crate) forbidden: Vec<Says>,
    pub(crate) seen: Vec<Says>,
    /// Faults that are reported under some seed; no others ever are.
    pub(crate) faults: Vec<OrderFault>,
}

impl Litmus {
    pub(crate) fn new(name: impl Into<String>, blocks: bool, threads: &[&str]) -> Self {
        Self {
            name: name.into(),
            threads: threads.iter().map(|t| (*t).to_owned()).collect(),
            layout: if blocks {
                Layout::Blocks(1)
            } else {
                Layout::Warp
            },
            forbidden: Vec::new(),
            seen: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Threads that stand together in blocks of so many.
    pub(crate) fn in_blocks_of(mut self, threads: u32) -> Self {
        self.layout = Layout::Blocks(threads);
        self
    }

    pub(crate) fn in_warps(mut self) -> Self {
        self.layout = Layout::Warps;
        self
    }

    pub(crate) fn never(mut self, says: Says) -> Self {
        self.forbidden.push(says);
        self
    }

    pub(crate) fn sometimes(mut self, says: Says) -> Self {
        self.seen.push(says);
        self
    }

    pub(crate) fn reports(mut self, fault: OrderFault) -> Self {
        self.faults.push(fault);
        self
    }

    /// The kernel.
    pub(crate) fn ptx(&self) -> String {
        let mut text = String::from(
            ".version 8.6\n.target sm_90\n.address_size 64\n\
             .visible .entry k(.param .u64 p_data, .param .u64 p_out)\n{\n\
             .reg .pred %p<8>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n\
             .reg .b32 %a;\n.reg .b32 %b;\n.reg .b64 %x;\n.reg .b64 %y;\n.reg .b64 %z;\n.reg .b64 %out;\n\
             ld.param.u64 %x, [p_data];\nld.param.u64 %out, [p_out];\n",
        );
        text = text.replace(".reg .pred", ".shared .align 8 .b8 sh[64];\n.reg .pred");
        text += &format!("add.u64 %y, %x, {APART};\nadd.u64 %z, %y, {APART};\n");
        text += "mov.u32 %a, 0;\nmov.u32 %b, 0;\nmov.u32 %r0, %ctaid.x;\nmov.u32 %r1, %ntid.x;\n\
                 mov.u32 %r2, %tid.x;\nmad.lo.u32 %r0, %r0, %r1, %r2;\n";
        if self.layout == Layout::Warps {
            // The first lane of each warp is a thread of the test.
            text += "and.b32 %r1, %r0, 31;\nshr.u32 %r0, %r0, 5;\nsetp.ne.u32 %p0, %r1, 0;\n@%p0 bra LANE;\n";
        }
        for thread in 0..self.threads.len() {
            text += &format!("setp.eq.u32 %p0, %r0, {thread};\n@%p0 bra T{thread};\n");
        }
        text += "ret;\n";
        if self.layout == Layout::Warps {
            text += "LANE:\nret;\n";
        }
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

    pub(crate) fn run(&self, ptx: &str, seed: u64) -> (Outcome, Vec<OrderReport>) {
        let (outcome, reports, _) = self.run_counted(ptx, seed);
        (outcome, reports)
    }

    /// The same, with how many reports were not kept.
    pub(crate) fn run_counted(&self, ptx: &str, seed: u64) -> (Outcome, Vec<OrderReport>, u64) {
        let ran = self.try_run(ptx, seed);
        ran.unwrap_or_else(|error| panic!("{} seed {seed}: {error}", self.name))
    }

    pub(crate) fn try_run(
        &self,
        ptx: &str,
        seed: u64,
    ) -> Result<(Outcome, Vec<OrderReport>, u64), GpuError> {
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
        let in_block = match self.layout {
            Layout::Blocks(threads) => threads,
            Layout::Warp | Layout::Warps => threads,
        };
        let shape = LaunchShape {
            grid: [threads / in_block, 1, 1],
            block: [
                in_block * if self.layout == Layout::Warps { 32 } else { 1 },
                1,
                1,
            ],
            shared_bytes: 0,
            cooperative: false,
        };
        let params = [data.to_le_bytes(), out.to_le_bytes()].concat();
        gpu.launch(kernel, shape, stream, &params).unwrap();
        loop {
            match gpu.advance(10_000) {
                Ok(advance) if advance.idle => break,
                Ok(_) => {}
                Err(error) => return Err(error),
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
        let left_out = gpu.order_reports_left_out();
        Ok((outcome, gpu.take_order_reports(), left_out))
    }
}

pub(crate) fn seeds() -> u64 {
    let wanted = std::env::var("WARPVERBS_LITMUS_SEEDS");
    wanted.ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS)
}

/// What a test showed: of so many seeds, how many showed each outcome and gave each report.
pub(crate) struct Shown {
    pub(crate) forbidden: Vec<u64>,
    pub(crate) seen: Vec<u64>,
    pub(crate) faults: Vec<u64>,
}

/// Runs a test under all seeds.
pub(crate) fn check(test: &Litmus) -> Result<Shown, String> {
    let ptx = test.ptx();
    let mut outcomes = BTreeSet::new();
    let mut shown = Shown {
        forbidden: vec![0; test.forbidden.len()],
        seen: vec![0; test.seen.len()],
        faults: vec![0; test.faults.len()],
    };
    for seed in 1..=seeds() {
        let (outcome, reports) = test.run(&ptx, seed);
        for report in &reports {
            if !test.faults.contains(&report.kind) {
                return Err(format!("{} seed {seed}: reported {report}", test.name));
            }
        }
        for (fault, count) in test.faults.iter().zip(&mut shown.faults) {
            *count += u64::from(reports.iter().any(|report| report.kind == *fault));
        }
        for ((holds, says), count) in test.forbidden.iter().zip(&mut shown.forbidden) {
            if holds(&outcome) {
                *count += 1;
                return Err(format!(
                    "{} seed {seed}: forbidden {says}: {outcome:?}",
                    test.name
                ));
            }
        }
        for ((holds, _), count) in test.seen.iter().zip(&mut shown.seen) {
            *count += u64::from(holds(&outcome));
        }
        outcomes.insert(outcome);
    }
    if let Some(((_, says), _)) = test
        .seen
        .iter()
        .zip(&shown.seen)
        .find(|(_, count)| **count == 0)
    {
        return Err(format!(
            "{}: {says} was not seen; seen: {outcomes:?}",
            test.name
        ));
    }
    match test
        .faults
        .iter()
        .zip(&shown.faults)
        .find(|(_, count)| **count == 0)
    {
        Some((fault, _)) => Err(format!("{}: {fault} was not reported", test.name)),
        None => Ok(shown),
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
