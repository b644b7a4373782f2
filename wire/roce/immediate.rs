//! Immediate data (IBA 9.3) and the key that a send invalidates (IETH, IBA 9.3): 32 bits each.

use crate::layout::structure;

structure! {
    /// Immediate data.
    pub struct ImmDt: Iba "immdt", 32 bits {
        /// The data, as a number in network byte order.
        immediate: u32 => 0, 32;
    }
}

structure! {
    /// A key that the receiver invalidates.
    pub struct Ieth: Iba "ieth", 32 bits {
        /// The key.
        key: u32 => 0, 32;
    }
}
