//! Every structure and constant of this crate that has a name in a vendor's header, in one list.
//!
//! `ci/wire-check` compares the list with the headers. A structure that is missing here is not checked, so a test counts
//! the modules.

use crate::cqe::{Cqe, CqeOpcode, ErrorCqe, Syndrome};
use crate::doorbell;
use crate::eqe;
use crate::layout::Layout;
use crate::pcap;
use crate::prm::{
    Command, Status, ads, alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, cqc,
    create_cq, create_mkey, create_qp, create_rmp, dealloc_pd, dealloc_q_counter,
    dealloc_transport_domain, dealloc_uar, destroy_cq, destroy_mkey, destroy_qp, destroy_rmp,
    hca_cap, header, init2init_qp, init2rtr_qp, mkc, modify_rmp, qp_2err, qp_2rst, qpc, query_cq,
    query_hca_cap, query_hca_vport_context, query_hca_vport_gid, query_hca_vport_pkey,
    query_nic_vport_context, query_q_counter, query_qp, query_rmp, query_roce_address,
    query_special_contexts, query_vport_state, rmpc, roce_address, rst2init_qp, rtr2rts_qp,
    rts2rts_qp, set_roce_address, sqerr2rts_qp, vport,
};
use crate::roce;
use crate::wqe::{self, Control, DataPointer, InlineHeader, Opcode, RemoteAddress};

/// The structures.
pub fn all() -> &'static [&'static Layout] {
    macro_rules! layouts {
        ($($ty:ty),* $(; $($command:ident),*)?) => {
            &[$(&<$ty>::LAYOUT,)* $($(&$command::In::LAYOUT, &$command::Out::LAYOUT,)*)?]
        };
    }
    layouts!(
        Control,
        RemoteAddress,
        DataPointer,
        InlineHeader,
        wqe::AtomicOperands,
        wqe::MaskedCompareSwap4,
        wqe::MaskedCompareSwap8,
        wqe::MaskedFetchAdd4,
        wqe::MaskedFetchAdd8,
        wqe::Wait,
        wqe::SrqNext,
        Cqe,
        ErrorCqe,
        eqe::Eqe,
        eqe::CompletionData,
        eqe::QpData,
        eqe::CqErrorData,
        eqe::PortData,
        roce::Ethernet,
        roce::Vlan,
        roce::Ipv4,
        roce::Ipv6,
        roce::Udp,
        roce::Lrh,
        roce::Bth,
        roce::Reth,
        roce::Aeth,
        roce::AtomicEth,
        roce::AtomicAckEth,
        roce::MaskedAtomicEth,
        roce::ImmDt,
        roce::Ieth,
        pcap::FileHeader,
        pcap::RecordHeader,
        pcap::ErfHeader,
        header::Reply,
        ads::Ads,
        qpc::Qpc,
        cqc::Cqc,
        mkc::Mkc,
        rmpc::Wq,
        rmpc::Rmpc,
        roce_address::RoceAddress,
        vport::HcaVport,
        vport::MacAddress,
        vport::NicVport,
        query_qp::ErrorSyndrome,
        query_qp::Extension,
        hca_cap::GeneralCaps,
        hca_cap::GeneralCaps2,
        hca_cap::RoceCaps,
        hca_cap::AtomicCaps;
        query_hca_cap, create_cq, destroy_cq, query_cq, create_qp, destroy_qp, query_qp, rst2init_qp, init2rtr_qp, rtr2rts_qp,
        qp_2err, qp_2rst, create_mkey, destroy_mkey, query_special_contexts, alloc_pd, dealloc_pd, alloc_uar, dealloc_uar,
        alloc_q_counter, alloc_transport_domain, create_rmp, dealloc_q_counter, dealloc_transport_domain, destroy_rmp, init2init_qp, modify_rmp, query_hca_vport_context, query_hca_vport_gid, query_hca_vport_pkey, query_nic_vport_context, query_q_counter, query_rmp, query_roce_address, query_vport_state, rts2rts_qp, set_roce_address, sqerr2rts_qp
    )
}

/// The commands: name in the PRM, opcode. The headers call them `MLX5_CMD_OP_` and the name.
pub fn commands() -> &'static [(&'static str, u16)] {
    macro_rules! commands {
        ($($command:ident),*) => {
            &[
                // Its `In` is not a command by itself: what it asks for decides what it answers.
                ("QUERY_HCA_CAP", query_hca_cap::In::OPCODE),
                $((<$command::In as Command>::NAME, $command::In::OPCODE),)*
            ]
        };
    }
    commands!(
        create_cq,
        destroy_cq,
        query_cq,
        create_qp,
        destroy_qp,
        query_qp,
        rst2init_qp,
        init2rtr_qp,
        rtr2rts_qp,
        qp_2err,
        qp_2rst,
        create_mkey,
        destroy_mkey,
        query_special_contexts,
        alloc_pd,
        dealloc_pd,
        alloc_uar,
        dealloc_uar,
        alloc_q_counter,
        alloc_transport_domain,
        create_rmp,
        dealloc_q_counter,
        dealloc_transport_domain,
        destroy_rmp,
        init2init_qp,
        modify_rmp,
        query_hca_vport_context,
        query_hca_vport_gid,
        query_hca_vport_pkey,
        query_nic_vport_context,
        query_q_counter,
        query_rmp,
        query_roce_address,
        query_vport_state,
        rts2rts_qp,
        set_roce_address,
        sqerr2rts_qp
    )
}

/// Fence modes as they stand in `fm_ce_se`.
const FENCE_MODES: &[(&str, u64)] = {
    const fn fence(mode: wqe::FenceMode) -> u64 {
        (mode.code() as u64) << 5
    }
    &[
        ("MLX5_FENCE_MODE_NONE", fence(wqe::FenceMode::None)),
        (
            "MLX5_FENCE_MODE_INITIATOR_SMALL",
            fence(wqe::FenceMode::InitiatorSmall),
        ),
        ("MLX5_FENCE_MODE_FENCE", fence(wqe::FenceMode::Fence)),
        (
            "MLX5_FENCE_MODE_STRONG_ORDERING",
            fence(wqe::FenceMode::StrongOrdering),
        ),
        (
            "MLX5_FENCE_MODE_SMALL_AND_FENCE",
            fence(wqe::FenceMode::SmallAndFence),
        ),
    ]
};

/// Lists of named constants, with their values.
pub fn constants() -> &'static [&'static [(&'static str, u64)]] {
    &[
        Opcode::CONSTANTS,
        FENCE_MODES,
        CqeOpcode::CONSTANTS,
        Syndrome::CONSTANTS,
        Status::CONSTANTS,
        eqe::EventType::CONSTANTS,
        eqe::PortChange::CONSTANTS,
        eqe::CqErrorSyndrome::CONSTANTS,
        cqc::CqeSize::CONSTANTS,
        cqc::CqStatus::CONSTANTS,
        mkc::MkeyAccessMode::CONSTANTS,
        query_hca_cap::CapSet::CONSTANTS,
        hca_cap::PortType::CONSTANTS,
        hca_cap::TimestampCap::CONSTANTS,
        rmpc::RmpState::CONSTANTS,
        rmpc::WqType::CONSTANTS,
        roce_address::RoceVersion::CONSTANTS,
        roce_address::L3Type::CONSTANTS,
        vport::VportState::CONSTANTS,
        vport::PortAdminState::CONSTANTS,
        qpc::QpState::CONSTANTS,
        qpc::ServiceType::CONSTANTS,
        qpc::PathMigration::CONSTANTS,
        qpc::Mtu::CONSTANTS,
        qpc::RqType::CONSTANTS,
        qpc::TimestampFormat::CONSTANTS,
        qpc::AtomicMode::CONSTANTS,
        qpc::OptParam::CONSTANTS,
        roce::Opcode::CONSTANTS,
        roce::EtherType::CONSTANTS,
        roce::timer::RNR_CONSTANTS,
        &[
            ("MLX5_WQE_CTRL_CQ_UPDATE", wqe::SIGNALLED as u64),
            ("MLX5_WQE_CTRL_SOLICITED", wqe::SOLICITED as u64),
            ("MLX5_WQE_CTRL_FENCE", wqe::FENCE as u64),
            (
                "MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE",
                wqe::INITIATOR_SMALL_FENCE as u64,
            ),
            ("MLX5_WQE_CTRL_DS_MASK", wqe::MAX_DS as u64),
            ("MLX5_SEND_WQE_BB", wqe::WQEBB as u64),
            ("MLX5_INLINE_SEG", wqe::INLINE as u64),
            ("MLX5_INVALID_LKEY", wqe::INVALID_LKEY as u64),
            ("MLX5_RCV_DBR", (doorbell::DBR_RECEIVE / 4) as u64),
            ("MLX5_SND_DBR", (doorbell::DBR_SEND / 4) as u64),
            ("MLX5_BF_OFFSET", doorbell::REGISTER as u64),
            ("MLX5_CQ_DOORBELL", doorbell::REGISTER_CQ_ARM as u64),
            ("MLX5_CQ_DB_REQ_NOT_SOL", doorbell::ARM_SOLICITED as u64),
            (
                "MLX5_INLINE_SCATTER_32",
                (crate::cqe::FORMAT_INLINE_32 as u64) << 2,
            ),
            (
                "MLX5_INLINE_SCATTER_64",
                (crate::cqe::FORMAT_INLINE_64 as u64) << 2,
            ),
            (
                "MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT",
                crate::cqe::vendor_syndrome::PAGE_FAULT as u64,
            ),
        ],
    ]
}
