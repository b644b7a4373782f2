//! The RC queue pair.
//!
//! Knows: how it is created, connected and reset, and what must outlive it.
//! Must not know: GPU threads.

use std::time::Duration;

use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::qpc::{
    Mtu, OptParam, PathMigration, Qpc, RqType, ServiceType, TimestampFormat,
};
use warpverbs_wire::prm::{create_qp, init2rtr_qp, rst2init_qp, rtr2rts_qp};

use super::qp_node::{Attached, Link, Parts, QpNode};
use super::queues::{Layout, Queues};
use super::{Context, GpuContext, HostWord, Pd, QpConfig, mailbox};
use crate::connect::{ConnectInfo, InfoError};
use crate::driver::{Access, GidEntry, GidKind, LinkLayer, Nic, PortInfo};
use crate::error::{Error, Refused, Result};
use crate::teardown::{
    CloseReport, GRACE, Node, Shared, Stage, Wait, attach, building, deadline_after,
};

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

/// An RC queue pair whose send queue lies in GPU memory, and its CQ.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    port: PortInfo,
    gid: Gid,
    qpn: u32,
    /// Lives so far: each has a PSN of its own.
    generation: u32,
    // Children before parents: fields are dropped in order.
    node: Shared<QpNode>,
    queues: Queues,
    pd: Pd,
    gpu: GpuContext,
}

impl QueuePair {
    /// Creates a QP with its queues in GPU memory. Connect it, then export it.
    pub fn create(pd: &Pd, gpu: &GpuContext, config: &QpConfig) -> Result<Self> {
        building(|| Self::build(pd, gpu, config))
    }

    fn build(pd: &Pd, gpu: &GpuContext, config: &QpConfig) -> Result<Self> {
        let _entered = (pd.context().enter()?, gpu.enter()?);
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
        let pins = (
            pd.pin()?,
            queues.cq_owner().pin()?,
            queues.map().pin()?,
            queues.umem().pin()?,
        );
        let (handle, out) = mailbox::create(nic, "create the QP", &input)?;
        let qpn = out.as_ref().map_or(0, |out| out.qpn);
        let parts = Parts {
            handle,
            qpn,
            first_index: config.first_index,
            pins,
        };
        let node = Shared::new(QpNode::new(pd, gpu, &queues, parts));
        out?;
        tracing::debug!(qpn, depth = config.depth, form = ?config.cq_form, "QP created");
        Ok(Self {
            config: config.clone(),
            port,
            gid,
            qpn,
            generation: 0,
            node,
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

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
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
        let _entered = self.pd.context().enter()?;
        self.node.visit(|qp| self.connect_to(qp, remote))?
    }

    fn connect_to(&self, qp: &QpNode, remote: &[u8]) -> Result<()> {
        const DOING: &str = "connect it";
        let _one = qp.exclusive(Wait::within(GRACE))?;
        qp.require_live(DOING)?;
        let state = match qp.link() {
            Link::Down => None,
            Link::Up => Some("connected"),
            Link::Unknown => Some("in an unknown state"),
        };
        if let Some(state) = state {
            return Err(Error::QpState {
                doing: DOING,
                state,
            });
        }
        let remote = ConnectInfo::parse(remote)?;
        if remote.link_layer != self.port.link_layer {
            return Err(Error::ConnectInfo(InfoError::LinkLayer {
                local: self.port.link_layer,
                remote: remote.link_layer,
            }));
        }
        if let Err(error) = self.to_rts(qp, &remote) {
            // Nothing was posted yet, so indices and CQ are as they were.
            return Err(match qp.reset_state() {
                Ok(()) => error,
                Err(also) => {
                    qp.set_link(Link::Unknown);
                    attach(error, QpNode::NAME, also)
                }
            });
        }
        qp.set_link(Link::Up);
        tracing::debug!(qpn = self.qpn, remote = remote.qpn, "QP connected");
        Ok(())
    }

    /// Brings the QP back to where it was created, whatever has happened to it: an error completion, a stop, a failed
    /// connection. What is outstanding is flushed; indices start over, faults are forgotten, and its
    /// [`Self::local_info`] is a new one. Connect it again, to the same peer or to another. After a refusal, resetting
    /// again goes on where it stopped.
    pub fn reset(&mut self) -> Result<()> {
        let _entered = self.pd.context().enter()?;
        self.node.visit(|qp| qp.reset(Wait::within(GRACE)))??;
        self.generation = self.generation.wrapping_add(1);
        tracing::debug!(qpn = self.qpn, "QP reset");
        Ok(())
    }

    /// How far its teardown has come.
    pub fn stage(&self) -> Stage {
        self.node.visit(QpNode::stage).unwrap_or(Stage::Destroyed)
    }

    /// Takes the QP down in stages, and destroys it with its CQ, doorbell page and memory. After a refusal, the parts
    /// that do not depend on what refused are gone; closing again goes on with the rest.
    #[allow(clippy::result_large_err, reason = "a refusal hands the QP back")]
    pub fn close(self) -> Result<CloseReport, Refused<Self>> {
        self.close_within(GRACE)
    }

    /// As [`Self::close`], with the time that outstanding work may take.
    #[allow(clippy::result_large_err, reason = "a refusal hands the QP back")]
    pub fn close_within(self, time: Duration) -> Result<CloseReport, Refused<Self>> {
        self.take_down(time)
            .map_err(|error| Refused { error, value: self })
    }

    /// Takes it down, whoever holds it.
    pub(crate) fn take_down(&self, time: Duration) -> Result<CloseReport> {
        let mut slots = self.queues.slots();
        slots.push(self.node.slot());
        let graph = self.pd.context().graph();
        graph.sweep(slots, deadline_after(time)).into_result()
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
        let derived = self.qpn.wrapping_mul(0x9e_3779);
        let first = self.config.psn.unwrap_or(derived);
        // A late packet of an earlier life does not fit: the step is odd and large.
        first.wrapping_add(self.generation.wrapping_mul(0x5b_d1e9)) & 0x00ff_ffff
    }

    fn to_rts(&self, qp: &QpNode, remote: &ConnectInfo) -> Result<()> {
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
        qp.modify(
            "move the QP to INIT",
            &rst2init_qp::In {
                qpn: self.qpn,
                qpc: rights,
                ..rst2init_qp::In::default()
            },
        )?;
        let mtu = local.mtu.min(remote.mtu);
        qp.modify(
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
                    primary_address_path: self.path_to(qp, remote, path)?,
                    ..rights
                },
                ..init2rtr_qp::In::default()
            },
        )?;
        qp.modify(
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
        )?;
        Ok(())
    }

    /// The path to a remote end. On InfiniBand it is within the subnet, without GRH.
    fn path_to(&self, qp: &QpNode, remote: &ConnectInfo, path: Ads) -> Result<Ads> {
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
                        qp.pd_info().handle,
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

    /// Hands it to the GPU with the stop word that `prepare` makes and writes the handle with.
    pub(crate) fn hand_over(
        &self,
        prepare: impl FnOnce(&Queues) -> Result<HostWord>,
    ) -> Result<HostWord> {
        const DOING: &str = "export it";
        let _entered = (self.pd.context().enter()?, self.gpu.enter()?);
        self.node.visit(|qp| {
            let _one = qp.exclusive(Wait::within(GRACE))?;
            qp.require_live(DOING)?;
            if qp.link() != Link::Up {
                return Err(Error::QpState {
                    doing: DOING,
                    state: "not connected",
                });
            }
            building(|| {
                let stop = prepare(&self.queues)?;
                qp.set_exported(stop.clone())?;
                Ok(stop)
            })
        })?
    }

    /// Takes it from the GPU, live.
    pub(crate) fn take_back(&self) -> Result<()> {
        self.node.visit(|qp| {
            let _one = qp.exclusive(Wait::within(GRACE))?;
            qp.take_back()
        })?
    }

    /// Looks at what the queues hold, if the QP is not closed.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Queues) -> Result<T>) -> Result<T> {
        self.node.visit(|_| look(&self.queues))?
    }

    pub(crate) fn attach(&self) -> Result<Attached> {
        QpNode::attach(self.node.pin()?)
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }
}

/// Largest `qpc.log_rra_max` and `qpc.log_sra_max`: 3 bits.
const MAX_LOG_READS: u8 = 7;
