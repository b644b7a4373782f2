//! Options of a queue pair.
//!
//! Knows: which values a QP can have, on which NIC and port.
//! Must not know: how a QP is created.

use warpverbs_wire::prm::qpc::Mtu;

use super::Context;
use super::layout::cq_depth;
use crate::driver::{Access, LinkLayer, PortInfo};
use crate::error::{Error, Result};

/// How completions are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CqForm {
    /// A ring: every completion keeps its place until the ring comes around.
    #[default]
    Ring,
    /// Every completion overwrites the first entry: one line to look at, but a flush can overwrite
    /// an error's cause.
    Collapsed,
}

/// Who writes a QP's send doorbell record and its doorbell register. A launch's [`Doorbell`](crate::Doorbell) must suit it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellPath {
    /// GPU threads, both. The record lies in GPU memory; the doorbell page is mapped into the GPU.
    #[default]
    Gpu,
    /// GPU threads, the register alone: the QP has no record. Needs [`Capabilities::no_dbr`](crate::Capabilities::no_dbr);
    /// where a NIC lacks it, use [`Self::Proxy`].
    GpuWithoutRecord,
    /// A host thread, both: a [`Proxy`](crate::Proxy) that the QP is added to. GPU threads tell it of the producer in a line of host
    /// memory. The record lies in host memory too, since a copy to GPU memory may wait for the kernel that waits for it; and
    /// the page is not mapped into the GPU, so this works where a GPU cannot map it.
    Proxy,
}

/// Largest first index: 2^62 posts later the 64 bits still have not wrapped.
const MAX_FIRST_INDEX: u64 = 1 << 62;

/// Options of a QP. `QpConfig::default()` is a queue of 128 with a ring CQ on port 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct QpConfig {
    pub(super) depth: u32,
    pub(super) cq_form: CqForm,
    pub(super) receive_depth: u32,
    pub(super) doorbell_path: DoorbellPath,
    pub(super) port: u8,
    pub(super) gid_index: Option<u8>,
    pub(super) pkey_index: u16,
    pub(super) mtu: Option<u32>,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
    pub(super) hop_limit: u8,
    pub(super) udp_source_port: Option<u16>,
    pub(super) lag_port: u8,
    pub(super) psn: Option<u32>,
    pub(super) access: Access,
    pub(super) first_index: u64,
}

impl Default for QpConfig {
    fn default() -> Self {
        Self {
            depth: 128,
            cq_form: CqForm::Ring,
            receive_depth: 0,
            doorbell_path: DoorbellPath::Gpu,
            port: 1,
            gid_index: None,
            pkey_index: 0,
            mtu: None,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            service_level: 0,
            hop_limit: 64,
            udp_source_port: None,
            lag_port: 0,
            psn: None,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            first_index: 0,
        }
    }
}

impl QpConfig {
    /// WQEBBs of the send queue: a power of two. GPU threads use one less at a time.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// How completions are written.
    pub fn cq_form(mut self, form: CqForm) -> Self {
        self.cq_form = form;
        self
    }

    /// Receives that the QP holds, of up to four pieces each: a power of two; 0, the default: it has no receive queue. GPU threads
    /// post them, and take what arrives, by the handle of [`ExportedQp::receive_handle`](crate::ExportedQp::receive_handle).
    pub fn receive_depth(mut self, depth: u32) -> Self {
        self.receive_depth = depth;
        self
    }

    /// Who writes the send doorbell record and the doorbell register.
    pub fn doorbell_path(mut self, path: DoorbellPath) -> Self {
        self.doorbell_path = path;
        self
    }

    /// The path that was chosen.
    pub(crate) fn path(&self) -> DoorbellPath {
        self.doorbell_path
    }

    /// The NIC's port, from 1.
    pub fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Index in the port's GID table. Without it, the first RoCE v2 entry whose address is not link-local, or else the first RoCE v2
    /// entry, or 0 if there is none.
    pub fn gid_index(mut self, index: u8) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Index in the port's partition key table.
    pub fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// Path MTU in bytes; without it, the port's. A connection uses the smaller of both ends'.
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Local ACK timeout: 4.096 us * 2^`timeout`, 5 bits; 0 never times out.
    pub fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = timeout;
        self
    }

    /// Retries after a timeout, 3 bits.
    pub fn retry_count(mut self, count: u8) -> Self {
        self.retry_count = count;
        self
    }

    /// Retries while the receiver is not ready, 3 bits; 7 is without end.
    pub fn rnr_retry(mut self, count: u8) -> Self {
        self.rnr_retry = count;
        self
    }

    /// Code of the wait that this end asks of a sender when it is not ready, 5 bits (IBA
    /// 9.7.5.2.8).
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.min_rnr_timer = code;
        self
    }

    /// Traffic class of the IP header or GRH.
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

    /// Service level on InfiniBand, 4 bits; on Ethernet its low 3 bits are the VLAN priority.
    pub fn service_level(mut self, level: u8) -> Self {
        self.service_level = level;
        self
    }

    /// Hop limit of the IP header or GRH.
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.hop_limit = hops;
        self
    }

    /// UDP source port on RoCE v2: what switches hash to choose a path. Without it, one derived from the QPN, within what the
    /// NIC allows, so that QPs have ports of their own.
    pub fn udp_source_port(mut self, port: u16) -> Self {
        self.udp_source_port = Some(port);
        self
    }

    /// Port of a LAG that the QP sends from, counted from 1; 0, the default: the NIC chooses.
    pub fn lag_port(mut self, port: u8) -> Self {
        self.lag_port = port;
        self
    }

    /// PSN of the first packet, 24 bits. Without it, one derived from the QPN: NICs do not soon use
    /// a QPN again, so a late packet of an earlier connection does not fit, and a run can be
    /// replayed.
    pub fn psn(mut self, psn: u32) -> Self {
        self.psn = Some(psn);
        self
    }

    /// What the remote end may do: [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`], [`Access::REMOTE_ATOMIC`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Where SQ and CQ indices start. For simulated NICs only, which can be told the same: a
    /// hardware NIC starts at 0.
    pub fn first_index(mut self, index: u64) -> Self {
        self.first_index = index;
        self
    }

    /// Receives that the QP holds.
    pub(crate) fn receives(&self) -> u32 {
        self.receive_depth
    }

    pub(super) fn check(&self, context: &Context, port: &PortInfo) -> Result<()> {
        let max = context.capabilities().max_sq_depth;
        if !self.depth.is_power_of_two() || self.depth < 2 || self.depth > max {
            return Err(Error::InvalidArgument {
                what: format!("depth {} is not a power of two from 2 to {max}", self.depth),
                cure: "choose a power of two within the NIC's limit, such as 128",
            });
        }
        let cq_depth = cq_depth(self.depth, self.cq_form);
        if cq_depth > context.capabilities().max_cq_depth {
            return Err(Error::InvalidArgument {
                what: format!(
                    "depth {} needs a CQ of {cq_depth}, the NIC has at most {}",
                    self.depth,
                    context.capabilities().max_cq_depth
                ),
                cure: "choose a smaller depth, or the collapsed CQ",
            });
        }
        let receives = self.receive_depth;
        if receives != 0 && (!receives.is_power_of_two() || receives > max) {
            return Err(Error::InvalidArgument {
                what: format!("receive depth {receives} is not a power of two up to {max}"),
                cure: "choose a power of two within the NIC's limit, such as 128, or 0 for no receive queue",
            });
        }
        if self.doorbell_path == DoorbellPath::GpuWithoutRecord && !context.capabilities().no_dbr {
            return Err(Error::Unsupported {
                what: format!(
                    "NIC {} has no QPs without doorbell record (send_dbr_mode_no_dbr_ext)",
                    context.name()
                ),
                cure: "use DoorbellPath::Proxy, where a host thread rings, or DoorbellPath::Gpu",
            });
        }
        if self.psn.is_some_and(|psn| psn >= 1 << 24) {
            return Err(Error::InvalidArgument {
                what: format!(
                    "PSN {:#x} has more than 24 bits",
                    self.psn.unwrap_or_default()
                ),
                cure: "choose a PSN below 2^24",
            });
        }
        if self.first_index > MAX_FIRST_INDEX {
            return Err(Error::InvalidArgument {
                what: format!("first index {:#x} is above 2^62", self.first_index),
                cure: "start lower: indices never wrap",
            });
        }
        for (name, value, bits) in [
            ("timeout", self.timeout, 5),
            ("retry count", self.retry_count, 3),
            ("RNR retry", self.rnr_retry, 3),
            ("RNR timer", self.min_rnr_timer, 5),
            ("service level", self.service_level, 4),
        ] {
            if value >> bits != 0 {
                return Err(Error::InvalidArgument {
                    what: format!("{name} {value} has more than {bits} bits"),
                    cure: "choose a smaller value",
                });
            }
        }
        let lag_ports = context.capabilities().lag_ports;
        if self.lag_port > lag_ports {
            return Err(if lag_ports == 0 {
                Error::Unsupported {
                    what: "the NIC's ports are no LAG whose port a QP could choose".into(),
                    cure: "leave lag_port out",
                }
            } else {
                Error::InvalidArgument {
                    what: format!("LAG port {} of {lag_ports}", self.lag_port),
                    cure: "choose one of the LAG's ports, from 1, or leave lag_port out",
                }
            });
        }
        let pkeys = context.capabilities().pkeys;
        if self.pkey_index >= pkeys {
            return Err(Error::InvalidArgument {
                what: format!(
                    "partition key index {} is beyond the table's {pkeys} entries",
                    self.pkey_index
                ),
                cure: "choose the index of an entry that the subnet manager has filled, such as 0",
            });
        }
        if let Some(chosen) = self.udp_source_port
            && port.link_layer == LinkLayer::Ethernet
        {
            let Some((first, last)) = context.capabilities().udp_source_ports else {
                return Err(Error::Unsupported {
                    what: "the NIC chooses UDP source ports by itself".into(),
                    cure: "leave udp_source_port out",
                });
            };
            if !(first..=last).contains(&chosen) {
                return Err(Error::InvalidArgument {
                    what: format!(
                        "UDP source port {chosen} is not one of the NIC's, {first} to {last}"
                    ),
                    cure: "choose a port in the range, or leave udp_source_port out",
                });
            }
        }
        let mtu = self.mtu.unwrap_or(port.mtu);
        if Mtu::from_bytes(mtu).is_none() || mtu > port.mtu {
            return Err(Error::InvalidArgument {
                what: format!(
                    "an MTU of {mtu} bytes is not possible, the port has {}",
                    port.mtu
                ),
                cure: "choose 256, 512, 1024, 2048 or 4096, at most the port's",
            });
        }
        if !port.active {
            return Err(Error::InvalidArgument {
                what: format!("port {} is not active", self.port),
                cure: "bring the port up, or choose another",
            });
        }
        Ok(())
    }
}
