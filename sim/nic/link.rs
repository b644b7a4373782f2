//! What joins a port to other ports.
//!
//! Knows: frames out, frames in, and whose time passes when.
//! Must not know: what a frame says.

use crate::config::LinkLayer;

/// One end of a link, as a NIC uses it. A frame that is sent may be lost, delayed or repeated; one that is received is whole.
pub trait Link: Send {
    /// What frames are, said once before the first: Ethernet's, without frame check sequence, or InfiniBand's, with both CRCs.
    fn carries(&mut self, _layer: LinkLayer) {}
    /// Sends a frame. Work that a NIC does takes no simulated time; `now` is the sender's clock.
    fn send(&mut self, now: u64, frame: &[u8]);
    /// The next frame that has arrived.
    fn receive(&mut self) -> Option<Vec<u8>>;
    /// The NIC has nothing to do before `deadline`, or before a frame arrives. Returns the time to which simulated time may
    /// pass: `None` if nothing will happen by itself, and the time now if others have work.
    fn wait(&mut self, now: u64, deadline: Option<u64>) -> Option<u64>;
    /// The NIC has work again, after [`Self::wait`].
    fn resume(&mut self);
    /// Time is real for the NIC, and has come to `now`. It does not wait then, but comes back.
    fn set_time(&mut self, _now: u64) {}
}
