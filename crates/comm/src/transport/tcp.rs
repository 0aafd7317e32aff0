//! Ranks that are processes: one TCP connection between each pair.
//!
//! [`crate::rendezvous`] makes the connections. They are non-blocking, and `poll` waits for whichever direction
//! can move next, so that a transfer sends and receives at once without a second thread.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::ops::Add;
use std::time::{Duration, Instant};

use ringstep_cpu::wait::Patience;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::stream::{Line, StreamReader, StreamWriter, tray};
use super::{Aborter, Cause, DEFAULT_TIMEOUT, Incoming, Outgoing, Traffic, Transport, TransportError};
use crate::call::Call;
use crate::connection::Connection;
use crate::rendezvous::{Invitation, Meeting, Secret};
use crate::watch::Watch;

/// How often it tries between two looks at the clock.
const LOOKS: u32 = 4;
/// How long it sleeps at a time, and so how soon it finds out that it is aborted.
const SLICE: Duration = Duration::from_millis(50);

/// One rank's connections to all others.
#[derive(Debug)]
pub struct Tcp {
    rank: usize,
    /// Indexed by rank; there is none to oneself.
    peers: Vec<Option<Connection>>,
    timeout: Duration,
    aborter: Aborter,
    watch: Watch,
    call: Option<Call>,
    hosts: Vec<usize>,
    /// What lets ranks into the groups that are made of this one.
    secret: Secret,
    /// To sleep and be woken takes longer than most messages, so it looks again for a while before.
    patience: Patience,
    /// Where what arrives waits until it is folded.
    tray: Vec<Line>,
    traffic: Traffic,
}

impl Tcp {
    /// Takes over connected streams, one for each other rank.
    pub(crate) fn new(
        rank: usize,
        peers: Vec<Option<Connection>>,
        hosts: Vec<usize>,
        secret: Secret,
    ) -> std::io::Result<Self> {
        for stream in peers.iter().flatten() {
            stream.socket().set_nonblocking(true)?;
            stream.socket().set_nodelay(true)?;
            stream.count();
        }
        let patience = Patience::among(hosts.iter().filter(|&&host| host == hosts[rank]).count());
        let (timeout, aborter) = (DEFAULT_TIMEOUT, Aborter::default());
        Ok(Self {
            patience,
            rank,
            peers,
            timeout,
            aborter,
            watch: Watch::default(),
            call: None,
            hosts,
            secret,
            tray: tray(),
            traffic: Traffic::default(),
        })
    }

    /// Gives up on a peer that has been silent for so long.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Says which ranks are on which host; without that, it is what they found out when they met.
    pub fn with_hosts(mut self, hosts: Vec<usize>) -> Self {
        assert_eq!(hosts.len(), self.world());
        self.hosts = hosts;
        self
    }

    pub(super) fn call(&self) -> Call {
        self.call.expect("a call has begun")
    }

    pub(super) fn peer(&self, rank: usize) -> &Connection {
        self.peers[rank].as_ref().expect("no rank sends to itself")
    }

    pub(super) fn socket(&self, rank: usize) -> &TcpStream {
        self.peer(rank).socket()
    }

    /// Where this rank listens for those of another group, and where it finds itself: on loopback, or, if some ranks are
    /// elsewhere, at any address, since each may know this host by another.
    fn addresses(&self) -> std::io::Result<(IpAddr, IpAddr)> {
        let mut own: IpAddr = Ipv4Addr::LOCALHOST.into();
        for stream in self.peers.iter().flatten() {
            own = stream.socket().local_addr()?.ip().to_canonical();
            if !own.is_loopback() {
                return Ok((Ipv6Addr::UNSPECIFIED.into(), own));
            }
        }
        Ok((own, own))
    }

    /// Sleeps until one of the wanted directions can move.
    fn wait(&self, writing: Option<usize>, reading: Option<usize>) -> Result<(), TransportError> {
        let blame = |cause: Cause| match (reading, writing) {
            (Some(from), _) => TransportError::receiving(from, cause),
            (None, to) => TransportError::sending(to.expect("something is waited for"), cause),
        };
        let mut sockets = Vec::with_capacity(2);
        sockets.extend(writing.map(|to| PollFd::new(self.socket(to), PollFlags::OUT)));
        sockets.extend(reading.map(|from| PollFd::new(self.socket(from), PollFlags::IN)));
        // In slices: a process that was suspended for long has waited no longer than the one that it was in.
        let counts = self.call().collective.counts_silence();
        let (mut waited, mut sign) = (Duration::ZERO, None);
        while waited < self.timeout {
            let slice = (self.timeout - waited).min(SLICE);
            match poll_until(&mut sockets, Instant::now() + slice) {
                Ok(true) => return Ok(()),
                Ok(false) if self.aborter.is_aborted() => return Err(blame(Cause::Aborted)),
                Ok(false) => {
                    sign.get_or_insert_with(|| {
                        self.watch.show(self.call(), vec![reading.or(writing).unwrap_or(0)], slice)
                    });
                    waited += if counts { slice } else { Duration::ZERO };
                }
                Err(error) => return Err(blame(error.into())),
            }
        }
        Err(blame(Cause::TimedOut(self.timeout)))
    }

    /// Which of these has sent something, within a time; of several the first.
    pub(super) fn readable(&self, from: &[usize], deadline: Instant) -> Result<Option<usize>, TransportError> {
        let mut sockets: Vec<_> = from.iter().map(|&peer| PollFd::new(self.socket(peer), PollFlags::IN)).collect();
        let failed = |peer: usize, cause: Cause| TransportError::receiving(peer, cause);
        // What has been read already and waits to be decrypted or taken, no socket tells of.
        let has_data = |peer: usize| self.peer(peer).has_data();
        let deadline = if from.iter().any(|&peer| has_data(peer)) { Instant::now() } else { deadline };
        poll_until(&mut sockets, deadline).map_err(|error| failed(from[0], error.into()))?;
        let mut gone = None;
        for (&peer, socket) in from.iter().zip(&sockets) {
            if socket.revents().is_empty() && !has_data(peer) {
                continue;
            }
            // A connection that was closed is readable too.
            match self.peer(peer).peek() {
                Ok(0) => gone = gone.or(Some(failed(peer, Cause::Closed))),
                Ok(_) => return Ok(Some(peer)),
                Err(error) if is_transient(&error) => {}
                Err(error) => gone = gone.or(Some(failed(peer, error.into()))),
            }
        }
        gone.map_or(Ok(None), Err)
    }

    /// A new set of connections among some of the ranks.
    pub(super) fn subset(&mut self, members: &[usize]) -> Result<Self, TransportError> {
        let leader = members[0];
        let at_leader = |cause: Cause| TransportError::receiving(leader, cause);
        let rendezvous_failed = |error| TransportError::receiving(leader, Cause::Rendezvous(Box::new(error)));
        let place = members.iter().position(|&member| member == self.rank).expect("this rank is a member");

        // The first member hosts a meeting and tells the others where: the port, and what its secret is derived from.
        let mut invitation = [0; 18];
        let (listen, mut address) = self.addresses().map_err(|error| at_leader(error.into()))?;
        if place == 0 {
            getrandom::fill(&mut invitation[2..]).map_err(|error| at_leader(Cause::Io(error.into())))?;
            let at = SocketAddr::new(listen, 0);
            let mut meeting = Meeting::open(at, self.secret.derive(&invitation[2..])).map_err(rendezvous_failed)?;
            invitation[..2].copy_from_slice(&meeting.address().port().to_le_bytes());
            let (world, timeout) = (members.len(), self.timeout);
            // Whoever does not come is missed by the others too, who say so.
            std::thread::spawn(move || meeting.host(world, timeout));
            for &member in &members[1..] {
                self.send(member, &invitation)?;
            }
        } else {
            self.recv(leader, &mut invitation)?;
            address = self.socket(leader).peer_addr().map_err(|error| at_leader(error.into()))?.ip();
        }
        let port = u16::from_le_bytes([invitation[0], invitation[1]]);
        let (meeting, secret) = (SocketAddr::new(address, port), self.secret.derive(&invitation[2..]));
        let invitation = Invitation { meeting, secret, listen: Some(listen).filter(IpAddr::is_unspecified) };
        let joined = invitation.join(place, members.len(), self.timeout).map_err(rendezvous_failed)?;
        let hosts = members.iter().map(|&member| self.hosts[member]).collect();
        Ok(joined.with_timeout(self.timeout).with_hosts(hosts))
    }
}

impl Transport for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.peers.len()
    }

    fn begin(&mut self, call: Call) {
        self.call = Some(call);
    }

    /// Moves whatever can move, in both directions, until both are done.
    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        let call = self.call();
        let mut tray = std::mem::take(&mut self.tray);
        let mut writer = outgoing.map(|outgoing| StreamWriter::new(&call, outgoing));
        let mut reader = incoming.map(|incoming| StreamReader::new(&call, incoming, &mut tray));
        let result = loop {
            match self.step(&mut writer, &mut reader) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.count(&writer, &reader);
        self.tray = tray;
        result
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        let sleep = || loop {
            let slice = Instant::now() + SLICE;
            if let Some(peer) = self.readable(from, until.map_or(slice, |until| until.min(slice)))? {
                return Ok(Some(peer));
            }
            if self.aborter.is_aborted() {
                return Err(TransportError::receiving(from[0], Cause::Aborted));
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(None);
            }
        };
        let look = || self.readable(from, Instant::now()).map(|found| found.map(Some)).transpose();
        self.patience.wait(LOOKS, look, sleep)
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn traffic(&self) -> Traffic {
        let overhead = |peer: &Connection| Traffic { wire: peer.overhead(), ..Traffic::default() };
        self.peers.iter().flatten().map(overhead).fold(self.traffic, Traffic::add)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn aborter(&self) -> Aborter {
        self.aborter.clone()
    }

    fn watch(&self) -> Watch {
        self.watch.clone()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        Ok(Box::new(self.subset(members)?))
    }
}

impl Tcp {
    /// Moves what can move, or waits until something can; `false` once all is done.
    pub(super) fn step(
        &self,
        writer: &mut Option<StreamWriter<'_>>,
        reader: &mut Option<StreamReader<'_, '_>>,
    ) -> Result<bool, TransportError> {
        let writing = writer.as_ref().filter(|writer| !writer.is_done()).map(|writer| writer.to);
        let reading = reader.as_ref().filter(|reader| !reader.is_done()).map(|reader| reader.from);
        if writing.is_none() && reading.is_none() {
            return Ok(false);
        }
        let look = || self.advance(writer, reader).map(|moved| moved.then_some(())).transpose();
        self.patience.wait(LOOKS, look, || self.wait(writing, reading))?;
        Ok(true)
    }

    /// Counts messages that are through.
    pub(super) fn count(&mut self, writer: &Option<StreamWriter<'_>>, reader: &Option<StreamReader<'_, '_>>) {
        let sent = writer.as_ref().filter(|writer| writer.is_done()).map(StreamWriter::traffic);
        let received = reader.as_ref().filter(|reader| reader.is_done()).map(StreamReader::traffic);
        [sent, received].into_iter().flatten().for_each(|message| self.traffic += message);
    }

    /// Moves what can move without waiting, and says whether anything did.
    pub(super) fn advance(
        &self,
        writer: &mut Option<StreamWriter<'_>>,
        reader: &mut Option<StreamReader<'_, '_>>,
    ) -> Result<bool, TransportError> {
        let mut moved = false;
        if let Some(writer) = writer.as_mut().filter(|writer| !writer.is_done()) {
            moved |= writer.advance(self.peer(writer.to)).map_err(|cause| TransportError::sending(writer.to, cause))?;
        }
        if let Some(reader) = reader.as_mut().filter(|reader| !reader.is_done()) {
            moved |= reader
                .advance(self.peer(reader.from))
                .map_err(|cause| TransportError::receiving(reader.from, cause))?;
        }
        Ok(moved)
    }
}

/// Whether a non-blocking call should simply be made again later.
pub(crate) fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Waits until one of the descriptors is ready; `false` if the deadline came first.
pub(crate) fn poll_until(descriptors: &mut [PollFd<'_>], deadline: Instant) -> std::io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(descriptors, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
