//! How worker processes reach each other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use ringstep_comm::rendezvous::Encryption;
use ringstep_comm::transport::{DEFAULT_TIMEOUT, Net};
use serde::{Deserialize, Serialize};

use crate::names::{ByName, Refusal, as_text, choices};

/// Flags about the network.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Network")]
pub struct NetworkFlags {
    /// How worker processes talk: auto, in shared memory within a host and over tcp between hosts; tcp or shm; mpi, under
    /// mpirun [default: auto]
    #[arg(long)]
    pub transport: Option<ByName<ProcessTransport>>,
    /// Address of this machine at which worker processes meet, for workers that have networks of their own [default:
    /// 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub meet: Option<IpAddr>,
    /// Give a worker up that owes another something and says nothing for so long [default: 60]
    #[arg(long, value_name = "SECONDS", hide_short_help = true)]
    pub timeout: Option<f64>,
    /// Let messages between workers pass no faster than over such a network, as in bandwidth=100Mbit,latency=1ms; either
    /// may be missing
    #[arg(long, value_name = "LINK", hide_short_help = true)]
    pub net: Option<Link>,
    /// Encrypt what goes between hosts, by keys that are derived from the job's secret; all processes of a job must be told
    /// [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, hide_short_help = true)]
    pub tls: Option<bool>,
}

/// What a network can do, as it was typed and as it is meant.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    text: String,
    net: Net,
}

/// Units of bandwidths, in bytes a second.
const RATES: [(&str, f64); 11] = [
    ("bit", 0.125),
    ("kbit", 125.0),
    ("Mbit", 125e3),
    ("Gbit", 125e6),
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

/// Units of latencies, in seconds.
const TIMES: [(&str, f64); 3] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];

/// The slowest network, in bytes a second, over which anything arrives in some time.
const LEAST_RATE: f64 = 125.0;

/// The longest latency, in seconds.
const MOST_LATENCY: f64 = 10.0;

/// A number and its unit.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    // No unit of bits differs from another by its case alone.
    let same = |name: &str| name == unit || (name.ends_with("bit") && name.eq_ignore_ascii_case(unit));
    let (_, factor) = units.iter().find(|(name, _)| same(name))?;
    Some(number.trim().parse::<f64>().ok()? * factor)
}

/// A bandwidth, in bytes a second, if it is one.
pub fn rate(text: &str) -> Option<f64> {
    measure(text.strip_suffix("/s").unwrap_or(text), &RATES).filter(|rate| (LEAST_RATE..f64::INFINITY).contains(rate))
}

/// A latency, in seconds, if it is one.
pub fn latency(text: &str) -> Option<f64> {
    measure(text, &TIMES).filter(|seconds| (0.0..=MOST_LATENCY).contains(seconds))
}

impl FromStr for Link {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let mut net = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
        let names: Vec<&str> =
            text.split(',').filter_map(|part| part.split_once('=')).map(|(name, _)| name.trim()).collect();
        if let [first, .., last] = names[..]
            && first == last
        {
            return Err(anyhow!("--net {text}: {first} is given twice").into());
        }
        for part in text.split(',') {
            match part.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
                Some(("bandwidth", value)) => {
                    let rate = measure(value.strip_suffix("/s").unwrap_or(value), &RATES);
                    let rate = rate.with_context(|| format!("--net {part}: write 100Mbit or 10MB, a second"))?;
                    if !(LEAST_RATE..f64::INFINITY).contains(&rate) {
                        return Err(anyhow!("--net {part}: a bandwidth is at least 1kbit a second").into());
                    }
                    net.bytes_per_second = rate;
                }
                Some(("latency", value)) => {
                    let seconds = measure(value, &TIMES);
                    let seconds = seconds.with_context(|| format!("--net {part}: write 50us, 1ms or 0.1s"))?;
                    if !(0.0..=MOST_LATENCY).contains(&seconds) {
                        return Err(anyhow!("--net {part}: a latency is at least 0 and at most 10s").into());
                    }
                    net.latency = Duration::from_secs_f64(seconds);
                }
                _ => return Err(anyhow!("--net {text}: write bandwidth=100Mbit,latency=1ms, or one of the two").into()),
            }
        }
        Ok(Self { text: text.to_owned(), net })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!([] Link);

impl Link {
    /// What it can do.
    pub fn net(&self) -> Net {
        self.net
    }
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
        /// By MPI, which has started them.
        Mpi = "mpi" if cfg!(feature = "mpi"),
    }
}

impl NetworkFlags {
    /// How worker processes talk, and where they meet.
    pub fn of_processes(&mut self) -> (ProcessTransport, IpAddr) {
        let ByName(transport) = *self.transport.get_or_insert(ByName(ProcessTransport::Auto));
        (transport, *self.meet.get_or_insert(Ipv4Addr::LOCALHOST.into()))
    }

    /// What worker processes that talk like this encrypt.
    pub fn encryption(&mut self, transport: ProcessTransport) -> Result<Encryption> {
        let tls = *self.tls.get_or_insert(false);
        ensure!(
            !tls || transport != ProcessTransport::Shm,
            "--tls encrypts what goes between hosts, and with --transport shm all workers are on one"
        );
        ensure!(
            !tls || transport != ProcessTransport::Mpi,
            "--tls encrypts what ringstep sends, and with --transport mpi it is MPI that sends"
        );
        Ok(if tls { Encryption::BetweenHosts } else { Encryption::None })
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
    fn a_link_has_a_bandwidth_a_latency_or_both() {
        let link = |text: &str| text.parse::<Link>().map(|link| (link.net.bytes_per_second, link.net.latency));
        let (endless, none) = (f64::INFINITY, Duration::ZERO);
        for (text, expected) in [
            ("bandwidth=100Mbit,latency=1ms", (12.5e6, Duration::from_millis(1))),
            ("bandwidth=8kbit", (1e3, none)),
            ("bandwidth=1gbit", (125e6, none)),
            ("bandwidth=1.5 MiB/s", (1.5 * 1_048_576.0, none)),
            ("latency=50us", (endless, Duration::from_micros(50))),
            ("latency=0s", (endless, none)),
        ] {
            assert_eq!(link(text).unwrap(), expected, "{text}");
            assert_eq!(text.parse::<Link>().unwrap().to_string(), text);
        }
        for (text, told) in [
            ("", "--net : write bandwidth=100Mbit,latency=1ms, or one of the two"),
            ("100Mbit", "--net 100Mbit: write bandwidth=100Mbit,latency=1ms, or one of the two"),
            ("bandwidth=100", "--net bandwidth=100: write 100Mbit or 10MB, a second"),
            ("bandwidth=0Mbit", "--net bandwidth=0Mbit: a bandwidth is at least 1kbit a second"),
            ("latency=1ms,latency=2ms", "--net latency=1ms,latency=2ms: latency is given twice"),
            ("bandwidth=-1Gbit", "--net bandwidth=-1Gbit: a bandwidth is at least 1kbit a second"),
            ("bandwidth=1Mbit,latency=1h", "--net latency=1h: write 50us, 1ms or 0.1s"),
            ("latency=-1ms", "--net latency=-1ms: a latency is at least 0 and at most 10s"),
        ] {
            assert_eq!(link(text).unwrap_err().to_string(), told);
        }
    }

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
