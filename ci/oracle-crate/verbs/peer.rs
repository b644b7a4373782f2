//! What a QP is told to be connected.

use crate::ffi::*;

/// Whom a QP is to be connected to, and how.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub qpn: u32,
    pub gid: [u8; 16],
    pub access: u32,
    pub receive_psn: u32,
    pub send_psn: u32,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub mtu: u32,
}

/// Index of the GID in use: RoCE v2, of an IPv4 address.
pub const GID: u8 = 3;

impl Peer {
    /// With all rights, and timeouts that nothing here reaches.
    pub fn new(qpn: u32, gid: [u8; 16]) -> Self {
        Self {
            qpn,
            gid,
            access: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
            receive_psn: 0,
            send_psn: 0,
            timeout: 20,
            retries: 7,
            rnr_retries: 7,
            mtu: IBV_MTU_1024,
        }
    }

    /// Attributes of the transitions to INIT, RTR and RTS.
    pub(super) fn attributes(&self) -> [(ibv_qp_attr, u32); 3] {
        let any = ibv_qp_attr::default();
        let init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            qp_access_flags: self.access,
            port_num: 1,
            ..any
        };
        let rtr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: self.mtu,
            dest_qp_num: self.qpn,
            rq_psn: self.receive_psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: self.gid },
                    sgid_index: GID,
                    hop_limit: 64,
                    ..ibv_global_route::default()
                },
                is_global: 1,
                port_num: 1,
                ..ibv_ah_attr::default()
            },
            ..any
        };
        let rts = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: self.send_psn,
            timeout: self.timeout,
            retry_cnt: self.retries,
            rnr_retry: self.rnr_retries,
            max_rd_atomic: 16,
            ..any
        };
        [
            (
                init,
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            ),
            (
                rtr,
                IBV_QP_STATE
                    | IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER,
            ),
            (
                rts,
                IBV_QP_STATE
                    | IBV_QP_TIMEOUT
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC,
            ),
        ]
    }
}
