//! A wire to another process: a datagram socket that carries a frame a datagram.
//!
//! Knows: sockets, real time.
//! Must not know: what a frame says. QEMU's `-netdev dgram` speaks the same.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::link::Link;

/// Most bytes of a frame that is received: more than the largest MTU and all headers.
const MOST: usize = 1 << 14;
/// How long a NIC that waits for a timer rests.
const REST: Duration = Duration::from_micros(20);

/// One end of a wire between processes. Simulated time is real time here, so runs over it are not replayed by a seed.
#[derive(Debug)]
pub struct SocketEnd {
    socket: UnixDatagram,
    begun: Instant,
    buffer: Vec<u8>,
}

impl SocketEnd {
    /// An end over a connected socket.
    pub fn new(socket: UnixDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            begun: Instant::now(),
            buffer: vec![0; MOST],
        })
    }

    /// An end that receives at `local`, which it creates, and sends to `peer`, which exists.
    pub fn bind(local: &Path, peer: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::bind(local)?;
        socket.connect(peer)?;
        Self::new(socket)
    }
}

impl Link for SocketEnd {
    /// What the socket does not take is lost, as on a wire: the transport sends it again.
    fn send(&mut self, _: u64, frame: &[u8]) {
        let _ = self.socket.send(frame);
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let len = self.socket.recv(&mut self.buffer).ok()?;
        self.buffer.get(..len).map(<[u8]>::to_vec)
    }

    /// Without a deadline the NIC is idle: whoever steps it looks again for frames.
    fn wait(&mut self, now: u64, deadline: Option<u64>) -> Option<u64> {
        deadline?;
        std::thread::sleep(REST);
        let real = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Later than `now`, so that waiting counts as progress.
        Some(real.max(now + 1))
    }

    fn resume(&mut self) {}
}
