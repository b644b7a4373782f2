//! Queue pairs with rings in host memory, built from the NIC driver alone, so that a trial can leave out any part of a post.
//!
//! Knows: mailboxes, WQEs, CQEs, doorbell records.
//! Must not know: what is tried.
//!
//! One of the files with `unsafe`: it registers memory with a NIC.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use warpverbs::HostMemory;
use warpverbs::driver::{
    Access, DriverError, GidEntry, GidKind, LinkLayer, MemoryRegion, MrInfo, Nic, NicHandle,
    PdInfo, UarInfo, UarKind, UmemInfo,
};
use warpverbs::wire::cqe::{CQE, Completion, FRESH};
use warpverbs::wire::doorbell::{DBR_SEND, dbr_word, doorbell};
use warpverbs::wire::prm::ads::Ads;
use warpverbs::wire::prm::cqc::Cqc;
use warpverbs::wire::prm::hca_cap::{RoceCaps, TimestampCap};
use warpverbs::wire::prm::qpc::{
    Mtu, OptParam, PathMigration, Qpc, RqType, ServiceType, TimestampFormat,
};
use warpverbs::wire::prm::{
    Command, create_cq, create_qp, init2rtr_qp, qp_2err, query_hca_cap, query_qp, rst2init_qp,
    rtr2rts_qp,
};
use warpverbs::wire::wqe::{
    Opcode, SIGNALLED, Segment, WQEBB, control, control_head, qpn_ds, segment_bytes,
};

use crate::failure::Failure;

/// Port that is tried.
const PORT: u8 = 1;
/// WQEBBs of a send queue.
pub(super) const DEPTH: u64 = 64;
/// CQEs of a ring: for each WQE and one more.
const CQ_DEPTH: u64 = 128;
/// Bytes of message memory.
pub(super) const DATA: usize = 8192;
/// Granularity of memory that is registered.
const PAGE: usize = 4096;
/// ACK timeout and retries: those that the published trials had.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;

type Result<T> = std::result::Result<T, Failure>;

/// Page-aligned memory that a NIC reads and writes.
struct Pages {
    memory: HostMemory,
    /// First byte in use.
    start: usize,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Self {
        let memory = HostMemory::zeroed(len + PAGE);
        let start = (memory.addr() as usize).next_multiple_of(PAGE) - memory.addr() as usize;
        Self { memory, start, len }
    }

    fn addr(&self) -> u64 {
        self.memory.addr() + self.start as u64
    }

    fn region(&self) -> MemoryRegion {
        MemoryRegion::Address {
            addr: self.addr(),
            len: self.len as u64,
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write(self.start + at, bytes)?)
    }

    fn read(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.memory.read(self.start + at, &mut bytes)?;
        Ok(bytes)
    }
}

/// An open NIC: what all queue pairs of a trial share.
pub(super) struct Device {
    nic: Arc<dyn Nic>,
    pd: PdInfo,
    uar: UarInfo,
    eqn: u32,
    path: Ads,
    log_max_message: u8,
    mtu: Mtu,
    timestamps: TimestampFormat,
    data: Pages,
    mr: MrInfo,
}

/// What a queue pair is to be.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) collapsed: bool,
    /// The peer may read.
    pub(super) readable: bool,
}

/// A queue pair.
pub(super) struct Queue<'a> {
    device: &'a Device,
    memory: Pages,
    umem: Option<UmemInfo>,
    cq: Option<NicHandle>,
    qp: Option<NicHandle>,
    shape: Shape,
    pub(super) qpn: u32,
    /// Next WQEBB to write.
    pub(super) next: u64,
}

/// Offsets in a queue pair's memory.
const CQ: usize = DEPTH as usize * WQEBB;
const RECORDS: usize = CQ + CQ_DEPTH as usize * CQE;
const QUEUE_BYTES: usize = RECORDS + PAGE;

impl Device {
    pub(super) fn open(nic: Arc<dyn Nic>) -> Result<Self> {
        let port = nic.query_port(PORT).map_err(|error| driver(&error))?;
        let pd = nic.alloc_pd().map_err(|error| driver(&error))?;
        let data = Pages::new(DATA);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // SAFETY: `Nic::reg_mr` demands that the memory stays allocated until it is deregistered, which `Device::close` does
        // while `data` lives, and that only atomics refer to its bytes: `HostMemory`'s are. If deregistering fails, the
        // memory is leaked there.
        let mr = unsafe { nic.reg_mr(pd.handle, data.region(), access) }
            .map_err(|error| driver(&error))?;
        let uar = nic
            .alloc_uar(UarKind::NonCachedDedicated)
            .or_else(|_| nic.alloc_uar(UarKind::NonCached))
            .map_err(|error| driver(&error))?;
        let eqn = nic.query_eqn(0).map_err(|error| driver(&error))?;
        let plain = Ads {
            vhca_port_num: PORT,
            ..Ads::default()
        };
        let path = match port.link_layer {
            LinkLayer::InfiniBand => Ads {
                rlid: port.lid,
                ..plain
            },
            LinkLayer::Ethernet => {
                let (index, entry) = roce_v2(&*nic, port.gids)?;
                let rmac = nic
                    .resolve_mac(pd.handle, PORT, index, entry.gid)
                    .map_err(|error| driver(&error))?;
                Ads {
                    rmac,
                    rgid_rip: entry.gid,
                    src_addr_index: index as u8,
                    hop_limit: 64,
                    udp_sport: 0xc000,
                    ..plain
                }
            }
        };
        let timestamps = match command(&*nic, &query_hca_cap::Query::<RoceCaps>::new()) {
            Ok(caps)
                if matches!(
                    caps.qp_ts_format,
                    TimestampCap::RealTime | TimestampCap::Both
                ) =>
            {
                TimestampFormat::DefaultFormat
            }
            _ => TimestampFormat::FreeRunning,
        };
        Ok(Self {
            pd,
            uar,
            eqn,
            path,
            log_max_message: port.log_max_message,
            mtu: Mtu::from_bytes(port.mtu).unwrap_or_default(),
            timestamps,
            data,
            mr,
            nic,
        })
    }

    /// A key for local and remote use of [`DATA`] bytes, and their address.
    pub(super) fn data(&self) -> (u32, u64) {
        (self.mr.lkey, self.data.addr())
    }

    /// Two queue pairs in RESET.
    pub(super) fn pair(&self, shape: Shape) -> Result<(Queue<'_>, Queue<'_>)> {
        Ok((Queue::create(self, shape)?, Queue::create(self, shape)?))
    }

    /// Undoes [`Device::open`].
    pub(super) fn close(self) -> Result<()> {
        let undone = self
            .nic
            .free_uar(self.uar.handle)
            .and_then(|()| self.nic.dereg_mr(self.mr.handle))
            .map_err(|error| driver(&error));
        if undone.is_err() {
            // The NIC may still write to it.
            std::mem::forget(self.data);
        }
        undone?;
        let done = self.nic.dealloc_pd(self.pd.handle);
        done.map_err(|error| driver(&error))
    }
}

impl<'a> Queue<'a> {
    fn create(device: &'a Device, shape: Shape) -> Result<Self> {
        let nic = &*device.nic;
        let memory = Pages::new(QUEUE_BYTES);
        memory.write(CQ, &vec![FRESH; CQ_DEPTH as usize * CQE])?;
        let mut queue = Self {
            device,
            memory,
            umem: None,
            cq: None,
            qp: None,
            shape,
            qpn: 0,
            next: 0,
        };
        // SAFETY: `Nic::reg_umem` demands what `Nic::reg_mr` does: `Queue::drop` deregisters while `memory` lives, or leaks it;
        // only atomics refer to its bytes.
        let umem = unsafe { nic.reg_umem(queue.memory.region(), Access::LOCAL_WRITE, PAGE as u64) }
            .map_err(|error| driver(&error))?;
        queue.umem = Some(umem);
        let cq = create_cq::In {
            cq_context: Cqc {
                cc: shape.collapsed,
                oi: true,
                log_cq_size: if shape.collapsed {
                    0
                } else {
                    CQ_DEPTH.ilog2() as u8
                },
                uar_page: device.uar.page_id,
                c_eqn: device.eqn,
                dbr_umem_valid: true,
                dbr_umem_id: umem.id,
                dbr_addr: RECORDS as u64 + 64,
                ..Cqc::default()
            },
            cq_umem_valid: true,
            cq_umem_id: umem.id,
            cq_umem_offset: CQ as u64,
        };
        let (handle, made) = create(nic, &cq)?;
        queue.cq = Some(handle);
        let qp = create_qp::In {
            qpc: Qpc {
                st: ServiceType::Rc,
                pm_state: PathMigration::Migrated,
                pd: device.pd.pdn,
                uar_page: device.uar.page_id,
                rq_type: RqType::ZeroSize,
                log_sq_size: DEPTH.ilog2() as u8,
                cqn_snd: made.cqn,
                cqn_rcv: made.cqn,
                ts_format: device.timestamps,
                dbr_umem_valid: true,
                dbr_umem_id: umem.id,
                dbr_addr: RECORDS as u64,
                ..Qpc::default()
            },
            wq_umem_valid: true,
            wq_umem_id: umem.id,
            ..create_qp::In::default()
        };
        let (handle, made) = create(nic, &qp)?;
        queue.qp = Some(handle);
        queue.qpn = made.qpn;
        Ok(queue)
    }

    /// To RTS, connected to `remote`.
    pub(super) fn connect(&self, remote: &Queue<'_>) -> Result<()> {
        let device = self.device;
        let rights = Qpc {
            pm_state: PathMigration::Migrated,
            rre: self.shape.readable,
            rwe: true,
            primary_address_path: Ads {
                vhca_port_num: PORT,
                ..Ads::default()
            },
            ..Qpc::default()
        };
        let qpn = self.qpn;
        self.modify(&rst2init_qp::In {
            qpn,
            qpc: rights,
            ..rst2init_qp::In::default()
        })?;
        self.modify(&init2rtr_qp::In {
            qpn,
            opt_param_mask: OptParam::RRE | OptParam::RWE,
            qpc: Qpc {
                mtu: device.mtu,
                log_msg_max: device.log_max_message,
                remote_qpn: remote.qpn,
                min_rnr_nak: 12,
                primary_address_path: device.path,
                ..rights
            },
            ..init2rtr_qp::In::default()
        })?;
        self.modify(&rtr2rts_qp::In {
            qpn,
            qpc: Qpc {
                retry_count: RETRIES,
                rnr_retry: RETRIES,
                primary_address_path: Ads {
                    ack_timeout: TIMEOUT,
                    ..device.path
                },
                pm_state: PathMigration::Migrated,
                ..Qpc::default()
            },
            ..rtr2rts_qp::In::default()
        })
    }

    /// To ERR.
    pub(super) fn fail(&self) -> Result<()> {
        self.modify(&qp_2err::In { qpn: self.qpn })
    }

    fn modify<C: Command>(&self, input: &C) -> Result<()> {
        let Some(qp) = self.qp else { return Ok(()) };
        let (input, mut output) = (input.encode().map_err(unreadable)?, C::reply());
        let modified = self.device.nic.modify(qp, input.as_ref(), output.as_mut());
        modified.map_err(|error| driver(&error))
    }

    /// The NIC's consumer and producer.
    pub(super) fn counters(&self) -> Result<(u16, u16)> {
        let input = query_qp::In {
            qpn: self.qpn,
            qpc_ext: false,
        };
        let (bytes, mut output) = (input.encode().map_err(unreadable)?, query_qp::In::reply());
        if let Some(qp) = self.qp {
            let asked = self.device.nic.query(qp, bytes.as_ref(), output.as_mut());
            asked.map_err(|error| driver(&error))?;
        }
        let out = query_qp::In::decode(output.as_ref()).map_err(unreadable)?;
        Ok((out.qpc.hw_sq_wqebb_counter, out.qpc.sw_sq_wqebb_counter))
    }

    /// Writes a signalled WQE of one WQEBB, and nothing else.
    pub(super) fn write(&mut self, opcode: Opcode, segments: &[Segment]) -> Result<()> {
        let ds = segments.len() as u32 + 1;
        let head = control_head(self.next, opcode, qpn_ds(self.qpn, ds));
        let mut wqe: Vec<u8> = segment_bytes(control(head, SIGNALLED, 0)).to_vec();
        wqe.extend(segments.iter().flat_map(|segment| segment_bytes(*segment)));
        wqe.resize(WQEBB, 0);
        self.memory
            .write((self.next % DEPTH) as usize * WQEBB, &wqe)?;
        self.next += 1;
        Ok(())
    }

    /// Writes a producer to the send doorbell record.
    pub(super) fn record(&self, producer: u64) -> Result<()> {
        fence(Ordering::SeqCst);
        let word = dbr_word(producer).to_le_bytes();
        self.memory.write(RECORDS + DBR_SEND, &word)
    }

    /// Rings for all that is written.
    pub(super) fn ring(&self) -> Result<()> {
        fence(Ordering::SeqCst);
        let value = doorbell(self.next, self.qpn).to_le_bytes();
        let rung = self.device.nic.ring_doorbell(self.device.uar.handle, value);
        rung.map_err(|error| driver(&error))
    }

    /// Completions so far: of a collapsed CQ the last alone.
    pub(super) fn completions(&self) -> Result<Vec<Completion>> {
        let entries = if self.shape.collapsed {
            1
        } else {
            CQ_DEPTH as usize
        };
        let mut found = Vec::new();
        for entry in 0..entries {
            let bytes = self.memory.read(CQ + entry * CQE, CQE)?;
            match Completion::parse(&bytes).map_err(unreadable)? {
                Completion::Pending => break,
                completion => found.push(completion),
            }
        }
        fence(Ordering::SeqCst);
        Ok(found)
    }

    /// Waits until `enough` says so, or for `within`; says how long it took.
    pub(super) fn wait(
        &self,
        within: Duration,
        enough: impl Fn(&[Completion]) -> bool,
    ) -> Result<Option<Duration>> {
        let begun = Instant::now();
        loop {
            if enough(&self.completions()?) {
                return Ok(Some(begun.elapsed()));
            }
            if begun.elapsed() > within {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_micros(5));
        }
    }
}

impl Drop for Queue<'_> {
    /// Undoes what was made. What is refused is left, and its memory with it: who looks for leaks finds it.
    fn drop(&mut self) {
        let nic = &*self.device.nic;
        let undone = self
            .qp
            .map_or(Ok(()), |qp| nic.destroy(qp))
            .and_then(|()| self.cq.map_or(Ok(()), |cq| nic.destroy(cq)))
            .and_then(|()| self.umem.map_or(Ok(()), |umem| nic.dereg_umem(umem.handle)));
        if undone.is_err() {
            std::mem::forget(self.memory.memory.clone());
        }
    }
}

/// The first GID of RoCE v2.
fn roce_v2(nic: &dyn Nic, gids: u32) -> Result<(u32, GidEntry)> {
    for index in 0..gids.min(256) {
        let entry = nic.query_gid(PORT, index).map_err(|error| driver(&error))?;
        if let Some(entry) = entry.filter(|entry| entry.kind == GidKind::RoceV2) {
            return Ok((index, entry));
        }
    }
    Err(Failure::Run("the port has no GID of RoCE v2".into()))
}

fn command<C: Command>(nic: &dyn Nic, input: &C) -> Result<C::Out> {
    let (bytes, mut output) = (input.encode().map_err(unreadable)?, C::reply());
    nic.command(bytes.as_ref(), output.as_mut())
        .map_err(|error| driver(&error))?;
    C::decode(output.as_ref()).map_err(unreadable)
}

fn create<C: Command>(nic: &dyn Nic, input: &C) -> Result<(NicHandle, C::Out)> {
    let (bytes, mut output) = (input.encode().map_err(unreadable)?, C::reply());
    let handle = nic
        .create(bytes.as_ref(), output.as_mut())
        .map_err(|error| driver(&error))?;
    Ok((handle, C::decode(output.as_ref()).map_err(unreadable)?))
}

fn driver(error: &DriverError) -> Failure {
    Failure::Run(error.to_string())
}

fn unreadable(error: impl std::fmt::Display) -> Failure {
    Failure::Run(error.to_string())
}
