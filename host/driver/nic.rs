//! The NIC boundary: what libmlx5's DevX gives, and nothing more.
//!
//! Mailboxes are built and read by `warpverbs_wire::prm`, never by an implementation. Every method
//! is one call of the driver; undoing one is a method of its own, called exactly once by the owner
//! in `resource/`.

use std::fmt;

use warpverbs_wire::eqe::Event;

use super::DriverError;

/// Access flags of an MR or UMEM (`IBV_ACCESS_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access(u32);

impl Access {
    /// Read by the NIC only, for local use.
    pub const LOCAL_READ: Self = Self(0);
    /// `IBV_ACCESS_LOCAL_WRITE`
    pub const LOCAL_WRITE: Self = Self(1);
    /// `IBV_ACCESS_REMOTE_WRITE`; needs local write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// `IBV_ACCESS_REMOTE_READ`
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// `IBV_ACCESS_REMOTE_ATOMIC`; needs local write.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// `IBV_ACCESS_RELAXED_ORDERING`
    pub const RELAXED_ORDERING: Self = Self(1 << 20);

    /// True if all of `other` is in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The `IBV_ACCESS_*` bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Memory that a NIC is asked to register.
#[derive(Clone, Copy, Debug)]
pub enum MemoryRegion {
    /// Process memory, or GPU memory through a peer-memory module.
    Address {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// A range of a dmabuf.
    Dmabuf {
        /// Its descriptor; the caller closes it after the call.
        fd: i32,
        /// First byte in the dmabuf.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Address by which work requests name the first byte.
        iova: u64,
        /// Reached over the NIC's data-direct function; of an MR only, and only where [`Nic::data_direct`] says so.
        data_direct: bool,
    },
}

/// A driver's name for one of its objects. Meaningless to anyone else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicHandle(pub u64);

/// A protection domain.
#[derive(Clone, Copy, Debug)]
pub struct PdInfo {
    /// The driver's handle.
    pub handle: NicHandle,
    /// PD number, 24 bits.
    pub pdn: u32,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub struct MrInfo {
    /// The driver's handle.
    pub handle: NicHandle,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A UMEM.
#[derive(Clone, Copy, Debug)]
pub struct UmemInfo {
    /// The driver's handle.
    pub handle: NicHandle,
    /// UMEM id, as mailboxes name it.
    pub id: u32,
}

/// A doorbell page.
#[derive(Clone, Copy, Debug)]
pub struct UarInfo {
    /// The driver's handle.
    pub handle: NicHandle,
    /// Page id, as mailboxes name it.
    pub page_id: u32,
    /// Address of the page, as the CPU has it mapped.
    pub page: u64,
    /// Bytes of the page.
    pub page_len: u64,
    /// Byte offset of the doorbell register in the page (0x800).
    pub doorbell_offset: u32,
}

/// Kinds of doorbell page (`MLX5DV_UAR_ALLOC_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UarKind {
    /// Not cached, and shared with no other allocation.
    NonCachedDedicated,
    /// Not cached.
    NonCached,
    /// Write-combining, for BlueFlame.
    BlueFlame,
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    InfiniBand,
    /// RoCE: addressed by GID and MAC.
    Ethernet,
}

/// A port (`ibv_query_port`).
#[derive(Clone, Copy, Debug)]
pub struct PortInfo {
    /// True if the port is active.
    pub active: bool,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Active MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// log2 of the largest message in bytes.
    pub log_max_message: u8,
    /// LID; zero on Ethernet.
    pub lid: u16,
    /// GID table entries.
    pub gids: u32,
    /// True if packets must carry a GRH on InfiniBand too (`IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
}

/// Kinds of GID (`ibv_gid_type_sysfs`, `ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1.
    RoceV1,
    /// RoCE v2.
    RoceV2,
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID, in network byte order.
    pub gid: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
    /// The port's MAC address; zeroes on InfiniBand.
    pub mac: [u8; 6],
}

/// A NIC, opened. Shared by all owners of its objects.
pub trait Nic: Send + Sync + fmt::Debug {
    /// The device's name, such as `mlx5_0` or `sim0`.
    fn name(&self) -> String;

    /// Executes a command that creates no object (`mlx5dv_devx_general_cmd`).
    fn command(&self, input: &[u8], output: &mut [u8]) -> Result<(), DriverError>;
    /// Creates an object (`mlx5dv_devx_obj_create`).
    fn create(&self, input: &[u8], output: &mut [u8]) -> Result<NicHandle, DriverError>;
    /// Modifies an object (`mlx5dv_devx_obj_modify`).
    fn modify(&self, object: NicHandle, input: &[u8], output: &mut [u8])
    -> Result<(), DriverError>;
    /// Queries an object (`mlx5dv_devx_obj_query`).
    fn query(&self, object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<(), DriverError>;
    /// Destroys an object (`mlx5dv_devx_obj_destroy`): the driver sends the destroy command that
    /// belongs to it.
    fn destroy(&self, object: NicHandle) -> Result<(), DriverError>;

    /// Allocates a protection domain.
    fn alloc_pd(&self) -> Result<PdInfo, DriverError>;
    /// Frees one.
    fn dealloc_pd(&self, pd: NicHandle) -> Result<(), DriverError>;

    /// True if the NIC has a data-direct function: a second path to GPU memory beside that of its own PCIe function
    /// (`mlx5dv_get_data_direct_sysfs_path`).
    fn data_direct(&self) -> Result<bool, DriverError> {
        Ok(false)
    }

    /// Registers memory (`ibv_reg_mr_iova2`, `ibv_reg_dmabuf_mr`, `mlx5dv_reg_dmabuf_mr`).
    ///
    /// # Safety
    ///
    /// A region given by address stays allocated until it is deregistered, and nothing holds a Rust
    /// reference to its bytes while the NIC may access them, unless they are atomics or in an
    /// `UnsafeCell`.
    #[allow(unsafe_code, reason = "the NIC writes to the memory on its own")]
    unsafe fn reg_mr(
        &self,
        pd: NicHandle,
        region: MemoryRegion,
        access: Access,
    ) -> Result<MrInfo, DriverError>;
    /// Deregisters memory.
    fn dereg_mr(&self, mr: NicHandle) -> Result<(), DriverError>;

    /// Registers memory for queues and doorbell records (`mlx5dv_devx_umem_reg_ex`). `page_sizes`
    /// is the bitmap of page sizes that the caller can use: without it a driver promises offset 0
    /// only.
    ///
    /// # Safety
    ///
    /// As for [`Self::reg_mr`].
    #[allow(unsafe_code, reason = "the NIC writes to the memory on its own")]
    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo, DriverError>;
    /// Deregisters a UMEM.
    fn dereg_umem(&self, umem: NicHandle) -> Result<(), DriverError>;

    /// Allocates a doorbell page (`mlx5dv_devx_alloc_uar`).
    fn alloc_uar(&self, kind: UarKind) -> Result<UarInfo, DriverError>;
    /// Frees one.
    fn free_uar(&self, uar: NicHandle) -> Result<(), DriverError>;

    /// Rings a doorbell page from the CPU: one store of these 8 bytes, as they lie in memory, to its doorbell register, behind
    /// a barrier: what the calling thread has stored or acquired before comes before it for the NIC (rule O3).
    fn ring_doorbell(&self, uar: NicHandle, value: [u8; 8]) -> Result<(), DriverError>;

    /// Takes what happened unasked, to objects or to the device, since the last call: never waits. A driver that keeps no
    /// events gives none.
    fn take_events(&self) -> Result<Vec<Event>, DriverError> {
        Ok(Vec::new())
    }

    /// Event queue number of a completion vector (`mlx5dv_devx_query_eqn`).
    fn query_eqn(&self, vector: u32) -> Result<u32, DriverError>;
    /// The counter set that the system shows as the port's `hw_counters`: QPs that are attached to it count there. `None` if there is
    /// none, or nobody knows. Learned from a QP of verbs, which is made and destroyed.
    fn port_counter_set(&self, _port: u8) -> Result<Option<u8>, DriverError> {
        Ok(None)
    }
    /// Queries a port; ports count from 1.
    fn query_port(&self, port: u8) -> Result<PortInfo, DriverError>;
    /// Reads one entry of a port's GID table; `None` if the entry is empty.
    fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, DriverError>;
    /// Resolves a remote RoCE GID to its MAC address (`ibv_create_ah` and `mlx5dv_init_obj`, then
    /// destroys the handle).
    fn resolve_mac(
        &self,
        pd: NicHandle,
        port: u8,
        gid_index: u32,
        remote: [u8; 16],
    ) -> Result<[u8; 6], DriverError>;
}
