//! Files, pipes and connections; what arrives is compared byte by byte.

use std::os::fd::RawFd;

use super::CHUNK;
use crate::errno::Errno;
use crate::kernel::Kernel;
use crate::posix::Outcome;
use crate::testbed::{Testbed, done};

/// Bytes that show where they belong.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn fails<T>(errno: i32) -> Outcome<T> {
    Outcome::Done(Err(Errno(errno)))
}

/// Takes all there is.
fn drain(bed: &Testbed, fd: RawFd) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match bed.recv(fd, 1 << 16) {
            Ok(bytes) if bytes.is_empty() => return all,
            Ok(bytes) => all.extend(bytes),
            Err(error) => {
                assert_eq!(error, Errno(libc::EAGAIN));
                return all;
            }
        }
    }
}

fn position(bed: &Testbed, file: RawFd) -> i64 {
    bed.kernel.lseek(file, 0, libc::SEEK_CUR).expect("it is a file")
}

fn splice(bed: &Testbed, input: RawFd, out: RawFd, count: usize) -> Outcome<usize> {
    bed.posix.splice(input, None, out, None, count, libc::SPLICE_F_NONBLOCK)
}

#[test]
fn a_file_arrives_whole_and_its_position_moves() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    let content = pattern(CHUNK + 4321);
    let file = bed.kernel.file(&content);
    assert_eq!(done(bed.posix.sendfile(client, file, None, 1 << 20)), content.len());
    assert_eq!(position(&bed, file), i64::try_from(content.len()).unwrap());
    assert_eq!(drain(&bed, server), content);
    assert_eq!(done(bed.posix.sendfile(client, file, None, 1)), 0, "past the end");
}

#[test]
fn a_given_offset_moves_instead_of_the_position() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    let content = pattern(1000);
    let file = bed.kernel.file(&content);
    let mut offset = 100;
    assert_eq!(done(bed.posix.sendfile(client, file, Some(&mut offset), 50)), 50);
    assert_eq!((offset, position(&bed, file)), (150, 0));
    assert_eq!(drain(&bed, server), content[100..150]);
}

#[test]
fn a_short_count_moves_the_position_by_what_was_sent() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    let content = pattern(4 << 20);
    let file = bed.kernel.file(&content);
    let mut sent = 0;
    let mut arrived = Vec::new();
    let mut short = 0;
    while sent < content.len() {
        match bed.posix.sendfile(client, file, None, content.len()) {
            Outcome::Done(Ok(count)) => {
                sent += count;
                short += usize::from(sent < content.len());
                assert_eq!(position(&bed, file), i64::try_from(sent).unwrap());
            }
            blocked => assert_eq!(blocked, fails(libc::EAGAIN)),
        }
        arrived.extend(drain(&bed, server));
    }
    assert!(short > 0, "a send buffer is smaller than the file");
    arrived.extend(drain(&bed, server));
    assert!(arrived == content, "bytes got lost or out of order");
}

#[test]
fn what_has_no_position_cannot_be_sent_from() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    let (reader, _writer) = bed.kernel.pipe();
    let mut offset = 0;
    assert_eq!(bed.posix.sendfile(client, server, None, 1), fails(libc::EINVAL));
    assert_eq!(bed.posix.sendfile(client, server, Some(&mut offset), 1), fails(libc::ESPIPE));
    assert_eq!(bed.posix.sendfile(client, reader, None, 1), fails(libc::EINVAL));
    assert_eq!(bed.posix.sendfile(client, reader, Some(&mut offset), 1), fails(libc::ESPIPE));
    assert_eq!(bed.posix.sendfile(client, 9999, None, 1), fails(libc::EBADF));
    let mut before_the_start = -1;
    let file = bed.kernel.file(b"x");
    let refused = bed.posix.sendfile(client, file, Some(&mut before_the_start), 1);
    assert_eq!(refused, fails(libc::EINVAL));
}

#[test]
fn bytes_go_from_a_socket_through_a_pipe_to_a_socket() {
    let bed = Testbed::new();
    let (source, middle_in) = bed.pair();
    let (middle_out, sink) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    let content = pattern(1 << 20);
    let (mut sent, mut arrived) = (0, Vec::new());
    // Each round moves something until all is there; the bound ends a test that got stuck.
    for _ in 0..100_000 {
        if sent < content.len() {
            let piece = &content[sent..content.len().min(sent + 100_000)];
            let written = bed.posix.write(source, &[std::io::IoSlice::new(piece)]);
            sent += match written {
                Outcome::Done(Ok(count)) => count,
                _ => 0,
            };
        }
        let _ = splice(&bed, middle_in, writer, usize::MAX);
        let _ = splice(&bed, reader, middle_out, usize::MAX);
        arrived.extend(drain(&bed, sink));
        if arrived.len() == content.len() {
            break;
        }
    }
    assert!(arrived == content, "bytes got lost or out of order: {}", arrived.len());
}

#[test]
fn what_does_not_fit_into_the_pipe_stays_in_the_socket() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    let capacity = bed.kernel.fcntl(writer, libc::F_GETPIPE_SZ, 0).expect("it is a pipe");
    let capacity = usize::try_from(capacity).unwrap();
    let content = pattern(capacity + 1000);
    assert_eq!(bed.send(client, &content), content.len());
    assert_eq!(done(splice(&bed, server, writer, usize::MAX)), capacity);
    assert_eq!(splice(&bed, server, writer, usize::MAX), fails(libc::EAGAIN));
    assert_eq!(drain(&bed, server), content[capacity..]);
    let mut bytes = vec![0; capacity];
    assert_eq!(bed.kernel.read(reader, &mut bytes), Ok(capacity));
    assert!(bytes == content[..capacity]);
}

#[test]
fn ends_of_streams_come_through() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    assert_eq!(splice(&bed, server, writer, 10), fails(libc::EAGAIN), "nothing there");
    assert_eq!(splice(&bed, reader, client, 10), fails(libc::EAGAIN), "nothing there");
    bed.kernel.close(writer).expect("it is open");
    assert_eq!(splice(&bed, reader, client, 10), Outcome::Done(Ok(0)), "no writers are left");
    bed.close(client);
    let (_reader, writer) = bed.kernel.pipe();
    assert_eq!(splice(&bed, server, writer, 10), Outcome::Done(Ok(0)), "the peer is done");
}

#[test]
fn a_pipe_is_not_read_for_a_connection_that_is_over() {
    let bed = Testbed::new();
    let (client, _server) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    bed.kernel.write(writer, b"kept").expect("there is room");
    done(bed.posix.shutdown(client, libc::SHUT_WR));
    assert_eq!(splice(&bed, reader, client, 10), fails(libc::EPIPE));
    let mut bytes = [0; 10];
    assert_eq!(bed.kernel.read(reader, &mut bytes), Ok(4));
}

#[test]
fn splice_refuses_what_linux_refuses() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    let file = bed.kernel.file(b"x");
    let mut at = 0;
    assert_eq!(splice(&bed, server, client, 1), fails(libc::EINVAL), "no pipe");
    assert_eq!(splice(&bed, server, file, 1), fails(libc::EINVAL), "no pipe");
    assert_eq!(splice(&bed, server, 9999, 1), fails(libc::EBADF));
    assert_eq!(splice(&bed, server, reader, 1), fails(libc::EBADF), "the wrong end");
    assert_eq!(splice(&bed, writer, client, 1), fails(libc::EBADF), "the wrong end");
    let posix = &bed.posix;
    assert_eq!(posix.splice(server, Some(&mut at), writer, None, 1, 0), fails(libc::EINVAL));
    assert_eq!(posix.splice(server, None, writer, Some(&mut at), 1, 0), fails(libc::ESPIPE));
    assert_eq!(posix.splice(reader, Some(&mut at), client, None, 1, 0), fails(libc::ESPIPE));
    assert_eq!(posix.splice(reader, None, client, Some(&mut at), 1, 0), fails(libc::EINVAL));
    assert_eq!(posix.splice(reader, None, client, None, 1, 1 << 30), fails(libc::EINVAL));
    assert_eq!(posix.splice(reader, None, client, None, 0, 0), Outcome::Done(Ok(0)));
    assert_eq!(posix.splice(reader, None, writer, None, 1, 0), Outcome::Kernel);
}
