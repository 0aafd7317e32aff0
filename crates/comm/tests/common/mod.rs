//! Ranks for tests: threads over each transport.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use ringstep_comm::Group;
use ringstep_comm::rendezvous::{Encryption, Invitation, Meeting, Secret};
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::transport::tcp::Tcp;
use ringstep_comm::transport::{Net, Shaped, Transport, mem};

pub const TRANSPORTS: [&str; 8] =
    ["mem", "tcp", "shm", "tcp on 2 hosts", "shm on 2 hosts", "tcp, shaped", "tcp, tls", "shm, tls, on 2 hosts"];

/// Links that take a moment of their own for every message, and no more, so that tests take no longer.
const LINKS: Net = Net { bytes_per_second: 1e12, latency: Duration::ZERO };

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the same closure on every rank, each a thread, and returns what each returned.
pub fn on_ranks<R: Send>(transport: &str, world: usize, work: impl Fn(&mut Group) -> R + Send + Sync) -> Vec<R> {
    on_patient_ranks(transport, world, PATIENCE, work)
}

/// The same with ranks that wait for each other only so long.
pub fn on_patient_ranks<R: Send>(
    transport: &str,
    world: usize,
    timeout: Duration,
    work: impl Fn(&mut Group) -> R + Send + Sync,
) -> Vec<R> {
    let work = &work;
    // Two hosts: the first half of the ranks, and the others.
    let hosts: Vec<usize> =
        (0..world).map(|rank| usize::from(transport.ends_with("hosts") && rank >= world.div_ceil(2))).collect();
    let on_threads = |ends: Vec<Box<dyn FnOnce() -> Box<dyn Transport> + Send>>| {
        thread::scope(|scope| {
            let ranks: Vec<_> = ends.into_iter().map(|end| scope.spawn(move || work(&mut Group::new(end())))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    if transport == "mem" {
        let ends = mem::mesh(world).into_iter();
        return on_threads(ends.map(|end| Box::new(move || boxed(end.with_timeout(timeout))) as Box<_>).collect());
    }
    let encryption = if transport.contains("tls") { Encryption::Everywhere } else { Encryption::None };
    let secret = Secret::of(b"test").encrypting(encryption);
    let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), secret.clone()).unwrap();
    let invitation = Invitation::new(meeting.address(), secret);
    thread::spawn(move || meeting.host(world, PATIENCE).unwrap());
    let (shm, shaped) = (transport.starts_with("shm"), transport.ends_with("shaped"));
    let end = |rank: usize| -> Box<dyn FnOnce() -> Box<dyn Transport> + Send> {
        let (hosts, invitation) = (hosts.clone(), invitation.clone());
        Box::new(move || {
            let tcp: Tcp = invitation.join(rank, world, PATIENCE).unwrap();
            let tcp = tcp.with_timeout(timeout).with_hosts(hosts);
            match (shm, shaped) {
                (true, _) => boxed(Shm::over(tcp).unwrap()),
                (false, true) => boxed(Shaped::new(tcp, LINKS)),
                (false, false) => boxed(tcp),
            }
        })
    };
    on_threads((0..world).map(end).collect())
}

fn boxed(transport: impl Transport + 'static) -> Box<dyn Transport> {
    Box::new(transport)
}
