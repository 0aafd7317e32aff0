//! A meeting among strangers: real connections of every kind of ill will, and the ranks come together all the same.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};
use ringstep_comm::{Algorithm, Group, Op};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(60);
const WORLD: usize = 4;
/// How many strangers are there before the first rank comes: more than wait at a time.
const CROWD: usize = 1000;
/// What a rank says to a challenge.
const RESPONSE: usize = 128;

fn secret() -> Secret {
    Secret::of(b"what the ranks of this test know")
}

/// As many descriptors as the system allows.
fn with_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// All ranks meet, and find the right sum.
fn meet(meeting: &mut Meeting, invitation: &Invitation) {
    thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                let mut group = Group::new(invitation.join(rank, WORLD, PATIENCE).unwrap());
                let mut values = [rank as f32, 1.0];
                group.all_reduce(&mut values, Op::Sum, Algorithm::Ring).unwrap();
                assert_eq!(values, [6.0, 4.0]);
            })
        };
        let ranks: Vec<_> = (0..WORLD).map(rank).collect();
        meeting.host(WORLD, PATIENCE).unwrap();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// What a rank says to the meeting, as heard by somebody between the two.
fn overheard() -> Vec<u8> {
    let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), secret()).unwrap();
    let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let invitation = Invitation::new(between.local_addr().unwrap(), secret());
    let rank = thread::spawn(move || invitation.join(0, 1, PATIENCE).map(drop));
    let address = meeting.address();
    let host = thread::spawn(move || meeting.host(1, PATIENCE));
    let (mut caller, _) = between.accept().unwrap();
    let mut door = TcpStream::connect(address).unwrap();
    let mut challenge = [0; 64];
    door.read_exact(&mut challenge).unwrap();
    caller.write_all(&challenge).unwrap();
    let mut response = [0; RESPONSE];
    caller.read_exact(&mut response).unwrap();
    door.write_all(&response).unwrap();
    thread::spawn(move || std::io::copy(&mut door, &mut caller));
    host.join().unwrap().unwrap();
    rank.join().unwrap().unwrap();
    response.to_vec()
}

/// One call of ill will; whoever stays on the line is kept.
fn harass(kind: usize, address: SocketAddr, response: &[u8], kept: &Mutex<Vec<TcpStream>>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    match kind {
        // Silence.
        0 => {}
        // Garbage, before and after the challenge.
        1 => stream.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")?,
        2 => stream.write_all(&[0xff; 100_000])?,
        // Half of what is asked for.
        3 => stream.write_all(&response[..RESPONSE / 2])?,
        // A byte now and then.
        4 => {
            for byte in &response[..4] {
                stream.write_all(&[*byte])?;
                thread::sleep(Duration::from_millis(5));
            }
        }
        // The right introduction with a wrong proof, or with the proof of another connection.
        _ => {
            stream.read_exact(&mut [0; 64])?;
            let mut words = response.to_vec();
            if kind == 5 {
                words[RESPONSE - 1] ^= 1;
            }
            stream.write_all(&words)?;
            assert_eq!(stream.read(&mut [0])?, 0, "it was let in");
            return Ok(());
        }
    }
    kept.lock().unwrap().push(stream);
    Ok(())
}

#[test]
fn thousands_of_strangers_keep_nobody_out() {
    with_many_descriptors();
    let response = overheard();
    let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), secret()).unwrap();
    let invitation = Invitation::new(meeting.address(), secret());
    let (over, calls, kept) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let call = calls.fetch_add(1, Ordering::Relaxed);
                    if call >= 3000 {
                        break;
                    }
                    // Nobody is asked for a proof before the meeting begins.
                    let kinds = if call < CROWD { 5 } else { 7 };
                    // Whatever becomes of it.
                    let _ = harass(call % kinds, invitation.meeting, &response, &kept);
                }
            });
        }
        while calls.load(Ordering::Relaxed) < CROWD {
            thread::sleep(Duration::from_millis(1));
        }
        meet(&mut meeting, &invitation);
        over.store(true, Ordering::Relaxed);
    });
    assert!(kept.into_inner().unwrap().len() > 300);
}

const CHILD: &str = "RINGSTEP_TEST_HOST_WITHOUT_DESCRIPTORS";

/// The host of the test below, in a process of its own: it has no descriptor left when ranks call.
#[test]
fn host_without_descriptors() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), secret()).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let hoard: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    println!("address {}", meeting.address());
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        drop(hoard);
    });
    meeting.host(WORLD, PATIENCE).unwrap();
}

#[test]
fn a_host_without_descriptors_waits_until_it_has_some() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "host_without_descriptors", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let address: SocketAddr = loop {
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        said.push(byte[0] as char);
        if let Some(address) = said.split("address ").nth(1).and_then(|rest| rest.strip_suffix('\n')) {
            break address.parse().unwrap();
        }
    };
    let invitation = Invitation::new(address, secret());
    let ranks: Vec<_> = (0..WORLD)
        .map(|rank| {
            let invitation = invitation.clone();
            thread::spawn(move || invitation.join(rank, WORLD, PATIENCE).map(drop))
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    assert!(child.wait().unwrap().success());
}
