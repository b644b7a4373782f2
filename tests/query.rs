//! QUERY_QP of QPs that this crate makes and connects over the real driver: the context is what the QPs were configured with, in
//! every state that such a QP has. What `ibv_query_qp` says of QPs that verbs make is ci/oracle's.
//!
//! Needs rdma-core; skipped, loudly, where it is missing, unless `WARPVERBS_REQUIRE_RDMA_CORE` is set. `WARPVERBS_FULL` runs 10,000
//! cases, `WARPVERBS_ORACLE_SEED` others.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use warpverbs::driver::mlx5::{self, Mlx5};
use warpverbs::wire::prm::qpc::{Mtu, QpState, Qpc};
use warpverbs::wire::prm::{Command, qp_2err, query_qp};
use warpverbs::{Access, Context, GpuContext, Pd, QpConfig, QueuePair};

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) % u64::from(bound)) as u32
    }
}

/// Has the NIC execute a command on a QP, whichever program it belongs to.
fn execute<C: Command>(command: &C) -> C::Out {
    let mut input = command.encode().unwrap();
    let mut output = C::reply();
    let answer = (0..64u16).find_map(|owner| {
        // The owner stands behind the opcode.
        input.as_mut()[2..4].copy_from_slice(&owner.to_be_bytes());
        let run = |nic: &mut warpverbs_sim_nic::NicModel| {
            nic.command(input.as_ref(), output.as_mut()).is_ok()
        };
        warpverbs_sim::with_nic(0, run)?.then(|| C::decode(output.as_ref()).unwrap())
    });
    answer.expect("somebody's QP")
}

fn context_of(qp: &QueuePair) -> Qpc {
    let command = query_qp::In {
        qpn: qp.qpn(),
        ..query_qp::In::default()
    };
    execute(&command).qpc
}

/// What one end is configured with.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    depth: u32,
    gid_index: u8,
    mtu: u32,
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
    rnr_timer: u8,
    class: u8,
    level: u8,
    hops: u8,
    source_port: u16,
    psn: u32,
    access: Access,
}

impl Chosen {
    fn any(numbers: &mut Numbers) -> Self {
        let mut access = Access::LOCAL_WRITE;
        for right in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
            if numbers.below(2) == 0 {
                access = access | right;
            }
        }
        Self {
            depth: 2 << numbers.below(8),
            // RoCE v2.
            gid_index: [1, 3][numbers.below(2) as usize],
            mtu: 256 << numbers.below(5),
            timeout: numbers.below(32) as u8,
            retries: numbers.below(8) as u8,
            rnr_retries: numbers.below(8) as u8,
            rnr_timer: numbers.below(32) as u8,
            class: numbers.below(256) as u8,
            level: numbers.below(8) as u8,
            hops: 1 + numbers.below(255) as u8,
            source_port: 0xc000 + numbers.below(0x4000) as u16,
            psn: numbers.below(1 << 24),
            access,
        }
    }

    fn config(&self) -> QpConfig {
        QpConfig::default()
            .depth(self.depth)
            .gid_index(self.gid_index)
            .mtu(self.mtu)
            .timeout(self.timeout)
            .retry_count(self.retries)
            .rnr_retry(self.rnr_retries)
            .min_rnr_timer(self.rnr_timer)
            .traffic_class(self.class)
            .service_level(self.level)
            .hop_limit(self.hops)
            .udp_source_port(self.source_port)
            .psn(self.psn)
            .access(self.access)
    }
}

/// The context of a connected QP, as its own and its peer's configuration want it.
fn compare(qp: &QueuePair, own: &Chosen, peer: &QueuePair, theirs: &Chosen, state: QpState) {
    let context = context_of(qp);
    let path = context.primary_address_path;
    // The layout of what ends tell each other is host/connect.rs's.
    let gid: [u8; 16] = peer.local_info()[20..36].try_into().unwrap();
    let found = (
        (context.state, context.mtu, context.remote_qpn),
        (context.next_send_psn, context.next_rcv_psn),
        (context.retry_count, context.rnr_retry, context.min_rnr_nak),
        (context.rwe, context.rre, context.rae),
        (1 << context.log_sq_size, context.log_msg_max),
        (path.vhca_port_num, path.pkey_index, path.ack_timeout),
        (path.src_addr_index, path.rgid_rip, path.hop_limit),
        (path.tclass, path.dscp, path.eth_prio, path.udp_sport),
    );
    let wanted = (
        (
            state,
            Mtu::from_bytes(own.mtu.min(theirs.mtu)).unwrap(),
            peer.qpn(),
        ),
        (own.psn, theirs.psn),
        (own.retries, own.rnr_retries, own.rnr_timer),
        (
            own.access.contains(Access::REMOTE_WRITE),
            own.access.contains(Access::REMOTE_READ),
            false,
        ),
        (own.depth, qp.log_max_message()),
        (1, 0, own.timeout),
        (own.gid_index, gid, own.hops),
        (own.class, own.class >> 2, own.level, own.source_port),
    );
    assert_eq!(found, wanted, "{own:?}, {theirs:?}");
    assert_eq!(
        (1 << context.log_sra_max, 1 << context.log_rra_max),
        (16, 16),
        "the port's"
    );
}

#[test]
fn a_context_is_what_the_qp_was_configured_with() {
    if let Err(error) = Mlx5::devices() {
        assert!(
            std::env::var_os("WARPVERBS_REQUIRE_RDMA_CORE").is_none(),
            "{error}"
        );
        eprintln!("SKIPPED: {error}");
        return;
    }
    let nic = Arc::new(Mlx5::open("mlx5_0").unwrap());
    let gpu = mlx5::host_gpu(std::slice::from_ref(&nic));
    let context = Context::open(nic).unwrap();
    let gpu = GpuContext::open(gpu).unwrap();
    let pd = Pd::alloc(&context).unwrap();
    let seed = std::env::var("WARPVERBS_ORACLE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut numbers = Numbers(seed.unwrap_or(1));
    let cases = if std::env::var_os("WARPVERBS_FULL").is_some() {
        10_000
    } else {
        100
    };
    for _ in 0..cases {
        let chosen = [Chosen::any(&mut numbers), Chosen::any(&mut numbers)];
        let make = |chosen: &Chosen| QueuePair::create(&pd, &gpu, &chosen.config()).unwrap();
        let mut qps = [make(&chosen[0]), make(&chosen[1])];
        let created = context_of(&qps[0]);
        assert_eq!(created.state, QpState::Rst);
        let infos = [qps[0].local_info(), qps[1].local_info()];
        QueuePair::connect_all(&mut qps, &[&infos[1], &infos[0]]).unwrap();
        let [a, b] = &mut qps;
        compare(a, &chosen[0], b, &chosen[1], QpState::Rts);
        compare(b, &chosen[1], a, &chosen[0], QpState::Rts);
        // As an error of the peer's does it.
        execute(&qp_2err::In { qpn: b.qpn() });
        compare(b, &chosen[1], a, &chosen[0], QpState::Err);
        a.reset().unwrap();
        assert_eq!(context_of(a), created, "a reset QP is as it was created");
    }
    println!("{cases} cases, 0 differences");
}
