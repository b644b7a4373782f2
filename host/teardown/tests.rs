use std::sync::atomic::AtomicU32;
use std::time::Instant;

use super::*;
use crate::driver::{DriverError, DriverErrorKind};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<(Vec<&'static str>, u32)>>);

impl Log {
    /// Destroying `name` is refused while refusals are left.
    fn destroy(&self, name: &'static str) -> Result<()> {
        let mut log = self.0.lock().unwrap();
        if name == "child" && log.1 > 0 {
            log.1 -= 1;
            return Err(Error::driver("destroy")(DriverError::new(
                "test",
                DriverErrorKind::Busy,
                "refused",
            )));
        }
        log.0.push(name);
        Ok(())
    }
    fn seen(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().0.clone()
    }
}

struct Parent(Log, Graph);
impl Node for Parent {
    const NAME: &'static str = "parent";
    fn destroy(&self) -> Result<()> {
        self.0.destroy("parent")
    }
    fn graph(&self) -> &Graph {
        &self.1
    }
    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}

struct Child {
    log: Log,
    graph: Graph,
    parent: Pin<Parent>,
}
impl Node for Child {
    const NAME: &'static str = "child";
    fn destroy(&self) -> Result<()> {
        self.log.destroy("child")
    }
    fn graph(&self) -> &Graph {
        &self.graph
    }
    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        vec![self.parent.slot()]
    }
}

fn graph(refusals: u32) -> (Log, Graph, Shared<Parent>, Shared<Child>) {
    let log = Log::default();
    log.0.lock().unwrap().1 = refusals;
    let graph = Graph::new("context");
    let parent = Shared::new(Parent(log.clone(), graph.clone()));
    let child = Shared::new(Child {
        log: log.clone(),
        graph: graph.clone(),
        parent: parent.pin().unwrap(),
    });
    (log, graph, parent, child)
}

fn soon() -> Instant {
    Instant::now()
}

#[test]
fn children_go_before_parents_in_any_order_of_drops() {
    let (log, graph, parent, child) = graph(0);
    drop(parent);
    assert!(log.seen().is_empty());
    drop(child);
    assert_eq!(log.seen(), ["child", "parent"]);
    assert!(graph.retained().is_empty());
}

#[test]
fn a_pinned_parent_is_busy() {
    let (log, _, parent, child) = graph(0);
    assert!(matches!(
        parent.close(),
        Err(Error::Busy {
            what: "parent",
            users: 1
        })
    ));
    child.close().unwrap();
    child.close().unwrap();
    parent.close().unwrap();
    assert!(matches!(parent.pin(), Err(Error::Closed { .. })));
    drop((parent, child));
    assert_eq!(log.seen(), ["child", "parent"]);
}

#[test]
fn a_refused_close_resumes() {
    let (log, graph, parent, child) = graph(1);
    drop(parent);
    assert!(child.close().is_err());
    assert!(log.seen().is_empty());
    child.close().unwrap();
    assert_eq!(log.seen(), ["child", "parent"]);
    drop(child);
    assert!(graph.retained().is_empty());
}

#[test]
fn a_refused_drop_retains_the_node_and_its_parents() {
    let (log, graph, parent, child) = graph(2);
    drop((parent, child));
    assert!(log.seen().is_empty());
    let retained = graph.retained();
    assert_eq!(
        (retained[0].node.kind, retained[0].set[0].kind),
        ("child", "parent")
    );
    assert_eq!(graph.retry(soon()).len(), 1);
    assert!(graph.retry(soon()).is_empty());
    assert_eq!(log.seen(), ["child", "parent"]);
}

#[test]
fn closing_the_context_sweeps_what_others_hold_and_siblings_go_on() {
    let (log, graph, parent, child) = graph(1);
    let sibling = Shared::new(Parent(log.clone(), graph.clone()));
    let report = graph.close(soon());
    assert_eq!(log.seen(), ["parent"], "the sibling alone");
    assert_eq!(report.released.get("parent"), Some(&1));
    assert_eq!(report.retained.len(), 1);
    assert_eq!(report.retained[0].node.kind, "child");
    assert_eq!(report.stage, Stage::Unexported);
    assert!(matches!(graph.enter(), Err(Error::Closed { .. })));
    let report = graph.close(soon());
    assert!(report.is_complete());
    assert_eq!(log.seen(), ["parent", "child", "parent"]);
    drop((parent, child, sibling));
    assert_eq!(log.seen().len(), 3);
}

#[test]
fn what_a_rollback_leaves_is_attached_to_the_first_error() {
    let (_, graph, parent, child) = graph(1);
    let error = building(|| -> Result<()> {
        drop((parent, child));
        Err(Error::Closed { what: "first" })
    })
    .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("first is closed; not undone: child:"),
        "{text}"
    );
    assert_eq!(error.kind(), crate::ErrorKind::State);
    assert!(graph.retry(soon()).is_empty());
}

/// A node that is drained once it was looked at so often, and each look of which takes a while to have an effect.
struct Slow {
    graph: Graph,
    looks: Arc<AtomicU32>,
}
impl Slow {
    fn new(graph: &Graph, looks: &Arc<AtomicU32>) -> Shared<Self> {
        Shared::new(Self {
            graph: graph.clone(),
            looks: looks.clone(),
        })
    }
}
impl Node for Slow {
    const NAME: &'static str = "slow";
    fn number(&self) -> Option<u64> {
        Some(self.looks.load(Ordering::Relaxed).into())
    }
    fn advance(&self, to: Stage, wait: Wait) -> Result<()> {
        if to != Stage::Drained {
            return Ok(());
        }
        poll("a slow node", wait, || {
            let looks = self.looks.load(Ordering::Relaxed);
            self.looks.store(looks.saturating_sub(1), Ordering::Relaxed);
            Ok(looks == 0)
        })
    }
    fn destroy(&self) -> Result<()> {
        Ok(())
    }
    fn graph(&self) -> &Graph {
        &self.graph
    }
    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}

#[test]
fn a_node_that_is_stuck_leaves_the_others_their_turns() {
    const FOR_EVER: u32 = u32::MAX;
    for stuck in 0..3 {
        let graph = Graph::new("context");
        // More looks than a last turn has: they need turns of their own while the first waits.
        let looks: Vec<_> = (0..3)
            .map(|at| Arc::new(AtomicU32::new(if at == stuck { FOR_EVER } else { 500 })))
            .collect();
        let nodes: Vec<_> = looks.iter().map(|looks| Slow::new(&graph, looks)).collect();
        let report = graph.close(deadline_after(std::time::Duration::from_millis(500)));
        assert_eq!(report.released.get("slow"), Some(&2), "{report}");
        let retained: Vec<_> = report
            .retained
            .iter()
            .map(|left| left.node.number)
            .collect();
        assert_eq!(retained, [Some(FOR_EVER.into())]);
        assert_eq!(report.retained[0].kind, crate::ErrorKind::Timeout);
        drop(nodes);
        looks[stuck].store(0, Ordering::Relaxed);
        let report = graph.close(soon());
        assert!(report.is_complete(), "{report}");
        assert_eq!(report.released.get("slow"), Some(&1), "{report}");
    }
}

#[test]
fn the_last_turn_has_a_few_looks_however_late_it_is() {
    let graph = Graph::new("context");
    let looks: Vec<_> = (0..3).map(|_| Arc::new(AtomicU32::new(50))).collect();
    let nodes: Vec<_> = looks.iter().map(|looks| Slow::new(&graph, looks)).collect();
    assert!(graph.close(soon()).is_complete());
    drop(nodes);
}
