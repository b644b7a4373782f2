//! Many QPs on what they share: what that costs, and that each is its own all the same.

mod common;

use std::collections::BTreeMap;

use common::{Options, PATIENCE, POISON, World, pattern};
use warpverbs::driver::UarKind;
use warpverbs::driver::fault::{Call, Fault, Faults, Outcome};
use warpverbs::driver::sim::InjectedFault;
use warpverbs::{
    Access, Bandwidth, CloseReport, Context, CqForm, Error, ErrorKind, ExportedQp, GpuContext,
    Module, Mr, Pd, QpConfig, QpPool, QpStatus, QueuePair, Refused, Sharing, Stage, Stream,
};

struct Rig {
    world: World,
    faults: Faults,
    nic: Context,
    gpu: GpuContext,
    pd: Pd,
}

fn rig() -> Rig {
    rig_at(0)
}

fn rig_at(first_index: u64) -> Rig {
    let options = Options {
        first_index,
        ..Options::default()
    };
    let (world, faults) = (options.world(), Faults::new());
    let nic = Context::open(faults.nic(world.nic())).unwrap();
    let gpu = GpuContext::open(faults.gpu(world.gpu())).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    Rig {
        world,
        faults,
        nic,
        gpu,
        pd,
    }
}

fn config() -> QpConfig {
    QpConfig::default().depth(8)
}

impl Rig {
    fn pool(&self, places: u32) -> QpPool {
        QpPool::create(&self.pd, &self.gpu, &config(), places).unwrap()
    }

    /// All places of a pool, connected to themselves and exported.
    fn exported(&self, pool: &QpPool) -> Vec<ExportedQp> {
        let mut qps = pool.qps(pool.free() as usize).unwrap();
        let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
        QueuePair::connect_all(&mut qps, &infos).unwrap();
        QueuePair::export_all(qps).unwrap()
    }

    /// Each QP writes a message of its own to itself; all arrive.
    fn verify(&self, qps: &[ExportedQp]) {
        let threads = qps.len() as u32;
        let write = Bandwidth {
            threads,
            block: 32.min(threads),
            size: 64,
            slots: 2,
            iters: 11,
            ..Bandwidth::default()
        };
        let len = write.region_len().unwrap() as usize;
        let bytes = pattern(3, len);
        let source = self.gpu.alloc_copy(&bytes, "source").unwrap();
        let target = self.gpu.alloc_copy(&vec![POISON; len], "target").unwrap();
        let local = Mr::register(&self.pd, &source, Access::LOCAL_READ).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let remote = Mr::register(&self.pd, &target, access).unwrap();
        let module = Module::embedded(&self.gpu).unwrap();
        let stream = Stream::create(&self.gpu).unwrap();
        let mut run = write
            .launch(&module, &stream, qps, &local, &remote.remote())
            .unwrap();
        run.wait(PATIENCE).unwrap().check().unwrap();
        assert_eq!(target.to_vec().unwrap(), bytes);
        assert_eq!(self.world.findings(), [""; 0]);
    }

    /// Everything goes; nothing may be left.
    fn finish(self) {
        self.faults.clear();
        self.nic.close().unwrap();
        self.gpu.close().unwrap();
        assert_eq!(self.world.live(), [""; 0]);
    }
}

fn incomplete<T>(closed: Result<CloseReport, Refused<T>>) -> (CloseReport, T) {
    match closed {
        Err(Refused {
            error: Error::Incomplete(report),
            value,
        }) => (*report, value),
        Err(Refused { error, .. }) => panic!("{error}"),
        Ok(report) => panic!("complete: {report}"),
    }
}

/// Every method of the GPU boundary that makes a call of the driver.
const GPU_CALLS: [&str; 29] = [
    "alloc",
    "free",
    "copy_to_device",
    "copy_rows_to_device",
    "fill",
    "copy_from_device",
    "alloc_host_mapped",
    "free_host_mapped",
    "load_acquire",
    "store_release",
    "export_dmabuf",
    "close_dmabuf",
    "map_uar",
    "unmap_uar",
    "flush_writes",
    "load_module",
    "unload_module",
    "module_global",
    "kernel",
    "max_resident_blocks",
    "create_stream",
    "destroy_stream",
    "query_stream",
    "create_event",
    "destroy_event",
    "record_event",
    "query_event",
    "launch",
    "counters",
];
/// Those that wait for the GPU.
const SYNCHRONISATIONS: [&str; 4] = [
    "copy_to_device",
    "copy_rows_to_device",
    "fill",
    "copy_from_device",
];

/// Calls of each name, on the NIC and on the GPU.
type Counts = [BTreeMap<&'static str, usize>; 2];

fn counts(calls: &[Call]) -> Counts {
    let mut counts = Counts::default();
    for call in calls {
        let gpu = GPU_CALLS.contains(&call.name);
        *counts[usize::from(gpu)].entry(call.name).or_default() += 1;
    }
    counts
}

fn sum(counts: &BTreeMap<&str, usize>) -> usize {
    counts.values().sum()
}

#[test]
fn a_thousand_qps_cost_five_commands_each_to_open_and_three_to_close_when_idle() {
    for (count, depth, form) in [
        (1, 8, CqForm::Ring),
        (10, 128, CqForm::Ring),
        (1000, 8, CqForm::Collapsed),
        (1000, 128, CqForm::Ring),
    ] {
        let rig = rig();
        let before = rig.faults.trace().len();
        let config = config().depth(depth).cq_form(form);
        let pool = QpPool::create(&rig.pd, &rig.gpu, &config, count).unwrap();
        let qps = rig.exported(&pool);
        let trace = rig.faults.trace();
        let [nic, gpu] = counts(&trace[before..]);
        println!(
            "open {count} QPs of {depth}: {} NIC calls {nic:?}, {} GPU calls {gpu:?}",
            sum(&nic),
            sum(&gpu)
        );
        let count = count as usize;
        // Not mailboxes only: every call.
        assert!(sum(&nic) <= 5 * count + 64, "{nic:?}");
        assert!(sum(&gpu) <= 10, "{gpu:?}");

        rig.world
            .note("calls that open and connect", (count, &nic, &gpu));
        let opened = trace.len();
        pool.close().unwrap();
        let [nic, gpu] = counts(&rig.faults.trace()[opened..]);
        let commands = nic["modify"] + nic["destroy"];
        println!(
            "close {count} idle ones: {commands} NIC commands, and {nic:?}, {} GPU calls {gpu:?}",
            sum(&gpu)
        );
        assert_eq!(commands, 3 * count);
        // Besides, once each: the UMEM and the doorbell page.
        assert_eq!(sum(&nic), commands + 2, "{nic:?}");
        let synchronisations: usize = SYNCHRONISATIONS
            .iter()
            .filter_map(|name| gpu.get(name))
            .sum();
        assert_eq!(synchronisations, 1, "{gpu:?}");
        // Besides, once each: the mapping, the stop words, the memory.
        assert_eq!(sum(&gpu), synchronisations + 3, "{gpu:?}");
        assert!(qps.iter().all(|qp| qp.qp().stage() == Stage::Destroyed));
        drop(qps);
        rig.finish();
    }
}

/// For whoever compares drivers: some have one doorbell page for all that ask for one.
#[test]
fn doorbell_pages_are_one_or_one_each() {
    let rig = rig();
    let nic = rig.world.nic();
    let [one, two] = [(); 2].map(|()| nic.alloc_uar(UarKind::NonCachedDedicated).unwrap());
    let pages = if one.page_id == two.page_id {
        "one"
    } else {
        "each"
    };
    println!("doorbell pages: {pages}");
    assert_eq!(one.page == two.page, pages == "one");
    assert_ne!(one.handle, two.handle);
    for uar in [one, two] {
        nic.free_uar(uar.handle).unwrap();
    }
    rig.finish();
}

/// The same when the NIC is closed, and after the QPs were used.
#[test]
fn closing_the_nic_costs_no_more_and_used_qps_are_idle_too() {
    let rig = rig();
    let pool = rig.pool(96);
    let qps = rig.exported(&pool);
    rig.verify(&qps);
    let before = rig.faults.trace().len();
    rig.nic.clone().close().unwrap();
    let [nic, gpu] = counts(&rig.faults.trace()[before..]);
    assert_eq!((nic["modify"], nic["destroy"]), (96, 192), "{nic:?}");
    assert!(!nic.contains_key("query"), "{nic:?}");
    assert_eq!(gpu["copy_rows_to_device"], 1, "{gpu:?}");
    assert_eq!(sum(&gpu), 2, "and the mapping: {gpu:?}");
    drop((qps, pool));
    rig.finish();
}

#[test]
fn all_qps_of_a_pool_move_data_at_once_wherever_their_indices_start() {
    for first_index in [0, (1 << 16) - 3, (1 << 32) - 3] {
        let rig = rig_at(first_index);
        let config = config().first_index(first_index);
        let pool = QpPool::create(&rig.pd, &rig.gpu, &config, 32).unwrap();
        let qps = rig.exported(&pool);
        rig.verify(&qps);
        // Their own progress each.
        for qp in &qps {
            let progress = qp.progress().unwrap();
            assert_eq!(progress.completed, first_index + 11);
            assert_eq!(progress.status, QpStatus::Live);
        }
        pool.close().unwrap();
        drop(qps);
        rig.finish();
    }
}

#[test]
fn a_pool_may_go_before_its_qps() {
    let rig = rig();
    let pool = rig.pool(3);
    let qps = rig.exported(&pool);
    drop(pool);
    rig.verify(&qps);
    let live = rig.world.live().len();
    let mut qps = qps.into_iter();
    let report = qps.next().unwrap().close().unwrap();
    assert_eq!((report.released["QP"], report.released.len()), (1, 2));
    assert_eq!(rig.world.live().len(), live - 2, "the QP and its CQ");
    drop(qps.next());
    // The last one takes with it what all stood on.
    let report = qps.next().unwrap().close().unwrap();
    for node in [
        "QP",
        "CQ",
        "UMEM",
        "doorbell page",
        "doorbell page mapping",
        "host-mapped memory",
        "GPU memory",
    ] {
        assert_eq!(report.released[node], 1, "{node}: {report}");
    }
    rig.finish();
}

#[test]
fn a_refused_destroy_keeps_what_the_qp_needs_and_nothing_else() {
    let rig = rig();
    let pool = rig.pool(4);
    let qps = rig.exported(&pool);
    // QPs go backwards: QP, then its CQ. The third is refused.
    rig.faults.plan(Fault::refuse(2).of("destroy"));
    let (report, pool) = incomplete(pool.close());
    assert_eq!((report.released["QP"], report.released["CQ"]), (3, 3));
    assert_eq!(report.retained.len(), 1, "{report}");
    let retained = &report.retained[0];
    assert_eq!(retained.node.kind, "QP");
    let mut set: Vec<_> = retained.set.iter().map(|node| node.kind).collect();
    set.sort_unstable();
    assert_eq!(
        set,
        [
            "CQ",
            "GPU memory",
            "PD",
            "UMEM",
            "doorbell page",
            "doorbell page mapping",
            "host-mapped memory"
        ]
    );
    assert_eq!(rig.world.live().len(), 1 + set.len(), "those alone");
    assert_eq!(pool.free(), 3);
    // Its siblings' places can be taken again meanwhile, and work.
    let others = rig.exported(&pool);
    assert_eq!(others.len(), 3);
    rig.verify(&others);
    rig.faults.clear();
    let report = pool.close().unwrap();
    assert_eq!(
        (report.released["QP"], report.released["CQ"]),
        (4, 4),
        "each once"
    );
    drop((qps, others));
    rig.finish();
}

#[test]
fn a_place_is_taken_again_only_when_qp_and_cq_are_gone() {
    let rig = rig();
    let pool = rig.pool(2);
    let mut qps = rig.exported(&pool);
    assert!(matches!(
        pool.qp().unwrap_err(),
        Error::PoolFull { places: 2 }
    ));
    assert_eq!(pool.qp().unwrap_err().kind(), ErrorKind::Exhausted);
    // The CQ is refused after the QP: its ring lies in the place.
    rig.faults.plan(Fault::refuse(1).of("destroy"));
    let (report, qp) = incomplete(qps.remove(0).close());
    assert_eq!(report.released["QP"], 1);
    assert_eq!(pool.free(), 0);
    assert!(matches!(
        pool.qp().unwrap_err(),
        Error::PoolFull { places: 2 }
    ));
    rig.faults.clear();
    qp.close().unwrap();
    assert_eq!(pool.free(), 1);
    let again = rig.exported(&pool);
    qps.extend(again);
    rig.verify(&qps);
    pool.close().unwrap();
    drop(qps);
    rig.finish();
}

/// Rings, CQ and handle of a place are those of a new QP, whatever the one before has left there.
#[test]
fn a_place_that_is_taken_again_is_as_new() {
    for form in [CqForm::Ring, CqForm::Collapsed] {
        let rig = rig();
        let config = config().cq_form(form);
        let pool = QpPool::create(&rig.pd, &rig.gpu, &config, 2).unwrap();
        let mut handles = Vec::new();
        for _ in 0..5 {
            let qps = rig.exported(&pool);
            assert_eq!(qps.len(), 2);
            handles.push(qps.iter().map(ExportedQp::handle).collect::<Vec<_>>());
            for qp in &qps {
                let progress = qp.progress().unwrap();
                assert_eq!((progress.reserved, progress.cq_index), (0, 0));
                assert_eq!(progress.status, QpStatus::Live);
            }
            rig.verify(&qps);
            // Stop words of the life before are not seen.
            for qp in &qps {
                qp.stop().unwrap();
            }
            for qp in qps {
                qp.close().unwrap();
            }
        }
        assert!(
            handles.windows(2).all(|two| two[0] == two[1]),
            "the same places"
        );
        pool.close().unwrap();
        rig.finish();
    }
}

#[test]
fn neighbours_go_on_while_others_are_closed_and_keep_their_indices() {
    let rig = rig();
    let pool = rig.pool(8);
    let mut qps = rig.exported(&pool);
    rig.verify(&qps);
    let before: Vec<_> = qps.iter().map(|qp| qp.progress().unwrap()).collect();
    for at in [6, 3, 2, 0] {
        qps.remove(at).close().unwrap();
    }
    for (qp, at) in qps.iter().zip([1, 4, 5, 7]) {
        assert_eq!(qp.progress().unwrap(), before[at]);
    }
    rig.verify(&qps);
    // Runs of one, of two and of one.
    let calls = rig.faults.trace().len();
    pool.close().unwrap();
    let [_, gpu] = counts(&rig.faults.trace()[calls..]);
    assert_eq!((gpu["copy_to_device"], gpu["copy_rows_to_device"]), (2, 1));
    drop(qps);
    rig.finish();
}

/// Handles that one copy cannot clear are cleared each by a copy of its own.
#[test]
fn neighbours_do_not_suffer_for_a_refused_copy() {
    let rig = rig();
    let pool = rig.pool(4);
    let qps = rig.exported(&pool);
    rig.faults
        .plan(Fault::fail(0).of("copy_rows_to_device").calls(u64::MAX));
    // Nor can the second be cleared by itself.
    let second = qps[1].handle();
    rig.faults.plan(Fault::refuse(1).of("copy_to_device"));
    let (report, pool) = incomplete(pool.close());
    assert_eq!(report.released["QP"], 3, "{report}");
    assert_eq!(report.retained.len(), 1);
    let refused = rig
        .faults
        .injected()
        .iter()
        .filter(|call| call.name == "copy_to_device")
        .map(|call| call.object)
        .collect::<Vec<_>>();
    assert_eq!(refused, [Some(second)]);
    assert_eq!(report.stage, Stage::Drained);
    rig.faults.clear();
    pool.close().unwrap();
    drop(qps);
    rig.finish();
}

#[test]
fn connecting_is_all_or_nothing() {
    let rig = rig();
    let pool = rig.pool(3);
    let mut qps = pool.qps(3).unwrap();
    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    for call in 0.. {
        rig.faults.clear();
        rig.faults.plan(Fault::fail(call));
        let connected = QueuePair::connect_all(&mut qps, &infos);
        let struck = rig.faults.injected().len() > call as usize;
        if !struck {
            connected.unwrap();
            // Nine transitions, and one MAC address for all.
            assert_eq!(call, 10);
            rig.faults.clear();
            break;
        }
        let error = connected.unwrap_err();
        assert!(!matches!(error, Error::Rollback { .. }), "{error}");
    }
    // All are connected now, and were not before: a second time is refused, and changes nothing.
    let before = rig.faults.trace().len();
    let error = QueuePair::connect_all(&mut qps, &infos).unwrap_err();
    assert!(matches!(
        error,
        Error::QpState {
            state: "connected",
            ..
        }
    ));
    assert_eq!(rig.faults.trace().len(), before);
    let qps = QueuePair::export_all(qps).unwrap();
    rig.verify(&qps);
    pool.close().unwrap();
    drop(qps);
    rig.finish();
}

#[test]
fn one_bad_remote_end_is_refused_before_any_command() {
    let rig = rig();
    let pool = rig.pool(3);
    let mut qps = pool.qps(3).unwrap();
    let mut infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    infos[2].truncate(5);
    let before = rig.faults.trace().len();
    let error = QueuePair::connect_all(&mut qps, &infos).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    let error = QueuePair::connect_all(&mut qps, &infos[..2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(rig.faults.trace().len(), before);
    QueuePair::connect_all(&mut [], &[[0u8; 0]; 0]).unwrap();
    drop(qps);
    pool.close().unwrap();
    rig.finish();
}

#[test]
fn a_connect_that_cannot_be_undone_says_so() {
    let rig = rig();
    let pool = rig.pool(2);
    let mut qps = pool.qps(2).unwrap();
    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    // Three transitions of the first; the second's first fails, then its reset, then the reset of the first.
    rig.faults.plan(Fault::fail(3).of("modify").calls(3));
    let error = QueuePair::connect_all(&mut qps, &infos).unwrap_err();
    let Error::Rollback { first, retained } = &error else {
        panic!("{error}")
    };
    assert!(first.to_string().contains("INIT"), "{first}");
    assert_eq!(retained.len(), 2, "{error}");
    rig.faults.clear();
    for qp in &mut qps {
        let error = qp.connect(&infos[0]).unwrap_err();
        assert!(error.to_string().contains("unknown state"), "{error}");
        qp.reset().unwrap();
    }
    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    QueuePair::connect_all(&mut qps, &infos).unwrap();
    drop(qps);
    pool.close().unwrap();
    rig.finish();
}

#[test]
fn exporting_is_all_or_nothing() {
    let rig = rig();
    let (one, two) = (rig.pool(2), rig.pool(2));
    let mut qps = one.qps(2).unwrap();
    qps.extend(two.qps(2).unwrap());
    // One that is not connected.
    let mut infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    let last = infos.pop().unwrap();
    QueuePair::connect_all(&mut qps[..3], &infos).unwrap();
    let Refused { error, value } = QueuePair::export_all(qps).unwrap_err();
    assert!(matches!(
        error,
        Error::QpState {
            state: "not connected",
            ..
        }
    ));
    let mut qps = value;
    qps[3].connect(&last).unwrap();
    // The second pool's copy fails: the first's is undone.
    rig.faults.plan(Fault::fail(1).of("copy_rows_to_device"));
    let Refused { error, value } = QueuePair::export_all(qps).unwrap_err();
    assert!(error.to_string().contains("planned failure"), "{error}");
    for qp in &value {
        assert_eq!(qp.stage(), Stage::Live);
    }
    // None is exported, so each can be reset, connected and exported.
    let mut qps = value;
    qps[0].reset().unwrap();
    let info = qps[0].local_info();
    qps[0].connect(&info).unwrap();
    let qps = QueuePair::export_all(qps).unwrap();
    rig.verify(&qps);
    assert_eq!(QueuePair::export_all(Vec::new()).unwrap().len(), 0);
    drop(qps);
    one.close().unwrap();
    two.close().unwrap();
    rig.finish();
}

/// Of several that were exported together one is taken back, and exported again: the others do not notice.
#[test]
fn one_of_several_is_unexported() {
    let rig = rig();
    let pool = rig.pool(3);
    let mut qps = rig.exported(&pool);
    let qp = qps.remove(1);
    // A clone is the same export.
    let clone = qp.clone();
    let Refused { error, value: qp } = qp.unexport().unwrap_err();
    assert!(matches!(error, Error::Busy { users: 1, .. }), "{error}");
    drop(clone);
    let qp = qp.unexport().unwrap();
    rig.verify(&qps);
    let version = |handle: u64| {
        let mut bytes = [0; 4];
        rig.world
            .gpu()
            .copy_from_device(&mut bytes, handle)
            .unwrap();
        u32::from_le_bytes(bytes)
    };
    let handles: Vec<_> = qps.iter().map(ExportedQp::handle).collect();
    let between = handles[0].midpoint(handles[1]);
    assert_ne!(version(handles[0]), 0);
    assert_eq!(version(between), 0, "every kernel refuses it");
    let qp = qp.export().unwrap();
    assert_eq!(
        (qp.handle(), version(between)),
        (between, version(handles[0]))
    );
    qps.insert(1, qp);
    rig.verify(&qps);
    pool.close().unwrap();
    drop(qps);
    rig.finish();
}

#[test]
fn creating_is_all_or_nothing() {
    let rig = rig();
    let pool = rig.pool(4);
    let live = rig.world.live();
    let error = pool.qps(5).unwrap_err();
    assert!(matches!(error, Error::PoolFull { places: 4 }), "{error}");
    assert_eq!((rig.world.live(), pool.free()), (live.clone(), 4));
    rig.faults.plan(Fault::fail(5).of("create"));
    let error = pool.qps(4).unwrap_err();
    assert!(error.to_string().contains("planned failure"), "{error}");
    assert_eq!((rig.world.live(), pool.free()), (live, 4));
    let qps = rig.exported(&pool);
    rig.verify(&qps);
    drop(qps);
    pool.close().unwrap();
    let error = QpPool::create(&rig.pd, &rig.gpu, &config(), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    rig.finish();
}

/// One QP of a pool in error with work outstanding: its siblings go on, and it is reset and used again in its place.
#[test]
fn an_error_stays_with_its_qp_and_a_reset_leaves_the_siblings_alone() {
    let rig = rig();
    let pool = rig.pool(3);
    let mut qps = rig.exported(&pool);
    let source = rig.gpu.alloc(64, "source").unwrap();
    let local = Mr::register(&rig.pd, &source, Access::LOCAL_READ).unwrap();
    let write = Bandwidth {
        size: 64,
        iters: 20,
        sharing: Sharing::Gpu,
        ..Bandwidth::default()
    };
    let module = Module::embedded(&rig.gpu).unwrap();
    let stream = Stream::create(&rig.gpu).unwrap();
    let wrong = warpverbs::RemoteMr {
        rkey: 0xffff_ff00,
        ..local.remote()
    };
    let mut run = write
        .launch(&module, &stream, &qps[1..2], &local, &wrong)
        .unwrap();
    assert!(run.wait(PATIENCE).unwrap().fault().is_some());
    drop(run);
    // Work outstanding keeps the region.
    let Refused { error, value } = local.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let mut qp = qps.remove(1).unexport().unwrap();
    rig.verify(&qps);
    qp.reset().unwrap();
    value.close().unwrap();
    let info = qp.local_info();
    qp.connect(&info).unwrap();
    qps.push(qp.export().unwrap());
    rig.verify(&qps);
    pool.close().unwrap();
    drop(qps);
    rig.finish();
}

/// A QP that cannot be drained keeps the memory under all of them, and its siblings are destroyed.
#[test]
fn a_drain_that_times_out_keeps_the_slab_and_frees_the_siblings() {
    let rig = rig();
    let pool = rig.pool(3);
    let qps = rig.exported(&pool);
    let source = rig.gpu.alloc(64, "source").unwrap();
    let local = Mr::register(&rig.pd, &source, Access::LOCAL_READ).unwrap();
    let write = Bandwidth {
        size: 64,
        iters: 20,
        ..Bandwidth::default()
    };
    let module = Module::embedded(&rig.gpu).unwrap();
    let stream = Stream::create(&rig.gpu).unwrap();
    let wrong = warpverbs::RemoteMr {
        rkey: 0xffff_ff00,
        ..local.remote()
    };
    let mut run = write
        .launch(&module, &stream, &qps[..1], &local, &wrong)
        .unwrap();
    assert!(run.wait(PATIENCE).unwrap().fault().is_some());
    drop(run);
    let qpn = qps[0].qpn();
    rig.world
        .with_nic(|nic| nic.inject(InjectedFault::DropDbr { qpn }));
    let soon = std::time::Duration::from_millis(50);
    let (report, pool) = incomplete(pool.close_within(soon));
    assert_eq!(report.released["QP"], 2, "{report}");
    assert_eq!(report.retained.len(), 1, "{report}");
    assert_eq!(report.retained[0].kind, ErrorKind::Timeout);
    assert!(
        report.retained[0]
            .set
            .iter()
            .any(|node| node.kind == "GPU memory")
    );
    assert_eq!(pool.free(), 2);
    rig.world.with_nic(|nic| nic.heal());
    pool.close().unwrap();
    drop(qps);
    rig.finish();
}

#[test]
fn threads_create_and_close_in_one_pool_at_the_same_time() {
    let rig = rig();
    rig.world.is_timed();
    let pool = rig.pool(8);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let mut qps = pool.qps(2).unwrap();
                    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
                    QueuePair::connect_all(&mut qps, &infos).unwrap();
                    for qp in QueuePair::export_all(qps).unwrap() {
                        qp.close().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(pool.free(), 8);
    let failed = |call: &&Call| call.outcome != Outcome::Done;
    assert_eq!(rig.faults.trace().iter().find(failed), None);
    let qps = rig.exported(&pool);
    rig.verify(&qps);
    pool.close().unwrap();
    drop(qps);
    rig.finish();
}

/// Whatever threads are doing with a pool when its NIC is closed, they end in an error that says so, and nothing is left.
#[test]
fn a_nic_is_closed_while_threads_use_a_pool() {
    for round in 0..10 {
        let rig = rig();
        rig.world.is_timed();
        let pool = rig.pool(8);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let life = || -> warpverbs::Result<()> {
                        let mut qps = pool.qps(2)?;
                        let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
                        QueuePair::connect_all(&mut qps, &infos)?;
                        for qp in QueuePair::export_all(qps)? {
                            qp.close()?;
                        }
                        Ok(())
                    };
                    let error = loop {
                        if let Err(error) = life() {
                            break error;
                        }
                    };
                    assert!(
                        matches!(error.kind(), ErrorKind::State | ErrorKind::Busy),
                        "{error}"
                    );
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(round));
            rig.nic.clone().close().unwrap();
        });
        let failed = |call: &&Call| call.outcome != Outcome::Done;
        assert_eq!(rig.faults.trace().iter().find(failed), None);
        drop(pool);
        rig.finish();
    }
}
