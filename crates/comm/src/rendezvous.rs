//! How processes become ranks: they meet at one address, learn where everyone is, and connect with each other.
//!
//! Whoever starts the job runs a [`Meeting`]. Each rank calls [`join`]: it opens a port of its own, introduces itself
//! at the meeting with that port, and once all are there gets everyone's address. Then rank r calls the ranks below
//! it and answers those above. Each connection begins with an `Introduction` that carries the job's secret token;
//! whoever does not know it is shown the door, and whoever says nothing keeps nobody waiting.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::transport::tcp::{Tcp, is_transient, poll_until};

/// The secret that the ranks of one job share.
pub type Token = [u8; 16];

/// A meeting failed, or a rank could not join one.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The system said no.
    #[error("{action}: {error}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        error: io::Error,
    },
    /// Somebody never came.
    #[error("of {world} ranks {} did not come within {waited:?}", listed(missing))]
    Missing {
        /// Who did not come.
        missing: Vec<usize>,
        /// How many there should have been.
        world: usize,
        /// How long the others waited.
        waited: Duration,
    },
    /// Whoever hosted the meeting ended it.
    #[error("rank {rank}: the rendezvous ended before all ranks were there")]
    Ended {
        /// The rank that was waiting.
        rank: usize,
    },
    /// Two processes claim the same rank, or a rank outside the world.
    #[error("rank {rank} of {world} is not free in a meeting of {expected}")]
    NotFree {
        /// The rank that was claimed.
        rank: usize,
        /// The world that the process believes in.
        world: usize,
        /// The world of the meeting.
        expected: usize,
    },
}

fn listed(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The empty seats among some.
fn empty<T>(seats: &[Option<T>]) -> Vec<usize> {
    (0..seats.len()).filter(|&rank| seats[rank].is_none()).collect()
}

/// Says what was tried when the system said no.
fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> RendezvousError {
    move |error| RendezvousError::Io { action: action.into(), error }
}

/// The place where the ranks of one job meet.
#[derive(Debug)]
pub struct Meeting {
    door: Door,
    address: SocketAddr,
}

impl Meeting {
    /// Opens a port of the system's choice at this address.
    pub fn open(at: IpAddr, token: Token) -> Result<Self, RendezvousError> {
        let door = Door::open(at, token)?;
        let address = door.listener.local_addr().map_err(failed("rendezvous"))?;
        Ok(Self { door, address })
    }

    /// Where to send the ranks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until `world` ranks are there, then tells everyone where the others are.
    pub fn host(mut self, world: usize, timeout: Duration) -> Result<(), RendezvousError> {
        let deadline = Instant::now() + timeout;
        let mut guests: Vec<Option<(TcpStream, SocketAddr)>> = (0..world).map(|_| None).collect();
        while guests.iter().any(Option::is_none) {
            let Some((introduction, stream)) = self.door.admit(deadline)? else {
                return Err(RendezvousError::Missing { missing: empty(&guests), world, waited: timeout });
            };
            let rank = introduction.rank as usize;
            let not_free = RendezvousError::NotFree { rank, world: introduction.world as usize, expected: world };
            let seat = guests.get_mut(rank).filter(|seat| seat.is_none() && introduction.world as usize == world);
            let seat = seat.ok_or(not_free)?;
            let peer = stream.peer_addr().map_err(failed(format!("rank {rank}")))?;
            *seat = Some((stream, SocketAddr::new(peer.ip(), introduction.port)));
        }
        let directory: String = guests.iter().flatten().map(|(_, address)| format!("{address}\n")).collect();
        for (rank, (stream, _)) in guests.iter_mut().flatten().enumerate() {
            stream.write_all(directory.as_bytes()).map_err(failed(format!("send the directory to rank {rank}")))?;
        }
        Ok(())
    }
}

/// Meets the other ranks at `meeting` and connects with all of them.
pub fn join(
    meeting: SocketAddr,
    token: Token,
    rank: usize,
    world: usize,
    timeout: Duration,
) -> Result<Tcp, RendezvousError> {
    let deadline = Instant::now() + timeout;
    let failed = |action: &str| failed(format!("rank {rank}: {action}"));

    let mut host = TcpStream::connect_timeout(&meeting, timeout).map_err(failed("connect to the rendezvous"))?;
    let mut door = Door::open(host.local_addr().map_err(failed("rendezvous"))?.ip(), token)?;
    let port = door.listener.local_addr().map_err(failed("listen"))?.port();
    let introduction = Introduction { rank: rank as u32, world: world as u32, port };

    host.write_all(&introduction.encode(&token)).map_err(failed("introduce itself"))?;
    // The host waits as long as we do, and knows better who is missing: let it speak first.
    host.set_read_timeout(Some(timeout + timeout / 10)).map_err(failed("rendezvous"))?;
    let mut directory = String::new();
    host.read_to_string(&mut directory).map_err(failed("wait for the others"))?;
    let addresses: Vec<SocketAddr> = directory.lines().map_while(|line| line.parse().ok()).collect();
    if addresses.len() != world {
        return Err(RendezvousError::Ended { rank });
    }

    let mut peers: Vec<Option<TcpStream>> = (0..world).map(|_| None).collect();
    for (peer, address) in addresses.iter().enumerate().take(rank) {
        let mut stream =
            TcpStream::connect_timeout(address, timeout).map_err(failed(&format!("connect to rank {peer}")))?;
        stream.write_all(&introduction.encode(&token)).map_err(failed(&format!("introduce itself to rank {peer}")))?;
        peers[peer] = Some(stream);
    }
    while peers[rank + 1..].iter().any(Option::is_none) {
        let Some((caller, stream)) = door.admit(deadline)? else {
            let missing = empty(&peers).into_iter().filter(|&peer| peer > rank).collect();
            return Err(RendezvousError::Missing { missing, world, waited: timeout });
        };
        let not_free =
            RendezvousError::NotFree { rank: caller.rank as usize, world: caller.world as usize, expected: world };
        let above = caller.rank as usize > rank;
        let seat = peers.get_mut(caller.rank as usize).filter(|seat| seat.is_none() && above);
        *seat.ok_or(not_free)? = Some(stream);
    }
    Tcp::new(rank, peers, hosts(&addresses)).map_err(failed("set up its connections"))
}

/// Ranks with the same address are on the same host. Hosts are numbered in the order of their first ranks.
fn hosts(addresses: &[SocketAddr]) -> Vec<usize> {
    let mut known: Vec<IpAddr> = Vec::new();
    let number = |address: &SocketAddr| {
        known.iter().position(|host| *host == address.ip()).unwrap_or_else(|| {
            known.push(address.ip());
            known.len() - 1
        })
    };
    addresses.iter().map(number).collect()
}

/// What the first bytes on a connection say: who is calling, and where it can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Introduction {
    rank: u32,
    world: u32,
    port: u16,
}

impl Introduction {
    const MAGIC: [u8; 8] = *b"ringstp2";
    /// Magic 8, token 16, rank 4, world 4, port 2, and zeros: messages behind it begin at a multiple of 32.
    const LENGTH: usize = 64;

    fn encode(self, token: &Token) -> Vec<u8> {
        let numbers = [&self.rank.to_le_bytes()[..], &self.world.to_le_bytes(), &self.port.to_le_bytes()].concat();
        let mut bytes = [&Self::MAGIC[..], token, &numbers].concat();
        bytes.resize(Self::LENGTH, 0);
        bytes
    }

    /// `None` for whoever is not of this job.
    fn decode(bytes: &[u8; Self::LENGTH], token: &Token) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        (bytes[..8] == Self::MAGIC && bytes[8..24] == *token).then(|| Self {
            rank: word(24),
            world: word(28),
            port: u16::from_le_bytes([bytes[32], bytes[33]]),
        })
    }
}

/// A port that only lets in who knows the token.
#[derive(Debug)]
struct Door {
    listener: TcpListener,
    token: Token,
    /// Callers that have not finished their introduction.
    waiting: Vec<Caller>,
}

#[derive(Debug)]
struct Caller {
    stream: TcpStream,
    heard: [u8; Introduction::LENGTH],
    length: usize,
}

impl Door {
    /// More callers than that at once are an attack or a mistake: the oldest is sent away.
    const MAX_WAITING: usize = 256;

    fn open(at: IpAddr, token: Token) -> Result<Self, RendezvousError> {
        let listener = TcpListener::bind((at, 0)).map_err(failed(format!("listen at {at}")))?;
        listener.set_nonblocking(true).map_err(failed(format!("listen at {at}")))?;
        Ok(Self { listener, token, waiting: Vec::new() })
    }

    /// The next caller who knows the token, or `None` if the deadline comes first.
    fn admit(&mut self, deadline: Instant) -> Result<Option<(Introduction, TcpStream)>, RendezvousError> {
        loop {
            let mut sockets = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
            sockets.extend(self.waiting.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::IN)));
            if !poll_until(&mut sockets, deadline).map_err(failed("wait at the door"))? {
                return Ok(None);
            }
            drop(sockets);

            match self.listener.accept() {
                Err(error) if is_transient(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(failed("answer the door")(error)),
                Ok((stream, _)) => {
                    stream.set_nonblocking(true).map_err(failed("answer the door"))?;
                    if self.waiting.len() == Self::MAX_WAITING {
                        self.waiting.remove(0);
                    }
                    self.waiting.push(Caller { stream, heard: [0; Introduction::LENGTH], length: 0 });
                }
            }

            let mut index = 0;
            while index < self.waiting.len() {
                match self.waiting[index].listen() {
                    Listened::NotYet => index += 1,
                    Listened::Gone => drop(self.waiting.remove(index)),
                    Listened::All => {
                        let caller = self.waiting.remove(index);
                        if let Some(introduction) = Introduction::decode(&caller.heard, &self.token) {
                            caller.stream.set_nonblocking(false).map_err(failed("admit a rank"))?;
                            return Ok(Some((introduction, caller.stream)));
                        }
                    }
                }
            }
        }
    }
}

enum Listened {
    NotYet,
    All,
    Gone,
}

impl Caller {
    /// Reads what has come of the introduction, and not a byte more.
    fn listen(&mut self) -> Listened {
        while self.length < Introduction::LENGTH {
            match self.stream.read(&mut self.heard[self.length..]) {
                Ok(0) => return Listened::Gone,
                Ok(count) => self.length += count,
                Err(error) if is_transient(&error) => return Listened::NotYet,
                Err(_) => return Listened::Gone,
            }
        }
        Listened::All
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;
    use crate::call::{Call, Collective};
    use crate::element::ElementType;
    use crate::transport::Transport;

    fn call() -> Call {
        Call::plain(1, Collective::SendRecv, ElementType::U8, 2)
    }

    const TOKEN: Token = *b"sixteen secrets!";
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn strangers_and_silent_callers_do_not_get_in_the_way() {
        let meeting = Meeting::open(Ipv4Addr::LOCALHOST.into(), TOKEN).unwrap();
        let address = meeting.address();
        let _silent = TcpStream::connect(address).unwrap();
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").unwrap();
        let impostor = Introduction { rank: 0, world: 3, port: 1 };
        TcpStream::connect(address).unwrap().write_all(&impostor.encode(&[0; 16])).unwrap();

        let host = thread::spawn(move || meeting.host(3, PATIENCE));
        let ranks: Vec<_> =
            (0..3).map(|rank| thread::spawn(move || join(address, TOKEN, rank, 3, PATIENCE).unwrap())).collect();
        let mut ranks: Vec<Tcp> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        host.join().unwrap().unwrap();

        for rank in &mut ranks {
            rank.begin(call());
        }
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            ranks[from].send(to, &[from as u8, to as u8]).unwrap();
            let mut received = [9, 9];
            ranks[to].recv(from, &mut received).unwrap();
            assert_eq!(received, [from as u8, to as u8]);
        }
    }

    #[test]
    fn hosts_are_told_by_their_addresses() {
        let addresses = ["10.0.0.2:5000", "10.0.0.1:5000", "10.0.0.2:5001", "[::1]:5000", "10.0.0.1:5001"];
        assert_eq!(hosts(&addresses.map(|address| address.parse().unwrap())), [0, 1, 0, 2, 1]);
    }

    #[test]
    fn a_rank_that_never_comes_is_an_error() {
        let meeting = Meeting::open(Ipv4Addr::LOCALHOST.into(), TOKEN).unwrap();
        let error = meeting.host(2, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.to_string(), "of 2 ranks 0, 1 did not come within 10ms");
    }

    #[test]
    fn a_rank_can_be_claimed_once() {
        let meeting = Meeting::open(Ipv4Addr::LOCALHOST.into(), TOKEN).unwrap();
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let mut stream = TcpStream::connect(meeting.address()).unwrap();
                stream.write_all(&Introduction { rank: 1, world: 2, port: 1 }.encode(&TOKEN)).unwrap();
                stream
            })
            .collect();
        let error = meeting.host(2, PATIENCE).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 of 2 is not free in a meeting of 2");
        drop(callers);
    }
}
