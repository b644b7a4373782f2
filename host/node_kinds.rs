//! What there is to build, and what each kind of it depends on: one table, for reports, documents and tests.
//!
//! Knows: names and arrows. Must not know: what any of it does. A node's `parents` is what binds; the test below compares.

/// A kind of node: [`crate::NodeId::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeKind {
    /// Its name.
    pub name: &'static str,
    /// The context that it is built on, whose close takes it down.
    pub context: &'static str,
    /// What it depends on besides, and keeps.
    pub depends_on: &'static [Dependency],
}

/// That a node depends on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dependency {
    /// The kind that it depends on.
    pub on: &'static str,
    /// When, if not always.
    pub when: Option<&'static str>,
}

/// The context of a NIC.
pub(crate) const NIC: &str = "NIC context";
/// The context of a GPU.
pub(crate) const GPU: &str = "GPU context";

const fn kind(
    name: &'static str,
    context: &'static str,
    depends_on: &'static [Dependency],
) -> NodeKind {
    NodeKind {
        name,
        context,
        depends_on,
    }
}

const fn always(on: &'static str) -> Dependency {
    Dependency { on, when: None }
}

const fn only(on: &'static str, when: &'static str) -> Dependency {
    Dependency {
        on,
        when: Some(when),
    }
}

/// All kinds. A kind stands below all that it depends on.
pub const NODE_KINDS: &[NodeKind] = &[
    kind("PD", NIC, &[]),
    kind("doorbell page", NIC, &[]),
    kind("GPU memory", GPU, &[]),
    kind("host-mapped memory", GPU, &[]),
    kind("module", GPU, &[]),
    kind("stream", GPU, &[]),
    kind("event", GPU, &[]),
    kind("doorbell page mapping", NIC, &[always("doorbell page")]),
    kind(
        "UMEM",
        NIC,
        &[
            only("GPU memory", "if it is of GPU memory"),
            only("host-mapped memory", "if a host thread rings"),
        ],
    ),
    kind(
        "MR",
        NIC,
        &[always("PD"), only("GPU memory", "if it is of GPU memory")],
    ),
    kind(
        "CQ",
        NIC,
        &[
            always("UMEM"),
            only("doorbell page mapping", "if GPU threads ring"),
            only("doorbell page", "if a host thread rings"),
        ],
    ),
    kind(
        "QP",
        NIC,
        &[
            always("PD"),
            always("CQ"),
            always("UMEM"),
            only("doorbell page mapping", "if GPU threads ring"),
            only("doorbell page", "if a host thread rings"),
            always("host-mapped memory"),
            only("MR", "while work is outstanding"),
        ],
    ),
    kind(
        "launch",
        GPU,
        &[
            only("QP", "if its view names one"),
            only("MR", "if its view names one"),
            only("GPU memory", "if its view names some"),
            always("stream"),
            always("event"),
            always("module"),
        ],
    ),
];

#[cfg(all(test, feature = "sim"))]
mod tests;
