//! The published fault tables (docs/hardware-facts.md), trial by trial, with as many trials as were published.

use warpverbs_sim_bus::Rng;
use warpverbs_sim_nic::NicConfig;
use warpverbs_wire::cqe::Completion;
use warpverbs_wire::prm::destroy_qp;
use warpverbs_wire::prm::qpc::QpState;

use crate::rig::{ALL_RIGHTS, Rig, TestCq, TestQp};

/// What takes the QP to ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Local,
    RemoteAccess,
    RemoteInvalid,
    PeerGone,
    Command,
}

/// Each cause, with the syndrome and vendor syndrome of the first CQE.
const CAUSES: [(Cause, (u8, u8)); 5] = [
    (Cause::Local, (0x04, 0x52)),
    (Cause::RemoteAccess, (0x13, 0x88)),
    (Cause::RemoteInvalid, (0x12, 0x8a)),
    (Cause::PeerGone, (0x15, 0x81)),
    (Cause::Command, (0x05, 0xf5)),
];

/// WQEs, of which one is bad, and what the record says of them.
#[derive(Clone, Copy, Debug)]
struct Trial {
    posted: u64,
    bad: u64,
    record: u64,
}

impl Trial {
    /// A trial whose record is from `records`, given the number of WQEs and the bad one.
    fn draw(rng: &mut Rng, record: impl Fn(&mut Rng, u64, u64) -> u64) -> Self {
        let posted = 1 + u64::from(rng.below(12));
        let bad = u64::from(rng.below(posted as u32));
        let record = record(rng, posted, bad);
        Self {
            posted,
            bad,
            record,
        }
    }
}

/// Brings a QP to ERR: before the bad WQE everything succeeds.
fn fail(rig: &Rig, cq: &TestCq, cause: Cause, trial: Trial) -> TestQp {
    let (mut a, b) = match cause {
        Cause::RemoteInvalid => {
            let (a, b) = (rig.qp(cq, 4), rig.qp(cq, 4));
            rig.to_rts(a.qpn, b.qpn);
            let mut request = rig.rst2init(b.qpn);
            request.qpc.rwe = false;
            rig.command(request).unwrap();
            rig.command(rig.init2rtr(b.qpn, a.qpn)).unwrap();
            rig.command(rig.rtr2rts(b.qpn)).unwrap();
            (a, b)
        }
        _ => rig.pair(cq, 4),
    };
    let mr = rig.mr(64, ALL_RIGHTS);
    let mut key = mr.piece(0, 8);
    key.key ^= 0x100_0000;
    for index in 0..trial.posted {
        match cause {
            _ if index != trial.bad => a.nop(rig),
            Cause::Local => a.write(rig, key, mr.piece(8, 8)),
            Cause::RemoteAccess => a.write(rig, mr.piece(8, 8), key),
            Cause::RemoteInvalid | Cause::PeerGone => a.write(rig, mr.piece(8, 8), mr.piece(0, 8)),
            Cause::Command => a.nop(rig),
        };
    }
    if cause == Cause::PeerGone {
        rig.command(destroy_qp::In { qpn: b.qpn }).unwrap();
    }
    let first = rig.nic().config().first_index;
    if cause == Cause::Command {
        // The WQEs before the bad one are rung, and complete, before the command.
        a.dbr_at(rig, first + trial.record.min(trial.bad));
        a.doorbell_at(rig, first + trial.bad);
        rig.run();
        a.dbr_at(rig, first + trial.record);
        rig.to_error(a.qpn);
    } else {
        a.dbr_at(rig, first + trial.record);
        a.doorbell(rig);
    }
    rig.run();
    assert_eq!(rig.state(a.qpn), QpState::Err, "{cause:?} {trial:?}");
    a
}

/// Successes that the CQ has, and then its errors, with the index of each. Of a collapsed CQ one CQE is left.
fn seen(rig: &Rig, cq: &mut TestCq) -> (u64, Vec<(u8, u8, u64)>) {
    let first = rig.nic().config().first_index as u16;
    let most = if cq.collapsed { 1 } else { usize::MAX };
    let mut successes = 0;
    let mut errors = vec![];
    for completion in std::iter::from_fn(|| cq.poll(rig)).take(most) {
        match completion {
            Completion::Done(_) => {
                assert!(errors.is_empty(), "a success behind an error");
                successes += 1;
            }
            Completion::Failed(cqe) => errors.push((
                cqe.syndrome.code(),
                cqe.vendor_syndrome,
                cqe.wqe_counter.wrapping_sub(first).into(),
            )),
            Completion::Pending => panic!("a CQE that is none"),
        }
    }
    (successes, errors)
}

/// What completes with a record at `record`: the cause at the consumer, then flushes.
fn expected(cause: (u8, u8), trial: Trial, record: u64) -> Vec<(u8, u8, u64)> {
    (trial.bad..record)
        .map(|index| {
            let (syndrome, vendor) = if index == trial.bad {
                cause
            } else {
                (0x05, 0xf9)
            };
            (syndrome, vendor, index)
        })
        .collect()
}

fn rig(first_index: u64) -> Rig {
    Rig::with(NicConfig {
        first_index,
        ..NicConfig::default()
    })
}

/// Where indices start: as hardware's, and across their wrap.
fn start(trial: u64) -> u64 {
    if trial.is_multiple_of(2) { 0 } else { 0xfffc }
}

#[test]
fn in_195_of_195_trials_exactly_consumer_to_record_completes() {
    let mut rng = Rng::new(195);
    let mut exact = 0;
    for number in 0..195 {
        let (cause, first) = CAUSES[number as usize % CAUSES.len()];
        let trial = Trial::draw(&mut rng, |rng, posted, _| {
            u64::from(rng.below(posted as u32 + 1))
        });
        let rig = rig(start(number));
        let mut cq = rig.cq(5);
        fail(&rig, &cq, cause, trial);
        let errors = expected(first, trial, trial.record);
        assert_eq!(
            seen(&rig, &mut cq),
            (trial.bad, errors),
            "{cause:?} {trial:?}"
        );
        exact += 1;
    }
    assert_eq!(exact, 195);
}

#[test]
fn with_the_record_behind_0_of_35_and_with_the_record_written_21_of_21_causes_complete() {
    let mut rng = Rng::new(35);
    let mut complete = |trials: u64, written: bool| {
        let mut causes = 0;
        for number in 0..trials {
            let (cause, first) = CAUSES[number as usize % CAUSES.len()];
            let trial = Trial::draw(&mut rng, |rng, posted, bad| {
                if written {
                    posted
                } else {
                    u64::from(rng.below(bad as u32 + 1))
                }
            });
            let rig = rig(start(number));
            let mut cq = rig.cq(5);
            fail(&rig, &cq, cause, trial);
            let (successes, errors) = seen(&rig, &mut cq);
            assert_eq!(successes, trial.bad);
            causes += u64::from(errors.first() == Some(&(first.0, first.1, trial.bad)));
            assert_eq!(errors.is_empty(), !written, "{cause:?} {trial:?}");
        }
        causes
    };
    assert_eq!(complete(35, false), 0);
    assert_eq!(complete(21, true), 21);
}

#[test]
fn a_record_that_is_written_late_releases_the_completions_in_30_of_30_trials() {
    let mut rng = Rng::new(30);
    let mut released = 0;
    for number in 0..30 {
        let (cause, first) = CAUSES[number as usize % CAUSES.len()];
        let trial = Trial::draw(&mut rng, |_, _, _| 0);
        let rig = rig(start(number));
        let mut cq = rig.cq(5);
        let a = fail(&rig, &cq, cause, trial);
        assert_eq!(seen(&rig, &mut cq), (trial.bad, vec![]));
        // No doorbell follows.
        a.dbr(&rig);
        rig.run();
        let errors = expected(first, trial, trial.posted);
        assert_eq!(seen(&rig, &mut cq), (0, errors), "{cause:?} {trial:?}");
        released += 1;
    }
    assert_eq!(released, 30);
}

#[test]
fn a_collapsed_cq_keeps_0_of_90_causes_and_a_ring_90_of_90() {
    for (collapsed, kept) in [(true, 0), (false, 90)] {
        let mut rng = Rng::new(90);
        let mut causes = 0;
        for number in 0..90 {
            let (cause, first) = CAUSES[number % CAUSES.len()];
            // Something is behind the cause, and all is recorded.
            let mut trial = Trial::draw(&mut rng, |_, _, _| 0);
            trial.posted += 1;
            trial.record = trial.posted;
            let rig = rig(0);
            let mut cq = rig.cq_oi(5, collapsed);
            fail(&rig, &cq, cause, trial);
            let (_, errors) = seen(&rig, &mut cq);
            causes += u32::from(errors.contains(&(first.0, first.1, trial.bad)));
            if collapsed {
                assert_eq!(errors, [(0x05, 0xf9, trial.posted - 1)]);
            }
        }
        assert_eq!(causes, kept, "collapsed: {collapsed}");
    }
}
