//! Modes of the provided kernels: what a launch chooses, and which kernel has it.
//!
//! Knows: which modes a QP takes, and the names of entries.
//! Must not know: parameter blocks.

use warpverbs_wire::abi;

use super::wrong;
use crate::error::Result;
use crate::export::ExportedQp;
use crate::launch::View;
use crate::resource::DoorbellPath;

/// Which threads share a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// None: each thread has a QP of its own. A launch with the QP on another stream is refused meanwhile.
    #[default]
    Exclusive,
    /// The threads of one block that is at most a warp: block `b` uses QP `b`. Launches on other streams as with
    /// [`Self::Exclusive`].
    Warp,
    /// The threads of one block: block `b` uses QP `b`. Launches on other streams as with [`Self::Exclusive`].
    Cta,
    /// All threads of the GPU: thread `t` uses QP `t % qps`. Launches on other streams that share it too may run at the
    /// same time.
    Gpu,
}

impl Sharing {
    /// How a view names the QPs.
    pub(super) fn view<'a>(self) -> fn(View<'a>, &'a ExportedQp) -> View<'a> {
        match self {
            Self::Exclusive | Self::Warp | Self::Cta => View::qp,
            Self::Gpu => View::shared_qp,
        }
    }

    pub(super) fn code(self) -> u32 {
        match self {
            Self::Exclusive => abi::SHARING_EXCLUSIVE,
            Self::Warp => abi::SHARING_WARP,
            Self::Cta => abi::SHARING_CTA,
            Self::Gpu => abi::SHARING_GPU,
        }
    }
}

/// How the doorbell is rung (rule O4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Doorbell {
    /// Doorbell record, then one ring.
    #[default]
    Db,
    /// Ring, doorbell record, ring.
    DbEarly,
    /// As [`Self::Db`], but a post of one WQE that fits one WQEBB is pushed to the register whole.
    BlueFlame,
    /// A host thread does both ([`Proxy`](crate::Proxy)): for QPs made with [`DoorbellPath::Proxy`].
    Proxy,
    /// One ring: for QPs made with [`DoorbellPath::GpuWithoutRecord`].
    NoDbr,
}

impl Doorbell {
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Db => abi::DOORBELL_DB,
            Self::DbEarly => abi::DOORBELL_EARLY,
            Self::BlueFlame => abi::DOORBELL_BLUEFLAME,
            Self::Proxy => abi::DOORBELL_PROXY,
            Self::NoDbr => abi::DOORBELL_NO_DBR,
        }
    }

    /// How a QP must have been made for it.
    pub fn path(self) -> DoorbellPath {
        match self {
            Self::Db | Self::DbEarly | Self::BlueFlame => DoorbellPath::Gpu,
            Self::Proxy => DoorbellPath::Proxy,
            Self::NoDbr => DoorbellPath::GpuWithoutRecord,
        }
    }
}

/// Scope of the fence between a WQE and its doorbell record (rule O2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The system's: right wherever queue and data lie.
    #[default]
    Sys,
    /// The GPU's: only where queue, record and all data lie in this GPU's memory; that it suffices then is assumed, and `Check::Gpu`
    /// judges it. With [`Doorbell::Db`] alone.
    Gpu,
}

/// Which WQEs have a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Completions {
    /// Each.
    #[default]
    Every,
    /// Errors, and one WQE in 16 WQEBBs: for QPs with a ring CQ and a depth of 32 at least.
    OnError,
}

impl Completions {
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Every => abi::FORM_EVERY,
            Self::OnError => abi::FORM_ON_ERROR,
        }
    }
}

/// What the name of the kernel with these modes ends in.
pub(super) fn suffix(doorbell: Doorbell, order: Order) -> &'static str {
    match (doorbell, order) {
        (_, Order::Gpu) => "ingpu",
        (Doorbell::Db, _) => "db",
        (Doorbell::DbEarly, _) => "early",
        (Doorbell::BlueFlame, _) => "bf",
        (Doorbell::Proxy, _) => "proxy",
        (Doorbell::NoDbr, _) => "nodbr",
    }
}

/// Fails unless QPs and kernels have the modes.
pub(super) fn check_modes(
    qps: &[&ExportedQp],
    doorbell: Doorbell,
    order: Order,
    completions: Completions,
    sharing: Sharing,
) -> Result<()> {
    for qp in qps {
        let path = qp.qp().config().path();
        if path != doorbell.path() {
            return wrong(
                format!(
                    "QP {:#x} was made with DoorbellPath::{path:?}, doorbell {doorbell:?} needs {:?}",
                    qp.qpn(),
                    doorbell.path()
                ),
                "create the QP with the doorbell's path, or launch with another doorbell",
            );
        }
    }
    let is_unusual =
        completions == Completions::OnError || matches!(sharing, Sharing::Warp | Sharing::Cta);
    if is_unusual && (doorbell != Doorbell::Db || order != Order::Sys) {
        return wrong(
            format!(
                "no provided kernel has sharing {sharing:?} and completions {completions:?} with doorbell {doorbell:?} and order \
                 {order:?}"
            ),
            "choose the doorbell Db and the order Sys, or the sharing Exclusive or Gpu and every completion",
        );
    }
    if order == Order::Gpu && doorbell != Doorbell::Db {
        return wrong(
            format!("no provided kernel has the order Gpu with the doorbell {doorbell:?}"),
            "choose the doorbell Db, or the order Sys",
        );
    }
    let unfit = |qp: &&&ExportedQp| qp.qp().queues().cq_depth() == 1 || qp.qp().depth() < 32;
    if completions == Completions::OnError
        && let Some(qp) = qps.iter().find(unfit)
    {
        return wrong(
            format!(
                "completions of errors and each 16th WQEBB need a ring CQ and a depth of 32 at least, which QP {:#x} has not",
                qp.qpn()
            ),
            "create the QP with a ring CQ and a depth of 32 or more, or let every WQE complete",
        );
    }
    Ok(())
}
