//! How long ranks take to meet, each proving to the host and to every other that it belongs to the job, beside as many connections
//! that prove nothing: `meeting [RANKS [TIMES]]`. Prints medians in microseconds as JSON.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};

const TIMEOUT: Duration = Duration::from_secs(20);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<usize>().expect("a number"));
    let (ranks, times) = (arguments.next().unwrap_or(4), arguments.next().unwrap_or(101));
    let (mut proved, mut plain): (Vec<_>, Vec<_>) = (0..times).map(|_| (meet(ranks), connect(ranks))).unzip();
    let median = |all: &mut [Duration]| {
        all.sort_unstable();
        all[all.len() / 2].as_secs_f64() * 1e6
    };
    let (proved, plain) = (median(&mut proved), median(&mut plain));
    println!("{{\"ranks\": {ranks}, \"meeting\": {proved:.1}, \"connections\": {plain:.1}}}");
}

/// All ranks as threads, from the first call to the last connection.
fn meet(ranks: usize) -> Duration {
    let secret = Secret::of(b"an example");
    let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), secret.clone()).expect("a port");
    let invitation = Invitation::new(meeting.address(), secret);
    let began = Instant::now();
    thread::scope(|scope| {
        let join = |rank| invitation.join(rank, ranks, TIMEOUT).expect("all meet");
        let joined: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || join(rank))).collect();
        meeting.host(ranks, TIMEOUT).expect("all meet");
        let all: Vec<_> = joined.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let took = began.elapsed();
        drop(all);
        took
    })
}

/// As many connections, to a host and between all pairs, with one byte there and back on each.
fn connect(ranks: usize) -> Duration {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let began = Instant::now();
    let count = ranks + ranks * (ranks - 1) / 2;
    thread::scope(|scope| {
        for rank in 0..ranks {
            let calls = (rank..count).step_by(ranks).count();
            scope.spawn(move || {
                for _ in 0..calls {
                    let mut stream = TcpStream::connect(address).expect("the listener is there");
                    stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut [0])).expect("an answer");
                }
            });
        }
        for _ in 0..count {
            let (mut stream, _) = listener.accept().expect("a caller");
            stream.read_exact(&mut [0]).and_then(|()| stream.write_all(&[1])).expect("a byte");
        }
    });
    began.elapsed()
}
