//! Remote atomics.
//!
//! Knows: their operand segments and the alignment that they need. Must not know: who waits for the value that was found.
//!
//! The value that an atomic finds is written to local memory, by which the NIC gives it in the order of this host
//! (little-endian). Its completion may not prove that it is visible to this GPU (rule O14).

use warpverbs_wire::wqe::{self, MASKED_4, MASKED_8, Opcode};

use super::place::{Filled, Head, Place};
use super::{Fill, Length, Local, Remote};
use crate::error::Error;

/// Refuses what is not aligned to `2^LOG` bytes, here and there.
#[inline(always)]
fn aligned<const LOG: u32>(fetched: Local, remote: Remote) -> Result<(), Error> {
    if (fetched.addr | remote.addr) & ((1 << LOG) - 1) == 0 {
        Ok(())
    } else {
        Err(Error::InvalidArgument)
    }
}

macro_rules! atomic {
    (
        $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty),* }
        $opcode:ident, opmod $opmod:expr, log $log:literal, $length:ident, $operands:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            fetched: Local,
            remote: Remote,
            $($(#[$field_doc])* $field: $ty,)*
        }

        impl $name {
            /// The operation on `remote`; what it finds there is written to `fetched`.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidArgument`] if one of the addresses is not aligned to the operand's size.
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            pub fn new(fetched: Local, remote: Remote, $($field: $ty),*) -> Result<Self, Error> {
                aligned::<$log>(fetched, remote)?;
                Ok(Self { fetched, remote, $($field),* })
            }
        }

        impl Fill for $name {
            const WQEBBS: u32 = 1;
            #[inline(always)]
            fn fill(self, place: Place) -> Filled {
                let Self { fetched, remote, $($field),* } = self;
                place.short(
                    Head { opmod: $opmod, ..Head::new(Opcode::$opcode) },
                    [
                        wqe::remote(remote.addr, remote.rkey),
                        $operands,
                        wqe::data(Length::$length.bytes(), fetched.lkey, fetched.addr),
                    ],
                )
            }
        }
    };
}

atomic! {
    /// Fetch and add of 8 bytes.
    FetchAdd {
        /// What is added.
        add: u64
    }
    AtomicFetchAdd, opmod 0, log 3, EIGHT, wqe::fetch_add(add)
}
atomic! {
    /// Compare and swap of 8 bytes.
    CompareSwap {
        /// What is compared with.
        compare: u64,
        /// What is swapped in if equal.
        swap: u64
    }
    AtomicCompareSwap, opmod 0, log 3, EIGHT, wqe::compare_swap(swap, compare)
}
atomic! {
    /// Fetch and add of 4 bytes, where no carry leaves a bit that is set in `boundary`.
    MaskedFetchAdd4 {
        /// What is added.
        add: u32,
        /// The highest bit of each field; 0: one field.
        boundary: u32
    }
    AtomicMaskedFetchAdd, opmod MASKED_4, log 2, FOUR, wqe::masked_fetch_add_4(add, boundary)
}
atomic! {
    /// Fetch and add of 8 bytes, where no carry leaves a bit that is set in `boundary`.
    MaskedFetchAdd8 {
        /// What is added.
        add: u64,
        /// The highest bit of each field; 0: one field.
        boundary: u64
    }
    AtomicMaskedFetchAdd, opmod MASKED_8, log 3, EIGHT, wqe::masked_fetch_add_8(add, boundary)
}
atomic! {
    /// Compare and swap of 4 bytes: the bits of `compare_mask` are compared, those of `swap_mask` swapped.
    MaskedCompareSwap4 {
        /// What is compared with.
        compare: u32,
        /// Which bits are compared.
        compare_mask: u32,
        /// What is swapped in if equal.
        swap: u32,
        /// Which bits are swapped.
        swap_mask: u32
    }
    AtomicMaskedCompareSwap, opmod MASKED_4, log 2, FOUR,
    wqe::masked_compare_swap_4(swap, compare, swap_mask, compare_mask)
}

/// Compare and swap of 8 bytes: the bits of `compare_mask` are compared, those of `swap_mask` swapped. Two WQEBBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedCompareSwap8 {
    fetched: Local,
    remote: Remote,
    compare: u64,
    compare_mask: u64,
    swap: u64,
    swap_mask: u64,
}

impl MaskedCompareSwap8 {
    /// The operation on `remote`; what it finds there is written to `fetched`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if one of the addresses is not aligned to 8 bytes.
    #[inline(always)]
    pub fn new(
        fetched: Local,
        remote: Remote,
        compare: u64,
        compare_mask: u64,
        swap: u64,
        swap_mask: u64,
    ) -> Result<Self, Error> {
        aligned::<3>(fetched, remote)?;
        Ok(Self {
            fetched,
            remote,
            compare,
            compare_mask,
            swap,
            swap_mask,
        })
    }
}

impl Fill for MaskedCompareSwap8 {
    const WQEBBS: u32 = 2;
    const SHORT: bool = false;
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let head = Head {
            opmod: MASKED_8,
            ..Head::new(Opcode::AtomicMaskedCompareSwap)
        };
        let (mut segments, filled) = place.long(head, 5);
        segments.push(wqe::remote(self.remote.addr, self.remote.rkey));
        let [first, second] =
            wqe::masked_compare_swap_8(self.swap, self.compare, self.swap_mask, self.compare_mask);
        segments.push(first);
        segments.push(second);
        segments.push(wqe::data(
            Length::EIGHT.bytes(),
            self.fetched.lkey,
            self.fetched.addr,
        ));
        filled
    }
}
