//! Litmus tests: small programs whose outcomes the PTX memory model tells apart.
//!
//! Each has outcomes that must never be seen, outcomes that must be seen at least once, and the faults that must be
//! reported, over some hundred seeds; `WARPVERBS_LITMUS_SEEDS` sets how many (10,000 for a full run).

mod devices;
mod programs;
mod reports;
mod rig;
mod table;

use rig::{Litmus, check};

/// Runs all tests of a table and tells of all that fail.
fn run(table: &[Litmus]) {
    let failed: Vec<String> = table.iter().filter_map(|test| check(test).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Every test of programs, under the heading of its table.
fn all() -> Vec<(&'static str, Vec<Litmus>)> {
    vec![
        ("Message passing", programs::message_passing()),
        (
            "Message passing with something missing",
            programs::broken_message_passing(),
        ),
        ("Store buffering", programs::store_buffering()),
        ("Late stores", programs::late_stores()),
        ("Coherence", programs::coherence()),
        ("Causality", programs::causality()),
        ("Atomics", programs::atomics()),
        ("Barriers and warp operations", programs::barriers()),
        ("Races and sizes", programs::races()),
    ]
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
    let count: usize = all().iter().map(|(_, tests)| tests.len()).sum();
    assert!(count >= 80 && devices::ALL.len() >= 12, "{count}");
}

/// The table in the docs has every test. With 10,000 seeds `BLESS=1` writes it, and without all of it is compared.
#[test]
fn the_table_in_the_docs_is_current() {
    table::check();
}

/// Each stands for a family: other proxies, asynchronous copies, clusters, and operations on many objects at once.
const BEYOND_THE_MODEL: &[&str] = &[
    // Asynchronous copies (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
    "cp.async.ca.shared.global [%r1], [%rd1], 4;",
    "cp.async.cg.shared.global [%r1], [%rd1], 16;",
    "cp.async.commit_group;",
    "cp.async.wait_group 0;",
    "cp.async.wait_all;",
    "cp.async.mbarrier.arrive.shared.b64 [%rd1];",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;",
    "cp.async.bulk.commit_group;",
    "cp.async.bulk.wait_group 0;",
    "cp.async.bulk.prefetch.L2.global [%rd1], 16;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 16;",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%rd1], %r1, [%rd2];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3];",
    "st.bulk.weak.shared::cta [%r1], 16, 0;",
    // Tensors.
    "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2}], [%r3];",
    "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%rd1, {%r2}], [%r1];",
    "tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;",
    "wgmma.fence.sync.aligned;",
    "wgmma.commit_group.sync.aligned;",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r1};",
    // Objects in memory that synchronise by themselves.
    "mbarrier.init.shared.b64 [%rd1], 1;",
    "mbarrier.inval.shared.b64 [%rd1];",
    "mbarrier.arrive.shared.b64 %rd2, [%rd1];",
    "mbarrier.arrive.expect_tx.shared.b64 %rd2, [%rd1], 16;",
    "mbarrier.test_wait.shared.b64 %p1, [%rd1], %rd2;",
    "mbarrier.try_wait.parity.shared.b64 %p1, [%rd1], %r1;",
    "fence.mbarrier_init.release.cluster;",
    // Proxies (PTX ISA, "Proxies").
    "fence.proxy.async;",
    "fence.proxy.async.global;",
    "fence.proxy.alias;",
    "fence.proxy.tensormap::generic.release.gpu;",
    "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
    "tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r3}, [%rd1, {%r1}];",
    "suld.b.1d.b32.trap %r1, [%rd1, {%r2}];",
    "sust.b.1d.b32.trap [%rd1, {%r2}], %r1;",
    // Clusters.
    "barrier.cluster.arrive;",
    "barrier.cluster.wait;",
    "fence.acq_rel.cluster;",
    "fence.sc.cluster;",
    "ld.relaxed.cluster.global.u32 %r1, [%rd1];",
    "ld.acquire.cluster.global.u32 %r1, [%rd1];",
    "st.relaxed.cluster.global.u32 [%rd1], %r1;",
    "st.release.cluster.global.u32 [%rd1], %r1;",
    "atom.relaxed.cluster.global.add.u32 %r1, [%rd1], 1;",
    "red.relaxed.cluster.global.add.u32 [%rd1], 1;",
    "ld.shared::cluster.u32 %r1, [%rd1];",
    "mapa.u64 %rd1, %rd2, %r1;",
    "getctarank.u64 %r1, %rd1;",
    // Several objects at once.
    "multimem.ld_reduce.relaxed.gpu.global.add.u32 %r1, [%rd1];",
    "multimem.st.relaxed.gpu.global.u32 [%rd1], %r1;",
    "multimem.red.relaxed.gpu.global.add.u32 [%rd1], 1;",
    "atom.relaxed.gpu.global.v2.f32.add {%r1, %r2}, [%rd1], {%r1, %r2};",
    // Launches that overlap.
    "griddepcontrol.wait;",
    "griddepcontrol.launch_dependents;",
];

#[test]
fn what_cannot_be_judged_is_refused_by_name() {
    for instruction in BEYOND_THE_MODEL {
        let error = rig::load(instruction).expect_err(instruction);
        assert_eq!(
            (error.line, error.text.as_str()),
            (9, *instruction),
            "{error}"
        );
        let mnemonic = instruction
            .split(['.', ' ', ';'])
            .next()
            .unwrap_or_default();
        assert!(error.to_string().contains(mnemonic), "{error}");
    }
    rig::load("ld.relaxed.gpu.global.u32 %r1, [%rd1];").unwrap();
}
