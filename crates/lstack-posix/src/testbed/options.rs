//! Socket options as Linux 6.18 has them, for the few that the tests need: ranges, rounding,
//! defaults, errors.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::errno::Errno;

/// The options of all sockets, by the socket's inode.
#[derive(Default)]
pub(super) struct Options(Mutex<HashMap<(u64, i32, i32), Vec<u8>>>);

impl Options {
    pub(super) fn set(
        &self,
        (inode, stream): (u64, bool),
        (level, name): (i32, i32),
        value: &[u8],
    ) -> Result<(), Errno> {
        if level == libc::IPPROTO_TCP && !stream {
            return Err(Errno(libc::ENOPROTOOPT));
        }
        if level == libc::IPPROTO_TCP && name == libc::TCP_CONGESTION {
            return match value {
                b"cubic" | b"bbr" => self.keep((inode, level, name), value.to_vec()),
                _ => Err(Errno(libc::ENOENT)),
            };
        }
        if matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP) && value.len() < 4 {
            return Err(Errno(libc::EINVAL));
        }
        let number = value.first_chunk().map_or(0, |int| i32::from_ne_bytes(*int));
        let stored = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(doubled(number, 2304)),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(doubled(number, 4608)),
            (libc::SOL_SOCKET, libc::SO_LINGER | libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                value.to_vec()
            }
            (
                libc::SOL_SOCKET,
                libc::SO_KEEPALIVE
                | libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS,
            )
            | (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) => int((number != 0).into()),
            (libc::SOL_SOCKET, libc::SO_PRIORITY) | (libc::IPPROTO_IP, libc::IP_TOS) => int(number),
            (libc::IPPROTO_IP, libc::IP_TTL) if (1..=255).contains(&number) => int(number),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if (1..=32_767).contains(&number) => {
                int(number)
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                return Err(Errno(libc::EINVAL));
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        self.keep((inode, level, name), stored)
    }

    pub(super) fn get(
        &self,
        (inode, stream): (u64, bool),
        (level, name): (i32, i32),
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let known = matches!(level, libc::SOL_SOCKET | libc::IPPROTO_IP)
            || level == libc::IPPROTO_TCP && stream;
        if !known {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let default = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => 131_072,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => 16_384,
            (libc::IPPROTO_IP, libc::IP_TTL) => 64,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => 7200,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => 536,
            _ => 0,
        };
        let stored = self.0.lock().get(&(inode, level, name)).cloned();
        if name > UNKNOWN {
            return Err(Errno(libc::ENOPROTOOPT));
        }
        let value = stored.unwrap_or_else(|| int(default));
        let len = value.len().min(out.len());
        out[..len].copy_from_slice(&value[..len]);
        Ok(len)
    }

    fn keep(&self, key: (u64, i32, i32), value: Vec<u8>) -> Result<(), Errno> {
        self.0.lock().insert(key, value);
        Ok(())
    }
}

/// `SO_RCVBUF` and `SO_SNDBUF`: limited by `rmem_max`, doubled, with a floor.
fn doubled(number: i32, floor: i32) -> i32 {
    let limited = number.cast_unsigned().min(212_992).cast_signed();
    (limited * 2).max(floor)
}

fn int(number: i32) -> Vec<u8> {
    number.to_ne_bytes().to_vec()
}

/// No option has a higher number.
const UNKNOWN: i32 = 200;
