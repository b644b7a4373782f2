//! Events: from the NICs to the descriptors that programs read them from.
//!
//! Knows: channels, who subscribed to what, what a message looks like.
//! Must not know: why a NIC raises an event.
//!
//! A channel is a pair of sockets: the program reads one end, messages are written to the other. What has not been read
//! can be taken out again, since both ends are this process's.

use std::collections::VecDeque;
use std::time::Duration;

use warpverbs_wire::eqe::{Event, EventType, PortChange};

use crate::abi::verbs::{AsyncEventDesc, CompEventDesc, event};
use crate::errno::{Errno, Result};
use crate::world::{State, existing};
use crate::{fds, sys};

/// So often a full channel is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A queue, as an event names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Queue {
    /// A CQ, by number.
    Cq(u32),
    /// A QP, by number.
    Qp(u32),
    /// A shared receive queue, by number of its RMP.
    Rmp(u32),
}

/// Who is told of the events of a queue that verbs made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    /// What the program calls the queue.
    pub(crate) user_handle: u64,
    /// A CQ's completion channel.
    pub(crate) completions: Option<i32>,
    /// The channel of asynchronous events.
    pub(crate) asynchronous: Option<i32>,
    /// Events that were sent: completions, then asynchronous ones.
    pub(crate) sent: (u32, u32),
}

/// What a channel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// Completion events of CQs.
    Completions,
    /// Asynchronous events of verbs.
    Asynchronous,
    /// Answers of asynchronous DevX queries.
    Commands,
    /// DevX events; without the event's data if so.
    DevxEvents {
        /// Cookies alone.
        without_data: bool,
    },
}

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) context: i32,
    pub(crate) carries: Carries,
    /// The end that is written to.
    ours: i32,
    /// Messages that the socket had no room for.
    waiting: VecDeque<Vec<u8>>,
}

/// A wish to be told of DevX events.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) nic: usize,
    pub(crate) channel: i32,
    /// Only of this queue, which this object of the context is.
    pub(crate) object: Option<(u32, Queue)>,
    pub(crate) event: u16,
    pub(crate) cookie: u64,
    /// An event descriptor is signalled instead.
    pub(crate) signal: Option<i32>,
}

impl Channel {
    /// Opens a channel and returns it with the descriptor that the program reads.
    pub(crate) fn open(context: i32, carries: Carries) -> Result<(i32, Self)> {
        let (theirs, ours) = sys::message_pair()?;
        if !fds::watch(theirs) {
            let _ = sys::close(theirs);
            let _ = sys::close(ours);
            return Err(Errno(libc::EMFILE));
        }
        let channel = Self {
            context,
            carries,
            ours,
            waiting: VecDeque::new(),
        };
        Ok((theirs, channel))
    }

    /// Ends it, once the program has closed its end.
    pub(crate) fn close(self) {
        let _ = sys::close(self.ours);
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.flush();
        let full = Err(Errno(libc::EAGAIN));
        if !self.waiting.is_empty() || sys::send(self.ours, message) == full {
            self.waiting.push_back(message.to_vec());
        }
    }

    fn has_backlog(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn flush(&mut self) {
        while let Some(message) = self.waiting.front() {
            if sys::send(self.ours, message) == Err(Errno(libc::EAGAIN)) {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Takes out what has not been read and is of no more use, and says how many messages that were.
    pub(crate) fn withdraw(&mut self, theirs: i32, useless: impl Fn(&[u8]) -> bool) -> u32 {
        let mut unread: VecDeque<Vec<u8>> = std::iter::from_fn(|| sys::receive(theirs)).collect();
        unread.append(&mut self.waiting);
        let before = unread.len();
        unread.retain(|message| !useless(message));
        let withdrawn = before - unread.len();
        self.waiting = unread;
        self.flush();
        u32::try_from(withdrawn).unwrap_or(u32::MAX)
    }
}

/// The queue that an event is of.
fn queue_of(raised: &Event) -> Option<Queue> {
    match *raised {
        Event::Completion { cqn } | Event::CqError { cqn, .. } => Some(Queue::Cq(cqn)),
        Event::Queue { event, number } => Some(match event {
            EventType::SrqCatastrophicError | EventType::SrqLimit => Queue::Rmp(number),
            _ => Queue::Qp(number),
        }),
        Event::Port { .. } | Event::Other(_) => None,
    }
}

/// The number of an event in verbs (mlx5_ib: `mlx5_ib_qp_event`, `mlx5_ib_cq_event`, `mlx5_ib_srq_event`, `mlx5_ib_event`).
fn verbs_event(raised: &Event) -> Option<u32> {
    match *raised {
        Event::CqError { .. } => Some(event::CQ_ERR),
        Event::Queue { event: kind, .. } => match kind {
            EventType::PathMigrated => Some(event::PATH_MIG),
            EventType::CommunicationEstablished => Some(event::COMM_EST),
            EventType::SendQueueDrained => Some(event::SQ_DRAINED),
            EventType::SrqLastWqe => Some(event::QP_LAST_WQE),
            EventType::WqCatastrophicError => Some(event::QP_FATAL),
            EventType::PathMigrationFailed => Some(event::PATH_MIG_ERR),
            EventType::WqInvalidRequest => Some(event::QP_REQ_ERR),
            EventType::WqAccessError => Some(event::QP_ACCESS_ERR),
            EventType::SrqCatastrophicError => Some(event::SRQ_ERR),
            EventType::SrqLimit => Some(event::SRQ_LIMIT),
            _ => None,
        },
        Event::Port { change, .. } => match change {
            PortChange::Down => Some(event::PORT_ERR),
            PortChange::Active => Some(event::PORT_ACTIVE),
            PortChange::Lid => Some(event::LID_CHANGE),
            PortChange::PartitionKeys => Some(event::PKEY_CHANGE),
            PortChange::Guids => Some(event::GID_CHANGE),
            PortChange::ClientReregister => Some(event::CLIENT_REREGISTER),
            _ => None,
        },
        Event::Other(EventType::InternalError) => Some(event::DEVICE_FATAL),
        Event::Completion { .. } | Event::Other(_) => None,
    }
}

/// Tells programs of what a NIC raised.
pub(crate) fn of_nic(nic: usize, raised: Vec<Event>) {
    let Some(world) = existing() else { return };
    let mut state = world.state();
    for one in &raised {
        state.tell_verbs(nic, one);
        state.tell_devx(nic, one);
    }
    state.pump();
}

/// Until all that waits is sent: a program that reads makes room, and nobody is told.
fn pump() {
    while let Some(world) = existing() {
        std::thread::sleep(LOOK_AGAIN);
        let mut state = world.state();
        state.channels.values_mut().for_each(Channel::flush);
        if !state.channels.values().any(Channel::has_backlog) {
            state.pumping = false;
            return;
        }
    }
}

impl State {
    /// Has messages sent for which there was no room, once there is.
    pub(crate) fn pump(&mut self) {
        if self.pumping || !self.channels.values().any(Channel::has_backlog) {
            return;
        }
        let thread = std::thread::Builder::new().name("events".into());
        // Without a thread the next event sends them.
        self.pumping = thread.spawn(pump).is_ok();
    }

    fn send(&mut self, channel: i32, message: &[u8]) {
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.send(message);
        }
    }

    fn tell_verbs(&mut self, nic: usize, raised: &Event) {
        let owner = queue_of(raised).map(|queue| self.owners.get_mut(&(nic, queue)));
        if let Event::Completion { .. } = raised {
            if let Some(Some(owner)) = owner
                && let Some(channel) = owner.completions
            {
                owner.sent.0 = owner.sent.0.wrapping_add(1);
                let message = CompEventDesc {
                    cq_handle: owner.user_handle,
                };
                self.send(channel, &message.emit());
            }
            return;
        }
        let Some(event_type) = verbs_event(raised) else {
            return;
        };
        match owner {
            // Of a queue.
            Some(owner) => {
                if let Some(owner) = owner
                    && let Some(channel) = owner.asynchronous
                {
                    owner.sent.1 = owner.sent.1.wrapping_add(1);
                    let message = AsyncEventDesc {
                        element: owner.user_handle,
                        event_type,
                    };
                    self.send(channel, &message.emit());
                }
            }
            // Of a port or the device: every context of the device is told.
            None => {
                let element = match raised {
                    Event::Port { port, .. } => u64::from(*port),
                    _ => 0,
                };
                let message = AsyncEventDesc {
                    element,
                    event_type,
                };
                let channels: Vec<i32> = self
                    .contexts
                    .values()
                    .filter(|context| context.nic == nic)
                    .flat_map(|context| context.asynchronous.iter().copied())
                    .collect();
                for channel in channels {
                    self.send(channel, &message.emit());
                }
            }
        }
    }

    fn tell_devx(&mut self, nic: usize, raised: &Event) {
        let eqe = raised.eqe();
        let event = u16::from(eqe.event_type.code());
        let queue = queue_of(raised);
        let told: Vec<Subscription> = self
            .subscriptions
            .iter()
            .filter(|subscription| {
                subscription.nic == nic
                    && subscription.event == event
                    && subscription
                        .object
                        .is_none_or(|(_, object)| Some(object) == queue)
            })
            .cloned()
            .collect();
        for subscription in told {
            if let Some(fd) = subscription.signal {
                sys::signal(fd);
                continue;
            }
            let Some(channel) = self.channels.get_mut(&subscription.channel) else {
                continue;
            };
            let mut message = subscription.cookie.to_ne_bytes().to_vec();
            if channel.carries
                == (Carries::DevxEvents {
                    without_data: false,
                })
            {
                message.extend(eqe.emit());
            }
            channel.send(&message);
        }
    }

    /// Forgets a queue, and withdraws its events that have not been read. Returns how many were read: completions, then
    /// asynchronous ones.
    pub(crate) fn forget_queue(&mut self, nic: usize, queue: Queue) -> (u32, u32) {
        let Some(owner) = self.owners.remove(&(nic, queue)) else {
            return (0, 0);
        };
        let mut withdraw = |channel: Option<i32>, useless: &dyn Fn(&[u8]) -> bool| {
            channel.map_or(0, |theirs| {
                self.channels
                    .get_mut(&theirs)
                    .map_or(0, |channel| channel.withdraw(theirs, useless))
            })
        };
        let completions = withdraw(owner.completions, &|message| {
            CompEventDesc::parse(message).cq_handle == owner.user_handle
        });
        let kinds: &[u32] = match queue {
            Queue::Cq(_) => &[event::CQ_ERR],
            Queue::Rmp(_) => &[event::SRQ_ERR, event::SRQ_LIMIT],
            Queue::Qp(_) => &[
                event::QP_FATAL,
                event::QP_REQ_ERR,
                event::QP_ACCESS_ERR,
                event::COMM_EST,
                event::SQ_DRAINED,
                event::PATH_MIG,
                event::PATH_MIG_ERR,
                event::QP_LAST_WQE,
            ],
        };
        let asynchronous = withdraw(owner.asynchronous, &|message| {
            let event = AsyncEventDesc::parse(message);
            event.element == owner.user_handle && kinds.contains(&event.event_type)
        });
        (
            owner.sent.0.saturating_sub(completions),
            owner.sent.1.saturating_sub(asynchronous),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_channel_keeps_messages_in_order() {
        let (theirs, mut channel) = Channel::open(0, Carries::Completions).unwrap();
        // More than a socket has room for.
        for number in 0..3000u64 {
            channel.send(&number.to_ne_bytes());
        }
        assert!(channel.has_backlog());
        for number in 0..3000u64 {
            let message = match sys::receive(theirs) {
                Some(message) => message,
                None => {
                    channel.flush();
                    sys::receive(theirs).unwrap()
                }
            };
            assert_eq!(message, number.to_ne_bytes());
        }
        assert!(!channel.has_backlog() && sys::receive(theirs).is_none());
        channel.close();
        assert!(fds::forget(theirs) && sys::close(theirs).is_ok());
    }

    #[test]
    fn only_useless_messages_are_withdrawn_and_the_rest_stays_in_order() {
        let (theirs, mut channel) = Channel::open(0, Carries::Completions).unwrap();
        for number in 0..1000u64 {
            channel.send(&number.to_ne_bytes());
        }
        assert_eq!(sys::receive(theirs).unwrap(), 0u64.to_ne_bytes());
        let odd = |message: &[u8]| message.first().is_some_and(|byte| byte % 2 == 1);
        assert_eq!(channel.withdraw(theirs, odd), 500);
        for number in 1..500u64 {
            channel.flush();
            assert_eq!(sys::receive(theirs).unwrap(), (number * 2).to_ne_bytes());
        }
        assert!(sys::receive(theirs).is_none());
        channel.close();
        assert!(fds::forget(theirs) && sys::close(theirs).is_ok());
    }
}
