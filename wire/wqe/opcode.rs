//! WQE opcodes (`MLX5_OPCODE_*` of mlx5dv.h; `DUMP` of Linux's `mlx5/device.h`; `WAIT` of DOCA GPUNetIO).

use crate::layout::open_enum;

open_enum! {
    /// What a WQE asks for.
    pub enum Opcode: u8 {
        /// Nothing, in order.
        Nop = 0x00 as "MLX5_OPCODE_NOP",
        /// Send, and invalidate a remote key.
        SendInvalidate = 0x01 as "MLX5_OPCODE_SEND_INVAL",
        /// RDMA WRITE.
        RdmaWrite = 0x08 as "MLX5_OPCODE_RDMA_WRITE",
        /// RDMA WRITE with immediate data.
        RdmaWriteImmediate = 0x09 as "MLX5_OPCODE_RDMA_WRITE_IMM",
        /// Send.
        Send = 0x0a as "MLX5_OPCODE_SEND",
        /// Send with immediate data.
        SendImmediate = 0x0b as "MLX5_OPCODE_SEND_IMM",
        /// Wait for a completion queue.
        Wait = 0x0f,
        /// RDMA READ.
        RdmaRead = 0x10 as "MLX5_OPCODE_RDMA_READ",
        /// Compare and swap.
        AtomicCompareSwap = 0x11 as "MLX5_OPCODE_ATOMIC_CS",
        /// Fetch and add.
        AtomicFetchAdd = 0x12 as "MLX5_OPCODE_ATOMIC_FA",
        /// Masked compare and swap.
        AtomicMaskedCompareSwap = 0x14 as "MLX5_OPCODE_ATOMIC_MASKED_CS",
        /// Masked fetch and add.
        AtomicMaskedFetchAdd = 0x15 as "MLX5_OPCODE_ATOMIC_MASKED_FA",
        /// Reads local memory and drops it: completes after earlier reads have become visible.
        Dump = 0x23 as "MLX5_OPCODE_DUMP",
        /// User-mode memory registration.
        Umr = 0x25 as "MLX5_OPCODE_UMR",
    }
}

impl Opcode {
    /// True if the second segment is a remote address.
    pub const fn has_remote(self) -> bool {
        matches!(
            self,
            Self::RdmaWrite
                | Self::RdmaWriteImmediate
                | Self::RdmaRead
                | Self::AtomicCompareSwap
                | Self::AtomicFetchAdd
                | Self::AtomicMaskedCompareSwap
                | Self::AtomicMaskedFetchAdd
        )
    }

    /// True if the WQE may carry its data inline.
    pub const fn may_inline(self) -> bool {
        matches!(
            self,
            Self::SendInvalidate
                | Self::Send
                | Self::SendImmediate
                | Self::RdmaWrite
                | Self::RdmaWriteImmediate
        )
    }

    /// True of an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(
            self,
            Self::AtomicCompareSwap
                | Self::AtomicFetchAdd
                | Self::AtomicMaskedCompareSwap
                | Self::AtomicMaskedFetchAdd
        )
    }

    /// True of what [`crate::wqe::Wqe::decode`] understands.
    pub const fn is_supported(self) -> bool {
        matches!(self, Self::Nop | Self::Dump | Self::RdmaRead | Self::Wait)
            || self.may_inline()
            || self.is_atomic()
    }
}
