//! A transport with the bandwidth and latency of a slower network.
//!
//! Every host has a link out and a link in. A message of n bytes takes the sender's link out from s on, the moment at which
//! that is free, for n/B seconds; the receiver's link in from s + L on, or from when that is free, for as long. The sender
//! goes on at the end of the first, the receiver at the end of the second. So an exchange in both directions takes no longer
//! than one, and what several send to one rank comes in one after the other.
//!
//! Data goes through the transport inside at once, with s in front of it, and then the ranks sleep. All of them must be on
//! one machine, since they must have one clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{Aborter, Cause, Incoming, Outgoing, Sink, Traffic, Transport, TransportError};
use crate::call::{Call, Header};
use crate::watch::Watch;

/// How long a rank sleeps before it looks whether it is aborted.
const NAP: Duration = Duration::from_millis(20);

/// What a link can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Net {
    /// Bytes that pass in a second; infinity where only latency counts.
    pub bytes_per_second: f64,
    /// How long a byte is on its way.
    pub latency: Duration,
}

impl Net {
    /// How long a link is busy with so many bytes.
    fn time(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second)
    }
}

/// When a host's links out and in are free, on the machine's clock. Ranks of one process that stand for one host share
/// them.
#[derive(Debug, Clone, Default)]
pub struct Links {
    out: Arc<Mutex<Duration>>,
    into: Arc<Mutex<Duration>>,
}

/// Takes a link for so long, from a moment on or from when it is free, and says from when.
fn take(link: &Mutex<Duration>, from: Duration, length: Duration) -> Duration {
    let mut free = link.lock().unwrap_or_else(PoisonError::into_inner);
    let start = from.max(*free);
    *free = start + length;
    start
}

/// The machine's clock, which is the same in all processes.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Lets messages pass no faster than a network would. There is no shared memory on such a wire.
#[derive(Debug)]
pub struct Shaped<T> {
    inner: T,
    net: Net,
    hosts: Vec<usize>,
    links: Links,
    /// A message that goes out, behind its stamp. Counted in u64 for its alignment.
    outgoing: Vec<u64>,
    /// Stamped messages, sent and received.
    stamped: [u64; 2],
}

/// When a message began to leave, in nanoseconds on the machine's clock, and its length on the wire.
type Stamp = [u64; 2];
const STAMP: usize = size_of::<Stamp>();

impl<T: Transport> Shaped<T> {
    /// Every rank on a host of its own.
    pub fn new(inner: T, net: Net) -> Self {
        let hosts = (0..inner.world()).collect();
        Self { inner, net, hosts, links: Links::default(), outgoing: Vec::new(), stamped: [0; 2] }
    }

    /// Says which ranks are on which host, and gives this one the links of its own. What goes from one rank of a host to
    /// another takes none.
    pub fn with_hosts(mut self, hosts: Vec<usize>, links: Links) -> Self {
        assert_eq!(hosts.len(), self.world());
        (self.hosts, self.links) = (hosts, links);
        self
    }

    fn is_far(&self, peer: usize) -> bool {
        self.hosts[peer] != self.hosts[self.rank()]
    }

    /// Sleeps until a message has passed.
    fn pause(&self, until: Duration, error: impl FnOnce(Cause) -> TransportError) -> Result<(), TransportError> {
        loop {
            let left = until.saturating_sub(now());
            if left.is_zero() {
                return Ok(());
            }
            if self.inner.aborter().is_aborted() {
                return Err(error(Cause::Aborted));
            }
            sleep(left.min(NAP));
        }
    }
}

/// Lays a message out behind its stamp.
fn stamped<'a>(room: &'a mut Vec<u64>, stamp: Stamp, data: &[u8]) -> &'a [u8] {
    room.resize(stamp.len() + data.len().div_ceil(size_of::<u64>()), 0);
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(room);
    let (front, rest) = bytes.split_at_mut(STAMP);
    front.copy_from_slice(bytemuck::bytes_of(&stamp));
    rest[..data.len()].copy_from_slice(data);
    &bytes[..STAMP + data.len()]
}

/// Receives a message whose first bytes are a stamp.
fn receive(
    sink: Sink<'_>,
    stamp: &mut Stamp,
    transfer: impl FnOnce(Sink<'_>) -> Result<(), TransportError>,
) -> Result<(), TransportError> {
    match sink {
        Sink::Fill(mut rest) => {
            let bytes = rest.len();
            let mut fill = |piece: &[u8]| {
                let (now, later) = std::mem::take(&mut rest).split_at_mut(piece.len());
                now.copy_from_slice(piece);
                rest = later;
            };
            receive(Sink::Fold { bytes, grain: 1, fold: &mut fill }, stamp, transfer)
        }
        Sink::Fold { bytes, grain, fold } => {
            let (stamp, mut read) = (bytemuck::bytes_of_mut(stamp), 0);
            // Pieces are as long as multiples of the grain, and so is the stamp: what is behind it stays aligned.
            let mut fold = |piece: &[u8]| {
                let (front, data) = piece.split_at(piece.len().min(STAMP - read));
                stamp[read..read + front.len()].copy_from_slice(front);
                read += front.len();
                if !data.is_empty() {
                    fold(data);
                }
            };
            transfer(Sink::Fold { bytes: bytes + STAMP, grain, fold: &mut fold })
        }
        Sink::Take { into, limit } => {
            transfer(Sink::Take { into: &mut *into, limit: limit.saturating_add(STAMP) })?;
            // A message without a stamp, from a rank that is not shaped, has come at once.
            let front = into.len().min(STAMP);
            bytemuck::bytes_of_mut(stamp)[..front].copy_from_slice(&into[..front]);
            into.drain(..front);
            Ok(())
        }
    }
}

/// Speaks of lengths as the caller does.
fn without_stamp(mut error: TransportError) -> TransportError {
    match &mut error.cause {
        Cause::Length { expected, got } | Cause::TooLong { limit: expected, got } => {
            *expected -= STAMP;
            *got = got.saturating_sub(STAMP);
        }
        _ => {}
    }
    error
}

impl<T: Transport> Transport for Shaped<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn begin(&mut self, call: Call) {
        self.inner.begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        let out_far = outgoing.filter(|outgoing| self.is_far(outgoing.to));
        let sent = out_far.map(|Outgoing { to, data }| {
            let bytes = (Header::LENGTH + data.len()) as u64;
            let time = self.net.time(bytes);
            let start = take(&self.links.out, now(), time);
            (to, [start.as_nanos() as u64, bytes], start + time)
        });
        let outgoing = match (out_far, sent) {
            (Some(Outgoing { to, data }), Some((_, stamp, _))) => {
                Some(Outgoing { to, data: stamped(&mut self.outgoing, stamp, data) })
            }
            _ => outgoing,
        };
        let Self { inner, net, links, hosts, .. } = self;
        let mut stamp = Stamp::default();
        let mut received = None;
        match incoming {
            Some(Incoming { from, sink }) if hosts[from] != hosts[inner.rank()] => {
                receive(sink, &mut stamp, |sink| inner.transfer(outgoing, Some(Incoming { from, sink })))
                    .map_err(without_stamp)?;
                let [start, bytes] = stamp;
                let time = net.time(bytes);
                received = Some((from, take(&links.into, Duration::from_nanos(start) + net.latency, time) + time));
            }
            incoming => inner.transfer(outgoing, incoming)?,
        }
        self.stamped[0] += u64::from(sent.is_some());
        self.stamped[1] += u64::from(received.is_some());
        if let Some((to, _, end)) = sent {
            self.pause(end, |cause| TransportError::sending(to, cause))?;
        }
        if let Some((from, end)) = received {
            self.pause(end, |cause| TransportError::receiving(from, cause))?;
        }
        Ok(())
    }

    /// Who has sent something may be told before it has passed the links; to receive it then takes as long as it must.
    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        self.inner.wait_any(from, until)
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Without the stamps, which no real network needs.
    fn traffic(&self) -> Traffic {
        let bytes = self.stamped.map(|messages| messages * STAMP as u64);
        self.inner.traffic() - Traffic { payload: bytes, wire: bytes, messages: [0; 2] }
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn aborter(&self) -> Aborter {
        self.inner.aborter()
    }

    fn watch(&self) -> Watch {
        self.inner.watch()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        let hosts = members.iter().map(|&member| self.hosts[member]).collect();
        let inner = self.inner.split(members)?;
        Ok(Box::new(Shaped::new(inner, self.net).with_hosts(hosts, self.links.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Tuning;
    use crate::transport::mem;
    use crate::{Algorithm, Group, Op, Topology};

    /// How long it takes until all ranks have done this, connected by such links.
    fn time(net: Net, world: usize, work: impl Fn(&mut Group) + Sync) -> Duration {
        let (ends, work) = (mem::mesh(world), &work);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for end in ends {
                scope.spawn(move || work(&mut Group::new(Shaped::new(end, net))));
            }
        });
        began.elapsed()
    }

    fn net(bytes_per_second: f64, milliseconds: u64) -> Net {
        Net { bytes_per_second, latency: Duration::from_millis(milliseconds) }
    }

    /// Not sooner than the wire allows: 3 messages of 10 ms, and 3000 bytes at 100 kB/s are 30 ms more.
    #[test]
    fn a_slow_wire_is_slow_and_right() {
        let took = time(net(100e3, 10), 2, |group| {
            assert!(!group.topology().all_share_memory());
            let mut data = vec![1i32; 250];
            for _ in 0..3 {
                group.all_reduce(&mut data, Op::Sum, Algorithm::RecursiveDoubling).unwrap();
            }
            assert_eq!(data, vec![8; 250]);
        });
        assert!(took >= Duration::from_millis(60), "{took:?}");
    }

    #[test]
    fn what_several_send_to_one_comes_in_one_after_the_other() {
        let took = time(net(1e6, 0), 4, |group| match group.rank() {
            0 => (1..4).for_each(|from| group.recv(&mut [0u8; 10_000], from).unwrap()),
            _ => group.send(&[1u8; 10_000], 0).unwrap(),
        });
        assert!(took >= Duration::from_millis(30), "{took:?}");
    }

    #[test]
    fn a_ring_takes_no_less_than_predicted() {
        let net = net(1e6, 2);
        let took = time(net, 3, |group| {
            group.all_reduce(&mut [1.0f32; 6000], Op::Sum, Algorithm::Ring).unwrap();
        });
        let tuning = Tuning { gamma: 0.0, ..Tuning::of_wire(net) };
        let predicted = tuning.predict(Algorithm::Ring, &Topology::new(vec![0, 1, 2], false), 24_000);
        assert!(predicted >= 0.040 && took.as_secs_f64() >= predicted, "{took:?}, {predicted}");
    }

    /// Ranks 0 and 1 are on one host, and both send to rank 2: that takes the one link out twice. What they send each other
    /// takes none, and so waits for none.
    #[test]
    fn ranks_of_one_host_share_its_links_and_need_none_among_themselves() {
        let links = [Links::default(), Links::default()];
        let began = Instant::now();
        std::thread::scope(|scope| {
            for (end, host) in mem::mesh(3).into_iter().zip([0, 0, 1]) {
                let shaped = Shaped::new(end, net(1e6, 0)).with_hosts(vec![0, 0, 1], links[host].clone());
                scope.spawn(move || {
                    let mut group = Group::new(shaped);
                    match group.rank() {
                        2 => [0, 1].into_iter().for_each(|from| group.recv(&mut [0u8; 10_000], from).unwrap()),
                        rank => {
                            group.send(&[1u8; 10_000], 2).unwrap();
                            let before = group.traffic();
                            match rank {
                                0 => group.send(&[1u8; 10_000], 1).unwrap(),
                                _ => group.recv(&mut [0u8; 10_000], 0).unwrap(),
                            }
                            let passed = group.traffic() - before;
                            assert_eq!(passed.payload[rank], 10_000);
                        }
                    }
                });
            }
        });
        assert!(began.elapsed() >= Duration::from_millis(20));
        let free = |link: &Mutex<Duration>| *link.lock().unwrap();
        // Host 0 has received nothing from outside, and sent twice; host 1 the other way round.
        assert_eq!([&links[0].into, &links[1].out].map(|link| free(link)), [Duration::ZERO; 2]);
        let busy = 2.0 * (10_000.0 + Header::LENGTH as f64) / 1e6;
        assert!([&links[0].out, &links[1].into].iter().all(|link| free(link) > Duration::from_secs_f64(busy)));
    }
}
