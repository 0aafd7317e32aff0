//! Checkpoints, and runs that go on from one: bit for bit what they would have been.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::endings::{signal, wait_until};
use super::{Place, read};

/// A job of some hundred steps that depends on all that there is to remember.
const JOB: &str = "--sync ddp --compress top-k --keep 0.1 --momentum 0.9 --shuffle --augment crop --workers 2 --samples 40 \
                   --epochs 40 --test-every 10";

fn weights(place: &Place, run: &str) -> Vec<u8> {
    fs::read(place.path(&format!("{run}/model.safetensors"))).unwrap()
}

/// The names of the checkpoints of a run, in order.
fn checkpoints(place: &Place, run: &str) -> Vec<usize> {
    let entries = fs::read_dir(place.path(&format!("{run}/checkpoints"))).into_iter().flatten();
    let mut names: Vec<usize> = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect();
    names.sort_unstable();
    names
}

/// Starts a run, and kills it once it has done so many steps.
fn kill_after(place: &Place, arguments: &str, run: &str, steps: usize) {
    let launcher = place.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    kill_when(place, launcher, run, steps);
}

/// Kills a run once it has done so many steps.
fn kill_when(place: &Place, mut launcher: Child, run: &str, steps: usize) {
    let file = place.path(&format!("{run}/steps.jsonl"));
    wait_until("steps are done", || fs::read_to_string(&file).is_ok_and(|text| text.lines().count() >= steps));
    signal("KILL", launcher.id());
    launcher.wait().unwrap();
}

/// Slurm runs the same command again, which then goes on with its own run, or begins anew if nothing was saved; whatever is somebody
/// else's is refused as ever.
#[test]
fn a_requeued_job_goes_on_with_what_it_began() {
    let place = Place::new();
    place.ok(&format!("train {JOB} --out whole"));
    let start = |arguments: &str, job: &str, restarts: &str| {
        let mut command = place.command(arguments);
        command.env("SLURM_JOB_ID", job).env("SLURM_RESTART_COUNT", restarts);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let told = |child: Child| {
        let output = child.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (run, saving, expected) in [
        ("saved", "--checkpoint-every 7", "going on with saved"),
        ("unsaved", "", "nothing was saved, so beginning anew in unsaved"),
    ] {
        let command = format!("train {JOB} {saving} --out {run}");
        kill_when(&place, start(&command, "17", "0"), run, 20);
        let (done, said) = told(start(&command, "17", "1"));
        assert!(done && said.contains(&format!("Slurm has requeued this job once: {expected}")), "{said}");
        assert!(weights(&place, run) == weights(&place, "whole"), "other weights");
        let (done, said) = told(start(&command, "18", "1"));
        assert!(!done && said.contains("an earlier run is there"), "{said}");
    }
}

#[test]
fn killed_and_gone_on_with_a_run_ends_with_the_same_bits_and_one_record() {
    let place = Place::new();
    let whole = place.json(&format!("train {JOB} --out whole --json"));
    let command = format!("train {JOB} --checkpoint-every 7 --out run");
    kill_after(&place, &command, "run", 20);
    wait_until("nobody writes any more", || place.path("run/metrics.jsonl").exists());
    kill_after(&place, "train --resume run", "run", 70);
    let resumed = place.json("train --resume run --json");
    assert!(weights(&place, "run") == weights(&place, "whole"), "other weights");
    let (ours, theirs) = (&resumed["runs"][0], &whole["runs"][0]);
    for key in
        ["steps", "epochs", "epoch_losses", "epoch_test_accuracies", "bytes_sent", "weights_sha256", "interrupted"]
    {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
    let steps = |run: &str| -> Vec<(Value, Value)> {
        let lines = read(place.path(&format!("{run}/steps.jsonl")));
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| (line["step"].clone(), line["loss"].clone())).collect()
    };
    assert_eq!(steps("run"), steps("whole"));
    let metrics = |run: &str| read(place.path(&format!("{run}/metrics.jsonl"))).lines().count();
    assert_eq!(metrics("run"), metrics("whole"));
    assert_eq!(checkpoints(&place, "run").len(), 2, "the last two stay");
    assert!(place.path("run/report.html").exists());
}

/// Killed again and again while a checkpoint is being written: what is half written is none, and goes away.
#[test]
fn killed_while_a_checkpoint_is_written_a_run_goes_on_from_one_before() {
    let place = Place::new();
    // Large enough for a checkpoint to take longer than a step.
    let network = "input = [28, 28, 1]\n[[layer]]\ntype = \"linear\"\noutputs = 512\n[[layer]]\ntype = \"linear\"\noutputs = 10\n";
    fs::write(place.path("net.toml"), network).unwrap();
    let job = "--model net.toml --sync ddp --momentum 0.9 --shuffle --workers 2 --samples 40 --epochs 40";
    place.ok(&format!("train {job} --out whole"));
    let is_being_written = || {
        let entries = fs::read_dir(place.path("run/checkpoints")).into_iter().flatten();
        let mut files = entries.filter_map(|entry| Some(fs::read_dir(entry.ok()?.path()).ok()?.count()));
        // A rank's file, or a part of it, and not yet the list of all.
        files.any(|files| (1..4).contains(&files))
    };
    for command in [&*format!("train {job} --checkpoint-every 1 --out run"), "train --resume run", "train --resume run"]
    {
        let mut launcher = place.command(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let next = checkpoints(&place, "run").last().map_or(5, |last| last + 5);
        wait_until("a checkpoint is being written", || {
            checkpoints(&place, "run").last().is_some_and(|&last| last >= next) && is_being_written()
        });
        signal("KILL", launcher.id());
        launcher.wait().unwrap();
    }
    place.ok("train --resume run");
    assert!(weights(&place, "run") == weights(&place, "whole"), "other weights");
    let left = fs::read_dir(place.path("run/checkpoints")).unwrap().count();
    assert_eq!(left, checkpoints(&place, "run").len(), "something half written is left");
}

/// Truncated, with a flipped bit, without a file, of other workers: told in one line, and the one before is used.
#[test]
fn a_damaged_checkpoint_is_refused_and_the_one_before_is_used() {
    let place = Place::new();
    let job = "--workers 2 --samples 20 --epochs 12 --launch threads";
    place.ok(&format!("train {job} --checkpoint-every 4 --keep-checkpoints 9 --out run"));
    let whole = weights(&place, "run");
    let names = checkpoints(&place, "run");
    let [.., before, last] = names[..] else { panic!("{names:?}") };
    let file = place.path(&format!("run/checkpoints/{last}/rank-1.safetensors"));
    let good = fs::read(&file).unwrap();
    let resume = |expected: &str| {
        let output = place.run("train --resume run");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        let warning = format!("warning: run/checkpoints/{last}: {expected}; going on from that after step {before}");
        assert!(errors.contains(&warning), "{warning}: {errors}");
        assert!(weights(&place, "run") == whole);
    };
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bytes in [&good[..good.len() - 9], &flipped] {
        fs::write(&file, bytes).unwrap();
        resume("rank-1.safetensors is not what was written: its sha256 differs");
        fs::remove_dir_all(place.path(&format!("run/checkpoints/{last}"))).unwrap_or(());
        place.ok(&format!("train {job} --checkpoint-every 4 --keep-checkpoints 9 --out run --overwrite"));
    }
    fs::remove_file(&file).unwrap();
    resume("rank-1.safetensors is missing");

    let error = place.refused("train --resume run --workers 1 --sync all-reduce");
    assert!(
        error.contains("it is of another job: 2 workers and 0 servers there, 1 workers and 0 servers here"),
        "{error}"
    );
    let error = place.refused("train --resume run --model mlp");
    assert!(error.contains("it is of another job: model is not the same"), "{error}");
    assert_eq!(place.refused("train --resume nowhere"), "nowhere/config.toml: No such file or directory (os error 2)");
    assert_eq!(place.refused("compare --resume run"), "--resume is for train: a comparison is not gone on with");
    let error = "'x' is no time from checkpoint to checkpoint: write 100 for steps, or 30s, 10m, 1h";
    assert_eq!(place.refused("train --checkpoint-every x"), error);
}

/// An earlier run is replaced only if somebody says so, and a network stays what it was.
#[test]
fn a_run_is_not_destroyed_and_keeps_its_network() {
    let place = Place::new();
    let network = |outputs: usize| {
        format!(
            "input = [28, 28, 1]\n[[layer]]\ntype = \"linear\"\noutputs = {outputs}\n[[layer]]\ntype = \"linear\"\noutputs = 10\n"
        )
    };
    fs::write(place.path("net.toml"), network(8)).unwrap();
    let job = "train --model net.toml --workers 2 --samples 20 --epochs 2 --launch threads";
    place.ok(&format!("{job} --out run"));
    let first = weights(&place, "run");
    let error = "--out run: an earlier run is there: --overwrite replaces it, --resume goes on with it";
    assert_eq!(place.refused(&format!("{job} --out run")), error);
    assert!(weights(&place, "run") == first);
    fs::write(place.path("net.toml"), network(9)).unwrap();
    place.ok("train run/config.toml --out again");
    assert!(weights(&place, "again") == first, "the settings mean the network that was used");
    assert_eq!(read(place.path("again/model.toml")), network(8));
    place.ok(&format!("{job} --out run --overwrite"));
    assert!(weights(&place, "run") != first);
}

/// Devices that never end, and files that never end once they are unpacked.
#[test]
fn what_has_no_end_is_refused() {
    let place = Place::new();
    assert_eq!(place.refused("train --init /dev/zero"), "/dev/zero: it is a device, not a file");
    assert_eq!(place.refused("train /dev/zero"), "/dev/zero: no text of this kind is that long");
}

/// Where workers are not in step it is the launcher that asks for checkpoints; it does not ask again before all have halted.
#[test]
fn checkpoints_in_quick_succession_hold_nobody_up() {
    let place = Place::new();
    for how in ["--launch threads", "--transport shm"] {
        let json = place.json(&format!(
            "train --sync stale --staleness 2 --servers 2 --epochs 60 --checkpoint-every 5 {how} --overwrite --out run --json"
        ));
        assert_eq!(json["runs"][0]["steps"], 300, "{how}");
    }
}
