//! Counters of a port.

use std::ffi::CStr;

use dpdk_sys as sys;

/// What every device counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Received, but dropped by the device: its queue was full.
    pub rx_missed: u64,
    /// Received with errors.
    pub rx_errors: u64,
    /// Not sent because of errors.
    pub tx_errors: u64,
    /// Received, but there was no packet memory.
    pub rx_no_memory: u64,
}

/// A counter only this kind of device has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xstat {
    /// The driver's name for it.
    pub name: String,
    /// Its value.
    pub value: u64,
}

/// Reads the counters of a port; all zero if the device has none.
pub(crate) fn of_port(port: u16) -> PortStats {
    let mut stats = sys::rte_eth_stats::default();
    // SAFETY: a valid place to write to; DPDK checks the port.
    let error = unsafe { sys::rte_eth_stats_get(port, &raw mut stats) };
    if error != 0 {
        return PortStats::default();
    }
    PortStats {
        rx_packets: stats.ipackets,
        rx_bytes: stats.ibytes,
        tx_packets: stats.opackets,
        tx_bytes: stats.obytes,
        rx_missed: stats.imissed,
        rx_errors: stats.ierrors,
        tx_errors: stats.oerrors,
        rx_no_memory: stats.rx_nombuf,
    }
}

/// Reads the device's own counters.
pub(crate) fn xstats_of_port(port: u16) -> Vec<Xstat> {
    // SAFETY: without room the call only counts.
    let count = unsafe { sys::rte_eth_xstats_get_names(port, std::ptr::null_mut(), 0) };
    let count = u32::try_from(count).unwrap_or(0);
    let len = usize::try_from(count).unwrap_or(0);
    let mut names = vec![sys::rte_eth_xstat_name::default(); len];
    let mut values = vec![sys::rte_eth_xstat::default(); len];
    // SAFETY: there is room for `count` names.
    let named = unsafe { sys::rte_eth_xstats_get_names(port, names.as_mut_ptr(), count) };
    // SAFETY: there is room for `count` values.
    let read = unsafe { sys::rte_eth_xstats_get(port, values.as_mut_ptr(), count) };
    // The device may have grown counters between the calls; what fits is right.
    let filled = usize::try_from(named.min(read)).unwrap_or(0).min(len);
    let named = |value: &sys::rte_eth_xstat| {
        let entry = names.get(usize::try_from(value.id).ok()?)?;
        // SAFETY: DPDK ends each name with a zero inside the array.
        let name = unsafe { CStr::from_ptr(entry.name.as_ptr()) };
        Some(Xstat { name: name.to_string_lossy().into_owned(), value: value.value })
    };
    values[..filled].iter().filter_map(named).collect()
}
