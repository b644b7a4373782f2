//! Integer instructions against Rust's own integers, on random operands.

mod support;

use std::fmt::Write as _;

use proptest::prelude::*;
use support::{config, run_with};
use warpverbs_sim_gpu::Scheduler;

/// Operands worth trying: all of the range, and its corners.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u64..70).prop_map(|n| n),
        (0u32..64).prop_map(|n| 1 << n),
        (0u32..64).prop_map(|n| (1u64 << n).wrapping_neg()),
        Just(u64::MAX),
        Just(0x8000_0000_8000_0000),
        Just(0x7fff_ffff_7fff_ffff),
    ]
}

/// Runs three-operand instructions of one width on the same operands.
fn results(bits: u32, instructions: &[&str], a: u64, b: u64, c: u64) -> Vec<u64> {
    let (class, ld) = match bits {
        16 => ("%rs", "u16"),
        32 => ("%r", "u32"),
        _ => ("%rd", "u64"),
    };
    let mut body = String::new();
    for (n, at) in [0, 8, 16].into_iter().enumerate() {
        writeln!(body, "ld.global.{ld} {class}{}, [%in+{at}];", n + 1).unwrap();
    }
    writeln!(
        body,
        "ld.global.u32 %r20, [%in+8];\nld.global.u32 %r21, [%in+16];"
    )
    .unwrap();
    for (i, instruction) in instructions.iter().enumerate() {
        let wide = instruction.contains(".wide");
        let pred = instruction.starts_with("setp");
        let narrow = ["popc", "clz", "bfind"]
            .iter()
            .any(|p| instruction.starts_with(p));
        let (d, out_bits) = match (pred, wide, narrow) {
            (true, ..) => ("%p1".to_owned(), 1),
            (_, true, _) if bits == 32 => ("%rd10".to_owned(), 64),
            (_, true, _) => ("%r10".to_owned(), 32),
            (.., true) => ("%r10".to_owned(), 32),
            _ => (format!("{class}10"), bits),
        };
        let text = instruction
            .replace("$d", &d)
            .replace("$a", &format!("{class}1"))
            .replace("$b", &format!("{class}2"))
            .replace("$c", &format!("{class}3"))
            .replace("$n", "%r20")
            .replace("$m", "%r21");
        writeln!(body, "{text};").unwrap();
        match out_bits {
            1 => writeln!(body, "selp.u64 %rd20, 1, 0, {d};"),
            64 => writeln!(body, "mov.u64 %rd20, {d};"),
            n => writeln!(body, "cvt.u64.u{n} %rd20, {d};"),
        }
        .unwrap();
        writeln!(body, "st.global.u64 [%out+{}], %rd20;", i * 8).unwrap();
    }
    run_with(
        config(1, Scheduler::Independent),
        &body,
        1,
        &[a, b, c],
        instructions.len(),
    )
    .unwrap_or_else(|e| panic!("{e}"))
}

macro_rules! width {
    ($name:ident, $u:ident, $s:ident, $bits:expr) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(200))]
            #[test]
            fn $name(a in word(), b in word(), c in word()) {
                let (ua, ub, uc) = (a as $u, b as $u, c as $u);
                let (sa, sb) = (ua as $s, ub as $s);
                let n = b as u32;
                let out = |v: $u| u64::from(v);
                let u = concat!("u", stringify!($bits));
                let s = concat!("s", stringify!($bits));
                let bt = concat!("b", stringify!($bits));
                let mut cases: Vec<(String, u64)> = vec![
                    (format!("add.{u} $d, $a, $b"), out(ua.wrapping_add(ub))),
                    (format!("sub.{s} $d, $a, $b"), out(ua.wrapping_sub(ub))),
                    (format!("mul.lo.{s} $d, $a, $b"), out(ua.wrapping_mul(ub))),
                    (format!("mul.hi.{u} $d, $a, $b"), out(((u128::from(ua) * u128::from(ub)) >> $bits) as $u)),
                    (format!("mul.hi.{s} $d, $a, $b"), out(((i128::from(sa) * i128::from(sb)) >> $bits) as $u)),
                    (format!("mad.lo.{u} $d, $a, $b, $c"), out(ua.wrapping_mul(ub).wrapping_add(uc))),
                    (format!("min.{s} $d, $a, $b"), out(sa.min(sb) as $u)),
                    (format!("max.{u} $d, $a, $b"), out(ua.max(ub))),
                    (format!("abs.{s} $d, $a"), out(sa.wrapping_abs() as $u)),
                    (format!("neg.{s} $d, $a"), out(sa.wrapping_neg() as $u)),
                    (format!("sad.{u} $d, $a, $b, $c"), out(ua.abs_diff(ub).wrapping_add(uc))),
                    (format!("sad.{s} $d, $a, $b, $c"), out(sa.abs_diff(sb).wrapping_add(uc))),
                    (format!("and.{bt} $d, $a, $b"), out(ua & ub)),
                    (format!("or.{bt} $d, $a, $b"), out(ua | ub)),
                    (format!("xor.{bt} $d, $a, $b"), out(ua ^ ub)),
                    (format!("not.{bt} $d, $a"), out(!ua)),
                    (format!("shl.{bt} $d, $a, $n"), out(ua.checked_shl(n).unwrap_or(0))),
                    (format!("shr.{u} $d, $a, $n"), out(ua.checked_shr(n).unwrap_or(0))),
                    (format!("shr.{s} $d, $a, $n"), out((sa >> n.min($bits - 1)) as $u)),
                    (format!("setp.lt.{s} $d, $a, $b"), (sa < sb).into()),
                    (format!("setp.le.{u} $d, $a, $b"), (ua <= ub).into()),
                    (format!("setp.gt.{s} $d, $a, $b"), (sa > sb).into()),
                    (format!("setp.ge.{u} $d, $a, $b"), (ua >= ub).into()),
                    (format!("setp.eq.{bt} $d, $a, $b"), (ua == ub).into()),
                    (format!("setp.ne.{s} $d, $a, $b"), (ua != ub).into()),
                ];
                if ub != 0 {
                    cases.push((format!("div.{u} $d, $a, $b"), out(ua / ub)));
                    cases.push((format!("rem.{u} $d, $a, $b"), out(ua % ub)));
                    cases.push((format!("div.{s} $d, $a, $b"), out(sa.wrapping_div(sb) as $u)));
                    cases.push((format!("rem.{s} $d, $a, $b"), out(sa.wrapping_rem(sb) as $u)));
                }
                if $bits > 16 {
                    cases.push((format!("popc.{bt} $d, $a"), ua.count_ones().into()));
                    cases.push((format!("clz.{bt} $d, $a"), ua.leading_zeros().into()));
                    cases.push((format!("brev.{bt} $d, $a"), out(ua.reverse_bits())));
                    // A bit field by shifts that cannot overflow.
                    let (pos, len) = ((b & 255) as u32, (c & 255) as u32);
                    let field = (u128::from(ua) >> pos.min(127)) & ((1u128 << len.min(127)) - 1);
                    cases.push((format!("bfe.{u} $d, $a, $n, $m"), out(field as $u)));
                }
                if $bits < 64 {
                    let mask = if $bits == 32 { u64::MAX } else { 0xffff_ffff };
                    let wide_u = u64::from(ua) * u64::from(ub);
                    let wide_s = i64::from(sa).wrapping_mul(i64::from(sb)) as u64 & mask;
                    cases.push((format!("mul.wide.{u} $d, $a, $b"), wide_u));
                    cases.push((format!("mul.wide.{s} $d, $a, $b"), wide_s));
                }
                let texts: Vec<&str> = cases.iter().map(|(text, _)| text.as_str()).collect();
                let got = results($bits, &texts, a, b, c);
                for ((text, expected), got) in cases.iter().zip(got) {
                    prop_assert_eq!(got, *expected, "{} of {:#x}, {:#x}, {:#x}", text, a, b, c);
                }
            }
        }
    };
}

width!(of_16_bits, u16, i16, 16);
width!(of_32_bits, u32, i32, 32);
width!(of_64_bits, u64, i64, 64);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Byte selection against a table of bytes; funnel shifts against 64-bit shifts.
    #[test]
    fn of_words_of_bytes(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
        let got = results(
            32,
            &["prmt.b32 $d, $a, $b, $c", "shf.l.wrap.b32 $d, $a, $b, $c", "shf.r.wrap.b32 $d, $a, $b, $c", "lop3.b32 $d, $a, $b, $c, 0xe8"],
            a.into(),
            b.into(),
            c.into(),
        );
        let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
        let picked: Vec<u8> = (0..4)
            .map(|i| {
                let nibble = c >> (4 * i) & 15;
                let byte = bytes[nibble as usize & 7];
                if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
            })
            .collect();
        let pair = u64::from(b) << 32 | u64::from(a);
        let majority = (a & b) | (b & c) | (a & c);
        prop_assert_eq!(got[0], u64::from(u32::from_le_bytes([picked[0], picked[1], picked[2], picked[3]])));
        prop_assert_eq!(got[1], (pair << (c & 31)) >> 32);
        prop_assert_eq!(got[2], (pair >> (c & 31)) & 0xffff_ffff);
        prop_assert_eq!(got[3], u64::from(majority));
    }
}
