//! Fences of WQEs that send nothing: they hold those behind back too.

use warpverbs_sim_nic::{CablePlan, NicConfig};
use warpverbs_wire::wqe::{FENCE, Opcode, SIGNALLED};

use crate::rig::{EVERY_RIGHT, Rig, pattern};

#[test]
fn what_is_behind_a_fenced_nop_or_dump_starts_after_it() {
    for opcode in [Opcode::Nop, Opcode::Dump] {
        // Time for a WRITE to overtake the READ's data.
        let plan = CablePlan {
            delay_ns: 1000,
            ..CablePlan::default()
        };
        let (near, far, _) = Rig::joined(NicConfig::default(), plan, 1);
        let (mut cq, far_cq) = (near.cq(6), far.cq(6));
        let (mut a, b) = (near.qp(&cq, 4), far.qp(&far_cq, 4));
        near.connect(a.qpn, &far, b.qpn, |_| ());
        far.connect(b.qpn, &near, a.qpn, |_| ());
        let (here, there) = (near.mr(4096, EVERY_RIGHT), far.mr(4096, EVERY_RIGHT));
        let data = pattern(1000, 5);
        far.write(there.addr, &data);
        let read = [there.piece(0, 1000).remote(), here.piece(0, 1000).local()].concat();
        a.post(&near, Opcode::RdmaRead, SIGNALLED, &read);
        let dumped = match opcode {
            Opcode::Dump => here.piece(2000, 8).local(),
            _ => vec![],
        };
        a.post(&near, opcode, SIGNALLED | FENCE, &dumped);
        a.write(&near, here.piece(0, 1000), there.piece(2048, 1000));
        a.ring(&near);
        near.run();
        for _ in 0..3 {
            cq.success(&near);
        }
        assert!(far.read(there.addr + 2048, 1000) == data, "{opcode:?}");
    }
}
