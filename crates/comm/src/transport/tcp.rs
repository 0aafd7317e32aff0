//! Ranks that are processes: one TCP connection between each pair.
//!
//! [`crate::rendezvous::join`] makes the connections. They are non-blocking, and `poll` waits for whichever direction
//! can move next, so that a transfer sends and receives at once without a second thread.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::sched_yield;

use super::{Cause, DEFAULT_TIMEOUT, Incoming, Outgoing, Sink, Transport, TransportError, check, one_host};
use crate::call::{Call, Header};
use crate::rendezvous::{self, Meeting, Token};

/// The most that is folded at once: little enough to be in the cache still.
const PIECE: usize = 64 << 10;

/// The most that is written before it is looked whether something has arrived: what is on the way then stays in the cache.
const BURST: usize = 1 << 20;

/// How long it sleeps at a time.
const SLICE: Duration = Duration::from_secs(1);

/// One rank's connections to all others.
#[derive(Debug)]
pub struct Tcp {
    rank: usize,
    /// Indexed by rank; there is none to oneself.
    peers: Vec<Option<TcpStream>>,
    timeout: Duration,
    call: Option<Call>,
    hosts: Vec<usize>,
    /// How often it looks again before it sleeps, and whether it lets others run in between.
    patience: (u32, bool),
    /// Where pieces wait until they are folded; u64 for their alignment.
    piece: Vec<u64>,
}

impl Tcp {
    /// Takes over connected streams, one for each other rank.
    pub(crate) fn new(rank: usize, peers: Vec<Option<TcpStream>>) -> std::io::Result<Self> {
        for stream in peers.iter().flatten() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        let hosts = one_host(peers.len());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // If whoever is waited for can run at the same time, it answers soon; if not, it must be let.
        let patience = if peers.len() <= cores { (500, false) } else { (5, true) };
        Ok(Self { patience, rank, peers, timeout: DEFAULT_TIMEOUT, call: None, hosts, piece: vec![0; PIECE / 8] })
    }

    /// Gives up on a peer that has been silent for so long.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Says which ranks are on which host; without that, all are taken to be on one.
    pub fn with_hosts(mut self, hosts: Vec<usize>) -> Self {
        assert_eq!(hosts.len(), self.world());
        self.hosts = hosts;
        self
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn call(&self) -> Call {
        self.call.expect("a call has begun")
    }

    pub(super) fn peer(&self, rank: usize) -> &TcpStream {
        self.peers[rank].as_ref().expect("no rank sends to itself")
    }

    /// The address that the others reach this rank at.
    fn address(&self) -> std::io::Result<IpAddr> {
        match self.peers.iter().flatten().next() {
            Some(stream) => stream.local_addr().map(|address| address.ip()),
            None => Ok(std::net::Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// Sleeps until one of the wanted directions can move.
    fn wait(&self, writing: Option<usize>, reading: Option<usize>) -> Result<(), TransportError> {
        let blame = |cause: Cause| match (reading, writing) {
            (Some(from), _) => TransportError::receiving(from, cause),
            (None, to) => TransportError::sending(to.expect("something is waited for"), cause),
        };
        let mut sockets = Vec::with_capacity(2);
        sockets.extend(writing.map(|to| PollFd::new(self.peer(to), PollFlags::OUT)));
        sockets.extend(reading.map(|from| PollFd::new(self.peer(from), PollFlags::IN)));
        // In slices: a process that was suspended for long has waited no longer than the one that it was in.
        let mut waited = Duration::ZERO;
        while waited < self.timeout {
            let slice = (self.timeout - waited).min(SLICE);
            match poll_until(&mut sockets, Instant::now() + slice) {
                Ok(true) => return Ok(()),
                Ok(false) => waited += slice,
                Err(error) => return Err(blame(error.into())),
            }
        }
        Err(blame(Cause::TimedOut(self.timeout)))
    }

    /// A new set of connections among some of the ranks.
    pub(super) fn subset(&mut self, members: &[usize]) -> Result<Self, TransportError> {
        let leader = members[0];
        let at_leader = |cause: Cause| TransportError::receiving(leader, cause);
        let rendezvous_failed = |error| TransportError::receiving(leader, Cause::Rendezvous(Box::new(error)));
        let place = members.iter().position(|&member| member == self.rank).expect("this rank is a member");

        // The first member hosts a meeting and tells the others where: port, token.
        let mut invitation = [0; 18];
        let mut address = self.address().map_err(|error| at_leader(error.into()))?;
        if place == 0 {
            let mut token = Token::default();
            getrandom::fill(&mut token).map_err(|error| at_leader(Cause::Io(error.into())))?;
            let meeting = Meeting::open(address, token).map_err(rendezvous_failed)?;
            invitation[..2].copy_from_slice(&meeting.address().port().to_le_bytes());
            invitation[2..].copy_from_slice(&token);
            let (world, timeout) = (members.len(), self.timeout);
            // Whoever does not come is missed by the others too, who say so.
            std::thread::spawn(move || meeting.host(world, timeout));
            for &member in &members[1..] {
                self.send(member, &invitation)?;
            }
        } else {
            self.recv(leader, &mut invitation)?;
            address = self.peer(leader).peer_addr().map_err(|error| at_leader(error.into()))?.ip();
        }
        let port = u16::from_le_bytes([invitation[0], invitation[1]]);
        let token = invitation[2..].try_into().expect("sixteen bytes");
        let joined = rendezvous::join(SocketAddr::new(address, port), token, place, members.len(), self.timeout)
            .map_err(rendezvous_failed)?;
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
        let mut piece = std::mem::take(&mut self.piece);
        let mut writer = outgoing.map(|outgoing| StreamWriter::new(&call, outgoing));
        let mut reader =
            incoming.map(|incoming| StreamReader::new(&call, incoming, bytemuck::cast_slice_mut(&mut piece)));
        let result = loop {
            match self.step(&mut writer, &mut reader) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.piece = piece;
        result
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
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
        let mut moved = self.advance(writer, reader)?;
        // To sleep and be woken takes longer than most messages.
        let (tries, give_way) = self.patience;
        for _ in 0..tries {
            if moved {
                break;
            }
            if give_way {
                sched_yield();
            }
            moved = self.advance(writer, reader)?;
        }
        let writing = writer.as_ref().filter(|writer| !writer.is_done()).map(|writer| writer.to);
        let reading = reader.as_ref().filter(|reader| !reader.is_done()).map(|reader| reader.from);
        if writing.is_none() && reading.is_none() {
            return Ok(false);
        }
        if !moved {
            self.wait(writing, reading)?;
        }
        Ok(true)
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

/// A message on its way into a connection.
pub(super) struct StreamWriter<'a> {
    pub to: usize,
    header: Header,
    data: &'a [u8],
    /// Bytes written of header and data.
    written: usize,
}

impl<'a> StreamWriter<'a> {
    pub fn new(call: &Call, outgoing: Outgoing<'a>) -> Self {
        let header = Header::new(call, outgoing.data.len());
        Self { to: outgoing.to, header, data: outgoing.data, written: 0 }
    }

    pub fn is_done(&self) -> bool {
        self.written == Header::LENGTH + self.data.len()
    }

    fn advance(&mut self, mut stream: &TcpStream) -> Result<bool, Cause> {
        let header = bytemuck::bytes_of(&self.header);
        let written = match self.written.checked_sub(Header::LENGTH) {
            None => {
                let part = &self.data[..self.data.len().min(BURST)];
                stream.write_vectored(&[IoSlice::new(&header[self.written..]), IoSlice::new(part)])
            }
            Some(at) => stream.write(&self.data[at..self.data.len().min(at + BURST)]),
        };
        match written {
            Ok(count) => {
                self.written += count;
                Ok(count > 0)
            }
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A message on its way out of a connection.
pub(super) struct StreamReader<'a, 'b> {
    pub from: usize,
    expected: Header,
    header: [u8; Header::LENGTH],
    sink: Sink<'a>,
    piece: &'b mut [u8],
    /// Bytes of the piece that are not folded yet.
    waiting: usize,
    /// Bytes read of header and data.
    read: usize,
}

impl<'a, 'b> StreamReader<'a, 'b> {
    pub fn new(call: &Call, incoming: Incoming<'a>, piece: &'b mut [u8]) -> Self {
        let expected = Header::new(call, incoming.sink.bytes());
        let header = [0; Header::LENGTH];
        Self { from: incoming.from, expected, header, sink: incoming.sink, piece, waiting: 0, read: 0 }
    }

    pub fn is_done(&self) -> bool {
        self.read == Header::LENGTH + self.sink.bytes()
    }

    fn advance(&mut self, mut stream: &TcpStream) -> Result<bool, Cause> {
        let done = self.read.saturating_sub(Header::LENGTH);
        let left = self.sink.bytes() - done;
        let room: &mut [u8] = match &mut self.sink {
            Sink::Fill(data) => &mut data[done..],
            Sink::Fold { .. } => {
                let end = self.piece.len().min(self.waiting + left);
                &mut self.piece[self.waiting..end]
            }
        };
        let read = if self.read < Header::LENGTH {
            // Header and data in one go: if the header is not the expected one, nobody needs the data any more.
            stream.read_vectored(&mut [IoSliceMut::new(&mut self.header[self.read..]), IoSliceMut::new(room)])
        } else {
            stream.read(room)
        };
        let count = match read {
            Ok(0) => return Err(Cause::Closed),
            Ok(count) => count,
            Err(error) if is_transient(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let header_was_open = self.read < Header::LENGTH;
        self.read += count;
        if header_was_open && self.read >= Header::LENGTH {
            check(&self.expected, &bytemuck::pod_read_unaligned(&self.header))?;
        }
        let data_now = self.read.saturating_sub(Header::LENGTH);
        self.fold(data_now - done, data_now == self.sink.bytes());
        Ok(true)
    }

    /// Hands the piece on once it is full, or the last.
    fn fold(&mut self, arrived: usize, last: bool) {
        let Sink::Fold { grain, fold, .. } = &mut self.sink else { return };
        self.waiting += arrived;
        if last || self.waiting == self.piece.len() {
            let whole = self.waiting / *grain * *grain;
            fold(&self.piece[..whole]);
            self.piece.copy_within(whole..self.waiting, 0);
            self.waiting -= whole;
        }
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
