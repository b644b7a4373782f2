//! What a report says: both accesses with kernel, line, instruction, thread and block, the object, and what would order them.

use warpverbs_sim_bus::{Access, Bus, Space};
use warpverbs_sim_gpu::{
    AccessReport, Check, FailureKind, GpuConfig, GpuError, GpuModel, LaunchShape, OrderFault,
    OrderReport, memory_of,
};

use crate::rig::Litmus;

/// The reports of the first seed that gives any.
fn reports_of(test: &Litmus) -> (String, Vec<OrderReport>) {
    let ptx = test.ptx();
    let found = (1..=200).map(|seed| test.run(&ptx, seed).1);
    let reports = found.into_iter().find(|reports| !reports.is_empty());
    (
        ptx,
        reports.unwrap_or_else(|| panic!("{}: no report", test.name)),
    )
}

/// A thread's access names the line that holds the instruction.
fn names(ptx: &str, access: &AccessReport, instruction: &str, block: u32) {
    assert_eq!(access.kernel.as_deref(), Some("k"));
    let location = access.location.as_ref().expect("a location");
    assert_eq!(location.text, instruction);
    let line = ptx.lines().nth(location.line as usize - 1).map(str::trim);
    assert_eq!(line, Some(instruction));
    assert_eq!((location.block, location.thread), ([block, 0, 0], [0; 3]));
}

/// Two instructions of two blocks, the kind, and what the text must hold.
type Case = (
    &'static str,
    &'static str,
    OrderFault,
    &'static [&'static str],
);

#[test]
fn reports_of_threads_name_both_accesses_and_the_missing_edge() {
    let cases: &[Case] = &[
        (
            "st.global.u32 [%x], 1;",
            "ld.global.u32 %a, [%x];",
            OrderFault::Race,
            &[
                "weak store",
                "weak load",
                "no release.gpu by the first and acquire.gpu by the second",
                "strong.gpu",
            ],
        ),
        (
            "st.relaxed.cta.global.u32 [%y], 1;",
            "st.relaxed.gpu.global.u32 [%y], 2;",
            OrderFault::Scope,
            &["strong store", "leaves the other out: both need .gpu"],
        ),
        (
            "st.relaxed.gpu.global.u64 [%x], 1;",
            "ld.relaxed.gpu.global.u32 %a, [%x+4];",
            OrderFault::MixedSize,
            &["strong store", "strong load", "use one size and address"],
        ),
        (
            "st.global.u32 [%x], 1;",
            "ld.global.nc.u32 %a, [%x];",
            OrderFault::NonCoherent,
            &["non-coherent load", "ld.global without .nc (rule O8)"],
        ),
        (
            "atom.relaxed.cta.global.add.u32 %a, [%z], 1;",
            "red.relaxed.gpu.global.add.u32 [%z], 1;",
            OrderFault::Scope,
            &["both need .gpu"],
        ),
    ];
    for (one, two, kind, parts) in cases {
        let (ptx, reports) = reports_of(&Litmus::new("a report", true, &[one, two]));
        assert_eq!(reports.len(), 1, "{reports:?}");
        let report = &reports[0];
        assert_eq!(report.kind, *kind);
        // Which came first depends on the seed.
        let earlier = report.earlier.as_ref().expect("two accesses");
        let swapped = report
            .later
            .location
            .as_ref()
            .is_some_and(|at| at.text == *one);
        let (first, second) = if swapped {
            (&report.later, earlier)
        } else {
            (earlier, &report.later)
        };
        names(&ptx, first, one, 0);
        names(&ptx, second, two, 1);
        let at = match one {
            one if one.contains("%y") => "data+0x40",
            one if one.contains("%z") => "data+0x80",
            _ if two.contains("%x+4") => "data+0x4",
            _ => "data+0x0",
        };
        assert!(report.object.starts_with(at), "{report}");
        let text = report.to_string();
        for part in parts.iter().chain(&[
            "in kernel `k`",
            "PTX line",
            *one,
            *two,
            "block (0,0,0)",
            "block (1,0,0)",
            at,
        ]) {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    }
}

#[test]
fn so_many_reports_are_kept_and_the_rest_are_counted() {
    // Each store of one thread races with each of the other's: 144 pairs in either order.
    let stores = |from: u32| -> String {
        (from..from + 12)
            .map(|value| format!("st.global.u32 X, {value}; "))
            .collect()
    };
    let test = Litmus::new("many", true, &[&stores(0), &stores(100)]);
    let (ptx, most) = (test.ptx(), 64);
    let counts: Vec<(usize, u64)> = (1..=20)
        .map(|seed| {
            let (_, reports, left_out) = test.run_counted(&ptx, seed);
            (reports.len(), left_out)
        })
        .collect();
    assert!(
        counts
            .iter()
            .all(|(kept, left_out)| *kept <= most && (*left_out == 0 || *kept == most))
    );
    assert!(
        counts
            .iter()
            .any(|(kept, left_out)| *kept == most && *left_out > 0),
        "{counts:?}"
    );
}

/// Runs one kernel after another: each in the first stream (`true`) or in one of its own.
fn kernels(bodies: &[(&str, bool)]) -> Vec<OrderReport> {
    let config = GpuConfig {
        check: Check::Strict,
        ..GpuConfig::default()
    };
    let bus = Bus::new(memory_of(&config));
    let mut gpu = GpuModel::new(config, bus.clone());
    let data = {
        let mut bus = bus.lock();
        let data = bus.memory.alloc(Space::Device, 64, 64, "data").unwrap();
        bus.memory.write(Access::HOST_COPY, data, &[0; 64]).unwrap();
        data
    };
    let first = gpu.create_stream().unwrap();
    for (body, same) in bodies {
        let ptx = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n.reg .b64 %x;\n\
             .reg .b32 %a;\nld.param.u64 %x, [p];\n{body}\nret;\n}}\n"
        );
        let module = gpu.load_module(&ptx).unwrap();
        let kernel = gpu.kernel(module, "k").unwrap();
        let stream = if *same {
            first
        } else {
            gpu.create_stream().unwrap()
        };
        let shape = LaunchShape {
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            cooperative: false,
        };
        gpu.launch(kernel, shape, stream, &data.to_le_bytes())
            .unwrap();
    }
    while !gpu.advance(10_000).unwrap().idle {}
    gpu.take_order_reports()
}

#[test]
fn a_stream_orders_its_launches_and_no_others() {
    let (store, load) = ("st.global.u32 [%x], 1;", "ld.global.u32 %a, [%x];");
    assert_eq!(kernels(&[(store, true), (load, true)]), []);
    let reports = kernels(&[(store, true), (load, false)]);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind, OrderFault::Race);
    // Two launches, whose threads are block 0 and thread 0 of each.
    let text = reports[0].to_string();
    assert!(text.contains(store) && text.contains(load), "{text}");
}

#[test]
fn strict_memory_is_as_safe_as_fast_memory() {
    for (body, part) in [
        ("ld.global.u32 %a, [%x+192];", "out of bounds"),
        ("st.global.u32 [%x+190], 1;", "misaligned"),
        (
            "atom.relaxed.gpu.global.add.u32 %a, [%x+2], 1;",
            "misaligned",
        ),
        ("st.shared.u32 [sh+64], 1;", "out of bounds"),
        ("ld.shared.u32 %a, [sh+1];", "misaligned"),
        (
            "mov.u64 %x, 64; ld.global.u32 %a, [%x];",
            "outside simulated memory",
        ),
    ] {
        let test = Litmus::new(body, true, &[body]);
        let error = test.try_run(&test.ptx(), 1).expect_err(body);
        let GpuError::Dead(report) = &error else {
            panic!("{body}: {error}");
        };
        let FailureKind::MemoryFault(fault) = &report.kind else {
            panic!("{body}: {report}");
        };
        let text = report.to_string();
        assert!(
            text.contains(part) || fault.to_string().contains(part),
            "{body}: {text}"
        );
        assert!(
            text.contains("PTX line") && text.contains("thread (0,0,0)"),
            "{text}"
        );
    }
}
