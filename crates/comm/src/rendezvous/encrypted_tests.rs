//! Encrypted connections, seen by somebody who stands between their ends.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use super::door::Door;
use super::host::{HostId, NetworkId};
use super::join::call;
use super::proof::Introduction;
use super::*;
use crate::call::{Call, Collective};
use crate::element::ElementType;
use crate::transport::Transport;
use crate::transport::tcp::Tcp;

const PATIENCE: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(300);

fn secret(encryption: Encryption) -> Secret {
    Secret::of(b"of this test").encrypting(encryption)
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn introduction() -> Introduction {
    let (address, host, network) = ([0; 16], HostId::here().unwrap(), NetworkId::here().unwrap());
    Introduction { role: Role::Peer, number: 1, of: 2, generation: 1, port: 1, address, host, network }
}

/// Passes bytes on in both directions; `spy` sees those of the caller, may change them, and says whether to go on.
fn between(to: SocketAddr, mut spy: impl FnMut(&mut [u8]) -> bool + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let mut door = TcpStream::connect(to).unwrap();
        let (mut from_door, mut to_caller) = (door.try_clone().unwrap(), caller.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from_door, &mut to_caller));
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = caller.read(&mut bytes) {
            if !spy(&mut bytes[..count]) || door.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (door.shutdown(std::net::Shutdown::Both), caller.shutdown(std::net::Shutdown::Both));
    });
    address
}

/// Two ranks, of which the second has called the first past a spy.
fn two_ranks(encryption: Encryption, spy: impl FnMut(&mut [u8]) -> bool + Send + 'static) -> [Tcp; 2] {
    let mut door = Door::open(loopback(), secret(encryption)).unwrap();
    let address = between(door.address().unwrap(), spy);
    let until = Instant::now() + PATIENCE;
    let caller = thread::spawn(move || call(&[address], &secret(encryption), &introduction(), until).unwrap());
    let (_, called) = door.admit(until).unwrap().unwrap();
    let caller = caller.join().unwrap();
    assert_eq!([&called, &caller].map(|end| end.is_encrypted()), [encryption != Encryption::None; 2]);
    let rank = |rank, peers| Tcp::new(rank, peers, vec![0, 1], secret(encryption)).unwrap().with_timeout(PATIENCE);
    let mut ranks = [rank(0, vec![None, Some(called)]), rank(1, vec![Some(caller), None])];
    for rank in &mut ranks {
        rank.begin(Call::plain(1, Collective::SendRecv, ElementType::U8, 1));
    }
    ranks
}

const WORDS: &[u8] = b"a gradient that nobody else is to see";

/// Sends from rank 1 to rank 0, which returns what it hears, or why it does not.
fn send(ranks: &mut [Tcp; 2], data: &[u8]) -> Result<Vec<u8>, String> {
    let [called, caller] = ranks;
    thread::scope(|scope| {
        // Whoever stands between may cut this off.
        scope.spawn(|| caller.send(0, data));
        let mut heard = vec![0; data.len()];
        called.recv(1, &mut heard).map(|()| heard).map_err(|error| error.to_string())
    })
}

#[test]
fn nobody_between_two_ranks_sees_what_they_say() {
    for encryption in [Encryption::None, Encryption::Everywhere] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let book = Arc::clone(&seen);
        let mut ranks = two_ranks(encryption, move |bytes| {
            book.lock().unwrap().extend_from_slice(bytes);
            true
        });
        let before = seen.lock().unwrap().len();
        for times in [1, 3000] {
            let data = WORDS.repeat(times);
            assert!(send(&mut ranks, &data).unwrap() == data);
        }
        let seen = seen.lock().unwrap();
        let plain = seen.windows(WORDS.len()).any(|window| window == WORDS);
        assert_eq!(plain, encryption == Encryption::None);
        // All of it was counted, on both ends.
        let [called, caller] = ranks.each_ref().map(|rank| rank.traffic().wire);
        assert_eq!((caller[0], called[1]), ((seen.len() - before) as u64, (seen.len() - before) as u64));
    }
}

#[test]
fn what_is_changed_or_cut_off_on_the_way_is_an_error_that_names_the_peer() {
    for (goes_on, told) in
        [(true, "recv from rank 1: cannot decrypt peer's message"), (false, "recv from rank 1: connection closed")]
    {
        let armed = Arc::new(AtomicBool::new(false));
        let trigger = Arc::clone(&armed);
        let mut ranks = two_ranks(Encryption::Everywhere, move |bytes| {
            let armed = trigger.load(Ordering::Relaxed);
            let last = bytes.len() - 1;
            bytes[last] ^= u8::from(armed);
            goes_on || !armed
        });
        assert_eq!(send(&mut ranks, WORDS).unwrap(), WORDS);
        armed.store(true, Ordering::Relaxed);
        assert_eq!(send(&mut ranks, &WORDS.repeat(1000)).unwrap_err(), told);
    }
}

#[test]
fn one_with_another_secret_is_refused_by_tls() {
    let mut door = Door::open(loopback(), secret(Encryption::Everywhere)).unwrap();
    let address = door.address().unwrap();
    let stranger = Secret::of(b"another").encrypting(Encryption::Everywhere);
    let until = Instant::now() + MOMENT;
    let stranger = thread::spawn(move || call(&[address], &stranger, &introduction(), until));
    assert!(door.admit(until).unwrap().is_none());
    assert_eq!(door.strangers, 1);
    let error = stranger.join().unwrap().unwrap_err().to_string();
    assert_eq!(error, "whoever listens there has another secret than this job");
}

#[test]
fn whoever_encrypts_and_whoever_does_not_tell_each_other() {
    for (of_door, of_caller, told) in [
        (
            Encryption::Everywhere,
            Encryption::None,
            "whoever listens there encrypts, and this does not: give --tls to both",
        ),
        (Encryption::None, Encryption::Everywhere, "whoever listens there does not encrypt, as --tls wants it"),
    ] {
        let mut door = Door::open(loopback(), secret(of_door)).unwrap();
        let address = door.address().unwrap();
        let until = Instant::now() + MOMENT;
        let caller = thread::spawn(move || call(&[address], &secret(of_caller), &introduction(), until));
        assert!(door.admit(until).unwrap().is_none());
        assert_eq!(caller.join().unwrap().unwrap_err().to_string(), told);
    }
}

#[test]
fn what_stays_on_its_host_is_not_encrypted_unless_it_comes_from_elsewhere() {
    let mut ends = two_ranks_of_one_host(introduction()).unwrap();
    assert!(ends.iter_mut().all(|end| !end.is_encrypted()));
    // By some proxy it may look so.
    let elsewhere = Introduction { network: NetworkId([1; 12]), ..introduction() };
    assert!(two_ranks_of_one_host(elsewhere).is_none());
}

fn two_ranks_of_one_host(introduction: Introduction) -> Option<[crate::connection::Connection; 2]> {
    let secret = secret(Encryption::BetweenHosts);
    let mut door = Door::open(loopback(), secret.clone()).unwrap();
    let address = door.address().unwrap();
    let until = Instant::now() + MOMENT;
    let caller = thread::spawn(move || call(&[address], &secret, &introduction, until).ok());
    let called = door.admit(until).unwrap();
    let caller = caller.join().unwrap();
    called.zip(caller).map(|((_, called), caller)| [called, caller])
}
