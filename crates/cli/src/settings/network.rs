//! How worker processes reach each other.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use ringstep_comm::transport::DEFAULT_TIMEOUT;
use serde::{Deserialize, Serialize};

use crate::names::{ByName, choices};

/// Flags about the network.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Network")]
pub struct NetworkFlags {
    /// How worker processes talk: auto, in shared memory within a host and over tcp between hosts; tcp, over it within a
    /// host too; shm, in shared memory, all on one host [default: auto]
    #[arg(long)]
    pub transport: Option<ByName<ProcessTransport>>,
    /// Address of this machine at which worker processes meet, for workers that have networks of their own [default:
    /// 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub meet: Option<IpAddr>,
    /// Give a worker up that owes another something and says nothing for so long [default: 60]
    #[arg(long, value_name = "SECONDS", hide_short_help = true)]
    pub timeout: Option<f64>,
}

choices! {
    /// How worker processes talk.
    pub enum ProcessTransport: "transport" {
        /// Through shared memory within a host, over TCP between hosts.
        Auto = "auto",
        /// Over TCP, also within a host.
        Tcp = "tcp",
        /// Through shared memory; all must be on one host.
        Shm = "shm",
    }
}

impl NetworkFlags {
    /// How worker processes talk, and where they meet.
    pub fn of_processes(&mut self) -> (ProcessTransport, IpAddr) {
        let ByName(transport) = *self.transport.get_or_insert(ByName(ProcessTransport::Auto));
        (transport, *self.meet.get_or_insert(Ipv4Addr::LOCALHOST.into()))
    }

    /// How long one worker waits for another that says nothing.
    pub fn timeout(&mut self) -> Result<Duration> {
        let seconds = *self.timeout.get_or_insert(DEFAULT_TIMEOUT.as_secs_f64());
        let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
        // A year is as good as for ever, and can be added to any moment.
        timeout
            .filter(|timeout| timeout.as_secs() <= 365 * 24 * 3600)
            .with_context(|| format!("timeout is {seconds}: it must be positive, and at most a year in seconds"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_some_time() {
        let timeout = |seconds| NetworkFlags { timeout: seconds, ..NetworkFlags::default() }.timeout();
        assert_eq!(timeout(None).unwrap(), DEFAULT_TIMEOUT);
        assert_eq!(timeout(Some(0.5)).unwrap(), Duration::from_millis(500));
        for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e18] {
            let told = timeout(Some(nonsense)).unwrap_err().to_string();
            assert!(told.starts_with(&format!("timeout is {nonsense}: ")), "{told}");
        }
    }
}
