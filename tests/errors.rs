//! What goes wrong is said by name, and nothing is written that should not be.

mod common;

use common::{Options, PATIENCE, POISON, edit_kernel, embedded_ptx};
use warpverbs::driver::sim::InjectedFault;
use warpverbs::{
    Access, Bandwidth, Context, CqForm, Direction, Error, ErrorKind, GpuContext, Module, Pd,
    QpConfig, QpStatus, QueuePair, RemoteMr, Sharing, ThreadError,
};
use warpverbs_wire::abi::{self, FaultCause};
use warpverbs_wire::cqe::Syndrome;

/// A run that a remote region of another shape than the default refuses.
fn remote_access_error(options: &Options, change: impl FnOnce(&mut RemoteMr)) {
    let bench = options.bench().unwrap();
    let (local, mut remote) = match options.direction {
        Direction::Write => (&bench.source_mr, bench.target_mr.remote()),
        Direction::Read => (&bench.target_mr, bench.source_mr.remote()),
    };
    change(&mut remote);
    let mut run = options
        .bandwidth()
        .launch(&bench.module, &bench.stream, &bench.qps, local, &remote)
        .unwrap();
    let report = run.wait(PATIENCE).unwrap();
    let fault = report.fault().expect("no fault");
    assert_eq!(fault.syndrome, Syndrome::RemoteAccess);
    assert_eq!(fault.cause, FaultCause::Completion);
    assert_eq!(u64::from(fault.index), options.first_index);
    let error = report.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Run);
    assert!(
        error.to_string().contains("remote access error (0x13)"),
        "{error}"
    );
    assert!(
        matches!(bench.qps[0].progress().unwrap().status, QpStatus::Fault(same) if same == fault)
    );
    assert!(
        bench
            .target
            .to_vec()
            .unwrap()
            .iter()
            .all(|byte| *byte == POISON)
    );
}

#[test]
fn a_key_without_the_right_is_refused() {
    let options = Options {
        access: Access::LOCAL_WRITE | Access::REMOTE_READ,
        iters: 1,
        ..Options::default()
    };
    remote_access_error(&options, |_| {});
    // The source of a read does not allow writes, and so on the other way round.
    let options = Options {
        direction: Direction::Read,
        iters: 1,
        ..Options::default()
    };
    let bench = options.bench().unwrap();
    let mr = warpverbs::Mr::register(
        &bench.pd,
        &bench.source,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    )
    .unwrap();
    remote_access_error(&options, |remote| remote.rkey ^= 0xff00);
    drop(mr);
}

#[test]
fn one_byte_out_of_bounds_is_refused() {
    let options = Options {
        slots: 1,
        iters: 1,
        ..Options::default()
    };
    remote_access_error(&options, |remote| remote.addr += 1);
    remote_access_error(&options, |remote| remote.addr -= 1);
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
    qp.reset().unwrap();
    qp.connect(&info).unwrap();
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
    assert_eq!(report.check().unwrap_err().kind(), ErrorKind::Incompatible);
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
    assert!(error.to_string().contains("77"), "{error}");
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

/// Runs a module that lacks something: the run must not pass, and must say so.
fn must_fail(ptx: &str, words: &[&str]) {
    for options in modes() {
        let options = Options {
            ptx: Some(ptx.to_owned()),
            ..options
        };
        let outcome = options.run().unwrap();
        let complaint = outcome.complaint();
        assert!(!complaint.is_empty(), "verified: {}", outcome.verified);
        assert!(
            words.is_empty() || words.iter().any(|word| complaint.contains(word)),
            "none of {words:?} in: {complaint}"
        );
    }
}

#[test]
fn a_data_segment_that_is_not_stored_is_found() {
    let ptx = edit_kernel("wv_write_bw", |line| {
        (line.contains("st.global.v2.b64") && line.contains("+32]")).then(String::new)
    });
    must_fail(&ptx, &[]);
}

#[test]
fn a_control_segment_that_is_not_stored_is_found() {
    let ptx = edit_kernel("wv_write_bw", |line| {
        (line.contains("st.global.v2.b64") && line.contains("+0]")).then(String::new)
    });
    must_fail(&ptx, &["WQE"]);
}

#[test]
fn a_doorbell_record_that_is_not_stored_is_found() {
    let ptx = edit_kernel("wv_write_bw", |line| {
        line.contains("st.relaxed.sys.global.u32").then(String::new)
    });
    must_fail(&ptx, &["doorbell record", "DBR"]);
}

#[test]
fn a_flipped_byte_of_a_wqe_is_found() {
    // Opcode, QPN, ds, remote key, byte count, local key.
    for byte in [3u16, 5, 7, 25, 35, 38] {
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
        assert!(!outcome.complaint().is_empty(), "byte {byte}");
    }
}

#[test]
fn a_corrupt_owner_bit_ends_the_run() {
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
    assert_eq!(report.check().unwrap_err().kind(), ErrorKind::Timeout);
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
