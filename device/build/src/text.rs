//! What a PTX text must not have, or need not.
//!
//! Knows: PTX as text, line by line. Must not know: what the kernels do.

use std::fmt;

/// A line that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its number, from 1; 0 for the text as a whole.
    pub line: usize,
    /// The line, trimmed.
    pub text: String,
    /// Why.
    pub reason: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(self.reason);
        }
        write!(f, "line {}: {}: `{}`", self.line, self.reason, self.text)
    }
}

/// Functions that LLVM calls for Rust code and that nothing on a GPU defines. They come from `core::fmt`,
/// slice comparison, copies of unknown length: fat LTO leaves `compiler_builtins` out.
const NOWHERE: [&str; 6] = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];

/// A text without the comments that LLVM puts around each piece of inline assembly: a seventh of it. Other comments stay.
pub(crate) fn without_marks(text: &str) -> String {
    text.split_inclusive('\n')
        .filter(|line| !matches!(line.trim(), "// begin inline asm" | "// end inline asm"))
        .collect()
}

/// Findings in a text, in order. `strict` adds what only warpverbs' own kernels must not have.
pub(crate) fn check(text: &str, strict: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut kernels = 0;
    for (i, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default().trim();
        kernels += usize::from(code.contains(".entry ") || code.contains(".visible .func"));
        let reason = refused(code).or_else(|| if strict { refused_strictly(code) } else { None });
        if let Some(reason) = reason {
            findings.push(Finding {
                line: i + 1,
                text: code.to_owned(),
                reason,
            });
        }
    }
    if kernels == 0 {
        findings.push(Finding {
            line: 0,
            text: String::new(),
            reason: "it has no kernel and no visible function: are they `pub`, and `no_mangle`?",
        });
    }
    findings
}

fn refused(code: &str) -> Option<&'static str> {
    let missing = |name: &&str| {
        code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .any(|word| word == *name)
    };
    (code.starts_with(".extern .func") && NOWHERE.iter().any(missing))
        .then_some("a function that nothing on a GPU defines: avoid core::fmt and copies or comparisons of unknown length")
}

fn refused_strictly(code: &str) -> Option<&'static str> {
    let words = || {
        code.split(|c: char| !c.is_ascii_alphanumeric() && !"._$%@!".contains(c))
            .filter(|word| !word.is_empty())
    };
    // A predicate may stand before the instruction.
    let instruction = words()
        .find(|word| !word.starts_with(['@', '!']))
        .unwrap_or_default();
    let part_of = |of: &str, part: &str| of.split('.').any(|found| found == part);
    if code.starts_with(".extern .func") {
        Some("a function from elsewhere")
    } else if part_of(instruction, "call") {
        Some("a call")
    } else if instruction == "trap" {
        Some("a trap: a panic or a bounds check was left")
    } else if words().any(|word| word == ".local" || part_of(word, "local")) {
        Some("local memory")
    } else if words().any(|word| word.starts_with("_ZN") || word.starts_with("_R")) {
        Some("a mangled name")
    } else if (part_of(instruction, "atom") || part_of(instruction, "red"))
        && !["cta", "cluster", "gpu", "sys"]
            .iter()
            .any(|scope| part_of(instruction, scope))
    {
        Some("an atomic without a scope: it is relaxed and GPU-scope, whatever was meant")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(body: &str, strict: bool) -> Vec<String> {
        let text = format!(".visible .entry k()\n{{\n{body}\n}}\n");
        check(&text, strict)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_kernels_may_have_passes() {
        for fine in [
            "atom.relaxed.gpu.global.add.u64 %rd1, [%rd2], 1;",
            "@%p1 red.relaxed.sys.global.or.b64 [%rd1], 1;",
            "// call the local trap of _ZN",
            "ld.param.b64 %rd1, [k_param_0];",
            "mov.b64 %rd1, %rd2; // red.add",
            "bra.uni $L__local_1;",
        ] {
            assert_eq!(reasons(fine, true), [""; 0], "{fine}");
        }
    }

    #[test]
    fn what_only_our_kernels_must_not_have_is_found_strictly() {
        for (bad, why) in [
            (
                ".extern .func (.param .b32 r) vprintf (.param .b64 a);",
                "from elsewhere",
            ),
            ("call.uni (r), f, (p);", "a call"),
            ("@%p1 call f;", "a call"),
            ("trap;", "a trap"),
            ("@%p3 trap;", "a trap"),
            (".local .align 8 .b8 __local_depot0[16];", "local memory"),
            ("st.local.b64 [%rd1], %rd2;", "local memory"),
            ("mov.b64 %rd1, _ZN4core3fmt17h;", "mangled"),
            ("mov.b64 %rd1, _RNvCs1;", "mangled"),
            ("atom.global.add.u64 %rd1, [%rd2], 1;", "without a scope"),
            ("@!%p1 red.global.or.b64 [%rd1], 1;", "without a scope"),
        ] {
            let found = reasons(bad, true);
            assert!(
                found.len() == 1 && found[0].contains(why) && found[0].contains("line 3"),
                "{bad}: {found:?}"
            );
            assert_eq!(reasons(bad, false), [""; 0], "{bad}");
        }
    }

    #[test]
    fn functions_that_nothing_defines_are_found_always() {
        let found = reasons(
            ".extern .func (.param .b32 r) memcmp (.param .b64 a);",
            false,
        );
        assert!(
            found.len() == 1 && found[0].contains("nothing on a GPU defines"),
            "{found:?}"
        );
    }

    #[test]
    fn a_text_without_kernels_is_found() {
        assert!(
            check(".version 8.2\n", false)[0]
                .to_string()
                .contains("no kernel")
        );
    }
}
