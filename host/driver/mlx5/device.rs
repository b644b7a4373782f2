//! The NIC: each method a call of rdma-core.
//!
//! One of the files with `unsafe`: every call of a C library is.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warpverbs_wire::eqe::{self, Event, EventType, PortChange};
use warpverbs_wire::prm::header::Request;
use warpverbs_wire::prm::{Command, create_cq, create_qp, create_rmp, query_roce_address};

use super::counters;
use super::error::{errno, of_command, of_errno, of_loading, of_registration};
use super::objects::{Object, Table};
use crate::driver::{
    Access, DriverError, DriverErrorKind, GidEntry, GidKind, LinkLayer, MemoryRegion, MrInfo, Nic,
    NicHandle, PdInfo, PortInfo, UarInfo, UarKind, UmemInfo,
};
use crate::ffi::{self, Functions};

type Result<T> = std::result::Result<T, DriverError>;

/// Bytes of a doorbell page.
const PAGE: u64 = 4096;
/// Bytes of a DevX event: the cookie, and the EQE.
const EVENT: usize = 8 + eqe::EQE;

/// An mlx5 NIC, opened with DevX.
pub struct Mlx5 {
    functions: &'static Functions,
    context: NonNull<ffi::ibv_context>,
    /// Carries events of objects; null where the kernel has none.
    events: *mut ffi::mlx5dv_devx_event_channel,
    name: String,
    objects: Table,
    /// Addresses of doorbell pages, once for each allocation.
    pages: Mutex<Vec<u64>>,
}

// SAFETY: `Send` and `Sync` demand that the context may be used from any thread: rdma-core's calls may (verbs(7)).
unsafe impl Send for Mlx5 {}
// SAFETY: as above.
unsafe impl Sync for Mlx5 {}

impl fmt::Debug for Mlx5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mlx5")
            .field("name", &self.name)
            .field("objects", &self.objects.len())
            .finish()
    }
}

/// A list of devices, freed when it is dropped.
struct Devices {
    functions: &'static Functions,
    list: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl Devices {
    fn all(call: &'static str, functions: &'static Functions) -> Result<Self> {
        let mut count: c_int = 0;
        // SAFETY: it fills a number and returns a list, or null.
        let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(|| {
            let number = errno();
            if number == libc::ENOSYS {
                let text = "this machine's kernel has no RDMA support: load mlx5_ib, or run in `warpverbs sim-env`";
                return DriverError::new(call, DriverErrorKind::Unsupported, text);
            }
            of_errno(call, number)
        })?;
        Ok(Self {
            functions,
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn iter(&self) -> impl Iterator<Item = (*mut ffi::ibv_device, String)> + '_ {
        (0..self.count).filter_map(|index| {
            // SAFETY: `read` demands an initialised pointer in bounds: the list has `count` devices.
            let device = unsafe { self.list.add(index).read() };
            // SAFETY: it takes a device of a list that is not freed yet, and returns a string that lives as long.
            let name = unsafe { (self.functions.ibv_get_device_name)(device) };
            if name.is_null() {
                return None;
            }
            // SAFETY: `CStr` demands a string with a terminator that is not changed meanwhile: a device's name is constant.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: it takes a list of `ibv_get_device_list`, once. A device that was opened lives on by itself.
        unsafe { (self.functions.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

impl Mlx5 {
    /// Names of the RDMA devices of this machine, mlx5 or not.
    pub fn devices() -> Result<Vec<String>> {
        const CALL: &str = "get_device_list";
        let functions = Functions::get().map_err(|error| of_loading(CALL, &error))?;
        let devices = Devices::all(CALL, functions)?;
        Ok(devices.iter().map(|(_, name)| name).collect())
    }

    /// Opens a NIC by name, such as `mlx5_0`, with DevX.
    pub fn open(name: &str) -> Result<Self> {
        const CALL: &str = "open_device";
        let functions = Functions::get().map_err(|error| of_loading(CALL, &error))?;
        let devices = Devices::all(CALL, functions)?;
        let mut called = devices.iter().filter(|(_, found)| found == name);
        let first = called.next();
        let more = called.count();
        if more > 0 {
            let text = format!(
                "{} devices are called {name:?}: give each a name of its own (`rdma dev set`)",
                more + 1
            );
            return Err(DriverError::new(
                CALL,
                DriverErrorKind::InvalidArgument,
                text,
            ));
        }
        let Some((device, _)) = first else {
            let found: Vec<String> = devices.iter().map(|(_, name)| name).collect();
            let found = if found.is_empty() {
                "there is no RDMA device".to_owned()
            } else {
                format!("RDMA devices here: {}", found.join(", "))
            };
            return Err(DriverError::new(
                CALL,
                DriverErrorKind::NotFound,
                format!(
                    "no device {name:?}: choose one that is there, or run in `warpverbs sim-env`; {found}"
                ),
            ));
        };
        // SAFETY: it takes a device of a list that is not freed yet.
        if !unsafe { (functions.mlx5dv_is_supported)(device) } {
            return Err(DriverError::new(
                CALL,
                DriverErrorKind::Unsupported,
                format!("{name} is not an mlx5 device: choose one that is, of ConnectX-5 or later"),
            ));
        }
        let mut wanted = ffi::mlx5dv_context_attr {
            flags: ffi::MLX5DV_CONTEXT_FLAGS_DEVX,
            comp_mask: 0,
        };
        // SAFETY: it takes a device as above, and attributes that it reads.
        let context = unsafe { (functions.mlx5dv_open_device)(device, &raw mut wanted) };
        let context = NonNull::new(context).ok_or_else(|| {
            let error = of_errno(CALL, errno());
            let text = format!(
                "{name} cannot be opened with DevX ({}): it needs firmware and an mlx5_ib that offer it, and access to \
                 /dev/infiniband",
                error.text
            );
            DriverError::new(CALL, error.kind, text)
        })?;
        // SAFETY: it takes an open context.
        let events = unsafe { (functions.mlx5dv_devx_create_event_channel)(context.as_ptr(), 0) };
        if events.is_null() {
            tracing::info!(nic = name, errno = errno(), "no DevX events");
        }
        let nic = Self {
            functions,
            context,
            events,
            name: name.to_owned(),
            objects: Table::default(),
            pages: Mutex::default(),
        };
        nic.never_wait_for_events()?;
        Ok(nic)
    }

    /// True if a doorbell page that was allocated begins at `addr`.
    #[cfg(feature = "sim")]
    pub(super) fn has_doorbell_page(&self, addr: u64) -> bool {
        self.pages().contains(&addr)
    }

    fn pages(&self) -> MutexGuard<'_, Vec<u64>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(&self) -> *mut ffi::ibv_context {
        self.context.as_ptr()
    }

    /// Reading events must not block.
    fn never_wait_for_events(&self) -> Result<()> {
        const CALL: &str = "fcntl";
        // SAFETY: both are open, and their descriptors plain fields.
        let asynchronous = unsafe { self.context.as_ref().async_fd };
        let mut fds = vec![asynchronous];
        if let Some(channel) = NonNull::new(self.events) {
            // SAFETY: as above.
            fds.push(unsafe { channel.as_ref().fd });
        }
        for fd in fds {
            // SAFETY: it takes numbers.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
            // SAFETY: as above.
            if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0
            {
                return Err(of_errno(CALL, errno()));
            }
        }
        Ok(())
    }

    /// Asks for the events of an object that has some.
    fn subscribe(&self, object: *mut ffi::mlx5dv_devx_obj, opcode: u16) {
        let events: &[EventType] = match opcode {
            create_qp::In::OPCODE => &[
                EventType::WqCatastrophicError,
                EventType::WqInvalidRequest,
                EventType::WqAccessError,
                EventType::SrqLastWqe,
            ],
            create_cq::In::OPCODE => &[EventType::CqError],
            create_rmp::In::OPCODE => &[EventType::SrqCatastrophicError, EventType::SrqLimit],
            _ => return,
        };
        if self.events.is_null() {
            return;
        }
        let mut numbers: Vec<u16> = events.iter().map(|event| event.code().into()).collect();
        // SAFETY: it takes an open channel, an object of the same context, and an array of so many bytes.
        let failed = unsafe {
            (self.functions.mlx5dv_devx_subscribe_devx_event)(
                self.events,
                object,
                (numbers.len() * 2) as u16,
                numbers.as_mut_ptr(),
                0,
            )
        };
        if failed != 0 {
            tracing::info!(
                nic = self.name,
                opcode,
                errno = errno(),
                "no events of an object"
            );
        }
    }

    /// MAC address of a GID table's entry, as the firmware has it.
    fn mac_of_entry(&self, port: u8, index: u32) -> Option<[u8; 6]> {
        let command = query_roce_address::In {
            roce_address_index: u16::try_from(index).ok()?,
            vhca_port_num: port,
        };
        let input = command.encode().ok()?;
        let mut output = query_roce_address::In::reply();
        self.command(input.as_ref(), output.as_mut()).ok()?;
        let entry = query_roce_address::In::decode(output.as_ref()).ok()?;
        Some(entry.address.mac)
    }

    /// The next event of an object; `None` if there is none.
    fn object_event(&self) -> Result<Option<Event>> {
        if self.events.is_null() {
            return Ok(None);
        }
        let mut bytes = [0u64; EVENT.div_ceil(8)];
        // SAFETY: it takes an open channel and a buffer of so many bytes, aligned as its header.
        let len = unsafe {
            (self.functions.mlx5dv_devx_get_event)(self.events, bytes.as_mut_ptr().cast(), EVENT)
        };
        let Ok(len) = usize::try_from(len) else {
            return none_if_empty("devx_get_event");
        };
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let event = bytes.get(8..len).and_then(|bytes| Event::parse(bytes).ok());
        // An event that cannot be read is one all the same.
        Ok(Some(
            event.unwrap_or(Event::Other(EventType::Unknown(0xff))),
        ))
    }

    /// The next event of the device or its port; `None` if there is none.
    fn device_event(&self) -> Result<Option<Event>> {
        let mut event = std::mem::MaybeUninit::<ffi::ibv_async_event>::zeroed();
        // SAFETY: it takes an open context and fills an event.
        let failed =
            unsafe { (self.functions.ibv_get_async_event)(self.context(), event.as_mut_ptr()) };
        if failed != 0 {
            return none_if_empty("get_async_event");
        }
        // SAFETY: all of it is zero or filled, and all values of its fields are valid: pointers and numbers.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: of the events that are not about an object the number of the port is the member in use; of others it is not
        // looked at below.
        let port = unsafe { event.element.port_num } as u8;
        let port = |change| Event::Port { port, change };
        let told = match event.event_type {
            ffi::IBV_EVENT_PORT_ACTIVE => port(PortChange::Active),
            ffi::IBV_EVENT_PORT_ERR => port(PortChange::Down),
            ffi::IBV_EVENT_LID_CHANGE => port(PortChange::Lid),
            ffi::IBV_EVENT_PKEY_CHANGE => port(PortChange::PartitionKeys),
            ffi::IBV_EVENT_GID_CHANGE => port(PortChange::Guids),
            ffi::IBV_EVENT_CLIENT_REREGISTER => port(PortChange::ClientReregister),
            ffi::IBV_EVENT_DEVICE_FATAL => Event::Other(EventType::InternalError),
            _ => Event::Other(EventType::Unknown(0xff)),
        };
        // SAFETY: it takes an event of `ibv_get_async_event`, once.
        unsafe { (self.functions.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(told))
    }

    /// Runs a command on an object of DevX.
    fn on_object(
        &self,
        call: &'static str,
        handle: NicHandle,
        input: &[u8],
        output: &mut [u8],
        run: unsafe extern "C" fn(
            *mut ffi::mlx5dv_devx_obj,
            *const std::ffi::c_void,
            usize,
            *mut std::ffi::c_void,
            usize,
        ) -> c_int,
    ) -> Result<()> {
        let entry = self.objects.get(call, handle)?;
        let object = entry.used();
        let Object::Devx(devx) = *object else {
            return Err(wrong(call, "not an object that a mailbox created"));
        };
        output.fill(0);
        // SAFETY: it takes an object that stays while `object` is held, and two buffers of these lengths.
        let number = unsafe {
            run(
                devx,
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        if number == 0 {
            return Ok(());
        }
        Err(of_command(call, number, output))
    }
}

impl Drop for Mlx5 {
    fn drop(&mut self) {
        let left = self.objects.len();
        if left > 0 {
            // Closing would free what the NIC may still use.
            tracing::error!(
                nic = self.name,
                left,
                "objects are left: the device stays open"
            );
            return;
        }
        if !self.events.is_null() {
            // SAFETY: it takes an open channel, once.
            unsafe { (self.functions.mlx5dv_devx_destroy_event_channel)(self.events) };
        }
        // SAFETY: it takes an open context, once; nothing of it is left.
        let failed = unsafe { (self.functions.ibv_close_device)(self.context()) };
        if failed != 0 {
            tracing::error!(
                nic = self.name,
                errno = errno(),
                "the device does not close"
            );
        }
    }
}

/// Of a read that failed: nothing there, or an error.
fn none_if_empty<T>(call: &'static str) -> Result<Option<T>> {
    match errno() {
        libc::EAGAIN | libc::EINTR => Ok(None),
        number => Err(of_errno(call, number)),
    }
}

fn wrong(call: &'static str, text: &str) -> DriverError {
    DriverError::new(call, DriverErrorKind::InvalidArgument, text)
}

/// MAC address of a network interface; zeroes if it cannot be told.
fn mac_of_interface(index: u32) -> [u8; 6] {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).ok();
    let wanted = index.to_string();
    let mac = std::fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| read(path.join("ifindex")).is_some_and(|found| found.trim() == wanted))
        .and_then(|path| read(path.join("address")));
    let mut bytes = [0; 6];
    for (byte, text) in bytes
        .iter_mut()
        .zip(mac.as_deref().unwrap_or("").trim().split(':'))
    {
        *byte = u8::from_str_radix(text, 16).unwrap_or(0);
    }
    bytes
}

impl Nic for Mlx5 {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn command(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        const CALL: &str = "general_cmd";
        output.fill(0);
        // SAFETY: it takes an open context, and two buffers of these lengths.
        let number = unsafe {
            (self.functions.mlx5dv_devx_general_cmd)(
                self.context(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        if number == 0 {
            return Ok(());
        }
        Err(of_command(CALL, number, output))
    }

    fn create(&self, input: &[u8], output: &mut [u8]) -> Result<NicHandle> {
        const CALL: &str = "obj_create";
        let opcode = Request::parse(input)
            .map_err(|error| wrong(CALL, &error.to_string()))?
            .opcode;
        output.fill(0);
        // SAFETY: as in `command`.
        let object = unsafe {
            (self.functions.mlx5dv_devx_obj_create)(
                self.context(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        if object.is_null() {
            return Err(of_command(CALL, errno(), output));
        }
        self.subscribe(object, opcode);
        Ok(self.objects.add(Object::Devx(object)))
    }

    fn modify(&self, object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        let run = self.functions.mlx5dv_devx_obj_modify;
        self.on_object("obj_modify", object, input, output, run)
    }

    fn query(&self, object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        let run = self.functions.mlx5dv_devx_obj_query;
        self.on_object("obj_query", object, input, output, run)
    }

    fn destroy(&self, object: NicHandle) -> Result<()> {
        const CALL: &str = "obj_destroy";
        self.objects.destroy(CALL, object, |object| {
            let Object::Devx(devx) = object else {
                return Err(wrong(CALL, "not an object that a mailbox created"));
            };
            // SAFETY: it takes an object that nobody else uses, and frees it if it succeeds, after which nobody finds it.
            let number = unsafe { (self.functions.mlx5dv_devx_obj_destroy)(devx) };
            if number == 0 {
                return Ok(());
            }
            Err(of_errno(CALL, number))
        })
    }

    fn alloc_pd(&self) -> Result<PdInfo> {
        const CALL: &str = "alloc_pd";
        // SAFETY: it takes an open context.
        let pd = unsafe { (self.functions.ibv_alloc_pd)(self.context()) };
        if pd.is_null() {
            return Err(of_errno(CALL, errno()));
        }
        let mut out = ffi::mlx5dv_pd {
            pdn: 0,
            comp_mask: 0,
        };
        // SAFETY: every field is a pointer, for which zero is a value.
        let mut obj: ffi::mlx5dv_obj = unsafe { std::mem::zeroed() };
        obj.pd.in_ = pd;
        obj.pd.out = &raw mut out;
        let kind = u64::from(ffi::MLX5DV_OBJ_PD);
        // SAFETY: it reads the PD and fills `out`, the only members that `kind` names.
        let number = unsafe { (self.functions.mlx5dv_init_obj)(&raw mut obj, kind) };
        if number != 0 {
            // SAFETY: it takes a PD that nothing uses, once.
            unsafe { (self.functions.ibv_dealloc_pd)(pd) };
            return Err(of_errno(CALL, number));
        }
        Ok(PdInfo {
            handle: self.objects.add(Object::Pd(pd)),
            pdn: out.pdn,
        })
    }

    fn dealloc_pd(&self, pd: NicHandle) -> Result<()> {
        const CALL: &str = "dealloc_pd";
        self.objects.destroy(CALL, pd, |object| {
            let Object::Pd(pd) = object else {
                return Err(wrong(CALL, "not a PD"));
            };
            // SAFETY: it takes a PD that nobody else uses, and frees it if it succeeds.
            let number = unsafe { (self.functions.ibv_dealloc_pd)(pd) };
            if number == 0 {
                return Ok(());
            }
            Err(of_errno(CALL, number))
        })
    }

    fn data_direct(&self) -> Result<bool> {
        // rdma-core before 54 knows of none.
        let Some(functions) = self.functions.data_direct() else {
            return Ok(false);
        };
        // Longest path of sysfs; longer ones are cut by the kernel with ENOSPC.
        let mut path = [0u8; 4096];
        // SAFETY: it takes an open context and fills a buffer of so many bytes.
        let number = unsafe {
            (functions.mlx5dv_get_data_direct_sysfs_path)(
                self.context(),
                path.as_mut_ptr().cast(),
                path.len(),
            )
        };
        match number.abs() {
            0 | libc::ENOSPC => Ok(true),
            // No such function; or a kernel before 6.12.
            libc::ENODEV | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOTTY => Ok(false),
            number => Err(of_errno("data_direct", number)),
        }
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        const CALL: &str = "reg_mr";
        let entry = self.objects.get(CALL, pd)?;
        let object = entry.used();
        let Object::Pd(pd) = *object else {
            return Err(wrong(CALL, "not a PD"));
        };
        let mr = match region {
            MemoryRegion::Address { addr, len } => {
                let (start, len) = (addr as usize as *mut _, size(CALL, len)?);
                // SAFETY: it takes a PD that stays while `object` is held; the kernel checks the range, and the caller
                // promises that it stays allocated.
                unsafe { (self.functions.ibv_reg_mr_iova2)(pd, start, len, addr, access.bits()) }
            }
            MemoryRegion::Dmabuf {
                fd,
                offset,
                len,
                iova,
                data_direct: true,
            } => {
                let Some(register) = self.functions.data_direct() else {
                    return Err(of_registration(CALL, libc::EOPNOTSUPP));
                };
                let (len, rights) = (size(CALL, len)?, access.bits() as c_int);
                let direct = ffi::REG_DMABUF_DATA_DIRECT;
                // SAFETY: as above; the kernel checks the descriptor and takes a reference to the dmabuf.
                unsafe {
                    (register.mlx5dv_reg_dmabuf_mr)(pd, offset, len, iova, fd, rights, direct)
                }
            }
            MemoryRegion::Dmabuf {
                fd,
                offset,
                len,
                iova,
                data_direct: false,
            } => {
                let len = size(CALL, len)?;
                // SAFETY: as above; the kernel checks the descriptor and takes a reference to the dmabuf.
                unsafe {
                    (self.functions.ibv_reg_dmabuf_mr)(
                        pd,
                        offset,
                        len,
                        iova,
                        fd,
                        access.bits() as c_int,
                    )
                }
            }
        };
        let Some(registered) = NonNull::new(mr) else {
            return Err(of_registration(CALL, errno()));
        };
        // SAFETY: it was made just now, and its keys are plain fields.
        let (lkey, rkey) = unsafe { (registered.as_ref().lkey, registered.as_ref().rkey) };
        Ok(MrInfo {
            handle: self.objects.add(Object::Mr(mr)),
            lkey,
            rkey,
        })
    }

    fn dereg_mr(&self, mr: NicHandle) -> Result<()> {
        const CALL: &str = "dereg_mr";
        self.objects.destroy(CALL, mr, |object| {
            let Object::Mr(mr) = object else {
                return Err(wrong(CALL, "not an MR"));
            };
            // SAFETY: it takes an MR that nobody else uses, and frees it if it succeeds.
            let number = unsafe { (self.functions.ibv_dereg_mr)(mr) };
            if number == 0 {
                return Ok(());
            }
            Err(of_errno(CALL, number))
        })
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        const CALL: &str = "umem_reg";
        let (addr, len, comp_mask, dmabuf_fd) = match region {
            MemoryRegion::Address { addr, len } => (addr, len, 0, -1),
            MemoryRegion::Dmabuf {
                data_direct: true, ..
            } => {
                return Err(wrong(
                    CALL,
                    "queues cannot lie behind the data-direct function",
                ));
            }
            MemoryRegion::Dmabuf {
                fd, offset, len, ..
            } => {
                let mask = ffi::MLX5DV_UMEM_MASK_DMABUF;
                (offset, len, mask.into(), fd)
            }
        };
        let mut wanted = ffi::mlx5dv_devx_umem_in {
            addr: addr as usize as *mut _,
            size: size(CALL, len)?,
            access: access.bits(),
            pgsz_bitmap: page_sizes,
            comp_mask,
            dmabuf_fd,
        };
        // SAFETY: it takes an open context and reads the structure; the kernel checks the range, and the caller promises that
        // it stays allocated.
        let umem =
            unsafe { (self.functions.mlx5dv_devx_umem_reg_ex)(self.context(), &raw mut wanted) };
        let Some(registered) = NonNull::new(umem) else {
            return Err(of_registration(CALL, errno()));
        };
        // SAFETY: it was made just now, and its number is a plain field.
        let id = unsafe { registered.as_ref().umem_id };
        Ok(UmemInfo {
            handle: self.objects.add(Object::Umem(umem)),
            id,
        })
    }

    fn dereg_umem(&self, umem: NicHandle) -> Result<()> {
        const CALL: &str = "umem_dereg";
        self.objects.destroy(CALL, umem, |object| {
            let Object::Umem(umem) = object else {
                return Err(wrong(CALL, "not a UMEM"));
            };
            // SAFETY: it takes a UMEM that nobody else uses, and frees it if it succeeds.
            let number = unsafe { (self.functions.mlx5dv_devx_umem_dereg)(umem) };
            if number == 0 {
                return Ok(());
            }
            Err(of_errno(CALL, number))
        })
    }

    /// Falls back to the next kind where one is not offered: dedicated, then not cached, then BlueFlame; from BlueFlame to not
    /// cached.
    fn alloc_uar(&self, kind: UarKind) -> Result<UarInfo> {
        const CALL: &str = "alloc_uar";
        let kinds: &[u32] = match kind {
            UarKind::NonCachedDedicated => &[
                ffi::UAR_NON_CACHED_DEDICATED,
                ffi::UAR_NON_CACHED,
                ffi::UAR_BLUE_FLAME,
            ],
            UarKind::NonCached => &[ffi::UAR_NON_CACHED, ffi::UAR_BLUE_FLAME],
            UarKind::BlueFlame => &[ffi::UAR_BLUE_FLAME, ffi::UAR_NON_CACHED],
        };
        let mut refused = of_errno(CALL, libc::EOPNOTSUPP);
        for kind in kinds {
            // SAFETY: it takes an open context.
            let uar = unsafe { (self.functions.mlx5dv_devx_alloc_uar)(self.context(), *kind) };
            let Some(allocated) = NonNull::new(uar) else {
                refused = of_errno(CALL, errno());
                if matches!(
                    refused.kind,
                    DriverErrorKind::Unsupported | DriverErrorKind::InvalidArgument
                ) {
                    continue;
                }
                return Err(refused);
            };
            tracing::debug!(nic = self.name, kind, "doorbell page");
            // SAFETY: it was made just now, and these are plain fields.
            let (register, base, page_id) = unsafe {
                let uar = allocated.as_ref();
                (uar.reg_addr as usize, uar.base_addr as usize, uar.page_id)
            };
            let page = doorbell_page(register, base);
            self.pages().push(page as u64);
            return Ok(UarInfo {
                handle: self.objects.add(Object::Uar(uar)),
                page_id,
                page: page as u64,
                page_len: PAGE,
                doorbell_offset: u32::try_from(register.wrapping_sub(page)).unwrap_or(0x800),
            });
        }
        Err(refused)
    }

    fn free_uar(&self, uar: NicHandle) -> Result<()> {
        const CALL: &str = "free_uar";
        self.objects.destroy(CALL, uar, |object| {
            let Object::Uar(uar) = object else {
                return Err(wrong(CALL, "not a doorbell page"));
            };
            // SAFETY: it is not freed yet, and these are plain fields.
            let (register, base) = unsafe { ((*uar).reg_addr as usize, (*uar).base_addr as usize) };
            let page = doorbell_page(register, base) as u64;
            let mut pages = self.pages();
            if let Some(at) = pages.iter().position(|other| *other == page) {
                pages.swap_remove(at);
            }
            drop(pages);
            // SAFETY: it takes a page that nobody else uses, once.
            unsafe { (self.functions.mlx5dv_devx_free_uar)(uar) };
            Ok(())
        })
    }

    fn ring_doorbell(&self, uar: NicHandle, value: [u8; 8]) -> Result<()> {
        const CALL: &str = "ring_doorbell";
        let entry = self.objects.get(CALL, uar)?;
        let object = entry.used();
        let Object::Uar(uar) = *object else {
            return Err(wrong(CALL, "not a doorbell page"));
        };
        // SAFETY: `from_ptr` demands a word that is mapped, aligned, and accessed by no one but atomically, while the reference
        // lives: the page stays while `object` is held, a doorbell register is 8 bytes at a multiple of 8, and others who ring
        // it store words.
        let register = unsafe { AtomicU64::from_ptr((*uar).reg_addr.cast()) };
        // Records and WQEs before the doorbell (rule O3), and the doorbell before what follows: on x86-64 this is `mfence`, which
        // also empties the write-combining buffers.
        write_barrier();
        register.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        write_barrier();
        Ok(())
    }

    fn take_events(&self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while let Some(event) = self.object_event()? {
            events.push(event);
        }
        while let Some(event) = self.device_event()? {
            events.push(event);
        }
        Ok(events)
    }

    fn query_eqn(&self, vector: u32) -> Result<u32> {
        let mut eqn = 0;
        // SAFETY: it takes an open context and fills a number.
        let number =
            unsafe { (self.functions.mlx5dv_devx_query_eqn)(self.context(), vector, &raw mut eqn) };
        if number == 0 {
            Ok(eqn)
        } else {
            Err(of_errno("query_eqn", number))
        }
    }

    fn port_counter_set(&self, port: u8) -> Result<Option<u8>> {
        // SAFETY: it demands an open context, which this is until it is dropped.
        unsafe { counters::of_port(self.functions, self.context(), port) }
    }

    fn query_port(&self, port: u8) -> Result<PortInfo> {
        let mut attr = ffi::ibv_port_attr::default();
        let fields = (&raw mut attr).cast::<ffi::_compat_ibv_port_attr>();
        // SAFETY: it takes an open context and fills the fields with which both structures begin.
        let number = unsafe { (self.functions.ibv_query_port)(self.context(), port, fields) };
        if number != 0 {
            return Err(of_errno("query_port", number));
        }
        let link_layer = if u32::from(attr.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET {
            LinkLayer::Ethernet
        } else {
            LinkLayer::InfiniBand
        };
        Ok(PortInfo {
            active: attr.state == ffi::IBV_PORT_ACTIVE,
            link_layer,
            grh_required: link_layer == LinkLayer::InfiniBand
                && u32::from(attr.flags) & ffi::IB_UVERBS_QPF_GRH_REQUIRED != 0,
            mtu: 128u32.checked_shl(attr.active_mtu).unwrap_or(0),
            log_max_message: attr.max_msg_sz.checked_ilog2().unwrap_or(0) as u8,
            lid: attr.lid,
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
        })
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        // SAFETY: every field is a number, or bytes, for which zero is a value.
        let mut entry: ffi::ibv_gid_entry = unsafe { std::mem::zeroed() };
        // SAFETY: it takes an open context and fills a structure of this size.
        let number = unsafe {
            (self.functions._ibv_query_gid_ex)(
                self.context(),
                port.into(),
                index,
                &raw mut entry,
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        match number.abs() {
            0 => {}
            libc::ENODATA => return Ok(None),
            number => return Err(of_errno("query_gid", number)),
        }
        // SAFETY: the bytes are the union's member that is always valid.
        let gid = unsafe { entry.gid.raw };
        let kind = match entry.gid_type {
            ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            _ => GidKind::InfiniBand,
        };
        let mac = match kind {
            GidKind::InfiniBand => [0; 6],
            _ => self
                .mac_of_entry(port, index)
                .unwrap_or_else(|| mac_of_interface(entry.ndev_ifindex)),
        };
        Ok(Some(GidEntry { gid, kind, mac }))
    }

    fn resolve_mac(
        &self,
        pd: NicHandle,
        port: u8,
        gid_index: u32,
        remote: [u8; 16],
    ) -> Result<[u8; 6]> {
        const CALL: &str = "resolve_mac";
        let entry = self.objects.get(CALL, pd)?;
        let object = entry.used();
        let Object::Pd(pd) = *object else {
            return Err(wrong(CALL, "not a PD"));
        };
        let index = u8::try_from(gid_index).map_err(|_| wrong(CALL, "a GID index of 8 bits"))?;
        let mut attr = ffi::ibv_ah_attr {
            grh: ffi::ibv_global_route {
                dgid: ffi::ibv_gid { raw: remote },
                sgid_index: index,
                hop_limit: 64,
                ..Default::default()
            },
            is_global: 1,
            port_num: port,
            ..Default::default()
        };
        // SAFETY: it takes a PD that stays while `object` is held, and attributes that it reads.
        let ah = unsafe { (self.functions.ibv_create_ah)(pd, &raw mut attr) };
        if ah.is_null() {
            let error = of_errno(CALL, errno());
            let gid = std::net::Ipv6Addr::from(remote);
            let text = format!("the GID {gid} does not resolve: {}", error.text);
            return Err(DriverError::new(CALL, error.kind, text));
        }
        let mut out = ffi::mlx5dv_ah {
            av: std::ptr::null_mut(),
            comp_mask: 0,
        };
        // SAFETY: every field is a pointer, for which zero is a value.
        let mut obj: ffi::mlx5dv_obj = unsafe { std::mem::zeroed() };
        obj.ah.in_ = ah;
        obj.ah.out = &raw mut out;
        let kind = u64::from(ffi::MLX5DV_OBJ_AH);
        // SAFETY: it reads the address handle and fills `out`, the only members that `kind` names.
        let number = unsafe { (self.functions.mlx5dv_init_obj)(&raw mut obj, kind) };
        // SAFETY: where the call succeeded, `av` points into the address handle, which lives.
        let mac = (number == 0)
            .then(|| NonNull::new(out.av).map(|av| unsafe { av.as_ref().rmac }))
            .flatten();
        // SAFETY: it takes an address handle that nothing uses any more, once.
        unsafe { (self.functions.ibv_destroy_ah)(ah) };
        mac.ok_or_else(|| of_errno(CALL, number))
    }
}

/// The page that a doorbell register is in: libmlx5 names its beginning, if it has mapped it by itself.
fn doorbell_page(register: usize, base: usize) -> usize {
    if base == 0 {
        register & !(PAGE as usize - 1)
    } else {
        base
    }
}

fn size(call: &'static str, len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| wrong(call, "a range that no process has"))
}

/// Orders stores to memory and to a device.
fn write_barrier() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither registers nor memory.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    fence(Ordering::SeqCst);
}
