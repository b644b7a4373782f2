//! Several operations as one.
//!
//! Knows: how places follow each other. Must not know: which operations they are.

use warpverbs_wire::wqe::{self, FenceMode};

use super::Fill;
use super::place::{Filled, Place};

/// One operation, then another, in one post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Then<A, B>(pub A, pub B);

impl<A: Fill, B: Fill> Fill for Then<A, B> {
    const WQEBBS: u32 = if A::WQEBBS == 0 || B::WQEBBS == 0 {
        0
    } else {
        A::WQEBBS + B::WQEBBS
    };
    const SHORT: bool = A::SHORT && B::SHORT;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        self.0.wqebbs().saturating_add(self.1.wqebbs())
    }
    #[inline(always)]
    fn wqes(&self) -> u32 {
        self.0.wqes().saturating_add(self.1.wqes())
    }
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        let (first, second) = (self.0.wqebbs(), self.1.wqebbs());
        if second == 0 {
            return self.0.fill(place);
        }
        if first == 0 {
            return self.1.fill(place);
        }
        self.0.fill(place);
        self.1.fill(place.ahead(first))
    }
}

impl<W: Fill> Fill for Option<W> {
    const WQEBBS: u32 = 0;
    const SHORT: bool = W::SHORT;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        match self {
            Some(work) => work.wqebbs(),
            None => 0,
        }
    }
    #[inline(always)]
    fn wqes(&self) -> u32 {
        match self {
            Some(work) => work.wqes(),
            None => 0,
        }
    }
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        match self {
            Some(work) => work.fill(place),
            None => Filled::NONE,
        }
    }
}

/// One operation or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The one.
    Left(A),
    /// The other.
    Right(B),
}

impl<A: Fill, B: Fill> Fill for Either<A, B> {
    const WQEBBS: u32 = if A::WQEBBS == B::WQEBBS { A::WQEBBS } else { 0 };
    const SHORT: bool = A::SHORT && B::SHORT;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        match self {
            Self::Left(work) => work.wqebbs(),
            Self::Right(work) => work.wqebbs(),
        }
    }
    #[inline(always)]
    fn wqes(&self) -> u32 {
        match self {
            Self::Left(work) => work.wqes(),
            Self::Right(work) => work.wqes(),
        }
    }
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        match self {
            Self::Left(work) => work.fill(place),
            Self::Right(work) => work.fill(place),
        }
    }
}

impl<W: Fill, const N: usize> Fill for [W; N] {
    const WQEBBS: u32 = W::WQEBBS * N as u32;
    const SHORT: bool = W::SHORT;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        let mut sum = 0u32;
        for work in self {
            sum = sum.saturating_add(work.wqebbs());
        }
        sum
    }
    #[inline(always)]
    fn wqes(&self) -> u32 {
        let mut sum = 0u32;
        for work in self {
            sum = sum.saturating_add(work.wqes());
        }
        sum
    }
    #[inline(always)]
    fn fill(self, mut place: Place) -> Filled {
        let mut last = Filled::NONE;
        for work in self {
            let wqebbs = work.wqebbs();
            if wqebbs != 0 {
                last = work.fill(place);
                place = place.ahead(wqebbs);
            }
        }
        last
    }
}

/// An operation, and all behind it in the queue, that starts when what it names is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced<W> {
    work: W,
    flags: u8,
}

impl<W: Fill> Fenced<W> {
    /// Behind earlier READs and atomics: what they fetch is there.
    #[inline(always)]
    pub const fn reads(work: W) -> Self {
        Self {
            work,
            flags: wqe::FENCE,
        }
    }

    /// Behind all earlier WQEs.
    #[inline(always)]
    pub const fn all(work: W) -> Self {
        Self {
            work,
            flags: FenceMode::StrongOrdering.code() << 5,
        }
    }
}

impl<W: Fill> Fill for Fenced<W> {
    const WQEBBS: u32 = W::WQEBBS;
    const SHORT: bool = W::SHORT;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        self.work.wqebbs()
    }
    #[inline(always)]
    fn wqes(&self) -> u32 {
        self.work.wqes()
    }
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        self.work.fill(Place {
            fence: self.flags,
            ..place
        })
    }
}

/// An operation whose WQEs all have a CQE, whatever the form of the CQ says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signalled<W>(pub W);

impl<W: Fill> Fill for Signalled<W> {
    const WQEBBS: u32 = W::WQEBBS;
    const SHORT: bool = W::SHORT;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        self.0.wqebbs()
    }
    #[inline(always)]
    fn wqes(&self) -> u32 {
        self.0.wqes()
    }
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        self.0.fill(Place { every: 1, ..place })
    }
}

/// An operation that is written by a function that is called, not by code in each place where it is posted: for programs that
/// post it in many modes. (In kernels of one mode it costs calls and local memory, and saves nothing.)
#[derive(Clone, Copy, Debug)]
pub struct Outlined<'a, W>(pub &'a W);

#[inline(never)]
fn outlined_size<W: Fill>(work: &W) -> (u32, u32) {
    (work.wqebbs(), work.wqes())
}

#[inline(never)]
fn outlined_fill<W: Fill>(work: &W, place: Place) -> Filled {
    work.fill(place)
}

impl<W: Fill> Fill for Outlined<'_, W> {
    const WQEBBS: u32 = 0;
    const SHORT: bool = W::SHORT;
    #[inline(always)]
    fn wqebbs(&self) -> u32 {
        outlined_size(self.0).0
    }
    #[inline(always)]
    fn wqes(&self) -> u32 {
        outlined_size(self.0).1
    }
    #[inline(always)]
    fn fill(self, place: Place) -> Filled {
        outlined_fill(self.0, place)
    }
}

impl Filled {
    /// Of no WQE.
    pub(crate) const NONE: Self = Self { head: 0, more: 0 };
}
