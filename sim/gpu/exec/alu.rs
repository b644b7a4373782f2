//! What pure operations compute.
//!
//! Knows: PTX arithmetic on values, as functions of `u64`s that are zero-extended from the operation's width.
//! Must not know: registers, threads or memory.

use crate::ir::AluFn;
use crate::parse::ast::Ty;

/// An integer type of an operation.
pub(crate) trait Int: Copy + PartialOrd {
    const BITS: u32;
    const SIGNED: bool;
    /// The low bits of `v`.
    fn of(v: u64) -> Self;
    /// Its bits, zero-extended.
    fn bits(self) -> u64;
    /// Its value.
    fn wide(self) -> i128;
    fn div(self, by: Self) -> Self;
    fn rem(self, by: Self) -> Self;
}

macro_rules! int {
    ($($t:ty, $u:ty, $signed:expr;)*) => {$(
        impl Int for $t {
            const BITS: u32 = <$t>::BITS;
            const SIGNED: bool = $signed;
            #[inline]
            fn of(v: u64) -> Self {
                v as Self
            }
            #[inline]
            fn bits(self) -> u64 {
                u64::from(self as $u)
            }
            #[inline]
            fn wide(self) -> i128 {
                i128::from(self)
            }
            // Division by zero is unspecified (PTX ISA, "div", "rem"); ptxas folds both to all ones.
            #[inline]
            fn div(self, by: Self) -> Self {
                if by == 0 { !0 } else { self.wrapping_div(by) }
            }
            #[inline]
            fn rem(self, by: Self) -> Self {
                if by == 0 { !0 } else { self.wrapping_rem(by) }
            }
        }
    )*};
}

int! {
    u8, u8, false;
    u16, u16, false;
    u32, u32, false;
    u64, u64, false;
    i8, u8, true;
    i16, u16, true;
    i32, u32, true;
    i64, u64, true;
}

/// `f::<T>` for the integer type `T` of a `Ty`, `.bN` as unsigned; `None` for other types.
macro_rules! by_type {
    ($ty:expr, $f:ident) => {
        match $ty {
            Ty::U8 | Ty::B8 => Some($f::<u8> as AluFn),
            Ty::U16 | Ty::B16 => Some($f::<u16> as AluFn),
            Ty::U32 | Ty::B32 => Some($f::<u32> as AluFn),
            Ty::U64 | Ty::B64 => Some($f::<u64> as AluFn),
            Ty::S8 => Some($f::<i8> as AluFn),
            Ty::S16 => Some($f::<i16> as AluFn),
            Ty::S32 => Some($f::<i32> as AluFn),
            Ty::S64 => Some($f::<i64> as AluFn),
            _ => None,
        }
    };
}
pub(crate) use by_type;

fn mask(bits: u32) -> u64 {
    match bits {
        0 => 0,
        1..64 => (1 << bits) - 1,
        _ => u64::MAX,
    }
}

pub(crate) fn div<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).div(T::of(b)).bits()
}

pub(crate) fn rem<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).rem(T::of(b)).bits()
}

pub(crate) fn min<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    let (a, b) = (T::of(a), T::of(b));
    if b < a { b } else { a }.bits()
}

pub(crate) fn max<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    let (a, b) = (T::of(a), T::of(b));
    if b > a { b } else { a }.bits()
}

pub(crate) fn abs<T: Int>(a: u64, _: u64, _: u64) -> u64 {
    T::of(T::of(a).wide().unsigned_abs() as u64).bits()
}

pub(crate) fn neg<T: Int>(a: u64, _: u64, _: u64) -> u64 {
    T::of(a.wrapping_neg()).bits()
}

pub(crate) fn not<T: Int>(a: u64, _: u64, _: u64) -> u64 {
    T::of(!a).bits()
}

pub(crate) fn not_pred(a: u64, _: u64, _: u64) -> u64 {
    a ^ 1
}

pub(crate) fn cnot<T: Int>(a: u64, _: u64, _: u64) -> u64 {
    u64::from(T::of(a).bits() == 0)
}

/// `|a - b| + c`
pub(crate) fn sad<T: Int>(a: u64, b: u64, c: u64) -> u64 {
    let distance = (T::of(a).wide() - T::of(b).wide()).unsigned_abs() as u64;
    T::of(distance.wrapping_add(c)).bits()
}

pub(crate) fn mul_hi<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    T::of(high::<T>(a, b)).bits()
}

/// The high half of the product. Two unsigned 64-bit factors overflow `i128` but wrap to the right bits.
fn high<T: Int>(a: u64, b: u64) -> u64 {
    (T::of(a).wide().wrapping_mul(T::of(b).wide()) as u128 >> T::BITS) as u64
}

pub(crate) fn mad_hi<T: Int>(a: u64, b: u64, c: u64) -> u64 {
    T::of(high::<T>(a, b).wrapping_add(c)).bits()
}

/// Product in twice the width; `T` has at most 32 bits.
pub(crate) fn mul_wide<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).wide().wrapping_mul(T::of(b).wide()) as u64 & mask(2 * T::BITS)
}

pub(crate) fn mad_wide<T: Int>(a: u64, b: u64, c: u64) -> u64 {
    mul_wide::<T>(a, b, 0).wrapping_add(c) & mask(2 * T::BITS)
}

/// The 48-bit product of the low 24 bits of each factor.
fn product24<T: Int>(a: u64, b: u64) -> i128 {
    let low = |v: u64| {
        if T::SIGNED {
            i128::from((v << 40) as i64 >> 40)
        } else {
            i128::from(v & 0xff_ffff)
        }
    };
    low(a) * low(b)
}

pub(crate) fn mul24_lo<T: Int>(a: u64, b: u64, c: u64) -> u64 {
    (product24::<T>(a, b) as u64).wrapping_add(c) & 0xffff_ffff
}

pub(crate) fn mul24_hi<T: Int>(a: u64, b: u64, c: u64) -> u64 {
    ((product24::<T>(a, b) >> 16) as u64).wrapping_add(c) & 0xffff_ffff
}

pub(crate) fn add_sat_s32(a: u64, b: u64, _: u64) -> u64 {
    u64::from((a as i32).saturating_add(b as i32) as u32)
}

pub(crate) fn sub_sat_s32(a: u64, b: u64, _: u64) -> u64 {
    u64::from((a as i32).saturating_sub(b as i32) as u32)
}

/// Shift right, arithmetic if signed; amounts beyond the width clamp.
pub(crate) fn shr<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    T::of((T::of(a).wide() >> (b & 0xffff_ffff).min(127)) as u64).bits()
}

/// The 64 bits `b:a`, shifted left, high half.
pub(crate) fn shf_l<const WRAP: bool>(a: u64, b: u64, c: u64) -> u64 {
    let n = funnel_amount::<WRAP>(c);
    (((b << 32 | a) << n) >> 32) & 0xffff_ffff
}

/// The 64 bits `b:a`, shifted right, low half.
pub(crate) fn shf_r<const WRAP: bool>(a: u64, b: u64, c: u64) -> u64 {
    let n = funnel_amount::<WRAP>(c);
    ((b << 32 | a) >> n) & 0xffff_ffff
}

fn funnel_amount<const WRAP: bool>(c: u64) -> u64 {
    let c = c & 0xffff_ffff;
    if WRAP { c & 31 } else { c.min(32) }
}

/// Bit field of `a` at `b & 255` of `c & 255` bits; a signed one is extended from its top bit, or from the top bit of `a`
/// if it reaches beyond it (PTX ISA, "bfe").
pub(crate) fn bfe<T: Int>(a: u64, b: u64, c: u64) -> u64 {
    let (pos, len) = ((b & 255) as u32, (c & 255) as u32);
    let msb = T::BITS - 1;
    let sign = if !T::SIGNED || len == 0 {
        0
    } else {
        (a >> (pos + len - 1).min(msb)) & 1
    };
    let field = if pos > msb { 0 } else { a >> pos };
    // Bits of the field that lie within `a`.
    let inside = len.min(T::BITS.saturating_sub(pos));
    let low = mask(inside);
    let value = (field & low) | if sign == 1 { !low } else { 0 };
    T::of(value).bits()
}

/// `a` inserted into `b` at `pos`; bits beyond the width are lost.
fn insert<T: Int>(a: u64, b: u64, pos: u32, len: u32) -> u64 {
    if pos >= T::BITS {
        return b;
    }
    let field = mask(len.min(T::BITS - pos)) << pos;
    T::of((b & !field) | ((a << pos) & field)).bits()
}

/// `bfi`: position `c & 255`, length `d & 255`.
pub(crate) fn bfi<T: Int>(a: u64, b: u64, c: u64, d: u64) -> (u64, u64) {
    (insert::<T>(a, b, (c & 255) as u32, (d & 255) as u32), 0)
}

/// Position of the most significant bit that differs from the sign, or all ones.
pub(crate) fn bfind<T: Int, const SHIFT: bool>(a: u64, _: u64, _: u64) -> u64 {
    let value = T::of(a).wide();
    let magnitude = if value < 0 { !value } else { value } as u64;
    if magnitude == 0 {
        return 0xffff_ffff;
    }
    let at = 63 - magnitude.leading_zeros();
    u64::from(if SHIFT { T::BITS - 1 - at } else { at })
}

pub(crate) fn brev<T: Int>(a: u64, _: u64, _: u64) -> u64 {
    a.reverse_bits() >> (64 - T::BITS)
}

pub(crate) fn popc(a: u64, _: u64, _: u64) -> u64 {
    u64::from(a.count_ones())
}

pub(crate) fn clz<T: Int>(a: u64, _: u64, _: u64) -> u64 {
    u64::from(a.leading_zeros() - (64 - T::BITS))
}

/// Truth table `table` of three bits, on each bit.
pub(crate) fn lop3(a: u64, b: u64, c: u64, table: u64) -> (u64, u64) {
    let mut out = 0;
    for row in 0..8 {
        if table >> row & 1 == 1 {
            let pick = |v: u64, bit: u64| if row & bit != 0 { v } else { !v };
            out |= pick(a, 4) & pick(b, 2) & pick(c, 1);
        }
    }
    (out & 0xffff_ffff, 0)
}

/// Bytes of `b:a` by the four nibbles of `c`: three bits of index, one that replicates the byte's sign.
pub(crate) fn prmt(a: u64, b: u64, c: u64) -> u64 {
    let mut out = 0;
    for i in 0..4 {
        let nibble = (c >> (4 * i)) & 15;
        let byte = byte_of(a, b, nibble & 7);
        let byte = match nibble & 8 {
            0 => byte,
            _ if byte & 0x80 != 0 => 0xff,
            _ => 0,
        };
        out |= byte << (8 * i);
    }
    out
}

fn byte_of(a: u64, b: u64, index: u64) -> u64 {
    ((b << 32 | a) >> (8 * index)) & 0xff
}

/// A `prmt` mode: for each value of `c & 3`, the four byte indices of the result, lowest byte first (PTX ISA, "prmt").
fn prmt_by(table: [[u64; 4]; 4], a: u64, b: u64, c: u64) -> u64 {
    let mut out = 0;
    for (i, index) in table[(c & 3) as usize].iter().enumerate() {
        out |= byte_of(a, b, *index) << (8 * i);
    }
    out
}

pub(crate) fn prmt_f4e(a: u64, b: u64, c: u64) -> u64 {
    prmt_by(
        [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        a,
        b,
        c,
    )
}

pub(crate) fn prmt_b4e(a: u64, b: u64, c: u64) -> u64 {
    prmt_by(
        [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        a,
        b,
        c,
    )
}

pub(crate) fn prmt_rc8(a: u64, b: u64, c: u64) -> u64 {
    prmt_by([[0; 4], [1; 4], [2; 4], [3; 4]], a, b, c)
}

pub(crate) fn prmt_ecl(a: u64, b: u64, c: u64) -> u64 {
    prmt_by(
        [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        a,
        b,
        c,
    )
}

pub(crate) fn prmt_ecr(a: u64, b: u64, c: u64) -> u64 {
    prmt_by(
        [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        a,
        b,
        c,
    )
}

pub(crate) fn prmt_rc16(a: u64, b: u64, c: u64) -> u64 {
    prmt_by(
        [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
        a,
        b,
        c,
    )
}

pub(crate) fn slct_s32(a: u64, b: u64, c: u64) -> u64 {
    if (c as i32) >= 0 { a } else { b }
}

/// Saturating conversion from `S` to `D`.
pub(crate) fn saturate<S: Int, D: Int>(a: u64, _: u64, _: u64) -> u64 {
    let (low, high) = if D::SIGNED {
        (-(1i128 << (D::BITS - 1)), (1i128 << (D::BITS - 1)) - 1)
    } else {
        (0, (1i128 << D::BITS) - 1)
    };
    D::of(S::of(a).wide().clamp(low, high) as u64).bits()
}

/// Saturating conversion between two integer types.
pub(crate) fn saturating(from: Ty, to: Ty) -> Option<AluFn> {
    fn to_type<S: Int>(to: Ty) -> Option<AluFn> {
        Some(match to {
            Ty::U8 | Ty::B8 => saturate::<S, u8>,
            Ty::U16 | Ty::B16 => saturate::<S, u16>,
            Ty::U32 | Ty::B32 => saturate::<S, u32>,
            Ty::U64 | Ty::B64 => saturate::<S, u64>,
            Ty::S8 => saturate::<S, i8>,
            Ty::S16 => saturate::<S, i16>,
            Ty::S32 => saturate::<S, i32>,
            Ty::S64 => saturate::<S, i64>,
            _ => return None,
        })
    }
    match from {
        Ty::U8 | Ty::B8 => to_type::<u8>(to),
        Ty::U16 | Ty::B16 => to_type::<u16>(to),
        Ty::U32 | Ty::B32 => to_type::<u32>(to),
        Ty::U64 | Ty::B64 => to_type::<u64>(to),
        Ty::S8 => to_type::<i8>(to),
        Ty::S16 => to_type::<i16>(to),
        Ty::S32 => to_type::<i32>(to),
        Ty::S64 => to_type::<i64>(to),
        _ => None,
    }
}

// Comparisons give 0 or 1.

pub(crate) fn eq<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(T::of(a) == T::of(b))
}
pub(crate) fn ne<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(T::of(a) != T::of(b))
}
pub(crate) fn lt<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(T::of(a) < T::of(b))
}
pub(crate) fn le<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(T::of(a) <= T::of(b))
}
pub(crate) fn gt<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(T::of(a) > T::of(b))
}
pub(crate) fn ge<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(T::of(a) >= T::of(b))
}

// Extended precision (PTX ISA, "Extended-Precision Integer Arithmetic Instructions"). The carry of a subtraction is its
// borrow.

pub(crate) fn add_carry<T: Int>(a: u64, b: u64, _: u64, carry: u64) -> (u64, u64) {
    let sum = u128::from(a) + u128::from(b) + u128::from(carry);
    (T::of(sum as u64).bits(), (sum >> T::BITS) as u64 & 1)
}

pub(crate) fn sub_borrow<T: Int>(a: u64, b: u64, _: u64, borrow: u64) -> (u64, u64) {
    let difference = i128::from(a) - i128::from(b) - i128::from(borrow);
    (T::of(difference as u64).bits(), u64::from(difference < 0))
}

pub(crate) fn mad_lo_carry<T: Int>(a: u64, b: u64, c: u64, carry: u64) -> (u64, u64) {
    add_carry::<T>(T::of(a.wrapping_mul(b)).bits(), c, 0, carry)
}

pub(crate) fn mad_hi_carry<T: Int>(a: u64, b: u64, c: u64, carry: u64) -> (u64, u64) {
    add_carry::<T>(mul_hi::<T>(a, b, 0), c, 0, carry)
}
