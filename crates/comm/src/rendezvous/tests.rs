use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::door::Door;
use super::join::call;
use super::proof::{Introduction, RESPONSE};
use super::*;
use crate::call::{Call, Collective};
use crate::element::ElementType;
use crate::transport::Transport;

const PATIENCE: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(200);

fn secret() -> Secret {
    Secret::of(b"of this test")
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn introduction(role: Role, number: u32, of: u32) -> Introduction {
    let (address, host, network) = ([0; 16], host::HostId::here().unwrap(), host::NetworkId::here().unwrap());
    Introduction { role, number, of, generation: 0, port: 1, address, host, network }
}

#[test]
fn all_ranks_reach_all_others_and_can_meet_again() {
    let mut meeting = Meeting::open(loopback(), secret()).unwrap();
    let invitation = Invitation::new(meeting.address(), secret());
    for _ in 0..2 {
        let mut ranks: Vec<_> = thread::scope(|scope| {
            let join = |rank| {
                let invitation = &invitation;
                scope.spawn(move || invitation.join(rank, 3, PATIENCE).unwrap())
            };
            let ranks: Vec<_> = (0..3).map(join).collect();
            meeting.host(3, PATIENCE).unwrap();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for rank in &mut ranks {
            assert_eq!(rank.hosts(), [0, 0, 0]);
            rank.begin(Call::plain(1, Collective::SendRecv, ElementType::U8, 2));
        }
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            ranks[from].send(to, &[from as u8, to as u8]).unwrap();
            let mut received = [9, 9];
            ranks[to].recv(from, &mut received).unwrap();
            assert_eq!(received, [from as u8, to as u8]);
        }
    }
}

#[test]
fn ranks_may_come_before_the_meeting_is_open() {
    let address = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let early = thread::spawn(move || Invitation::new(address, secret()).join(0, 1, PATIENCE));
    thread::sleep(MOMENT);
    Meeting::open(address, secret()).unwrap().host(1, PATIENCE).unwrap();
    assert_eq!(early.join().unwrap().unwrap().world(), 1);
}

#[test]
fn processes_stay_on_the_line() {
    let mut meeting = Meeting::open(loopback(), secret()).unwrap();
    let address = meeting.address();
    let processes = [1, 2].map(|process| {
        thread::spawn(move || {
            let find = || Ok((vec![address], secret()));
            let (mut line, _) = attend(&find, process, 3, PATIENCE).unwrap();
            let order = line.recv().unwrap().unwrap();
            line.send(&[&order[..], &[process as u8]].concat()).unwrap();
            assert_eq!(line.recv().unwrap(), None);
        })
    });
    let mut lines = meeting.assemble(&[1, 2], 3, PATIENCE).unwrap();
    let long = vec![7; 300_000];
    for (line, process) in lines.iter_mut().zip(1..) {
        line.send(&long).unwrap();
        assert_eq!(line.recv().unwrap().unwrap(), [&long[..], &[process]].concat());
    }
    drop(lines);
    processes.into_iter().for_each(|process| process.join().unwrap());
}

#[test]
fn a_rank_that_never_comes_is_an_error() {
    let mut meeting = Meeting::open(loopback(), secret()).unwrap();
    let error = meeting.host(2, Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.to_string(), "of 2 ranks 0, 1 did not come within 10ms");
    let error = meeting.assemble(&[1, 2], 3, Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.to_string(), "of 3 processes 1, 2 did not come within 10ms");
}

#[test]
fn one_with_another_secret_is_told_on_both_sides() {
    let mut meeting = Meeting::open(loopback(), secret()).unwrap();
    let address = meeting.address();
    let stranger = thread::spawn(move || Invitation::new(address, Secret::of(b"another")).join(0, 1, MOMENT));
    let error = meeting.host(1, 2 * MOMENT).unwrap_err().to_string();
    assert!(error.starts_with("of 1 ranks 0 did not come within 400ms; "), "{error}");
    assert!(error.ends_with("not know the job's secret"), "{error}");
    let error = stranger.join().unwrap().unwrap_err().to_string();
    assert!(error.ends_with("whoever listens there has another secret than this job"), "{error}");
}

#[test]
fn a_rank_can_be_claimed_once() {
    let mut meeting = Meeting::open(loopback(), secret()).unwrap();
    let addresses = [meeting.address()];
    let until = Instant::now() + PATIENCE;
    let claim = || call(&addresses, &secret(), &introduction(Role::Rank, 1, 2), until);
    thread::scope(|scope| {
        let claims = [scope.spawn(claim), scope.spawn(claim)];
        let error = meeting.host(2, PATIENCE).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 of 2 is not free in a meeting of 2");
        drop(claims);
    });
}

#[test]
fn whoever_is_gone_may_come_again() {
    let mut meeting = Meeting::open(loopback(), secret()).unwrap();
    let addresses = [meeting.address()];
    let until = Instant::now() + PATIENCE;
    let come = |number| call(&addresses, &secret(), &introduction(Role::Process, number, 3), until).unwrap();
    thread::scope(|scope| {
        let comers = scope.spawn(|| {
            drop(come(1));
            [come(1), come(2)]
        });
        assert_eq!(meeting.assemble(&[1, 2], 3, PATIENCE).unwrap().len(), 2);
        comers.join().unwrap();
    });
}

/// Somebody who listens where the meeting should be, and does this with whoever calls.
fn false_host(deed: impl Fn(TcpStream) + Send + 'static) -> Invitation {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(deed));
    Invitation::new(address, secret())
}

#[test]
fn a_false_host_is_not_believed() {
    let endless = false_host(|mut stream| while stream.write_all(&[b'x'; 4096]).is_ok() {});
    let error = endless.join(0, 2, MOMENT).unwrap_err().to_string();
    assert!(error.ends_with("whoever listens there is not ringstep, or another version of it"), "{error}");

    // It has the first words of a real one, and then talks for ever.
    let guessing = false_host(|mut stream| {
        let _ = stream.write_all(&Secret::challenge().unwrap());
        let _ = stream.read_exact(&mut [0; RESPONSE]);
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let error = guessing.join(0, 2, MOMENT).unwrap_err().to_string();
    assert!(error.ends_with("whoever listens there has another secret than this job"), "{error}");

    let silent = false_host(|stream| drop(stream.set_nodelay(true).map(|()| std::mem::forget(stream))));
    let error = silent.join(0, 2, MOMENT).unwrap_err().to_string();
    assert!(error.contains("rank 0: connect to the rendezvous at 127.0.0.1:"), "{error}");
}

#[test]
fn a_directory_is_bounded_in_length_and_time() {
    let with_directory = |write: fn(&mut TcpStream)| {
        let mut door = Door::open(loopback(), secret()).unwrap();
        let invitation = Invitation::new(door.address().unwrap(), secret());
        let host = thread::spawn(move || {
            let (_, stream) = door.admit(Instant::now() + PATIENCE).unwrap().unwrap();
            write(&mut stream.socket().try_clone().unwrap());
        });
        let error = invitation.join(0, 2, MOMENT).unwrap_err().to_string();
        host.join().unwrap();
        error
    };
    let too_long = with_directory(|stream| stream.write_all(&u32::MAX.to_le_bytes()).unwrap());
    assert!(too_long.ends_with("a message of 4294967295 bytes, of which 176 are taken"), "{too_long}");
    let dripping = with_directory(|stream| {
        stream.write_all(&100_u32.to_le_bytes()).unwrap();
        while stream.write_all(b"1").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(dripping.starts_with("rank 0: wait for the others: "), "{dripping}");
    let nonsense = with_directory(|stream| stream.write_all(b"\x05\0\0\0hello").unwrap());
    assert_eq!(nonsense, "rank 0: the rendezvous ended before all ranks were there");
}
