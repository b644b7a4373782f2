//! Receive WQEs: data pointers, ended by one with [`INVALID_LKEY`] where the queue's WQEs have room for more; in a shared
//! receive queue a next segment comes first (`mlx5_wqe_srq_next_seg`).
//!
//! | bits of a next segment | field |
//! |---|---|
//! | 16..32 | index of the WQE that follows this one, in a queue that is a linked list |
//! | 32..40 | signature |

use core::fmt;

use crate::layout::structure;
use crate::wqe::{DataPointer, INLINE, INVALID_LKEY, SEGMENT, Segment, data, pair};

structure! {
    /// A next segment.
    pub struct SrqNext: Mlx5dv "mlx5_wqe_srq_next_seg", 128 bits {
        /// Index of the WQE that follows this one.
        next = "next_wqe_index": u16 => 16, 16;
        /// Signature; zero where the queue has none.
        signature: u8 => 32, 8;
    }
}

/// A next segment.
#[inline(always)]
pub const fn srq_next(next: u16) -> Segment {
    [pair(next as u32, 0), 0]
}

/// The pointer that ends a receive WQE with room for more.
#[inline(always)]
pub const fn receive_end() -> Segment {
    data(0, INVALID_LKEY, 0)
}

/// A receive WQE that was found well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive<'a> {
    /// The next segment, of a shared receive queue.
    pub next: Option<SrqNext>,
    data: &'a [u8],
}

/// Why bytes are not a receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The bytes are not whole segments, or lack the next segment.
    Length(usize),
    /// A reserved byte of the next segment is not zero.
    ReservedNotZero {
        /// Byte of the WQE.
        byte: usize,
    },
    /// A data segment is inline, which only send WQEs have.
    Inline {
        /// Byte of the WQE.
        byte: usize,
    },
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length(len) => write!(f, "a receive WQE of {len} bytes"),
            Self::ReservedNotZero { byte } => write!(f, "reserved byte {byte} is not zero"),
            Self::Inline { byte } => write!(f, "an inline segment at byte {byte}"),
        }
    }
}

impl core::error::Error for ReceiveError {}

impl<'a> Receive<'a> {
    /// Reads a receive WQE that fills `bytes`, one stride of its queue. `shared`: it begins with a next segment.
    pub fn decode(bytes: &'a [u8], shared: bool) -> Result<Self, ReceiveError> {
        let length = ReceiveError::Length(bytes.len());
        if !bytes.len().is_multiple_of(SEGMENT) {
            return Err(length);
        }
        let (next, mut data) = if shared {
            if let Some(bit) = SrqNext::reserved_nonzero(bytes) {
                return Err(ReceiveError::ReservedNotZero {
                    byte: (bit / 8) as usize,
                });
            }
            let next = SrqNext::parse(bytes).map_err(|_| length)?;
            (Some(next), bytes.get(SEGMENT..).unwrap_or_default())
        } else {
            (None, bytes)
        };
        let before = bytes.len() - data.len();
        let mut end = 0;
        while let Ok(pointer) = DataPointer::parse(data.get(end..).unwrap_or_default()) {
            if pointer.key == INVALID_LKEY {
                break;
            }
            if pointer.byte_count & INLINE != 0 {
                return Err(ReceiveError::Inline { byte: before + end });
            }
            end += SEGMENT;
        }
        data = data.get(..end).unwrap_or_default();
        Ok(Self { next, data })
    }

    /// The WQE's buffers.
    pub fn data(&self) -> impl Iterator<Item = DataPointer> + use<'a> {
        self.data
            .chunks_exact(SEGMENT)
            .filter_map(|segment| DataPointer::parse(segment).ok())
    }

    /// Bytes of all buffers.
    pub fn byte_count(&self) -> u64 {
        self.data().map(|pointer| pointer.len()).sum()
    }
}

impl fmt::Display for Receive<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "receive of {} bytes", self.byte_count())?;
        if let Some(next) = &self.next {
            write!(f, "\n{next}")?;
        }
        self.data().try_for_each(|pointer| write!(f, "\n{pointer}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::segment_bytes;

    #[test]
    fn golden_bytes() {
        assert_eq!(
            segment_bytes(srq_next(0x1234)),
            [0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            SrqNext {
                next: 0x1234,
                signature: 0x56
            }
            .emit()[..5],
            [0, 0, 0x12, 0x34, 0x56]
        );
        assert_eq!(
            segment_bytes(receive_end()),
            [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
