//! Rigs: two namespaces, a wire between them, and on each side the kernel's stack or lstack.
//!
//! | pairing | rig | wire |
//! |---|---|---|
//! | [`Pairing::Kernel`] | the reference | a veth pair, both ends with kernel addresses |
//! | [`Pairing::StackServer`], [`Pairing::StackClient`] | K | a veth pair; lstack owns one end |
//! | [`Pairing::BothStack`] | M | a memif pair, or a veth pair of which lstack owns both ends |
//!
//! Between the ends of a veth pair there may be a [`Middle`] that makes trouble.
//!
//! Traps the wiring avoids:
//!
//! - Programs on lstack run inside their namespace, where the kernel has no route to the other
//!   side: falling back to the kernel cannot go unnoticed.
//! - glibc refuses even numeric IPv4 addresses (`AI_ADDRCONFIG`) where the kernel's only address
//!   is a loopback one, so lstack's namespace has another address, without a route.
//! - A veth pair passes frames with unfinished checksums and of 64 KiB between kernels; the peer
//!   of lstack has these offloads switched off.
//! - Abstract socket names belong to a network namespace; memif uses a path.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::build;
use crate::lifeline::Lifeline;
use crate::middle::{Middle, Relay, Router};
use crate::namespace::Namespace;
use crate::program::Launch;
use crate::stack_conf::{Mode, StackConf};

/// Which ends of a connection are on lstack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Neither: the oracle, and the reference of every ratio.
    Kernel,
    /// The server; the client is on the kernel.
    StackServer,
    /// The client; the server is on the kernel.
    StackClient,
    /// Both.
    BothStack,
}

impl Pairing {
    /// The three pairings that involve lstack.
    pub const WITH_STACK: [Self; 3] = [Self::StackServer, Self::StackClient, Self::BothStack];

    fn server_on_stack(self) -> bool {
        matches!(self, Self::StackServer | Self::BothStack)
    }

    fn client_on_stack(self) -> bool {
        matches!(self, Self::StackClient | Self::BothStack)
    }
}

/// What carries the frames of an lstack side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// `net_memif` between two lstack processes.
    Memif,
    /// `net_af_packet` on a veth end.
    AfPacket,
    /// `net_af_xdp` on a veth end.
    AfXdp,
    /// `net_tap`; its kernel end is joined to a veth end.
    Tap,
}

/// What to build.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which ends are on lstack.
    pub pairing: Pairing,
    /// What carries lstack's frames.
    pub wire: Wire,
    /// Who drives the stacks.
    pub mode: Mode,
    /// `num_cpus` of the stacks.
    pub cpus: Option<String>,
    /// MTU of the veth pair.
    pub mtu: Option<u16>,
    /// What stands between the ends of the veth pair.
    pub middle: Option<Middle>,
    /// Further configuration lines: a key, and its value as TOML.
    pub more: Vec<(String, String)>,
}

impl Plan {
    /// The usual wire of a pairing, in run-to-completion mode.
    #[must_use]
    pub fn new(pairing: Pairing) -> Self {
        let wire = match pairing {
            Pairing::BothStack => Wire::Memif,
            Pairing::Kernel | Pairing::StackServer | Pairing::StackClient => Wire::AfPacket,
        };
        let mode = Mode::RunToCompletion;
        Self { pairing, wire, mode, cpus: None, mtu: None, middle: None, more: Vec::new() }
    }

    /// With another wire.
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// With another mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// With one stack for each CPU listed.
    #[must_use]
    pub fn cpus(mut self, cpus: &str) -> Self {
        self.cpus = Some(cpus.to_owned());
        self
    }

    /// With another MTU of the veth pair.
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// With something between the ends of the veth pair.
    #[must_use]
    pub fn middle(mut self, middle: Middle) -> Self {
        self.middle = Some(middle);
        self
    }

    /// With a further line in the stacks' configuration; `value` is TOML.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.more.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Builds the rig.
    ///
    /// # Errors
    ///
    /// When we are not root, or the kernel lacks something.
    pub fn build(&self) -> Result<Rig> {
        Rig::build(self).with_context(|| format!("building a rig for {self:?}"))
    }
}

/// Two sides and the wire between them. Dropping it, or dying, removes everything.
#[derive(Debug)]
pub struct Rig {
    /// The side servers run on.
    pub server: Side,
    /// The side clients run on.
    pub client: Side,
    /// What drops packets between them, if the plan has [`Middle::Router`].
    pub router: Option<Router>,
    /// What disturbs frames between them, if the plan has [`Middle::Relay`].
    pub relay: Option<Relay>,
    folder: PathBuf,
}

/// One end of a rig.
#[derive(Debug)]
pub struct Side {
    /// `server` or `client`.
    pub name: &'static str,
    /// The address of this end, on whichever stack owns it.
    pub address: Ipv4Addr,
    /// Where programs of this side run.
    pub namespace: Namespace,
    /// How programs of this side reach the wire with lstack; `None`: the kernel owns the address.
    pub stack: Option<StackConf>,
    /// A socket that a killed program may have left, and that its successor makes anew.
    left_over: Option<PathBuf>,
    folder: PathBuf,
    launches: AtomicU32,
}

impl Rig {
    fn build(plan: &Plan) -> Result<Self> {
        static BUILT: AtomicU32 = AtomicU32::new(0);
        let folder = Lifeline::of_this_process()?
            .folder()
            .join(BUILT.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;

        let mut server = Side::new("server", SERVER_ADDRESS, &folder)?;
        let mut client = Side::new("client", CLIENT_ADDRESS, &folder)?;
        let (mut router, mut relay) = (None, None);
        if plan.wire == Wire::Memif {
            if plan.pairing != Pairing::BothStack {
                bail!("the kernel has no memif: only two stacks can meet there");
            }
            let socket = folder.join("memif.sock");
            server.stack = Some(plan.conf(&server, memif_device("server", &socket)));
            client.stack = Some(plan.conf(&client, memif_device("client", &socket)));
            server.left_over = Some(socket);
        } else {
            let ends = [&server, &client];
            match plan.middle {
                None => {
                    join_by_veth((&server.namespace, LINK), (&client.namespace, LINK), plan.mtu)?;
                }
                Some(Middle::Router) => router = Some(Router::between(ends, plan.mtu)?),
                Some(Middle::Relay) => relay = Some(Relay::between(ends, plan.mtu)?),
            }
            server.own_address(plan, plan.pairing.server_on_stack())?;
            client.own_address(plan, plan.pairing.client_on_stack())?;
        }
        Ok(Self { server, client, router, relay, folder })
    }

    /// A folder for files of this rig.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Evidence of a failed test stays until the process ends; the lifeline removes it then.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Side {
    /// A program to start on this side: preloaded if the side is on lstack.
    #[must_use]
    pub fn program(&self, program: &str) -> Launch<'_> {
        Launch::new(self, program)
    }

    /// The helper `rig-peer` with these arguments, to start on this side.
    ///
    /// # Errors
    ///
    /// When it has not been built.
    pub fn peer(&self, arguments: &[&str]) -> Result<Launch<'_>> {
        Ok(self.program(&build::helper("rig-peer")?.to_string_lossy()).args(arguments))
    }

    /// The address of this side with a port, as programs take it.
    #[must_use]
    pub fn at(&self, port: u16) -> String {
        format!("{}:{port}", self.address)
    }

    /// Makes the side as it was before its first program on lstack. A client that finds the socket
    /// of a killed server would believe that the next one listens already.
    pub(crate) fn tidy(&self) {
        if let Some(path) = &self.left_over {
            // Usually it is not there.
            let _ = fs::remove_file(path);
        }
    }

    /// A file name for the next program of this side.
    pub(crate) fn next_file_stem(&self, program: &str) -> PathBuf {
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        let program = program.rsplit('/').next().unwrap_or(program);
        self.folder.join(format!("{}-{number}-{program}", self.name))
    }

    fn new(name: &'static str, address: Ipv4Addr, folder: &Path) -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.ip(&["address", "add", ADDRESS_FOR_GLIBC, "dev", "lo"])?;
        Ok(Self {
            name,
            address,
            namespace,
            stack: None,
            left_over: None,
            folder: folder.to_owned(),
            launches: AtomicU32::new(0),
        })
    }

    /// Gives the address of this side to lstack or to the kernel.
    fn own_address(&mut self, plan: &Plan, on_stack: bool) -> Result<()> {
        if on_stack {
            let device = match plan.wire {
                Wire::AfPacket => {
                    format!("net_af_packet0,iface={LINK}{}", plan.queues_argument("qpairs"))
                }
                Wire::AfXdp => {
                    format!("net_af_xdp0,iface={LINK}{}", plan.queues_argument("queue_count"))
                }
                Wire::Tap => {
                    self.join_tap_to_link()?;
                    format!("net_tap0,iface={TAP}")
                }
                Wire::Memif => bail!("memif has no veth pair"),
            };
            self.stack = Some(plan.conf(self, device));
        } else {
            self.namespace.ip(&["address", "add", &format!("{}/24", self.address), "dev", LINK])?;
            if plan.pairing != Pairing::Kernel || plan.middle.is_some() {
                without_offloads(&self.namespace, LINK)?;
            }
        }
        Ok(())
    }

    /// A persistent tap whose frames go straight to the veth end, and back. A bridge would not do:
    /// it takes frames to the tap's hardware address, which is the stack's, for its own.
    fn join_tap_to_link(&self) -> Result<()> {
        self.namespace.ip(&["tuntap", "add", "dev", TAP, "mode", "tap", "multi_queue"])?;
        self.namespace.sysctl(&format!("ipv6/conf/{TAP}/disable_ipv6"), "1")?;
        self.namespace.ip(&["link", "set", TAP, "up"])?;
        for (from, to) in [(TAP, LINK), (LINK, TAP)] {
            self.namespace.tool("tc", &["qdisc", "add", "dev", from, "ingress"])?;
            let filter = format!(
                "filter add dev {from} parent ffff: protocol all u32 match u32 0 0 \
                 action mirred egress redirect dev {to}"
            );
            self.namespace.tool("tc", &filter.split_whitespace().collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Plan {
    fn conf(&self, side: &Side, device: String) -> StackConf {
        StackConf {
            device,
            address: side.address,
            mode: self.mode,
            cpus: self.cpus.clone(),
            more: self.more.clone(),
        }
    }

    /// A device argument for as many queues as there are stacks, when there are several.
    fn queues_argument(&self, key: &str) -> String {
        match self.cpus.as_deref().map_or(1, |cpus| cpus.split(',').count()) {
            1 => String::new(),
            count => format!(",{key}={count}"),
        }
    }
}

/// Makes a veth pair with one end in each namespace, both up and silent.
pub(crate) fn join_by_veth(
    one: (&Namespace, &str),
    other: (&Namespace, &str),
    mtu: Option<u16>,
) -> Result<()> {
    let there = other.0.path();
    one.0.ip(&["link", "add", one.1, "type", "veth", "peer", "name", other.1, "netns", &there])?;
    for (namespace, link) in [one, other] {
        // The kernel would announce itself by IPv6 on an end that is lstack's.
        namespace.sysctl(&format!("ipv6/conf/{link}/disable_ipv6"), "1")?;
        if let Some(mtu) = mtu {
            namespace.ip(&["link", "set", link, "mtu", &mtu.to_string()])?;
        }
    }
    one.0.ip(&["link", "set", one.1, "up"])?;
    other.0.ip(&["link", "set", other.1, "up"])
}

/// Frames leave a link as they would leave a machine: no longer than its MTU, checksums filled in.
pub(crate) fn without_offloads(namespace: &Namespace, link: &str) -> Result<()> {
    namespace.tool("ethtool", &["-K", link, "tx", "off", "tso", "off", "gso", "off", "gro", "off"])
}

fn memif_device(role: &str, socket: &Path) -> String {
    format!("net_memif0,role={role},socket={},socket-abstract=no", socket.display())
}

/// Addresses of the range reserved for benchmarks (RFC 2544); rigs can all use the same, since
/// each has namespaces of its own.
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// An address with no route to anywhere, so that glibc believes in IPv4.
const ADDRESS_FOR_GLIBC: &str = "10.99.0.1/32";

/// The veth end of either side.
pub const LINK: &str = "link0";

/// The tap between lstack and the veth end.
const TAP: &str = "tap0";
