//! Finds the socket for a datagram, and free ports for sockets. O(1) in the number of sockets.
//!
//! Order as in Linux: a connected socket whose four addresses all match, then one bound to the
//! address, then one bound to any address of the family, then one bound to any at all. Of several that share an address with `SO_REUSEPORT`
//! a keyed hash of the datagram's ends picks one, so that a peer sticks to its socket; of several
//! with `SO_REUSEADDR` alone the newest gets all.

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;

use smallvec::SmallVec;

use crate::bound::BoundTo;
use crate::config::{Secret, Steering};
use crate::random::{KeyedHash, Random};
use crate::steering::udp_owner;
use crate::tcp::Reuse;

/// Index of a socket in the table of sockets.
pub(super) type Slot = u32;

/// Who has which port.
#[derive(Debug)]
pub(super) struct Demux {
    /// For each port its index in `table` plus one, 0 for none: finding a port costs one load, and
    /// the pages of ports nobody uses take no memory.
    index: Vec<u32>,
    table: Vec<Port>,
    free: Vec<u32>,
    /// By both ends, local first.
    connected: HashMap<FourTuple, Slot, KeyedHash>,
    balance: KeyedHash,
    random: Random,
    steering: Steering,
}

/// The sockets of one port.
#[derive(Debug, Default)]
struct Port {
    /// One entry per address; there are hardly ever more than two.
    bindings: SmallVec<[Binding; 2]>,
    /// How many of its sockets are connected.
    connected: u32,
}

/// The sockets bound to one address of one port.
#[derive(Debug)]
struct Binding {
    address: BoundTo,
    /// Those not connected, oldest first.
    open: Vec<Slot>,
    /// Those of `open` with `SO_REUSEPORT`.
    balanced: Vec<Slot>,
    /// All sockets, connected ones included, by their [`reuse_class`].
    members: [u32; 4],
}

/// What a socket holds of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub slot: Slot,
    pub address: BoundTo,
    pub port: u16,
    pub reuse: Reuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FourTuple {
    local: SocketAddr,
    remote: SocketAddr,
}

impl Hash for FourTuple {
    /// By hand, because the derived one makes a dozen calls where two words are enough.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for end in [self.local, self.remote] {
            match end.ip() {
                IpAddr::V4(ip) => {
                    hasher.write_u64(u64::from(ip.to_bits()) << 16 | u64::from(end.port()));
                }
                IpAddr::V6(ip) => {
                    hasher.write_u128(ip.to_bits());
                    hasher.write_u16(end.port());
                }
            }
        }
    }
}

impl Demux {
    pub(super) fn new(steering: Steering, secret: &Secret) -> Self {
        Self {
            index: vec![0; usize::from(u16::MAX) + 1],
            table: Vec::new(),
            free: Vec::new(),
            connected: HashMap::with_hasher(KeyedHash::new(secret, "udp flows")),
            balance: KeyedHash::new(secret, "udp balance"),
            random: Random::new(secret, "udp ports"),
            steering,
        }
    }

    /// Takes a port for a socket; `false` if another one forbids it.
    pub(super) fn claim(&mut self, claim: Claim) -> bool {
        if self.is_taken(claim) {
            return false;
        }
        let binding = self.port_or_insert(claim.port).binding_mut(claim.address);
        binding.members[reuse_class(claim.reuse)] += 1;
        binding.open_to(claim);
        true
    }

    /// Gives back what [`Self::claim`] took. A connected socket is dissolved first.
    pub(super) fn release(&mut self, claim: Claim) {
        let Some(port) = self.port_mut(claim.port) else { return };
        let binding = port.binding_mut(claim.address);
        binding.members[reuse_class(claim.reuse)] -= 1;
        binding.close_to(claim.slot);
        port.bindings.retain(|binding| binding.members != [0; 4]);
        if port.bindings.is_empty() {
            let place = core::mem::take(&mut self.index[usize::from(claim.port)]);
            self.free.push(place - 1);
        }
    }

    /// From now on the socket hears `remote` alone. If another socket has the same ends, this one
    /// takes them over (Linux lets the newest win).
    pub(super) fn connect(&mut self, claim: Claim, local: IpAddr, remote: SocketAddr) {
        if let Some(port) = self.port_mut(claim.port) {
            port.connected += 1;
            port.binding_mut(claim.address).close_to(claim.slot);
        }
        let ends = FourTuple { local: SocketAddr::new(local, claim.port), remote };
        self.connected.insert(ends, claim.slot);
    }

    /// Undoes [`Self::connect`].
    pub(super) fn dissolve(&mut self, claim: Claim, local: IpAddr, remote: SocketAddr) {
        let ends = FourTuple { local: SocketAddr::new(local, claim.port), remote };
        // A newer socket may have taken the same ends over.
        if self.connected.get(&ends) == Some(&claim.slot) {
            self.connected.remove(&ends);
        }
        if let Some(port) = self.port_mut(claim.port) {
            port.connected -= 1;
            port.binding_mut(claim.address).open_to(claim);
        }
    }

    /// The socket for a datagram from `remote` to our `local`.
    pub(super) fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<Slot> {
        let port = self.port(local.port())?;
        if port.connected > 0
            && let Some(&slot) = self.connected.get(&FourTuple { local, remote })
        {
            return Some(slot);
        }
        let mut best = None;
        for binding in port.bindings.iter().filter(|binding| !binding.open.is_empty()) {
            let rank = BoundTo::hearing(local.ip()).iter().position(|&to| to == binding.address);
            best = match (rank, best) {
                (Some(rank), Some((other, _))) if other < rank => best,
                (Some(rank), _) => Some((rank, binding)),
                (None, _) => best,
            };
        }
        let (_, binding) = best?;
        self.choose(binding, local, remote)
    }

    /// Every socket that a datagram to many reaches.
    pub(super) fn find_all(&self, local: SocketAddr, remote: SocketAddr) -> SmallVec<[Slot; 8]> {
        let Some(port) = self.port(local.port()) else { return SmallVec::new() };
        let bound = port
            .bindings
            .iter()
            .filter(|binding| BoundTo::hearing(local.ip()).contains(&binding.address));
        let mut slots: SmallVec<[Slot; 8]> =
            bound.flat_map(|binding| binding.open.iter().copied()).collect();
        slots.extend(self.connected.get(&FourTuple { local, remote }).copied());
        slots
    }

    /// A free port at random that belongs to this stack.
    pub(super) fn free_port(&mut self) -> Option<u16> {
        let Steering { index, count, .. } = self.steering;
        let range = u32::from(EPHEMERAL_LAST - EPHEMERAL_FIRST) + 1;
        let start = self.random.below(range);
        (0..range)
            .map(|step| EPHEMERAL_FIRST + u16::try_from((start + step) % range).unwrap_or(0))
            .filter(|&port| udp_owner(port, count) == index)
            .find(|&port| self.port(port).is_none())
    }

    fn port(&self, port: u16) -> Option<&Port> {
        let place = self.index[usize::from(port)].checked_sub(1)?;
        self.table.get(place as usize)
    }

    fn port_mut(&mut self, port: u16) -> Option<&mut Port> {
        let place = self.index[usize::from(port)].checked_sub(1)?;
        self.table.get_mut(place as usize)
    }

    fn port_or_insert(&mut self, port: u16) -> &mut Port {
        let place = &mut self.index[usize::from(port)];
        if *place == 0 {
            let free = self.free.pop().unwrap_or_else(|| {
                self.table.push(Port::default());
                u32::try_from(self.table.len() - 1).expect("at most one entry per port")
            });
            *place = free + 1;
        }
        &mut self.table[*place as usize - 1]
    }

    fn is_taken(&self, claim: Claim) -> bool {
        let Some(port) = self.port(claim.port) else { return false };
        let mut rivals =
            port.bindings.iter().filter(|binding| binding.address.overlaps(claim.address));
        rivals.any(|binding| {
            (0..binding.members.len()).any(|class| {
                // Both must have set the same option.
                binding.members[class] > 0 && class & reuse_class(claim.reuse) == 0
            })
        })
    }

    fn choose(&self, binding: &Binding, local: SocketAddr, remote: SocketAddr) -> Option<Slot> {
        let newest = *binding.open.last()?;
        if binding.balanced.len() < 2 || binding.balanced.last() != Some(&newest) {
            return Some(newest);
        }
        let hash = self.balance.hash_one(FourTuple { local, remote });
        let spread = u128::from(hash) * binding.balanced.len() as u128;
        binding.balanced.get(usize::try_from(spread >> 64).ok()?).copied()
    }
}

impl Port {
    fn binding_mut(&mut self, address: BoundTo) -> &mut Binding {
        let at = self.bindings.iter().position(|binding| binding.address == address);
        let at = at.unwrap_or_else(|| {
            self.bindings.push(Binding {
                address,
                open: Vec::new(),
                balanced: Vec::new(),
                members: [0; 4],
            });
            self.bindings.len() - 1
        });
        &mut self.bindings[at]
    }
}

impl Binding {
    fn open_to(&mut self, claim: Claim) {
        self.open.push(claim.slot);
        if claim.reuse.port {
            self.balanced.push(claim.slot);
        }
    }

    fn close_to(&mut self, slot: Slot) {
        self.open.retain(|&other| other != slot);
        self.balanced.retain(|&other| other != slot);
    }
}

fn reuse_class(reuse: Reuse) -> usize {
    usize::from(reuse.address) | usize::from(reuse.port) << 1
}

/// Linux's `ip_local_port_range`.
const EPHEMERAL_FIRST: u16 = 32_768;
const EPHEMERAL_LAST: u16 = 60_999;
