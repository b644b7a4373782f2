//! The page that lists the supported PTX, printed from the decoder's own tables.

use std::fmt::Write as _;

use super::forms::{FORMS, SETS};

/// Markdown of all instruction forms the decoder accepts.
pub fn coverage() -> String {
    let mut out = String::from(
        "# PTX that the simulated GPU runs\n\n\
         Printed from the decoder's tables (`BLESS=1 cargo test -p warpverbs-sim-gpu --test coverage` rewrites it). Anything not\n\
         listed is refused when the module is loaded, with the line and its text. `a|b`: one of them; `[a]`: may be left out;\n\
         `$NAME`: a set, below.\n\n\
         ## Instructions\n\n\
         | instruction | modifiers, in order | operands |\n|---|---|---|\n",
    );
    for form in FORMS {
        let cell = |text: &str| {
            if text.is_empty() {
                String::new()
            } else {
                format!("`{}`", text.replace('|', "\\|"))
            }
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "| `{}` | {} | {} |",
            form.name,
            cell(form.pattern),
            cell(form.operands)
        );
    }
    out.push_str("\n## Sets\n\n| set | members |\n|---|---|\n");
    for (name, members) in SETS {
        let _ = writeln!(out, "| `{name}` | `{}` |", members.replace('|', "\\|"));
    }
    out.push_str(
        "\n## The rest of the language\n\n\
         - Directives: `.version` 6.0 to 9.x, `.target sm_50` and later, `.address_size 64`, `.visible`, `.weak`, `.common`, `.extern`\n  \
           (prototypes and dynamic shared memory), `.entry`, `.func`, `.global`, `.const`, `.shared`, `.local`, `.param`, `.reg`,\n  \
           `.align`, `.maxntid`, `.reqntid`, `.minnctapersm`, `.maxnctapersm`, `.maxnreg`, `.noreturn`, `.branchtargets`, `.pragma`, `.file`,\n  \
           `.loc`. Debug sections, aliases and indirect calls are refused.\n\
         - Special registers: `%tid`, `%ntid`, `%ctaid`, `%nctaid` (`.x`, `.y`, `.z`), `%laneid`, `%warpid`, `%nwarpid`, `%smid`, `%nsmid`,\n  \
           `%gridid`, `%lanemask_eq/le/lt/ge/gt`, `%dynamic_smem_size`, `%total_smem_size`; by `mov` only: `%clock`, `%clock_hi`, `%clock64`,\n  \
           `%globaltimer`, `%globaltimer_lo`, `%globaltimer_hi`.\n\
         - Cache operators, eviction priorities, prefetch sizes and cache policies are accepted and change nothing.\n\
         - Floating point is IEEE 754 rounded to nearest even; other roundings, `.ftz`, `.approx`, halves and tensors are refused.\n\
         - `// wv.phase other|post|poll|spin` lines in a body mark what the counters count.\n",
    );
    out
}
