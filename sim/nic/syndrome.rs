//! The checks that commands make, each with the status and the syndrome by which it refuses.
//!
//! Knows: names, numbers, sources of checks.
//! Must not know: how a check is made.
//!
//! Firmware syndromes are unpublished (docs/hardware-facts.md), so the numbers are this NIC's own; statuses are those that the
//! PRM's meaning of the status suggests. `source` says where the rule comes from; `assumed` where it is ours.

use std::fmt;

use warpverbs_wire::prm::Status;

macro_rules! checks {
    ($($(#[$meta:meta])* $name:ident = $syndrome:literal, $status:ident, $text:literal, $source:literal;)*) => {
        /// A check of a command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "the text of each says what it demands")]
        pub enum Check {
            $($(#[$meta])* $name,)*
        }

        impl Check {
            /// Every check.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The syndrome in the output mailbox: unique to the check.
            pub const fn syndrome(self) -> u32 {
                match self { $(Self::$name => $syndrome,)* }
            }

            /// The status in the output mailbox.
            pub const fn status(self) -> Status {
                match self { $(Self::$name => Status::$status,)* }
            }

            /// What the check demands.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Where the rule comes from.
            pub const fn source(self) -> &'static str {
                match self { $(Self::$name => $source,)* }
            }
        }
    };
}

checks! {
    InputLength = 0x01_0001, BadInputLength, "the input mailbox is at least as long as the command's", "PRM, command return status";
    OutputLength = 0x01_0002, BadOutputLength, "the output mailbox is at least as long as the command's", "PRM, command return status";
    Opcode = 0x01_0003, BadOperation, "the opcode is one this NIC executes", "PRM, command return status";
    OpMod = 0x01_0004, BadOperation, "op_mod is one the command has", "PRM, command return status";
    ReservedBits = 0x01_0005, BadParameter, "reserved bits are zero", "PRM, command return status";

    NoModifyCq = 0x01_0006, BadOperation, "CQs are not modified or resized", "assumed: not modelled; cmd_hca_cap.cq_resize and cq_moderation are clear";
    NoSrq = 0x01_0007, BadOperation, "shared receive queues are RMPs", "assumed: SRQ and XRC_SRQ objects are not modelled; cmd_hca_cap.xrc is clear";
    NoDct = 0x01_0008, BadOperation, "there are no dynamically connected targets", "assumed: not modelled; cmd_hca_cap.dct is clear";

    Planted = 0xff_0000, InternalError, "no fault is planted for the command", "assumed: a fault of a test";
    NoAnswer = 0xff_0003, InternalError, "the command is answered in time", "Linux mlx5 cmd.c: MLX5_CMD_TIMEOUT_MSEC, after which the driver returns ETIMEDOUT and the mailbox means nothing";
    Removed = 0xff_0002, InternalError, "the NIC is on the bus", "Linux mlx5 cmd.c: commands fail once the device is gone";

    CapSet = 0x02_0001, BadParameter, "the capability set is one this NIC has", "mlx5_ifc query_hca_cap_in.op_mod";
    CapOtherFunction = 0x02_0002, BadParameter, "the capabilities are those of this function", "assumed";

    CqCompression = 0x03_0001, BadParameter, "CQE compression is off", "assumed: not modelled";
    CqCqeSize = 0x03_0002, BadParameter, "cqe_sz is 64 bytes", "assumed: not modelled";
    CqSize = 0x03_0003, LimitExceeded, "log_cq_size is at most log_max_cq_sz", "mlx5_ifc cmd_hca_cap.log_max_cq_sz";
    CqUar = 0x03_0004, BadResource, "uar_page is allocated, and the caller's uid's", "mlx5_ifc cqc.uar_page; Linux mlx5_ib: mlx5_cmd_uar_alloc";
    CqEqn = 0x03_0005, BadResource, "c_eqn is an event queue", "mlx5_ifc cqc.c_eqn";
    CqPageOffset = 0x03_0006, BadParameter, "page_offset is zero: the UMEM offset says where the CQ begins", "assumed";
    CqNoUmem = 0x03_0007, BadParameter, "cq_umem_valid is set", "assumed: page lists are not modelled";
    CqUmem = 0x03_0008, BadResource, "cq_umem_id is a UMEM of the caller's uid", "DOCA mlx5_prm.h create_cq_in; Linux devx.c: UMEM_REG has the uid";
    CqUmemOffset = 0x03_0009, BadParameter, "cq_umem_offset is a multiple of 1/64 of the UMEM's page and of 64 bytes", "mlx5_ifc cqc.page_offset, 6 bits";
    CqUmemBounds = 0x03_000a, BadParameter, "the CQ ends inside the UMEM", "DOCA mlx5_prm.h create_cq_in";
    CqNoDbrUmem = 0x03_000b, BadParameter, "dbr_umem_valid is set", "assumed: bus addresses are not for users";
    CqDbrUmem = 0x03_000c, BadResource, "dbr_umem_id is a UMEM of the caller's uid", "DOCA mlx5_prm.h cqc; Linux devx.c: UMEM_REG has the uid";
    CqDbrAlign = 0x03_000d, BadParameter, "dbr_addr is a multiple of 8", "docs/hardware-facts.md";
    CqDbrBounds = 0x03_000e, BadParameter, "the doorbell record ends inside the UMEM", "DOCA mlx5_prm.h cqc";
    CqExhausted = 0x03_000f, NoResources, "a CQ number is left", "PRM, command return status";
    CqNotFound = 0x03_0010, BadResource, "the CQ exists", "PRM, command return status";
    CqUid = 0x03_0011, BadResource, "the CQ is of the caller's uid", "Linux devx.c: objects belong to a uid";
    CqUmemAccess = 0x03_0013, BadParameter, "the CQ's UMEM allows local write", "assumed";
    CqBusy = 0x03_0012, ResourceBusy, "no QP uses the CQ", "PRM, command return status: RES_BUSY";

    CqModeration = 0x03_0014, BadParameter, "cq_period and cq_max_count are zero", "mlx5_ifc cmd_hca_cap.cq_moderation";

    QpService = 0x04_0001, BadParameter, "st is RC", "assumed: other services are not modelled";
    QpPd = 0x04_0002, BadResource, "pd is a PD", "mlx5_ifc qpc.pd";
    QpSendCq = 0x04_0003, BadResource, "cqn_snd is a CQ of the caller", "mlx5_ifc qpc.cqn_snd";
    QpReceiveCq = 0x04_0004, BadResource, "cqn_rcv is a CQ of the caller", "mlx5_ifc qpc.cqn_rcv";
    QpNoSq = 0x04_0005, BadParameter, "the QP has a send queue", "assumed: not modelled";
    QpSqSize = 0x04_0006, LimitExceeded, "log_sq_size is at most log_max_qp_sz", "mlx5_ifc cmd_hca_cap.log_max_qp_sz";
    QpRqType = 0x04_0007, BadParameter, "rq_type is one this NIC has", "mlx5_ifc qpc.rq_type";
    QpUar = 0x04_0008, BadResource, "uar_page is allocated, and the caller's uid's", "mlx5_ifc qpc.uar_page; Linux mlx5_ib: mlx5_cmd_uar_alloc";
    QpPageOffset = 0x04_0009, BadParameter, "page_offset is zero: the UMEM offset says where the queue begins", "assumed";
    QpNoUmem = 0x04_000a, BadParameter, "wq_umem_valid is set", "assumed: page lists are not modelled";
    QpUmem = 0x04_000b, BadResource, "wq_umem_id is a UMEM of the caller's uid", "mlx5_ifc create_qp_in.wq_umem_id; Linux devx.c: UMEM_REG has the uid";
    QpUmemOffset = 0x04_000c, BadParameter, "wq_umem_offset is a multiple of 1/64 of the UMEM's page and of 64 bytes", "mlx5_ifc qpc.page_offset, 6 bits";
    QpUmemBounds = 0x04_000d, BadParameter, "the send queue ends inside the UMEM", "mlx5_ifc create_qp_in.wq_umem_id";
    QpNoDbrUmem = 0x04_000e, BadParameter, "dbr_umem_valid is set", "assumed: bus addresses are not for users";
    QpDbrUmem = 0x04_000f, BadResource, "dbr_umem_id is a UMEM of the caller's uid", "mlx5_ifc qpc.dbr_umem_id; Linux devx.c: UMEM_REG has the uid";
    QpDbrAlign = 0x04_0010, BadParameter, "dbr_addr is a multiple of 8", "docs/hardware-facts.md";
    QpDbrBounds = 0x04_0011, BadParameter, "the doorbell record ends inside the UMEM", "mlx5_ifc qpc.dbr_addr";
    QpDbrMode = 0x04_0012, BadParameter, "send_dbr_mode is one the capabilities name", "DOCA cmd_hca_cap_2.send_dbr_mode_no_dbr_ext";
    QpScatterToCqe = 0x04_0013, BadParameter, "cs_req and cs_res are zero", "DOCA doca_verbs_qp.cpp: off; not modelled";
    QpSignature = 0x04_0014, BadParameter, "wq_signature is off", "assumed: not modelled";
    QpNumber = 0x04_0015, BadParameter, "input_qpn is zero", "assumed: the NIC chooses the number";
    QpTimestamp = 0x04_0016, BadParameter, "ts_format is free-running or default", "mlx5_ifc roce_cap.qp_ts_format";
    QpReservedKey = 0x04_0017, BadParameter, "rlky is off: the reserved key is for privileged users", "mlx5_ifc qpc.rlky";
    QpExhausted = 0x04_0018, NoResources, "a QP number is left", "PRM, command return status";
    QpNotFound = 0x04_0019, BadResource, "the QP exists", "PRM, command return status";
    QpUid = 0x04_001a, BadResource, "the QP is of the caller's uid", "Linux devx.c: objects belong to a uid";

    QpRqSize = 0x04_001c, LimitExceeded, "log_rq_size is at most log_max_qp_sz", "mlx5_ifc cmd_hca_cap.log_max_qp_sz";
    QpTriggered = 0x04_001d, BadParameter, "cd_slave_send and cd_slave_receive are off", "assumed: queues that others trigger are not modelled";
    QpCoreDirect = 0x04_001e, BadParameter, "cd_master comes with the capability", "mlx5_ifc cmd_hca_cap.cd";

    InitState = 0x05_0001, BadQpState, "RST2INIT finds the QP in RST", "PRM, QP state machine; IBA 10.3";
    RtrState = 0x05_0002, BadQpState, "INIT2RTR finds the QP in INIT", "PRM, QP state machine; IBA 10.3";
    RtsState = 0x05_0003, BadQpState, "RTR2RTS finds the QP in RTR", "PRM, QP state machine; IBA 10.3";
    OptParam = 0x05_0004, BadParameter, "opt_param_mask names only fields that the transition takes", "Linux mlx5 qp.c: opt_mask";
    PathMigration = 0x05_0005, BadParameter, "pm_state is MIGRATED", "DOCA doca_verbs_qp.cpp: MLX5_QPC_PM_STATE_MIGRATED";
    Port = 0x05_0006, BadIndex, "vhca_port_num is a port", "mlx5_ifc ads.vhca_port_num";
    PkeyIndex = 0x05_0007, BadIndex, "pkey_index is in the table", "mlx5_ifc ads.pkey_index";
    AtomicMode = 0x05_0008, BadParameter, "rae comes with an atomic_mode of the device", "mlx5_ifc qpc.atomic_mode";
    Mtu = 0x05_0009, BadParameter, "mtu is one of 256 to 4096 bytes and at most the port's", "mlx5_ifc qpc.mtu; IBA 10.3";
    MaxMessage = 0x05_000a, BadParameter, "log_msg_max is at most the device's", "mlx5_ifc cmd_hca_cap.log_max_msg";
    GidIndex = 0x05_000b, BadIndex, "src_addr_index is a filled entry of the GID table", "mlx5_ifc ads.src_addr_index";
    RemoteAddress = 0x05_000c, BadParameter, "the path has a remote address: rgid_rip and rmac on RoCE, rlid or a GRH on InfiniBand", "mlx5_ifc ads; IBA 10.3";
    Init2InitState = 0x05_000f, BadQpState, "INIT2INIT finds the QP in INIT", "PRM, QP state machine; IBA 10.3";
    Rts2RtsState = 0x05_0010, BadQpState, "RTS2RTS finds the QP in RTS", "PRM, QP state machine; IBA 10.3";
    SqErrState = 0x05_0011, BadQpState, "SQERR2RTS finds the QP in SQER, where an RC QP never is", "IBA 10.3: SQE is of other services";
    AlternatePath = 0x05_0012, BadParameter, "no alternate path is set", "mlx5_ifc cmd_hca_cap.apm";
    LagAffinity = 0x05_0013, BadParameter, "lag_tx_port_affinity is a port of the LAG, or zero", "mlx5_ifc cmd_hca_cap.lag_tx_port_affinity";
    CounterSet = 0x05_0014, BadResource, "counter_set_id is zero or a counter set of the caller or the driver", "mlx5_ifc qpc.counter_set_id";
    StaticRate = 0x05_0015, BadParameter, "stat_rate is zero", "mlx5_ifc cmd_hca_cap.stat_rate_support";
    SourcePort = 0x05_0016, BadParameter, "udp_sport is zero or one of the device's", "mlx5_ifc roce_cap.r_roce_min_src_udp_port";
    GrhRequired = 0x05_0017, BadParameter, "the path has a GRH where the port demands it", "mlx5_ifc hca_vport_context.grh_required";
    RemoteLid = 0x05_0018, BadParameter, "an InfiniBand path that leaves the NIC has an rlid, with a GRH too", "IBA 7.7: every packet has a destination LID";
    ResponderDepth = 0x05_000d, BadParameter, "log_rra_max is at most the device's", "mlx5_ifc cmd_hca_cap.log_max_ra_res_qp";
    RequesterDepth = 0x05_000e, BadParameter, "log_sra_max is at most the device's", "mlx5_ifc cmd_hca_cap.log_max_ra_req_qp";

    PdNotFound = 0x08_0001, BadResource, "the PD exists", "PRM, command return status";
    PdUid = 0x08_0002, BadResource, "the PD is of the caller's uid", "Linux devx.c: objects belong to a uid";
    PdBusy = 0x08_0003, ResourceBusy, "nothing uses the PD", "PRM, command return status";
    PdExhausted = 0x08_0004, NoResources, "a PD number is left", "PRM, command return status";
    TdNotFound = 0x08_0005, BadResource, "the transport domain exists", "PRM, command return status";
    TdUid = 0x08_0006, BadResource, "the transport domain is of the caller's uid", "Linux devx.c: objects belong to a uid";
    TdExhausted = 0x08_0007, NoResources, "a transport domain number is left", "PRM, command return status";
    UarNotFound = 0x08_0008, BadResource, "the UAR page is allocated", "PRM, command return status";
    UarBusy = 0x08_0009, ResourceBusy, "no queue uses the UAR page", "PRM, command return status";
    UarExhausted = 0x08_000a, NoResources, "a UAR page is left", "PRM, command return status";
    CounterNotFound = 0x08_000b, BadResource, "the counter set exists", "PRM, command return status";
    CounterUid = 0x08_000c, BadResource, "the counter set is of the caller's uid", "Linux devx.c: objects belong to a uid";
    CounterBusy = 0x08_000d, ResourceBusy, "no QP is attached to the counter set", "assumed";
    CounterExhausted = 0x08_000e, NoResources, "a counter set is left", "PRM, command return status";
    CounterVport = 0x08_000f, BadParameter, "one counter set of this function is asked for", "assumed: one function, no aggregation";
    UarUid = 0x08_0010, BadResource, "the UAR page is of the caller's uid", "Linux mlx5_ib: mlx5_cmd_uar_alloc has the context's uid";

    VportOther = 0x09_0001, BadParameter, "the port is this function's", "assumed: one function";
    VportPort = 0x09_0002, BadIndex, "port_num is a port", "mlx5_ifc query_hca_vport_context_in.port_num";
    VportLinkLayer = 0x09_0003, BadOperation, "the command is for ports of this link layer", "Linux mlx5 vport.c: HCA contexts are InfiniBand's, NIC contexts and RoCE addresses Ethernet's";
    VportGid = 0x09_0004, BadIndex, "gid_index is in the table", "mlx5_ifc cmd_hca_cap.gid_table_size";
    VportPkey = 0x09_0005, BadIndex, "pkey_index is in the table", "mlx5_ifc cmd_hca_cap.pkey_table_size";
    VportList = 0x09_0006, BadParameter, "allowed_list_type is zero", "assumed: address lists are not modelled";
    RocePrivileged = 0x09_0007, BadOperation, "the kernel alone writes RoCE addresses", "Linux devx.c: users' general commands read only";
    RocePort = 0x09_0008, BadIndex, "vhca_port_num is a port", "mlx5_ifc set_roce_address_in.vhca_port_num";
    RoceIndex = 0x09_0009, BadIndex, "roce_address_index is in the table", "mlx5_ifc roce_cap.roce_address_table_size";
    RoceVlan = 0x09_000a, BadParameter, "the address has no VLAN", "assumed: VLANs are not modelled";
    RoceVersion = 0x09_000b, BadParameter, "roce_version is one of the device's", "mlx5_ifc roce_cap.roce_version";
    RoceL3Type = 0x09_000c, BadParameter, "roce_l3_type is the GID's", "Linux mlx5 main.c: set_roce_addr";

    QpSharedQueue = 0x04_001b, BadResource, "srqn_rmpn_xrqn is an RMP of the caller's uid, if rq_type asks for one", "mlx5_ifc qpc.srqn_rmpn_xrqn";
    RmpState = 0x07_0001, BadResourceState, "the RMP is and stays READY", "mlx5_ifc rmpc.state; others assumed";
    RmpType = 0x07_0002, BadParameter, "wq_type is a linked list or a ring", "assumed: striding is not modelled";
    RmpSize = 0x07_0003, BadParameter, "log_wq_sz is at most the device's, and log_wq_stride is 4 to 11", "mlx5_ifc wq";
    RmpPd = 0x07_0004, BadResource, "pd is a PD", "mlx5_ifc wq.pd";
    RmpNoUmem = 0x07_0005, BadParameter, "wq_umem_valid and dbr_umem_valid are set", "assumed: page lists are not modelled";
    RmpUmem = 0x07_0006, BadResource, "wq_umem_id and dbr_umem_id are UMEMs of the caller's uid", "mlx5_ifc wq.wq_umem_id; Linux devx.c: UMEM_REG has the uid";
    RmpUmemOffset = 0x07_0007, BadParameter, "wq_umem_offset is a multiple of 1/64 of the UMEM's page and of 64 bytes", "mlx5_ifc wq.page_offset";
    RmpUmemBounds = 0x07_0008, BadParameter, "the queue ends inside the UMEM", "mlx5_ifc wq.wq_umem_id";
    RmpDbr = 0x07_0009, BadParameter, "dbr_addr is a multiple of 8 and the record ends inside the UMEM", "mlx5_ifc wq.dbr_addr";
    RmpExhausted = 0x07_000a, NoResources, "an RMP number is left", "PRM, command return status";
    RmpNotFound = 0x07_000b, BadResource, "the RMP exists", "PRM, command return status";
    RmpUid = 0x07_000c, BadResource, "the RMP is of the caller's uid", "Linux devx.c: objects belong to a uid";
    RmpBusy = 0x07_000d, ResourceBusy, "no QP uses the RMP", "PRM, command return status";

    MkeyMode = 0x06_0001, BadParameter, "the access mode is MTT", "assumed: others are not modelled";
    MkeyNoUmem = 0x06_0002, BadParameter, "mkey_umem_valid is set", "assumed: page lists are not modelled";
    MkeyUmem = 0x06_0003, BadResource, "mkey_umem_id is a UMEM of the caller's uid", "DPDK mlx5_prm.h create_mkey_in; Linux devx.c: UMEM_REG has the uid";
    MkeyPd = 0x06_0004, BadResource, "pd is a PD", "mlx5_ifc mkc.pd";
    MkeyLength = 0x06_0005, BadParameter, "len is not zero and length64 is off", "mlx5_ifc mkc.len";
    MkeyBounds = 0x06_0006, BadParameter, "the key's range ends inside the UMEM", "DPDK mlx5_prm.h create_mkey_in";
    MkeyAddress = 0x06_0007, BadParameter, "start_addr + len does not leave the address space", "mlx5_ifc mkc.start_addr";
    MkeyQpn = 0x06_0008, BadParameter, "qpn is 0xffffff: any QP", "mlx5_ifc mkc.qpn; others assumed";
    MkeyRights = 0x06_0009, BadParameter, "remote write and remote atomic come with local write", "IBA 10.6";
    MkeyUmr = 0x06_000a, BadParameter, "free and umr_en are off", "assumed: UMR is not modelled";
    MkeyFlags = 0x06_000b, BadParameter, "data_direct and pg_access are off", "mlx5_ifc cmd_hca_cap.data_direct";
    MkeyExhausted = 0x06_000c, NoResources, "an MKey index is left", "PRM, command return status";
    MkeyNotFound = 0x06_000d, BadResource, "the MKey exists", "PRM, command return status";
    MkeyUmemAccess = 0x06_000f, BadParameter, "a key with local write has a UMEM with local write", "assumed";
    MkeyUid = 0x06_000e, BadResource, "the MKey is of the caller's uid", "Linux devx.c: objects belong to a uid";
}

/// A refused command. Status and syndrome are in the output mailbox too, as far as it is long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// Opcode of the input mailbox; zero if it was too short to have one.
    pub opcode: u16,
    /// The check that failed.
    pub check: Check,
    /// Status and syndrome of a planted refusal, which are the test's.
    pub(crate) planted: Option<(u8, u32)>,
}

impl CommandError {
    /// The status in the output mailbox.
    pub fn status(&self) -> u8 {
        self.planted
            .map_or(self.check.status().code(), |(status, _)| status)
    }

    /// The syndrome in the output mailbox.
    pub fn syndrome(&self) -> u32 {
        self.planted
            .map_or(self.check.syndrome(), |(_, syndrome)| syndrome)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "command {:#x} refused: must hold: {} (status {:#x}, syndrome {:#x}; {})",
            self.opcode,
            self.check.text(),
            self.status(),
            self.syndrome(),
            self.check.source()
        )
    }
}

impl std::error::Error for CommandError {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_check_has_a_syndrome_of_its_own_and_fails() {
        let numbers: BTreeSet<_> = Check::ALL.iter().map(|check| check.syndrome()).collect();
        assert_eq!(numbers.len(), Check::ALL.len());
        assert!(!numbers.contains(&0));
        assert!(Check::ALL.iter().all(|check| check.status() != Status::Ok));
        assert!(Check::ALL.iter().all(|check| !check.source().is_empty()));
    }
}
