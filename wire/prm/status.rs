//! Status of a command (PRM "Command Return Status"; `MLX5_CMD_STAT_*` of Linux's `mlx5/device.h`).

use crate::layout::open_enum;

open_enum! {
    /// How a command ended.
    pub enum Status: u8 {
        /// It succeeded.
        Ok = 0x00 as "MLX5_CMD_STAT_OK",
        /// Internal error.
        InternalError = 0x01 as "MLX5_CMD_STAT_INT_ERR",
        /// The opcode or its variant is not supported.
        BadOperation = 0x02 as "MLX5_CMD_STAT_BAD_OP_ERR",
        /// A parameter is wrong: reserved bits set, a value out of range, an unsupported combination.
        BadParameter = 0x03 as "MLX5_CMD_STAT_BAD_PARAM_ERR",
        /// The device is not in the state that the command needs.
        BadSystemState = 0x04 as "MLX5_CMD_STAT_BAD_SYS_STATE_ERR",
        /// The object does not exist or is not the caller's.
        BadResource = 0x05 as "MLX5_CMD_STAT_BAD_RES_ERR",
        /// The object is in use.
        ResourceBusy = 0x06 as "MLX5_CMD_STAT_RES_BUSY",
        /// Not ready.
        NotReady = 0x07 as "MLX5_CMD_STAT_NOT_READY",
        /// A limit is exceeded.
        LimitExceeded = 0x08 as "MLX5_CMD_STAT_LIM_ERR",
        /// The object is not in the state that the command needs.
        BadResourceState = 0x09 as "MLX5_CMD_STAT_BAD_RES_STATE_ERR",
        /// An index is out of range.
        BadIndex = 0x0a as "MLX5_CMD_STAT_IX_ERR",
        /// No such resource is left.
        NoResources = 0x0f as "MLX5_CMD_STAT_NO_RES_ERR",
        /// The QP is not in the state that the transition needs.
        BadQpState = 0x10 as "MLX5_CMD_STAT_BAD_QP_STATE_ERR",
        /// A bad management packet.
        BadPacket = 0x30 as "MLX5_CMD_STAT_BAD_PKT_ERR",
        /// More outstanding CQEs than the CQ's new size holds.
        BadOutstandingCqes = 0x40 as "MLX5_CMD_STAT_BAD_SIZE_OUTS_CQES_ERR",
        /// The input mailbox has a wrong length.
        BadInputLength = 0x50 as "MLX5_CMD_STAT_BAD_INP_LEN_ERR",
        /// The output mailbox has a wrong length.
        BadOutputLength = 0x51 as "MLX5_CMD_STAT_BAD_OUTP_LEN_ERR",
    }
}
