//! Destruction: exactly once, children before parents, and nothing freed that a refusal leaves in
//! use.
//!
//! Knows: that a node of the resource graph is undone by one driver call, that it keeps its parents
//! alive, and what happens when the call is refused. Must not know: what any node is.
//!
//! An [`Owner`] holds a node. A node's fields hold its parents by [`Shared`], so parents are
//! created first and destroyed last, and a constructor that fails rolls back by dropping what it
//! has. When a driver refuses to destroy a node, the hardware may still use it: explicit close
//! hands the owner back with the error; a drop moves the node, and with it all its parents, to the
//! [`Registry`], where it stays until [`Registry::retry`] succeeds.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{debug, error};

use crate::error::{Error, Result};

/// A node of the resource graph.
pub(crate) trait Node: Send + Sync + 'static {
    /// What it is, in messages.
    const NAME: &'static str;

    /// Undoes the driver call that created it. Called until it succeeds once, and never after that.
    fn destroy(&mut self) -> Result<()>;

    /// Where it goes if a drop is refused.
    fn registry(&self) -> &Registry;
}

/// The one owner of a node.
pub(crate) struct Owner<N: Node>(Option<Box<N>>);

/// An owner that children hold too.
pub(crate) type Shared<N> = Arc<Owner<N>>;

impl<N: Node> Owner<N> {
    pub(crate) fn new(node: N) -> Self {
        debug!(node = N::NAME, "created");
        Self(Some(Box::new(node)))
    }

    /// The node, if it is not closed.
    pub(crate) fn get(&self) -> Result<&N> {
        self.0.as_deref().ok_or(Error::Closed { what: N::NAME })
    }

    /// Destroys the node; does nothing if that was done. After a refusal it can be called again.
    pub(crate) fn close(&mut self) -> Result<()> {
        if let Some(node) = &mut self.0 {
            node.destroy()?;
            debug!(node = N::NAME, "destroyed");
            self.0 = None;
        }
        Ok(())
    }
}

impl<N: Node> Drop for Owner<N> {
    fn drop(&mut self) {
        if let Err(cause) = self.close()
            && let Some(node) = self.0.take()
        {
            // A second reference keeps the list alive while the node that leads to it moves into
            // it.
            let registry = node.registry().clone();
            registry.keep(node, cause);
        }
    }
}

impl<N: Node> fmt::Debug for Owner<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(N::NAME)?;
        if self.0.is_none() {
            f.write_str(" (closed)")?;
        }
        Ok(())
    }
}

/// Closes a shared node if the caller is the only one who holds it.
pub(crate) fn close_shared<N: Node>(shared: &mut Shared<N>) -> Result<()> {
    let users = Arc::strong_count(shared) - 1;
    match Arc::get_mut(shared) {
        Some(owner) => owner.close(),
        None => Err(Error::Busy {
            what: N::NAME,
            users,
        }),
    }
}

/// A node that a driver refused to destroy when its owner was dropped. It and everything that it
/// depends on stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// What it is.
    pub node: &'static str,
    /// Why it could not be destroyed.
    pub cause: String,
}

/// Nodes that could not be destroyed.
///
/// A kept node leads to its context, and that to this registry: the cycle is what keeps all of them
/// when every handle is gone.
#[derive(Clone, Default)]
pub(crate) struct Registry(Arc<Mutex<Vec<Entry>>>);

struct Entry {
    report: Retained,
    node: Box<dyn Destroy>,
}

trait Destroy: Send {
    fn destroy(&mut self) -> Result<()>;
}

impl<N: Node> Destroy for N {
    fn destroy(&mut self) -> Result<()> {
        Node::destroy(self)
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep<N: Node>(&self, node: Box<N>, cause: Error) {
        error!(node = N::NAME, %cause, "not destroyed: retained with all that it depends on");
        let report = Retained {
            node: N::NAME,
            cause: cause.to_string(),
        };
        self.lock().push(Entry { report, node });
    }

    /// What is kept.
    pub(crate) fn retained(&self) -> Vec<Retained> {
        self.lock()
            .iter()
            .map(|entry| entry.report.clone())
            .collect()
    }

    /// Tries to destroy everything that is kept, and returns what still is.
    pub(crate) fn retry(&self) -> Vec<Retained> {
        // The lock is not held while nodes are destroyed: dropping one drops its parents, which may
        // come back here.
        let entries = std::mem::take(&mut *self.lock());
        for mut entry in entries {
            match entry.node.destroy() {
                Ok(()) => debug!(node = entry.report.node, "destroyed at last"),
                Err(cause) => {
                    entry.report.cause = cause.to_string();
                    self.lock().push(entry);
                }
            }
        }
        self.retained()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.retained()).finish()
    }
}

#[cfg(test)]
mod tests {
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

    struct Parent(Log, Registry);
    impl Node for Parent {
        const NAME: &'static str = "parent";
        fn destroy(&mut self) -> Result<()> {
            self.0.destroy("parent")
        }
        fn registry(&self) -> &Registry {
            &self.1
        }
    }

    struct Child {
        log: Log,
        registry: Registry,
        _parent: Shared<Parent>,
    }
    impl Node for Child {
        const NAME: &'static str = "child";
        fn destroy(&mut self) -> Result<()> {
            self.log.destroy("child")
        }
        fn registry(&self) -> &Registry {
            &self.registry
        }
    }

    fn graph(refusals: u32) -> (Log, Registry, Shared<Parent>, Owner<Child>) {
        let log = Log::default();
        log.0.lock().unwrap().1 = refusals;
        let registry = Registry::default();
        let parent = Arc::new(Owner::new(Parent(log.clone(), registry.clone())));
        let child = Owner::new(Child {
            log: log.clone(),
            registry: registry.clone(),
            _parent: parent.clone(),
        });
        (log, registry, parent, child)
    }

    #[test]
    fn children_go_before_parents_in_any_order_of_drops() {
        let (log, registry, parent, child) = graph(0);
        drop(parent);
        assert!(log.seen().is_empty());
        drop(child);
        assert_eq!(log.seen(), ["child", "parent"]);
        assert!(registry.retained().is_empty());
    }

    #[test]
    fn a_parent_in_use_is_busy() {
        let (log, _, mut parent, mut child) = graph(0);
        assert!(matches!(
            close_shared(&mut parent),
            Err(Error::Busy {
                what: "parent",
                users: 1
            })
        ));
        child.close().unwrap();
        child.close().unwrap();
        close_shared(&mut parent).unwrap();
        drop((parent, child));
        assert_eq!(log.seen(), ["child", "parent"]);
    }

    #[test]
    fn a_refused_close_resumes() {
        let (log, registry, parent, mut child) = graph(1);
        drop(parent);
        assert!(child.close().is_err());
        assert!(log.seen().is_empty());
        child.close().unwrap();
        assert_eq!(log.seen(), ["child", "parent"]);
        drop(child);
        assert!(registry.retained().is_empty());
    }

    #[test]
    fn a_refused_drop_retains_the_node_and_its_parents() {
        let (log, registry, parent, child) = graph(2);
        drop((parent, child));
        assert!(log.seen().is_empty());
        assert_eq!(registry.retained()[0].node, "child");
        assert_eq!(registry.retry().len(), 1);
        assert!(registry.retry().is_empty());
        assert_eq!(log.seen(), ["child", "parent"]);
    }
}
