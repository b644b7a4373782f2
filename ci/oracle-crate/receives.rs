//! Receive WQEs: what libmlx5 writes into a QP's own receive queue and into a shared one, and what our builders write.

use std::collections::BTreeMap;

use warpverbs_sim_bus::Rng;
use warpverbs_wire::cqe::{Cqe, CqeOpcode};
use warpverbs_wire::doorbell::{DBR_RECEIVE, dbr_producer, dbr_word};
use warpverbs_wire::wqe::{
    INVALID_LKEY, Receive, SrqNext, data, receive_end, segment_bytes, srq_next,
};

use crate::Tally;
use crate::device::POISON;
use crate::ffi::IBV_WC_SUCCESS;
use crate::request::{Pointer, pointer};
use crate::verbs::{Caps, Device, Srq};
use crate::wqes::Deaf;

/// Queues are made for so many buffers a receive.
const POINTERS: [u32; 6] = [1, 2, 3, 4, 7, 16];

pub fn compare(tally: &mut Tally, rng: &mut Rng) {
    let device = Device::open();
    for most in POINTERS {
        own(&device, tally, rng, most);
    }
    for most in POINTERS {
        shared(&device, tally, rng, most);
    }
}

/// A buffer of a key that is not the one which no MKey has.
fn buffer(rng: &mut Rng) -> Pointer {
    let pointer = pointer(rng);
    let key = match pointer.key {
        INVALID_LKEY => 0,
        key => key,
    };
    Pointer { key, ..pointer }
}

fn receives(rng: &mut Rng, most: u32) -> Vec<(u64, Vec<Pointer>)> {
    let receive = |rng: &mut Rng| {
        let pointers = 1 + rng.below(most);
        let id = rng.next_u64();
        (id, (0..pointers).map(|_| buffer(rng)).collect())
    };
    let count = 1 + rng.below(4);
    (0..count).map(|_| receive(rng)).collect()
}

/// The segments of a receive with room for `most`, and what was there behind them.
fn built(pointers: &[Pointer], most: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = pointers
        .iter()
        .flat_map(|pointer| segment_bytes(data(pointer.len, pointer.key, pointer.addr)))
        .collect();
    if pointers.len() < most {
        bytes.extend(segment_bytes(receive_end()));
    }
    bytes.resize(most * 16, POISON);
    bytes
}

fn is_read(bytes: &[u8], shared: bool, pointers: &[Pointer]) {
    let read = Receive::decode(bytes, shared).unwrap_or_else(|error| panic!("{error}: {bytes:x?}"));
    let found: Vec<Pointer> = read
        .data()
        .map(|found| Pointer {
            addr: found.address,
            len: found.byte_count,
            key: found.key,
        })
        .collect();
    assert_eq!(found, pointers);
}

fn own(device: &Device, tally: &mut Tally, rng: &mut Rng, most: u32) {
    let caps = Caps {
        receive_pointers: most,
        ..Caps::default()
    };
    let name = format!("receive of up to {most} buffers, by ibv_post_recv");
    let mut deaf = Deaf::new(device, false, false, caps);
    let stride = deaf.qp.receive_stride;
    let mut head = 0u64;
    while tally.wants(&name) {
        let posted = receives(rng, most);
        let ring = deaf.qp.rq;
        let slot = |index: u64| index as usize * stride % ring.len();
        ring.fill(slot(head), stride * (posted.len() + 1), POISON);
        deaf.qp.post_receives(&posted);
        for (id, pointers) in &posted {
            let theirs = ring.get(slot(head), stride);
            // The stride is a power of two: there may be room for more than was asked for, and libmlx5 counts all of it.
            assert_eq!(
                theirs,
                built(pointers, stride / 16),
                "{name}: {pointers:x?}\n left: libmlx5's"
            );
            is_read(&theirs, false, pointers);
            let cqe = Cqe {
                srqn_uidx: deaf.qp.user_index,
                qpn: deaf.qp.number,
                // Which rdma-core 44 does not look at: it counts.
                wqe_counter: head as u16,
                opcode: CqeOpcode::ResponderSend,
                ..Cqe::default()
            };
            head += 1;
            deaf.write_cqe(cqe.emit());
            let told = deaf.cq.poll().expect("it reads it").expect("it is new");
            assert_eq!((told.id, told.status), (*id, IBV_WC_SUCCESS), "{name}");
            deaf.polled();
            tally.add(&name);
        }
        assert!(
            ring.get(slot(head), stride)
                .iter()
                .all(|byte| *byte == POISON),
            "{name}"
        );
        assert_eq!(
            deaf.qp.record.get(DBR_RECEIVE, 4),
            dbr_word(head).to_le_bytes(),
            "{name}: the record"
        );
    }
}

fn shared(device: &Device, tally: &mut Tally, rng: &mut Rng, most: u32) {
    let name = format!("receive of up to {most} buffers, by ibv_post_srq_recv");
    let srq: Srq = device.srq(31, most);
    let mut deaf = Deaf::with(device, false, |device, cq| {
        device.qp(cq, cq, Caps::default(), Some(&srq))
    });
    let (entries, stride) = (srq.entries as u16, srq.stride);
    let mut count = 0u64;
    let mut outstanding: BTreeMap<u16, u64> = BTreeMap::new();
    while tally.wants(&name) {
        let posted = receives(rng, most);
        // Which of those that are free comes next is libmlx5's choice, and another in other releases.
        for slot in (0..entries).filter(|slot| !outstanding.contains_key(slot)) {
            srq.ring
                .fill(usize::from(slot) * stride + 16, stride - 16, POISON);
        }
        let mut slot = srq.head();
        srq.post(&posted);
        for (id, pointers) in &posted {
            let theirs = srq.ring.get(usize::from(slot) * stride, stride);
            let next = SrqNext::parse(&theirs).expect("a next segment").next;
            assert_eq!(
                theirs[..16],
                segment_bytes(srq_next(next)),
                "{name}: the next segment"
            );
            let expected = built(pointers, stride / 16 - 1);
            assert_eq!(
                theirs[16..],
                expected,
                "{name}: {pointers:x?}\n left: libmlx5's"
            );
            is_read(&theirs, true, pointers);
            assert!(
                slot < entries && outstanding.insert(slot, *id).is_none(),
                "{name}: {slot} twice"
            );
            slot = next;
            count += 1;
            tally.add(&name);
        }
        assert_eq!(srq.head(), slot, "{name}: the last next segment leads on");
        // libmlx5 writes 32 bits, of which the NIC takes 16.
        let record: [u8; 4] = srq.record.get(0, 4).try_into().expect("4 bytes");
        assert_eq!(dbr_producer(record), count as u16, "{name}: the record");
        // Those that are done come back in any order; one place of the list is never given out.
        while outstanding.len() > 24 || (!outstanding.is_empty() && rng.below(3) > 0) {
            let which = rng.below(outstanding.len() as u32) as usize;
            let (slot, id) = outstanding
                .iter()
                .nth(which)
                .map(|(slot, id)| (*slot, *id))
                .expect("one");
            outstanding.remove(&slot);
            let cqe = Cqe {
                srqn_uidx: deaf.qp.user_index,
                qpn: deaf.qp.number,
                wqe_counter: slot,
                opcode: CqeOpcode::ResponderSend,
                ..Cqe::default()
            };
            deaf.write_cqe(cqe.emit());
            let told = deaf.cq.poll().expect("it reads it").expect("it is new");
            assert_eq!((told.id, told.status), (id, IBV_WC_SUCCESS), "{name}");
            deaf.polled();
        }
    }
}
