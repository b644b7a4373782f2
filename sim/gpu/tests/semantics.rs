//! What each instruction computes, by tables of values worked out by hand from the PTX ISA.

mod support;

use std::fmt::Write as _;

use support::{config, run, run_with};
use warpverbs_sim_gpu::Scheduler;

/// An instruction, the width of its result, its operands by width and value, and the result.
type Row = (&'static str, u32, &'static [(u32, u64)], u64);

/// The register of a width.
fn reg(width: u32, number: usize) -> String {
    match width {
        1 => format!("%p{number}"),
        16 => format!("%rs{number}"),
        32 => format!("%r{number}"),
        _ => format!("%rd{number}"),
    }
}

/// Runs rows one after the other in one thread and compares each result.
fn check(rows: &[Row]) {
    let mut body = String::new();
    let mut input = Vec::new();
    for (i, (instruction, width, operands, _)) in rows.iter().enumerate() {
        let mut names = Vec::new();
        for (n, (width, value)) in operands.iter().enumerate() {
            let name = reg(*width, n + 1);
            let at = input.len() * 8;
            match width {
                1 => writeln!(
                    body,
                    "ld.global.u64 %rd20, [%in+{at}];\nsetp.ne.u64 {name}, %rd20, 0;"
                ),
                16 => writeln!(body, "ld.global.u16 {name}, [%in+{at}];"),
                32 => writeln!(body, "ld.global.u32 {name}, [%in+{at}];"),
                _ => writeln!(body, "ld.global.u64 {name}, [%in+{at}];"),
            }
            .unwrap();
            input.push(*value);
            names.push(name);
        }
        let d = reg(*width, 10);
        // A `$` stands for the next operand, so that literals and `!` can be written into a row.
        let mut text = (*instruction).to_owned();
        if text.contains('$') {
            text = text.replace("$d", &d);
            for name in &names {
                text = text.replacen('$', name, 1);
            }
        } else {
            text = format!("{text} {d}, {}", names.join(", "));
        }
        writeln!(body, "{text};").unwrap();
        match width {
            1 => writeln!(body, "selp.u64 %rd21, 1, 0, {d};"),
            16 => writeln!(body, "cvt.u64.u16 %rd21, {d};"),
            32 => writeln!(body, "cvt.u64.u32 %rd21, {d};"),
            _ => writeln!(body, "mov.u64 %rd21, {d};"),
        }
        .unwrap();
        writeln!(body, "st.global.u64 [%out+{}], %rd21;", i * 8).unwrap();
    }
    let out = run_with(
        config(1, Scheduler::Independent),
        &body,
        1,
        &input,
        rows.len(),
    )
    .unwrap_or_else(|e| panic!("{e}"));
    for ((instruction, _, operands, expected), got) in rows.iter().zip(&out) {
        assert_eq!(
            got, expected,
            "{instruction} {operands:x?}: {got:#x}, not {expected:#x}"
        );
    }
}

const M1: u64 = u64::MAX;
const M1_32: u64 = 0xffff_ffff;

#[test]
fn integer_arithmetic() {
    check(&[
        ("add.u32", 32, &[(32, M1_32), (32, 2)], 1),
        ("add.s64", 64, &[(64, M1), (64, 2)], 1),
        ("add.u16", 16, &[(16, 0xffff), (16, 2)], 1),
        (
            "add.sat.s32",
            32,
            &[(32, 0x7fff_ffff), (32, 1)],
            0x7fff_ffff,
        ),
        (
            "add.sat.s32",
            32,
            &[(32, 0x8000_0000), (32, M1_32)],
            0x8000_0000,
        ),
        (
            "sub.sat.s32",
            32,
            &[(32, 0x8000_0000), (32, 1)],
            0x8000_0000,
        ),
        ("sub.s32", 32, &[(32, 1), (32, 2)], M1_32),
        ("sub.u64", 64, &[(64, 0), (64, 1)], M1),
        (
            "mul.lo.u32",
            32,
            &[(32, 0x1_0001), (32, 0x1_0001)],
            0x2_0001,
        ),
        ("mul.lo.u64", 64, &[(64, M1), (64, M1)], 1),
        ("mul.lo.s16", 16, &[(16, 0x100), (16, 0x101)], 0x100),
        ("mul.hi.u32", 32, &[(32, M1_32), (32, M1_32)], 0xffff_fffe),
        ("mul.hi.s32", 32, &[(32, M1_32), (32, M1_32)], 0),
        ("mul.hi.s32", 32, &[(32, M1_32), (32, 1)], M1_32),
        ("mul.hi.u64", 64, &[(64, M1), (64, M1)], M1 - 1),
        ("mul.hi.s64", 64, &[(64, M1), (64, 5)], M1),
        ("mul.hi.u16", 16, &[(16, 0xffff), (16, 0xffff)], 0xfffe),
        (
            "mul.wide.u32",
            64,
            &[(32, M1_32), (32, M1_32)],
            0xffff_fffe_0000_0001,
        ),
        ("mul.wide.s32", 64, &[(32, M1_32), (32, 3)], M1 - 2),
        ("mul.wide.s16", 32, &[(16, 0xffff), (16, 3)], 0xffff_fffd),
        (
            "mul.wide.u16",
            32,
            &[(16, 0xffff), (16, 0xffff)],
            0xfffe_0001,
        ),
        ("mad.lo.u32", 32, &[(32, 7), (32, 6), (32, M1_32)], 41),
        ("mad.lo.s64", 64, &[(64, 7), (64, 6), (64, 1)], 43),
        ("mad.hi.u32", 32, &[(32, M1_32), (32, M1_32), (32, 3)], 1),
        ("mad.hi.s32", 32, &[(32, M1_32), (32, 1), (32, 0)], M1_32),
        (
            "mad.wide.u32",
            64,
            &[(32, M1_32), (32, 2), (64, 5)],
            0x2_0000_0003,
        ),
        ("mad.wide.s32", 64, &[(32, M1_32), (32, 2), (64, 5)], 3),
        (
            "mad.wide.u16",
            32,
            &[(16, 0xffff), (16, 2), (32, 5)],
            0x2_0003,
        ),
        ("mul24.lo.u32", 32, &[(32, 0xff00_0002), (32, 3)], 6),
        (
            "mul24.lo.s32",
            32,
            &[(32, 0x00ff_ffff), (32, 3)],
            0xffff_fffd,
        ),
        (
            "mul24.hi.u32",
            32,
            &[(32, 0xff_ffff), (32, 0xff_ffff)],
            0xffff_fe00,
        ),
        ("mad24.lo.u32", 32, &[(32, 4), (32, 5), (32, 6)], 26),
        ("div.u32", 32, &[(32, 100), (32, 7)], 14),
        ("div.s32", 32, &[(32, 0xffff_ff9c), (32, 7)], 0xffff_fff2),
        ("div.u32", 32, &[(32, 100), (32, 0)], M1_32),
        ("div.s64", 64, &[(64, 1 << 63), (64, M1)], 1 << 63),
        ("rem.s32", 32, &[(32, 0xffff_ff9c), (32, 7)], 0xffff_fffe),
        ("rem.u32", 32, &[(32, 100), (32, 0)], M1_32),
        ("rem.u64", 64, &[(64, 100), (64, 7)], 2),
        ("min.s32", 32, &[(32, M1_32), (32, 1)], M1_32),
        ("min.u32", 32, &[(32, M1_32), (32, 1)], 1),
        ("max.s64", 64, &[(64, M1), (64, 1)], 1),
        ("max.u16", 16, &[(16, 0xffff), (16, 1)], 0xffff),
        ("abs.s32", 32, &[(32, M1_32)], 1),
        ("abs.s32", 32, &[(32, 0x8000_0000)], 0x8000_0000),
        ("abs.s16", 16, &[(16, 0xfffe)], 2),
        ("neg.s64", 64, &[(64, 1)], M1),
        ("neg.s16", 16, &[(16, 1)], 0xffff),
        ("sad.u32", 32, &[(32, 3), (32, 10), (32, 100)], 107),
        ("sad.s32", 32, &[(32, M1_32), (32, 1), (32, 1)], 3),
    ]);
}

#[test]
fn extended_precision_carries_through() {
    // 0x1_ffff_ffff_ffff_ffff + 1, and back, in 32-bit words; then a 64-bit product from 32-bit parts.
    let body = "
        mov.u32 %r1, 0xffffffff; mov.u32 %r2, 1; mov.u32 %r3, 0;
        add.cc.u32 %r4, %r1, %r2; addc.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r3;
        st.global.v2.u32 [%out], {%r4, %r5}; st.global.u64 [%out+8], 0; st.global.u32 [%out+8], %r6;
        sub.cc.u32 %r7, %r4, %r2; subc.cc.u32 %r8, %r5, %r3; subc.u32 %r9, %r6, %r3;
        st.global.v2.u32 [%out+16], {%r7, %r8}; st.global.u64 [%out+24], 0; st.global.u32 [%out+24], %r9;
        mad.lo.cc.u32 %r10, %r1, %r1, %r1; madc.hi.u32 %r11, %r1, %r1, %r3;
        st.global.v2.u32 [%out+32], {%r10, %r11};
        mov.u64 %rd1, -1; add.cc.u64 %rd2, %rd1, 1; addc.u64 %rd3, 0, 0; st.global.u64 [%out+40], %rd3;";
    let out = run(body, 1, &[0], 6);
    // 0xffff_ffff * 0xffff_ffff + 0xffff_ffff = 0xffff_ffff_0000_0000.
    assert_eq!(out, [0, 2, M1, 1, 0xffff_ffff_0000_0000, 1]);
}

#[test]
fn logic_shifts_and_bit_fields() {
    check(&[
        ("and.b32", 32, &[(32, 0b1100), (32, 0b1010)], 0b1000),
        ("or.b64", 64, &[(64, 1 << 63), (64, 1)], 1 << 63 | 1),
        ("xor.b16", 16, &[(16, 0xff00), (16, 0x0ff0)], 0xf0f0),
        ("and.pred", 1, &[(1, 1), (1, 0)], 0),
        ("xor.pred", 1, &[(1, 1), (1, 0)], 1),
        ("not.pred", 1, &[(1, 0)], 1),
        ("not.b32", 32, &[(32, 1)], 0xffff_fffe),
        ("not.b16", 16, &[(16, 1)], 0xfffe),
        ("cnot.b32", 32, &[(32, 0)], 1),
        ("cnot.b64", 64, &[(64, 5)], 0),
        (
            "lop3.b32 $d, $, $, $, 0x96",
            32,
            &[(32, 0xf0f0), (32, 0xcccc), (32, 0xaaaa)],
            0x9696,
        ),
        (
            "lop3.b32 $d, $, $, $, 0x80",
            32,
            &[(32, 0xf0), (32, 0xcc), (32, 0xaa)],
            0x80,
        ),
        ("shl.b32", 32, &[(32, 1), (32, 31)], 0x8000_0000),
        ("shl.b32", 32, &[(32, 1), (32, 32)], 0),
        ("shl.b32", 32, &[(32, 1), (32, M1_32)], 0),
        ("shl.b64", 64, &[(64, 1), (32, 63)], 1 << 63),
        ("shl.b64", 64, &[(64, 1), (32, 64)], 0),
        ("shl.b16", 16, &[(16, 0x8001), (32, 1)], 2),
        ("shr.u32", 32, &[(32, 0x8000_0000), (32, 31)], 1),
        ("shr.u32", 32, &[(32, 0x8000_0000), (32, 32)], 0),
        ("shr.s32", 32, &[(32, 0x8000_0000), (32, 31)], M1_32),
        ("shr.s32", 32, &[(32, 0x8000_0000), (32, 200)], M1_32),
        ("shr.s64", 64, &[(64, 1 << 63), (32, 62)], M1 - 1),
        ("shr.b64", 64, &[(64, 1 << 63), (32, 64)], 0),
        ("shr.s16", 16, &[(16, 0x8000), (32, 4)], 0xf800),
        (
            "shf.l.wrap.b32",
            32,
            &[(32, 0x8000_0001), (32, 0x1234_5678), (32, 36)],
            0x2345_6788,
        ),
        (
            "shf.l.clamp.b32",
            32,
            &[(32, 0x8000_0001), (32, 0x1234_5678), (32, 36)],
            0x8000_0001,
        ),
        (
            "shf.r.wrap.b32",
            32,
            &[(32, 0x8000_0001), (32, 0x1234_5678), (32, 36)],
            0x8800_0000,
        ),
        (
            "shf.r.clamp.b32",
            32,
            &[(32, 0x8000_0001), (32, 0x1234_5678), (32, 36)],
            0x1234_5678,
        ),
        (
            "shf.r.wrap.b32",
            32,
            &[(32, 0x8000_0001), (32, 0x1234_5678), (32, 0)],
            0x8000_0001,
        ),
        ("bfe.u32", 32, &[(32, 0xabcd_1234), (32, 8), (32, 8)], 0x12),
        (
            "bfe.s32",
            32,
            &[(32, 0xabcd_1234), (32, 24), (32, 8)],
            0xffff_ffab,
        ),
        (
            "bfe.s32",
            32,
            &[(32, 0xabcd_1234), (32, 28), (32, 8)],
            0xffff_fffa,
        ),
        ("bfe.u32", 32, &[(32, 0xabcd_1234), (32, 28), (32, 8)], 0xa),
        (
            "bfe.s32",
            32,
            &[(32, 0x8000_0000), (32, 40), (32, 4)],
            M1_32,
        ),
        ("bfe.u32", 32, &[(32, 0xabcd_1234), (32, 0), (32, 0)], 0),
        (
            "bfe.s32",
            32,
            &[(32, 0xabcd_1234), (32, 0), (32, 32)],
            0xabcd_1234,
        ),
        (
            "bfe.u64",
            64,
            &[(64, 0x1122_3344_5566_7788), (32, 32), (32, 16)],
            0x3344,
        ),
        ("bfe.s64", 64, &[(64, 0xff << 40), (32, 40), (32, 8)], M1),
        (
            "bfi.b32",
            32,
            &[(32, 0xff), (32, 0), (32, 4), (32, 4)],
            0xf0,
        ),
        (
            "bfi.b32",
            32,
            &[(32, 0), (32, M1_32), (32, 28), (32, 8)],
            0x0fff_ffff,
        ),
        (
            "bfi.b32",
            32,
            &[(32, 0), (32, M1_32), (32, 32), (32, 8)],
            M1_32,
        ),
        (
            "bfi.b32",
            32,
            &[(32, 0x12), (32, 0x5678), (32, 0), (32, 0)],
            0x5678,
        ),
        (
            "bfi.b64",
            64,
            &[(64, 0xab), (64, 0), (32, 56), (32, 8)],
            0xab << 56,
        ),
        ("bfind.u32", 32, &[(32, 0x10)], 4),
        ("bfind.u32", 32, &[(32, 0)], M1_32),
        ("bfind.s32", 32, &[(32, 0xffff_fffe)], 0),
        ("bfind.s32", 32, &[(32, M1_32)], M1_32),
        ("bfind.shiftamt.u32", 32, &[(32, 0x10)], 27),
        ("bfind.u64", 32, &[(64, 1 << 63)], 63),
        ("bfind.shiftamt.s64", 32, &[(64, 1)], 63),
        ("brev.b32", 32, &[(32, 1)], 0x8000_0000),
        ("brev.b64", 64, &[(64, 3)], 3 << 62),
        ("popc.b32", 32, &[(32, 0xf0f0)], 8),
        ("popc.b64", 32, &[(64, M1)], 64),
        ("clz.b32", 32, &[(32, 1)], 31),
        ("clz.b32", 32, &[(32, 0)], 32),
        ("clz.b64", 32, &[(64, 1)], 63),
    ]);
}

#[test]
fn prmt_in_all_modes() {
    const A: (u32, u64) = (32, 0x3322_1100);
    const B: (u32, u64) = (32, 0x7766_55c4);
    check(&[
        ("prmt.b32", 32, &[A, B, (32, 0x0123)], 0x0011_2233),
        ("prmt.b32", 32, &[A, B, (32, 0x7654)], 0x7766_55c4),
        // Byte 4 is 0xc4: its sign is set; byte 5 is 0x55.
        ("prmt.b32", 32, &[A, B, (32, 0x0dc4)], 0x0000_ffc4),
        ("prmt.b32", 32, &[A, B, (32, 0xffff_3210)], 0x3322_1100),
        ("prmt.b32.f4e", 32, &[A, B, (32, 1)], 0xc433_2211),
        ("prmt.b32.f4e", 32, &[A, B, (32, 7)], 0x6655_c433),
        ("prmt.b32.b4e", 32, &[A, B, (32, 0)], 0x5566_7700),
        ("prmt.b32.b4e", 32, &[A, B, (32, 3)], 0x0011_2233),
        ("prmt.b32.rc8", 32, &[A, B, (32, 2)], 0x2222_2222),
        ("prmt.b32.ecl", 32, &[A, B, (32, 2)], 0x3322_2222),
        ("prmt.b32.ecr", 32, &[A, B, (32, 1)], 0x1111_1100),
        ("prmt.b32.rc16", 32, &[A, B, (32, 1)], 0x3322_3322),
        ("prmt.b32.rc16", 32, &[A, B, (32, 2)], 0x1100_1100),
    ]);
}

#[test]
fn comparisons_and_selection() {
    check(&[
        ("setp.lt.s32", 1, &[(32, M1_32), (32, 1)], 1),
        ("setp.lt.u32", 1, &[(32, M1_32), (32, 1)], 0),
        ("setp.gt.s16", 1, &[(16, 0x7fff), (16, 0x8000)], 1),
        ("setp.ge.s64", 1, &[(64, 1 << 63), (64, 0)], 0),
        ("setp.le.u64", 1, &[(64, 5), (64, 5)], 1),
        ("setp.lo.u32", 1, &[(32, 1), (32, M1_32)], 1),
        ("setp.hs.u32", 1, &[(32, 1), (32, M1_32)], 0),
        ("setp.eq.b16", 1, &[(16, 7), (16, 7)], 1),
        ("setp.ne.b64", 1, &[(64, 7), (64, 7)], 0),
        ("setp.eq.s16 $d, $, -1", 1, &[(16, 0xffff)], 1),
        (
            "setp.lt.and.s32 $d, $, $, $",
            1,
            &[(32, 0), (32, 1), (1, 0)],
            0,
        ),
        (
            "setp.lt.and.s32 $d, $, $, !$",
            1,
            &[(32, 0), (32, 1), (1, 0)],
            1,
        ),
        (
            "setp.lt.or.s32 $d, $, $, $",
            1,
            &[(32, 1), (32, 1), (1, 1)],
            1,
        ),
        (
            "setp.lt.xor.s32 $d, $, $, $",
            1,
            &[(32, 0), (32, 1), (1, 1)],
            0,
        ),
        // The second output negates the comparison before it combines.
        ("setp.lt.s32 %p9|$d, $, $", 1, &[(32, 0), (32, 1)], 0),
        (
            "setp.lt.and.s32 %p9|$d, $, $, $",
            1,
            &[(32, 1), (32, 1), (1, 1)],
            1,
        ),
        ("set.lt.u32.s32", 32, &[(32, M1_32), (32, 1)], M1_32),
        ("set.eq.s32.u64", 32, &[(64, 1), (64, 2)], 0),
        (
            "set.lt.or.u32.s32 $d, $, $, !$",
            32,
            &[(32, 1), (32, 1), (1, 0)],
            M1_32,
        ),
        (
            "set.lt.and.u32.s32 $d, $, $, $",
            32,
            &[(32, 0), (32, 1), (1, 0)],
            0,
        ),
        ("selp.b32", 32, &[(32, 1), (32, 2), (1, 1)], 1),
        ("selp.b64", 64, &[(64, 1), (64, 2), (1, 0)], 2),
        ("selp.b16 $d, 7, $, $", 16, &[(16, 2), (1, 1)], 7),
        ("slct.b32.s32", 32, &[(32, 1), (32, 2), (32, 0)], 1),
        ("slct.u64.s32", 64, &[(64, 1), (64, 2), (32, M1_32)], 2),
    ]);
}

#[test]
fn conversions_extend_truncate_and_saturate() {
    check(&[
        ("cvt.u64.u32", 64, &[(32, M1_32)], M1_32),
        ("cvt.s64.s32", 64, &[(32, M1_32)], M1),
        ("cvt.u64.s32", 64, &[(32, M1_32)], M1),
        ("cvt.s64.u32", 64, &[(32, M1_32)], M1_32),
        ("cvt.u32.u64", 32, &[(64, 0x1_2345_6789)], 0x2345_6789),
        ("cvt.u32.s16", 32, &[(16, 0x8000)], 0xffff_8000),
        ("cvt.u32.u16", 32, &[(16, 0x8000)], 0x8000),
        ("cvt.u16.u32", 16, &[(32, 0x1_2345)], 0x2345),
        // The register is wider than the type: an 8-bit value lies in 16 or 32 bits.
        ("cvt.s16.s8", 16, &[(16, 0x1280)], 0xff80),
        ("cvt.u32.u8", 32, &[(32, 0x1280)], 0x80),
        ("cvt.s8.s32", 32, &[(32, 0x1280)], 0xffff_ff80),
        ("cvt.s32.s8", 32, &[(32, 0x7f)], 0x7f),
        (
            "cvt.u64.s32",
            64,
            &[(64, 0x7_8000_0000)],
            0xffff_ffff_8000_0000,
        ),
        ("cvt.sat.u8.s32", 32, &[(32, M1_32)], 0),
        ("cvt.sat.u8.s32", 32, &[(32, 300)], 255),
        ("cvt.sat.s16.s32", 16, &[(32, 40_000)], 0x7fff),
        ("cvt.sat.s16.s32", 16, &[(32, 0xffff_0000)], 0x8000),
        ("cvt.sat.u32.s64", 32, &[(64, M1)], 0),
        ("cvt.sat.u32.u64", 32, &[(64, 1 << 40)], M1_32),
        ("mov.b64 $d, {$, $}", 64, &[(32, 1), (32, 2)], 2 << 32 | 1),
        ("mov.b64 {%r11, %r10}, $", 32, &[(64, 0x1_0000_0002)], 1),
        ("mov.b64 {%r10, _}, $", 32, &[(64, 0x1_0000_0002)], 2),
        (
            "mov.b32 $d, {$, $}",
            32,
            &[(16, 0x1111), (16, 0x2222)],
            0x2222_1111,
        ),
        (
            "mov.b64 $d, {$, $, $, $}",
            64,
            &[(16, 1), (16, 2), (16, 3), (16, 4)],
            0x4_0003_0002_0001,
        ),
        ("mov.u32 $d, -5", 32, &[], 0xffff_fffb),
        ("mov.pred $d, $", 1, &[(1, 1)], 1),
    ]);
}

#[test]
fn loads_extend_to_the_register_and_stores_take_the_low_part() {
    let body = "
        ld.global.s8 %r1, [%in]; cvt.u64.u32 %rd1, %r1; st.global.u64 [%out], %rd1;
        ld.global.u8 %r1, [%in]; cvt.u64.u32 %rd1, %r1; st.global.u64 [%out+8], %rd1;
        ld.global.s16 %rd1, [%in]; st.global.u64 [%out+16], %rd1;
        ld.global.b32 %rd1, [%in]; st.global.u64 [%out+24], %rd1;
        ld.global.v4.u16 {%rs1, %rs2, %rs3, %rs4}, [%in];
        st.global.v4.u16 [%out+32], {%rs4, %rs3, %rs2, %rs1};
        mov.u64 %rd2, -1; st.global.u64 [%out+40], 0; st.global.u8 [%out+41], %rd2;
        ld.global.v2.u64 {%rd3, %rd4}, [%in]; st.global.v2.b64 [%out+48], {%rd4, %rd3};
        ld.global.s32 %rd5, [%in+4]; st.global.u64 [%out+64], %rd5;
        ld.global.L1::no_allocate.L2::128B.u64 %rd6, [%in+8]; st.global.wt.u64 [%out+72], %rd6;
        ld.global.nc.L1::evict_last.b64 %rd6, [%in+8]; st.global.L1::evict_first.b64 [%out+80], %rd6;";
    let input = [0x8123_4567_89ab_cd80, 0x1111_2222_3333_4444];
    let out = run(body, 1, &input, 11);
    assert_eq!(
        out,
        [
            0xffff_ff80,
            0x80,
            0xffff_ffff_ffff_cd80,
            0x89ab_cd80,
            0xcd80_89ab_4567_8123,
            0xff00,
            0x1111_2222_3333_4444,
            0x8123_4567_89ab_cd80,
            0xffff_ffff_8123_4567,
            0x1111_2222_3333_4444,
            0x1111_2222_3333_4444,
        ]
    );
}

#[test]
fn atomics_return_the_old_value() {
    let body = "
        st.global.u64 [%out], 5; st.global.u64 [%out+8], 5;
        atom.global.add.u64 %rd1, [%out], 3; st.global.u64 [%out+64], %rd1;
        atom.acq_rel.sys.global.cas.b64 %rd1, [%out], 8, 20; st.global.u64 [%out+72], %rd1;
        atom.relaxed.gpu.cas.b64 %rd1, [%out], 8, 30; st.global.u64 [%out+80], %rd1;
        atom.exch.b32 %r1, [%out+8], 0xffffffff; cvt.u64.u32 %rd1, %r1; st.global.u64 [%out+88], %rd1;
        atom.global.min.s32 %r1, [%out+8], 1; atom.global.max.u32 %r2, [%out+8], 1;
        atom.global.inc.u32 %r3, [%out+12], 0; atom.global.inc.u32 %r3, [%out+12], 7;
        red.global.add.u64 [%out+16], 9; red.release.gpu.global.or.b64 [%out+16], 6;
        red.global.and.b32 [%out+16], 0xfffffffe; red.xor.b32 [%out+20], 1;
        atom.global.dec.u32 %r4, [%out+24], 9; atom.cas.b16 %rs1, [%out+32], 0, 7;";
    let out = run(body, 1, &[0], 12);
    assert_eq!(out[0], 20);
    assert_eq!(out[1], 0x1_ffff_ffff);
    assert_eq!(out[2], 1 << 32 | ((9 | 6) & !1));
    assert_eq!(out[3], 9);
    assert_eq!(out[4], 7);
    assert_eq!(out[8..], [5, 8, 20, 5]);
}

#[test]
fn shared_local_constant_and_parameter_memory() {
    // Through their own spaces and through generic addresses.
    let ptx = format!(
        "{}.const .align 8 .u64 table[2] = {{11, 22}};\n.global .u64 cell = 5;\n.global .u64 pointer = generic(cell)+0;\n\
         .shared .align 8 .b8 fixed[64];\n.extern .shared .align 16 .b8 more[];\n\
         .visible .entry k(.param .align 8 .b8 p[16], .param .u64 out)\n{{\n\
         .local .align 8 .b8 depot[32];\n.reg .b64 %rd<32>;\n.reg .b32 %r<8>;\n.reg .pred %p<8>;\n\
         ld.param.u64 %rd31, [out];\n\
         ld.const.u64 %rd1, [table+8]; st.global.u64 [%rd31], %rd1;\n\
         mov.u64 %rd2, table; cvta.const.u64 %rd2, %rd2; ld.u64 %rd3, [%rd2]; st.u64 [%rd31+8], %rd3;\n\
         ld.global.u64 %rd4, [pointer]; ld.u64 %rd5, [%rd4]; st.u64 [%rd31+16], %rd5;\n\
         mov.u32 %r1, fixed; st.shared.u64 [%r1+8], 33; ld.shared.u64 %rd6, [fixed+8]; st.u64 [%rd31+24], %rd6;\n\
         mov.u64 %rd7, more; cvta.shared.u64 %rd8, %rd7; st.u64 [%rd8], 44; ld.shared.u64 %rd9, [more]; st.u64 [%rd31+32], %rd9;\n\
         mov.u64 %rd10, depot; cvta.local.u64 %rd11, %rd10; st.local.u64 [%rd10+8], 55; ld.u64 %rd12, [%rd11+8]; st.u64 [%rd31+40], %rd12;\n\
         mov.u64 %rd13, p; ld.param.u64 %rd14, [%rd13+8]; st.u64 [%rd31+48], %rd14;\n\
         cvta.param.u64 %rd15, %rd13; ld.u64 %rd16, [%rd15]; st.u64 [%rd31+56], %rd16;\n\
         isspacep.shared %p1, %rd8; isspacep.local %p2, %rd11; isspacep.global %p3, %rd31; isspacep.param %p4, %rd15; isspacep.global %p5, %rd8;\n\
         selp.b64 %rd17, 1, 0, %p1; selp.b64 %rd18, 2, 0, %p2; selp.b64 %rd19, 4, 0, %p3; selp.b64 %rd20, 8, 0, %p4; selp.b64 %rd21, 16, 0, %p5;\n\
         or.b64 %rd17, %rd17, %rd18; or.b64 %rd17, %rd17, %rd19; or.b64 %rd17, %rd17, %rd20; or.b64 %rd17, %rd17, %rd21; st.u64 [%rd31+64], %rd17;\n\
         cvta.to.shared.u64 %rd22, %rd8; sub.u64 %rd22, %rd22, %rd7; st.u64 [%rd31+72], %rd22;\n\
         mov.u32 %r2, %dynamic_smem_size; st.u64 [%rd31+80], 0; st.u32 [%rd31+80], %r2;\n\
         ld.param.v2.u64 {{%rd23, %rd24}}, [p]; add.u64 %rd23, %rd23, %rd24; st.u64 [%rd31+88], %rd23;\n\
         ret;\n}}\n",
        support::HEAD
    );
    let mut rig = support::Rig::new(config(1, Scheduler::Independent));
    let out = rig.alloc(12 * 8, "out");
    let mut shape = support::threads(1);
    shape.shared_bytes = 128;
    rig.run(&ptx, shape, &[66, 77, out])
        .unwrap_or_else(|e| panic!("{e}"));
    let words: Vec<u64> = (0..12).map(|i| rig.read_u64(out + 8 * i)).collect();
    assert_eq!(words, [22, 11, 5, 33, 44, 55, 77, 66, 15, 0, 128, 143]);
}

#[test]
fn floats_in_single_and_double_precision() {
    const ONE: u64 = 0x3f80_0000;
    const TWO: u64 = 0x4000_0000;
    const NAN: u64 = 0x7fc0_0000;
    const D2: u64 = 0x4000_0000_0000_0000;
    const D3: u64 = 0x4008_0000_0000_0000;
    let single = |name: &str, a: u64, b: u64, c: u64| {
        let body = format!(
            "ld.global.f32 %f1, [%in]; ld.global.f32 %f2, [%in+8]; ld.global.f32 %f3, [%in+16];
             {name}; st.global.u64 [%out], 0; st.global.f32 [%out], %f4;"
        );
        run_with(config(1, Scheduler::Independent), &body, 1, &[a, b, c], 1).unwrap()[0]
    };
    assert_eq!(single("add.f32 %f4, %f1, %f2", ONE, ONE, 0), TWO);
    assert_eq!(single("sub.rn.f32 %f4, %f1, %f2", TWO, ONE, 0), ONE);
    assert_eq!(single("mul.f32 %f4, %f1, 0f40000000", ONE, 0, 0), TWO);
    assert_eq!(
        single("fma.rn.f32 %f4, %f1, %f2, %f3", TWO, TWO, ONE),
        0x40a0_0000
    );
    assert_eq!(single("div.rn.f32 %f4, %f1, %f2", ONE, TWO, 0), 0x3f00_0000);
    assert_eq!(single("min.f32 %f4, %f1, %f2", NAN, TWO, 0), TWO);
    assert_eq!(single("max.f32 %f4, %f1, %f2", 0x8000_0000, 0, 0), 0);
    assert_eq!(single("neg.f32 %f4, %f1", ONE, 0, 0), 0xbf80_0000);
    assert_eq!(single("abs.f32 %f4, %f1", 0xbf80_0000, 0, 0), ONE);
    assert_eq!(
        single("copysign.f32 %f4, %f1, %f2", 0x8000_0000, ONE, 0),
        0xbf80_0000
    );
    assert_eq!(single("sqrt.rn.f32 %f4, %f1", 0x4080_0000, 0, 0), TWO);
    assert_eq!(single("add.f32 %f4, %f1, %f2", NAN, ONE, 0), 0x7fff_ffff);
    let double = "
        ld.global.f64 %fd1, [%in]; ld.global.f64 %fd2, [%in+8];
        fma.rn.f64 %fd3, %fd1, %fd2, %fd1; st.global.f64 [%out], %fd3;
        cvt.rn.f32.f64 %f1, %fd1; cvt.f64.f32 %fd4, %f1; st.global.f64 [%out+8], %fd4;
        cvt.rzi.s64.f64 %rd1, 0dC004000000000000; st.global.u64 [%out+16], %rd1;
        cvt.rni.u32.f32 %r1, 0f40200000; cvt.u64.u32 %rd2, %r1; st.global.u64 [%out+24], %rd2;
        cvt.rn.f64.s32 %fd5, -3; st.global.f64 [%out+32], %fd5;
        setp.lt.f64 %p1, %fd1, %fd2; setp.gtu.f32 %p2, 0f7FC00000, %f1; setp.gt.f32 %p3, 0f7FC00000, %f1;
        selp.u64 %rd3, 1, 0, %p1; selp.u64 %rd4, 2, 0, %p2; selp.u64 %rd5, 4, 0, %p3;
        add.u64 %rd3, %rd3, %rd4; add.u64 %rd3, %rd3, %rd5; st.global.u64 [%out+40], %rd3;
        cvt.rzi.u32.f32 %r2, 0fBF800000; cvt.u64.u32 %rd6, %r2; st.global.u64 [%out+48], %rd6;
        cvt.rzi.s32.f32 %r3, 0f7FC00000; cvt.u64.u32 %rd7, %r3; st.global.u64 [%out+56], %rd7;
        cvt.rmi.f32.f32 %f2, 0fBF000000; st.global.u64 [%out+64], 0; st.global.f32 [%out+64], %f2;";
    let out = run(double, 1, &[D2, D3], 9);
    assert_eq!(
        out,
        [
            0x4020_0000_0000_0000,
            D2,
            (-2i64) as u64,
            2,
            0xc008_0000_0000_0000,
            3,
            0,
            0,
            0xbf80_0000
        ]
    );
}

#[test]
fn calls_pass_parameters_and_results_even_when_they_recurse() {
    let ptx = format!(
        "{}.func (.param .b64 result) fib(.param .b64 n);\n\
         .func (.param .b64 result) fib(.param .b64 n)\n{{\n.reg .b64 %rd<8>;\n.reg .pred %p<2>;\n.local .align 8 .b8 keep[8];\n\
         ld.param.b64 %rd1, [n];\nsetp.gt.u64 %p1, %rd1, 1;\n@%p1 bra $more;\nst.param.b64 [result], %rd1;\nret;\n$more:\n\
         sub.u64 %rd2, %rd1, 1;\n\
         {{ .param .b64 a; .param .b64 r; st.param.b64 [a], %rd2; call.uni (r), fib, (a); ld.param.b64 %rd3, [r]; }}\n\
         st.local.u64 [keep], %rd3;\nsub.u64 %rd2, %rd1, 2;\n\
         {{ .param .b64 a; .param .b64 r; st.param.b64 [a], %rd2; call (r), fib, (a); ld.param.b64 %rd4, [r]; }}\n\
         ld.local.u64 %rd3, [keep];\nadd.u64 %rd5, %rd3, %rd4;\nst.param.b64 [result], %rd5;\nret;\n}}\n\
         .func (.param .align 8 .b8 pair[16]) swap(.param .align 8 .b8 pair_in[16])\n{{ .reg .b64 %rd<3>;\n\
         ld.param.v2.b64 {{%rd1, %rd2}}, [pair_in]; st.param.v2.b64 [pair], {{%rd2, %rd1}}; ret; }}\n\
         .visible .entry k(.param .u64 out)\n{{\n.reg .b64 %rd<8>;\n.reg .b32 %r<2>;\nld.param.u64 %rd1, [out];\n\
         mov.u32 %r1, %tid.x;\ncvt.u64.u32 %rd2, %r1;\n\
         {{ .param .b64 a; .param .b64 r; st.param.b64 [a], %rd2; call (r), fib, (a); ld.param.b64 %rd3, [r]; }}\n\
         {{ .param .align 8 .b8 a[16]; .param .align 8 .b8 r[16]; st.param.b64 [a], %rd2; st.param.b64 [a+8], %rd3;\n\
         call (r), swap, (a); ld.param.b64 %rd4, [r]; ld.param.b64 %rd5, [r+8]; }}\n\
         mul.lo.u64 %rd4, %rd4, 1000; add.u64 %rd4, %rd4, %rd5;\n\
         shl.b64 %rd6, %rd2, 3; add.u64 %rd6, %rd6, %rd1; st.global.u64 [%rd6], %rd4; ret;\n}}\n",
        support::HEAD
    );
    for scheduler in [Scheduler::Independent, Scheduler::Converge] {
        let mut rig = support::Rig::new(config(3, scheduler));
        let out = rig.alloc(12 * 8, "out");
        rig.run(&ptx, support::threads(12), &[out])
            .unwrap_or_else(|e| panic!("{e}"));
        let got: Vec<u64> = (0..12).map(|i| rig.read_u64(out + 8 * i)).collect();
        let fib = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89];
        let expected: Vec<u64> = (0..12).map(|i| fib[i] * 1000 + i as u64).collect();
        assert_eq!(got, expected, "{scheduler:?}");
    }
}

#[test]
fn indexed_branches_and_special_registers() {
    let body = "
        $list: .branchtargets $zero, $one, $two;
        rem.u32 %r1, %t, 3;
        brx.idx %r1, $list;
        $zero: mov.u64 %rd1, 100; bra.uni $done;
        $one: mov.u64 %rd1, 200; bra $done;
        $two: mov.u64 %rd1, 300;
        $done:
        mov.u32 %r2, %laneid; mov.u32 %r3, %warpid; mov.u32 %r4, %ntid.x; mov.u32 %r5, %lanemask_lt; popc.b32 %r5, %r5;
        mov.u32 %r6, %lanemask_ge; popc.b32 %r6, %r6; mov.u32 %r7, %nctaid.y; mov.u32 %r8, %nwarpid;
        add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r5; add.u32 %r2, %r2, %r6; add.u32 %r2, %r2, %r7;
        add.u32 %r2, %r2, %r8; cvt.u64.u32 %rd2, %r2; add.u64 %rd1, %rd1, %rd2;
        mul.wide.u32 %rd3, %t, 8; add.u64 %rd3, %rd3, %out; st.global.u64 [%rd3], %rd1;";
    let out = run(body, 40, &[0], 40);
    for (i, got) in out.iter().enumerate() {
        let i = i as u64;
        // laneid + warpid + ntid + (lanes below) + (this lane and above) + nctaid.y + warps
        let expected = [100, 200, 300][i as usize % 3] + i % 32 + i / 32 + 40 + 32 + 1 + 2;
        assert_eq!(*got, expected, "thread {i}");
    }
}

#[test]
fn time_is_monotone_and_sleeps_consume_it() {
    let body = "
        mov.u64 %rd1, %globaltimer; nanosleep.u32 5000; mov.u64 %rd2, %globaltimer;
        sub.u64 %rd3, %rd2, %rd1; st.global.u64 [%out], %rd3;
        mov.u64 %rd4, %clock64; mov.u64 %rd5, %clock64; setp.gt.u64 %p1, %rd5, %rd4; selp.u64 %rd6, 1, 0, %p1; st.global.u64 [%out+8], %rd6;
        mov.u32 %r1, %globaltimer_lo; mov.u64 %rd7, %globaltimer; cvt.u32.u64 %r2, %rd7; sub.u32 %r3, %r2, %r1;
        cvt.u64.u32 %rd8, %r3; st.global.u64 [%out+16], %rd8;";
    let out = run_with(config(1, Scheduler::Independent), body, 1, &[0], 3).unwrap();
    assert!((5000..5100).contains(&out[0]), "{}", out[0]);
    assert_eq!(out[1], 1);
    assert!(out[2] < 100);
}
