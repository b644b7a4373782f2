//! What a QP is told, as the NIC holds it, and how a QP is used again.

mod common;

use common::{Bench, Builder, Options, PATIENCE, World, connected_pair};
use warpverbs::driver::GidKind;
use warpverbs::driver::sim::CablePlan;
use warpverbs::wire::prm::ads::Ads;
use warpverbs::wire::prm::qpc::{Mtu, QpState, Qpc};
use warpverbs::wire::prm::{Command, qp_2err, query_qp};
use warpverbs::{
    Access, Bandwidth, Context, Direction, ErrorKind, GpuContext, Module, Mr, Pd, QpConfig,
    QpStatus, QueuePair, RemoteMr, Result, RunReport, Stream,
};

/// The QP's context, as the NIC holds it.
fn query(world: &World, qpn: u32) -> Qpc {
    let input = query_qp::In {
        qpn,
        ..Default::default()
    }
    .encode()
    .unwrap();
    let mut output = query_qp::In::reply();
    world.command(&input, &mut output);
    query_qp::In::decode(&output).unwrap().qpc
}

fn run(bench: &Bench, bandwidth: &Bandwidth, remote: &RemoteMr) -> Result<RunReport> {
    bandwidth
        .launch(
            &bench.module,
            &bench.stream,
            &bench.qps,
            &bench.source_mr,
            remote,
        )?
        .wait(PATIENCE)
}

#[test]
fn both_ends_agree_and_every_option_arrives() {
    let world = World::builder().build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let config = QpConfig::default()
        .depth(256)
        .mtu(1024)
        .timeout(17)
        .retry_count(5)
        .rnr_retry(4)
        .min_rnr_timer(9)
        .traffic_class(0x68)
        .hop_limit(3)
        .udp_source_port(0xd123)
        .psn(0x12_3456);
    let mut first = QueuePair::create(&pd, &gpu, &config).unwrap();
    let mut second = QueuePair::create(&pd, &gpu, &QpConfig::default().psn(7)).unwrap();
    assert_eq!(query(&world, first.qpn()).state, QpState::Rst);
    first.connect(&second.local_info()).unwrap();
    second.connect(&first.local_info()).unwrap();

    let told = query(&world, first.qpn());
    assert_eq!(told.state, QpState::Rts);
    assert_eq!(told.log_sq_size, 8);
    assert_eq!(told.remote_qpn, second.qpn());
    assert_eq!((told.next_send_psn, told.next_rcv_psn), (0x12_3456, 7));
    assert_eq!(
        (told.retry_count, told.rnr_retry, told.min_rnr_nak),
        (5, 4, 9)
    );
    assert!(told.rre && told.rwe && !told.rae);
    let path = told.primary_address_path;
    let expected = Ads {
        ack_timeout: 17,
        hop_limit: 3,
        tclass: 0x68,
        dscp: 0x68 >> 2,
        udp_sport: 0xd123,
        vhca_port_num: 1,
        ..path
    };
    assert_eq!(path, expected);
    // The first RoCE v2 entry of the GID table.
    let gid = world
        .nic()
        .query_gid(1, path.src_addr_index.into())
        .unwrap()
        .unwrap();
    assert_eq!(gid.kind, GidKind::RoceV2);
    assert_eq!((path.rgid_rip, path.rmac), (gid.gid, gid.mac));

    // The smaller MTU of both ends, at both ends.
    assert_eq!(told.mtu, Mtu::Bytes1024);
    assert_eq!(query(&world, second.qpn()).mtu, Mtu::Bytes1024);
}

#[test]
fn a_peer_may_do_what_the_qp_allows_and_no_more() {
    let world = World::builder().build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    for (access, expected) in [
        (Access::LOCAL_WRITE, (false, false)),
        (Access::REMOTE_READ, (true, false)),
        (Access::REMOTE_WRITE, (false, true)),
    ] {
        let config = QpConfig::default().access(access);
        let (first, _second) = connected_pair(&pd, &gpu, &config).unwrap();
        let told = query(&world, first.qpn());
        assert_eq!((told.rre, told.rwe), expected, "{access:?}");
    }
}

#[test]
fn no_more_reads_are_sent_at_a_time_than_the_peer_answers() {
    let world = World::builder().build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let mut qp = QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap();
    let mut peer = qp.local_info();
    // Byte 19: log2 of the reads that it answers at a time.
    assert!(peer[19] > 1, "{}", peer[19]);
    peer[19] = 1;
    qp.connect(&peer).unwrap();
    assert_eq!(query(&world, qp.qpn()).log_sra_max, 1);
}

#[test]
fn infiniband_ports_work_too() {
    let world = World::builder().infiniband().build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let (first, _second) = connected_pair(&pd, &gpu, &QpConfig::default()).unwrap();
    let lid = world.nic().query_port(1).unwrap().lid;
    let path = query(&world, first.qpn()).primary_address_path;
    assert_eq!(path.rlid, lid);
    assert!(!path.grh);
    // A RoCE port is on no InfiniBand network.
    let other = World::builder().build();
    let other_nic = Context::open(other.nic()).unwrap();
    let other_gpu = GpuContext::open(other.gpu()).unwrap();
    let other_pd = Pd::alloc(&other_nic).unwrap();
    let mut roce = QueuePair::create(&other_pd, &other_gpu, &QpConfig::default()).unwrap();
    let error = roce.connect(&first.local_info()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
}

#[test]
fn a_port_that_demands_a_grh_gets_one() {
    let world = World::builder()
        .infiniband()
        .nic_config(|nic| nic.grh_required = true)
        .build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let config = QpConfig::default().hop_limit(7).traffic_class(0x5a);
    let (first, _second) = connected_pair(&pd, &gpu, &config).unwrap();
    let gid = world.nic().query_gid(1, 0).unwrap().unwrap().gid;
    let path = query(&world, first.qpn()).primary_address_path;
    assert_eq!(
        (path.grh, path.rgid_rip, path.src_addr_index),
        (true, gid, 0)
    );
    assert_eq!((path.hop_limit, path.tclass), (7, 0x5a));
}

/// Kernels move data both ways between two NICs whose ports are InfiniBand, with and without GRH, or whose addresses are RoCE v1.
#[test]
fn infiniband_and_roce_v1_carry_kernels_data_between_two_nics() {
    type Change = fn(Builder) -> Builder;
    let demanding: Change = |world| world.infiniband().nic_config(|nic| nic.grh_required = true);
    let cases: [(Change, Option<u8>); 4] = [
        (Builder::infiniband, None),
        (demanding, None),
        (|world| world, Some(0)),
        (|world| world, Some(2)),
    ];
    for (change, gid_index) in cases {
        for on_host in [false, true] {
            let plan = CablePlan {
                loss_ppm: 20_000,
                ..CablePlan::default()
            };
            let world = change(World::builder().seed(3).nics(2).cable(plan));
            let world = if on_host {
                world.build_on_host().unwrap()
            } else {
                world.build()
            };
            let gpu = GpuContext::open(world.gpu()).unwrap();
            let [near, far] = [world.nic(), world.nic_at(1).unwrap()]
                .map(|nic| Pd::alloc(&Context::open(nic).unwrap()).unwrap());
            let config = QpConfig::default();
            let config = gid_index.map_or(config.clone(), |index| config.gid_index(index));
            let mut a = QueuePair::create(&near, &gpu, &config).unwrap();
            let mut b = QueuePair::create(&far, &gpu, &config).unwrap();
            a.connect(&b.local_info()).unwrap();
            b.connect(&a.local_info()).unwrap();
            let qp = a.export().unwrap();
            let bytes = common::pattern(5, 64 * 5000);
            let filled = |salt| gpu.alloc_copy(salt, "memory").unwrap();
            let zeroes = vec![0; bytes.len()];
            let (module, stream) = (
                Module::embedded(&gpu).unwrap(),
                Stream::create(&gpu).unwrap(),
            );
            for direction in [Direction::Write, Direction::Read] {
                let written = direction == Direction::Write;
                let (here, there) = if written {
                    (&bytes, &zeroes)
                } else {
                    (&zeroes, &bytes)
                };
                let (here, there) = (filled(here), filled(there));
                let local = Mr::register(&near, &here, Access::LOCAL_WRITE).unwrap();
                let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
                let remote = Mr::register(&far, &there, rights).unwrap();
                let run = Bandwidth {
                    direction,
                    size: 5000,
                    slots: 64,
                    iters: 64,
                    ..Bandwidth::default()
                };
                let qps = std::slice::from_ref(&qp);
                run.launch(&module, &stream, qps, &local, &remote.remote())
                    .unwrap()
                    .wait(PATIENCE)
                    .unwrap()
                    .check()
                    .unwrap();
                let target = if written { &there } else { &here };
                assert!(target.to_vec().unwrap() == bytes, "{direction:?}");
            }
            assert!(world.cable().unwrap().stats().frames > 200);
            assert_eq!(world.findings(), [""; 0]);
        }
    }
}

#[test]
fn limits_of_the_nic_are_kept() {
    let world = World::builder()
        .nic_config(|nic| {
            nic.log_max_sq_depth = 6;
            nic.log_max_message = 12;
        })
        .build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    assert_eq!(nic.capabilities().max_sq_depth, 64);
    let error = QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap_err();
    assert!(error.to_string().contains("from 2 to 64"), "{error}");
    let qp = QueuePair::create(&pd, &gpu, &QpConfig::default().depth(64)).unwrap();
    assert_eq!(qp.log_max_message(), 12);
}

#[test]
fn a_qp_at_fault_stays_at_fault() {
    let options = Options::default();
    let mut bench = options.bench().unwrap();
    let remote = bench.target_mr.remote();
    let wrong = RemoteMr {
        rkey: !remote.rkey,
        ..remote
    };
    let first = run(&bench, &options.bandwidth(), &wrong).unwrap();
    let qp = bench.qps.remove(0).unexport().unwrap();
    bench.qps.push(qp.export().unwrap());
    let status = bench.qps[0].progress().unwrap().status;
    assert_eq!(status, QpStatus::Fault(first.fault().unwrap()));
    let second = run(&bench, &options.bandwidth(), &remote).unwrap();
    assert_eq!(second.fault(), first.fault());
    assert_eq!(second.threads[0].posted, 0);
}

#[test]
fn a_stopped_qp_is_exported_again_and_goes_on() {
    let options = Options::default();
    let mut bench = options.bench().unwrap();
    let remote = bench.target_mr.remote();
    bench.qps[0].stop().unwrap();
    run(&bench, &options.bandwidth(), &remote)
        .unwrap()
        .check()
        .unwrap_err();
    assert_eq!(bench.qps[0].progress().unwrap().status, QpStatus::Stopped);
    let qp = bench.qps.remove(0).unexport().unwrap();
    bench.qps.push(qp.export().unwrap());
    run(&bench, &options.bandwidth(), &remote)
        .unwrap()
        .check()
        .unwrap();
    assert_eq!(bench.world.findings(), [""; 0]);
    assert_eq!(bench.target.to_vec().unwrap(), bench.bytes);
}

#[test]
fn an_idle_qp_has_nothing_to_flush_wherever_its_indices_start() {
    let options = Options {
        first_index: (1 << 16) - 20,
        ..Options::default()
    };
    let bench = options.bench().unwrap();
    let qpn = bench.qps[0].qpn();
    let input = qp_2err::In { qpn }.encode().unwrap();
    let mut output = qp_2err::In::reply();
    bench.world.command(&input, &mut output);
    bench.world.settle();
    assert_eq!(query(&bench.world, qpn).state, QpState::Err);
    // On entering ERR the NIC takes its producer from the doorbell record.
    let stats = bench.world.nic_stats();
    assert_eq!((stats.flush_cqes, stats.error_cqes), (0, 0));
    assert_eq!(bench.world.findings(), [""; 0]);
}
