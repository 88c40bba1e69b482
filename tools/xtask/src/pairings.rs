//! The rigs the demo and the benchmarks compare.

use lstack_tests::rig::{Pairing, Plan};

/// A rig by its short name.
pub struct Compared {
    /// What tables call it.
    pub name: &'static str,
    /// What a reader needs to know of it.
    pub explanation: &'static str,
    /// How to build it.
    pub pairing: Pairing,
}

impl Compared {
    /// The rig's plan.
    pub fn plan(&self) -> Plan {
        Plan::new(self.pairing)
    }
}

/// The kernel comes first: the others are measured by it.
pub const COMPARED: [Compared; 3] = [
    Compared {
        name: "kernel",
        explanation: "kernel to kernel over a veth pair",
        pairing: Pairing::Kernel,
    },
    Compared {
        name: "K",
        explanation: "netserver on lstack (net_af_packet on a veth end), netperf on the kernel",
        pairing: Pairing::StackServer,
    },
    Compared {
        name: "M",
        explanation: "both on lstack, over a net_memif pair",
        pairing: Pairing::BothStack,
    },
];
