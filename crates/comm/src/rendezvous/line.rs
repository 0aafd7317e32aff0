//! Messages between the host of a meeting and a process that came to it: a length, and as many bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};

use super::meeting::LOOK;
use crate::connection::Connection;

/// A connection both ends of which have proved that they belong to the job.
#[derive(Debug)]
pub struct Line {
    stream: Connection,
}

impl Line {
    /// No message is longer.
    pub const LONGEST: usize = 64 << 20;

    /// `silence` is how long the other end may be cut off before it counts as gone.
    pub(super) fn new(stream: Connection, silence: Duration) -> io::Result<Self> {
        let socket = stream.socket();
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, Duration::from_secs(1).max(silence / 4))?;
        sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1).max(silence / 4))?;
        sockopt::set_tcp_keepcnt(socket, 3)?;
        sockopt::set_tcp_user_timeout(socket, silence.as_millis().try_into().unwrap_or(u32::MAX))?;
        Ok(Self { stream })
    }

    /// The same connection for another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.clone() })
    }

    /// Where the other end is.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.socket().peer_addr()
    }

    /// Whether the other end is gone, which has nothing to say before it was told something.
    pub fn is_gone(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(self.stream.socket(), &mut [0u8][..], flags) {
            Ok((_, count)) => count == 0,
            Err(error) => error != Errno::AGAIN && error != Errno::INTR,
        }
    }

    /// Ends it for both ends, and for all threads that have it.
    pub fn hang_up(&self) {
        let _ = self.stream.socket().shutdown(Shutdown::Both);
    }

    /// Sends a message.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() > Self::LONGEST {
            return Err(io::Error::other(format!("{} bytes are too long a message", message.len())));
        }
        // In one piece: a second one would wait for the first to be acknowledged.
        (&self.stream).write_all(&[&(message.len() as u32).to_le_bytes(), message].concat())
    }

    /// The next message; `None` once the other end is gone.
    pub fn recv(&mut self) -> io::Result<Option<Vec<u8>>> {
        receive(&self.stream)
    }

    /// The same, unless the other end says nothing for so long, which is an error of the kind `TimedOut`. Time that this process was
    /// suspended for does not count.
    pub fn recv_within(&mut self, silence: Duration) -> io::Result<Option<Vec<u8>>> {
        let received = receive(Patient { stream: &self.stream, silence });
        self.stream.socket().set_read_timeout(None)?;
        received
    }

    /// The next message, if it comes within a time and is not longer than that; `None` once the other end is gone.
    pub(super) fn recv_until(
        &mut self,
        longest: usize,
        deadline: Instant,
        off: &AtomicBool,
    ) -> io::Result<Option<Vec<u8>>> {
        let mut length = [0; 4];
        if !read_unless(off, &self.stream, &mut length, deadline)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length) as usize;
        check(length, longest)?;
        let mut message = vec![0; length];
        Ok(read_unless(off, &self.stream, &mut message, deadline)?.then_some(message))
    }
}

/// A stream that gives up after a silence.
struct Patient<'a> {
    stream: &'a Connection,
    silence: Duration,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Counted in rounds: a process that was suspended for long has waited no longer than the one that it was in.
        const ROUNDS: u32 = 8;
        self.stream.socket().set_read_timeout(Some((self.silence / ROUNDS).max(Duration::from_millis(1))))?;
        for _ in 0..ROUNDS {
            match (&*self.stream).read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// The next message of a stream; `None` once that has ended.
pub(super) fn receive(mut stream: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if let Err(error) = stream.read_exact(&mut length) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let length = u32::from_le_bytes(length) as usize;
    check(length, Line::LONGEST)?;
    // Room is made as the message arrives, not for what it claims to be.
    let mut message = Vec::new();
    let got = stream.take(length as u64).read_to_end(&mut message)?;
    Ok((got == length).then_some(message))
}

fn check(length: usize, longest: usize) -> io::Result<()> {
    if length <= longest {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a message of {length} bytes, of which {longest} are taken"),
    ))
}

/// Fills the buffer before the deadline, however slowly its bytes come; `false` if the connection ends first.
pub(super) fn read_until(stream: &Connection, buffer: &mut [u8], deadline: Instant) -> io::Result<bool> {
    read_unless(&AtomicBool::new(false), stream, buffer, deadline)
}

/// The same, unless it is called off meanwhile, which counts as the end of the connection.
fn read_unless(off: &AtomicBool, mut stream: &Connection, buffer: &mut [u8], deadline: Instant) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if off.load(Ordering::Relaxed) {
            return Ok(false);
        }
        stream.socket().set_read_timeout(Some(left.min(LOOK)))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    stream.socket().set_read_timeout(None)?;
    Ok(true)
}
