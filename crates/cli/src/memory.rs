//! Whether this machine has the memory for a job.

use std::fs;

use anyhow::{Result, anyhow, ensure};
use ringstep_nn::NetworkError;
use ringstep_train::Job;
use ringstep_train::job::Design;
use ringstep_train::memory::Need;

use crate::settings::{Faults, Run};
use crate::show::bytes;

/// An error, in one line, if so many workers that need this much each are more than this machine has memory for.
pub fn check(design: &Design, need: Result<Need, NetworkError>, workers: usize) -> Result<()> {
    check_ranks(design, need.map(|need| Ranks { need, workers, servers: 0 }))
}

/// The same for all ranks of a job on so many images. Of those that are elsewhere each is on a machine.
pub fn check_job(job: &Job, images: usize, elsewhere: bool) -> Result<()> {
    check_ranks(&job.model, ranks(job, images, elsewhere, 0))
}

/// The same for a run, with what it keeps of its workers' states to go on from.
pub fn check_run(run: &Run, images: usize, elsewhere: bool) -> Result<()> {
    let copies = match (run.faults != Faults::default(), run.checkpoint_every) {
        // The last two, and one that is made, as it is and as it is kept.
        (true, _) => 4,
        (false, Some(_)) => 2,
        (false, None) => 0,
    };
    check_ranks(&run.job.model, ranks(&run.job, images, elsewhere, copies))
}

/// The same if there are only so many bytes on this machine.
pub fn check_job_within(job: &Job, images: usize, limit: u64) -> Result<()> {
    let ranks = ranks(job, images, false, 0).map_err(|error| anyhow!("{}: {error}", job.model.name))?;
    refuse(&job.model, &ranks, limit, &format!("the limit is {}", bytes(limit)))
}

fn ranks(job: &Job, images: usize, elsewhere: bool, copies: usize) -> Result<Ranks, NetworkError> {
    job.need(images).and_then(|need| {
        let need = need.with_states(copies);
        let servers = job.need_of_servers()?;
        Ok(match elsewhere {
            false => Ranks { need, workers: job.workers, servers },
            true => Ranks { need, workers: 1, servers: 0 },
        })
    })
}

/// The ranks on one machine.
struct Ranks {
    /// What each worker needs.
    need: Need,
    workers: usize,
    /// Bytes that all servers need together.
    servers: usize,
}

fn check_ranks(design: &Design, ranks: Result<Ranks, NetworkError>) -> Result<()> {
    let there = available();
    let has = there.map(|there| format!("this machine has {}", bytes(there))).unwrap_or_default();
    let ranks = ranks.map_err(|error| match has.is_empty() {
        true => anyhow!("{}: {error}", design.name),
        false => anyhow!("{}: {error}; {has}", design.name),
    })?;
    there.map_or(Ok(()), |there| refuse(design, &ranks, there, &has))
}

/// `has` says how much is there.
fn refuse(design: &Design, &Ranks { need, workers, servers }: &Ranks, there: u64, has: &str) -> Result<()> {
    let of_workers = (need.total() as u64).saturating_mul(workers as u64).saturating_add(need.snapshots as u64);
    let total = of_workers.saturating_add(servers as u64);
    let of_servers = if servers == 0 { String::new() } else { format!(" and servers of {}", bytes(servers as u64)) };
    let of_all = match workers {
        1 if servers == 0 => String::new(),
        _ => format!("{workers} workers of {}{of_servers} need {}: ", bytes(need.total() as u64), bytes(total)),
    };
    let show = |size: usize| bytes(size as u64);
    ensure!(
        total <= there,
        "{of_all}{} needs {} for parameters, {} for gradients, {} for activations, {} for temporary room, {} for the \
         optimizer, {} for batches{} and {} for tests; {has}",
        design.name,
        show(need.model.parameters),
        show(need.model.gradients),
        show(need.model.activations),
        show(need.model.workspace),
        show(need.optimizer),
        show(need.batches),
        if need.states > 0 { format!(", {} for states to go on from", show(need.states)) } else { String::new() },
        show(need.testing.saturating_add(need.snapshots)),
    );
    Ok(())
}

/// Bytes that this process and its workers can have: what the system has available, or less if a control group limits it.
fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
    system.into_iter().chain(limits).min()
}

/// What /proc/meminfo says is available.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The files that hold the limits of these control groups, as /proc/self/cgroup lists them, and of those above them.
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        // Version 2 has one tree for all controllers, version 1 one for memory.
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{file}"));
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;
    use ringstep_nn::optim::Rule;

    use super::*;

    #[test]
    fn what_is_needed_is_told_beside_what_is_there() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let need = Need::new(&lenet5, 1000, 1, rule).unwrap();
        let enough = 4 * need.total() as u64;
        let ranks = |need, servers| Ranks { need, workers: 4, servers };
        let refuse =
            |ranks: &Ranks, there| refuse(&lenet5, ranks, there, &format!("this machine has {}", bytes(there)));
        assert!(refuse(&ranks(need, 0), enough).is_ok());
        let refusal = refuse(&ranks(need, 0), enough - 1).unwrap_err().to_string();
        let begin = format!("4 workers of {} need {}: lenet5 needs ", bytes(enough / 4), bytes(enough));
        assert!(refusal.starts_with(&begin), "{refusal}");
        let parts = "247 kB for parameters, 247 kB for gradients, ";
        assert!(
            refusal.contains(parts)
                && refusal.contains("247 kB for the optimizer, 12.3 MB for batches and 0 B for tests")
        );
        assert!(refusal.ends_with(&format!("; this machine has {}", bytes(enough - 1))), "{refusal}");
        // One rank keeps the models that are tested in the end, not each.
        let tested = Need { snapshots: 1000, ..need };
        assert!(refuse(&ranks(tested, 0), enough + 1000).is_ok());
        let refusal = refuse(&ranks(tested, 0), enough + 999).unwrap_err().to_string();
        assert!(refusal.contains("and 1.00 kB for tests"), "{refusal}");
        assert!(refuse(&ranks(need, 1000), enough + 1000).is_ok());
        let refusal = refuse(&ranks(need, 1000), enough + 999).unwrap_err().to_string();
        assert!(refusal.contains(" and servers of 1.00 kB need "), "{refusal}");
    }

    #[test]
    fn what_is_available_is_read_from_meminfo() {
        assert_eq!(mem_available("MemTotal:       24684100 kB\nMemAvailable:   23554796 kB\n"), Some(23_554_796 << 10));
        assert_eq!(mem_available("MemTotal:       24684100 kB\n"), None);
        assert!(available().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn limits_are_those_of_the_group_and_of_all_above_it() {
        assert_eq!(
            limit_files("0::/user.slice/job"),
            [
                "/sys/fs/cgroup/user.slice/job/memory.max",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(
            limit_files("5:cpu,memory:/box\n3:cpuset:/box"),
            ["/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
    }
}
