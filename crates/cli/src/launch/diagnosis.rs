//! What is wrong with a run that does not go on, and with whom.
//!
//! When one rank fails or falls silent the others lose it, or wait for it or for one that does, and say so of their neighbour.
//! So the launcher listens to all: who has [signs of life](super::pulse), and who waits for whom. The one that everybody waits
//! for is the one that waits for nobody: it is stopped or cut off if it has no signs of life, and slow if it has.
//!
//! | what is noticed | when | what becomes of it |
//! | --- | --- | --- |
//! | a rank is gone, or has failed | at once | the run ends |
//! | a rank owes a message, and others have waited for it | after 10 s | a line that names it |
//! | the same | after `--timeout` | the run ends: the first that waited so long gives up |
//! | a process has no signs of life | after 10 s, `--timeout` | the same, whether or not anybody waits for it |
//! | a rank is slow, and owes nothing: `meet`, stale parameters | after 10 s | a line that names it |

use std::io;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use ringstep_comm::rendezvous::RendezvousError;
use ringstep_comm::transport::{Cause, TransportError};
use ringstep_comm::{CollectiveError, Failure};
use ringstep_train::error::WorkerError;
use serde::{Deserialize, Serialize};

use super::protocol::Message;
use super::pulse::Waiting;

/// How much a failure says about the cause of the end, less first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Blame {
    /// It only failed because another rank was gone.
    LostPeer,
    /// It only failed because another rank was silent for too long.
    SilentPeer,
    /// It failed by itself.
    OwnError,
    /// The same, and it would again.
    Hopeless,
    /// It is gone without a word.
    Died,
}

impl Blame {
    /// How much an error of a rank says.
    pub fn of(error: &anyhow::Error) -> Self {
        let collective = match error.downcast_ref() {
            Some(WorkerError::Collective(error)) => Some(error),
            _ => error.downcast_ref::<CollectiveError>(),
        };
        let cause = match collective {
            Some(error) => error.cause(),
            None => error.downcast_ref::<TransportError>().map(|error| &error.cause),
        };
        let after_a_failure = collective.is_some_and(|error| matches!(error.error, Failure::Unusable(_)));
        let waited_in_vain = matches!(error.downcast_ref(), Some(WorkerError::Silent { .. }));
        match cause {
            Some(Cause::TimedOut(_)) => Self::SilentPeer,
            _ if waited_in_vain => Self::SilentPeer,
            Some(Cause::Closed | Cause::Aborted) => Self::LostPeer,
            Some(Cause::Io(error)) if is_cut_off(error) => Self::LostPeer,
            _ if after_a_failure || error.is::<RendezvousError>() => Self::LostPeer,
            Some(_) => Self::OwnError,
            None => match error.downcast_ref() {
                Some(WorkerError::Abandoned { .. }) => Self::LostPeer,
                Some(WorkerError::NoThread { .. }) => Self::OwnError,
                _ => Self::Hopeless,
            },
        }
    }
}

/// Whether a peer cannot be reached any more.
fn is_cut_off(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut)
}

/// From then on it is said who is waited for.
const WORTH_A_LINE: Duration = Duration::from_secs(10);
/// How long a failure waits for others that may be its cause.
pub(super) const AUTOPSY: Duration = Duration::from_millis(300);
/// No look at the clock takes longer: if it did, this process was suspended, and perhaps the others with it.
const LONGEST_LOOK: Duration = Duration::from_millis(200);

/// What is known of the ranks of a run.
pub(super) struct Diagnosis {
    ranks: Vec<Sight>,
    /// After which silence is a fault.
    timeout: Duration,
    /// How long the run has gone on, as far as this process was there to see it.
    now: Duration,
    looked: Instant,
    findings: Vec<Finding>,
    /// When the findings are summed up.
    due: Option<Duration>,
    /// Whom the last line was about.
    told: Vec<usize>,
    /// Those that have just joined the others, who can do without them.
    joining: Vec<usize>,
}

/// What is known of a rank.
#[derive(Default)]
struct Sight {
    /// Where it is, if that is another host than this one.
    host: Option<String>,
    heard: Duration,
    waits: Vec<Waiting>,
    /// For whom it has waited without a break, and since when.
    stuck: Option<(Vec<usize>, Duration)>,
    /// It has done its part.
    done: bool,
    /// It has said why it stops, or is gone.
    failed: bool,
}

/// Why a run fails, as one rank saw it, or the launcher.
struct Finding {
    /// The rank that said so, or that it is about.
    rank: Option<usize>,
    blame: Blame,
    description: String,
}

impl Diagnosis {
    /// Of so many ranks, that may be silent for so long.
    pub fn new(world: usize, timeout: Duration) -> Self {
        let ranks = (0..world).map(|_| Sight::default()).collect();
        let (now, looked) = (Duration::ZERO, Instant::now());
        Self { ranks, timeout, now, looked, findings: Vec::new(), due: None, told: Vec::new(), joining: Vec::new() }
    }

    /// The same where some of them have just joined the others.
    pub fn with_joining(self, joining: &[usize]) -> Self {
        Self { joining: joining.to_vec(), ..self }
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// A rank is on another host than this process.
    pub fn set_host(&mut self, rank: usize, host: Option<String>) {
        self.ranks[rank].host = host;
    }

    /// Whether the run is going to end.
    pub fn found_something(&self) -> bool {
        self.due.is_some()
    }

    /// How much the finding says that says most.
    pub fn worst(&self) -> Blame {
        self.findings.iter().map(|finding| finding.blame).max().unwrap_or(Blame::LostPeer)
    }

    /// Whether something was found that would happen again.
    pub fn is_hopeless(&self) -> bool {
        let has_joined = |finding: &Finding| finding.rank.is_some_and(|rank| self.joining.contains(&rank));
        self.findings.iter().any(|finding| finding.blame == Blame::Hopeless && !has_joined(finding))
    }

    /// Nothing more will be heard: what there is has to do.
    pub fn conclude(&mut self) {
        self.due = Some(self.now);
    }

    /// The first rank that has neither done its part nor said why not.
    pub fn unfinished(&self) -> Option<usize> {
        self.ranks.iter().position(|sight| !sight.done)
    }

    /// A rank says something.
    pub fn hear(&mut self, rank: usize, message: &Message) {
        let (now, sight) = (self.now, &mut self.ranks[rank]);
        sight.heard = now;
        match message {
            Message::Pulse(waits) => {
                sight.waits.clone_from(waits);
                let longest = waits.iter().max_by_key(|wait| wait.time);
                sight.stuck = longest.map(|wait| match sight.stuck.take() {
                    Some((peers, since)) if peers == wait.peers => (peers, since),
                    _ => (wait.peers.clone(), now.saturating_sub(wait.time)),
                });
            }
            Message::Failed { error, blame } => {
                sight.failed = true;
                // Whoever passes it on does not know by which name its host is known here.
                let error = match error.strip_prefix(&format!("rank {rank} ")) {
                    Some(rest) => format!("{} {rest}", self.name(rank)),
                    None => error.clone(),
                };
                self.find(Some(rank), *blame, error);
            }
            message if message.is_last() => sight.done = true,
            // It has come further.
            _ => sight.stuck = None,
        }
    }

    /// A rank will never speak again; `obituary` says how it ended.
    pub fn lose(&mut self, rank: usize, obituary: impl FnOnce() -> String) {
        if !self.ranks[rank].done && !self.ranks[rank].failed {
            self.ranks[rank].failed = true;
            let description = format!("{} {}", self.name(rank), obituary());
            self.find(Some(rank), Blame::Died, description);
        }
    }

    /// The ranks did not come together.
    pub fn no_meeting(&mut self, error: &RendezvousError) {
        self.find(None, Blame::OwnError, error.to_string());
    }

    fn find(&mut self, rank: Option<usize>, blame: Blame, description: String) {
        self.findings.push(Finding { rank, blame, description });
        self.due.get_or_insert(self.now + AUTOPSY);
    }

    /// Looks at the clock. Returns a line for the user, if there is something new to say; an error if the run has to end.
    pub fn look(&mut self) -> anyhow::Result<Option<String>> {
        self.now += self.looked.elapsed().min(LONGEST_LOOK);
        self.looked = Instant::now();
        if self.due.is_none() && self.ranks.iter().any(|sight| !sight.done && self.silence(sight) >= self.timeout) {
            let description = format!("nothing heard for {:?}{}", self.timeout, self.scene());
            self.find(None, Blame::SilentPeer, description);
            self.conclude();
        }
        match self.due {
            Some(due) if self.now >= due => Err(self.verdict()),
            Some(_) => Ok(None),
            None => Ok(self.line()),
        }
    }

    fn silence(&self, sight: &Sight) -> Duration {
        self.now.saturating_sub(sight.heard)
    }

    /// Those without signs of life.
    fn silent(&self) -> Vec<usize> {
        // Several signs are missing.
        let long = (self.timeout / 2).min(WORTH_A_LINE / 2);
        let is_silent = |sight: &Sight| !sight.done && !sight.failed && self.silence(sight) > long;
        (0..self.world()).filter(|&rank| is_silent(&self.ranks[rank])).collect()
    }

    /// Those that others wait for, and that wait for nobody.
    fn slow(&self) -> Vec<usize> {
        let is_waited_for = |rank| self.ranks.iter().flat_map(|sight| &sight.waits).any(|it| it.peers.contains(&rank));
        let goes_on = |sight: &Sight| !sight.done && !sight.failed && sight.waits.is_empty();
        (0..self.world()).filter(|&rank| goes_on(&self.ranks[rank]) && is_waited_for(rank)).collect()
    }

    /// What the others wait in, those first that wait for the one that is the cause.
    fn scene(&self) -> String {
        let cause = self.silent();
        let waiting = |rank: &usize| !self.ranks[*rank].failed && !cause.contains(rank);
        let waits =
            || (0..self.world()).filter(waiting).flat_map(|rank| self.ranks[rank].waits.first().zip(Some(rank)));
        let first = waits().find(|(wait, _)| wait.peers.iter().any(|peer| cause.contains(peer)));
        match first.or_else(|| waits().next()) {
            Some((wait, rank)) => format!("; rank {rank} waits in {}", wait.what),
            None => String::new(),
        }
    }

    /// What there is to say about a run that has not failed.
    fn line(&mut self) -> Option<String> {
        let running = || self.ranks.iter().filter(|sight| !sight.done);
        let stuck =
            running().filter_map(|sight| sight.stuck.as_ref()).map(|(_, since)| self.now.saturating_sub(*since));
        let longest = stuck.chain(running().map(|sight| self.silence(sight))).max().unwrap_or_default();
        if longest < WORTH_A_LINE {
            let went_on = std::mem::take(&mut self.told);
            return (!went_on.is_empty()).then(|| format!("{} {} on", self.names(&went_on), verb(&went_on, "go")));
        }
        let silent = self.silent();
        let (whom, line) = match silent.is_empty() {
            false => (silent.clone(), format!("{} {} not answer", self.names(&silent), verb(&silent, "do"))),
            true => {
                let slow = self.slow();
                let line = format!("{} {} the others wait", self.names(&slow), verb(&slow, "let"));
                (slow, line)
            }
        };
        if whom.is_empty() || whom == self.told {
            return None;
        }
        self.told = whom;
        Some(format!("{line}, for {} s now{}", longest.as_secs(), self.scene()))
    }

    /// What to tell the user: the cause rather than an effect.
    fn verdict(&self) -> anyhow::Error {
        // Of equals the first: it noticed first.
        let worst = self.findings.iter().rev().max_by_key(|finding| finding.blame).expect("something was found");
        let (silent, slow) = (self.silent(), self.slow());
        match worst.blame {
            Blame::OwnError | Blame::Hopeless => anyhow!(worst.description.clone()),
            // How the others noticed: in which collective.
            Blame::Died => match self.effect_of(worst.rank.as_slice(), worst) {
                description if description == worst.description => anyhow!(description.to_owned()),
                description => anyhow!("{} ({description})", worst.description),
            },
            Blame::LostPeer | Blame::SilentPeer if !silent.is_empty() => {
                let effect = self.effect_of(&silent, worst);
                anyhow!("{} {} not answer any more ({effect})", self.names(&silent), verb(&silent, "do"))
            }
            Blame::SilentPeer if !slow.is_empty() => {
                let effect = self.effect_of(&slow, worst);
                anyhow!("{} {} the others wait for too long ({effect})", self.names(&slow), verb(&slow, "let"))
            }
            Blame::LostPeer | Blame::SilentPeer => anyhow!(worst.description.clone()),
        }
    }

    /// What was found by one that waited for the cause itself, if anybody did.
    fn effect_of<'a>(&'a self, cause: &[usize], otherwise: &'a Finding) -> &'a str {
        let names_it = |finding: &&Finding| {
            cause.iter().any(|rank| finding.description.contains(&format!("from rank {rank}:")))
                || cause.iter().any(|rank| finding.description.contains(&format!("to rank {rank}:")))
        };
        &self.findings.iter().find(names_it).unwrap_or(otherwise).description
    }

    fn name(&self, rank: usize) -> String {
        match &self.ranks[rank].host {
            Some(host) => format!("rank {rank} on {host}"),
            None => format!("rank {rank}"),
        }
    }

    /// "rank 2 on node1", "ranks 1, 2 and 3".
    fn names(&self, ranks: &[usize]) -> String {
        let [many @ .., last] = ranks else { return "no rank".to_owned() };
        if many.is_empty() {
            return self.name(*last);
        }
        let host = &self.ranks[*last].host;
        let together = many.iter().all(|&rank| self.ranks[rank].host == *host);
        let place = host.as_ref().filter(|_| together).map(|host| format!(" on {host}")).unwrap_or_default();
        let many: Vec<String> = many.iter().map(usize::to_string).collect();
        format!("ranks {} and {last}{place}", many.join(", "))
    }
}

/// What one does, or several do.
fn verb(whom: &[usize], word: &str) -> String {
    let ending = if word.ends_with('o') { "es" } else { "s" };
    if whom.len() == 1 { format!("{word}{ending}") } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn waits(peer: usize, what: &str, seconds: u64) -> Message {
        let time = Duration::from_secs(seconds);
        Message::Pulse(vec![Waiting { what: what.to_owned(), peers: vec![peer], time }])
    }

    fn gives_up(rank: usize, on: usize) -> Message {
        let error = format!("rank {rank}: bucket 1, all_reduce #7 (ring): recv from rank {on}: timed out after 60s");
        Message::Failed { error, blame: Blame::SilentPeer }
    }

    /// Seconds in which each of these ranks says the same again and again; returns the lines that come of it.
    fn pass(diagnosis: &mut Diagnosis, seconds: u64, say: &dyn Fn(u64) -> Vec<(usize, Message)>) -> Vec<String> {
        let mut lines = Vec::new();
        for second in 0..seconds {
            for (rank, message) in say(second) {
                diagnosis.hear(rank, &message);
            }
            diagnosis.now += Duration::from_secs(1);
            lines.extend(diagnosis.look().unwrap());
        }
        lines
    }

    /// Each waits for its neighbour, and rank 2, the cause, says nothing.
    fn ring(second: u64) -> Vec<(usize, Message)> {
        let what = "bucket 1, all_reduce #7 (ring)";
        [(3, 2), (0, 3), (1, 0)].map(|(rank, on)| (rank, waits(on, what, second))).to_vec()
    }

    #[test]
    fn the_one_that_everybody_waits_for_is_named_and_not_a_neighbour() {
        let mut diagnosis = Diagnosis::new(4, TIMEOUT);
        diagnosis.set_host(2, Some("node1".to_owned()));
        let lines = pass(&mut diagnosis, 59, &ring);
        let expected = "rank 2 on node1 does not answer, for 10 s now; rank 3 waits in bucket 1, all_reduce #7 (ring)";
        assert_eq!(lines, [expected]);
        diagnosis.hear(0, &gives_up(0, 3));
        diagnosis.hear(3, &gives_up(3, 2));
        diagnosis.now += AUTOPSY;
        let expected = "rank 2 on node1 does not answer any more (rank 3: bucket 1, all_reduce #7 (ring): recv from rank 2: \
                        timed out after 60s)";
        assert_eq!(diagnosis.look().unwrap_err().to_string(), expected);
    }

    #[test]
    fn one_that_nobody_waits_for_is_missed_too() {
        let mut diagnosis = Diagnosis::new(3, TIMEOUT);
        let others = |_| vec![(0, Message::Pulse(Vec::new())), (2, Message::Pulse(Vec::new()))];
        assert_eq!(pass(&mut diagnosis, 59, &others), ["rank 1 does not answer, for 10 s now"]);
        diagnosis.now += Duration::from_secs(1);
        let expected = "rank 1 does not answer any more (nothing heard for 60s)";
        assert_eq!(diagnosis.look().unwrap_err().to_string(), expected);
    }

    #[test]
    fn one_that_is_slow_is_named_and_may_go_on_for_ever() {
        let mut diagnosis = Diagnosis::new(2, TIMEOUT);
        let meet = |second| vec![(0, waits(1, "meet #3", second)), (1, Message::Pulse(Vec::new()))];
        let lines = pass(&mut diagnosis, 300, &meet);
        assert_eq!(lines, ["rank 1 lets the others wait, for 10 s now; rank 0 waits in meet #3"]);
        let on = |_| vec![(0, Message::Pulse(Vec::new())), (1, Message::Pulse(Vec::new()))];
        assert_eq!(pass(&mut diagnosis, 5, &on), ["rank 1 goes on"]);
        // Where it owes something, whoever waits gives it up.
        pass(&mut diagnosis, 59, &meet);
        diagnosis.hear(0, &gives_up(0, 1));
        diagnosis.conclude();
        let error = diagnosis.look().unwrap_err().to_string();
        assert!(
            error.starts_with("rank 1 lets the others wait for too long (rank 0: bucket 1, all_reduce #7"),
            "{error}"
        );
    }

    /// Waits that end and begin again are none that need a line, though each sign of life falls into one.
    #[test]
    fn one_that_comes_further_is_not_stuck() {
        let mut diagnosis = Diagnosis::new(2, TIMEOUT);
        let steps = || Message::Report(ringstep_train::records::Report::Steps(Vec::new()));
        let slowly = |_| vec![(0, steps()), (0, waits(1, "all_reduce #9", 0)), (1, Message::Pulse(Vec::new()))];
        assert!(pass(&mut diagnosis, 100, &slowly).is_empty());
    }

    #[test]
    fn a_death_comes_first_and_says_where_it_was_noticed() {
        let mut diagnosis = Diagnosis::new(4, TIMEOUT);
        diagnosis.set_host(2, Some("node1".to_owned()));
        let lost = |rank: usize, peer: usize| {
            format!("rank {rank}: bucket 0, all_reduce #9 (ring): recv from rank {peer}: connection closed")
        };
        // Rank 0 lost the one that had lost the dead one, and was heard first.
        for (rank, peer) in [(0, 1), (1, 2)] {
            diagnosis.hear(rank, &Message::Failed { error: lost(rank, peer), blame: Blame::LostPeer });
        }
        // Passed on by the process that had started it.
        diagnosis.hear(2, &Message::Failed { error: "rank 2 died: killed by signal 9".to_owned(), blame: Blame::Died });
        diagnosis.lose(1, || unreachable!("it has said why"));
        diagnosis.now += AUTOPSY;
        let expected = format!("rank 2 on node1 died: killed by signal 9 ({})", lost(1, 2));
        assert_eq!(diagnosis.look().unwrap_err().to_string(), expected);
    }
}
