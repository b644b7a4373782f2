//! Structures of the mlx5 driver (`rdma/mlx5-abi.h`), and numbers of its objects.
//!
//! Fields that nothing here reads or writes are left out: they are zero.

use super::abi;

abi! {
    /// Of GET_CONTEXT, driver part.
    pub(crate) struct AllocUcontext = "mlx5_ib_alloc_ucontext_req_v2", 32 bytes {
        total_num_bfregs: u32 => 0;
        flags: u32 => 8;
        comp_mask: u32 => 12;
        max_cqe_version: u8 => 16;
        lib_caps: u64 => 24;
    }

    /// The answer.
    pub(crate) struct AllocUcontextResp = "mlx5_ib_alloc_ucontext_resp", 72 bytes {
        qp_tab_size: u32 => 0;
        bf_reg_size: u32 => 4;
        tot_bfregs: u32 => 8;
        cache_line_size: u32 => 12;
        max_sq_desc_sz: u16 => 16;
        max_rq_desc_sz: u16 => 18;
        max_send_wqebb: u32 => 20;
        max_recv_wr: u32 => 24;
        max_srq_recv_wr: u32 => 28;
        num_ports: u16 => 32;
        flow_action_flags: u16 => 34;
        comp_mask: u32 => 36;
        response_length: u32 => 40;
        cqe_version: u8 => 44;
        cmds_supp_uhw: u8 => 45;
        eth_min_inline: u8 => 46;
        clock_info_versions: u8 => 47;
        log_uar_size: u32 => 56;
        num_uars_per_page: u32 => 60;
        num_dyn_bfregs: u32 => 64;
        dump_fill_mkey: u32 => 68;
    }

    /// Of ALLOC_PD.
    pub(crate) struct AllocPdResp = "mlx5_ib_alloc_pd_resp", 4 bytes {
        pdn: u32 => 0;
    }

    /// Of the extended QUERY_DEVICE.
    pub(crate) struct QueryDeviceResp = "mlx5_ib_query_device_resp", 104 bytes {
        comp_mask: u32 => 0;
        response_length: u32 => 4;
    }

    /// Of CQ_CREATE.
    pub(crate) struct CreateCq = "mlx5_ib_create_cq", 32 bytes {
        buf_addr: u64 => 0;
        db_addr: u64 => 8;
        cqe_size: u32 => 16;
        cqe_comp_en: u8 => 20;
        cqe_comp_res_format: u8 => 21;
        flags: u16 => 22;
        uar_page_index: u16 => 24;
    }

    /// The answer.
    pub(crate) struct CreateCqResp = "mlx5_ib_create_cq_resp", 8 bytes {
        cqn: u32 => 0;
    }

    /// Of SRQ_CREATE.
    pub(crate) struct CreateSrq = "mlx5_ib_create_srq", 32 bytes {
        buf_addr: u64 => 0;
        db_addr: u64 => 8;
        flags: u32 => 16;
        uidx: u32 => 24;
    }

    /// The answer.
    pub(crate) struct CreateSrqResp = "mlx5_ib_create_srq_resp", 8 bytes {
        srqn: u32 => 0;
    }

    /// Of QP_CREATE.
    pub(crate) struct CreateQp = "mlx5_ib_create_qp", 56 bytes {
        buf_addr: u64 => 0;
        db_addr: u64 => 8;
        sq_wqe_count: u32 => 16;
        rq_wqe_count: u32 => 20;
        rq_wqe_shift: u32 => 24;
        flags: u32 => 28;
        uidx: u32 => 32;
        bfreg_index: u32 => 36;
        sq_buf_addr: u64 => 40;
        ece_options: u32 => 48;
    }

    /// The answer.
    pub(crate) struct CreateQpResp = "mlx5_ib_create_qp_resp", 40 bytes {
        bfreg_index: u32 => 0;
        ece_options: u32 => 4;
        comp_mask: u32 => 8;
    }

    /// Of CREATE_AH.
    pub(crate) struct CreateAhResp = "mlx5_ib_create_ah_resp", 16 bytes {
        response_length: u32 => 0;
        dmac: [u8; 6] => 4;
    }

    /// Of the extended MODIFY_QP.
    pub(crate) struct ModifyQpResp = "mlx5_ib_modify_qp_resp", 16 bytes {
        response_length: u32 => 0;
        dctn: u32 => 4;
        ece_options: u32 => 8;
    }
}

/// Objects (`mlx5_ib_objects`).
pub(crate) mod object {
    pub(crate) const DEVX: u16 = 0x1000;
    pub(crate) const DEVX_OBJ: u16 = 0x1001;
    pub(crate) const DEVX_UMEM: u16 = 0x1002;
    pub(crate) const DEVX_ASYNC_CMD_FD: u16 = 0x1004;
    pub(crate) const DEVX_ASYNC_EVENT_FD: u16 = 0x1005;
    pub(crate) const UAR: u16 = 0x1008;
}

/// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`
pub(crate) const CQ_UAR_PAGE_INDEX: u16 = 1 << 1;
/// `MLX5_QP_FLAG_SIGNATURE`
pub(crate) const QP_SIGNATURE: u32 = 1;
/// `MLX5_QP_FLAG_UAR_PAGE_INDEX`
pub(crate) const QP_UAR_PAGE_INDEX: u32 = 1 << 10;
/// `MLX5_SRQ_FLAG_SIGNATURE`
pub(crate) const SRQ_SIGNATURE: u32 = 1;
/// `MLX5_IB_MMAP_ALLOC_UAR`: the mmap command of pages that were allocated as objects.
pub(crate) const MMAP_UAR: u64 = 9;
/// `MLX5_IB_ALLOC_UCTX_DEVX`
pub(crate) const UCTX_DEVX: u32 = 1;
/// `MLX5_LIB_CAP_DYN_UAR`
pub(crate) const LIB_CAP_DYN_UAR: u64 = 1 << 1;
/// `MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY`
pub(crate) const RESP_DUMP_FILL_MKEY: u32 = 1 << 1;
/// `MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH`
pub(crate) const CMDS_SUPP_UHW: u8 = 3;
/// `MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA`
pub(crate) const EVENT_CHANNEL_OMIT_DATA: u32 = 1;
/// `MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT`
pub(crate) const REG_DMABUF_DATA_DIRECT: u32 = 1;
