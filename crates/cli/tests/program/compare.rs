//! The main job and what it leaves behind.

use super::{Place, read};
use ringstep_data::file::sha256;
use serde_json::Value;

const KEYS: [&str; 48] = [
    "interrupted",
    "name",
    "compress",
    "slow",
    "servers",
    "repeatable",
    "restarts",
    "time_to_target",
    "images_per_second",
    "rank_images_per_second",
    "rank_updates_per_second",
    "wait_seconds",
    "staleness_histogram",
    "bytes_received",
    "wire_bytes_sent",
    "wire_bytes_received",
    "rank_bytes",
    "sent",
    "bytes_dense",
    "compression_error",
    "encode_seconds",
    "rank_encode_seconds",
    "clock_error",
    "tests",
    "epoch_test_accuracies",
    "sync",
    "algorithm",
    "workers",
    "epochs",
    "steps",
    "train_loss",
    "train_accuracy",
    "test_accuracy",
    "seconds",
    "seconds_per_step",
    "compute_seconds",
    "comm_seconds",
    "hidden_seconds",
    "instructions",
    "waiting_seconds",
    "mean_seconds_per_step",
    "predicted_seconds_per_step",
    "messages_sent",
    "data_seconds",
    "bytes_sent",
    "epoch_losses",
    "epoch_accuracies",
    "weights_sha256",
];

fn losses(run: &Value) -> Vec<f64> {
    run["epoch_losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

#[test]
fn four_ways_follow_one_curve_and_leave_everything_behind() {
    let place = Place::new();
    let json = place.json("compare --json --epochs 6 --out here");
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(json.as_object().unwrap().len(), 1);

    let ways =
        [("single", "none", 1), ("gather-scatter", "gather-scatter", 4), ("all-reduce", "ring", 4), ("ddp", "ring", 4)];
    assert_eq!(runs.len(), ways.len());
    for (run, (way, algorithm, workers)) in runs.iter().zip(ways) {
        let mut keys: Vec<_> = run.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = KEYS;
        keys.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(
            (&run["sync"], &run["algorithm"], &run["workers"]),
            (&way.into(), &algorithm.into(), &workers.into())
        );
        assert_eq!((&run["epochs"], &run["steps"]), (&6.into(), &30.into()));
        for (ours, single) in losses(run).iter().zip(losses(&runs[0])) {
            assert!((ours - single).abs() < 1e-5 * single, "{way}: {ours} is not {single}");
        }
        let weights = std::fs::read(place.path("here").join(way).join("model.safetensors")).unwrap();
        assert_eq!(run["weights_sha256"], sha256(&weights));
    }
    assert_eq!(runs[1]["bytes_sent"], 30 * 3 * 61_706 * 4);

    assert_eq!(serde_json::from_str::<Value>(&read(place.path("here/summary.json"))).unwrap(), json);
    let metrics = read(place.path("here/metrics.jsonl"));
    assert_eq!(metrics.lines().count(), 6 * (1 + 4 + 4 + 4));
    assert!(metrics.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].is_number()));
    assert!(metrics.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["data_seconds"].is_number()));

    let page = read(place.path("here/report.html"));
    for text in [
        "all-reduce, ring",
        "gather-scatter",
        "ddp, ring",
        "aria-label=\"training loss over epochs\"",
        "CC BY-SA 3.0",
        "epochs = 6",
    ] {
        assert!(page.contains(text), "the report lacks {text}");
    }
    for outside in ["src=", "href=", "url(", "@import", "{{"] {
        assert!(!page.contains(outside), "the report is not self-contained: {outside}");
    }
}

#[test]
fn a_runs_own_configuration_repeats_it_bit_for_bit() {
    let place = Place::new();
    let hashes = |json: &Value| -> Vec<Value> {
        json["runs"].as_array().unwrap().iter().map(|run| run["weights_sha256"].clone()).collect()
    };
    let first = place.json("compare --json --epochs 3 --seed 7 --shuffle --workers 3 --batch 4 --out first");
    let again = place.json("compare first/config.toml --json");
    let in_threads = place.json("compare first/config.toml --json --launch threads");
    assert_eq!(hashes(&first), hashes(&again));
    assert_eq!(hashes(&first), hashes(&in_threads));
    // Without --out each run gets a folder of its own.
    assert!(place.path("runs/compare-1/report.html").exists() && place.path("runs/compare-2/report.html").exists());
}

#[test]
fn people_get_a_table_and_the_way_to_the_report() {
    let place = Place::new();
    let text = place.ok("compare --epochs 2 --sync all-reduce,gather-scatter --workers 2");
    for part in ["all-reduce, ring", "gather-scatter", "2 x 5", "Report: runs/compare-1/report.html"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("single"));
}

/// The four-way experiment with all that it names, on a network and images that take no time.
#[test]
fn the_published_experiment_has_four_rows_and_says_where_a_step_goes() {
    let place = Place::new();
    let experiment = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/vgg11-cifar10.toml");
    let text = place.ok(&format!(
        "compare {experiment} --model cnn --dataset synthetic --samples 200 --batch 5 --steps 6 --log-every 3 --out here"
    ));
    for row in ["single", "gather-scatter", "all-reduce, ring", "ddp, ring"] {
        let ranks = if row == "single" { 1 } else { 4 };
        for rank in 0..ranks {
            for step in [3, 6] {
                assert!(text.contains(&format!("{row}: Rank {rank}, Step {step}, Loss: ")), "{text}");
            }
        }
    }
    assert!(text.contains("Where a step's time goes:") && text.contains("hidden"), "{text}");
    let page = read(place.path("here/report.html"));
    for row in ["single", "gather-scatter", "all-reduce, ring", "ddp, ring"] {
        let told = |line: &str| line.starts_with(&format!("{row}: ")) && line.contains("% of a step");
        let sentence = text.lines().find(|line| told(line)).unwrap_or_else(|| panic!("{row}: {text}"));
        assert!(page.contains(sentence), "the report lacks {sentence}");
    }

    let runs: Value = serde_json::from_str(&read(place.path("here/summary.json"))).unwrap();
    let runs = runs["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        for (ours, single) in losses(run).iter().zip(losses(&runs[0])) {
            assert!((ours - single).abs() < 1e-5 * single, "{}: {ours} is not {single}", run["sync"]);
        }
        let number = |key: &str| run[key].as_f64().unwrap();
        assert!(number("waiting_seconds") <= number("comm_seconds"));
        assert!(number("predicted_seconds_per_step") > 0.0);
    }
    let steps = read(place.path("here/steps.jsonl"));
    assert_eq!(steps.lines().count(), 4 * 6);

    for (way, ranks) in [("single", 1), ("gather-scatter", 4), ("all-reduce", 4), ("ddp", 4)] {
        let trace: Value = serde_json::from_str(&read(place.path("here").join(way).join("trace.json"))).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        for rank in 0..ranks {
            let of = |kind: &str| {
                events.iter().filter(|event| event["pid"] == rank && event["cat"] == kind && event["ph"] == "X").count()
            };
            assert_eq!((of("forward"), of("optimizer"), of("data")), (6, 6, 6));
            assert!(of("backward") >= 6 * 5);
            assert_eq!(of("communication") > 0, ranks > 1);
        }
    }
    for text in ["training loss over steps", "time of a step over steps", "one step on each rank", "slowest ranks"] {
        assert!(page.contains(&format!("aria-label=\"{text}\"")), "the report lacks {text}");
    }
    for outside in ["src=", "href=", "url(", "@import", "{{"] {
        assert!(!page.contains(outside), "the report is not self-contained: {outside}");
    }
}

#[test]
fn what_is_said_about_ddp_is_done_and_repeats() {
    let place = Place::new();
    let ddp = "train --json --sync ddp --model resnet20 --dataset synthetic --samples 48 --batch 2 --steps 2 \
               --accumulate 2 --bucket 100kB --shard contiguous --verify-every 1";
    let first = place.json(&format!("{ddp} --batch-norm sync --out first"));
    let again = place.json("train first/config.toml --json --transport tcp --launch processes");
    assert_eq!(first["runs"][0]["weights_sha256"], again["runs"][0]["weights_sha256"]);
    let other = place.json(&format!("{ddp} --batch-norm local"));
    assert_ne!(first["runs"][0]["weights_sha256"], other["runs"][0]["weights_sha256"]);
}

/// Two rows of one way have names, folders and lines of their own; and what is left behind repeats all of it.
#[test]
fn rows_of_one_way_are_told_apart_and_repeat() {
    let place = Place::new();
    let file = "steps = 3\nalgorithm = \"tree\"\n[[row]]\nsync = [\"single\", \"ddp\"]\n\
                [[row]]\nsync = \"ddp\"\nbucket = \"64kB\"\nlr = 0.5\n";
    std::fs::write(place.path("rows.toml"), file).unwrap();
    let first = place.json("compare rows.toml --json --out first");
    let again = place.json("compare first/config.toml --json --out again");
    let names = ["single", "ddp-lr-0.01", "ddp-bucket-64kB-lr-0.5"];
    for (name, (run, again)) in
        names.iter().zip(std::iter::zip(first["runs"].as_array().unwrap(), again["runs"].as_array().unwrap()))
    {
        let weights = std::fs::read(place.path("first").join(name).join("model.safetensors")).unwrap();
        assert_eq!(run["weights_sha256"], sha256(&weights), "{name}");
        assert_eq!(run["weights_sha256"], again["weights_sha256"], "{name}");
    }
    assert_eq!(first["runs"].as_array().unwrap().len(), names.len());
    assert_eq!(read(place.path("first/config.toml")), read(place.path("again/config.toml")));
    let steps: Vec<Value> =
        read(place.path("first/steps.jsonl")).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_rows: Vec<(&str, u64)> =
        steps.iter().map(|line| (line["row"].as_str().unwrap(), line["step"].as_u64().unwrap())).collect();
    let expected: Vec<(&str, u64)> = names.iter().flat_map(|name| (0..3).map(move |step| (*name, step))).collect();
    assert_eq!(of_rows, expected);
    let page = read(place.path("first/report.html"));
    assert!(page.contains("ddp, tree, lr 0.01") && page.contains("ddp, tree, bucket 64kB, lr 0.5"), "{page}");
}
