//! The simulated NIC against Linux's rdma_rxe in a virtual machine, which `ci/rxe` builds: whole Ethernet frames between
//! QEMU's network card and the NIC's port.
//!
//! Asserts on results, never on time: an emulated processor on a busy machine is slow.

mod ends;
#[path = "../../../../ci/rxe-guest/pattern.rs"]
mod pattern;
mod refusals;
#[allow(dead_code)]
#[path = "../nic/rig.rs"]
mod rig;
mod vm;
mod work;

use warpverbs_sim_nic::CablePlan;

use ends::Ends;
use work::{Direction, Operation, Row};

/// What the wire does in a part of the run.
fn plans() -> [(&'static str, CablePlan); 3] {
    let loss = CablePlan {
        loss_ppm: 10_000,
        ..CablePlan::default()
    };
    let all = CablePlan {
        duplicate_ppm: 10_000,
        reorder_ppm: 10_000,
        reorder_ns: 300_000,
        ..loss.clone()
    };
    [
        ("none", CablePlan::default()),
        ("1 %", loss),
        ("1 %, 1 % twice, 1 % late", all),
    ]
}

#[test]
#[ignore = "needs the virtual machine that ci/rxe builds"]
fn every_operation_completes_in_both_directions() {
    let folder = std::env::var_os("RXE_VM").expect("RXE_VM: the folder that ci/rxe makes");
    let rounds = if std::env::var_os("RXE_FULL").is_some() {
        4
    } else {
        1
    };
    let begun = std::time::Instant::now();
    let mut ends = Ends::boot(folder.as_ref());
    let mut rows = vec![];
    for (at, (name, plan)) in plans().into_iter().enumerate() {
        // The two sizes of packets at the extremes of what is common; the third plan moves less.
        let mtus: &[u32] = if at < 2 { &[1024, 4096] } else { &[2048] };
        for direction in Direction::BOTH {
            for operation in Operation::ALL {
                let mut row = Row::new(operation, direction, name);
                for mtu in mtus {
                    for round in 0..rounds {
                        ends.wire.set_plan(plan.clone(), u64::from(*mtu) + round);
                        work::run(&mut ends, operation, direction, *mtu, at < 2, &mut row);
                    }
                }
                ends.wire.set_plan(CablePlan::default(), 0);
                println!("{:>6.1} {row}", begun.elapsed().as_secs_f64());
                rows.push(row);
            }
        }
    }
    refusals::receivers_that_are_not_ready(&mut ends);
    refusals::keys_lengths_and_operations(&mut ends);
    refusals::invalidated_keys(&mut ends);

    // A wire that loses is no such wire unless frames were lost and sent again, by both ends.
    for direction in Direction::BOTH {
        let of = |lossy: bool| {
            rows.iter()
                .filter(move |row| row.direction == direction && (row.loss != "none") == lossy)
        };
        assert_eq!(of(false).map(|row| row.lost).sum::<u64>(), 0);
        assert!(
            of(true).map(|row| row.lost).sum::<u64>() > 20,
            "{direction:?}"
        );
        assert!(
            of(true).map(|row| row.again).sum::<u64>() > 10,
            "{direction:?}"
        );
    }
    let findings = ends.rig.take_findings();
    assert!(findings.is_empty(), "{findings:?}");
    let total: u64 = rows.iter().map(|row| row.bytes).sum();
    let count: u64 = rows.iter().map(|row| row.count).sum();
    println!("{count} operations, {total} bytes compared: all as they should be");
}
