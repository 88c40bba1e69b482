//! Brings up the environment abstraction layer and the port that a configuration names.

use lstack_config::Config;

use crate::link::Link;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// This build has no devices.
    #[error("no device is supported")]
    Unsupported,
}

/// Opens the port, one link per queue pair, at most one per stack.
pub(crate) fn open(_config: &Config) -> Result<Vec<Box<dyn Link>>, DeviceError> {
    Err(DeviceError::Unsupported)
}
