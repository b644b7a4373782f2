//! What calls of the data path execute, counted by the simulated GPU.
//!
//! Knows: which calls, and how a count becomes a figure. Must not know: who compares it.

use std::fmt::Write as _;
use std::time::Duration;

use crate::common::World;
use warpverbs::driver::{Phase, PhaseCounters};
use warpverbs::{
    Access, Context, CqForm, Doorbell, ExportedQp, GpuContext, GpuMemory, Module, Mr, Operation,
    Pd, QpConfig, QueuePair, Rate, Run, RunReport, Sharing, Stream, Task, TaskLaunch, ThreadError,
};

const PATIENCE: Duration = Duration::from_secs(120);
const BYTES: usize = 1 << 20;

/// Devices, QPs, and a region that is both ends'.
struct Rig {
    world: World,
    module: Module,
    stream: Stream,
    qps: Vec<ExportedQp>,
    _peers: Vec<QueuePair>,
    mr: Mr,
    counter: Mr,
    _memory: [GpuMemory; 2],
}

impl Rig {
    fn new(count: usize, depth: u32, cq: CqForm) -> Self {
        let world = World::builder().seed(1).build();
        let nic = Context::open(world.nic()).unwrap();
        let gpu = GpuContext::open(world.gpu()).unwrap();
        let pd = Pd::alloc(&nic).unwrap();
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let config = QpConfig::default().depth(depth).cq_form(cq).access(all);
        let mut qps = Vec::new();
        let mut peers = Vec::new();
        for _ in 0..count {
            let mut qp = QueuePair::create(&pd, &gpu, &config).unwrap();
            let mut peer = QueuePair::create(&pd, &gpu, &config).unwrap();
            qp.connect(&peer.local_info()).unwrap();
            peer.connect(&qp.local_info()).unwrap();
            qps.push(qp.export().unwrap());
            peers.push(peer);
        }
        let memory = [BYTES, 4096].map(|len| gpu.alloc_copy(&vec![0; len], "data").unwrap());
        Self {
            module: Module::embedded(&gpu).unwrap(),
            stream: Stream::create(&gpu).unwrap(),
            mr: Mr::register(&pd, &memory[0], all).unwrap(),
            counter: Mr::register(&pd, &memory[1], all).unwrap(),
            world,
            qps,
            _peers: peers,
            _memory: memory,
        }
    }

    fn finish(&self, mut run: Run) -> RunReport {
        let report = run.wait(PATIENCE).unwrap();
        report.check().unwrap();
        assert_eq!(self.world.findings(), [""; 0]);
        report
    }

    fn rate(&self, rate: &Rate) -> RunReport {
        let run = rate.launch(
            &self.module,
            &self.stream,
            &self.qps,
            Some(&self.mr),
            &self.mr.remote(),
        );
        self.finish(run.unwrap())
    }

    fn task(&self, task: Task<'_>, threads: u32, sharing: Sharing) -> RunReport {
        let launch = TaskLaunch {
            threads,
            sharing,
            ..TaskLaunch::new(task)
        };
        self.finish(
            launch
                .launch(&self.module, &self.stream, &self.qps)
                .unwrap(),
        )
    }
}

/// A figure: what is counted, and how much of it.
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// What it may be at most, where that is promised.
    pub(crate) most: Option<f64>,
}

#[derive(Default)]
struct Figures(Vec<Figure>);

impl Figures {
    fn add(&mut self, name: String, value: f64, most: Option<f64>) {
        self.0.push(Figure { name, value, most });
    }

    /// Counts of a call, `posts` of which were made: the call, and the loop around it.
    fn calls(&mut self, name: &str, report: &RunReport, posts: u64, most: [Option<f64>; 2]) {
        let counters = report.counters.unwrap();
        let of = |phase: Phase, count: fn(&PhaseCounters) -> u64| {
            count(&counters.phases[phase as usize]) as f64 / posts as f64
        };
        let post = |count| of(Phase::Post, count);
        self.add(
            format!("{name}: instructions"),
            post(|c| c.instructions),
            most[0],
        );
        let memory = post(|c| c.loads + c.stores + c.atomics);
        self.add(format!("{name}: memory operations"), memory, most[1]);
        self.add(format!("{name}: fences"), post(|c| c.fences), None);
        self.add(
            format!("{name}: releases and acquires"),
            post(|c| c.ordered),
            None,
        );
        self.add(format!("{name}: doorbells"), post(|c| c.mmio_stores), None);
        self.add(format!("{name}: atomics"), post(|c| c.atomics), None);
        let around = of(Phase::Other, |c| c.instructions);
        self.add(
            format!("{name}: instructions of the loop around"),
            around,
            None,
        );
    }
}

/// Instructions of a look that finds a completion: all were posted by a thread that did not wait, and have completed.
fn poll(write: &Rate) -> f64 {
    const POSTS: u32 = 512;
    let rig = Rig::new(1, 1024, CqForm::Ring);
    let rate = Rate {
        iters: POSTS.into(),
        wait_deadline: Duration::from_nanos(1),
        ..write.clone()
    };
    let (mr, module, stream) = (&rig.mr, &rig.module, &rig.stream);
    let run = rate.launch(module, stream, &rig.qps, Some(mr), &mr.remote());
    let report = run.unwrap().wait(PATIENCE).unwrap();
    assert_eq!(report.threads[0].error, Some(ThreadError::Timeout));
    while rig.world.nic_stats().cqes < POSTS.into() {
        rig.qps[0].progress().unwrap();
    }
    let before = rig.qps[0].progress().unwrap().cq_index;
    let report = rig.task(Task::Progress { most: POSTS }, 1, write.sharing);
    let taken = rig.qps[0].progress().unwrap().cq_index - before;
    assert!(taken > u64::from(POSTS) / 2, "only {taken} were left");
    let looked = report.counters.unwrap().phases[Phase::Poll as usize];
    looked.instructions as f64 / taken as f64
}

/// All of them. Simulated: the same each time.
pub(crate) fn all() -> Vec<Figure> {
    let mut out = Figures::default();
    let iters = 2000;
    for cq in [CqForm::Collapsed, CqForm::Ring] {
        let form = format!("{cq:?}").to_lowercase();
        let write = |sharing, doorbell| Rate {
            sharing,
            doorbell,
            size: 64,
            slots: 16,
            iters,
            ..Rate::default()
        };
        for (name, sharing, most) in [
            ("exclusive", Sharing::Exclusive, [Some(56.0), Some(9.0)]),
            ("GPU-shared", Sharing::Gpu, [Some(73.0), Some(13.0)]),
        ] {
            let report = Rig::new(1, 128, cq).rate(&write(sharing, Doorbell::Db));
            out.calls(&format!("write, {name}, {form}"), &report, iters, most);
            let rig = Rig::new(1, 128, cq);
            let task = Task::PutSignal {
                local: &rig.mr,
                remote: rig.mr.remote(),
                size: 64,
                slots: 16,
                iters,
                signal: rig.counter.remote(),
                add: 1,
                fetched: &rig.counter,
            };
            let report = rig.task(task, 1, sharing);
            let most = [Some(110.0), None];
            out.calls(&format!("put_signal, {name}, {form}"), &report, iters, most);
        }
        if cq == CqForm::Ring {
            let figure = poll(&write(Sharing::Exclusive, Doorbell::Db));
            out.add("poll_many: instructions a completion".into(), figure, None);
            let figure = poll(&write(Sharing::Gpu, Doorbell::Db));
            out.add(
                "poll_many, GPU-shared: instructions a completion".into(),
                figure,
                None,
            );
        }
    }
    let report = Rig::new(1, 128, CqForm::Collapsed).rate(&Rate {
        operation: Operation::WriteInline,
        threads: 32,
        block: 32,
        sharing: Sharing::Warp,
        size: 8,
        slots: 1,
        iters: 100,
        ..Rate::default()
    });
    let counters = report.counters.unwrap().phases[Phase::Post as usize];
    let of = |count: u64, by: u64| count as f64 / by as f64;
    let name = "warp of 32 together";
    out.add(
        format!("{name}: doorbells a warp"),
        of(counters.mmio_stores, 100),
        Some(1.0),
    );
    out.add(
        format!("{name}: instructions a write"),
        of(counters.instructions, 3200),
        None,
    );
    out.add(
        format!("{name}: fences a warp"),
        of(counters.fences, 100),
        Some(2.0),
    );
    let mut alone = None;
    for threads in [1u32, 2, 4, 8, 16, 32, 64, 128, 256] {
        let iters = u64::from(2048 / threads).min(256);
        let report = Rig::new(1, 1024, CqForm::Ring).rate(&Rate {
            threads,
            block: threads,
            sharing: Sharing::Gpu,
            size: 8,
            slots: 1,
            iters,
            ..Rate::default()
        });
        let phases = report.counters.unwrap().phases;
        let messages = u64::from(threads) * iters;
        let each = of(phases[Phase::Post as usize].atomics, messages);
        let growth = each / *alone.get_or_insert(each);
        let all = phases.iter().map(|phase| phase.atomics).sum();
        let name = format!("{threads} posters of one queue");
        out.add(format!("{name}: atomics of posts a message"), each, None);
        out.add(format!("{name}: their growth"), growth, Some(1.2));
        // Whoever finds a completion publishes it.
        let all = of(all, messages);
        out.add(
            format!("{name}: atomics of posts and polls a message"),
            all,
            None,
        );
    }
    out.0
}

/// As they are printed, and kept.
pub(crate) fn text(figures: &[Figure]) -> String {
    let mut out = String::new();
    for Figure { name, value, most } in figures {
        let most = most.map_or(String::new(), |most| format!("  (at most {most})"));
        let _ = writeln!(out, "{value:9.3}  {name}{most}");
    }
    out
}
