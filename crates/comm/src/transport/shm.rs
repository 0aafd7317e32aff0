//! Ranks that are processes: shared memory between those of one host, TCP between hosts.
//!
//! The first rank of each host makes a file in memory that has no name, and the others open it through `/proc`: when the
//! last of them ends, however it ends, the memory is gone. The TCP connections of the rendezvous stay open: they carry
//! messages between hosts, and within a host they tell when a process has died.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::segment::Segment;
use super::stream::{Line, StreamReader, StreamWriter, tray};
use super::tcp::Tcp;
use super::{Aborter, Cause, Incoming, Outgoing, Shared, Traffic, Transport, TransportError};
use crate::call::{Call, Collective};
use crate::element::ElementType;
use crate::watch::Watch;

/// How long a rank that waits for others of its own host does not look whether one of another has sent something.
const TURN: Duration = Duration::from_millis(1);

/// One rank's connections to all others.
#[derive(Debug)]
pub struct Shm {
    tcp: Tcp,
    shared: Shared,
    /// For each rank its place on this host, if it is on this host.
    places: Vec<Option<usize>>,
    tray: Vec<Line>,
}

impl Shm {
    /// Sets shared memory up between the ranks that [`Tcp::with_hosts`] says are on one host.
    pub fn over(mut tcp: Tcp) -> Result<Self, TransportError> {
        let (rank, world) = (tcp.rank(), tcp.world());
        let members: Vec<usize> = (0..world).filter(|&peer| tcp.hosts()[peer] == tcp.hosts()[rank]).collect();
        let place = |rank: usize| members.iter().position(|&member| member == rank);
        let (leader, index) = (members[0], place(rank).expect("a rank is on its own host"));
        let failed = |error: std::io::Error| TransportError::receiving(leader, Cause::Io(error));

        let call = Call::plain(0, Collective::Split, ElementType::U8, 8);
        tcp.begin(Call { root: Some(leader as u32), ..call });
        // The leader says which of its descriptors it is, and keeps it until all have opened it.
        let mut whereabouts = [0; 8];
        let file = if rank == leader {
            let file = Segment::create_file(members.len()).map_err(failed)?;
            whereabouts[..4].copy_from_slice(&std::process::id().to_le_bytes());
            whereabouts[4..].copy_from_slice(&file.as_raw_fd().to_le_bytes());
            for &member in &members[1..] {
                tcp.send(member, &whereabouts)?;
            }
            for &member in &members[1..] {
                tcp.recv(member, &mut whereabouts)?;
            }
            file
        } else {
            tcp.recv(leader, &mut whereabouts)?;
            let [process, descriptor] =
                [0, 4].map(|at| i32::from_le_bytes(whereabouts[at..at + 4].try_into().expect("four bytes")));
            let path = format!("/proc/{process}/fd/{descriptor}");
            let file = File::options().read(true).write(true).open(path).map_err(failed)?;
            tcp.send(leader, &whereabouts)?;
            file
        };
        let segment = Arc::new(Segment::map(file, members.len()).map_err(failed)?);
        let lifelines = members
            .iter()
            .map(|&member| (member != rank).then(|| tcp.socket(member).try_clone()).transpose())
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let places = (0..world).map(place).collect();
        let mut shared = Shared::new(segment, index, members, lifelines, tcp.timeout(), tcp.aborter());
        shared.watch = tcp.watch();
        Ok(Self { tcp, shared, places, tray: tray() })
    }

    /// The same message with the peer's place on this host instead of its rank; `Err` if it is on another.
    fn within_host<'a>(&self, outgoing: Outgoing<'a>) -> Result<Outgoing<'a>, Outgoing<'a>> {
        self.places[outgoing.to].map(|to| Outgoing { to, ..outgoing }).ok_or(outgoing)
    }
}

impl Transport for Shm {
    fn rank(&self) -> usize {
        self.tcp.rank()
    }

    fn world(&self) -> usize {
        self.tcp.world()
    }

    fn begin(&mut self, call: Call) {
        self.tcp.begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        let call = self.tcp.call();
        let (out_near, out_far) = match outgoing.map(|outgoing| self.within_host(outgoing)) {
            None => (None, None),
            Some(Ok(near)) => (Some(near), None),
            Some(Err(far)) => (None, Some(far)),
        };
        let (in_near, in_far) = match incoming {
            None => (None, None),
            Some(Incoming { from, sink }) => match self.places[from] {
                Some(from) => (Some(Incoming { from, sink }), None),
                None => (None, Some(Incoming { from, sink })),
            },
        };
        if out_far.is_none() && in_far.is_none() {
            return self.shared.transfer(&call, out_near, in_near);
        }
        if out_near.is_none() && in_near.is_none() {
            return self.tcp.transfer(out_far, in_far);
        }
        // One direction within the host and one beyond it. Most messages are short enough to be on their way at once; what is left
        // of the others is sent on a thread of its own, so that neither direction waits for the other.
        let (tcp, shared) = (&mut self.tcp, &mut self.shared);
        let near_writer = out_near.map(|outgoing| shared.begin_sending(&call, outgoing));
        let near_waits = near_writer.as_ref().is_some_and(|writer| !writer.is_done());
        let mut writer = out_far.map(|outgoing| StreamWriter::new(&call, outgoing));
        let mut reader = in_far.map(|incoming| StreamReader::new(&call, incoming, &mut self.tray));
        while tcp.advance(&mut writer, &mut None)? {}
        let far_waits = writer.as_ref().is_some_and(|writer| !writer.is_done());
        let all = |tcp: &Tcp, writer: &mut Option<_>, reader: &mut Option<_>| -> Result<(), TransportError> {
            while tcp.step(writer, reader)? {}
            Ok(())
        };
        let result = std::thread::scope(|scope| match (far_waits, near_waits) {
            (true, _) => {
                let far = scope.spawn(|| all(tcp, &mut writer, &mut None));
                let near = shared.carry(&call, None, in_near);
                far.join().expect("it does not panic").and(near)
            }
            (_, true) => {
                let near = scope.spawn(|| shared.carry(&call, near_writer, None));
                let far = all(tcp, &mut None, &mut reader);
                near.join().expect("it does not panic").and(far)
            }
            _ => all(tcp, &mut None, &mut reader).and_then(|()| shared.carry(&call, near_writer, in_near)),
        });
        tcp.count(&writer, &reader);
        result
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        let far: Vec<usize> = from.iter().copied().filter(|&rank| self.places[rank].is_none()).collect();
        let near: Vec<usize> = from.iter().filter_map(|&rank| self.places[rank]).collect();
        if near.is_empty() {
            return self.tcp.wait_any(&far, until);
        }
        let rank = |place: Option<usize>| place.map(|place| self.shared.members()[place]);
        if far.is_empty() {
            return self.shared.wait_any(&near, until).map(rank);
        }
        // A bell cannot be waited for together with a connection, so they are looked at in turn.
        loop {
            let now = Instant::now();
            let turn = until.map_or(now + TURN, |until| until.min(now + TURN));
            let far_found = self.tcp.readable(&far, now)?;
            let near_found = match far_found {
                Some(_) => self.shared.ready(&near),
                None => self.shared.wait_any(&near, Some(turn))?,
            };
            let found = [far_found, rank(near_found)];
            let first = from.iter().copied().find(|&rank| found.contains(&Some(rank)));
            if first.is_some() || until.is_some_and(|until| until <= Instant::now()) {
                return Ok(first);
            }
        }
    }

    fn hosts(&self) -> &[usize] {
        self.tcp.hosts()
    }

    fn shared(&mut self) -> Option<&mut Shared> {
        Some(&mut self.shared)
    }

    fn traffic(&self) -> Traffic {
        self.tcp.traffic() + self.shared.traffic()
    }

    fn timeout(&self) -> Duration {
        self.tcp.timeout()
    }

    fn aborter(&self) -> Aborter {
        self.tcp.aborter()
    }

    fn watch(&self) -> Watch {
        self.tcp.watch()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        Ok(Box::new(Self::over(self.tcp.subset(members)?)?))
    }
}
