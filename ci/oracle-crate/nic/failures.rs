//! Requests that fail, each for one reason: a planted fault, or what a NIC refuses.

use warpverbs_sim_bus::Rng;
use warpverbs_sim_nic::InjectedFault;
use warpverbs_wire::cqe::{Syndrome, vendor_syndrome};

use super::expected::Expected;
use super::{MOST, Rig, all_rights, plant};
use crate::cqes::syndrome;
use crate::ffi::*;
use crate::request::{Kind, Payload, Pointer, Request, Shape};
use crate::verbs::Peer;

/// Why a request fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// A fault is planted at the WQE: a syndrome, 0 any without name.
    Planted(u8),
    LocalKey,
    LocalLength,
    LocalOperation,
    RemoteKey,
    RemoteRight,
    LongerThanReceive,
    KeyOfReceive,
    KeyToInvalidate,
    NoPeer,
    NotReady,
    Command,
}

impl Rig {
    /// Some requests, of which one fails, and those behind it are flushed; at both ends.
    pub(super) fn fail(&mut self, rng: &mut Rng, cause: Cause) {
        let (peer, rights) = match cause {
            Cause::RemoteRight => (None, 0),
            Cause::NoPeer => (Some((1, 0)), all_rights()),
            // Never: what is posted stays.
            Cause::Command => (Some((0, 7)), all_rights()),
            _ => (None, all_rights()),
        };
        // A number that no QP has: those that are given out count up from small ones.
        let nobody = 0xff_0000 | rng.below(0x1_0000);
        self.connect(
            |to| match peer {
                Some((timeout, retries)) => Peer {
                    qpn: nobody,
                    timeout,
                    retries,
                    ..to
                },
                None if matches!(cause, Cause::NotReady) => Peer {
                    rnr_retries: 0,
                    ..to
                },
                None => to,
            },
            rights,
        );
        // Requests that need no receive, before and behind.
        let plain = [Kind::Write, Kind::Read, Kind::CompareSwap, Kind::FetchAdd];
        let others = |rig: &Self, rng: &mut Rng, most: u32| -> Vec<Request> {
            let count = rng.below(most);
            (0..count)
                .map(|_| {
                    let kind = plain[rng.below(4) as usize];
                    rig.request(rng, kind, Shape::One)
                })
                .collect()
        };
        let nothing_works = matches!(cause, Cause::RemoteRight | Cause::NoPeer | Cause::Command);
        let mut requests = if nothing_works {
            Vec::new()
        } else {
            others(self, rng, 4)
        };
        let at = requests.len();
        let kind = match cause {
            Cause::RemoteKey | Cause::RemoteRight => plain[rng.below(4) as usize],
            Cause::LongerThanReceive | Cause::KeyOfReceive => Kind::SendImmediate,
            Cause::KeyToInvalidate => Kind::SendInvalidate,
            Cause::NotReady => [Kind::Send, Kind::WriteImmediate][rng.below(2) as usize],
            _ => plain[rng.below(4) as usize],
        };
        let mut request = self.request(rng, kind, Shape::One);
        // Of an index beyond the NIC's keys: one that was deregistered would be a finding.
        let nobodys = 0xff00_0000 | rng.below(1 << 24);
        // What each end says of it.
        let here;
        let mut there = None;
        let mut opcode = kind.opcode().code();
        match cause {
            Cause::Planted(named) => {
                let (syndrome, vendor) = (syndrome(rng, named), rng.below(256) as u8);
                here = (syndrome, vendor);
            }
            Cause::LocalKey => {
                let Payload::Pointers(pointers) = &mut request.data else {
                    unreachable!()
                };
                pointers[0].key = nobodys;
                here = (0x04, 0x52);
            }
            Cause::LocalLength => {
                request.kind = Kind::Write;
                opcode = request.kind.opcode().code();
                let Payload::Pointers(pointers) = &mut request.data else {
                    unreachable!()
                };
                pointers[0].len = (1 << 30) + 1 + rng.below((1 << 30) - 1);
                here = (0x01, 0);
            }
            Cause::LocalOperation => {
                // User-mode memory registration, of which the NIC can do nothing.
                opcode = 0x25;
                here = (0x02, 0x68);
            }
            Cause::RemoteKey => {
                request.remote.1 = nobodys;
                here = (0x13, vendor_syndrome::REMOTE_ACCESS);
            }
            Cause::RemoteRight => here = (0x12, vendor_syndrome::REMOTE_INVALID_REQUEST),
            Cause::LongerThanReceive => {
                let Payload::Pointers(pointers) = &mut request.data else {
                    unreachable!()
                };
                pointers[0].len += 1;
                let room = pointers[0].len - 1;
                let receive = self.receive_of(rng, room);
                self.post_receive(rng, receive);
                here = (0x12, vendor_syndrome::REMOTE_INVALID_REQUEST);
                there = Some((Syndrome::LocalLength, 0));
            }
            Cause::KeyOfReceive => {
                let receive = self.receive_of(rng, MOST + 1);
                self.post_receive(
                    rng,
                    Pointer {
                        key: nobodys,
                        ..receive
                    },
                );
                here = (0x14, 0);
                there = Some((Syndrome::LocalProtection, 0x52));
            }
            Cause::KeyToInvalidate => {
                request.immediate = nobodys;
                let receive = self.receive_of(rng, MOST + 1);
                self.post_receive(rng, receive);
                here = (0x13, vendor_syndrome::REMOTE_ACCESS);
                there = Some((Syndrome::LocalProtection, 0x52));
            }
            Cause::NoPeer => here = (0x15, vendor_syndrome::RETRY_EXCEEDED),
            Cause::NotReady => here = (0x16, 0),
            Cause::Command => here = (0x05, vendor_syndrome::FLUSHED_HEAD),
        }
        let (syndrome, vendor) = here;
        requests.push(request);
        requests.extend(others(self, rng, 4));
        let index_of_failure = self.ends[0].next
            + requests[..at]
                .iter()
                .map(|request| u64::from(request.segments().div_ceil(4)))
                .sum::<u64>();
        let qpn = self.ends[0].qp.number;
        match cause {
            Cause::Planted(_) => plant(InjectedFault::Fail {
                qpn,
                index: index_of_failure,
                syndrome,
                vendor,
            }),
            Cause::LocalOperation => plant(InjectedFault::FlipWqeByte {
                qpn,
                index: index_of_failure,
                byte: 3,
                mask: kind.opcode().code() ^ opcode,
            }),
            _ => {}
        }
        // Receives that nobody uses.
        let spare = if matches!(cause, Cause::NotReady) {
            0
        } else {
            rng.below(3)
        };
        for _ in 0..spare {
            let receive = self.receive_of(rng, 64);
            self.post_receive(rng, receive);
        }
        let indices = self.post(rng, &requests);
        if matches!(cause, Cause::Command) {
            self.bring_to_error(0);
        }
        let mut expected = Vec::new();
        for (number, (request, index)) in requests.iter().zip(&indices).enumerate() {
            let end = &self.ends[0];
            match number.cmp(&at) {
                std::cmp::Ordering::Less if !request.signalled => {}
                std::cmp::Ordering::Less => expected.push(end.done(request, *index)),
                std::cmp::Ordering::Equal => {
                    expected.push(end.failed(request, *index, syndrome, vendor, opcode));
                }
                std::cmp::Ordering::Greater => {
                    let own = request.kind.opcode().code();
                    expected.push(end.failed(request, *index, 0x05, vendor_syndrome::FLUSHED, own));
                }
            }
        }
        self.expect(rng, 0, &expected);
        // Posted to a QP in error: flushed.
        let late = others(self, rng, 3);
        if !late.is_empty() {
            let indices = self.post(rng, &late);
            let flushed: Vec<Expected> = late
                .iter()
                .zip(indices)
                .map(|(request, index)| {
                    let own = request.kind.opcode().code();
                    self.ends[0].failed(request, index, 0x05, vendor_syndrome::FLUSHED, own)
                })
                .collect();
            self.expect(rng, 0, &flushed);
        }
        // The other end, which may be in error already.
        self.bring_to_error(1);
        let posted = std::mem::take(&mut self.ends[1].posted);
        let flushed: Vec<Expected> = posted
            .iter()
            .enumerate()
            .map(|(number, posted)| match (number, there) {
                (0, Some((syndrome, vendor))) => {
                    self.ends[1].failed_receive(*posted, syndrome, vendor)
                }
                _ => self.ends[1].flush_of_receive(*posted),
            })
            .collect();
        self.expect(rng, 1, &flushed);
        self.connected = false;
    }

    fn bring_to_error(&mut self, which: usize) {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_ERR,
            ..ibv_qp_attr::default()
        };
        self.ends[which]
            .qp
            .modify(attributes, IBV_QP_STATE)
            .expect("ERR");
    }
}
