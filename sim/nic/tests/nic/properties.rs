//! No bytes make the NIC panic, and random legal work is executed exactly.

use proptest::collection::vec;
use proptest::prelude::*;
use warpverbs_sim_nic::NicConfig;
use warpverbs_wire::fields::commands;
use warpverbs_wire::prm::Command;
use warpverbs_wire::wqe::{FENCE, Opcode, SIGNALLED};

use crate::rig::{ALL_RIGHTS, Rig, inline, pattern};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_mailbox_panics(opcode in 0..=commands().len(), mut input in vec(any::<u8>(), 0..300), output in 0usize..5000) {
        let rig = Rig::new();
        if let Some(head) = input.get_mut(..2) {
            // And one that no NIC has.
            let opcode = commands().get(opcode).map_or(0x7ff, |(_, opcode)| *opcode);
            head.copy_from_slice(&opcode.to_be_bytes());
        }
        let mut out = vec![0; output];
        let result = rig.nic().command(&input, &mut out);
        if let (Err(error), Some(status)) = (result, out.first()) {
            prop_assert_eq!(*status, error.status());
        }
    }

    /// A legal mailbox with a few bytes changed; whatever it creates then gets doorbells and steps.
    #[test]
    fn no_mutated_mailbox_panics(which in 0usize..6, changes in vec((0usize..280, any::<u8>()), 1..4)) {
        let rig = Rig::new();
        let cq = rig.cq(3);
        let mut qp = rig.qp(&cq, 3);
        let mut steps: Vec<Vec<u8>> = vec![
            rig.cq_request(3).0.encode().unwrap().to_vec(),
            rig.qp_request(&cq, 3).0.encode().unwrap().to_vec(),
            rig.rst2init(qp.qpn).encode().unwrap().to_vec(),
            rig.init2rtr(qp.qpn, qp.qpn).encode().unwrap().to_vec(),
            rig.rtr2rts(qp.qpn).encode().unwrap().to_vec(),
        ];
        for (at, value) in changes {
            if let Some(byte) = steps.get_mut(which).and_then(|bytes| bytes.get_mut(at)) {
                *byte ^= value;
            }
        }
        for input in &steps {
            let _ = rig.nic().command(input, &mut [0; 300]);
        }
        qp.nop(&rig);
        qp.ring(&rig);
        rig.run();
    }

    /// Any bytes in the ring, any doorbells: the NIC says something and becomes idle.
    #[test]
    fn no_wqe_or_doorbell_panics(
        ring in vec(any::<u8>(), 512),
        legal_heads in any::<bool>(),
        doorbells in vec((any::<u64>(), any::<bool>(), any::<u16>()), 1..6),
    ) {
        let rig = Rig::new();
        let cq = rig.cq_oi(3, false);
        let (a, _b) = rig.pair(&cq, 3);
        rig.write(a.ring, &ring);
        if legal_heads {
            for index in 0..8u64 {
                let mut head = vec![0, 0, index as u8, [0x08, 0x10, 0x23, 0x00][index as usize % 4]];
                head.extend((a.qpn << 8 | (ring[index as usize] as u32 & 0x3f)).to_be_bytes());
                rig.write(a.ring + index * 64, &head);
            }
        }
        for (value, near, dbr) in doorbells {
            let value = if near {
                warpverbs_wire::doorbell::doorbell(value % 10, a.qpn)
            } else {
                value
            };
            a.dbr_at(&rig, u64::from(dbr % 12));
            rig.mmio(a.uar, 0x800, &value.to_le_bytes()).unwrap();
            rig.run();
        }
        rig.nic().end_of_run();
    }

    /// Random WRITEs, inline WRITEs, READs and NOPs, rung in random batches from random indices, against a model of the
    /// two buffers.
    #[test]
    fn random_work_moves_what_it_says(
        first_index in prop_oneof![0u64..4, (1u64 << 16) - 20..(1 << 16), (1u64 << 32) - 20..(1 << 32)],
        seed in any::<u64>(),
        work in vec((0u8..4, 0usize..600, 0usize..3000, 0u32..1400, any::<bool>()), 1..40),
    ) {
        let rig = Rig::with(NicConfig { first_index, seed, ..NicConfig::default() });
        let mut cq = rig.cq(5);
        let (mut a, _b) = rig.pair(&cq, 4);
        let (local, remote) = (rig.mr(8192, ALL_RIGHTS), rig.mr(8192, ALL_RIGHTS));
        let mut here = pattern(8192, 1);
        let mut there = pattern(8192, 2);
        rig.write(local.addr, &here);
        rig.write(remote.addr, &there);
        let mut expected = vec![];
        for (kind, from, to, len, ring) in work {
            let (small, n) = (pattern(len as usize % 60, 3), len as usize + 1);
            let index = match kind {
                0 => {
                    there[to..to + n].copy_from_slice(&here[from..from + n]);
                    // Without the fence it may overtake READs before it (IBA 10.8).
                    let segments = [
                        remote.piece(to as u64, len + 1).remote(),
                        local.piece(from as u64, len + 1).local(),
                    ]
                    .concat();
                    a.post(&rig, Opcode::RdmaWrite, SIGNALLED | FENCE, &segments)
                }
                1 => {
                    there[to..to + small.len()].copy_from_slice(&small);
                    let segments = [remote.piece(to as u64, 0).remote(), inline(&small)].concat();
                    a.post(&rig, Opcode::RdmaWrite, SIGNALLED | FENCE, &segments)
                }
                2 => {
                    here[from..from + n].copy_from_slice(&there[to..to + n]);
                    let segments = [
                        remote.piece(to as u64, len + 1).remote(),
                        local.piece(from as u64, len + 1).local(),
                    ]
                    .concat();
                    a.post(&rig, Opcode::RdmaRead, SIGNALLED, &segments)
                }
                _ => a.nop(&rig),
            };
            expected.push(index as u16);
            let used = a.next - index;
            if ring || a.next % 8 < used {
                a.ring(&rig);
                rig.run();
                for counter in expected.drain(..) {
                    prop_assert_eq!(cq.success(&rig).wqe_counter, counter);
                }
            }
        }
        a.ring(&rig);
        rig.run();
        for counter in expected {
            prop_assert_eq!(cq.success(&rig).wqe_counter, counter);
        }
        prop_assert_eq!(cq.poll(&rig), None);
        prop_assert!(rig.read(local.addr, 8192) == here);
        prop_assert!(rig.read(remote.addr, 8192) == there);
        rig.assert_no_findings();
    }
}
