//! Every sequence of a few choices, on small protocols.

mod support;

use support::{Rig, grid, kernel};
use warpverbs_sim_bus::Script;
use warpverbs_sim_gpu::explore::{seeds, systematic};
use warpverbs_sim_gpu::{Check, GpuConfig, GpuModel, memory_of};

/// Two blocks of one thread run `body`, with 256 zeroed bytes at `%in` and at `%out`; gives the words at `%out`, and reports.
fn run(config: &GpuConfig, body: &str) -> Result<([u64; 4], Vec<String>), String> {
    let bus = warpverbs_sim_bus::Bus::new(memory_of(config));
    let mut gpu = GpuModel::new(config.clone(), bus.clone());
    let stream = gpu.create_stream().unwrap();
    let event = gpu.create_event().unwrap();
    let mut rig = Rig {
        bus,
        gpu,
        stream,
        event,
    };
    let (input, output) = (rig.alloc(256, "in"), rig.alloc(256, "out"));
    rig.run(&kernel(body), grid(2, 1), &[input, output])
        .map_err(|error| error.to_string())?;
    let words = [0, 8, 16, 24].map(|at| rig.read_u64(output + at));
    let reports = rig
        .gpu
        .take_order_reports()
        .iter()
        .map(ToString::to_string)
        .collect();
    Ok((words, reports))
}

fn config(script: Script) -> GpuConfig {
    GpuConfig {
        script: Some(script),
        check: Check::Strict,
        step_budget: 20_000,
        ..GpuConfig::default()
    }
}

const MESSAGE_PASSING: &str = "
    mov.u32 %r1, %ctaid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READER;
    st.relaxed.gpu.global.u64 [%in], 7;
    RELEASE
    st.relaxed.gpu.global.u64 [%in+128], 1;
    ret;
READER:
    ld.relaxed.gpu.global.u64 %rd1, [%in+128];
    fence.acq_rel.gpu;
    ld.relaxed.gpu.global.u64 %rd2, [%in];
    st.global.u64 [%out], %rd1;
    st.global.u64 [%out+8], %rd2;
";

/// What a reader can see: flag and data.
fn outcomes(release: &str) -> (Vec<(u64, u64)>, u64) {
    let body = MESSAGE_PASSING.replace("RELEASE", release);
    let mut seen = Vec::new();
    let explored = systematic(4, 100_000, |script| {
        let ([flag, data, ..], _) = run(&config(script), &body)?;
        if !seen.contains(&(flag, data)) {
            seen.push((flag, data));
        }
        Ok::<_, String>(())
    });
    assert!(explored.complete);
    seen.sort_unstable();
    (seen, explored.runs)
}

#[test]
fn message_passing_has_the_outcomes_of_the_memory_model() {
    let (with, runs) = outcomes("fence.acq_rel.gpu;");
    assert_eq!(with, [(0, 0), (0, 7), (1, 7)]);
    assert!(runs > 10);
    let (without, _) = outcomes("");
    assert_eq!(without, [(0, 0), (0, 7), (1, 0), (1, 7)]);
}

/// Two threads add to a word that is not atomic, each in its turn.
const TICKETS: &str = "
    atom.relaxed.gpu.global.add.u64 %rd1, [%in], 1;
SPIN:
    ld.relaxed.gpu.global.u64 %rd2, [%in+64];
    setp.ne.u64 %p1, %rd2, %rd1;
    @%p1 bra SPIN;
    fence.acq_rel.gpu;
    ld.global.u64 %rd3, [%out];
    add.u64 %rd3, %rd3, 1;
    st.global.u64 [%out], %rd3;
    add.u64 %rd1, %rd1, 1;
    HAND_OFF [%in+64], %rd1;
";

fn tickets(hand_off: &str, script: Script) -> Result<(), String> {
    let (words, reports) = run(&config(script), &TICKETS.replace("HAND_OFF", hand_off))?;
    if words[0] != 2 || !reports.is_empty() {
        return Err(format!("{} {reports:?}", words[0]));
    }
    Ok(())
}

#[test]
fn the_ticket_hand_off_loses_nothing() {
    let explored = systematic(3, 100_000, |script| {
        tickets("st.release.gpu.global.u64", script)
    });
    assert!(explored.complete && explored.runs > 10, "{explored:?}");
}

#[test]
fn a_failing_sequence_is_named_and_replays() {
    let broken = "st.relaxed.gpu.global.u64";
    let failed =
        std::panic::catch_unwind(|| systematic(3, 100_000, |script| tickets(broken, script)))
            .unwrap_err();
    let text = failed.downcast_ref::<String>().unwrap();
    let choices = text
        .split_once("choices [")
        .unwrap()
        .1
        .split_once(']')
        .unwrap()
        .0;
    let choices: Vec<u32> = choices
        .split(", ")
        .filter_map(|choice| choice.parse().ok())
        .collect();
    let again = tickets(broken, Script::new(choices)).unwrap_err();
    assert!(text.ends_with(&again), "{text}\n{again}");
}

#[test]
fn a_failing_seed_is_named() {
    let failed =
        std::panic::catch_unwind(|| seeds(9, |seed| if seed < 5 { Ok(()) } else { Err("broken") }))
            .unwrap_err();
    assert_eq!(failed.downcast_ref::<String>().unwrap(), "seed 5: broken");
}
