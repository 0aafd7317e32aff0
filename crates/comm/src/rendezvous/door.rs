//! A port that lets in only those who know the job's secret.
//!
//! Whoever calls is asked at once for a proof, of a fixed length, and has a few seconds for it. Only so many callers wait at
//! a time; the others wait in the system's queue, in which nobody overtakes. While all places are taken, each is free
//! again after a moment that is long enough for a rank, which answers at once: so callers who say nothing, however many they
//! are, delay a rank and cannot keep it out. The same holds when the process has no descriptor left.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustls::ServerConfig;

use super::host::NetworkId;
use super::proof::{CHALLENGE, Challenge, Encryption, Introduction, RESPONSE, Secret};
use super::{RendezvousError, failed, keys};
use crate::connection::Connection;
use crate::transport::tcp::{is_transient, poll_until};

/// How many callers wait at a time.
const PLACES: usize = 256;
/// How many more the system keeps waiting, if it may.
const QUEUE: i32 = 4096;
/// How long a caller may take for its proof.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take for certain, even if others wait for its place.
const GRACE: Duration = Duration::from_millis(100);

/// A port, and whoever waits before it.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    secret: Secret,
    /// Those of the connections that are encrypted.
    keys: Option<Arc<ServerConfig>>,
    network: NetworkId,
    /// In the order in which they came.
    waiting: Vec<Caller>,
    /// Until when nobody is let in, since there was no descriptor left.
    starved_until: Option<Instant>,
    /// How many were sent away because they did not know the secret.
    pub strangers: usize,
}

impl Door {
    /// Listens; port 0 is one of the system's choice, and IPv6's unspecified address is all of either family.
    pub fn open(at: SocketAddr, secret: Secret) -> Result<Self, RendezvousError> {
        let listen = |at: SocketAddr| {
            let listener = TcpListener::bind(at)?;
            listener.set_nonblocking(true)?;
            rustix::net::listen(&listener, QUEUE)?;
            Ok(listener)
        };
        let without_ipv6 = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT);
        let listener = match listen(at) {
            Err(error) if at.ip() == Ipv6Addr::UNSPECIFIED && without_ipv6(&error) => {
                listen((Ipv4Addr::UNSPECIFIED, at.port()).into())
            }
            listener => listener,
        };
        let listener = listener.map_err(failed(format!("listen at {at}")))?;
        let keys = (secret.encryption() != Encryption::None).then(|| keys::of_door(&secret));
        let keys = keys.transpose().map_err(failed("derive keys"))?;
        let network = NetworkId::here().map_err(failed("find out about its host"))?;
        Ok(Self { listener, secret, keys, network, waiting: Vec::new(), starved_until: None, strangers: 0 })
    }

    pub fn address(&self) -> Result<SocketAddr, RendezvousError> {
        self.listener.local_addr().map_err(failed("listen"))
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The next caller who knows the secret, or `None` if the deadline comes first.
    pub fn admit(&mut self, deadline: Instant) -> Result<Option<(Introduction, Connection)>, RendezvousError> {
        loop {
            let now = Instant::now();
            self.starved_until = self.starved_until.filter(|&until| now < until);
            let crowded = self.waiting.len() >= PLACES || self.starved_until.is_some();
            let patience = if crowded { GRACE } else { PATIENCE };
            self.waiting.retain(|caller| now < caller.since + patience);

            let has_room = self.waiting.len() < PLACES && self.starved_until.is_none();
            let mut sockets = Vec::with_capacity(PLACES + 1);
            if has_room {
                sockets.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
            }
            sockets.extend(self.waiting.iter().map(|caller| PollFd::new(caller.stream.socket(), PollFlags::IN)));
            let next_farewell = self.waiting.first().map(|oldest| oldest.since + patience);
            let wake = [next_farewell, self.starved_until].into_iter().flatten().fold(deadline, Instant::min);
            poll_until(&mut sockets, wake).map_err(failed("wait at the door"))?;
            drop(sockets);

            if has_room {
                self.answer()?;
            }
            if let Some(admitted) = self.listen()? {
                return Ok(Some(admitted));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Lets callers come up to the door as long as there is room, and asks each for its proof.
    fn answer(&mut self) -> Result<(), RendezvousError> {
        while self.waiting.len() < PLACES {
            match self.listener.accept() {
                Ok((stream, _)) => self.waiting.extend(Caller::new(stream, &self.secret, self.keys.as_ref())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_transient(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        self.starved_until = Some(Instant::now() + GRACE);
                        break;
                    }
                    _ => return Err(failed("answer the door")(error)),
                },
            }
        }
        Ok(())
    }

    /// Hears all who wait, up to the first who knows the secret.
    fn listen(&mut self) -> Result<Option<(Introduction, Connection)>, RendezvousError> {
        let mut index = 0;
        while index < self.waiting.len() {
            match self.waiting[index].listen() {
                Listened::NotYet => index += 1,
                Listened::Gone => drop(self.waiting.remove(index)),
                Listened::Stranger => {
                    self.strangers += 1;
                    drop(self.waiting.remove(index));
                }
                Listened::All => {
                    let caller = self.waiting.remove(index);
                    match self.secret.admit(&caller.challenge, &caller.heard) {
                        // What is not encrypted comes from this host: an address alone, behind some proxy, proves nothing.
                        Some((introduction, _)) if self.leaks(&caller, &introduction) => self.strangers += 1,
                        // One that is gone meanwhile has not come.
                        Some((_, answer)) if caller.say(&answer).is_err() => {}
                        Some((introduction, _)) => {
                            caller.stream.socket().set_nonblocking(false).map_err(failed("admit a rank"))?;
                            return Ok(Some((introduction, caller.stream)));
                        }
                        None => self.strangers += 1,
                    }
                }
            }
        }
        Ok(None)
    }

    fn leaks(&self, caller: &Caller, introduction: &Introduction) -> bool {
        self.keys.is_some() && !caller.stream.is_encrypted() && introduction.network != self.network
    }
}

/// Somebody who has not proved anything yet.
#[derive(Debug)]
struct Caller {
    stream: Connection,
    /// Whether TLS has said its first words, if it is spoken.
    shaken: bool,
    since: Instant,
    challenge: Challenge,
    heard: [u8; RESPONSE],
    length: usize,
}

enum Listened {
    NotYet,
    All,
    Gone,
    /// It does not know the secret, which TLS notices first.
    Stranger,
}

impl Caller {
    /// Asks for a proof, or for TLS first; `None` if that cannot be done, which is the caller's trouble.
    fn new(socket: TcpStream, secret: &Secret, keys: Option<&Arc<ServerConfig>>) -> Option<Self> {
        let challenge = Secret::challenge().ok()?;
        socket.set_nonblocking(true).ok()?;
        let keys = keys.filter(|_| secret.encrypts(&socket).unwrap_or(true));
        let greeting = if keys.is_some() { Secret::invitation_to_encrypt() } else { challenge };
        // What is sent first always fits.
        let sent = (&socket).write(&greeting).ok()?;
        let stream = match keys {
            Some(keys) => Connection::called(socket, Arc::clone(keys)).ok()?,
            None => Connection::plain(socket),
        };
        let (shaken, since, heard) = (keys.is_none(), Instant::now(), [0; RESPONSE]);
        (sent == CHALLENGE).then_some(Self { stream, shaken, since, challenge, heard, length: 0 })
    }

    /// What is said here always fits.
    fn say(&self, words: &[u8]) -> io::Result<()> {
        let mut stream = &self.stream;
        stream.write_all(words)?;
        stream.flush()
    }

    /// Reads what has come of the response, and not a byte more.
    fn listen(&mut self) -> Listened {
        if !self.shaken {
            match self.stream.shake_hands() {
                Ok(false) => return Listened::NotYet,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Listened::Stranger,
                Err(_) => return Listened::Gone,
                Ok(true) if self.say(&self.challenge).is_err() => return Listened::Gone,
                Ok(true) => self.shaken = true,
            }
        }
        while self.length < RESPONSE {
            match (&self.stream).read(&mut self.heard[self.length..]) {
                Ok(0) => return Listened::Gone,
                Ok(count) => self.length += count,
                Err(error) if is_transient(&error) => return Listened::NotYet,
                Err(_) => return Listened::Gone,
            }
        }
        Listened::All
    }
}
