//! Two processes, each with a NIC on a bus of its own, joined by a Unix socket: this test binary runs itself again as the peer.
//!
//! The peer is a responder that only steps its NIC: what it has to know comes by its standard input, and what it has to tell goes by its
//! standard output, a line each.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use warpverbs_sim_nic::{CablePlan, NicConfig, SocketEnd, Wire};
use warpverbs_wire::cqe::{Completion, Cqe, CqeOpcode, ErrorCqe};
use warpverbs_wire::prm::qpc::QpState;
use warpverbs_wire::wqe::{Opcode, SIGNALLED, fetch_add, segment_bytes};

use crate::rig::{EVERY_RIGHT, Piece, Rig, TestCq, TestMr, TestQp, TestRq, pattern};

const SIZE: u64 = 1 << 16;
/// Where the peer's counter lies.
const COUNTER: u64 = 0xf000;
/// No run takes so long: what is not there then will not come.
const PATIENCE: Duration = Duration::from_secs(120);
/// The peer's folder, in its environment.
const FOLDER: &str = "SOCKET_PEER_FOLDER";

/// One process's NIC, QP and memory.
struct End {
    rig: Rig,
    cq: TestCq,
    qp: TestQp,
    rq: TestRq,
    mr: TestMr,
}

/// What the other process has to know: QP, key, address.
#[derive(Clone, Copy)]
struct Address {
    qpn: u32,
    rkey: u32,
    iova: u64,
}

impl End {
    fn new(mac: u8, salt: u8) -> Self {
        let rig = Rig::with(config(mac));
        let cq = rig.cq(8);
        let (qp, rq) = rig.qp_with_receives(&cq, 7);
        let mr = rig.mr(SIZE, EVERY_RIGHT);
        rig.write(mr.addr, &pattern(SIZE as usize, salt));
        Self {
            rig,
            cq,
            qp,
            rq,
            mr,
        }
    }

    fn address(&self) -> Address {
        Address {
            qpn: self.qp.qpn,
            rkey: self.mr.keys.rkey,
            iova: self.mr.iova,
        }
    }

    /// Connects to a QP of the NIC with a MAC. `change`d as [`Rig::connect`] does.
    fn connect(&self, mac: u8, qpn: u32, ack_timeout: u8) {
        let other = Rig::with(config(mac));
        self.rig.connect(self.qp.qpn, &other, qpn, |qpc| {
            qpc.primary_address_path.ack_timeout = ack_timeout;
        });
    }

    /// Steps the NIC until the next completion.
    fn completion(&mut self) -> Completion {
        let begun = Instant::now();
        loop {
            self.rig.bus.lock().run_devices(1000);
            match self.cq.poll(&self.rig) {
                Some(completion) => return completion,
                None => std::thread::sleep(Duration::from_micros(20)),
            }
            assert!(begun.elapsed() < PATIENCE, "no completion");
        }
    }

    #[track_caller]
    fn success(&mut self) -> Cqe {
        match self.completion() {
            Completion::Done(cqe) => cqe,
            other => panic!("{other}"),
        }
    }

    #[track_caller]
    fn failure(&mut self) -> ErrorCqe {
        match self.completion() {
            Completion::Failed(cqe) => cqe,
            other => panic!("{other}"),
        }
    }
}

fn config(mac: u8) -> NicConfig {
    NicConfig {
        name: format!("sim{mac}"),
        mac: [2, 0, 0, 0, 0, mac],
        ..NicConfig::default()
    }
}

/// A folder that is gone when the test is.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("warpverbs-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The other process.
struct Peer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: Address,
}

impl Peer {
    /// Starts it, joined to `end`, and connects the QPs.
    fn start(end: &End, folder: &Path, wire: &Wire, ack_timeout: u8) -> Self {
        let local = folder.join("near");
        let socket = UnixDatagram::bind(&local).unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "sockets::the_other_process",
                "--ignored",
                "--nocapture",
            ])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let address = Address {
            qpn: 0,
            rkey: 0,
            iova: 0,
        };
        let mut peer = Self {
            process,
            input,
            output,
            address,
        };
        let [qpn, rkey, iova] = peer.hear("address");
        (peer.address.qpn, peer.address.rkey, peer.address.iova) = (qpn as u32, rkey as u32, iova);
        socket.connect(folder.join("far")).unwrap();
        let link = SocketEnd::new(socket).unwrap().behind(wire);
        end.rig.nic().connect(link);
        end.connect(2, peer.address.qpn, ack_timeout);
        let Address { qpn, rkey, iova } = end.address();
        peer.say(&format!("connect {qpn} {rkey} {iova}"));
        let [] = peer.hear("connected");
        peer
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
        self.input.flush().unwrap();
    }

    /// The numbers of the next line that begins with a word; the test harness's own lines do not.
    #[track_caller]
    fn hear<const N: usize>(&mut self, word: &str) -> [u64; N] {
        loop {
            let mut line = String::new();
            let len = self.output.read_line(&mut line).unwrap();
            assert!(len > 0, "the peer is gone");
            if let Some((_, rest)) = line.split_once(&format!("peer: {word}")) {
                let numbers: Vec<u64> = rest.split_whitespace().flat_map(str::parse).collect();
                return numbers.try_into().unwrap();
            }
        }
    }

    fn piece(&self, at: u64, len: u32) -> Piece {
        Piece {
            key: self.address.rkey,
            iova: self.address.iova.wrapping_add(at),
            len,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test: the other process. Steps its NIC until its input ends.
#[test]
#[ignore = "the other process of this file's tests, which start it"]
fn the_other_process() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("started by a test"));
    let mut end = End::new(2, 2);
    let link = SocketEnd::bind(&folder.join("far"), &folder.join("near")).unwrap();
    end.rig.nic().connect(link);
    let Address { qpn, rkey, iova } = end.address();
    println!("\npeer: address {qpn} {rkey} {iova}");
    // Receives of 3000 bytes, one behind the other.
    for n in 0..8 {
        let piece = end.mr.piece(0x8000 + n * 3000, 3000);
        end.rq.post(&end.rig, &[piece]);
    }
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if send.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    let mut there = None;
    loop {
        end.rig.bus.lock().run_devices(1000);
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            Err(_) => {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
        };
        let mut words = line.split_whitespace();
        let command = words.next();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        match command {
            Some("connect") => {
                let (qpn, rkey, iova) = (number() as u32, number() as u32, number());
                end.connect(1, qpn, 15);
                there = Some(Address { qpn, rkey, iova });
                println!("\npeer: connected");
            }
            // Writes its first bytes to the other process's memory.
            Some("write") => {
                let (at, len) = (number(), number() as u32);
                let there = there.expect("connected");
                let to = Piece {
                    key: there.rkey,
                    iova: there.iova.wrapping_add(at),
                    len,
                };
                let from = end.mr.piece(0, len);
                end.qp.write(&end.rig, from, to);
                end.qp.ring(&end.rig);
            }
            // Waits for completions, and says how many failed, and the last immediate.
            Some("completions") => {
                let count = number();
                let (mut failed, mut immediate) = (0, 0);
                for _ in 0..count {
                    match end.completion() {
                        Completion::Done(cqe) if cqe.opcode != CqeOpcode::Requester => {
                            immediate = cqe.immediate;
                        }
                        Completion::Done(_) => {}
                        _ => failed += 1,
                    }
                }
                println!("\npeer: completions {failed} {immediate}");
            }
            Some("sum") => {
                let (at, len) = (number(), number() as usize);
                let sum = sum(&end.rig.read(end.mr.addr + at, len));
                println!("\npeer: sum {sum}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A sum that tells places apart.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Every operation reaches the other process, and comes from it, whatever the wire loses, repeats, delays and reorders.
#[test]
fn processes_reach_each_other_over_a_socket() {
    let bad = CablePlan {
        loss_ppm: 30_000,
        duplicate_ppm: 30_000,
        reorder_ppm: 30_000,
        reorder_ns: 100_000,
        // Whatever the chances: some of each direction.
        drop: [2, 11].into(),
        ..CablePlan::default()
    };
    for (name, plan) in [("clean", CablePlan::default()), ("bad", bad)] {
        let folder = Folder::new(name);
        let wire = Wire::new(plan, 1);
        let mut end = End::new(1, 1);
        let mut peer = Peer::start(&end, &folder.0, &wire, 15);
        let here = pattern(SIZE as usize, 1);
        let mut there = pattern(SIZE as usize, 2);
        there[COUNTER as usize..][..8].copy_from_slice(&0u64.to_le_bytes());
        // Sets the counter: a WRITE of zeroes.
        end.rig.write(end.mr.addr + COUNTER, &[0; 8]);
        let to = peer.piece(COUNTER, 8);
        end.qp.write(&end.rig, end.mr.piece(COUNTER, 8), to);
        const ROUNDS: u64 = 20;
        for round in 0..ROUNDS {
            let at = round * 0x400;
            let (rig, mr) = (&end.rig, end.mr);
            let write = [peer.piece(at, 0x400).remote(), mr.piece(at, 0x400).local()];
            end.qp
                .post(rig, Opcode::RdmaWrite, SIGNALLED, &write.concat());
            let add = [
                peer.piece(COUNTER, 8).remote(),
                segment_bytes(fetch_add(3)).to_vec(),
                mr.piece(0xf100 + round * 8, 8).local(),
            ];
            end.qp
                .post(rig, Opcode::AtomicFetchAdd, SIGNALLED, &add.concat());
        }
        let read = [
            peer.piece(0x6000, 0x1000).remote(),
            end.mr.piece(0xe000, 0x1000).local(),
        ];
        end.qp
            .post(&end.rig, Opcode::RdmaRead, SIGNALLED, &read.concat());
        let message = end.mr.piece(0x100, 2500).local();
        end.qp.post(&end.rig, Opcode::Send, SIGNALLED, &message);
        let immediate = |control: &mut warpverbs_wire::wqe::Control| control.immediate = 0xfeed;
        end.qp
            .post_with(&end.rig, immediate, Opcode::SendImmediate, &message);
        end.qp.ring(&end.rig);
        for _ in 0..2 * ROUNDS + 4 {
            assert_eq!(end.success().opcode, CqeOpcode::Requester, "{name}");
        }
        peer.say("completions 2");
        // While it waits for its two receives, which are there, this NIC answers nothing that it needs.
        assert_eq!(peer.hear("completions"), [0, 0xfeed], "{name}");

        let len = ROUNDS as usize * 0x400;
        there[..len].copy_from_slice(&here[..len]);
        there[0x8000..0x8000 + 2500].copy_from_slice(&here[0x100..0x100 + 2500]);
        there[0x8000 + 3000..][..2500].copy_from_slice(&here[0x100..0x100 + 2500]);
        there[COUNTER as usize..][..8].copy_from_slice(&(ROUNDS * 3).to_le_bytes());
        peer.say(&format!("sum 0 {SIZE}"));
        assert_eq!(peer.hear("sum"), [sum(&there)], "{name}: its memory");
        let originals: Vec<u64> = end
            .rig
            .read(end.mr.addr + 0xf100, 8 * ROUNDS as usize)
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let expected: Vec<u64> = (0..ROUNDS).map(|n| n * 3).collect();
        assert_eq!(originals, expected, "{name}: each exactly once");
        let read = end.rig.read(end.mr.addr + 0xe000, 0x1000);
        assert!(read == there[0x6000..0x7000], "{name}: what was read");

        // The other way.
        peer.say("write 16384 20000");
        peer.say("completions 1");
        let begun = Instant::now();
        let expected = &there[..20000];
        while end.rig.read(end.mr.addr + 16384, 20000) != expected {
            end.rig.bus.lock().run_devices(1000);
            assert!(
                begun.elapsed() < PATIENCE,
                "{name}: its WRITE does not come"
            );
        }
        // Acknowledgements may be lost: this NIC has to go on answering until the peer says that all is well.
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stepper = std::thread::spawn({
            let (bus, stop) = (end.rig.bus.clone(), stop.clone());
            move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    bus.lock().run_devices(100);
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        assert_eq!(peer.hear("completions"), [0, 0], "{name}");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        stepper.join().unwrap();
        end.rig.assert_no_findings();
        let (out, back) = wire.stats();
        assert_eq!(
            name == "bad",
            out.lost > 0 && back.lost > 0,
            "{out:?} {back:?}"
        );
    }
}

/// The other process is killed: what is outstanding ends as its transport says, and nothing hangs.
#[test]
fn a_process_that_is_killed_exhausts_the_retries() {
    let folder = Folder::new("killed");
    let wire = Wire::new(CablePlan::default(), 1);
    let mut end = End::new(1, 1);
    // 0.27 s: eight of them are longer than a peer that lives is ever kept from answering.
    let mut peer = Peer::start(&end, &folder.0, &wire, 16);
    let (rig, mr) = (&end.rig, end.mr);
    end.qp.write(rig, mr.piece(0, 4096), peer.piece(0, 4096));
    end.qp.ring(rig);
    end.success();
    let before = end.rig.nic().stats().timeouts;
    peer.process.kill().unwrap();
    peer.process.wait().unwrap();
    let (rig, mr) = (&end.rig, end.mr);
    let failing = end.qp.write(rig, mr.piece(0, 4096), peer.piece(0, 4096));
    let read = [peer.piece(0, 64).remote(), mr.piece(0, 64).local()].concat();
    let behind = end.qp.post(rig, Opcode::RdmaRead, SIGNALLED, &read);
    end.rq.post(rig, &[mr.piece(0, 64)]);
    end.qp.ring(rig);
    let error = end.failure();
    assert_eq!(
        (
            error.syndrome.code(),
            error.vendor_syndrome,
            error.wqe_counter
        ),
        (0x15, 0x81, failing as u16)
    );
    let error = end.failure();
    assert_eq!(
        (error.syndrome.code(), error.wqe_counter),
        (0x05, behind as u16)
    );
    let error = end.failure();
    assert_eq!(
        (error.opcode, error.syndrome.code()),
        (CqeOpcode::ResponderError, 0x05)
    );
    assert_eq!(end.rig.state(end.qp.qpn), QpState::Err);
    assert_eq!(end.rig.nic().stats().timeouts - before, 7);
    // The NIC lives: its QP can be reset and destroyed.
    end.rig.to_reset(end.qp.qpn);
    assert_eq!(end.rig.state(end.qp.qpn), QpState::Rst);
    end.rig.assert_no_findings();
}
