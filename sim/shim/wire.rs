//! The wire between NICs of several processes: a folder with a socket a port, named by its MAC address, whose last two bytes are
//! an InfiniBand port's LID.
//!
//! Knows: frames, and the address that each begins with. Must not know: what else a frame says.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use warpverbs_sim_nic::{Link, LinkLayer};

/// Most bytes of a frame.
const MOST: usize = 1 << 14;
/// Ports that a folder has room for.
const PORTS: u32 = 1 << 16;
/// Frames that wait to be sent at most; what comes then is lost, and the transport sends it again.
const BACKLOG: usize = 1 << 14;

/// A port on a wire.
pub(crate) struct Port {
    socket: UnixDatagram,
    folder: PathBuf,
    /// Frames that their receivers had no room for.
    waiting: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
    layer: LinkLayer,
}

/// MAC address of port `number`: the last three bytes count.
fn mac_of(number: u32) -> [u8; 6] {
    let [_, d, e, f] = number.to_be_bytes();
    [2, 0, 0, d, e, f]
}

fn file_of(folder: &Path, mac: &[u8]) -> PathBuf {
    let name: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(name)
}

impl Port {
    /// Takes the first free address of the wire in `folder`, which is made if need be.
    pub(crate) fn join(folder: &Path) -> io::Result<(Self, [u8; 6])> {
        std::fs::create_dir_all(folder)?;
        for number in 1..PORTS {
            let mac = mac_of(number);
            let file = file_of(folder, &mac);
            let socket = match UnixDatagram::bind(&file) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    if !is_left_behind(&file) {
                        continue;
                    }
                    std::fs::remove_file(&file)?;
                    match UnixDatagram::bind(&file) {
                        Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                        bound => bound?,
                    }
                }
                bound => bound?,
            };
            socket.set_nonblocking(true)?;
            let port = Self {
                socket,
                folder: folder.to_owned(),
                waiting: VecDeque::new(),
                buffer: vec![0; MOST],
                layer: LinkLayer::Ethernet,
            };
            return Ok((port, mac));
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "no address is free",
        ))
    }

    /// The socket's file, to be removed at the end.
    pub(crate) fn file(folder: &Path, mac: [u8; 6]) -> PathBuf {
        file_of(folder, &mac)
    }

    /// True if the frame is gone: sent, or lost since nobody has its address.
    fn try_send(&self, frame: &[u8]) -> bool {
        let destination = match (self.layer, frame) {
            (LinkLayer::Ethernet, [a, b, c, d, e, f, ..]) => [*a, *b, *c, *d, *e, *f],
            // The LRH's second word.
            (LinkLayer::InfiniBand, [_, _, e, f, ..]) => {
                mac_of(u16::from_be_bytes([*e, *f]).into())
            }
            _ => return true,
        };
        let file = file_of(&self.folder, &destination);
        match self.socket.send_to(frame, file) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    fn flush(&mut self) {
        while let Some(frame) = self.waiting.pop_front() {
            if !self.try_send(&frame) {
                self.waiting.push_front(frame);
                return;
            }
        }
    }
}

/// True if no process listens at a socket's file any more.
fn is_left_behind(file: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    UnixDatagram::unbound()
        .and_then(|socket| socket.connect(file))
        .is_err_and(refused)
}

impl Link for Port {
    fn carries(&mut self, layer: LinkLayer) {
        self.layer = layer;
    }

    fn send(&mut self, _: u64, frame: &[u8]) {
        self.flush();
        if self.waiting.is_empty() && self.try_send(frame) || self.waiting.len() >= BACKLOG {
            return;
        }
        self.waiting.push_back(frame.to_vec());
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.flush();
        let len = self.socket.recv(&mut self.buffer).ok()?;
        self.buffer.get(..len).map(<[u8]>::to_vec)
    }

    /// Time is real, and the NIC comes back by itself.
    fn wait(&mut self, _: u64, _: Option<u64>) -> Option<u64> {
        None
    }

    fn resume(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("wv-wire-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn frames_go_to_whom_they_name_and_wait_for_room() {
        let folder = folder("frames");
        let (mut one, first) = Port::join(&folder).unwrap();
        let (mut two, second) = Port::join(&folder).unwrap();
        let (mut three, _) = Port::join(&folder).unwrap();
        assert_eq!((first[5], second[5]), (1, 2));
        let frame = |number: u16| {
            let mut frame = second.to_vec();
            frame.extend(number.to_be_bytes());
            frame
        };
        // More than a socket holds (net.unix.max_dgram_qlen).
        let count = 2000;
        for number in 0..count {
            one.send(0, &frame(number));
        }
        let mut received = 0;
        while received < count {
            if let Some(got) = two.receive() {
                assert_eq!(got, frame(received), "in order");
                received += 1;
            }
            assert!(one.receive().is_none());
        }
        assert!(two.receive().is_none() && three.receive().is_none());
        // Nobody has this address.
        one.send(0, &[9; 60]);
        assert!(one.waiting.is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn infiniband_packets_go_to_the_lid_that_they_name() {
        let folder = folder("lids");
        let (mut one, _) = Port::join(&folder).unwrap();
        let (mut two, mac) = Port::join(&folder).unwrap();
        one.carries(LinkLayer::InfiniBand);
        let packet = [0, 2, mac[4], mac[5], 0, 12, 0, 1];
        one.send(0, &packet);
        assert_eq!(two.receive().unwrap(), packet);
        one.send(0, &[0, 2, 0, 77, 0, 12, 0, 1]);
        one.send(0, &[0, 2]);
        assert!(one.waiting.is_empty() && two.receive().is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_address_that_was_left_behind_is_taken_again() {
        let folder = folder("left");
        let (port, mac) = Port::join(&folder).unwrap();
        drop(port);
        assert!(Port::file(&folder, mac).exists());
        let (_port, again) = Port::join(&folder).unwrap();
        assert_eq!(again, mac);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
