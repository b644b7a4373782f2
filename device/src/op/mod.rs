//! What a caller asks for: operations, and the WQEs that they are.
//!
//! Knows: which segments each operation has (their bytes are `wire`'s). Must not know: indices beyond its own, ordering, who
//! posts.
//!
//! An operation is a value ([`Work`]), made by its constructor, which refuses what the NIC would, and posted by
//! [`Sq::post`](crate::Sq::post) and its kin in every scope. Operations are put together: [`Then`] is two of them in order,
//! `Option` one that may be left out, [`Either`] one or another, an array several, and all of these are one post: one reserve, one ring.

mod atomic;
mod compose;
mod control;
mod gather;
mod inline;
mod memory;
mod place;
mod source;
mod transfer;

pub use atomic::{
    CompareSwap, FetchAdd, MaskedCompareSwap4, MaskedCompareSwap8, MaskedFetchAdd4, MaskedFetchAdd8,
};
pub use compose::{Either, Fenced, Outlined, Signalled, Then};
pub use control::{Dump, Nop, WaitCqe};
pub use gather::{Piece, Pieces, ReadInto, SendFrom, WriteFrom};
pub use inline::{Inline, InlineFrom, SendInline, WriteInline, WriteInlineFrom};
pub use memory::{Length, Local, LocalView, Remote, RemoteView};
pub use place::{Filled, Slot};
pub use source::{List, Source, Strided};
pub use transfer::{Chunks, Direction, Read, Send, SendImm, Write, WriteImm};

pub(crate) use place::Place;

mod sealed {
    use super::{Filled, Place};

    /// What a post needs of an operation.
    pub trait Fill: Copy {
        /// WQEBBs of the operation, if it is the same for each of its kind; else 0.
        const WQEBBS: u32;
        /// True if each WQE is one WQEBB.
        const SHORT: bool = Self::WQEBBS == 1;
        /// WQEBBs that it takes.
        fn wqebbs(&self) -> u32 {
            Self::WQEBBS
        }
        /// WQEs.
        fn wqes(&self) -> u32 {
            if Self::SHORT { self.wqebbs() } else { 1 }
        }
        /// Writes the WQEs, from the place on. Never called with none.
        fn fill(self, place: Place) -> Filled;
    }

    /// Of this crate's sources.
    pub trait Listed {}
}
pub(crate) use sealed::Fill;

/// An operation, or several that are posted together. Values of this crate only.
pub trait Work: Fill {
    /// WQEBBs that it takes.
    #[inline(always)]
    fn blocks(&self) -> u32 {
        self.wqebbs()
    }
}
impl<W: Fill> Work for W {}
