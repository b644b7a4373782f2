//! Registered memory: ranges of bus addresses, and UMEMs made of them.
//!
//! Knows: bounds, page sizes and the offsets at which a queue may start.
//! Must not know: what lies in the memory.

use crate::error::NicError;

/// A range of memory as the NIC sees it. One range is one run of bus addresses: a list of pages is not modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRange {
    /// Bus address of the first byte.
    pub bus_addr: u64,
    /// Bytes.
    pub len: u64,
    /// Address by which work requests name the first byte.
    pub iova: u64,
}

impl DmaRange {
    /// Refuses an empty range and one that leaves either address space.
    pub(crate) fn validate(&self) -> Result<(), NicError> {
        if self.len == 0 {
            return Err(NicError::InvalidRange("it is empty"));
        }
        if self.bus_addr.checked_add(self.len).is_none()
            || self.iova.checked_add(self.len).is_none()
        {
            return Err(NicError::InvalidRange("it ends outside the address space"));
        }
        Ok(())
    }

    /// Bus address of `len` bytes at byte `offset`, if they lie inside.
    pub(crate) fn at_offset(&self, offset: u64, len: u64) -> Option<u64> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.bus_addr.wrapping_add(offset))
    }

    /// Bus address of `len` bytes at `iova`, if they lie inside.
    pub(crate) fn at_iova(&self, iova: u64, len: u64) -> Option<u64> {
        self.at_offset(iova.checked_sub(self.iova)?, len)
    }
}

/// Smallest page of the adapter (`MLX5_ADAPTER_PAGE_SHIFT`).
const MIN_PAGE: u64 = 1 << 12;

/// Memory for queues and doorbell records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Umem {
    /// Whose it is.
    pub(crate) uid: u16,
    range: DmaRange,
    /// `None`: the caller named no page sizes.
    page: Option<u64>,
    /// The NIC may write to it.
    writable: bool,
}

impl Umem {
    /// A UMEM over `range`, with the page size that the kernel would choose: the largest of the bitmap `page_sizes`
    /// that is no larger than the smallest page that covers the whole range (`ib_umem_find_best_pgsz` on one run of
    /// addresses).
    pub(crate) fn new(
        uid: u16,
        range: DmaRange,
        page_sizes: u64,
        writable: bool,
    ) -> Result<Self, NicError> {
        range.validate()?;
        if page_sizes == 0 {
            return Ok(Self {
                uid,
                range,
                page: None,
                writable,
            });
        }
        let last = range.bus_addr + (range.len - 1);
        let covering_bits = u64::BITS - (range.bus_addr ^ last).leading_zeros();
        let covering = 1u64
            .checked_shl(covering_bits)
            .unwrap_or(1 << 63)
            .max(MIN_PAGE);
        let usable = page_sizes & !(MIN_PAGE - 1) & (covering | (covering - 1));
        if usable == 0 {
            return Err(NicError::InvalidPageSizes(page_sizes));
        }
        Ok(Self {
            uid,
            range,
            page: Some(1 << usable.ilog2()),
            writable,
        })
    }

    /// True if a queue may start at `offset`. `page_offset` has 6 bits in units of 1/64 page (`qpc.page_offset`,
    /// `cqc.page_offset`), and a queue entry has 64 bytes. Without page sizes the kernel promises offset 0 only.
    pub(crate) fn is_queue_offset(&self, offset: u64) -> bool {
        match self.page {
            None => offset == 0 && self.range.bus_addr.is_multiple_of(64),
            Some(page) => self
                .range
                .bus_addr
                .wrapping_add(offset)
                .is_multiple_of((page / 64).max(64)),
        }
    }

    /// True if the NIC may write to it.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Bus address of `len` bytes at `offset`, if they lie inside.
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<u64> {
        self.range.at_offset(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bus_addr: u64, len: u64) -> DmaRange {
        DmaRange {
            bus_addr,
            len,
            iova: 0,
        }
    }

    #[test]
    fn the_page_is_at_most_64_times_the_offset_alignment() {
        let small = Umem::new(0, range(0x10_0000, 0x4_0000), 1 << 12, true).unwrap();
        assert!(small.is_queue_offset(64));
        let large = Umem::new(0, range(0x10_0000, 0x4_0000), (1 << 12) | (1 << 16), true).unwrap();
        assert!(
            !large.is_queue_offset(64),
            "64 KiB pages: multiples of 1 KiB"
        );
        assert!(large.is_queue_offset(1024));
        let covering = Umem::new(0, range(0x10_0000, 0x1000), (1 << 12) | (1 << 21), true).unwrap();
        assert!(
            covering.is_queue_offset(64),
            "2 MiB pages are larger than the range needs"
        );
        assert!(!small.is_queue_offset(32));
    }

    #[test]
    fn without_page_sizes_only_offset_zero_is_promised() {
        let umem = Umem::new(0, range(0x10_0000, 0x4000), 0, true).unwrap();
        assert!(umem.is_queue_offset(0));
        assert!(!umem.is_queue_offset(4096));
    }

    #[test]
    fn bad_ranges_and_page_sizes_are_refused() {
        assert!(matches!(
            Umem::new(0, range(0x1000, 0), 0, true),
            Err(NicError::InvalidRange(_))
        ));
        assert!(matches!(
            Umem::new(0, range(u64::MAX - 4, 64), 0, true),
            Err(NicError::InvalidRange(_))
        ));
        assert_eq!(
            Umem::new(0, range(0x1000, 64), 1 << 11, true).unwrap_err(),
            NicError::InvalidPageSizes(1 << 11)
        );
    }

    #[test]
    fn bounds_are_exact() {
        let range = DmaRange {
            bus_addr: 0x5000,
            len: 10,
            iova: 0x100,
        };
        assert_eq!(range.at_iova(0x105, 5), Some(0x5005));
        assert_eq!(range.at_iova(0x105, 6), None);
        assert_eq!(range.at_iova(0xff, 1), None);
        assert_eq!(range.at_iova(u64::MAX, 2), None);
    }
}
