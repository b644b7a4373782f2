//! Methods of verbs that make no queue: the context, port and GIDs, channels, memory.

use warpverbs_sim_nic::access;
use warpverbs_wire::prm::query_special_contexts;

use crate::abi::Field;
use crate::abi::mlx5::{self, AllocUcontext, AllocUcontextResp};
use crate::abi::verbs::{self, GidEntry, QueryPortRespEx};
use crate::context::Object;
use crate::device;
use crate::dispatch::Call;
use crate::errno::{Errno, Result};
use crate::events::{Carries, Channel};
use crate::fds;
use crate::sys;
use crate::windows::Window;
use crate::world::{Missing, has_data_direct, lacks};

/// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`
const CORE_SUPPORT: u64 = 1;

/// GET_CONTEXT
pub(crate) fn get_context(call: &mut Call<'_>) -> Result<()> {
    let wanted: AllocUcontext = call.request.value(verbs::UHW_IN)?;
    if call.context()?.ready {
        return Err(Errno::INVAL);
    }
    let devx = wanted.flags & mlx5::UCTX_DEVX != 0;
    if devx && lacks(Missing::Devx) {
        return Err(Errno(libc::EPERM));
    }
    // Only doorbell pages that are allocated one by one are modelled.
    if wanted.lib_caps & mlx5::LIB_CAP_DYN_UAR == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let caps = {
        let nic = call.world.nic(call.context()?.nic)?;
        let mut nic = nic.lock();
        device::capabilities(&mut nic)?
    };
    let keys = call
        .world
        .execute(call.context()?, &query_special_contexts::In::default())?;
    let count = |log: u8| 1u32.checked_shl(log.into()).unwrap_or(u32::MAX);
    let answer = AllocUcontextResp {
        qp_tab_size: count(caps.log_max_qp),
        bf_reg_size: count(caps.log_bf_reg_size),
        tot_bfregs: 0,
        cache_line_size: 64,
        max_sq_desc_sz: caps.max_wqe_sz_sq,
        max_rq_desc_sz: 512,
        max_send_wqebb: count(caps.log_max_qp_sz),
        max_recv_wr: count(caps.log_max_qp_sz),
        max_srq_recv_wr: count(caps.log_max_srq_sz),
        num_ports: caps.num_ports.into(),
        flow_action_flags: 0,
        comp_mask: mlx5::RESP_DUMP_FILL_MKEY,
        response_length: AllocUcontextResp::SIZE as u32,
        cqe_version: caps.cqe_version.min(wanted.max_cqe_version),
        cmds_supp_uhw: mlx5::CMDS_SUPP_UHW,
        eth_min_inline: 0,
        clock_info_versions: 0,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: 0,
        dump_fill_mkey: keys.dump_fill_mkey,
    };
    call.request.output(verbs::UHW_OUT, &answer.emit())?;
    call.request.output(0, &device::VECTORS.to_ne_bytes())?;
    call.request.output(1, &CORE_SUPPORT.to_ne_bytes())?;
    let context = call.context_mut()?;
    context.ready = true;
    context.devx = devx;
    Ok(())
}

/// QUERY_PORT
pub(crate) fn query_port(call: &mut Call<'_>) -> Result<()> {
    let port = u8::try_from(call.request.number(0)?).map_err(|_| Errno::INVAL)?;
    let info = call
        .world
        .nic(call.context()?.nic)?
        .lock()
        .query_port(port)?;
    let answer = QueryPortRespEx {
        legacy_resp: device::query_port(&info),
        port_cap_flags2: 0,
    };
    call.request.output(1, &answer.emit())
}

/// QUERY_GID_ENTRY
pub(crate) fn query_gid_entry(call: &mut Call<'_>) -> Result<()> {
    let port = u8::try_from(call.request.number(0)?).map_err(|_| Errno::INVAL)?;
    let index = call.request.number32(1)?;
    if call.request.number(2)? != 0 {
        return Err(Errno::INVAL);
    }
    let nic = call.world.nic(call.context()?.nic)?;
    let entry = device::query_gid(&nic.lock(), port, index)?.ok_or(Errno::NODATA)?;
    call.request.output(3, &entry.emit())
}

/// QUERY_GID_TABLE
pub(crate) fn query_gid_table(call: &mut Call<'_>) -> Result<()> {
    let stride = usize::try_from(call.request.number(0)?).map_err(|_| Errno::INVAL)?;
    if call.request.number(1)? != 0 || stride == 0 || !stride.is_multiple_of(8) {
        return Err(Errno::INVAL);
    }
    let room = call.request.room(2) / stride;
    let mut entries: Vec<GidEntry> = Vec::new();
    {
        let nic = call.world.nic(call.context()?.nic)?;
        let nic = nic.lock();
        let gids = nic.query_port(1)?.gids;
        for index in 0..gids {
            entries.extend(device::query_gid(&nic, 1, index)?);
        }
    }
    if entries.len() > room {
        return Err(Errno::INVAL);
    }
    let mut bytes = vec![0; entries.len() * stride];
    for (place, entry) in bytes.chunks_mut(stride).zip(&entries) {
        entry.write(place);
    }
    call.request.output(2, &bytes)?;
    call.request
        .output(3, &(entries.len() as u64).to_ne_bytes())
}

/// Opens a channel and names its descriptor in attribute `id`.
pub(crate) fn open_channel(call: &mut Call<'_>, id: u16, carries: Carries) -> Result<i32> {
    let (theirs, channel) = Channel::open(call.fd, carries)?;
    if let Err(error) = call.request.created(id, theirs.into()) {
        discard(theirs, channel);
        return Err(error);
    }
    call.state.channels.insert(theirs, channel);
    Ok(theirs)
}

/// Closes both ends of a channel that the program never heard of.
pub(crate) fn discard(theirs: i32, channel: Channel) {
    fds::forget(theirs);
    let _ = sys::close(theirs);
    channel.close();
}

/// ASYNC_EVENT_ALLOC
pub(crate) fn alloc_async_events(call: &mut Call<'_>) -> Result<()> {
    let theirs = open_channel(call, 0, Carries::Asynchronous)?;
    call.context_mut()?.asynchronous.push(theirs);
    Ok(())
}

/// Rights of an MR, as the driver takes them: what is optional and unknown is dropped (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`).
pub(crate) fn rights(access: u32) -> Result<u32> {
    /// `IB_UVERBS_ACCESS_HUGETLB`, a hint.
    const HUGE_PAGES: u32 = 1 << 7;
    const OPTIONAL: u32 = 0x3ff << 20;
    let known = access & !HUGE_PAGES & !(OPTIONAL & !access::RELAXED_ORDERING);
    let supported = access::LOCAL_WRITE
        | access::REMOTE_WRITE
        | access::REMOTE_READ
        | access::REMOTE_ATOMIC
        | access::RELAXED_ORDERING;
    if known & !supported != 0 {
        // On-demand paging, memory windows, zero-based addresses.
        return Err(Errno::OPNOTSUPP);
    }
    Ok(known)
}

/// Registers memory for a PD; the object that it makes, and its keys.
pub(crate) fn register(
    call: &mut Call<'_>,
    pd: u32,
    window: Window,
    iova: u64,
    access: u32,
) -> Result<(Object, u32, u32)> {
    let registered = call.context().and_then(|context| {
        let pdn = context.pdn(pd)?;
        let range = window.range(iova);
        Ok(call
            .world
            .nic(context.nic)?
            .lock()
            .reg_mr(pdn, range, access)?)
    });
    match registered {
        Ok(keys) => {
            let object = Object::Mr {
                lkey: keys.lkey,
                window: Some(window),
            };
            Ok((object, keys.lkey, keys.rkey))
        }
        Err(error) => {
            window.close(call.world.nic(call.context()?.nic)?.bus());
            Err(error)
        }
    }
}

/// GET_DATA_DIRECT_SYSFS_PATH
pub(crate) fn data_direct_path(call: &mut Call<'_>) -> Result<()> {
    const PATH: &[u8] = b"/sys/devices/pci0000:00/0000:00:01.1\0";
    if !has_data_direct() {
        return Err(Errno(libc::ENODEV));
    }
    if call.request.room(0x1000) < PATH.len() {
        return Err(Errno::NOSPC);
    }
    call.request.output(0x1000, PATH)
}

/// REG_DMABUF_MR
pub(crate) fn reg_dmabuf_mr(call: &mut Call<'_>) -> Result<()> {
    let request = call.request;
    // Over the data-direct function, which reaches the same memory here (`reg_user_mr_dmabuf_by_data_direct`).
    let driver = request.number32(0x1000)?;
    if driver & !mlx5::REG_DMABUF_DATA_DIRECT != 0 || driver != 0 && !has_data_direct() {
        return Err(Errno::INVAL);
    }
    let (offset, len, iova) = (request.number(2)?, request.number(3)?, request.number(4)?);
    let fd = request.number32(5)? as i32;
    let access = rights(request.number32(6)?)?;
    if offset & (sys::PAGE - 1) != iova & (sys::PAGE - 1) {
        return Err(Errno::INVAL);
    }
    let pd = request.handle(1)?;
    call.context()?.pdn(pd)?;
    let nic = call.world.nic(call.context()?.nic)?;
    let window = Window::of_dmabuf(nic.bus(), fd, offset, len)?;
    let (object, lkey, rkey) = register(call, pd, window, iova, access)?;
    call.publish(Some(0), object, |request, _| {
        request.output(7, &lkey.to_ne_bytes())?;
        request.output(8, &rkey.to_ne_bytes())
    })
    .map(drop)
}
