//! Whoever hosts: waits until all are there, and tells everyone where the others are.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::door::Door;
use super::host::{HostId, numbered};
use super::line::Line;
use super::proof::{Introduction, Secret};
use super::{RendezvousError, Role, failed};
use crate::connection::Connection;

/// The place where the processes and the ranks of one job meet.
#[derive(Debug)]
pub struct Meeting {
    door: Door,
    address: SocketAddr,
    /// How many times ranks have met here.
    generation: u32,
    /// Those who have come for what is not held yet: processes while ranks meet, ranks while the meeting before theirs is called off.
    early: Vec<Guest>,
}

/// How soon a host notices that its meeting is called off.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// No more of them are kept waiting than could have come to one job.
const EARLY: usize = 1024;

/// Somebody who has come.
#[derive(Debug)]
struct Guest {
    introduction: Introduction,
    stream: Connection,
}

impl Meeting {
    /// Listens at this address; port 0 is one of the system's choice.
    pub fn open(at: SocketAddr, secret: Secret) -> Result<Self, RendezvousError> {
        let door = Door::open(at, secret)?;
        let address = door.address()?;
        Ok(Self { door, address, generation: 0, early: Vec::new() })
    }

    /// Where to send the ranks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What whoever wants to come must know.
    pub fn secret(&self) -> &Secret {
        self.door.secret()
    }

    /// Waits until `world` ranks are there, then tells everyone where the others are. Ranks may meet any number of times, each
    /// time as a new generation.
    pub fn host(&mut self, world: usize, timeout: Duration) -> Result<(), RendezvousError> {
        self.host_unless(&AtomicBool::new(false), world, timeout)
    }

    /// The same, unless it is called off meanwhile: those who are there then learn that it has ended.
    pub fn host_unless(&mut self, off: &AtomicBool, world: usize, timeout: Duration) -> Result<(), RendezvousError> {
        let ranks: Vec<usize> = (0..world).collect();
        let guests = self.gather(Role::Rank, &ranks, world, timeout, off)?;
        self.generation += 1;
        let hosts: Vec<HostId> = guests.iter().map(|guest| guest.introduction.host).collect();
        let hosts = numbered(&hosts);
        for (rank, reader) in guests.iter().enumerate() {
            let failed = || failed(format!("send the directory to rank {rank}"));
            let mut entries = Vec::with_capacity(world);
            for (guest, &host) in guests.iter().zip(&hosts) {
                let address = address_for(guest, reader).map_err(failed())?;
                entries.push(Entry { address, host });
            }
            let directory = Directory { generation: self.generation, entries };
            let mut line = Line::new(reader.stream.clone(), timeout).map_err(failed())?;
            line.send(directory.to_text().as_bytes()).map_err(failed())?;
        }
        Ok(())
    }

    /// Waits until the processes of these numbers are there, of so many; returns the lines to them.
    pub fn assemble(&mut self, numbers: &[usize], of: usize, timeout: Duration) -> Result<Vec<Line>, RendezvousError> {
        self.assemble_unless(&AtomicBool::new(false), numbers, of, timeout)
    }

    /// The same, unless it is called off meanwhile.
    pub fn assemble_unless(
        &mut self,
        off: &AtomicBool,
        numbers: &[usize],
        of: usize,
        timeout: Duration,
    ) -> Result<Vec<Line>, RendezvousError> {
        let guests = self.gather(Role::Process, numbers, of, timeout, off)?;
        let line = |guest: Guest| {
            let number = guest.introduction.number;
            Line::new(guest.stream, timeout).map_err(failed(format!("process {number}")))
        };
        guests.into_iter().map(line).collect()
    }

    /// Waits for a process of any number, unless it is called off.
    pub fn welcome_unless(&mut self, off: &AtomicBool, timeout: Duration) -> Result<(usize, Line), RendezvousError> {
        loop {
            if let Some(guest) = self.admit(Role::Process, Instant::now() + LOOK, off)? {
                let number = guest.introduction.number as usize;
                return Ok((number, Line::new(guest.stream, timeout).map_err(failed(format!("process {number}")))?));
            }
        }
    }

    /// The next who comes as this, if there is one before the deadline. Others are kept waiting.
    fn admit(&mut self, role: Role, deadline: Instant, off: &AtomicBool) -> Result<Option<Guest>, RendezvousError> {
        if let Some((introduction, stream)) = self.door.admit(deadline)?
            && self.early.len() < EARLY
        {
            self.early.push(Guest { introduction, stream });
        }
        if off.load(Ordering::Relaxed) {
            return Err(RendezvousError::CalledOff);
        }
        // Some may have been among those who met before.
        self.early.retain(|guest| !guest.is_gone());
        Ok(self.early.iter().position(|guest| guest.introduction.role == role).map(|at| self.early.remove(at)))
    }

    /// Waits until all with these numbers are there, of so many.
    fn gather(
        &mut self,
        role: Role,
        numbers: &[usize],
        of: usize,
        timeout: Duration,
        off: &AtomicBool,
    ) -> Result<Vec<Guest>, RendezvousError> {
        let deadline = Instant::now() + timeout;
        let mut seats: Vec<Option<Guest>> = numbers.iter().map(|_| None).collect();
        while seats.iter().any(Option::is_none) {
            let Some(guest) = self.admit(role, deadline.min(Instant::now() + LOOK), off)? else {
                if Instant::now() < deadline {
                    continue;
                }
                let missing = numbers.iter().zip(&seats).filter(|(_, seat)| seat.is_none());
                let missing = missing.map(|(&number, _)| number).collect();
                let strangers = self.door.strangers;
                return Err(RendezvousError::Missing { who: role, missing, of, waited: timeout, strangers });
            };
            let (number, theirs) = (guest.introduction.number as usize, guest.introduction.of as usize);
            let seat = numbers.iter().position(|&wanted| wanted == number).map(|at| &mut seats[at]);
            // Whoever was here and is gone has come again.
            // Processes that joined a job believe that there are more than those which began it.
            let as_many = theirs == of || role == Role::Process && self.generation > 0;
            let free = |seat: &&mut Option<Guest>| seat.as_ref().is_none_or(Guest::is_gone) && as_many;
            match seat.filter(free) {
                Some(seat) => *seat = Some(guest),
                // A job that goes on does not end because of one who was not missed.
                None if role == Role::Process && self.generation > 0 => {}
                None => return Err(RendezvousError::NotFree { who: role, number, of: theirs, expected: of }),
            }
        }
        Ok(seats.into_iter().flatten().collect())
    }
}

impl Guest {
    /// Nobody says anything before the directory is there, so what can be read is the end.
    fn is_gone(&self) -> bool {
        let socket = self.stream.socket();
        let ended = socket.set_nonblocking(true).is_err() || matches!(socket.peek(&mut [0]), Ok(0));
        socket.set_nonblocking(false).is_err() || ended
    }
}

/// Where `reader` finds a rank: at the address that it has announced, or else at that from which it called. One that called by
/// loopback is on this host, so others find it where they have found this host.
fn address_for(guest: &Guest, reader: &Guest) -> std::io::Result<SocketAddr> {
    let seen = guest.stream.socket().peer_addr()?.ip().to_canonical();
    let announced = IpAddr::from(Ipv6Addr::from(guest.introduction.address)).to_canonical();
    let reader_is_here = reader.stream.socket().peer_addr()?.ip().to_canonical().is_loopback();
    let address = match (announced.is_unspecified(), seen.is_loopback()) {
        (false, _) => announced,
        (true, true) if !reader_is_here => reader.stream.socket().local_addr()?.ip().to_canonical(),
        _ => seen,
    };
    Ok(SocketAddr::new(address, guest.introduction.port))
}

/// Where everyone is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Directory {
    pub generation: u32,
    pub entries: Vec<Entry>,
}

/// Where a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub address: SocketAddr,
    pub host: usize,
}

impl Directory {
    /// No directory of so many ranks is longer: an address with a scope and a port is at most 58 characters long.
    pub fn longest(world: usize) -> usize {
        16 + 80 * world
    }

    pub fn to_text(&self) -> String {
        let line = |entry: &Entry| format!("{} {}\n", entry.address, entry.host);
        format!("{}\n{}", self.generation, self.entries.iter().map(line).collect::<String>())
    }

    /// `None` if it makes no sense, or is one of more or fewer ranks.
    pub fn parse(text: &[u8], world: usize) -> Option<Self> {
        let mut lines = std::str::from_utf8(text).ok()?.lines();
        let generation = lines.next()?.parse().ok()?;
        let entry = |line: &str| {
            let (address, host) = line.split_once(' ')?;
            Some(Entry {
                address: address.parse().ok()?,
                host: host.parse().ok().filter(|&host: &usize| host < world)?,
            })
        };
        let entries: Vec<Entry> = lines.map(entry).collect::<Option<_>>()?;
        (entries.len() == world).then_some(Self { generation, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_says_what_was_written() {
        let entry = |address: &str, host| Entry { address: address.parse().unwrap(), host };
        let widest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535";
        let entries = vec![entry("10.0.0.2:5000", 0), entry(widest, 1), entry("127.0.0.1:1", 0)];
        let directory = Directory { generation: 3, entries };
        let text = directory.to_text();
        assert!(text.len() <= Directory::longest(3));
        assert_eq!(Directory::parse(text.as_bytes(), 3).unwrap(), directory);
        for (nonsense, world) in [(text.as_str(), 2), ("", 0), ("1\n10.0.0.2:5000 7\n", 1), ("1\n10.0.0.2 0\n", 1)] {
            assert_eq!(Directory::parse(nonsense.as_bytes(), world), None, "{nonsense}");
        }
    }
}
