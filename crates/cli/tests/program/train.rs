//! One job: initial weights, experiment files, the course's lines.

use std::fs;

use super::{Place, read, reference};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

/// Over real processes and sockets, from PyTorch's weights. The whole curve is compared in the train crate.
#[test]
fn the_curve_is_pytorchs() {
    let theirs: Value = serde_json::from_str(&read(reference("lenet5.json"))).unwrap();
    let place = Place::new();
    let init = reference("lenet5-init.safetensors");
    for way in ["single --workers 1 --batch 20", "gather-scatter", "all-reduce --workers 4 --batch 5"] {
        let json = place.json(&format!("train --json --epochs 10 --init {} --sync {way}", init.display()));
        let ours = json["runs"][0]["epoch_losses"].as_array().unwrap();
        assert_eq!(ours.len(), 10);
        for (ours, theirs) in ours.iter().zip(theirs["plain"]["epoch_losses"].as_array().unwrap()) {
            let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
            assert!((ours - theirs).abs() < 1e-4 * theirs, "{way}: {ours} is not {theirs}");
        }
    }
}

/// Levels that round a multiply-add once train to the same weights, and a run says with which one it was.
#[test]
fn every_level_trains_to_the_same_bits_and_is_recorded() {
    let place = Place::new();
    let mut fused: Option<Value> = None;
    for (index, level) in ringstep_cpu::Level::available().into_iter().enumerate() {
        let run = &place.json(&format!("train --json --epochs 3 --instructions {level} --out {level}"))["runs"][0];
        assert_eq!(run["instructions"], level.name());
        assert!(read(place.path(level.name()).join("config.toml")).contains(&format!("instructions = \"{level}\"")));
        assert!(read(place.path(level.name()).join("report.html")).contains(&format!("{level} instructions")));
        if index > 0 {
            let sha = &run["weights_sha256"];
            assert_eq!(fused.get_or_insert_with(|| sha.clone()), sha, "{level}");
        }
    }
}

#[test]
fn a_run_starts_from_what_another_has_left() {
    let place = Place::new();
    let first = place.json("train --json --epochs 3 --out first");
    let second = place.json("train --json --epochs 3 --init first/model.safetensors --out second");
    let loss = |json: &Value, epoch: usize| json["runs"][0]["epoch_losses"][epoch].as_f64().unwrap();
    assert!(loss(&second, 0) < loss(&first, 2));
    // Six epochs in one go are the same as three and three: plain SGD has no other state.
    let whole = place.json("train --json --epochs 6");
    assert_eq!(whole["runs"][0]["weights_sha256"], second["runs"][0]["weights_sha256"]);
}

#[test]
fn verbose_prints_what_the_students_printed() {
    let place = Place::new();
    let text = place.ok("train -v --epochs 3 --workers 2");
    for rank in 0..2 {
        for epoch in 0..3 {
            let line =
                text.lines().find(|line| line.starts_with(&format!("Rank {rank}, Epoch {epoch}, Loss: "))).unwrap();
            let (loss, accuracy) = line.split_once("Loss: ").unwrap().1.split_once(", Accuracy: ").unwrap();
            assert_eq!(loss.split_once('.').unwrap().1.len(), 4, "{line}");
            // A shard has 50 images, so each is worth 2%.
            let percent: f64 = accuracy.strip_suffix('%').unwrap().parse().unwrap();
            assert_eq!(percent % 2.0, 0.0, "{line}");
        }
        let time = text.lines().find(|line| line.starts_with(&format!("Rank {rank}, Training Time: "))).unwrap();
        assert!(time.ends_with(" seconds"), "{time}");
    }
    let quiet = place.run("train -v --json --epochs 1");
    assert!(serde_json::from_slice::<Value>(&quiet.stdout).is_ok());
    assert!(String::from_utf8(quiet.stderr).unwrap().contains("Rank 3, Epoch 0, Loss: "));
}

#[test]
fn an_experiment_file_says_what_flags_say_and_flags_go_first() {
    let place = Place::new();
    fs::write(place.path("a.toml"), "sync = \"gather-scatter\"\nsamples = 40\nworkers = 2\nsteps = 4\nlr = 0.5\n")
        .unwrap();
    let json = place.json("train a.toml --json --lr 0.01 --steps 3");
    let run = &json["runs"][0];
    assert_eq!((&run["sync"], &run["workers"], &run["steps"]), (&"gather-scatter".into(), &2.into(), &3.into()));
    let flags = place.json("train --json --sync gather-scatter --samples 40 --workers 2 --steps 3");
    assert_eq!(run["weights_sha256"], flags["runs"][0]["weights_sha256"]);
}

/// Every experiment that is part of the project is valid up to its data.
#[test]
fn the_projects_experiments_are_valid() {
    let place = Place::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue; // Networks, which are no experiments.
        }
        // With one step on the built-in sample, or on images made up, each takes no time.
        let text = fs::read_to_string(&path).unwrap();
        if text.contains("[quantize]") {
            continue; // It is quantize's, which does more than train.
        }
        let data = if text.contains("mnist") { "--samples 2000" } else { "--dataset synthetic --samples 200" };
        let compares = ["sync = [", "compress = [", "[[row]]"].iter().any(|list| text.contains(list));
        let (verb, small) = if compares { ("compare", "--launch threads") } else { ("train", "") };
        // Rows may be told apart by their batches, of which a large one takes long.
        let large = ["batch = 256", "batch = 16"].iter().all(|batch| text.contains(batch));
        let (path, batch) = if large {
            let copy = place.path(path.file_name().unwrap().to_str().unwrap());
            fs::write(&copy, text.replace("batch = 256", "batch = 8").replace("batch = 16", "batch = 4")).unwrap();
            (copy, "")
        } else {
            (path, if compares { "--batch 4" } else { "" })
        };
        let command = format!("{verb} {} --json {data} --steps 1 {small} {batch}", path.display());
        assert_eq!(place.json(&command)["runs"][0]["steps"], 1);
        count += 1;
    }
    assert!(count > 0);
}

/// The options of ways are those that they run with, over links that are slow, and a run repeats with what it has found.
#[test]
fn learners_are_found_and_written_down() {
    let place = Place::new();
    let output = place.run("train --sync sma --learners auto --steps 2 --workers 2 --batch 2 --out run");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    let line = told.lines().find(|line| line.contains(" learners a worker, by images a second: ")).expect(&told);
    let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
    let found = config.lines().find_map(|line| line.strip_prefix("learners = ")).expect(&config);
    assert!(line.starts_with(&format!("sma: {found} learners")), "{line}: {found}");
    let (first, again) = (fs::read(place.path("run/model.safetensors")).unwrap(), "train run/config.toml --out again");
    place.ok(again);
    assert_eq!(first, fs::read(place.path("again/model.safetensors")).unwrap());
}

/// Two ranks in each worker's process, and the same weights as if servers were on their own.
#[test]
fn servers_may_share_the_processes_of_workers() {
    let place = Place::new();
    let train = |rest: &str| place.json(&format!("train --json --epochs 3 --workers 3 {rest}"))["runs"][0].clone();
    for way in ["parameter-server", "stale --staleness 0", "parameter-server --compress top-k"] {
        let apart = train(&format!("--sync {way} --servers 3"));
        for launch in ["processes", "threads"] {
            let colocated = train(&format!("--sync {way} --servers colocated --launch {launch}"));
            assert_eq!(colocated["weights_sha256"], apart["weights_sha256"], "{way}, {launch}");
            assert_eq!(colocated["rank_bytes"].as_array().unwrap().len(), 6, "{way}, {launch}");
        }
    }
}

#[test]
fn a_network_may_be_slow_and_changes_nothing_else() {
    let place = Place::new();
    for launch in ["processes", "threads"] {
        let train = |rest: &str| {
            let run = format!("train --json --sync ddp --steps 3 --launch {launch} {rest}");
            place.json(&run)["runs"][0].clone()
        };
        let (fast, slow) = (train(""), train("--net bandwidth=10Mbit,latency=2ms"));
        assert_eq!(fast["weights_sha256"], slow["weights_sha256"]);
        // A ring of four sends half as much again as the model has, which no link lets pass in less.
        let least = 1.5 * 61_706.0 * 4.0 / 1.25e6;
        assert!(slow["mean_seconds_per_step"].as_f64().unwrap() >= least, "{slow}");
    }
}

#[test]
fn mnist_or_its_sample_is_what_there_is() {
    let place = Place::new();
    let output = place.run("train --dataset mnist-or-sample --steps 1 --out run");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with("mnist is not on this machine: training on the sample that is built in\n"), "{told}");
    let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
    assert!(config.contains("dataset = \"mnist\"") && config.contains("samples = 2000"), "{config}");
}

#[test]
fn every_model_trains_and_a_network_of_ones_own_too() {
    let place = Place::new();
    let net = "input = [8, 8, 3]\n[[layer]]\ntype = \"conv\"\nfilters = 4\nkernel = 3\npadding = 1\n\
               [[layer]]\ntype = \"batch-norm\"\n[[layer]]\ntype = \"relu\"\n\
               [[layer]]\ntype = \"residual\"\nbody = [{ type = \"conv\", filters = 4, kernel = 3, padding = 1 }]\n\
               [[layer]]\ntype = \"max-pool\"\nsize = 2\n[[layer]]\ntype = \"dropout\"\nrate = 0.1\n\
               [[layer]]\ntype = \"linear\"\noutputs = 10\n";
    std::fs::write(place.path("net.toml"), net).unwrap();
    for (model, rest) in [
        ("net.toml", "--optimizer adamw --weight-decay 0.01 --schedule step --decay-every 1"),
        ("cnn", "--optimizer adam --schedule cosine --label-smoothing 0.1"),
        ("mlp", "--momentum 0.9 --nesterov --schedule polynomial --warm-up 0.5"),
        ("resnet20", "--optimizer lars --warm-up 1 --warm-up-kind constant"),
    ] {
        let command = format!(
            "train --model {model} --dataset synthetic --samples 24 --workers 2 --batch 6 --epochs 2 --launch threads \
             --threads 2 --test-every 1 --lr 0.001 {rest} --json"
        );
        let run = &place.json(&command)["runs"][0];
        assert!(run["train_loss"].as_f64().unwrap().is_finite(), "{model}");
        let tests = run["epoch_test_accuracies"].as_array().unwrap();
        assert_eq!(tests.len(), 2);
        assert_eq!(tests[1], run["test_accuracy"]);
        assert!(tests[0].is_number());
    }
}

/// Whoever asks for more than there are cores is warned once, by a line of its own or with the results.
#[test]
fn workers_that_share_cores_are_told_once() {
    // What is started inherits the cores of the thread that starts it.
    let on_one_core = |arguments: &'static str| {
        let run = move || {
            let allowed = sched_getaffinity(None).unwrap();
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            let place = Place::new();
            let output = place.run(arguments);
            assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
            let report = fs::read_to_string(place.path("runs/train-1/report.html")).unwrap_or_default();
            let warnings: Vec<String> = String::from_utf8(output.stderr)
                .unwrap()
                .lines()
                .filter_map(|line| line.strip_prefix("warning: ").map(str::to_owned))
                .collect();
            (warnings, String::from_utf8(output.stdout).unwrap(), report)
        };
        std::thread::spawn(run).join().unwrap()
    };
    let (warnings, text, report) = on_one_core("train --epochs 1");
    assert!(warnings.is_empty() && text.contains("\n4 workers share 1 core, so "), "{warnings:?}, {text}");
    assert!(report.contains("4 workers share 1 core, so "));
    let (warnings, text, report) = on_one_core("train --epochs 1 --workers 2");
    assert_eq!(warnings, ["2 workers share 1 core"]);
    assert!(!text.contains("share 1 core") && report.contains("2 workers share 1 core, so "), "{text}");
    let (warnings, json, _) = on_one_core("train --epochs 1 --json");
    assert_eq!(warnings, ["4 workers share 1 core"]);
    assert!(serde_json::from_str::<Value>(&json).is_ok());
    let (warnings, text, _) = on_one_core("train --epochs 1 --workers 1");
    assert!(warnings.is_empty() && !text.contains("share"), "{warnings:?}, {text}");
    let (warnings, ..) = on_one_core("bench kernels --model mlp --batch 1 --threads 2");
    assert_eq!(warnings, ["2 threads share 1 core"]);
}

#[test]
fn a_loss_that_is_not_finite_is_told_with_step_and_layer() {
    let place = Place::new();
    let message = place.refused("train --launch threads --workers 1 --samples 40 --batch 20 --lr 1e30 --epochs 3");
    // The weights are beyond all bounds after the first step, but tanh is not: the loss follows a step later.
    let told = "rank 0: the loss is NaN in step 0 of epoch 1, first seen in layer conv1: training diverged";
    assert!(message.starts_with(told), "{message}");
}
