//! Whoever comes: finds the meeting, however early it is, and then everyone else.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::host::{HostId, NetworkId};
use super::keys;
use super::line::{Line, read_until};
use super::meeting::{Directory, LOOK};
use super::proof::{Answer, CHALLENGE, Introduction, Secret};
use super::{RendezvousError, Role, failed};
use crate::connection::Connection;
use crate::transport::tcp::{Tcp, poll_until};

/// How long one attempt may take. Whoever answers a call and then says nothing is called again.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The shortest and the longest pause before another.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// What a rank must know to meet the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Invitation {
    /// Where they meet.
    pub meeting: SocketAddr,
    /// What they know.
    pub secret: Secret,
    /// Where this rank listens, if not at the address from which it calls the meeting: that is the one which the routing
    /// table picks. One on the meeting's own host may have to be found by others, at any address of that host.
    pub listen: Option<IpAddr>,
}

impl Invitation {
    /// To a meeting of ranks that are found at the address from which they call.
    pub fn new(meeting: SocketAddr, secret: Secret) -> Self {
        Self { meeting, secret, listen: None }
    }

    /// Meets the other ranks and connects with all of them.
    pub fn join(&self, rank: usize, world: usize, timeout: Duration) -> Result<Tcp, RendezvousError> {
        self.join_unless(&AtomicBool::new(false), rank, world, timeout)
    }

    /// The same, unless it is called off meanwhile: one of the others may never come.
    pub fn join_unless(
        &self,
        off: &AtomicBool,
        rank: usize,
        world: usize,
        timeout: Duration,
    ) -> Result<Tcp, RendezvousError> {
        let deadline = Instant::now() + timeout;
        let Self { meeting, secret, listen } = self;
        let failed = |action: &str| failed(format!("rank {rank}: {action}"));

        let listen_at = match listen {
            Some(address) => *address,
            None => {
                again_until((deadline, off), |_| source_address(*meeting)).map_err(failed("find the rendezvous"))?
            }
        };
        let mut door = Door::open(SocketAddr::new(listen_at, 0), secret.clone())?;
        let announced = listen.filter(|address| !address.is_unspecified());
        let mut introduction = Introduction {
            role: Role::Rank,
            number: rank as u32,
            of: world as u32,
            generation: 0,
            port: door.address()?.port(),
            address: announced.map_or(Ipv6Addr::UNSPECIFIED, to_ipv6).octets(),
            host: HostId::here().map_err(failed("find out about its host"))?,
            network: NetworkId::here().map_err(failed("find out about its host"))?,
        };

        let host = again_until((deadline, off), |until| call(&[*meeting], secret, &introduction, until));
        let host = host.map_err(failed(&format!("connect to the rendezvous at {meeting}")))?;
        let mut host = Line::new(host, timeout).map_err(failed("rendezvous"))?;
        // The host waits as long as we do, and knows better who is missing: let it speak first.
        let directory = host.recv_until(Directory::longest(world), deadline + timeout / 10, off);
        let directory = directory.map_err(failed("wait for the others"))?;
        let directory = directory.and_then(|text| Directory::parse(&text, world));
        let Directory { generation, entries } = directory.ok_or(RendezvousError::Ended { rank })?;

        introduction = Introduction { role: Role::Peer, generation, ..introduction };
        let mut peers: Vec<Option<Connection>> = (0..world).map(|_| None).collect();
        for (peer, entry) in entries.iter().enumerate().take(rank) {
            let stream = again_until((deadline, off), |until| call(&[entry.address], secret, &introduction, until));
            peers[peer] = Some(stream.map_err(failed(&format!("connect to rank {peer} at {}", entry.address)))?);
        }
        while peers[rank + 1..].iter().any(Option::is_none) {
            let admitted = door.admit(deadline.min(Instant::now() + LOOK))?;
            if off.load(Ordering::Relaxed) {
                return Err(RendezvousError::CalledOff);
            }
            let Some((caller, stream)) = admitted else {
                if Instant::now() < deadline {
                    continue;
                }
                let missing = (rank + 1..world).filter(|&peer| peers[peer].is_none()).collect();
                let (who, strangers) = (Role::Peer, door.strangers);
                return Err(RendezvousError::Missing { who, missing, of: world, waited: timeout, strangers });
            };
            if caller.role != Role::Peer || caller.generation != generation {
                continue; // It belongs to ranks that met before.
            }
            let (number, of) = (caller.number as usize, caller.of as usize);
            let not_free = RendezvousError::NotFree { who: Role::Peer, number, of, expected: world };
            let seat = peers.get_mut(number).filter(|_| number > rank && of == world);
            // One that calls again has given its first call up.
            *seat.ok_or(not_free)? = Some(stream);
        }
        let hosts = entries.iter().map(|entry| entry.host).collect();
        Tcp::new(rank, peers, hosts, secret.clone()).map_err(failed("set up its connections"))
    }
}

/// Where a meeting is, and what must be known there, as far as that is known now.
pub type Find<'a> = dyn Fn() -> io::Result<(Vec<SocketAddr>, Secret)> + 'a;

/// Comes to a meeting as one of so many processes, and stays on the line. `find` is asked before each attempt: a name may be
/// known later, and so may the place itself.
pub fn attend(
    find: &Find<'_>,
    process: usize,
    of: usize,
    timeout: Duration,
) -> Result<(Line, Secret), RendezvousError> {
    let failed = |action: &str| failed(format!("process {process}: {action}"));
    let introduction = Introduction {
        role: Role::Process,
        number: process as u32,
        of: of as u32,
        generation: 0,
        port: 0,
        address: Ipv6Addr::UNSPECIFIED.octets(),
        host: HostId::here().map_err(failed("find out about its host"))?,
        network: NetworkId::here().map_err(failed("find out about its host"))?,
    };
    let deadline = Instant::now() + timeout;
    let attempt = |until: Instant| {
        let (addresses, secret) = find()?;
        let called = call(&addresses, &secret, &introduction, until).map_err(|error| {
            let places: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
            io::Error::new(error.kind(), format!("{}: {error}", places.join(", ")))
        });
        Ok((called?, secret))
    };
    let came = again_until((deadline, &AtomicBool::new(false)), attempt);
    let (stream, secret) = came.map_err(failed(&format!("come to the rendezvous within {timeout:?}")))?;
    Ok((Line::new(stream, timeout).map_err(failed("rendezvous"))?, secret))
}

/// The address from which this host reaches another: the routing table knows.
pub fn source_address(of: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Nothing is sent by this.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(of)?;
    Ok(socket.local_addr()?.ip())
}

fn to_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Tries until the deadline, or until it is called off, in ever longer pauses; an attempt is told until when it may take.
fn again_until<T>(
    (deadline, off): (Instant, &AtomicBool),
    attempt: impl Fn(Instant) -> io::Result<T>,
) -> io::Result<T> {
    let [mut pause, longest] = PAUSES;
    loop {
        let error = match attempt(deadline.min(Instant::now() + ATTEMPT)) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if Instant::now() + pause >= deadline || off.load(Ordering::Relaxed) {
            return Err(error);
        }
        thread::sleep(pause);
        pause = longest.min(2 * pause);
    }
}

/// Calls the first of these addresses that can be reached; both sides have then proved that they know the secret.
pub(super) fn call(
    addresses: &[SocketAddr],
    secret: &Secret,
    introduction: &Introduction,
    until: Instant,
) -> io::Result<Connection> {
    let mut last = io::Error::other("its name has no address");
    for address in addresses {
        match call_one(address, secret, introduction, until) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn call_one(
    address: &SocketAddr,
    secret: &Secret,
    introduction: &Introduction,
    until: Instant,
) -> io::Result<Connection> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let socket = TcpStream::connect_timeout(address, left)?;
    let encrypts = secret.encrypts(&socket)?;
    let ended = |what: &str| io::Error::other(what);
    let mut stream = Connection::plain(socket);
    let mut challenge = [0; CHALLENGE];
    if !read_until(&stream, &mut challenge, until)? {
        return Err(ended("it hung up"));
    }
    match (Secret::is_encrypted(&challenge), encrypts) {
        (Some(true), false) => {
            return Err(ended("whoever listens there encrypts, and this does not: give --tls to both"));
        }
        (Some(false), true) => return Err(ended("whoever listens there does not encrypt, as --tls wants it")),
        (Some(true), true) => {
            stream = Connection::calling(stream.socket().try_clone()?, keys::of_caller(secret)?)?;
            shake_hands(&stream, until)?;
            if !read_until(&stream, &mut challenge, until)? {
                return Err(ended("it hung up"));
            }
        }
        _ => {}
    }
    let response = secret.respond(&challenge, introduction)?;
    let response = response.ok_or_else(|| ended("whoever listens there is not ringstep, or another version of it"))?;
    (&stream).write_all(&response)?;
    let mut answer = Answer::default();
    // A door that does not believe the proof hangs up.
    let heard = read_until(&stream, &mut answer, until).or_else(|error| match error.kind() {
        io::ErrorKind::ConnectionReset => Ok(false),
        _ => Err(error),
    })?;
    if !heard || !secret.trusts(&challenge, &response, &answer) {
        return Err(ended("whoever listens there has another secret than this job"));
    }
    Ok(stream)
}

/// Waits for the first words of TLS, which only those understand who know the secret.
fn shake_hands(stream: &Connection, until: Instant) -> io::Result<()> {
    stream.socket().set_nonblocking(true)?;
    let stranger = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            io::Error::other("whoever listens there has another secret than this job")
        }
        _ => error,
    };
    while !stream.shake_hands().map_err(stranger)? {
        // All that it says fits, so it is the other's turn.
        if !poll_until(&mut [PollFd::new(stream.socket(), PollFlags::IN)], until)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    stream.socket().set_nonblocking(false)
}
