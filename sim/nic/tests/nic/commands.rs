//! Mailboxes: every check refuses what it should, with its own status and syndrome, and changes nothing.

use std::collections::BTreeSet;

use warpverbs_sim_nic::{Check, DmaRange, InjectedFault, LinkLayer, NicConfig, UarKind, access};
use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::cqc::{CqStatus, CqeSize};
use warpverbs_wire::prm::hca_cap::{AtomicCaps, GeneralCaps, GeneralCaps2, PortType, RoceCaps};
use warpverbs_wire::prm::header::Reply;
use warpverbs_wire::prm::mkc::{Mkc, MkeyAccessMode};
use warpverbs_wire::prm::qpc::{
    Mtu, OptParam, PathMigration, QpState, RqType, SendDbrMode, ServiceType, TimestampFormat,
};
use warpverbs_wire::prm::query_hca_cap::{self, Query};
use warpverbs_wire::prm::rmpc::{RmpState, WqType};
use warpverbs_wire::prm::roce_address::{L3Type, RoceAddress, RoceVersion};
use warpverbs_wire::prm::{
    Command, Status, alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, create_cq,
    create_mkey, create_qp, create_rmp, dealloc_pd, dealloc_q_counter, dealloc_transport_domain,
    dealloc_uar, destroy_cq, destroy_mkey, destroy_qp, destroy_rmp, init2init_qp, init2rtr_qp,
    modify_rmp, query_cq, query_hca_vport_context, query_hca_vport_gid, query_hca_vport_pkey,
    query_nic_vport_context, query_q_counter, query_qp, query_rmp, query_roce_address,
    query_special_contexts, query_vport_state, rst2init_qp, rtr2rts_qp, rts2rts_qp,
    set_roce_address, sqerr2rts_qp,
};
use warpverbs_wire::roce::address::gid_of_ipv4;
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

fn opcode(opcode: u16) -> Mailbox {
    let mut input = vec![0; 64];
    input[..2].copy_from_slice(&opcode.to_be_bytes());
    (input, 64)
}

fn rts2rts(rig: &Rig, change: impl FnOnce(&mut rts2rts_qp::In)) -> Mailbox {
    let qpn = fresh_qp(rig);
    rig.to_rts(qpn, qpn);
    let mut request = rts2rts_qp::In {
        qpn,
        ..Default::default()
    };
    change(&mut request);
    mailbox(request)
}

/// A PD of another uid.
fn foreign_pd(rig: &Rig) -> u32 {
    let (input, output) = with_uid(mailbox(alloc_pd::In {}));
    let mut output = vec![0; output];
    rig.nic().command(&input, &mut output).unwrap();
    alloc_pd::Out::parse(&output).unwrap().pd
}

/// INIT2RTR with a path that begins as zeroes, as InfiniBand's do.
fn ib_path(rig: &Rig, change: impl FnOnce(&mut Ads)) -> Mailbox {
    let qpn = fresh_qp(rig);
    rig.command(rig.rst2init(qpn)).unwrap();
    let mut request = init2rtr_qp::In {
        qpn,
        ..init2rtr_qp::In::default()
    };
    (request.qpc.mtu, request.qpc.log_msg_max) = (Mtu::Bytes256, 20);
    change(&mut request.qpc.primary_address_path);
    mailbox(request)
}

fn roce(change: impl FnOnce(&mut set_roce_address::In)) -> Mailbox {
    let mut request = set_roce_address::In {
        roce_address_index: 5,
        vhca_port_num: 1,
        address: RoceAddress {
            gid: gid_of_ipv4([10, 1, 2, 3]),
            mac: [2, 0, 0, 0, 0, 9],
            l3_type: L3Type::Ipv4,
            version: RoceVersion::V2,
            ..RoceAddress::default()
        },
    };
    change(&mut request);
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
    (Check::NoAnswer, |rig| {
        rig.nic().inject(InjectedFault::NoAnswer {
            opcode: create_qp::In::OPCODE,
            executed: false,
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
    (Check::QpSendCq, |rig| {
        let pd = foreign_pd(rig);
        with_uid(qp(rig, |r| r.qpc.pd = pd))
    }),
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
        rst2init(rig, |r| r.opt_param_mask = OptParam::RETRY_COUNT)
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
    (Check::NoModifyCq, |_| opcode(0x403)),
    (Check::NoSrq, |_| opcode(0x700)),
    (Check::NoSrq, |_| opcode(0x705)),
    (Check::NoDct, |_| opcode(0x710)),
    (Check::NoDct, |_| opcode(0x714)),
    (Check::QpService, |rig| {
        qp(rig, |r| r.qpc.st = ServiceType::Dci)
    }),
    (Check::CqModeration, |rig| {
        cq(rig, |r| r.cq_context.cq_period = 1)
    }),
    (Check::CqModeration, |rig| {
        cq(rig, |r| r.cq_context.cq_max_count = 1)
    }),
    (Check::QpRqSize, |rig| {
        qp(rig, |r| {
            (r.qpc.rq_type, r.qpc.log_rq_size) = (RqType::Regular, 15)
        })
    }),
    (Check::QpTriggered, |rig| {
        qp(rig, |r| r.qpc.cd_slave_send = true)
    }),
    (Check::QpTriggered, |rig| {
        qp(rig, |r| r.qpc.cd_slave_receive = true)
    }),
    // The rig for these has no core-direct.
    (Check::QpCoreDirect, |rig| {
        qp(rig, |r| r.qpc.cd_master = true)
    }),
    (Check::QpPd, |rig| with_uid(qp(rig, |_| {}))),
    (Check::MkeyPd, |rig| with_uid(mkey(rig, |_| {}))),
    (Check::RmpPd, |rig| with_uid(rmp(rig, |_| {}))),
    (Check::OptParam, |rig| {
        let qpn = fresh_qp(rig);
        rig.command(rig.rst2init(qpn)).unwrap();
        mailbox(init2init_qp::In {
            qpn,
            opt_param_mask: OptParam::RNR_TIMEOUT,
            ..Default::default()
        })
    }),
    (Check::OptParam, |rig| {
        rts2rts(rig, |r| r.opt_param_mask = OptParam::PKEY_INDEX)
    }),
    (Check::AlternatePath, |rig| {
        init2rtr(rig, |r| r.opt_param_mask = OptParam::ALT_ADDR_PATH)
    }),
    (Check::AlternatePath, |rig| {
        rtr2rts(rig, |r| r.opt_param_mask = OptParam::ALT_ADDR_PATH)
    }),
    (Check::LagAffinity, |rig| {
        init2rtr(rig, |r| {
            (r.opt_param_mask, r.qpc.lag_tx_port_affinity) = (OptParam::LAG_TX_AFF, 1)
        })
    }),
    (Check::Init2InitState, |rig| {
        mailbox(init2init_qp::In {
            qpn: fresh_qp(rig),
            ..Default::default()
        })
    }),
    (Check::Rts2RtsState, |rig| {
        mailbox(rts2rts_qp::In {
            qpn: fresh_qp(rig),
            ..Default::default()
        })
    }),
    (Check::SqErrState, |rig| {
        let qpn = fresh_qp(rig);
        rig.to_rts(qpn, qpn);
        mailbox(sqerr2rts_qp::In {
            qpn,
            ..Default::default()
        })
    }),
    (Check::CounterSet, |rig| {
        rst2init(rig, |r| r.qpc.counter_set_id = 9)
    }),
    (Check::CounterSet, |rig| {
        rts2rts(rig, |r| {
            (r.opt_param_mask, r.qpc.counter_set_id) = (OptParam::COUNTER_SET_ID, 9)
        })
    }),
    (Check::StaticRate, |rig| {
        init2rtr(rig, |r| r.qpc.primary_address_path.stat_rate = 5)
    }),
    (Check::SourcePort, |rig| {
        init2rtr(rig, |r| r.qpc.primary_address_path.udp_sport = 0xbfff)
    }),
    (Check::PdNotFound, |_| {
        mailbox(dealloc_pd::In { pd: NO_OBJECT })
    }),
    (Check::PdUid, |rig| {
        with_uid(mailbox(dealloc_pd::In { pd: rig.pd }))
    }),
    (Check::PdBusy, |rig| {
        fresh_qp(rig);
        mailbox(dealloc_pd::In { pd: rig.pd })
    }),
    (Check::PdExhausted, |rig| {
        rig.nic().dealloc_pd(rig.pd).unwrap();
        exhaust(rig, alloc_pd::In {})
    }),
    (Check::TdNotFound, |_| {
        mailbox(dealloc_transport_domain::In {
            transport_domain: NO_OBJECT,
        })
    }),
    (Check::TdUid, |rig| {
        let transport_domain = rig
            .command(alloc_transport_domain::In {})
            .unwrap()
            .transport_domain;
        with_uid(mailbox(dealloc_transport_domain::In { transport_domain }))
    }),
    (Check::TdExhausted, |rig| {
        exhaust(rig, alloc_transport_domain::In {})
    }),
    (Check::UarNotFound, |_| {
        mailbox(dealloc_uar::In { uar: NO_OBJECT })
    }),
    (Check::UarUid, |rig| {
        with_uid(mailbox(dealloc_uar::In { uar: rig.uar }))
    }),
    (Check::UarBusy, |rig| {
        fresh_qp(rig);
        mailbox(dealloc_uar::In { uar: rig.uar })
    }),
    (Check::UarExhausted, |rig| {
        while rig.nic().alloc_uar(UarKind::NonCached).is_ok() {}
        mailbox(alloc_uar::In {})
    }),
    (Check::CounterNotFound, |_| {
        mailbox(dealloc_q_counter::In { counter_set_id: 0 })
    }),
    (Check::CounterUid, |rig| {
        let counter_set_id = rig.command(alloc_q_counter::In {}).unwrap().counter_set_id;
        with_uid(mailbox(query_q_counter::In {
            counter_set_id,
            ..Default::default()
        }))
    }),
    (Check::CounterBusy, |rig| {
        let counter_set_id = rig.command(alloc_q_counter::In {}).unwrap().counter_set_id;
        let (input, output) = rst2init(rig, |r| r.qpc.counter_set_id = counter_set_id);
        rig.nic().command(&input, &mut vec![0; output]).unwrap();
        mailbox(dealloc_q_counter::In { counter_set_id })
    }),
    (Check::CounterExhausted, |rig| {
        exhaust(rig, alloc_q_counter::In {})
    }),
    (Check::CounterVport, |rig| {
        let counter_set_id = rig.command(alloc_q_counter::In {}).unwrap().counter_set_id;
        mailbox(query_q_counter::In {
            counter_set_id,
            aggregate: true,
            ..Default::default()
        })
    }),
    (Check::VportOther, |_| {
        mailbox(query_vport_state::In {
            other_vport: true,
            ..Default::default()
        })
    }),
    (Check::VportOther, |_| {
        mailbox(query_nic_vport_context::In {
            vport_number: 3,
            ..Default::default()
        })
    }),
    (Check::VportPort, |_| {
        mailbox(query_hca_vport_context::In {
            port_num: 2,
            ..Default::default()
        })
    }),
    (Check::VportLinkLayer, |_| {
        mailbox(query_hca_vport_gid::In::default())
    }),
    (Check::VportList, |_| {
        mailbox(query_nic_vport_context::In {
            allowed_list_type: 1,
            ..Default::default()
        })
    }),
    (Check::RocePrivileged, |_| with_uid(roce(|_| {}))),
    (Check::RocePort, |_| roce(|r| r.vhca_port_num = 2)),
    (Check::RocePort, |_| {
        mailbox(query_roce_address::In {
            vhca_port_num: 2,
            ..Default::default()
        })
    }),
    (Check::RoceIndex, |_| roce(|r| r.roce_address_index = 16)),
    (Check::RoceIndex, |_| {
        mailbox(query_roce_address::In {
            roce_address_index: 16,
            ..Default::default()
        })
    }),
    (Check::RoceVlan, |_| roce(|r| r.address.vlan_valid = true)),
    (Check::RoceVersion, |_| {
        roce(|r| r.address.version = RoceVersion::Unknown(1))
    }),
    (Check::RoceL3Type, |_| {
        roce(|r| r.address.l3_type = L3Type::Ipv6)
    }),
    (Check::OutputLength, |rig| {
        // The extension makes the answer longer.
        let qpn = fresh_qp(rig);
        (
            mailbox(query_qp::Extended { qpn }).0,
            query_qp::EXTENSION_OFFSET,
        )
    }),
    (Check::MkeyUid, |rig| {
        let mkey_index = rig.command(mkey_request(rig)).unwrap().mkey_index;
        with_uid(mailbox(destroy_mkey::In { mkey_index }))
    }),
];

/// As `CASES`, on an InfiniBand port that demands a GRH, or not.
const INFINIBAND_CASES: &[(bool, Case)] = &[
    (
        true,
        (Check::GrhRequired, |rig| ib_path(rig, |path| path.rlid = 1)),
    ),
    (
        true,
        (Check::RemoteLid, |rig| {
            ib_path(rig, |path| (path.grh, path.rgid_rip) = (true, [7; 16]))
        }),
    ),
    (
        false,
        (Check::VportPort, |_| {
            mailbox(query_hca_vport_context::In {
                port_num: 2,
                ..Default::default()
            })
        }),
    ),
    (
        false,
        (Check::VportLinkLayer, |_| {
            mailbox(query_nic_vport_context::In::default())
        }),
    ),
    (
        false,
        (Check::VportLinkLayer, |_| {
            mailbox(query_roce_address::In::default())
        }),
    ),
    (false, (Check::VportLinkLayer, |_| roce(|_| {}))),
    (
        false,
        (Check::VportGid, |_| {
            mailbox(query_hca_vport_gid::In {
                gid_index: 16,
                ..Default::default()
            })
        }),
    ),
    (
        false,
        (Check::VportPkey, |_| {
            mailbox(query_hca_vport_pkey::In {
                pkey_index: 128,
                ..Default::default()
            })
        }),
    ),
];

#[test]
fn every_check_refuses_with_its_own_syndrome_and_changes_nothing() {
    // A small NIC makes the checks of its limits reachable.
    let small = NicConfig {
        log_max_sq_depth: 14,
        log_max_objects: 2,
        core_direct: false,
        ..NicConfig::default()
    };
    for (at, case) in CASES.iter().enumerate() {
        refuses(&Rig::with(small.clone()), case, &format!("case {at}"));
    }
    for (at, (grh_required, case)) in INFINIBAND_CASES.iter().enumerate() {
        let config = NicConfig {
            link_layer: LinkLayer::InfiniBand,
            grh_required: *grh_required,
            ..NicConfig::default()
        };
        refuses(
            &Rig::with(config),
            case,
            &format!("case {at} of InfiniBand"),
        );
    }
    let others = INFINIBAND_CASES.iter().map(|(_, case)| case);
    let reached: BTreeSet<Check> = CASES
        .iter()
        .chain(others)
        .map(|(check, _)| *check)
        .collect();
    let missing: Vec<_> = Check::ALL
        .iter()
        .filter(|check| !reached.contains(check))
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

fn refuses(rig: &Rig, (check, make): &Case, case: &str) {
    let (input, output) = make(rig);
    let before = rig.nic().live_objects();
    let refused = rig.nic().stats().refused_commands;
    let mut output = vec![0xaa; output];
    let result = rig.nic().command(&input, &mut output);
    let error = result.expect_err(check.text());
    assert_eq!(error.check, *check, "{case}: {error}");
    let reply = Reply::parse(&output).unwrap();
    let told = match check {
        // Nothing was written.
        Check::NoAnswer => (Status::Ok, 0),
        check => (check.status(), check.syndrome()),
    };
    assert_eq!((reply.status, reply.syndrome), told, "{case}");
    assert!(output[8..].iter().all(|byte| *byte == 0), "{case}");
    assert_eq!(rig.nic().live_objects(), before, "{case}");
    assert_eq!(rig.nic().stats().refused_commands, refused + 1, "{case}");
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
    // What is refused is not offered, and what is offered is there.
    assert!(
        !(caps.dct || caps.xrc || caps.ud || caps.uc || caps.apm || caps.cq_resize)
            && !(caps.cq_moderation || caps.cqe_compression || caps.cqe_compression_128)
            && !(caps.lag_tx_port_affinity || caps.sctr_data_cqe || caps.data_direct)
    );
    assert_eq!(caps.stat_rate_support, 0);
    assert!(caps.cd && caps.qpc_extension && caps.qp_error_syndrome);
    let sets = (0..).take_while(|_| rig.command(alloc_q_counter::In {}).is_ok());
    assert_eq!(sets.count(), usize::from(caps.max_qp_cnt));
    let rig = Rig::with(NicConfig {
        core_direct: false,
        ..NicConfig::default()
    });
    assert!(!rig.command(Query::<GeneralCaps>::new()).unwrap().cd);
    let rig = Rig::new();
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
