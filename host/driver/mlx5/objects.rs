//! What the driver keeps of the objects that it has handed out.
//!
//! Knows: handles, and that an object is destroyed once, by one caller, while nobody else uses it.
//! Must not know: what an object is.
//!
//! One of the files with `unsafe`: pointers of rdma-core cross threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::driver::{DriverError, DriverErrorKind, NicHandle};
use crate::ffi;

/// An object of rdma-core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Pd(*mut ffi::ibv_pd),
    Mr(*mut ffi::ibv_mr),
    Umem(*mut ffi::mlx5dv_devx_umem),
    Uar(*mut ffi::mlx5dv_devx_uar),
    Devx(*mut ffi::mlx5dv_devx_obj),
    /// It was destroyed.
    Gone,
}

// SAFETY: `Send` and `Sync` demand that the pointers may be used from any thread: rdma-core's calls may be made from any thread
// on any object (verbs(7)), so long as none is destroyed meanwhile; `Table` keeps users and destroyers of an object apart.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

/// The objects, by handle.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Live>);

#[derive(Debug, Default)]
struct Live {
    issued: u64,
    objects: BTreeMap<NicHandle, Arc<RwLock<Object>>>,
}

/// An object that somebody uses, or destroys.
pub(super) struct Entry(Arc<RwLock<Object>>);

impl Entry {
    /// Uses it: it stays until the guard is dropped.
    pub(super) fn used(&self) -> RwLockReadGuard<'_, Object> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody uses it.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, Object> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object.
    pub(super) fn add(&self, object: Object) -> NicHandle {
        let mut live = self.live();
        live.issued += 1;
        let handle = NicHandle(live.issued);
        live.objects.insert(handle, Arc::new(RwLock::new(object)));
        handle
    }

    /// The object behind a handle.
    pub(super) fn get(&self, call: &'static str, handle: NicHandle) -> Result<Entry, DriverError> {
        self.live()
            .objects
            .get(&handle)
            .map(|object| Entry(object.clone()))
            .ok_or_else(|| missing(call, handle))
    }

    /// Has `destroy` destroy an object, and forgets it once that is done; refused, it stays.
    pub(super) fn destroy(
        &self,
        call: &'static str,
        handle: NicHandle,
        destroy: impl FnOnce(Object) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let entry = self.get(call, handle)?;
        let mut object = entry.alone();
        if *object == Object::Gone {
            return Err(missing(call, handle));
        }
        destroy(*object)?;
        *object = Object::Gone;
        self.live().objects.remove(&handle);
        Ok(())
    }

    /// How many objects there are.
    pub(super) fn len(&self) -> usize {
        self.live().objects.len()
    }
}

/// No such object.
pub(super) fn missing(call: &'static str, handle: NicHandle) -> DriverError {
    DriverError::new(
        call,
        DriverErrorKind::NotFound,
        format!("no object with handle {}", handle.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_destroyed_once() {
        let table = Table::default();
        let handle = table.add(Object::Pd(std::ptr::null_mut()));
        let refuse = |_| {
            Err(DriverError::new(
                "test",
                DriverErrorKind::Busy,
                "it is in use",
            ))
        };
        assert!(table.destroy("test", handle, refuse).is_err());
        assert_eq!(table.len(), 1);
        // Who found it before it was destroyed finds it gone.
        let entry = table.get("test", handle).unwrap();
        table.destroy("test", handle, |_| Ok(())).unwrap();
        assert_eq!(*entry.used(), Object::Gone);
        let again = table.destroy("test", handle, |_| Ok(())).unwrap_err();
        assert_eq!(again.kind, DriverErrorKind::NotFound);
        assert_eq!(table.len(), 0);
    }
}
