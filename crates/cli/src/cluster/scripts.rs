//! `ringstep launch`: what starts a job on a cluster, to be read and then handed to it.

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use crate::args::{Cli, one_line};
use crate::show;

/// Where pods and hosts meet.
const PORT: u16 = 29_500;

/// Makes a secret up, in a shell; processes find it in their environment, and it is on no command line.
const MAKE_SECRET: &str = "export RINGSTEP_SECRET=$(head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1)";

#[derive(Subcommand)]
pub enum LaunchCommand {
    /// A batch script for Slurm: ringstep launch slurm --nodes 2 -- --model vgg11 | sbatch
    Slurm(SlurmArgs),
    /// A manifest for Kubernetes: a job of one pod a node, where they find each other, and their secret
    Kubernetes(KubernetesArgs),
    /// The command for mpirun, as a shell script
    Mpi(MpiArgs),
}

#[derive(Args)]
pub struct JobArgs {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: usize,
    /// Workers on each of them
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub workers: usize,
    /// What the job is called: small letters, digits and dashes
    #[arg(long, value_name = "NAME", default_value = "ringstep")]
    pub name: String,
    /// Options of `ringstep train`, all but those about workers and hosts
    #[arg(value_name = "OPTIONS OF TRAIN", last = true)]
    pub train: Vec<String>,
}

#[derive(Args)]
pub struct SlurmArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Partition to run in [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    pub partition: Option<String>,
    /// The longest that it may take, as in 2:00:00 [default: the partition's]
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
}

#[derive(Args)]
pub struct KubernetesArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Image with ringstep in its PATH
    #[arg(long)]
    pub image: String,
    /// Claim of a volume in which runs/ is kept; without one it is gone with the pods
    #[arg(long, value_name = "NAME")]
    pub claim: Option<String>,
}

#[derive(Args)]
pub struct MpiArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// The hosts, of which there are as many as nodes [default: this one]
    #[arg(long, value_name = "HOST,HOST,...", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// For MPICH or Intel MPI instead of Open MPI
    #[arg(long)]
    pub mpich: bool,
}

/// Prints what starts a job.
pub fn run(command: &LaunchCommand) -> Result<()> {
    let text = match command {
        LaunchCommand::Slurm(args) => slurm(args)?,
        LaunchCommand::Kubernetes(args) => {
            let mut secret = [0; 32];
            getrandom::fill(&mut secret)?;
            let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::to_string_pretty(&kubernetes(args, &secret)?)?
        }
        LaunchCommand::Mpi(args) => mpi(args)?,
    };
    show::print(format_args!("{}", text.trim_end()))
}

impl JobArgs {
    fn check(&self) -> Result<()> {
        ensure!(self.nodes > 0 && self.workers > 0, "a job has at least one node, and a worker on it");
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_name = self.name.chars().all(plain) && self.name.starts_with(|c: char| c.is_ascii_lowercase());
        ensure!(
            is_name && !self.name.ends_with('-') && self.name.len() <= 50,
            "--name {}: at most 50 small letters, digits and dashes, with a letter first and no dash last",
            self.name
        );
        let words = ["ringstep", "train"].into_iter().chain(self.train.iter().map(String::as_str));
        if let Err(error) = Cli::try_parse_from(words) {
            // What train would say, now rather than on the cluster.
            let told = one_line(&error);
            anyhow::bail!("{}", told.strip_prefix("error: ").unwrap_or(&told));
        }
        let own = ["--workers", "--nodes", "--node-rank", "--rendezvous", "--hosts"];
        let foreign = self.train.iter().find(|word| own.contains(&word.split('=').next().unwrap_or(word)));
        ensure!(foreign.is_none(), "{} goes before the --", foreign.map_or("", String::as_str));
        Ok(())
    }

    /// `ringstep train` with its options, for a shell.
    fn command(&self) -> String {
        let words = self.train.iter().map(|word| quoted(word));
        ["ringstep".to_owned(), "train".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// How often Kubernetes starts containers anew, in all.
const RESTARTS: usize = 100;

impl JobArgs {
    /// Whether it goes on without processes that are lost, or with others in their place.
    fn goes_on(&self) -> bool {
        let is_asked = |word: &String| word.starts_with("--max-restarts") || word.starts_with("--elastic");
        self.train.iter().any(is_asked)
    }
}

fn slurm(SlurmArgs { job, partition, time }: &SlurmArgs) -> Result<String> {
    job.check()?;
    let mut options = vec![
        format!("--job-name={}", job.name),
        format!("--nodes={}", job.nodes),
        format!("--ntasks-per-node={}", job.workers),
    ];
    options.extend(partition.as_ref().map(|partition| format!("--partition={partition}")));
    options.extend(time.as_ref().map(|time| format!("--time={time}")));
    let options: String = options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
    let how = if job.goes_on() { "--no-kill --kill-on-bad-exit=0" } else { "--kill-on-bad-exit=1" };
    Ok(format!(
        "#!/bin/bash\n{options}\n# What only the processes of this job know.\n{MAKE_SECRET}\n\
         # Each task is one worker; the first one's host is where they meet, and where the report is written.\n\
         srun {how} {}\n",
        job.command()
    ))
}

fn mpi(MpiArgs { job, hosts, mpich }: &MpiArgs) -> Result<String> {
    job.check()?;
    let here = hosts.is_empty();
    ensure!(
        hosts.len() == job.nodes || (here && job.nodes == 1),
        "--nodes is {}, and --hosts names {}: each node is a host",
        job.nodes,
        hosts.len()
    );
    let processes = job.nodes * job.workers;
    // Open MPI ends all processes when one dies, unless it is told not to.
    let recovers = if job.goes_on() && !mpich { "--enable-recovery " } else { "" };
    if here {
        return Ok(format!("#!/bin/sh\nmpirun {recovers}-n {processes} {}\n", job.command()));
    }
    let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{}", job.workers)).collect();
    let (slots, first) = (slots.join(","), &hosts[0]);
    let how = match mpich {
        true => format!("-hosts {slots} -genvlist PATH,RINGSTEP_SECRET"),
        false => format!("--host {slots} -x PATH -x RINGSTEP_SECRET"),
    };
    Ok(format!(
        "#!/bin/sh\n# What only the processes of this job know.\n{MAKE_SECRET}\n\
         mpirun {recovers}-n {processes} {how} {} --rendezvous {first}:{PORT}\n",
        job.command()
    ))
}

fn kubernetes(KubernetesArgs { job, image, claim }: &KubernetesArgs, secret: &str) -> Result<Value> {
    job.check()?;
    let JobArgs { nodes, workers, name, train } = job;
    let mut command = vec!["ringstep".to_owned(), "train".to_owned()];
    command.extend(train.iter().cloned());
    command.push(format!("--workers={workers}"));
    if *nodes > 1 {
        // Which node it is says JOB_COMPLETION_INDEX; pods of an indexed job have names by it.
        command.push(format!("--nodes={nodes}"));
        command.push(format!("--rendezvous={name}-0.{name}:{PORT}"));
    }
    let labels = json!({ "app": name });
    let mut container = json!({
        "name": "ringstep",
        "image": image,
        "command": command,
        "env": [{
            "name": "RINGSTEP_SECRET",
            "valueFrom": { "secretKeyRef": { "name": name, "key": "secret" } },
        }],
        "resources": { "requests": { "cpu": workers.to_string() } },
    });
    // A pod whose process is lost comes again under the same number, where the job waits for it.
    let (restart, restarts) = if job.goes_on() { ("OnFailure", RESTARTS) } else { ("Never", 0) };
    let mut pod = json!({ "subdomain": name, "restartPolicy": restart });
    if let Some(claim) = claim {
        container["volumeMounts"] = json!([{ "name": "runs", "mountPath": "/work" }]);
        container["workingDir"] = json!("/work");
        pod["volumes"] = json!([{ "name": "runs", "persistentVolumeClaim": { "claimName": claim } }]);
    }
    pod["containers"] = json!([container]);
    Ok(json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": { "name": name },
                "stringData": { "secret": secret },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": name },
                "spec": {
                    // Pods find each other by name, also before they are ready.
                    "clusterIP": "None",
                    "publishNotReadyAddresses": true,
                    "selector": labels,
                },
            },
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": { "name": name },
                "spec": {
                    "completionMode": "Indexed",
                    "completions": nodes,
                    "parallelism": nodes,
                    "backoffLimit": restarts,
                    "template": { "metadata": { "labels": labels }, "spec": pod },
                },
            },
        ],
    }))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::core::v1::{Secret, Service};
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;

    fn job(nodes: usize, train: &str) -> JobArgs {
        let train = train.split_whitespace().map(str::to_owned).collect();
        JobArgs { nodes, workers: 2, name: "digits".to_owned(), train }
    }

    /// Whether Kubernetes' schema knows every field, each in its place and of its type.
    fn is_valid<T: Serialize + DeserializeOwned>(item: &Value) -> bool {
        let typed: T = serde_json::from_value(item.clone()).unwrap();
        serde_json::to_value(typed).unwrap() == *item
    }

    #[test]
    fn manifests_keep_to_the_schema() {
        for (nodes, claim) in [(1, None), (3, Some("disk".to_owned()))] {
            let args = KubernetesArgs { job: job(nodes, "--epochs 3"), image: "example/ringstep".to_owned(), claim };
            let manifest = kubernetes(&args, "a secret").unwrap();
            let [secret, service, job] = manifest["items"].as_array().unwrap().as_slice() else { panic!("{manifest}") };
            assert!(is_valid::<Secret>(secret) && is_valid::<Service>(service) && is_valid::<Job>(job), "{manifest}");
            let command = job["spec"]["template"]["spec"]["containers"][0]["command"].to_string();
            assert_eq!(command.contains("--rendezvous=digits-0.digits:29500"), nodes > 1, "{command}");
            // It is where only those who may read secrets can read it.
            assert_eq!(manifest.to_string().matches("a secret").count(), 1);
        }
        // The check can fail.
        assert!(!is_valid::<Job>(&json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spce": {} })));
    }

    #[test]
    fn a_batch_script_starts_one_task_a_worker() {
        let args = SlurmArgs { job: job(2, "--lr 0.1"), partition: Some("all".to_owned()), time: None };
        let script = slurm(&args).unwrap();
        for line in ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=2", "#SBATCH --partition=all", MAKE_SECRET] {
            assert!(script.lines().any(|found| found == line), "{line}: {script}");
        }
        assert!(script.ends_with("srun --kill-on-bad-exit=1 ringstep train --lr 0.1\n"), "{script}");
    }

    #[test]
    fn mpirun_hands_the_secret_on_and_never_says_it() {
        let hosts = vec!["a".to_owned(), "b".to_owned()];
        let last = |args: &MpiArgs| mpi(args).unwrap().lines().last().unwrap().to_owned();
        let mut args = MpiArgs { job: job(2, "--lr 0.1"), hosts, mpich: false };
        assert_eq!(
            last(&args),
            "mpirun -n 4 --host a:2,b:2 -x PATH -x RINGSTEP_SECRET ringstep train --lr 0.1 --rendezvous a:29500"
        );
        args.mpich = true;
        assert_eq!(
            last(&args),
            "mpirun -n 4 -hosts a:2,b:2 -genvlist PATH,RINGSTEP_SECRET ringstep train --lr 0.1 --rendezvous a:29500"
        );
        assert_eq!(last(&MpiArgs { job: job(1, ""), hosts: vec![], mpich: false }), "mpirun -n 2 ringstep train");
    }

    #[test]
    fn what_train_would_refuse_is_refused_at_once() {
        let refused = |job: JobArgs| job.check().unwrap_err().to_string();
        assert!(refused(job(1, "--epocs 3")).contains("--epocs"), "{}", refused(job(1, "--epocs 3")));
        assert_eq!(refused(job(1, "--workers 3")), "--workers goes before the --");
        assert_eq!(refused(job(0, "")), "a job has at least one node, and a worker on it");
        let named = JobArgs { name: "My_Job".to_owned(), ..job(1, "") };
        assert!(refused(named).starts_with("--name My_Job: "));
    }

    #[test]
    fn words_reach_a_shell_as_they_are() {
        assert_eq!(quoted("--lr=0.1"), "--lr=0.1");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
