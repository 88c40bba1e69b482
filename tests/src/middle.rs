//! What may stand between the two ends of a rig: a router that drops packets, or a relay that
//! mistreats frames. There is no netem where the tests must run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender};

use crate::namespace::Namespace;
use crate::pattern::Pattern;
use crate::rig::{LINK, Side, join_by_veth, without_offloads};

/// What stands between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Middle {
    /// The kernel forwards, as fast as it can, and drops what iptables says.
    Router,
    /// A program that forwards frame by frame, and does with them what it is told.
    Relay,
}

/// A direction through the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// From the client to the server.
    Server,
    /// From the server to the client.
    Client,
}

impl Toward {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Server, Self::Client];

    fn link(self) -> &'static str {
        match self {
            Self::Server => TO_SERVER,
            Self::Client => TO_CLIENT,
        }
    }
}

/// A namespace that forwards between both ends. They keep their subnet: the router answers ARP for
/// each of them on the other's link.
#[derive(Debug)]
pub struct Router {
    namespace: Namespace,
}

impl Router {
    pub(crate) fn between([server, client]: [&Side; 2], mtu: Option<u16>) -> Result<Self> {
        let namespace = between(server, client, mtu)?;
        namespace.sysctl("ipv4/ip_forward", "1")?;
        namespace.sysctl("ipv4/conf/all/send_redirects", "0")?;
        for (link, side) in [(TO_SERVER, server), (TO_CLIENT, client)] {
            without_offloads(&namespace, link)?;
            namespace.sysctl(&format!("ipv4/conf/{link}/proxy_arp"), "1")?;
            namespace.sysctl(&format!("ipv4/conf/{link}/send_redirects"), "0")?;
            // An answer for somebody else waits for up to 0.8 s otherwise.
            namespace.sysctl(&format!("ipv4/neigh/{link}/proxy_delay"), "0")?;
            namespace.ip(&["address", "add", OWN_ADDRESS, "dev", link])?;
            namespace.ip(&["route", "add", &side.address.to_string(), "dev", link])?;
        }
        Ok(Self { namespace })
    }

    /// Drops this share of the TCP segments in one direction, at random, from now on.
    ///
    /// # Errors
    ///
    /// When iptables refuses.
    pub fn lose(&self, toward: Toward, probability: f64) -> Result<()> {
        let rule = format!(
            "-A FORWARD -o {} -p tcp -m statistic --mode random --probability {probability} -j DROP",
            toward.link()
        );
        self.namespace.tool("iptables", &rule.split_whitespace().collect::<Vec<_>>())
    }

    /// Drops packets of more than `length` bytes in one direction, and tells nobody.
    ///
    /// # Errors
    ///
    /// When iptables refuses.
    pub fn swallow_longer(&self, toward: Toward, length: u16) -> Result<()> {
        let rule = format!(
            "-A FORWARD -o {} -m length --length {}:65535 -j DROP",
            toward.link(),
            u32::from(length) + 1
        );
        self.namespace.tool("iptables", &rule.split_whitespace().collect::<Vec<_>>())
    }

    /// Drops no more.
    ///
    /// # Errors
    ///
    /// When iptables refuses.
    pub fn lose_nothing(&self) -> Result<()> {
        self.namespace.tool("iptables", &["-F", "FORWARD"])
    }
}

/// What a relay does with the frames of one direction. Shares are per mille.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// Dropped.
    pub lost: u32,
    /// Delivered twice.
    pub doubled: u32,
    /// Delivered after some of those that follow.
    pub late: u32,
    /// One bit behind the Ethernet header is wrong.
    pub corrupted: u32,
    /// Nothing comes through.
    pub black_out: bool,
}

/// A program between both ends.
#[derive(Debug)]
pub struct Relay {
    server: Arc<Lane>,
    client: Arc<Lane>,
    threads: Vec<JoinHandle<()>>,
    /// Outlives the threads' sockets.
    _namespace: Namespace,
}

/// One direction of a relay.
#[derive(Debug, Default)]
struct Lane {
    trouble: Mutex<Trouble>,
    over: AtomicBool,
    frames: AtomicU64,
    troubled: AtomicU64,
}

impl Relay {
    pub(crate) fn between([server, client]: [&Side; 2], mtu: Option<u16>) -> Result<Self> {
        let namespace = between(server, client, mtu)?;
        let (to_server, from_server) = channel(&namespace, TO_SERVER)?;
        let (to_client, from_client) = channel(&namespace, TO_CLIENT)?;
        let lanes = [Arc::new(Lane::default()), Arc::new(Lane::default())];
        let ends = [(from_client, to_server), (from_server, to_client)];
        let threads = (lanes.iter().zip(ends).enumerate())
            .map(|(seed, (lane, (from, to)))| {
                let lane = Arc::clone(lane);
                thread::spawn(move || lane.run(from, to, seed as u64 + 1))
            })
            .collect();
        let [server, client] = lanes;
        Ok(Self { server, client, threads, _namespace: namespace })
    }

    /// What happens to frames from now on.
    pub fn set(&self, toward: Toward, trouble: Trouble) {
        *self.lane(toward).trouble() = trouble;
    }

    /// How many frames of a direction came so far.
    #[must_use]
    pub fn frames(&self, toward: Toward) -> u64 {
        self.lane(toward).frames.load(Ordering::Relaxed)
    }

    /// How many of them something was done to.
    #[must_use]
    pub fn troubled(&self, toward: Toward) -> u64 {
        self.lane(toward).troubled.load(Ordering::Relaxed)
    }

    fn lane(&self, toward: Toward) -> &Lane {
        match toward {
            Toward::Server => &self.server,
            Toward::Client => &self.client,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for lane in [&self.server, &self.client] {
            lane.over.store(true, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            // A panic of a relay has shown by what did not arrive.
            let _ = thread.join();
        }
    }
}

impl Lane {
    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut from: Box<dyn DataLinkReceiver>, mut to: Box<dyn DataLinkSender>, seed: u64) {
        let mut random = Pattern::new(seed);
        let mut send = |frame: &[u8]| {
            // A full queue loses frames, as on any link.
            let _ = to.send_to(frame, None);
        };
        // A frame that is late, and how many others go before it.
        let mut held: Option<(Vec<u8>, usize)> = None;
        while !self.over.load(Ordering::Relaxed) {
            let Ok(frame) = from.next() else {
                // Nothing came for a while: nothing will overtake it any more.
                if let Some((frame, _)) = held.take() {
                    send(&frame);
                }
                continue;
            };
            self.frames.fetch_add(1, Ordering::Relaxed);
            let trouble = *self.trouble();
            let mut hit = |share: u32| share > 0 && random.below(1_000) < share as usize;
            if trouble.black_out || hit(trouble.lost) {
                self.note_trouble();
                continue;
            }
            let (doubled, late, corrupted) =
                (hit(trouble.doubled), hit(trouble.late), hit(trouble.corrupted));
            let mut frame = frame.to_vec();
            if corrupted {
                self.note_trouble();
                let bit = random.below((frame.len() - HEADER) * 8);
                frame[HEADER + bit / 8] ^= 1 << (bit % 8);
            }
            if doubled {
                self.note_trouble();
                send(&frame);
            }
            if late && held.is_none() {
                self.note_trouble();
                held = Some((frame, 1 + random.below(OVERTAKEN_BY)));
                continue;
            }
            send(&frame);
            if let Some((late, before)) = held.take() {
                if before > 1 {
                    held = Some((late, before - 1));
                } else {
                    send(&late);
                }
            }
        }
    }

    fn note_trouble(&self) {
        self.troubled.fetch_add(1, Ordering::Relaxed);
    }
}

/// A namespace with a link to each side.
fn between(server: &Side, client: &Side, mtu: Option<u16>) -> Result<Namespace> {
    let middle = Namespace::new()?;
    join_by_veth((&server.namespace, LINK), (&middle, TO_SERVER), mtu)?;
    join_by_veth((&client.namespace, LINK), (&middle, TO_CLIENT), mtu)?;
    Ok(middle)
}

/// Both directions of a link, frame by frame.
fn channel(
    namespace: &Namespace,
    name: &str,
) -> Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    namespace.enter(|| {
        let link = pnet_datalink::interfaces()
            .into_iter()
            .find(|link| link.name == name)
            .with_context(|| format!("there is no link {name}"))?;
        // One socket for both directions: the kernel does not show a socket what it sent itself.
        let config = Config { read_timeout: Some(QUIET), ..Config::default() };
        match pnet_datalink::channel(&link, config) {
            Ok(Channel::Ethernet(sender, receiver)) => Ok((sender, receiver)),
            Ok(_) => bail!("{name} is no Ethernet"),
            Err(error) => Err(error).context("opening a packet socket"),
        }
    })
}

const TO_SERVER: &str = "to-server";
const TO_CLIENT: &str = "to-client";

/// From the rigs' subnet, so that both ends may answer it.
const OWN_ADDRESS: &str = "198.18.0.254/32";

/// A late frame is let past by at most so many others.
const OVERTAKEN_BY: usize = 5;

/// An Ethernet header.
const HEADER: usize = 14;

/// When nothing has come for so long, late frames follow and a relay looks whether it is over.
const QUIET: Duration = Duration::from_millis(2);
