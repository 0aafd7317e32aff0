//! Two processes, one all-reduce through shared memory: `cargo run -p ringstep-comm --example two_processes`
//!
//! The first process hosts the meeting, starts the second one with its address, and is rank 0 itself. The secret that keeps
//! strangers out goes to the second one's standard input.

use std::error::Error;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::{Algorithm, Group, Op};

const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let mut random = [0; 32];
    if let Some(address) = std::env::args().nth(1) {
        std::io::stdin().read_exact(&mut random)?;
        return work(1, &Invitation::new(address.parse()?, Secret::of(&random)));
    }
    getrandom::fill(&mut random)?;
    let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), Secret::of(&random))?;
    let address = meeting.address();
    let mut second = Command::new(std::env::current_exe()?).arg(address.to_string()).stdin(Stdio::piped()).spawn()?;
    second.stdin.take().expect("it is piped").write_all(&random)?;
    std::thread::spawn(move || meeting.host(2, PATIENCE));
    work(0, &Invitation::new(address, Secret::of(&random)))?;
    second.wait()?;
    Ok(())
}

fn work(rank: usize, invitation: &Invitation) -> Result<(), Box<dyn Error>> {
    let tcp = invitation.join(rank, 2, PATIENCE)?;
    let mut group = Group::new(Shm::over(tcp)?);
    let mut values = [rank as f32 + 1.0, 10.0];
    group.all_reduce(&mut values, Op::Sum, Algorithm::Direct)?;
    println!("rank {rank} of {} has {values:?}", group.world()); // [3.0, 20.0] on both
    Ok(())
}
