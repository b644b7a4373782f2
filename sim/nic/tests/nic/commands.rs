//! Mailboxes: every check refuses what it should, with its own status and syndrome, and changes nothing.

use std::collections::BTreeSet;

use warpverbs_sim_nic::{Check, DmaRange, InjectedFault, NicConfig, access};
use warpverbs_wire::prm::cqc::{CqStatus, CqeSize};
use warpverbs_wire::prm::hca_cap::{AtomicCaps, GeneralCaps, GeneralCaps2, PortType, RoceCaps};
use warpverbs_wire::prm::header::Reply;
use warpverbs_wire::prm::mkc::{Mkc, MkeyAccessMode};
use warpverbs_wire::prm::qpc::{
    Mtu, OptParam, PathMigration, QpState, RqType, SendDbrMode, ServiceType, TimestampFormat,
};
use warpverbs_wire::prm::query_hca_cap::{self, Query};
use warpverbs_wire::prm::rmpc::{RmpState, WqType};
use warpverbs_wire::prm::{
    Command, Status, create_cq, create_mkey, create_qp, create_rmp, destroy_cq, destroy_mkey,
    destroy_qp, destroy_rmp, init2rtr_qp, modify_rmp, query_cq, query_qp, query_rmp,
    query_special_contexts, rst2init_qp, rtr2rts_qp,
};
use warpverbs_wire::wqe::{Opcode, SIGNALLED};

use crate::rig::{ALL_RIGHTS, PAGE_4K, Rig, pattern};

/// A mailbox to send: input bytes and output length.
type Mailbox = (Vec<u8>, usize);

fn mailbox<C: Command>(command: C) -> Mailbox {
    let output = C::reply();
    (
        command.encode().unwrap().as_ref().to_vec(),
        output.as_ref().len(),
    )
}

fn with_uid((mut input, output): Mailbox) -> Mailbox {
    input[2..4].copy_from_slice(&7u16.to_be_bytes());
    (input, output)
}

fn with_op_mod((mut input, output): Mailbox, op_mod: u16) -> Mailbox {
    input[6..8].copy_from_slice(&op_mod.to_be_bytes());
    (input, output)
}

const NO_OBJECT: u32 = 0xabcdef;

fn cq(rig: &Rig, change: impl FnOnce(&mut create_cq::In)) -> Mailbox {
    let mut request = rig.cq_request(3).0;
    change(&mut request);
    mailbox(request)
}

fn qp(rig: &Rig, change: impl FnOnce(&mut create_qp::In)) -> Mailbox {
    let cq = rig.cq(3);
    let mut request = rig.qp_request(&cq, 3).0;
    change(&mut request);
    mailbox(request)
}

fn mkey_request(rig: &Rig) -> create_mkey::In {
    let (umem, _) = rig.umem(8192);
    create_mkey::In {
        mkey_context: Mkc {
            access_mode: MkeyAccessMode::Mtt,
            lr: true,
            lw: true,
            rw: true,
            qpn: 0xff_ffff,
            mkey_7_0: 0x5a,
            pd: rig.pd,
            start_addr: 0x7000_0000,
            len: 4096,
            ..Mkc::default()
        },
        mkey_umem_valid: true,
        mkey_umem_id: umem,
        mkey_umem_offset: 100,
        ..create_mkey::In::default()
    }
}

fn mkey(rig: &Rig, change: impl FnOnce(&mut create_mkey::In)) -> Mailbox {
    let mut request = mkey_request(rig);
    change(&mut request);
    mailbox(request)
}

fn rmp(rig: &Rig, change: impl FnOnce(&mut create_rmp::In)) -> Mailbox {
    let mut request = rig.rmp_request(3).0;
    change(&mut request);
    mailbox(request)
}

fn fresh_qp(rig: &Rig) -> u32 {
    rig.qp(&rig.cq(3), 3).qpn
}

fn rst2init(rig: &Rig, change: impl FnOnce(&mut rst2init_qp::In)) -> Mailbox {
    let mut request = rig.rst2init(fresh_qp(rig));
    change(&mut request);
    mailbox(request)
}

fn init2rtr(rig: &Rig, change: impl FnOnce(&mut init2rtr_qp::In)) -> Mailbox {
    let qpn = fresh_qp(rig);
    rig.command(rig.rst2init(qpn)).unwrap();
    let mut request = rig.init2rtr(qpn, qpn);
    change(&mut request);
    mailbox(request)
}

fn rtr2rts(rig: &Rig, change: impl FnOnce(&mut rtr2rts_qp::In)) -> Mailbox {
    let qpn = fresh_qp(rig);
    rig.command(rig.rst2init(qpn)).unwrap();
    rig.command(rig.init2rtr(qpn, qpn)).unwrap();
    let mut request = rig.rtr2rts(qpn);
    change(&mut request);
    mailbox(request)
}

fn plain_umem(rig: &Rig, page_sizes: u64, rights: u32) -> u32 {
    let bus_addr = rig.alloc(1 << 16);
    let range = DmaRange {
        bus_addr,
        len: 1 << 16,
        iova: 0,
    };
    rig.nic().reg_umem(range, page_sizes, rights).unwrap()
}

/// Executes a creation as often as the NIC has room for.
fn exhaust<C: Command>(rig: &Rig, request: C) -> Mailbox {
    let room = 1 << rig.nic().config().log_max_objects;
    for _ in 0..room {
        rig.command(request).unwrap();
    }
    mailbox(request)
}

type Case = (Check, fn(&Rig) -> Mailbox);

/// One mailbox for each check.
const CASES: &[Case] = &[
    (Check::Planted, |rig| {
        rig.nic().inject(InjectedFault::Command {
            opcode: create_qp::In::OPCODE,
            status: Check::Planted.status().code(),
            syndrome: Check::Planted.syndrome(),
            times: 1,
        });
        qp(rig, |_| {})
    }),
    (Check::Removed, |rig| {
        let mailbox = qp(rig, |_| {});
        rig.nic().inject(InjectedFault::Removed);
        mailbox
    }),
    (Check::InputLength, |_| (vec![0x01], 16)),
    (Check::InputLength, |rig| {
        let (mut input, output) = cq(rig, |_| {});
        input.pop();
        (input, output)
    }),
    (Check::OutputLength, |rig| {
        let (input, output) = qp(rig, |_| {});
        (input, output - 1)
    }),
    (Check::OutputLength, |_| {
        (
            mailbox(Query::<GeneralCaps>::new()).0,
            query_hca_cap::OUT_LEN - 1,
        )
    }),
    (Check::Opcode, |_| (vec![0xff; 64], 64)),
    (Check::OpMod, |rig| with_op_mod(cq(rig, |_| {}), 1)),
    (Check::ReservedBits, |rig| {
        let (mut input, output) = qp(rig, |_| {});
        input[0xc] = 1;
        (input, output)
    }),
    (Check::CapSet, |_| {
        with_op_mod(mailbox(Query::<GeneralCaps>::new()), 0x7f << 1)
    }),
    (Check::CapOtherFunction, |_| {
        let (mut input, output) = mailbox(Query::<GeneralCaps>::new());
        input[11] = 1;
        (input, output)
    }),
    (Check::CqCompression, |rig| {
        cq(rig, |r| r.cq_context.cqe_comp_en = true)
    }),
    (Check::CqCqeSize, |rig| {
        cq(rig, |r| r.cq_context.cqe_sz = CqeSize::Bytes128)
    }),
    (Check::CqSize, |rig| {
        cq(rig, |r| r.cq_context.log_cq_size = 23)
    }),
    (Check::CqUar, |rig| {
        cq(rig, |r| r.cq_context.uar_page = NO_OBJECT)
    }),
    (Check::CqEqn, |rig| cq(rig, |r| r.cq_context.c_eqn = 0)),
    (Check::CqPageOffset, |rig| {
        cq(rig, |r| r.cq_context.page_offset = 1)
    }),
    (Check::CqNoUmem, |rig| cq(rig, |r| r.cq_umem_valid = false)),
    (Check::CqUmem, |rig| cq(rig, |r| r.cq_umem_id = NO_OBJECT)),
    (Check::CqUmemOffset, |rig| {
        cq(rig, |r| r.cq_umem_offset = 32)
    }),
    (Check::CqUmemOffset, |rig| {
        let umem = plain_umem(rig, 0, access::LOCAL_WRITE);
        cq(rig, |r| (r.cq_umem_id, r.cq_umem_offset) = (umem, 4096))
    }),
    (Check::CqUmemBounds, |rig| {
        cq(rig, |r| r.cq_umem_offset = 2 * 64)
    }),
    (Check::CqUmemBounds, |rig| {
        cq(rig, |r| r.cq_umem_offset = u64::MAX - 63)
    }),
    (Check::CqUmemAccess, |rig| {
        let umem = plain_umem(rig, PAGE_4K, 0);
        cq(rig, |r| r.cq_umem_id = umem)
    }),
    (Check::CqNoDbrUmem, |rig| {
        cq(rig, |r| r.cq_context.dbr_umem_valid = false)
    }),
    (Check::CqDbrUmem, |rig| {
        cq(rig, |r| r.cq_context.dbr_umem_id = NO_OBJECT)
    }),
    (Check::CqDbrAlign, |rig| {
        cq(rig, |r| r.cq_context.dbr_addr += 4)
    }),
    (Check::CqDbrBounds, |rig| {
        cq(rig, |r| r.cq_context.dbr_addr += 64)
    }),
    (Check::CqDbrBounds, |rig| {
        cq(rig, |r| r.cq_context.dbr_addr = u64::MAX - 7)
    }),
    (Check::CqExhausted, |rig| {
        let request = rig.cq_request(3).0;
        exhaust(rig, request)
    }),
    (Check::QpExhausted, |rig| {
        let cq = rig.cq(3);
        let request = rig.qp_request(&cq, 3).0;
        exhaust(rig, request)
    }),
    (Check::MkeyExhausted, |rig| {
        let request = mkey_request(rig);
        exhaust(rig, request)
    }),
    (Check::RmpExhausted, |rig| {
        let request = rig.rmp_request(3).0;
        exhaust(rig, request)
    }),
    (Check::RmpState, |rig| {
        rmp(rig, |r| r.context.state = RmpState::Error)
    }),
    (Check::RmpState, |rig| {
        let rmpn = rig.command(rig.rmp_request(3).0).unwrap().rmpn;
        mailbox(modify_rmp::In {
            rmpn,
            rmp_state: RmpState::Error,
            ..modify_rmp::In::default()
        })
    }),
    (Check::RmpType, |rig| {
        rmp(rig, |r| r.context.wq.wq_type = WqType::CyclicStriding)
    }),
    (Check::RmpSize, |rig| {
        rmp(rig, |r| r.context.wq.log_wq_sz = 15)
    }),
    (Check::RmpSize, |rig| {
        rmp(rig, |r| r.context.wq.log_wq_stride = 3)
    }),
    (Check::RmpPd, |rig| {
        rmp(rig, |r| r.context.wq.pd = NO_OBJECT)
    }),
    (Check::RmpNoUmem, |rig| {
        rmp(rig, |r| r.context.wq.wq_umem_valid = false)
    }),
    (Check::RmpNoUmem, |rig| {
        rmp(rig, |r| r.context.wq.dbr_umem_valid = false)
    }),
    (Check::RmpUmem, |rig| {
        rmp(rig, |r| r.context.wq.wq_umem_id = NO_OBJECT)
    }),
    (Check::RmpUmem, |rig| {
        rmp(rig, |r| r.context.wq.dbr_umem_id = NO_OBJECT)
    }),
    (Check::RmpUmemOffset, |rig| {
        rmp(rig, |r| r.context.wq.wq_umem_offset = 32)
    }),
    (Check::RmpUmemBounds, |rig| {
        rmp(rig, |r| r.context.wq.wq_umem_offset = 128)
    }),
    (Check::RmpDbr, |rig| {
        rmp(rig, |r| r.context.wq.dbr_addr += 4)
    }),
    (Check::RmpDbr, |rig| {
        rmp(rig, |r| r.context.wq.dbr_addr += 64)
    }),
    (Check::RmpNotFound, |_| {
        mailbox(query_rmp::In { rmpn: NO_OBJECT })
    }),
    (Check::RmpUid, |rig| {
        let rmpn = rig.command(rig.rmp_request(3).0).unwrap().rmpn;
        with_uid(mailbox(destroy_rmp::In { rmpn }))
    }),
    (Check::RmpBusy, |rig| {
        let rmpn = rig.command(rig.rmp_request(3).0).unwrap().rmpn;
        let cq = rig.cq(3);
        let mut request = rig.qp_request(&cq, 3).0;
        (request.qpc.rq_type, request.qpc.srqn_rmpn_xrqn) = (RqType::Shared, rmpn);
        rig.command(request).unwrap();
        mailbox(destroy_rmp::In { rmpn })
    }),
    (Check::QpSharedQueue, |rig| {
        qp(rig, |r| r.qpc.rq_type = RqType::Shared)
    }),
    (Check::CqNotFound, |_| {
        mailbox(query_cq::In { cqn: NO_OBJECT })
    }),
    (Check::CqNotFound, |rig| {
        mailbox(destroy_cq::In { cqn: fresh_qp(rig) })
    }),
    (Check::CqUid, |rig| {
        with_uid(mailbox(destroy_cq::In { cqn: rig.cq(2).cqn }))
    }),
    (Check::CqBusy, |rig| {
        let cq = rig.cq(2);
        rig.qp(&cq, 2);
        mailbox(destroy_cq::In { cqn: cq.cqn })
    }),
    (Check::QpService, |rig| {
        qp(rig, |r| r.qpc.st = ServiceType::Ud)
    }),
    (Check::QpPd, |rig| qp(rig, |r| r.qpc.pd = NO_OBJECT)),
    (Check::QpSendCq, |rig| {
        qp(rig, |r| r.qpc.cqn_snd = NO_OBJECT)
    }),
    (Check::QpSendCq, |rig| with_uid(qp(rig, |_| {}))),
    (Check::QpReceiveCq, |rig| {
        qp(rig, |r| r.qpc.cqn_rcv = NO_OBJECT)
    }),
    (Check::QpNoSq, |rig| qp(rig, |r| r.qpc.no_sq = true)),
    (Check::QpSqSize, |rig| qp(rig, |r| r.qpc.log_sq_size = 15)),
    (Check::QpRqType, |rig| {
        qp(rig, |r| r.qpc.rq_type = RqType::Unknown(2))
    }),
    (Check::QpUar, |rig| qp(rig, |r| r.qpc.uar_page = 0)),
    (Check::QpPageOffset, |rig| {
        qp(rig, |r| r.qpc.page_offset = 1)
    }),
    (Check::QpNoUmem, |rig| qp(rig, |r| r.wq_umem_valid = false)),
    (Check::QpUmem, |rig| qp(rig, |r| r.wq_umem_id = NO_OBJECT)),
    (Check::QpUmemOffset, |rig| {
        qp(rig, |r| r.wq_umem_offset = 16)
    }),
    (Check::QpUmemBounds, |rig| {
        qp(rig, |r| r.wq_umem_offset = 2 * 64)
    }),
    (Check::QpNoDbrUmem, |rig| {
        qp(rig, |r| r.qpc.dbr_umem_valid = false)
    }),
    (Check::QpDbrUmem, |rig| {
        qp(rig, |r| r.qpc.dbr_umem_id = NO_OBJECT)
    }),
    (Check::QpDbrAlign, |rig| qp(rig, |r| r.qpc.dbr_addr += 4)),
    (Check::QpDbrBounds, |rig| qp(rig, |r| r.qpc.dbr_addr += 64)),
    (Check::QpDbrMode, |rig| {
        qp(rig, |r| r.qpc.send_dbr_mode = SendDbrMode::NoDbr)
    }),
    (Check::QpScatterToCqe, |rig| qp(rig, |r| r.qpc.cs_req = 1)),
    (Check::QpScatterToCqe, |rig| qp(rig, |r| r.qpc.cs_res = 1)),
    (Check::QpSignature, |rig| {
        qp(rig, |r| r.qpc.wq_signature = true)
    }),
    (Check::QpNumber, |rig| qp(rig, |r| r.input_qpn = 5)),
    (Check::QpTimestamp, |rig| {
        qp(rig, |r| r.qpc.ts_format = TimestampFormat::RealTime)
    }),
    (Check::QpReservedKey, |rig| qp(rig, |r| r.qpc.rlky = true)),
    (Check::QpNotFound, |_| {
        mailbox(query_qp::In {
            qpn: NO_OBJECT,
            ..Default::default()
        })
    }),
    (Check::QpNotFound, |rig| {
        let qpn = fresh_qp(rig);
        rig.command(destroy_qp::In { qpn }).unwrap();
        mailbox(destroy_qp::In { qpn })
    }),
    (Check::QpUid, |rig| {
        with_uid(mailbox(query_qp::In {
            qpn: fresh_qp(rig),
            ..Default::default()
        }))
    }),
    (Check::QpUid, |rig| with_uid(rst2init(rig, |_| {}))),
    (Check::InitState, |rig| {
        let (input, output) = rst2init(rig, |_| {});
        rig.nic().command(&input, &mut vec![0; output]).unwrap();
        (input, output)
    }),
    (Check::RtrState, |rig| {
        mailbox(rig.init2rtr(fresh_qp(rig), 1))
    }),
    (Check::RtsState, |rig| mailbox(rig.rtr2rts(fresh_qp(rig)))),
    (Check::OptParam, |rig| {
        rst2init(rig, |r| r.opt_param_mask = OptParam::RWE)
    }),
    (Check::OptParam, |rig| {
        init2rtr(rig, |r| r.opt_param_mask = OptParam::RETRY_COUNT)
    }),
    (Check::OptParam, |rig| {
        rtr2rts(rig, |r| r.opt_param_mask = OptParam::PKEY_INDEX)
    }),
    (Check::PathMigration, |rig| {
        rst2init(rig, |r| r.qpc.pm_state = PathMigration::Armed)
    }),
    (Check::PathMigration, |rig| {
        rtr2rts(rig, |r| {
            (r.opt_param_mask, r.qpc.pm_state) = (OptParam::PM_STATE, PathMigration::Rearm)
        })
    }),
    (Check::Port, |rig| {
        rst2init(rig, |r| r.qpc.primary_address_path.vhca_port_num = 2)
    }),
    (Check::Port, |rig| {
        rst2init(rig, |r| r.qpc.primary_address_path.vhca_port_num = 0)
    }),
    (Check::PkeyIndex, |rig| {
        rst2init(rig, |r| r.qpc.primary_address_path.pkey_index = 128)
    }),
    (Check::PkeyIndex, |rig| {
        init2rtr(rig, |r| r.qpc.primary_address_path.pkey_index = 128)
    }),
    (Check::AtomicMode, |rig| rst2init(rig, |r| r.qpc.rae = true)),
    (Check::AtomicMode, |rig| {
        init2rtr(rig, |r| {
            (r.opt_param_mask, r.qpc.rae) = (OptParam::RAE, true)
        })
    }),
    (Check::Mtu, |rig| {
        init2rtr(rig, |r| r.qpc.mtu = Mtu::Unknown(0))
    }),
    (Check::Mtu, |rig| {
        init2rtr(rig, |r| r.qpc.mtu = Mtu::Unknown(7))
    }),
    (Check::MaxMessage, |rig| {
        init2rtr(rig, |r| r.qpc.log_msg_max = 31)
    }),
    (Check::GidIndex, |rig| {
        init2rtr(rig, |r| r.qpc.primary_address_path.src_addr_index = 4)
    }),
    (Check::GidIndex, |rig| {
        init2rtr(rig, |r| r.qpc.primary_address_path.src_addr_index = 200)
    }),
    (Check::RemoteAddress, |rig| {
        init2rtr(rig, |r| r.qpc.primary_address_path.rgid_rip = [0; 16])
    }),
    (Check::RemoteAddress, |rig| {
        init2rtr(rig, |r| r.qpc.primary_address_path.rmac = [0; 6])
    }),
    (Check::ResponderDepth, |rig| {
        init2rtr(rig, |r| r.qpc.log_rra_max = 5)
    }),
    (Check::RequesterDepth, |rig| {
        rtr2rts(rig, |r| r.qpc.log_sra_max = 5)
    }),
    (Check::MkeyMode, |rig| {
        mkey(rig, |r| r.mkey_context.access_mode = MkeyAccessMode::Pa)
    }),
    (Check::MkeyNoUmem, |rig| {
        mkey(rig, |r| r.mkey_umem_valid = false)
    }),
    (Check::MkeyUmem, |rig| {
        mkey(rig, |r| r.mkey_umem_id = NO_OBJECT)
    }),
    (Check::MkeyPd, |rig| {
        mkey(rig, |r| r.mkey_context.pd = NO_OBJECT)
    }),
    (Check::MkeyLength, |rig| {
        mkey(rig, |r| r.mkey_context.len = 0)
    }),
    (Check::MkeyLength, |rig| {
        mkey(rig, |r| r.mkey_context.length64 = true)
    }),
    (Check::MkeyBounds, |rig| {
        mkey(rig, |r| r.mkey_umem_offset = 4097)
    }),
    (Check::MkeyAddress, |rig| {
        mkey(rig, |r| r.mkey_context.start_addr = u64::MAX - 100)
    }),
    (Check::MkeyQpn, |rig| mkey(rig, |r| r.mkey_context.qpn = 3)),
    (Check::MkeyRights, |rig| {
        mkey(rig, |r| r.mkey_context.lw = false)
    }),
    (Check::MkeyUmr, |rig| {
        mkey(rig, |r| r.mkey_context.umr_en = true)
    }),
    (Check::MkeyUmr, |rig| {
        mkey(rig, |r| r.mkey_context.free = true)
    }),
    (Check::MkeyFlags, |rig| mkey(rig, |r| r.data_direct = true)),
    (Check::MkeyUmemAccess, |rig| {
        let umem = plain_umem(rig, PAGE_4K, 0);
        mkey(rig, |r| r.mkey_umem_id = umem)
    }),
    (Check::MkeyNotFound, |_| {
        mailbox(destroy_mkey::In {
            mkey_index: NO_OBJECT,
        })
    }),
    (Check::MkeyUid, |rig| {
        let mkey_index = rig.command(mkey_request(rig)).unwrap().mkey_index;
        with_uid(mailbox(destroy_mkey::In { mkey_index }))
    }),
];

#[test]
fn every_check_refuses_with_its_own_syndrome_and_changes_nothing() {
    for (case, (check, make)) in CASES.iter().enumerate() {
        // A small NIC makes the checks of its limits reachable.
        let rig = Rig::with(NicConfig {
            log_max_sq_depth: 14,
            log_max_objects: 2,
            ..NicConfig::default()
        });
        let (input, output) = make(&rig);
        let before = rig.nic().live_objects();
        let mut output = vec![0xaa; output];
        let result = rig.nic().command(&input, &mut output);
        let error = result.expect_err(check.text());
        assert_eq!(error.check, *check, "case {case}: {error}");
        let reply = Reply::parse(&output).unwrap();
        assert_eq!(
            (reply.status, reply.syndrome),
            (check.status(), check.syndrome()),
            "case {case}"
        );
        assert!(output[8..].iter().all(|byte| *byte == 0), "case {case}");
        assert_eq!(rig.nic().live_objects(), before, "case {case}");
        assert_eq!(rig.nic().stats().refused_commands, 1, "case {case}");
    }
    let reached: BTreeSet<Check> = CASES.iter().map(|(check, _)| *check).collect();
    let missing: Vec<_> = Check::ALL
        .iter()
        .filter(|check| !reached.contains(check))
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

#[test]
fn an_output_too_short_for_status_and_syndrome_gets_what_fits() {
    let rig = Rig::new();
    let mut output = [0xaa; 3];
    let error = rig.nic().command(&[0xff; 16], &mut output).unwrap_err();
    assert_eq!(output, [error.status(), 0, 0]);
    assert!(rig.nic().command(&[], &mut []).is_err());
}

#[test]
fn what_lies_behind_the_answer_is_zeroed() {
    let rig = Rig::new();
    let (input, len) = mailbox(query_special_contexts::In {});
    let mut output = vec![0xaa; len + 100];
    rig.nic().command(&input, &mut output).unwrap();
    assert_eq!(output[len..], [0; 100]);
    assert_ne!(output[..len], vec![0; len]);
}

#[test]
fn capabilities_say_what_the_checks_enforce() {
    let rig = Rig::new();
    let caps = rig.command(Query::<GeneralCaps>::new()).unwrap();
    assert_eq!(
        (
            caps.log_max_qp_sz,
            caps.log_max_msg,
            caps.cqe_version,
            caps.num_ports,
            caps.port_type
        ),
        (15, 30, 1, 1, PortType::Ethernet)
    );
    assert!(caps.rc && caps.cq_oi && caps.roce && caps.atomic && caps.bf);
    assert!(
        !rig.command(Query::<GeneralCaps2>::new())
            .unwrap()
            .send_dbr_mode_no_dbr_ext
    );
    assert_eq!(
        rig.command(Query::<RoceCaps>::new())
            .unwrap()
            .r_roce_dest_udp_port,
        4791
    );
    assert_eq!(
        rig.command(Query::<AtomicCaps>::new()).unwrap(),
        AtomicCaps {
            atomic_req_8b_endianness_mode: 1,
            atomic_operations: 0b1111,
            atomic_size_qp: 0b1100,
            ..AtomicCaps::default()
        }
    );
    // The largest values are those in effect.
    let (input, output) = with_op_mod(mailbox(Query::<GeneralCaps>::new()), 0);
    let mut output = vec![0; output];
    rig.nic().command(&input, &mut output).unwrap();
    assert_eq!(Query::<GeneralCaps>::decode(&output), Ok(caps));
}

#[test]
fn special_keys_differ_from_each_other_and_from_the_invalid_key() {
    let rig = Rig::new();
    let keys = rig.command(query_special_contexts::In {}).unwrap();
    let distinct: BTreeSet<u32> = [
        keys.dump_fill_mkey,
        keys.resd_lkey,
        keys.null_mkey,
        0x100,
        0,
    ]
    .into();
    assert_eq!(distinct.len(), 5);
}

#[test]
fn a_qp_tells_its_context_in_every_state() {
    let rig = Rig::new();
    let cq = rig.cq(3);
    let qp = rig.qp(&cq, 3);
    let fresh = rig.query_qp(qp.qpn);
    assert_eq!(
        (
            fresh.state,
            fresh.pd,
            fresh.cqn_snd,
            fresh.log_sq_size,
            fresh.user_index
        ),
        (QpState::Rst, rig.pd, cq.cqn, 3, 0x12_3456)
    );
    rig.command(rig.rst2init(qp.qpn)).unwrap();
    let init = rig.query_qp(qp.qpn);
    assert!(init.rre && init.rwe);
    assert_eq!(
        (init.state, init.primary_address_path.vhca_port_num),
        (QpState::Init, 1)
    );
    let mut request = rig.init2rtr(qp.qpn, 77);
    // Without its bit in the mask an optional field is not taken.
    (request.qpc.rre, request.qpc.rwe, request.opt_param_mask) = (false, false, OptParam::RRE);
    rig.command(request).unwrap();
    let rtr = rig.query_qp(qp.qpn);
    assert_eq!((rtr.rre, rtr.rwe), (false, true));
    assert_eq!(
        (
            rtr.state,
            rtr.remote_qpn,
            rtr.mtu,
            rtr.next_rcv_psn,
            rtr.primary_address_path.vhca_port_num
        ),
        (QpState::Rtr, 77, Mtu::Bytes1024, 0xff_fffe, 1)
    );
    rig.command(rig.rtr2rts(qp.qpn)).unwrap();
    let rts = rig.query_qp(qp.qpn);
    assert_eq!(
        (rts.state, rts.next_send_psn, rts.retry_count),
        (QpState::Rts, 0xff_fffe, 7)
    );
    rig.to_error(qp.qpn);
    assert_eq!(rig.state(qp.qpn), QpState::Err);
    rig.to_error(qp.qpn);
    assert_eq!(
        rig.state(qp.qpn),
        QpState::Err,
        "2ERR in ERR changes nothing"
    );
    rig.to_reset(qp.qpn);
    assert_eq!(rig.state(qp.qpn), QpState::Rst);
}

#[test]
fn a_cq_tells_its_counters() {
    let rig = Rig::new();
    let mut cq = rig.cq(3);
    let (mut a, _b) = rig.pair(&cq, 3);
    for _ in 0..5 {
        a.nop(&rig);
    }
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    let context = rig
        .command(query_cq::In { cqn: cq.cqn })
        .unwrap()
        .cq_context;
    assert_eq!(
        (
            context.status,
            context.producer_counter,
            context.consumer_counter,
            context.log_cq_size
        ),
        (CqStatus::Ok, 5, 0, 3)
    );
}

#[test]
fn a_key_made_by_mailbox_covers_its_part_of_the_umem() {
    let rig = Rig::new();
    let mut cq = rig.cq(4);
    let (mut a, _b) = rig.pair(&cq, 4);
    let bus_addr = rig.alloc(8192);
    let range = DmaRange {
        bus_addr,
        len: 8192,
        iova: 0,
    };
    let umem = rig
        .nic()
        .reg_umem(range, PAGE_4K, access::LOCAL_WRITE)
        .unwrap();
    let mut request = mkey_request(&rig);
    request.mkey_umem_id = umem;
    let index = rig.command(request).unwrap().mkey_index;
    let source = rig.mr(64, 0);
    rig.write(source.addr, &pattern(64, 4));
    let mut to = source.piece(0, 64);
    (to.key, to.iova) = ((index << 8) | 0x5a, 0x7000_0000 + 10);
    a.post(
        &rig,
        Opcode::RdmaWrite,
        SIGNALLED,
        &[to.remote(), source.piece(0, 64).local()].concat(),
    );
    a.ring(&rig);
    rig.run();
    cq.success(&rig);
    assert_eq!(rig.read(bus_addr + 110, 64), pattern(64, 4));
    rig.command(destroy_mkey::In { mkey_index: index }).unwrap();
    rig.assert_no_findings();
}

#[test]
fn infiniband_ports_are_addressed_by_lid() {
    let rig = Rig::with(NicConfig {
        link_layer: warpverbs_sim_nic::LinkLayer::InfiniBand,
        lid: 9,
        ..NicConfig::default()
    });
    let port = rig.nic().query_port(1).unwrap();
    assert_eq!((port.lid, port.gids), (9, 16));
    let caps = rig.command(Query::<GeneralCaps>::new()).unwrap();
    assert_eq!((caps.port_type, caps.roce), (PortType::InfiniBand, false));
    let mut cq = rig.cq(3);
    let mut qp = rig.qp(&cq, 3);
    rig.command(rig.rst2init(qp.qpn)).unwrap();
    let gid = rig.nic().query_gid(1, 0).unwrap().unwrap();
    let mut request = init2rtr_qp::In {
        qpn: qp.qpn,
        ..init2rtr_qp::In::default()
    };
    (
        request.qpc.mtu,
        request.qpc.log_msg_max,
        request.qpc.remote_qpn,
    ) = (Mtu::Bytes256, 20, qp.qpn);
    request.qpc.next_rcv_psn = 0xff_fffe;
    let error = rig.command(request).unwrap_err();
    assert_eq!(
        (error.check, error.status()),
        (Check::RemoteAddress, Status::BadParameter.code())
    );
    request.qpc.primary_address_path.grh = true;
    request.qpc.primary_address_path.rgid_rip = gid.gid;
    rig.command(request).unwrap();
    rig.to_reset(qp.qpn);
    rig.command(rig.rst2init(qp.qpn)).unwrap();
    request.qpc.primary_address_path = Default::default();
    request.qpc.primary_address_path.rlid = 9;
    rig.command(request).unwrap();
    rig.command(rig.rtr2rts(qp.qpn)).unwrap();
    let mr = rig.mr(1000, ALL_RIGHTS);
    qp.write(&rig, mr.piece(0, 300), mr.piece(500, 300));
    qp.ring(&rig);
    rig.run();
    cq.success(&rig);
    // 300 bytes are two packets of 256: PSN 0xfffffe + 2.
    assert_eq!(rig.query_qp(qp.qpn).next_send_psn, 0);
    assert_eq!(rig.query_qp(qp.qpn).next_rcv_psn, 0);
    rig.assert_no_findings();
}
