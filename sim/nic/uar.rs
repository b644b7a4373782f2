//! Doorbell pages (UARs) and what a store to one means.
//!
//! Knows: the registers of a page.
//! Must not know: queue pairs.

use warpverbs_wire::doorbell::{REGISTER, REGISTER_CQ_ARM, REGISTER_NO_DBR};

/// Kinds of doorbell page (`MLX5DV_UAR_ALLOC_TYPE_*`). All answer the same registers; they differ in how a CPU maps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UarKind {
    /// Not cached, and shared with no other allocation.
    NonCachedDedicated,
    /// Not cached.
    NonCached,
    /// Write-combining, for BlueFlame.
    BlueFlame,
}

/// A doorbell page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uar {
    /// Whose it is.
    pub(crate) uid: u16,
    pub(crate) kind: UarKind,
}

/// log2 of a page's bytes: `log_uar_page_sz` 0, 4 KiB pages.
pub(crate) const LOG_PAGE: u32 = 12;
/// The CQ doorbell (`MLX5_CQ_DOORBELL`).
const CQ_DOORBELL: u64 = REGISTER_CQ_ARM as u64;
/// The send doorbell: first BlueFlame buffer (`MLX5_BF_OFFSET`).
const SEND_DOORBELL: u64 = REGISTER as u64;
/// The send doorbell of QPs without doorbell record.
const NO_DBR_DOORBELL: u64 = REGISTER_NO_DBR as u64;
/// Bytes of a BlueFlame buffer: half of `log_bf_reg_size`. The first 8 are a doorbell.
const BUFFER: u64 = 0x100;
/// End of the page's four BlueFlame buffers: two registers of two (rdma-core providers/mlx5, alternating buffers).
const BUFFERS_END: u64 = SEND_DOORBELL + 4 * BUFFER;

/// What an offset in a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    /// A send queue doorbell.
    Send,
    /// A send queue doorbell of QPs without doorbell record.
    SendNoDbr,
    /// A completion queue doorbell: arms the CQ for an event.
    CqArm,
    /// A BlueFlame buffer beyond the doorbell itself.
    BlueFlame,
    /// Nothing.
    None,
}

/// The page number and register at byte `offset` of the BAR.
pub(crate) fn locate(offset: u64) -> (u32, Register) {
    let page = (offset >> LOG_PAGE) as u32;
    let register = match offset & ((1 << LOG_PAGE) - 1) {
        CQ_DOORBELL => Register::CqArm,
        NO_DBR_DOORBELL => Register::SendNoDbr,
        at @ SEND_DOORBELL..BUFFERS_END if at.is_multiple_of(BUFFER) => Register::Send,
        at @ SEND_DOORBELL..BUFFERS_END if at.is_multiple_of(8) => Register::BlueFlame,
        _ => Register::None,
    };
    (page, register)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_name_page_and_register() {
        assert_eq!(locate(0x3800), (3, Register::Send));
        assert_eq!(locate(0x1020), (1, Register::CqArm));
        assert_eq!(locate(0x1804), (1, Register::None));
        assert_eq!(locate(0x1808), (1, Register::BlueFlame));
        assert_eq!(locate(0x1900), (1, Register::Send));
        assert_eq!(locate(0x1bf8), (1, Register::BlueFlame));
        assert_eq!(locate(0x1600), (1, Register::SendNoDbr));
        assert_eq!(locate(0x1000), (1, Register::None));
        assert_eq!(locate(0x1c00), (1, Register::None));
    }
}
