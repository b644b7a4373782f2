//! What floating-point operations compute.
//!
//! Knows: IEEE 754 arithmetic rounded to nearest even, which is Rust's own.
//! Must not know: registers, threads or memory. Other roundings, `.ftz` and approximations are not here: the decoder
//! refuses them.

use crate::ir::AluFn;
use crate::parse::ast::Ty;

/// A floating-point type.
pub(crate) trait Float: Copy + PartialOrd {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn wide(self) -> f64;
    fn narrow(v: f64) -> Self;
    fn is_nan(self) -> bool;
    fn from_i128(v: i128) -> Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn fma(self, b: Self, c: Self) -> Self;
    fn sqrt(self) -> Self;
    fn min(self, b: Self) -> Self;
    fn max(self, b: Self) -> Self;
    const SIGN: u64;
}

macro_rules! float {
    ($($t:ident, $u:ty, $nan:expr;)*) => {$(
        impl Float for $t {
            const SIGN: u64 = 1 << (<$u>::BITS - 1);
            fn of(bits: u64) -> Self {
                Self::from_bits(bits as $u)
            }
            // Operations that compute a NaN give the canonical one (PTX ISA, "Floating-Point Instructions").
            fn bits(self) -> u64 {
                if $t::is_nan(self) { $nan } else { u64::from(self.to_bits()) }
            }
            fn wide(self) -> f64 {
                f64::from(self)
            }
            fn narrow(v: f64) -> Self {
                v as Self
            }
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
            fn from_i128(v: i128) -> Self {
                v as Self
            }
            fn add(self, b: Self) -> Self {
                self + b
            }
            fn sub(self, b: Self) -> Self {
                self - b
            }
            fn mul(self, b: Self) -> Self {
                self * b
            }
            fn div(self, b: Self) -> Self {
                self / b
            }
            fn fma(self, b: Self, c: Self) -> Self {
                self.mul_add(b, c)
            }
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            fn min(self, b: Self) -> Self {
                // Of two zeros the negative one is less (PTX ISA, "min").
                if self == b && self == 0.0 {
                    if self.is_sign_negative() { self } else { b }
                } else {
                    $t::min(self, b)
                }
            }
            fn max(self, b: Self) -> Self {
                if self == b && self == 0.0 {
                    if self.is_sign_negative() { b } else { self }
                } else {
                    $t::max(self, b)
                }
            }
        }
    )*};
}

float! {
    f32, u32, 0x7fff_ffff;
    f64, u64, 0x7fff_ffff_ffff_ffff;
}

/// `f::<T>` for a float `Ty`; `None` for other types.
macro_rules! by_float {
    ($ty:expr, $f:ident) => {
        match $ty {
            Ty::F32 => Some($f::<f32> as AluFn),
            Ty::F64 => Some($f::<f64> as AluFn),
            _ => None,
        }
    };
}
pub(crate) use by_float;

pub(crate) fn fadd<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).add(T::of(b)).bits()
}
pub(crate) fn fsub<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).sub(T::of(b)).bits()
}
pub(crate) fn fmul<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).mul(T::of(b)).bits()
}
pub(crate) fn fdiv<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).div(T::of(b)).bits()
}
pub(crate) fn ffma<T: Float>(a: u64, b: u64, c: u64) -> u64 {
    T::of(a).fma(T::of(b), T::of(c)).bits()
}
pub(crate) fn fsqrt<T: Float>(a: u64, _: u64, _: u64) -> u64 {
    T::of(a).sqrt().bits()
}
pub(crate) fn frcp<T: Float>(a: u64, _: u64, _: u64) -> u64 {
    T::from_i128(1).div(T::of(a)).bits()
}
pub(crate) fn fmin<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).min(T::of(b)).bits()
}
pub(crate) fn fmax<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    T::of(a).max(T::of(b)).bits()
}
pub(crate) fn fabs<T: Float>(a: u64, _: u64, _: u64) -> u64 {
    a & (T::SIGN - 1)
}
/// The sign of `a` on the value of `b` (PTX ISA, "copysign": the operands are in this order).
pub(crate) fn fcopysign<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    (a & T::SIGN) | (b & (T::SIGN - 1))
}
pub(crate) fn fneg<T: Float>(a: u64, _: u64, _: u64) -> u64 {
    a ^ T::SIGN
}

// Comparisons. Ordered ones are false if an operand is a NaN, unordered ones true.

macro_rules! compare {
    ($($ordered:ident, $unordered:ident, $op:tt;)*) => {$(
        pub(crate) fn $ordered<T: Float>(a: u64, b: u64, _: u64) -> u64 {
            let (a, b) = (T::of(a), T::of(b));
            u64::from(!a.is_nan() && !b.is_nan() && a $op b)
        }
        pub(crate) fn $unordered<T: Float>(a: u64, b: u64, _: u64) -> u64 {
            let (a, b) = (T::of(a), T::of(b));
            u64::from(a.is_nan() || b.is_nan() || a $op b)
        }
    )*};
}

compare! {
    feq, fequ, ==;
    fne, fneu, !=;
    flt, fltu, <;
    fle, fleu, <=;
    fgt, fgtu, >;
    fge, fgeu, >=;
}

pub(crate) fn fnum<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(!T::of(a).is_nan() && !T::of(b).is_nan())
}
pub(crate) fn fnan<T: Float>(a: u64, b: u64, _: u64) -> u64 {
    u64::from(T::of(a).is_nan() || T::of(b).is_nan())
}

/// Comparison by its PTX name.
pub(crate) fn comparison(name: &str, ty: Ty) -> Option<AluFn> {
    match name {
        "eq" => by_float!(ty, feq),
        "ne" => by_float!(ty, fne),
        "lt" => by_float!(ty, flt),
        "le" => by_float!(ty, fle),
        "gt" => by_float!(ty, fgt),
        "ge" => by_float!(ty, fge),
        "equ" => by_float!(ty, fequ),
        "neu" => by_float!(ty, fneu),
        "ltu" => by_float!(ty, fltu),
        "leu" => by_float!(ty, fleu),
        "gtu" => by_float!(ty, fgtu),
        "geu" => by_float!(ty, fgeu),
        "num" => by_float!(ty, fnum),
        "nan" => by_float!(ty, fnan),
        _ => None,
    }
}

// Conversions.

/// A rounding to an integral value.
pub(crate) trait Rounding {
    fn round(v: f64) -> f64;
}
macro_rules! rounding {
    ($($name:ident, $f:ident;)*) => {$(
        pub(crate) struct $name;
        impl Rounding for $name {
            fn round(v: f64) -> f64 {
                v.$f()
            }
        }
    )*};
}
rounding! {
    Nearest, round_ties_even;
    Zero, trunc;
    Down, floor;
    Up, ceil;
}

fn integral<T: Float, R: Rounding>(a: u64, _: u64, _: u64) -> u64 {
    T::narrow(R::round(T::of(a).wide())).bits()
}

macro_rules! to_integer {
    ($($name:ident, $d:ty, $u:ty;)*) => {$(
        // `as` saturates, as PTX does, and turns NaN into 0, as PTX does unless one side has 64 bits: then the result's
        // top bit is set alone (PTX ISA, "cvt").
        fn $name<T: Float, R: Rounding>(a: u64, _: u64, _: u64) -> u64 {
            let v = T::of(a);
            if v.is_nan() && (<$u>::BITS == 64 || T::SIGN == 1 << 63) {
                return 1 << (<$u>::BITS - 1);
            }
            u64::from(R::round(v.wide()) as $d as $u)
        }
    )*};
}
to_integer! {
    to_u8, u8, u8;
    to_u16, u16, u16;
    to_u32, u32, u32;
    to_u64, u64, u64;
    to_i8, i8, u8;
    to_i16, i16, u16;
    to_i32, i32, u32;
    to_i64, i64, u64;
}

fn from_int<T: Float, S: super::alu::Int>(a: u64, _: u64, _: u64) -> u64 {
    T::from_i128(S::of(a).wide()).bits()
}

fn f32_to_f64(a: u64, _: u64, _: u64) -> u64 {
    Float::bits(f64::from(f32::from_bits(a as u32)))
}

fn f64_to_f32(a: u64, _: u64, _: u64) -> u64 {
    Float::bits(f64::from_bits(a) as f32)
}

/// Conversion to or from a float with the rounding modifier `rounding`.
pub(crate) fn conversion(rounding: Option<&str>, to: Ty, from: Ty) -> Option<AluFn> {
    fn integer<T: Float, R: Rounding>(to: Ty) -> Option<AluFn> {
        Some(match to {
            Ty::U8 => to_u8::<T, R>,
            Ty::U16 => to_u16::<T, R>,
            Ty::U32 => to_u32::<T, R>,
            Ty::U64 => to_u64::<T, R>,
            Ty::S8 => to_i8::<T, R>,
            Ty::S16 => to_i16::<T, R>,
            Ty::S32 => to_i32::<T, R>,
            Ty::S64 => to_i64::<T, R>,
            _ => return None,
        })
    }
    fn rounded<T: Float>(rounding: &str, to: Ty, same: Ty) -> Option<AluFn> {
        Some(match (rounding, to == same) {
            ("rni", true) => integral::<T, Nearest>,
            ("rzi", true) => integral::<T, Zero>,
            ("rmi", true) => integral::<T, Down>,
            ("rpi", true) => integral::<T, Up>,
            ("rni", false) => return integer::<T, Nearest>(to),
            ("rzi", false) => return integer::<T, Zero>(to),
            ("rmi", false) => return integer::<T, Down>(to),
            ("rpi", false) => return integer::<T, Up>(to),
            _ => return None,
        })
    }
    fn floating<T: Float>(from: Ty) -> Option<AluFn> {
        Some(match from {
            Ty::U8 => from_int::<T, u8>,
            Ty::U16 => from_int::<T, u16>,
            Ty::U32 => from_int::<T, u32>,
            Ty::U64 => from_int::<T, u64>,
            Ty::S8 => from_int::<T, i8>,
            Ty::S16 => from_int::<T, i16>,
            Ty::S32 => from_int::<T, i32>,
            Ty::S64 => from_int::<T, i64>,
            _ => return None,
        })
    }
    match (rounding, to, from) {
        (None, Ty::F64, Ty::F32) => Some(f32_to_f64),
        (Some("rn"), Ty::F32, Ty::F64) => Some(f64_to_f32),
        (Some("rn"), Ty::F32, from) => floating::<f32>(from),
        (Some("rn"), Ty::F64, from) => floating::<f64>(from),
        (Some(rounding), to, Ty::F32) => rounded::<f32>(rounding, to, Ty::F32),
        (Some(rounding), to, Ty::F64) => rounded::<f64>(rounding, to, Ty::F64),
        _ => None,
    }
}
