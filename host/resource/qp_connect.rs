//! Connecting QPs: RST to INIT to RTR to RTS.
//!
//! Knows: which transition is told what, and the way back when one fails. Must not know: how the ends' infos travel.

use warpverbs_wire::prm::ads::Ads;
use warpverbs_wire::prm::qpc::{AtomicMode, Mtu, OptParam, PathMigration, Qpc};
use warpverbs_wire::prm::{init2rtr_qp, rst2init_qp, rtr2rts_qp};

use super::QueuePair;
use super::path::{Local, Neighbours};
use super::qp_node::{Link, QpNode};
use crate::connect::{ConnectInfo, InfoError};
use crate::driver::Access;
use crate::error::{Error, Result};
use crate::teardown::{GRACE, Node, Wait, attach};

/// Largest `qpc.log_rra_max` and `qpc.log_sra_max`: 3 bits.
const MAX_LOG_READS: u8 = 7;
const DOING: &str = "connect it";

impl QueuePair {
    /// What the remote end must be given to connect to this QP.
    pub fn local_info(&self) -> Vec<u8> {
        self.info().to_bytes()
    }

    /// Connects the QP to the one whose [`Self::local_info`] is given: RST to INIT to RTR to RTS.
    /// If that fails, the QP is reset and can be connected again.
    pub fn connect(&mut self, remote: &[u8]) -> Result<()> {
        Self::connect_all(std::slice::from_mut(self), &[remote])
    }

    /// Connects QPs of one NIC, each to the remote end in the same place of `remotes`. Peers' MAC addresses are resolved
    /// once each. If one fails, all are reset and can be connected again.
    pub fn connect_all<R: AsRef<[u8]>>(qps: &mut [Self], remotes: &[R]) -> Result<()> {
        if qps.len() != remotes.len() {
            return Err(Error::InvalidArgument {
                what: format!("{} QPs and {} remote ends", qps.len(), remotes.len()),
                cure: "give one remote end for each QP",
            });
        }
        let Some(first) = qps.first() else {
            return Ok(());
        };
        if let Some(other) = qps.iter().find(|qp| !qp.context().is(first.context())) {
            return Err(Error::InvalidArgument {
                what: format!(
                    "QP {:#x} is on another NIC than QP {:#x}",
                    other.qpn(),
                    first.qpn()
                ),
                cure: "connect the QPs of one NIC at a time",
            });
        }
        let _entered = first.context().enter()?;
        // Whatever can be refused without a command is, before any is sent.
        let ends: Vec<ConnectInfo> = qps
            .iter()
            .zip(remotes)
            .map(|(qp, remote)| {
                qp.node.visit(connectable)??;
                qp.peer(remote.as_ref())
            })
            .collect::<Result<_>>()?;
        let mut neighbours = Neighbours::default();
        for (at, (qp, end)) in qps.iter().zip(&ends).enumerate() {
            let connected = qp
                .node
                .visit(|node| qp.connect_to(node, end, &mut neighbours))
                .unwrap_or_else(Err);
            if let Err(error) = connected {
                return Err(qps.iter().take(at).rev().fold(error, disconnect));
            }
        }
        Ok(())
    }

    /// A remote end, if this one can reach it.
    fn peer(&self, remote: &[u8]) -> Result<ConnectInfo> {
        let remote = ConnectInfo::parse(remote)?;
        if remote.link_layer != self.port.link_layer {
            return Err(Error::ConnectInfo(InfoError::LinkLayer {
                local: self.port.link_layer,
                remote: remote.link_layer,
            }));
        }
        Ok(remote)
    }

    fn connect_to(
        &self,
        qp: &QpNode,
        remote: &ConnectInfo,
        neighbours: &mut Neighbours,
    ) -> Result<()> {
        let _one = qp.exclusive(Wait::within(GRACE))?;
        connectable(qp)?;
        if let Err(error) = self.to_rts(qp, remote, neighbours) {
            return Err(reset(qp, error));
        }
        qp.set_link(Link::Up);
        tracing::debug!(qpn = self.qpn, remote = remote.qpn, "QP connected");
        Ok(())
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

    fn to_rts(&self, qp: &QpNode, remote: &ConnectInfo, neighbours: &mut Neighbours) -> Result<()> {
        let local = self.info();
        let may = |access: Access| self.config.access.contains(access);
        let path = Local {
            context: self.pd.context(),
            pd: qp.pd_info().handle,
            config: &self.config,
            port: &self.port,
            gid: self.gid,
            qpn: self.qpn,
        };
        let rights = Qpc {
            pm_state: PathMigration::Migrated,
            rre: may(Access::REMOTE_READ),
            rwe: may(Access::REMOTE_WRITE),
            rae: may(Access::REMOTE_ATOMIC),
            // Of 4 bytes too.
            atomic_mode: if may(Access::REMOTE_ATOMIC) {
                AtomicMode::UpTo8
            } else {
                AtomicMode::None
            },
            primary_address_path: path.own(),
            counter_set_id: self.context().counter_set(self.config.port)?.unwrap_or(0),
            lag_tx_port_affinity: self.config.lag_port,
            ..Qpc::default()
        };
        // Without the bit the field is not looked at.
        let lag = match self.config.lag_port {
            0 => 0,
            _ => OptParam::LAG_TX_AFF,
        };
        qp.modify(
            "move the QP to INIT",
            &rst2init_qp::In {
                qpn: self.qpn,
                opt_param_mask: lag,
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
                    primary_address_path: path.to(remote, neighbours)?,
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
                        ..path.own()
                    },
                    pm_state: PathMigration::Migrated,
                    ..Qpc::default()
                },
                ..rtr2rts_qp::In::default()
            },
        )?;
        Ok(())
    }
}

/// Fails unless it can be connected.
fn connectable(qp: &QpNode) -> Result<()> {
    qp.require_live(DOING)?;
    let state = match qp.link() {
        Link::Down => return Ok(()),
        Link::Up => "connected",
        Link::Unknown => "in an unknown state",
    };
    Err(Error::QpState {
        doing: DOING,
        state,
    })
}

/// Brings a QP back that was just connected. Nothing was posted yet, so indices and CQ are as they were.
fn reset(qp: &QpNode, first: Error) -> Error {
    match qp.reset_state() {
        Ok(()) => {
            qp.set_link(Link::Down);
            first
        }
        Err(also) => {
            qp.set_link(Link::Unknown);
            attach(first, QpNode::NAME, also)
        }
    }
}

/// As [`reset`], unless the QP was closed meanwhile.
fn disconnect(first: Error, qp: &QueuePair) -> Error {
    let mut first = Some(first);
    let mut back = |node: &QpNode| -> Result<Error> {
        let _one = node.exclusive(Wait::within(GRACE))?;
        node.require_live(DOING)?;
        let first = first.take().unwrap_or(Error::Closed { what: QpNode::NAME });
        Ok(reset(node, first))
    };
    let back = qp.node.visit(&mut back).unwrap_or_else(Err);
    match (back, first) {
        (Ok(error), _) => error,
        (Err(also), Some(first)) => attach(first, QpNode::NAME, also),
        (Err(error), None) => error,
    }
}
