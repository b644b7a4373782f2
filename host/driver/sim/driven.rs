//! Simulated NICs behind a driver that is not this crate's simulated one: the real driver over rdma-core, for example.
//!
//! Knows: what such a driver is given, and what a simulated GPU must know of it.
//! Must not know: which driver it is.

use std::fmt;
use std::sync::{Arc, Mutex};

use warpverbs_sim_bus::Bus;
use warpverbs_sim_nic::{Background, NicModel, ObjectId};

use crate::driver::Nic;

/// A simulated NIC, and where it is.
#[derive(Clone)]
pub struct Simulated {
    /// The bus that it is attached to, and that a simulated GPU is on.
    pub bus: Arc<Bus>,
    /// The NIC.
    pub model: Arc<Mutex<NicModel>>,
    /// Its number, on the bus and in the list of NICs.
    pub number: usize,
    /// The thread that it runs on; none if it takes steps when the bus is told to.
    pub thread: Option<Arc<Background>>,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Simulated({})", self.number)
    }
}

/// A driver of a simulated NIC.
pub trait Driven: Nic {
    /// The doorbell page that the driver has mapped at an address: what a CUDA driver asks the kernel for.
    fn page_at(&self, addr: u64) -> Option<u32>;
    /// Of the NIC's live objects those that the driver has made for its user, and not for itself: each as often as the user was
    /// given it.
    fn of_user(&self, live: Vec<ObjectId>) -> Vec<ObjectId>;
}

/// Makes the driver of a NIC.
pub type Drive = fn(Simulated) -> Arc<dyn Driven>;
