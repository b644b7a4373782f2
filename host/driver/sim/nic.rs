//! The simulated NIC behind the [`Nic`] trait.
//!
//! Knows: which call of the model belongs to which call of a driver, and what a driver keeps by
//! handle. Must not know: why the model refuses something.
//!
//! The file that opens host memory to the simulated NIC's DMA: one of those with `unsafe`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_sim_bus::{self as bus, Bus, Device, Region, Space, region_of};
use warpverbs_sim_nic::{
    self as model, About, Background, CommandError, DmaRange, HostCall, NicError, NicModel,
    ObjectId, ObjectKind,
};
use warpverbs_wire::doorbell;
use warpverbs_wire::eqe::Event;
use warpverbs_wire::prm::header::Request;
use warpverbs_wire::prm::{
    Status, alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, create_cq, create_mkey,
    create_qp, create_rmp, dealloc_pd, dealloc_q_counter, dealloc_transport_domain, dealloc_uar,
    destroy_cq, destroy_mkey, destroy_qp, destroy_rmp, init2init_qp, init2rtr_qp, modify_rmp,
    qp_2err, qp_2rst, query_cq, query_q_counter, query_qp, query_rmp, rst2init_qp, rtr2rts_qp,
    rts2rts_qp, sqerr2rts_qp,
};

use super::turns::is_inside;
use crate::driver::{
    Access, DriverError, DriverErrorKind, GidEntry, GidKind, LinkLayer, MemoryRegion, MrInfo, Nic,
    NicHandle, PdInfo, PortInfo, UarInfo, UarKind, UmemInfo,
};

type Result<T> = std::result::Result<T, DriverError>;

/// Steps that the devices may take while a call of the CPU travels.
const QUANTUM: u64 = 1 << 16;

/// A simulated NIC.
pub(super) struct SimNic {
    model: Arc<Mutex<NicModel>>,
    bus: Arc<Bus>,
    drive: Drive,
    /// Where pages that are not cached are one page, which is kept.
    one_page: Option<Mutex<Option<OnePage>>>,
    objects: Mutex<Objects>,
}

/// The doorbell page that all have.
#[derive(Clone, Copy)]
struct OnePage {
    id: u32,
    addr: u64,
    users: usize,
}

/// Who lets the model take steps.
pub(super) enum Drive {
    /// Whoever waits for it; its registers are at this address of the bus.
    Stepped { bar: u64 },
    /// A thread, of which it is this NIC.
    Background {
        thread: Arc<Background>,
        number: usize,
    },
}

/// The model, locked for a call of the host.
pub(super) struct Locked<'a> {
    model: MutexGuard<'a, NicModel>,
    /// Ends after the lock.
    _call: Option<HostCall<'a>>,
}

impl Deref for Locked<'_> {
    type Target = NicModel;
    fn deref(&self) -> &NicModel {
        &self.model
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut NicModel {
        &mut self.model
    }
}

/// What the driver keeps of the objects that it has handed out.
#[derive(Default)]
struct Objects {
    issued: u64,
    live: BTreeMap<NicHandle, Object>,
}

#[derive(Clone, Copy)]
enum Object {
    Pd(u32),
    Mr { lkey: u32, window: Option<Window> },
    Umem { id: u32, window: Option<Window> },
    Uar(u32),
    Cq(u32),
    Qp(u32),
    Mkey(u32),
}

/// Host memory that is open to DMA.
#[derive(Clone, Copy)]
struct Window {
    addr: u64,
    len: u64,
}

impl Objects {
    fn add(&mut self, object: Object) -> NicHandle {
        self.issued += 1;
        let handle = NicHandle(self.issued);
        self.live.insert(handle, object);
        handle
    }
}

impl SimNic {
    /// The driver of `model`, attached to `bus`.
    pub(super) fn new(
        model: Arc<Mutex<NicModel>>,
        bus: Arc<Bus>,
        drive: Drive,
        one_page: bool,
    ) -> Self {
        Self {
            model,
            bus,
            drive,
            one_page: one_page.then(Mutex::default),
            objects: Mutex::default(),
        }
    }

    /// The model, for whoever looks at all of it.
    pub(super) fn model(&self) -> Locked<'_> {
        self.model_about(About::Everything)
    }

    fn model_about(&self, about: About<'_>) -> Locked<'_> {
        match &self.drive {
            Drive::Stepped { .. } => Locked {
                model: self.model.lock().unwrap_or_else(PoisonError::into_inner),
                _call: None,
            },
            Drive::Background { thread, number } => {
                let call = thread.call();
                Locked {
                    model: thread.lock(*number, &self.model, about),
                    _call: Some(call),
                }
            }
        }
    }

    /// Of the NIC's live objects those that were handed out, each as often as it was.
    pub(super) fn of_user(&self, mut live: Vec<ObjectId>) -> Vec<ObjectId> {
        if let Some(OnePage { id, users, .. }) = self.one_page().as_deref().copied().flatten() {
            let page = ObjectId::new(ObjectKind::Uar, id);
            live.retain(|object| *object != page);
            live.extend(std::iter::repeat_n(page, users));
        }
        live
    }

    fn one_page(&self) -> Option<MutexGuard<'_, Option<OnePage>>> {
        let page = self.one_page.as_ref()?;
        Some(page.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a doorbell page; its number and address.
    fn make_page(&self, call: &'static str, kind: model::UarKind) -> Result<(u32, u64)> {
        let id = self
            .model()
            .alloc_uar(kind)
            .map_err(|error| from_model(call, &error))?;
        let addr = match &self.drive {
            Drive::Stepped { bar } => bar + u64::from(id) * doorbell::UAR_PAGE as u64,
            Drive::Background { thread, number } => thread
                .map(*number, id)
                .ok_or_else(|| invalid(call, "the NIC does not run".into()))?,
        };
        Ok((id, addr))
    }

    /// The host waits: the NIC gets somewhere. Work in the schedule does not wait: the NIC takes its steps there.
    fn advance(&self) {
        if let Drive::Stepped { .. } = self.drive
            && !is_inside()
        {
            self.bus.lock().run_devices(QUANTUM);
        }
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn object(&self, call: &'static str, handle: NicHandle) -> Result<Object> {
        self.objects()
            .live
            .get(&handle)
            .copied()
            .ok_or_else(|| no_handle(call, handle))
    }

    /// The bus range of a region, and the window that was opened for it.
    ///
    /// # Safety
    ///
    /// As for [`Nic::reg_mr`], until the window is closed.
    unsafe fn resolve(
        &self,
        call: &'static str,
        region: MemoryRegion,
    ) -> Result<(DmaRange, Option<Window>)> {
        match region {
            MemoryRegion::Address { addr, len } => {
                // Host memory that a simulated GPU has mapped is the bus's, and not this process's.
                let mapped = Space::HostMapped.base()..Space::MAPPED_REGISTERS;
                if len > 0
                    && mapped.contains(&addr)
                    && addr.checked_add(len).is_some_and(|end| end <= mapped.end)
                {
                    let range = DmaRange {
                        bus_addr: addr,
                        len,
                        iova: addr,
                    };
                    return Ok((range, None));
                }
                // As the kernel pins what is registered, pages of user space only: 47 bits of address, page 0 left out.
                let last = addr.checked_add(len).filter(|end| *end <= 1 << 47);
                if len == 0 || addr < 4096 || last.is_none() {
                    return Err(invalid(
                        call,
                        format!("{len} bytes at {addr:#x} are no memory of this process"),
                    ));
                }
                let range = DmaRange {
                    bus_addr: addr,
                    len,
                    iova: addr,
                };
                // SAFETY: `HostWindows::open` demands that until it is closed
                // - the range stays allocated, readable and writable;
                // - nothing holds a Rust reference to its bytes, unless they are atomics or in an
                //   `UnsafeCell`.
                // The caller promises both.
                let window = unsafe { self.open_window(addr, len) };
                Ok((range, Some(window)))
            }
            MemoryRegion::Dmabuf {
                fd,
                offset,
                len,
                iova,
                // The bus has one path.
                data_direct: _,
            } => {
                let mut bus = self.bus.lock();
                let (base, size) = bus
                    .dmabufs
                    .resolve(fd)
                    .ok_or_else(|| invalid(call, format!("dmabuf {fd} is not open")))?;
                if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
                    return Err(invalid(
                        call,
                        format!(
                            "{len} bytes at offset {offset} do not lie in a dmabuf of {size} bytes"
                        ),
                    ));
                }
                let bus_addr = base + offset;
                let range = DmaRange {
                    bus_addr,
                    len,
                    iova,
                };
                let window = (region_of(bus_addr) == Region::Host).then(|| {
                    // SAFETY: as above, of memory that the host exported as a GPU's: it stays allocated while a dmabuf or
                    // a window covers it (`host_gpu::memory`), and the lock has kept this dmabuf open; that no reference
                    // covers it is what exporting promises.
                    unsafe { bus.host.open(bus_addr, len) };
                    Window {
                        addr: bus_addr,
                        len,
                    }
                });
                Ok((range, window))
            }
        }
    }

    /// # Safety
    ///
    /// As for `HostWindows::open`.
    unsafe fn open_window(&self, addr: u64, len: u64) -> Window {
        // SAFETY: the caller's.
        unsafe { self.bus.lock().host.open(addr, len) };
        Window { addr, len }
    }

    fn close_window(&self, window: Option<Window>) {
        if let Some(Window { addr, len }) = window
            && !self.bus.lock().host.close(addr, len)
        {
            tracing::error!(
                addr,
                len,
                "a window onto host memory was closed before its registration"
            );
        }
    }

    /// Executes a mailbox on the model.
    fn execute(&self, call: &'static str, input: &[u8], output: &mut [u8]) -> Result<()> {
        if let Drive::Stepped { .. } = self.drive {
            self.bus.lock().memory.event(bus::Event::Command);
        }
        self.model_about(About::Command(input))
            .command(input, output)
            .map_err(|refused| refusal(call, &refused))
    }

    /// Undoes an object by what the driver keeps of it, and forgets it once that is done.
    fn undo(
        &self,
        call: &'static str,
        handle: NicHandle,
        undo: impl FnOnce(Object) -> Result<()>,
    ) -> Result<()> {
        undo(self.object(call, handle)?)?;
        self.objects().live.remove(&handle);
        Ok(())
    }
}

fn is_data_direct(region: MemoryRegion) -> bool {
    matches!(
        region,
        MemoryRegion::Dmabuf {
            data_direct: true,
            ..
        }
    )
}

impl Nic for SimNic {
    fn name(&self) -> String {
        self.model_about(About::NoQueue).config().name.clone()
    }

    fn command(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        const CALL: &str = "general_cmd";
        let opcode = Request::parse(input)
            .map_err(|error| invalid(CALL, error.to_string()))?
            .opcode;
        if concerns_an_object(opcode) {
            let text = format!("opcode {opcode:#x} concerns an object");
            return Err(invalid(CALL, text));
        }
        self.execute(CALL, input, output)
    }

    fn create(&self, input: &[u8], output: &mut [u8]) -> Result<NicHandle> {
        const CALL: &str = "obj_create";
        let opcode = Request::parse(input)
            .map_err(|error| invalid(CALL, error.to_string()))?
            .opcode;
        self.execute(CALL, input, output)?;
        let object = match opcode {
            create_cq::In::OPCODE => create_cq::Out::parse(output).map(|out| Object::Cq(out.cqn)),
            create_qp::In::OPCODE => create_qp::Out::parse(output).map(|out| Object::Qp(out.qpn)),
            create_mkey::In::OPCODE => {
                create_mkey::Out::parse(output).map(|out| Object::Mkey(out.mkey_index))
            }
            _ => {
                return Err(invalid(
                    CALL,
                    format!("opcode {opcode:#x} creates no object"),
                ));
            }
        };
        let object = object.map_err(|error| invalid(CALL, error.to_string()))?;
        Ok(self.objects().add(object))
    }

    fn modify(&self, object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.object("obj_modify", object)?;
        self.execute("obj_modify", input, output)
    }

    fn query(&self, object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.object("obj_query", object)?;
        // Whoever asks in a loop waits for the NIC to get somewhere.
        self.advance();
        self.execute("obj_query", input, output)
    }

    fn destroy(&self, object: NicHandle) -> Result<()> {
        const CALL: &str = "obj_destroy";
        self.undo(CALL, object, |object| {
            let command = match object {
                Object::Cq(cqn) => destroy_cq::In { cqn }.emit(),
                Object::Qp(qpn) => destroy_qp::In { qpn }.emit(),
                Object::Mkey(mkey_index) => destroy_mkey::In { mkey_index }.emit(),
                _ => return Err(invalid(CALL, "not an object that a mailbox created".into())),
            };
            self.model()
                .command(&command, &mut [0; 16])
                .map_err(|refused| refusal_of_destruction(CALL, &refused))
        })
    }

    fn alloc_pd(&self) -> Result<PdInfo> {
        let pdn = self
            .model_about(About::NoQueue)
            .alloc_pd()
            .map_err(|error| from_model("alloc_pd", &error))?;
        Ok(PdInfo {
            handle: self.objects().add(Object::Pd(pdn)),
            pdn,
        })
    }

    fn dealloc_pd(&self, pd: NicHandle) -> Result<()> {
        const CALL: &str = "dealloc_pd";
        self.undo(CALL, pd, |object| match object {
            Object::Pd(pdn) => self
                .model_about(About::NoQueue)
                .dealloc_pd(pdn)
                .map_err(|error| from_model(CALL, &error)),
            _ => Err(invalid(CALL, "not a PD".into())),
        })
    }

    fn data_direct(&self) -> Result<bool> {
        Ok(self.model().config().data_direct)
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        const CALL: &str = "reg_mr";
        let Object::Pd(pdn) = self.object(CALL, pd)? else {
            return Err(invalid(CALL, "not a PD".into()));
        };
        if is_data_direct(region) && !self.data_direct()? {
            let text = "the NIC has no data-direct function";
            return Err(DriverError::new(CALL, DriverErrorKind::Unsupported, text));
        }
        // SAFETY: the caller promises for as long as the region is registered, which is as long as
        // the window is open.
        let (range, window) = unsafe { self.resolve(CALL, region) }?;
        let registered = self
            .model_about(About::NoQueue)
            .reg_mr(pdn, range, access.bits());
        match registered {
            Ok(keys) => Ok(MrInfo {
                handle: self.objects().add(Object::Mr {
                    lkey: keys.lkey,
                    window,
                }),
                lkey: keys.lkey,
                rkey: keys.rkey,
            }),
            Err(error) => {
                self.close_window(window);
                Err(from_model(CALL, &error))
            }
        }
    }

    fn dereg_mr(&self, mr: NicHandle) -> Result<()> {
        const CALL: &str = "dereg_mr";
        self.undo(CALL, mr, |object| {
            let Object::Mr { lkey, window } = object else {
                return Err(invalid(CALL, "not an MR".into()));
            };
            self.model_about(About::NoQueue)
                .dereg_mr(lkey)
                .map_err(|error| from_model(CALL, &error))?;
            self.close_window(window);
            Ok(())
        })
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        const CALL: &str = "umem_reg";
        if is_data_direct(region) {
            let text = "queues cannot lie behind the data-direct function";
            return Err(invalid(CALL, text.into()));
        }
        // SAFETY: the caller promises for as long as the UMEM is registered, which is as long as
        // the window is open.
        let (range, window) = unsafe { self.resolve(CALL, region) }?;
        let registered =
            self.model_about(About::NoQueue)
                .reg_umem(range, page_sizes, access.bits());
        match registered {
            Ok(id) => Ok(UmemInfo {
                handle: self.objects().add(Object::Umem { id, window }),
                id,
            }),
            Err(error) => {
                self.close_window(window);
                Err(from_model(CALL, &error))
            }
        }
    }

    fn dereg_umem(&self, umem: NicHandle) -> Result<()> {
        const CALL: &str = "umem_dereg";
        self.undo(CALL, umem, |object| {
            let Object::Umem { id, window } = object else {
                return Err(invalid(CALL, "not a UMEM".into()));
            };
            self.model_about(About::NoQueue)
                .dereg_umem(id)
                .map_err(|error| from_model(CALL, &error))?;
            self.close_window(window);
            Ok(())
        })
    }

    fn alloc_uar(&self, kind: UarKind) -> Result<UarInfo> {
        let kind = match kind {
            UarKind::NonCachedDedicated => model::UarKind::NonCachedDedicated,
            UarKind::NonCached => model::UarKind::NonCached,
            UarKind::BlueFlame => model::UarKind::BlueFlame,
        };
        const CALL: &str = "alloc_uar";
        let shared = self
            .one_page()
            .filter(|_| kind != model::UarKind::BlueFlame);
        let (page_id, page) = match shared {
            None => self.make_page(CALL, kind)?,
            Some(mut shared) => {
                let mut one = match *shared {
                    Some(one) => one,
                    None => {
                        let (id, addr) = self.make_page(CALL, kind)?;
                        OnePage { id, addr, users: 0 }
                    }
                };
                one.users += 1;
                *shared = Some(one);
                (one.id, one.addr)
            }
        };
        let page_len = doorbell::UAR_PAGE as u64;
        Ok(UarInfo {
            handle: self.objects().add(Object::Uar(page_id)),
            page_id,
            page,
            page_len,
            doorbell_offset: doorbell::REGISTER as u32,
        })
    }

    fn free_uar(&self, uar: NicHandle) -> Result<()> {
        const CALL: &str = "free_uar";
        self.undo(CALL, uar, |object| {
            let Object::Uar(page) = object else {
                return Err(invalid(CALL, "not a doorbell page".into()));
            };
            if let Some(mut shared) = self.one_page()
                && let Some(one) = shared.as_mut().filter(|one| one.id == page)
            {
                one.users = one.users.saturating_sub(1);
                return Ok(());
            }
            self.model_about(About::Page(page))
                .free_uar(page)
                .map_err(|error| from_model(CALL, &error))?;
            if let Drive::Background { thread, number } = &self.drive {
                thread.unmap(*number, page);
            }
            Ok(())
        })
    }

    fn ring_doorbell(&self, uar: NicHandle, value: [u8; 8]) -> Result<()> {
        const CALL: &str = "ring_doorbell";
        let Object::Uar(page) = self.object(CALL, uar)? else {
            return Err(invalid(CALL, "not a doorbell page".into()));
        };
        let register = u64::from(page) * doorbell::UAR_PAGE as u64 + doorbell::REGISTER as u64;
        match &self.drive {
            Drive::Stepped { bar } => {
                let store = bus::Access {
                    agent: bus::Agent::Host,
                    order: bus::Order::Mmio,
                    scope: bus::Scope::Sys,
                    purpose: bus::Purpose::Instruction,
                    site: 0,
                };
                let mut bus = self.bus.lock();
                // The barrier that the trait demands.
                bus.memory
                    .fence(store.agent, bus::FenceKind::AcqRel, store.scope);
                bus.mmio_store(store, bar + register, &value)
            }
            Drive::Background { .. } => self
                .model_about(About::Page(page))
                .mmio_write(register, &value),
        }
        .map_err(|fault| invalid(CALL, fault.to_string()))?;
        self.advance();
        Ok(())
    }

    fn take_events(&self) -> Result<Vec<Event>> {
        Ok(self.model_about(About::NoQueue).take_events())
    }

    fn query_eqn(&self, vector: u32) -> Result<u32> {
        self.model_about(About::NoQueue)
            .query_eqn(vector)
            .map_err(|error| from_model("query_eqn", &error))
    }

    fn query_port(&self, port: u8) -> Result<PortInfo> {
        let info = self
            .model_about(About::NoQueue)
            .query_port(port)
            .map_err(|error| from_model("query_port", &error))?;
        Ok(PortInfo {
            active: info.active,
            link_layer: match info.link_layer {
                model::LinkLayer::InfiniBand => LinkLayer::InfiniBand,
                model::LinkLayer::Ethernet => LinkLayer::Ethernet,
            },
            mtu: info.mtu,
            log_max_message: info.log_max_message,
            lid: info.lid,
            gids: info.gids,
            grh_required: info.grh_required,
        })
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        let entry = self
            .model_about(About::NoQueue)
            .query_gid(port, index)
            .map_err(|error| from_model("query_gid", &error))?;
        Ok(entry.map(|entry| GidEntry {
            gid: entry.gid,
            kind: match entry.kind {
                model::GidKind::InfiniBand => GidKind::InfiniBand,
                model::GidKind::RoceV1 => GidKind::RoceV1,
                model::GidKind::RoceV2 => GidKind::RoceV2,
            },
            mac: entry.mac,
        }))
    }

    fn resolve_mac(
        &self,
        pd: NicHandle,
        port: u8,
        gid_index: u32,
        remote: [u8; 16],
    ) -> Result<[u8; 6]> {
        const CALL: &str = "create_ah";
        let Object::Pd(_) = self.object(CALL, pd)? else {
            return Err(invalid(CALL, "not a PD".into()));
        };
        self.model_about(About::NoQueue)
            .resolve_mac(port, gid_index, remote)
            .map_err(|error| from_model(CALL, &error))
    }
}

impl fmt::Debug for SimNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimNic({})", self.name())
    }
}

/// True of commands that the kernel passes on only for an object that the caller has made (Linux mlx5_ib
/// `devx_is_general_cmd`, `devx_is_obj_create_cmd`, `devx_is_obj_modify_cmd`, `devx_is_obj_query_cmd`).
fn concerns_an_object(opcode: u16) -> bool {
    matches!(
        opcode,
        create_cq::In::OPCODE
            | create_qp::In::OPCODE
            | create_mkey::In::OPCODE
            | create_rmp::In::OPCODE
            | alloc_pd::In::OPCODE
            | alloc_q_counter::In::OPCODE
            | alloc_transport_domain::In::OPCODE
            | alloc_uar::In::OPCODE
            | destroy_cq::In::OPCODE
            | destroy_qp::In::OPCODE
            | destroy_mkey::In::OPCODE
            | destroy_rmp::In::OPCODE
            | dealloc_pd::In::OPCODE
            | dealloc_q_counter::In::OPCODE
            | dealloc_transport_domain::In::OPCODE
            | dealloc_uar::In::OPCODE
            | rst2init_qp::In::OPCODE
            | init2init_qp::In::OPCODE
            | init2rtr_qp::In::OPCODE
            | rtr2rts_qp::In::OPCODE
            | rts2rts_qp::In::OPCODE
            | sqerr2rts_qp::In::OPCODE
            | qp_2err::In::OPCODE
            | qp_2rst::In::OPCODE
            | modify_rmp::In::OPCODE
            | query_cq::In::OPCODE
            | query_qp::In::OPCODE
            | query_rmp::In::OPCODE
            | query_q_counter::In::OPCODE
    )
}

fn no_handle(call: &'static str, handle: NicHandle) -> DriverError {
    DriverError::new(
        call,
        DriverErrorKind::NotFound,
        format!("no object has handle {}", handle.0),
    )
}

fn invalid(call: &'static str, text: String) -> DriverError {
    DriverError::new(call, DriverErrorKind::InvalidArgument, text)
}

/// What Linux's driver returns when a command was not answered in time.
const ETIMEDOUT: i32 = 110;

fn refusal(call: &'static str, refused: &CommandError) -> DriverError {
    let kind = match refused.check {
        model::Check::NoAnswer => DriverErrorKind::Os(ETIMEDOUT),
        _ => DriverErrorKind::Command {
            status: refused.status(),
            syndrome: refused.syndrome(),
        },
    };
    DriverError::new(call, kind, refused.to_string())
}

/// Of a destruction the kernel hands on no mailbox, but the status as an error number (Linux mlx5 `cmd_status_to_err`): the kind that
/// it leads to in a driver over rdma-core.
fn refusal_of_destruction(call: &'static str, refused: &CommandError) -> DriverError {
    let error = refusal(call, refused);
    let kind = match error.kind {
        DriverErrorKind::Command { status, .. } => match Status::from_code(status) {
            Status::ResourceBusy => DriverErrorKind::Busy,
            Status::LimitExceeded | Status::NoResources => DriverErrorKind::Exhausted,
            Status::InternalError
            | Status::BadSystemState
            | Status::BadInputLength
            | Status::BadOutputLength => DriverErrorKind::DeviceLost,
            _ => DriverErrorKind::InvalidArgument,
        },
        other => other,
    };
    DriverError { kind, ..error }
}

fn from_model(call: &'static str, error: &NicError) -> DriverError {
    let kind = match error {
        NicError::NoObject(_) => DriverErrorKind::NotFound,
        NicError::Busy { .. } => DriverErrorKind::Busy,
        NicError::Exhausted(_) => DriverErrorKind::Exhausted,
        _ => DriverErrorKind::InvalidArgument,
    };
    DriverError::new(call, kind, error.to_string())
}
