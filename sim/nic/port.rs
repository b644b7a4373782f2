//! The port: packets that have arrived, and frames that leave.
//!
//! Knows: which packets never leave the NIC.
//! Must not know: transport state.

use std::collections::VecDeque;

use crate::config::{LinkLayer, NicConfig};
use crate::gids::Gids;
use crate::link::Link;
use crate::packet::{self, Packet, Path, Source};
use crate::time::Clock;

/// The port.
#[derive(Default)]
pub(crate) struct Port {
    arrived: VecDeque<Packet>,
    link: Option<Box<dyn Link>>,
    waiting: bool,
    down: bool,
}

impl Port {
    pub(crate) fn connect(&mut self, mut link: Box<dyn Link>, layer: LinkLayer) {
        link.carries(layer);
        self.link = Some(link);
        self.waiting = false;
    }

    pub(crate) fn set_up(&mut self, up: bool) {
        self.down = !up;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Sends a packet; false if it cannot leave: it is lost.
    pub(crate) fn send(&mut self, now: u64, path: &Path, mut packet: Packet) -> bool {
        packet.pkey = path.pkey;
        if path.loops_back {
            packet.source = Source::Here;
            self.arrived.push_back(packet);
            return true;
        }
        match (&mut self.link, path.frame(&packet)) {
            (Some(link), Some(frame)) if !self.down => {
                link.send(now, &frame);
                true
            }
            _ => false,
        }
    }

    /// The next packet that has arrived.
    pub(crate) fn receive(&mut self, config: &NicConfig, gids: &Gids) -> Option<Packet> {
        if let Some(link) = &mut self.link {
            while let Some(frame) = link.receive() {
                if !self.down {
                    self.arrived.extend(packet::parse(config, gids, &frame));
                }
            }
        }
        self.arrived.pop_front()
    }

    /// The NIC neither hears nor answers, and holds no time up.
    pub(crate) fn sleep(&mut self, now: u64) {
        self.arrived.clear();
        if let Some(link) = &mut self.link {
            while link.receive().is_some() {}
            self.waiting = true;
            link.wait(now, None);
        }
    }

    /// The NIC works: time does not pass.
    pub(crate) fn work(&mut self) {
        if self.waiting {
            self.waiting = false;
            if let Some(link) = &mut self.link {
                link.resume();
            }
        }
    }

    /// Real time has come to `now`.
    pub(crate) fn set_time(&mut self, now: u64) {
        if let Some(link) = &mut self.link {
            link.set_time(now);
        }
    }

    /// The NIC has nothing to do: time passes. False if nothing will happen by itself, or others have work.
    pub(crate) fn pass_time(&mut self, clock: &mut Clock) -> bool {
        let (now, deadline) = (clock.now(), clock.next());
        match &mut self.link {
            None => deadline.is_some_and(|deadline| clock.pass(deadline)),
            Some(link) => {
                self.waiting = true;
                link.wait(now, deadline)
                    .is_some_and(|target| clock.jump(target))
            }
        }
    }
}
