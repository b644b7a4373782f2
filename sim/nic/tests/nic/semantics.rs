//! Random verbs over random cables against a small model of what reliable connections promise: in order, exactly once.
//!
//! The model is this file's own: it shares nothing with the NIC but the numbers on the wire.

use proptest::collection::vec;
use proptest::prelude::*;
use warpverbs_sim_nic::{CablePlan, NicConfig};
use warpverbs_wire::cqe::{Completion, CqeOpcode};
use warpverbs_wire::prm::qpc::Mtu;
use warpverbs_wire::wqe::{FENCE, Opcode, SIGNALLED, compare_swap, fetch_add, segment_bytes};

use crate::rig::{EVERY_RIGHT, Rig, pattern};

const SIZE: usize = 1 << 14;

#[derive(Clone, Copy, Debug)]
enum Verb {
    Write {
        from: usize,
        to: usize,
        len: usize,
    },
    WriteImmediate {
        from: usize,
        to: usize,
        len: usize,
    },
    Read {
        from: usize,
        to: usize,
        len: usize,
    },
    Send {
        from: usize,
        len: usize,
        immediate: bool,
    },
    Add {
        at: usize,
        to: usize,
        value: u64,
    },
    Swap {
        at: usize,
        to: usize,
        value: u64,
    },
    Nop,
}

fn verb() -> impl Strategy<Value = Verb> {
    let (at, len) = (0..SIZE / 2, 1..SIZE / 2);
    let word = (0..SIZE / 8).prop_map(|n| n * 8);
    prop_oneof![
        (at.clone(), at.clone(), len.clone()).prop_map(|(from, to, len)| Verb::Write {
            from,
            to,
            len
        }),
        (at.clone(), at.clone(), len.clone()).prop_map(|(from, to, len)| Verb::WriteImmediate {
            from,
            to,
            len
        }),
        (at.clone(), at.clone(), len.clone()).prop_map(|(from, to, len)| Verb::Read {
            from,
            to,
            len
        }),
        (at, len, any::<bool>()).prop_map(|(from, len, immediate)| Verb::Send {
            from,
            len,
            immediate
        }),
        (word.clone(), word.clone(), any::<u64>()).prop_map(|(at, to, value)| Verb::Add {
            at,
            to,
            value
        }),
        (word.clone(), word, any::<u64>()).prop_map(|(at, to, value)| Verb::Swap { at, to, value }),
        Just(Verb::Nop),
    ]
}

/// What the two memories and the far queue hold after a list of verbs.
struct Model {
    near: Vec<u8>,
    far: Vec<u8>,
    /// Byte count and immediate data of each message that takes a receive.
    received: Vec<(u32, u32)>,
    /// Where receive `n` puts its data.
    receive_at: fn(usize) -> usize,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Model {
    fn apply(&mut self, verb: Verb, immediate: u32) {
        match verb {
            Verb::Write { from, to, len } => {
                self.far[to..to + len].copy_from_slice(&self.near[from..from + len]);
            }
            Verb::WriteImmediate { from, to, len } => {
                self.far[to..to + len].copy_from_slice(&self.near[from..from + len]);
                self.received.push((len as u32, immediate));
            }
            Verb::Read { from, to, len } => {
                self.near[to..to + len].copy_from_slice(&self.far[from..from + len]);
            }
            Verb::Send {
                from,
                len,
                immediate: with,
            } => {
                let at = (self.receive_at)(self.received.len());
                self.far[at..at + len].copy_from_slice(&self.near[from..from + len]);
                self.received
                    .push((len as u32, if with { immediate } else { 0 }));
            }
            Verb::Add { at, to, value } => {
                let original = word(&self.far, at);
                self.far[at..at + 8].copy_from_slice(&original.wrapping_add(value).to_le_bytes());
                self.near[to..to + 8].copy_from_slice(&original.to_le_bytes());
            }
            Verb::Swap { at, to, value } => {
                let original = word(&self.far, at);
                // Every other swap finds what it compares with.
                if value % 2 == 0 {
                    self.far[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
                self.near[to..to + 8].copy_from_slice(&original.to_le_bytes());
            }
            Verb::Nop => {}
        }
    }
}

fn receive_at(n: usize) -> usize {
    (n * 1000) % (SIZE / 2)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn verbs_happen_in_order_and_exactly_once(
        seed in any::<u64>(),
        (loss, duplicate, reorder) in (0u32..60_000, 0u32..100_000, 0u32..100_000),
        mtu in prop_oneof![Just(Mtu::Bytes256), Just(Mtu::Bytes1024), Just(Mtu::Bytes4096)],
        late_receives in any::<bool>(),
        verbs in vec(verb(), 1..24),
    ) {
        let plan = CablePlan {
            loss_ppm: loss,
            duplicate_ppm: duplicate,
            reorder_ppm: reorder,
            reorder_ns: 5_000,
            delay_ns: 1_000,
            ..CablePlan::default()
        };
        let (near, far, _) = Rig::joined(NicConfig { seed, ..NicConfig::default() }, plan, seed);
        let (mut near_cq, mut far_cq) = (near.cq(7), far.cq(7));
        let (mut qp, _) = near.qp_with_receives(&near_cq, 6);
        let (far_qp, mut receives) = far.qp_with_receives(&far_cq, 6);
        near.connect(qp.qpn, &far, far_qp.qpn, |qpc| qpc.mtu = mtu);
        far.connect(far_qp.qpn, &near, qp.qpn, |qpc| qpc.mtu = mtu);
        let (here, there) = (near.mr(SIZE as u64, EVERY_RIGHT), far.mr(SIZE as u64, EVERY_RIGHT));
        let mut model = Model {
            near: pattern(SIZE, 1),
            far: pattern(SIZE, 2),
            received: vec![],
            receive_at,
        };
        near.write(here.addr, &model.near);
        far.write(there.addr, &model.far);
        for (number, verb) in verbs.iter().enumerate() {
            let immediate = 0x1000 + number as u32;
            // A model of one memory needs fences: what a READ brings may be sent by the next verb.
            let flags = SIGNALLED | FENCE;
            let local = |at: usize, len: usize| here.piece(at as u64, len as u32).local();
            let remote = |at: usize, len: usize| there.piece(at as u64, len as u32).remote();
            let (opcode, segments) = match *verb {
                Verb::Write { from, to, len } => (Opcode::RdmaWrite, [remote(to, len), local(from, len)].concat()),
                Verb::WriteImmediate { from, to, len } =>
                    (Opcode::RdmaWriteImmediate, [remote(to, len), local(from, len)].concat()),
                Verb::Read { from, to, len } => (Opcode::RdmaRead, [remote(from, len), local(to, len)].concat()),
                Verb::Send { from, len, immediate: false } => (Opcode::Send, local(from, len)),
                Verb::Send { from, len, immediate: true } => (Opcode::SendImmediate, local(from, len)),
                Verb::Add { at, to, value } => (
                    Opcode::AtomicFetchAdd,
                    [remote(at, 8), segment_bytes(fetch_add(value)).to_vec(), local(to, 8)].concat(),
                ),
                Verb::Swap { at, to, value } => {
                    let found = word(&model.far, at);
                    let compare = if value % 2 == 0 { found } else { !found };
                    (
                        Opcode::AtomicCompareSwap,
                        [remote(at, 8), segment_bytes(compare_swap(value, compare)).to_vec(), local(to, 8)].concat(),
                    )
                }
                Verb::Nop => (Opcode::Nop, vec![]),
            };
            let has_immediate = matches!(opcode, Opcode::RdmaWriteImmediate | Opcode::SendImmediate);
            qp.post_with(
                &near,
                |control| {
                    control.flags = flags;
                    control.immediate = if has_immediate { immediate } else { 0 };
                },
                opcode,
                &segments,
            );
            model.apply(*verb, immediate);
        }
        let post = |receives: &mut crate::rig::TestRq| {
            for n in 0..model.received.len() {
                receives.post(&far, &[there.piece(receive_at(n) as u64, (SIZE / 2) as u32)]);
            }
        };
        if !late_receives {
            post(&mut receives);
        }
        qp.ring(&near);
        if late_receives {
            near.bus.lock().run_devices(300);
            post(&mut receives);
        }
        near.run();
        for number in 0..verbs.len() {
            prop_assert!(matches!(near_cq.poll(&near), Some(Completion::Done(_))), "verb {}", number);
        }
        near_cq.assert_empty(&near);
        for (len, immediate) in &model.received {
            match far_cq.poll(&far) {
                Some(Completion::Done(cqe)) => {
                    prop_assert!(cqe.opcode != CqeOpcode::Requester);
                    prop_assert_eq!((cqe.byte_count, cqe.immediate), (*len, *immediate));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        far_cq.assert_empty(&far);
        prop_assert!(near.read(here.addr, SIZE) == model.near, "near memory");
        prop_assert!(far.read(there.addr, SIZE) == model.far, "far memory");
        near.assert_no_findings();
        far.assert_no_findings();
    }
}
