//! Work that succeeds: each operation in each direction, at sizes around the packets' limits, over several QPs, with all
//! bytes compared.

use warpverbs_sim_nic::NicStats;
use warpverbs_wire::cqe::{Completion, Cqe, CqeOpcode};
use warpverbs_wire::wqe::{Opcode, SIGNALLED, compare_swap, fetch_add, segment_bytes};

use crate::ends::{Ends, GuestWr, MEMORY, Pair};
use crate::rig::{Piece, TestMr};

/// Who posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToRxe,
    FromRxe,
}

impl Direction {
    pub(crate) const BOTH: [Self; 2] = [Self::ToRxe, Self::FromRxe];
}

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    WriteImmediate,
    Read,
    Send,
    SendImmediate,
    CompareSwap,
    FetchAdd,
}

impl Operation {
    pub(crate) const ALL: [Self; 7] = [
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::Send,
        Self::SendImmediate,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    /// As a WQE names it, as `enum ibv_wr_opcode` does, and as `enum ibv_wc_opcode` does.
    pub(crate) fn names(self) -> (Opcode, u32, u32) {
        match self {
            Self::Write => (Opcode::RdmaWrite, 0, 1),
            Self::WriteImmediate => (Opcode::RdmaWriteImmediate, 1, 1),
            Self::Read => (Opcode::RdmaRead, 4, 2),
            Self::Send => (Opcode::Send, 2, 0),
            Self::SendImmediate => (Opcode::SendImmediate, 3, 0),
            Self::CompareSwap => (Opcode::AtomicCompareSwap, 5, 3),
            Self::FetchAdd => (Opcode::AtomicFetchAdd, 6, 4),
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImmediate)
    }

    fn has_immediate(self) -> bool {
        matches!(self, Self::WriteImmediate | Self::SendImmediate)
    }

    fn takes_receive(self) -> bool {
        self.is_send() || self.has_immediate()
    }
}

/// A line of the table.
pub(crate) struct Row {
    pub(crate) operation: Operation,
    pub(crate) direction: Direction,
    pub(crate) loss: &'static str,
    pub(crate) count: u64,
    /// Bytes that were compared.
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    /// Retransmissions that the requester began.
    pub(crate) again: u64,
}

impl Row {
    pub(crate) fn new(operation: Operation, direction: Direction, loss: &'static str) -> Self {
        Self {
            operation,
            direction,
            loss,
            count: 0,
            bytes: 0,
            lost: 0,
            again: 0,
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:<15} {:<8} loss {:<25} {:>4} operations {:>9} bytes compared {:>3} frames lost {:>3} retransmissions",
            format!("{:?}", self.operation),
            format!("{:?}", self.direction),
            self.loss,
            self.count,
            self.bytes,
            self.lost,
            self.again
        )
    }
}

const QPS: usize = 3;
/// Salts of what is moved and of what it replaces.
const SOURCE: u32 = 11;
const TARGET: u32 = 12;

/// One message.
struct Message {
    at: usize,
    len: u32,
    immediate: u32,
}

/// A batch of one operation over several QPs, checked.
pub(crate) fn run(
    ends: &mut Ends,
    operation: Operation,
    direction: Direction,
    mtu: u32,
    large: bool,
    row: &mut Row,
) {
    let mut pairs: Vec<Pair> = (0..QPS).map(|_| ends.pair(mtu, 7)).collect();
    let before = again(ends, direction);
    if operation.is_atomic() {
        atomics(ends, operation, direction, &mut pairs, row);
    } else {
        messages(ends, operation, direction, &mut pairs, mtu, large, row);
    }
    row.again += again(ends, direction) - before;
    let (out, back) = ends.wire.stats();
    row.lost += out.lost + back.lost;
    for pair in pairs {
        ends.part(pair);
    }
}

/// Retransmissions that requesters of a direction have begun.
fn again(ends: &mut Ends, direction: Direction) -> u64 {
    match direction {
        Direction::ToRxe => {
            let NicStats {
                repeats, timeouts, ..
            } = *ends.rig.nic().stats();
            repeats + timeouts
        }
        Direction::FromRxe => ends.vm.counter("completer_retry_err"),
    }
}

fn sizes(mtu: u32, large: bool) -> Vec<u32> {
    let mut sizes = vec![0, 1, 7, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, (1 << 16) + 1];
    if large {
        sizes.push(2 << 20);
    }
    sizes
}

fn messages(
    ends: &mut Ends,
    operation: Operation,
    direction: Direction,
    pairs: &mut [Pair],
    mtu: u32,
    large: bool,
    row: &mut Row,
) {
    // Unaligned, with room between.
    let mut end = 3;
    let mut list = vec![];
    for (n, size) in sizes(mtu, large).into_iter().enumerate() {
        for copy in 0..QPS {
            // One large message is enough.
            if size >= 1 << 20 && copy > 0 {
                continue;
            }
            list.push(Message {
                at: end,
                len: size,
                immediate: 0x8765_0000 | (n as u32) << 8 | copy as u32,
            });
            end += size as usize + 13 + copy;
        }
    }
    assert!(end <= MEMORY);
    let from_guest = (direction == Direction::FromRxe) != (operation == Operation::Read);
    let salts = |guest: bool| if guest == from_guest { SOURCE } else { TARGET };
    ends.fill(end, salts(false));
    ends.guest_fill(end, salts(true));
    post(ends, operation, direction, pairs, &list);
    complete(ends, operation, direction, pairs, &list);
    // All of both memories: what was moved, what lies between, and the source.
    let mut gap = 0;
    for message in &list {
        let Message { at, len, .. } = *message;
        for (at, len, salt) in [(gap, at - gap, TARGET), (at, len as usize, SOURCE)] {
            if from_guest {
                ends.check(at, len, salt, at);
            } else {
                ends.guest_check(at, len, salt, at);
            }
        }
        gap = at + len as usize;
        row.bytes += u64::from(len);
    }
    if from_guest {
        ends.guest_check(0, end, SOURCE, 0);
    } else {
        ends.check(0, end, SOURCE, 0);
    }
    row.count += list.len() as u64;
}

/// Local memory of the NIC in up to two pieces, so that they are gathered and spread.
fn pieces(mr: TestMr, at: usize, len: u32) -> Vec<Piece> {
    let first = len / 3;
    [(0, first), (first, len - first)]
        .into_iter()
        .filter(|(_, len)| *len > 0)
        .map(|(from, len)| mr.piece(at as u64 + u64::from(from), len))
        .collect()
}

fn post(
    ends: &mut Ends,
    operation: Operation,
    direction: Direction,
    pairs: &mut [Pair],
    list: &[Message],
) {
    let (opcode, wr_opcode, _) = operation.names();
    // Receives first: what happens without them is another test.
    for (n, message) in list
        .iter()
        .enumerate()
        .filter(|_| operation.takes_receive())
    {
        let len = if operation.is_send() { message.len } else { 0 };
        let pair = &mut pairs[n % QPS];
        match direction {
            Direction::ToRxe => ends.guest_receive(pair, n as u64, message.at, len),
            Direction::FromRxe => pair.rq.post(&ends.rig, &pieces(ends.mr, message.at, len)),
        }
    }
    for (n, message) in list.iter().enumerate() {
        let Message { at, len, immediate } = *message;
        let pair = &mut pairs[n % QPS];
        match direction {
            Direction::ToRxe => {
                let mut segments = vec![];
                if !operation.is_send() {
                    segments.extend(remote(ends, at));
                }
                for piece in pieces(ends.mr, at, len) {
                    segments.extend(piece.local());
                }
                let change = |control: &mut warpverbs_wire::wqe::Control| {
                    if operation.has_immediate() {
                        control.immediate = immediate;
                    }
                };
                pair.qp.post_with(&ends.rig, change, opcode, &segments);
            }
            Direction::FromRxe => {
                let wr = GuestWr {
                    opcode: wr_opcode,
                    local: (ends.guest_mr.addr + at as u64, len),
                    remote: (ends.mr.iova.wrapping_add(at as u64), ends.mr.keys.rkey),
                    immediate,
                    ..GuestWr::default()
                };
                ends.guest_send(pair, n as u64, wr);
            }
        }
    }
    if direction == Direction::ToRxe {
        for pair in pairs {
            pair.qp.ring(&ends.rig);
        }
    }
}

/// A remote address segment of the guest's memory.
pub(crate) fn remote(ends: &Ends, at: usize) -> Vec<u8> {
    Piece {
        key: ends.guest_mr.rkey,
        iova: ends.guest_mr.addr + at as u64,
        len: 0,
    }
    .remote()
}

/// Every completion of both ends: there, successful, in order on each QP, with its length and immediate.
fn complete(
    ends: &mut Ends,
    operation: Operation,
    direction: Direction,
    pairs: &[Pair],
    list: &[Message],
) {
    let received = if operation.takes_receive() {
        list.len()
    } else {
        0
    };
    let (nic, guest) = match direction {
        Direction::ToRxe => (list.len(), received),
        Direction::FromRxe => (received, list.len()),
    };
    let cqes: Vec<Cqe> = ends
        .poll(nic)
        .into_iter()
        .map(|completion| match completion {
            Completion::Done(cqe) => cqe,
            other => panic!("{operation:?} {direction:?}: {other}"),
        })
        .collect();
    let wcs = ends.vm.poll(guest);
    let (_, _, wc_opcode) = operation.names();
    for (q, pair) in pairs.iter().enumerate() {
        let expected = list.iter().enumerate().skip(q).step_by(QPS);
        let mut seen = cqes.iter().filter(|cqe| cqe.qpn == pair.qp.qpn);
        let mut last = 0;
        for (n, (_, message)) in expected.clone().enumerate().take_while(|_| nic > 0) {
            let cqe = seen.next().expect("a CQE of this QP");
            match direction {
                Direction::ToRxe => {
                    assert_eq!(cqe.opcode, CqeOpcode::Requester);
                    assert!(n == 0 || cqe.wqe_counter > last, "in order");
                    last = cqe.wqe_counter;
                }
                Direction::FromRxe => {
                    let opcode = match operation {
                        Operation::Send => CqeOpcode::ResponderSend,
                        Operation::SendImmediate => CqeOpcode::ResponderSendImmediate,
                        _ => CqeOpcode::ResponderWriteImmediate,
                    };
                    let immediate = if operation.has_immediate() {
                        message.immediate
                    } else {
                        0
                    };
                    assert_eq!(
                        (cqe.opcode, cqe.byte_count, cqe.immediate, cqe.wqe_counter),
                        (opcode, message.len, immediate, n as u16)
                    );
                }
            }
        }
        let mut seen = wcs.iter().filter(|wc| wc.qpn == pair.guest);
        for (n, message) in expected.take_while(|_| guest > 0) {
            let wc = seen.next().expect("a completion of this QP");
            assert_eq!((wc.status, wc.id), (0, n as u64), "{operation:?}: {wc:?}");
            match direction {
                Direction::FromRxe => assert_eq!(wc.opcode, wc_opcode),
                Direction::ToRxe => {
                    // IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM
                    let opcode = if operation.is_send() { 128 } else { 129 };
                    let immediate = if operation.has_immediate() {
                        message.immediate
                    } else {
                        0
                    };
                    assert_eq!(
                        (wc.opcode, wc.bytes, wc.immediate),
                        (opcode, message.len, immediate)
                    );
                }
            }
        }
    }
}

/// Atomics of all QPs on one word: each happens exactly once, so the originals are those of some order.
fn atomics(
    ends: &mut Ends,
    operation: Operation,
    direction: Direction,
    pairs: &mut [Pair],
    row: &mut Row,
) {
    const EACH: u64 = 20;
    const ADD: u64 = 0x1_0000_0001;
    const BEGIN: u64 = 0xffff_ffff_0000_0000;
    const WORD: usize = 64;
    const RESULTS: usize = 4096;
    let count = EACH * QPS as u64;
    ends.guest_fill(8192, TARGET);
    ends.fill(8192, TARGET);
    match direction {
        Direction::ToRxe => {
            let number = ends.guest_mr.number;
            ends.vm.ask(&format!("set {number} {WORD} {BEGIN}"));
        }
        Direction::FromRxe => ends
            .rig
            .write(ends.mr.addr + WORD as u64, &BEGIN.to_le_bytes()),
    }
    // Compare and swap: of the first QP a chain that all fits, of the others what fits nothing.
    let operands = |q: usize, n: u64| match operation {
        Operation::FetchAdd => (ADD, 0),
        _ if q == 0 => (BEGIN + n, BEGIN + n + 1),
        _ => (7, 0xdead),
    };
    let (opcode, wr_opcode, wc_opcode) = operation.names();
    for n in 0..EACH {
        for (q, pair) in pairs.iter_mut().enumerate() {
            let (a, b) = operands(q, n);
            let id = n * QPS as u64 + q as u64;
            let result = RESULTS + 8 * id as usize;
            match direction {
                Direction::ToRxe => {
                    let operands = match operation {
                        Operation::FetchAdd => fetch_add(a),
                        _ => compare_swap(b, a),
                    };
                    let segments = [
                        remote(ends, WORD),
                        segment_bytes(operands).to_vec(),
                        ends.mr.piece(result as u64, 8).local(),
                    ]
                    .concat();
                    pair.qp.post(&ends.rig, opcode, SIGNALLED, &segments);
                }
                Direction::FromRxe => {
                    let wr = GuestWr {
                        opcode: wr_opcode,
                        local: (ends.guest_mr.addr + result as u64, 8),
                        remote: (ends.mr.iova.wrapping_add(WORD as u64), ends.mr.keys.rkey),
                        operands: (a, b),
                        ..GuestWr::default()
                    };
                    ends.guest_send(pair, id, wr);
                }
            }
        }
    }
    let number = ends.guest_mr.number;
    let mut originals = vec![];
    let value;
    match direction {
        Direction::ToRxe => {
            for pair in pairs.iter() {
                pair.qp.ring(&ends.rig);
            }
            for completion in ends.poll(count as usize) {
                assert!(matches!(completion, Completion::Done(_)), "{completion}");
            }
            let [word] = ends.vm.numbers(&format!("word {number} {WORD}"));
            value = word;
            ends.guest_check(WORD + 8, 4096, TARGET, WORD + 8);
            for bytes in ends
                .rig
                .read(ends.mr.addr + RESULTS as u64, 8 * count as usize)
                .chunks_exact(8)
            {
                originals.push(u64::from_le_bytes(bytes.try_into().unwrap()));
            }
        }
        Direction::FromRxe => {
            for wc in ends.vm.poll(count as usize) {
                assert_eq!((wc.status, wc.opcode), (0, wc_opcode), "{wc:?}");
            }
            let bytes = ends.rig.read(ends.mr.addr + WORD as u64, 8);
            value = u64::from_le_bytes(bytes.try_into().unwrap());
            ends.check(WORD + 8, 4096, TARGET, WORD + 8);
            for n in 0..count {
                let at = RESULTS + 8 * n as usize;
                let [word] = ends.vm.numbers(&format!("word {number} {at}"));
                originals.push(word);
            }
        }
    }
    match operation {
        Operation::FetchAdd => {
            originals.sort_unstable_by_key(|value| value.wrapping_sub(BEGIN));
            let expected: Vec<u64> = (0..count)
                .map(|n| BEGIN.wrapping_add(n.wrapping_mul(ADD)))
                .collect();
            assert_eq!(originals, expected, "each exactly once");
            assert_eq!(value, BEGIN.wrapping_add(count.wrapping_mul(ADD)));
        }
        _ => {
            let chain: Vec<u64> = originals.iter().copied().step_by(QPS).collect();
            let expected: Vec<u64> = (BEGIN..BEGIN + EACH).collect();
            assert_eq!(chain, expected, "each exactly once, in order");
            assert_eq!(value, BEGIN + EACH);
            let within = BEGIN..=BEGIN + EACH;
            assert!(originals.iter().all(|value| within.contains(value)));
        }
    }
    row.count += count;
    row.bytes += 8 * (count + 1);
}
