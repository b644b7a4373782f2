//! The language: what is accepted, what is refused and how, and that no text makes the loader panic.

mod support;

use proptest::prelude::*;
use support::{HEAD, Rig, config, kernel, threads};
use warpverbs_sim_bus::Bus;
use warpverbs_sim_gpu::{FastMemory, GpuConfig, GpuModel, LoadError, Scheduler};

fn load(ptx: &str, scheduler: Scheduler) -> Result<(), LoadError> {
    let config = GpuConfig {
        scheduler,
        ..GpuConfig::default()
    };
    GpuModel::new(config, Bus::new(Box::new(FastMemory::new())))
        .load_module(ptx)
        .map(|_| ())
}

fn refused(body: &str) -> LoadError {
    load(&kernel(&format!("\n{body}")), Scheduler::Independent).expect_err(body)
}

#[test]
fn what_is_not_supported_is_refused_by_line_and_text() {
    let module = kernel("\n@@");
    let first = 1 + module.lines().position(|line| line == "@@").unwrap() as u32;
    for (text, message) in [
        ("frob.u32 %r1, %r2;", "unknown instruction `frob`"),
        (
            "add.u32.cc %r1, %r2, %r3;",
            "unsupported modifier `.cc` of `add`",
        ),
        ("add.u32 %r1, %r2;", "operands expected: d, a, b"),
        (
            "add.u32 %r1, %r2, %rd3;",
            "register `%rd3` is 64 bits wide, 32 are wanted",
        ),
        ("add.u32 %r1, %r2, %nope;", "unknown register `%nope`"),
        ("add.u32 %r1, %r32, 1;", "unknown register `%r32`"),
        (
            "add.u16 %rs1, %rs2, 70000;",
            "70000 does not fit in 16 bits",
        ),
        ("add.rz.f32 %f1, %f2, %f3;", "unsupported modifier `.rz`"),
        (
            "ld.global.L3::foo.u32 %r1, [%in];",
            "unsupported modifier `.L3::foo`",
        ),
        (
            "ld.relaxed.u32 %r1, [%in];",
            "supported here: .cta .cluster .gpu .sys",
        ),
        (
            "ld.global.v2.u32 {%r1, %r2, %r3}, [%in];",
            "vector operand's length",
        ),
        (
            "ld.global.v8.u64 {%rd1,%rd2,%rd3,%rd4,%rd5,%rd6,%rd7,%rd8}, [%in];",
            "wider than 256 bits",
        ),
        ("ld.global.u64 %r1, [%in];", "32 bits wide, 64 are wanted"),
        ("ld.global.u32 %r1, [%r2];", "no 64-bit address"),
        (
            "ld.param.u64 %rd1, [p_in+8];",
            "access of 8 bytes at offset 8 of a parameter of 8 bytes",
        ),
        ("st.param.u64 [p_in], %rd1;", "read-only"),
        ("bra $nowhere;", "unknown label `$nowhere`"),
        ("call nowhere;", "function `nowhere` is not defined"),
        ("call %rd1, (%rd2);", "indirect calls"),
        (
            "mov.u32 %r1, %clusterid.x;",
            "unknown register `%clusterid.x`",
        ),
        (
            "add.u64 %rd1, %globaltimer, 1;",
            "can be read by `mov` only",
        ),
        ("setp.lt.b32 %p1, %r1, %r2;", "needs a type with an order"),
        ("lop3.b32 %r1, %r2, %r3, %r4, 300;", "truth table"),
        ("@%p1 call k;", "a kernel cannot be called"),
        ("atom.add.f32 %f1, [%in], %f2;", "`.f32`"),
        ("shfl.up.b32 %r1, %r2, 1, 0;", "`.up`"),
        (".reg .b128 %q;", "unsupported register type `.b128`"),
        (".reg .b32 %r<32>;", "`%r` is declared twice"),
        (".global .u32 x;", "inside a body"),
        ("x: x:", "statement expected"),
        ("// wv.phase sleep", "unknown phase"),
    ] {
        let text = if text == "x: x:" { "x:\n[" } else { text };
        let error = refused(text);
        assert!(error.message.contains(message), "{text}: {error}");
        let line = first + u32::from(text.contains('\n'));
        assert_eq!(error.line, line, "{text}: {error}");
        let last = text.lines().last().unwrap_or_default();
        assert_eq!(error.text, last, "{text}");
    }
    for (module, message) in [
        (
            format!("{HEAD}.extern .global .u32 x;\n"),
            "`x` is defined nowhere",
        ),
        (
            format!("{HEAD}.global .u32 x;\n.global .u32 x;\n"),
            "defined twice",
        ),
        (
            format!("{HEAD}.func f() {{ ret; }}\n.func f() {{ ret; }}\n"),
            "defined twice",
        ),
        (format!("{HEAD}.global .u32 p = x;\n"), "unknown name `x`"),
        (
            format!("{HEAD}.global .u32 x;\n.global .u32 p = x;\n"),
            "64-bit elements",
        ),
        (
            format!("{HEAD}.entry k() {{ a: a: ret; }}\n"),
            "label `a` is defined twice",
        ),
        (
            format!("{HEAD}.entry k(.param .b8 p[40000]) {{ ret; }}\n"),
            "parameters are too large",
        ),
    ] {
        let error = load(&module, Scheduler::Independent).expect_err(&module);
        assert!(error.message.contains(message), "{module}: {error}");
    }
}

#[test]
fn a_failed_load_leaves_no_memory_behind() {
    let bus = Bus::new(Box::new(FastMemory::new()));
    let mut gpu = GpuModel::new(GpuConfig::default(), bus.clone());
    let bad = format!("{HEAD}.global .u64 x = 5;\n.entry k() {{ frob; }}\n");
    assert!(gpu.load_module(&bad).is_err());
    let good = gpu.load_module(&bad.replace("frob", "ret")).unwrap();
    let (addr, _) = gpu.global(good, "x").unwrap();
    // The first load's variable lies before this one, and is freed.
    let before = bus.lock().memory.describe(addr - 512);
    assert!(before.contains("freed"), "{before}");
}

#[test]
fn scopes_hide_registers_and_labels() {
    let body = "
        mov.u64 %rd1, 1;
        { .reg .b64 %rd1; mov.u64 %rd1, 50; $l: add.u64 %rd1, %rd1, 1; setp.lt.u64 %p1, %rd1, 60; @%p1 bra $l; st.global.u64 [%out], %rd1; }
        { .reg .b64 t; mov.u64 t, 7; $l: add.u64 t, t, 1; setp.lt.u64 %p1, t, 9; @%p1 bra $l; st.global.u64 [%out+8], t; }
        st.global.u64 [%out+16], %rd1;";
    assert_eq!(support::run(body, 1, &[0], 3), [60, 9, 1]);
}

#[test]
fn directives_and_comments_that_change_nothing_are_accepted() {
    let ptx = format!(
        "//\n// Generated by LLVM NVPTX Back-End\n//\n{HEAD}\t// .globl k\n.file 1 \"a.rs\"\n.weak .global .align 4 .u32 w = 1;\n\
         .visible .entry k(\n\t.param .u64 .ptr .global .align 8 p,\n\t.param .align 8 .b8 q[24]\n)\n.maxnreg 64 .minnctapersm 1\n.pragma \"nounroll\";\n\
         {{\n\t.reg .b64 %rd<2>;\n\t.loc 1 2 3\n\t.loc 1 5 3, function_name $L__info_string0, inlined_at 1 2 3\n$L__func_begin0:\n\
         \tld.param.u64 \t%rd1, [p];\n\t// begin inline asm\n\t\n\t// end inline asm\n\t{{ ; }}\n\t.pragma \"nounroll\";\n\tret;\n$L__func_end0:\n}}\n"
    );
    load(&ptx, Scheduler::Independent).unwrap();
    load(&ptx, Scheduler::Converge).unwrap();
}

const SAMPLE: &str = include_str!("ptx/sample.ptx");

#[test]
fn the_sample_runs() {
    for scheduler in [Scheduler::Independent, Scheduler::Converge] {
        let mut rig = Rig::new(config(1, scheduler));
        let (a, b) = (rig.alloc(64 * 8, "a"), rig.alloc(64 * 8, "b"));
        rig.run(SAMPLE, threads(64), &[a, b])
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(rig.read_u64(b), (0..64).sum::<u64>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Bytes cut out, doubled, or replaced by pieces of the language: an error or a module, never a panic.
    #[test]
    fn mutated_text_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, 0usize..24), 1..6),
        converge in any::<bool>(),
    ) {
        const PIECES: &[&str] = &[
            "", ";", "{", "}", "(", ")", "[", "]", ",", ".", "%r", "<", "@", "!", "|", "0x", "-1", "18446744073709551615",
            "bra", ".v2", ".param .b64 x;", "$L:", "99999999999999999999", "/*",
        ];
        let mut bytes = SAMPLE.as_bytes().to_vec();
        for (at, cut, piece) in edits {
            let at = at.index(bytes.len());
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, PIECES[piece].bytes());
        }
        let text = String::from_utf8_lossy(&bytes);
        let scheduler = if converge { Scheduler::Converge } else { Scheduler::Independent };
        let _ = load(&text, scheduler);
    }

    /// Mutants that load also run, to an end or to a report.
    #[test]
    fn mutated_operands_never_panic_at_run_time(
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4),
        seed in any::<u64>(),
    ) {
        let mut lines: Vec<&str> = SAMPLE.lines().collect();
        for (a, b) in swaps {
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            lines.swap(a, b);
        }
        let text = lines.join("\n");
        let scheduler = if seed % 2 == 0 { Scheduler::Independent } else { Scheduler::Converge };
        let mut rig = Rig::new(GpuConfig { step_budget: 20_000, ..config(seed, scheduler) });
        if let Ok(module) = rig.load(&text)
            && let Some(k) = rig.gpu.kernel(module, "k")
        {
            let a = rig.alloc(64 * 8, "a");
            if rig.gpu.launch(k, threads(64), rig.stream, &[a.to_le_bytes(); 2].concat()).is_ok() {
                let _ = rig.finish();
            }
        }
    }
}
