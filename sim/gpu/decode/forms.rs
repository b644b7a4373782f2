//! The table of instructions: which mnemonics, modifiers and operands exist, and who decodes them.
//!
//! Knows: the syntax of each form (PTX ISA, "Instruction Set").
//! Must not know: what an instruction does.
//!
//! A pattern is a list of groups of modifiers in their order; `a|b` means one of them, `[a|b]` one or none, `$NAME` stands
//! for a set in [`SETS`]. The table is the decoder's only source of syntax, and the coverage page is printed from it.

use super::build::{alu, compare, flow, memory, moves, warp};
use super::context::{Cx, Mods};
use crate::error::LoadError;
use crate::ir::Op;
use crate::parse::ast::Operand;

/// Turns operands into an operation.
pub(super) type Build = fn(&mut Cx<'_, '_>, &Mods<'_>, &[Operand<'_>]) -> Result<Op, LoadError>;

/// One form of an instruction.
pub(super) struct Form {
    pub(super) name: &'static str,
    pub(super) pattern: &'static str,
    /// For people; the builder checks operands.
    pub(super) operands: &'static str,
    pub(super) build: Build,
}

/// Named sets of modifiers.
pub(super) const SETS: &[(&str, &str)] = &[
    ("$INT", "u16|u32|u64|s16|s32|s64"),
    ("$SINT", "s16|s32|s64"),
    ("$INT8", "u8|u16|u32|u64|s8|s16|s32|s64"),
    ("$BITS", "b16|b32|b64"),
    ("$FLOAT", "f32|f64"),
    ("$ANY", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"),
    (
        "$MEM",
        "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
    ),
    ("$SS", "global|shared|shared::cta|local|const|param"),
    ("$GS", "global|shared|shared::cta"),
    ("$SCOPE", "cta|cluster|gpu|sys"),
    ("$SEM", "relaxed|acquire|release|acq_rel"),
    ("$VEC", "v2|v4|v8"),
    ("$COP", "ca|cg|cs|lu|cv"),
    ("$WCOP", "wb|cg|cs|wt"),
    (
        "$L1",
        "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    ),
    ("$L2", "L2::evict_last|L2::evict_normal|L2::evict_first"),
    ("$L2C", "L2::cache_hint"),
    ("$L2P", "L2::64B|L2::128B|L2::256B"),
    ("$CMP", "eq|ne|lt|le|gt|ge|lo|ls|hi|hs"),
    ("$FCMP", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"),
    ("$BOOL", "and|or|xor"),
    ("$RI", "rni|rzi|rmi|rpi"),
];

const fn form(
    name: &'static str,
    pattern: &'static str,
    operands: &'static str,
    build: Build,
) -> Form {
    Form {
        name,
        pattern,
        operands,
        build,
    }
}

/// All forms; those of one mnemonic stand together. The first whose pattern fits is taken.
pub(super) const FORMS: &[Form] = &[
    // Integer arithmetic.
    form("add", "$INT", "d, a, b", alu::add),
    form("add", "sat s32", "d, a, b", alu::add_sat),
    form("add", "cc u32|s32|u64|s64", "d, a, b", alu::extended),
    form("add", "[rn] $FLOAT", "d, a, b", alu::float2),
    form("addc", "[cc] u32|s32|u64|s64", "d, a, b", alu::extended),
    form("sub", "$INT", "d, a, b", alu::sub),
    form("sub", "sat s32", "d, a, b", alu::add_sat),
    form("sub", "cc u32|s32|u64|s64", "d, a, b", alu::extended),
    form("sub", "[rn] $FLOAT", "d, a, b", alu::float2),
    form("subc", "[cc] u32|s32|u64|s64", "d, a, b", alu::extended),
    form("mul", "lo|hi $INT", "d, a, b", alu::mul),
    form("mul", "wide u16|u32|s16|s32", "d, a, b", alu::mul),
    form("mul", "[rn] $FLOAT", "d, a, b", alu::float2),
    form("mad", "lo|hi $INT", "d, a, b, c", alu::mad),
    form("mad", "wide u16|u32|s16|s32", "d, a, b, c", alu::mad),
    form(
        "mad",
        "lo|hi cc u32|s32|u64|s64",
        "d, a, b, c",
        alu::extended,
    ),
    form("mad", "rn $FLOAT", "d, a, b, c", alu::fma),
    form(
        "madc",
        "lo|hi [cc] u32|s32|u64|s64",
        "d, a, b, c",
        alu::extended,
    ),
    form("mul24", "lo|hi u32|s32", "d, a, b", alu::mul24),
    form("mad24", "lo|hi u32|s32", "d, a, b, c", alu::mul24),
    form("div", "$INT", "d, a, b", alu::int2),
    form("div", "rn $FLOAT", "d, a, b", alu::float2),
    form("rem", "$INT", "d, a, b", alu::int2),
    form("min", "$INT", "d, a, b", alu::int2),
    form("min", "$FLOAT", "d, a, b", alu::float2),
    form("max", "$INT", "d, a, b", alu::int2),
    form("max", "$FLOAT", "d, a, b", alu::float2),
    form("abs", "$SINT", "d, a", alu::int1),
    form("abs", "$FLOAT", "d, a", alu::float1),
    form("neg", "$SINT", "d, a", alu::int1),
    form("neg", "$FLOAT", "d, a", alu::float1),
    form("sad", "$INT", "d, a, b, c", alu::sad),
    form("fma", "rn $FLOAT", "d, a, b, c", alu::fma),
    form("copysign", "$FLOAT", "d, a, b", alu::float2),
    form("sqrt", "rn $FLOAT", "d, a", alu::float1),
    form("rcp", "rn $FLOAT", "d, a", alu::float1),
    // Logic and shifts.
    form("and", "$BITS|pred", "d, a, b", alu::logic),
    form("or", "$BITS|pred", "d, a, b", alu::logic),
    form("xor", "$BITS|pred", "d, a, b", alu::logic),
    form("not", "$BITS|pred", "d, a", alu::not),
    form("cnot", "$BITS", "d, a", alu::int1),
    form("lop3", "b32", "d, a, b, c, table", alu::lop3),
    form("shl", "$BITS", "d, a, amount", alu::shift),
    form("shr", "$BITS|$INT", "d, a, amount", alu::shift),
    form(
        "shf",
        "l|r clamp|wrap b32",
        "d, low, high, amount",
        alu::funnel,
    ),
    // Bit fields.
    form("bfe", "u32|u64|s32|s64", "d, a, position, length", alu::bfe),
    form("bfi", "b32|b64", "f, a, b, position, length", alu::bfi),
    form("bfind", "[shiftamt] u32|u64|s32|s64", "d, a", alu::count),
    form("brev", "b32|b64", "d, a", alu::int1),
    form("popc", "b32|b64", "d, a", alu::count),
    form("clz", "b32|b64", "d, a", alu::count),
    form(
        "prmt",
        "b32 [f4e|b4e|rc8|ecl|ecr|rc16]",
        "d, a, b, selector",
        alu::prmt,
    ),
    // Comparison and selection.
    form("setp", "$CMP $BITS|$INT", "p[|q], a, b", compare::setp),
    form(
        "setp",
        "$CMP $BOOL $BITS|$INT",
        "p[|q], a, b, [!]c",
        compare::setp,
    ),
    form("setp", "$FCMP $FLOAT", "p[|q], a, b", compare::setp),
    form(
        "setp",
        "$FCMP $BOOL $FLOAT",
        "p[|q], a, b, [!]c",
        compare::setp,
    ),
    form("set", "$CMP u32|s32 $BITS|$INT", "d, a, b", compare::set),
    form(
        "set",
        "$CMP $BOOL u32|s32 $BITS|$INT",
        "d, a, b, [!]c",
        compare::set,
    ),
    form("set", "$FCMP u32|s32 $FLOAT", "d, a, b", compare::set),
    form("selp", "$ANY", "d, a, b, p", compare::selp),
    form("slct", "$ANY s32", "d, a, b, c", compare::slct),
    // Data movement.
    form(
        "mov",
        "$ANY|pred",
        "d, a (vectors pack and unpack; symbols give addresses)",
        moves::mov,
    ),
    form("cvt", "[sat] $INT8 $INT8", "d, a", moves::cvt),
    form("cvt", "f64 f32", "d, a", moves::cvt),
    form("cvt", "rn f32 f64", "d, a", moves::cvt),
    form("cvt", "rn $FLOAT $INT8", "d, a", moves::cvt),
    form("cvt", "$RI $INT8 $FLOAT", "d, a", moves::cvt),
    form("cvt", "$RI f32 f32", "d, a", moves::cvt),
    form("cvt", "$RI f64 f64", "d, a", moves::cvt),
    form("cvta", "[to] $SS u64", "d, a", memory::cvta),
    form("isspacep", "$SS", "p, a", memory::isspacep),
    // Memory.
    form(
        "ld",
        "[weak] [$SS] [$COP] [$L1] [$L2] [$L2C] [$L2P] [$VEC] $MEM",
        "d, [a]{, cache policy}",
        memory::ld,
    ),
    form(
        "ld",
        "volatile [$SS] [$L2P] [$VEC] $MEM",
        "d, [a]",
        memory::ld,
    ),
    form(
        "ld",
        "relaxed|acquire $SCOPE [$GS] [$L1] [$L2] [$L2C] [$L2P] [$VEC] $MEM",
        "d, [a]{, cache policy}",
        memory::ld,
    ),
    form("ld", "mmio relaxed sys [global] $MEM", "d, [a]", memory::ld),
    form(
        "ld",
        "global [ca|cg|cs] nc [$L1] [$L2] [$L2C] [$L2P] [$VEC] $MEM",
        "d, [a]{, cache policy}",
        memory::ld,
    ),
    form(
        "st",
        "[weak] [global|shared|shared::cta|local|param] [$WCOP] [$L1] [$L2] [$L2C] [$VEC] $MEM",
        "[a], b{, cache policy}",
        memory::st,
    ),
    form(
        "st",
        "volatile [global|shared|shared::cta|local] [$VEC] $MEM",
        "[a], b",
        memory::st,
    ),
    form(
        "st",
        "relaxed|release $SCOPE [$GS] [$L1] [$L2] [$L2C] [$VEC] $MEM",
        "[a], b{, cache policy}",
        memory::st,
    ),
    form("st", "mmio relaxed sys [global] $MEM", "[a], b", memory::st),
    form(
        "atom",
        "[$SEM] [$SCOPE] [$GS] and|or|xor [$L2C] b32|b64",
        "d, [a], b{, cache policy}",
        memory::atom,
    ),
    form(
        "atom",
        "[$SEM] [$SCOPE] [$GS] exch [$L2C] b32|b64",
        "d, [a], b{, cache policy}",
        memory::atom,
    ),
    form(
        "atom",
        "[$SEM] [$SCOPE] [$GS] cas [$L2C] b16|b32|b64",
        "d, [a], b, c{, cache policy}",
        memory::atom,
    ),
    form(
        "atom",
        "[$SEM] [$SCOPE] [$GS] add [$L2C] u32|s32|u64",
        "d, [a], b{, cache policy}",
        memory::atom,
    ),
    form(
        "atom",
        "[$SEM] [$SCOPE] [$GS] min|max [$L2C] u32|u64|s32|s64",
        "d, [a], b{, cache policy}",
        memory::atom,
    ),
    form(
        "atom",
        "[$SEM] [$SCOPE] [$GS] inc|dec [$L2C] u32",
        "d, [a], b{, cache policy}",
        memory::atom,
    ),
    form(
        "red",
        "[relaxed|release] [$SCOPE] [$GS] and|or|xor [$L2C] b32|b64",
        "[a], b{, cache policy}",
        memory::red,
    ),
    form(
        "red",
        "[relaxed|release] [$SCOPE] [$GS] add [$L2C] u32|s32|u64",
        "[a], b{, cache policy}",
        memory::red,
    ),
    form(
        "red",
        "[relaxed|release] [$SCOPE] [$GS] min|max [$L2C] u32|u64|s32|s64",
        "[a], b{, cache policy}",
        memory::red,
    ),
    form(
        "red",
        "[relaxed|release] [$SCOPE] [$GS] inc|dec [$L2C] u32",
        "[a], b{, cache policy}",
        memory::red,
    ),
    form(
        "fence",
        "[sc|acq_rel|acquire|release] $SCOPE",
        "",
        memory::fence,
    ),
    form("membar", "cta|gl|sys", "", memory::fence),
    form(
        "prefetch",
        "[global|local] L1|L2",
        "[a] (no effect)",
        memory::prefetch,
    ),
    form("prefetchu", "L1", "[a] (no effect)", memory::prefetch),
    // Control.
    form("bra", "[uni]", "label", flow::bra),
    form("brx", "idx [uni]", "index, list", flow::brx),
    form(
        "call",
        "[uni]",
        "{(results),} function{, (arguments)}",
        flow::call,
    ),
    form("ret", "[uni]", "", flow::simple),
    form("exit", "", "", flow::simple),
    form("trap", "", "", flow::simple),
    form("brkpt", "", "", flow::simple),
    form("nanosleep", "u32", "t", flow::nanosleep),
    // Between threads.
    form("bar", "[cta] sync", "a{, threads}", warp::bar),
    form("bar", "[cta] arrive", "a, threads", warp::bar),
    form(
        "bar",
        "[cta] red popc u32",
        "d, a{, threads}, [!]c",
        warp::bar,
    ),
    form(
        "bar",
        "[cta] red and|or pred",
        "p, a{, threads}, [!]c",
        warp::bar,
    ),
    form("bar", "warp sync", "mask", warp::warp_bar),
    form("barrier", "[cta] sync [aligned]", "a{, threads}", warp::bar),
    form("barrier", "[cta] arrive [aligned]", "a, threads", warp::bar),
    form(
        "barrier",
        "[cta] red popc [aligned] u32",
        "d, a{, threads}, [!]c",
        warp::bar,
    ),
    form(
        "barrier",
        "[cta] red and|or [aligned] pred",
        "p, a{, threads}, [!]c",
        warp::bar,
    ),
    form(
        "shfl",
        "sync up|down|bfly|idx b32",
        "d[|p], a, b, c, mask",
        warp::shfl,
    ),
    form("vote", "sync all|any|uni pred", "p, [!]a, mask", warp::vote),
    form("vote", "sync ballot b32", "d, [!]a, mask", warp::vote),
    form("match", "any sync b32|b64", "d, a, mask", warp::matching),
    form(
        "match",
        "all sync b32|b64",
        "d[|p], a, mask",
        warp::matching,
    ),
    form(
        "redux",
        "sync add|min|max u32|s32",
        "d, a, mask",
        warp::redux,
    ),
    form("redux", "sync and|or|xor b32", "d, a, mask", warp::redux),
    form("elect", "sync", "d|p, mask", warp::elect),
    form("activemask", "b32", "d", warp::active_mask),
];

/// Replaces a set's name by its members.
fn expand(part: &str) -> &str {
    SETS.iter()
        .find(|(name, _)| *name == part)
        .map_or(part, |(_, set)| set)
}

fn allows(group: &str, modifier: &str) -> bool {
    group
        .split('|')
        .any(|part| expand(part).split('|').any(|m| m == modifier))
}

/// How far `modifiers` follow `pattern`: all of it, or the number that fit and what could have come next.
fn follow(pattern: &'static str, modifiers: &[&str]) -> Result<(), (usize, Vec<&'static str>)> {
    let mut at = 0;
    let mut expected = Vec::new();
    for group in pattern.split_ascii_whitespace() {
        let optional = group.starts_with('[');
        let group = group.trim_matches(['[', ']']);
        match modifiers.get(at) {
            Some(modifier) if allows(group, modifier) => {
                at += 1;
                expected.clear();
            }
            _ => {
                expected.push(group);
                if !optional {
                    return Err((at, expected));
                }
            }
        }
    }
    if at == modifiers.len() {
        Ok(())
    } else {
        Err((at, expected))
    }
}

/// Finds the form of an instruction, or says what is wrong with it.
pub(super) fn find(mnemonic: &str, modifiers: &[&str]) -> Result<&'static Form, String> {
    let mut best: Option<(usize, Vec<&str>)> = None;
    for form in FORMS.iter().filter(|form| form.name == mnemonic) {
        match follow(form.pattern, modifiers) {
            Ok(()) => return Ok(form),
            Err((at, expected)) => {
                let old = best.get_or_insert((at, Vec::new()));
                if at > old.0 {
                    *old = (at, Vec::new());
                }
                if at == old.0 {
                    old.1.extend(expected);
                }
            }
        }
    }
    let Some((at, expected)) = best else {
        return Err(format!("unknown instruction `{mnemonic}`"));
    };
    let mut names: Vec<String> = Vec::new();
    for group in expected {
        for part in group.split('|').flat_map(|part| expand(part).split('|')) {
            let name = format!(".{part}");
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let wanted = if names.is_empty() {
        "no more modifiers".to_owned()
    } else {
        names.join(" ")
    };
    Err(match modifiers.get(at) {
        Some(modifier) => {
            format!("unsupported modifier `.{modifier}` of `{mnemonic}`; supported here: {wanted}")
        }
        None => format!("`{mnemonic}` lacks a modifier; supported here: {wanted}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_mnemonic_stand_together_and_sets_exist() {
        let mut seen: Vec<&str> = Vec::new();
        for form in FORMS {
            if seen.last() != Some(&form.name) {
                assert!(!seen.contains(&form.name), "{} is split", form.name);
                seen.push(form.name);
            }
            for part in form
                .pattern
                .split_ascii_whitespace()
                .flat_map(|g| g.split('|'))
            {
                let part = part.trim_matches(['[', ']']);
                assert!(!part.starts_with('$') || expand(part) != part, "{part}");
            }
        }
    }

    #[test]
    fn modifiers_are_matched_in_order_and_never_skipped() {
        assert_eq!(
            find("ld", &["relaxed", "sys", "global", "v2", "b64"]).map(|f| f.name),
            Ok("ld")
        );
        assert!(find("ld", &["global", "L1::evict_last", "L2::128B", "b32"]).is_ok());
        assert!(find("ld", &["global", "nc", "L1::no_allocate", "v4", "u32"]).is_ok());
        assert!(find("st", &["mmio", "relaxed", "sys", "global", "u64"]).is_ok());
        for (mnemonic, modifiers, part) in [
            ("frob", &["u32"][..], "unknown instruction `frob`"),
            ("add", &["u8"], "unsupported modifier `.u8` of `add`"),
            ("add", &[], "`add` lacks a modifier"),
            ("ld", &["global", "frob", "u32"], "`.frob`"),
            (
                "ld",
                &["relaxed", "global", "u32"],
                "supported here: .cta .cluster .gpu .sys",
            ),
            ("bra", &["uni", "uni"], "no more modifiers"),
            ("atom", &["add", "f32"], "`.f32`"),
            ("add", &["rz", "f32"], "`.rz`"),
        ] {
            let e = find(mnemonic, modifiers).map(|f| f.pattern).unwrap_err();
            assert!(e.contains(part), "{e}");
        }
    }
}
