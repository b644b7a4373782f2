//! Memory that operations name, and views that know its bounds.
//!
//! Knows: which addresses and lengths can be said. Must not know: what is done with them.

use crate::error::Error;

/// Local memory, as the NIC addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Address.
    pub addr: u64,
    /// Key.
    pub lkey: u32,
}

/// The peer's memory, as its NIC addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

impl Local {
    /// The memory `bytes` further.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(bytes),
            lkey: self.lkey,
        }
    }
}

impl Remote {
    /// The memory `bytes` further.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(bytes),
            rkey: self.rkey,
        }
    }
}

/// Bytes of one message: not zero, at most the port's largest (rule O12), so never `byte_count`'s bit 31.
///
/// Made by [`Sq::length`](crate::Sq::length).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length(u32);

impl Length {
    /// A length of at most `2^log_max` bytes.
    #[inline(always)]
    pub(crate) fn new(bytes: u32, log_max: u32) -> Option<Self> {
        // One comparison for both ends: 0 wraps to the top. `log_max` was checked to be at most 30 when the
        // queue was opened.
        (bytes.wrapping_sub(1) < 1 << log_max).then_some(Self(bytes))
    }

    /// A length of 1 to `2^log_max` bytes, where `log_max` is a queue's
    /// ([`Sq::log_max_message`](crate::Sq::log_max_message)).
    #[inline(always)]
    pub fn of(bytes: u64, log_max: u32) -> Option<Self> {
        let log_max = if log_max > 30 { 30 } else { log_max };
        Self::of_one(bytes, log_max)
    }

    /// The bytes.
    #[inline(always)]
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// The first of `len` bytes, `2^log_max` at most; `len` is not zero.
    #[inline(always)]
    pub(crate) fn first_of(len: u64, log_max: u32) -> Self {
        let max = 1 << log_max;
        Self(if len < max { len as u32 } else { max as u32 })
    }

    /// All of `len` bytes, if they are at most `2^log_max`, and some.
    #[inline(always)]
    pub(crate) fn of_one(len: u64, log_max: u32) -> Option<Self> {
        (len.wrapping_sub(1) < 1 << log_max).then_some(Self(len as u32))
    }

    /// What makes other bytes visible.
    pub(crate) const ONE: Self = Self(1);
    /// An atomic's value.
    pub(crate) const FOUR: Self = Self(4);
    /// An atomic's value.
    pub(crate) const EIGHT: Self = Self(8);
}

macro_rules! view {
    ($(#[$doc:meta])* $name:ident: $memory:ident, $key:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            addr: u64,
            len: u64,
            $key: u32,
        }

        impl $name {
            /// The `len` bytes from `memory` on.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidArgument`] if they go beyond the address space.
            #[inline(always)]
            pub const fn new(memory: $memory, len: u64) -> Result<Self, Error> {
                match memory.addr.checked_add(len) {
                    Some(_) => Ok(Self {
                        addr: memory.addr,
                        len,
                        $key: memory.$key,
                    }),
                    None => Err(Error::InvalidArgument),
                }
            }

            /// Its bytes.
            #[inline(always)]
            pub const fn len(&self) -> u64 {
                self.len
            }

            /// True if it has none.
            #[inline(always)]
            pub const fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// The memory of `len` bytes at `offset`.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidArgument`] if one of them is outside.
            #[inline(always)]
            pub const fn at(&self, offset: u64, len: u64) -> Result<$memory, Error> {
                if len > self.len || offset > self.len - len {
                    return Err(Error::InvalidArgument);
                }
                Ok($memory {
                    addr: self.addr + offset,
                    $key: self.$key,
                })
            }
        }
    };
}
view! {
    /// Local memory with its bounds.
    LocalView: Local, lkey
}
view! {
    /// The peer's memory with its bounds.
    RemoteView: Remote, rkey
}
