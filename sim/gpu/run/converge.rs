//! The converging scheduler: lanes that part at a branch meet again at its post-dominator.
//!
//! Knows: groups of lanes that go together, and where they are held for each other.
//! Must not know: what instructions compute.
//!
//! This is what convergence barriers of a GPU do (`BSSY` before a branch, `BSYNC` at its post-dominator), at every
//! branch: the most that a compiler may insert. A group's lanes run one by one between branches, take each branch
//! together, and split there if they differ. Lanes that leave a loop are therefore held behind it until the others have left
//! it too: code whose lanes wait for each other across that point deadlocks, here as it may on a GPU (rule O13).

use super::state::{Block, Group, Meeting, Status, Thread, WARP, Warp};

impl Warp {
    /// All lanes go together at first.
    pub(super) fn converged(lanes: u32) -> Self {
        Self {
            live: lanes,
            groups: vec![Group {
                lanes,
                meeting: None,
                waiting: 0,
            }],
            meetings: Vec::new(),
        }
    }

    fn group_of(&self, lane: u32) -> Option<usize> {
        self.groups.iter().position(|g| g.lanes >> lane & 1 == 1)
    }

    fn meeting(&self, index: Option<usize>) -> Option<&Meeting> {
        self.meetings.get(index?)?.as_ref()
    }

    fn add_meeting(&mut self, meeting: Meeting) -> usize {
        match self.meetings.iter().position(Option::is_none) {
            Some(free) => {
                self.meetings[free] = Some(meeting);
                free
            }
            None => {
                self.meetings.push(Some(meeting));
                self.meetings.len() - 1
            }
        }
    }
}

/// A lane that waits for its group, at a branch or in `activemask`: gives the group's lanes once all are there.
fn gather(block: &mut Block, index: usize, status: Status) -> Option<u32> {
    let thread = block.threads.get_mut(index)?;
    thread.status = status;
    let (warp, lane) = (thread.warp(), thread.lane());
    let warp = block.warps.get_mut(warp)?;
    let at = warp.group_of(lane)?;
    let group = warp.groups.get_mut(at)?;
    group.waiting |= 1 << lane;
    if group.waiting != group.lanes {
        return None;
    }
    group.waiting = 0;
    Some(group.lanes)
}

/// A thread has come to a branch whose lanes meet again at `join`. Gives the threads that may go on.
pub(super) fn branch(block: &mut Block, index: usize, next: u32, join: Option<u32>) -> Vec<u32> {
    let Some(lanes) = gather(block, index, Status::Branch { next }) else {
        return Vec::new();
    };
    let Some(warp) = block.threads.get(index).map(Thread::warp) else {
        return Vec::new();
    };
    take(block, warp, lanes, join)
}

/// All lanes of a group take their branch.
fn take(block: &mut Block, warp: usize, lanes: u32, join: Option<u32>) -> Vec<u32> {
    let mut ways: Vec<(u32, u32)> = Vec::new();
    let mut depth = 0;
    let mut released = Vec::new();
    for lane in lanes_of(lanes) {
        let Some(thread) = block.lane(warp, lane) else {
            continue;
        };
        let Status::Branch { next } = thread.status else {
            continue;
        };
        thread.pc = next;
        thread.status = Status::Ready;
        depth = thread.frames.len();
        released.push(thread.index);
        match ways.iter_mut().find(|(pc, _)| *pc == next) {
            Some((_, lanes)) => *lanes |= 1 << lane,
            None => ways.push((next, 1 << lane)),
        }
    }
    let Some(warp) = block.warps.get_mut(warp) else {
        return released;
    };
    let Some(at) = warp.groups.iter().position(|g| g.lanes == lanes) else {
        return released;
    };
    if ways.len() > 1 {
        let outer = warp.groups.get(at).and_then(|g| g.meeting);
        // A loop's branch parts lanes again and again; they all meet at the one place behind it.
        let same = |m: &Meeting| Some(m.pc) == join && m.depth == depth;
        let meeting = match join {
            Some(pc) if !warp.meeting(outer).is_some_and(same) => Some(warp.add_meeting(Meeting {
                pc,
                depth,
                expected: lanes,
                arrived: 0,
                outer,
            })),
            _ => outer,
        };
        warp.groups.swap_remove(at);
        warp.groups.extend(ways.iter().map(|(_, lanes)| Group {
            lanes: *lanes,
            meeting,
            waiting: 0,
        }));
    }
    released
}

/// A thread has come to a post-dominator. Gives the threads that may go on: the thread itself if nobody is to be met here.
pub(super) fn join(block: &mut Block, index: usize) -> Vec<u32> {
    let Some(thread) = block.threads.get_mut(index) else {
        return Vec::new();
    };
    let (warp_at, lane, pc, depth) = (thread.warp(), thread.lane(), thread.pc, thread.frames.len());
    let Some(warp) = block.warps.get_mut(warp_at) else {
        return Vec::new();
    };
    let Some(group) = warp.group_of(lane) else {
        return Vec::new();
    };
    let meeting = warp.groups.get(group).and_then(|g| g.meeting);
    let here = warp
        .meeting(meeting)
        .is_some_and(|m| m.pc == pc && m.depth == depth);
    let Some(meeting) = meeting.filter(|_| here) else {
        thread.pc += 1;
        thread.status = Status::Ready;
        return vec![index as u32];
    };
    thread.status = Status::Held;
    if let Some(Some(meeting)) = warp.meetings.get_mut(meeting) {
        meeting.arrived |= 1 << lane;
    }
    if let Some(group) = warp.groups.get_mut(group) {
        group.lanes &= !(1 << lane);
    }
    warp.groups.retain(|g| g.lanes != 0);
    meet(block, warp_at, meeting)
}

/// Releases the lanes of a meeting if all are there. They stay at the same place: an outer meeting may be there too.
fn meet(block: &mut Block, warp_at: usize, index: usize) -> Vec<u32> {
    let Some(warp) = block.warps.get_mut(warp_at) else {
        return Vec::new();
    };
    let Some(slot) = warp.meetings.get_mut(index) else {
        return Vec::new();
    };
    let Some(meeting) = slot.take_if(|m| m.arrived == m.expected) else {
        return Vec::new();
    };
    if meeting.expected == 0 {
        return Vec::new();
    }
    warp.groups.push(Group {
        lanes: meeting.expected,
        meeting: meeting.outer,
        waiting: 0,
    });
    let mut released = Vec::new();
    for lane in lanes_of(meeting.expected) {
        if let Some(thread) = block.lane(warp_at, lane) {
            thread.status = Status::Ready;
            released.push(thread.index);
        }
    }
    released
}

/// A lane has exited: nobody waits for it any more. `join_of` gives the post-dominator of the branch at a pc. Gives the
/// threads that may go on, and the lanes of groups whose `activemask` is now complete.
pub(super) fn exit(
    block: &mut Block,
    warp_at: usize,
    lane: u32,
    join_of: impl Fn(u32) -> Option<u32>,
) -> (Vec<u32>, Vec<u32>) {
    let bit = 1u32 << lane;
    let (mut released, mut active) = (Vec::new(), Vec::new());
    let Some(warp) = block.warps.get_mut(warp_at) else {
        return (released, active);
    };
    for group in &mut warp.groups {
        group.lanes &= !bit;
    }
    warp.groups.retain(|g| g.lanes != 0);
    for meeting in warp.meetings.iter_mut().flatten() {
        meeting.expected &= !bit;
    }
    let meetings = warp.meetings.len();
    let complete: Vec<u32> = warp
        .groups
        .iter_mut()
        .filter(|g| g.waiting == g.lanes)
        .map(|g| {
            g.waiting = 0;
            g.lanes
        })
        .collect();
    for index in 0..meetings {
        released.extend(meet(block, warp_at, index));
    }
    for lanes in complete {
        let first = lanes_of(lanes)
            .next()
            .and_then(|lane| block.lane(warp_at, lane));
        match first.map(|thread| (thread.status, thread.pc)) {
            Some((Status::Branch { .. }, pc)) => {
                released.extend(take(block, warp_at, lanes, join_of(pc)))
            }
            Some((Status::ActiveMask, _)) => active.push(lanes),
            _ => {}
        }
    }
    (released, active)
}

/// A thread has come to `activemask`: gives the group's lanes once all are there, as one mask.
pub(super) fn active_mask(block: &mut Block, index: usize) -> Option<u32> {
    gather(block, index, Status::ActiveMask)
}

/// Lanes that a held lane waits for.
pub(super) fn missing(block: &Block, thread: &Thread) -> u32 {
    let Some(warp) = block.warps.get(thread.warp()) else {
        return 0;
    };
    let bit = 1u32 << thread.lane();
    match thread.status {
        Status::Held => warp
            .meetings
            .iter()
            .flatten()
            .filter(|m| m.arrived & bit != 0)
            .fold(0, |all, m| all | (m.expected & !m.arrived)),
        _ => warp
            .groups
            .iter()
            .filter(|g| g.lanes & bit != 0)
            .fold(0, |all, g| all | (g.lanes & !g.waiting)),
    }
}

pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = u32> {
    (0..WARP).filter(move |lane| mask >> lane & 1 == 1)
}
