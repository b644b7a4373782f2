//! Builders: operands of one form to one operation.

pub(super) mod alu;
pub(super) mod compare;
pub(super) mod flow;
pub(super) mod memory;
pub(super) mod moves;
pub(super) mod warp;

/// Splits an operand list of a fixed length.
macro_rules! operands {
    ($cx:expr, $ops:expr, $($name:ident),+) => {
        let [$($name),+] = $ops else {
            return $cx.fail(concat!("operands expected: ", stringify!($($name),+)));
        };
    };
}
pub(super) use operands;
