//! Two NICs, each on a bus of its own and stepped by a thread of its own, joined by a socket as two processes are.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warpverbs_sim_nic::{NicConfig, SocketEnd};
use warpverbs_wire::wqe::{Opcode, SIGNALLED, fetch_add, segment_bytes};

use crate::rig::{EVERY_RIGHT, Rig, TestCq, pattern};

/// Steps the NIC until `count` successes have come.
fn successes(rig: &Rig, cq: &mut TestCq, count: usize) {
    let begun = Instant::now();
    let mut seen = 0;
    while seen < count {
        rig.bus.lock().run_devices(1000);
        match cq.poll(rig) {
            Some(warpverbs_wire::cqe::Completion::Done(_)) => seen += 1,
            Some(other) => panic!("{other}"),
            None => std::thread::yield_now(),
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "only {seen} of {count} completions"
        );
    }
}

#[test]
fn nics_on_buses_of_their_own_reach_each_other_over_a_socket() {
    let near = Rig::new();
    let far = Rig::with(NicConfig {
        name: "sim1".to_owned(),
        mac: [0x02, 0, 0, 0, 0, 0x02],
        ..NicConfig::default()
    });
    let (a, b) = UnixDatagram::pair().unwrap();
    near.nic().connect(SocketEnd::new(a).unwrap());
    far.nic().connect(SocketEnd::new(b).unwrap());
    let (mut cq, far_cq) = (near.cq(6), far.cq(6));
    let mut qp = near.qp(&cq, 6);
    let (far_qp, mut receives) = far.qp_with_receives(&far_cq, 4);
    near.connect(qp.qpn, &far, far_qp.qpn, |_| ());
    far.connect(far_qp.qpn, &near, qp.qpn, |_| ());
    const SIZE: u32 = 1 << 16;
    let (here, there) = (
        near.mr(SIZE.into(), EVERY_RIGHT),
        far.mr(SIZE.into(), EVERY_RIGHT),
    );
    let data = pattern(SIZE as usize, 3);
    near.write(here.addr, &data);
    let word = there.addr + 0x8000;
    far.write(word, &5u64.to_le_bytes());
    receives.post(&far, &[there.piece(0x9000, 0x1000)]);
    qp.write(&near, here.piece(0, 0x8000), there.piece(0, 0x8000));
    let back = [
        there.piece(0, 0x4000).remote(),
        here.piece(0xc000, 0x4000).local(),
    ]
    .concat();
    qp.post(&near, Opcode::RdmaRead, SIGNALLED, &back);
    qp.post(
        &near,
        Opcode::Send,
        SIGNALLED,
        &here.piece(0x100, 3000).local(),
    );
    let add = [
        there.piece(0x8000, 8).remote(),
        segment_bytes(fetch_add(37)).to_vec(),
        here.piece(0x8000, 8).local(),
    ];
    qp.post(&near, Opcode::AtomicFetchAdd, SIGNALLED, &add.concat());
    qp.ring(&near);

    let stop = Arc::new(AtomicBool::new(false));
    let bus = far.bus.clone();
    let stepper = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::Relaxed) {
                bus.lock().run_devices(1000);
                std::thread::yield_now();
            }
        }
    });
    successes(&near, &mut cq, 4);
    stop.store(true, Ordering::Relaxed);
    stepper.join().unwrap();
    assert!(far.read(there.addr, 0x8000) == data[..0x8000]);
    assert!(near.read(here.addr + 0xc000, 0x4000) == data[..0x4000]);
    assert_eq!(
        far.read(there.addr + 0x9000, 3000),
        data[0x100..0x100 + 3000]
    );
    assert_eq!(far.read(word, 8), 42u64.to_le_bytes());
    assert_eq!(near.read(here.addr + 0x8000, 8), 5u64.to_le_bytes());
}
