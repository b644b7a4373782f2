//! What a QP's options become in the mailboxes that the NIC is given: bytes at the offsets of `mlx5_ifc.h`, counted by hand.
#![allow(
    unsafe_code,
    reason = "a wrapper of a driver has the driver's unsafe functions"
)]

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use common::World;

use warpverbs::driver::{
    DriverError, GidEntry, Gpu, MemoryRegion, MrInfo, Nic, NicHandle, PdInfo, PortInfo, UarInfo,
    UarKind, UmemInfo,
};
use warpverbs::wire::prm::qpc::{Mtu, QpState, Qpc};
use warpverbs::wire::prm::{Command, query_qp};
use warpverbs::{Access, Context, Error, ErrorKind, GpuContext, Pd, QpConfig, QpPool, QueuePair};

// Its names come before libc's: libibverbs finds the simulated NIC.
#[cfg(target_os = "linux")]
use warpverbs_sim as _;

type Result<T> = std::result::Result<T, DriverError>;

/// A NIC whose modify commands are kept, and whose one port can have another number.
#[derive(Debug)]
struct Recorder {
    inner: Arc<dyn Nic>,
    modified: Mutex<Vec<Vec<u8>>>,
    port: u8,
    /// What the port says instead.
    change: fn(&mut PortInfo),
    page_sizes: Mutex<Vec<u64>>,
    created: Mutex<Vec<NicHandle>>,
}

/// Offset of the address path's port in the three transitions.
const PORT: usize = PATH + 0x25;
/// Offset of the address path in the three transitions: the QP context at 0x18, the path at 0x18 in it.
const PATH: usize = 0x30;

impl Recorder {
    fn new(inner: Arc<dyn Nic>, port: u8, change: fn(&mut PortInfo)) -> Arc<Self> {
        Arc::new(Self {
            inner,
            modified: Mutex::default(),
            port,
            change,
            page_sizes: Mutex::default(),
            created: Mutex::default(),
        })
    }

    /// The port's number on the NIC behind.
    fn inner_port(&self, port: u8) -> u8 {
        if port == self.port { 1 } else { 0xff }
    }

    /// The input mailboxes with this opcode so far.
    fn modified(&self, opcode: u16) -> Vec<Vec<u8>> {
        let modified = self.modified.lock().unwrap();
        modified
            .iter()
            .filter(|input| input[..2] == opcode.to_be_bytes())
            .cloned()
            .collect()
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> Result<$out> {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl Nic for Recorder {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn create(&self, input: &[u8], output: &mut [u8]) -> Result<NicHandle> {
        let made = self.inner.create(input, output)?;
        self.created.lock().unwrap().push(made);
        Ok(made)
    }

    fn modify(&self, object: NicHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.modified.lock().unwrap().push(input.to_vec());
        let mut input = input.to_vec();
        if (RST2INIT..=RTR2RTS).contains(&u16::from_be_bytes([input[0], input[1]])) {
            input[PORT] = self.inner_port(input[PORT]);
        }
        self.inner.modify(object, &input, output)
    }

    fn query_port(&self, port: u8) -> Result<PortInfo> {
        let mut info = self.inner.query_port(self.inner_port(port))?;
        (self.change)(&mut info);
        Ok(info)
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        self.inner.query_gid(self.inner_port(port), index)
    }

    fn resolve_mac(
        &self,
        pd: NicHandle,
        port: u8,
        gid_index: u32,
        remote: [u8; 16],
    ) -> Result<[u8; 6]> {
        self.inner
            .resolve_mac(pd, self.inner_port(port), gid_index, remote)
    }

    forward! {
        command(input: &[u8], output: &mut [u8]) -> ();
        query(object: NicHandle, input: &[u8], output: &mut [u8]) -> ();
        destroy(object: NicHandle) -> ();
        alloc_pd() -> PdInfo;
        dealloc_pd(pd: NicHandle) -> ();
        dereg_mr(mr: NicHandle) -> ();
        dereg_umem(umem: NicHandle) -> ();
        alloc_uar(kind: UarKind) -> UarInfo;
        free_uar(uar: NicHandle) -> ();
        ring_doorbell(uar: NicHandle, value: [u8; 8]) -> ();
        query_eqn(vector: u32) -> u32;
        data_direct() -> bool;
    }

    fn port_counter_set(&self, port: u8) -> Result<Option<u8>> {
        self.inner.port_counter_set(self.inner_port(port))
    }

    unsafe fn reg_mr(&self, pd: NicHandle, region: MemoryRegion, access: Access) -> Result<MrInfo> {
        // SAFETY: the caller promises what `Nic::reg_mr` demands.
        unsafe { self.inner.reg_mr(pd, region, access) }
    }

    unsafe fn reg_umem(
        &self,
        region: MemoryRegion,
        access: Access,
        page_sizes: u64,
    ) -> Result<UmemInfo> {
        self.page_sizes.lock().unwrap().push(page_sizes);
        // SAFETY: the caller promises what `Nic::reg_umem` demands.
        unsafe { self.inner.reg_umem(region, access, page_sizes) }
    }
}

const RST2INIT: u16 = 0x502;
const INIT2RTR: u16 = 0x503;
const RTR2RTS: u16 = 0x504;

struct Rig {
    world: World,
    recorder: Arc<Recorder>,
    gpu: GpuContext,
    pd: Pd,
}

/// What QUERY_QP says of a QP with these options that is connected to one whose MTU is 512.
fn queried(nic: Arc<dyn Nic>, gpu: Arc<dyn Gpu>, config: &QpConfig) -> Qpc {
    let recorder = Recorder::new(nic, 1, |_| {});
    let nic = Context::open(recorder.clone()).unwrap();
    let gpu = GpuContext::open(gpu).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    let create = |config: &QpConfig| QueuePair::create(&pd, &gpu, config).unwrap();
    let mut other = create(&config.clone().mtu(512));
    let mut qp = create(config);
    // The QP's was the last object.
    let handle = *recorder.created.lock().unwrap().last().unwrap();
    let (here, there) = (qp.local_info(), other.local_info());
    qp.connect(&there).unwrap();
    other.connect(&here).unwrap();
    let command = query_qp::In {
        qpn: qp.qpn(),
        ..query_qp::In::default()
    };
    let mut output = query_qp::In::reply();
    recorder
        .query(handle, command.encode().unwrap().as_ref(), output.as_mut())
        .unwrap();
    let mut told = query_qp::In::decode(output.as_ref()).unwrap().qpc;
    assert_eq!(told.mtu, Mtu::Bytes512, "the smaller of both ends");
    // What differs from run to run, and from driver to driver.
    for number in [
        &mut told.pd,
        &mut told.uar_page,
        &mut told.cqn_snd,
        &mut told.cqn_rcv,
        &mut told.remote_qpn,
        &mut told.dbr_umem_id,
        &mut told.next_rcv_psn,
        &mut told.next_send_psn,
        &mut told.last_acked_psn,
        &mut told.ssn,
    ] {
        *number = 0;
    }
    told.counter_set_id = 0;
    told.user_index = 0;
    told
}

#[cfg(target_os = "linux")]
#[test]
fn options_are_what_query_qp_says_over_both_drivers() {
    use warpverbs::driver::mlx5::{Mlx5, host_gpu};

    const OFFER: &str = "WARPVERBS_SIM_OFFER";
    if let Err(error) = Mlx5::devices() {
        let required = std::env::var_os("WARPVERBS_REQUIRE_RDMA_CORE").is_some();
        assert!(!required, "{error}");
        return eprintln!("SKIPPED: {error}");
    }
    // The device is the process's: one with a LAG needs a process of its own.
    if std::env::var_os(OFFER).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "options_are_what_query_qp_says_over_both_drivers",
            ])
            .env(OFFER, "lag")
            .env_remove("SYSFS_PATH")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        return assert!(output.status.success(), "{said}");
    }
    let world = World::builder().nic_config(|nic| nic.lag_ports = 2);
    let world = world.build_on_host().unwrap();
    let nic = Arc::new(Mlx5::open("mlx5_0").unwrap());
    let gpu = host_gpu(std::slice::from_ref(&nic));
    let options = options().min_rnr_timer(9).lag_port(2).depth(32);
    for (config, index) in [
        // ::ffff:10.0.0.1 is routable, fe80::... is not.
        (options.clone(), 3),
        (options.gid_index(1), 1),
    ] {
        let expected = queried(world.nic(), world.gpu(), &config);
        let found = queried(nic.clone(), gpu.clone(), &config);
        assert_eq!(found, expected);
        let path = found.primary_address_path;
        assert_eq!(found.state, QpState::Rts);
        assert_eq!((path.vhca_port_num, path.pkey_index), (1, 0x11));
        assert_eq!((path.tclass, path.dscp), (0x68, 0x1a));
        assert_eq!((path.eth_prio, path.hop_limit), (5, 3));
        assert_eq!((path.ack_timeout, path.udp_sport), (17, 0xd123));
        assert_eq!((found.retry_count, found.rnr_retry), (5, 4));
        assert_eq!((found.min_rnr_nak, found.lag_tx_port_affinity), (9, 2));
        assert_eq!((path.src_addr_index, found.log_sq_size), (index, 5));
    }
    for lag_port in [3, 15] {
        let context = Context::open(nic.clone()).unwrap();
        let (gpu, pd) = (
            GpuContext::open(gpu.clone()).unwrap(),
            Pd::alloc(&context).unwrap(),
        );
        let config = QpConfig::default().lag_port(lag_port);
        let error = QueuePair::create(&pd, &gpu, &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

fn rig(world: World, port: u8, change: fn(&mut PortInfo)) -> Rig {
    let recorder = Recorder::new(world.nic(), port, change);
    let nic = Context::open(recorder.clone()).unwrap();
    let gpu = GpuContext::open(world.gpu()).unwrap();
    let pd = Pd::alloc(&nic).unwrap();
    Rig {
        world,
        recorder,
        gpu,
        pd,
    }
}

impl Rig {
    /// A QP, connected to itself.
    fn connected(&self, config: &QpConfig) -> QueuePair {
        let mut qp = QueuePair::create(&self.pd, &self.gpu, config).unwrap();
        let info = qp.local_info();
        qp.connect(&info).unwrap();
        qp
    }

    /// The address paths of the last three transitions.
    fn paths(&self) -> [Vec<u8>; 3] {
        [RST2INIT, INIT2RTR, RTR2RTS].map(|opcode| {
            let input = self.recorder.modified(opcode).pop().unwrap();
            input[PATH..PATH + 0x2c].to_vec()
        })
    }
}

fn options() -> QpConfig {
    QpConfig::default()
        .pkey_index(0x11)
        .timeout(17)
        .traffic_class(0x68)
        .service_level(5)
        .hop_limit(3)
        .udp_source_port(0xd123)
        .retry_count(5)
        .rnr_retry(4)
        .mtu(1024)
}

#[test]
fn options_reach_the_bytes_of_the_transitions_on_a_roce_port() {
    let rig = rig(World::builder().build(), 1, |_| {});
    let qp = rig.connected(&options());
    let [init, rtr, rts] = rig.paths();
    for path in [&init, &rtr] {
        assert_eq!(path[0x02..0x04], [0, 0x11], "pkey_index");
        assert_eq!(path[0x25], 1, "vhca_port_num");
    }
    let port = rig.world.nic().query_port(1).unwrap();
    let gid = (0..port.gids)
        .find_map(|index| {
            let entry = rig.world.nic().query_gid(1, index).unwrap()?;
            // The first whose address reaches beyond the link.
            (entry.kind == warpverbs::driver::GidKind::RoceV2 && entry.gid[0] != 0xfe)
                .then_some((index, entry))
        })
        .unwrap();
    assert_eq!(rtr[0x05] >> 7, 0, "grh is implied");
    assert_eq!(u32::from(rtr[0x09]), gid.0, "src_addr_index");
    assert_eq!(rtr[0x0b], 3, "hop_limit");
    assert_eq!((rtr[0x0c] & 0xf, rtr[0x0d] >> 4), (0x6, 0x8), "tclass");
    assert_eq!(rtr[0x10..0x20], gid.1.gid, "rgid_rip");
    assert_eq!(rtr[0x21] & 0x3f, 0x68 >> 2, "dscp");
    assert_eq!(rtr[0x22..0x24], [0xd1, 0x23], "udp_sport");
    assert_eq!(rtr[0x24] >> 4 & 7, 5, "eth_prio");
    assert_eq!(rtr[0x26..0x2c], gid.1.mac, "rmac");
    assert_eq!(rts[0x08] >> 3, 17, "ack_timeout");
    // Of the QP context at 0x18: mtu (3: 1,024 bytes) at 0x08, retry and RNR retry at 0x71 and 0x72.
    let rtr = rig.recorder.modified(INIT2RTR).pop().unwrap();
    assert_eq!(rtr[0x18 + 0x08] >> 5, 3, "mtu");
    assert_eq!(
        rtr[0x18 + 0x15..0x18 + 0x18],
        qp.qpn().to_be_bytes()[1..],
        "remote_qpn"
    );
    let rts = rig.recorder.modified(RTR2RTS).pop().unwrap();
    assert_eq!((rts[0x18 + 0x71] & 7, rts[0x18 + 0x72] >> 5), (5, 4));
}

#[test]
fn options_reach_the_bytes_of_the_transitions_on_an_infiniband_port() {
    let rig = rig(World::builder().infiniband().build(), 1, |_| {});
    let options = QpConfig::default()
        .pkey_index(3)
        .timeout(9)
        .service_level(0xb)
        .traffic_class(0x68);
    let _qp = rig.connected(&options);
    let [init, rtr, rts] = rig.paths();
    let lid = rig.world.nic().query_port(1).unwrap().lid;
    assert_ne!(lid, 0);
    assert_eq!(init[0x02..0x04], [0, 3], "pkey_index");
    assert_eq!(rtr[0x06..0x08], lid.to_be_bytes(), "rlid");
    assert_eq!(rtr[0x24] & 0xf, 0xb, "sl");
    assert_eq!(rts[0x08] >> 3, 9, "ack_timeout");
    // Within the subnet, without a GRH: nothing of one, nor of Ethernet.
    assert_eq!(rtr[0x05] >> 7, 0, "grh");
    assert_eq!(rtr[0x09..0x24], [0; 0x1b]);
    assert_eq!(rtr[0x26..0x2c], [0; 6], "rmac");
}

#[test]
fn a_port_that_requires_a_grh_gets_one() {
    let world = World::builder()
        .infiniband()
        .nic_config(|nic| nic.grh_required = true)
        .build();
    let rig = rig(world, 1, |_| {});
    let options = QpConfig::default()
        .traffic_class(0x68)
        .hop_limit(7)
        .service_level(2);
    let _qp = rig.connected(&options);
    let [_, rtr, _] = rig.paths();
    let nic = rig.world.nic();
    let lid = nic.query_port(1).unwrap().lid;
    let gid = nic.query_gid(1, 0).unwrap().unwrap().gid;
    assert_eq!(rtr[0x05] >> 7, 1, "grh");
    assert_eq!(rtr[0x06..0x08], lid.to_be_bytes(), "rlid");
    assert_eq!((rtr[0x09], rtr[0x0b]), (0, 7), "src_addr_index, hop_limit");
    assert_eq!((rtr[0x0c] & 0xf, rtr[0x0d] >> 4), (0x6, 0x8), "tclass");
    assert_eq!(rtr[0x10..0x20], gid, "rgid_rip");
    assert_eq!(rtr[0x24] & 0xf, 2, "sl");
    assert_eq!(rtr[0x26..0x2c], [0; 6], "rmac");
}

#[test]
fn a_port_other_than_1_is_asked_and_told() {
    let rig = rig(World::builder().build(), 2, |_| {});
    let qp = rig.connected(&QpConfig::default().port(2));
    for path in rig.paths() {
        assert_eq!(path[0x25], 2, "vhca_port_num");
    }
    assert!(qp.export().is_ok());
    let error = QueuePair::create(&rig.pd, &rig.gpu, &QpConfig::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn each_qp_has_a_udp_source_port_of_its_own() {
    let rig = rig(World::builder().build(), 1, |_| {});
    let config = QpConfig::default().depth(8);
    let ports = |rig: &Rig, count: usize| -> BTreeSet<[u8; 2]> {
        rig.recorder
            .modified(INIT2RTR)
            .iter()
            .rev()
            .take(count)
            .map(|input| [input[PATH + 0x22], input[PATH + 0x23]])
            .collect()
    };
    let pool = QpPool::create(&rig.pd, &rig.gpu, &config, 1000).unwrap();
    let mut qps = pool.qps(1000).unwrap();
    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    QueuePair::connect_all(&mut qps, &infos).unwrap();
    let seen = ports(&rig, 1000);
    assert_eq!(seen.len(), 1000);
    // Within what the NIC takes: 0xc000 to 0xffff.
    assert!(seen.iter().all(|port| port[0] >= 0xc0));
    drop(qps);
    pool.close().unwrap();
    for _ in 0..3 {
        drop(rig.connected(&config.clone().udp_source_port(0xc777)));
        assert_eq!(ports(&rig, 1), BTreeSet::from([[0xc7, 0x77]]));
    }
}

#[test]
fn a_connection_has_the_smaller_mtu_of_both_ends() {
    // Codes of IBA 9.7.5: 1 is 256 bytes, 5 is 4,096.
    let codes = [(256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)];
    let rig = rig(World::builder().build(), 1, |_| {});
    for (local, local_code) in codes {
        for (remote, remote_code) in codes {
            let build = |mtu| {
                let config = QpConfig::default().depth(8).mtu(mtu);
                QueuePair::create(&rig.pd, &rig.gpu, &config).unwrap()
            };
            let (mut qp, peer) = (build(local), build(remote));
            qp.connect(&peer.local_info()).unwrap();
            let rtr = rig.recorder.modified(INIT2RTR).pop().unwrap();
            assert_eq!(
                rtr[0x18 + 0x08] >> 5,
                local_code.min(remote_code),
                "{local}, {remote}"
            );
        }
    }
    // Without the option, the port's.
    let small = self::rig(World::builder().build(), 1, |port| port.mtu = 512);
    drop(small.connected(&QpConfig::default()));
    let rtr = small.recorder.modified(INIT2RTR).pop().unwrap();
    assert_eq!(rtr[0x18 + 0x08] >> 5, 2);
}

#[test]
fn options_that_the_port_or_the_nic_cannot_have_are_refused_before_any_object() {
    let rig = rig(World::builder().build(), 1, |_| {});
    let live = rig.world.live();
    for (config, word) in [
        (QpConfig::default().pkey_index(128), "128 entries"),
        (QpConfig::default().pkey_index(u16::MAX), "65535"),
        (QpConfig::default().udp_source_port(0xbfff), "49151"),
        (QpConfig::default().udp_source_port(0), "source port 0"),
    ] {
        let error = QueuePair::create(&rig.pd, &rig.gpu, &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(rig.world.live(), live);
    }
    drop(rig.connected(&QpConfig::default().pkey_index(127)));
    // A port that is down.
    let down = self::rig(World::builder().build(), 1, |port| port.active = false);
    let error = QueuePair::create(&down.pd, &down.gpu, &QpConfig::default()).unwrap_err();
    assert!(error.to_string().contains("not active"), "{error}");
}

#[test]
fn qps_of_two_nics_are_not_connected_in_one_call() {
    let one = rig(World::builder().build(), 1, |_| {});
    let two = rig(World::builder().build(), 1, |_| {});
    let build = |rig: &Rig| QueuePair::create(&rig.pd, &rig.gpu, &QpConfig::default()).unwrap();
    let mut qps = [build(&one), build(&two)];
    let infos: Vec<_> = qps.iter().map(QueuePair::local_info).collect();
    let error = QueuePair::connect_all(&mut qps, &infos).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(one.recorder.modified(RST2INIT).is_empty());
}

/// Page sizes are always passed, and none is more than 64 times 1,024 bytes, the alignment of rings in it.
#[test]
fn a_umem_is_registered_with_page_sizes_that_its_offsets_fit() {
    let rig = rig(World::builder().build(), 1, |_| {});
    let pool = QpPool::create(&rig.pd, &rig.gpu, &QpConfig::default().depth(8), 100).unwrap();
    let qps = pool.qps(100).unwrap();
    let page_sizes = rig.recorder.page_sizes.lock().unwrap().clone();
    // 4 KiB to 64 KiB, once for all.
    assert_eq!(page_sizes, [0x1_f000]);
    drop(qps);
}
