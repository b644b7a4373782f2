//! Vector clocks.
//!
//! Knows: epochs of agents, joins, and snapshots that messages carry.
//! Must not know: memory.
//!
//! An agent has a current epoch of its own; a release ends it. So an event of agent `a` in epoch `e` happens before whoever
//! has at least `e` in its clock for `a` (the epochs of FastTrack, Flanagan and Freund 2009).
//!
//! A clock is a short list, or a tree; neither is changed once it is shared. Thousands of agents of which each knows a few cost
//! what those few cost; a copy is one pointer, and a join passes over all that both sides have in common.

use std::sync::Arc;

/// Slots of a leaf, and children of an inner node, as powers of two.
const LEAF_BITS: u32 = 5;
const INNER_BITS: u32 = 4;
const LEAF: usize = 1 << LEAF_BITS;
const INNER: usize = 1 << INNER_BITS;

#[derive(Clone, Debug)]
enum Node {
    Leaf([u32; LEAF]),
    Inner([Option<Arc<Node>>; INNER]),
}

impl Node {
    const EMPTY: Self = Self::Inner([const { None }; INNER]);

    /// A node one level higher that holds the same.
    fn above(child: Arc<Self>) -> Arc<Self> {
        let mut children = [const { None }; INNER];
        children[0] = Some(child);
        Arc::new(Self::Inner(children))
    }

    /// The later epoch of each slot, of two nodes of one level; `None` if `own` has them all.
    fn joined(own: &Arc<Self>, theirs: &Arc<Self>) -> Option<Arc<Self>> {
        if Arc::ptr_eq(own, theirs) {
            return None;
        }
        match (&**own, &**theirs) {
            (Self::Leaf(a), Self::Leaf(b)) => {
                let mut max = *a;
                for (own, theirs) in max.iter_mut().zip(b) {
                    *own = (*own).max(*theirs);
                }
                if max == *a {
                    None
                } else if max == *b {
                    Some(theirs.clone())
                } else {
                    Some(Arc::new(Self::Leaf(max)))
                }
            }
            (Self::Inner(a), Self::Inner(b)) => {
                let mut out = None;
                let mut as_theirs = true;
                for (n, (a, b)) in a.iter().zip(b).enumerate() {
                    let child = match (a, b) {
                        (None, None) => None,
                        (Some(_), None) => {
                            as_theirs = false;
                            None
                        }
                        (None, Some(b)) => Some(b.clone()),
                        (Some(a), Some(b)) if Arc::ptr_eq(a, b) => None,
                        (Some(a), Some(b)) => {
                            let child = Self::joined(a, b);
                            as_theirs &= child.as_ref().is_some_and(|c| Arc::ptr_eq(c, b));
                            child
                        }
                    };
                    if child.is_some() {
                        let children = out.get_or_insert_with(|| a_children(own));
                        if let Some(entry) = children.get_mut(n) {
                            *entry = child;
                        }
                    }
                }
                match out {
                    Some(_) if as_theirs => Some(theirs.clone()),
                    out => out.map(|children| Arc::new(Self::Inner(children))),
                }
            }
            // Nodes of one level are of one kind.
            _ => None,
        }
    }

    /// The same, where `theirs` is `lower` levels below `own`: it holds the first slots.
    fn joined_low(own: &Arc<Self>, theirs: &Arc<Self>, lower: u32) -> Option<Arc<Self>> {
        let Self::Inner(children) = &**own else {
            return Self::joined(own, theirs);
        };
        if lower == 0 {
            return Self::joined(own, theirs);
        }
        let first = match children.first().and_then(Option::as_ref) {
            Some(first) => Self::joined_low(first, theirs, lower - 1)?,
            None => (1..lower).fold(theirs.clone(), |node, _| Self::above(node)),
        };
        let mut children = children.clone();
        children[0] = Some(first);
        Some(Arc::new(Self::Inner(children)))
    }
}

fn a_children(node: &Node) -> [Option<Arc<Node>>; INNER] {
    match node {
        Node::Inner(children) => children.clone(),
        Node::Leaf(_) => [const { None }; INNER],
    }
}

/// A clock of many.
#[derive(Clone, Debug, Default)]
struct Tree {
    root: Option<Arc<Node>>,
    /// Levels of inner nodes above the leaves.
    height: u32,
}

impl Tree {
    fn of(pairs: &Pairs) -> Self {
        let mut tree = Self::default();
        for (slot, epoch) in pairs.as_slice() {
            tree.set(*slot, *epoch);
        }
        tree
    }

    /// True if a slot lies in a tree of that height.
    fn holds(slot: u32, height: u32) -> bool {
        u64::from(slot) >> (LEAF_BITS + INNER_BITS * height) == 0
    }

    #[inline]
    fn get(&self, slot: u32) -> u32 {
        if !Self::holds(slot, self.height) {
            return 0;
        }
        let mut node = self.root.as_deref();
        let mut height = self.height;
        loop {
            match node {
                None => return 0,
                Some(Node::Leaf(epochs)) => return epochs[slot as usize % LEAF],
                Some(Node::Inner(children)) => {
                    height -= 1;
                    let at = slot >> (LEAF_BITS + INNER_BITS * height);
                    node = children[at as usize % INNER].as_deref();
                }
            }
        }
    }

    fn set(&mut self, slot: u32, epoch: u32) {
        while !Self::holds(slot, self.height) {
            self.root = self.root.take().map(Node::above);
            self.height += 1;
        }
        let mut height = self.height;
        let mut entry = &mut self.root;
        loop {
            let node = entry.get_or_insert_with(|| {
                Arc::new(match height {
                    0 => Node::Leaf([0; LEAF]),
                    _ => Node::EMPTY,
                })
            });
            match Arc::make_mut(node) {
                Node::Leaf(epochs) => {
                    epochs[slot as usize % LEAF] = epoch;
                    return;
                }
                Node::Inner(children) => {
                    height -= 1;
                    let at = slot >> (LEAF_BITS + INNER_BITS * height);
                    entry = &mut children[at as usize % INNER];
                }
            }
        }
    }

    fn join(&mut self, other: &Self) {
        let Some(theirs) = &other.root else { return };
        let Some(own) = &self.root else {
            *self = other.clone();
            return;
        };
        if self.height < other.height {
            let lifted = (self.height..other.height).fold(own.clone(), |node, _| Node::above(node));
            self.height = other.height;
            self.root = Some(Node::joined(&lifted, theirs).unwrap_or(lifted));
        } else if let Some(joined) = Node::joined_low(own, theirs, self.height - other.height) {
            self.root = Some(joined);
        }
    }
}

/// Entries of a clock that is a list.
const FEW: usize = 8;

/// A clock of few: slots with their epochs, by slot; empty entries at the end.
#[derive(Clone, Debug, Default)]
struct Pairs {
    len: usize,
    pairs: [(u32, u32); FEW],
}

impl Pairs {
    fn as_slice(&self) -> &[(u32, u32)] {
        self.pairs.get(..self.len).unwrap_or_default()
    }

    #[inline]
    fn get(&self, slot: u32) -> u32 {
        let found = self.as_slice().iter().find(|pair| pair.0 == slot);
        found.map_or(0, |pair| pair.1)
    }

    /// False if there is no room.
    fn set(&mut self, slot: u32, epoch: u32) -> bool {
        let at = self.as_slice().partition_point(|pair| pair.0 < slot);
        match self.pairs.get_mut(at) {
            Some(pair) if at < self.len && pair.0 == slot => pair.1 = epoch,
            _ if self.len == FEW => return false,
            _ => {
                self.pairs.copy_within(at..self.len, at + 1);
                self.pairs[at] = (slot, epoch);
                self.len += 1;
            }
        }
        true
    }
}

#[derive(Clone, Debug)]
enum Entries {
    Few(Arc<Pairs>),
    Many(Tree),
}

/// What an agent knows of others: the last epoch of each that happens before it. Epochs begin at 1; 0 knows nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Option<Entries>);

impl Clock {
    #[inline]
    pub(super) fn get(&self, slot: u32) -> u32 {
        match &self.0 {
            None => 0,
            Some(Entries::Few(pairs)) => pairs.get(slot),
            Some(Entries::Many(tree)) => tree.get(slot),
        }
    }

    pub(super) fn set(&mut self, slot: u32, epoch: u32) {
        match &mut self.0 {
            None => {
                let mut pairs = Pairs::default();
                pairs.set(slot, epoch);
                self.0 = Some(Entries::Few(Arc::new(pairs)));
            }
            Some(Entries::Few(pairs)) => {
                if !Arc::make_mut(pairs).set(slot, epoch) {
                    let mut tree = Tree::of(pairs);
                    tree.set(slot, epoch);
                    self.0 = Some(Entries::Many(tree));
                }
            }
            Some(Entries::Many(tree)) => tree.set(slot, epoch),
        }
    }

    /// Learns an epoch of a slot, unless a later one is known.
    pub(super) fn raise(&mut self, slot: u32, epoch: u32) {
        if self.get(slot) < epoch {
            self.set(slot, epoch);
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            (_, None) => {}
            (None, Some(_)) => *self = other.clone(),
            (Some(Entries::Few(own)), Some(Entries::Few(theirs))) if Arc::ptr_eq(own, theirs) => {}
            (Some(_), Some(Entries::Few(theirs))) => {
                for (slot, epoch) in theirs.as_slice() {
                    self.raise(*slot, *epoch);
                }
            }
            (Some(Entries::Many(own)), Some(Entries::Many(theirs))) => own.join(theirs),
            (Some(Entries::Few(own)), Some(Entries::Many(_))) => {
                let own = own.clone();
                *self = other.clone();
                for (slot, epoch) in own.as_slice() {
                    self.raise(*slot, *epoch);
                }
            }
        }
    }

    /// True if an event of `slot` in `epoch` happens before the clock's owner.
    #[inline]
    pub(super) fn covers(&self, slot: u32, epoch: u32) -> bool {
        self.get(slot) >= epoch
    }
}

/// What an agent knows, all that it did itself included.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    clock: &'a Clock,
    /// What a device knows beside.
    more: &'a [Clock],
    /// Its own slots.
    slot: u32,
    slots: u32,
}

impl<'a> Known<'a> {
    pub(super) fn of(clock: &'a Clock, slot: u32) -> Self {
        Self {
            clock,
            more: &[],
            slot,
            slots: 1,
        }
    }

    /// Of a device's queue.
    pub(super) fn of_queue(clock: &'a Clock, more: &'a [Clock], slot: u32) -> Self {
        Self {
            clock,
            more,
            slot,
            slots: OWN_SLOTS as u32,
        }
    }

    /// What a clock says, of no agent in particular.
    pub(super) fn only(clock: &'a Clock) -> Self {
        Self {
            slots: 0,
            ..Self::of(clock, 0)
        }
    }

    #[inline]
    pub(super) fn covers(self, slot: u32, epoch: u32) -> bool {
        slot.wrapping_sub(self.slot) < self.slots
            || self.clock.covers(slot, epoch)
            || self.more.iter().any(|clock| clock.covers(slot, epoch))
    }

    /// The slot of whoever knows this, if it is an agent.
    pub(super) fn own(self) -> Option<u32> {
        (self.slots > 0).then_some(self.slot)
    }
}

/// Most slots of one agent: what a device reads, and what it writes on each path.
pub(super) const OWN_SLOTS: usize = 3;

/// A released clock: what was known of others, and later epochs of the slots of whoever released it.
#[derive(Debug)]
pub(super) struct Snapshot {
    base: Clock,
    /// What a device knew beside.
    more: Clock,
    /// 0 for none.
    later: [(u32, u32); OWN_SLOTS],
    /// Who released it, and the epoch that it ended; whoever covers that has all of it. `None` if it is a join of several.
    of: Option<(u32, u32)>,
}

impl Snapshot {
    pub(super) fn new(base: Clock, later: &[(u32, u32)], of: Option<(u32, u32)>) -> Self {
        let mut own = [(0, 0); OWN_SLOTS];
        for (to, from) in own.iter_mut().zip(later) {
            *to = *from;
        }
        Self {
            base,
            more: Clock::default(),
            later: own,
            of,
        }
    }

    /// The same with what a device knew beside.
    pub(super) fn and(self, more: Clock) -> Self {
        Self { more, ..self }
    }

    /// A join of several.
    pub(super) fn join_of<'a>(snapshots: impl IntoIterator<Item = &'a Arc<Self>>) -> Arc<Self> {
        let mut clock = Clock::default();
        for snapshot in snapshots {
            snapshot.join_into(&mut clock);
        }
        Arc::new(Self::new(clock, &[], None))
    }

    /// True if somebody has all of it for certain.
    #[inline]
    pub(super) fn is_known_to(&self, known: Known<'_>) -> bool {
        self.of
            .is_some_and(|(slot, epoch)| known.covers(slot, epoch))
    }

    fn is_known_to_snapshot(&self, other: &Self) -> bool {
        self.of.is_some_and(|(slot, epoch)| {
            other.base.covers(slot, epoch)
                || other.more.covers(slot, epoch)
                || other
                    .later
                    .iter()
                    .any(|(own, known)| *own == slot && *known >= epoch)
        })
    }

    /// Joins it into a clock.
    pub(super) fn join_into(&self, clock: &mut Clock) {
        clock.join(&self.base);
        clock.join(&self.more);
        for (slot, epoch) in self.later.iter().filter(|(_, epoch)| *epoch != 0) {
            clock.raise(*slot, *epoch);
        }
    }

    /// As a clock of its own.
    pub(super) fn to_clock(&self) -> Clock {
        let mut clock = self.base.clone();
        self.join_into(&mut clock);
        clock
    }
}

/// The join of two snapshots.
fn merged(a: &Arc<Snapshot>, b: &Arc<Snapshot>) -> Arc<Snapshot> {
    if Arc::ptr_eq(a, b) || b.is_known_to_snapshot(a) {
        a.clone()
    } else if a.is_known_to_snapshot(b) {
        b.clone()
    } else {
        Snapshot::join_of([a, b])
    }
}

/// Distances of two agents, which are also scopes: same block, same GPU, same system.
pub(super) const DISTANCES: usize = 3;

/// What a write releases (PTX ISA, "Release and Acquire Patterns": a release counts only for those whom its scope includes).
#[derive(Debug, Default)]
pub(super) struct Releases {
    /// To readers at each distance from the writer.
    at: [Option<Arc<Snapshot>>; DISTANCES],
    /// To readers of one block, though the writer is of another: block-scope releases that an atomic carries on.
    in_block: Vec<(u32, Arc<Snapshot>)>,
}

/// The same, shared by all writes behind one fence.
#[derive(Clone, Debug, Default)]
pub(super) enum Carried {
    #[default]
    Nothing,
    /// One thing to all.
    ToAll(Arc<Snapshot>),
    Each(Arc<Releases>),
}

impl Carried {
    /// What is carried to a reader at a distance.
    pub(super) fn to(&self, distance: usize) -> Option<&Arc<Snapshot>> {
        match self {
            Self::Nothing => None,
            Self::ToAll(snapshot) => Some(snapshot),
            Self::Each(releases) => releases.at.get(distance)?.as_ref(),
        }
    }

    fn in_blocks(&self) -> &[(u32, Arc<Snapshot>)] {
        match self {
            Self::Each(releases) => &releases.in_block,
            _ => &[],
        }
    }

    /// What is carried to readers of a block beside.
    pub(super) fn to_block(&self, block: Option<u32>) -> Option<&Arc<Snapshot>> {
        let blocks = self.in_blocks().iter();
        blocks
            .filter(|(of, _)| Some(*of) == block)
            .map(|(_, snapshot)| snapshot)
            .next()
    }

    /// The same with a later release to all within its reach.
    pub(super) fn with(&self, now: Arc<Snapshot>, reach: usize) -> Self {
        if reach + 1 >= DISTANCES {
            return Self::ToAll(now);
        }
        let at = std::array::from_fn(|distance| match distance <= reach {
            true => Some(now.clone()),
            false => self.to(distance).cloned(),
        });
        Self::Each(Arc::new(Releases {
            at,
            in_block: Vec::new(),
        }))
    }

    /// What an atomic carries that itself carries this, with what a write at a distance and in a block carried that it read.
    /// PTX ISA, "Observation": a read of this write observes what it read, too. The first writer is as far from that reader
    /// as the farther of both (distances are ultrametric), unless the reader is of the first writer's block.
    pub(super) fn and_read(self, read: &Self, distance: usize, block: Option<u32>) -> Self {
        match (&self, read) {
            (_, Self::Nothing) => return self,
            (Self::Nothing, Self::ToAll(_)) => return read.clone(),
            _ => {}
        }
        let at = std::array::from_fn(|to| join_of(self.to(to), read.to(to.max(distance))));
        let mut in_block = read.in_blocks().to_vec();
        if let (Some(block), Some(narrow), true) = (block, read.to(0), distance > 0)
            && read
                .to(distance)
                .is_none_or(|wide| !Arc::ptr_eq(wide, narrow))
        {
            match in_block.iter_mut().find(|(of, _)| *of == block) {
                Some((_, known)) => *known = merged(known, narrow),
                None => in_block.push((block, narrow.clone())),
            }
        }
        Self::Each(Arc::new(Releases { at, in_block }))
    }
}

fn join_of(a: Option<&Arc<Snapshot>>, b: Option<&Arc<Snapshot>>) -> Option<Arc<Snapshot>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(merged(a, b)),
        (a, b) => a.or(b).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(entries: &[(u32, u32)]) -> Clock {
        let mut clock = Clock::default();
        for (slot, epoch) in entries {
            clock.set(*slot, *epoch);
        }
        clock
    }

    fn entries(clock: &Clock) -> Vec<(u32, u32)> {
        (0..20_000)
            .map(|slot| (slot, clock.get(slot)))
            .filter(|(_, epoch)| *epoch != 0)
            .collect()
    }

    #[test]
    fn joins_take_the_later_epoch_of_each() {
        let mut a = clock(&[(0, 1), (1, 5)]);
        a.join(&clock(&[(0, 3), (1, 2), (2, 7)]));
        assert_eq!(entries(&a), [(0, 3), (1, 5), (2, 7)]);
        assert!(a.covers(2, 7) && !a.covers(2, 8) && a.covers(9, 0) && !a.covers(9, 1));
        assert_eq!(a.get(u32::MAX), 0);
    }

    /// Clocks of every height, joined both ways, against a list of numbers.
    #[test]
    fn joins_of_all_heights_agree_with_lists() {
        let some = [
            vec![],
            vec![(0, 2), (31, 9)],
            vec![(31, 4), (32, 1), (511, 3)],
            vec![(0, 7), (512, 1), (600, 6), (8191, 2)],
            vec![(512, 5), (8192, 3), (19_999, 4)],
            vec![(1, 1), (8192, 2)],
            (0..12).map(|n| (n * 900, n + 1)).collect(),
            (0..9).map(|n| (n * 3, 20 - n)).collect(),
        ];
        for a in &some {
            for b in &some {
                let mut joined = clock(a);
                let before = joined.clone();
                joined.join(&clock(b));
                let mut expected: Vec<(u32, u32)> = a.iter().chain(b).copied().collect();
                expected.sort_by_key(|(slot, epoch)| (*slot, u32::MAX - *epoch));
                expected.dedup_by_key(|(slot, _)| *slot);
                assert_eq!(entries(&joined), expected, "{a:?} {b:?}");
                // A copy that was made before is what it was.
                assert_eq!(entries(&before), *a);
            }
        }
    }

    #[test]
    fn who_learns_all_that_another_knows_shares_its_tree() {
        let at = |epoch: u32| (0..20).map(|n| (n * 450, epoch)).collect::<Vec<_>>();
        let (mut one, all) = (clock(&at(1)[2..18]), clock(&at(2)));
        one.join(&all);
        let roots = [&one, &all].map(|clock| match &clock.0 {
            Some(Entries::Many(tree)) => tree.root.as_ref().map(Arc::as_ptr),
            _ => None,
        });
        assert!(roots[0].is_some() && roots[0] == roots[1]);
    }

    #[test]
    fn an_agent_knows_what_it_did_itself() {
        let clock = clock(&[(3, 1)]);
        let known = Known::of_queue(&clock, &[], 5);
        assert!(known.covers(3, 1) && !known.covers(3, 2) && !known.covers(4, 1));
        assert!(known.covers(5, 900) && known.covers(7, 1) && !known.covers(8, 1));
        assert!(!Known::only(&clock).covers(0, 1));
    }

    #[test]
    fn a_merge_keeps_both_sides() {
        let snapshot = |known: &[(u32, u32)], later: &[(u32, u32)], of| {
            Arc::new(Snapshot::new(clock(known), later, of))
        };
        let one = snapshot(&[(0, 4), (1, 1)], &[], Some((0, 4)));
        let two = snapshot(&[], &[(1, 6)], Some((1, 6)));
        let both = merged(&one, &two);
        assert_eq!(entries(&both.to_clock()), [(0, 4), (1, 6)]);
        assert!(both.of.is_none());
        let later = snapshot(&[(0, 9), (1, 6)], &[], Some((0, 9)));
        assert!(Arc::ptr_eq(&merged(&later, &two), &later));
        assert!(Arc::ptr_eq(&merged(&two, &later), &later));
    }
}
