//! Structures of the verbs core (`rdma/ib_user_verbs.h`, `rdma/ib_user_ioctl_verbs.h`), and numbers of its objects.
//!
//! Fields that nothing here reads or writes are left out: they are zero.

use super::abi;

abi! {
    /// What an ioctl begins with.
    pub(crate) struct IoctlHeader = "ib_uverbs_ioctl_hdr", 24 bytes {
        length: u16 => 0;
        object_id: u16 => 2;
        method_id: u16 => 4;
        num_attrs: u16 => 6;
        reserved1: u64 => 8;
        driver_id: u32 => 16;
        reserved2: u32 => 20;
    }

    /// An asynchronous event, as it is read.
    pub(crate) struct AsyncEventDesc = "ib_uverbs_async_event_desc", 16 bytes {
        element: u64 => 0;
        event_type: u32 => 8;
    }

    /// A completion event, as it is read.
    pub(crate) struct CompEventDesc = "ib_uverbs_comp_event_desc", 8 bytes {
        cq_handle: u64 => 0;
    }

    /// The answer to QUERY_DEVICE.
    pub(crate) struct QueryDeviceResp = "ib_uverbs_query_device_resp", 176 bytes {
        fw_ver: u64 => 0;
        node_guid: u64 => 8;
        sys_image_guid: u64 => 16;
        max_mr_size: u64 => 24;
        page_size_cap: u64 => 32;
        vendor_id: u32 => 40;
        vendor_part_id: u32 => 44;
        hw_ver: u32 => 48;
        max_qp: u32 => 52;
        max_qp_wr: u32 => 56;
        device_cap_flags: u32 => 60;
        max_sge: u32 => 64;
        max_sge_rd: u32 => 68;
        max_cq: u32 => 72;
        max_cqe: u32 => 76;
        max_mr: u32 => 80;
        max_pd: u32 => 84;
        max_qp_rd_atom: u32 => 88;
        max_res_rd_atom: u32 => 96;
        max_qp_init_rd_atom: u32 => 100;
        atomic_cap: u32 => 108;
        max_ah: u32 => 144;
        max_srq: u32 => 156;
        max_srq_wr: u32 => 160;
        max_srq_sge: u32 => 164;
        max_pkeys: u16 => 168;
        local_ca_ack_delay: u8 => 170;
        phys_port_cnt: u8 => 171;
    }

    /// The answer to the extended QUERY_DEVICE.
    pub(crate) struct ExQueryDeviceResp = "ib_uverbs_ex_query_device_resp", 304 bytes {
        base: QueryDeviceResp => 0;
        comp_mask: u32 => 176;
        response_length: u32 => 180;
        timestamp_mask: u64 => 208;
        hca_core_clock: u64 => 216;
    }

    /// QUERY_PORT.
    pub(crate) struct QueryPort = "ib_uverbs_query_port", 16 bytes {
        response: u64 => 0;
        port_num: u8 => 8;
    }

    /// The answer to QUERY_PORT.
    pub(crate) struct QueryPortResp = "ib_uverbs_query_port_resp", 40 bytes {
        port_cap_flags: u32 => 0;
        max_msg_sz: u32 => 4;
        gid_tbl_len: u32 => 16;
        pkey_tbl_len: u16 => 20;
        lid: u16 => 22;
        sm_lid: u16 => 24;
        state: u8 => 26;
        max_mtu: u8 => 27;
        active_mtu: u8 => 28;
        max_vl_num: u8 => 30;
        active_width: u8 => 34;
        active_speed: u8 => 35;
        phys_state: u8 => 36;
        link_layer: u8 => 37;
        flags: u8 => 38;
    }

    /// The answer to the ioctl of that name.
    pub(crate) struct QueryPortRespEx = "ib_uverbs_query_port_resp_ex", 48 bytes {
        legacy_resp: QueryPortResp => 0;
        port_cap_flags2: u16 => 40;
    }

    /// An entry of a GID table.
    pub(crate) struct GidEntry = "ib_uverbs_gid_entry", 32 bytes {
        gid: [u8; 16] => 0;
        gid_index: u32 => 16;
        port_num: u32 => 20;
        gid_type: u32 => 24;
        netdev_ifindex: u32 => 28;
    }

    /// The answer to ALLOC_PD.
    pub(crate) struct AllocPdResp = "ib_uverbs_alloc_pd_resp", 4 bytes {
        pd_handle: u32 => 0;
    }

    /// REG_MR.
    pub(crate) struct RegMr = "ib_uverbs_reg_mr", 40 bytes {
        start: u64 => 8;
        length: u64 => 16;
        hca_va: u64 => 24;
        pd_handle: u32 => 32;
        access_flags: u32 => 36;
    }

    /// The answer to REG_MR.
    pub(crate) struct RegMrResp = "ib_uverbs_reg_mr_resp", 12 bytes {
        mr_handle: u32 => 0;
        lkey: u32 => 4;
        rkey: u32 => 8;
    }

    /// The answer to CREATE_COMP_CHANNEL.
    pub(crate) struct CreateCompChannelResp = "ib_uverbs_create_comp_channel_resp", 4 bytes {
        fd: u32 => 0;
    }

    /// RESIZE_CQ.
    pub(crate) struct ResizeCq = "ib_uverbs_resize_cq", 16 bytes {
        cq_handle: u32 => 8;
        cqe: u32 => 12;
    }

    /// The answer to the destruction of a CQ.
    pub(crate) struct DestroyCqResp = "ib_uverbs_destroy_cq_resp", 8 bytes {
        comp_events_reported: u32 => 0;
        async_events_reported: u32 => 4;
    }

    /// The answer to the destruction of a QP.
    pub(crate) struct DestroyQpResp = "ib_uverbs_destroy_qp_resp", 4 bytes {
        events_reported: u32 => 0;
    }

    /// The answer to the destruction of an SRQ.
    pub(crate) struct DestroySrqResp = "ib_uverbs_destroy_srq_resp", 4 bytes {
        events_reported: u32 => 0;
    }

    /// The GRH of an address handle.
    pub(crate) struct GlobalRoute = "ib_uverbs_global_route", 24 bytes {
        dgid: [u8; 16] => 0;
        flow_label: u32 => 16;
        sgid_index: u8 => 20;
        hop_limit: u8 => 21;
        traffic_class: u8 => 22;
    }

    /// Attributes of an address handle.
    pub(crate) struct AhAttr = "ib_uverbs_ah_attr", 32 bytes {
        grh: GlobalRoute => 0;
        dlid: u16 => 24;
        sl: u8 => 26;
        src_path_bits: u8 => 27;
        static_rate: u8 => 28;
        is_global: u8 => 29;
        port_num: u8 => 30;
    }

    /// CREATE_AH.
    pub(crate) struct CreateAh = "ib_uverbs_create_ah", 56 bytes {
        user_handle: u64 => 8;
        pd_handle: u32 => 16;
        attr: AhAttr => 24;
    }

    /// The answer to CREATE_AH.
    pub(crate) struct CreateAhResp = "ib_uverbs_create_ah_resp", 4 bytes {
        ah_handle: u32 => 0;
    }

    /// Sizes of a QP.
    pub(crate) struct QpCap = "ib_uverbs_qp_cap", 20 bytes {
        max_send_wr: u32 => 0;
        max_recv_wr: u32 => 4;
        max_send_sge: u32 => 8;
        max_recv_sge: u32 => 12;
        max_inline_data: u32 => 16;
    }

    /// Where a QP sends to.
    pub(crate) struct QpDest = "ib_uverbs_qp_dest", 32 bytes {
        dgid: [u8; 16] => 0;
        flow_label: u32 => 16;
        dlid: u16 => 20;
        sgid_index: u8 => 24;
        hop_limit: u8 => 25;
        traffic_class: u8 => 26;
        sl: u8 => 27;
        src_path_bits: u8 => 28;
        static_rate: u8 => 29;
        is_global: u8 => 30;
        port_num: u8 => 31;
    }

    /// QUERY_QP.
    pub(crate) struct QueryQp = "ib_uverbs_query_qp", 16 bytes {
        qp_handle: u32 => 8;
        attr_mask: u32 => 12;
    }

    /// The answer to QUERY_QP.
    pub(crate) struct QueryQpResp = "ib_uverbs_query_qp_resp", 128 bytes {
        dest: QpDest => 0;
        alt_dest: QpDest => 32;
        max_send_wr: u32 => 64;
        max_recv_wr: u32 => 68;
        max_send_sge: u32 => 72;
        max_recv_sge: u32 => 76;
        max_inline_data: u32 => 80;
        qkey: u32 => 84;
        rq_psn: u32 => 88;
        sq_psn: u32 => 92;
        dest_qp_num: u32 => 96;
        qp_access_flags: u32 => 100;
        pkey_index: u16 => 104;
        alt_pkey_index: u16 => 106;
        qp_state: u8 => 108;
        cur_qp_state: u8 => 109;
        path_mtu: u8 => 110;
        path_mig_state: u8 => 111;
        sq_draining: u8 => 112;
        max_rd_atomic: u8 => 113;
        max_dest_rd_atomic: u8 => 114;
        min_rnr_timer: u8 => 115;
        port_num: u8 => 116;
        timeout: u8 => 117;
        retry_cnt: u8 => 118;
        rnr_retry: u8 => 119;
        alt_port_num: u8 => 120;
        alt_timeout: u8 => 121;
        sq_sig_all: u8 => 122;
    }

    /// MODIFY_QP.
    pub(crate) struct ModifyQp = "ib_uverbs_modify_qp", 112 bytes {
        dest: QpDest => 0;
        alt_dest: QpDest => 32;
        qp_handle: u32 => 64;
        attr_mask: u32 => 68;
        qkey: u32 => 72;
        rq_psn: u32 => 76;
        sq_psn: u32 => 80;
        dest_qp_num: u32 => 84;
        qp_access_flags: u32 => 88;
        pkey_index: u16 => 92;
        alt_pkey_index: u16 => 94;
        qp_state: u8 => 96;
        cur_qp_state: u8 => 97;
        path_mtu: u8 => 98;
        path_mig_state: u8 => 99;
        max_rd_atomic: u8 => 101;
        max_dest_rd_atomic: u8 => 102;
        min_rnr_timer: u8 => 103;
        port_num: u8 => 104;
        timeout: u8 => 105;
        retry_cnt: u8 => 106;
        rnr_retry: u8 => 107;
        alt_port_num: u8 => 108;
        alt_timeout: u8 => 109;
    }

    /// The answer to the extended MODIFY_QP.
    pub(crate) struct ExModifyQpResp = "ib_uverbs_ex_modify_qp_resp", 8 bytes {
        comp_mask: u32 => 0;
        response_length: u32 => 4;
    }

    /// MODIFY_SRQ.
    pub(crate) struct ModifySrq = "ib_uverbs_modify_srq", 16 bytes {
        srq_handle: u32 => 0;
        attr_mask: u32 => 4;
        max_wr: u32 => 8;
        srq_limit: u32 => 12;
    }

    /// QUERY_SRQ.
    pub(crate) struct QuerySrq = "ib_uverbs_query_srq", 16 bytes {
        srq_handle: u32 => 8;
    }

    /// The answer to QUERY_SRQ.
    pub(crate) struct QuerySrqResp = "ib_uverbs_query_srq_resp", 16 bytes {
        max_wr: u32 => 0;
        max_sge: u32 => 4;
        srq_limit: u32 => 8;
    }
}

/// `RDMA_VERBS_IOCTL`
pub(crate) const IOCTL: u32 = 0xc018_1b01;
/// Bytes of an attribute (`ib_uverbs_attr`).
pub(crate) const ATTR: usize = 16;
/// `UVERBS_ATTR_F_MANDATORY`
pub(crate) const ATTR_MANDATORY: u16 = 1;
/// `UVERBS_ATTR_F_VALID_OUTPUT`
pub(crate) const ATTR_VALID_OUTPUT: u16 = 2;
/// `UVERBS_ATTR_UHW_IN`
pub(crate) const UHW_IN: u16 = 0x1000;
/// `UVERBS_ATTR_UHW_OUT`
pub(crate) const UHW_OUT: u16 = 0x1001;
/// `RDMA_DRIVER_MLX5`
pub(crate) const DRIVER_MLX5: u32 = 1;
/// `IB_USER_VERBS_CMD_FLAG_EXTENDED`
pub(crate) const EXTENDED: u64 = 0x8000_0000;

/// Objects (`uverbs_default_objects`).
pub(crate) mod object {
    pub(crate) const DEVICE: u16 = 0;
    pub(crate) const PD: u16 = 1;
    pub(crate) const CQ: u16 = 3;
    pub(crate) const QP: u16 = 4;
    pub(crate) const SRQ: u16 = 5;
    pub(crate) const AH: u16 = 6;
    pub(crate) const MR: u16 = 7;
    pub(crate) const ASYNC_EVENT: u16 = 16;
}

/// Commands that INVOKE_WRITE carries (`ib_uverbs_write_cmds`).
pub(crate) mod write {
    pub(crate) const QUERY_DEVICE: u64 = 1;
    pub(crate) const QUERY_PORT: u64 = 2;
    pub(crate) const ALLOC_PD: u64 = 3;
    pub(crate) const CREATE_AH: u64 = 5;
    pub(crate) const REG_MR: u64 = 9;
    pub(crate) const CREATE_COMP_CHANNEL: u64 = 17;
    pub(crate) const QUERY_QP: u64 = 25;
    pub(crate) const MODIFY_QP: u64 = 26;
    pub(crate) const MODIFY_SRQ: u64 = 33;
    pub(crate) const QUERY_SRQ: u64 = 34;
}

/// Asynchronous events (`ib_event_type`).
pub(crate) mod event {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const QP_FATAL: u32 = 1;
    pub(crate) const QP_REQ_ERR: u32 = 2;
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    pub(crate) const COMM_EST: u32 = 4;
    pub(crate) const SQ_DRAINED: u32 = 5;
    pub(crate) const PATH_MIG: u32 = 6;
    pub(crate) const PATH_MIG_ERR: u32 = 7;
    pub(crate) const DEVICE_FATAL: u32 = 8;
    pub(crate) const PORT_ACTIVE: u32 = 9;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const LID_CHANGE: u32 = 11;
    pub(crate) const PKEY_CHANGE: u32 = 12;
    pub(crate) const SRQ_ERR: u32 = 14;
    pub(crate) const SRQ_LIMIT: u32 = 15;
    pub(crate) const QP_LAST_WQE: u32 = 16;
    pub(crate) const CLIENT_REREGISTER: u32 = 17;
    pub(crate) const GID_CHANGE: u32 = 18;
}
