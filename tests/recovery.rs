//! A QP that is reset and used again, looked at byte by byte: handle, doorbell record, CQEs.
//!
//! The oracle of CQ indices is the NIC's own count of the CQEs that it wrote, which no host code touches.

mod common;

use common::{Bench, Options, PATIENCE, POISON};
use warpverbs::driver::fault::Fault;
use warpverbs::wire::abi::{QpHandle, VERSION};
use warpverbs::wire::cqe::{CQE, Tail};
use warpverbs::{Bandwidth, CqForm, ExportedQp, QpStatus, QueuePair, RemoteMr, Sharing, Stage};

const DEPTH: u32 = 8;

fn options(cq: CqForm, sharing: Sharing, first_index: u64) -> Options {
    Options {
        cq,
        sharing,
        first_index,
        threads: match sharing {
            Sharing::Exclusive | Sharing::Warp | Sharing::Cta => 1,
            Sharing::Gpu => 3,
        },
        block: 1,
        depth: DEPTH,
        size: 64,
        slots: 2,
        step_budget: Some(u64::MAX),
        ..Options::default()
    }
}

/// Where the parts of a QP are, as its handle said while it was exported.
#[derive(Clone, Copy)]
struct Places {
    handle: u64,
    dbr: u64,
    cq: u64,
    cq_depth: u32,
    stop: u64,
}

impl Places {
    fn of(bench: &Bench, qp: &ExportedQp) -> Self {
        let handle = read_handle(bench, qp.handle());
        Self {
            handle: qp.handle(),
            dbr: handle.dbr,
            cq: handle.cq,
            cq_depth: handle.cq_depth,
            stop: handle.stop,
        }
    }

    /// Bytes of the CQE in a slot.
    fn cqe(&self, bench: &Bench, slot: u64) -> [u8; CQE] {
        bytes(bench, self.cq + slot * CQE as u64)
    }

    fn is_new(&self, bench: &Bench, index: u64) -> bool {
        let cqe = self.cqe(bench, index % u64::from(self.cq_depth));
        let tail = u64::from_le_bytes(cqe[Tail::OFFSET..][..8].try_into().unwrap());
        Tail(tail).is_new(index, self.cq_depth)
    }
}

fn bytes<const N: usize>(bench: &Bench, addr: u64) -> [u8; N] {
    let mut bytes = [0; N];
    let gpu = bench.world.gpu();
    gpu.copy_from_device(&mut bytes, addr).unwrap();
    bytes
}

fn read_handle(bench: &Bench, addr: u64) -> QpHandle {
    QpHandle::from_bytes(&bytes::<{ QpHandle::LEN }>(bench, addr)).unwrap()
}

/// Runs the write kernel on the first QP; to a key that does not exist if it is to fail.
fn write(bench: &Bench, options: &Options, iters: u64, fails: bool) {
    let target = bench.target_mr.remote();
    let rkey = if fails { 0xffff_ff00 } else { target.rkey };
    bench
        .target
        .write(0, &vec![POISON; bench.bytes.len()])
        .unwrap();
    let mut run = Bandwidth {
        iters,
        ..options.bandwidth()
    }
    .launch(
        &bench.module,
        &bench.stream,
        &bench.qps[..1],
        &bench.source_mr,
        &RemoteMr { rkey, ..target },
    )
    .unwrap();
    let report = run.wait(PATIENCE).unwrap();
    if fails {
        assert!(report.fault().is_some());
    } else {
        report.check().unwrap();
        assert_eq!(report.completed(), iters * u64::from(options.threads));
        let written = bench.target.to_vec().unwrap();
        let len = options.size as usize * iters.min(options.slots.into()) as usize;
        assert_eq!(written[..len], bench.bytes[..len]);
    }
}

fn connect(one: &mut QueuePair, two: &mut QueuePair) {
    one.connect(&two.local_info()).unwrap();
    two.connect(&one.local_info()).unwrap();
}

/// What stands in memory between 2RST and RST2INIT, `cqes` being what the NIC has written to the CQ so far.
fn look_at_reset(bench: &Bench, places: &Places, cq: CqForm, first_index: u64, cqes: u64) {
    let handle = read_handle(bench, places.handle);
    assert_eq!(handle.version, 0, "no kernel takes it");
    for index in [
        handle.reserved.word,
        handle.turn.word,
        handle.completed.word,
    ] {
        assert_eq!(index, first_index);
    }
    assert_eq!(handle.state.word, 0, "neither stop nor fault");
    // The send record, as mlx5 has it: big-endian, 16 bits.
    let record = ((first_index & 0xffff) as u32).to_be_bytes();
    assert_eq!(bytes::<4>(bench, places.dbr), record);
    match cq {
        CqForm::Collapsed => assert_eq!(
            places.cqe(bench, 0),
            [0xff; CQE],
            "invalid: opcode 0xf, owner 1"
        ),
        CqForm::Ring => {
            // Carried over: the NIC goes on where it is.
            let consumer = first_index + cqes;
            assert_eq!(handle.completed.second, consumer);
            assert!(!places.is_new(bench, consumer), "no false completion");
            let before = consumer.checked_sub(1).filter(|_| cqes > 0);
            assert!(before.is_none_or(|last| places.is_new(bench, last)));
        }
    }
}

#[test]
fn after_each_reset_every_word_is_consistent() {
    for cq in [CqForm::Ring, CqForm::Collapsed] {
        for sharing in [Sharing::Exclusive, Sharing::Gpu] {
            for first_index in [0, (1 << 16) - 3] {
                laps(&options(cq, sharing, first_index));
            }
        }
    }
}

/// Several laps and odd counts, in good order and after an error; to the same peer and to another.
fn laps(options: &Options) {
    let mut bench = options.bench().unwrap();
    let mut peer = bench.peers.remove(0);
    let mut other = QueuePair::create(&bench.pd, &bench.gpu, &options.qp_config()).unwrap();
    let rounds = [
        (10, false),
        (5, false),
        (1, true),
        (7, true),
        (33, false),
        (67, true),
        (3, true),
    ];
    for (round, (iters, fails)) in rounds.into_iter().enumerate() {
        let places = Places::of(&bench, &bench.qps[0]);
        write(&bench, options, iters, false);
        let posted = iters * u64::from(options.threads);
        let progress = bench.qps[0].progress().unwrap();
        let end = options.first_index + posted;
        assert_eq!(
            (progress.reserved, progress.handed_off, progress.completed),
            (end, end, end)
        );
        if fails {
            write(&bench, options, iters, true);
            let status = bench.qps[0].progress().unwrap().status;
            assert!(matches!(status, QpStatus::Fault(_)), "{status:?}");
        }
        let mut qp = bench.qps.remove(0).unexport().unwrap();
        let before = qp.local_info();
        qp.reset().unwrap();
        assert_eq!(qp.stage(), Stage::Live);
        let cqes = bench.world.nic_stats().cqes;
        look_at_reset(&bench, &places, options.cq, options.first_index, cqes);
        peer.reset().unwrap();
        if round % 2 == 1 {
            std::mem::swap(&mut peer, &mut other);
        }
        assert_ne!(qp.local_info(), before, "a PSN of its own");
        connect(&mut qp, &mut peer);
        // Connecting changes none of it.
        look_at_reset(&bench, &places, options.cq, options.first_index, cqes);
        bench.qps.push(qp.export().unwrap());
        let handle = read_handle(&bench, places.handle);
        assert_eq!((handle.version, handle.state.word), (VERSION, 0));
        assert_eq!(handle.reserved.word, options.first_index);
        let again = Places::of(&bench, &bench.qps[0]);
        assert_eq!(
            (again.handle, again.dbr, again.cq),
            (places.handle, places.dbr, places.cq)
        );
        assert_eq!(bench.world.gpu().load_acquire(again.stop).unwrap(), 0);
    }
    write(&bench, options, 21, false);
    assert_eq!(bench.world.findings(), [""; 0]);
    drop((peer, other));
    let world = bench.world.clone();
    drop(bench);
    assert_eq!(world.live(), [""; 0]);
}

#[test]
fn the_collapsed_cqe_is_made_invalid_after_2rst_and_not_before() {
    let options = options(CqForm::Collapsed, Sharing::Exclusive, 0);
    let mut bench = options.bench().unwrap();
    let places = Places::of(&bench, &bench.qps[0]);
    write(&bench, &options, 9, true);
    let mut qp = bench.qps.remove(0).unexport().unwrap();
    // To ERR, then to RST: the second is refused. Until it is done, the NIC may still write a CQE.
    bench.faults.plan(Fault::fail(1).of("modify"));
    qp.reset().unwrap_err();
    assert_ne!(places.cqe(&bench, 0), [0xff; CQE]);
    assert_eq!(qp.stage(), Stage::Unexported);
    qp.reset().unwrap();
    assert_eq!(places.cqe(&bench, 0), [0xff; CQE]);
}
