//! Accesses that cannot be made, and what a report says of them.

mod support;

use std::sync::{Arc, Mutex};

use support::{Rig, config, failure, kernel, report, run_with, threads};
use warpverbs_sim_bus::{Access, Device, Dma, Fault, FaultKind, Space, Step, bar_base};
use warpverbs_sim_gpu::{FailureKind, GpuError, LaunchShape, RunReport, Scheduler};

fn fault_of(report: &RunReport) -> FaultKind {
    match &report.kind {
        FailureKind::MemoryFault(fault) => fault.kind,
        other => panic!("{other:?}"),
    }
}

fn fails(body: &str) -> Arc<RunReport> {
    failure(config(1, Scheduler::Independent), body, 1)
}

#[test]
fn memory_faults_name_kernel_line_thread_and_object() {
    let body = "setp.eq.u32 %p1, %t, 3;\n@%p1 st.global.u32 [%in+512], 1;";
    let report = failure(config(1, Scheduler::Independent), body, 4);
    assert_eq!(fault_of(&report), FaultKind::OutOfBounds);
    let location = report.location.clone().unwrap();
    assert_eq!(location.thread, [3, 0, 0]);
    assert_eq!(location.text, "@%p1 st.global.u32 [%in+512], 1;");
    let text = report.to_string();
    for part in [
        "memory fault in kernel `k`",
        "block (0,0,0) thread (3,0,0)",
        "out of bounds: 4 bytes at 0x",
        "0x0 bytes after the end of input (512 bytes)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn bad_addresses_of_every_space_are_faults() {
    for (body, kind) in [
        ("ld.global.u32 %r1, [%in+2];", FaultKind::Misaligned),
        (
            "ld.global.v2.u64 {%rd1, %rd2}, [%in+8];",
            FaultKind::Misaligned,
        ),
        (
            "mov.u64 %rd1, 64; ld.global.u32 %r1, [%rd1];",
            FaultKind::Unmapped,
        ),
        ("mov.u64 %rd1, 0; st.u64 [%rd1], 1;", FaultKind::Unmapped),
        (
            "mov.u64 %rd1, -8; ld.u64 %rd2, [%rd1];",
            FaultKind::Unmapped,
        ),
        (
            "atom.global.add.u32 %r1, [%in+513], 1;",
            FaultKind::Misaligned,
        ),
        (
            "atom.global.add.u32 %r1, [%in+512], 1;",
            FaultKind::OutOfBounds,
        ),
        (
            ".shared .b8 s[16]; ld.shared.u32 %r1, [s+16];",
            FaultKind::OutOfBounds,
        ),
        (
            ".shared .b8 s[16]; mov.u32 %r1, -4; ld.shared.u32 %r2, [%r1+s2];",
            FaultKind::OutOfBounds,
        ),
        (
            ".shared .b8 s[16]; mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1; ld.u32 %r1, [%rd1+16];",
            FaultKind::OutOfBounds,
        ),
        (
            ".shared .b8 s[16]; mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1; ld.global.u32 %r1, [%rd1];",
            FaultKind::Unmapped,
        ),
        (
            ".local .b8 l[16]; ld.local.u32 %r1, [l+16];",
            FaultKind::OutOfBounds,
        ),
        (
            ".local .b8 l[16]; mov.u64 %rd1, l; cvta.local.u64 %rd1, %rd1; st.u32 [%rd1+-4], 1;",
            FaultKind::OutOfBounds,
        ),
        (
            "mov.u64 %rd1, p_in; ld.param.u64 %rd2, [%rd1+16];",
            FaultKind::OutOfBounds,
        ),
        (
            "mov.u64 %rd1, p_in; cvta.param.u64 %rd1, %rd1; st.u64 [%rd1], 1;",
            FaultKind::Refused,
        ),
    ] {
        let body = body.replace("[%r1+s2]", "[%r1]");
        assert_eq!(fault_of(&fails(&body)), kind, "{body}");
    }
}

#[test]
fn another_blocks_shared_memory_and_another_threads_local_memory_are_out_of_reach() {
    // Block 0 (thread 0) publishes a generic address; block 1 (thread 1) uses it.
    for (space, shape) in [
        ("shared", support::grid(2, 1)),
        ("local", support::grid(1, 2)),
    ] {
        let body = format!(
            ".{space} .align 8 .b8 cell[8];
             mov.u32 %r1, %ctaid.x; or.b32 %r1, %r1, %t; setp.eq.u32 %p1, %r1, 1; @%p1 bra $use;
             mov.u64 %rd1, cell; cvta.{space}.u64 %rd1, %rd1; st.release.gpu.u64 [%out], %rd1;
             $keep: ld.acquire.gpu.u64 %rd2, [%out+8]; setp.eq.u64 %p2, %rd2, 0; @%p2 bra $keep; ret;
             $use: ld.acquire.gpu.u64 %rd3, [%out]; setp.eq.u64 %p3, %rd3, 0; @%p3 bra $use; ld.u64 %rd4, [%rd3];"
        );
        let mut rig = Rig::new(config(1, Scheduler::Independent));
        let out = rig.alloc(16, "out");
        let report = report(rig.run(&kernel(&body), shape, &[out, out]));
        assert_eq!(fault_of(&report), FaultKind::OutOfBounds, "{report}");
    }
}

#[test]
fn use_after_free_is_found() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let (a, b) = (rig.alloc(64, "old buffer"), rig.alloc(64, "b"));
    rig.bus.lock().memory.free(a).unwrap();
    let report = report(rig.run(
        &kernel("ld.global.u64 %rd1, [%in+16];"),
        threads(1),
        &[a, b],
    ));
    assert_eq!(fault_of(&report), FaultKind::Freed);
    assert!(
        report
            .to_string()
            .contains("old buffer+0x10 (64 bytes, freed)"),
        "{report}"
    );
}

#[test]
fn constants_are_read_only_and_initialised() {
    let ptx = kernel("mov.u64 %rd1, table; st.u64 [%rd1+8], 1;").replace(
        ".visible .entry",
        ".const .align 8 .u64 table[2] = {1, 2};\n.global .align 4 .b8 bytes[5] = {1, 2};\n.visible .entry",
    );
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let out = rig.alloc(64, "out");
    let module = rig.load(&ptx).unwrap();
    let (addr, len) = rig.gpu.global(module, "bytes").unwrap();
    let mut bytes = vec![0xff; len as usize];
    rig.bus
        .lock()
        .memory
        .read(Access::HOST_COPY, addr, &mut bytes)
        .unwrap();
    assert_eq!(bytes, [1, 2, 0, 0, 0]);
    assert_eq!(rig.gpu.global(module, "k"), None);
    let k = rig.gpu.kernel(module, "k").unwrap();
    rig.gpu
        .launch(k, threads(1), rig.stream, &[out.to_le_bytes(); 2].concat())
        .unwrap();
    let report = report(rig.finish());
    assert_eq!(fault_of(&report), FaultKind::Refused);
    assert!(
        report
            .to_string()
            .contains("global `table`+0x8 (16 bytes) is read-only"),
        "{report}"
    );
}

#[derive(Default)]
struct Bell {
    rung: Vec<(u64, Vec<u8>)>,
}

impl Device for Bell {
    fn name(&self) -> &str {
        "bell"
    }
    fn step(&mut self, _: &mut dyn Dma) -> Step {
        Step::Idle
    }
    fn mmio_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.rung.push((offset, bytes.to_vec()));
        Ok(())
    }
}

#[test]
fn device_registers_take_mmio_stores_of_full_width_and_nothing_else() {
    let attempt = |body: &str, unmap: bool| {
        let mut rig = Rig::new(config(1, Scheduler::Independent));
        let bell = Arc::new(Mutex::new(Bell::default()));
        rig.bus.attach(bell.clone());
        let bar = bar_base(0) + 0x3000;
        let page = rig.gpu.map_registers(bar, 4096).unwrap();
        assert!((Space::MAPPED_REGISTERS..Space::Shared.base()).contains(&page));
        if unmap {
            rig.gpu.unmap_registers(bar).unwrap();
            assert!(rig.gpu.unmap_registers(bar).is_err());
        }
        let result = rig.run(&kernel(body), threads(1), &[page, page]);
        let rung = bell.lock().unwrap().rung.clone();
        (result, rung)
    };
    let (result, rung) = attempt(
        "mov.u64 %rd1, 0x1122334455667788; st.mmio.relaxed.sys.global.u64 [%in+0x800], %rd1; st.mmio.relaxed.sys.u32 [%in+0x808], 5;",
        false,
    );
    assert_eq!(result.unwrap().phases[0].mmio_stores, 2);
    assert_eq!(
        rung,
        [
            (0x3800, vec![0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]),
            (0x3808, vec![5, 0, 0, 0])
        ]
    );
    for (body, unmap, kind, part) in [
        (
            "st.relaxed.sys.global.u64 [%in+0x800], 1;",
            false,
            FaultKind::Refused,
            "must be `st.mmio.relaxed.sys` (rule O4",
        ),
        (
            "st.volatile.u64 [%in+0x800], 1;",
            false,
            FaultKind::Refused,
            "rule O4",
        ),
        (
            "ld.mmio.relaxed.sys.u64 %rd1, [%in+0x800];",
            false,
            FaultKind::Refused,
            "cannot be loaded",
        ),
        (
            "atom.add.u64 %rd1, [%in+0x800], 1;",
            false,
            FaultKind::Refused,
            "no atomics",
        ),
        (
            "st.mmio.relaxed.sys.u64 [%in+4096], 1;",
            false,
            FaultKind::Unmapped,
            "no mapped register",
        ),
        (
            "st.mmio.relaxed.sys.u64 [%in+0x804], 1;",
            false,
            FaultKind::Misaligned,
            "device registers",
        ),
        (
            "st.mmio.relaxed.sys.u64 [%in+0x800], 1;",
            true,
            FaultKind::Freed,
            "unmapped",
        ),
        ("st.u64 [%in+0x800], 1;", true, FaultKind::Freed, "unmapped"),
    ] {
        let (result, rung) = attempt(body, unmap);
        let report = report(result);
        assert_eq!(fault_of(&report), kind, "{body}");
        assert!(report.to_string().contains(part), "{body}: {report}");
        assert!(rung.is_empty());
    }
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    assert!(matches!(
        rig.gpu.map_registers(0x1000, 4096),
        Err(GpuError::BadArgument(_))
    ));
    assert!(matches!(
        rig.gpu.map_registers(bar_base(0), 0),
        Err(GpuError::BadArgument(_))
    ));
    // No device there: the bus says so.
    let page = rig.gpu.map_registers(bar_base(0), 4096).unwrap();
    let report = report(rig.run(
        &kernel("st.mmio.relaxed.sys.u64 [%in], 1;"),
        threads(1),
        &[page, page],
    ));
    assert_eq!(fault_of(&report), FaultKind::Unmapped);
}

#[test]
fn traps_bad_branches_and_bottomless_calls_end_the_run() {
    assert_eq!(fails("trap;").kind, FailureKind::Trap);
    assert_eq!(fails("brkpt;").kind, FailureKind::Trap);
    let report =
        fails("$l: .branchtargets $a, $b; mov.u32 %r1, 2; brx.idx %r1, $l; $a: ret; $b: ret;");
    assert_eq!(report.kind, FailureKind::BadBranch);
    let fell = kernel("").replace("\nret;\n}", "\n}");
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    assert_eq!(
        support::report(rig.run(&fell, threads(1), &[0, 0])).kind,
        FailureKind::BadBranch
    );
    let endless = kernel("call f;").replace(
        ".visible .entry",
        ".func f()\n{\ncall f;\nret;\n}\n.visible .entry",
    );
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let report = support::report(rig.run(&endless, threads(1), &[0, 0]));
    assert_eq!(report.kind, FailureKind::StackOverflow);
    assert_eq!(report.location.clone().unwrap().function, "f");
}

#[test]
fn a_dead_context_says_the_same_of_every_call_and_still_frees() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let a = rig.alloc(64, "a");
    let module = rig.load(&kernel("bar.sync 0; trap;")).unwrap();
    let k = rig.gpu.kernel(module, "k").unwrap();
    let event = rig.gpu.create_event().unwrap();
    rig.gpu
        .launch(k, threads(64), rig.stream, &[0; 16])
        .unwrap();
    rig.gpu.record_event(event, rig.stream).unwrap();
    assert!(rig.gpu.is_alive());
    let first = rig.finish().unwrap_err();
    assert!(matches!(&first, GpuError::Dead(r) if r.kind == FailureKind::Trap));
    assert!(!rig.gpu.is_alive());
    assert_eq!(rig.gpu.advance(1).unwrap_err(), first);
    assert_eq!(rig.gpu.stream_done(rig.stream).unwrap_err(), first);
    assert_eq!(rig.gpu.event_done(event).unwrap_err(), first);
    assert_eq!(rig.gpu.create_stream().unwrap_err(), first);
    assert_eq!(
        rig.gpu
            .launch(k, threads(1), rig.stream, &[0; 16])
            .unwrap_err(),
        first
    );
    assert!(
        rig.load(&kernel(""))
            .unwrap_err()
            .message
            .contains("the context is dead")
    );
    assert_eq!(rig.gpu.failure().map(GpuError::Dead), Some(first));
    rig.bus.lock().memory.free(a).unwrap();
    rig.gpu.unload_module(module).unwrap();
    rig.gpu.destroy_event(event).unwrap();
    rig.gpu.destroy_stream(rig.stream).unwrap();
}

#[test]
fn launches_are_checked_before_anything_runs() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let module = rig
        .load(&kernel("").replace("\n{\n", "\n.maxntid 64, 2\n{\n"))
        .unwrap();
    let k = rig.gpu.kernel(module, "k").unwrap();
    let shape = |grid: [u32; 3], block: [u32; 3], shared_bytes: u32| LaunchShape {
        grid,
        block,
        shared_bytes,
        cooperative: false,
    };
    for (shape, params, part) in [
        (shape([0, 1, 1], [1; 3], 0), 16, "grid"),
        (shape([1, 65_536, 1], [1; 3], 0), 16, "grid"),
        (shape([1; 3], [1, 1, 65], 0), 16, "block"),
        (shape([1; 3], [32, 32, 2], 0), 16, "block"),
        (shape([1; 3], [129, 1, 1], 0), 16, ".maxntid"),
        (shape([1; 3], [1; 3], 300_000), 16, "shared memory"),
        (
            shape([1; 3], [1; 3], 0),
            15,
            "15 bytes of parameters; `k` takes 16",
        ),
    ] {
        let error = rig
            .gpu
            .launch(k, shape, rig.stream, &vec![0; params])
            .unwrap_err();
        assert!(matches!(error, GpuError::BadLaunch(_)));
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(rig.gpu.kernel(module, "nope").is_none());
    rig.gpu.unload_module(module).unwrap();
    let gone = rig
        .gpu
        .launch(k, threads(1), rig.stream, &[0; 16])
        .unwrap_err();
    assert!(matches!(gone, GpuError::NoSuch { what: "kernel", .. }));
    assert!(rig.finish().is_ok());
}

#[test]
fn uninitialised_registers_and_shared_memory_hold_no_plausible_value() {
    let body = ".shared .align 8 .b8 s[8]; st.global.u64 [%out], %rd5; ld.shared.u64 %rd6, [s]; st.global.u64 [%out+8], %rd6; mov.u64 %rd7, 0; cvt.u64.u32 %rd7, %r9; st.global.u64 [%out+16], %rd7;";
    let out = run_with(config(1, Scheduler::Independent), body, 1, &[0], 3).unwrap();
    assert_eq!(
        out,
        [0xa5a5_a5a5_a5a5_a5a5, 0xa5a5_a5a5_a5a5_a5a5, 0xa5a5_a5a5]
    );
}
