//! Modes of a send queue: types without residue in the PTX.
//!
//! Knows: which modes exist and what each means. Must not know: how the queue acts on them.

mod doorbell;
mod form;
mod sharing;

pub use doorbell::{BlueFlame, Db, DbEarly, Doorbell, InGpu, Lazy, NoDbr, Proxy, Tell};
pub use form::{Checked, Collapsed, CqForm, EverySignalled, OnError, Ring};
pub use sharing::{Cta, Exclusive, Gpu, Sharing, Warp};

mod sealed {
    use crate::scope::Scope;

    pub trait Sealed {}
    pub trait Words {
        /// How threads access the words of the handle that change.
        type Scope: Scope + Copy;
    }
}
