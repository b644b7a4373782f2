//! Which places a mode executes.
//!
//! Knows: how to make a kernel say so itself, by a store of its own before each place.
//! Must not know: what is changed there.

use warpverbs::driver::sim::{Check, Scheduler};
use warpverbs::{
    Access, Context, Direction, GpuContext, Latency, LatencyEnd, Module, Mr, Pd, Stream,
};

use crate::common::{PATIENCE, POISON, connected_pair};
use crate::modes::{Effort, Ending, Mode};
use crate::places::{Place, places};

/// The places of the mode's kernel that some run of it with this ending executes.
pub(crate) fn reached(ptx: &str, mode: &Mode, ending: Ending) -> Vec<Place> {
    let all = places(ptx, mode.kernel);
    let mut hit = vec![false; all.len()];
    for (seed, scheduler) in [
        (1, Scheduler::Independent),
        (2, Scheduler::Independent),
        (3, Scheduler::Converge),
    ] {
        let effort = Effort {
            iters: 60,
            check: Check::Fast,
            scheduler,
            seed,
            ending,
        };
        let bytes = match mode.kernel {
            "wv_write_lat" => latency(ptx, mode, effort, &all),
            _ => bandwidth(ptx, mode, effort, &all),
        };
        for (hit, word) in hit.iter_mut().zip(bytes.chunks_exact(4)) {
            *hit |= word[0] != 0;
        }
    }
    all.into_iter()
        .zip(hit)
        .filter(|(_, hit)| *hit)
        .map(|(place, _)| place)
        .collect()
}

/// Stores to `base + 4 * n` before the place `n`.
fn instrumented(ptx: &str, kernel: &str, all: &[Place], base: u64) -> String {
    let mut out = String::new();
    let mut places = all.iter().enumerate().peekable();
    let mut in_kernel = false;
    for (line, text) in ptx.lines().enumerate() {
        if text.contains(".entry") {
            in_kernel = text.contains(&format!("{kernel}("));
        }
        if let Some((n, _)) = places.next_if(|(_, place)| place.line == line) {
            let addr = base + 4 * n as u64;
            out += &format!("mov.b64 %hit_at, {addr};\nst.global.b32 [%hit_at], %hit_one;\n");
        }
        out += text;
        out.push('\n');
        if in_kernel && text == "{" {
            out += ".reg .b64 %hit_at;\n.reg .b32 %hit_one;\nmov.b32 %hit_one, 1;\n";
        }
    }
    assert!(
        places.next().is_none(),
        "places are in the order of their lines"
    );
    out
}

fn bandwidth(ptx: &str, mode: &Mode, effort: Effort, all: &[Place]) -> Vec<u8> {
    let options = mode.options(effort);
    let mut bench = options.bench().unwrap();
    let hits = bench
        .gpu
        .alloc_copy(&vec![0; 4 * all.len()], "hits")
        .unwrap();
    let changed = instrumented(ptx, mode.kernel, all, hits.addr());
    bench.module = Module::load(&bench.gpu, "instrumented", &changed).unwrap();
    let (local, remote) = match options.direction {
        Direction::Write => (&bench.source_mr, bench.target_mr.remote()),
        Direction::Read => (&bench.target_mr, bench.source_mr.remote()),
    };
    let mut run = options
        .bandwidth()
        .launch(&bench.module, &bench.stream, &bench.qps, local, &remote)
        .unwrap();
    if let Some(looks) = options.stop_after {
        for _ in 0..looks {
            run.is_finished().unwrap();
        }
        run.stop().unwrap();
    }
    let report = run.wait(PATIENCE).unwrap();
    match effort.ending {
        Ending::Done => report.check().unwrap(),
        Ending::Refused => assert!(report.check().is_err(), "{mode}"),
        // It may have been too late to stop it.
        Ending::Stopped => {}
    }
    hits.to_vec().unwrap()
}

fn latency(ptx: &str, mode: &Mode, effort: Effort, all: &[Place]) -> Vec<u8> {
    let options = mode.options(effort);
    let world = options.world();
    let nic = Context::open(world.nic()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let (first, second) = connected_pair(&pd, &gpu, &options.qp_config()).unwrap();
    let (first, second) = (first.export().unwrap(), second.export().unwrap());
    let memory = gpu.alloc_copy(&[POISON; 256], "mailboxes").unwrap();
    let access = match effort.ending {
        Ending::Refused => Access::LOCAL_WRITE,
        _ => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    };
    let mrs: Vec<Mr> = (0..4)
        .map(|n| Mr::register_range(&pd, &memory, n * 64..(n + 1) * 64, access).unwrap())
        .collect();
    let hits = gpu.alloc_copy(&vec![0; 4 * all.len()], "hits").unwrap();
    let changed = instrumented(ptx, mode.kernel, all, hits.addr());
    let module = Module::load(&gpu, "instrumented", &changed).unwrap();
    let stream = Stream::create(&gpu).unwrap();
    let ends = [
        LatencyEnd {
            qp: &first,
            outbox: &mrs[0],
            inbox: &mrs[1],
        },
        LatencyEnd {
            qp: &second,
            outbox: &mrs[2],
            inbox: &mrs[3],
        },
    ];
    let latency = Latency {
        size: 64,
        iters: options.iters,
        doorbell: mode.doorbell,
        wait_deadline: options.wait_deadline,
    };
    let mut run = latency.launch(&module, &stream, ends).unwrap();
    if let Some(looks) = options.stop_after {
        for _ in 0..looks {
            run.is_finished().unwrap();
        }
        run.stop().unwrap();
    }
    let report = run.wait(PATIENCE).unwrap();
    match effort.ending {
        Ending::Done => report.check().unwrap(),
        Ending::Refused => assert!(report.check().is_err(), "{mode}"),
        // It may have been too late to stop it.
        Ending::Stopped => {}
    }
    hits.to_vec().unwrap()
}
