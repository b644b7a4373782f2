//! What the options are to the library.

use crate::args::{Cq, Doorbell, Order, Sharing};

pub(crate) fn sharing(sharing: Sharing) -> warpverbs::Sharing {
    match sharing {
        Sharing::Exclusive => warpverbs::Sharing::Exclusive,
        Sharing::Warp => warpverbs::Sharing::Warp,
        Sharing::Cta => warpverbs::Sharing::Cta,
        Sharing::Gpu => warpverbs::Sharing::Gpu,
    }
}

pub(crate) fn doorbell(doorbell: Doorbell) -> warpverbs::Doorbell {
    match doorbell {
        Doorbell::Db => warpverbs::Doorbell::Db,
        Doorbell::Early => warpverbs::Doorbell::DbEarly,
        Doorbell::Bf => warpverbs::Doorbell::BlueFlame,
        Doorbell::Proxy => warpverbs::Doorbell::Proxy,
        Doorbell::Nodbr => warpverbs::Doorbell::NoDbr,
    }
}

pub(crate) fn order(order: Order) -> warpverbs::Order {
    match order {
        Order::Sys => warpverbs::Order::Sys,
        Order::Gpu => warpverbs::Order::Gpu,
    }
}

pub(crate) fn completions(cq: Cq) -> warpverbs::Completions {
    match cq {
        Cq::Collapsed | Cq::Ring => warpverbs::Completions::Every,
        Cq::Onerror => warpverbs::Completions::OnError,
    }
}

pub(crate) fn cq_form(cq: Cq) -> warpverbs::CqForm {
    match cq {
        Cq::Collapsed => warpverbs::CqForm::Collapsed,
        Cq::Ring | Cq::Onerror => warpverbs::CqForm::Ring,
    }
}
