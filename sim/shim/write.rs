//! INVOKE_WRITE: commands that have no ioctl of their own.
//!
//! Knows: PD, MR, address handles, channels, device and port queries; QPs' and SRQs' further life is `transition`'s.

use warpverbs_wire::prm::alloc_pd;

use crate::abi::Field;
use crate::abi::mlx5;
use crate::abi::verbs::{
    self, AllocPdResp, CreateAh, CreateAhResp, CreateCompChannelResp, ExQueryDeviceResp, QueryPort,
    RegMr, RegMrResp, write,
};
use crate::context::Object;
use crate::device;
use crate::dispatch::Call;
use crate::errno::{Errno, Result};
use crate::events::{Carries, Channel};
use crate::resources;
use crate::sys;
use crate::transition;
use crate::windows::Window;

/// Input and output of the core.
pub(crate) const IN: u16 = 0;
/// Output.
pub(crate) const OUT: u16 = 1;

/// INVOKE_WRITE
pub(crate) fn invoke(call: &mut Call<'_>) -> Result<()> {
    const EX_QUERY_DEVICE: u64 = verbs::EXTENDED | write::QUERY_DEVICE;
    const EX_MODIFY_QP: u64 = verbs::EXTENDED | write::MODIFY_QP;
    let command = call.request.number(2)?;
    // libibverbs asks so, before it opens the device, whether commands come this way.
    if !call.request.has(IN) && !call.request.has(OUT) {
        return Err(Errno::NOSPC);
    }
    if !call.context()?.ready {
        return Err(Errno::INVAL);
    }
    match command {
        write::QUERY_DEVICE => {
            let nic = call.world.nic(call.context()?.nic)?;
            let answer = device::query_device(&mut nic.lock())?;
            call.request.output(OUT, &answer.emit())
        }
        EX_QUERY_DEVICE => query_device(call),
        write::QUERY_PORT => {
            let port = QueryPort::parse(&call.request.input(IN)?).port_num;
            let info = call
                .world
                .nic(call.context()?.nic)?
                .lock()
                .query_port(port)?;
            call.request.output(OUT, &device::query_port(&info).emit())
        }
        write::ALLOC_PD => make_pd(call),
        write::REG_MR => reg_mr(call),
        write::CREATE_AH => create_ah(call),
        write::CREATE_COMP_CHANNEL => create_channel(call),
        write::QUERY_QP => transition::query_qp(call),
        write::MODIFY_QP | EX_MODIFY_QP => transition::modify_qp(call, command == EX_MODIFY_QP),
        write::MODIFY_SRQ => transition::modify_srq(call),
        write::QUERY_SRQ => transition::query_srq(call),
        _ => Err(Errno::OPNOTSUPP),
    }
}

fn query_device(call: &mut Call<'_>) -> Result<()> {
    let (base, clock) = {
        let nic = call.world.nic(call.context()?.nic)?;
        let mut nic = nic.lock();
        let caps = device::capabilities(&mut nic)?;
        (device::query_device(&mut nic)?, caps.device_frequency_khz)
    };
    let answer = ExQueryDeviceResp {
        base,
        comp_mask: 0,
        response_length: ExQueryDeviceResp::SIZE as u32,
        timestamp_mask: u64::MAX,
        hca_core_clock: clock.into(),
    };
    let driver = mlx5::QueryDeviceResp {
        comp_mask: 0,
        response_length: mlx5::QueryDeviceResp::SIZE as u32,
    };
    call.request.output(OUT, &answer.emit())?;
    call.request.output(verbs::UHW_OUT, &driver.emit())
}

fn make_pd(call: &mut Call<'_>) -> Result<()> {
    let pdn = call
        .world
        .execute(call.context()?, &alloc_pd::In::default())?
        .pd;
    call.publish(None, Object::Pd { pdn }, |request, pd_handle| {
        request.output(OUT, &AllocPdResp { pd_handle }.emit())?;
        request.output(verbs::UHW_OUT, &mlx5::AllocPdResp { pdn }.emit())
    })
    .map(drop)
}

fn reg_mr(call: &mut Call<'_>) -> Result<()> {
    let wanted = RegMr::parse(&call.request.input(IN)?);
    if (wanted.start ^ wanted.hca_va) & (sys::PAGE - 1) != 0 {
        return Err(Errno::INVAL);
    }
    let access = resources::rights(wanted.access_flags)?;
    call.context()?.pdn(wanted.pd_handle)?;
    // The kernel pins for writing only what may be written (`ib_access_writable`).
    let writable = access & !warpverbs_sim_nic::access::REMOTE_READ & 0xf != 0;
    let nic = call.world.nic(call.context()?.nic)?;
    let window = Window::open(&nic, wanted.start, wanted.length, writable)?;
    let (object, lkey, rkey) =
        resources::register(call, wanted.pd_handle, window, wanted.hca_va, access)?;
    call.publish(None, object, |request, mr_handle| {
        let answer = RegMrResp {
            mr_handle,
            lkey,
            rkey,
        };
        request.output(OUT, &answer.emit())
    })
    .map(drop)
}

fn create_ah(call: &mut Call<'_>) -> Result<()> {
    let wanted = CreateAh::parse(&call.request.input(IN)?);
    let (attr, pd) = (wanted.attr, wanted.pd_handle);
    call.context()?.pdn(pd)?;
    let nic = call.world.nic(call.context()?.nic)?;
    let nic = nic.lock();
    let ethernet =
        nic.query_port(attr.port_num)?.link_layer == warpverbs_sim_nic::LinkLayer::Ethernet;
    if ethernet && attr.is_global == 0 {
        return Err(Errno::INVAL);
    }
    let dmac = if ethernet {
        nic.resolve_mac(attr.port_num, attr.grh.sgid_index.into(), attr.grh.dgid)?
    } else {
        [0; 6]
    };
    drop(nic);
    call.publish(None, Object::Ah { pd }, |request, ah_handle| {
        let driver = mlx5::CreateAhResp {
            response_length: mlx5::CreateAhResp::SIZE as u32,
            dmac,
        };
        request.output(OUT, &CreateAhResp { ah_handle }.emit())?;
        request.output(verbs::UHW_OUT, &driver.emit())
    })
    .map(drop)
}

fn create_channel(call: &mut Call<'_>) -> Result<()> {
    let (theirs, channel) = Channel::open(call.fd, Carries::Completions)?;
    let mut answer = [0; CreateCompChannelResp::SIZE];
    (theirs as u32).write(&mut answer);
    if let Err(error) = call.request.output(OUT, &answer) {
        resources::discard(theirs, channel);
        return Err(error);
    }
    call.state.channels.insert(theirs, channel);
    Ok(())
}
