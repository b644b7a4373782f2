//! The RC queue pair.
//!
//! Knows: how it is created, connected and reset, and what must outlive it.
//! Must not know: GPU threads.

use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::qpc::{
    Mtu, OptParam, PathMigration, Qpc, RqType, ServiceType, TimestampFormat,
};
use warpverbs_wire::prm::{create_qp, init2rtr_qp, qp_2rst, rst2init_qp, rtr2rts_qp};

use super::cq::CqNode;
use super::queues::{Layout, Queues};
use super::uar::UarMapNode;
use super::umem::UmemNode;
use super::{Context, GpuContext, Pd, QpConfig, mailbox};
use crate::connect::{ConnectInfo, InfoError};
use crate::driver::{Access, GidEntry, GidKind, LinkLayer, Nic, NicHandle, PortInfo};
use crate::error::{Error, Refused, Result};
use crate::teardown::{Node, Owner, Registry, Shared};

/// The GID that a QP sends from.
#[derive(Clone, Copy, Debug)]
struct Gid {
    index: u8,
    entry: GidEntry,
}

impl Gid {
    fn find(nic: &dyn Nic, config: &QpConfig, port: &PortInfo) -> Result<Self> {
        let query = |index: u8| -> Result<Option<Self>> {
            let entry = nic
                .query_gid(config.port, index.into())
                .map_err(Error::driver("query the GID table"))?;
            Ok(entry.map(|entry| Self { index, entry }))
        };
        if config.gid_index.is_none() && port.link_layer == LinkLayer::Ethernet {
            // `ads.src_addr_index` has 8 bits.
            for index in 0..port.gids.min(256) {
                match query(index as u8)? {
                    Some(gid) if gid.entry.kind == GidKind::RoceV2 => return Ok(gid),
                    _ => {}
                }
            }
        }
        let index = config.gid_index.unwrap_or(0);
        query(index)?.ok_or_else(|| Error::InvalidArgument {
            what: format!("GID {index} of port {} is empty", config.port),
            cure: "choose a GID index that is in use",
        })
    }
}

/// What the QP was last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reset,
    Connected,
    /// A transition failed and so did the way back.
    Lost,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Reset => "not connected",
            Self::Connected => "connected",
            Self::Lost => "in an unknown state",
        }
    }
}

/// An RC queue pair whose send queue lies in GPU memory, and its CQ.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    port: PortInfo,
    gid: Gid,
    qpn: u32,
    state: State,
    // Children before parents: fields are dropped in order.
    qp: Owner<QpNode>,
    queues: Queues,
    pd: Pd,
    gpu: GpuContext,
}

impl QueuePair {
    /// Creates a QP with its queues in GPU memory. Connect it, then export it.
    pub fn create(pd: &Pd, gpu: &GpuContext, config: &QpConfig) -> Result<Self> {
        let context = pd.context();
        let nic = context.driver();
        let port = nic
            .query_port(config.port)
            .map_err(Error::driver("query the port"))?;
        config.check(context, &port)?;
        let gid = Gid::find(nic, config, &port)?;
        let layout = Layout::new(config.depth, config.cq_form);
        let queues = Queues::build(pd, gpu, layout, config.first_index)?;
        let input = create_qp::In {
            qpc: Qpc {
                st: ServiceType::Rc,
                pm_state: PathMigration::Migrated,
                pd: pd.pdn(),
                uar_page: queues.uar().page_id(),
                rq_type: RqType::ZeroSize,
                log_sq_size: layout.sq_depth.ilog2() as u8,
                cqn_snd: queues.cq_owner().cqn(),
                cqn_rcv: queues.cq_owner().cqn(),
                ts_format: if context.capabilities().default_timestamps {
                    TimestampFormat::DefaultFormat
                } else {
                    TimestampFormat::FreeRunning
                },
                dbr_umem_valid: true,
                dbr_umem_id: queues.umem().id(),
                dbr_addr: layout.qp_dbr,
                ..Qpc::default()
            },
            wq_umem_valid: true,
            wq_umem_id: queues.umem().id(),
            wq_umem_offset: layout.sq,
            ..create_qp::In::default()
        };
        let (handle, out) = mailbox::create(nic, "create the QP", &input)?;
        let qp = Owner::new(QpNode {
            context: context.clone(),
            handle,
            _cq: queues.cq_owner().node(),
            _map: queues.map().node(),
            _umem: queues.umem().node(),
            _pd: pd.clone(),
        });
        tracing::debug!(qpn = out.qpn, depth = config.depth, form = ?config.cq_form, "QP created");
        Ok(Self {
            config: config.clone(),
            port,
            gid,
            qpn: out.qpn,
            state: State::Reset,
            qp,
            queues,
            pd: pd.clone(),
            gpu: gpu.clone(),
        })
    }

    /// QP number, 24 bits.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Its options.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// WQEBBs of its send queue.
    pub fn depth(&self) -> u32 {
        self.config.depth
    }

    /// The GPU that its queues are in.
    pub fn gpu(&self) -> &GpuContext {
        &self.gpu
    }

    /// log2 of the largest message in bytes that its port carries.
    pub fn log_max_message(&self) -> u8 {
        self.port.log_max_message
    }

    /// What the remote end must be given to connect to this QP.
    pub fn local_info(&self) -> Vec<u8> {
        self.info().to_bytes()
    }

    /// Connects the QP to the one whose [`Self::local_info`] is given: RST to INIT to RTR to RTS.
    /// If that fails, the QP is reset and can be connected again.
    pub fn connect(&mut self, remote: &[u8]) -> Result<()> {
        if self.state != State::Reset {
            return Err(Error::QpState {
                doing: "connect it",
                state: self.state.name(),
            });
        }
        let remote = ConnectInfo::parse(remote)?;
        if remote.link_layer != self.port.link_layer {
            return Err(Error::ConnectInfo(InfoError::LinkLayer {
                local: self.port.link_layer,
                remote: remote.link_layer,
            }));
        }
        if let Err(error) = self.to_rts(&remote) {
            // Nothing was posted yet, so indices and CQ are as they were.
            if let Err(also) = self.modify("reset the QP", &qp_2rst::In { qpn: self.qpn }) {
                self.state = State::Lost;
                tracing::error!(qpn = self.qpn, %also, "a QP that failed to connect is not reset");
            }
            return Err(error);
        }
        self.state = State::Connected;
        tracing::debug!(qpn = self.qpn, remote = remote.qpn, "QP connected");
        Ok(())
    }

    /// Destroys the QP, its CQ, doorbell page and memory. After a refusal, closing again goes on
    /// where it stopped.
    #[allow(clippy::result_large_err, reason = "a refusal hands the QP back")]
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        match self.close_parts() {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { error, value: self }),
        }
    }

    fn close_parts(&mut self) -> Result<()> {
        self.state = State::Lost;
        self.qp.close()?;
        self.queues.close_parts()
    }

    fn info(&self) -> ConnectInfo {
        ConnectInfo {
            qpn: self.qpn,
            psn: self.psn(),
            // `QpConfig::check` has seen that it is an MTU: at most 4096.
            mtu: self.config.mtu.unwrap_or(self.port.mtu) as u16,
            lid: self.port.lid,
            link_layer: self.port.link_layer,
            log_reads: self
                .pd
                .context()
                .capabilities()
                .log_max_reads_answered
                .min(MAX_LOG_READS),
            gid: self.gid.entry.gid,
        }
    }

    fn psn(&self) -> u32 {
        // An odd multiplier spreads consecutive QPNs over the 24 bits.
        let derived = self.qpn.wrapping_mul(0x9e_3779) & 0x00ff_ffff;
        self.config.psn.unwrap_or(derived)
    }

    fn to_rts(&self, remote: &ConnectInfo) -> Result<()> {
        let local = self.info();
        let may = |access: Access| self.config.access.contains(access);
        let path = Ads {
            vhca_port_num: self.config.port,
            pkey_index: self.config.pkey_index,
            ..Ads::default()
        };
        let rights = Qpc {
            pm_state: PathMigration::Migrated,
            rre: may(Access::REMOTE_READ),
            rwe: may(Access::REMOTE_WRITE),
            primary_address_path: path,
            ..Qpc::default()
        };
        self.modify(
            "move the QP to INIT",
            &rst2init_qp::In {
                qpn: self.qpn,
                qpc: rights,
                ..rst2init_qp::In::default()
            },
        )?;
        let mtu = local.mtu.min(remote.mtu);
        self.modify(
            "move the QP to RTR",
            &init2rtr_qp::In {
                qpn: self.qpn,
                opt_param_mask: OptParam::RRE | OptParam::RWE,
                qpc: Qpc {
                    mtu: Mtu::from_bytes(mtu.into()).unwrap_or_default(),
                    log_msg_max: self.port.log_max_message,
                    remote_qpn: remote.qpn,
                    next_rcv_psn: remote.psn,
                    log_rra_max: local.log_reads,
                    min_rnr_nak: self.config.min_rnr_timer,
                    primary_address_path: self.path_to(remote, path)?,
                    ..rights
                },
                ..init2rtr_qp::In::default()
            },
        )?;
        self.modify(
            "move the QP to RTS",
            &rtr2rts_qp::In {
                qpn: self.qpn,
                qpc: Qpc {
                    next_send_psn: local.psn,
                    log_sra_max: self
                        .pd
                        .context()
                        .capabilities()
                        .log_max_reads
                        .min(remote.log_reads),
                    retry_count: self.config.retry_count,
                    rnr_retry: self.config.rnr_retry,
                    primary_address_path: Ads {
                        ack_timeout: self.config.timeout,
                        ..path
                    },
                    pm_state: PathMigration::Migrated,
                    ..Qpc::default()
                },
                ..rtr2rts_qp::In::default()
            },
        )
    }

    /// The path to a remote end. On InfiniBand it is within the subnet, without GRH.
    fn path_to(&self, remote: &ConnectInfo, path: Ads) -> Result<Ads> {
        Ok(match self.port.link_layer {
            LinkLayer::InfiniBand => Ads {
                rlid: remote.lid,
                sl: self.config.service_level,
                ..path
            },
            LinkLayer::Ethernet => Ads {
                rmac: self
                    .pd
                    .context()
                    .driver()
                    .resolve_mac(
                        self.pd.info().handle,
                        self.config.port,
                        self.gid.index.into(),
                        remote.gid,
                    )
                    .map_err(Error::driver("resolve the remote MAC address"))?,
                rgid_rip: remote.gid,
                src_addr_index: self.gid.index,
                hop_limit: self.config.hop_limit,
                tclass: self.config.traffic_class,
                eth_prio: self.config.service_level & 7,
                // RoCE v2 has an IP header and a UDP port; RoCE v1 has a GRH only.
                dscp: if self.is_roce_v2() {
                    self.config.traffic_class >> 2
                } else {
                    0
                },
                udp_sport: if self.is_roce_v2() {
                    self.config.udp_source_port
                } else {
                    0
                },
                ..path
            },
        })
    }

    fn is_roce_v2(&self) -> bool {
        self.gid.entry.kind == GidKind::RoceV2
    }

    fn modify<C: warpverbs_wire::prm::Command>(
        &self,
        doing: &'static str,
        input: &C,
    ) -> Result<()> {
        let handle = self.qp.get()?.handle;
        mailbox::modify(self.pd.context().driver(), handle, doing, input).map(drop)
    }

    pub(crate) fn require_connected(&self, doing: &'static str) -> Result<()> {
        self.qp.get()?;
        match self.state {
            State::Connected => Ok(()),
            state => Err(Error::QpState {
                doing,
                state: state.name(),
            }),
        }
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }
}

/// Largest `qpc.log_rra_max` and `qpc.log_sra_max`: 3 bits.
const MAX_LOG_READS: u8 = 7;

pub(crate) struct QpNode {
    context: Context,
    handle: NicHandle,
    _cq: Shared<CqNode>,
    _map: Shared<UarMapNode>,
    _umem: Shared<UmemNode>,
    _pd: Pd,
}

impl Node for QpNode {
    const NAME: &'static str = "QP";

    fn destroy(&mut self) -> Result<()> {
        self.context
            .driver()
            .destroy(self.handle)
            .map_err(Error::driver("destroy the QP"))
    }

    fn registry(&self) -> &Registry {
        self.context.registry()
    }
}
