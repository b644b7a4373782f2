//! Faults that a test plants, or a plan brings.

use warpverbs_sim_bus::Step;
use warpverbs_sim_nic::{CablePlan, Check, FaultPlan, InjectedFault, NicConfig};
use warpverbs_wire::cqe::Completion;
use warpverbs_wire::prm::qpc::QpState;
use warpverbs_wire::prm::{alloc_pd, create_qp, query_qp};

use crate::rig::{ALL_RIGHTS, EVERY_RIGHT, Rig};

#[test]
fn a_command_is_refused_as_often_as_planted() {
    let rig = Rig::new();
    let cq = rig.cq(4);
    let (request, _) = rig.qp_request(&cq, 4);
    let plant = |times| {
        rig.nic().inject(InjectedFault::Command {
            opcode: create_qp::In::OPCODE,
            status: 0x06,
            syndrome: 0x12_3456,
            times,
        });
    };
    plant(2);
    let before = rig.nic().live_objects();
    for _ in 0..2 {
        let error = rig.command(request).unwrap_err();
        assert_eq!((error.status(), error.syndrome()), (0x06, 0x12_3456));
        assert_eq!(rig.nic().live_objects(), before);
    }
    let qpn = rig.command(request).unwrap().qpn;
    rig.command(query_qp::In {
        qpn,
        ..Default::default()
    })
    .unwrap();
    plant(0);
    for _ in 0..5 {
        rig.command(request).unwrap_err();
    }
    rig.nic().heal();
    rig.command(request).unwrap();
}

/// Status, timeout, and a refusal that stays until it is cleared: at every command.
#[test]
fn any_command_is_refused_or_not_answered() {
    for (name, opcode) in warpverbs_wire::fields::commands() {
        let rig = Rig::new();
        let mut input = [0; 600];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        let send = || {
            let mut output = [0xaa; 5000];
            let result = rig.nic().command(&input, &mut output);
            (result.map_err(|error| error.check), output[0])
        };
        for (status, times) in [(0x01, 1), (0x06, 1), (0x0f, 2), (0x55, 0)] {
            rig.nic().inject(InjectedFault::Command {
                opcode: *opcode,
                status,
                syndrome: 0x77,
                times,
            });
            for _ in 0..times.max(1) {
                assert_eq!(send(), (Err(Check::Planted), status), "{name}");
            }
        }
        rig.nic().heal();
        assert_ne!(send().0, Err(Check::Planted), "{name}");
        rig.nic().inject(InjectedFault::NoAnswer {
            opcode: *opcode,
            executed: false,
            times: 1,
        });
        assert_eq!(send(), (Err(Check::NoAnswer), 0), "{name}");
        assert_ne!(send().0, Err(Check::NoAnswer), "{name}");
    }
}

/// A command that never answers: the driver gives up, and may not know whether it was executed.
#[test]
fn a_command_without_answer_says_nothing_and_may_have_been_executed() {
    for executed in [false, true] {
        let rig = Rig::new();
        let cq = rig.cq(4);
        let (request, _) = rig.qp_request(&cq, 4);
        let before = rig.nic().live_objects().len();
        rig.nic().inject(InjectedFault::NoAnswer {
            opcode: create_qp::In::OPCODE,
            executed,
            times: 1,
        });
        let input = request.emit();
        let mut output = [0xaa; create_qp::Out::LEN];
        let error = rig.nic().command(&input, &mut output).unwrap_err();
        assert_eq!(error.check, Check::NoAnswer);
        assert_eq!(output, [0; create_qp::Out::LEN]);
        let made = rig.nic().live_objects().len() - before;
        assert_eq!(made, usize::from(executed));
        rig.command(request).unwrap();
    }
    let rig = Rig::with(NicConfig {
        faults: FaultPlan {
            no_answer_ppm: 1_000_000,
            ..FaultPlan::default()
        },
        ..NicConfig::default()
    });
    let error = rig.command(query_qp::In::default()).unwrap_err();
    assert_eq!(error.check, Check::QpNotFound, "refusals are answered");
    let error = rig.command(alloc_pd::In {}).unwrap_err();
    assert_eq!(error.check, Check::NoAnswer);
}

/// Every syndrome that the field can hold, at any WQE.
#[test]
fn any_syndrome_is_planted_at_any_wqe() {
    for syndrome in 0..=255u8 {
        let at = u64::from(syndrome % 5);
        let rig = Rig::with(NicConfig {
            first_index: 0xfffe,
            ..NicConfig::default()
        });
        let mut cq = rig.cq(4);
        let (mut a, _b) = rig.pair(&cq, 4);
        rig.nic().inject(InjectedFault::Fail {
            qpn: a.qpn,
            index: 0xfffe + at,
            syndrome,
            vendor: !syndrome,
        });
        for _ in 0..6 {
            a.nop(&rig);
        }
        a.ring(&rig);
        rig.run();
        for index in 0..at {
            assert_eq!(
                cq.success(&rig).wqe_counter,
                0xfffe_u16.wrapping_add(index as u16)
            );
        }
        let failed = 0xfffe_u16.wrapping_add(at as u16);
        assert_eq!(cq.error(&rig), (syndrome, !syndrome, failed));
        for index in 1..6 - at as u16 {
            let flushed = failed.wrapping_add(index);
            assert_eq!(cq.error(&rig), (0x05, 0xf9, flushed));
        }
        cq.assert_empty(&rig);
    }
}

/// A link that is down loses what is sent; one that comes up in time is noticed by nobody but the retransmission timer.
#[test]
fn a_link_that_goes_down_and_comes_up_in_time_loses_nothing() {
    for back in [true, false] {
        let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
        let (mut cq, far_cq) = (near.cq(4), far.cq(4));
        let (mut a, b) = (near.qp(&cq, 4), far.qp(&far_cq, 4));
        near.connect(a.qpn, &far, b.qpn, |_| ());
        far.connect(b.qpn, &near, a.qpn, |_| ());
        let (from, to) = (near.mr(64, EVERY_RIGHT), far.mr(64, EVERY_RIGHT));
        near.nic().set_link_up(false);
        a.write(&near, from.piece(0, 8), to.piece(0, 8));
        a.ring(&near);
        for _ in 0..200 {
            near.bus.lock().step_device(0);
            near.bus.lock().step_device(1);
        }
        cq.assert_empty(&near);
        near.nic().set_link_up(back);
        near.run();
        if back {
            cq.success(&near);
            assert!(near.nic().stats().timeouts > 0);
        } else {
            assert_eq!(cq.error(&near), (0x15, 0x81, 0));
        }
    }
}

#[test]
fn a_stuck_qp_does_nothing_until_it_is_cleared_and_its_peer_runs_out_of_retries() {
    for far_is_stuck in [false, true] {
        let rig = Rig::new();
        let mut cq = rig.cq(4);
        let (mut a, b) = rig.pair(&cq, 4);
        let mr = rig.mr(64, ALL_RIGHTS);
        let qpn = if far_is_stuck { b.qpn } else { a.qpn };
        rig.nic().inject(InjectedFault::StuckQp { qpn });
        a.write(&rig, mr.piece(0, 8), mr.piece(8, 8));
        a.ring(&rig);
        rig.run();
        if far_is_stuck {
            assert_eq!(cq.error(&rig), (0x15, 0x81, 0));
            continue;
        }
        cq.assert_empty(&rig);
        rig.nic().heal();
        rig.run();
        cq.success(&rig);
    }
}

#[test]
fn a_stuck_cq_shows_nothing() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let cqn = cq.cqn;
    let stuck = |from| InjectedFault::StuckCq { cqn, from };
    rig.nic().inject(stuck(1));
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    cq.assert_empty(&rig);
    rig.nic().heal();
    rig.nic().inject(stuck(0));
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    cq.assert_empty(&rig);
    assert_eq!(
        rig.query_qp(a.qpn).hw_sq_wqebb_counter,
        3,
        "the NIC goes on"
    );
}

#[test]
fn a_silent_nic_executes_commands_and_nothing_else_and_a_removed_one_not_even_those() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    a.nop(&rig);
    rig.nic().inject(InjectedFault::Silent);
    a.ring(&rig);
    assert_eq!(rig.bus.lock().step_device(0), Step::Idle);
    cq.assert_empty(&rig);
    assert_eq!(rig.state(a.qpn), QpState::Rts);
    rig.nic().heal();
    a.doorbell(&rig);
    rig.run();
    cq.success(&rig);
    rig.nic().inject(InjectedFault::Removed);
    rig.nic().heal();
    a.nop(&rig);
    a.ring(&rig);
    rig.run();
    cq.assert_empty(&rig);
    let error = rig
        .command(query_qp::In {
            qpn: a.qpn,
            ..Default::default()
        })
        .unwrap_err();
    assert_eq!(error.status(), 0x01);
}

#[test]
fn planned_faults_are_the_seeds() {
    let run = |seed| {
        let rig = Rig::with(NicConfig {
            faults: FaultPlan {
                seed,
                wqe_ppm: 200_000,
                ..FaultPlan::default()
            },
            ..NicConfig::default()
        });
        (0..20)
            .map(|_| {
                let mut cq = rig.cq(4);
                let (mut a, _b) = rig.pair(&cq, 4);
                a.nop(&rig);
                a.ring(&rig);
                rig.run();
                match cq.poll(&rig) {
                    Some(Completion::Failed(cqe)) => cqe.syndrome.code(),
                    Some(Completion::Done(_)) => 0,
                    other => panic!("{other:?}"),
                }
            })
            .collect::<Vec<_>>()
    };
    let first = run(1);
    assert!(
        first.contains(&0) && first.iter().any(|syndrome| *syndrome != 0),
        "{first:?}"
    );
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
    let rig = Rig::with(NicConfig {
        faults: FaultPlan {
            seed: 1,
            command_ppm: 1_000_000,
            ..FaultPlan::default()
        },
        ..NicConfig::default()
    });
    let error = rig.command(query_qp::In::default()).unwrap_err();
    assert_eq!((error.status(), error.syndrome()), (0x01, 0xff_0001));
}

#[test]
fn a_nic_that_is_removed_leaves_its_peer_without_answer() {
    let (near, far, _) = Rig::joined(NicConfig::default(), CablePlan::default(), 1);
    let mut cq = near.cq(4);
    let far_cq = far.cq(4);
    let (mut a, b) = (near.qp(&cq, 4), far.qp(&far_cq, 4));
    near.connect(a.qpn, &far, b.qpn, |_| ());
    far.connect(b.qpn, &near, a.qpn, |_| ());
    let (from, to) = (near.mr(64, EVERY_RIGHT), far.mr(64, EVERY_RIGHT));
    a.write(&near, from.piece(0, 8), to.piece(0, 8));
    a.ring(&near);
    near.run();
    cq.success(&near);
    far.nic().inject(InjectedFault::Removed);
    a.write(&near, from.piece(0, 8), to.piece(0, 8));
    a.ring(&near);
    near.run();
    assert_eq!(cq.error(&near), (0x15, 0x81, 1));
}
