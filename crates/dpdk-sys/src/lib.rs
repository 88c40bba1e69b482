//! Bindings to the distribution's libdpdk
