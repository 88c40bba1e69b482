//! What the layers below the transports count.
//!
//! Every received frame ends in exactly one of the `rx_*` counters, so that `frames_rx` is their
//! sum: delivered to a transport, answered, kept as a fragment, or dropped for one named reason.

use crate::counters::counters;

counters! {
    /// Counters of Ethernet, ARP, IP and ICMP.
    pub struct IpCounters {
        /// Frames received, from the device and from this stack itself.
        frames_rx,
        /// Frames given to the device.
        frames_tx,
        /// Packets to the own address, which never leave the stack.
        frames_looped,
        /// TCP segments handed to TCP.
        rx_tcp,
        /// Datagrams handed to UDP.
        rx_udp,
        /// Echo requests answered.
        rx_icmp_echo,
        /// ICMP errors handed to a transport.
        rx_icmp_errors,
        /// ARP packets understood.
        rx_arp,
        /// Fragments kept until the rest of their datagram comes.
        rx_fragments_held,
        /// Packets that another stack of the process owns, handed on to it.
        rx_misdirected,
        /// Shorter than an Ethernet header.
        rx_drop_truncated_frame,
        /// For another hardware address.
        rx_drop_other_mac,
        /// Without our VLAN tag, or with another one.
        rx_drop_other_vlan,
        /// Neither IP nor ARP.
        rx_drop_unknown_ethertype,
        /// IPv6, which is not served.
        rx_drop_ipv6,
        /// IPv4 or ARP while no address is configured.
        rx_drop_ipv4_off,
        /// ARP with wrong types, lengths or addresses.
        rx_drop_bad_arp,
        /// IPv4 header with a wrong version or length, or longer than its frame.
        rx_drop_bad_ip_header,
        /// Wrong IPv4 header checksum.
        rx_drop_bad_ip_checksum,
        /// A source that cannot be one: broadcast, multicast, loopback, or our own.
        rx_drop_bad_source,
        /// For another address.
        rx_drop_other_address,
        /// For a multicast group nobody joined.
        rx_drop_not_joined,
        /// A fragment with an impossible offset or length.
        rx_drop_bad_fragment,
        /// A fragment that disagrees with one received earlier; its datagram is lost.
        rx_drop_fragment_overlap,
        /// A fragment received before.
        rx_drop_fragment_duplicate,
        /// A fragment of a datagram given up earlier.
        rx_drop_fragment_late,
        /// A fragment of a datagram in too many pieces.
        rx_drop_fragment_limit,
        /// Neither TCP, UDP nor ICMP; answered with protocol unreachable.
        rx_drop_unknown_protocol,
        /// TCP to a broadcast or multicast address.
        rx_drop_tcp_not_unicast,
        /// ICMP too short for its type, or quoting something that is not a packet of ours.
        rx_drop_bad_icmp,
        /// Wrong ICMP checksum.
        rx_drop_bad_icmp_checksum,
        /// ICMP of a type that asks nothing of a host, or an echo request to a broadcast address.
        rx_drop_icmp_ignored,
        /// Not answered because too many answers wait for the device.
        rx_drop_control_full,
        /// Our address used by another host (RFC 5227).
        arp_conflicts,
        /// ARP requests answered.
        arp_replies_tx,
        /// ARP requests not answered because too much waits for the device.
        arp_replies_dropped,
        /// ARP requests sent.
        arp_requests_tx,
        /// Neighbours whose hardware address changed.
        neighbor_mac_changes,
        /// Neighbours that did not answer.
        neighbor_failures,
        /// Neighbours forgotten to make room.
        neighbor_evictions,
        /// Packets dropped because too many waited for a neighbour.
        tx_drop_neighbor_queue,
        /// Packets dropped because their neighbour did not answer.
        tx_drop_neighbor_failed,
        /// ICMP errors sent.
        icmp_errors_tx,
        /// ICMP errors not sent: rate limit, or no room.
        icmp_errors_suppressed,
        /// Control packets that found no route.
        tx_drop_control_unroutable,
        /// Broadcasts whose copy for ourselves found no room.
        tx_drop_loopback_full,
        /// Datagrams sent in fragments.
        fragmented_tx,
        /// Datagrams put together.
        reassembled_rx,
        /// Datagrams given up because a fragment did not come in time.
        reassembly_timeouts,
        /// Datagrams given up to make room for newer ones.
        reassembly_evictions,
        /// Packets for other stacks that were not collected in time.
        misdirected_overflow,
    }
}

/// Why a received frame is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    TruncatedFrame,
    OtherMac,
    OtherVlan,
    UnknownEthertype,
    Ipv6,
    Ipv4Off,
    BadArp,
    BadIpHeader,
    BadIpChecksum,
    BadSource,
    OtherAddress,
    NotJoined,
    BadFragment,
    FragmentOverlap,
    FragmentDuplicate,
    FragmentLate,
    FragmentLimit,
    UnknownProtocol,
    TcpNotUnicast,
    BadIcmp,
    BadIcmpChecksum,
    IcmpIgnored,
    ControlFull,
}

impl IpCounters {
    pub(crate) fn drop_frame(&mut self, reason: DropReason) {
        let counter = match reason {
            DropReason::TruncatedFrame => &mut self.rx_drop_truncated_frame,
            DropReason::OtherMac => &mut self.rx_drop_other_mac,
            DropReason::OtherVlan => &mut self.rx_drop_other_vlan,
            DropReason::UnknownEthertype => &mut self.rx_drop_unknown_ethertype,
            DropReason::Ipv6 => &mut self.rx_drop_ipv6,
            DropReason::Ipv4Off => &mut self.rx_drop_ipv4_off,
            DropReason::BadArp => &mut self.rx_drop_bad_arp,
            DropReason::BadIpHeader => &mut self.rx_drop_bad_ip_header,
            DropReason::BadIpChecksum => &mut self.rx_drop_bad_ip_checksum,
            DropReason::BadSource => &mut self.rx_drop_bad_source,
            DropReason::OtherAddress => &mut self.rx_drop_other_address,
            DropReason::NotJoined => &mut self.rx_drop_not_joined,
            DropReason::BadFragment => &mut self.rx_drop_bad_fragment,
            DropReason::FragmentOverlap => &mut self.rx_drop_fragment_overlap,
            DropReason::FragmentDuplicate => &mut self.rx_drop_fragment_duplicate,
            DropReason::FragmentLate => &mut self.rx_drop_fragment_late,
            DropReason::FragmentLimit => &mut self.rx_drop_fragment_limit,
            DropReason::UnknownProtocol => &mut self.rx_drop_unknown_protocol,
            DropReason::TcpNotUnicast => &mut self.rx_drop_tcp_not_unicast,
            DropReason::BadIcmp => &mut self.rx_drop_bad_icmp,
            DropReason::BadIcmpChecksum => &mut self.rx_drop_bad_icmp_checksum,
            DropReason::IcmpIgnored => &mut self.rx_drop_icmp_ignored,
            DropReason::ControlFull => &mut self.rx_drop_control_full,
        };
        *counter += 1;
    }
}
