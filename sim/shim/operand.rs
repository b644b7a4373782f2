//! An x86-64 instruction with another memory operand: what lets a store to a doorbell page be executed elsewhere.
//!
//! Knows: how prefixes, opcode and operand are encoded (Intel SDM volume 2, chapter 2), not what instructions do.
//! Must not know: signals, or where the copy is executed.
//!
//! The copy does what the original does, but for its memory operand: that is `[rsi]` or `[rdi]`, whichever the instruction does
//! not use otherwise. How long an instruction is need not be known: whoever executes the copy sees where it ends.

/// Longest instruction.
pub(crate) const LONGEST: usize = 15;

/// The register that holds the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Rsi,
    Rdi,
}

/// The copy of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Redirected {
    /// Its bytes, and what comes behind it.
    pub(crate) code: [u8; LONGEST + 1],
    pub(crate) base: Base,
    /// So many bytes shorter than the original.
    pub(crate) shorter: u8,
    /// A store of a string: it advances `rdi`, and `rcx` counts if it repeats.
    pub(crate) string: Option<Repeats>,
}

/// Whether a string instruction repeats: the copy does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    No,
    Yes,
}

/// Bytes that are being put together.
struct Copy {
    code: [u8; LONGEST + 1],
    len: usize,
}

impl Copy {
    fn push(&mut self, byte: u8) -> Option<()> {
        *self.code.get_mut(self.len)? = byte;
        self.len += 1;
        Some(())
    }
}

/// The copy of the instruction at the beginning of `code`; `None` if its operand is of a kind that is not known here.
pub(crate) fn redirect(code: &[u8]) -> Option<Redirected> {
    let mut copy = Copy {
        code: [0x90; LONGEST + 1],
        len: 0,
    };
    let mut at = 0;
    let mut shorter = 0;
    let mut repeat = None;
    // Legacy prefixes. Segments and short addresses concern the operand, which becomes another.
    loop {
        let prefix = *code.get(at)?;
        match prefix {
            0xf2 | 0xf3 => repeat = Some(copy.len),
            0x66 | 0xf0 | 0x2e | 0x36 | 0x3e | 0x26 => {}
            0x64 | 0x65 | 0x67 => {
                shorter += 1;
                at += 1;
                continue;
            }
            _ => break,
        }
        copy.push(prefix)?;
        at += 1;
    }
    let mut next = || {
        let byte = code.get(at).copied();
        at += 1;
        byte
    };
    let first = next()?;
    // Bits that extend numbers of base and index registers are taken away: the new base needs none. Bits are inverted in VEX
    // and EVEX.
    const BASE_AND_INDEX: u8 = 0b0110_0000;
    let extended = match first {
        0xc5 => {
            let second = next()?;
            copy.push(first)?;
            copy.push(second)?;
            copy.push(next()?)?;
            second & 0x80 == 0
        }
        0xc4 | 0x62 => {
            let second = next()?;
            copy.push(first)?;
            copy.push(second | BASE_AND_INDEX)?;
            for _ in 0..if first == 0x62 { 3 } else { 2 } {
                copy.push(next()?)?;
            }
            second & 0x80 == 0
        }
        _ => {
            let mut opcode = first;
            let mut extended = false;
            if first & 0xf0 == 0x40 {
                copy.push(first & !0b011)?;
                extended = first & 0b100 != 0;
                opcode = next()?;
            }
            match opcode {
                // MOVS and STOS.
                0xa4 | 0xa5 | 0xaa | 0xab => {
                    copy.push(opcode)?;
                    return Some(string(copy, shorter, repeat));
                }
                0x0f => {
                    copy.push(opcode)?;
                    let second = next()?;
                    copy.push(second)?;
                    if matches!(second, 0x38 | 0x3a) {
                        let third = next()?;
                        // MOVDIR64B, ENQCMD: the address is in a register that is no memory operand.
                        if second == 0x38 && third == 0xf8 {
                            return None;
                        }
                        copy.push(third)?;
                    }
                }
                // The address is part of the instruction.
                0xa0..=0xa3 => return None,
                _ => copy.push(opcode)?,
            }
            extended
        }
    };
    let modrm = next()?;
    let (mode, register, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    let mut operand: u8 = 1;
    let displacement = match mode {
        0 if rm == 5 => 4,
        0 | 1 if rm == 4 => {
            operand += 1;
            let sib = next()?;
            match mode {
                1 => 1,
                _ if sib & 7 == 5 => 4,
                _ => 0,
            }
        }
        2 if rm == 4 => {
            operand += 1;
            next()?;
            4
        }
        0 => 0,
        1 => 1,
        2 => 4,
        // No memory.
        _ => return None,
    };
    operand += displacement;
    for _ in 0..displacement {
        next()?;
    }
    let base = if register == 6 && !extended {
        Base::Rdi
    } else {
        Base::Rsi
    };
    copy.push(register << 3 | if base == Base::Rsi { 6 } else { 7 })?;
    // Immediate bytes, if there are any.
    while let Some(byte) = next() {
        if copy.push(byte).is_none() {
            break;
        }
    }
    Some(Redirected {
        code: copy.code,
        base,
        shorter: shorter + operand - 1,
        string: None,
    })
}

fn string(mut copy: Copy, mut shorter: u8, repeat: Option<usize>) -> Redirected {
    if let Some(at) = repeat {
        copy.code.copy_within(at + 1.., at);
        shorter += 1;
    }
    Redirected {
        code: copy.code,
        base: Base::Rdi,
        shorter,
        string: Some(if repeat.is_some() {
            Repeats::Yes
        } else {
            Repeats::No
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_of(code: &[u8]) -> (Vec<u8>, Base, u8) {
        let redirected = redirect(code).unwrap();
        let len = code.len() - redirected.shorter as usize;
        assert!(redirected.code[len..].iter().all(|byte| *byte == 0x90));
        (
            redirected.code[..len].to_vec(),
            redirected.base,
            redirected.shorter,
        )
    }

    #[test]
    fn copies_by_hand() {
        use Base::{Rdi, Rsi};
        for (code, expected, base) in [
            // mov [rax], rdx -> mov [rsi], rdx
            (&[0x48, 0x89, 0x10][..], &[0x48, 0x89, 0x16][..], Rsi),
            // mov [rdi+0x800], rsi: rsi is stored, so rdi holds the address
            (
                &[0x48, 0x89, 0xb7, 0x00, 0x08, 0, 0],
                &[0x48, 0x89, 0x37],
                Rdi,
            ),
            // mov [r8+r9*8+0x10], r14d
            (&[0x47, 0x89, 0x74, 0xc8, 0x10], &[0x44, 0x89, 0x36], Rsi),
            // mov byte [rsp+0x8], 0x7f
            (&[0xc6, 0x44, 0x24, 0x08, 0x7f], &[0xc6, 0x06, 0x7f], Rsi),
            // mov qword [rip+0x11223344], 5
            (
                &[0x48, 0xc7, 0x05, 0x44, 0x33, 0x22, 0x11, 5, 0, 0, 0],
                &[0x48, 0xc7, 0x06, 5, 0, 0, 0],
                Rsi,
            ),
            // mov fs:[0x800], ax: an absolute address behind a SIB byte
            (
                &[0x64, 0x66, 0x89, 0x04, 0x25, 0x00, 0x08, 0, 0],
                &[0x66, 0x89, 0x06],
                Rsi,
            ),
            // xchg [rcx], rsi
            (&[0x48, 0x87, 0x31], &[0x48, 0x87, 0x37], Rdi),
            // movnti [rax+8], rdx
            (
                &[0x48, 0x0f, 0xc3, 0x50, 0x08],
                &[0x48, 0x0f, 0xc3, 0x16],
                Rsi,
            ),
            // movups [r12], xmm9
            (
                &[0x45, 0x0f, 0x11, 0x0c, 0x24],
                &[0x44, 0x0f, 0x11, 0x0e],
                Rsi,
            ),
            // vmovdqu [rax+0x20], ymm1
            (
                &[0xc5, 0xfe, 0x7f, 0x48, 0x20],
                &[0xc5, 0xfe, 0x7f, 0x0e],
                Rsi,
            ),
            // vmovdqu [r8], ymm6
            (
                &[0xc4, 0xc1, 0x7e, 0x7f, 0x30],
                &[0xc4, 0xe1, 0x7e, 0x7f, 0x37],
                Rdi,
            ),
            // vmovdqu64 [rax+0x40], zmm0: the displacement counts in units of the operand
            (
                &[0x62, 0xf1, 0xfe, 0x48, 0x7f, 0x40, 0x01],
                &[0x62, 0xf1, 0xfe, 0x48, 0x7f, 0x06],
                Rsi,
            ),
            // lock xadd [rbx], rax
            (
                &[0xf0, 0x48, 0x0f, 0xc1, 0x03],
                &[0xf0, 0x48, 0x0f, 0xc1, 0x06],
                Rsi,
            ),
        ] {
            let (copy, found, _) = copy_of(code);
            assert_eq!((copy.as_slice(), found), (expected, base), "{code:02x?}");
        }
    }

    #[test]
    fn strings_are_stored_one_by_one() {
        let stos = redirect(&[0xf3, 0x48, 0xab]).unwrap();
        assert_eq!((&stos.code[..2], stos.shorter), (&[0x48, 0xab][..], 1));
        assert_eq!((stos.base, stos.string), (Base::Rdi, Some(Repeats::Yes)));
        let movs = redirect(&[0xa4]).unwrap();
        assert_eq!((movs.code[0], movs.shorter), (0xa4, 0));
        assert_eq!(movs.string, Some(Repeats::No));
    }

    #[test]
    fn what_cannot_be_redirected_is_refused_and_no_bytes_are_too_strange() {
        // mov eax, edx; movdir64b; mov [moffs], al; nothing.
        for code in [
            &[0x89, 0xd0][..],
            &[0x66, 0x0f, 0x38, 0xf8, 0x02],
            &[0xa2, 1, 2, 3, 4, 5, 6, 7, 8],
            &[],
            &[0x66; 15],
        ] {
            assert_eq!(redirect(code), None, "{code:02x?}");
        }
        for seed in 0..200_000u64 {
            let word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let code = [word.to_le_bytes(), word.rotate_left(29).to_le_bytes()].concat();
            for len in 0..code.len() {
                let _ = redirect(&code[..len]);
            }
        }
    }
}
