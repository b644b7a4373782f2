//! Queues that verbs make: CQs, QPs and shared receive queues in memory that libmlx5 has allocated.
//!
//! Knows: the commands that the kernel's driver makes of what libmlx5 passes (Linux mlx5_ib cq.c, qp.c, srq.c, srq_cmd.c).
//! Must not know: transitions.

use warpverbs_wire::prm::cqc::Cqc;
use warpverbs_wire::prm::qpc::{PathMigration, Qpc, RqType, ServiceType, TimestampFormat};
use warpverbs_wire::prm::rmpc::{RmpState, Rmpc, Wq, WqType};
use warpverbs_wire::prm::{create_cq, create_qp, create_rmp};

use crate::abi::mlx5::{
    self, CreateCq, CreateCqResp, CreateQp, CreateQpResp, CreateSrq, CreateSrqResp,
};
use crate::abi::verbs::{self, DestroyCqResp, DestroyQpResp, DestroySrqResp, QpCap};
use crate::context::{Class, Cq, Object, Qp, QueueMemory, Srq};
use crate::dispatch::Call;
use crate::errno::{Errno, Result};
use crate::events::{Carries, Owner, Queue};

/// Bytes of a doorbell record.
const RECORD: u64 = 8;
/// Bytes of a WQEBB and of a CQE.
const BLOCK: u64 = 64;

/// log2 of a count that must be a power of two.
fn log(count: u32) -> Result<u8> {
    if count.is_power_of_two() {
        Ok(count.trailing_zeros() as u8)
    } else {
        Err(Errno::INVAL)
    }
}

impl Call<'_> {
    /// The channel of that kind behind a descriptor.
    fn channel(&self, id: u16, carries: Carries) -> Result<Option<i32>> {
        let Some(fd) = self.request.fd(id) else {
            return Ok(None);
        };
        match self.state.channels.get(&fd) {
            Some(channel) if channel.carries == carries => Ok(Some(fd)),
            _ => Err(Errno::BADF),
        }
    }

    /// The channel of asynchronous events: the one named, or the context's first.
    fn asynchronous(&self, id: u16) -> Result<Option<i32>> {
        Ok(match self.channel(id, Carries::Asynchronous)? {
            Some(fd) => Some(fd),
            None => self.context()?.asynchronous.first().copied(),
        })
    }

    /// Undoes registrations of a queue that was not made.
    fn unpin<T>(&self, memory: QueueMemory, error: Errno) -> Result<T> {
        self.world.unpin_queue(self.context()?, memory);
        Err(error)
    }

    /// Records who is told of a queue's events.
    fn own(
        &mut self,
        queue: Queue,
        user_handle: u64,
        channels: (Option<i32>, Option<i32>),
    ) -> Result<()> {
        let owner = Owner {
            user_handle,
            completions: channels.0,
            asynchronous: channels.1,
            sent: (0, 0),
        };
        let nic = self.context()?.nic;
        self.state.owners.insert((nic, queue), owner);
        Ok(())
    }
}

/// CQ_CREATE
pub(crate) fn create_cq(call: &mut Call<'_>) -> Result<()> {
    /// `IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION`, `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`
    const FLAGS: u32 = 0b11;
    const IGNORE_OVERRUN: u32 = 0b10;
    let request = call.request;
    let driver: CreateCq = request.value(verbs::UHW_IN)?;
    let wanted = request.number32(1)?;
    let user_handle = request.number(2)?;
    let vector = request.number32(4)?;
    let flags = request.number32(5)?;
    let completions = call.channel(3, Carries::Completions)?;
    let asynchronous = call.asynchronous(7)?;
    if flags & !FLAGS != 0 || driver.flags & !mlx5::CQ_UAR_PAGE_INDEX != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // Larger entries, compression, and pages that are not allocated one by one.
    if u64::from(driver.cqe_size) != BLOCK
        || driver.cqe_comp_en != 0
        || driver.flags & mlx5::CQ_UAR_PAGE_INDEX == 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    let entries = wanted
        .checked_add(1)
        .and_then(u32::checked_next_power_of_two)
        .filter(|entries| wanted != 0 && *entries <= 1 << 23)
        .ok_or(Errno::INVAL)?;
    let c_eqn = call
        .world
        .nic(call.context()?.nic)?
        .lock()
        .query_eqn(vector)?;
    let mut memory = QueueMemory::default();
    let made = (|| {
        let context = call.context()?;
        let bytes = u64::from(entries) * BLOCK;
        let ring = call
            .world
            .pin_queue(context, &mut memory, driver.buf_addr, bytes)?;
        let record = call
            .world
            .pin_queue(context, &mut memory, driver.db_addr, RECORD)?;
        let command = create_cq::In {
            cq_context: Cqc {
                log_cq_size: log(entries)?,
                uar_page: driver.uar_page_index.into(),
                c_eqn,
                oi: flags & IGNORE_OVERRUN != 0,
                dbr_umem_valid: true,
                dbr_umem_id: record,
                ..Cqc::default()
            },
            cq_umem_id: ring,
            cq_umem_valid: true,
            ..create_cq::In::default()
        };
        call.world.execute(context, &command)
    })();
    let cqn = match made {
        Ok(made) => made.cqn,
        Err(error) => return call.unpin(memory, error),
    };
    call.own(Queue::Cq(cqn), user_handle, (completions, asynchronous))?;
    call.publish(Some(0), Object::Cq(Cq { cqn, memory }), |request, _| {
        request.output(6, &(entries - 1).to_ne_bytes())?;
        request.output(verbs::UHW_OUT, &CreateCqResp { cqn }.emit())
    })
    .map(drop)
}

/// CQ_DESTROY
pub(crate) fn destroy_cq(call: &mut Call<'_>) -> Result<()> {
    let (comp_events_reported, async_events_reported) = call.destroy(0, Class::Cq)?;
    let answer = DestroyCqResp {
        comp_events_reported,
        async_events_reported,
    };
    call.request.output(1, &answer.emit())
}

/// QP_CREATE
pub(crate) fn create_qp(call: &mut Call<'_>) -> Result<()> {
    /// `IB_UVERBS_QPT_RC`
    const RC: u64 = 2;
    /// `IB_UVERBS_QP_CREATE_SQ_SIG_ALL`
    const SIGNAL_ALL: u32 = 1 << 12;
    const PD: u16 = 2;
    const SRQ: u16 = 3;
    const SEND_CQ: u16 = 4;
    const RECV_CQ: u16 = 5;
    let request = call.request;
    let driver: CreateQp = request.value(verbs::UHW_IN)?;
    let cap = QpCap::parse(&request.input(8)?);
    let user_handle = request.number(7)?;
    let flags = request.number32(10)?;
    if request.number(9)? != RC || flags & !SIGNAL_ALL != 0 || request.has(6) || request.has(1) {
        return Err(Errno::OPNOTSUPP);
    }
    if driver.flags & mlx5::QP_SIGNATURE != 0 || driver.flags & mlx5::QP_UAR_PAGE_INDEX == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let context = call.context()?;
    let pd = context.pdn(request.handle(PD)?)?;
    let cqn_snd = context.cqn(request.handle(SEND_CQ)?)?;
    let cqn_rcv = context.cqn(request.handle(RECV_CQ)?)?;
    let shared = match request.optional_handle(SRQ)? {
        None => None,
        Some(handle) => match context.object(handle, Class::Srq)? {
            Object::Srq(srq) => Some(srq.rmpn),
            _ => return Err(Errno::NOENT),
        },
    };
    let asynchronous = call.asynchronous(12)?;
    let log_sq_size = log(driver.sq_wqe_count)?;
    let receives = if shared.is_some() || cap.max_recv_wr == 0 {
        None
    } else {
        let stride = driver
            .rq_wqe_shift
            .checked_sub(4)
            .filter(|log| *log < 8)
            .ok_or(Errno::INVAL)?;
        Some((log(driver.rq_wqe_count)?, stride as u8))
    };
    let receive_bytes = receives.map_or(0, |(count, stride)| 1u64 << (count + stride + 4));
    let bytes = receive_bytes
        .checked_add(BLOCK << log_sq_size)
        .ok_or(Errno::INVAL)?;
    let (rq_type, log_rq_size, log_rq_stride) = match (shared, receives) {
        (Some(_), _) => (RqType::Shared, 0, 0),
        (None, Some((count, stride))) => (RqType::Regular, count, stride),
        (None, None) => (RqType::ZeroSize, 0, 0),
    };
    let mut memory = QueueMemory::default();
    let made = (|| {
        let context = call.context()?;
        let rings = call
            .world
            .pin_queue(context, &mut memory, driver.buf_addr, bytes)?;
        let record = call
            .world
            .pin_queue(context, &mut memory, driver.db_addr, RECORD)?;
        let command = create_qp::In {
            qpc: Qpc {
                st: ServiceType::Rc,
                pm_state: PathMigration::Migrated,
                pd,
                log_sq_size,
                log_rq_size,
                log_rq_stride,
                rq_type,
                srqn_rmpn_xrqn: shared.unwrap_or(0),
                ts_format: TimestampFormat::FreeRunning,
                uar_page: driver.bfreg_index,
                user_index: driver.uidx,
                cqn_snd,
                cqn_rcv,
                dbr_umem_valid: true,
                dbr_umem_id: record,
                ..Qpc::default()
            },
            wq_umem_id: rings,
            wq_umem_valid: true,
            ..create_qp::In::default()
        };
        call.world.execute(context, &command)
    })();
    let qpn = match made {
        Ok(made) => made.qpn,
        Err(error) => return call.unpin(memory, error),
    };
    call.own(Queue::Qp(qpn), user_handle, (None, asynchronous))?;
    let qp = Qp {
        qpn,
        memory,
        cap,
        signals_all: flags & SIGNAL_ALL != 0,
        state: 0,
        access: 0,
        reads_answered: 0,
        port: 0,
    };
    call.publish(Some(0), Object::Qp(qp), |request, _| {
        request.output(13, &cap.emit())?;
        request.output(14, &qpn.to_ne_bytes())?;
        request.output(verbs::UHW_OUT, &CreateQpResp::default().emit())
    })
    .map(drop)
}

/// QP_DESTROY
pub(crate) fn destroy_qp(call: &mut Call<'_>) -> Result<()> {
    let (_, events_reported) = call.destroy(0, Class::Qp)?;
    call.request
        .output(1, &DestroyQpResp { events_reported }.emit())
}

/// SRQ_CREATE
pub(crate) fn create_srq(call: &mut Call<'_>) -> Result<()> {
    /// Bytes of a WQE's link to the next.
    const LINK: u32 = 16;
    /// Bytes of a data segment.
    const SEGMENT: u32 = 16;
    let request = call.request;
    let driver: CreateSrq = request.value(verbs::UHW_IN)?;
    let pd = request.handle(1)?;
    let user_handle = request.number(4)?;
    let (wanted, segments) = (request.number32(5)?, request.number32(6)?);
    let limit = request.number32(7)?;
    // `IB_UVERBS_SRQT_BASIC` alone.
    if request.number(9)? != 0 || driver.flags & mlx5::SRQ_SIGNATURE != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let pdn = call.context()?.pdn(pd)?;
    let asynchronous = call.asynchronous(10)?;
    let entries = wanted
        .checked_add(1)
        .and_then(u32::checked_next_power_of_two)
        .filter(|entries| *entries <= 1 << 16)
        .ok_or(Errno::INVAL)?;
    let stride = segments
        .checked_mul(SEGMENT)
        .and_then(|bytes| bytes.checked_add(LINK))
        .and_then(u32::checked_next_power_of_two)
        .map(|stride| stride.max(2 * LINK))
        .filter(|stride| segments != 0 && *stride <= 2048)
        .ok_or(Errno::INVAL)?;
    let mut memory = QueueMemory::default();
    let made = (|| {
        let context = call.context()?;
        let bytes = u64::from(entries) * u64::from(stride);
        let ring = call
            .world
            .pin_queue(context, &mut memory, driver.buf_addr, bytes)?;
        let record = call
            .world
            .pin_queue(context, &mut memory, driver.db_addr, RECORD)?;
        let command = create_rmp::In {
            context: Rmpc {
                state: RmpState::Ready,
                wq: Wq {
                    wq_type: WqType::LinkedList,
                    pd: pdn,
                    lwm: u16::try_from(limit).map_err(|_| Errno::INVAL)?,
                    log_wq_stride: log(stride)?,
                    log_wq_sz: log(entries)?,
                    dbr_umem_valid: true,
                    dbr_umem_id: record,
                    wq_umem_valid: true,
                    wq_umem_id: ring,
                    ..Wq::default()
                },
                ..Rmpc::default()
            },
        };
        call.world.execute(context, &command)
    })();
    let rmpn = match made {
        Ok(made) => made.rmpn,
        Err(error) => return call.unpin(memory, error),
    };
    call.own(Queue::Rmp(rmpn), user_handle, (None, asynchronous))?;
    let max_wr = entries - 1;
    let max_sge = (stride - LINK) / SEGMENT;
    let srq = Srq {
        rmpn,
        memory,
        pdn,
        max_wr,
        max_sge,
        limit,
    };
    call.publish(Some(0), Object::Srq(srq), |request, _| {
        request.output(11, &max_wr.to_ne_bytes())?;
        request.output(12, &max_sge.to_ne_bytes())?;
        request.output(13, &rmpn.to_ne_bytes())?;
        request.output(verbs::UHW_OUT, &CreateSrqResp { srqn: rmpn }.emit())
    })
    .map(drop)
}

/// SRQ_DESTROY
pub(crate) fn destroy_srq(call: &mut Call<'_>) -> Result<()> {
    let (_, events_reported) = call.destroy(0, Class::Srq)?;
    call.request
        .output(1, &DestroySrqResp { events_reported }.emit())
}
