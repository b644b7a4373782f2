//! CQEs with contents by chance in every field, as `wire` emits them: libmlx5, `wire`'s reader and the device's read the same.
//!
//! What the simulated NIC writes is in `nic.rs`; here is also what no NIC of ours writes, such as inline data.

use std::ops::Range;

use warpverbs_sim_bus::Rng;
use warpverbs_wire::cqe::{
    Completion, Cqe, CqeOpcode, ErrorCqe, ErrorWord, Syndrome, Tail, inline_scatter, is_new,
};
use warpverbs_wire::wqe::Opcode;

use crate::Tally;
use crate::device::Bench;
use crate::ffi::*;
use crate::memory::Memory;
use crate::request::{Kind, Payload, Pointer, Request, Shape, chance, number};
use crate::verbs::{Caps, Device, Told, header_cqe};
use crate::wqes::Deaf;

/// What libmlx5 says for a syndrome (IBA 11.6).
pub fn status(syndrome: u8) -> u32 {
    match Syndrome::from_code(syndrome) {
        Syndrome::LocalLength => IBV_WC_LOC_LEN_ERR,
        Syndrome::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
        Syndrome::LocalProtection => IBV_WC_LOC_PROT_ERR,
        Syndrome::Flushed => IBV_WC_WR_FLUSH_ERR,
        Syndrome::MemoryWindowBind => IBV_WC_MW_BIND_ERR,
        Syndrome::BadResponse => IBV_WC_BAD_RESP_ERR,
        Syndrome::LocalAccess => IBV_WC_LOC_ACCESS_ERR,
        Syndrome::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        Syndrome::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        Syndrome::RemoteOperation => IBV_WC_REM_OP_ERR,
        Syndrome::TransportRetryExceeded => IBV_WC_RETRY_EXC_ERR,
        Syndrome::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        Syndrome::RemoteAborted => IBV_WC_REM_ABORT_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

/// What a completion of a send says of its opcode.
pub fn opcode_of(kind: Kind) -> u32 {
    match kind {
        Kind::Write | Kind::WriteImmediate => IBV_WC_RDMA_WRITE,
        Kind::Read => IBV_WC_RDMA_READ,
        Kind::Send | Kind::SendImmediate | Kind::SendInvalidate => IBV_WC_SEND,
        Kind::CompareSwap => IBV_WC_COMP_SWAP,
        Kind::FetchAdd => IBV_WC_FETCH_ADD,
    }
}

/// Opcode and flags of a completion of a receive.
pub fn received(opcode: CqeOpcode) -> (u32, u32) {
    match opcode {
        CqeOpcode::ResponderWriteImmediate => (IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM),
        CqeOpcode::ResponderSendImmediate => (IBV_WC_RECV, IBV_WC_WITH_IMM),
        CqeOpcode::ResponderSendInvalidate => (IBV_WC_RECV, IBV_WC_WITH_INV),
        _ => (IBV_WC_RECV, 0),
    }
}

pub const RECEIVES: [CqeOpcode; 4] = [
    CqeOpcode::ResponderSend,
    CqeOpcode::ResponderSendImmediate,
    CqeOpcode::ResponderSendInvalidate,
    CqeOpcode::ResponderWriteImmediate,
];

/// Named syndromes, and 0 for any that has no name.
pub const SYNDROMES: [u8; 14] = [
    0, 0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22,
];

/// A syndrome, or one without name.
pub fn syndrome(rng: &mut Rng, named: u8) -> u8 {
    loop {
        let code = if named == 0 {
            rng.next_u64() as u8
        } else {
            named
        };
        if named != 0 || !SYNDROMES[1..].contains(&code) {
            return code;
        }
    }
}

/// Two QPs, of which one is polled by `ibv_poll_cq`, one by `ibv_start_poll`; both write their inline data here.
struct Rig {
    deaf: [Deaf; 2],
    buffer: Memory,
    bench: Bench,
    heads: [u64; 2],
}

/// Bytes of the buffer.
const BUFFER: usize = 64;

pub fn compare(tally: &mut Tally, rng: &mut Rng) {
    let device = Device::open();
    let mut rig = Rig {
        deaf: [false, true].map(|extended| Deaf::new(&device, extended, false, Caps::default())),
        buffer: Memory::leak(BUFFER),
        bench: Bench::new(),
        heads: [0; 2],
    };
    for which in 0..2 {
        let by = ["ibv_poll_cq", "ibv_start_poll"][which];
        for kind in Kind::ALL {
            let name = format!("requester, {}, by {by}", kind.name());
            while tally.wants(&name) {
                rig.send(rng, which, kind, false);
                tally.add(&name);
            }
        }
        for kind in [Kind::Read, Kind::CompareSwap, Kind::FetchAdd] {
            let name = format!("requester, {} with inline data, by {by}", kind.name());
            while tally.wants(&name) {
                rig.send(rng, which, kind, true);
                tally.add(&name);
            }
        }
        for opcode in RECEIVES {
            for inline in [false, true] {
                let data = if inline { " with inline data" } else { "" };
                let name = format!("{opcode:?}{data}, by {by}");
                while tally.wants(&name) {
                    rig.receive(rng, which, opcode, inline);
                    tally.add(&name);
                }
            }
        }
        for named in SYNDROMES {
            let what = match named {
                0 => "an unnamed syndrome".to_owned(),
                code => format!("{:?}", Syndrome::from_code(code)),
            };
            for requester in [true, false] {
                let side = if requester { "requester" } else { "responder" };
                let name = format!("{side}'s error, {what}, by {by}");
                while tally.wants(&name) {
                    rig.error(rng, which, named, requester);
                    tally.add(&name);
                }
            }
        }
    }
}

/// Sets all bytes that no field of `wire`'s has by chance: whoever takes one of them for such a field reads something else than we
/// do. But for `app` (byte 40), which says whether tags were matched.
fn noise(rng: &mut Rng, bytes: &mut [u8; 64], fields: &[Range<usize>]) {
    let mut random = [0; 64];
    rng.fill(&mut random);
    for (at, byte) in bytes.iter_mut().enumerate() {
        let field = fields.iter().any(|range| range.contains(&at));
        if !field && at != 40 {
            *byte = random[at];
        }
    }
}

impl Rig {
    fn pointer(&self) -> Pointer {
        Pointer {
            addr: self.buffer.addr(),
            len: BUFFER as u32,
            key: 1,
        }
    }

    /// What both readers say of the next CQE; it is libmlx5's turn.
    fn told(&mut self, which: usize, bytes: [u8; 64]) -> (Vec<u8>, Told) {
        let deaf = &mut self.deaf[which];
        deaf.write_cqe(bytes);
        let at = deaf.consumer;
        let ring = deaf.cq.cqe(at);
        assert!(is_new(ring[63], at, deaf.cq.entries));
        assert!(!is_new(
            ring[63],
            at + u64::from(deaf.cq.entries),
            deaf.cq.entries
        ));
        let completion = Cqe::parse(&ring).expect("64 bytes");
        let header = header_cqe(&ring);
        let ours = (
            completion.opcode.code(),
            completion.format,
            u8::from(completion.solicited),
            completion.owner,
        );
        assert_eq!(header, ours, "opcode, format, solicited event, owner");
        let told = deaf.cq.poll().expect("it reads it").expect("it is new");
        deaf.polled();
        (ring, told)
    }

    /// Posts a request, and completes it with success.
    fn send(&mut self, rng: &mut Rng, which: usize, kind: Kind, inline: bool) {
        let mut request = Request::random(rng, kind, Shape::One);
        request.data = Payload::Pointers(vec![self.pointer()]);
        let deaf = &mut self.deaf[which];
        let index = deaf.next;
        assert_eq!(deaf.qp.post_send(std::slice::from_ref(&request)), 0);
        deaf.next += u64::from(request.segments().div_ceil(4));
        let len = if kind.is_atomic() { 8 } else { rng.below(33) };
        let any = number(rng) as u32;
        let cqe = Cqe {
            srqn_uidx: deaf.qp.user_index | (rng.below(256) << 24),
            immediate: any,
            byte_count: if inline { len } else { number(rng) as u32 },
            timestamp: number(rng),
            send_opcode: kind.opcode().code(),
            qpn: number(rng) as u32 & 0xff_ffff,
            wqe_counter: index as u16,
            signature: rng.below(256) as u8,
            opcode: CqeOpcode::Requester,
            format: u8::from(inline),
            solicited: chance(rng),
            ..Cqe::default()
        };
        let mut bytes = cqe.emit();
        noise(rng, &mut bytes, &[32..40, 44..64]);
        self.buffer.fill(0, BUFFER, 0);
        let (ring, told) = self.told(which, bytes);
        let has_length = kind == Kind::Read || kind.is_atomic();
        // Of atomics `ibv_poll_cq` says 8 whatever the field says.
        let said = if kind.is_atomic() && which == 0 {
            8
        } else {
            cqe.byte_count
        };
        let expected = Told {
            id: request.id,
            status: IBV_WC_SUCCESS,
            qpn: cqe.qpn,
            opcode: opcode_of(kind),
            bytes: if has_length { said } else { 0 },
            timestamp: if which == 1 { cqe.timestamp } else { 0 },
            ..Told::default()
        };
        assert_eq!(told, expected, "{bytes:x?}");
        let Ok(Completion::Done(read)) = Completion::parse(&ring) else {
            panic!("read as {:?}", Completion::parse(&ring));
        };
        assert_eq!(
            Cqe {
                flags_rqpn: 0,
                owner: 0,
                ..read
            },
            Cqe {
                flags_rqpn: 0,
                ..cqe
            }
        );
        assert_eq!(read.user_index(), self.deaf[which].qp.user_index);
        self.scattered(&ring, inline);
        let consumer = self.deaf[which].consumer - 1;
        // The device never asks for inline data, and takes what opcode a success has as it comes.
        assert_eq!(
            self.bench.read(&ring, consumer, cqe.qpn, index),
            None,
            "the device's reader"
        );
    }

    /// Inline data is where both look.
    fn scattered(&self, ring: &[u8], inline: bool) {
        let ours = inline_scatter(ring);
        assert_eq!(ours.is_some(), inline);
        if let Some(data) = ours {
            assert_eq!(self.buffer.get(0, data.len()), data, "inline data");
            let behind = BUFFER - data.len();
            assert_eq!(self.buffer.get(data.len(), behind), vec![0; behind]);
        } else {
            assert_eq!(self.buffer.get(0, BUFFER), [0; BUFFER]);
        }
    }

    fn receive(&mut self, rng: &mut Rng, which: usize, opcode: CqeOpcode, inline: bool) {
        let id = rng.next_u64();
        let pointers = vec![self.pointer()];
        let deaf = &mut self.deaf[which];
        deaf.qp.post_receives(&[(id, pointers)]);
        let counter = self.heads[which];
        self.heads[which] += 1;
        let cqe = Cqe {
            flags_rqpn: number(rng) as u32,
            srqn_uidx: deaf.qp.user_index,
            immediate: number(rng) as u32,
            byte_count: if inline {
                rng.below(33)
            } else {
                number(rng) as u32
            },
            timestamp: number(rng),
            send_opcode: rng.below(256) as u8,
            qpn: number(rng) as u32 & 0xff_ffff,
            wqe_counter: counter as u16,
            signature: rng.below(256) as u8,
            opcode,
            format: u8::from(inline),
            solicited: chance(rng),
            ..Cqe::default()
        };
        let mut bytes = cqe.emit();
        let mut fields = vec![24..28, 32..40, 44..64];
        if inline {
            fields[0] = 32..33;
        }
        noise(rng, &mut bytes, &fields);
        self.buffer.fill(0, BUFFER, 0);
        let (ring, told) = self.told(which, bytes);
        let (said, flags) = received(opcode);
        let read = Cqe::parse(&ring).expect("64 bytes");
        let grh = if read.flags_rqpn >> 28 & 3 != 0 {
            IBV_WC_GRH
        } else {
            0
        };
        let expected = Told {
            id,
            status: IBV_WC_SUCCESS,
            qpn: cqe.qpn,
            opcode: said,
            flags: flags | grh,
            bytes: cqe.byte_count,
            immediate: if flags != 0 { cqe.immediate } else { 0 },
            src_qp: read.flags_rqpn & 0xff_ffff,
            sl: (read.flags_rqpn >> 24 & 0xf) as u8,
            slid: u16::from_be_bytes([ring[22], ring[23]]).into(),
            path_bits: ring[17] & 0x7f,
            pkey_index: if which == 0 { cqe.immediate as u16 } else { 0 },
            timestamp: if which == 1 { cqe.timestamp } else { 0 },
            ..Told::default()
        };
        assert_eq!(told, expected, "{bytes:x?}");
        let of = |cqe: Cqe| Cqe {
            flags_rqpn: if inline { 0 } else { cqe.flags_rqpn },
            owner: 0,
            ..cqe
        };
        assert_eq!(of(read), of(cqe));
        self.scattered(&ring, inline);
    }

    fn error(&mut self, rng: &mut Rng, which: usize, named: u8, requester: bool) {
        let kind = Kind::ALL[rng.below(8) as usize];
        let request = Request::random(rng, kind, Shape::One);
        let deaf = &mut self.deaf[which];
        let index = deaf.next;
        let mut counter = index;
        let id = if requester {
            assert_eq!(deaf.qp.post_send(std::slice::from_ref(&request)), 0);
            deaf.next += u64::from(request.segments().div_ceil(4));
            request.id
        } else {
            deaf.qp.post_receives(&[(
                request.id,
                vec![Pointer {
                    addr: 0,
                    len: 1,
                    key: 0,
                }],
            )]);
            counter = self.heads[which];
            self.heads[which] += 1;
            request.id
        };
        let cqe = ErrorCqe {
            srqn_uidx: deaf.qp.user_index,
            hw_error_syndrome: rng.below(256) as u8,
            hw_syndrome_type: rng.below(256) as u8,
            vendor_syndrome: rng.below(256) as u8,
            syndrome: Syndrome::from_code(syndrome(rng, named)),
            wqe_opcode: kind.opcode().code(),
            qpn: number(rng) as u32 & 0xff_ffff,
            wqe_counter: counter as u16,
            signature: rng.below(256) as u8,
            opcode: if requester {
                CqeOpcode::RequesterError
            } else {
                CqeOpcode::ResponderError
            },
            format: rng.below(3) as u8,
            solicited: chance(rng),
            ..ErrorCqe::default()
        };
        let mut bytes = cqe.emit();
        noise(rng, &mut bytes, &[32..36, 52..64]);
        let (ring, told) = self.told(which, bytes);
        let expected = Told {
            id,
            status: status(cqe.syndrome.code()),
            vendor: cqe.vendor_syndrome.into(),
            qpn: cqe.qpn,
            ..Told::default()
        };
        assert_eq!(told, expected, "{bytes:x?}");
        assert_eq!(
            Completion::parse(&ring).map(|read| match read {
                Completion::Failed(read) => Some(ErrorCqe { owner: 0, ..read }),
                _ => None,
            }),
            Ok(Some(cqe))
        );
        let word = |at: usize| u64::from_le_bytes(ring[at..at + 8].try_into().expect("8 bytes"));
        let (tail, error) = (Tail(word(Tail::OFFSET)), ErrorWord(word(ErrorWord::OFFSET)));
        assert_eq!(
            (
                tail.opcode(),
                tail.wqe_counter(),
                tail.qpn(),
                tail.wqe_opcode()
            ),
            (cqe.opcode, cqe.wqe_counter, cqe.qpn, cqe.wqe_opcode)
        );
        assert_eq!(
            (error.syndrome(), error.vendor_syndrome()),
            (cqe.syndrome.code(), cqe.vendor_syndrome)
        );
        if requester {
            let consumer = self.deaf[which].consumer - 1;
            let state = self
                .bench
                .read(&ring, consumer, cqe.qpn, index)
                .expect("a fault");
            assert_eq!(
                (
                    state.syndrome(),
                    state.vendor_syndrome(),
                    state.opcode(),
                    state.index()
                ),
                (
                    cqe.syndrome.code(),
                    cqe.vendor_syndrome,
                    cqe.opcode.code(),
                    index as u32
                ),
                "the device's reader"
            );
        }
        let _ = Opcode::Nop;
    }
}
