//! Whether somebody else has our address: asked once, before a stack uses the device.
//!
//! Called by the thread that starts the stacks. Two hosts with one address take each other's
//! connections, and nothing tells either of them; so a start that would cause it fails instead.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use lstack_core::{TxMeta, address_probe, contested_by};

use crate::link::Link;

/// Asks the network for `address`; returns the hardware address of whoever has it already.
pub(crate) fn find(link: &mut dyn Link, vlan: Option<u16>, address: Ipv4Addr) -> Option<[u8; 6]> {
    let mac = link.caps().mac;
    let probe = address_probe(mac, vlan, address);
    for _ in 0..PROBES {
        if let Some(frame) = link.reserve(probe.len()) {
            frame.copy_from_slice(&probe);
            link.commit(TxMeta::default());
        }
        link.flush();
        let end = Instant::now() + PROBE_WAIT;
        while Instant::now() < end {
            let mut owner = None;
            link.rx_burst(BURST, &mut |frame, _| {
                owner = owner.or(contested_by(frame, mac, address));
            });
            if owner.is_some() {
                return owner;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
    None
}

/// Two, since one may be lost. RFC 5227 asks for three.
const PROBES: u32 = 2;

/// Hosts on a local network answer within a millisecond, an idle virtual machine or another lstack
/// within some ten. RFC 5227 waits for seconds, which nobody wants at every start of a program: a
/// host that is slower than this is missed.
const PROBE_WAIT: Duration = Duration::from_millis(20);

/// Between two looks at the device.
const LOOK_INTERVAL: Duration = Duration::from_micros(500);

/// Frames per look.
const BURST: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lstack_core::{TxMeta, address_probe};

    use super::find;
    use crate::link::Link as _;
    use crate::memory_link::memory_pair;
    use lstack_core::FrameSink as _;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    #[test]
    fn an_address_nobody_answers_for_is_free() {
        let (mut ours, mut theirs) = memory_pair(1500);
        assert_eq!(find(&mut ours, None, ADDRESS), None);
        let mut asked = 0;
        theirs.rx_burst(8, &mut |_, _| asked += 1);
        assert_eq!(asked, 2, "both probes were sent");
    }

    #[test]
    fn a_host_that_wants_the_address_at_the_same_time_is_named() {
        let (mut ours, mut theirs) = memory_pair(1500);
        let rival = theirs.caps().mac;
        let probe = address_probe(rival, None, ADDRESS);
        theirs.reserve(probe.len()).unwrap().copy_from_slice(&probe);
        theirs.commit(TxMeta::default());
        theirs.flush();
        assert_eq!(find(&mut ours, None, ADDRESS), Some(rival));
    }
}
