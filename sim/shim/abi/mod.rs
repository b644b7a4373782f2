//! The bytes of the uverbs ABI (`rdma/*.h` of the kernel's user headers): structures, object and method numbers.
//!
//! Knows: what lies where. Must not know: what a command does.

mod layout;
pub(crate) mod mlx5;
pub(crate) mod verbs;

pub use layout::Layout;
pub(crate) use layout::{Field, abi, copy, padded};

/// All structures, for the comparison with the C headers.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    verbs::LAYOUTS.iter().chain(mlx5::LAYOUTS)
}

/// Numbers by their names in C, for the same comparison.
pub fn constants() -> &'static [(&'static str, u64)] {
    &[
        ("RDMA_VERBS_IOCTL", verbs::IOCTL as u64),
        ("sizeof(struct ib_uverbs_attr)", verbs::ATTR as u64),
        ("UVERBS_ATTR_F_MANDATORY", verbs::ATTR_MANDATORY as u64),
        (
            "UVERBS_ATTR_F_VALID_OUTPUT",
            verbs::ATTR_VALID_OUTPUT as u64,
        ),
        ("UVERBS_ATTR_UHW_IN", verbs::UHW_IN as u64),
        ("UVERBS_ATTR_UHW_OUT", verbs::UHW_OUT as u64),
        ("RDMA_DRIVER_MLX5", verbs::DRIVER_MLX5 as u64),
        ("IB_USER_VERBS_CMD_FLAG_EXTENDED", verbs::EXTENDED),
        ("UVERBS_OBJECT_DEVICE", verbs::object::DEVICE as u64),
        ("UVERBS_OBJECT_PD", verbs::object::PD as u64),
        ("UVERBS_OBJECT_CQ", verbs::object::CQ as u64),
        ("UVERBS_OBJECT_QP", verbs::object::QP as u64),
        ("UVERBS_OBJECT_SRQ", verbs::object::SRQ as u64),
        ("UVERBS_OBJECT_AH", verbs::object::AH as u64),
        ("UVERBS_OBJECT_MR", verbs::object::MR as u64),
        (
            "UVERBS_OBJECT_ASYNC_EVENT",
            verbs::object::ASYNC_EVENT as u64,
        ),
        ("IB_USER_VERBS_CMD_QUERY_DEVICE", verbs::write::QUERY_DEVICE),
        ("IB_USER_VERBS_CMD_QUERY_PORT", verbs::write::QUERY_PORT),
        ("IB_USER_VERBS_CMD_ALLOC_PD", verbs::write::ALLOC_PD),
        ("IB_USER_VERBS_CMD_CREATE_AH", verbs::write::CREATE_AH),
        ("IB_USER_VERBS_CMD_REG_MR", verbs::write::REG_MR),
        (
            "IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL",
            verbs::write::CREATE_COMP_CHANNEL,
        ),
        ("IB_USER_VERBS_CMD_QUERY_QP", verbs::write::QUERY_QP),
        ("IB_USER_VERBS_CMD_MODIFY_QP", verbs::write::MODIFY_QP),
        ("IB_USER_VERBS_CMD_MODIFY_SRQ", verbs::write::MODIFY_SRQ),
        ("IB_USER_VERBS_CMD_QUERY_SRQ", verbs::write::QUERY_SRQ),
        ("IBV_EVENT_CQ_ERR", verbs::event::CQ_ERR as u64),
        ("IBV_EVENT_QP_FATAL", verbs::event::QP_FATAL as u64),
        ("IBV_EVENT_QP_REQ_ERR", verbs::event::QP_REQ_ERR as u64),
        (
            "IBV_EVENT_QP_ACCESS_ERR",
            verbs::event::QP_ACCESS_ERR as u64,
        ),
        ("IBV_EVENT_COMM_EST", verbs::event::COMM_EST as u64),
        ("IBV_EVENT_SQ_DRAINED", verbs::event::SQ_DRAINED as u64),
        ("IBV_EVENT_PATH_MIG", verbs::event::PATH_MIG as u64),
        ("IBV_EVENT_PATH_MIG_ERR", verbs::event::PATH_MIG_ERR as u64),
        ("IBV_EVENT_DEVICE_FATAL", verbs::event::DEVICE_FATAL as u64),
        ("IBV_EVENT_PORT_ACTIVE", verbs::event::PORT_ACTIVE as u64),
        ("IBV_EVENT_PORT_ERR", verbs::event::PORT_ERR as u64),
        ("IBV_EVENT_LID_CHANGE", verbs::event::LID_CHANGE as u64),
        ("IBV_EVENT_PKEY_CHANGE", verbs::event::PKEY_CHANGE as u64),
        ("IBV_EVENT_SRQ_ERR", verbs::event::SRQ_ERR as u64),
        (
            "IBV_EVENT_SRQ_LIMIT_REACHED",
            verbs::event::SRQ_LIMIT as u64,
        ),
        (
            "IBV_EVENT_QP_LAST_WQE_REACHED",
            verbs::event::QP_LAST_WQE as u64,
        ),
        (
            "IBV_EVENT_CLIENT_REREGISTER",
            verbs::event::CLIENT_REREGISTER as u64,
        ),
        ("IBV_EVENT_GID_CHANGE", verbs::event::GID_CHANGE as u64),
        ("MLX5_IB_OBJECT_DEVX", mlx5::object::DEVX as u64),
        ("MLX5_IB_OBJECT_DEVX_OBJ", mlx5::object::DEVX_OBJ as u64),
        ("MLX5_IB_OBJECT_DEVX_UMEM", mlx5::object::DEVX_UMEM as u64),
        (
            "MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD",
            mlx5::object::DEVX_ASYNC_CMD_FD as u64,
        ),
        (
            "MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD",
            mlx5::object::DEVX_ASYNC_EVENT_FD as u64,
        ),
        ("MLX5_IB_OBJECT_UAR", mlx5::object::UAR as u64),
        (
            "MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX",
            mlx5::CQ_UAR_PAGE_INDEX as u64,
        ),
        ("MLX5_QP_FLAG_SIGNATURE", mlx5::QP_SIGNATURE as u64),
        (
            "MLX5_QP_FLAG_UAR_PAGE_INDEX",
            mlx5::QP_UAR_PAGE_INDEX as u64,
        ),
        ("MLX5_SRQ_FLAG_SIGNATURE", mlx5::SRQ_SIGNATURE as u64),
        ("MLX5_IB_ALLOC_UCTX_DEVX", mlx5::UCTX_DEVX as u64),
        ("MLX5_LIB_CAP_DYN_UAR", mlx5::LIB_CAP_DYN_UAR),
        (
            "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY",
            mlx5::RESP_DUMP_FILL_MKEY as u64,
        ),
        (
            "(MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH)",
            mlx5::CMDS_SUPP_UHW as u64,
        ),
        (
            "MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA",
            mlx5::EVENT_CHANNEL_OMIT_DATA as u64,
        ),
    ]
}
