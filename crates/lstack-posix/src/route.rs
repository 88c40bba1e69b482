//! Which world a socket belongs to: a pure function of addresses and configuration.
//!
//! Every decision has a [`Reason`] that is counted and shown in the statistics, so that "why is my
//! socket on the kernel?" has an answer.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lstack_config::{Config, Ipv4Net};
use parking_lot::Mutex;

use crate::kernel::Kernel;

/// Which world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// The kernel alone.
    Kernel,
    /// The stack alone.
    Stack,
    /// Not decided yet: both.
    Both,
}

/// A decision and why it fell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) path: Path,
    pub(crate) reason: Reason,
}

/// Declares the reasons with their names in the statistics.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// Why a socket is where it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// All reasons, in order of declaration.
            pub(crate) const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// Stable name for statistics.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Bound to the wildcard: both worlds.
    Wildcard => "wildcard",
    /// The stack's own address.
    OwnAddress => "own_address",
    /// A neighbour in the stack's subnet.
    OwnSubnet => "own_subnet",
    /// Elsewhere, and a gateway is configured.
    Gateway => "gateway",
    /// `stack_addresses`.
    ListedStack => "listed_stack",
    /// `kernel_addresses`.
    ListedKernel => "listed_kernel",
    /// 127.0.0.0/8, `::1`, or the unspecified address, which means this host.
    Loopback => "loopback",
    /// The address or subnet of an interface of the kernel.
    KernelSubnet => "kernel_subnet",
    /// Elsewhere, and no gateway is configured.
    NoGateway => "no_gateway",
    /// Bound to an address that is not the stack's.
    OtherAddress => "other_address",
    /// An IPv6 destination.
    Ipv6 => "ipv6",
    /// Multicast, which the kernel handles.
    Multicast => "multicast",
    /// `udp_enable = 0`.
    UdpDisabled => "udp_disabled",
    /// The stack's limit of sockets is reached.
    LimitReached => "limit_reached",
    /// The descriptor's number is above the table's end.
    NumberTooHigh => "number_too_high",
    /// Accepted by a listener of the stack.
    Accepted => "accepted",
    /// Accepted by the kernel's half of a listener.
    AcceptedKernel => "accepted_kernel",
}

/// Decides, counts, and remembers the kernel's interfaces for a moment.
pub(crate) struct Router {
    own: Option<Ipv4Net>,
    gateway: bool,
    kernel_addresses: Vec<Ipv4Net>,
    stack_addresses: Vec<Ipv4Net>,
    counts: [AtomicU64; Reason::ALL.len()],
    interfaces: Mutex<Option<Interfaces>>,
}

/// The kernel's addresses with prefix lengths, and when they were read.
type Interfaces = (Instant, Vec<(IpAddr, u8)>);

impl Router {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            own: config.host_addr.map(|address| Ipv4Net { address, prefix_len: config.prefix_len }),
            gateway: config.gateway_addr.is_some(),
            kernel_addresses: config.kernel_addresses.clone(),
            stack_addresses: config.stack_addresses.clone(),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            interfaces: Mutex::new(None),
        }
    }

    /// Where a socket bound to `local` belongs.
    pub(crate) fn bind(&self, local: IpAddr) -> Decision {
        let own = self.own.map(|net| net.address);
        if local.is_unspecified() {
            return Decision { path: Path::Both, reason: Reason::Wildcard };
        }
        match local {
            IpAddr::V4(address) if Some(address) == own => {
                Decision { path: Path::Stack, reason: Reason::OwnAddress }
            }
            _ => Decision { path: Path::Kernel, reason: Reason::OtherAddress },
        }
    }

    /// Where a connection or datagram to `remote` belongs, given the kernel's interfaces.
    pub(crate) fn connect(&self, remote: IpAddr, kernel: &[(IpAddr, u8)]) -> Decision {
        let reason = self.reason(remote, kernel);
        let path = match reason {
            Reason::OwnAddress | Reason::OwnSubnet | Reason::Gateway | Reason::ListedStack => {
                Path::Stack
            }
            _ => Path::Kernel,
        };
        Decision { path, reason }
    }

    /// As [`Self::connect`], asking the kernel for its interfaces at most once a second.
    pub(crate) fn connect_via(&self, kernel: &dyn Kernel, remote: IpAddr) -> Decision {
        // Neighbours of the stack, by far the most, need no look at the kernel.
        let early = self.connect(remote, &[]);
        if !matches!(early.reason, Reason::Gateway | Reason::NoGateway) {
            return early;
        }
        let mut cached = self.interfaces.lock();
        let fresh = cached.as_ref().filter(|(read, _)| read.elapsed() < INTERFACES_VALID);
        if fresh.is_none() {
            *cached = Some((Instant::now(), kernel.interfaces()));
        }
        let interfaces = cached.as_ref().map_or(&[][..], |(_, list)| list);
        self.connect(remote, interfaces)
    }

    /// Counts a decision that a socket has taken.
    pub(crate) fn count(&self, reason: Reason) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Decisions so far, by reason.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Reason::ALL
            .iter()
            .map(|&reason| (reason.name(), self.counts[reason as usize].load(Ordering::Relaxed)))
    }

    fn reason(&self, remote: IpAddr, kernel: &[(IpAddr, u8)]) -> Reason {
        let IpAddr::V4(address) = remote else {
            return if remote.is_loopback() || remote.is_unspecified() {
                Reason::Loopback
            } else {
                Reason::Ipv6
            };
        };
        if address.is_loopback() || address.is_unspecified() {
            return Reason::Loopback;
        }
        if self.kernel_addresses.iter().any(|net| contains(net, address)) {
            return Reason::ListedKernel;
        }
        if self.stack_addresses.iter().any(|net| contains(net, address)) {
            return Reason::ListedStack;
        }
        if address.is_multicast() {
            return Reason::Multicast;
        }
        match &self.own {
            Some(own) if own.address == address => return Reason::OwnAddress,
            Some(own) if contains(own, address) => return Reason::OwnSubnet,
            _ => {}
        }
        let in_kernel = kernel.iter().any(|&(ip, prefix_len)| match ip {
            IpAddr::V4(ip) => contains(&Ipv4Net { address: ip, prefix_len }, address),
            IpAddr::V6(_) => false,
        });
        if in_kernel {
            Reason::KernelSubnet
        } else if self.gateway {
            Reason::Gateway
        } else {
            Reason::NoGateway
        }
    }
}

/// How long a list of interfaces is believed: addresses change by hand or by DHCP, and a program
/// that starts connecting right after such a change must not wait long for us to see it.
const INTERFACES_VALID: Duration = Duration::from_secs(1);

fn contains(net: &Ipv4Net, address: Ipv4Addr) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(net.prefix_len)).unwrap_or(0);
    (u32::from(net.address) ^ u32::from(address)) & mask == 0
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use lstack_config::Ipv4Net;

    use super::{Path, Reason, Router};

    fn router(gateway: bool) -> Router {
        let net =
            |address: &str, prefix_len| Ipv4Net { address: address.parse().unwrap(), prefix_len };
        Router {
            own: Some(net("198.18.0.2", 24)),
            gateway,
            kernel_addresses: vec![net("198.18.0.128", 25)],
            stack_addresses: vec![net("203.0.113.0", 24)],
            counts: std::array::from_fn(|_| 0.into()),
            interfaces: parking_lot::Mutex::new(None),
        }
    }

    #[test]
    fn destinations_go_where_the_rules_say() {
        let kernel: [(IpAddr, u8); 1] = [("10.1.0.1".parse().unwrap(), 16)];
        let table = [
            ("198.18.0.2", false, Path::Stack, Reason::OwnAddress),
            ("198.18.0.9", false, Path::Stack, Reason::OwnSubnet),
            ("198.18.0.200", false, Path::Kernel, Reason::ListedKernel),
            ("203.0.113.5", false, Path::Stack, Reason::ListedStack),
            ("127.0.0.1", true, Path::Kernel, Reason::Loopback),
            ("0.0.0.0", true, Path::Kernel, Reason::Loopback),
            ("::1", true, Path::Kernel, Reason::Loopback),
            ("2001:db8::1", true, Path::Kernel, Reason::Ipv6),
            ("10.1.2.3", true, Path::Kernel, Reason::KernelSubnet),
            ("192.0.2.1", true, Path::Stack, Reason::Gateway),
            ("192.0.2.1", false, Path::Kernel, Reason::NoGateway),
            ("224.0.0.251", true, Path::Kernel, Reason::Multicast),
        ];
        for (remote, gateway, path, reason) in table {
            let decision = router(gateway).connect(remote.parse().unwrap(), &kernel);
            assert_eq!((decision.path, decision.reason), (path, reason), "{remote}");
        }
    }

    #[test]
    fn binding_decides_by_the_local_address() {
        let router = router(false);
        assert_eq!(router.bind("0.0.0.0".parse().unwrap()).path, Path::Both);
        assert_eq!(router.bind("::".parse().unwrap()).path, Path::Both);
        assert_eq!(router.bind("198.18.0.2".parse().unwrap()).path, Path::Stack);
        assert_eq!(router.bind("127.0.0.1".parse().unwrap()).path, Path::Kernel);
    }
}
