//! A connection between two processes, as it is or encrypted by TLS 1.3.
//!
//! One thread may read while another writes, and neither holds what the other needs while it waits for the socket: bytes
//! are encrypted and decrypted under one lock, and wait for the socket under another in each direction. Whether the
//! socket blocks is up to whoever has it.

use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use crate::transport::tcp::is_transient;

/// Bytes that are encrypted at once.
const MOST: usize = 256 << 10;
/// Bytes that are read from the socket at once.
const ROOM: usize = 64 << 10;

/// One end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Arc<End>);

#[derive(Debug)]
struct End {
    socket: TcpStream,
    session: Option<Session>,
}

/// What TLS needs at one end.
#[derive(Debug)]
struct Session {
    state: Mutex<rustls::Connection>,
    /// What has arrived and is not decrypted yet.
    arrived: Mutex<Arrived>,
    /// What is encrypted and has not been sent yet.
    unsent: Mutex<Unsent>,
    /// Bytes of the socket less those of messages, sent and received; below zero while some are not sent yet.
    overhead: [AtomicU64; 2],
}

#[derive(Debug)]
struct Arrived {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    sent: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Connection {
    /// As it is.
    pub fn plain(socket: TcpStream) -> Self {
        Self(Arc::new(End { socket, session: None }))
    }

    /// Encrypted, as the one that called.
    pub fn calling(socket: TcpStream, keys: Arc<ClientConfig>) -> io::Result<Self> {
        let name = "ringstep".try_into().expect("it is a name");
        Ok(Self::encrypted(socket, ClientConnection::new(keys, name).map_err(io::Error::other)?.into()))
    }

    /// Encrypted, as the one that was called.
    pub fn called(socket: TcpStream, keys: Arc<ServerConfig>) -> io::Result<Self> {
        Ok(Self::encrypted(socket, ServerConnection::new(keys).map_err(io::Error::other)?.into()))
    }

    fn encrypted(socket: TcpStream, mut state: rustls::Connection) -> Self {
        state.set_buffer_limit(None);
        let session = Session {
            state: Mutex::new(state),
            arrived: Mutex::new(Arrived { bytes: vec![0; ROOM], from: 0, to: 0 }),
            unsent: Mutex::default(),
            overhead: Default::default(),
        };
        Self(Arc::new(End { socket, session: Some(session) }))
    }

    /// What carries it.
    pub fn socket(&self) -> &TcpStream {
        &self.0.socket
    }

    /// Whether what is said on it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.0.session.is_some()
    }

    /// Goes on with the first words of TLS as far as the socket lets it; whether they are over.
    pub fn shake_hands(&self) -> io::Result<bool> {
        let Some(session) = &self.0.session else { return Ok(true) };
        loop {
            session.encrypt(&[])?;
            match session.send(&self.0.socket) {
                Err(error) if is_transient(&error) => return Ok(false),
                sent => sent?,
            }
            if !lock(&session.state).is_handshaking() {
                return Ok(true);
            }
            match session.decrypt_more(&self.0.socket) {
                Ok(true) => {}
                Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if is_transient(&error) => return Ok(false),
                Err(error) => {
                    // The other end is told why, if it still listens.
                    let _ = session.encrypt(&[]);
                    let _ = session.send(&self.0.socket);
                    return Err(error);
                }
            }
        }
    }

    /// How many bytes could be read without waiting, at least one; 0 at the end.
    pub fn peek(&self) -> io::Result<usize> {
        match &self.0.session {
            None => self.0.socket.peek(&mut [0]),
            Some(session) => session.read_by(&self.0.socket, |reader| reader.fill_buf().map(<[u8]>::len)),
        }
    }

    /// Whether something is here already that the socket no longer tells of.
    pub fn has_data(&self) -> bool {
        let decrypted = |session: &Session| {
            let arrived = lock(&session.arrived);
            arrived.from < arrived.to || lock(&session.state).reader().fill_buf().is_ok_and(|bytes| !bytes.is_empty())
        };
        self.0.session.as_ref().is_some_and(decrypted)
    }

    /// Begins to count what encryption adds.
    pub fn count(&self) {
        for number in self.0.session.iter().flat_map(|session| &session.overhead) {
            number.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes that encryption has added since then, to what was sent and to what was received.
    pub fn overhead(&self) -> [u64; 2] {
        let numbers = self.0.session.as_ref().map(|session| &session.overhead);
        numbers.map_or([0; 2], |numbers| {
            numbers.each_ref().map(|number| number.load(Ordering::Relaxed) as i64).map(|number| number.max(0) as u64)
        })
    }
}

impl Session {
    /// Reads what is decrypted, or decrypts more.
    fn read_by<T>(
        &self,
        socket: &TcpStream,
        mut read: impl FnMut(&mut rustls::Reader<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match read(&mut lock(&self.state).reader()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            self.decrypt_more(socket)?;
        }
    }

    /// Takes what has arrived, or else what the socket has; `false` at the end.
    fn decrypt_more(&self, socket: &TcpStream) -> io::Result<bool> {
        let mut arrived = lock(&self.arrived);
        if arrived.from == arrived.to {
            (arrived.from, arrived.to) = (0, 0);
            arrived.to = (&*socket).read(&mut arrived.bytes)?;
            self.overhead[1].fetch_add(arrived.to as u64, Ordering::Relaxed);
        }
        let mut state = lock(&self.state);
        let taken = state.read_tls(&mut &arrived.bytes[arrived.from..arrived.to])?;
        arrived.from += taken;
        state.process_new_packets().map_err(invalid)?;
        Ok(taken > 0)
    }

    /// Encrypts these bytes, and whatever TLS itself has to say.
    fn encrypt(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let (mut unsent, mut state) = (lock(&self.unsent), lock(&self.state));
        let mut left = MOST;
        let parts = parts.iter().map(|part| {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            IoSlice::new(part)
        });
        // All at once, so that they share records.
        let parts: Vec<IoSlice<'_>> = parts.collect();
        let taken = if parts.is_empty() { 0 } else { state.writer().write_vectored(&parts)? };
        while state.wants_write() {
            state.write_tls(&mut unsent.bytes)?;
        }
        self.overhead[0].fetch_sub(taken as u64, Ordering::Relaxed);
        Ok(taken)
    }

    /// Sends what is encrypted.
    fn send(&self, mut socket: &TcpStream) -> io::Result<()> {
        let unsent = &mut *lock(&self.unsent);
        while unsent.sent < unsent.bytes.len() {
            match socket.write(&unsent.bytes[unsent.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    unsent.sent += count;
                    self.overhead[0].fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        unsent.bytes.clear();
        unsent.sent = 0;
        Ok(())
    }
}

impl Read for &Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.0.session {
            None => (&self.0.socket).read(buffer),
            Some(session) => {
                let count = session.read_by(&self.0.socket, |reader| reader.read(buffer))?;
                session.overhead[1].fetch_sub(count as u64, Ordering::Relaxed);
                Ok(count)
            }
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(session) = &self.0.session else { return (&self.0.socket).read_vectored(buffers) };
        let mut buffers = buffers.iter_mut().filter(|buffer| !buffer.is_empty());
        let Some(first) = buffers.next() else { return Ok(0) };
        let mut filled = self.read(first)?;
        let mut is_full = filled == first.len();
        // The others get what is decrypted already: nothing is waited for, and nothing can fail.
        while let Some(buffer) = buffers.next().filter(|_| is_full) {
            let count = lock(&session.state).reader().read(buffer).unwrap_or(0);
            session.overhead[1].fetch_sub(count as u64, Ordering::Relaxed);
            is_full = count == buffer.len();
            filled += count;
        }
        Ok(filled)
    }
}

impl Write for &Connection {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buffer)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(session) = &self.0.session else { return (&self.0.socket).write_vectored(buffers) };
        session.send(&self.0.socket)?;
        let taken = session.encrypt(buffers)?;
        match session.send(&self.0.socket) {
            Err(error) if !is_transient(&error) => Err(error),
            _ => Ok(taken),
        }
    }

    /// All that was written has left this process.
    fn flush(&mut self) -> io::Result<()> {
        self.0.session.as_ref().map_or(Ok(()), |session| session.send(&self.0.socket))
    }
}
