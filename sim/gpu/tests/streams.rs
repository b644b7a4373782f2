//! Streams, events and what several launches do to each other.

mod support;

use support::{Rig, config, grid, kernel, threads};
use warpverbs_sim_gpu::{GpuError, Scheduler};

/// Waits until the word at `%in` is 1, then adds 1 to the word at `%out`.
const WAIT: &str = "$w: ld.acquire.gpu.global.u64 %rd1, [%in]; setp.eq.u64 %p1, %rd1, 1; @!%p1 bra $w; atom.relaxed.gpu.global.add.u64 %rd2, [%out], 1;";
const SIGNAL: &str = "st.release.gpu.global.u64 [%in], 1;";
/// Multiplies the word at `%out` by 2 and adds the word at `%in`.
const MIX: &str = "ld.global.u64 %rd1, [%out]; shl.b64 %rd1, %rd1, 1; ld.global.u64 %rd2, [%in]; add.u64 %rd1, %rd1, %rd2; st.global.u64 [%out], %rd1;";

fn params(a: u64, b: u64) -> Vec<u8> {
    [a.to_le_bytes(), b.to_le_bytes()].concat()
}

#[test]
fn kernels_of_two_streams_run_at_once_and_may_wait_for_each_other() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let (a, b) = (rig.alloc(8, "a"), rig.alloc(8, "b"));
    let wait = rig.load(&kernel(WAIT)).unwrap();
    let signal = rig.load(&kernel(SIGNAL)).unwrap();
    let (wait, signal) = (
        rig.gpu.kernel(wait, "k").unwrap(),
        rig.gpu.kernel(signal, "k").unwrap(),
    );
    let other = rig.gpu.create_stream().unwrap();
    rig.gpu
        .launch(wait, threads(2), rig.stream, &params(a, b))
        .unwrap();
    rig.gpu.record_event(rig.event, rig.stream).unwrap();
    rig.gpu.advance(5_000).unwrap();
    assert_eq!(rig.gpu.stream_done(rig.stream), Ok(false));
    assert_eq!(rig.gpu.counters(rig.event), None);
    let signalled = rig.gpu.create_event().unwrap();
    rig.gpu
        .launch(signal, threads(1), other, &params(a, b))
        .unwrap();
    rig.gpu.record_event(signalled, other).unwrap();
    rig.finish().unwrap();
    assert_eq!(rig.read_u64(b), 2);
    assert_eq!(
        (rig.gpu.stream_done(rig.stream), rig.gpu.stream_done(other)),
        (Ok(true), Ok(true))
    );
    assert_eq!(rig.gpu.counters(signalled).unwrap().phases[0].stores, 1);
}

#[test]
fn an_event_has_the_counters_of_the_launch_before_it() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let (one, b) = (rig.alloc(8, "one"), rig.alloc(8, "b"));
    let module = rig.load(&kernel(MIX)).unwrap();
    let k = rig.gpu.kernel(module, "k").unwrap();
    let none = rig.gpu.create_event().unwrap();
    rig.gpu.record_event(none, rig.stream).unwrap();
    // So many threads each: so many stores.
    let events: Vec<_> = [3, 1, 2]
        .map(|count| {
            rig.gpu
                .launch(k, threads(count), rig.stream, &params(one, b))
                .unwrap();
            let event = rig.gpu.create_event().unwrap();
            rig.gpu.record_event(event, rig.stream).unwrap();
            event
        })
        .to_vec();
    rig.finish().unwrap();
    let stores = |event| Some(rig.gpu.counters(event)?.phases[0].stores);
    assert_eq!(stores(none), None);
    assert_eq!(
        events.into_iter().map(stores).collect::<Vec<_>>(),
        [Some(3), Some(1), Some(2)]
    );
}

#[test]
fn one_stream_runs_in_order_and_events_mark_places_in_it() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let (one, zero, b) = (rig.alloc(8, "one"), rig.alloc(8, "zero"), rig.alloc(8, "b"));
    rig.write(one, &1u64.to_le_bytes());
    let module = rig.load(&kernel(MIX)).unwrap();
    let k = rig.gpu.kernel(module, "k").unwrap();
    let (before, middle, never) = (
        rig.gpu.create_event().unwrap(),
        rig.gpu.create_event().unwrap(),
        rig.gpu.create_event().unwrap(),
    );
    rig.gpu.record_event(before, rig.stream).unwrap();
    // 1, then 2, then 5: any other order gives another number.
    for (i, a) in [one, zero, one].into_iter().enumerate() {
        rig.gpu
            .launch(k, threads(1), rig.stream, &params(a, b))
            .unwrap();
        if i == 1 {
            rig.gpu.record_event(middle, rig.stream).unwrap();
        }
    }
    assert_eq!(rig.gpu.event_done(before), Ok(true));
    assert_eq!(rig.gpu.event_done(middle), Ok(false));
    assert_eq!(rig.gpu.event_done(never), Ok(true));
    while rig.gpu.event_done(middle) == Ok(false) {
        rig.gpu.advance(1).unwrap();
    }
    assert_eq!(rig.read_u64(b), 2);
    rig.finish().unwrap();
    assert_eq!(rig.read_u64(b), 5);
}

#[test]
fn a_destroyed_streams_work_goes_on() {
    let mut rig = Rig::new(config(1, Scheduler::Independent));
    let (a, b) = (rig.alloc(8, "a"), rig.alloc(8, "b"));
    let module = rig.load(&kernel(WAIT)).unwrap();
    let k = rig.gpu.kernel(module, "k").unwrap();
    rig.gpu
        .launch(k, threads(1), rig.stream, &params(a, b))
        .unwrap();
    rig.gpu
        .launch(k, threads(1), rig.stream, &params(a, b))
        .unwrap();
    rig.gpu.advance(1_000).unwrap();
    rig.gpu.destroy_stream(rig.stream).unwrap();
    let id = rig.stream.raw();
    assert_eq!(
        rig.gpu.stream_done(rig.stream),
        Err(GpuError::NoSuch { what: "stream", id })
    );
    assert!(
        rig.gpu
            .launch(k, threads(1), rig.stream, &params(a, b))
            .is_err()
    );
    assert!(matches!(
        rig.gpu.unload_module(module),
        Err(GpuError::Busy(_))
    ));
    // The host releases them.
    rig.write(a, &1u64.to_le_bytes());
    assert!(rig.gpu.advance(u64::MAX).unwrap().idle);
    assert_eq!(rig.read_u64(b), 2);
    rig.gpu.unload_module(module).unwrap();
}

#[test]
fn a_cooperative_launch_waits_until_all_its_blocks_have_room() {
    let mut config = config(1, Scheduler::Independent);
    (config.sms, config.blocks_per_sm) = (1, 4);
    let mut rig = Rig::new(config);
    let (a, b, c) = (rig.alloc(8, "a"), rig.alloc(8, "b"), rig.alloc(8, "c"));
    // Blocks count themselves and wait for all.
    let meet = "mov.u32 %r1, %nctaid.x; cvt.u64.u32 %rd3, %r1; atom.release.gpu.global.add.u64 %rd1, [%in], 1; $w: ld.acquire.gpu.global.u64 %rd2, [%in]; setp.lt.u64 %p1, %rd2, %rd3; @%p1 bra $w;";
    let wait = rig.load(&kernel(WAIT)).unwrap();
    let meet = rig.load(&kernel(meet)).unwrap();
    let (wait, meet) = (
        rig.gpu.kernel(wait, "k").unwrap(),
        rig.gpu.kernel(meet, "k").unwrap(),
    );
    let other = rig.gpu.create_stream().unwrap();
    rig.gpu
        .launch(wait, grid(2, 1), rig.stream, &params(a, b))
        .unwrap();
    let mut all = grid(4, 1);
    all.cooperative = true;
    rig.gpu.launch(meet, all, other, &params(c, c)).unwrap();
    rig.gpu.advance(20_000).unwrap();
    // No block of it has started: the counter is untouched.
    assert_eq!(rig.read_u64(c), 0);
    rig.write(a, &1u64.to_le_bytes());
    rig.finish().unwrap();
    assert_eq!((rig.read_u64(b), rig.read_u64(c)), (2, 4));
}
