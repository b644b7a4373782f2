//! What goes wrong is said by name, and nothing is written that should not be.

mod common;

use common::{Bench, Options, PATIENCE, POISON, edit_kernel, embedded_ptx};
use warpverbs::driver::sim::{FindingPolicy, InjectedFault};
use warpverbs::{
    Access, Bandwidth, Context, CqForm, Direction, Error, ErrorKind, GpuContext, Module, Mr, Pd,
    QpConfig, QpStatus, QueuePair, RemoteMr, Sharing, ThreadError,
};
use warpverbs_wire::abi::{self, FaultCause};
use warpverbs_wire::cqe::Syndrome;

/// One operation on a remote region that must be refused, and that changes nothing.
fn remote_access_error(direction: Direction, remote: impl FnOnce(&Bench) -> RemoteMr) {
    let options = Options {
        direction,
        slots: 1,
        iters: 1,
        ..Options::default()
    };
    let bench = options.bench().unwrap();
    let local = match direction {
        Direction::Write => &bench.source_mr,
        Direction::Read => &bench.target_mr,
    };
    let mut run = options
        .bandwidth()
        .launch(
            &bench.module,
            &bench.stream,
            &bench.qps,
            local,
            &remote(&bench),
        )
        .unwrap();
    let report = run.wait(PATIENCE).unwrap();
    let fault = report.fault().expect("no fault");
    assert_eq!(fault.syndrome, Syndrome::RemoteAccess);
    assert_eq!(fault.cause, FaultCause::Completion);
    assert_eq!(fault.index, 0);
    let error = report.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Run);
    assert!(
        error.to_string().contains("remote access error (0x13)"),
        "{error}"
    );
    let status = bench.qps[0].progress().unwrap().status;
    assert_eq!(status, QpStatus::Fault(fault));
    for memory in [&bench.source, &bench.target] {
        let bytes = memory.to_vec().unwrap();
        assert!(bytes == bench.bytes || bytes.iter().all(|byte| *byte == POISON));
    }
}

/// A command that is never answered is the driver's timeout, and leaves nothing behind that the host knows of.
#[test]
fn a_command_without_answer_is_a_timeout() {
    use common::World;
    use warpverbs_wire::prm::create_qp;
    let world = World::builder().build();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    world.with_nic(|model| {
        model.inject(InjectedFault::NoAnswer {
            opcode: create_qp::In::OPCODE,
            executed: false,
            times: 1,
        });
    });
    let error = QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap();
    drop((pd, gpu, nic));
    assert!(world.live().is_empty(), "{:?}", world.live());
}

/// With the policy `Fail` the first finding ends what it concerns.
#[test]
fn a_finding_fails_its_qp_if_asked_to() {
    for (policy, failed) in [(FindingPolicy::Report, false), (FindingPolicy::Fail, true)] {
        let options = Options {
            iters: 20,
            on_finding: policy,
            ..Options::default()
        };
        let bench = options.bench().unwrap();
        let qpn = bench.qps[0].qpn();
        bench.world.with_nic(|model| {
            // The signature byte means nothing without signatures: a finding, and harmless.
            model.inject(InjectedFault::FlipWqeByte {
                qpn,
                index: 3,
                byte: 8,
                mask: 1,
            });
        });
        let mut run = options
            .bandwidth()
            .launch(
                &bench.module,
                &bench.stream,
                &bench.qps,
                &bench.source_mr,
                &bench.target_mr.remote(),
            )
            .unwrap();
        let report = run.wait(PATIENCE).unwrap();
        assert_eq!(report.check().is_err(), failed, "{policy:?}");
        let findings = bench.world.findings();
        assert!(
            findings.iter().any(|line| line.contains("wqe-reserved")),
            "{findings:?}"
        );
    }
}

/// Where a run in this direction finds its remote end.
fn remote_of(bench: &Bench, direction: Direction) -> RemoteMr {
    match direction {
        Direction::Write => bench.target_mr.remote(),
        Direction::Read => bench.source_mr.remote(),
    }
}

#[test]
fn a_key_without_the_right_is_refused() {
    for (direction, right) in [
        (Direction::Write, Access::REMOTE_READ),
        (Direction::Read, Access::REMOTE_WRITE),
    ] {
        let mut keep = None;
        remote_access_error(direction, |bench| {
            let memory = match direction {
                Direction::Write => &bench.target,
                Direction::Read => &bench.source,
            };
            let mr = Mr::register(&bench.pd, memory, Access::LOCAL_WRITE | right).unwrap();
            keep.insert(mr).remote()
        });
    }
}

#[test]
fn a_key_that_does_not_exist_is_refused() {
    for direction in [Direction::Write, Direction::Read] {
        remote_access_error(direction, |bench| RemoteMr {
            rkey: remote_of(bench, direction).rkey ^ 0xff00,
            ..remote_of(bench, direction)
        });
    }
}

#[test]
fn a_key_of_another_pd_is_refused() {
    let mut keep = None;
    remote_access_error(Direction::Write, |bench| {
        let pd = Pd::alloc(&bench.nic).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = Mr::register(&pd, &bench.target, access).unwrap();
        keep.insert(mr).remote()
    });
}

#[test]
fn a_closed_region_is_refused() {
    remote_access_error(Direction::Write, |bench| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = Mr::register(&bench.pd, &bench.target, access).unwrap();
        let remote = mr.remote();
        mr.close().unwrap();
        remote
    });
}

#[test]
fn one_byte_out_of_bounds_is_refused() {
    for direction in [Direction::Write, Direction::Read] {
        for step in [1, u64::MAX] {
            remote_access_error(direction, |bench| RemoteMr {
                addr: remote_of(bench, direction).addr.wrapping_add(step),
                ..remote_of(bench, direction)
            });
        }
    }
}

#[test]
fn regions_too_small_are_refused_before_the_launch() {
    let options = Options::default();
    let bench = options.bench().unwrap();
    let mut bandwidth = options.bandwidth();
    bandwidth.slots += 1;
    let error = bandwidth
        .launch(
            &bench.module,
            &bench.stream,
            &bench.qps,
            &bench.source_mr,
            &bench.target_mr.remote(),
        )
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    for wrong in [
        Bandwidth {
            size: 0,
            ..options.bandwidth()
        },
        Bandwidth {
            threads: 2,
            slots: 1,
            ..options.bandwidth()
        },
        Bandwidth {
            iters: 0,
            ..options.bandwidth()
        },
    ] {
        let error = wrong
            .launch(
                &bench.module,
                &bench.stream,
                &bench.qps,
                &bench.source_mr,
                &bench.target_mr.remote(),
            )
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn a_qp_is_not_given_twice() {
    let options = Options {
        threads: 2,
        ..Options::default()
    };
    let bench = options.bench().unwrap();
    let qps = [bench.qps[0].clone(), bench.qps[0].clone()];
    let error = options
        .bandwidth()
        .launch(
            &bench.module,
            &bench.stream,
            &qps,
            &bench.source_mr,
            &bench.target_mr.remote(),
        )
        .unwrap_err();
    assert!(error.to_string().contains("given twice"), "{error}");
}

#[test]
fn bad_options_of_a_qp_are_refused_by_name() {
    let world = Options::default().world();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    for (config, word) in [
        (QpConfig::default().depth(0), "depth 0"),
        (QpConfig::default().depth(1), "depth 1"),
        (QpConfig::default().depth(100), "depth 100"),
        (QpConfig::default().depth(1 << 16), "depth 65536"),
        (QpConfig::default().mtu(1500), "1500"),
        (QpConfig::default().port(2), "port"),
        (QpConfig::default().gid_index(200), "GID"),
        (QpConfig::default().psn(1 << 24), "PSN"),
        (QpConfig::default().retry_count(8), "retry"),
        (QpConfig::default().first_index(u64::MAX), "first index"),
    ] {
        let error = QueuePair::create(&pd, &gpu, &config).unwrap_err();
        assert!(
            error
                .to_string()
                .to_lowercase()
                .contains(&word.to_lowercase()),
            "{error}"
        );
        assert!(!error.to_string().contains('\n'));
        assert!(!error.cure().is_empty());
    }
    drop(pd);
    assert_eq!(world.live(), [""; 0]);
}

#[test]
fn connection_info_of_another_kind_is_refused() {
    let world = Options::default().world();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let mut qp = QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap();
    let info = qp.local_info();
    for at in [0, 5, 18] {
        let mut other = info.clone();
        other[at] ^= 0x40;
        let error = qp.connect(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    }
    // A refused connection changes nothing; a second one on top of the first is an error of its
    // own.
    qp.connect(&info).unwrap();
    assert_eq!(qp.connect(&info).unwrap_err().kind(), ErrorKind::State);
}

#[test]
fn an_unconnected_qp_is_not_exported() {
    let world = Options::default().world();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let qp = QueuePair::create(&pd, &gpu, &QpConfig::default()).unwrap();
    let refused = qp.export().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::State);
    refused.value.close().unwrap();
}

#[test]
fn a_handle_of_another_version_is_refused_by_the_kernel() {
    let options = Options::default();
    let bench = options.bench().unwrap();
    bench
        .world
        .gpu()
        .copy_to_device(bench.qps[0].handle(), &(abi::VERSION + 1).to_le_bytes())
        .unwrap();
    let outcome = bench.run(&options).unwrap();
    let report = outcome.report.unwrap();
    let seen = abi::VERSION + 1;
    assert_eq!(
        report.threads[0].error,
        Some(ThreadError::BadVersion { seen })
    );
    let error = report.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    // Both versions.
    let versions = format!("version {seen}, the kernel has version {}", abi::VERSION);
    assert!(error.to_string().contains(&versions), "{error}");
    assert!(outcome.untouched);
}

#[test]
fn a_module_of_another_version_is_refused() {
    let world = Options::default().world();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let declaration = format!("{}[4] = {{{}}}", abi::VERSION_SYMBOL, abi::VERSION);
    assert!(embedded_ptx().contains(&declaration));
    let newer = embedded_ptx().replace(
        &declaration,
        &format!("{}[4] = {{77}}", abi::VERSION_SYMBOL),
    );
    let error = Module::load(&gpu, "newer.ptx", &newer).unwrap_err();
    assert!(
        matches!(
            error,
            Error::ModuleAbi {
                found: Some(77),
                expected: abi::VERSION,
                ..
            }
        ),
        "{error}"
    );
    let versions = format!("device ABI 77, this crate has {}", abi::VERSION);
    assert!(error.to_string().contains(&versions), "{error}");
    let foreign = embedded_ptx().replace(abi::VERSION_SYMBOL, "someone_elses_abi");
    let error = Module::load(&gpu, "foreign.ptx", &foreign).unwrap_err();
    assert!(
        matches!(error, Error::ModuleAbi { found: None, .. }),
        "{error}"
    );
    assert_eq!(world.live(), [""; 0]);
}

#[test]
fn ptx_that_does_not_parse_is_refused_with_its_line() {
    let world = Options::default().world();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let line = embedded_ptx()
        .lines()
        .position(|line| line.contains("ret;"))
        .unwrap();
    let broken = embedded_ptx().replacen("ret;", "retire.early;", 1);
    let error = Module::load(&gpu, "broken.ptx", &broken).unwrap_err();
    assert!(
        error.to_string().contains(&(line + 1).to_string()),
        "{error}"
    );
    assert!(error.to_string().contains("retire.early"), "{error}");
    for text in [
        "",
        "hello",
        ".version 7.1",
        "\u{0}\u{1}",
        ".version 7.1\n.target sm_70\n.entry x(",
    ] {
        assert!(Module::load(&gpu, "text", text).is_err(), "{text:?}");
    }
    assert_eq!(world.live(), [""; 0]);
}

/// The modes in which every kernel fault below must be found.
fn modes() -> [Options; 3] {
    [
        Options::default(),
        Options {
            cq: CqForm::Collapsed,
            ..Options::default()
        },
        Options {
            sharing: Sharing::Gpu,
            threads: 8,
            ..Options::default()
        },
    ]
}

/// Runs `wv_write_bw` without the stores that `lacks` picks: the run must not pass, and must say
/// why in one of these words.
fn must_fail(lacks: impl Fn(&str) -> bool, words: &[&str]) {
    let ptx = edit_kernel("wv_write_bw", |line| lacks(line).then(String::new));
    for options in modes() {
        let options = Options {
            ptx: Some(ptx.clone()),
            ..options
        };
        let outcome = options.run().unwrap();
        let complaint = outcome.complaint();
        assert!(
            words.iter().any(|word| complaint.contains(word)),
            "none of {words:?} in: {complaint}"
        );
        assert_eq!(outcome.live, [""; 0]);
    }
}

/// A store of the segment at this offset of a WQE.
fn stores_segment(line: &str, offset: u32) -> bool {
    line.contains("st.global.v2.b64") && line.contains(&format!("+{offset}]"))
}

#[test]
fn a_control_segment_that_is_not_stored_is_found() {
    must_fail(|line| stores_segment(line, 0), &["the WQE carries index"]);
}

#[test]
fn a_remote_address_segment_that_is_not_stored_is_found() {
    must_fail(|line| stores_segment(line, 16), &["the WQE makes no sense"]);
}

#[test]
fn a_data_segment_that_is_not_stored_is_found() {
    must_fail(|line| stores_segment(line, 32), &["the WQE makes no sense"]);
}

#[test]
fn a_doorbell_record_that_is_not_stored_is_found() {
    must_fail(
        |line| line.contains("st.relaxed.sys.global.u32"),
        &["the send doorbell record stayed"],
    );
}

#[test]
fn a_doorbell_that_is_not_rung_is_found() {
    must_fail(
        |line| line.contains("st.mmio"),
        // Waiting for a completion, or for room.
        &["a wait reached its deadline", "was abandoned before"],
    );
}

#[test]
fn a_flipped_byte_of_a_wqe_is_found() {
    for (byte, words) in [
        (3, "opcode 0x18"),
        (5, "QP number 0x1101"),
        (7, "inline data"),
        (8, "byte 8 of the WQE"),
        (25, "remote access error"),
        (35, "local protection error"),
        (38, "local protection error"),
    ] {
        let options = Options::default();
        let bench = options.bench().unwrap();
        let qpn = bench.qps[0].qpn();
        bench.world.with_nic(|nic| {
            nic.inject(InjectedFault::FlipWqeByte {
                qpn,
                index: 3,
                byte,
                mask: 0x10,
            });
        });
        let outcome = bench.run(&options).unwrap();
        let complaint = outcome.complaint();
        assert!(complaint.contains(words), "byte {byte}: {complaint}");
        assert!(complaint.contains("index 3") || complaint.contains("index 0x3"));
    }
}

#[test]
fn a_corrupt_owner_bit_ends_the_run_and_is_named() {
    let options = Options {
        iters: 10,
        ..Options::default()
    };
    let bench = options.bench().unwrap();
    bench.world.with_nic(|nic| {
        let cqn = nic
            .live_objects()
            .iter()
            .find(|object| object.to_string().starts_with("CQ"))
            .unwrap()
            .id;
        nic.inject(InjectedFault::FlipOwner { cqn, index: 4 });
    });
    let report = bench.run(&options).unwrap().report.unwrap();
    assert_eq!(report.threads[0].completed, 4);
    assert_eq!(report.threads[0].error, Some(ThreadError::Timeout));
    let error = report.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let named = "CQE 4 names WQE 4, which is outstanding, but has owner bit 1 where its lap has 0";
    assert!(error.to_string().contains(named), "{error}");
}

#[test]
fn an_error_completion_stops_the_qp_and_keeps_its_cause() {
    for (syndrome, name) in [
        (0x15, "transport retries exceeded"),
        (0x33, "unknown syndrome (0x33)"),
    ] {
        let options = Options::default();
        let bench = options.bench().unwrap();
        let qpn = bench.qps[0].qpn();
        bench.world.with_nic(|nic| {
            nic.inject(InjectedFault::Fail {
                qpn,
                index: 7,
                syndrome,
                vendor: 0x81,
            });
        });
        let outcome = bench.run(&options).unwrap();
        let report = outcome.report.unwrap();
        let fault = report.fault().unwrap();
        assert_eq!(fault.syndrome.code(), syndrome);
        assert_eq!(fault.vendor_syndrome, 0x81);
        assert_eq!(fault.index, 7);
        let text = report.check().unwrap_err().to_string();
        assert!(text.contains(name), "{text}");
        assert!(!outcome.verified || options.slots <= 7);
        assert_eq!(outcome.live, [""; 0]);
    }
}
