//! QPs without doorbell record: GPU threads ring, and that is all.

use super::common::{Options, PATIENCE, POISON};
use super::{SCHEDULERS, close, launch, options, seeds};
use warpverbs::driver::sim::{Check, World};
use warpverbs::wire::abi::{FLAG_NO_DBR, QpHandle};
use warpverbs::{
    Context, CqForm, Doorbell, DoorbellPath, ErrorKind, GpuContext, Pd, Proxy, QpConfig, QpPool,
    QpStatus, QueuePair, RemoteMr, Sharing,
};

fn no_dbr() -> Options {
    Options {
        doorbell: Doorbell::NoDbr,
        ..options()
    }
}

#[test]
fn qps_without_record_do_all_that_is_posted_in_every_mode() {
    for seed in seeds(2) {
        for scheduler in SCHEDULERS {
            for check in [Check::Fast, Check::Strict, Check::Gpu] {
                for (sharing, threads, qps) in [(Sharing::Exclusive, 2, 2), (Sharing::Gpu, 5, 1)] {
                    for cq in [CqForm::Ring, CqForm::Collapsed] {
                        for first_index in [0, (1 << 16) - 9, (1 << 32) - 9] {
                            let options = Options {
                                seed,
                                scheduler,
                                check,
                                sharing,
                                threads,
                                qps,
                                cq,
                                first_index,
                                iters: 20,
                                ..no_dbr()
                            };
                            let outcome = options.run().unwrap();
                            let done = outcome.expect_success().completed();
                            assert_eq!(done, u64::from(threads) * 20);
                            assert_eq!(outcome.stats.executed_total(), done);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_handle_names_another_register_and_no_record() {
    let read = |doorbell| {
        let options = Options {
            doorbell,
            ..no_dbr()
        };
        let bench = options.bench().unwrap();
        let mut bytes = [0; QpHandle::LEN];
        let at = bench.qps[0].handle();
        bench.world.gpu().copy_from_device(&mut bytes, at).unwrap();
        close(bench);
        QpHandle::from_bytes(&bytes).unwrap()
    };
    let (with, without) = (read(Doorbell::Db), read(Doorbell::NoDbr));
    assert_eq!(
        (with.flags & FLAG_NO_DBR, without.flags),
        (0, with.flags | FLAG_NO_DBR)
    );
    assert_eq!(
        (with.doorbell & 0xfff, without.doorbell & 0xfff),
        (0x800, 0x600)
    );
    assert!(with.dbr != 0 && without.dbr == 0 && without.proxy == 0);
}

/// Refused by name, nothing made; the way out that the message names works.
#[test]
fn a_nic_without_the_capability_refuses_and_a_proxy_does_instead() {
    let world = World::builder().build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    assert!(!nic.capabilities().no_dbr);
    let pd = Pd::alloc(&nic).unwrap();
    let before = world.live();
    let config = QpConfig::default().doorbell_path(DoorbellPath::GpuWithoutRecord);
    for error in [
        QueuePair::create(&pd, &gpu, &config).unwrap_err(),
        QpPool::create(&pd, &gpu, &config, 4).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("send_dbr_mode_no_dbr_ext"),
            "{error}"
        );
        assert!(error.cure().contains("DoorbellPath::Proxy"));
    }
    assert_eq!(world.live(), before);
    let config = config.doorbell_path(DoorbellPath::Proxy);
    let qp = QueuePair::create(&pd, &gpu, &config).unwrap();
    let proxy = Proxy::without_thread();
    proxy.add(&qp).unwrap();
    proxy.stop().unwrap();
    nic.close().unwrap();

    let able = World::builder().nic_config(|nic| nic.no_dbr = true).build();
    assert!(Context::open(able.nic()).unwrap().capabilities().no_dbr);
}

/// An error, work outstanding behind it, a drain by the NIC's counters, a reset, and a new life.
#[test]
fn a_qp_without_record_is_drained_reset_and_used_again() {
    for sharing in [Sharing::Exclusive, Sharing::Gpu] {
        let options = Options {
            sharing,
            threads: if sharing == Sharing::Gpu { 3 } else { 1 },
            iters: 20,
            ..no_dbr()
        };
        let mut bench = options.bench().unwrap();
        let wrong = RemoteMr {
            rkey: 0xffff_ff00,
            ..bench.target_mr.remote()
        };
        let mut run = options
            .bandwidth()
            .launch(
                &bench.module,
                &bench.stream,
                &bench.qps,
                &bench.source_mr,
                &wrong,
            )
            .unwrap();
        assert!(run.wait(PATIENCE).unwrap().check().is_err());
        drop(run);
        let status = bench.qps[0].progress().unwrap().status;
        assert!(matches!(status, QpStatus::Fault(_)), "{status:?}");
        let target = bench.target.to_vec().unwrap();
        assert!(target.iter().all(|byte| *byte == POISON));
        let mut qp = bench.qps.remove(0).unexport().unwrap();
        let mut peer = bench.peers.remove(0);
        qp.reset().unwrap();
        peer.reset().unwrap();
        qp.connect(&peer.local_info()).unwrap();
        peer.connect(&qp.local_info()).unwrap();
        bench.qps.push(qp.export().unwrap());
        bench.peers.push(peer);
        launch(&bench, &options)
            .unwrap()
            .wait(PATIENCE)
            .unwrap()
            .check()
            .unwrap();
        assert_eq!(bench.target.to_vec().unwrap(), bench.bytes);
        close(bench);
    }
}
