//! The stack against itself and against crafted frames, in virtual time. No device, no thread, no
//! real clock; every run with the same seed is the same.

mod support;

mod arp;
mod echo;
mod fragments;
mod garbage;
mod steering;
mod tcp;
mod udp;
