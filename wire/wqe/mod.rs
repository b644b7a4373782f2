//! Work queue elements.
//!
//! Knows: the bytes of each segment, one file a segment, and how segments make a WQE.
//! Must not know: where a queue lies, what its indices are, who fetches it.
//!
//! A send WQE is `ds` segments of 16 bytes: control, then remote address for one-sided operations, operands of atomics, then
//! data: pointers or inline bytes. It occupies whole basic blocks (WQEBB) of four segments. A receive WQE is pointers alone.
//!
//! Builders give a segment as [`Segment`]: two words as a little-endian machine stores them, every byte defined (rule
//! O1), so that device code writes a segment with one 16-byte store. They are branch-free; the byte swaps of values that
//! stay the same across posts move out of the caller's loop.

mod atomic;
mod control;
mod data;
mod decode;
mod inline;
mod opcode;
mod receive;
mod remote;
mod wait;

pub use atomic::{
    Atomic, AtomicOperands, MASKED_4, MASKED_8, MaskedCompareSwap4, MaskedCompareSwap8,
    MaskedFetchAdd4, MaskedFetchAdd8, compare_swap, fetch_add, masked_compare_swap_4,
    masked_compare_swap_8, masked_fetch_add_4, masked_fetch_add_8, masked_sum, masked_swapped,
};
pub use control::{
    CompletionMode, Control, FENCE, FenceMode, INITIATOR_SMALL_FENCE, MAX_DS, RESERVED_FLAGS,
    SIGNALLED, SOLICITED, control, control_head, qpn_ds, with_opmod,
};
pub use data::{DataPointer, INVALID_LKEY, MAX_BYTE_COUNT, data};
pub use decode::{Data, DataSegments, Error, Wqe};
pub use inline::{
    HEAD_BYTES as INLINE_HEAD_BYTES, INLINE, InlineHeader, MAX_INLINE_ONE_WQEBB, inline_head,
    inline_room, inline_segments,
};
pub use opcode::Opcode;
pub use receive::{Receive, ReceiveError, SrqNext, receive_end, srq_next};
pub use remote::{RemoteAddress, remote};
pub use wait::{Wait, wait};

/// Bytes of a segment.
pub const SEGMENT: usize = 16;
/// Bytes of a basic block (`MLX5_SEND_WQE_BB`).
pub const WQEBB: usize = 64;
/// Segments of a basic block.
pub const SEGMENTS_PER_WQEBB: u32 = (WQEBB / SEGMENT) as u32;

/// A segment as two words, the first of which holds bytes 0 to 7 with byte 0 lowest.
pub type Segment = [u64; 2];

/// The bytes of a segment.
pub const fn segment_bytes(segment: Segment) -> [u8; SEGMENT] {
    let low = segment[0] as u128;
    let high = segment[1] as u128;
    (low | (high << 64)).to_le_bytes()
}

/// Basic blocks that `ds` segments occupy.
#[inline(always)]
pub const fn wqebbs(ds: u32) -> u32 {
    ds.div_ceil(SEGMENTS_PER_WQEBB)
}

/// Two big-endian 32-bit fields, one after the other, as one word.
#[inline(always)]
const fn pair(first: u32, second: u32) -> u64 {
    first.swap_bytes() as u64 | ((second.swap_bytes() as u64) << 32)
}
