//! DevX: commands of programs, objects made by them, memory and doorbell pages for them, events.
//!
//! Knows: which commands the kernel passes on in which method (Linux mlx5_ib devx.c).
//! Must not know: what a command does.

use warpverbs_sim_nic::UarKind;
use warpverbs_wire::eqe::EventType;
use warpverbs_wire::prm::header::Request;
use warpverbs_wire::prm::{
    alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, create_cq, create_mkey,
    create_qp, create_rmp, dealloc_pd, dealloc_q_counter, dealloc_transport_domain, dealloc_uar,
    destroy_cq, destroy_mkey, destroy_qp, destroy_rmp, init2init_qp, init2rtr_qp, modify_rmp,
    qp_2err, qp_2rst, query_cq, query_q_counter, query_qp, query_rmp, rst2init_qp, rtr2rts_qp,
    rts2rts_qp, sqerr2rts_qp,
};

use crate::abi::mlx5;
use crate::abi::{copy, padded};
use crate::context::Object;
use crate::dispatch::Call;
use crate::errno::{Errno, Result};
use crate::events::{Carries, Queue, Subscription};
use crate::resources::{open_channel, rights};
use crate::sys;
use crate::windows::Window;
use crate::world::{Missing, lacks};

/// Most bytes of an answer (the kernel's limit of an attribute).
const MOST_OUT: usize = 1 << 16;
/// Where the number of an object lies, in commands that name it and in the answer of those that make it.
const NUMBER: usize = 8;

/// What events call an object, by its number.
type Named = fn(u32) -> Option<Queue>;

/// What a command that makes an object leads to: the command that destroys it, and what events call it.
fn destroyer(create: u16) -> Option<(u16, Named)> {
    let nothing: Named = |_| None;
    Some(match create {
        create_cq::In::OPCODE => (destroy_cq::In::OPCODE, |number| Some(Queue::Cq(number))),
        create_qp::In::OPCODE => (destroy_qp::In::OPCODE, |number| Some(Queue::Qp(number))),
        create_rmp::In::OPCODE => (destroy_rmp::In::OPCODE, |number| Some(Queue::Rmp(number))),
        create_mkey::In::OPCODE => (destroy_mkey::In::OPCODE, nothing),
        alloc_pd::In::OPCODE => (dealloc_pd::In::OPCODE, nothing),
        alloc_q_counter::In::OPCODE => (dealloc_q_counter::In::OPCODE, nothing),
        alloc_transport_domain::In::OPCODE => (dealloc_transport_domain::In::OPCODE, nothing),
        _ => return None,
    })
}

fn modifies(opcode: u16) -> bool {
    matches!(
        opcode,
        rst2init_qp::In::OPCODE
            | init2init_qp::In::OPCODE
            | init2rtr_qp::In::OPCODE
            | rtr2rts_qp::In::OPCODE
            | rts2rts_qp::In::OPCODE
            | sqerr2rts_qp::In::OPCODE
            | qp_2err::In::OPCODE
            | qp_2rst::In::OPCODE
            | modify_rmp::In::OPCODE
    )
}

fn queries(opcode: u16) -> bool {
    matches!(
        opcode,
        query_qp::In::OPCODE
            | query_cq::In::OPCODE
            | query_rmp::In::OPCODE
            | query_q_counter::In::OPCODE
    )
}

fn destroys(opcode: u16) -> bool {
    matches!(
        opcode,
        destroy_cq::In::OPCODE
            | destroy_qp::In::OPCODE
            | destroy_rmp::In::OPCODE
            | destroy_mkey::In::OPCODE
            | dealloc_pd::In::OPCODE
            | dealloc_q_counter::In::OPCODE
            | dealloc_transport_domain::In::OPCODE
            | dealloc_uar::In::OPCODE
    )
}

/// True of what no program may send by itself: it concerns an object.
fn concerns_an_object(opcode: u16) -> bool {
    destroyer(opcode).is_some()
        || modifies(opcode)
        || queries(opcode)
        || destroys(opcode)
        || opcode == alloc_uar::In::OPCODE
}

fn opcode(input: &[u8]) -> Result<u16> {
    Ok(Request::parse(input).map_err(|_| Errno::INVAL)?.opcode)
}

/// The number in a mailbox, 24 bits.
fn number(mailbox: &[u8]) -> u32 {
    u32::from_be_bytes(padded(mailbox, NUMBER)) & 0xff_ffff
}

impl Call<'_> {
    fn devx(&self) -> Result<()> {
        // The context was opened without it (`devx_ufile2uctx`).
        if self.context()?.devx {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }

    /// Sends a mailbox. Refused by the firmware, its answer is delivered all the same.
    fn forward(&self, input: &[u8], id: u16) -> Result<Vec<u8>> {
        let mut output = vec![0; self.request.room(id).min(MOST_OUT)];
        let result = self.world.command(self.context()?, input, &mut output);
        if result.is_ok() || result == Err(Errno::REMOTEIO) {
            self.request.output(id, &output)?;
        }
        result.map(|()| output)
    }

    /// An object that commands can name, and its number in events.
    fn named(&self, id: u16) -> Result<(u32, u32, Option<Queue>)> {
        let handle = self.request.handle(id)?;
        let (number, queue) = self
            .context()?
            .objects
            .get(&handle)
            .and_then(Object::named)
            .ok_or(Errno::NOENT)?;
        Ok((handle, number, queue))
    }
}

/// DEVX_OTHER
pub(crate) fn command(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let input = call.request.input(0x1000)?;
    if concerns_an_object(opcode(&input)?) {
        return Err(Errno::INVAL);
    }
    call.forward(&input, 0x1001).map(drop)
}

/// DEVX_QUERY_UAR
pub(crate) fn query_uar(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let page = call.request.number32(0x1000)?;
    let has = |object: &Object| matches!(object, Object::Uar { page: other } if *other == page);
    if !call.context()?.objects.values().any(has) {
        return Err(Errno::INVAL);
    }
    call.request.output(0x1001, &page.to_ne_bytes())
}

/// DEVX_QUERY_EQN
pub(crate) fn query_eqn(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let vector = call.request.number32(0x1000)?;
    let eqn = call
        .world
        .nic(call.context()?.nic)?
        .lock()
        .query_eqn(vector)?;
    call.request.output(0x1001, &eqn.to_ne_bytes())
}

/// DEVX_OBJ_CREATE
pub(crate) fn create(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let input = call.request.input(0x1001)?;
    let (destroy_opcode, queue) = destroyer(opcode(&input)?).ok_or(Errno::INVAL)?;
    let mut output = vec![0; call.request.room(0x1002).min(MOST_OUT)];
    let result = call.world.command(call.context()?, &input, &mut output);
    if let Err(error) = result {
        if error == Errno::REMOTEIO {
            call.request.output(0x1002, &output)?;
        }
        return Err(error);
    }
    let number = number(&output);
    let mut destroy = vec![0; 16];
    copy(&destroy_opcode.to_be_bytes(), &mut destroy);
    copy(
        &number.to_be_bytes(),
        destroy.get_mut(NUMBER..).unwrap_or_default(),
    );
    let object = Object::Devx {
        destroy,
        queue: queue(number),
        number,
    };
    call.publish(Some(0x1000), object, |request, _| {
        request.output(0x1002, &output)
    })
    .map(drop)
}

/// DEVX_OBJ_MODIFY
pub(crate) fn modify(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let input = call.request.input(0x1001)?;
    let (_, object, _) = call.named(0x1000)?;
    if !modifies(opcode(&input)?) || number(&input) != object {
        return Err(Errno::INVAL);
    }
    call.forward(&input, 0x1002).map(drop)
}

/// DEVX_OBJ_QUERY
pub(crate) fn query(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let input = call.request.input(0x1001)?;
    let (_, object, _) = call.named(0x1000)?;
    if !queries(opcode(&input)?) || number(&input) != object {
        return Err(Errno::INVAL);
    }
    call.forward(&input, 0x1002).map(drop)
}

/// DEVX_OBJ_ASYNC_QUERY: the answer comes through the channel, at once.
pub(crate) fn query_later(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let request = call.request;
    let input = request.input(0x1001)?;
    let (_, object, _) = call.named(0x1000)?;
    if !queries(opcode(&input)?) || number(&input) != object {
        return Err(Errno::INVAL);
    }
    let channel = request.fd(0x1002).ok_or(Errno::BADF)?;
    let mut output = vec![0; request.number(0x1004)?.min(MOST_OUT as u64) as usize];
    match call.world.command(call.context()?, &input, &mut output) {
        Ok(()) | Err(Errno::REMOTEIO) => {}
        Err(error) => return Err(error),
    }
    let mut message = request.number(0x1003)?.to_ne_bytes().to_vec();
    message.extend(output);
    match call.state.channels.get_mut(&channel) {
        Some(channel) if channel.carries == Carries::Commands => {
            channel.send(&message);
            Ok(())
        }
        _ => Err(Errno::BADF),
    }
}

/// DEVX_SUBSCRIBE_EVENT
pub(crate) fn subscribe(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let request = call.request;
    let channel = request.fd(0x1000).ok_or(Errno::BADF)?;
    match call.state.channels.get(&channel) {
        Some(channel) if matches!(channel.carries, Carries::DevxEvents { .. }) => {}
        _ => return Err(Errno::BADF),
    }
    let object = if request.has(0x1001) {
        let (handle, _, queue) = call.named(0x1001)?;
        Some((handle, queue.ok_or(Errno::INVAL)?))
    } else {
        None
    };
    let list = request.input(0x1002)?;
    let events: Vec<u16> = list
        .as_chunks::<2>()
        .0
        .iter()
        .map(|bytes| u16::from_ne_bytes(*bytes))
        .collect();
    // Events of a queue need the queue (`is_valid_events`).
    let of_device = |event: &u16| {
        u8::try_from(*event).is_ok_and(|code| {
            matches!(
                EventType::from_code(code),
                EventType::PortChange | EventType::InternalError
            )
        })
    };
    if object.is_none() && !events.iter().all(of_device) {
        return Err(Errno::INVAL);
    }
    let signal = if request.has(0x1003) {
        Some(request.number32(0x1003)? as i32)
    } else {
        None
    };
    let cookie = request.number(0x1004)?;
    let nic = call.context()?.nic;
    let all = events.into_iter().map(|event| Subscription {
        nic,
        channel,
        object,
        event,
        cookie,
        signal,
    });
    call.state.subscriptions.extend(all);
    Ok(())
}

/// DEVX_UMEM_REG
pub(crate) fn register_umem(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let request = call.request;
    let (addr, len) = (request.number(0x1001)?, request.number(0x1002)?);
    let access = rights(request.number32(0x1003)?)?;
    let page_sizes = request.number(0x1005)?;
    let nic = call.world.nic(call.context()?.nic)?;
    let bus = nic.bus();
    let window = match request.fd(0x1006) {
        Some(fd) => Window::of_dmabuf(bus, fd, addr, len)?,
        None => {
            let writable = access & warpverbs_sim_nic::access::LOCAL_WRITE != 0;
            Window::open(&nic, addr, len, writable)?
        }
    };
    let uid = call.context()?.uid;
    let registered = nic
        .lock()
        .reg_umem_of(uid, window.range(addr), page_sizes, access);
    let id = match registered {
        Ok(id) => id,
        Err(error) => {
            window.close(bus);
            return Err(error.into());
        }
    };
    let object = Object::Umem {
        id,
        window: Some(window),
    };
    call.publish(Some(0x1000), object, |request, _| {
        request.output(0x1004, &id.to_ne_bytes())
    })
    .map(drop)
}

/// UAR_OBJ_ALLOC
pub(crate) fn alloc_uar(call: &mut Call<'_>) -> Result<()> {
    let kind = match call.request.number(0x1001)? {
        0 => UarKind::BlueFlame,
        1 if lacks(Missing::NonCachedPages) => return Err(Errno::OPNOTSUPP),
        1 => UarKind::NonCached,
        _ => return Err(Errno::OPNOTSUPP),
    };
    let (nic, uid) = (call.context()?.nic, call.context()?.uid);
    let page = call.world.nic(nic)?.lock().alloc_uar_of(uid, kind)?;
    if let Err(error) = call.world.map_doorbells(nic, page) {
        call.world.nic(nic)?.lock().free_uar(page)?;
        return Err(error);
    }
    let offset = ((mlx5::MMAP_UAR << 16) + u64::from(page)) * sys::PAGE;
    call.publish(Some(0x1000), Object::Uar { page }, |request, _| {
        request.output(0x1002, &offset.to_ne_bytes())?;
        request.output(0x1003, &(sys::PAGE as u32).to_ne_bytes())?;
        request.output(0x1004, &page.to_ne_bytes())
    })
    .map(drop)
}

/// DEVX_ASYNC_CMD_FD_ALLOC
pub(crate) fn alloc_command_channel(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    open_channel(call, 0x1000, Carries::Commands).map(drop)
}

/// DEVX_ASYNC_EVENT_FD_ALLOC
pub(crate) fn alloc_event_channel(call: &mut Call<'_>) -> Result<()> {
    call.devx()?;
    let flags = call.request.number32(0x1001)?;
    if flags & !mlx5::EVENT_CHANNEL_OMIT_DATA != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let without_data = flags & mlx5::EVENT_CHANNEL_OMIT_DATA != 0;
    open_channel(call, 0x1000, Carries::DevxEvents { without_data }).map(drop)
}
