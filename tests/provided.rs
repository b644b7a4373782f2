//! The provided kernels beyond bandwidth and latency, and every mode of those that post: data verified, under strict, with both
//! schedulers. `WARPVERBS_PROVIDED_SEEDS` says with how many seeds; `WARPVERBS_FULL=1` means 100.

mod common;

use std::time::Duration;

use common::{PATIENCE, World};

use warpverbs::driver::WriteOrdering;
use warpverbs::driver::sim::{Beside, Check, Scheduler};
use warpverbs::wire::abi::{Descriptor, data_word, inline_words};
use warpverbs::{
    Access, Completions, Context, CqForm, Direction, Doorbell, ErrorKind, ExportedQp, GpuContext,
    GpuMemory, Module, Mr, Operation, Order, Pd, Proxy, QpConfig, QueuePair, Rate, Run, RunReport,
    SeededData, Sends, Sharing, Stream, Task, TaskLaunch, ThreadError,
};

fn seeds() -> u64 {
    let wanted = std::env::var("WARPVERBS_PROVIDED_SEEDS");
    let default = match std::env::var_os("WARPVERBS_FULL") {
        Some(_) => 100,
        None => 2,
    };
    wanted.ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

struct Rig {
    world: World,
    gpu: GpuContext,
    pd: Pd,
    module: Module,
    stream: Stream,
    qps: Vec<ExportedQp>,
    peers: Vec<ExportedQp>,
    /// Rings for QPs that need it.
    proxy: Option<(Proxy, Option<Beside>)>,
}

fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

impl Rig {
    fn new(how: How, qps: usize, cq: CqForm) -> Self {
        Self::with(how, qps, cq, Doorbell::Db)
    }

    fn of(mode: Mode, how: How) -> Self {
        Self::with(how, mode.7, mode.4, mode.1)
    }

    fn with((seed, scheduler, check): How, qps: usize, cq: CqForm, doorbell: Doorbell) -> Self {
        // Indices of every second world soon pass 2^16.
        let first_index = if seed.is_multiple_of(2) {
            (1 << 16) - 9
        } else {
            0
        };
        let world = World::builder()
            .seed(seed)
            .scheduler(scheduler)
            .check(check)
            .write_ordering(if seed.is_multiple_of(2) {
                WriteOrdering::None
            } else {
                WriteOrdering::Owner
            })
            .first_index(first_index)
            .nic_config(|nic| nic.no_dbr |= doorbell == Doorbell::NoDbr)
            .build();
        let nic = Context::open(world.nic()).unwrap();
        let gpu = GpuContext::open(world.gpu()).unwrap();
        let pd = Pd::alloc(&nic).unwrap();
        let config = QpConfig::default()
            .depth(32)
            .cq_form(cq)
            .doorbell_path(doorbell.path())
            .first_index(first_index)
            .access(all())
            .receive_depth(8)
            .min_rnr_timer(1);
        let mut rig = Self {
            module: Module::embedded(&gpu).unwrap(),
            stream: Stream::create(&gpu).unwrap(),
            world,
            gpu,
            pd,
            qps: Vec::new(),
            peers: Vec::new(),
            proxy: None,
        };
        for _ in 0..qps {
            let mut qp = QueuePair::create(&rig.pd, &rig.gpu, &config).unwrap();
            let mut peer = QueuePair::create(&rig.pd, &rig.gpu, &config).unwrap();
            connect(&mut qp, &mut peer);
            rig.qps.push(qp.export().unwrap());
            rig.peers.push(peer.export().unwrap());
        }
        if doorbell == Doorbell::Proxy {
            let qps = rig.qps.iter().map(ExportedQp::qp);
            rig.proxy = Some(common::serve(&rig.world, qps).unwrap());
        }
        rig
    }

    fn memory(&self, bytes: &[u8]) -> (GpuMemory, Mr) {
        let memory = self.gpu.alloc_copy(bytes, "data").unwrap();
        let mr = Mr::register(&self.pd, &memory, all()).unwrap();
        (memory, mr)
    }

    #[track_caller]
    fn finish(&self, mut run: Run) -> RunReport {
        let report = run.wait(PATIENCE).unwrap();
        report.check().unwrap();
        assert_eq!(self.world.findings(), [""; 0]);
        report
    }

    #[track_caller]
    fn task(&self, task: Task<'_>, threads: u32) -> RunReport {
        let launch = TaskLaunch {
            threads,
            ..TaskLaunch::new(task)
        };
        let run = launch.launch(&self.module, &self.stream, &self.qps);
        self.finish(run.unwrap())
    }
}

fn connect(qp: &mut QueuePair, peer: &mut QueuePair) {
    qp.connect(&peer.local_info()).unwrap();
    peer.connect(&qp.local_info()).unwrap();
}

type How = (u64, Scheduler, Check);

fn worlds(check: Check) -> Vec<How> {
    (1..=seeds())
        .flat_map(|seed| {
            [Scheduler::Independent, Scheduler::Converge].map(|scheduler| (seed, scheduler, check))
        })
        .collect()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64)
        .flat_map(|index| data_word(7, index).to_le_bytes())
        .take(len)
        .collect()
}

/// Sharing, doorbell, order, completions, CQ, threads, block, QPs.
type Mode = (
    Sharing,
    Doorbell,
    Order,
    Completions,
    CqForm,
    u32,
    u32,
    usize,
);

fn modes() -> Vec<Mode> {
    use Completions::{Every, OnError};
    let mut out = Vec::new();
    for cq in [CqForm::Ring, CqForm::Collapsed] {
        for (doorbell, order) in [
            (Doorbell::Db, Order::Sys),
            (Doorbell::DbEarly, Order::Sys),
            (Doorbell::BlueFlame, Order::Sys),
            (Doorbell::Proxy, Order::Sys),
            (Doorbell::NoDbr, Order::Sys),
            (Doorbell::Db, Order::Gpu),
        ] {
            out.push((Sharing::Exclusive, doorbell, order, Every, cq, 2, 1, 2));
            out.push((Sharing::Gpu, doorbell, order, Every, cq, 5, 5, 2));
        }
        let db = |sharing, completions, threads, block, qps| {
            (
                sharing,
                Doorbell::Db,
                Order::Sys,
                completions,
                cq,
                threads,
                block,
                qps,
            )
        };
        out.push(db(Sharing::Warp, Every, 6, 3, 2));
        out.push(db(Sharing::Cta, Every, 10, 5, 2));
        if cq == CqForm::Ring {
            out.push(db(Sharing::Exclusive, OnError, 2, 1, 2));
            out.push(db(Sharing::Gpu, OnError, 5, 5, 2));
            out.push(db(Sharing::Warp, OnError, 6, 3, 2));
            out.push(db(Sharing::Cta, OnError, 5, 5, 1));
        }
    }
    out
}

const ITERS: u64 = 12;
const SLOTS: u32 = 3;

fn rate(mode: Mode, operation: Operation, size: u32) -> Rate {
    let (sharing, doorbell, order, completions, _, threads, block, _) = mode;
    Rate {
        operation,
        threads,
        block,
        sharing,
        doorbell,
        order,
        completions,
        size,
        slots: SLOTS,
        iters: ITERS,
        ..Rate::default()
    }
}

/// The NIC observes at the scope that the order relies on.
fn check_of(mode: &Mode) -> Check {
    match mode.2 {
        Order::Sys => Check::Strict,
        Order::Gpu => Check::Gpu,
    }
}

#[test]
fn writes_and_reads_arrive_in_every_mode() {
    for mode in modes() {
        for how in worlds(check_of(&mode)) {
            let rig = Rig::of(mode, how);
            for operation in [Operation::Write, Operation::Read] {
                let rate = rate(mode, operation, 24);
                let sent = bytes(rate.remote_len().unwrap() as usize);
                let (from, to) = (rig.memory(&sent), rig.memory(&vec![0xee; sent.len()]));
                let (local, remote) = match operation {
                    Operation::Read => (&to.1, &from.1),
                    _ => (&from.1, &to.1),
                };
                let (module, stream) = (&rig.module, &rig.stream);
                let run = rate.launch(module, stream, &rig.qps, Some(local), &remote.remote());
                let report = rig.finish(run.unwrap());
                assert_eq!(report.completed(), u64::from(mode.5) * ITERS, "{mode:?}");
                assert!(to.0.to_vec().unwrap() == sent, "{mode:?} {how:?}");
            }
        }
    }
}

#[test]
fn inline_data_arrives_in_every_mode() {
    for mode in modes() {
        if mode.3 == Completions::OnError && matches!(mode.0, Sharing::Warp | Sharing::Cta) {
            continue;
        }
        for how in worlds(check_of(&mode)) {
            let rig = Rig::of(mode, how);
            let rate = rate(mode, Operation::WriteInline, 28);
            let len = rate.remote_len().unwrap() as usize;
            let (to, remote) = rig.memory(&vec![0xee; len]);
            let (module, stream) = (&rig.module, &rig.stream);
            let run = rate.launch(module, stream, &rig.qps, None, &remote.remote());
            rig.finish(run.unwrap());
            let expected: Vec<u8> = (0..u64::from(mode.5))
                .flat_map(|thread| (ITERS - u64::from(SLOTS)..ITERS).map(move |op| (thread, op)))
                .flat_map(|(thread, op)| inline_words(thread, op))
                .flat_map(u32::to_le_bytes)
                .collect();
            assert!(to.to_vec().unwrap() == expected, "{mode:?} {how:?}");
        }
    }
}

#[test]
fn sums_add_up_in_every_mode() {
    for mode in modes() {
        for how in worlds(check_of(&mode)) {
            let rig = Rig::of(mode, how);
            let rate = Rate {
                slots: ITERS as u32,
                ..rate(mode, Operation::FetchAdd { add: 3 }, 8)
            };
            let found = rig.memory(&vec![0xee; rate.local_len().unwrap() as usize]);
            let (sum, counter) = rig.memory(&5u64.to_le_bytes());
            let (module, stream) = (&rig.module, &rig.stream);
            let remote = counter.remote();
            let run = rate.launch(module, stream, &rig.qps, Some(&found.1), &remote);
            rig.finish(run.unwrap());
            let all = u64::from(mode.5) * ITERS;
            assert_eq!(
                sum.to_vec().unwrap(),
                (5 + 3 * all).to_le_bytes(),
                "{mode:?} {how:?}"
            );
            let words = found.0.to_vec().unwrap();
            let mut words: Vec<u64> = words
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect();
            words.sort_unstable();
            let each: Vec<u64> = (0..all).map(|before| 5 + 3 * before).collect();
            assert_eq!(words, each, "{mode:?} {how:?}");
        }
    }
}

fn sends(mode: Mode) -> Sends {
    let (sharing, doorbell, order, completions, _, threads, block, _) = mode;
    Sends {
        threads,
        block,
        sharing,
        doorbell,
        order,
        completions,
        size: 40,
        slots: SLOTS,
        buffers: 6,
        iters: ITERS,
        ..Sends::default()
    }
}

#[test]
fn messages_land_in_every_mode() {
    for mode in modes() {
        for how in worlds(check_of(&mode)) {
            let rig = Rig::of(mode, how);
            let sends = sends(mode);
            let sent = bytes((mode.5 * SLOTS * sends.size) as usize);
            let (_source, from) = rig.memory(&sent);
            let into = rig.memory(&vec![0xee; mode.7 * 6 * 40]);
            let (module, stream) = (&rig.module, &rig.stream);
            let (run, log) = sends
                .launch(module, stream, &rig.qps, &rig.peers, &from, &into.1)
                .unwrap();
            rig.finish(run);
            let arrived = into.0.to_vec().unwrap();
            for (landed, found) in log.read().unwrap().iter().zip(arrived.chunks(40)) {
                assert_eq!(landed.len, 40, "{mode:?} {how:?}");
                let at = landed.immediate as usize * 40;
                assert!(found == &sent[at..at + 40], "{mode:?} {how:?} {landed:?}");
            }
        }
    }
}

/// A receive queue goes on in a new life of its QP, whose CQ goes on too; also where a host thread rings for sends.
#[test]
fn a_queue_that_was_reset_receives_again() {
    for how in worlds(Check::Strict) {
        for doorbell in [Doorbell::Db, Doorbell::Proxy] {
            let mut rig = Rig::with(how, 1, CqForm::Ring, doorbell);
            let sends = Sends {
                threads: 1,
                block: 1,
                doorbell,
                ..sends(modes()[0])
            };
            let sent = bytes((SLOTS * sends.size) as usize);
            let (_source, from) = rig.memory(&sent);
            let into = rig.memory(&vec![0xee; 6 * 40]);
            for _ in 0..3 {
                let (module, stream) = (&rig.module, &rig.stream);
                let (run, log) = sends
                    .launch(module, stream, &rig.qps, &rig.peers, &from, &into.1)
                    .unwrap();
                rig.finish(run);
                assert!(log.read().unwrap().iter().all(|landed| landed.len == 40));
                let mut qp = rig.qps.remove(0).unexport().unwrap();
                let mut peer = rig.peers.remove(0).unexport().unwrap();
                qp.reset().unwrap();
                peer.reset().unwrap();
                connect(&mut qp, &mut peer);
                if let Some((proxy, _)) = &rig.proxy {
                    proxy.add(&qp).unwrap();
                }
                rig.qps.push(qp.export().unwrap());
                rig.peers.push(peer.export().unwrap());
            }
        }
    }
}

/// Who posts needs QPs made for its doorbell; who receives, or answers, does not.
#[test]
fn a_kernel_is_refused_qps_that_were_made_for_another_doorbell() {
    let rings = [Doorbell::Db, Doorbell::Proxy, Doorbell::NoDbr];
    for made_for in rings {
        let how = (1, Scheduler::Independent, Check::Fast);
        let rig = Rig::with(how, 1, CqForm::Ring, made_for);
        let (module, stream) = (&rig.module, &rig.stream);
        let (_memory, mr) = rig.memory(&[0; 240]);
        for doorbell in rings {
            let mode = (
                Sharing::Exclusive,
                doorbell,
                Order::Sys,
                Completions::Every,
                CqForm::Ring,
                1,
                1,
                1,
            );
            let (rate, sends) = (rate(mode, Operation::Write, 24), sends(mode));
            let wrote = rate.launch(module, stream, &rig.qps, Some(&mr), &mr.remote());
            let sent = sends.launch(module, stream, &rig.qps, &rig.peers, &mr, &mr);
            for refused in [
                wrote.map(|run| rig.finish(run)).err(),
                sent.map(|(run, _)| rig.finish(run)).err(),
            ] {
                assert_eq!(
                    refused.as_ref().map(warpverbs::Error::kind),
                    (doorbell != made_for).then_some(ErrorKind::InvalidArgument),
                    "{made_for:?} {doorbell:?}"
                );
            }
        }
        let drained = TaskLaunch::new(Task::Drain).launch(module, stream, &rig.qps);
        assert_eq!(
            drained.map(|run| rig.finish(run)).is_ok(),
            made_for == Doorbell::Db
        );
    }
}

#[test]
fn a_signal_is_seen_behind_its_data() {
    for how in worlds(Check::Strict) {
        let rig = Rig::new(how, 2, CqForm::Ring);
        let sent = bytes(2 * 3 * 100);
        let (_source, from) = rig.memory(&sent);
        let (to, target) = rig.memory(&vec![0xee; sent.len()]);
        let (_word, word) = rig.memory(&[0; 8]);
        let (_old, fetched) = rig.memory(&[0; 16]);
        rig.task(
            Task::PutSignal {
                local: &from,
                remote: target.remote(),
                size: 100,
                slots: 3,
                iters: 9,
                signal: word.remote(),
                add: 2,
                fetched: &fetched,
            },
            2,
        );
        rig.task(
            Task::WaitSignal {
                word: &word,
                value: 36,
            },
            1,
        );
        rig.task(Task::Drain, 2);
        rig.task(Task::Progress { most: 4 }, 2);
        assert!(to.to_vec().unwrap() == sent, "{how:?}");
        // One more than was added is waited for in vain.
        let launch = TaskLaunch {
            wait_deadline: Duration::from_micros(50),
            ..TaskLaunch::new(Task::WaitSignal {
                word: &word,
                value: 37,
            })
        };
        let run = launch.launch(&rig.module, &rig.stream, &rig.qps);
        let report = run.unwrap().wait(PATIENCE).unwrap();
        assert_eq!(report.threads[0].error, Some(ThreadError::Timeout));
    }
}

#[test]
fn a_list_is_transferred_both_ways() {
    for how in worlds(Check::Strict) {
        for direction in [Direction::Write, Direction::Read] {
            let rig = Rig::new(how, 3, CqForm::Collapsed);
            let sent = bytes(5000);
            let (from, to) = (rig.memory(&sent), rig.memory(&[0xee; 5000]));
            let (local, remote) = match direction {
                Direction::Write => (&from, &to),
                Direction::Read => (&to, &from),
            };
            // Pieces of all sizes, none among them.
            let cuts = [0, 1, 1, 300, 304, 4400, 4999, 5000];
            let list: Vec<u8> = cuts
                .windows(2)
                .flat_map(|cut| {
                    let piece = Descriptor {
                        local: local.1.addr() + cut[0],
                        remote: remote.1.remote().addr + cut[0],
                        len: cut[1] - cut[0],
                        lkey: local.1.lkey(),
                        rkey: remote.1.remote().rkey,
                    };
                    piece.to_bytes()
                })
                .collect();
            let descriptors = rig.gpu.alloc_copy(&list, "list").unwrap();
            let list = Task::List {
                descriptors: &descriptors,
                count: 7,
                direction,
                local: &local.1,
            };
            rig.task(list, 3);
            assert!(to.0.to_vec().unwrap() == sent, "{how:?} {direction:?}");
        }
    }
}

#[test]
fn data_of_a_seed_is_made_and_verified_on_the_gpu() {
    for how in worlds(Check::Strict) {
        let rig = Rig::new(how, 1, CqForm::Ring);
        let memory = rig.gpu.alloc_copy(&[0xee; 1001], "data").unwrap();
        let data = SeededData {
            memory: &memory,
            seed: 7,
            threads: 33,
        };
        let (module, stream) = (&rig.module, &rig.stream);
        rig.finish(data.fill(module, stream).unwrap());
        let made = memory.to_vec().unwrap();
        assert!(made[..1000] == bytes(1000) && made[1000] == 0xee);
        let right = |data: &SeededData<'_>| {
            let report = rig.finish(data.verify(module, stream).unwrap());
            report.completed()
        };
        assert_eq!(right(&data), 125);
        assert_eq!(right(&SeededData { seed: 8, ..data }), 0);
    }
}
