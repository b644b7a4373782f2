//! Objects belong to a uid: every kind is named, looked at, changed and destroyed by its own and by the kernel's, and by no other.

use warpverbs_sim_nic::{Check, DmaRange, NicConfig, UarKind, access};
use warpverbs_wire::prm::mkc::{Mkc, MkeyAccessMode};
use warpverbs_wire::prm::qpc::{OptParam, Qpc, RqType};
use warpverbs_wire::prm::rmpc::RmpState;
use warpverbs_wire::prm::{
    Command, alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, create_cq, create_mkey,
    create_qp, create_rmp, dealloc_pd, dealloc_q_counter, dealloc_transport_domain, dealloc_uar,
    destroy_cq, destroy_mkey, destroy_qp, destroy_rmp, init2init_qp, modify_rmp, qp_2err, qp_2rst,
    query_cq, query_q_counter, query_qp, query_rmp,
};

use crate::rig::Rig;

/// The kernel's.
const KERNEL: u16 = 0;

/// Sends a command of a uid.
fn send<C: Command>(rig: &Rig, uid: u16, request: C) -> Result<C::Out, Check> {
    let mut input = request.encode().unwrap();
    input.as_mut()[2..4].copy_from_slice(&uid.to_be_bytes());
    let mut output = C::reply();
    let answer = rig.nic().command(input.as_ref(), output.as_mut());
    answer.map_err(|error| error.check)?;
    Ok(C::decode(output.as_ref()).unwrap())
}

/// One of each kind that others are made of, all of one uid.
#[derive(Clone, Copy, Debug)]
struct Parts {
    pd: u32,
    uar: u32,
    umem: u32,
    cqn: u32,
    rmpn: u32,
    set: u8,
}

fn umem(rig: &Rig, uid: u16) -> u32 {
    let range = DmaRange {
        bus_addr: rig.alloc(1 << 16),
        len: 1 << 16,
        iova: 0,
    };
    let mut nic = rig.nic();
    nic.reg_umem_of(uid, range, 1 << 12, access::LOCAL_WRITE)
        .unwrap()
}

impl Parts {
    fn of(rig: &Rig, uid: u16) -> Self {
        let mut parts = Self {
            pd: send(rig, uid, alloc_pd::In {}).unwrap().pd,
            uar: send(rig, uid, alloc_uar::In {}).unwrap().uar,
            umem: umem(rig, uid),
            cqn: 0,
            rmpn: 0,
            set: send(rig, uid, alloc_q_counter::In {})
                .unwrap()
                .counter_set_id,
        };
        parts.cqn = send(rig, uid, parts.cq(rig)).unwrap().cqn;
        parts.rmpn = send(rig, uid, parts.rmp(rig)).unwrap().rmpn;
        parts
    }

    fn cq(&self, rig: &Rig) -> create_cq::In {
        let mut request = rig.cq_request(3).0;
        let context = &mut request.cq_context;
        (context.uar_page, context.dbr_umem_id) = (self.uar, self.umem);
        request.cq_umem_id = self.umem;
        request
    }

    fn rmp(&self, rig: &Rig) -> create_rmp::In {
        let mut request = rig.rmp_request(3).0;
        let wq = &mut request.context.wq;
        (wq.pd, wq.wq_umem_id, wq.dbr_umem_id) = (self.pd, self.umem, self.umem);
        request
    }

    fn mkey(&self) -> create_mkey::In {
        create_mkey::In {
            mkey_context: Mkc {
                access_mode: MkeyAccessMode::Mtt,
                lr: true,
                qpn: 0xff_ffff,
                pd: self.pd,
                start_addr: 0x7000_0000,
                len: 4096,
                ..Mkc::default()
            },
            mkey_umem_valid: true,
            mkey_umem_id: self.umem,
            ..create_mkey::In::default()
        }
    }

    fn qp(&self, rig: &Rig) -> create_qp::In {
        let (mut request, _) = rig.qp_request(&rig.cq(2), 3);
        let qpc = &mut request.qpc;
        (qpc.pd, qpc.uar_page, qpc.dbr_umem_id) = (self.pd, self.uar, self.umem);
        (qpc.cqn_snd, qpc.cqn_rcv) = (self.cqn, self.cqn);
        (qpc.rq_type, qpc.srqn_rmpn_xrqn) = (RqType::Shared, self.rmpn);
        request.wq_umem_id = self.umem;
        request
    }
}

/// A change to a request: one part that is another's.
type Change<T> = fn(&mut T, &Parts);

#[test]
fn what_a_command_names_is_of_its_uid_and_the_kernel_may_name_all() {
    let rig = Rig::with(NicConfig::default());
    let [own, other, kernel] = [7, 8, KERNEL].map(|uid| Parts::of(&rig, uid));
    let cases: &[(Check, Change<create_cq::In>)] = &[
        (Check::CqUar, |r, other| r.cq_context.uar_page = other.uar),
        (Check::CqUmem, |r, other| r.cq_umem_id = other.umem),
        (Check::CqDbrUmem, |r, other| {
            r.cq_context.dbr_umem_id = other.umem
        }),
    ];
    each(&rig, cases, || own.cq(&rig), [&own, &other, &kernel]);
    let cases: &[(Check, Change<create_rmp::In>)] = &[
        (Check::RmpPd, |r, other| r.context.wq.pd = other.pd),
        (Check::RmpUmem, |r, other| {
            r.context.wq.wq_umem_id = other.umem
        }),
        (Check::RmpUmem, |r, other| {
            r.context.wq.dbr_umem_id = other.umem
        }),
    ];
    each(&rig, cases, || own.rmp(&rig), [&own, &other, &kernel]);
    let cases: &[(Check, Change<create_mkey::In>)] = &[
        (Check::MkeyPd, |r, other| r.mkey_context.pd = other.pd),
        (Check::MkeyUmem, |r, other| r.mkey_umem_id = other.umem),
    ];
    each(&rig, cases, || own.mkey(), [&own, &other, &kernel]);
    let cases: &[(Check, Change<create_qp::In>)] = &[
        (Check::QpPd, |r, other| r.qpc.pd = other.pd),
        (Check::QpUar, |r, other| r.qpc.uar_page = other.uar),
        (Check::QpUmem, |r, other| r.wq_umem_id = other.umem),
        (Check::QpDbrUmem, |r, other| r.qpc.dbr_umem_id = other.umem),
        (Check::QpSendCq, |r, other| r.qpc.cqn_snd = other.cqn),
        (Check::QpReceiveCq, |r, other| r.qpc.cqn_rcv = other.cqn),
        (Check::QpSharedQueue, |r, other| {
            r.qpc.srqn_rmpn_xrqn = other.rmpn
        }),
    ];
    each(&rig, cases, || own.qp(&rig), [&own, &other, &kernel]);
    // A counter set is named by transitions.
    let qpn = send(&rig, 7, own.qp(&rig)).unwrap().qpn;
    send(&rig, 7, rig.rst2init(qpn)).unwrap();
    let attach = |set| init2init_qp::In {
        qpn,
        opt_param_mask: OptParam::COUNTER_SET_ID,
        qpc: Qpc {
            counter_set_id: set,
            ..Default::default()
        },
        ..Default::default()
    };
    for (uid, set, expected) in [
        (7, other.set, Err(Check::CounterSet)),
        // One a port is the driver's, for all who do not ask for another.
        (7, kernel.set, Ok(())),
        (7, own.set, Ok(())),
        (KERNEL, other.set, Ok(())),
    ] {
        assert_eq!(send(&rig, uid, attach(set)).map(drop), expected, "{uid}");
    }
}

/// Creations of uid 7: with its own parts, with one part of another's, and by the kernel with that part too.
#[track_caller]
fn each<C: Command + Copy>(
    rig: &Rig,
    cases: &[(Check, Change<C>)],
    request: impl Fn() -> C,
    [own, other, kernel]: [&Parts; 3],
) {
    send(rig, 7, request()).map(drop).unwrap();
    for (check, change) in cases {
        for (parts, expected) in [(own, Ok(())), (other, Err(*check)), (kernel, Err(*check))] {
            let mut request = request();
            change(&mut request, parts);
            assert_eq!(send(rig, 7, request).map(drop), expected, "{parts:?}");
            // The kernel's commands may name all.
            assert_eq!(send(rig, KERNEL, request).map(drop), Ok(()), "{parts:?}");
        }
    }
}

#[test]
fn an_object_is_looked_at_changed_and_destroyed_by_its_uid_and_the_kernel_alone() {
    let rig = Rig::with(NicConfig::default());
    let parts = Parts::of(&rig, 7);
    // Refused to another, with the check of the kind; then done by its own, or by the kernel.
    macro_rules! only {
        ($check:ident, $by:expr, $request:expr) => {{
            let request = $request;
            assert_eq!(send(&rig, 8, request).map(drop), Err(Check::$check));
            assert_eq!(send(&rig, $by, request).map(drop), Ok(()), "{}", $by);
        }};
    }
    for by in [7, KERNEL] {
        let qpn = send(&rig, 7, parts.qp(&rig)).unwrap().qpn;
        only!(QpUid, by, rig.rst2init(qpn));
        only!(
            QpUid,
            by,
            init2init_qp::In {
                qpn,
                ..Default::default()
            }
        );
        only!(QpUid, by, rig.init2rtr(qpn, qpn));
        only!(QpUid, by, rig.rtr2rts(qpn));
        only!(
            QpUid,
            by,
            query_qp::In {
                qpn,
                ..Default::default()
            }
        );
        only!(QpUid, by, qp_2err::In { qpn });
        only!(QpUid, by, qp_2rst::In { qpn });
        only!(QpUid, by, destroy_qp::In { qpn });
        let cqn = send(&rig, 7, parts.cq(&rig)).unwrap().cqn;
        only!(CqUid, by, query_cq::In { cqn });
        only!(CqUid, by, destroy_cq::In { cqn });
        let rmpn = send(&rig, 7, parts.rmp(&rig)).unwrap().rmpn;
        let mut modify = modify_rmp::In {
            rmp_state: RmpState::Ready,
            rmpn,
            ..Default::default()
        };
        modify.context.state = RmpState::Ready;
        only!(RmpUid, by, modify);
        only!(RmpUid, by, query_rmp::In { rmpn });
        only!(RmpUid, by, destroy_rmp::In { rmpn });
        let mkey_index = send(&rig, 7, parts.mkey()).unwrap().mkey_index;
        only!(MkeyUid, by, destroy_mkey::In { mkey_index });
        let counter_set_id = send(&rig, 7, alloc_q_counter::In {})
            .unwrap()
            .counter_set_id;
        only!(
            CounterUid,
            by,
            query_q_counter::In {
                counter_set_id,
                ..Default::default()
            }
        );
        only!(CounterUid, by, dealloc_q_counter::In { counter_set_id });
        let domain = send(&rig, 7, alloc_transport_domain::In {}).unwrap();
        let transport_domain = domain.transport_domain;
        only!(TdUid, by, dealloc_transport_domain::In { transport_domain });
        let pd = send(&rig, 7, alloc_pd::In {}).unwrap().pd;
        only!(PdUid, by, dealloc_pd::In { pd });
        let uar = send(&rig, 7, alloc_uar::In {}).unwrap().uar;
        only!(UarUid, by, dealloc_uar::In { uar });
        let uar = rig.nic().alloc_uar_of(7, UarKind::NonCached).unwrap();
        only!(UarUid, by, dealloc_uar::In { uar });
    }
}
