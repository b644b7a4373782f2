//! Litmus tests: small programs whose outcomes the PTX memory model tells apart.
//!
//! Each has outcomes that must never be seen, outcomes that must be seen at least once, and the faults that must be
//! reported, over some hundred seeds; `WARPVERBS_LITMUS_SEEDS` sets how many (10,000 for a full run).

mod devices;
mod programs;
mod rig;

use rig::{Litmus, check};

/// Runs all tests of a table and tells of all that fail.
fn run(table: &[Litmus]) {
    let failed: Vec<String> = table.iter().filter_map(|test| check(test).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn message_passing_with_every_release_and_every_acquire() {
    let table = programs::message_passing();
    assert_eq!(table.len(), 36);
    run(&table);
}

#[test]
fn message_passing_that_must_fail() {
    run(&programs::broken_message_passing());
}

#[test]
fn store_buffering() {
    run(&programs::store_buffering());
}

#[test]
fn stores_that_enter_coherence_order_late() {
    run(&programs::late_stores());
}

#[test]
fn coherence() {
    run(&programs::coherence());
}

#[test]
fn causality_through_a_third_thread() {
    run(&programs::causality());
}

#[test]
fn atomics() {
    run(&programs::atomics());
}

#[test]
fn barriers_and_warp_operations() {
    run(&programs::barriers());
}

#[test]
fn races_and_mixed_sizes() {
    run(&programs::races());
}

#[test]
fn there_are_at_least_forty() {
    let tables = [
        programs::message_passing(),
        programs::broken_message_passing(),
        programs::store_buffering(),
        programs::late_stores(),
        programs::coherence(),
        programs::causality(),
        programs::atomics(),
        programs::barriers(),
        programs::races(),
    ];
    let count: usize = tables.iter().map(Vec::len).sum();
    assert!(count >= 40, "{count}");
}

#[test]
fn what_cannot_be_judged_is_refused_by_name() {
    for instruction in [
        "cp.async.ca.shared.global [%r1], [%rd1], 4;",
        "fence.proxy.async;",
        "mbarrier.init.shared.b64 [%rd1], 1;",
        "barrier.cluster.arrive;",
        "fence.acq_rel.cluster;",
        "ld.relaxed.cluster.global.u32 %r1, [%rd1];",
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%rd1], %r1, [%rd2];",
        "ld.shared::cluster.u32 %r1, [%rd1];",
        "multimem.red.relaxed.gpu.global.add.u32 [%rd1], 1;",
    ] {
        let error = rig::load(instruction).unwrap_err();
        assert_eq!(error.line, 9, "{error}");
        assert_eq!(error.text, instruction);
    }
    rig::load("ld.relaxed.gpu.global.u32 %r1, [%rd1];").unwrap();
}
