//! Send WQEs: what libmlx5 writes into its ring, its doorbell record and its register, and what our builders write.
//!
//! Each post is compared with `wire`'s builders (which device code uses), `wire`'s structures (which the simulated NIC reads),
//! the header's own setters, and the native build of the device crate.

use warpverbs_sim_bus::Rng;
use warpverbs_sim_nic::InjectedFault;
use warpverbs_wire::cqe::{Cqe, CqeOpcode, owner_at};
use warpverbs_wire::doorbell::{
    CqArm, DBR_CQ_ARM, DBR_CQ_CONSUMER, DBR_SEND, Doorbell, REGISTER_CQ_ARM, cq_dbr_word, dbr_word,
};
use warpverbs_wire::wqe::{Control, Opcode, SIGNALLED, wqebbs};

use crate::Tally;
use crate::device::{Aimed, Bench, Built, CQES, Own, PIECES, POISON};
use crate::ffi::IBV_WC_SUCCESS;
use crate::nic::plant;
use crate::request::{Kind, Payload, Pointer, Request, Shape, chance, number};
use crate::verbs::{Caps, Cq, Device, GID, Peer, Qp, header_control, header_data};

/// A QP that no NIC hears, with a CQ of which we are the NIC.
pub struct Deaf {
    pub qp: Qp,
    pub cq: Cq,
    /// Next index of the send queue, as libmlx5 counts.
    pub next: u64,
    /// Next CQE.
    pub consumer: u64,
    /// Offset of the BlueFlame buffer that is next.
    buffer: usize,
}

impl Deaf {
    pub fn new(device: &Device, extended: bool, raw: bool, caps: Caps) -> Self {
        Self::with(device, extended, |device, cq| {
            if raw {
                device.raw_qp(cq, caps)
            } else {
                device.qp(cq, cq, caps, None)
            }
        })
    }

    pub fn with(device: &Device, extended: bool, make: impl FnOnce(&Device, &Cq) -> Qp) -> Self {
        let cq = device.cq(CQES, extended);
        let qp = make(device, &cq);
        // libmlx5 posts to a QP that it knows to be in RTS.
        qp.connect(&Peer::new(qp.number, device.gid(GID)));
        plant(InjectedFault::StuckQp { qpn: qp.number });
        qp.registers.cut_off();
        cq.page.cut_off();
        Self {
            qp,
            cq,
            next: 0,
            consumer: 0,
            buffer: 0,
        }
    }

    /// Completes all up to the WQE at `index`, so that libmlx5 reuses their slots.
    pub fn retire(&mut self, index: u64, id: u64) {
        let cqe = Cqe {
            srqn_uidx: self.qp.user_index,
            send_opcode: Opcode::RdmaWrite.code(),
            qpn: self.qp.number,
            wqe_counter: index as u16,
            opcode: CqeOpcode::Requester,
            ..Cqe::default()
        };
        self.write_cqe(cqe.emit());
        let told = self
            .cq
            .poll()
            .expect("a CQE that libmlx5 reads")
            .expect("a new CQE");
        assert_eq!((told.id, told.status), (id, IBV_WC_SUCCESS));
        self.polled();
    }

    /// Writes the next CQE, with the owner bit of its lap.
    pub fn write_cqe(&self, mut bytes: [u8; 64]) {
        bytes[63] = (bytes[63] & !1) | owner_at(self.consumer, self.cq.entries);
        self.cq.ring.put(self.cq.slot(self.consumer), &bytes);
    }

    /// libmlx5 took one: its consumer index is in the record.
    pub fn polled(&mut self) {
        self.consumer += 1;
        assert_eq!(
            self.cq.record.get(DBR_CQ_CONSUMER, 4),
            cq_dbr_word(self.consumer).to_le_bytes(),
            "the consumer's record"
        );
    }

    /// Poisons the blocks that a post will write, one more, and the registers; posts; compares all that was written. `bytes` are
    /// the WQEs with our zeroes; `undefined` the bytes that libmlx5 may leave.
    fn post(
        &mut self,
        what: &str,
        wqes: &[(Vec<u8>, Vec<std::ops::Range<usize>>)],
        post: impl FnOnce(&Qp) -> i32,
        blue_flame: bool,
    ) -> Vec<Vec<u8>> {
        let blocks = |bytes: &[u8]| u64::from(wqebbs(bytes.len() as u32 / 16));
        let all: u64 = wqes.iter().map(|(bytes, _)| blocks(bytes)).sum();
        let slot = |index: u64| index as usize * 64 % self.qp.sq.len();
        let guard = (all as usize + 1) * 64;
        self.qp.sq.fill(slot(self.next), guard, POISON);
        let (register, buffers) = (self.qp.register, self.qp.blue_flame * 2);
        self.qp.registers.fill(register, buffers.max(8), POISON);
        let failed = post(&self.qp);
        assert_eq!(failed, 0, "{what} is refused at {:#x}", self.next);
        let mut index = self.next;
        let mut written = Vec::new();
        let mut last = 0;
        for (at, (ours, undefined)) in wqes.iter().enumerate() {
            let len = blocks(ours) as usize * 64;
            let theirs = self.qp.sq.get(slot(index), len);
            let mut expected = ours.clone();
            // What is undefined is what was there: nothing is hidden behind it.
            for range in undefined {
                expected[range.clone()].fill(POISON);
            }
            expected.resize(len, POISON);
            assert_eq!(
                theirs, expected,
                "WQE {at} of {what} at {index:#x}\n left: libmlx5's\nright: ours"
            );
            written.push(theirs[..ours.len()].to_vec());
            last = index;
            index += blocks(ours);
        }
        self.next = index;
        assert!(
            self.qp
                .sq
                .get(slot(index), 64)
                .iter()
                .all(|byte| *byte == POISON),
            "{what}: stores behind the WQEs"
        );
        assert_eq!(
            self.qp.record.get(DBR_SEND, 4),
            dbr_word(index).to_le_bytes(),
            "{what}: the record"
        );
        // One WQE of 2 to 16 segments goes into the BlueFlame buffer whole; else its first 8 bytes, in whichever buffer is next.
        let pushed = blue_flame && wqes.len() == 1 && (32..=256).contains(&wqes[0].0.len());
        let first = self.qp.sq.get(slot(last), 8);
        let rung = if pushed {
            self.qp.sq.get(slot(last), all as usize * 64)
        } else {
            first.clone()
        };
        let mut registers = vec![POISON; buffers.max(8)];
        registers[self.buffer..self.buffer + rung.len()].copy_from_slice(&rung);
        assert_eq!(
            self.qp.registers.get(register, buffers.max(8)),
            registers,
            "{what}: the registers"
        );
        self.buffer ^= self.qp.blue_flame;
        let doorbell = Doorbell::parse(first.try_into().expect("8 bytes")).expect("a doorbell");
        assert_eq!(doorbell.producer(), index as u16, "{what}: {doorbell:?}");
        written
    }
}

impl Deaf {
    /// What the device has built, in each of its modes, is this WQE, and libmlx5's record, and a doorbell that says the same.
    fn equals(&self, name: &str, wqe: &[u8], builds: Vec<Built>) {
        let record = self.qp.record.get(DBR_SEND, 4);
        let mut block = wqe.to_vec();
        block.resize(64.max(wqe.len()), POISON);
        for built in builds {
            assert_eq!(built.wqe, wqe, "{name}\n left: the device's");
            assert_eq!(built.record[..], record, "{name}: the record");
            let (rung, rest) = match built.pushed {
                true => (&block[..64], &[][..]),
                false => (&wqe[..8], &[POISON; 56][..]),
            };
            assert_eq!(
                built.register[..],
                [rung, rest].concat(),
                "{name}: the register"
            );
        }
    }
}

/// How libmlx5 is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    PostSend,
    Wr,
}

pub fn compare(tally: &mut Tally, rng: &mut Rng) {
    let device = Device::open();
    let mut deaf = Deaf::new(&device, false, false, Caps::default());
    assert!(deaf.qp.blue_flame > 0, "the page has BlueFlame buffers");
    let bench = Bench::new();
    for kind in Kind::ALL {
        for shape in Shape::ALL {
            if !shape.fits(kind) {
                continue;
            }
            for call in [Call::PostSend, Call::Wr] {
                let by = match call {
                    Call::PostSend => "ibv_post_send",
                    Call::Wr => "ibv_wr_*",
                };
                let name = format!("{}{}, by {by}", kind.name(), shape.name());
                while tally.wants(&name) {
                    sends(&mut deaf, tally, rng, &name, (kind, shape, call));
                }
            }
            let name = format!(
                "{}{}, by the device's native build",
                kind.name(),
                shape.name()
            );
            while tally.wants(&name) {
                if !natively(&mut deaf, tally, rng, &name, (kind, shape), &bench) {
                    // No other may lack its comparison unnoticed.
                    let lacks = kind == Kind::SendInvalidate
                        || (kind, shape) == (Kind::WriteImmediate, Shape::Gather);
                    assert!(lacks, "{name}: the device has no such operation");
                    break;
                }
            }
        }
    }
    deaf.qp.call_itself(deaf.qp.number);
    arms(&deaf, tally, rng);
    raw(&device, tally, rng);
}

/// Posts some requests at once.
fn sends(
    deaf: &mut Deaf,
    tally: &mut Tally,
    rng: &mut Rng,
    name: &str,
    (kind, shape, call): (Kind, Shape, Call),
) {
    let count = 1 + rng.below(4);
    let requests: Vec<Request> = (0..count)
        .map(|_| Request::random(rng, kind, shape))
        .collect();
    let qpn = number(rng) as u32 & 0xff_ffff;
    deaf.qp.call_itself(qpn);
    let mut index = deaf.next;
    let mut wqes = Vec::new();
    for request in &requests {
        let built = request.built(index, qpn);
        assert_eq!(
            built,
            request.emitted(index, qpn),
            "{name}: builders and structures"
        );
        compare_with_the_header(request, &built);
        let blocks = wqebbs(request.segments());
        wqes.push((built, request.undefined(call == Call::Wr)));
        index += u64::from(blocks);
    }
    let one = chance(rng);
    let written = deaf.post(
        name,
        &wqes,
        |qp| match call {
            Call::PostSend => qp.post_send(&requests),
            Call::Wr => qp.post_wr(&requests, one),
        },
        true,
    );
    let mut index = index
        - wqes
            .iter()
            .map(|(bytes, _)| u64::from(wqebbs(bytes.len() as u32 / 16)))
            .sum::<u64>();
    let mut last = 0;
    for (request, bytes) in requests.iter().zip(&written) {
        if let Err(why) = request.is_read_from(bytes, index, qpn) {
            panic!("{name}: {request:x?} is {why}\n{bytes:x?}");
        }
        last = index;
        index += u64::from(wqebbs(request.segments()));
        tally.add(name);
    }
    deaf.retire(last, requests.last().expect("a request").id);
}

fn compare_with_the_header(request: &Request, built: &[u8]) {
    let fields = Control::parse(built).expect("a control segment");
    assert_eq!(header_control(&fields), built[..16], "mlx5dv_set_ctrl_seg");
    if let (Payload::Pointers(pointers), false) = (&request.data, request.kind.is_atomic()) {
        let before = request.segments() as usize - pointers.len();
        for (at, pointer) in pointers.iter().enumerate() {
            let at = (before + at) * 16;
            assert_eq!(
                header_data(*pointer),
                built[at..at + 16],
                "mlx5dv_set_data_seg"
            );
        }
    }
}

/// One request by libmlx5 and by the device; false if the device has no such operation.
fn natively(
    deaf: &mut Deaf,
    tally: &mut Tally,
    rng: &mut Rng,
    name: &str,
    (kind, shape): (Kind, Shape),
    bench: &Bench,
) -> bool {
    let request = Request::random_plain(rng, kind, shape, &PIECES);
    let qpn = number(rng) as u32 & 0xff_ffff;
    let index = deaf.next;
    let builds = bench.build(&request, qpn, far(rng, index));
    if builds.is_empty() {
        return false;
    }
    deaf.qp.call_itself(qpn);
    let wqes = [(request.built(index, qpn), request.undefined(false))];
    let by = |qp: &Qp| qp.post_send(std::slice::from_ref(&request));
    deaf.post(name, &wqes, by, true);
    // Equal to libmlx5's in all that is defined, as `post` has shown of this.
    deaf.equals(name, &wqes[0].0, builds);
    deaf.retire(index, request.id);
    tally.add(name);
    true
}

/// An index whose low 16 bits, which are all that libmlx5 and the NIC see, are those of another.
fn far(rng: &mut Rng, index: u64) -> u64 {
    (rng.next_u64() >> 2 & !0xffff) | (index & 0xffff)
}

/// `ibv_req_notify_cq`
fn arms(deaf: &Deaf, tally: &mut Tally, rng: &mut Rng) {
    let name = "CQ arm, by ibv_req_notify_cq";
    while tally.wants(name) {
        let arm = CqArm {
            // Counts events that were got, of which there are none.
            sequence: 0,
            solicited: chance(rng),
            consumer: deaf.consumer as u32 & 0xff_ffff,
        };
        deaf.cq.record.fill(DBR_CQ_ARM, 4, POISON);
        deaf.cq.page.fill(REGISTER_CQ_ARM, 8, POISON);
        deaf.cq.arm(arm.solicited);
        assert_eq!(
            deaf.cq.record.get(DBR_CQ_ARM, 4),
            arm.word().to_le_bytes(),
            "{name}"
        );
        let doorbell = arm.doorbell(deaf.cq.number).to_le_bytes();
        assert_eq!(deaf.cq.page.get(REGISTER_CQ_ARM, 8), doorbell, "{name}");
        let parsed = CqArm::parse(doorbell);
        assert_eq!(parsed, (arm, deaf.cq.number));
        tally.add(name);
    }
}

/// WQEs that libmlx5 has no call for, through its door for WQEs as they are: it finds index, opcode and segment count where we
/// put them.
fn raw(device: &Device, tally: &mut Tally, rng: &mut Rng) {
    let mut deaf = Deaf::new(device, false, true, Caps::default());
    let bench = Bench::new();
    type Make = fn(&mut Rng) -> Own;
    fn aimed(rng: &mut Rng, bytes: u32) -> Aimed {
        let mask = !u64::from(bytes - 1);
        Aimed {
            remote: (number(rng) & mask, number(rng) as u32),
            local: Pointer {
                addr: number(rng) & mask,
                len: bytes,
                key: number(rng) as u32,
            },
        }
    }
    let makes: [(&str, Make); 7] = [
        ("NOP", |_| Own::Nop),
        ("DUMP", |rng| {
            Own::Dump(Pointer {
                addr: number(rng),
                len: 1 + rng.below(1 << 30),
                key: number(rng) as u32,
            })
        }),
        ("WAIT", |rng| Own::Wait {
            index: number(rng) as u32,
            cqn: number(rng) as u32 & 0xff_ffff,
        }),
        ("masked CAS of 4 bytes", |rng| {
            Own::CompareSwap4(aimed(rng, 4), [0; 4].map(|_| number(rng) as u32))
        }),
        ("masked CAS of 8 bytes", |rng| {
            Own::CompareSwap8(aimed(rng, 8), [0; 4].map(|_| number(rng)))
        }),
        ("masked FAA of 4 bytes", |rng| {
            Own::FetchAdd4(aimed(rng, 4), [0; 2].map(|_| number(rng) as u32))
        }),
        ("masked FAA of 8 bytes", |rng| {
            Own::FetchAdd8(aimed(rng, 8), [0; 2].map(|_| number(rng)))
        }),
    ];
    for (what, make) in makes {
        let name = format!("{what}, by mlx5dv_wr_raw_wqe");
        while tally.wants(&name) {
            let count = 1 + u64::from(rng.below(4));
            let id = rng.next_u64() >> 1;
            let mut index = deaf.next;
            let mut given = Vec::new();
            let mut wqes = Vec::new();
            for _ in 0..count {
                let own = make(rng);
                let qpn = number(rng) as u32 & 0xff_ffff;
                let (flags, immediate) = (rng.next_u64() as u8, number(rng) as u32);
                // With another index: libmlx5 puts its own.
                given.push(own.built(rng.next_u64(), qpn, flags, immediate));
                let wqe = own.built(index, qpn, flags, immediate);
                index += u64::from(wqebbs(wqe.len() as u32 / 16));
                wqes.push((wqe, Vec::new()));
            }
            deaf.post(&name, &wqes, |qp| qp.post_raw(id, &given), true);
            for _ in 0..count {
                tally.add(name.clone());
            }
            let last = wqes
                .last()
                .map_or(0, |(bytes, _)| wqebbs(bytes.len() as u32 / 16));
            deaf.retire(index - u64::from(last), id + count - 1);
        }
        let name = format!("{what}, by the device's native build");
        while tally.wants(&name) {
            let own = make(rng);
            let qpn = number(rng) as u32 & 0xff_ffff;
            let index = deaf.next;
            let builds = bench.build_own(&own, qpn, far(rng, index));
            assert!(!builds.is_empty());
            let wqes = [(own.built(index, qpn, SIGNALLED, 0), Vec::new())];
            // The device's own bytes, which libmlx5 takes as they are.
            let given = [builds[0].wqe.clone()];
            deaf.post(&name, &wqes, |qp| qp.post_raw(7, &given), true);
            deaf.equals(&name, &wqes[0].0, builds);
            deaf.retire(index, 7);
            tally.add(name.clone());
        }
    }
}
